/* SPDX-License-Identifier: MIT */
/* Prompts that are there already: JSON lines as RULER writes them, or with the columns of NVIDIA/kvpress's data set of
 * the same name. Files are not trusted. */
#ifndef EVAL_RULER_RULER_DATA_H
#define EVAL_RULER_RULER_DATA_H

#include "eval/ruler/ruler.h"
#include "eval/samples.h"

typedef struct {
    sample_head at;                      /* its dataset is a task */
    json_t *answers;                     /* a list of texts */
    utf8_text context, question, prefix; /* of RULER's lines the question is in the context, and empty here */
    int n_new;                           /* 0: the task's own */
} ruler_record;

/* Records {"input", "outputs", "answer_prefix"} or {"context", "question", "answer_prefix", "answer",
 * "max_new_tokens"}. The task is the member "task", else that of the file's name, else of its folder's. */
extern const sample_reader ruler_reader;
void ruler_drop(void *record);

/* Reads files and folders with TASK.jsonl, of the tasks [RULER_TASKS] that are wanted, at most `most` of each (0: all);
 * named: they were asked for by name. samples_free also after an error. */
status ruler_data_open(sample_list *l, const char *paths, const bool *wanted, bool named, int64_t most, err *e);
/* Record i of a task. */
const ruler_record *ruler_data_at(const sample_list *l, size_t task, size_t i);

#endif
