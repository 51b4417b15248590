/* SPDX-License-Identifier: MIT */
/* A needle in a haystack: prompts and scores of `eval niah`. Source: doc/evals.md 19. */
#ifndef EVAL_NIAH_H
#define EVAL_NIAH_H

#include "eval/prompt.h"

/* Texts of a run. The haystack repeats when its end is reached. */
typedef struct {
    utf8_text haystack, needle, question, key;
} niah_texts;

/* Writes at most n bytes of the haystack, up to the end of a word, from the first sentence that begins after byte
 * `from`. The needle follows the last sentence that ends at or before `depth` percent of them. The question follows an
 * empty line; *question is its offset. The caller frees *out, also after an error. */
status niah_text(prompt_text *out, size_t *question, const niah_texts *t, size_t from, size_t n, double depth, err *e);

/* Scores an answer. *fraction: fraction of the key's distinct words (lower-cased, without punctuation, split at white
 * space) that the answer contains. *found: the answer contains the whole key, both lower-cased. ST_FORMAT: a text is
 * not UTF-8. */
status niah_score(double *fraction, bool *found, utf8_text answer, utf8_text key, err *e);

#endif
