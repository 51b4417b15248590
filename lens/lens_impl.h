/* SPDX-License-Identifier: MIT */
/* What the files of the lens share. */
#ifndef LENS_LENS_IMPL_H
#define LENS_LENS_IMPL_H

#include "lens/lens.h"
#include "lens/recall_score.h"

/* One strategy, and what its step under way read and missed. */
typedef struct {
    const attn_spec *spec;
    session *s;
    bool *dense;             /* [n_layers] */
    uint8_t *bits;           /* [n_layers][row] bits: positions that some head read */
    uint32_t *reads;         /* [n_bins] positions of the prompt that were read, over layers and heads */
    double *missed_at;       /* [cap] softmax of full attention on what was not read, summed over layers and heads */
    double *missed_by;       /* [n_layers][n_kv_heads] mean over the query heads of a KV head */
    double attended, missed; /* sums over layers and heads of the step */
    int64_t heads;           /* query heads of layers that are not dense */
    lens_means sum;          /* means of the steps, summed */
    int32_t choice;          /* the token that it finds most likely */
} lens_run;

struct lens {
    lens_options o;
    const attn_shape *shape;
    backend *be;
    session *s[1 + LENS_STRATEGIES];   /* full, and those of `run` */
    size_t group[1 + LENS_STRATEGIES]; /* how many go through the prompt together, where a group begins; else 0 */
    lens_run run[LENS_STRATEGIES];
    size_t row, bin, n_bins; /* bytes of `cap` bits; positions of a bin; bins of the prompt */
    int64_t cap, n;          /* most tokens; those of the step under way, the current one too */
    size_t first, fed;       /* of the prompt: the group that is fed, its tokens so far */
    size_t step;             /* steps behind */
    int32_t next;            /* the token of the next step */
    float *logits;           /* [1 + n][vocab] */
    token_stream *stream;    /* of prompt and new tokens */
    /* full attention of one layer */
    buf keys; /* [n_kv_heads][cap][head_dim] f32 */
    float *k, *q;
    exact_rows rows;
    exact_query query;
    int32_t *selected; /* [2 * cap] */
    uint8_t *mark;     /* [cap] whether a head read a position */
    bool ended;
};

/* lens_judge.c: before a step; then it watches the step, as attn_watch calls it. */
void lens_before(lens *l);
void lens_watch(void *ctx, const attn_seen *seen);

/* lens_record.c: records. */
status lens_begin(lens *l, err *e);
/* Of the step behind, which led to the token `id`. */
status lens_record_step(lens *l, int32_t id, err *e);
status lens_end(lens *l, err *e);

#endif
