/* SPDX-License-Identifier: MIT */
/* Opens the device, model, tokenizer and decoder of a command. */
#ifndef CLI_ENGINE_H
#define CLI_ENGINE_H

#include "generate/drafter.h"
#include "model/decoder.h"
#include "tokenizer/tokenizer.h"

/* Options as given; NULL or 0 if not given. */
typedef struct {
    const char *dir;     /* -m */
    const char *weights; /* --weights */
    bool no_cache;       /* --no-weights-cache */
} model_options;

typedef struct {
    const char *name, *gemm; /* --device, --gemm */
    int threads, tp, chunk;
    comm *ranks; /* ranks of the program; NULL: one process */
} device_options;

typedef struct {
    model_options model;
    device_options device;
    const char *draft, *draft_weights;
    bool verifies; /* the command verifies drafts even without --draft */
    bool shared;   /* sequences decode between the chunks of a prompt, so chunks are short */
} engine_options;

/* Parts that commands share; engine_close frees the open ones. */
typedef struct {
    engine_options o; /* options of engine_find */
    const char *name; /* name of the model in reports if m is NULL */
    backend *be;
    model *m;
    model *draft; /* the model with the weights of --draft-weights; NULL: drafts use m */
    tokenizer *tok;
    decoder *dec;
} engine;

/* Finds a model: `given`, a folder, a file or a name (cli_find_model), else the built-in model (under the
 * program's own prefix, in the sources for a program in its build folder, else under pkgdatadir). A folder
 * without config.json stands for its GGUF file. The path of a name or of such a file lives until the next call, others
 * as long as the program. Errors: ST_IO if it is missing, and those of cli_find_model. */
status cli_model_dir(const char **dir, const char *given, err *e);
/* Opens the tokenizer of a model and prints its warning. */
status cli_open_tokenizer(tokenizer **out, const char *dir, err *e);
/* Finds the built-in evaluation data in the same places; errors as above. */
status cli_data_dir(const char **dir, err *e);
/* Restarts the program with a bound on the spin of idle OpenMP threads, since the runtime has already read the
 * environment. Returns if the environment sets a bound, or if restarting fails. */
void cli_bound_spin(char **argv);

/* True with --gemm builtin. */
bool cli_builtin_gemm(const device_options *o);
status cli_open_backend(backend **be, const device_options *o, err *e);

/* Opens backend, model, decoder (for max_batch sequences) and, if need_tokenizer, the tokenizer. Prints one start-up
 * line to stderr unless --quiet: model, device, SIMD level, threads, GEMM. */
status engine_open(engine *g, const engine_options *o, size_t max_batch, bool need_tokenizer, err *e);
/* engine_open in two steps, between which memory can be planned and refused. engine_find reads shapes and sizes (with
 * --weights) but no weights (model_find); engine_load does nothing if the engine is open. */
status engine_find(engine *g, const engine_options *o, bool need_tokenizer, err *e);
status engine_load(engine *g, size_t max_batch, err *e);
/* Opens the decoder for an open model (bench --shape); g->o, be and m are set. */
status engine_open_decoder(engine *g, size_t max_batch, err *e);
void engine_close(engine *g);

/* Returns the options of the decoder, with the rows that --draft verifies. */
decoder_options engine_decoder(const engine *g, size_t max_batch);
/* Returns the options of --draft and --draft-weights. */
draft_options engine_drafts(const engine_options *o);
/* Parses the length of a session for --ctx: a size, or `max` for the longest that the model's positions and `room`
 * bytes of memory allow, which is then reported. room 0: nine tenths of the available memory. */
status engine_context(int64_t *n, const engine *g, const attn_spec *spec, const char *text, size_t room, err *e);
/* True for `--ctx max`. */
bool cli_context_is_max(const char *text);
/* Checks that a session of n tokens can be created, including the drafts of --draft. */
status engine_check_session(const engine *g, const attn_spec *spec, int64_t n_tokens, err *e);

/* Parses a type of --weights. */
status cli_parse_weights(dtype *out, const char *text, err *e);
/* Converts the model's matrices to the type of --weights (one type), in the cache file unless --no-weights-cache. plan:
 * sets only the sizes. Without --weights they stay as in the files. */
status cli_convert_weights(model *m, const model_options *o, bool plan, err *e);
/* Fails with ST_USAGE unless --draft-weights is a type and --draft is given. */
status cli_check_draft_weights(const engine_options *o, err *e);
/* Parses the type of --draft-weights, which must be smaller than `type`, that of the model. */
status cli_draft_type(dtype *out, dtype type, const char *text, err *e);

#endif
