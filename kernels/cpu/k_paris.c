/* SPDX-License-Identifier: MIT */
/* ParisKV: rotation and reranking. The same bits at every level (ops_paris.h): no fused multiply-adds, sums over
 * 8 lanes. */
#include "config.h"

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd8.h"
#include "kernels/half.h"
#include "kernels/ops_paris.h"

/* One butterfly step; every output is one addition, so its bits do not depend on how lanes are cut. */
static void butterflies(float *x, size_t dim, size_t span)
{
    for (size_t i = 0; i < dim; i += 2 * span) {
        size_t j = i;
        for (; span >= VF_LANES && j < i + span; j += VF_LANES) {
            VF a = vf_load(x + j), b = vf_load(x + j + span);
            vf_store(x + j, vf_add(a, b));
            vf_store(x + j + span, vf_sub(a, b));
        }
        for (; j < i + span; j++) {
            float a = x[j], b = x[j + span];
            x[j] = a + b;
            x[j + span] = a - b;
        }
    }
}

void LEVEL(k_paris_rotate)(float *x, const float *sign, size_t rounds, float by, size_t dim)
{
    for (size_t r = 0; r < rounds; r++) {
        for (size_t i = 0; i < dim; i += PARIS_BLOCK)
            v8_store(x + i, v8_mul(v8_load(x + i), v8_load(sign + r * dim + i)));
        for (size_t span = 1; span < dim; span *= 2) butterflies(x, dim, span);
        for (size_t i = 0; i < dim; i += PARIS_BLOCK) v8_store(x + i, v8_mul(v8_load(x + i), v8_set1(by)));
    }
}

/* Weighted, signed centres of one token. */
static void decode_token(float *v, const unsigned char *id, const unsigned char *code, size_t nb)
{
    const unsigned char *bins = code + 2 * nb;
    for (size_t b = 0; b < nb; b++, bins += 3) {
        uint32_t packed = bins[0] | (uint32_t)bins[1] << 8 | (uint32_t)bins[2] << 16;
        float w = bf16_to_f32((uint16_t)(code[2 * b] | code[2 * b + 1] << 8));
        v8_store(v + b * PARIS_BLOCK, v8_mul(v8_set1(w), v8_codes(paris_centre, id[b], packed)));
    }
}

void LEVEL(k_paris_estimate)(const paris_piece *p)
{
    size_t nb = p->n_blocks, dim = nb * PARIS_BLOCK;
    float v[PARIS_DIM_MAX];
    for (size_t i = 0; i < p->n; i++) {
        size_t at = (size_t)p->token[i];
        if (i + 4 < p->n) prefetch(p->code + (size_t)p->token[i + 4] * PARIS_CODE * nb);
        decode_token(v, p->id + at * nb, p->code + at * PARIS_CODE * nb, nb);
        for (size_t h = 0; h < p->group; h++) {
            V8 sum = v8_set1(0);
            for (size_t c = 0; c < dim; c += PARIS_BLOCK)
                sum = v8_add(sum, v8_mul(v8_load(v + c), v8_load(p->y + h * dim + c)));
            p->est[h * p->stride + i] = p->norm[h] * v8_sum(sum);
        }
    }
}
