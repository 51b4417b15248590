/* SPDX-License-Identifier: MIT */
/* A needle in a haystack: prompts and scores of `eval niah`. Source: doc/evals.md 19. */
#ifndef EVAL_NIAH_H
#define EVAL_NIAH_H

#include "eval/prompt.h"

/* Texts; the haystack goes on from its start where it ends. */
typedef struct {
    utf8_text haystack, needle, question, key;
} niah_texts;

/* n bytes (or a little less, up to the end of a word) of the haystack from the sentence at or behind byte `from`, the
 * needle behind the sentence that ends at or before `depth` percent of them, and the question behind an empty line.
 * *question: where that begins. *out is freed also after an error. */
status niah_text(prompt_text *out, size_t *question, const niah_texts *t, size_t from, size_t n, double depth, err *e);

/* *share: of the key's distinct words, those that the answer has too (lower-cased, without punctuation, split at white
 * space); *found: the answer holds the whole key, both lower-cased. ST_FORMAT for text that is not UTF-8. */
status niah_score(double *share, bool *found, utf8_text answer, utf8_text key, err *e);

#endif
