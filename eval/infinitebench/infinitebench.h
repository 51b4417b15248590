/* SPDX-License-Identifier: MIT */
/* InfiniteBench: its tasks, its prompts, and samples of them, read or made. Source: evals.md section 6;
 * OpenBMB/InfiniteBench, and thunlp/InfLLM, from whose harness ActQKV's is made. */
#ifndef EVAL_INFINITEBENCH_H
#define EVAL_INFINITEBENCH_H

#include "eval/made.h"
#include "eval/prediction.h"
#include "eval/prompt_file.h"

enum { INFINITEBENCH_TASKS = 12 };

typedef struct {
    const char *name;   /* of its file and its metric */
    const char *title;  /* in papers: "Retrieve.PassKey" */
    const char *infllm; /* its metric by InfLLM's rules */
    bool in_table;      /* one of the six of ActQKV's Table 2 */
    bool generated;     /* made by the program where there is no data */
    const char *fields; /* of its prompts; {question} is the input by another name */
} infinitebench_task;

/* In the order of the table, the six first. */
extern const infinitebench_task infinitebench_tasks[INFINITEBENCH_TASKS];
extern const dataset_names infinitebench_names;

/* ---- prompts ---- */

typedef enum { PROMPTS_OFFICIAL, PROMPTS_CHAT, PROMPTS_INFLLM } infinitebench_set;

/* Templates and lengths of answers of one set: official (the base model's, yarn_mistral), chat (gpt4) or infllm. */
typedef struct {
    infinitebench_set set;
    const char *text[INFINITEBENCH_TASKS];
    int n_new[INFINITEBENCH_TASKS];
    json_t *prompts, *lengths; /* hold the texts */
    prompt_file file;          /* the templates of tasks that run, in place of the set's */
} infinitebench_prompts;

/* official, chat, infllm; ST_USAGE names the option --prompts. */
status infinitebench_set_parse(infinitebench_set *out, const char *text, err *e);
/* Reads those in infinitebench/ of the folder of evaluation data; infinitebench_prompts_close also after an error. */
status infinitebench_prompts_open(infinitebench_prompts *p, const char *data_dir, infinitebench_set set, err *e);
void infinitebench_prompts_close(infinitebench_prompts *p);
/* Takes the templates of the wanted tasks from p->file. */
status infinitebench_prompts_take(infinitebench_prompts *p, const bool *wanted, err *e);
/* The name of the set, or of the file. */
const char *infinitebench_prompts_name(const infinitebench_prompts *p);

/* ---- samples ---- */

enum { INFINITEBENCH_FIELDS = 5 };

typedef struct {
    sample_head at; /* its dataset is a task */
    utf8_text context;
    json_t *labels;                           /* as texts; an option with its letter */
    prompt_field field[INFINITEBENCH_FIELDS]; /* what fills the template in addition to the context */
    size_t n_fields;
    char *own;      /* text of a field that the data does not hold */
    int64_t length; /* of one that was made: tokens that it was to fill; else 0 */
    double depth;   /* of one that was made: where in the context the answer stands, in percent */
} infinitebench_sample;

/* Reads a record {"context", "input", "answer", "options", "id"}, as sample_reader.read does, for the
 * infinitebench_prompts that `own` is. Labels are texts or numbers; of the tasks with options the right one's text,
 * alone or with its letter. */
status infinitebench_read(const void *own, void *s, const char *path, const char *where, err *e);
/* Frees what a sample holds besides its record. */
void infinitebench_drop(void *s);
/* Frees the context, which is large. */
void infinitebench_sample_forget(infinitebench_sample *s);

/* Returns its labels as results have them. */
json_t *infinitebench_answers(const infinitebench_sample *s);
/* The text of its prompt. */
status infinitebench_fill(prompt_text *out, const infinitebench_prompts *p, const infinitebench_sample *s, err *e);
/* The sample's prompt in tokens: filled, cut, wrapped. Of infllm the last token is fed by itself, as a decode step;
 * so it is in that harness. prompt_tokens_free also after an error. */
status infinitebench_prompt_make(prompt_tokens *out, const infinitebench_prompts *p, const prompter *how,
                                 const infinitebench_sample *s, err *e);

/* ---- samples that are made ---- */

/* The record of a sample with so many units, sentences of noise or pairs of key and value: at least 1. What is hidden
 * depends on the place alone; *depth: in percent, where. */
status infinitebench_generate(json_t **root, double *depth, const made_place *at, size_t units, err *e);

#endif
