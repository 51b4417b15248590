/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_data.h"

#include <string.h>

enum { MOST_NEW = 1 << 20 };

/* ---- a line ---- */

/* The folder of a path "DIR/TASK/validation.jsonl" as a task. */
static size_t task_of_folder(const char *path)
{
    const char *end = strrchr(path, '/'), *begin = end;
    size_t task;
    if (!end) return DATASET_UNKNOWN;
    while (begin > path && begin[-1] != '/') begin--;
    dataset_find(&task, &ruler_names, begin, (size_t)(end - begin), NULL);
    return task;
}

static status find_task(size_t *task, const json_t *root, const char *path, const char *where, err *e)
{
    const json_t *member = json_object_get(root, "task");
    utf8_text name;
    err inner = {0};
    if (*task == DATASET_UNKNOWN) *task = task_of_folder(path);
    if (!member && *task != DATASET_UNKNOWN) return ST_OK;
    if (!member)
        return err_set(e, ST_FORMAT, "%s: 'task' is missing, and neither file nor folder has a task's name", where);
    TRY(sample_text(&name, root, "task", where, e));
    if (dataset_find(task, &ruler_names, name.s, name.n, &inner) == ST_OK) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'task': %.120s", where, inner.msg);
}

/* A text or a list of texts. */
static status read_answers(ruler_record *x, const char *field, const char *where, err *e)
{
    json_t *answers = json_object_get(x->at.root, field);
    x->answers = json_is_string(answers) ? json_pack("[O]", answers) : json_incref(answers);
    bool good = json_array_size(x->answers) > 0;
    size_t i;
    const json_t *one;
    json_array_foreach(x->answers, i, one) good &= json_is_string(one);
    return good ? ST_OK : err_set(e, ST_FORMAT, "%s: '%s': expected a text or a list of texts", where, field);
}

/* kvpress's columns. */
static status read_columns(ruler_record *x, const char *where, err *e)
{
    const json_t *n = json_object_get(x->at.root, "max_new_tokens");
    TRY(sample_text(&x->context, x->at.root, "context", where, e));
    TRY(sample_text(&x->question, x->at.root, "question", where, e));
    TRY(sample_text(&x->prefix, x->at.root, "answer_prefix", where, e));
    if (n && (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > MOST_NEW))
        return err_set(e, ST_FORMAT, "%s: 'max_new_tokens': expected a number of tokens", where);
    x->n_new = (int)json_integer_value(n);
    return read_answers(x, "answer", where, e);
}

static status read_record(const void *own, void *record, const char *path, const char *where, err *e)
{
    ruler_record *x = record;
    const json_t *root = x->at.root;
    (void)own;
    (void)path;
    if (json_object_get(root, "context")) return read_columns(x, where, e);
    TRY(sample_text(&x->context, root, "input", where, e));
    if (json_object_get(root, "answer_prefix")) TRY(sample_text(&x->prefix, root, "answer_prefix", where, e));
    return read_answers(x, "outputs", where, e);
}

const sample_reader ruler_reader = {.names = &ruler_names, .dataset = find_task, .read = read_record};

void ruler_drop(void *record)
{
    json_decref(((ruler_record *)record)->answers);
}

/* ---- files ---- */

status ruler_data_open(sample_list *l, const char *paths, const bool *wanted, bool named, int64_t most, err *e)
{
    const sample_source from = {.data = paths, .limit = most};
    sample_reader r = ruler_reader;
    r.wanted = wanted;
    r.datasets = named ? "" : NULL;
    *l = (sample_list){.size = sizeof(ruler_record), .drop = ruler_drop};
    TRY(samples_read(l, &r, &from, e));
    return l->n > 0 ? ST_OK : err_set(e, ST_USAGE, "--data: no samples of the tasks of --task");
}

const ruler_record *ruler_data_at(const sample_list *l, size_t task, size_t i)
{
    size_t first = 0;
    while (((const sample_head *)samples_at(l, first))->dataset != task) first++;
    return samples_at(l, first + i);
}
