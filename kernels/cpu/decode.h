/* SPDX-License-Identifier: MIT */
/* What the kernels of decode attention share: the rows of a block, asking for them ahead, and the blocks that are
 * multiplied in codes. Included by k_decode*.c. */
#ifndef KERNELS_CPU_DECODE_H
#define KERNELS_CPU_DECODE_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/simd.h"

enum { ROWS = DECODE_BLOCK + VF_LANES, LINE = 64, SHORT_ROW = 2 * LINE };

/* The rows of one block as they are stored, where they may be prefetched; later perhaps as float. The last
 * one is repeated behind the end, so that a tile of keys need not look for it. */
typedef struct {
    const unsigned char *row[ROWS];
    size_t n, lines;            /* of a row that are worth asking for */
    size_t coded;               /* how many of them are code rows */
    int32_t code[DECODE_BLOCK]; /* row i by number, where all are */
    bool turns;                 /* row i is that of entry_of(true, i) */
    bool short_jumps;           /* rows of a list, of two lines at most */
} block_rows;

/* The entry of its block that is number i. */
INLINE size_t entry_of(bool turns, size_t i)
{
    enum { STREAMS = 8 };
    return turns ? i % STREAMS * (DECODE_BLOCK / STREAMS) + i / STREAMS : i;
}

/* The column of scores and biases of number i of block `at`. */
INLINE size_t column_of(const decode_chunk *c, const block_rows *b, size_t at, size_t i)
{
    size_t entry = at + entry_of(b->turns, i);
    return c->moved ? (size_t)(c->idx[(size_t)c->first + entry] - c->origin) : entry;
}

/* Rows to ask for, `by` of them in `parts` steps: evenly, because memory has few requests at work at a time, and
 * a whole row at once, whose lines lie side by side. Short rows from anywhere are asked into L2 alone: while L1
 * waits for all the lines it can, the arithmetic waits too (17 instead of 11 GB/s; longer rows gain nothing). */
typedef struct {
    const block_rows *b;
    size_t next, by, parts, due;
} asking;

INLINE void ask(asking *a)
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

/* Blocks all of whose rows are codes, without making floats of them (k_decode_codes.c): sums of their own, which are
 * added to those of the other blocks in the end. `on`: the level has this for the chunk's rows and queries. */
enum { CODE_RUNS = HEAD_DIM_MAX / ROW_BLOCK };

/* A query as whole numbers of 16 bits, in the order that products have: in whole, or in bytes, as 256 hi + lo. */
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
    const float *q; /* [heads][head_dim], scaled, as they meet what the rows hold */
    int bits, offset;
    code_query number[DECODE_GROUP]; /* times q_scale is q */
    float q_scale[DECODE_GROUP];
    int32_t q_sum[DECODE_GROUP][CODE_RUNS];
    float acc[DECODE_GROUP * HEAD_DIM_MAX]; /* in the order that products have */
    float top[DECODE_GROUP], sum[DECODE_GROUP][VF_LANES], rest[DECODE_GROUP][CODE_RUNS][VF_LANES];
} code_sums;

enum { CODE_CHUNK = 2048 };

#if SIMD_CODES
/* Puts the code rows of a chunk, whose K have scales by channel, into their own order, group by group: `to` with `slot`
 * as its list. Groups are of the first `least` entries; those that are not whole here and exact rows follow, and then
 * what only some queries see, up to `most`: their newest rows, which are exact. False: they are in order. */
bool LEVEL(codes_order)(decode_chunk *to, int32_t slot[CODE_CHUNK], const decode_chunk *c, size_t least, size_t most);
void LEVEL(codes_open)(code_sums *s, const decode_chunk *c, const float *q);
/* Block `at` for the heads [h0, h1) of all queries; the rows of the next one are asked for. False: nothing was done,
 * since a scale is not finite or rows of several groups meet. */
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
