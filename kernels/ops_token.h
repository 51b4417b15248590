/* SPDX-License-Identifier: MIT */
/* Selection of tokens by exact scores over all keys, the same tokens for all heads of a layer, and copies of the
 * selected rows. Source: TokenSelect (Wu et al. 2024, arXiv 2411.02886); methods.md 12.4. */
#ifndef KERNELS_OPS_TOKEN_H
#define KERNELS_OPS_TOKEN_H

#include "kernels/ops_select.h"

/* Scores of the slots [lo, hi).
 * q       f32 [n_heads][head_dim]
 * score   f32 [n_heads][stride] out: column i is the product of the query and the K row of slot i, dequantized if
 *         needed; no other column is written
 * state   of a token_cache that was matched with the same lo and hi. Not fresh: the op does and reads nothing;
 *         p NULL: fresh
 * votes   f32 [>= hi] out: columns [lo, hi) of the scores of all heads combined with GQA_LAYER_VOTE and `scale`, to the
 *         bit. score is undefined then, and so are votes if the state is not fresh. p NULL: not wanted
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

/* Returns the job that combines the scores into votes. */
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

/* Cached selection of a layer, for later windows with similar queries.
 * probe   f32 [n_parts][part]: the query of that selection
 * state   i64 [TOKEN_STATE]. fresh: 1 if the current window selects again; again: number of consecutive reuses of the
 *         selection (-1: none exists); end: its candidates were before this position; first, count: candidates that the
 *         current window scores, a range as in attn_job
 * least, most: lowest cosine for a reuse, and maximum of consecutive reuses */
typedef struct {
    buf probe, state;
    size_t n_parts, part;
    float least;
    int64_t most;
} token_cache;

enum { TOKEN_FRESH, TOKEN_AGAIN, TOKEN_END, TOKEN_FIRST, TOKEN_COUNT, TOKEN_STATE };

#define TOKEN_OPS(OP, own, plain)                                                                                      \
    OP(own, void, score, (backend *, const token_score_job *job))                                                      \
    /* Compares u [n_parts][part] f32 with the cached probe. If their cosine is at least `least`, and the selection    \
     * was reused fewer than `most` times: fresh = 0, again += 1, count = 0. Otherwise u becomes the probe, fresh =    \
     * 1, again = 0, end = hi, count = hi - lo. first = lo. Never reused if one of the two is 0. x.y >= least *        \
     * sqrt(x.x) * sqrt(y.y) in float32, to the bit: products of parts in the order of ops_select.h, added in          \
     * ascending order. */                                                                                             \
    OP(plain, void, match, (backend *, const token_cache *c, buf u, int64_t lo, int64_t hi))                           \
    /* Updates out[i] (f32) for lo <= i < hi. fresh: in[i], with NaN replaced by -INFINITY. Not fresh: -INFINITY       \
     * from position `end` on, unchanged before it. state as in token_cache. out must not be in. */                    \
    OP(plain, void, keep, (backend *, buf out, buf in, int64_t lo, int64_t hi, buf state))                             \
    /* Copies the slots idx[0..n) (i32) of each head of rows to rows 0 .. n - 1 of that head of out (f32). read as     \
     * in attn_job, of one list. */                                                                                    \
    OP(own, void, gather, (backend *, const kv_rows *out, const kv_rows *rows, buf idx, int64_t n, buf read))

struct token_ops {
    TOKEN_OPS(OP_POINTER, , )
};

#endif
