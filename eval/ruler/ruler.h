/* SPDX-License-Identifier: MIT */
/* RULER v1 (Hsieh et al. 2024): its tasks, and their prompts byte for byte as the official generator makes them for a
 * seed and a tokenizer. Source: evals.md section 15; NVIDIA/RULER c3f5e3b, scripts/data/. */
#ifndef EVAL_RULER_RULER_H
#define EVAL_RULER_RULER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "eval/evaluation.h"
#include "eval/prediction.h"
#include "eval/prompt.h"
#include "eval/python_random.h"
#include "eval/ruler/ruler_qa.h"
#include "eval/ruler/ruler_sentences.h"
#include "eval/ruler/ruler_words.h"
#include "eval/samples.h"
#include "kernels/base/sha256.h"

/* ---- tasks ---- */

enum { RULER_TASKS = 13 };

typedef enum { RULER_NIAH, RULER_VT, RULER_CWE, RULER_FWE, RULER_QA, RULER_FAMILIES } ruler_family;
typedef enum { RULER_NOISE, RULER_NEEDLES, RULER_ESSAY } ruler_haystack;

typedef struct {
    const char *name;
    ruler_family family;
    const char *metric;
    ruler_file file; /* that the user brings; RULER_FILES: none */
    /* Of niah: */
    ruler_haystack haystack;
    bool uuid_keys, uuid_values; /* else words, and numbers */
    int keys, values, queries;   /* keys; values of each; keys that are asked for */
} ruler_task;

/* In the order of the official list. */
extern const ruler_task ruler_tasks[RULER_TASKS];
extern const dataset_names ruler_names;
extern const char *const ruler_file_options[RULER_FILES]; /* "--essays" */

/* ---- texts ---- */

typedef struct {
    json_t *root; /* holds the texts */
    const char *text[RULER_FAMILIES], *prefix[RULER_FAMILIES];
    int n_new[RULER_FAMILIES]; /* most new tokens */
    const char *needle, *noise, *document;
    const char *wrapper; /* what stands around a prompt, with {task_template} */
} ruler_templates;

/* Reads ruler/templates.json of the folder of evaluation data; old: with the texts of 2024. wrapper: a name of RULER's
 * list ("base": nothing around it), ST_USAGE naming --template. ruler_templates_close also after an error. */
status ruler_templates_open(ruler_templates *t, const char *data_dir, bool old, const char *wrapper, err *e);
void ruler_templates_close(ruler_templates *t);
/* The task's text in its wrapper, with the answer prefix behind; what is asked for in the singular says so. *out is
 * freed also after an error. */
status ruler_template(prompt_text *out, const ruler_templates *t, const ruler_task *task, bool wrapped, err *e);
/* "numbers", "uuids": what the needles' values are called. */
const char *ruler_value_name(const ruler_task *task);

/* Appends the text with every run of white space (Python's) as one space; strip: without those at its ends. ST_FORMAT:
 * it is not UTF-8. */
status ruler_squeeze(prompt_text *t, const char *s, size_t n, bool strip, err *e);
/* Squeezes and strips the text. */
status ruler_one_line(prompt_text *t, err *e);

/* Counts tokens. */
typedef struct {
    const tokenizer *tok; /* NULL: words between white space */
    token_list ids;       /* its memory */
} ruler_counter;
/* Of a text: without BOS, spellings of special tokens as these. ST_INTERRUPTED after Ctrl-C: making prompts takes
 * little else. */
status ruler_count(ruler_counter *c, const char *s, size_t n, int64_t *out, err *e);

/* A long English text as a haystack. */
typedef struct {
    char sum[SHA256_HEX]; /* of the file */
    punkt *punkt;
    prompt_text text; /* with single spaces */
    size_t words;     /* between them; one at its beginning or end may be empty */
    /* The first words and their sentences: */
    size_t n;
    prompt_text part;
    sentence_list sentences;
} ruler_essay;

/* Reads {"text": ...} of a file NAME.json, else plain text. ruler_essay_close also after an error. */
status ruler_essay_open(ruler_essay *t, const char *path, const char *data_dir, err *e);
void ruler_essay_close(ruler_essay *t);
/* The first n words as part and sentences; words come again from the first one where there are not so many. */
status ruler_essay_cut(ruler_essay *t, size_t n, err *e);

/* ---- inputs ---- */

/* Options of two words, of which the first is the default. */
typedef enum { RULER_VARIANT, RULER_WORDS, RULER_TOKENS, RULER_PREFIX, RULER_CHOICES } ruler_choice;

typedef struct {
    evaluation_options common;
    const char *task, *length, *choice[RULER_CHOICES], *template, *file[RULER_FILES], *write;
    int samples, pre_samples;
    bool one_line;
} ruler_options;

/* What prompts are made from. */
typedef struct {
    const ruler_options *o;
    const char *data_dir;
    uint64_t seed;
    int choice[RULER_CHOICES]; /* 1: the second word of the option */
    bool old;                  /* --variant 2024: prompts as RULER made them then */
    bool runs[RULER_TASKS];
    bool named;                  /* by --task; else a task that cannot run is left out */
    bool lacks[RULER_TASKS];     /* data of the user, without which it does not run */
    err why[RULER_TASKS];        /* another reason; code ST_OK: none */
    size_t samples[RULER_TASKS]; /* of each length */
    sample_list data;            /* of --data; else they are made */
    int64_t *length;             /* [n_length]; of --data one, 0 */
    size_t n_length;
    ruler_templates templates;
    ruler_words *words;
    ruler_essay essay;
    ruler_qa qa[RULER_FILES]; /* of RULER_SQUAD and RULER_HOTPOTQA */
    ruler_counter counter;
} ruler_inputs;

