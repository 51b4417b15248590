/* SPDX-License-Identifier: MIT */
/* What the command line asks for, and opening what every command needs. Commands return a
 * status; run.c prints e->msg and turns it into the exit status. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>

#include "generate/drafter.h"
#include "generate/prefix_cache.h"
#include "model/sampler.h"
#include "model/session.h"
#include "tokenizer/tokenizer.h"

/* Options as given; NULL or 0 where not given. Lists are comma-separated strings. What one command takes by itself is
 * in `own`, a struct of its own. */
typedef struct {
    const char *command;
    const char *model, *shape; /* -m DIR; bench: --shape LIST */
    const char *attn, *budget, *skip, *certify, *ctx, *kv, *kv_tier, *weights;
    const char *device, *gemm, *json, *csv, *output, *protocol, *template_name;
    const char *prompt, *prompt_file, *system, *input, *tensors;
    const char *data, *max_length, *wrap, *clean_up;
    const char *save, *load, *draw, *draft, *draft_weights, *prefix_disk;
    const char *stop[8];
    void *own;
    comm *ranks; /* of the program; NULL: it does not know of any */
    int tp, n_stop, n_new, threads, top_k, chunk, limit, trials, jobs, prefix_min;
    double temp, top_p, min_p, repeat_penalty;
    uint64_t seed, sample_seed;
    bool seeded, sampled;           /* --seed, --sample-seed were given */
    bool compares, alone, verifies; /* of the command: it takes several strategies; it is for one process; it verifies
                                     * drafts */
    bool chat, special, quiet, plan, ignore_eos, no_weights_cache, no_verify;
} cli;

/* The parts that commands share; engine_close frees what is open. */
typedef struct {
    backend *be;
    model *m;
    model *draft; /* the same in the weights of --draft-weights; NULL: drafts run with those of m */
    tokenizer *tok;
    decoder *dec;
} engine;

/* Folder of the model: -m, else the built-in one (beside the sources for an uninstalled program,
 * else under pkgdatadir). ST_IO when there is none. The string lives as long as the program. */
status cli_model_dir(const cli *c, const char **dir, err *e);
/* Folder of the built-in evaluation data: eval of the sources, else under pkgdatadir; as above. */
status cli_data_dir(const char **dir, err *e);
/* Starts the program again with a bound on how long idle OpenMP threads spin, unless the environment has a setting:
 * the runtime has read it already. Returns if there is such a setting, or if that fails. */
void cli_bound_spin(char **argv);
/* The backend of --device and --threads. */
status cli_open_backend(backend **be, const cli *c, err *e);
/* Opens backend, model and decoder (for max_batch sequences); the tokenizer too where need_tokenizer.
 * Prints one start-up line to stderr unless --quiet: model, device, SIMD level, threads, GEMM. */
status engine_open(engine *g, const cli *c, size_t max_batch, bool exact_by_default, bool need_tokenizer, err *e);
/* The same in two steps; memory is planned, and may be refused, between them. engine_find reads shapes and sizes (as
 * --weights makes them) but no weights (model_find); engine_load does nothing if the engine is open already. */
status engine_find(engine *g, const cli *c, bool need_tokenizer, err *e);
status engine_load(engine *g, const cli *c, size_t max_batch, bool exact_by_default, err *e);
/* The same for a model that is open already (bench --shape); takes be and m. */
status engine_open_decoder(engine *g, const cli *c, size_t max_batch, bool exact_by_default, err *e);
void engine_close(engine *g);

/* Parses `DIR[:SIZE]` of --prefix-disk; *dir: a new string (mem_free). ST_USAGE. */
status cli_parse_prefix(char **dir, uint64_t *bytes, const char *text, err *e);
/* Returns the name of --prefix-disk, and prints lines of it to standard error. */
prefix_log cli_prefix_log(void);
/* Checks the folder of --prefix-disk before anything runs for hours. */
status cli_check_prefix(const char *text, err *e);
/* Opens the prefix cache of --prefix-disk, for sessions of prefix_cache_size; NULL without that option. */
status cli_open_prefix(prefix_cache **out, const cli *c, const engine *g, err *e);
/* --draft and --draft-weights. */
draft_options cli_drafts(const cli *c);
/* Rows that a decoder needs to verify drafts (decoder_options.verify). */
size_t cli_verify_rows(const cli *c);

/* Whether there is a template such as --template names. ST_USAGE. */
status cli_check_template(const cli *c, err *e);
/* The text of -p, of the file of -f, or of standard input; *text is freed with mem_free. */
status cli_read_text(char **text, size_t *n, const cli *c, err *e);

