/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench_data.h"

#include <string.h>

#include "eval/cli.h"
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

/* The name of a dataset without the mark of LongBench-E. */
static size_t without_e(const char *name, size_t n)
{
    return n > 2 && strncmp(name + n - 2, "_e", 2) == 0 ? n - 2 : n;
}

/* The dataset of a line: the file's, else the field's. */
static status dataset_of(const longbench_dataset **out, const reader *r, const json_t *root,
                         const longbench_dataset *of_file, const char *where, err *e)
{
    const longbench_dataset *d;
    const json_t *field = json_object_get(root, "dataset");
    const char *name = json_string_value(field);
    err inner = {0};
    *out = of_file;
    if (!field && of_file) return ST_OK;
    if (!name) return err_set(e, ST_FORMAT, "%s: 'dataset': expected a text", where);
    if (longbench_find(&d, r->t, name, without_e(name, strlen(name)), &inner) != ST_OK)
        return err_set(e, ST_FORMAT, "%s: 'dataset': %.120s", where, inner.msg);
    if (of_file && of_file != d)
        return err_set(e, ST_FORMAT, "%s: 'dataset' is %s in a file of %s", where, d->name,
                       of_file->name);
    *out = d;
    return ST_OK;
}

/* What a run needs beside what prediction_read has judged. */
static status check_sample(const reader *r, const longbench_sample *s, const char *where, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < s->p.n_answers; i++) n += s->p.answers[i].n;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: 'answers': all of them are empty", where);
    if (sample_has_nul(s->p.text))
        return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    if (s->p.n_classes == 0 && strcmp(metric_name(s->d->metric), "classification") == 0)
        return err_set(e, ST_FORMAT, "%s: 'all_classes' is missing", where);
    if (s->p.length < 0 && r->s->longbench_e)
        return err_set(e, ST_FORMAT, "%s: 'length' is missing", where);
    return ST_OK;
}

static status read_sample(reader *r, const line_reader *lines, const char *line, size_t n,
                          const longbench_dataset *of_file, longbench_sample *s, err *e)
{
    char where[128];
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(lines->name), lines->number);
    TRY(prediction_read(&s->p, lines, line, n, "context", e));
    TRY(dataset_of(&s->d, r, s->p.root, of_file, where, e));
    TRY(sample_text(&s->input, s->p.root, "input", where, e));
    const json_t *id = json_object_get(s->p.root, "_id");
    if (id && !json_is_string(id))
        return err_set(e, ST_FORMAT, "%s: '_id': expected a text", where);
    s->id = id ? json_string_value(id) : "";
    return check_sample(r, s, where, e);
}

/* ---- files ---- */

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

static status read_lines(reader *r, line_reader lines, const longbench_dataset *of_file, err *e)
{
    const char *line;
    size_t n;
    bool any = false;
    for (; next_line(&lines, &line, &n); any = true) {
        longbench_sample s = {0};
        status st = read_sample(r, &lines, line, n, of_file, &s, e);
        if (st == ST_OK) st = push(r, &s, e);
        if (st != ST_OK) {
            prediction_free(&s.p);
            return st;
        }
    }
    return any ? ST_OK : err_set(e, ST_FORMAT, "%s: no samples", path_tail(lines.name));
}

static status read_file(reader *r, const char *path, const longbench_dataset *of_file, err *e)
{
    char *content;
    line_reader lines = {.name = path};
    TRY(samples_file(&content, &lines.size, path, r->out->files, e));
    lines.s = content;
    status st = read_lines(r, lines, of_file, e);
    mem_free(content);
    return st;
}

/* DIR/NAME.jsonl, or NAME_e.jsonl; *there false: no such file. */
static status read_of_folder(reader *r, const char *dir, const longbench_dataset *d, bool *there,
                             err *e)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s.jsonl", d->name, r->s->longbench_e ? "_e" : "");
    char *path = path_join(dir, name);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    *there = file_exists(path);
    status st = *there ? read_file(r, path, d, e) : ST_OK;
    mem_free(path);
    return st;
}

static bool is_packed(const char *dir, const longbench_dataset *d)
{
    char name[96];
    snprintf(name, sizeof name, "%s.jsonl.xz", d->name);
    char *path = path_join(dir, name);
    bool there = path && file_exists(path);
    mem_free(path);
    return there;
}

