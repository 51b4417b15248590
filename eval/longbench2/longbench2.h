/* SPDX-License-Identifier: MIT */
/* LongBench v2: questions with four choices about long documents. Source: evals.md 7; THUDM/LongBench (v2) pred.py and
 * result.py. */
#ifndef EVAL_LONGBENCH2_H
#define EVAL_LONGBENCH2_H

#include "eval/prompt.h"
#include "eval/samples.h"

enum { LONGBENCH2_CHOICES = 4 };

/* ---- samples ---- */

typedef struct {
    sample_head at;
    utf8_text context, question, choice[LONGBENCH2_CHOICES];
    utf8_text id, difficulty, length; /* easy or hard; short, medium or long */
    char answer;                      /* A to D */
} longbench2_sample;

/* Reads data.json or data.jsonl in a folder; the benchmark is published as data.json. */
extern const sample_reader longbench2_reader;

/* ---- prompts ---- */

typedef enum {
    LONGBENCH2_0SHOT,
    LONGBENCH2_NO_CONTEXT,
    LONGBENCH2_COT,        /* first pass: reasoning */
    LONGBENCH2_COT_ANSWER, /* second pass: the answer that follows from the reasoning */
    LONGBENCH2_PARISKV,    /* both passes of ParisKV's protocol */
    LONGBENCH2_PROMPTS
} longbench2_prompt;

typedef struct {
    prompt_text text[LONGBENCH2_PROMPTS];
} longbench2_templates;

const char *longbench2_prompt_name(longbench2_prompt p); /* "0shot" */
/* Reads longbench2/NAME.txt in the folder of evaluation data. Requires longbench2_templates_free, also after an
 * error. */
status longbench2_templates_read(longbench2_templates *t, const char *data_dir, err *e);
void longbench2_templates_free(longbench2_templates *t);

/* Fills a template. Texts are stripped (str.strip), and markers are replaced one after the other, so a later marker
 * inside an earlier value is also replaced. For ParisKV, texts are not stripped and the fields {context} ... are filled
 * in one pass. reasoning: output of the first pass, for the second. */
status longbench2_fill(prompt_text *out, const longbench2_templates *t, longbench2_prompt p, const longbench2_sample *s,
                       utf8_text reasoning, err *e);

/* ---- answers ---- */

/* Returns the letter that an output chooses: that of the first "The correct answer is (X)", else of the first "The
 * correct answer is X", without asterisks; 0: none. */
char longbench2_choice(utf8_text output);
/* True if an output contains "The correct answer is (X)" or "The correct answer is X" with this letter, without
 * asterisks. kvpress's rule. */
bool longbench2_says(utf8_text output, char letter);

#endif
