/* SPDX-License-Identifier: MIT */
/* The table of datasets. */
#include "config.h"

#include "eval/longbench.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_TABLE_BYTES = 1 << 20, MAX_DEPTH = 8, MAX_NAME = 63 };

static status read_dataset(longbench_dataset *d, const char *name, json_t *row,
                           const json_t *prompts, err *e)
{
    const char *metric_text;
    int chat, first_line, longbench_e, newline_stops = 0;
    json_error_t je;
    d->name = name;
    d->question = NULL;
    if (strlen(name) > MAX_NAME ||
        json_unpack_ex(row, &je, 0, "{s:s, s:s, s:i, s:b, s:b, s:b, s?b, s?s}", "group", &d->group,
                       "metric", &metric_text, "max_new_tokens", &d->max_new_tokens, "chat", &chat,
                       "first_line", &first_line, "longbench_e", &longbench_e, "newline_stops",
                       &newline_stops, "question", &d->question) != 0)
        return err_set(e, ST_FORMAT, "datasets.json: '%.63s': %.100s", name,
                       strlen(name) > MAX_NAME ? "name too long" : je.text);
    d->chat = chat;
    d->first_line = first_line;
    d->longbench_e = longbench_e;
    d->newline_stops = newline_stops;
    d->metric = metric_find(metric_text);
    if (!d->metric)
        return err_set(e, ST_FORMAT, "datasets.json: '%s': unknown metric '%.63s'", name,
                       metric_text);
    if (d->max_new_tokens < 1)
        return err_set(e, ST_FORMAT, "datasets.json: '%s': max_new_tokens is %d", name,
                       d->max_new_tokens);
    d->prompt = json_string_value(json_object_get(prompts, name));
    return d->prompt ? ST_OK : err_set(e, ST_FORMAT, "prompts.json: '%s' is missing", name);
}

static status read_file(json_t **out, const char *data_dir, const char *name, err *e)
{
    char *path = path_join(data_dir, name);
    status st = path ? json_read_object(out, path, MAX_TABLE_BYTES, MAX_DEPTH, e)
                     : err_set(e, ST_NOMEM, "out of memory");
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

/* Levenshtein distance; at most MAX_NAME bytes of each. */
static size_t distance(const char *a, size_t n_a, const char *b)
{
    size_t row[MAX_NAME + 1], n_b = strlen(b);
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 0; i < n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n_b; j++) {
            size_t change = diagonal + (a[i] != b[j]),
                   other = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diagonal = row[j + 1];
            row[j + 1] = change < other ? change : other;
        }
    }
    return row[n_b];
}

status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name,
                      size_t n, err *e)
{
    size_t best = 0, least = SIZE_MAX;
    *out = NULL;
    if (n > MAX_NAME) n = MAX_NAME;
    for (size_t i = 0; i < t->n; i++) {
        size_t d = distance(name, n, t->d[i].name);
        if (d < least) {
            least = d;
            best = i;
        }
    }
    if (least > 0)
        return err_set(e, ST_USAGE, "'%.*s' is no dataset of LongBench; the nearest name is %s",
                       (int)n, name, t->d[best].name);
    *out = &t->d[best];
    return ST_OK;
}
