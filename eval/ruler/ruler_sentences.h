/* SPDX-License-Identifier: MIT */
/* Splits English text into sentences exactly as NLTK's sent_tokenize (Punkt; Kiss and Strunk 2006) up to NLTK 3.9.
 * Source: nltk/tokenize/punkt.py, with the parameters of its data package. */
#ifndef EVAL_RULER_RULER_SENTENCES_H
#define EVAL_RULER_RULER_SENTENCES_H

#include <stddef.h>

#include "kernels/base/err.h"

typedef struct punkt punkt;

/* Reads ruler/punkt/ of the data folder. */
status punkt_read(punkt **out, const char *data_dir, err *e);
void punkt_free(punkt *p);

/* Bytes [begin, end) of a text. */
typedef struct {
    size_t begin, end;
} sentence;

typedef struct {
    sentence *s;
    size_t n, cap;
} sentence_list;

/* Replaces the list by the sentences of the text. The text must be UTF-8 without U+0000, with spaces as its only white
 * space and none at its ends. */
status punkt_split(punkt *p, sentence_list *out, const char *text, size_t n, err *e);
void sentence_list_free(sentence_list *l);

#endif
