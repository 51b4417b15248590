/* SPDX-License-Identifier: MIT */
/* The segmenter's hidden Markov model: each Chinese character begins, continues or ends a word or is one. */
#ifndef EVAL_METRICS_HMM_H
#define EVAL_METRICS_HMM_H

#include "eval/metrics/text.h"

enum { HAN_FIRST = 0x4e00, HAN_LAST = 0x9fd5, N_HAN = HAN_LAST - HAN_FIRST + 1, HMM_STATES = 4 };

/* Natural logarithms; states in the order of their letters B E M S, which decides ties. */
typedef struct {
    double start[HMM_STATES], trans[HMM_STATES][HMM_STATES];
    double emit[HMM_STATES][N_HAN];
} hmm;

static inline bool is_han(int32_t c)
{
    return c >= HAN_FIRST && c <= HAN_LAST;
}

/* From lines "start S lp", "trans S S2 lp", "emit S U+XXXX lp" with tabs between. */
status hmm_read(hmm *h, const char *path, err *e);

/* Appends the words of s, which holds is_han characters only and at least one. */
status hmm_cut(const hmm *h, span s, span_list *words, err *e);

#endif
