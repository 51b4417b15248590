/* SPDX-License-Identifier: MIT */
/* Prompts and prefix caching, from options. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "cli/engine.h"
#include "generate/prefix_cache.h"

/* NULL where not given. */
typedef struct {
    const char *text, *file; /* -p, -f */
} prompt_source;

/* ST_USAGE unless there is a template of that name; NULL: none is asked for. */
status cli_check_template(const char *name, err *e);
/* Reads the text of -p, of the file of -f, or of standard input, which all ranks get; *text is freed with mem_free. */
status cli_read_text(char **text, size_t *n, const prompt_source *p, comm *ranks, err *e);

typedef struct {
    const char *disk; /* DIR[:SIZE] of --prefix-disk */
    int least;        /* --prefix-min */
} prefix_args;

/* Parses `DIR[:SIZE]` of --prefix-disk; *dir: a new string (mem_free). ST_USAGE. */
status cli_parse_prefix(char **dir, uint64_t *bytes, const char *text, err *e);
/* Returns the name of --prefix-disk, and prints lines of it to standard error. */
prefix_log cli_prefix_log(void);
/* Checks the folder of --prefix-disk before anything runs for hours; it is for one rank. */
status cli_check_prefix(const char *text, const comm *ranks, err *e);
/* ST_UNSUPPORTED if --prefix-disk cannot keep prompts of this strategy, or of --draft over its rows. */
status cli_check_reuse(const engine_options *o, const attn_spec *spec, err *e);
/* Opens the prefix cache of --prefix-disk, for sessions of prefix_cache_size; NULL without that option. ctx: of --ctx
 * or NULL. */
status cli_open_prefix(prefix_cache **out, const prefix_args *o, const char *ctx, const engine *g, err *e);

#endif
