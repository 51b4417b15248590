/* SPDX-License-Identifier: MIT */
/* Opening what commands need: device, model, tokenizer and decoder. */
#ifndef CLI_ENGINE_H
#define CLI_ENGINE_H

#include "generate/drafter.h"
#include "model/decoder.h"
#include "tokenizer/tokenizer.h"

/* Options as given; NULL or 0 where not given. */
typedef struct {
    const char *dir;     /* -m */
    const char *weights; /* --weights */
    bool no_cache;       /* --no-weights-cache */
} model_options;

typedef struct {
    const char *name, *gemm; /* --device, --gemm */
    int threads, tp, chunk;
    comm *ranks; /* of the program; NULL: there is one process only */
} device_options;

typedef struct {
    model_options model;
    device_options device;
    const char *draft, *draft_weights;
    bool verifies; /* the command verifies drafts without --draft */
} engine_options;

/* The parts that commands share; engine_close frees what is open. */
typedef struct {
    engine_options o; /* that it was found with */
    const char *name; /* of the model in reports where m is NULL */
    backend *be;
    model *m;
    model *draft; /* the same in the weights of --draft-weights; NULL: drafts run with those of m */
    tokenizer *tok;
    decoder *dec;
} engine;

/* Folder of the model: `given`, else the built-in one (beside the sources for an uninstalled program, else under
 * pkgdatadir). ST_IO when there is none. The string lives as long as the program. */
status cli_model_dir(const char **dir, const char *given, err *e);
/* Folder of the built-in evaluation data: eval of the sources, else under pkgdatadir; as above. */
status cli_data_dir(const char **dir, err *e);
/* Starts the program again with a bound on how long idle OpenMP threads spin, unless the environment has a setting:
 * the runtime has read it already. Returns if there is such a setting, or if that fails. */
void cli_bound_spin(char **argv);

/* True with --gemm builtin. */
bool cli_builtin_gemm(const device_options *o);
status cli_open_backend(backend **be, const device_options *o, err *e);

/* Opens backend, model and decoder (for max_batch sequences); the tokenizer too where need_tokenizer.
 * Prints one start-up line to stderr unless --quiet: model, device, SIMD level, threads, GEMM. */
status engine_open(engine *g, const engine_options *o, size_t max_batch, bool need_tokenizer, err *e);
/* The same in two steps; memory is planned, and may be refused, between them. engine_find reads shapes and sizes (as
 * --weights makes them) but no weights (model_find); engine_load does nothing if the engine is open already. */
status engine_find(engine *g, const engine_options *o, bool need_tokenizer, err *e);
status engine_load(engine *g, size_t max_batch, err *e);
/* The same for a model that is open already (bench --shape), with g->o, be and m. */
status engine_open_decoder(engine *g, size_t max_batch, err *e);
void engine_close(engine *g);

/* Options of the engine's decoder, with the rows that --draft needs to verify. */
decoder_options engine_decoder(const engine *g, size_t max_batch);
/* --draft and --draft-weights. */
draft_options engine_drafts(const engine_options *o);
/* Checks that a session of n tokens can be created, with the drafts of --draft. */
status engine_check_session(const engine *g, const attn_spec *spec, int64_t n_tokens, err *e);

/* A word of --weights. */
status cli_parse_weights(dtype *out, const char *text, err *e);
/* Converts the model's matrices to the type of --weights (one word), in the cache file unless --no-weights-cache;
 * plan: sets the sizes only. Without --weights they stay as in the files. */
status cli_hold_weights(model *m, const model_options *o, bool plan, err *e);
/* ST_USAGE unless --draft-weights is a type and has a --draft. */
status cli_check_draft_weights(const engine_options *o, err *e);
/* The type of --draft-weights, smaller than `type`, that of the model's. */
status cli_draft_type(dtype *out, dtype type, const char *text, err *e);

#endif
