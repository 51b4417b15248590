/* SPDX-License-Identifier: MIT */
/* RULER's words: those of the Python package wonderwords (lists of nouns, adjectives, verbs). Source: NVIDIA/RULER
 * scripts/data/synthetic/niah.py and common_words_extraction.py. */
#ifndef EVAL_RULER_RULER_WORDS_H
#define EVAL_RULER_RULER_WORDS_H

#include <stdbool.h>

#include "kernels/base/err.h"

#include <stddef.h>

typedef struct ruler_words ruler_words;

/* Reads ruler/ of the folder of evaluation data; old: as in wonderwords 2.2.0, whose four more nouns change every draw;
 * else as in 3.0.1. */
status ruler_words_read(ruler_words **out, const char *data_dir, bool old, err *e);
void ruler_words_free(ruler_words *w);

/* Keys of needles: every "adjective-noun" in the order of code points; they are not stored. */
size_t ruler_keys(const ruler_words *w);
enum { RULER_KEY_MAX = 160 };
/* Number i < ruler_keys. */
void ruler_key(const ruler_words *w, size_t i, char out[RULER_KEY_MAX]);

/* The words of all lists, once each, in the order of code points. */
size_t ruler_common_words(const ruler_words *w);
const char *ruler_common_word(const ruler_words *w, size_t i);

#endif
