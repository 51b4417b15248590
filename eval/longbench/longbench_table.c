/* SPDX-License-Identifier: MIT */
/* The table of datasets. */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

enum { MAX_TABLE_BYTES = 1 << 20, MAX_DEPTH = 8 };

static status read_dataset(longbench_dataset *d, const char *name, json_t *row, const json_t *prompts, err *e)
{
    const char *metric_text;
    int chat, first_line, longbench_e, newline_stops = 0;
    json_error_t je;
    d->name = name;
    d->question = NULL;
    if (strlen(name) > NEAREST_MAX ||
        json_unpack_ex(row, &je, 0, "{s:s, s:s, s:i, s:b, s:b, s:b, s?b, s?s}", "group", &d->group, "metric",
                       &metric_text, "max_new_tokens", &d->max_new_tokens, "chat", &chat, "first_line", &first_line,
                       "longbench_e", &longbench_e, "newline_stops", &newline_stops, "question", &d->question) != 0)
        return err_set(e, ST_FORMAT, "datasets.json: '%.63s': %.100s", name,
                       strlen(name) > NEAREST_MAX ? "name too long" : je.text);
    d->chat = chat;
    d->first_line = first_line;
    d->longbench_e = longbench_e;
    d->newline_stops = newline_stops;
    d->metric = metric_find(metric_text);
    if (!d->metric) return err_set(e, ST_FORMAT, "datasets.json: '%s': unknown metric '%.63s'", name, metric_text);
    if (d->max_new_tokens < 1)
        return err_set(e, ST_FORMAT, "datasets.json: '%s': max_new_tokens is %d", name, d->max_new_tokens);
    d->prompt = json_string_value(json_object_get(prompts, name));
    return d->prompt ? ST_OK : err_set(e, ST_FORMAT, "prompts.json: '%s' is missing", name);
}

static status read_file(json_t **out, const char *data_dir, const char *name, err *e)
{
    char *path = path_join(data_dir, name);
    status st =
        path ? json_read_object(out, path, MAX_TABLE_BYTES, MAX_DEPTH, e) : err_set(e, ST_NOMEM, "out of memory");
    mem_free(path);
    return st;
}

status longbench_open(longbench_table *t, const char *data_dir, err *e)
{
    const char *name;
    json_t *row;
    *t = (longbench_table){0};
    TRY(read_file(&t->source, data_dir, "longbench/datasets.json", e));
    TRY(read_file(&t->prompts, data_dir, "longbench/prompts.json", e));
    TRY(MEM_NEW(&t->d, json_object_size(t->source), e));
    json_object_foreach(t->source, name, row)
    {
        TRY(read_dataset(&t->d[t->n], name, row, t->prompts, e));
        t->n++;
    }
    return t->n ? ST_OK : err_set(e, ST_FORMAT, "datasets.json: no dataset");
}

void longbench_close(longbench_table *t)
{
    mem_free(t->d);
    json_decref(t->source);
    json_decref(t->prompts);
    *t = (longbench_table){0};
}

static const char *name_of(const void *own, size_t i)
{
    const longbench_table *t = own;
    return t->d[i].name;
}

dataset_names longbench_names(const longbench_table *t)
{
    return (dataset_names){"LongBench", "_e", t->n, name_of, t};
}

status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e)
{
    dataset_names names = longbench_names(t);
    size_t d;
    *out = NULL;
    TRY(dataset_find(&d, &names, name, n, e));
    *out = &t->d[d];
    return ST_OK;
}
