/* SPDX-License-Identifier: MIT */
/* Strategies and budgets that a command compares: the rows or columns of its table. */
#ifndef CLI_LINEUP_H
#define CLI_LINEUP_H

#include <jansson.h>

#include "cli/engine.h"
#include "cli/table.h"
#include "generate/batch.h"

/* Options as given; NULL if not given. */
typedef struct {
    const char *names; /* --attn, comma-separated; "all": every strategy */
    const char *budget, *skip, *certify, *kv, *kv_tier, *ctx;
} attn_args;

/* Reads the options that all strategies share, except --budget. out->tier is place, or NULL without --kv-tier. */
status attn_args_read(attn_options *out, kv_tier *place, const attn_args *a, err *e);
/* Parses the strategy of a command that runs one: --attn (default: full) with --budget. Errors name the command. */
status attn_args_parse(attn_spec *out, const attn_args *a, const char *command, err *e);
/* Warns if a requested length exceeds the model's. cli_warn_ctx: for --ctx. */
void cli_warn_length(const model *m, const char *option, int64_t n);
void cli_warn_ctx(const model *m, int64_t ctx);

typedef struct {
    batch_run *run;
    err *why; /* code ST_OK: the row can run; else the reason */
    size_t n;
    const char *skip; /* dense layers of all strategies */
} lineup;

/* Reads all strategies of --attn (else def) at all budgets (-1: each method's own). Budgets of one strategy are
 * adjacent; a strategy without a budget, or with its own, appears once. Without --skip no strategy has dense layers,
 * for a fair comparison. Call lineup_free also after an error. */
status lineup_read(lineup *l, const attn_args *a, const char *def, const int64_t *budget, size_t n_budget, err *e);
/* As lineup_read, with the budgets of --budget, else of `budget`, else (NULL) each method's own. */
status lineup_read_budgets(lineup *l, const attn_args *a, const char *def, const char *budget, err *e);
void lineup_free(lineup *l);

/* Checks which rows can run with sessions of `limit` tokens before any runs. If none can, the first row's reason is the
 * error. */
status lineup_check(lineup *l, const engine *g, int64_t limit, err *e);
/* As lineup_check, with a custom check. */
status lineup_check_by(lineup *l, status (*can_run)(void *ctx, const attn_spec *s, err *why), void *ctx, err *e);

/* Writes the budget, such as "256", or "-" for a method without a budget; as JSON: a number or null. */
void lineup_budget_text(char *out, size_t size, const attn_spec *s);
json_t *lineup_budget_json(const attn_spec *s);
/* Returns {"attn", "params", "budget"}, the beginning of a row in --json, or NULL if out of memory. */
json_t *lineup_row_json(const attn_spec *s);
/* Adds the columns strategy and budget, which identify a row. */
void lineup_columns(const lineup *l, table *t);
/* Adds their cells. */
void lineup_cells(const attn_spec *s, table *t);
/* Adds the cell of what a budget counts. */
void lineup_counts(const attn_spec *s, table *t);
/* Ends the paragraph above a table with common settings: ", skip 0", a line with how query heads share a selection in
 * rows that select, and an empty line. */
status lineup_print_terms(const lineup *l, err *e);
/* Prints a reason why a row cannot run. */
status lineup_print_reason(const char *why, err *e);
/* Prints the reason of each row that cannot run, once. */
status lineup_print_why(const lineup *l, err *e);

/* Checks --prefix-disk: ST_UNSUPPORTED if no strategy can reuse prompts; lists those that cannot. */
status lineup_check_reuse(const lineup *l, const engine_options *o, err *e);
/* Prints to stderr, unless --quiet, the number of prefills if strategies shared them, and the number of cached
 * tokens. */
void lineup_note_shared(const char *what, const batch_job *job);

#endif
