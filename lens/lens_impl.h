/* SPDX-License-Identifier: MIT */
/* Internals shared by the files of the lens. */
#ifndef LENS_LENS_IMPL_H
#define LENS_LENS_IMPL_H

#include "lens/lens.h"
#include "lens/recall_score.h"

/* One strategy, with the positions it read and the mass it missed in the current step. */
typedef struct {
    const attn_spec *spec;
    session *s;
    bool *dense;             /* [n_layers] */
    uint8_t *bits;           /* [n_layers][row] bitmaps of the positions that any head read */
    uint32_t *reads;         /* [n_bins] prompt positions read, summed over layers and heads */
    double *missed_at;       /* [cap] full attention's softmax on unread positions, summed over layers and heads */
    double *missed_by;       /* [n_layers][n_kv_heads] missed mass, mean over the query heads of a KV head */
    double attended, missed; /* sums over layers and heads in the current step */
    int64_t heads;           /* number of query heads in layers that are not dense */
    lens_means sum;          /* sums of the steps' means */
    int32_t choice;          /* most likely token */
} lens_run;

struct lens {
    lens_options o;
    const attn_shape *shape;
    backend *be;
    session *s[1 + LENS_STRATEGIES];   /* full, then those of `run` */
    size_t group[1 + LENS_STRATEGIES]; /* at the first session of a group: sessions prefilled together; else 0 */
    lens_run run[LENS_STRATEGIES];
    size_t row, bin, n_bins; /* bytes of a bitmap; positions per bin; bins of the prompt */
    int64_t cap, n;          /* maximum number of tokens; number in the current step */
    size_t first, fed;       /* prefill: first session of the current group; its tokens so far */
    size_t step;             /* steps done */
    int32_t next;            /* token fed in the next step */
    float *logits;           /* [1 + n][vocab] */
    token_stream *stream;    /* decodes prompt and new tokens */
    /* full attention in the current layer */
    buf keys; /* [n_kv_heads][cap][head_dim] f32 */
    float *k, *q;
    exact_rows rows;
    exact_query query;
    int32_t *selected; /* [2 * cap] */
    uint8_t *mark;     /* [cap] 1: the current head read the position */
    bool ended;
};

/* lens_judge.c: lens_before resets the measurements; lens_watch, called by attn_watch, measures a layer. */
void lens_before(lens *l);
void lens_watch(void *ctx, const attn_seen *seen);

/* lens_record.c */
status lens_begin(lens *l, err *e);
/* Writes the records of the last step, which produced the token `id`. */
status lens_record_step(lens *l, int32_t id, err *e);
status lens_end(lens *l, err *e);

#endif
