/* SPDX-License-Identifier: MIT */
/* The loop of evaluations that ask every strategy to answer every prompt. It reads options, opens the model, makes
 * prompts, collects answers, and writes a line for each answer to a file from which a later run goes on. An
 * evaluation_kind adds what is particular to one evaluation: its data, prompts, scores and table. */
#ifndef EVAL_EVALUATION_H
#define EVAL_EVALUATION_H

#include "cli/command.h"
#include "eval/prompt.h"
#include "eval/results.h"
#include "eval/samples.h"

#define EVALUATION_ALL_ROWS SIZE_MAX

/* Options of every evaluation, the first member of its own. */
typedef struct {
    run_options run;
    prefix_args prefix;
    seed_option sample_seed;
    const char *template_name, *data, *max_length, *wrap, *clean_up, *protocol;
    int limit, trials, jobs;
} evaluation_options;

extern const cli_option evaluation_rows[];

/* One prompt and what it asks for; texts and stops are borrowed. */
typedef struct {
    const char *dataset;
    int64_t index;    /* of the sample within its dataset */
    const char *pass; /* of an evaluation with several; else NULL */
    size_t row;       /* of the lineup that is asked, or EVALUATION_ALL_ROWS */
    prompt_tokens tokens;
    attn_hint hint;               /* where in tokens.head the question stands */
    const token_list *stop;       /* ids that end the answer */
    size_t n_new;                 /* most new tokens */
    bool not_first;               /* the first new token is none of stop */
    const char *const *stop_text; /* texts that end the answer, which is without them; NULL-terminated; NULL: none */
    const int32_t *only;          /* [n_only] the first new token is one of these; n_only 0: any */
    size_t n_only;
    bool left_out; /* the sample is dropped: its prompt is too long, and must not be cut */
    bool follows;  /* it goes on behind the answer to the item before it, as batch_prompt says */
    int32_t ends;
    uint64_t random; /* of an evaluation that samples: what the choices of this answer follow from */
} evaluation_item;

typedef struct evaluation evaluation;

/* What is particular to one evaluation. Every function gets `own`: `size` bytes, zeroed at the start. */
typedef struct evaluation_kind {
    const char *name; /* for messages: "longbench" */
    size_t size;
    const char *attn, *budget; /* defaults of --attn (NULL: full) and --budget (NULL: each method's own) */
    bool decode;               /* the default of --protocol is decode, not prefill */
    const char *own_samples;   /* data file that is read without --data; NULL: prompts are made, there are no samples */
    /* Data files that prompts and scores follow from, with own_samples; NULL-terminated; NULL: none. */
    const char *const *tables;
    /* The keys that identify a result, NULL-terminated: those that `identity` gives for an item, then "attn", "budget"
     * and "pass". NULL: "dataset" and "index". */
    const char *const *keys;
    json_t *(*identity)(const void *own, const evaluation_item *x);
    size_t sample_size;   /* of ev->samples, whose elements begin with a sample_head; 0: the kind has its own */
    void (*drop)(void *); /* sample_list.drop */
    bool joined;          /* how prompts that are too long are cut: prompter.joined */
    bool wraps;           /* without samples: has --wrap and --template among its own options */

    /* Before the model is opened: reads its own options and its samples, into ev->samples or with ev->files set. */
    status (*load)(void *own, evaluation *ev, err *e);
    /* What needs the model's tokenizer and shape; NULL: nothing. */
    status (*ready)(void *own, evaluation *ev, err *e);
    /* The default of --max-length; NULL without samples. */
    status (*max_length)(size_t *out, const evaluation *ev, err *e);
    /* Begins pass k, from 0, and gives its number of items; 0: there is none. NULL: one pass of ev->n_samples. */
    status (*pass)(void *own, evaluation *ev, size_t k, size_t *n, err *e);
    /* Item i, which is zeroed but for its row, EVALUATION_ALL_ROWS, its stop, ev->eos, and of element i of ev->samples
     * the dataset, by default the kind's name, and index. */
    status (*item)(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e);
    /* Members of the configuration beside the common ones; NULL: out of memory. */
    json_t *(*config)(const void *own);
    /* Judges the answer of a row to item i: the members of its line before its costs. */
    status (*judge)(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e);
    /* The members for time and memory of an answer; NULL: the common ones. */
    json_t *(*costs)(const evaluation *ev, const evaluation_item *x, const batch_reply *a);
    /* After a pass; NULL: nothing. */
    status (*passed)(void *own, evaluation *ev, err *e);
    /* The table on standard output, and --json. */
    status (*report)(void *own, evaluation *ev, err *e);
    const struct answers_layout *layout; /* with answers_report_layout as `report` */
    void (*free)(void *own);             /* NULL: nothing */
} evaluation_kind;

