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

size_t mem_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    fclose(f);
    return (size_t)kib * 1024;
}
