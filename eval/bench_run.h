/* SPDX-License-Identifier: MIT */
/* Speed of one strategy at one context. */
#ifndef EVAL_BENCH_RUN_H
#define EVAL_BENCH_RUN_H

#include "model/session.h"

enum { BENCH_RUNS = 5, SLOW_RUNS = 2, BENCH_STEPS = 32 };

/* What was measured: prefill of the last chunk before the context, or decode steps at it. */
typedef struct {
    bool decode;
    size_t batch;   /* sequences of a decode step */
    int64_t tokens; /* of one run */
    size_t n_runs;
    double tokens_per_s, spread; /* median of the runs; range over median */
    double attended;             /* tokens attended by a token, mean over the layers */
    attn_bytes held;             /* decode: by one sequence after the runs */
    double kv_read, index_read;  /* decode: bytes of a step, of one sequence */
    double key_access;           /* decode: attn_key_access */
    int64_t stage_ns[STAGE_COUNT];
    int64_t stage_tokens; /* of the separate, profiled run that gave stage_ns */
} bench_result;

/* Sessions of one strategy at one context; bench_close frees. Prompts are random tokens. */
typedef struct {
    decoder *d;
    attn_spec spec;
    int64_t ctx; /* tokens before the first decode step; 0: one token */
    size_t chunk, max_batch;
    bool fill; /* the context of decode steps is random rows instead of a real prompt */
    bool (*progress)(void *ctx, double part); /* of the prefill; false: ST_INTERRUPTED */
    void *progress_ctx;
    session **s;                   /* [max_batch] */
    int32_t *ids, *next;           /* [prompt], [max_batch] */
    size_t n_ids, n_last, n_fill;  /* the prompt, its last chunk, the part filled for decode */
    float *logits;                 /* [max_batch, vocab] */
    int64_t chunk_start, chunk_ns; /* last chunk of the prefill under way */
} bench_case;

/* Creates the sessions. The prompt has ctx tokens; for 0, one chunk if prefill is wanted, else one
 * token. */
status bench_open(bench_case *c, bool prefill, err *e);
void bench_close(bench_case *c);
/* Prefills the prompt for real: one warm-up and BENCH_RUNS timed runs of its last chunk. A strategy
 * that has evicted cannot go back: then the whole prompt is fed again for each run, SLOW_RUNS times
 * where that is long, and the profile is that of the whole prompt. */
status bench_prefill(bench_case *c, bench_result *r, err *e);
/* Feeds the prompt (or random rows) to all sessions, once where they can share it. */
status bench_fill(bench_case *c, err *e);
/* After bench_fill: greedy tokens with the first `batch` sessions; EOS is ignored. */
status bench_decode(bench_case *c, size_t batch, bench_result *r, err *e);

#endif
