/* SPDX-License-Identifier: MIT */
/* InfiniteBench: tasks, prompts, and samples that are read or generated. Source: evals.md section 6;
 * OpenBMB/InfiniteBench, and thunlp/InfLLM, on whose harness ActQKV's is based. */
#ifndef EVAL_INFINITEBENCH_H
#define EVAL_INFINITEBENCH_H

#include "eval/made.h"
#include "eval/prediction.h"
#include "eval/prompt_file.h"

enum { INFINITEBENCH_TASKS = 12 };

typedef struct {
    const char *name;   /* name of its file and its metric */
    const char *title;  /* name in papers: "Retrieve.PassKey" */
    const char *infllm; /* metric by InfLLM's rules */
    bool in_table;      /* one of the six of ActQKV's Table 2 */
    bool generated;     /* generated if there is no data */
    const char *fields; /* fields of its prompts; {question} is an alias of the input */
} infinitebench_task;

/* The six tasks of Table 2 first, in its order. */
extern const infinitebench_task infinitebench_tasks[INFINITEBENCH_TASKS];
extern const dataset_names infinitebench_names;

/* ---- prompts ---- */

typedef enum { PROMPTS_OFFICIAL, PROMPTS_CHAT, PROMPTS_INFLLM } infinitebench_set;

/* Templates and answer lengths of one set: official (base models, yarn_mistral), chat (gpt4) or infllm. */
typedef struct {
    infinitebench_set set;
    const char *text[INFINITEBENCH_TASKS];
    int n_new[INFINITEBENCH_TASKS];
    json_t *prompts, *lengths; /* owners of the texts */
    prompt_file file;          /* templates of the tasks that run; replace those of the set */
} infinitebench_prompts;

/* Parses official, chat or infllm; ST_USAGE names the option --prompts. */
status infinitebench_set_parse(infinitebench_set *out, const char *text, err *e);
/* Reads the prompts in infinitebench/ of the folder of evaluation data. Requires infinitebench_prompts_close, also
 * after an error. */
status infinitebench_prompts_open(infinitebench_prompts *p, const char *data_dir, infinitebench_set set, err *e);
void infinitebench_prompts_close(infinitebench_prompts *p);
/* Takes the templates of the wanted tasks from p->file. */
status infinitebench_prompts_take(infinitebench_prompts *p, const bool *wanted, err *e);
/* Returns the name of the set, or of the file. */
const char *infinitebench_prompts_name(const infinitebench_prompts *p);

/* ---- samples ---- */

enum { INFINITEBENCH_FIELDS = 5 };

typedef struct {
    sample_head at; /* dataset: a task */
    utf8_text context;
    json_t *labels;                           /* labels as texts; for options also the letter */
    prompt_field field[INFINITEBENCH_FIELDS]; /* values of the template's fields except the context */
    size_t n_fields;
    char *own;      /* text of a field that the data lacks */
    int64_t length; /* generated samples: target length in tokens; else 0 */
    double depth;   /* generated samples: position of the answer in the context, in percent */
} infinitebench_sample;

/* Reads a record {"context", "input", "answer", "options", "id"} (see sample_reader.read). own: the
 * infinitebench_prompts. Labels are texts or numbers; in tasks with options they are the right option's text, alone or
 * with its letter. */
status infinitebench_read(const void *own, void *s, const char *path, const char *where, err *e);
/* Frees the sample's memory except its record. */
void infinitebench_drop(void *s);
/* Frees the context, which is large. */
void infinitebench_sample_forget(infinitebench_sample *s);

/* Returns its labels in the form of the results. */
json_t *infinitebench_answers(const infinitebench_sample *s);
/* Fills the template of the sample's prompt. */
status infinitebench_fill(prompt_text *out, const infinitebench_prompts *p, const infinitebench_sample *s, err *e);
/* Makes the sample's prompt in tokens: filled, cut, wrapped. With infllm the last token is fed by itself as a decode
 * step, as in that harness. Requires prompt_tokens_free, also after an error. */
status infinitebench_prompt_make(prompt_tokens *out, const infinitebench_prompts *p, const prompter *how,
                                 const infinitebench_sample *s, err *e);

/* ---- generated samples ---- */

/* Generates the record of a sample with a number of units (noise sentences or key-value pairs), at least 1. The hidden
 * content depends only on the place; *depth: its position in percent. */
status infinitebench_generate(json_t **root, double *depth, const made_place *at, size_t units, err *e);

#endif