/* Places of the parts of an evaluation_options, at the start of a command's options. */
#define EVALUATION_PLACES                                                                                              \
    {                                                                                                                  \
        [IN_PREFIX] = offsetof(evaluation_options, prefix), [IN_TEMPLATE] =                                            \
                                                                offsetof(evaluation_options, template_name)            \
    }
/* The command `eval ID` of evaluation_of_ID, with its `options`, which fill an ID_options. */
#define EVALUATION_COMMAND(id, of_groups, what)                                                                        \
    const command id##_command = {.name = "eval " #id,                                                                 \
                                  .args = "",                                                                          \
                                  .summary = what,                                                                     \
                                  .groups = of_groups,                                                                 \
                                  .own = options,                                                                      \
                                  .size = sizeof(id##_options),                                                        \
                                  .place = EVALUATION_PLACES,                                                          \
                                  .evaluation = &evaluation_of_##id}
/* Groups of options of evaluations with samples. */
#define SAMPLE_OPTIONS_GROUPS (OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS | OPTIONS_PREFIX)

struct evaluation {
    const evaluation_options *o;
    const void *options; /* of the command, which begin with *o */
    const evaluation_kind *kind;
    void *own;
    const char *data_dir; /* the folder of evaluation data */
    sample_source source; /* of the options */
    sample_list samples;  /* of a kind with sample_size */
    dataset_names names;  /* of its datasets, set by `load`; n is 0: one dataset */
    metrics *m;           /* scorer of answers */
    const json_t *files;  /* of the samples, for the configuration; by default those of ev->samples */
    size_t n_samples;     /* items, where there is one pass; set by `load` or `ready`; by default ev->samples.n */
    bool passes;          /* items have a pass, which tells their results apart; set by `load` */
    int64_t at_least;     /* tokens that every session must hold, however short the prompts; set by `pass` */
    char label[64];       /* for progress; set by `pass`, else the kind's name */
    lineup rows;
    engine g;
    int64_t window; /* tokens of a session, with samples */
    prompter prompter;
    token_list eos;                  /* the model's ends of an answer */
    const sampler_options *sampling; /* how tokens are drawn, set by `load`; NULL: the most likely ones */
    evaluation_item *items;
    size_t n_items;
    size_t n_truncated; /* prompts of all passes */
    size_t n_left_out;  /* samples that were dropped */
    results *out;
    prefix_cache *cache; /* of --prefix-disk */
    /* The rest is of evaluation.c. */
    char *own_path;
    batch_prompt *prompts; /* [n_items] */
    bool *known;           /* [rows.n, n_items] answers that are in the results */
    int64_t limit;
    progress *bar;
};

/* The name of --protocol. */
static inline const char *protocol_of(const evaluation *ev)
{
    return ev->prompter.decode ? "decode" : "prefill";
}

/* Runs an evaluation from the options to the report. Errors of prompts name the sample; ST_USAGE for one that the
 * window cannot hold. */
status evaluation_run(const evaluation_kind *kind, const void *options, err *e);

/* The members for time and memory that `costs` replaces. */
json_t *evaluation_costs_of(const evaluation *ev, const evaluation_item *x, const batch_reply *a);

/* What the choices of an answer follow from: the seed, the sample's number, and which of its answers it is. */
uint64_t evaluation_random(uint64_t seed, int64_t index, uint64_t answer);

/* The line of a row's answer to a sample; NULL: there is none. */
const json_t *evaluation_result(const evaluation *ev, size_t row, const char *dataset, int64_t index, const char *pass);

#endif
