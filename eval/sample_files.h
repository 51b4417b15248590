/* SPDX-License-Identifier: MIT */
/* Samples of a benchmark with several datasets: folders with a file for each, files that tell their dataset by their
 * name, and files that tell it line by line. */
#ifndef EVAL_SAMPLE_FILES_H
#define EVAL_SAMPLE_FILES_H

#include "eval/samples.h"

/* The datasets of a benchmark. */
typedef struct {
    const char *bench;  /* for messages: "LongBench" */
    const char *ending; /* a suffix that does not change a dataset's name ("_e"); NULL: none */
    size_t n;
    const char *(*name)(const void *own, size_t i); /* of at most NEAREST_MAX bytes */
    const void *own;
} dataset_names;

#define DATASET_UNKNOWN SIZE_MAX

/* ST_USAGE with the nearest name where there is none of this one; the n bytes need no end. */
status dataset_find(size_t *out, const dataset_names *names, const char *name, size_t n, err *e);

typedef struct {
    const dataset_names *names;
    const char *datasets; /* --dataset: names separated by commas; NULL: all that are there */
    const bool *wanted;   /* [names->n] whose files are looked for in folders: those of `datasets`, if any */
    const char *suffix;   /* of their files: "_e", or "" */
    json_t *files;        /* takes names and sums: samples_file */
    /* Takes a line; of_file: the dataset of its file, or DATASET_UNKNOWN. */
    status (*line)(void *own, const line_reader *lines, const char *line, size_t n, size_t of_file, err *e);
    void *own;
} sample_files;

/* Marks the datasets of --dataset; of another option. */
status datasets_mark(bool *wanted, const dataset_names *names, const char *datasets, err *e);
status datasets_mark_of(bool *wanted, const dataset_names *names, const char *option, const char *datasets, err *e);

/* Reads all of `data`, files and folders separated by commas. Errors: ST_IO for a folder without files, or without that
 * of a dataset that was named; ST_FORMAT for a file without samples; those of `line`. */
status sample_files_read(const sample_files *s, const char *data, err *e);

/* The dataset of a line: that of its member "dataset", which must not be another one than the file's. */
status sample_dataset(size_t *out, const dataset_names *names, const json_t *sample, size_t of_file, const char *where,
                      err *e);

#endif
