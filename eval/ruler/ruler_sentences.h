/* SPDX-License-Identifier: MIT */
/* The sentences of an English text as NLTK's sent_tokenize (Punkt; Kiss and Strunk 2006) finds them, up to NLTK 3.9.
 * Source: nltk/tokenize/punkt.py, with the parameters of its data package. */
#ifndef EVAL_RULER_RULER_SENTENCES_H
#define EVAL_RULER_RULER_SENTENCES_H

#include <stddef.h>

#include "kernels/base/err.h"

typedef struct punkt punkt;

/* Reads ruler/punkt/ of the folder of evaluation data. */
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

/* Replaces the list by the sentences of the text, which is UTF-8, has no white space but spaces, none at its ends, and
 * no U+0000. */
status punkt_split(punkt *p, sentence_list *out, const char *text, size_t n, err *e);
void sentence_list_free(sentence_list *l);

#endif
