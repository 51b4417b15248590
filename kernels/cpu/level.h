/* SPDX-License-Identifier: MIT */
/* The serial kernels of one SIMD level. cpu_*.c splits work over threads and calls them through this table. k_*.c
 * implement the kernels once and are compiled per level (simd.h). */
#ifndef KERNELS_CPU_LEVEL_H
#define KERNELS_CPU_LEVEL_H

#include "kernels/ops.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_rows.h"

enum {
    DECODE_BLOCK = 64,      /* keys of one step of the online softmax */
    DECODE_GROUP = 16,      /* query heads that read a K/V row together; more take several passes */
    DECODE_TILE_HEADS = 32, /* the same by tiles */
    PREFILL_KEYS = 128,     /* keys of a tile, aligned to entries: part of the result's definition */
    PREFILL_ROWS = 48,      /* query rows that pass over a packed panel while it is in L1 */
    HEAD_DIM_MAX = 256,
    HEAD_DIM_PAD = 32, /* widest TILE_VECS * VF_LANES */
    SUM_LANES = 16     /* widest VF_LANES */
};

/* K or V rows of one kv head, quantized or not (kv_rows, kv_codes). */
typedef struct {
    const unsigned char *exact;
    dtype type;   /* type of float or block rows */
    bool rotated; /* these rows are rotated (ops_rows.h) */
    size_t head_dim;
    int bits;          /* 0: no row is quantized, a slot is a row, and the following fields are unused */
    const int32_t *at; /* slots */
    const unsigned char *code, *pair;
    size_t row_bytes;
    size_t group, run; /* group 0: pairs by run of a row; otherwise by channel of a group of rows */
    bool zero_point;
    const float *factor; /* encode: factor of the rows; NULL: 1 */
} row_source;

/* Returns the row of entry i of a list (idx NULL: slot i): r >= 0 is not quantized, otherwise quantized row -1 - r. */
static inline int64_t row_of(const row_source *s, const int32_t *idx, int64_t i)
{
    int64_t slot = idx ? idx[i] : i;
    return s->bits ? s->at[slot] : slot;
}

/* The `group` heads of one query, which sees the first n > 0 keys of a chunk. */
typedef struct {
    const float *q; /* [group, head_dim] */
    size_t n;
    float *acc, *top, *sum; /* [group, head_dim] sum of exp(s - top) v, [group] max, [group] sum */
    float *scores;          /* NULL, or row h receives the scores of head h */
    const float *bias;      /* NULL, or row h is added to the scores of head h; -INFINITY excludes a key */
} decode_query;

/* One chunk of keys, entries from `first` on, for queries of one sequence (decode). n_queries * group heads, at most
 * DECODE_GROUP, or DECODE_TILE_HEADS for decode_tiles. A query's bits do not depend on the other queries. */
typedef struct {
    decode_query of[DECODE_GROUP];
    size_t n_queries, group, head_dim;
    float scale;
    row_source k, v;
    const int32_t *idx; /* slots, or NULL, as required for several queries */
    int64_t first;
    bool moved; /* reordered by the kernel: entries differ in order from the slots from `origin` on that they stand for
                 */
    int64_t origin;
    float *work;       /* decode_work_floats(head_dim), or decode_tile_floats(head_dim) */
    const float *rope; /* NULL, or row i rotates the key of entry first + i (RoPE), for one query */
    size_t score_stride, bias_stride;
} decode_chunk;

/* Returns the floats for K and V of one block. */
static inline size_t decode_work_floats(size_t head_dim)
{
    return 2 * DECODE_BLOCK * head_dim;
}

/* A block of query rows against all key tiles of one kv head (prefill). Row r sees the entries lo[r] <= i < hi[r].
 * n_rows is a multiple of the level's tile_rows; q is padded with zeros. */
