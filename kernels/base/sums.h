/* SPDX-License-Identifier: MIT */
/* Checksums of blocks of large files (XXH3, 64 bits: Collet, xxHash 0.8). They detect damage, not forgery: the table of
 * checksums itself belongs under a SHA-256. */
#ifndef BASE_SUMS_H
#define BASE_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

enum { SUMS_BLOCK = 256 << 10 };

/* n pieces of `used` bytes, one every `stride` bytes from offset `at` of a file that is mapped at p. Each piece is
 * split into blocks, of which the last may be shorter; `sum` has the checksums of all blocks in order. */
typedef struct {
    uint64_t at, n, stride, used;
    const unsigned char *p;
    const uint64_t *sum;
} sums_part;

/* A damaged block: index of its part, offset and length in bytes. */
typedef struct {
    size_t part;
    uint64_t at, bytes;
} sums_bad;

/* True if all n bytes are 0; n > 0. */
bool sums_zero(const unsigned char *p, size_t n);
/* Returns the checksum of n bytes, n > 0. It is 0 if and only if all of them are 0. */
uint64_t sums_of(const void *p, size_t n);
/* Returns the number of blocks of n pieces of `used` bytes. */
uint64_t sums_count(uint64_t n, uint64_t used);
/* Writes the checksums of n bytes to sum, sums_count(1, n) of them, with at most n_threads threads. ST_NOMEM. */
status sums_make(uint64_t *sum, const unsigned char *p, uint64_t n, int n_threads, err *e);
/* Verifies the checksums of all parts with at most n_threads threads. A block whose checksum is 0 is not read if the
 * file fd has a hole there; fd -1: all are read. ST_FORMAT: *bad is the first damaged block, and e is unchanged.
 * ST_NOMEM. */
status sums_check(int fd, const sums_part *part, size_t n_parts, int n_threads, sums_bad *bad, err *e);

#endif
