/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4) for the records of input files in results. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    uint8_t block[64];
} sha256;

enum { SHA256_HEX = 65 };

void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t n);
/* Finishes the hash: 64 lower-case hexadecimal digits and a NUL. */
void sha256_hex(sha256 *s, char out[SHA256_HEX]);

#endif
