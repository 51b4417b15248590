/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long alloc_count;
static atomic_long alloc_fail_at;

void mem_test_fail_at(long n)
{
    atomic_store(&alloc_fail_at, n ? atomic_load(&alloc_count) + n : 0);
}

long mem_test_count(void)
{
    return atomic_load(&alloc_count);
}

static bool refused(void)
{
    long k = atomic_fetch_add(&alloc_count, 1) + 1;
    return k == atomic_load(&alloc_fail_at);
}

status size_mul(size_t *out, size_t a, size_t b, const char *what, err *e)
{
    if (__builtin_mul_overflow(a, b, out) || *out > SIZE_MAX / 2)
        return err_set(e, ST_NOMEM, "%s: %zu x %zu bytes is too large", what, a, b);
    return ST_OK;
}

status size_add(size_t *out, size_t a, size_t b, const char *what, err *e)
{
    if (__builtin_add_overflow(a, b, out) || *out > SIZE_MAX / 2)
        return err_set(e, ST_NOMEM, "%s: %zu + %zu bytes is too large", what, a, b);
    return ST_OK;
}

static status no_memory(size_t bytes, const char *what, err *e)
{
    return err_set(e, ST_NOMEM, "%s: out of memory (%zu bytes requested)", what, bytes);
}

status mem_alloc(void **out, size_t n, size_t size, const char *what, err *e)
{
    size_t bytes;
    *out = NULL;
    TRY(size_mul(&bytes, n, size, what, e));
    void *p = NULL;
    if (refused() || posix_memalign(&p, 64, bytes ? bytes : 1) != 0) return no_memory(bytes, what, e);
    memset(p, 0, bytes);
    *out = p;
    return ST_OK;
}

status mem_resize(void **p, size_t n, size_t size, const char *what, err *e)
{
    size_t bytes;
    TRY(size_mul(&bytes, n, size, what, e));
    void *q = refused() ? NULL : realloc(*p, bytes ? bytes : 1);
    if (!q) return no_memory(bytes, what, e);
    *p = q;
    return ST_OK;
}

status mem_room(void **p, size_t *cap, size_t n, size_t size, const char *what, err *e)
{
    size_t more;
    if (n <= *cap) return ST_OK;
    TRY(size_add(&more, n, n / 2 + 32, what, e));
    TRY(mem_resize(p, more, size, what, e));
    *cap = more;
    return ST_OK;
}

void mem_free(void *p)
{
    free(p);
}

char *mem_strdup(const char *s)
{
    return s && !refused() ? strdup(s) : NULL;
}

static size_t page_round(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes ? (bytes + page - 1) / page * page : page;
}

status mem_map_anon(void **out, size_t bytes, const char *what, err *e)
{
    *out = NULL;
    if (bytes > SIZE_MAX / 2) return no_memory(bytes, what, e);
    size_t n = page_round(bytes);
    void *p = refused() ? MAP_FAILED
                        : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return no_memory(bytes, what, e);
    madvise(p, n, MADV_HUGEPAGE); /* a refusal affects speed only */
    *out = p;
    return ST_OK;
}

void mem_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, page_round(bytes));
}

/* Advises the whole pages within [p, p + bytes). */
static void advise(void *p, size_t bytes, int advice)
{
    uintptr_t page = page_round(1), at = (uintptr_t)p, skip = (page - at % page) % page;
    if (bytes >= skip + page) madvise((unsigned char *)p + skip, (bytes - skip) / page * page, advice);
}

void mem_discard(void *p, size_t bytes)
{
    advise(p, bytes, MADV_DONTNEED);
}

void mem_small_pages(void *p, size_t bytes)
{
    advise(p, bytes, MADV_NOHUGEPAGE);
}

bool mem_map_file(void *p, size_t bytes, int fd, uint64_t offset)
{
    if (offset % page_round(1) != 0 || offset > INT64_MAX) return false;
    return mmap(p, page_round(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
                (off_t)offset) != MAP_FAILED;
}

size_t mem_prefetch(const void *p, size_t bytes)
{
    enum { PAGES = 1024 };
    unsigned char here[PAGES];
    const size_t page = page_round(1), skip = (uintptr_t)p % page, all = page_round(bytes + skip);
    unsigned char *at = (unsigned char *)(uintptr_t)p - skip;
    size_t absent = 0;
    for (size_t i = 0, n; i < all; i += n) {
        n = all - i < PAGES * page ? all - i : PAGES * page;
        if (mincore(at + i, n, here) != 0) return bytes;
        for (size_t k = 0; k < n / page; k++) absent += !(here[k] & 1);
    }
    if (absent) {                      /* a refusal affects speed only */
        madvise(at, all, MADV_RANDOM); /* a page that is absent nevertheless does not bring its neighbours */
        madvise(at, all, MADV_WILLNEED);
    }
    return absent * page < bytes ? bytes - absent * page : 0;
}

/* ---- available memory ---- */

/* A hierarchy of control groups and its files. */
typedef struct {
    const char *root, *limit, *used; /* used: key of memory.stat */
} group_kind;

/* Reads a number from a file, after a key. SIZE_MAX: there is none. */
static size_t read_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    const size_t n = strlen(key);
    unsigned long long v;
    size_t found = SIZE_MAX;
    while (f && found == SIZE_MAX && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, " %llu", &v) == 1) found = (size_t)v;
    if (f) fclose(f);
    return found;
}

/* Returns what a group and those above it leave. path: of the group, shortened to the root. */
static size_t group_room(const group_kind *k, char *path)
{
    char file[4352];
    size_t room = SIZE_MAX;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = 0;
        snprintf(file, sizeof file, "%s%s/%s", k->root, path, k->limit);
        const size_t limit = read_number(file, "");
        snprintf(file, sizeof file, "%s%s/memory.stat", k->root, path);
        const size_t used = read_number(file, k->used);
        const size_t left = limit == SIZE_MAX || used == SIZE_MAX ? limit : limit > used ? limit - used : 1;
        if (left < room) room = left;
    }
    return room;
}

/* Returns what the process's control groups leave; SIZE_MAX without a limit. */
static size_t groups_room(void)
{
    static const group_kind v2 = {"/sys/fs/cgroup", "memory.max", "anon "};
    static const group_kind v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss "};
    FILE *f = fopen("/proc/self/cgroup", "r");
    char line[4096];
    size_t room = SIZE_MAX;
    while (f && fgets(line, sizeof line, f)) { /* id:controllers:path */
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        const bool memory = strcmp(names + 1, "memory") == 0;
        if (!memory && names[1]) continue;
        const size_t left = group_room(memory ? &v1 : &v2, path);
        if (left < room) room = left;
    }
    if (f) fclose(f);
    return room;
}

size_t mem_available(void)
{
    const size_t kib = read_number("/proc/meminfo", "MemAvailable:"), room = groups_room();
    if (kib == SIZE_MAX) return 0;
    return kib * 1024 < room ? kib * 1024 : room;
}
