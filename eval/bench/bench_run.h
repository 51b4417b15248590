/* SPDX-License-Identifier: MIT */
/* Speed of one strategy at one context length. */
#ifndef EVAL_BENCH_RUN_H
#define EVAL_BENCH_RUN_H

#include "eval/bench/bench_sample.h"
#include "cli/command.h"
#include "model/session.h"

/* BENCH_STEPS: maximum steps of a sample. BENCH_REAL: longer prompts are random rows except for the last chunk. */
enum { BENCH_STEPS = 16, BENCH_REAL = 8192 };
/* With quantized rows: random rows are quantized after this many chunks, so that a long context is never held in
 * full. */
enum { BENCH_PIECE_CHUNKS = 16 };

/* Options of `bench` only. */
typedef struct {
    run_options run;
    const char *shape, *phase, *batch;
    double accept;
    int samples;
    bool fill;
} bench_options;

/* State shared by all measurements of a model. */
typedef struct {
    const bench_options *o;
    engine g;
    meter *meter; /* meter of the open backend */
    progress *bar;
    int64_t *ctx; /* [n_ctx] */
    size_t n_ctx;
    table rows;   /* printed while they are measured */
    json_t *list; /* results of --json */
} bench_base;

/* Measurement of prefill up to the context, or of decode steps at it. */
typedef struct {
    bool decode;
    size_t batch;   /* sequences of a decode step */
    int64_t tokens; /* tokens of one sample */
    bench_samples samples;
    double attended;       /* tokens attended by one token, mean over the layers */
    attn_bytes held, peak; /* decode: held by one sequence after the runs, and its peak */
    host_counts host;      /* decode: bytes held in host memory, and moved in `steps` steps, of one sequence */
    tier_counts moved;     /* decode: traffic between memory and files in `steps` steps, of one sequence */
    int64_t steps;
    double kv_read, index_read; /* decode: bytes read per step by one sequence */
    double key_access;          /* decode: see attn_key_access */
    bool filled;                /* the context consists of random rows */
    /* From a separate run, which is slower because it waits for each stage. */
    int64_t stage_ns[STAGE_COUNT], profiled_ns; /* time per stage, and total time */
} bench_result;

/* Sessions of one strategy at one context length; freed by bench_close. Prompts are random tokens. */
typedef struct {
    bench_base *base; /* owner of the open model and of the progress bar */
    attn_spec spec;
    const attn_spec *draft; /* see session_size */
    int64_t ctx;            /* tokens before the first decode step; 0: one token */
    size_t chunk, max_batch;
    int64_t longest_prompt;        /* see session_size; set here */
    bench_timing timing;           /* the caller sets `kind`; the rest is set here */
    session **s;                   /* [max_batch] */
    int32_t *ids, *next;           /* [prompt], [max_batch] */
    size_t n_ids, n_timed, n_fill; /* tokens of the prompt, of its timed end (prefill), and of the context of decode */
    bool synthetic;                /* the first session's context begins with random rows */
    size_t batch, n_steps;         /* of the current decode samples */
} bench_case;

/* Opens a shape with random weights, or (NULL) the model of -m, and its meter; closes the previous model. weights NULL:
 * the type in the model's files; bf16 for a shape. */
status bench_open_model(bench_base *b, const char *shape, const char *weights, size_t max_batch, err *e);
void bench_close_model(bench_base *b);

/* Returns a case of the open model. Members that depend on its use are zero. */
bench_case bench_case_of(bench_base *b, const attn_spec *spec, int64_t ctx);
/* Creates the sessions. The prompt has ctx tokens; if ctx is 0, one chunk for prefill, else one token. */
status bench_open(bench_case *c, bool prefill, err *e);
void bench_close(bench_case *c);
/* Times the prompt, including the logits of its last token. With --fill and beyond BENCH_REAL tokens, only the last
 * chunk is timed, after random rows. A strategy that cannot rewind gets new random rows for each sample. */
status bench_prefill(bench_case *c, size_t batch, bench_result *r, err *e);
/* Feeds the prompt (or random rows) to all sessions, once if they can share it. Clears *r. */
status bench_fill(bench_case *c, size_t batch, bench_result *r, err *e);
/* Times greedy tokens with the first `batch` sessions, after bench_fill. EOS is ignored. */
status bench_decode(bench_case *c, size_t batch, bench_result *r, err *e);

/* Runs `bench --draft SPEC --accept P`: compares single steps with drafted steps at each context length, with a
 * fraction P of the drafted tokens treated as right. (With random rows and weights, none would be right.) */
status bench_drafts(bench_base *b, err *e);

#endif
