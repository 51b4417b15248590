/* SPDX-License-Identifier: MIT */
/* Driver of the evaluations that ask every strategy to answer every prompt. It reads options, opens the model, makes
 * prompts, collects answers, and writes one line per answer to a file from which a later run resumes. An
 * evaluation_kind adds the data, prompts, scores and table of one evaluation. */
#ifndef EVAL_EVALUATION_H
#define EVAL_EVALUATION_H

#include "cli/command.h"
#include "eval/prompt.h"
#include "eval/results.h"
#include "eval/samples.h"

#define EVALUATION_ALL_ROWS SIZE_MAX

/* Options of every evaluation; the first member of an evaluation's own options struct. */
typedef struct {
    run_options run;
    prefix_args prefix;
    seed_option sample_seed;
    template_options template;
    const char *data, *max_length, *wrap, *clean_up, *protocol;
    int limit, trials, jobs;
} evaluation_options;

extern const cli_option evaluation_rows[];

/* One prompt and its task. Texts and stop ids are borrowed. */
typedef struct {
    const char *dataset;
    int64_t index;    /* number of the sample within its dataset */
    const char *pass; /* pass name, in an evaluation with several passes; else NULL */
    size_t row;       /* lineup row that answers, or EVALUATION_ALL_ROWS */
    prompt_tokens tokens;
    attn_hint hint;               /* span of the question within tokens.head */
    const token_list *stop;       /* ids that end the answer */
    size_t n_new;                 /* maximum number of new tokens */
    bool not_first;               /* the first new token must not be in stop */
    const char *const *stop_text; /* texts that end the answer and are not part of it; NULL-terminated; NULL: none */
    const int32_t *only;          /* [n_only] allowed first new tokens; n_only 0: any */
    size_t n_only;
    bool left_out; /* drop the sample: its prompt is too long and must not be cut */
    bool follows;  /* continues the session of the item before it, after its answer (see batch_prompt) */
    int32_t ends;
    uint64_t random; /* seed of the draws of this answer; only for evaluations that sample */
} evaluation_item;

typedef struct evaluation evaluation;

/* One evaluation. Every function gets `own`: `size` bytes, zeroed at the start. */
typedef struct evaluation_kind {
    const char *name; /* name in messages: "longbench" */
    size_t size;
    const char *attn, *budget; /* defaults of --attn (NULL: full) and --budget (NULL: each method's own) */
    bool decode;               /* default of --protocol: decode instead of prefill */
    const char *own_samples;   /* data file read without --data; NULL: prompts are generated and there are no samples */
    /* Data files that prompts and scores depend on, if own_samples is set; NULL-terminated; NULL: none. */
    const char *const *tables;
    /* Keys that identify a result, NULL-terminated: the keys that `identity` returns for an item, then "attn", "budget"
     * and "pass". NULL: "dataset" and "index" are the keys of an item. */
    const char *const *keys;
    json_t *(*identity)(const void *own, const evaluation_item *x);
    size_t sample_size;   /* size of an element of ev->samples, which begins with a sample_head; 0: the kind has its own
                             samples */
    void (*drop)(void *); /* sample_list.drop */
    bool joined;          /* value of prompter.joined: how overlong prompts are cut */
    bool wraps;           /* without samples: --wrap and --template are among its own options */

    /* Reads its own options and its samples, before the model is opened. Fills ev->samples or sets ev->files. */
    status (*load)(void *own, evaluation *ev, err *e);
    /* Finishes the setup with the model's tokenizer and shape; NULL: nothing to do. */
    status (*ready)(void *own, evaluation *ev, err *e);
    /* Returns the default of --max-length; NULL without samples. */
    status (*max_length)(size_t *out, const evaluation *ev, err *e);
    /* Begins pass k (from 0) and returns its number of items; 0: no more passes. NULL: one pass of ev->n_samples
     * items. */
    status (*pass)(void *own, evaluation *ev, size_t k, size_t *n, err *e);
    /* Fills item i. Defaults set before the call: row is EVALUATION_ALL_ROWS, stop is ev->eos, dataset is the kind's
     * name; dataset and index are those of element i of ev->samples if it exists. Everything else is zero. */
    status (*item)(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e);
    /* Returns additional members of the configuration; NULL: out of memory. */
    json_t *(*config)(const void *own);
    /* Scores the answer of a row to item i. Returns the members of its result line that precede the costs. */
    status (*judge)(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e);
    /* Returns the members for time and memory of an answer; NULL: the common ones. */
    json_t *(*costs)(const evaluation *ev, const evaluation_item *x, const batch_reply *a);
    /* Called after each pass; NULL: nothing to do. */
    status (*passed)(void *own, evaluation *ev, err *e);
    /* Prints the table on standard output and writes --json. */
    status (*report)(void *own, evaluation *ev, err *e);
    const struct answers_layout *layout; /* used by answers_report_layout as `report` */
    void (*free)(void *own);             /* NULL: nothing to free */
} evaluation_kind;

