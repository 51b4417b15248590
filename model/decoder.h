/* SPDX-License-Identifier: MIT */
/* Inside model/: the one forward pass. */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "kernels/base/sha256.h"
#include "model/session.h"

struct decoder {
    const model *m;
    const model *w; /* of the step at hand: m, or opt.draft */
    backend *be;
    decoder_options opt;
    attn_shape shape;
    attn_work *work;
    size_t max_rows, logit_rows;
    buf ids, pos, freq, table;         /* i32, i64 [rows]; f32 [rows, half]; [rows, half, 2] */
    buf x, xn, q, k, v, att, gate, up; /* f32 [rows, ...] */
    buf logits;                        /* f32 [logit_rows, vocab] */
    float *host_logits;                /* [logit_rows, vocab] */
    int64_t *host_pos;                 /* [rows] */
    float host_freq[128];
    float mscale;
    attn_seq **seqs;              /* [max_batch] */
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
    int64_t limit, longest_prompt; /* session_size */
    bool open;                     /* in the middle of a prompt, */
    int64_t opened;                /* which began behind so many tokens */
    attn_span bound;               /* the last prompt with rows that depend on later tokens of it */
};

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
