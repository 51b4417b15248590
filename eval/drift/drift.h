/* SPDX-License-Identifier: MIT */
/* `eval drift`: a long generation with each strategy, judged at intervals. */
#ifndef EVAL_DRIFT_H
#define EVAL_DRIFT_H

#include "cli/lineup.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

typedef struct {
    const char *n, *prompt, *every, *compare;
    int judged;
} drift_options;

typedef struct {
    const cli *c;
    const drift_options *o;
    engine g;
    lineup rows;
    int64_t n, every; /* new tokens; those of an interval, which divides n */
    int64_t compare;  /* new tokens from one comparison with full attention to the next, a multiple of every; 0: none */
    token_list prompt;
    char sha256[SHA256_HEX]; /* of the text */
    results *out;
    progress *bar; /* of the row under way, in tokens */
} drift_run;

/* {"attn", "budget", "generated"}: the identity of the interval that ends behind so many new tokens. */
json_t *drift_identity(const drift_run *r, size_t row, int64_t generated);
/* The result of an interval; NULL: there is none. */
const json_t *drift_result(const drift_run *r, size_t row, int64_t generated);

/* Generates r->n tokens with a row's strategy behind r->prompt. Adds a result at the end of each interval that has
 * none. */
status drift_generate(drift_run *r, size_t row, err *e);

/* The table of a row that was generated; then what all of them need: reasons and --json. */
status drift_print_row(const drift_run *r, size_t row, err *e);
status drift_report(const drift_run *r, err *e);

#endif
