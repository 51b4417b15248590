/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench2/longbench2.h"

#include <string.h>

#include "cli/cli.h"
#include "eval/records.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- one record ---- */

static status read_answer(longbench2_sample *s, const char *where, err *e)
{
    utf8_text a;
    TRY(sample_text(&a, s->root, "answer", where, e));
    if (a.n != 1 || a.s[0] < 'A' || a.s[0] >= 'A' + LONGBENCH2_CHOICES)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected A, B, C or D", where, a.s);
    s->answer = a.s[0];
    return ST_OK;
}

static status read_record(longbench2_sample *s, const char *where, err *e)
{
    utf8_text id, difficulty, length;
    TRY(sample_text(&id, s->root, "_id", where, e));
    TRY(sample_text(&difficulty, s->root, "difficulty", where, e));
    TRY(sample_text(&length, s->root, "length", where, e));
    TRY(sample_text(&s->context, s->root, "context", where, e));
    TRY(sample_text(&s->question, s->root, "question", where, e));
    for (int i = 0; i < LONGBENCH2_CHOICES; i++) {
        const char field[] = {'c', 'h', 'o', 'i', 'c', 'e', '_', (char)('A' + i), 0};
        TRY(sample_text(&s->choice[i], s->root, field, where, e));
    }
    s->id = id.s;
    s->difficulty = difficulty.s;
    s->length = length.s;
    return read_answer(s, where, e);
}

/* Takes the record. */
static status push(void *own, json_t *record, const char *where, err *e)
{
    longbench2_data *out = own;
    longbench2_sample s = {.index = (int64_t)out->n, .root = record};
    status st = read_record(&s, where, e);
    if (st == ST_OK && out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 64;
        st = MEM_GROW(&out->s, cap, e);
        if (st == ST_OK) out->cap = cap;
    }
    if (st == ST_OK) out->s[out->n++] = s;
    else json_decref(s.root);
    return st;
}

/* ---- files ---- */

status longbench2_data_add(longbench2_data *out, const char *name, const char *text, size_t n, err *e)
{
    size_t before = out->n;
    TRY(records_read(&(record_reader){.take = push, .own = out}, name, text, n, e));
    return out->n > before ? ST_OK : err_set(e, ST_FORMAT, "%s: no samples", path_tail(name));
}

static status read_file(longbench2_data *out, const char *path, err *e)
{
    char *text;
    size_t n;
    TRY(samples_file(&text, &n, path, out->files, e));
    status st = longbench2_data_add(out, path, text, n, e);
    mem_free(text);
    return st;
}

static status read_folder(longbench2_data *out, const char *dir, err *e)
{
    static const char *const names[] = {"data.json", "data.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_join(dir, names[i]);
        if (!path) return err_set(e, ST_NOMEM, "out of memory");
        bool there = file_exists(path);
        status st = there ? read_file(out, path, e) : ST_OK;
        mem_free(path);
        if (there || st != ST_OK) return st;
    }
    return err_set(e, ST_IO, "--data %s: no data.json, no data.jsonl", path_tail(dir));
}

static status read_sources(longbench2_data *out, const char *list, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    status st = cli_split(&word, &n, &store, list, e);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = dir_exists(word[i]) ? read_folder(out, word[i], e) : read_file(out, word[i], e);
    mem_free(word);
    mem_free(store);
    return st;
}

/* ---- which samples ---- */

static void drop_sample(void *sample)
{
    longbench2_sample *s = sample;
    json_decref(s->root);
}

static status choose(longbench2_data *d, const sample_source *from, err *e)
{
    sample_key *key;
    TRY(MEM_NEW(&key, d->n, e));
    for (size_t i = 0; i < d->n; i++) key[i].index = d->s[i].index;
    status st = samples_keep(d->s, sizeof *d->s, &d->n, key, from, drop_sample, e);
    mem_free(key);
    return st;
}

status longbench2_data_read(longbench2_data *out, const sample_source *s, err *e)
{
    *out = (longbench2_data){.files = json_array()};
    if (!out->files) return err_set(e, ST_NOMEM, "out of memory");
    TRY(read_sources(out, s->data, e));
    return choose(out, s, e);
}

void longbench2_data_free(longbench2_data *d)
{
    for (size_t i = 0; i < d->n; i++) json_decref(d->s[i].root);
    mem_free(d->s);
    json_decref(d->files);
    *d = (longbench2_data){0};
}

void longbench2_sample_forget(longbench2_sample *s)
{
    json_object_del(s->root, "context");
    s->context = (utf8_text){0};
}