static status read_folder(reader *r, const char *dir, err *e)
{
    const char *end = r->s->longbench_e ? "_e" : "";
    bool any = false, packed = false;
    for (size_t i = 0; i < r->t->n; i++) {
        bool there = false;
        if (!r->wanted[i]) continue;
        TRY(read_of_folder(r, dir, &r->t->d[i], &there, e));
        any |= there;
        packed |= !there && is_packed(dir, &r->t->d[i]);
        if (!there && r->s->datasets)
            return err_set(e, ST_IO, "--data %s: no file %s%s.jsonl%s", path_tail(dir),
                           r->t->d[i].name, end, packed ? " (unpack the .xz first)" : "");
    }
    return any ? ST_OK
               : err_set(e, ST_IO, "--data %s: no file of a dataset (qasper%s.jsonl, ...)%s",
                         path_tail(dir), end, packed ? "; unpack the .xz first" : "");
}

/* The dataset that the name of a file says, NULL: none. */
static const longbench_dataset *dataset_of_name(const reader *r, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const longbench_dataset *d;
    size_t n = without_e(name, strcspn(name, "."));
    return longbench_find(&d, r->t, name, n, NULL) == ST_OK ? d : NULL;
}

static status read_sources(reader *r, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    status st = cli_split(&word, &n, &store, r->s->from.data, e);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = dir_exists(word[i]) ? read_folder(r, word[i], e)
                                 : read_file(r, word[i], dataset_of_name(r, word[i]), e);
    mem_free(word);
    mem_free(store);
    return st;
}

/* ---- which samples ---- */

static status list_wanted(reader *r, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n = 0;
    for (size_t i = 0; i < r->t->n && !r->s->datasets; i++)
        r->wanted[i] = !r->s->longbench_e || r->t->d[i].longbench_e;
    status st = r->s->datasets ? cli_split(&word, &n, &store, r->s->datasets, e) : ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const longbench_dataset *d;
        err inner = {0};
        st = longbench_find(&d, r->t, word[i], without_e(word[i], strlen(word[i])), &inner);
        if (st != ST_OK) err_set(e, st, "--dataset: %.200s", inner.msg);
        else if (r->s->longbench_e && !d->longbench_e)
            st = err_set(e, ST_USAGE, "--dataset: %s is not in LongBench-E", d->name);
        else r->wanted[d - r->t->d] = true;
    }
    mem_free(word);
    mem_free(store);
    return st;
}

/* Keeps the samples that the source asks for, in order. */
static status choose(reader *r, err *e)
{
    longbench_data *out = r->out;
    sample_key *key = NULL;
    longbench_sample *all = NULL;
    size_t *keep = NULL, kept;
    status st;
    TRY_GOTO(MEM_NEW(&key, out->n, e));
    TRY_GOTO(MEM_NEW(&keep, out->n, e));
    TRY_GOTO(MEM_NEW(&all, out->n, e));
    for (size_t i = 0; i < out->n; i++)
        key[i] = (sample_key){(size_t)(out->s[i].d - r->t->d), out->s[i].index};
    TRY_GOTO(samples_choose(keep, &kept, key, out->n, &r->s->from, e));
    for (size_t i = 0; i < kept; i++) {
        all[i] = out->s[keep[i]];
        out->s[keep[i]] = (longbench_sample){0};
    }
    for (size_t i = 0; i < out->n; i++) prediction_free(&out->s[i].p);
    memcpy(out->s, all, kept * sizeof *all);
    out->n = kept;
done:
    mem_free(key);
    mem_free(keep);
    mem_free(all);
    return st;
}

status longbench_data_read(longbench_data *out, const longbench_table *t, const longbench_source *s,
                           err *e)
{
    reader r = {.out = out, .t = t, .s = s};
    *out = (longbench_data){.files = json_array()};
    status st = out->files ? MEM_NEW(&r.wanted, t->n, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = MEM_NEW(&r.count, t->n, e);
    if (st == ST_OK) st = list_wanted(&r, e);
    if (st == ST_OK) st = read_sources(&r, e);
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
