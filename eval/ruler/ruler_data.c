/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 16, MOST_NEW = 1 << 20 };

/* ---- a line ---- */

/* The folder of a path "DIR/TASK/validation.jsonl" as a task. */
static size_t task_of_folder(const char *path)
{
    const dataset_names names = ruler_names();
    const char *end = strrchr(path, '/'), *begin = end;
    size_t task;
    if (!end) return DATASET_UNKNOWN;
    while (begin > path && begin[-1] != '/') begin--;
    dataset_find(&task, &names, begin, (size_t)(end - begin), NULL);
    return task;
}

static status find_task(ruler_record *x, const char *path, const char *where, size_t of_file, err *e)
{
    const dataset_names names = ruler_names();
    const json_t *member = json_object_get(x->root, "task");
    utf8_text name;
    err inner = {0};
    x->task = of_file != DATASET_UNKNOWN ? of_file : task_of_folder(path);
    if (!member && x->task != DATASET_UNKNOWN) return ST_OK;
    if (!member)
        return err_set(e, ST_FORMAT, "%s: 'task' is missing, and neither file nor folder has a task's name", where);
    TRY(sample_text(&name, x->root, "task", where, e));
    if (dataset_find(&x->task, &names, name.s, name.n, &inner) == ST_OK) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'task': %.120s", where, inner.msg);
}

/* A text or a list of texts. */
static status read_answers(ruler_record *x, const char *field, const char *where, err *e)
{
    json_t *answers = json_object_get(x->root, field);
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
    const json_t *n = json_object_get(x->root, "max_new_tokens");
    TRY(sample_text(&x->context, x->root, "context", where, e));
    TRY(sample_text(&x->question, x->root, "question", where, e));
    TRY(sample_text(&x->prefix, x->root, "answer_prefix", where, e));
    if (n && (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > MOST_NEW))
        return err_set(e, ST_FORMAT, "%s: 'max_new_tokens': expected a number of tokens", where);
    x->n_new = (int)json_integer_value(n);
    return read_answers(x, "answer", where, e);
}

status ruler_record_read(ruler_record *out, const line_reader *r, const char *line, size_t n, size_t of_file, err *e)
{
    char where[128];
    *out = (ruler_record){0};
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(r->name), r->number);
    TRY(json_parse_data(&out->root, line, n, where, MAX_DEPTH, e));
    TRY(find_task(out, r->name, where, of_file, e));
    if (json_object_get(out->root, "context")) return read_columns(out, where, e);
    TRY(sample_text(&out->context, out->root, "input", where, e));
    if (json_object_get(out->root, "answer_prefix"))
        TRY(sample_text(&out->prefix, out->root, "answer_prefix", where, e));
    return read_answers(out, "outputs", where, e);
}

void ruler_record_free(ruler_record *x)
{
    json_decref(x->root);
    json_decref(x->answers);
    *x = (ruler_record){0};
}

/* ---- files ---- */

static status take_line(void *own, const line_reader *r, const char *line, size_t n, size_t of_file, err *e)
{
    ruler_data *d = own;
    ruler_record x;
    status st = ruler_record_read(&x, r, line, n, of_file, e);
    bool takes = st == ST_OK && d->wanted[x.task] && (d->most == 0 || d->count[x.task] < d->most);
    if (takes && d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 64;
        st = MEM_GROW(&d->x, cap, e);
        if (st == ST_OK) d->cap = cap;
    }
    if (takes && st == ST_OK) {
        d->count[x.task]++;
        d->x[d->n++] = x;
    } else {
        ruler_record_free(&x);
    }
    return st;
}

static void sort(ruler_data *d, ruler_record *sorted)
{
    size_t n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++) {
        d->first[t] = n;
        for (size_t i = 0; i < d->n; i++)
            if (d->x[i].task == t) sorted[n++] = d->x[i];
    }
}

status ruler_data_open(ruler_data *d, const char *paths, const bool *wanted, bool named, size_t most, err *e)
{
    const dataset_names names = ruler_names();
    ruler_record *sorted;
    *d = (ruler_data){.files = json_array(), .wanted = wanted, .most = most};
    if (!d->files) return err_set(e, ST_NOMEM, "out of memory");
    const sample_files from = {.names = &names,
                               .datasets = named ? "" : NULL,
                               .wanted = wanted,
                               .suffix = "",
                               .files = d->files,
                               .line = take_line,
                               .own = d};
    TRY(sample_files_read(&from, paths, e));
    if (d->n == 0) return err_set(e, ST_USAGE, "--data: no samples of the tasks of --task");
    TRY(MEM_NEW(&sorted, d->n, e));
    sort(d, sorted);
    mem_free(d->x);
    d->x = sorted;
    d->cap = d->n;
    return ST_OK;
}

void ruler_data_close(ruler_data *d)
{
    for (size_t i = 0; i < d->n; i++) ruler_record_free(&d->x[i]);
    mem_free(d->x);
    json_decref(d->files);
    *d = (ruler_data){0};
}
