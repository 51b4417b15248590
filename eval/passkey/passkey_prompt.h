/* SPDX-License-Identifier: MIT */
/* Passkey retrieval: the prompts and what counts as an answer. Source: evals.md section 4. */
#ifndef EVAL_PASSKEY_PROMPT_H
#define EVAL_PASSKEY_PROMPT_H

#include "eval/prompt.h"

#define PASSKEY_QUESTION "What is the pass key?"

enum {
    PASSKEY_NEW = 10,     /* tokens generated for an answer */
    PASSKEY_SPARE = 8,    /* tokens left free, because a prompt's count varies with key and depth */
    PASSKEY_TAIL = 400,   /* characters fed as decode steps (protocol decode) */
    PASSKEY_KEYS = 50000, /* keys are 1..50000 */
    PASSKEY_GRAIN = 128   /* garbage characters come in multiples of this */
};

/* The key of trial t; depends on these alone, so that every strategy sees the same prompts. */
int64_t passkey_key(uint64_t seed, int64_t ctx, int64_t t);

/* Garbage characters before the key of trial t of `trials`: depth 100 (t + 1) / trials percent. */
int64_t passkey_before(int64_t n, int64_t t, int64_t trials);

/* Writes the prompt with n characters of garbage, `before` of them in front of the key. ask_first: the question stands
 * before the garbage too. *out is freed also after an error. */
status passkey_text(prompt_text *out, int64_t n, int64_t before, int64_t key, bool ask_first, err *e);
/* Encodes a prompt: its last characters, at most tail_chars, go into the tail; BOS goes into the head, where the
 * model's tokenizer adds it. */
status passkey_encode(prompt_tokens *out, const tokenizer *tok, const prompt_text *text, size_t tail_chars, err *e);

/* The largest n, a multiple of 128, whose prompt (key 50000, depth 50 %) fits in ctx tokens with
 * the new and the spare ones. ST_USAGE when not even the prompt without garbage does. */
status passkey_fit(int64_t *n, const tokenizer *tok, int64_t ctx, bool ask_first, err *e);

/* Value of the first run of digits in the answer, -1 if there is none; INT64_MAX if too long. */
int64_t passkey_answer(const char *text, size_t len);

#endif
