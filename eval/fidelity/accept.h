/* SPDX-License-Identifier: MIT */
/* `eval accept`: how often is a strategy's next token that of full attention, over the same rows and behind tokens of
 * its own? */
#ifndef EVAL_ACCEPT_H
#define EVAL_ACCEPT_H

#include "eval/fidelity/fidelity.h"

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
    fidelity f;
    const accept_options *o;
    int64_t *ctx;
    double *temp;
    size_t n_ctx, n_temp;
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

/* Callbacks of the measure: eval/fidelity/fidelity.h. */
status accept_measure(void *own, size_t row, err *e);
status accept_print_head(const void *own, err *e);
status accept_print_row(const void *own, size_t row, err *e);
size_t accept_per_row(const void *own);
json_t *accept_row_json(const void *own, size_t row, size_t i);
json_t *accept_options_json(const void *own);

#endif
