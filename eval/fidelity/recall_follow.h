/* SPDX-License-Identifier: MIT */
/* Shared by recall on text and on tensors: strategies that receive every step, and exact attention of the same step as
 * the reference. Used only by recall_*.c and drift.c. */
#ifndef EVAL_RECALL_FOLLOW_H
#define EVAL_RECALL_FOLLOW_H

#include "eval/fidelity/recall_run.h"
#include "lens/recall_score.h"

/* Strategies of a job, and the data of exact attention. */
typedef struct {
    backend *be;
    const attn_shape *shape;
    recall_run *runs;
    size_t n_runs;
    FILE *dump; /* NULL: none */
    attn_work *work;
    bool watched; /* the only run generates by itself and is observed: its sequence and `work` belong to the caller */
    buf out;      /* [rows][n_heads][head_dim] outputs of the strategies */
    buf tokens;   /* [n_heads][head_dim] output of the attended tokens alone */
    attn_seq **seqs;   /* [n_runs] sequences of one step */
    exact_rows *rows;  /* [n_layers] */
    exact_query query; /* scores and weights of one layer; the arrays are reused */
    float *q, *host;   /* query and two outputs [3][n_heads][head_dim]; staging rows */
    size_t host_rows;
    double *sorting;   /* [2 * cap] */
    double *mass;      /* [n_heads] exact attention mass of a step's selection */
    float *missed;     /* [n_heads][2] missed mass and its deviation, estimated from the step's sample */
    int32_t *selected; /* [2 * cap] */
    int64_t *pos;      /* [cap] */
    bool *joins;       /* [n_runs] shares the prompt of the run before it */
    bool *is_float;    /* [n_runs * cap] tokens with an unquantized key or value before the step */
    dtype type;        /* rounding of exact keys and values: the type of all runs' rows, f32 if they differ */
    int64_t cap, query_index;
    int64_t prompt;        /* tokens fed as a prompt */
    bool has_v, in_window; /* in_window: the queries are a prompt window */
    bool distributions;
    buf keys; /* [n_kv_heads][cap][head_dim] dequantized keys of a run, and a host copy; only with distributions */
    float *host_keys; /* and quantized rows */
    float *bounds;    /* [n_heads] bounds of the certificates */
    status st;        /* first error of a callback without a return value */
    err e;
} follow;

/* Returns the type to which exact keys and values are rounded: that of all runs' rows, f32 if they differ. */
dtype recall_exact_type(const recall_run *runs, size_t n);
/* Opens a job. The caller sets be, shape, runs, n_runs, dump and, if watched, work. Creates everything else, including
 * the sequences. */
status follow_open(follow *f, const attn_limits *lim, bool has_v, err *e);
void follow_close(follow *f);
/* Appends n rows [n][n_kv_heads][head_dim] f32 in ops memory to the exact rows of a layer, rounded to f->type. */
void follow_append(follow *f, int layer, buf k, buf v, size_t n);
/* Sets the query of a layer: [n_heads][head_dim] rotated queries in ops memory. */
void follow_query(follow *f, int layer, buf q);
/* Compares the selection of run i for the query with exact attention. Its output is in row `row` of f->out. In a decode
 * step: call between attn_attend and attn_layer_end. In a prompt window: call for each row. */
void follow_judge(follow *f, size_t i, int layer, size_t row);

#endif
