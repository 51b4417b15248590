/* SPDX-License-Identifier: MIT */
/* RULER v1 (Hsieh et al. 2024): tasks and prompts. Prompts equal those of the official generator byte for byte, for the
 * same seed and tokenizer. Source: evals.md section 15; NVIDIA/RULER c3f5e3b, scripts/data/. */
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
    ruler_file file; /* file that the user provides; RULER_FILES: none */
    /* niah only: */
    ruler_haystack haystack;
    bool uuid_keys, uuid_values; /* UUIDs; else words as keys, numbers as values */
    int keys, values, queries;   /* keys; values per key; keys asked for */
} ruler_task;

/* Tasks in the official order. */
extern const ruler_task ruler_tasks[RULER_TASKS];
extern const dataset_names ruler_names;
extern const char *const ruler_file_options[RULER_FILES]; /* "--essays" */

/* ---- texts ---- */

typedef struct {
    json_t *root; /* owner of the texts */
    const char *text[RULER_FAMILIES], *prefix[RULER_FAMILIES];
    int n_new[RULER_FAMILIES]; /* maximum number of new tokens */
    const char *needle, *noise, *document;
    const char *wrapper; /* text around a prompt, with {task_template} */
} ruler_templates;

/* Reads ruler/templates.json of the data folder. old: texts of 2024. wrapper: a name of RULER's list ("base": no
 * wrapper); ST_USAGE, naming --template, if it is unknown. Call ruler_templates_close also after an error. */
status ruler_templates_open(ruler_templates *t, const char *data_dir, bool old, const char *wrapper, err *e);
void ruler_templates_close(ruler_templates *t);
/* Writes the task's template, in its wrapper if `wrapped`, and its answer prefix. If one value is asked for, the
 * wording is singular. The caller frees *out, also after an error. */
status ruler_template(prompt_text *out, const ruler_templates *t, const ruler_task *task, bool wrapped, err *e);
/* Returns the noun for the needles' values: "numbers" or "uuids". */
const char *ruler_value_name(const ruler_task *task);

/* Appends the text with each run of white space (as in Python) replaced by one space. strip: drops leading and trailing
 * white space. ST_FORMAT: not UTF-8. */
status ruler_squeeze(prompt_text *t, const char *s, size_t n, bool strip, err *e);
/* Replaces the text by its squeezed and stripped form. */
status ruler_one_line(prompt_text *t, err *e);

/* Token counter. */
typedef struct {
    const tokenizer *tok; /* NULL: counts words separated by white space */
    token_list ids;       /* buffer */
} ruler_counter;
/* Counts the tokens of a text, without BOS; spellings of special tokens become special tokens. ST_INTERRUPTED after
 * Ctrl-C: making prompts mostly counts tokens. */
status ruler_count(ruler_counter *c, const char *s, size_t n, int64_t *out, err *e);

/* A long English text as a haystack. */
typedef struct {
    char sum[SHA256_HEX]; /* SHA-256 of the file */
    punkt *punkt;
    prompt_text text; /* with single spaces */
    size_t words;     /* words separated by single spaces; the first or last may be empty */
    /* The first n words, stripped, and their sentences: */
    size_t n;
    prompt_text part;
    sentence_list sentences;
} ruler_essay;

/* Reads {"text": ...} from a file NAME.json, or another file as plain text. Call ruler_essay_close also after an
 * error. */
status ruler_essay_open(ruler_essay *t, const char *path, const char *data_dir, err *e);
void ruler_essay_close(ruler_essay *t);
/* Sets part and sentences to the first n words. The text repeats if it has fewer. */
status ruler_essay_cut(ruler_essay *t, size_t n, err *e);

/* ---- inputs ---- */

/* Options with two values; the first is the default. */
typedef enum { RULER_VARIANT, RULER_WORDS, RULER_TOKENS, RULER_PREFIX, RULER_CHOICES } ruler_choice;

typedef struct {
    evaluation_options common;
    const char *task, *length, *choice[RULER_CHOICES], *template, *file[RULER_FILES], *write;
    int samples, pre_samples;
    bool one_line;
} ruler_options;

/* Options and files from which prompts are made. */
typedef struct {
    const ruler_options *o;
    const char *data_dir;
    uint64_t seed;
    int choice[RULER_CHOICES]; /* 1: the second value of the option */
    bool old;                  /* --variant 2024: prompts of RULER in 2024 */
    bool runs[RULER_TASKS];
    bool named;                  /* set by --task; otherwise a task that cannot run is left out */
    bool lacks[RULER_TASKS];     /* the task needs a file that the user did not provide */
    err why[RULER_TASKS];        /* other reason why it cannot run; code ST_OK: none */
    size_t samples[RULER_TASKS]; /* samples per length */
    sample_list data;            /* samples of --data; empty: prompts are made */
    int64_t *length;             /* [n_length]; with --data one entry, 0 */
    size_t n_length;
    ruler_templates templates;
    ruler_words *words;
    ruler_essay essay;
    ruler_qa qa[RULER_FILES]; /* for RULER_SQUAD and RULER_HOTPOTQA */
    ruler_counter counter;
} ruler_inputs;