typedef struct {
    float *q;               /* [n_rows, dim_pad], already scaled; overwritten */
    const int64_t *lo, *hi; /* [n_rows] */
    row_source k, v;
    const int32_t *idx; /* slots, or NULL: an entry is a slot */
    size_t n_rows, head_dim;
    int64_t list_lo, list_hi; /* entries of the list; nothing outside is read */
    float *acc, *top, *sum;   /* [n_rows, dim_pad], [n_rows], [n_rows] in room for [n_rows, SUM_LANES] */
    float *work;              /* prefill_work_floats(head_dim), 64-byte aligned */
    bool rounded;             /* attn_job */
} prefill_block;

/* Votes of the heads of one list for n items. Arrays are indexed by head. */
typedef struct {
    /* Scores [heads][stride], needed if the sum underflows, or NULL; 2^(by * x - a maximum) [heads][e_stride]. */
    const float *x, *e;
    size_t stride, e_stride, heads, n;
    float by;
    const float *factor, *lse; /* [heads]: converts e to the softmax; log2-sum-exp2, -INFINITY: no vote */
} vote_job;

enum {
    DRAW_PART = 32, /* a multiple of every level's lanes */
    SPLIT_SLACK = 3
};

/* Query heads that share a pass over the bits; more take several passes. */
enum { FIER_HEADS = 16 };

/* Estimates tokens [t0, t1) of one kv head: score[h * stride + t - t0] of `heads` <= FIER_HEADS query heads. bits,
 * levels: of this kv head (fier_index). */
typedef struct {
    const float *q;
    const uint32_t *bits;
    const void *levels;
    dtype type;
    size_t heads, head_dim, group;
    float *score;
    size_t stride, t0, t1;
} fier_run;

static inline size_t prefill_dim_pad(size_t head_dim)
{
    return (head_dim + HEAD_DIM_PAD - 1) / HEAD_DIM_PAD * HEAD_DIM_PAD;
}

/* Returns the floats for packed K and V of one key tile, scores of PREFILL_ROWS rows, transposed rows, and factors. */
static inline size_t prefill_work_floats(size_t head_dim)
{
    return (2 * PREFILL_KEYS + HEAD_DIM_PAD) * prefill_dim_pad(head_dim) + PREFILL_ROWS * (PREFILL_KEYS + 16);
}

/* Returns the floats for a decode_chunk's queries and their sums by tiles, for one key tile, and for alignment. */
static inline size_t decode_tile_floats(size_t head_dim)
{
    return prefill_work_floats(head_dim) + DECODE_TILE_HEADS * (2 * prefill_dim_pad(head_dim) + SUM_LANES) + 16;
}

/* Column sums of the weights that queries give a tile of keys. The heads of the group read n_kv consecutive kv heads,
 * per_kv heads each. */
typedef struct {
    const float *q;   /* [n_tok, n_heads, head_dim] from the group's first head on */
    const float *lse; /* [n_tok, n_heads], from the group's first head on */
    size_t n_tok, n_heads, head_dim, n_kv, per_kv;
    const float *k;         /* [n_kv][PREFILL_KEYS][head_dim]; rows past the tile's end are zero */
    const uint8_t *lo, *hi; /* [n_tok] keys of the tile that a query sees */
    float scale, factor;    /* factor: of the combination of the group's heads */
    bool max;               /* maximum of the heads instead of their sum */
    float *sum;             /* [PREFILL_KEYS], added to */
    float *work;            /* colsum_work_floats */
} colsum_tile;

/* Column sums of one query whose scores are known: row h of score has those of head h. */
typedef struct {
    const float *score, *lse; /* [heads][stride], [heads] */
    size_t stride, heads, n;
    float factor;
    bool max, add;
    float *sum; /* [n] */
} weigh_run;

enum { COLSUM_ROWS = 48 }; /* rows whose weights fit L1, or more if a group is larger */

static inline size_t colsum_rows(size_t per_kv)
{
    return (per_kv > COLSUM_ROWS ? per_kv : COLSUM_ROWS) + 16;
}

