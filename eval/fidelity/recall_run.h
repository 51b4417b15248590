/* SPDX-License-Identifier: MIT */
/* Recall of strategies, measured on the queries and keys of one run of full attention over a text, or on tensors. */
#ifndef EVAL_RECALL_RUN_H
#define EVAL_RECALL_RUN_H

#include <stdio.h>

#include "cli/output.h"
#include "model/session.h"

/* Dimensions of the sums of a run. */
typedef struct {
    int n_layers, n_heads;
    bool has_v;
} recall_shape;

/* Sums over the queries, per layer and head. */
typedef enum {
    SUM_RECALL,
    SUM_MASS,
    SUM_SELECTED,
    /* Errors of the output of the attended tokens; with quantized rows, the errors without the quantized tokens; the L2
     * error with rows that represent the unattended tokens. */
    SUM_ERROR,
    SUM_ERROR_L1,
    SUM_EVICTED,
    SUM_EVICTED_L1,
    SUM_WITH_TAIL,
    /* With tail=sample: missed mass estimated from a sample; upper bound of the variance of that sum; number of
     * per-head intervals that contain the missed mass; number of intervals. */
    SUM_MISSED,
    SUM_MISSED_VAR,
    SUM_COVERS,
    SUM_MEASURED,
    /* Heads with a certificate of missed attention; sums, then maxima, of its bound and of the missed mass. */
    SUM_CERTIFIED,
    SUM_BOUND,
    SUM_SURE_MISSED,
    MAX_BOUND,
    MAX_MISSED,
    /* With distributions: L1 distance from exact attention; the same without the quantized tokens; number of
     * unquantized tokens except 0 and 1; their mass; their mass per token. */
    SUM_DISTANCE,
    SUM_DISTANCE_EVICTED,
    SUM_COVERING,
    SUM_COVERED,
    SUM_COVERAGE,
    RECALL_SUMS
} recall_sum;

/* One strategy at one budget. */
typedef struct {
    attn_spec spec;
    recall_shape shape;
    attn_seq *seq;
    bool *dense;              /* [n_layers] */
    double *sum[RECALL_SUMS]; /* [n_layers][n_heads] each, in one block */
    bool has_tail;
    uint32_t *lengths; /* [n_layers][most_selected + 1] number of selections of each length */
    int64_t most_selected, n_queries;
} recall_run;

/* Frees the results of a job; the specs remain. */
void recall_runs_clear(recall_run *runs, size_t n);
/* True if a run has values for a sum. */
bool recall_knows(const recall_run *run, recall_sum sum);
/* Returns the mean of a sum over the heads and queries of a layer (-1: of all layers that are not dense); NAN:
 * unknown. */
double recall_mean(const recall_run *run, recall_sum sum, int layer);

/* Missed mass of a layer (-1: of all layers that are not dense), estimated from samples, with its 95 % interval, and
 * the fraction of the per-head intervals that contain the missed mass. False: no sample. */
typedef struct {
    double mean, lo, hi, covers;
} recall_missed;
bool recall_missed_mass(const recall_run *run, int layer, recall_missed *out);

/* Returns the q-quantile of the lengths of a layer's selections (-1: of all layers that are not dense), with q =
 * fraction; -1: no selections. */
int64_t recall_selected_at(const recall_run *run, int layer, double fraction);

typedef struct {
    decoder *d;
    const int32_t *ids; /* [n_ids]; the last n_queries are fed one by one */
    int64_t n_ids, n_queries;
    bool window; /* feed the last n_queries as one prompt window instead */
    bool distributions;
    FILE *dump;    /* output of the selected positions as JSON lines; NULL: none */
    progress *bar; /* NULL: none */
} recall_text;

/* Measures recall on a text. Errors: those of sessions; ST_UNSUPPORTED if strategies and text do not fit in memory. */
status recall_on_text(recall_text *job, recall_run *runs, size_t n_runs, err *e);

typedef struct {
    backend *be;
    const char *path;    /* safetensors file: q [heads, m, d], k [kv_heads, n, d], optionally v like k */
    const uint8_t *data; /* its bytes; NULL: read from path */
    size_t size;
    FILE *dump;       /* output of the selected positions as JSON lines; NULL: none */
    int64_t n_prompt; /* keys of the prompt; the others are fed one by one as in decode steps; 0: all but the last */
    int64_t n_keys;   /* output: number of keys */
} recall_tensors;

/* Measures recall on tensors. Every query sees all keys, the last of which is the current token; keys are not rotated.
 * Supports only retrieving strategies. Errors: ST_IO, ST_FORMAT (file and tensor), ST_USAGE. */
status recall_on_tensors(recall_tensors *job, recall_run *runs, size_t n_runs, err *e);

#endif