/* "4k" = 4096, "1M" = 1048576, "300"; errors name the option. */
status cli_parse_size(int64_t *out, const char *text, const char *option, err *e);
/* A comma-separated list of sizes, in *out (mem_free); text NULL: the default text. */
status cli_parse_sizes(int64_t **out, size_t *n, const char *text, const char *def, const char *option, err *e);
/* Splits at commas into strings that live in *store (mem_free both). */
status cli_split(char ***out, size_t *n, char **store, const char *text, err *e);
/* Calls `take` for each word of a comma-separated list, up to its first error. */
status cli_each(const char *list, status (*take)(void *ctx, const char *word, err *e), void *ctx, err *e);
/* A word of --weights. */
status cli_parse_weights(dtype *out, const char *text, err *e);
/* Converts the model's matrices to the type of --weights (one word), in the cache file unless --no-weights-cache;
 * plan: sets the sizes only. Without --weights they stay as in the files. */
status cli_hold_weights(model *m, const cli *c, bool plan, err *e);
/* Whether --draft-weights is a type and has a --draft. */
status cli_check_draft_weights(const cli *c, err *e);
/* The type of --draft-weights, smaller than `type`, that of the model's. */
status cli_draft_type(dtype *out, dtype type, const cli *c, err *e);
/* Makes the model of --draft-weights beside m, whose matrices are float (plan: of any type); NULL without that option.
 * type: in which m's are held; larger ones are expected. */
status cli_hold_draft(model **out, const model *m, dtype type, const cli *c, bool plan, err *e);
/* The dense layers of all strategies: --skip, else 0 where several are compared, so that none has an advantage; NULL:
 * each strategy's own. */
const char *cli_skip(const cli *c);
/* --attn as a list (the word "all": the whole table; NULL: def) with --skip, --certify and --kv applied; budget -1
 * for each method's own (or the key in the text). *out is freed with mem_free. */
status cli_parse_attn(attn_spec **out, size_t *n, const cli *c, const char *def, int64_t budget, err *e);
/* For commands that run one: --attn (default: full) with --budget. */
status cli_parse_one_attn(attn_spec *out, const cli *c, err *e);
/* Says on stderr (unless --quiet) that a length that was asked for goes beyond the model's; cli_warn_ctx: by --ctx. */
void cli_warn_length(const cli *c, const model *m, const char *option, int64_t n);
void cli_warn_ctx(const cli *c, const model *m, int64_t ctx);

/* ST_IO if the path names something other than a regular file: renaming a file to it would replace a device. */
status out_check_regular(const char *option, const char *path, err *e);

/* A file of results. It is written under a temporary name and renamed once it is complete, so that a failed run leaves
 * no half file. Messages name the option. */
typedef struct {
    FILE *f; /* to write to */
    char *tmp;
    const char *option, *path;
} out_file;
status out_file_open(out_file *o, const char *option, const char *path, err *e);
/* good: everything was written. ST_IO if it was not, or if the file cannot be renamed. Frees. */
status out_file_close(out_file *o, bool good, err *e);

/* Whether --json FILE and --csv FILE can be written, before anything runs for hours. */
status report_check(const cli *c, err *e);
/* --json FILE: {"command","version","model","weights","device","threads","options","results":[...]}; takes
 * options, results and extra, whose keys are added at the top level (options and extra may be NULL;
 * without a model weights is null, without a backend device and threads are). */
status report_write(const cli *c, const engine *g, json_t *options, json_t *results, json_t *extra, err *e);

/* The name of a model in results: "built-in", a shape, or its folder's name without the path. */
json_t *report_model(const char *path);
/* Traffic between memory and files in `steps` decode steps of a sequence; between host and device. */
json_t *tier_json(const tier_counts *c, int64_t steps);
json_t *host_json(const host_counts *c, int64_t steps);
json_t *report_sizes(const int64_t *x, size_t n); /* a list; NULL when out of memory */

/* Writes to stdout; a closed pipe or full disk is ST_IO once, at the first write that fails. */
status out_write(const char *text, size_t n, err *e);
status out_printf(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
status out_flush(err *e);

/* Progress on stderr: a bar with an estimate on a terminal, else nothing until `every` seconds passed.
 * Silent with --quiet. */
typedef struct progress progress;
progress *progress_start(const cli *c, const char *what); /* NULL (quiet or out of memory) is fine below */
void progress_set(progress *p, int64_t done, int64_t total);
void progress_end(progress *p); /* clears the line, frees */

/* Ctrl-C. From cli_catch_interrupt on the first one sets a flag, which the command looks at; a second
 * one before the flag was cleared ends the program. Where SIGINT was ignored at the start (nohup,
 * jobs in the background of a script) it stays so. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);
void cli_clear_interrupt(void);
/* Leaves Ctrl-C to the process that started the ranks; it then ends all of them. */
void cli_leave_interrupt(void);
/* Waits until fd can be read or ends; false at Ctrl-C. */
bool cli_wait_input(int fd);

#endif
