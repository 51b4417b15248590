/* SPDX-License-Identifier: MIT */
/* `eval accept`: how often is a strategy's next token that of full attention, over the same rows and behind tokens of
 * its own? */
#ifndef EVAL_ACCEPT_H
#define EVAL_ACCEPT_H

#include "cli/lineup.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

/* Tokens of a draft. */
enum { ACCEPT_AHEAD = SESSION_VERIFY_ROWS };

typedef struct {
    const char *temp;
    int n, trials;
} accept_options;

/* What was counted. right[j]: drafts of which the first j + 1 tokens are full attention's. tokens, differences: of
 * texts along which the strategy went on by itself, from exact rows behind each difference. */
typedef struct {
    int64_t n, right[ACCEPT_AHEAD];
    int64_t tokens, differences;
} accept_sums;

typedef struct {
    const cli *c;
    const accept_options *o;
    engine g;
    lineup rows;
    int64_t *ctx;
    double *temp;
    size_t n_ctx, n_temp;
    token_list text;
    char sha256[SHA256_HEX]; /* of the text */
    results *out;
    progress *bar;
} accept_run;

/* A piece of the text at a temperature. */
typedef struct {
    size_t row;
    int64_t ctx;
    int trial;
    double temp;
} accept_case;

/* {"attn", "budget", "ctx", "trial", "temp"}: what identifies its result; and the result, NULL: there is none. */
json_t *accept_identity(const accept_run *r, const accept_case *x);
const json_t *accept_result(const accept_run *r, const accept_case *x);

/* {"n", "right", "tokens", "differences"}; NULL: out of memory. */
json_t *accept_counts(const accept_sums *s);

/* What a strategy is measured with: a session of full attention over rows of the same type, in which it drafts; `full`
 * drafts as what it is. */
typedef struct {
    attn_spec full, draft;
    session_size size; /* size.draft: &draft, or NULL */
} accept_pair;
status accept_pair_of(accept_pair *out, const attn_spec *row, int64_t n_tokens, err *e);
/* Tokens of a session for pieces of at most `ctx` tokens. */
int64_t accept_limit(const accept_run *r, int64_t ctx);

/* Adds the results of a row that are not there yet. */
status accept_measure(accept_run *r, size_t row, err *e);

status accept_print_head(const accept_run *r, err *e);
status accept_print_row(const accept_run *r, size_t row, err *e);
/* Why rows could not run, and --json. */
status accept_report(const accept_run *r, err *e);

#endif
