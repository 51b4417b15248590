/* SPDX-License-Identifier: MIT */
/* The table of datasets, and their samples. */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <stdio.h>
#include <string.h>

#include "eval/prompt_file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

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

status longbench_open(longbench_table *t, const char *data_dir, err *e)
{
    const char *name;
    json_t *row;
    *t = (longbench_table){0};
    TRY(prompt_table_read(&t->source, data_dir, "longbench/datasets.json", e));
    TRY(prompt_table_read(&t->prompts, data_dir, "longbench/prompts.json", e));
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

/* ---- samples ---- */

typedef struct {
    const longbench_table *t;
    bool longbench_e;
} reader;

/* Checks what a run needs in addition to prediction_of. */
static status check_sample(const reader *r, const longbench_sample *s, const char *where, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < s->p.n_answers; i++) n += s->p.answers[i].n;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: 'answers': all of them are empty", where);
    if (sample_has_nul(s->p.text)) return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    if (s->p.n_classes == 0 && strcmp(metric_name(r->t->d[s->at.dataset].metric), "classification") == 0)
        return err_set(e, ST_FORMAT, "%s: 'all_classes' is missing", where);
    if (s->p.length < 0 && r->longbench_e) return err_set(e, ST_FORMAT, "%s: 'length' is missing", where);
    return ST_OK;
}

static status read_sample(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    longbench_sample *s = own_sample;
    const json_t *id = json_object_get(s->at.root, "_id");
    (void)path;
    TRY(prediction_of(&s->p, s->at.root, "context", NULL, where, e));
    TRY(sample_text(&s->input, s->at.root, "input", where, e));
    if (id && !json_is_string(id)) return err_set(e, ST_FORMAT, "%s: '_id': expected a text", where);
    s->id = id ? json_string_value(id) : "";
    return check_sample(own, s, where, e);
}

static status list_wanted(bool *wanted, const longbench_table *t, const longbench_source *s, const dataset_names *names,
                          err *e)
{
    bool part = s->longbench_e;
    if (s->datasets) TRY(datasets_mark(wanted, names, "--dataset", s->datasets, e));
    for (size_t i = 0; i < t->n; i++) {
        if (!s->datasets) wanted[i] = !part || t->d[i].longbench_e;
        else if (wanted[i] && part && !t->d[i].longbench_e)
            return err_set(e, ST_USAGE, "--dataset: %s is not in LongBench-E", t->d[i].name);
    }
    return ST_OK;
}

static void drop(void *s)
{
    prediction_free(&((longbench_sample *)s)->p);
}

status longbench_read(sample_list *out, const longbench_table *t, const longbench_source *s, err *e)
{
    const dataset_names names = longbench_names(t);
    reader own = {t, s->longbench_e};
    bool *wanted;
    *out = (sample_list){.size = sizeof(longbench_sample), .drop = drop};
    TRY(MEM_NEW(&wanted, t->n, e));
    const sample_reader r = {.names = &names,
                             .datasets = s->datasets,
                             .wanted = wanted,
                             .suffix = s->longbench_e ? "_e" : "",
                             .read = read_sample,
                             .own = &own};
    status st = list_wanted(wanted, t, s, &names, e);
    if (st == ST_OK) st = samples_read(out, &r, &s->from, e);
    if (st == ST_OK && out->n == 0) st = err_set(e, ST_USAGE, "--data: no samples of --dataset");
    mem_free(wanted);
    return st;
}

void longbench_sample_forget(longbench_sample *s)
{
    sample_forget(&s->at, "context");
    s->p.text = (utf8_text){0};
}
