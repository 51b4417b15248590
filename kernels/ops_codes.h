/* SPDX-License-Identifier: MIT */
/* Ops on quantized rows (kv_codes in ops.h). */
#ifndef KERNELS_OPS_CODES_H
#define KERNELS_OPS_CODES_H

#include <math.h>

#include "kernels/ops.h"

/* Rows that move to another store: entry i < n of each region h of `to` becomes row slot[h][i] of `from`, with another
 * type or as codes. Both have the same number of regions.
 * slot    i32 [n_lists][stride]: a list for each region, or one for all
 * exact   they become the float or block rows first + i of `to`, rounded to its type; otherwise its quantized rows
 *         first + i, as `encode` makes them, so first and n are multiples of `group` unless by_token
 * factor  f32 [n_kv_heads][head_dim]: K is multiplied by it, in float32, before it is quantized; p NULL: it is not
 * Source: methods.md 14a (MiKV's balancer). */
typedef struct {
    const kv_rows *to, *from;
    buf slot;
    size_t n_lists, stride, first, n;
    bool exact;
    buf factor;
} demote_job;

#define CODES_OPS(OP, own, plain)                                                                                      \
    /* Quantizes K rows (value: V rows, by token and run) src[i] (i64 [n]) of every head into quantized rows first     \
     * + i. n and first are multiples of `group` unless by_token. In float32 from the stored rows: lo = min, hi =      \
     * max of the channel's group (by_token: of the row's run), code = round((x - lo) * (2^bits - 1) / (hi - lo))      \
     * half to even, pair = (lo, (hi - lo) / (2^bits - 1)) rounded to f16; hi = lo: codes 0, pair (lo, 0).             \
     * zero_point: b = (hi - lo) / (2^bits - 1), a = int8(round(-lo / b)), which wraps as torch's conversion does,     \
     * code = clamp(round(x / b) + a, 0, 2^bits - 1), pair = (a, b) with b rounded to f16; hi = lo: codes 0, pair      \
     * (-1, lo). Rows must be finite, |lo| and b below 65520. Source: methods.md 10.3 and 11.7 (KIVI,                  \
     * quant/new_pack.py; quanto 0.2.0). */                                                                            \
    OP(own, void, encode, (backend *, const kv_rows *rows, bool value, buf src, size_t first, size_t n))               \
    OP(own, void, demote, (backend *, const demote_job *job))                                                          \
    /* most [n_groups][dim] = its maximum with |x| over n rows and the heads of each group; x f32                      \
     * [n][n_heads][dim]. NaN counts as 0. */                                                                          \
    OP(plain, void, column_max, (backend *, buf most, buf x, size_t n, size_t n_heads, size_t n_groups, size_t dim))   \
    /* out[i] = sqrt(q[i] / k[i]); 1 if one of them is 0 or the root is not a finite positive number; [n] f32 each. */ \
    OP(plain, void, balance, (backend *, buf out, buf q, buf k, size_t n))                                             \
    /* out = x / factor; out, x f32 [n][n_heads][dim], factor f32 [n_groups][dim], where each head uses its group's    \
     * row. out may be x. */                                                                                           \
    OP(plain, void, divide_channels,                                                                                   \
       (backend *, buf out, buf x, buf factor, size_t n, size_t n_heads, size_t n_groups, size_t dim))                 \
    /* out = n rows of K (value: of V) rounded to rows->type (ops_rows.h); out, in f32 [n][n_kv_heads][head_dim]. */   \
    OP(own, void, round, (backend *, buf out, buf in, const kv_rows *rows, bool value, size_t n))                      \
    /* Copies the slots [first, first + n) of all heads to rows 0 to n - 1 of out (f32 rows); V only if out->v.p.      \
     * read as in attn_job. */                                                                                         \
    OP(own, void, fetch, (backend *, const kv_rows *out, const kv_rows *rows, int64_t first, int64_t n, buf read))

struct codes_ops {
    CODES_OPS(OP_POINTER, , )
};

#ifdef __CUDACC__ /* also compiled for devices */
#define CODES_INLINE static inline __host__ __device__
#else
#define CODES_INLINE static inline
#endif

/* Bytes of one quantized row, and number of pairs of a row with runs. */
static inline size_t codes_row_bytes(const kv_codes *c, size_t head_dim)
{
    return (head_dim * (size_t)c->bits + 7) / 8;
}

static inline size_t codes_runs(const kv_codes *c, size_t head_dim)
{
    return (head_dim + c->run - 1) / c->run;
}

/* Quantization of the numbers x of a group with the extremes lo and hi: round((x - less) * times / by) + add, clamped
 * to 0 and top, NaN to 0; and the group's pair (a, b). */
typedef struct {
    float less, times, by, add, a, b;
} codes_rule;

/* Wraps an integer to int8, modulo 256. */
CODES_INLINE float codes_wrap_int8(float x)
{
    if (!(fabsf(x) < 0x1p31f)) return 0;
    return (float)(int8_t)(uint8_t)(uint32_t)(int32_t)x;
}

CODES_INLINE codes_rule codes_rule_of(float top, bool zero_point, float lo, float hi)
{
    if (!(hi > lo)) return zero_point ? (codes_rule){0, 1, 1, -INFINITY, -1, lo} : (codes_rule){lo, 0, 1, 0, lo, 0};
    float b = (hi - lo) / top;
    if (!zero_point) return (codes_rule){lo, top, hi - lo, 0, lo, b};
    float a = codes_wrap_int8(rintf(-lo / b));
    return (codes_rule){0, 1, b, a, a, b};
}

#endif
