/* SPDX-License-Identifier: MIT */
/* `passkey`: what a run has in hand, and its report. */
#ifndef EVAL_PASSKEY_RUN_H
#define EVAL_PASSKEY_RUN_H

#include "eval/lineup.h"
#include "eval/passkey_prompt.h"
#include "eval/results.h"

typedef struct {
    const cli *c;
    engine g;
    int64_t *ctx, *budget;
    size_t n_ctx, n_budget;
    int64_t n_trials;
    bool decode;              /* the question goes through the decode path */
    results *out;             /* a line for each row, length and trial */
    int64_t at;               /* the length under way, */
    passkey_trial *trials;    /* its prompts, */
    together_prompt *prompts; /* [n_trials], */
    lineup rows;
    int64_t *correct; /* [rows.n] and what the rows got right */
    token_list stop;
    progress *bar;
    json_t *table, *skipped; /* for --json */
} passkey;

/* The table of one length, on standard output. */
status passkey_print(const passkey *p, int64_t ctx, int64_t n_chars, err *e);
/* Its rows for --json; and the file with those of all lengths. */
status passkey_add_json(passkey *p, int64_t ctx, err *e);
status passkey_write_json(passkey *p, err *e);

#endif
