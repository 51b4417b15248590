/* SPDX-License-Identifier: MIT */
/* Code shared by the kernels of decode attention: the rows of a block, prefetching, and blocks that are multiplied as
 * codes. Included by k_decode*.c. */
#ifndef KERNELS_CPU_DECODE_H
#define KERNELS_CPU_DECODE_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/simd.h"

enum { ROWS = DECODE_BLOCK + VF_LANES, LINE = 64, SHORT_ROW = 2 * LINE };

/* Rows of one block, as stored (where they may be prefetched) or later as floats. The last row is repeated past the
 * end, so that a tile of keys need not check for it. */
typedef struct {
    const unsigned char *row[ROWS];
    size_t n, lines;            /* lines of a row to prefetch */
    size_t coded;               /* number of quantized rows */
    int32_t code[DECODE_BLOCK]; /* numbers of the rows, if all are quantized */
    bool interleaved;           /* row i is that of entry_of(true, i) */
    bool short_jumps;           /* rows of a list, each at most two lines long */
} block_rows;

/* Returns the entry of a block that is processed as number i. */
INLINE size_t entry_of(bool interleaved, size_t i)
{
    enum { STREAMS = 8 };
    return interleaved ? i % STREAMS * (DECODE_BLOCK / STREAMS) + i / STREAMS : i;
}

/* Returns the column of scores and biases of number i of block `at`. */
INLINE size_t column_of(const decode_chunk *c, const block_rows *b, size_t at, size_t i)
{
    size_t entry = at + entry_of(b->interleaved, i);
    return c->moved ? (size_t)(c->idx[(size_t)c->first + entry] - c->origin) : entry;
}

/* Rows of a block to prefetch: `by` rows during `parts` calls of prefetch_next, spread evenly because memory serves few
 * requests at a time. A row is requested as a whole, since its lines are adjacent. Short rows at random addresses go to
 * L2 only, at 17 GB/s; prefetches to L1 reach 11 GB/s, because arithmetic stalls while all of L1's line buffers are
 * occupied. Longer rows gain nothing. */
typedef struct {
    const block_rows *b;
    size_t next, by, parts, due;
} prefetcher;

INLINE void prefetch_next(prefetcher *a)
{
    const block_rows *b = a->b;
    for (a->due += a->by; a->due >= a->parts; a->due -= a->parts) {
        const unsigned char *p = b->row[a->next++];
        if (b->short_jumps) {
            __builtin_prefetch(p, 0, 2);
            __builtin_prefetch(p + (b->lines - 1) * LINE, 0, 2);
            continue;
        }
        prefetch(p);
        if (b->lines > 1) prefetch(p + LINE);
        for (size_t l = 2; l < b->lines; l++) prefetch(p + l * LINE);
    }
}

/* Blocks with only quantized rows, which are multiplied without conversion to floats (k_decode_codes.c). They have sums
 * of their own, which are added to those of other blocks at the end. `on`: the level supports this for the chunk's rows
 * and queries. */
enum { CODE_RUNS = HEAD_DIM_MAX / ROW_BLOCK };

/* A query as 16-bit integers in the order of the products: whole, or as bytes, 256 hi + lo. */
typedef struct {
#if SIMD_VBMI
    int8_t hi[HEAD_DIM_MAX], lo[HEAD_DIM_MAX];
#else
    int16_t x[HEAD_DIM_MAX];
#endif
} code_query;

typedef struct {
    bool on;
    const decode_chunk *c;
    const float *q; /* [heads][head_dim], scaled, in the basis of the rows */
    int bits, offset;
    code_query number[DECODE_GROUP]; /* q as integers, in units of q_scale */
    float q_scale[DECODE_GROUP];
    int32_t q_sum[DECODE_GROUP][CODE_RUNS];
    float acc[DECODE_GROUP * HEAD_DIM_MAX]; /* in the order of the products */
    float top[DECODE_GROUP], sum[DECODE_GROUP][VF_LANES], rest[DECODE_GROUP][CODE_RUNS][VF_LANES];
} code_sums;

enum { CODE_CHUNK = 2048 };

#if SIMD_CODES
/* Sorts the quantized rows of a chunk, whose K have scales by channel, group by group: `to` with `slot` as its list.
 * Groups come from the first `least` entries. Incomplete groups and other rows follow, then rows that only some queries
 * see, up to `most`: their newest rows, which are not quantized. False if the rows are in order already or cannot be
 * sorted. */
bool LEVEL(codes_order)(decode_chunk *to, int32_t slot[CODE_CHUNK], const decode_chunk *c, size_t least, size_t most);
void LEVEL(codes_open)(code_sums *s, const decode_chunk *c, const float *q);
/* Processes block `at` for the heads [h0, h1) of all queries and prefetches the rows of the next block. False if
 * nothing was done, because a scale is not finite or rows of several groups meet. */
bool LEVEL(codes_block)(code_sums *s, const block_rows *k, const block_rows *v, const block_rows *next_k,
                        const block_rows *next_v, size_t at, size_t h0, size_t h1);
/* Adds the sums to those of head h. */
void LEVEL(codes_close)(const code_sums *s, size_t h, float *acc, float *top, float *sum);
#else
INLINE bool LEVEL(codes_order)(decode_chunk *to, int32_t *slot, const decode_chunk *c, size_t least, size_t most)
{
    (void)to, (void)slot, (void)c, (void)least, (void)most;
    return false;
}
INLINE void LEVEL(codes_open)(code_sums *s, const decode_chunk *c, const float *q)
{
    (void)c, (void)q;
    s->on = false;
}
INLINE bool LEVEL(codes_block)(code_sums *s, const block_rows *k, const block_rows *v, const block_rows *next_k,
                               const block_rows *next_v, size_t at, size_t h0, size_t h1)
{
    (void)k, (void)v, (void)next_k, (void)next_v, (void)at, (void)h0, (void)h1;
    return s->on;
}
INLINE void LEVEL(codes_close)(const code_sums *s, size_t h, float *acc, float *top, float *sum)
{
    (void)s, (void)h, (void)acc, (void)top, (void)sum;
}
#endif

#endif
