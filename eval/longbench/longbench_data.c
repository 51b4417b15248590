/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench/longbench_data.h"

#include <string.h>

#include "eval/sample_files.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

typedef struct {
    longbench_data *out;
    const longbench_table *t;
    const longbench_source *s;
    bool *wanted;   /* [t->n] */
    int64_t *count; /* [t->n] samples so far */
} reader;

/* ---- one line ---- */

/* What a run needs beside what prediction_read has judged. */
static status check_sample(const reader *r, const longbench_sample *s, const char *where, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < s->p.n_answers; i++) n += s->p.answers[i].n;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: 'answers': all of them are empty", where);
    if (sample_has_nul(s->p.text)) return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    if (s->p.n_classes == 0 && strcmp(metric_name(s->d->metric), "classification") == 0)
        return err_set(e, ST_FORMAT, "%s: 'all_classes' is missing", where);
    if (s->p.length < 0 && r->s->longbench_e) return err_set(e, ST_FORMAT, "%s: 'length' is missing", where);
    return ST_OK;
}

static status read_sample(reader *r, const line_reader *lines, const char *line, size_t n, size_t of_file,
                          longbench_sample *s, err *e)
{
    char where[128];
    dataset_names names = longbench_names(r->t);
    size_t d;
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(lines->name), lines->number);
    TRY(prediction_read(&s->p, lines, line, n, "context", e));
    TRY(sample_dataset(&d, &names, s->p.root, of_file, where, e));
    s->d = &r->t->d[d];
    TRY(sample_text(&s->input, s->p.root, "input", where, e));
    const json_t *id = json_object_get(s->p.root, "_id");
    if (id && !json_is_string(id)) return err_set(e, ST_FORMAT, "%s: '_id': expected a text", where);
    s->id = id ? json_string_value(id) : "";
    return check_sample(r, s, where, e);
}

static status push(reader *r, longbench_sample *s, err *e)
{
    longbench_data *out = r->out;
    size_t i = (size_t)(s->d - r->t->d);
    s->index = r->count[i]++;
    if (!r->wanted[i]) {
        prediction_free(&s->p);
        return ST_OK;
    }
    if (out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 64;
        TRY(MEM_GROW(&out->s, cap, e));
        out->cap = cap;
    }
    out->s[out->n++] = *s;
    return ST_OK;
}

static status take_line(void *own, const line_reader *lines, const char *line, size_t n, size_t of_file, err *e)
{
    longbench_sample s = {0};
    status st = read_sample(own, lines, line, n, of_file, &s, e);
    if (st == ST_OK) st = push(own, &s, e);
    if (st != ST_OK) prediction_free(&s.p);
    return st;
}

static status read_files(reader *r, const dataset_names *names, err *e)
{
    sample_files files = {.names = names,
                          .datasets = r->s->datasets,
                          .wanted = r->wanted,
                          .suffix = r->s->longbench_e ? "_e" : "",
                          .files = r->out->files,
                          .line = take_line,
                          .own = r};
    return sample_files_read(&files, r->s->from.data, e);
}

/* ---- which samples ---- */

static status list_wanted(reader *r, const dataset_names *names, err *e)
{
    bool part = r->s->longbench_e;
    if (r->s->datasets) TRY(datasets_mark(r->wanted, names, r->s->datasets, e));
    for (size_t i = 0; i < r->t->n; i++) {
        if (!r->s->datasets) r->wanted[i] = !part || r->t->d[i].longbench_e;
        else if (r->wanted[i] && part && !r->t->d[i].longbench_e)
            return err_set(e, ST_USAGE, "--dataset: %s is not in LongBench-E", r->t->d[i].name);
    }
    return ST_OK;
}

static void drop_sample(void *sample)
{
    longbench_sample *s = sample;
    prediction_free(&s->p);
}

/* Keeps the samples that the source asks for, in order. */
static status choose(reader *r, err *e)
{
    longbench_data *out = r->out;
    sample_key *key;
    TRY(MEM_NEW(&key, out->n, e));
    for (size_t i = 0; i < out->n; i++) key[i] = (sample_key){(size_t)(out->s[i].d - r->t->d), out->s[i].index};
    status st = samples_keep(out->s, sizeof *out->s, &out->n, key, &r->s->from, drop_sample, e);
    mem_free(key);
    return st;
}

status longbench_data_read(longbench_data *out, const longbench_table *t, const longbench_source *s, err *e)
{
    reader r = {.out = out, .t = t, .s = s};
    dataset_names names = longbench_names(t);
    *out = (longbench_data){.files = json_array()};
    status st = out->files ? MEM_NEW(&r.wanted, t->n, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = MEM_NEW(&r.count, t->n, e);
    if (st == ST_OK) st = list_wanted(&r, &names, e);
    if (st == ST_OK) st = read_files(&r, &names, e);
    if (st == ST_OK && out->n == 0) st = err_set(e, ST_USAGE, "--data: no samples of --dataset");
    if (st == ST_OK) st = choose(&r, e);
    mem_free(r.wanted);
    mem_free(r.count);
    return st;
}

void longbench_data_free(longbench_data *d)
{
    for (size_t i = 0; i < d->n; i++) prediction_free(&d->s[i].p);
    mem_free(d->s);
    json_decref(d->files);
    *d = (longbench_data){0};
}

void longbench_sample_forget(longbench_sample *s)
{
    json_object_del(s->p.root, "context");
    s->p.text = (utf8_text){0};
}
