/* SPDX-License-Identifier: MIT */
/* Answers in long outputs: extraction, normalization and comparison. Source: evals.md section 17. */
#ifndef EVAL_METRICS_ANSWER_H
#define EVAL_METRICS_ANSWER_H

#include "eval/metrics/impl.h"
#include "eval/metrics/regex.h"

struct answer_rule {
    /* The answer is the group of the pattern's first match, or of its last match. */
    const char *pattern;
    bool last;
    /* Without pattern and `extract`: finds the answer within the output; false: none. */
    bool (*find)(utf8_text *answer, utf8_text output);
    /* Writes the answer to *out, which is empty; *found false: the output has none. */
    status (*extract)(str *out, bool *found, utf8_text output, err *e);
    /* Extracts the answer from a label. ST_FORMAT: it has none. NULL: the label is the answer. */
    status (*label)(str *label, err *e);
    /* Removes insignificant parts of the answer or label. NULL: everything counts. */
    void (*clean)(str *t);
    /* True if both are the same answer; it may modify them. NULL: the texts are compared. */
    bool (*equal)(str *a, str *b);
};

/* ---- GSM8K: numbers in English text ---- */

extern const answer_rule answer_gsm8k, answer_gsm8k_strict, answer_gsm8k_flexible, answer_gsm8k_hash,
    answer_gsm8k_llama, answer_gsm8k_official, answer_gsm8k_logquant, answer_gsm8k_logquant_commas;

/* ---- MATH and AIME: answers in boxes ---- */

/* Rule of all math and aime metrics. */
extern const answer_rule answer_boxed;
/* Finds the contents of the last \boxed{...}, else of the last \fbox{...}; false: none, or unbalanced braces. */
bool answer_box(utf8_text *out, utf8_text output);
/* Rewrites an answer to LaTeX without units, dollars and decoration. */
void answer_clean(str *t);

/* ---- multiple choice ---- */

extern const answer_rule answer_gpqa, answer_gpqa_cot, answer_gpqa_simple_evals, answer_gpqa_lmeval;

#endif
