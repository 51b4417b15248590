/* SPDX-License-Identifier: MIT */
/* Chinese word segmentation of jieba 0.42.1 (precise mode, with its hidden Markov model): the most likely path through
 * the graph of dictionary words, and Viterbi over begin/middle/end/single for runs that the dictionary splits into
 * single characters. Source: evals.md 2.9; jieba/__init__.py, jieba/finalseg. */
#ifndef EVAL_METRICS_SEGMENT_H
#define EVAL_METRICS_SEGMENT_H

#include "eval/metrics/text.h"

typedef struct segmenter segmenter;

/* Reads dict.txt ("word frequency tag" lines) and hmm.tsv (log probabilities) from folder dir. Takes about 20 MB of
 * memory. Errors: ST_IO, ST_FORMAT with file and line. */
status segmenter_create(segmenter **out, const char *dir, err *e);
void segmenter_destroy(segmenter *s);

/* Appends the words of s in order. Every character belongs to exactly one word. */
status segmenter_cut(const segmenter *g, utf8_text s, text_list *words, err *e);

#endif
