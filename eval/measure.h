/* SPDX-License-Identifier: MIT */
/* Driver of the evaluations that measure strategies along a text. It opens what they need, resumes from the file of -o,
 * and writes --json. A measure_kind adds the parts of one evaluation. */
#ifndef EVAL_MEASURE_H
#define EVAL_MEASURE_H

#include "cli/command.h"
#include "eval/results.h"

/* State of every measure; the first member of the measure's own struct. */
typedef struct {
    const run_options *o;
    bool no_model; /* open only the backend; set by `parse` */
    engine g;
    lineup rows;
    results *out;
    table table;   /* printed and freed after the last pass; `head` may add its columns */
    progress *bar; /* of the current pass */
} measure;

/* `own` is the measure's struct. Functions that return JSON return NULL when out of memory. */
typedef struct {
    const char *attn, *budget;                       /* defaults of --attn and --budget, as of lineup_read_budgets */
    const char *const *identity;                     /* members that identify a result, then NULL; NULL: no -o */
    const char *resume;                              /* where the same command resumes after an interruption */
    bool together;                                   /* all rows are in one batch */
    size_t (*passes)(const void *own);               /* NULL: a pass for each row that can run */
    status (*parse)(void *own, err *e);              /* reads options, before the model is found */
    status (*ready)(void *own, err *e);              /* reads the text and checks the rows, before weights load */
    json_t *(*config)(const void *own);              /* members of the configuration, for -o and --json */
    json_t *(*output_config)(const void *own);       /* other members for -o; NULL: none */
    json_t *(*json_config)(const void *own);         /* other members for --json */
    status (*head)(void *own, err *e);               /* prints the lines before the first pass; NULL: none */
    bool (*lacks)(const void *own, size_t pass);     /* true if the pass must be measured; NULL: always */
    status (*run)(void *own, size_t pass, err *e);   /* adds the missing results of a pass */
    status (*print)(void *own, size_t pass, err *e); /* NULL: nothing after each pass */
    status (*end)(const void *own, err *e); /* prints the lines after the last pass; NULL: the reasons of rows that
                                               cannot run, unless `passes` is set */
    json_t *(*results)(const void *own);    /* list of --json */
    json_t *(*extra)(const void *own);      /* other members of --json; NULL: none */
} measure_kind;

status measure_run(measure *m, const measure_kind *kind, err *e);
void measure_close(measure *m);

/* Returns the result of a row with the other members of its identity; NULL: missing. Takes ownership of identity. */
const json_t *measure_result(const measure *m, size_t row, json_t *identity);
/* Adds a result: the row and the members of `line`. Takes ownership of line. */
status measure_add(measure *m, size_t row, json_t *line, err *e);
/* Returns {"attn", "params", "budget"} and the members of `own`, with the reason if the row cannot run; NULL: out of
 * memory. Takes ownership of own. */
json_t *measure_row_json(const measure *m, size_t row, json_t *own);

#endif
