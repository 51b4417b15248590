/* SPDX-License-Identifier: MIT */
/* Tables of locality-sensitive hashes, from which keys are sampled by their angle to a query. Source: MagicPIG (Chen et
 * al. 2024), section 4; methods.md 20.3. */
#ifndef KERNELS_OPS_LSH_H
#define KERNELS_OPS_LSH_H

#include <math.h>

#include "kernels/ops_paris.h"

#ifdef __CUDACC__ /* also compiled for devices */
#define LSH_INLINE static inline __host__ __device__
#else
#define LSH_INLINE static inline
#endif

enum { LSH_BITS_MAX = 14 };

/* Index of one layer; a token's slot is its position. Bit i of a code of table l is 1 if plane l * bits + i times k -
 * mean is above 0, summed in the order of ops_select.h: the same bits on every backend.
 * plane    f32 [tables * bits][head_dim]
 * mean     f32 [n_kv_heads][head_dim]
 * norm     f32 [n_kv_heads][cap], |k - mean|
 * start    i32 [n_kv_heads][tables][2^bits + 1]: first entry of each bucket
 * entry    i32 [n_kv_heads][tables][cap]: tokens, ascending in each bucket */
typedef struct {
    buf plane, mean, norm, start, entry;
    size_t n_kv_heads, head_dim, cap, bits, tables;
} lsh_index;

static inline size_t lsh_buckets(const lsh_index *x)
{
    return ((size_t)1 << x->bits) + 1;
}

/* Returns the bytes for the hits of a query: a byte a token, or two bits in words. */
static inline size_t lsh_hits(size_t cap)
{
    return (cap + 31) / 32 * 32;
}

/* Returns the bias (see lsh_job) of a key with this cosine to the query. Powers are in double: small probabilities are
 * differences of numbers near 1. */
LSH_INLINE float lsh_bias(float cosine, size_t bits, size_t tables)
{
    double p = 1 - (double)acosf(fminf(fmaxf(cosine, -1), 1)) * 0.31830988618379067, u = 1, none = 1;
    for (size_t i = 0; i < bits; i++) u *= p;
    double power = 1 - u;
    for (size_t n = tables - 1; n > 0; n /= 2, power *= power) none *= n % 2 ? power : 1; /* (1 - u)^(tables - 1) */
    return -logf((float)(1 - (1 - u + (double)tables * u) * none + 1e-4));
}

/* Draws a sample for each of n_heads queries q f32 [n_heads][head_dim] among the tokens of `range` (visible tokens that
 * the tables hold): the tokens that share the query's bucket in two tables or more, ascending.
 * idx   i32, bias f32 [n_heads][cap]; list i64 [n_heads][2]: 0 and their number
 * bias  -log(w + 1e-4), w the probability of that: p = 1 - acos(cosine of q and k - mean) / pi, u = p^bits,
 *       w = 1 - (1 - u)^tables - tables u (1 - u)^(tables - 1); accurate to 5e-6
 * dots  f32 [n_heads][tables * bits], hits u8 [n_heads][lsh_hits(cap)]: work space
 * read  u64 [READ_KINDS]: as READ_INDEX, 4 bytes for each entry of the buckets in the range, and the norms of the
 *       sample; as READ_K, its keys, as in attn_job */
typedef struct {
    const lsh_index *x;
    const kv_rows *rows;
    buf q;
    size_t n_heads;
    slot_range range;
    buf idx, bias, list, dots, hits, read;
} lsh_job;

#define LSH_OPS(OP, own, plain)                                                                                        \
    /* Builds tables and norms of the tokens of `range`. code u16 [tables][cap]: work space. */                        \
    OP(own, void, build, (backend *, const lsh_index *x, const kv_rows *rows, slot_range range, buf code))             \
    OP(own, void, collide, (backend *, const lsh_job *j))

struct lsh_ops {
    LSH_OPS(OP_POINTER, , )
};

#endif
