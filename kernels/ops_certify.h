/* SPDX-License-Identifier: MIT */
/* Certificates: how much attention a selection misses at most, from the scores of keys in codes and bounds of what the
 * codes lost. doc/methods.md 7e. */
#ifndef KERNELS_OPS_CERTIFY_H
#define KERNELS_OPS_CERTIFY_H

#include <math.h>

#include "kernels/ops_coded.h"
#include "kernels/ops_rows.h"

/* What certify.choose counts, u64 each: query heads of lists, those that are certified, the sum of their bounds and the
 * largest one of them in units of 2^-32, lists, those that attend everything, tokens that lists attend, most of one
 * list; then lists by the tokens that they attend, in certify_bin's order. */
enum {
    CERTIFY_HEADS,
    CERTIFY_DONE,
    CERTIFY_BOUNDS,
    CERTIFY_LARGEST,
    CERTIFY_LISTS,
    CERTIFY_WHOLE,
    CERTIFY_TOKENS,
    CERTIFY_MOST,
    CERTIFY_BINS,
    CERTIFY_FINE = 64, /* numbers below it have bins of their own; above it an octave has 32 */
    CERTIFY_COUNTS = CERTIFY_BINS + CERTIFY_FINE + 32 * 32
};

/* How many of the candidates a list is to take, in the order of choose_job, so that none of its query heads misses more
 * than the share eps of its attention over the keys that became codes.
 * score, error  f32 [n_heads][stride]: q . k of the keys that the codes give, and how far that of the true key is away
 *               at most; columns [first, items.n_slots), all that the query sees
 * order         f32 [n_lists][stride]: columns [items.lo, items.hi), the candidates; what is none is attended.
 *               Query heads h * n_lists / n_heads share a list
 * k             i64 [n_lists] out: the fewest from `least` to `most` with bound <= eps for all heads of the list;
 * `most` (or all candidates) where there are none bound         f32 [n_heads] out: at that k, f / (f + g), where f is
 * the sum of exp(scale * (score + error)) over what is not attended, times 1 + 1e-4 and with 2^-100 of its largest
 * possible summand more for each token; g that of exp(scale * (score - error)) over what is. 0: all is attended; 1: a
 * score or an error among the columns is not finite counts        u64 [CERTIFY_COUNTS], to which is added Sums are to
 * 5e-5 of themselves, which the 1e-4 are for: that near to eps, ref and others may differ by a token; on CPUs all
 * levels and thread counts give the same bits. Source: doc/methods.md 7e. */
typedef struct {
    buf score, error, order;
    size_t n_heads, n_lists, stride;
    int64_t first;
    item_range items;
    float scale, eps;
    int64_t least, most;
    buf k, bound, counts;
} certify_job;

/* bound: in place of the scores of coded.score, of the same jobs, how far q . k of the exact key, as the store held it
 * before it became a code, is from the score at most; both rounded. With |q| for the absolute values of q, dot products
 * in the order of ops_select.h, and the numbers of certify_rule:
 * - an exact row x: sum * (|q| . |x|).
 * - a row in blocks: |q| . w, of turned rows |H q| . w, w_c = ((step_c + sum |n_c|) |d| + turn D) + least, with n_c the
 *   number code - offset and d the scale of its block, step_c its clipped or inner step, D the sum of |d| over the
 *   blocks, ascending, and the numbers of certify_blocks; infinite where a scale of a row is f16's largest number or
 *   none.
 * - a code row with pairs (a_c, b_c) by channel: |q| . w, w_c = (step * |b_c| + pair * |a_c|) + least.
 * - a code row by_token: the sum over its runs, ascending from the first one's number on, of ((step * |b_r| + pair *
 *   |a_r|) + least) * s_r, s_r = |q| . 1 over the channels of the run, the first of which is in partial sum 0.
 * Codes without zero_point: an offset that wraps (ops_codes.h) has no bound. What it reads, `score` has counted. */
#define CERTIFY_OPS(OP, own, plain)                                                                                    \
    OP(own, void, bound, (backend *, const score_job *jobs, size_t n))                                                 \
    OP(own, void, choose, (backend *, const certify_job *jobs, size_t n))

struct certify_ops {
    CERTIFY_OPS(OP_POINTER, , )
};

/* A key was mn + y * st, its code is c with |y - c| <= 1/2 + 3e-6 and 0 <= y <= top (codes_rule_of); a and b are mn and
 * st in f16, off by v = 2^-11 (1 + 1e-3) of themselves, or 2^-25. So it is off from a + c * b by at most
 * (1/2 + 3e-6 + top v) b + v |a| + (1 + top) 2^-25; float32 sums of d products add (d + 16) 2^-23 (|a| + top b), and
 * these numbers are rounded. */
