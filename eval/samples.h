/* SPDX-License-Identifier: MIT */
/* Samples from files: which files are read, which samples are taken, and their texts. Files are not trusted. */
#ifndef EVAL_SAMPLES_H
#define EVAL_SAMPLES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"
#include "eval/prediction.h"

/* What is read. */
typedef struct {
    const char *data; /* files and folders, separated by commas */
    int64_t limit;    /* most samples of a dataset; 0: all */
    bool sampled;     /* `limit` samples are drawn by the seed; else the first ones are taken */
    uint64_t seed;
} sample_source;

/* A whole file in memory. Its name and sum go into `files`, a list [{"name", "sha256"}]: ST_USAGE if a file
 * with the same content was read, whose samples would count twice. *text is freed with mem_free. */
status samples_file(char **text, size_t *n, const char *path, json_t *files, err *e);

/* Identifies a sample. */
typedef struct {
    size_t dataset;
    int64_t index; /* within its dataset */
} sample_key;

/* Which of n samples are taken: their numbers into keep [n], by dataset, then by index; *kept: how many. A draw
 * depends on seed, dataset and index alone. */
status samples_choose(size_t *keep, size_t *kept, const sample_key *k, size_t n, const sample_source *s, err *e);

/* The same with an array of n elements of `size` bytes: it keeps those that are taken, in order; `drop` frees others.
 */
status samples_keep(void *s, size_t size, size_t *n, const sample_key *k, const sample_source *from,
                    void (*drop)(void *), err *e);

/* The text of a field; one that cannot be a prompt (none there, no text, U+0000 in it) is ST_FORMAT with `where`
 * ("qasper.jsonl line 3") in front. */
status sample_text(utf8_text *out, const json_t *sample, const char *field, const char *where, err *e);
bool sample_has_nul(utf8_text s);

#endif
