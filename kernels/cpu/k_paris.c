/* SPDX-License-Identifier: MIT */
/* ParisKV: rotation, collisions and reranking. Every level has the same bits (ops_paris.h): no fused multiply-adds,
 * sums over 8 lanes. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd8.h"
#include "kernels/half.h"
#include "kernels/ops_paris.h"

/* Applies one butterfly step. Every output is one addition, so its bits do not depend on the number of lanes. */
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
        for (size_t i = 0; sign && i < dim; i += PARIS_SUBSPACE)
            v8_store(x + i, v8_mul(v8_load(x + i), v8_load(sign + r * dim + i)));
        for (size_t span = 1; span < dim; span *= 2) butterflies(x, dim, span);
        for (size_t i = 0; i < dim; i += PARIS_SUBSPACE) v8_store(x + i, v8_mul(v8_load(x + i), v8_set1(by)));
    }
}

/* Computes the products +-y_0 +- ... +-y_7 of all patterns with y, added in this order; -INFINITY for NaN. */
static void pattern_dots(float dot[PARIS_PATTERNS], const float *y)
{
    static const float sign[4][16] = {{-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1},
                                      {-1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1},
                                      {-1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1},
                                      {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1}};
    size_t span = 1, j = 0;
    VF v = vf_zero();
    for (; span < VF_LANES; span *= 2, j++) v = vf_add(v, vf_mul(vf_load(sign[j]), vf_set1(y[j])));
    vf_store(dot, v);
    for (; span < PARIS_PATTERNS; span *= 2, j++)
        for (size_t i = 0; i < span; i += VF_LANES) {
            v = vf_load(dot + i);
            vf_store(dot + i, vf_sub(v, vf_set1(y[j])));
            vf_store(dot + span + i, vf_add(v, vf_set1(y[j])));
        }
    for (size_t i = 0; i < PARIS_PATTERNS; i += VF_LANES)
        vf_store(dot + i, vf_max(vf_load(dot + i), vf_set1(-INFINITY)));
}

/* Returns the number of tokens in the patterns whose product is at least `least`. */
static uint32_t tokens_from(const float *dot, const uint32_t *count, float least)
{
    uint32_t lane[VF_LANES], sum = 0;
    VI s = vi_set1(0);
    for (size_t i = 0; i < PARIS_PATTERNS; i += VF_LANES)
        s = vi_add_ge(s, vi_load(count + i), vf_load(dot + i), vf_set1(least));
    vi_store(lane, s);
    for (int l = 0; l < VF_LANES; l++) sum += lane[l];
    return sum;
}

/* Returns a product that at least `need` tokens reach, but not many more, if that many exist. */
static float least_of(const float *dot, const uint32_t *count, const float *y, uint32_t need)
{
    float least = -INFINITY, hi = 0;
    for (int j = 0; j < PARIS_SUBSPACE; j++) hi += fabsf(y[j]);
    float lo = -hi;
    for (int step = 0; step < 5; step++) {
        float mid = (lo + hi) / 2;
        if (tokens_from(dot, count, mid) >= need) least = lo = mid;
        else hi = mid;
    }
    return least;
}

/* The best patterns: those that may have a bonus. */
typedef struct {
    int32_t id[PARIS_PATTERNS];
    float dot[PARIS_PATTERNS];
    uint32_t count[PARIS_PATTERNS];
    size_t n;
} best_patterns;

/* Counts the tokens before each of the patterns [i, i + VF_LANES) in the order of ops_paris.h. */
INLINE void tokens_before(uint32_t before[VF_LANES], const best_patterns *p, size_t i)
{
    VF dot = vf_load(p->dot + i);
    VI s = vi_set1(0);
    for (size_t k = 0; k < i; k++) s = vi_add_ge(s, vi_set1(p->count[k]), vf_set1(p->dot[k]), dot);
    for (size_t k = i; k < p->n; k++) s = vi_add_gt(s, vi_set1(p->count[k]), vf_set1(p->dot[k]), dot);
    vi_store(before, s);
    for (size_t a = 1; a < VF_LANES && i + a < p->n; a++)
        for (size_t b = 0; b < a; b++)
            if (p->dot[i + a] == p->dot[i + b]) before[a] += p->count[i + b];
}

/* Computes bonuses without sorting: for the few patterns that matter, the tokens before one are a sum over the
 * others. */
