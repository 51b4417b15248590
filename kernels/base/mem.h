/* SPDX-License-Identifier: MIT */
/* Allocation with checked sizes and test hooks, and reserved address space for KV. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stores a*b or a+b in *out; ST_NOMEM with `what` in the message on overflow. */
status size_mul(size_t *out, size_t a, size_t b, const char *what, err *e);
status size_add(size_t *out, size_t a, size_t b, const char *what, err *e);

/* Heap. mem_alloc returns zeroed memory of n*size bytes (64-byte aligned); n*size == 0 gives a valid pointer.
 * mem_resize keeps the old content and does not zero the rest. All engine code allocates through these, so that tests
 * can count allocations and make them fail. */
status mem_alloc(void **out, size_t n, size_t size, const char *what, err *e);
status mem_resize(void **p, size_t n, size_t size, const char *what, err *e);
void mem_free(void *p);
char *mem_strdup(const char *s); /* NULL when out of memory or s is NULL */

/* Typed forms: MEM_NEW(&ptr, n, e). */
#define MEM_NEW(pp, n, e)  mem_alloc((void **)(pp), (n), sizeof **(pp), #pp, (e))
#define MEM_GROW(pp, n, e) mem_resize((void **)(pp), (n), sizeof **(pp), #pp, (e))

/* Ensures capacity for n elements of an array with capacity *cap, which grows by half. New elements are not zeroed. */
status mem_room(void **p, size_t *cap, size_t n, size_t size, const char *what, err *e);
#define MEM_ROOM(pp, cap, n, e) mem_room((void **)(pp), (cap), (n), sizeof **(pp), #pp, (e))

/* Reserves at least `bytes` of address space (page-rounded), zero on first touch, with huge pages advised. mem_unmap
 * needs the same size. */
status mem_map_anon(void **out, size_t bytes, const char *what, err *e);
/* Returns the whole pages within [p, p + bytes) to the system; they read as 0 afterwards. */
void mem_discard(void *p, size_t bytes);
void mem_unmap(void *p, size_t bytes);
/* Advises that [p, p + bytes) is accessed sparsely: no huge pages for the whole pages within. */
void mem_small_pages(void *p, size_t bytes);
/* Replaces memory from mem_map_anon by a private copy of an open file from `offset` on, which is read when it is
 * touched. The file must be long enough. Returns false and changes nothing if the system cannot map it there. */
bool mem_map_file(void *p, size_t bytes, int fd, uint64_t offset);

/* Starts to read the pages of [p, p + bytes), a part of a mapped file, that are not in memory. Returns the number of
 * bytes that are; all of them if the system does not tell. */
size_t mem_prefetch(const void *p, size_t bytes);

/* Returns the available physical memory in bytes as reported by the system (0 if unknown), at most what the process's
 * control groups (version 1 or 2) allow less their anonymous memory. */
size_t mem_available(void);

/* Test hook: the n-th following allocation fails (1 = the next; 0 = never); counts all allocations. */
void mem_test_fail_at(long n);
long mem_test_count(void);

#ifdef __cplusplus
}
#endif

#endif