/* Returns the value of an option. */
const char *ruler_word(const ruler_inputs *in, ruler_choice k);
/* Reads options and files. Call ruler_inputs_close also after an error. */
status ruler_inputs_open(ruler_inputs *in, const ruler_options *o, err *e);
/* Sets up the token counter; tok is borrowed and, with --tokens ws, unused. Makes one sample of each task at the
 * shortest length, so that a length that is too short fails before anything runs. */
status ruler_inputs_check(ruler_inputs *in, const tokenizer *tok, err *e);
void ruler_inputs_close(ruler_inputs *in);

/* Record of --data. It has RULER's members input, outputs and, if the prefix is not in the input, answer_prefix, or
 * kvpress's columns context, question, answer_prefix, answer, max_new_tokens. Texts are borrowed. */
typedef struct {
    sample_head at;
    utf8_text context, question, prefix; /* question: kvpress only; n 0: part of the context */
    json_t *answers;                     /* a list of strings */
    int n_new;                           /* maximum number of new tokens; 0: RULER's number for the task */
} ruler_record;

extern const sample_reader ruler_reader;
void ruler_drop(void *record);
/* Returns record i of a task. */
const ruler_record *ruler_data_at(const sample_list *l, size_t task, size_t i);

/* Writes the prompts to files without running a model: --write DIR. */
status ruler_write(const ruler_options *o, err *e);

/* ---- samples ---- */

/* Sample being built. */
typedef struct {
    prompt_text text;   /* prompt with its answer prefix */
    json_t *answers;    /* a list of strings */
    const char *failed; /* why the official code fails at this size; NULL: it succeeds */
} ruler_builder;

typedef struct {
    const ruler_task *task;
    ruler_inputs *in;
    uint64_t seed;
    int64_t length;         /* maximum number of prompt and new tokens */
    mersenne python, numpy; /* random streams of the run */
    prompt_text template;
    int64_t step, size; /* step of the size search; haystack items found */
    int64_t number;     /* number of the next sample, from 0 */
    int64_t least;      /* prompt and new tokens of the shortest sample that did not fit */
    ruler_builder builder;
    prompt_text context, other; /* scratch texts; a new sample empties the context */
    bool searching;             /* the size search is running */
    bool example;               /* vt: the example is being built */
    prompt_text shown;          /* vt: the finished example */
    int64_t shown_tokens;
    uint32_t *order;    /* cwe: shuffled indices of words */
    bool too_few_words; /* cwe: a tried size exceeds the word list; RULER then uses another list */
} ruler_maker;

/* Finished sample. */
typedef struct {
    prompt_text text;
    size_t cut;                /* byte offset of its answer prefix */
    json_t *answers;           /* a list of strings */
    int64_t number;            /* from 0 */
    int64_t length;            /* prompt and new tokens */
    int64_t at_char, at_token; /* niah: position of the first answer */
} ruler_sample;

/* Finds the number of haystack items for samples of the length. The inputs are borrowed. ST_USAGE: no sample is short
 * enough; the message has --length and the tokens of the shortest. Call ruler_maker_close also after an error. */
status ruler_maker_open(ruler_maker *m, ruler_inputs *in, const ruler_task *task, int64_t length, err *e);
void ruler_maker_close(ruler_maker *m);
/* Makes the next sample. ST_USAGE: no questions left. Call ruler_sample_free also after an error. */
status ruler_make(ruler_maker *m, ruler_sample *out, err *e);
void ruler_sample_free(ruler_sample *s);
/* Returns the sample as a record of an official file, or NULL if out of memory. old: the format of 2024. */
json_t *ruler_sample_json(const ruler_sample *s, const ruler_task *task, bool old);

/* ---- the families ---- */

/* Builds a sample with n haystack items. All random numbers come from the streams of m. */
typedef status ruler_generate(ruler_maker *m, int64_t n, err *e);
ruler_generate ruler_niah, ruler_vt, ruler_vt_sample, ruler_cwe, ruler_qa_ask;
/* Builds vt's example, before the size search. */
status ruler_vt_start(ruler_maker *m, err *e);
/* Inserts vt's example before the task's text. */
status ruler_vt_example(ruler_maker *m, const prompt_text *example, err *e);
/* Shuffles the words of cwe, before the size search. */
status ruler_cwe_start(ruler_maker *m, err *e);
/* Finds the number of haystack items for fwe. */
status ruler_fwe_start(ruler_maker *m, err *e);
/* Builds a sample of fwe that fits; *tokens includes the new ones. */
status ruler_fwe(ruler_maker *m, int64_t *tokens, err *e);

/* Sets m->size to the largest number of items whose sample fits in `length` with `reserve` more tokens. The search of
 * 2024 proceeds step by step and also counts the answers. */
status ruler_find_size(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e);
/* Builds a sample that fits in `length` with `reserve` more tokens, trying m->size items first, then fewer. *tokens
 * includes the reserve. */
status ruler_fit(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, int64_t *tokens, err *e);
/* Returns ST_USAGE: even the shortest prompt, of m->least tokens, does not fit. */
status ruler_too_short(const ruler_maker *m, err *e);

/* Starts a sample without text and answers. */
status ruler_builder_start(ruler_maker *m, err *e);
/* Appends the filled template to the text. */
status ruler_builder_fill(ruler_maker *m, const prompt_field *f, size_t n, err *e);
/* Adds an answer. */
status ruler_builder_answer(ruler_maker *m, utf8_text s, err *e);

#endif