void LEVEL(k_paris_bonus)(unsigned char *bonus, const float *y, const int32_t *count, const int32_t *limit,
                          size_t n_levels)
{
    const uint32_t *counts = (const uint32_t *)count;
    float dot[PARIS_PATTERNS];
    uint32_t before[VF_LANES], tiers[VF_LANES], need = 0;
    best_patterns p;
    pattern_dots(dot, y);
    for (size_t t = 0; t < n_levels; t++)
        if ((uint32_t)limit[t] > need) need = (uint32_t)limit[t];
    VF least = vf_set1(least_of(dot, counts, y, need));
    p.n = 0;
    for (size_t i = 0; i < PARIS_PATTERNS; i += VF_LANES)
        p.n += vi_keep(p.id + p.n, vf_ge(vf_load(dot + i), least), (int32_t)i);
    for (size_t i = 0; i < p.n; i++) {
        p.dot[i] = dot[p.id[i]];
        p.count[i] = counts[p.id[i]];
    }
    for (size_t i = p.n; i % VF_LANES; i++) p.dot[i] = 0;
    memset(bonus, 0, PARIS_PATTERNS);
    for (size_t i = 0; i < p.n; i += VF_LANES) {
        tokens_before(before, &p, i);
        VI sum = vi_set1(0);
        for (size_t t = 0; t < n_levels; t++) sum = vi_inc_less(sum, vi_load(before), vi_set1((uint32_t)limit[t]));
        vi_store(tiers, sum);
        for (size_t l = 0; l < VF_LANES && i + l < p.n; l++) bonus[p.id[i + l]] = (unsigned char)tiers[l];
    }
}

INLINE void collide(unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n, size_t nb)
{
    size_t i = 0;
    for (; B8_ROWS > 0 && nb % 8 == 0 && i + B8_ROWS <= n; i += B8_ROWS) {
        for (size_t b = 0; b < B8_ROWS * nb; b += 64) prefetch(id + i * nb + 2048 + b);
        b8_sums(score + i, id + i * nb, nb, bonus);
    }
    for (; i < n; i++) {
        unsigned sum = 0;
        for (size_t b = 0; b < nb; b++) sum += bonus[b * PARIS_PATTERNS + id[i * nb + b]];
        score[i] = (unsigned char)sum;
    }
}

/* Uses unrolled loops for the usual sizes. */
void LEVEL(k_paris_collide)(unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n,
                            size_t nb)
{
    if (nb == 16) collide(score, id, bonus, n, 16);
    else if (nb == 8) collide(score, id, bonus, n, 8);
    else collide(score, id, bonus, n, nb);
}

/* Decodes the weighted, signed centres of one token. */
INLINE void decode_token(float *v, const unsigned char *id, const unsigned char *code, size_t nb)
{
    for (size_t b = 0; b < nb; b++) /* weights precede the bins */
        v8_store(v + b * PARIS_SUBSPACE,
                 v8_mul(v8_bf16(code + 2 * b), v8_codes(paris_centre, id[b], code + 2 * nb + 3 * b)));
}

/* Prefetches candidates many tokens ahead, since their lines are scattered. */
INLINE void prefetch_token(const paris_piece *p, size_t nb, size_t i)
{
    enum { AHEAD = 40 };
    if (i + AHEAD >= p->n) return;
    size_t at = (size_t)p->token[i + AHEAD], bytes = PARIS_CODE * nb;
    const unsigned char *code = p->code + at * bytes;
    prefetch(p->id + at * nb);
    for (size_t b = 0; b < bytes; b += 64) prefetch(code + b);
    prefetch(code + bytes - 1);
}

INLINE void estimate_blocks(const paris_piece *p, size_t nb)
{
    float v[PARIS_DIM_MAX], sum[4];
    for (size_t i = 0; i < p->n; i++) {
        size_t at = (size_t)p->token[i];
        V8 acc[4] = {v8_set1(0), v8_set1(0), v8_set1(0), v8_set1(0)};
        prefetch_token(p, nb, i);
        decode_token(v, p->id + at * nb, p->code + at * PARIS_CODE * nb, nb);
        for (size_t c = 0; c < nb * PARIS_SUBSPACE; c += PARIS_SUBSPACE)
            acc[0] = v8_add(acc[0], v8_mul(v8_load(v + c), v8_load(p->y + c)));
        v8_sums(sum, acc);
        p->est[i] = p->norm * sum[0];
    }
}

#if SIMD_VBMI

