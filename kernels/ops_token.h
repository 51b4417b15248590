/* SPDX-License-Identifier: MIT */
/* Choice of tokens by exact scores over all keys, the same tokens for all heads of a layer, and copies of the chosen
 * rows. Source: TokenSelect (Wu et al. 2024, arXiv 2411.02886); methods.md 12.4. */
#ifndef KERNELS_OPS_TOKEN_H
#define KERNELS_OPS_TOKEN_H

#include "kernels/ops_select.h"

/* Scores of the slots [lo, hi).
 * q       f32 [n_heads][head_dim]
 * score   f32 [n_heads][stride] out: column i is the product of the query and the K row of slot i, codes as the key
 *         that they give; no other column is touched
 * state   of a token_cache that was matched with the same lo and hi: not fresh: nothing is done and nothing is read;
 *         p NULL: fresh
 * votes   f32 [>= hi] out: columns [lo, hi) of the scores of all heads combined with GQA_LAYER_VOTE and `scale`, to the
 *         bit; what score holds is undefined then, as votes where the state is not fresh. p NULL: not wanted
 * read    u64 [READ_KINDS]: bytes of K rows are added as attn_job counts them; p NULL: not counted
 * Scores decide selections: products have the order of ops_select.h, to the bit. */
typedef struct {
    buf q;
    size_t n_heads;
    kv_rows rows;
    int64_t lo, hi;
    buf score;
    size_t stride;
    buf state, votes;
    float scale;
    buf read;
} token_score_job;

/* What makes the votes of the scores. */
static inline combine_job token_votes(const token_score_job *j)
{
    combine_job c = {.out = j->votes,
                     .in = j->score,
                     .stride = j->stride,
                     .n_heads = j->n_heads,
                     .n_lists = 1,
                     .lo = j->lo,
                     .hi = j->hi,
                     .mode = GQA_LAYER_VOTE,
                     .scale = j->scale};
    return c;
}

/* What a layer selected by, for later windows whose queries are alike.
 * probe   f32 [n_parts][part]: the query of that selection
 * state   i64 [TOKEN_STATE]: fresh: 1 where the window at hand selects anew; again: how many times in a row the
 *         selection was used since (-1: there is none); end: its candidates were those before this position; first,
 * count: candidates that the window at hand scores, a range as attn_job has it least, most: cosine from which on it is
 * used again, and how often in a row */
typedef struct {
    buf probe, state;
    size_t n_parts, part;
    float least;
    int64_t most;
} token_cache;

enum { TOKEN_FRESH, TOKEN_AGAIN, TOKEN_END, TOKEN_FIRST, TOKEN_COUNT, TOKEN_STATE };

#define TOKEN_OPS(OP, own, plain)                                                                                      \
    OP(own, void, score, (backend *, const token_score_job *job))                                                      \
    /* Compares u [n_parts][part] f32 with the cached probe. Their cosine at least `least`, and the selection used     \
     * fewer than `most` times: fresh = 0, again += 1, count = 0. Else u becomes the probe, fresh = 1, again = 0, end  \
     * = hi, count = hi - lo. first = lo. Not used again where one of the two is 0. x.y >= least * sqrt(x.x) *         \
     * sqrt(y.y) in float32, to the bit: products of parts in the order of ops_select.h, added in ascending order. */  \
    OP(plain, void, match, (backend *, const token_cache *c, buf u, int64_t lo, int64_t hi))                           \
    /* out[i] (f32) for lo <= i < hi. fresh: in[i], of which NaN becomes -INFINITY. Not fresh: -INFINITY from position \
     * `end` on, out before it stays. state as in token_cache. out is not in. */                                       \
    OP(plain, void, keep, (backend *, buf out, buf in, int64_t lo, int64_t hi, buf state))                             \
    /* Rows 0 .. n - 1 of each head of out (f32, exact) become the slots idx[0..n) (i32) of that head of rows. read as \
     * in attn_job, of one list. */                                                                                    \
    OP(own, void, gather, (backend *, const kv_rows *out, const kv_rows *rows, buf idx, int64_t n, buf read))

struct token_ops {
    TOKEN_OPS(OP_POINTER, , )
};

#endif
