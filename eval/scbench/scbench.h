/* SPDX-License-Identifier: MIT */
/* SCBench: several questions on one context, as turns of a conversation or as separate requests. Source: doc/evals.md
 * 16; microsoft/MInference, scbench/eval_utils.py. */
#ifndef EVAL_SCBENCH_H
#define EVAL_SCBENCH_H

#include "eval/made.h"
#include "eval/prompt.h"
#include "eval/samples.h"

enum { SCBENCH_TASKS = 16, SCBENCH_TURNS = 5, SCBENCH_OPTIONS = SAMPLE_OPTIONS };

typedef struct {
    const char *name;        /* name of its file */
    const char *metric;      /* NULL: each turn names its own task */
    bool options, letters;   /* turns have four options; a text label is a list of letters */
    bool in_table;           /* reported by the benchmark; runs without --dataset */
    bool generated, refused; /* made by the program without --data; unsupported */
} scbench_task;

extern const scbench_task scbench_tasks[SCBENCH_TASKS];
/* Returns ST_UNSUPPORTED with the reason why a task is unsupported. where: option or record that names the task. */
status scbench_refuse(const scbench_task *t, const char *where, err *e);
extern const dataset_names scbench_names;

/* ---- prompts ---- */

typedef struct {
    json_t *root;
} scbench_prompts;

/* Reads scbench/prompts.json of the data folder. Call scbench_prompts_close also after an error. */
status scbench_prompts_open(scbench_prompts *p, const char *data_dir, err *e);
void scbench_prompts_close(scbench_prompts *p);

/* ---- samples ---- */

typedef struct {
    size_t task; /* task whose metric and new tokens apply */
    utf8_text input, option[SCBENCH_OPTIONS];
    const json_t *answer; /* as in the data */
    json_t *labels;       /* texts; of an option, its text and letter */
} scbench_turn;

typedef struct {
    sample_head at; /* dataset: index into scbench_tasks */
    utf8_text context;
    scbench_turn turn[SCBENCH_TURNS];
    size_t n_turns;
} scbench_sample;

/* Reads a record {"context" (a text, or a list of whole numbers) or "input", "multi_turns": [{"input", "answer",
 * "options", "task"}]} and uses its first SCBENCH_TURNS turns. Implements sample_reader.read; own and path are
 * unused. */
status scbench_read(const void *own, void *s, const char *path, const char *where, err *e);
/* Frees what a sample holds besides its record. */
void scbench_drop(void *s);

/* Returns the maximum number of new tokens of a turn. */
int scbench_new_tokens(const scbench_prompts *p, const scbench_sample *s, size_t turn);

/* ---- parts of a prompt ---- */

typedef struct {
    const scbench_prompts *prompts;
    const prompter *how;
    bool requests; /* each question follows the context alone; else turns with the correct answers between them, */
    bool own;      /* or the model's own answers, which stay in its cache and are not fed */
    const token_list *eos; /* end tokens of the model */
} scbench_asking;

/* Parts of a prompt. Turns: the context with the first question, then one part for each further turn. Requests: the
 * context, then one part for each question. */
typedef struct {
    token_list part[SCBENCH_TURNS + 1];
    size_t n;
    size_t n_context; /* tokens of the first part before cutting */
    int32_t ends;     /* token that ends the model's own answer; -1: none */
    bool cut;
} scbench_parts;

/* Makes the parts of a sample; the first is cut in the middle to at most `most` tokens. Call scbench_parts_free also
 * after an error. */
status scbench_parts_make(scbench_parts *out, const scbench_asking *a, const scbench_sample *s, size_t most, err *e);
/* Cuts tokens out of the middle of the first part, to at most `most`. */
void scbench_parts_cut(scbench_parts *p, size_t most);
void scbench_parts_free(scbench_parts *p);
/* Writes the text of a part; exported for tests. */
status scbench_part_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e);

/* ---- generated samples ---- */

/* Generates the record of a sample with `units` pairs, sentences, numbers or words, at least SCBENCH_TURNS. It depends
 * only on at and units. */
status scbench_generate(json_t **root, const made_place *at, size_t units, err *e);

#endif