/* Returns the codes of 8 blocks of candidate i from block b on. */
INLINE p8_code code_at(const paris_piece *p, size_t nb, size_t i, size_t b)
{
    size_t at = (size_t)p->token[i < p->n ? i : p->n - 1];
    const unsigned char *code = p->code + at * PARIS_CODE * nb;
    return (p8_code){p->id + at * nb + b, code + 2 * b, code + 2 * nb + 3 * b};
}

/* Estimates in vectors of two tokens, four tokens at a time; nb is a multiple of 8. */
INLINE void estimate_size(const paris_piece *p, size_t nb)
{
    for (size_t i = 0; i < p->n; i += 4) {
        P8 v[2][PARIS_DIM_MAX / PARIS_SUBSPACE], acc[2] = {p8_zero(), p8_zero()};
        float *est = p->est + i, last[4];
        UNROLL for (size_t k = 0; k < 4; k++) prefetch_token(p, nb, i + k);
        UNROLL for (size_t k = 0; k < 2; k++) UNROLL for (size_t b = 0; b < nb; b += 8)
            p8_codes(v[k] + b, paris_centre, code_at(p, nb, i + 2 * k, b), code_at(p, nb, i + 2 * k + 1, b));
        UNROLL for (size_t b = 0; b < nb; b++)
        {
            P8 y = p8_set(p->y + b * PARIS_SUBSPACE);
            UNROLL for (int k = 0; k < 2; k++) acc[k] = p8_add(acc[k], p8_mul(v[k][b], y));
        }
        p8_sums(i + 4 <= p->n ? est : last, acc[0], acc[1], p->norm);
        for (size_t k = 0; i + 4 > p->n && i + k < p->n; k++) est[k] = last[k];
    }
}

#else
#define estimate_size estimate_blocks
#endif

/* Uses unrolled loops for the usual sizes. */
void LEVEL(k_paris_estimate)(const paris_piece *p)
{
    if (p->n_blocks == 16) estimate_size(p, 16);
    else if (p->n_blocks == 8) estimate_size(p, 8);
    else if (p->n_blocks == 32) estimate_size(p, 32);
    else estimate_blocks(p, p->n_blocks);
}

/* Returns a mask of at most 64 numbers at x that are >= least; reads nothing past them. */
INLINE uint64_t bytes_ge(const unsigned char *x, size_t left, unsigned char least)
{
    unsigned char last[64] = {0};
    if (left >= 64) return vb_ge(x, least);
    memcpy(last, x, left);
    return vb_ge(last, least) & (((uint64_t)1 << left) - 1);
}

static size_t count_ge(const unsigned char *x, size_t n, unsigned char least)
{
    size_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) count += (size_t)__builtin_popcountll(vb_ge(x + i, least));
    return i < n ? count + (size_t)__builtin_popcountll(bytes_ge(x + i, n - i, least)) : count;
}

/* Returns the lowest `keep` bits of those set. */
INLINE uint64_t lowest_bits(uint64_t set, size_t keep)
{
    uint64_t rest = set;
    for (; keep > 0; keep--) rest &= rest - 1;
    return set & ~rest;
}

/* Writes first + i for every bit i, and up to 64 numbers in all; returns the number of bits. */
INLINE size_t put_bits(int32_t *out, uint64_t set, int32_t first)
{
    size_t n = 0;
    UNROLL for (int l = 0; l < 64; l += VF_LANES) n +=
        vi_keep(out + n, (unsigned)(set >> l) & ((1u << VF_LANES) - 1), first + l);
    return n;
}

/* Does the same for the last `room` numbers of a list. */
static size_t put_last_bits(int32_t *out, size_t room, uint64_t set, int32_t first)
{
    int32_t all[64];
    size_t n = put_bits(all, set, first);
    memcpy(out, all, (n < room ? n : room) * sizeof *all);
    return n;
}

/* Finds a bound that at least `want` numbers reach by binary search, then takes the numbers above it and the first ones
 * equal to it. */
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
    for (size_t i = 0; i < n && m < want; i += 64) {
        uint64_t set = bytes_ge(x + i, n - i, (unsigned char)lo);
        uint64_t more = lo < 255 ? bytes_ge(x + i, n - i, (unsigned char)(lo + 1)) : 0, equal = set & ~more;
        size_t equals = (size_t)__builtin_popcountll(equal);
        if (equals > ties) {
            equal = lowest_bits(equal, ties);
            equals = ties;
        }
        ties -= equals;
        if (m + 64 <= want) m += put_bits(out + m, more | equal, first + (int32_t)i);
        else m += put_last_bits(out + m, want - m, more | equal, first + (int32_t)i);
    }
}
