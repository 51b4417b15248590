/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/made.h"

#include <stdlib.h>

#include "eval/samples.h"

const char MADE_NOISE[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

rng made_rng(const made_place *at)
{
    rng r = {at->seed};
    r.state = rng_next(&r) ^ (uint64_t)at->dataset;
    r.state = rng_next(&r) ^ (uint64_t)at->length;
    r.state = rng_next(&r) ^ (uint64_t)at->number;
    return r;
}

static int by_index(const void *a, const void *b)
{
    const sample_head *x = a, *y = b;
    if (x->dataset != y->dataset) return x->dataset < y->dataset ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

void made_sort(void *s, size_t n, size_t size)
{
    qsort(s, n, size, by_index);
}
