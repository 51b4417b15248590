/* SPDX-License-Identifier: MIT */
/* What recall on text and on tensors share: strategies that are shown steps, and exact attention of the same
 * step to judge them by. For recall_*.c alone. */
#ifndef EVAL_RECALL_FOLLOW_H
#define EVAL_RECALL_FOLLOW_H

#include "eval/fidelity/recall_run.h"
#include "lens/recall_score.h"

/* A job's strategies, and what exact attention is computed from. */
typedef struct {
    backend *be;
    const attn_shape *shape;
    recall_run *runs;
    size_t n_runs;
    FILE *dump; /* NULL: none */
    attn_work *work;
    bool watched;      /* the one run goes on by itself and is watched: its sequence and `work` are the caller's */
    buf out;           /* [rows][n_heads][head_dim]: the strategies' outputs */
    buf tokens;        /* [n_heads][head_dim]: that of the attended tokens */
    attn_seq **seqs;   /* [n_runs] those of one step */
    exact_rows *rows;  /* [n_layers] */
    exact_query query; /* its arrays serve all layers */
    float *q, *host;   /* query and two outputs [3][n_heads][head_dim]; rows on their way */
    size_t host_rows;
    double *sorting;   /* [2 * cap] */
    double *mass;      /* [n_heads] that a step's choice holds */
    float *missed;     /* [n_heads][2] as its sample says */
    int32_t *selected; /* [2 * cap] */
    int64_t *pos;      /* [cap] */
    bool *joins;       /* [n_runs] goes through the prompt with the run before it */
    bool *exact;       /* [n_runs * cap] whether a token has an exact key or value, before the step */
    dtype type;        /* that exact keys and values are rounded to: of all runs' rows, f32 if they differ */
    int64_t cap, query_index;
    int64_t prompt;        /* tokens that were fed as a prompt */
    bool has_v, in_window; /* the queries are a prompt window */
    bool distributions;
    buf keys;      /* [n_kv_heads][cap][head_dim] of a run, and on the host: where distributions are asked for */
    float *held;   /* and stores have codes */
    float *bounds; /* [n_heads] of certificates */
    status st;     /* of what cannot return one */
    err e;
} follow;

/* Returns the type that exact keys and values are rounded to: that of all runs' rows, f32 if they differ. */
dtype recall_exact_type(const recall_run *runs, size_t n);
/* be, shape, runs, n_runs, dump and, where it is watched, work are given; creates everything else, the sequences too.
 */
status follow_open(follow *f, const attn_limits *lim, bool has_v, err *e);
void follow_close(follow *f);
/* Appends n rows [n][n_kv_heads][head_dim] f32 of ops memory to the exact rows of a layer, rounded to f->type. */
void follow_append(follow *f, int layer, buf k, buf v, size_t n);
/* Makes [n_heads][head_dim] rotated queries in ops memory the query of a layer. */
void follow_query(follow *f, int layer, buf q);
/* Judges what run i reads for the query, with its output in row `row` of f->out: in a decode step between attn_attend
 * and attn_layer_end, or as that row of a prompt window. */
void follow_judge(follow *f, size_t i, int layer, size_t row);

#endif
