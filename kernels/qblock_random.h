/* SPDX-License-Identifier: MIT */
/* Random numbers of blocks of weights (ops_weights.h), for tests and for models of random weights. */
#ifndef KERNELS_QBLOCK_RANDOM_H
#define KERNELS_QBLOCK_RANDOM_H

#include <math.h>

#include "kernels/base/rng.h"
#include "kernels/ops_weights.h"

/* Fills the numbers of a row of a block with any codes and factors. The weights of a type without factors have a
 * magnitude of at most `most`, and those of other types rarely exceed it. */
static inline void qblock_random(qblock_values *v, dtype t, float most, rng *r)
{
    const qblock_kind k = qblock_kind_of(t);
    const float factor = k.scales == 2 ? 128 : k.scales == 1 ? 32 : 1, codes = k.floats ? 448 : ldexpf(1, k.bits - 1);
    const float d = most / codes / factor * (0.5f + 0.5f * rng_float(r));
    v->d = f32_to_f16(d);
    v->m = f32_to_f16(-d * codes);
    v->scale = d;
    v->z = (uint8_t)(rng_next(r) >> 60);
    for (size_t c = 0; c < k.cols; c++) v->code[c] = (uint8_t)(rng_next(r) >> (64 - k.bits));
    for (size_t c = 0; c < k.cols && k.bits == 8; c++) v->code[c] |= v->code[c] == 0;        /* 1 to 255 */
    for (size_t c = 0; c < k.cols && k.floats; c++) v->code[c] ^= (v->code[c] & 127) == 127; /* not NaN */
    for (size_t i = 0; i < sizeof v->s; i++) v->s[i] = (int8_t)(k.scales == 2 ? rng_next(r) >> 56 : rng_next(r) >> 58);
    for (size_t i = 0; i < sizeof v->t; i++) v->t[i] = (int8_t)(rng_next(r) >> 58);
}

#endif
