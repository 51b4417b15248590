/* SPDX-License-Identifier: MIT */
/* RULER's words: nouns, adjectives and verbs of the Python package wonderwords. Source: NVIDIA/RULER
 * scripts/data/synthetic/niah.py and common_words_extraction.py. */
#ifndef EVAL_RULER_RULER_WORDS_H
#define EVAL_RULER_RULER_WORDS_H

#include <stdbool.h>

#include "kernels/base/err.h"

#include <stddef.h>

typedef struct ruler_words ruler_words;

/* Reads the word lists in ruler/ of the data folder. old: those of wonderwords 2.2.0, whose four additional nouns
 * change every draw; otherwise those of 3.0.1. */
status ruler_words_read(ruler_words **out, const char *data_dir, bool old, err *e);
void ruler_words_free(ruler_words *w);

/* Returns the number of needle keys: all "adjective-noun" pairs, in code-point order. Keys are not stored. */
size_t ruler_keys(const ruler_words *w);
enum { RULER_KEY_MAX = 160 };
/* Writes key i, with i < ruler_keys. */
void ruler_key(const ruler_words *w, size_t i, char out[RULER_KEY_MAX]);

/* Returns the number of distinct words in all lists. */
size_t ruler_common_words(const ruler_words *w);
/* Returns word i, in code-point order. */
const char *ruler_common_word(const ruler_words *w, size_t i);

#endif
