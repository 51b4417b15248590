/* SPDX-License-Identifier: MIT */
/* Chinese word segmentation as jieba 0.42.1 does it (precise mode, with its hidden Markov model): the most
 * likely path through the graph of dictionary words, and Viterbi over begin/middle/end/single for stretches that the
 * dictionary leaves in single characters. Source: evals.md 2.9; jieba/__init__.py, jieba/finalseg. */
#ifndef EVAL_METRICS_SEGMENT_H
#define EVAL_METRICS_SEGMENT_H

#include "eval/metrics/text.h"

typedef struct segmenter segmenter;

/* Reads dict.txt ("word frequency tag" lines) and hmm.tsv (log probabilities) of folder dir: about 20 MB
 * of memory. Errors: ST_IO, ST_FORMAT with file and line. */
status segmenter_create(segmenter **out, const char *dir, err *e);
void segmenter_destroy(segmenter *s);

/* Appends the words of s: every character is in one of them, in order. */
status segmenter_cut(const segmenter *g, utf8_text s, text_list *words, err *e);

#endif
