/* SPDX-License-Identifier: MIT */
/* Passkey retrieval: prompts, and the number in an answer. Source: evals.md section 4. */
#ifndef EVAL_PASSKEY_PROMPT_H
#define EVAL_PASSKEY_PROMPT_H

#include "eval/prompt.h"

#define PASSKEY_QUESTION "What is the pass key?"

enum {
    PASSKEY_NEW = 10,     /* tokens generated for an answer */
    PASSKEY_SPARE = 8,    /* tokens kept free, because a prompt's token count varies with key and depth */
    PASSKEY_TAIL = 400,   /* characters fed as decode steps (protocol decode) */
    PASSKEY_KEYS = 50000, /* keys are 1..50000 */
    PASSKEY_GRAIN = 128   /* the garbage has a multiple of this many characters */
};

/* Returns the key of trial t. It depends only on the arguments, so all strategies see the same prompts. */
int64_t passkey_key(uint64_t seed, int64_t ctx, int64_t t);

/* Returns the number of garbage characters before the key of trial t: 100 (t + 1) / trials percent of n. */
int64_t passkey_before(int64_t n, int64_t t, int64_t trials);

/* Writes the prompt with n characters of garbage, `before` of them before the key. ask_first: the question also
 * precedes the garbage. The caller frees *out, also after an error. */
status passkey_text(prompt_text *out, int64_t n, int64_t before, int64_t key, bool ask_first, err *e);
/* Encodes a prompt. The last tail_chars characters, or all if there are fewer, go into the tail. The head begins with
 * BOS if the model's tokenizer adds it. */
status passkey_encode(prompt_tokens *out, const tokenizer *tok, const prompt_text *text, size_t tail_chars, err *e);

/* Finds the largest n, a multiple of 128, whose prompt (key 50000, depth 50 %) fits in ctx tokens together with
 * PASSKEY_NEW and PASSKEY_SPARE. ST_USAGE: the prompt without garbage does not fit. */
status passkey_fit(int64_t *n, const tokenizer *tok, int64_t ctx, bool ask_first, err *e);

/* Returns the value of the first run of digits in the answer: -1 if there is none, INT64_MAX if it overflows. */
int64_t passkey_answer(const char *text, size_t len);

#endif
