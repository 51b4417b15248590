/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/mem.h"

status scores_add(scores *s, double score, int64_t length, err *e)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        TRY(MEM_GROW(&s->score, cap, e));
        TRY(MEM_GROW(&s->length, cap, e));
        s->cap = cap;
    }
    s->score[s->n] = score;
    s->length[s->n++] = length;
    return ST_OK;
}

void scores_free(scores *s)
{
    mem_free(s->score);
    mem_free(s->length);
    *s = (scores){0};
}

double round_decimals(double x, int decimals)
{
    char text[352]; /* the largest double has 309 digits */
    snprintf(text, sizeof text, "%.*f", decimals, x);
    return strtod(text, NULL);
}

double scores_mean(const scores *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->score[i];
    return s->n ? round_decimals(100 * sum / (double)s->n, 2) : (double)NAN;
}