/* Returns the floats for packed keys, weights of some rows, and of some tokens. */
static inline size_t colsum_work_floats(size_t head_dim, size_t n_kv, size_t per_kv)
{
    return PREFILL_KEYS * (n_kv * head_dim + colsum_rows(per_kv) + COLSUM_ROWS);
}
/* Candidates of one kv head to estimate (ops_paris.h). */
typedef struct {
    const int32_t *token; /* [n] */
    size_t n;
    const unsigned char *id, *code; /* of this kv head */
    size_t n_blocks;
    const float *y; /* [8 n_blocks] */
    float norm;
    float *est; /* [n] */
} paris_piece;

/* n rows of x in 8 bits, in blocks of QBLOCK_COLS columns (ops_weights.h). The order of blocks is private to the
 * level. */
typedef struct {
    int8_t *code;  /* [n * blocks][QBLOCK_COLS], 0 in the padding */
    float *scale;  /* [n * blocks] */
    int32_t *sum;  /* [n * blocks], sums of the codes */
    int32_t *half; /* [n * blocks], sums of the first 16 codes */
    size_t n, blocks;
} x8_rows;

enum {
    LINEAR_STRIP = 32,  /* rows of x or w that tiles multiply together */
    LINEAR_PANEL = 256, /* rows of w that a thread packs for them */
    LINEAR_SLICE = 512, /* rows of x whose sums a thread keeps */
    TILE_LINEAR_FLOATS = LINEAR_PANEL * (256 + LINEAR_SLICE)
};

/* Returns the floats of a strip of x, packed: two tiles of 16 rows for each 32 columns and part. */
static inline size_t tile_strip_floats(size_t cols, size_t parts)
{
    return (cols + 31) / 32 * (32 * 16) * parts;
}

/* A product of at most LINEAR_SLICE rows of x. parts: bf16 numbers whose sum stands for a number of x and w. */
typedef struct {
    float *out;
    size_t out_stride;
    const float *x; /* strips made by pack_tiles */
    size_t n, parts;
    weight w, bias; /* as in linear_job */
    float *work;    /* TILE_LINEAR_FLOATS, 64-byte aligned */
} tile_linear;

