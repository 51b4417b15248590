/* SPDX-License-Identifier: MIT */
/* SCBench: several questions on one context, as turns of a conversation or as requests apart. Source: doc/evals.md 16;
 * microsoft/MInference, scbench/eval_utils.py. */
#ifndef EVAL_SCBENCH_H
#define EVAL_SCBENCH_H

#include "eval/made.h"
#include "eval/prompt.h"
#include "eval/samples.h"

enum { SCBENCH_TASKS = 16, SCBENCH_TURNS = 5, SCBENCH_OPTIONS = SAMPLE_OPTIONS };

typedef struct {
    const char *name;        /* of its file */
    const char *metric;      /* NULL: each turn names its own task */
    bool options, letters;   /* a turn has four options; a label that is a text is read letter by letter */
    bool in_table;           /* one of those that are reported, and that run without --dataset */
    bool generated, refused; /* made by the program where there is no data; not in this program */
} scbench_task;

extern const scbench_task scbench_tasks[SCBENCH_TASKS];
/* Returns ST_UNSUPPORTED, with the reason, for a task that is not in this program; where: what asks for it. */
status scbench_refuse(const scbench_task *t, const char *where, err *e);
extern const dataset_names scbench_names;

/* ---- prompts ---- */

typedef struct {
    json_t *root;
} scbench_prompts;

/* Reads scbench/prompts.json of the folder of evaluation data. scbench_prompts_close also after an error. */
status scbench_prompts_open(scbench_prompts *p, const char *data_dir, err *e);
void scbench_prompts_close(scbench_prompts *p);

/* ---- samples ---- */

typedef struct {
    size_t task; /* whose metric and new tokens */
    utf8_text input, option[SCBENCH_OPTIONS];
    const json_t *answer; /* as the data have it */
    json_t *labels;       /* as texts; an option with its letter */
} scbench_turn;

typedef struct {
    sample_head at; /* its dataset is a task */
    utf8_text context;
    scbench_turn turn[SCBENCH_TURNS];
    size_t n_turns;
} scbench_sample;

/* Reads a record {"context" (a text, or a list of whole numbers) or "input", "multi_turns": [{"input", "answer",
 * "options", "task"}]}, of which five turns at most count, as sample_reader.read does; own and path are unused. */
status scbench_read(const void *own, void *s, const char *path, const char *where, err *e);
/* Frees what a sample holds besides its record. */
void scbench_drop(void *s);

/* Most new tokens of a turn. */
int scbench_new_tokens(const scbench_prompts *p, const scbench_sample *s, size_t turn);

/* ---- what is fed ---- */

typedef struct {
    const scbench_prompts *prompts;
    const prompter *how;
    bool requests;         /* each question on the context alone; else turns with the right answers between them, */
    bool own;              /* or with the model's own ones, which are not part of what is fed */
    const token_list *eos; /* the model's end tokens */
} scbench_asking;

/* The parts that are fed one behind the other: first the context, with the question of the first turn or without, then
 * what each further turn adds. */
typedef struct {
    token_list part[SCBENCH_TURNS + 1];
    size_t n;
    size_t n_context; /* tokens of the first part before it was cut */
    int32_t ends;     /* the token that ends an answer of the model's own; -1: none */
    bool cut;
} scbench_parts;

/* most: tokens of the first part, whose middle is cut out. scbench_parts_free also after an error. */
status scbench_parts_make(scbench_parts *out, const scbench_asking *a, const scbench_sample *s, size_t most, err *e);
/* Cuts the middle of the first part out. */
void scbench_parts_cut(scbench_parts *p, size_t most);
void scbench_parts_free(scbench_parts *p);
/* The text of a part; for tests. */
status scbench_part_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e);

/* ---- samples that are made ---- */

/* The record of a sample with so many units (pairs, sentences, numbers, words), at least SCBENCH_TURNS. It depends on
 * the place and the units alone. */
status scbench_generate(json_t **root, const made_place *at, size_t units, err *e);

#endif
