/* SPDX-License-Identifier: MIT */
/* The forward pass. Private to model/. */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "kernels/base/sha256.h"
#include "model/recurrent.h"
#include "model/session.h"

struct decoder {
    const model *m;
    const model *w; /* model that supplies the weights of the current step: m, or opt.draft */
    backend *be;
    decoder_options opt;
    attn_shape shape;
    attn_work *work;
    size_t max_rows, logit_rows;
    buf ids, pos;       /* i32, i64 [rows] */
    buf freq, table;    /* per rotary embedding: f32 [rows, half]; f32 [rows, half, 2] */
    buf query_table;    /* f32 [rows, head_dim/2, 2]: rotations by 0 times rope_query_scale; p NULL: no factors */
    buf still;          /* f32 [head_dim/2]: frequencies of query_table, 0 */
    buf x, xn;          /* f32 [rows, hidden] */
    buf scratch;        /* scratch of blocks, one area per kind of block */
    size_t *scratch_at; /* [n_blocks]: offset of each block's scratch */
    buf logits;         /* f32 [logit_rows, vocab] */
    float *host_logits; /* [logit_rows, vocab] */
    int64_t *host_pos;  /* [rows] */
    float host_freq[128];
    float mscale[2];          /* one per rotary embedding */
    attn_seq **seqs;          /* [max_rows] */
    recurrent **states;       /* [max_rows]: recurrent states of seqs; NULL if the model has none */
    size_t n_tok, head_first; /* tokens per sequence in the last step; row of the step that logits row 0 is for */
    buf next, uniform; /* i32 [2 max_batch], f32 [max_batch]: choices of a step, with finiteness (see op draw), and its
                          random numbers */
    float *host_uniform;          /* [max_batch] */
    draw_rule *rules;             /* [max_batch] */
    uint64_t n_queued, n_taken;   /* number of steps queued by session_queue, and taken */
    const model *scanned;         /* model whose weights a scan found to be finite */
    char fingerprint[SHA256_HEX]; /* model_fingerprint of m, computed at first use */
    bool paged;                   /* the mapped weights exceed the available memory: experts are read in advance */
    expert_reads reads;           /* of the chosen experts, if paged */
    int64_t stage[STAGE_COUNT];
};

struct session {
    decoder *d;
    attn_seq *attn;
    recurrent *state;              /* NULL: the model has none */
    int64_t limit, longest_prompt; /* session_size */
    bool open;                     /* a prompt is incomplete */
    int64_t opened;                /* number of tokens before that prompt */
    attn_span bound;               /* last prompt with rows that depend on its later tokens */
};

/* Returns the shape that attention needs to know of a model. */
attn_shape attn_shape_of(const model_config *c);
/* Return the options with the backend's defaults filled in, the rows of the largest forward, and the bytes of a
 * decoder's buffers. */
decoder_options decoder_defaults(const decoder_options *o, const backend *be);
size_t decoder_rows(const decoder_options *o);
size_t decoder_bytes(const model *m, const decoder_options *o);
/* Return the scratch of a block, and the step with the rotary embedding of the block's layer. */
buf decoder_scratch(const decoder *d, const block *b);
attn_step decoder_step(const decoder *d, const attn_step *s, const block *b);
/* Compute the rotary frequencies of sequence i, and the tables for n_tok rows of each of n_seq sequences at d->pos.
 * With dynamic scaling the frequencies depend on seq_len. */
void decoder_set_freq(decoder *d, size_t i, int64_t seq_len);
void decoder_set_tables(decoder *d, size_t n_seq, size_t n_tok);

/* Multiplies the queries q [n, heads, head_dim] f32 of the step's rows by their factors, if the model has them. */
void decoder_scale_queries(const decoder *d, buf q, size_t n);
/* Multiplies n rows x, normalized by `norm`, by the matrices of jobs. gated: see `projection`. */
void decoder_project(const decoder *d, buf x, size_t n, weight norm, const linear_job *jobs, size_t n_jobs, bool gated);
/* Adds the product of n rows x with w, and the bias, to d->x; x is then undefined. post: norm of the sum of both; p
 * NULL: none. */
void decoder_add(const decoder *d, buf x, size_t n, weight w, weight bias, weight post);

/* Runs the layers over the step's rows. Expects d->ids, pos, freq and table to be set. Leaves the hidden states in
 * d->x. */
void decoder_forward(decoder *d, const attn_step *step);
/* Applies the final norm and the output matrix to rows [first, first + n) of d->x and writes d->logits; n <=
 * logit_rows. */
void decoder_head(decoder *d, size_t first, size_t n);
/* Copies rows [row, row + n) of d->logits to out [n, vocab], even if it fails because of them. Errors: ST_FORMAT of
 * decoder_not_finite for logits that are not finite; the backend's fault. */
status decoder_logits(decoder *d, float *out, size_t row, size_t n, err *e);
/* Finds the cause of a row of logits [vocab] with NaN or infinity, for a sequence whose last token is at position pos.
 * Scans the weights (once) and the rows of all layers. Returns ST_FORMAT with the name of the tensor, or of the first
 * layer that is not finite. If keys or values exceed the range of f16 rows, the message names the remedy. Defined in
 * finite.c. */
status decoder_not_finite(decoder *d, attn_seq *seq, int64_t pos, const float *row, err *e);

#endif
