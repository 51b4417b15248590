/* SPDX-License-Identifier: MIT */
/* ParisKV: rotation, collisions and reranking. The same bits at every level (ops_paris.h): no fused multiply-adds,
 * sums over 8 lanes. */
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

INLINE void collide(unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n, size_t nb)
{
    size_t i = 0;
    for (; B8_SUMS && nb % 8 == 0 && i + 32 <= n; i += 32) {
        for (size_t b = 0; b < 32 * nb; b += 64) prefetch(id + i * nb + 2048 + b);
        b8_sums(score + i, id + i * nb, nb, bonus);
    }
    for (; i < n; i++) {
        unsigned sum = 0;
        for (size_t b = 0; b < nb; b++) sum += bonus[b * PARIS_PATTERNS + id[i * nb + b]];
        score[i] = (unsigned char)sum;
    }
}

/* The usual sizes with loops that unroll. */
void LEVEL(k_paris_collide)(unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n,
                            size_t nb)
{
    if (nb == 16) collide(score, id, bonus, n, 16);
    else if (nb == 8) collide(score, id, bonus, n, 8);
    else collide(score, id, bonus, n, nb);
}

/* Weighted, signed centres of one token. */
INLINE void decode_token(float *v, const unsigned char *id, const unsigned char *code, size_t nb)
{
    for (size_t b = 0; b < nb; b++) /* weights precede the bins */
        v8_store(v + b * PARIS_BLOCK,
                 v8_mul(v8_bf16(code + 2 * b), v8_codes(paris_centre, id[b], code + 2 * nb + 3 * b)));
}

/* Product of the token with `heads` queries from head h on. */
INLINE void estimate_heads(const int heads, const paris_piece *p, size_t dim, const float *v, size_t i, size_t h)
{
    V8 acc[4];
    float sum[4];
    UNROLL for (int k = 0; k < 4; k++) acc[k] = v8_set1(0);
    for (size_t c = 0; c < dim; c += PARIS_BLOCK)
        UNROLL for (int k = 0; k < heads; k++)
            acc[k] = v8_add(acc[k], v8_mul(v8_load(v + c), v8_load(p->y + (h + (size_t)k) * dim + c)));
    v8_sums(sum, acc);
    UNROLL for (int k = 0; k < heads; k++)
        p->est[(h + (size_t)k) * p->stride + i] = p->norm[h + (size_t)k] * sum[k];
}

/* Candidates lie far apart: their lines are fetched many tokens ahead. */
INLINE void prefetch_token(const paris_piece *p, size_t i)
{
    enum { AHEAD = 24 };
    if (i + AHEAD >= p->n) return;
    size_t at = (size_t)p->token[i + AHEAD], bytes = PARIS_CODE * p->n_blocks;
    const unsigned char *code = p->code + at * bytes;
    prefetch(p->id + at * p->n_blocks);
    for (size_t b = 0; b < bytes; b += 64) prefetch(code + b);
    prefetch(code + bytes - 1);
}

INLINE void estimate_blocks(const paris_piece *p, size_t nb)
{
    size_t dim = nb * PARIS_BLOCK;
    float v[PARIS_DIM_MAX];
    for (size_t i = 0; i < p->n; i++) {
        size_t at = (size_t)p->token[i], h = 0;
        prefetch_token(p, i);
        decode_token(v, p->id + at * nb, p->code + at * PARIS_CODE * nb, nb);
        for (; h + 4 <= p->group; h += 4) estimate_heads(4, p, dim, v, i, h);
        for (; h < p->group; h++) estimate_heads(1, p, dim, v, i, h);
    }
}

/* The usual sizes with loops that unroll. */
void LEVEL(k_paris_estimate)(const paris_piece *p)
{
    if (p->n_blocks == 16) estimate_blocks(p, 16);
    else if (p->n_blocks == 8) estimate_blocks(p, 8);
    else estimate_blocks(p, p->n_blocks);
}

/* Bits of at most 32 numbers at x that are >= least; reads nothing behind them. */
INLINE uint32_t bytes_ge(const unsigned char *x, size_t left, unsigned char least)
{
    unsigned char last[32] = {0};
    if (left >= 32) return vb_ge(x, least);
    memcpy(last, x, left);
    return vb_ge(last, least) & (((uint32_t)1 << left) - 1);
}

static size_t count_ge(const unsigned char *x, size_t n, unsigned char least)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i += 32) count += (size_t)__builtin_popcount(bytes_ge(x + i, n - i, least));
    return count;
}

/* A bound that at least `want` numbers reach, by halves; then those above it and the first that equal it. */
void LEVEL(k_top_bytes)(int32_t *out, const unsigned char *x, int32_t first, size_t n, size_t want)
{
    unsigned lo = 0, hi = 255;
    size_t above = 0, m = 0;
    while (lo < hi) {
        unsigned mid = hi - (hi - lo) / 2;
        size_t count = count_ge(x, n, (unsigned char)mid);
        if (count >= want) {
            lo = mid;
        } else {
            hi = mid - 1;
            above = count;
        }
    }
    size_t ties = want - above;
    for (size_t i = 0; i < n && m < want; i += 32) {
        uint32_t reach = bytes_ge(x + i, n - i, (unsigned char)lo);
        uint32_t more = lo < 255 ? bytes_ge(x + i, n - i, (unsigned char)(lo + 1)) : 0, equal = reach & ~more;
        size_t equals = (size_t)__builtin_popcount(equal), taken = equals < ties ? equals : ties;
        for (; equals > taken; equals--) equal &= ~((uint32_t)1 << (31 - __builtin_clz(equal)));
        ties -= taken;
        for (uint32_t bits = more | equal; bits; bits &= bits - 1)
            out[m++] = first + (int32_t)i + __builtin_ctz(bits);
    }
}
