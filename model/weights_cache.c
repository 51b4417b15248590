/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/weights_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"

/* The whole header; numbers in the machine's order, as the weights are. */
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
    *c = (weights_cache){.draft.fd = -1};
    snprintf(name, sizeof name, "%.32s.%s", key->model, dtype_name(key->type));
    if (!(c->path = path_join(dir, name))) return err_set(e, ST_NOMEM, "weights cache: out of memory");
    return ST_OK;
}

/* ST_FORMAT with the reason why a file is not of a key, or damaged; ST_NOMEM. */
static status check(const file_map *m, const weights_key *key, int n_threads, err *e)
{
    unsigned char want[WEIGHTS_CACHE_HEADER];
    const unsigned char *map = m->data;
    sums_bad bad;
    if (m->size != file_bytes(key)) return err_set(e, ST_FORMAT, "%zu bytes, expected %zu", m->size, file_bytes(key));
    make_header(want, key, map + sums_at(key));
    if (memcmp(map, want, sizeof want) != 0)
        return err_set(e, ST_FORMAT, "the header is not that of this model and version");
    const sums_part all = {.at = WEIGHTS_CACHE_HEADER,
                           .n = 1,
                           .used = key->bytes,
                           .p = map + WEIGHTS_CACHE_HEADER,
                           .sum = (const uint64_t *)(const void *)(map + sums_at(key))};
    status st = sums_check(-1, &all, 1, n_threads, &bad, e);
    if (st != ST_FORMAT) return st;
    return err_set(e, ST_FORMAT, "damaged: bytes %llu to %llu do not have their checksum", (unsigned long long)bad.at,
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

/* mkdir -p, for the user alone as the XDG rules want it. */
static status make_folder(const char *dir, err *e)
{
    char *path = mem_strdup(dir);
    if (!path) return err_set(e, ST_NOMEM, "weights cache: out of memory");
    status st = ST_OK;
    for (char *p = path; st == ST_OK && p;) {
        p = strchr(p + 1, '/');
        if (p) *p = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            st = err_set(e, ST_IO, "%s: %s", path_tail(path), strerror(errno));
        if (p) *p = '/';
    }
    mem_free(path);
    return st;
}

status weights_cache_create(weights_cache *c, const weights_key *key, const char *dir, err *e)
{
    TRY(name_file(c, dir, key, e));
    TRY(make_folder(dir, e));
    TRY(file_draft_open(&c->draft, c->path, e));
    size_t bytes = file_bytes(key);
    /* reserved now: a full disk is an error here and not a signal when the mapping is written */
    int why = posix_fallocate(c->draft.fd, 0, (off_t)bytes);
    if (why != 0) return err_set(e, ST_IO, "%s: %zu bytes: %s", path_tail(c->path), bytes, strerror(why));
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->draft.fd, 0);
    if (p == MAP_FAILED) return err_set(e, ST_IO, "%s: cannot map: %s", path_tail(c->path), strerror(errno));
    c->map = p;
    c->map_bytes = bytes;
    return ST_OK;
}

status weights_cache_commit(weights_cache *c, const weights_key *key, err *e)
{
    sums_make((uint64_t *)(void *)(c->map + sums_at(key)), c->map + WEIGHTS_CACHE_HEADER, key->bytes);
    make_header(c->map, key, c->map + sums_at(key));
    if (msync(c->map, c->map_bytes, MS_SYNC) != 0)
        return err_set(e, ST_IO, "%s: %s", path_tail(c->path), strerror(errno));
    TRY(file_draft_commit(&c->draft, 0, e));
    mprotect(c->map, c->map_bytes, PROT_READ); /* weights are never written: a fault shows who does */
    return ST_OK;
}

void weights_cache_close(weights_cache *c)
{
    file_draft_close(&c->draft);
    mem_unmap(c->map, c->map_bytes);
    mem_free(c->path);
    *c = (weights_cache){.draft.fd = -1};
}
