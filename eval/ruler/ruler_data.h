/* SPDX-License-Identifier: MIT */
/* Prompts that are there already: JSON lines as RULER writes them, or with the columns of NVIDIA/kvpress's data set of
 * the same name. Files are not trusted. */
#ifndef EVAL_RULER_RULER_DATA_H
#define EVAL_RULER_RULER_DATA_H

#include "eval/ruler/ruler.h"
#include "eval/samples.h"

typedef struct {
    json_t *root, *answers; /* root holds the texts; answers: a list of texts */
    size_t task;
    utf8_text context, question, prefix; /* of RULER's lines the question is in the context, and empty here */
    int n_new;                           /* 0: the task's own */
} ruler_record;

/* A line: {"input", "outputs", "answer_prefix"} or {"context", "question", "answer_prefix", "answer",
 * "max_new_tokens"}. Its task is its member "task", else `of_file`, else the name of the file's folder. ST_FORMAT names
 * line and field. ruler_record_free also after an error. */
status ruler_record_read(ruler_record *out, const line_reader *r, const char *line, size_t n, size_t of_file, err *e);
void ruler_record_free(ruler_record *x);

typedef struct {
    ruler_record *x; /* by task, in the order of the files */
    size_t n, cap;
    size_t count[RULER_TASKS], first[RULER_TASKS];
    json_t *files; /* [{"name", "sha256"}] */
    const bool *wanted;
    size_t most; /* of a task; 0: all */
} ruler_data;

/* Files and folders with TASK.jsonl, of the tasks [RULER_TASKS] that are wanted; named: they were asked for by name.
 * ruler_data_close also after an error. */
status ruler_data_open(ruler_data *d, const char *paths, const bool *wanted, bool named, size_t most, err *e);
void ruler_data_close(ruler_data *d);

#endif
