/* SPDX-License-Identifier: MIT */
/* The strategies and budgets that a command compares: the rows or columns of its table. */
#ifndef CLI_LINEUP_H
#define CLI_LINEUP_H

#include <jansson.h>

#include "cli/engine.h"
#include "generate/batch.h"

/* Options as given; NULL where not given. */
typedef struct {
    const char *names; /* --attn, comma-separated; the word "all": the whole table */
    const char *budget, *skip, *certify, *kv, *kv_tier, *ctx;
} attn_args;

/* Reads the options that all strategies share, without --budget; out->tier is place, or NULL without --kv-tier. */
status attn_args_read(attn_options *out, kv_tier *place, const attn_args *a, err *e);
/* Parses the strategy of a command that runs one: --attn (default: full) with --budget. Errors name the command. */
status attn_args_parse(attn_spec *out, const attn_args *a, const char *command, err *e);
/* Prints a note if a length that was asked for goes beyond the model's; cli_warn_ctx: by --ctx. */
void cli_warn_length(const model *m, const char *option, int64_t n);
void cli_warn_ctx(const model *m, int64_t ctx);

typedef struct {
    batch_run *run;
    err *why; /* code ST_OK: it can run; else the reason */
    size_t n;
    const char *skip; /* dense layers of all strategies */
} lineup;

/* All strategies of --attn (else def) at all budgets (-1: each method's own), the budgets of one strategy together;
 * one without a budget, or with its own, once. Without --skip no strategy has dense layers, so that none has an
 * advantage. lineup_free also after an error. */
status lineup_read(lineup *l, const attn_args *a, const char *def, const int64_t *budget, size_t n_budget, err *e);
/* The same for the budgets of --budget, else of `budget`, else (NULL) each method's own. */
status lineup_read_budgets(lineup *l, const attn_args *a, const char *def, const char *budget, err *e);
void lineup_free(lineup *l);

/* Checks which rows can run with sessions of `limit` tokens, before anything runs. If no row can, the first row's
 * reason is the error: an empty table is no result. */
status lineup_check(lineup *l, const engine *g, int64_t limit, err *e);
/* The same where something else says whether a row can run. */
status lineup_check_by(lineup *l, status (*can_run)(void *ctx, const attn_spec *s, err *why), void *ctx, err *e);

/* "256", or "-" for a method without a budget; the same as JSON, or null. */
void lineup_budget_text(char *out, size_t size, const attn_spec *s);
json_t *lineup_budget_json(const attn_spec *s);
/* Returns {"attn", "params", "budget"}, the start of a row in --json; NULL: out of memory. */
json_t *lineup_row_json(const attn_spec *s);
/* Prints strategy and budget, the first two columns of a row, of these widths. */
status lineup_print_row(const attn_spec *s, int width, int budget_width, err *e);
/* Characters of the longest strategy as it was written, at least 8. */
int lineup_width(const lineup *l);
/* Ends the headline of a table with what holds for all rows: ", skip 0", and below it how query heads share a selection
 * in those that have a choice; then an empty line. */
status lineup_print_terms(const lineup *l, err *e);
/* Prints the reason of each row that cannot run, once. */
status lineup_print_why(const lineup *l, err *e);

/* Of --prefix-disk: ST_UNSUPPORTED where no strategy can leave prompts there; those that cannot are named. */
status lineup_check_reuse(const lineup *l, const engine_options *o, err *e);
/* On stderr, unless --quiet: how many prefills the prompts took, where strategies shared them, and how much of them the
 * store had. */
void lineup_say_shared(const char *what, const batch_job *job);

#endif
