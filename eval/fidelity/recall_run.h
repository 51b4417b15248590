/* SPDX-License-Identifier: MIT */
/* Recall of strategies: on the queries and keys of one run of full attention over a text, or on tensors. */
#ifndef EVAL_RECALL_RUN_H
#define EVAL_RECALL_RUN_H

#include <stdio.h>

#include "model/session.h"

/* What the results' arrays are indexed by. */
typedef struct {
    int n_layers, n_heads;
    bool has_v;
} recall_shape;

/* One strategy at one budget, and its sums over the queries: [n_layers][n_heads]. */
typedef struct {
    attn_spec spec;
    attn_seq *seq;
    bool *dense; /* [n_layers] */
    double *recall, *mass, *error, *error_l1, *selected;
    double *evicted, *evicted_l1; /* stores with codes: the errors if what is in codes were not there */
    /* error and error_l1 are those of the attended tokens; with_tail: L2, with rows that stand for the others. */
    double *with_tail;
    bool has_tail;
    /* With tail=sample: of all heads the missed mass as samples measured it, the variance of that sum, at most, and how
     * many intervals of one head hold the mass that was missed, of how many. */
    double *missed, *missed_var, *covers, *measured;
    /* Of heads with a certificate of missed attention: how many, sums of the bound and of what was missed (1 - mass),
     * and the largest of both. p NULL: the strategy certifies nothing. */
    double *certified, *bound, *sure_missed, *bound_most, *missed_most;
    /* With distributions: L1 distance of attention from the exact one, that if what is in codes were not there; exact
     * tokens but 0 and 1, their mass, their mass over their number. */
    double *distance, *distance_evicted, *covering, *covered, *coverage;
    /* Selections of each number of tokens: [n_layers][most_selected + 1]. */
    uint32_t *lengths;
    int64_t most_selected;
    int64_t n_queries;
} recall_run;

/* What exact attention's keys and values are rounded to: the type of all runs' rows, f32 where they differ. */
dtype recall_exact_type(const recall_run *runs, size_t n);
/* Frees what a job made of the runs; the specs stay. */
void recall_runs_clear(recall_run *runs, size_t n);
/* Whether the distance of its attention is known: its keys are at hand, or exact. */
bool recall_has_distance(const attn_spec *s);
double recall_layer_mean(const recall_run *run, const recall_shape *s, const double *x, int layer);
/* Mean over the layers that are not dense, heads and queries of a sum x; -1 when there are none. */
double recall_mean(const recall_run *run, const recall_shape *s, const double *x);

/* The missed mass of a layer (-1: of all that are not dense), as samples measured it, with its 95 % interval, and the
 * share of the intervals of single heads that hold what was missed. False: there was no sample. */
typedef struct {
    double mean, lo, hi, covers;
} recall_missed;
bool recall_missed_mass(const recall_run *run, const recall_shape *s, int layer, recall_missed *out);

/* The number of tokens that a share of the selections of a layer has at most (-1: of all that are not dense); -1 where
 * there are none. */
int64_t recall_selected_at(const recall_run *run, const recall_shape *s, int layer, double share);

/* JSON lines of what was selected, through a temporary file that close renames (keep) or removes.
 * Not opened: nothing is written. */
typedef struct {
    FILE *f;
    const char *path;
    char *tmp;
    bool failed;
} recall_dump;
status recall_dump_open(recall_dump *d, const char *path, err *e);
status recall_dump_close(recall_dump *d, bool keep, err *e);

typedef struct {
    decoder *d;
    const int32_t *ids; /* [n_ids]; the last n_queries are fed one by one */
    int64_t n_ids, n_queries;
    bool window; /* the last n_queries are one prompt window instead */
    bool distributions;
    recall_dump *dump;
    bool (*progress)(void *ctx, double part);
    void *ctx;
    recall_shape shape; /* out */
} recall_text;

/* Errors: those of sessions; ST_UNSUPPORTED when strategies and a text do not fit in memory. */
status recall_on_text(recall_text *job, recall_run *runs, size_t n_runs, err *e);

typedef struct {
    backend *be;
    const char *path;    /* safetensors: q [heads, m, d], k [kv_heads, n, d], maybe v like k */
    const uint8_t *data; /* its bytes; NULL: they are read from path */
    size_t size;
    recall_dump *dump;
    int64_t n_prompt;   /* keys of the prompt, the others come one by one as in decode steps; 0: all but the last */
    recall_shape shape; /* out */
    int64_t n_keys;     /* out */
} recall_tensors;

/* Every query sees all keys, the last of which counts as the current token; keys are taken as they are.
 * Retrieving strategies only. Errors: ST_IO, ST_FORMAT (file and tensor), ST_USAGE. */
status recall_on_tensors(recall_tensors *job, recall_run *runs, size_t n_runs, err *e);

#endif