/* Returns the word of an option that was given, or its default. */
const char *ruler_word(const ruler_inputs *in, ruler_choice k);
/* Reads options and files. ruler_inputs_close also after an error. */
status ruler_inputs_open(ruler_inputs *in, const ruler_options *o, err *e);
/* Counts by the tokenizer (borrowed) unless --tokens ws, and makes a sample of each task at the shortest length, so
 * that one that is too short shows before anything runs. */
status ruler_inputs_check(ruler_inputs *in, const tokenizer *tok, err *e);
void ruler_inputs_close(ruler_inputs *in);

/* A line of --data: RULER's own members input, outputs (and answer_prefix, without which the prefix is in the input),
 * or kvpress's columns context, question, answer_prefix, answer, max_new_tokens. Texts are borrowed. */
typedef struct {
    sample_head at;
    utf8_text context, question, prefix; /* question: of kvpress's columns; n 0: it is in the context */
    json_t *answers;                     /* a list of texts */
    int n_new;                           /* most new tokens; 0: as many as RULER gives the task */
} ruler_record;

extern const sample_reader ruler_reader;
void ruler_drop(void *record);
/* Returns record i of a task. */
const ruler_record *ruler_data_at(const sample_list *l, size_t task, size_t i);

/* Writes files of prompts, without a model: --write DIR. */
status ruler_write(const ruler_options *o, err *e);

/* ---- samples ---- */

/* A prompt under way: of so many items of haystack. */
typedef struct {
    prompt_text text;   /* with the answer prefix */
    json_t *answers;    /* a list of texts */
    const char *failed; /* why the official code fails here, where it does; NULL: it does not */
} ruler_draft;

typedef struct {
    const ruler_task *task;
    ruler_inputs *in;
    uint64_t seed;
    int64_t length;         /* most tokens of a prompt and its new ones */
    mersenne python, numpy; /* the streams of the run */
    prompt_text template;
    int64_t step, size; /* of haystack items, as it was found */
    int64_t number;     /* of the next sample, from 0 */
    int64_t least;      /* tokens of the shortest prompt that did not fit, with the new ones */
    ruler_draft draft;
    prompt_text context, other; /* parts of the draft that are under way; a new draft empties the context */
    bool searching;             /* for the size */
    bool example;               /* vt: the example in front of the questions is under way, */
    prompt_text shown;          /* or this is it, */
    int64_t shown_tokens;
    uint32_t *order;    /* cwe: its words as it shuffles them */
    bool too_few_words; /* cwe: a size was tried for which RULER takes other words */
} ruler_maker;

/* A sample. */
typedef struct {
    prompt_text text;
    size_t cut;                /* where its answer prefix begins */
    json_t *answers;           /* a list of texts */
    int64_t number;            /* from 0 */
    int64_t length;            /* tokens of the prompt, with the new ones */
    int64_t at_char, at_token; /* niah: where the first answer stands */
} ruler_sample;

/* Finds the number of haystack items for samples of the length; the inputs are borrowed. ST_USAGE where none is short
 * enough, naming --length and the tokens of the shortest. ruler_maker_close also after an error. */
status ruler_maker_open(ruler_maker *m, ruler_inputs *in, const ruler_task *task, int64_t length, err *e);
void ruler_maker_close(ruler_maker *m);
/* The next sample. ST_USAGE: questions are used up. ruler_sample_free also after an error. */
status ruler_make(ruler_maker *m, ruler_sample *out, err *e);
void ruler_sample_free(ruler_sample *s);
/* A line of an official file; old: of 2024. NULL: out of memory. */
json_t *ruler_sample_json(const ruler_sample *s, const ruler_task *task, bool old);

/* ---- the families ---- */

/* A draft with n items of haystack. Everything that is drawn comes from the streams of m. */
typedef status ruler_generate(ruler_maker *m, int64_t n, err *e);
ruler_generate ruler_niah, ruler_vt, ruler_vt_sample, ruler_cwe, ruler_qa_ask;
/* What vt and cwe need before the size is looked for; fwe finds its size here. */
status ruler_vt_start(ruler_maker *m, err *e);
/* Puts vt's example in front of the question of the draft. */
status ruler_vt_example(ruler_maker *m, const prompt_text *example, err *e);
status ruler_cwe_start(ruler_maker *m, err *e);
status ruler_fwe_start(ruler_maker *m, err *e);
/* The draft of a sample of fwe, and its tokens. */
status ruler_fwe(ruler_maker *m, int64_t *tokens, err *e);

/* The number of items: the largest whose draft fits into the length with `reserve` tokens; as of 2024, step by step and
 * with the answers behind the prompt. */
status ruler_find_size(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e);
/* A draft that fits with them, from m->size items down, and its tokens with them. */
status ruler_fit(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, int64_t *tokens, err *e);
/* ST_USAGE: not even the shortest prompt fits, which has m->least tokens. */
status ruler_too_short(const ruler_maker *m, err *e);

/* Begins a new draft; appends the filled template; adds an answer. */
status ruler_draft_start(ruler_maker *m, err *e);
status ruler_draft_fill(ruler_maker *m, const prompt_field *f, size_t n, err *e);
status ruler_draft_answer(ruler_maker *m, utf8_text s, err *e);

#endif