/* The kernels: OP(type, name, arguments). */
#define CPU_OTHER_KERNELS(OP)                                                                                          \
    OP(void, rmsnorm, (float *out, const float *x, const void *w, dtype wt, size_t n, size_t dim, float eps))          \
    OP(void, swiglu, (float *out, const float *gate, const float *up, size_t n))                                       \
    OP(void, gate, (float *x, const float *gate, size_t n))                                                            \
    OP(void, add, (float *x, const float *y, size_t n))                                                                \
    /* Rotates rows [r0, r1) of n * heads rows of 2 * half channels. */                                                \
    OP(void, rope,                                                                                                     \
       (float *out, const float *x, const float *table, size_t heads, size_t dim, size_t half, size_t r0, size_t r1))  \
    OP(void, widen, (float *out, const void *in, dtype t, size_t n))                                                   \
    OP(void, narrow, (void *out, const float *in, dtype t, size_t n))                                                  \
    /* K and V rows of any type: one row of n elements, rotated or not (ops_rows.h). */                                \
    OP(void, get_row, (float *out, const unsigned char *in, dtype t, bool rotated, size_t n))                          \
    OP(void, put_row, (unsigned char *out, const float *in, dtype t, bool rotated, size_t n))                          \
    OP(void, hadamard, (float *x, size_t n))                                                                           \
    /* out = by * in */                                                                                                \
    OP(void, scale, (float *out, const float *in, float by, size_t n))                                                 \
    /* out[i * out_stride + r] = x[i] . w[r] + bias[r] for i < n and r0 <= r < r1. */                                  \
    OP(void, linear,                                                                                                   \
       (float *out, size_t out_stride, const float *x, size_t n, const weight *w, const weight *bias, size_t r0,       \
        size_t r1))                                                                                                    \
    /* Rounds blocks [b0, b1) of the row x of `cols` columns to row r of out. */                                       \
    OP(void, round_x, (const x8_rows *out, size_t r, const float *x, size_t cols, size_t b0, size_t b1))               \
    /* Like linear, with w in blocks, for groups of rows [g0, g1). */                                                  \
    OP(void, linear_qblocks,                                                                                           \
       (float *out, size_t out_stride, const x8_rows *x, const weight *w, const weight *bias, size_t g0, size_t g1))   \
    /* Converts rows [r0, r1) of a w in blocks to f32 or bf16; r0 is a multiple of QBLOCK_ROWS. */                     \
    OP(void, unpack, (void *out, dtype to, const weight *w, size_t r0, size_t r1))                                     \
    /* Quantizes group g of out from the same rows of w. */                                                            \
    OP(void, quantize, (unsigned char *out, dtype type, const weight *w, size_t g))                                    \
    /* Quantizes one block of weights to codes minus their offset; returns the scale's bits. */                        \
    OP(uint16_t, quantize_block, (int8_t code[QBLOCK_COLS], const float w[QBLOCK_COLS], dtype t))                      \
    /* Writes entries [first, first + n) of a list as float to rows of out, `stride` apart. */                         \
    OP(void, rows, (float *out, size_t stride, const row_source *s, const int32_t *idx, int64_t first, size_t n))      \
    /* Quantizes rows src[0..n) to rows first + i, whose codes and pairs are at code and pair in the layout of s. */   \
    OP(void, encode,                                                                                                   \
       (unsigned char *code, unsigned char *pair, const row_source *s, const int64_t *src, size_t first, size_t n))    \
    /* Finds the nearest of n centroids [n][dim], with the biases of kmeans_ops, for as many rows as a vector has      \
     * lanes: x [dim][lanes], best [lanes] receives centroid numbers. */                                               \
    OP(void, nearest, (float *best, const float *x, size_t dim, const float *centroid, const float *bias, size_t n))   \
    /* Sums the entries of a table [parts][words] selected by the codes [n][parts] of each token. */                   \
    OP(void, pq_score,                                                                                                 \
       (float *out, const unsigned char *code, size_t n, size_t parts, const float *table, size_t words))              \
    /* code[i]: bit b is dot[i * stride + b] > 0. bits <= 16, n > 0. */                                                \
    OP(void, lsh_codes, (uint16_t * code, const float *dot, size_t stride, size_t n, size_t bits))                     \
    /* ops_lsh.lsh_bias of n cosines, accurate to 5e-6. */                                                             \
    OP(void, lsh_bias, (float *out, const float *cosine, size_t n, size_t bits, size_t tables))                        \
    /* Products of `heads` queries, q_stride apart, with d codes of each of n rows, row_bytes apart: out[h * stride    \
     * + i]. */                                                                                                        \
    OP(void, code_dots,                                                                                                \
       (float *out, size_t stride, const float *q, size_t q_stride, size_t heads, size_t d, const unsigned char *code, \
        size_t row_bytes, int bits, size_t n))                                                                         \
    OP(void, decode, (const decode_chunk *c))                                                                          \
    /* Merges n_parts partial results of one query head: out = sum w_i acc_i / sum w_i sum_i with w_i = exp(top_i -    \
     * max top). Strides are in floats. Parts with top = -INFINITY are skipped. sum NULL: 1 each (then top is an       \
     * lse and acc is normalised). lse NULL: not wanted. */                                                            \
    OP(void, merge,                                                                                                    \
       (float *out, float *lse, const float *acc, const float *top, const float *sum, size_t n_parts,                  \
        size_t acc_stride, size_t stat_stride, size_t dim))                                                            \
    /* block_ops.moments for channels [c0, c1). */                                                                     \
    OP(void, moments,                                                                                                  \
       (float *mean, float *m2, size_t before, const float *x, size_t n, size_t dim, size_t c0, size_t c1))            \
    /* Sum over channels of (x - mean)^2 inverse. */                                                                   \
    OP(float, activation, (const float *x, const float *mean, const float *inverse, size_t dim))                       \
    /* out[c] = sum_i weights[i] x[i][c] for channels [c0, c1). */                                                     \
    OP(void, mix, (float *out, const float *weights, const float *x, size_t n, size_t dim, size_t c0, size_t c1))      \
    /* x.y and y.y */                                                                                                  \
    OP(void, dot_norm, (float out[2], const float *x, const void *y, dtype t, size_t n))                               \
    OP(void, colsum, (const colsum_tile *b))                                                                           \
    OP(void, weigh, (const weigh_run *w))                                                                              \
    /* out[h * stride + r] = q[h] . row r, of any type, for r0 <= r < r1, in the order of ops_select.h. bounds: for    \
     * pages, the larger of the products with a channel's maximum and minimum (quest_index). */                        \
    OP(void, dots,                                                                                                     \
       (float *out, size_t stride, const float *q, size_t heads, size_t d, const void *rows, dtype t, size_t r0,       \
        size_t r1))                                                                                                    \
    OP(void, bounds,                                                                                                   \
       (float *out, size_t stride, const float *q, size_t heads, size_t d, const void *pages, dtype t, size_t p0,      \
        size_t p1))                                                                                                    \
    /* e[i] = 2^(by * x[i] - top) with the maximum top, and their sum (0 if nothing is finite). */                     \
    OP(void, vote_exp, (float *e, float *top, float *sum, const float *x, float by, size_t n))                         \
    /* out[i] = log of the sum over the heads of e * factor; false if it underflows and j->x is NULL. */               \
    OP(bool, vote_sum, (float *out, const vote_job *j))                                                                \
    /* Computes the sum of the heads divided by `by`, or their maximum. */                                             \
    OP(void, reduce_heads, (float *out, const float *x, size_t stride, size_t heads, size_t n, bool max, float by))    \
    /* Writes maxima of disjoint sets that cover x, each of `per` vectors' lanes. Returns their number, at most n /    \
     * per + 2 * lanes. */                                                                                             \
    OP(size_t, lane_maxima, (float *out, const float *x, size_t n, size_t per))                                        \
    /* -INFINITY if all are NaN */                                                                                     \
    OP(float, largest, (const float *x, size_t n))                                                                     \
    OP(size_t, count_at_least, (const float *x, size_t n, float least))                                                \
    /* Indexes, ascending, and values of elements >= least; NaN counts as -INFINITY. Both lists have room for a        \
     * vector more. */                                                                                                 \
    OP(size_t, at_least, (int32_t * idx, float *val, const float *x, size_t n, float least))                           \
    /* Indexes, ascending, of elements > limit and of the first `ties` equal to it; NaN counts as -INFINITY. The       \
     * list has room for a vector more. */                                                                             \
    OP(size_t, best, (int32_t * idx, const float *x, size_t n, float limit, size_t ties))                              \
    /* True if no number is NaN or infinite. */                                                                        \
    OP(bool, finite, (const float *x, size_t n))                                                                       \
    /* Clamps values to finite numbers; NaN counts as -INFINITY. Returns the largest. */                               \
    OP(float, clamp, (float *x, size_t n))                                                                             \
    /* p[i] = 2^(by * (x[i] - top)) of x[i] <= top, and their part_sums. */                                            \
    OP(void, masses, (float *p, double *sum, const float *x, size_t n, float top, float by))                           \
    /* Sums of DRAW_PART numbers each. */                                                                              \
    OP(void, part_sums, (double *sum, const float *p, size_t n))                                                       \
    /* Indexes, ascending, of lo <= x[i] <= hi; sum of p over x[i] > hi, and over x[i] >= lo. p NULL: 1 each. Up to    \
     * SPLIT_SLACK extra indexes are written at the end. */                                                            \
    OP(size_t, split, (int32_t * idx, double sum[2], const float *x, const float *p, size_t n, float lo, float hi))    \
    OP(void, fier_score, (const fier_run *r))                                                                          \
    OP(void, fier_score_int8, (const fier_run *r))                                                                     \
    /* Threshold and levels of d channels from the rows x [m][d]; bits of one row, word w at word[32 w]. */            \
    OP(void, fier_levels, (float *z, float *lo, float *hi, const float *x, size_t m, size_t d))                        \
    OP(void, fier_bits, (uint32_t * word, const float *z, const float *x, size_t d))                                   \
    /* Adds key k [d], already rounded to t, to a page [2][d]. */                                                      \
    OP(void, quest_add, (void *page, const float *k, size_t d, dtype t, bool anew))                                    \
    /* In place, `rounds` times: x *= sign, Hadamard transform, x *= by; dim a power of two >= 8. */                   \
    OP(void, paris_rotate, (float *x, const float *sign, size_t rounds, float by, size_t dim))                         \
    /* paris_job.bonus of one block. */                                                                                \
    OP(void, paris_bonus,                                                                                              \
       (unsigned char *bonus, const float *y, const int32_t *count, const int32_t *limit, size_t n_levels))            \
    /* score[i] = sum over b < nb of bonus[256 b + id[i nb + b]], modulo 256. */                                       \
    OP(void, paris_collide,                                                                                            \
       (unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n, size_t nb))               \
    OP(void, paris_estimate, (const paris_piece *p))                                                                   \
    /* Indexes, ascending, plus `first`, of the `want` <= n largest numbers; the lower indexes win ties. */            \
    OP(void, top_bytes, (int32_t * out, const unsigned char *x, int32_t first, size_t n, size_t want))                 \
    /* Reads `bytes` (a multiple of 4,096) at the level's full speed; returns their sum as floats. */                  \
    OP(float, read_sum, (const void *p, size_t bytes))

