/* SPDX-License-Identifier: MIT */
/* Inside model/: the one forward pass. */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "kernels/base/sha256.h"
#include "model/recurrent.h"
#include "model/session.h"

struct decoder {
    const model *m;
    const model *w; /* of the step at hand: m, or opt.draft */
    backend *be;
    decoder_options opt;
    attn_shape shape;
    attn_work *work;
    size_t max_rows, logit_rows;
    buf ids, pos;       /* i32, i64 [rows] */
    buf freq, table;    /* of each rotary embedding: f32 [rows, half]; [rows, half, 2] */
    buf x, xn;          /* f32 [rows, hidden] */
    buf room;           /* scratch of blocks, each kind's apart */
    size_t *room_at;    /* [n_blocks]: where a block's scratch begins */
    buf logits;         /* f32 [logit_rows, vocab] */
    float *host_logits; /* [logit_rows, vocab] */
    int64_t *host_pos;  /* [rows] */
    float host_freq[128];
    float mscale[2];              /* of each rotary embedding */
    attn_seq **seqs;              /* [max_rows] */
    recurrent **states;           /* [max_rows]: of seqs; NULL where a model has no recurrent state */
    size_t n_tok, head_first;     /* tokens of a sequence in the last step; the row of it that logits row 0 is for */
    buf next, share;              /* i32, f32 [max_batch]: what a step chose, and by which shares */
    float *host_share;            /* [max_batch] */
    draw_rule *rules;             /* [max_batch] */
    uint64_t n_queued, n_taken;   /* steps of session_queue */
    bool checked;                 /* the logits that were checked last were finite */
    const model *scanned;         /* holds no weight that is not finite, as a scan found */
    char fingerprint[SHA256_HEX]; /* of the model, once a session file needed it */
    int64_t stage[STAGE_COUNT];
};

struct session {
    decoder *d;
    attn_seq *attn;
    recurrent *state;              /* NULL: the model has none */
    int64_t limit, longest_prompt; /* session_size */
    bool open;                     /* in the middle of a prompt, */
    int64_t opened;                /* which began behind so many tokens */
    attn_span bound;               /* the last prompt with rows that depend on later tokens of it */
};

/* Returns what attention needs to know of a model. */
attn_shape attn_shape_of(const model_config *c);
/* Returns the options with the backend's defaults; the rows of the largest forward; the bytes of a decoder's buffers.
 */
decoder_options decoder_defaults(const decoder_options *o, const backend *be);
size_t decoder_rows(const decoder_options *o);
size_t decoder_bytes(const model *m, const decoder_options *o);
/* Returns the scratch of a block, and the step with the rotary embedding of its layer. */
buf decoder_room(const decoder *d, const block *b);
attn_step decoder_step(const decoder *d, const attn_step *s, const block *b);
/* Computes the rotary frequencies of sequence i, whose length decides them where scaling is dynamic, and the tables of
 * n_tok rows of each of n_seq sequences at d->pos. */
void decoder_set_freq(decoder *d, size_t i, int64_t seq_len);
void decoder_set_tables(decoder *d, size_t n_seq, size_t n_tok);

/* Multiplies n rows x, normalised by norm, with the matrices of jobs. gated: as of projection. */
void decoder_project(const decoder *d, buf x, size_t n, weight norm, const linear_job *jobs, size_t n_jobs, bool gated);
/* Adds the product of n rows x with w, and its bias, to d->x. */
void decoder_add(const decoder *d, buf x, size_t n, weight w, weight bias);

/* Runs the layers over the step's rows; d->ids, pos, freq and table are set. Hidden states end in d->x. */
void decoder_forward(decoder *d, const attn_step *step);
/* Final norm and output matrix for rows [first, first + n) of d->x into d->logits; n <= logit_rows. */
void decoder_head(decoder *d, size_t first, size_t n);
/* Copies rows [row, row + n) of d->logits to out [n, vocab], also where it fails for them. Errors: ST_FORMAT for logits
 * that are not finite, as decoder_not_finite; else the fault of the backend. */
status decoder_logits(decoder *d, float *out, size_t row, size_t n, err *e);
/* Explains a row of logits [vocab] that holds NaN or infinity, of a sequence whose last token is at position pos.
 * Scans the weights, once, and the rows of all layers. Returns ST_FORMAT with the tensor, or with the first layer that
 * is not finite and, where keys or values exceed the range of f16 rows, the remedy. finite.c. */
status decoder_not_finite(decoder *d, attn_seq *seq, int64_t pos, const float *row, err *e);

#endif