/* Offsets of the parts of an evaluation_options, at the start of a command's options. */
#define EVALUATION_PLACES                                                                                              \
    {                                                                                                                  \
        [IN_PREFIX] = offsetof(evaluation_options, prefix), [IN_TEMPLATE] = offsetof(evaluation_options, template)     \
    }
/* Defines the command `eval ID` of evaluation_of_ID. Its `options` fill an ID_options. */
#define EVALUATION_COMMAND(id, of_groups, what)                                                                        \
    const command id##_command = {.name = "eval " #id,                                                                 \
                                  .args = "",                                                                          \
                                  .summary = what,                                                                     \
                                  .groups = of_groups,                                                                 \
                                  .own = options,                                                                      \
                                  .size = sizeof(id##_options),                                                        \
                                  .place = EVALUATION_PLACES,                                                          \
                                  .evaluation = &evaluation_of_##id}
/* Option groups of evaluations with samples. */
#define SAMPLE_OPTIONS_GROUPS (OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS | OPTIONS_PREFIX)

struct evaluation {
    const evaluation_options *o;
    const void *options; /* the command's options, which begin with *o */
    const evaluation_kind *kind;
    void *own;
    const char *data_dir; /* folder of evaluation data */
    sample_source source; /* from the options */
    sample_list samples;  /* samples of a kind with sample_size */
    dataset_names names;  /* names of its datasets, set by `load`; n is 0: one dataset */
    metrics *m;           /* scorer of answers */
    const json_t *files;  /* files of the samples, for the configuration; default: those of ev->samples */
    size_t n_samples;     /* number of items of a single pass; set by `load` or `ready`; default: ev->samples.n */
    bool passes;          /* results are also identified by their pass; set by `load` */
    int64_t at_least;     /* minimum number of tokens that every session holds; set by `pass` */
    char label[64];       /* label of the progress bar; set by `pass`; default: the kind's name */
    lineup rows;
    engine g;
    int64_t window; /* tokens of a session; only with samples */
    prompter prompter;
    json_t *template_args;           /* of --template-arg */
    token_list eos;                  /* the model's end-of-answer tokens */
    const sampler_options *sampling; /* sampling parameters, set by `load`; NULL: greedy */
    evaluation_item *items;
    size_t n_items;
    size_t n_truncated; /* number of cut prompts in all passes */
    size_t n_left_out;  /* number of dropped samples */
    results *out;
    prefix_cache *cache; /* cache of --prefix-disk */
    /* Used only by evaluation.c. */
    char *own_path;
    batch_prompt *prompts; /* [n_items] */
    bool *known;           /* [rows.n, n_items] answers that the results already contain */
    int64_t limit;
    progress *bar;
};

/* Returns the name of --protocol. */
static inline const char *protocol_of(const evaluation *ev)
{
    return ev->prompter.decode ? "decode" : "prefill";
}

/* Runs an evaluation from its options to its report. Errors of prompts name the sample. ST_USAGE: a sample does not fit
 * the window. */
status evaluation_run(const evaluation_kind *kind, const void *options, err *e);

/* Returns the default members for time and memory of an answer. */
json_t *evaluation_costs_of(const evaluation *ev, const evaluation_item *x, const batch_reply *a);

/* Returns the seed of the draws of an answer. It depends only on the seed, the sample's number, and the answer's number
 * within the sample. */
uint64_t evaluation_random(uint64_t seed, int64_t index, uint64_t answer);

/* Returns the result line of a row for a sample; NULL: missing. */
const json_t *evaluation_result(const evaluation *ev, size_t row, const char *dataset, int64_t index, const char *pass);

#endif
