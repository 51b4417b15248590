/* SPDX-License-Identifier: MIT */
/* Certificates: upper bounds of the attention that a selection misses, from the scores of quantized keys and bounds of
 * the quantization error. doc/methods.md 7e. */
#ifndef KERNELS_OPS_CERTIFY_H
#define KERNELS_OPS_CERTIFY_H

#include <math.h>

#include "kernels/ops_coded.h"
#include "kernels/ops_rows.h"

/* Counters of certify.choose, u64 each: query heads of lists, certified heads, sum and maximum of their bounds in units
 * of 2^-32, lists, lists that attend everything, tokens that lists attend, maximum of one list; then lists by the
 * tokens that they attend, in certify_bin's order. */
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
    CERTIFY_FINE = 64, /* smaller numbers have bins of their own; above it an octave has 32 */
    CERTIFY_COUNTS = CERTIFY_BINS + CERTIFY_FINE + 32 * 32
};

/* Number of candidates that a list must take, in the order of choose_job, so that each of its query heads misses at
 * most the fraction eps of its attention over the keys that were quantized.
 * score, error  f32 [n_heads][stride]: q . k of the dequantized keys, and a bound of its error for the true key;
 *               columns [first, items.n_slots), all that the query sees
 * order         f32 [n_lists][stride]: columns [items.lo, items.hi), the candidates; all other columns are attended.
 *               Query heads h * n_lists / n_heads share a list
 * k             i64 [n_lists] out: the smallest number from `least` to `most` with bound <= eps for all heads of the
 *               list; `most` (or all candidates) if there is none
 * bound         f32 [n_heads] out: at that k, f / (f + g). f is the sum of exp(scale * (score + error)) over what is
 *               not attended, times 1 + 1e-4, plus 2^-100 of its largest possible summand for each token. g is the sum
 *               of exp(scale * (score - error)) over what is attended. 0: everything is attended; 1: a score or an
 *               error among the columns is not finite
 * counts        u64 [CERTIFY_COUNTS], to which the call adds
 * Sums have a relative error of 5e-5, which the 1e-4 covers. ref and others may differ by a token if a bound is that
 * close to eps. On CPUs all levels and thread counts give the same bits. Source: doc/methods.md 7e. */
typedef struct {
    buf score, error, order;
    size_t n_heads, n_lists, stride;
    int64_t first;
    item_range items;
    float scale, eps;
    int64_t least, most;
    buf k, bound, counts;
} certify_job;

/* bound: takes the jobs of coded.score and writes, in place of the scores, the maximum distance of q . k of the exact
 * key, as stored before it was quantized, from the score; both rounded. With |q| for the absolute values of q, dot
 * products in the order of ops_select.h, and the numbers of certify_rule:
 * - float row x: sum * (|q| . |x|).
 * - block row: |q| . w, of rotated rows |H q| . w, w_c = ((step_c + sum |n_c|) |d| + rotation D) + least. n_c is the
 *   number code - offset, d the scale of its block, step_c its clipped or inner step, D the sum of |d| over the blocks,
 *   ascending, with the numbers of certify_blocks. Infinite if a scale of a row is f16's largest number or not finite.
 * - quantized row with pairs (a_c, b_c) by channel: |q| . w, w_c = (step * |b_c| + pair * |a_c|) + least.
 * - quantized row by_token: the sum over its runs, ascending, starting with the first term, of ((step * |b_r| + pair *
 *   |a_r|) + least) * s_r, s_r = |q| . 1 over the channels of the run, whose first channel is in partial sum 0.
 * Codes with zero_point are not supported: an offset that wraps (ops_codes.h) has no bound. `score` has counted the
 * bytes. */
#define CERTIFY_OPS(OP, own, plain)                                                                                    \
    OP(own, void, bound, (backend *, const score_job *jobs, size_t n))                                                 \
    OP(own, void, choose, (backend *, const certify_job *jobs, size_t n))

struct certify_ops {
    CERTIFY_OPS(OP_POINTER, , )
};

/* Constants of the bound for quantized rows. A key was mn + y * st; its code is c with |y - c| <= 1/2 + 3e-6 and 0 <= y
 * <= top (codes_rule_of). a and b are mn and st in f16, with a relative error v = 2^-11 (1 + 1e-3), or an absolute one
 * of 2^-25. So the key differs from a + c * b by at most (1/2 + 3e-6 + top v) b + v |a| + (1 + top) 2^-25. float32 sums
 * of d products add (d + 16) 2^-23 (|a| + top b), and these numbers are rounded. */
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

/* Returns the part of one channel with that pair in a bound, for each unit of |q|. */
static inline float certify_width(const certify_rule *r, float a, float b)
{
    return (r->step * fabsf(b) + r->pair * fabsf(a)) + r->least;
}

/* Constants of the bound for block rows. A key x, rotated or not, is stored as d n, n = code - offset. n is x / d
 * rounded in float32, with an error of (1/2 + 3e-5) |d|. For DT_Q4, |x| <= s |d| with s = 9 at most, or 2^-25 s more if
 * d is subnormal, and n is clamped to -8 and 7, with an error of (s - 8) |d| or (s - 7) |d| there. A scale that is
 * f16's largest number may have been clamped. float32 sums of d products add (d + 16) 2^-23 |d n|. Rotating a row or a
 * query rounds each of log2(d) + 2 times to 2^-24 of its length. The query's length is at most the sum over |H q|, and
 * the row's D times sqrt(32) times the largest |x / d|. */
typedef struct {
    float sum, inner, low, high, rotation, least;
} certify_blocks;

static inline certify_blocks certify_blocks_of(dtype t, bool rotated, size_t head_dim)
{
    const float more = 1.0001f, s = 9 * (1 + 0x1p-11f * 1.001f), length = 5.657f * (t == DT_Q8 ? 127.5f : s);
    float inner = (0.5f + 3e-5f) * more, rounds = 2;
    for (size_t n = head_dim; n > 1; n /= 2) rounds++;
    return (certify_blocks){.sum = (float)(head_dim + 16) * 0x1p-23f * more,
                            .inner = inner,
                            .low = t == DT_Q8 ? inner : (s - 8) * more,
                            .high = t == DT_Q8 ? inner : (s - 7) * more,
                            .rotation = rotated ? 2 * rounds * 0x1p-24f * length * 1.01f : 0,
                            .least = t == DT_Q8 ? 0 : s * 0x1p-25f * 1.01f};
}

/* Returns w_c of number n of a block with scale d, without the terms that the row adds to all channels. */
static inline float certify_block_width(const certify_blocks *r, dtype t, float d, int n)
{
    float step = t == DT_Q4 && n == 7 ? r->high : t == DT_Q4 && n == -8 ? r->low : r->inner;
    return (step + r->sum * (float)(n < 0 ? -n : n)) * fabsf(d);
}

/* Returns the part of a scale in D. */
static inline float certify_block_scale(float d)
{
    return fabsf(d) < 65504 ? fabsf(d) : INFINITY;
}

/* Bin of a list that attends `tokens` tokens, and maximum of a bin. */
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

/* Returns the bound of a head of n tokens. f is the sum over the `rest` tokens that are not attended, g over those that
 * are, both in units of the largest summand. */
static inline float certify_bound(double f, double g, int64_t rest, int64_t n)
{
    if (rest <= 0) return 0;
    f = f * 1.0001 + (double)n * 0x1p-100;
    return fminf(nextafterf((float)(f / (f + g)), 2), 1);
}

#endif
