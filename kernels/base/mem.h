/* SPDX-License-Identifier: MIT */
/* Allocation with checked sizes, one hook for tests, and reserved address space for KV. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* a*b and a+b into *out; ST_NOMEM with `what` in the message on overflow. */
status size_mul(size_t *out, size_t a, size_t b, const char *what, err *e);
status size_add(size_t *out, size_t a, size_t b, const char *what, err *e);

/* Heap. mem_alloc gives zeroed memory of n*size bytes (64-byte aligned); n*size == 0 gives a
 * valid pointer. mem_resize keeps the old content and does not zero the rest. All engine code
 * allocates through these, so that tests can count and fail allocations. */
status mem_alloc(void **out, size_t n, size_t size, const char *what, err *e);
status mem_resize(void **p, size_t n, size_t size, const char *what, err *e);
void mem_free(void *p);
char *mem_strdup(const char *s); /* NULL when out of memory or s is NULL */

/* Typed forms: MEM_NEW(&ptr, n, e). */
#define MEM_NEW(pp, n, e)  mem_alloc((void **)(pp), (n), sizeof **(pp), #pp, (e))
#define MEM_GROW(pp, n, e) mem_resize((void **)(pp), (n), sizeof **(pp), #pp, (e))

/* Makes room for n elements of an array that has room for *cap and grows by half. New room is not zeroed. */
status mem_room(void **p, size_t *cap, size_t n, size_t size, const char *what, err *e);
#define MEM_ROOM(pp, cap, n, e) mem_room((void **)(pp), (cap), (n), sizeof **(pp), #pp, (e))

/* Address space of at least `bytes` (page-rounded), zero on first touch, huge pages advised.
 * mem_unmap needs the same size. */
status mem_map_anon(void **out, size_t bytes, const char *what, err *e);
/* Gives the whole pages within [p, p + bytes) back to the system; they read as 0 afterwards. */
void mem_discard(void *p, size_t bytes);
void mem_unmap(void *p, size_t bytes);
/* Advice that [p, p + bytes) is touched here and there: no huge pages for the whole pages within. */
void mem_small_pages(void *p, size_t bytes);
/* What mem_map_anon gave becomes a private copy of an open file from `offset` on, read where it is touched; the file
 * must be that long. False, and nothing is changed, where the system cannot map it there. */
bool mem_map_file(void *p, size_t bytes, int fd, uint64_t offset);

/* Physical memory that the system says is available now, in bytes (0 if unknown). */
size_t mem_available(void);

/* Test hook: fail the n-th allocation from now on (1 = the next; 0 = never), count all. */
void mem_test_fail_at(long n);
long mem_test_count(void);

#ifdef __cplusplus
}
#endif

#endif
