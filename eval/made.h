/* SPDX-License-Identifier: MIT */
/* Benchmarks whose samples are read from data or made where there are none: which datasets are made, at which lengths,
 * what their random numbers follow from, and noise. */
#ifndef EVAL_MADE_H
#define EVAL_MADE_H

#include "eval/evaluation.h"
#include "kernels/base/rng.h"

/* Identifies a made sample. */
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

enum { UUID_CHARS = 36 };

/* Draws a random UUID (version 4, RFC 4122) in hexadecimal digits. */
void uuid_draw(char out[UUID_CHARS + 1], rng *r);

/* Where the samples of an evaluation with ev->names come from. */
typedef struct {
    const bool *wanted, *made; /* [ev->names.n] datasets that run; those of them that are made */
    const char *named; /* --dataset, names that must have files in a folder of --data; NULL: any that are found */
    /* sample_reader.read */
    status (*read)(const void *own, void *s, const char *path, const char *where, err *e);
    /* Fills the sample of a place, whatever was in it. */
    status (*make)(const void *own, void *s, const made_place *at, err *e);
    const void *own;
} made_source;

/* Reads the samples of datasets that are not made. */
status made_read(evaluation *ev, const made_source *s, err *e);
/* A length that is 0 becomes the window of --ctx, else at most 4096 tokens of the model's. ST_USAGE for one beyond the
 * window. */
status made_length(int64_t *length, const evaluation *ev, err *e);
/* Makes the samples of each length: --limit of a dataset, by default five. */
status made_add(evaluation *ev, const made_source *s, const int64_t *length, size_t n, err *e);

#endif
