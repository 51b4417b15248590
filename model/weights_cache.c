/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/weights_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"

/* The file's header. Numbers are in native byte order, like the weights. */
typedef struct {
    char magic[16];
    uint32_t version, type;
    uint64_t file_bytes;
    char model[SHA256_HEX], sums[SHA256_HEX];
} header;

static size_t sums_bytes(const weights_key *key)
{
    return (size_t)sums_count(1, key->bytes) * sizeof(uint64_t);
}

/* Returns the offset of the checksums. */
static size_t sums_at(const weights_key *key)
{
    return WEIGHTS_CACHE_HEADER + (key->bytes + 7) / 8 * 8;
}

static size_t file_bytes(const weights_key *key)
{
    return sums_at(key) + sums_bytes(key);
}

static void make_header(unsigned char out[WEIGHTS_CACHE_HEADER], const weights_key *key, const unsigned char *sums)
{
    header h;
    sha256 sum;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "kvasir weights\n", 16);
    h.version = WEIGHTS_CACHE_VERSION;
    h.type = (uint32_t)key->type;
    h.file_bytes = file_bytes(key);
    memcpy(h.model, key->model, sizeof h.model);
    sha256_init(&sum);
    sha256_add(&sum, sums, sums_bytes(key));
    sha256_hex(&sum, h.sums);
    memset(out, 0, WEIGHTS_CACHE_HEADER);
    memcpy(out, &h, sizeof h);
}

static status name_file(weights_cache *c, const char *dir, const weights_key *key, err *e)
{
    char name[64];
    *c = (weights_cache){.temp.fd = -1};
    snprintf(name, sizeof name, "%.32s.%s", key->model, key->name);
    if (!(c->path = path_join(dir, name))) return err_set(e, ST_NOMEM, "weights cache: out of memory");
    return ST_OK;
}

/* Returns ST_FORMAT, with the reason, if a file has another key or is damaged; ST_NOMEM. */
static status check(const file_map *m, const weights_key *key, int n_threads, err *e)
{
    unsigned char want[WEIGHTS_CACHE_HEADER];
    const unsigned char *map = m->data;
    sums_bad bad;
    if (m->size != file_bytes(key)) return err_set(e, ST_FORMAT, "%zu bytes, expected %zu", m->size, file_bytes(key));
    make_header(want, key, map + sums_at(key));
    if (memcmp(map, want, sizeof want) != 0) return err_set(e, ST_FORMAT, "the header is of another model or version");
    const sums_part all = {.at = WEIGHTS_CACHE_HEADER,
                           .n = 1,
                           .used = key->bytes,
                           .p = map + WEIGHTS_CACHE_HEADER,
                           .sum = (const uint64_t *)(const void *)(map + sums_at(key))};
    status st = sums_check(-1, &all, 1, n_threads, &bad, e);
    if (st != ST_FORMAT) return st;
    return err_set(e, ST_FORMAT, "damaged: bytes %llu to %llu fail their checksum", (unsigned long long)bad.at,
                   (unsigned long long)(bad.at + bad.bytes - 1));
}

status weights_cache_open(weights_cache *c, const char *dir, const weights_key *key, int n_threads, err *e)
{
    file_map m;
    err why = {0};
    TRY(name_file(c, dir, key, e));
    if (access(c->path, F_OK) != 0) return ST_OK;
    if (file_map_open(&m, c->path, &why) != ST_OK) {
        err_set(e, ST_OK, "%s", why.msg);
        return ST_OK;
    }
    if (check(&m, key, n_threads, &why) != ST_OK) {
        err_set(e, ST_OK, "%s: %s", path_tail(c->path), why.msg);
        file_map_close(&m);
        return ST_OK;
    }
    c->map = (unsigned char *)(uintptr_t)m.data;
    c->map_bytes = m.size;
    return ST_OK;
}

status weights_cache_create(weights_cache *c, const weights_key *key, const char *dir, err *e)
{
    TRY(name_file(c, dir, key, e));
    TRY(dir_make(dir, e));
    TRY(temp_file_open(&c->temp, c->path, e));
    /* Reserve the space now: a full disk is then found before the work. */
    size_t bytes = file_bytes(key);
    int why = posix_fallocate(c->temp.fd, 0, (off_t)bytes);
    if (why != 0) return err_set(e, ST_IO, "%s: %zu bytes: %s", path_tail(c->path), bytes, strerror(why));
    return ST_OK;
}

status weights_cache_write(weights_cache *c, size_t at, const void *p, size_t n, err *e)
{
    return temp_file_write(&c->temp, WEIGHTS_CACHE_HEADER + at, p, n, e);
}

status weights_cache_commit(weights_cache *c, const weights_key *key, int n_threads, err *e)
{
    unsigned char first[WEIGHTS_CACHE_HEADER];
    uint64_t *sums;
    size_t bytes = file_bytes(key);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, c->temp.fd, 0);
    if (p == MAP_FAILED) return err_set(e, ST_IO, "%s: cannot be mapped: %s", path_tail(c->path), strerror(errno));
    c->map = p;
    c->map_bytes = bytes;
    TRY(mem_alloc((void **)&sums, 1, sums_bytes(key), "checksums", e));
    status st = sums_make(sums, c->map + WEIGHTS_CACHE_HEADER, key->bytes, n_threads, e);
    make_header(first, key, (unsigned char *)sums);
    if (st == ST_OK) st = temp_file_write(&c->temp, sums_at(key), sums, sums_bytes(key), e);
    if (st == ST_OK) st = temp_file_write(&c->temp, 0, first, sizeof first, e);
    if (st == ST_OK) st = temp_file_publish(&c->temp, e);
    mem_free(sums);
    return st;
}

void weights_cache_close(weights_cache *c)
{
    temp_file_close(&c->temp);
    mem_unmap(c->map, c->map_bytes);
    mem_free(c->path);
    *c = (weights_cache){.temp.fd = -1};
}
