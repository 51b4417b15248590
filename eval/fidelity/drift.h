/* SPDX-License-Identifier: MIT */
/* `eval drift`: a long generation with each strategy, judged at intervals. */
#ifndef EVAL_DRIFT_H
#define EVAL_DRIFT_H

#include "eval/fidelity/fidelity.h"

typedef struct {
    const char *n, *prompt, *every, *compare;
    int judged;
} drift_options;

typedef struct {
    fidelity f; /* its text: the prompt */
    const drift_options *o;
    size_t n_prompt;
    int64_t n, every; /* new tokens; those of an interval, which divides n */
    int64_t compare;  /* new tokens from one comparison with full attention to the next, a multiple of every; 0: none */
} drift_run;

/* {"attn", "budget", "generated"}: the identity of the interval that ends behind so many new tokens. */
json_t *drift_identity(const drift_run *r, size_t row, int64_t generated);
/* The result of an interval; NULL: there is none. */
const json_t *drift_result(const drift_run *r, size_t row, int64_t generated);

/* Callbacks of the measure: eval/fidelity/fidelity.h. drift_generate generates r->n tokens with a row's strategy and
 * adds a result at the end of each interval that has none. */
status drift_generate(void *own, size_t row, err *e);
status drift_print_row(const void *own, size_t row, err *e);
json_t *drift_row_json(const void *own, size_t row, size_t i);
json_t *drift_options_json(const void *own);

#endif