typedef struct {
    float sum, step, pair, least;
} certify_rule;

static inline certify_rule certify_rule_of(int bits, size_t head_dim)
{
    const float more = 1.0001f, v = 0x1p-11f * 1.001f, sum = (float)(head_dim + 16) * 0x1p-23f;
    float top = (float)((1 << bits) - 1);
    return (certify_rule){.sum = sum * more,
                          .step = (0.5f + 3e-6f + top * (v + sum)) * more,
                          .pair = (v + sum) * more,
                          .least = (1 + top) * 0x1p-25f * more};
}

/* What one channel with that pair adds to a bound for each unit of |q|. */
static inline float certify_width(const certify_rule *r, float a, float b)
{
    return (r->step * fabsf(b) + r->pair * fabsf(a)) + r->least;
}

/* A key x of a row in blocks, as it is or turned, is held as d n, n = code - offset. n is x / d rounded, in float32, so
 * that it is off by (1/2 + 3e-5) |d|; of DT_Q4, |x| <= s |d| with s = 9 at most, or 2^-25 s more where d is subnormal,
 * and n is cut off at -8 and 7: there it is off by (s - 8) |d| or (s - 7) |d|. A scale that is f16's largest number may
 * be one that was cut off. float32 sums of d products add (d + 16) 2^-23 |d n|. Turning a row or a query rounds each of
 * log2(d) + 2 times to 2^-24 of its length, of which the query's is at most the sum over |H q| and the row's D times
 * sqrt(32) times the largest |x / d|. */
typedef struct {
    float sum, inner, low, high, turn, least;
} certify_blocks;

static inline certify_blocks certify_blocks_of(dtype t, bool turned, size_t head_dim)
{
    const float more = 1.0001f, s = 9 * (1 + 0x1p-11f * 1.001f), length = 5.657f * (t == DT_Q8 ? 127.5f : s);
    float inner = (0.5f + 3e-5f) * more, rounds = 2;
    for (size_t n = head_dim; n > 1; n /= 2) rounds++;
    return (certify_blocks){.sum = (float)(head_dim + 16) * 0x1p-23f * more,
                            .inner = inner,
                            .low = t == DT_Q8 ? inner : (s - 8) * more,
                            .high = t == DT_Q8 ? inner : (s - 7) * more,
                            .turn = turned ? 2 * rounds * 0x1p-24f * length * 1.01f : 0,
                            .least = t == DT_Q8 ? 0 : s * 0x1p-25f * 1.01f};
}

/* Number n of a block with scale d: w_c but for what the row adds to all channels. */
static inline float certify_block_width(const certify_blocks *r, dtype t, float d, int n)
{
    float step = t == DT_Q4 && n == 7 ? r->high : t == DT_Q4 && n == -8 ? r->low : r->inner;
    return (step + r->sum * (float)(n < 0 ? -n : n)) * fabsf(d);
}

/* What a scale adds to D. */
static inline float certify_block_scale(float d)
{
    return fabsf(d) < 65504 ? fabsf(d) : INFINITY;
}

/* Bin of a list that attends so many tokens, and the most tokens of lists of a bin. */
static inline int certify_bin(int64_t tokens)
{
    int octave = 0, bin;
    if (tokens < CERTIFY_FINE) return (int)tokens;
    for (; tokens >> octave >= CERTIFY_FINE; octave++) {
    }
    bin = CERTIFY_FINE + 32 * (octave - 1) + (int)(tokens >> octave) - CERTIFY_FINE / 2;
    return bin < CERTIFY_COUNTS - CERTIFY_BINS ? bin : CERTIFY_COUNTS - CERTIFY_BINS - 1;
}

static inline int64_t certify_bin_most(int bin)
{
    if (bin < CERTIFY_FINE) return bin;
    int octave = (bin - CERTIFY_FINE) / 32 + 1;
    return (((int64_t)((bin - CERTIFY_FINE) % 32 + CERTIFY_FINE / 2) + 1) << octave) - 1;
}

/* The bound of a head of n tokens: sums f over what is not attended and g over what is, in units of the largest summand
 * of both kinds, of which what is not attended has `rest`. */
static inline float certify_bound(double f, double g, int64_t rest, int64_t n)
{
    if (rest <= 0) return 0;
    f = f * 1.0001 + (double)n * 0x1p-100;
    return fminf(nextafterf((float)(f / (f + g)), 2), 1);
}

#endif
