/* SPDX-License-Identifier: MIT */
/* Generated samples, for benchmarks whose samples are otherwise read from data: datasets, lengths, seeding, and noise
 * text. */
#ifndef EVAL_MADE_H
#define EVAL_MADE_H

#include "eval/evaluation.h"
#include "kernels/base/rng.h"

/* Identifies a generated sample. */
typedef struct {
    size_t dataset; /* a dataset that can be generated */
    uint64_t seed;
    int64_t length;        /* maximum number of tokens of prompt and answer */
    int64_t number, count; /* number of the sample, 0..count-1, and number of samples */
} made_place;

/* One unit of noise, with a newline. */
extern const char MADE_NOISE[];

/* Returns the random stream of a sample. It does not depend on the number of units. */
rng made_rng(const made_place *at);

enum { UUID_CHARS = 36 };

/* Draws a random UUID (version 4, RFC 4122) in hexadecimal digits. */
void uuid_draw(char out[UUID_CHARS + 1], rng *r);

enum { MADE_DATASETS = 16 }; /* maximum number of datasets of a benchmark */

/* Source of the samples of an evaluation with ev->names. */
typedef struct {
    bool wanted[MADE_DATASETS], made[MADE_DATASETS]; /* datasets to run; those of them that are generated */
    const char *named; /* --dataset: names that must have files in a folder of --data; NULL: all that are found */
    int64_t *length;   /* [n_length] lengths of generated samples in tokens; freed by made_close */
    size_t n_length;
    bool exact; /* generated samples have as many units as fit; else up to 2 % fewer */
    const void *own;
    /* See sample_reader.read. */
    status (*read)(const void *own, void *s, const char *path, const char *where, err *e);
    /* Generates the record of a zeroed sample with a number of units (sentences, pairs): at least 1 if exact, else at
     * least 8. */
    status (*make)(void *s, const made_place *at, size_t units, err *e);
    /* Counts the tokens of a sample's prompt and answer. */
    status (*count)(const void *own, const void *s, int64_t *tokens, err *e);
} made_source;

/* Reads --length, at most `most` lengths. NULL: keep the default. ST_USAGE if no dataset is generated. */
status made_lengths(made_source *s, const char *lengths, size_t most, err *e);
/* Reads the samples of datasets that are not generated. */
status made_read(evaluation *ev, const made_source *s, err *e);
/* Generates the samples of each length, once the window is known: --limit samples of each dataset, by default five. The
 * default length is the window of --ctx, else the model's window up to 4096 tokens. ST_USAGE: a length exceeds the
 * window. */
status made_add(evaluation *ev, made_source *s, err *e);
/* Fills a sample with the units that fit its length. ST_USAGE: the smallest number of units does not fit. */
status made_fit(void *sample, const made_source *s, const sample_list *l, const dataset_names *names,
                const made_place *at, err *e);
void made_close(made_source *s);

#endif
