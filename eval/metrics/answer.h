/* SPDX-License-Identifier: MIT */
/* Answers in long outputs: what counts as the answer of a text, and when it is the right one. Source: evals.md section
 * 17. */
#ifndef EVAL_METRICS_ANSWER_H
#define EVAL_METRICS_ANSWER_H

#include "eval/metrics/impl.h"
#include "eval/metrics/str.h"

struct answer_rule {
    /* Puts the answer into *out, which is empty; *found false: the output has none. */
    status (*extract)(str *out, bool *found, utf8_text output, err *e);
    /* Whether the answer is the label. */
    status (*same)(bool *same, const str *answer, utf8_text label, err *e);
};

/* ---- GSM8K: numbers in English text ---- */

extern const answer_rule answer_gsm8k, answer_gsm8k_strict, answer_gsm8k_flexible, answer_gsm8k_hash,
    answer_gsm8k_llama, answer_gsm8k_official, answer_gsm8k_logquant, answer_gsm8k_logquant_commas;
/* The last run of digits, `$`, `,` and `.`, as lm-eval's flexible filters find it; false: none. */
bool answer_last_number(utf8_text *out, utf8_text output);

/* ---- MATH and AIME: answers in boxes ---- */

extern const answer_rule answer_math, answer_math_hendrycks, answer_math_lmeval, answer_math_kvpress, answer_aime,
    answer_aime_tests, answer_aime_lmeval, answer_aime_kvpress;
/* What the last \boxed{...}, else the last \fbox{...}, holds; false: there is none, or its braces do not match. */
bool answer_box(utf8_text *out, utf8_text output);

/* ---- multiple choice ---- */

extern const answer_rule answer_gpqa, answer_gpqa_cot, answer_gpqa_simple_evals, answer_gpqa_lmeval;

/* ---- equality of mathematical answers ---- */

/* Whether two answers are the same after Hendrycks' normalization. like_lmeval: as lm-eval's copy has it. */
status math_same_hendrycks(bool *same, utf8_text a, utf8_text b, bool like_lmeval, err *e);
/* Whether they mean the same: the rules of evals.md 17.3. */
status math_same(bool *same, utf8_text a, utf8_text b, err *e);
/* Rewrites an answer to plain LaTeX without units, dollars and decoration. keep: "x =" in front and a text at the end
 * stay. */
void math_clean(str *t, bool keep);
/* The value of n bytes of LaTeX, with values of round `round` for its variables; false: it is no expression that can
 * be computed, or has no finite value. value: real and imaginary part. */
bool math_value(double value[2], const char *s, size_t n, int round);
enum { MATH_ROUNDS = 3 };

#endif
