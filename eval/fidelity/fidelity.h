/* SPDX-License-Identifier: MIT */
/* The run loop, text and report of the measures of fidelity to full attention. */
#ifndef EVAL_FIDELITY_H
#define EVAL_FIDELITY_H

#include "cli/command.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

/* State of every measure; the first member of the measure's own struct. */
typedef struct {
    const run_options *o;
    engine g;
    lineup rows;
    token_list text;
    char sha256[SHA256_HEX]; /* of the text */
    results *out;
    progress *bar; /* of the current row */
} fidelity;

/* `own` is the measure's struct. */
typedef struct {
    const char *const *identity;                      /* members that identify a result, then NULL */
    const char *resume;                               /* where the same command resumes after an interruption */
    status (*parse)(void *own, err *e);               /* reads options and the lineup, before the model is found */
    status (*ready)(void *own, err *e);               /* reads the text and checks the rows, before weights load */
    json_t *(*config)(const void *own);               /* members of the configuration; NULL: out of memory */
    status (*head)(const void *own, err *e);          /* prints the lines before the first row */
    bool (*lacks)(const void *own, size_t row);       /* true if the row must be measured; NULL: always */
    status (*measure)(void *own, size_t row, err *e); /* adds the missing results of a row */
    status (*print)(const void *own, size_t row, err *e);
    size_t (*per_row)(const void *own);                     /* JSON objects per row; NULL: 1 */
    json_t *(*json)(const void *own, size_t row, size_t i); /* the i-th of them; NULL: out of memory */
    json_t *(*options)(const void *own);                    /* of the JSON report; NULL: out of memory */
} fidelity_measure;

/* Measures every row that can run, prints it, then prints why others cannot run and writes --json. */
status fidelity_run(fidelity *f, const fidelity_measure *m, err *e);
void fidelity_close(fidelity *f);

/* Prints a column of `width` characters after a space; NAN is "-". */
status fidelity_print_number(double x, int width, int decimals, err *e);
/* Returns x; NULL, and frees it, if bad (out of memory). */
json_t *fidelity_json(json_t *x, bool bad);

/* Reads and tokenizes the text of -f, or (NULL) the built-in book. sum: SHA-256 of its file. */
status fidelity_read_text(token_list *text, char sum[SHA256_HEX], const engine *g, const char *path, unsigned flags,
                          err *e);
/* Checks that the text has the tokens of each --ctx, and warns of lengths that the model was not trained for. */
status fidelity_check_ctx(const token_list *text, const int64_t *ctx, size_t n_ctx, const engine *g, err *e);
/* Returns n tokens of the text, whose offset depends on seed, length and trial alone. */
const int32_t *fidelity_piece(const token_list *text, size_t n, uint64_t seed, int64_t ctx, size_t trial);

#endif
