/* SPDX-License-Identifier: MIT */
/* Samples that the program makes where there are no data: what their random numbers follow from, and noise. */
#ifndef EVAL_MADE_H
#define EVAL_MADE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/rng.h"

/* Identifies a sample. */
typedef struct {
    size_t dataset; /* one that can be made */
    uint64_t seed;
    int64_t length;        /* most tokens of prompt and answer */
    int64_t number, count; /* it is number 0..count-1 of so many */
} made_place;

/* A sentence of noise, with a newline. */
extern const char MADE_NOISE[];

/* The random numbers of a place, which do not depend on the number of units. */
rng made_rng(const made_place *at);

/* Sorts samples of `size` bytes by dataset, then by index. */
void made_sort(void *s, size_t n, size_t size);

#endif
