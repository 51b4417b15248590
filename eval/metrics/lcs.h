/* SPDX-License-Identifier: MIT */
/* Longest common subsequences of numbered words, for the two kinds of ROUGE-L. */
#ifndef EVAL_METRICS_LCS_H
#define EVAL_METRICS_LCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct {
    uint32_t *row[2]; /* lengths for the words of x up to i - 1 and i */
    uint64_t *above;  /* a bit for each (i, j): the way back goes to i - 1 */
} lcs;

/* Room for x of at most longest_x and y of at most longest_y words; lcs_free also after an error. words_x and words_y
 * are those of both whole texts, whose product is what all their sentences take: ST_UNSUPPORTED above 2^32, some
 * seconds and at most 512 MiB. A zeroed one is empty. */
status lcs_create(lcs *l, size_t longest_x, size_t longest_y, size_t words_x, size_t words_y, err *e);
void lcs_free(lcs *l);

/* Sets in[i] for the words i of x that are in one longest common subsequence of x and y: the one of the way back that
 * takes equal words, and else goes where the rest is longer; ties_up: to i - 1 where both are as long. */
void lcs_mark(lcs *l, const uint32_t *x, size_t n_x, const uint32_t *y, size_t n_y, bool ties_up, bool *in);

#endif
