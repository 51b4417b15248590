/* SPDX-License-Identifier: MIT */
/* Options of prompts and of the prefix cache. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "cli/engine.h"
#include "cli/values.h"
#include "generate/prefix_cache.h"
#include "tokenizer/chat.h"

/* NULL if not given */
typedef struct {
    const char *text, *file; /* -p, -f */
} prompt_source;

/* Chat template of --template and its variables of --template-arg. */
typedef struct {
    const char *name; /* file or name; NULL: the model's own */
    text_options args;
} template_options;

/* Parses the variables into an object, which may be empty. ST_USAGE. */
status cli_template_args(json_t **out, const template_options *o, err *e);
/* Selects the template and sets its variables for all conversations. */
status cli_set_template(tokenizer *t, const template_options *o, err *e);
/* Reads the text of -p, of the file of -f, or of standard input, and shares it with all ranks. Free *text with
 * mem_free. */
status cli_read_text(char **text, size_t *n, const prompt_source *p, comm *ranks, err *e);

typedef struct {
    const char *disk; /* DIR[:SIZE] of --prefix-disk */
    int least;        /* --prefix-min */
} prefix_args;

/* Parses `DIR[:SIZE]` of --prefix-disk; *dir is a new string (mem_free). ST_USAGE. */
status cli_parse_prefix(char **dir, uint64_t *bytes, const char *text, err *e);
/* Returns a log that names --prefix-disk and prints lines to standard error. */
prefix_log cli_prefix_log(void);
/* Checks the folder of --prefix-disk before a long run; fails with several ranks. */
status cli_check_prefix(const char *text, const comm *ranks, err *e);
/* Fails with ST_UNSUPPORTED if --prefix-disk cannot cache prompts of this strategy, or of --draft over its rows. */
status cli_check_reuse(const engine_options *o, const attn_spec *spec, err *e);
/* Opens the prefix cache of --prefix-disk for sessions of prefix_cache_size; NULL without that option. ctx: value of
 * --ctx or NULL. */
status cli_open_prefix(prefix_cache **out, const prefix_args *o, const char *ctx, const engine *g, err *e);

#endif
