/* SPDX-License-Identifier: MIT */
/* LongBench's data files: JSON lines with input, context, answers, length, all_classes, dataset, _id. They come from
 * anywhere: every line is judged before anything runs. Source: evals.md 1.1. */
#ifndef EVAL_LONGBENCH_DATA_H
#define EVAL_LONGBENCH_DATA_H

#include "eval/longbench/longbench.h"
#include "eval/samples.h"

typedef struct {
    const longbench_dataset *d;
    int64_t index; /* number within its dataset, from 0, in the order of the data */
    prediction p;  /* its text is the context, until longbench_sample_forget */
    utf8_text input;
    const char *id; /* "" where there is none */
} longbench_sample;

typedef struct {
    longbench_sample *s; /* by dataset, in the table's order, then by index */
    size_t n, cap;
    json_t *files; /* [{"name", "sha256"}] */
} longbench_data;

/* What is read. */
typedef struct {
    sample_source from;
    const char *datasets; /* names separated by commas; NULL: all that are there */
    bool longbench_e;     /* LongBench-E: its datasets alone, NAME_e.jsonl in a folder; lengths are needed */
} longbench_source;

/* In a folder the datasets' files are NAME.jsonl; another file tells the dataset by its name or, line by line, by
 * the field dataset. Errors: ST_USAGE for names, ST_FORMAT naming file, line and field, ST_IO. longbench_data_free
 * also after an error. */
status longbench_data_read(longbench_data *out, const longbench_table *t, const longbench_source *s, err *e);
void longbench_data_free(longbench_data *d);

/* Frees the context, which is large; it is empty then. */
void longbench_sample_forget(longbench_sample *s);

#endif
