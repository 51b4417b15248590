/* SPDX-License-Identifier: MIT */
/* What all evaluations share that ask many samples of many strategies for one answer each: options, the model, prompts,
 * results that survive the program, and a line for each answer. An evaluation brings its data, its prompts, its
 * judgement and its table:
 *
 *     evaluation_start    options and the lineup, before anything is opened
 *     evaluation_open     the model
 *     evaluation_prepare  prompts, again for each pass
 *     evaluation_begin    the lineup against the longest prompt, the results
 *     evaluation_ask      all answers that are not known yet
 *     evaluation_free     also after an error */
#ifndef EVAL_EVALUATION_H
#define EVAL_EVALUATION_H

#include "eval/lineup.h"
#include "eval/prompter.h"
#include "eval/results.h"
#include "eval/samples.h"

#define EVALUATION_ALL_ROWS SIZE_MAX

/* One prompt and what it asks for; texts and stops are borrowed. */
typedef struct {
    const char *dataset;
    int64_t index;    /* of the sample within its dataset */
    const char *pass; /* of an evaluation with several; else NULL */
    size_t row;       /* of the lineup that is asked, or EVALUATION_ALL_ROWS */
    prompt_tokens tokens;
    const token_list *stop; /* ids that end the answer */
    size_t n_new;           /* most new tokens */
    bool not_first;         /* the first new token is none of stop */
} evaluation_item;

typedef struct evaluation evaluation;

/* What an evaluation brings; each function gets its `own`. */
typedef struct {
    const char *name;        /* for messages: "longbench" */
    const char *own_samples; /* file of the evaluation data that is read without --data */
    /* Files of the evaluation data that prompts and scores follow from; NULL-terminated. */
    const char *const *tables;
    bool passes;             /* items have a pass, which tells their results apart */
    bool joined;             /* how long prompts are cut: prompter.joined */
    /* The default of --max-length. */
    status (*max_length)(size_t *out, const evaluation *ev, err *e);
    /* Item i, which is zeroed but for its row, EVALUATION_ALL_ROWS. */
    status (*item)(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e);
    /* Members of the configuration beside the common ones; NULL: out of memory. */
    json_t *(*config)(const void *own);
    /* Judges the answer of a row to item i: the members of its line beside the common ones. */
    status (*judge)(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members,
                    err *e);
} evaluation_kind;

struct evaluation {
    const cli *c;
    const evaluation_kind *kind;
    void *own;
    sample_source source; /* of the options */
    lineup rows;
    engine g;
    int64_t window; /* tokens of a session */
    prompter prompter;
    token_list eos; /* the model's ends of an answer */
    evaluation_item *items;
    size_t n_items;
    size_t n_truncated; /* prompts of all passes */
    results *out;
    /* The rest is of evaluation.c. */
    const char *data_dir;
    char *own_path;
    together_prompt *prompts; /* [n_items] */
    bool *known;              /* [rows.n, n_items] answers that are in the results */
    int64_t limit;
    progress *bar;
};

/* Options that can be judged at once: the lineup, the source of samples (data_dir: the folder of evaluation data), the
 * prompter's. */
status evaluation_start(evaluation *ev, const evaluation_kind *kind, void *own, const cli *c,
                        const char *data_dir, err *e);
/* Opens the model, and settles the window and the prompter. */
status evaluation_open(evaluation *ev, err *e);
/* Makes n items, instead of those that were. Errors name the sample; ST_USAGE for one that the window cannot hold,
 * ST_INTERRUPTED. */
status evaluation_prepare(evaluation *ev, size_t n, err *e);
/* Judges the lineup by the items, and opens the results; files: those of the samples, for the configuration. */
status evaluation_begin(evaluation *ev, const json_t *files, err *e);
/* Asks each row for its answers; those that are known are not asked for again. */
status evaluation_ask(evaluation *ev, err *e);
void evaluation_free(evaluation *ev);

/* The line of a row's answer to a sample; NULL: there is none. */
const json_t *evaluation_result(const evaluation *ev, size_t row, const char *dataset,
                                int64_t index, const char *pass);

#endif
