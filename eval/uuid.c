/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/uuid.h"

#include <stdio.h>

void uuid_draw(char out[UUID_CHARS + 1], rng *r)
{
    uint64_t a = rng_next(r), b = rng_next(r);
    a = (a & ~(uint64_t)0xf000) | 0x4000;
    b = (b & ~((uint64_t)3 << 62)) | (uint64_t)1 << 63;
    snprintf(out, UUID_CHARS + 1, "%08llx-%04llx-%04llx-%04llx-%012llx", (unsigned long long)a >> 32,
             (unsigned long long)(a >> 16 & 0xffff), (unsigned long long)(a & 0xffff), (unsigned long long)(b >> 48),
             (unsigned long long)(b & 0xffffffffffff));
}
