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

enum { MADE_DATASETS = 16 }; /* most datasets of a benchmark */

/* Where the samples of an evaluation with ev->names come from. */
typedef struct {
    bool wanted[MADE_DATASETS], made[MADE_DATASETS]; /* datasets that run; those of them that are made */
    const char *named; /* --dataset, names that must have files in a folder of --data; NULL: any that are found */
    int64_t *length;   /* [n_length] of samples that are made, in tokens; made_close frees them */
    size_t n_length;
    bool exact; /* made samples have as many units as fit; else up to a fiftieth less */
    const void *own;
    /* sample_reader.read */
    status (*read)(const void *own, void *s, const char *path, const char *where, err *e);
    /* Makes the record of a zeroed sample with so many units (sentences, pairs), at least 1 or, if not exact, 8. */
    status (*make)(void *s, const made_place *at, size_t units, err *e);
    /* Counts the tokens of a sample's prompt and answer. */
    status (*count)(const void *own, const void *s, int64_t *tokens, err *e);
} made_source;

/* Takes the lengths of --length, at most `most` of them; NULL: a default. ST_USAGE if no dataset is made. */
status made_lengths(made_source *s, const char *lengths, size_t most, err *e);
/* Reads the samples of datasets that are not made. */
status made_read(evaluation *ev, const made_source *s, err *e);
/* Makes the samples of each length once the window is known: --limit of a dataset, by default five. The default length
 * is the window of --ctx, else at most 4096 tokens of the model's. ST_USAGE for one beyond the window. */
status made_add(evaluation *ev, made_source *s, err *e);
/* Fills the sample of a place with the units that fit into its length. ST_USAGE if none do. */
status made_fit(void *sample, const made_source *s, const sample_list *l, const dataset_names *names,
                const made_place *at, err *e);
void made_close(made_source *s);

#endif