/* Those that levels with tiles (tile.h) have of their own. */
#define CPU_TILE_KERNELS(OP) OP(void, prefill, (const prefill_block *b))

/* Those that only levels with tiles have; NULL elsewhere. */
#define CPU_TILE_LINEAR(OP)                                                                                            \
    /* Rounds strips [s0, s1) of x [n, cols] to parts. */                                                              \
    OP(void, pack_tiles, (float *out, const float *x, size_t n, size_t cols, size_t parts, size_t s0, size_t s1))      \
    /* Like linear, for w of f16 (2 parts), bf16 or in blocks (1 part); r0 is a multiple of LINEAR_STRIP. */           \
    OP(void, linear_tiles, (const tile_linear *p, size_t r0, size_t r1))

#define CPU_KERNELS(OP) CPU_OTHER_KERNELS(OP) CPU_TILE_KERNELS(OP)

#define KERNEL_POINTER(ret, name, args) ret(*name) args;

typedef struct {
    const char *name;
    size_t tile_rows; /* the query rows of a prefill_block are a multiple of this */
    size_t lanes;
    /* bits of codes (1 << bits) with which linear_qblocks is faster for prompts than unpacked panels in the vendor's
     * GEMM */
    unsigned qblock_gemm;
    /* NULL: no tiles. Repeats c[j][i] += a[i] b[j] for i, j < 2 n times, whole tiles: shows the unit's sums and speed.
     */
    void (*tile_products)(float *c, const void *a, const void *b, size_t n);
    /* NULL: no tiles. `decode` by tiles, over rows of f16 or bf16, without rope. */
    void (*decode_tiles)(const decode_chunk *c);
    CPU_TILE_LINEAR(KERNEL_POINTER)
    CPU_KERNELS(KERNEL_POINTER)
} cpu_kernels;

extern const cpu_kernels cpu_kernels_generic, cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_avx512_bf16,
    cpu_kernels_amx, cpu_kernels_amx_emulated, cpu_kernels_neon, cpu_kernels_neon_dot;

#endif
