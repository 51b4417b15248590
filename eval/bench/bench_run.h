/* SPDX-License-Identifier: MIT */
/* Speed of one strategy at one context. */
#ifndef EVAL_BENCH_RUN_H
#define EVAL_BENCH_RUN_H

#include "eval/bench/bench_sample.h"
#include "cli/command.h"
#include "model/session.h"

/* Most steps of a sample; of prompts beyond BENCH_REAL all but the last chunk is random rows. */
enum { BENCH_STEPS = 16, BENCH_REAL = 8192 };
/* Codes: random rows are quantized after so many chunks, so that a million tokens need not be held in full. */
enum { BENCH_PIECE_CHUNKS = 16 };

/* Options of `bench` alone. */
typedef struct {
    run_options run;
    const char *shape, *phase, *batch;
    double accept;
    int samples;
    bool fill;
} bench_options;

/* What measurements of a model share. */
typedef struct {
    const bench_options *o;
    engine g;
    meter *meter; /* of the open backend */
    progress *bar;
    int64_t *ctx; /* [n_ctx] */
    size_t n_ctx;
    json_t *list; /* results of --json */
} bench_base;

/* What was measured: prefill up to the context, or decode steps at it. */
typedef struct {
    bool decode;
    size_t batch;   /* sequences of a decode step */
    int64_t tokens; /* of one sample */
    bench_samples samples;
    double attended;       /* tokens attended by a token, mean over the layers */
    attn_bytes held, peak; /* decode: by one sequence after the runs, and the most it held */
    host_counts host;      /* decode: held in the host's memory, moved in `steps` steps, of one sequence */
    tier_counts moved;     /* decode: between memory and files in `steps` steps, by one sequence */
    int64_t steps;
    double kv_read, index_read; /* decode: bytes of a step, of one sequence */
    double key_access;          /* decode: attn_key_access */
    bool filled;                /* the context is random rows */
    /* Of a run of its own, which is slower: waiting for each stage takes time. */
    int64_t stage_ns[STAGE_COUNT], profiled_ns; /* by stage, and all of it */
} bench_result;

/* Sessions of one strategy at one context; bench_close frees. Prompts are random tokens. */
typedef struct {
    bench_base *base; /* whose model is open, and whose bar shows progress */
    attn_spec spec;
    const attn_spec *draft; /* session_size */
    int64_t ctx;            /* tokens before the first decode step; 0: one token */
    size_t chunk, max_batch;
    int64_t longest_prompt;        /* session_size; set here */
    bench_timing timing;           /* kind; the rest is set here */
    session **s;                   /* [max_batch] */
    int32_t *ids, *next;           /* [prompt], [max_batch] */
    size_t n_ids, n_timed, n_fill; /* the prompt, its end that prefill times, the part filled for decode */
    bool synthetic;                /* the first session's context began with random rows */
    size_t batch, n_steps;         /* of the decode samples under way */
} bench_case;

/* Opens a shape with random weights, or (NULL) the model of -m, and its meter; closes the one before. weights NULL: as
 * in its files, bf16 of a shape. */
status bench_open_model(bench_base *b, const char *shape, const char *weights, size_t max_batch, err *e);
void bench_close_model(bench_base *b);

/* Returns a case of the open model; what depends on its use is zero. */
bench_case bench_case_of(bench_base *b, const attn_spec *spec, int64_t ctx);
/* Creates the sessions. The prompt has ctx tokens; for 0, one chunk if prefill is wanted, else one
 * token. */
status bench_open(bench_case *c, bool prefill, err *e);
void bench_close(bench_case *c);
/* Times the prompt, logits of its last token included; with fill and beyond BENCH_REAL tokens its last chunk alone,
 * behind random rows. A strategy that cannot go back gets these anew for each sample. */
status bench_prefill(bench_case *c, size_t batch, bench_result *r, err *e);
/* Feeds the prompt (or random rows) to all sessions, once where they can share it. Clears *r. */
status bench_fill(bench_case *c, size_t batch, bench_result *r, err *e);
/* After bench_fill: times greedy tokens with the first `batch` sessions; EOS is ignored. */
status bench_decode(bench_case *c, size_t batch, bench_result *r, err *e);

/* `bench --draft SPEC --accept P`: single steps against drafted ones at each context, if a fraction P of the drafted
 * tokens is right. Of random rows and weights none is. */
status bench_drafts(bench_base *b, err *e);

#endif
