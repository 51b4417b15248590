/* SPDX-License-Identifier: MIT */
/* Base64 (RFC 4648, section 4). */
#ifndef KERNELS_BASE_BASE64_H
#define KERNELS_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns the size of the encoded text of n bytes, including its NUL. */
static inline size_t base64_size(size_t n)
{
    return (n + 2) / 3 * 4 + 1;
}

/* Encodes n bytes to out [base64_size(n)]. */
static inline void base64_write(char *out, const uint8_t *x, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)x[i] << 16;
        if (i + 1 < n) three |= (uint32_t)x[i + 1] << 8;
        if (i + 2 < n) three |= x[i + 2];
        for (int k = 0; k < 4; k++) *out++ = digits[three >> (18 - 6 * k) & 63];
        if (i + 2 >= n) out[-1] = '=';
        if (i + 1 >= n) out[-2] = '=';
    }
    *out = 0;
}

/* Decodes a text up to its first other character to out [strlen(text)]. Returns the number of bytes. */
static inline size_t base64_read(char *out, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    size_t n = 0, held = 0;
    for (const char *at; *text && (at = strchr(digits, *text)); text++) {
        bits = bits << 6 | (uint32_t)(at - digits);
        held += 6;
        if (held < 8) continue;
        held -= 8;
        out[n++] = (char)(bits >> held & 255);
    }
    return n;
}

#endif
