/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench2/longbench2.h"

#include <string.h>

#include "eval/cli.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 64 };

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

static status read_record(longbench2_sample *s, const char *text, size_t n, const char *where, err *e)
{
    utf8_text id, difficulty, length;
    TRY(json_parse_data(&s->root, text, n, where, MAX_DEPTH, e));
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

static status push(longbench2_data *out, const char *text, size_t n, const char *where, err *e)
{
    longbench2_sample s = {.index = (int64_t)out->n};
    status st = read_record(&s, text, n, where, e);
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

static status read_lines(longbench2_data *out, line_reader r, err *e)
{
    const char *line;
    size_t n;
    char where[128];
    while (next_line(&r, &line, &n)) {
        snprintf(where, sizeof where, "%.90s line %zu", path_tail(r.name), r.number);
        TRY(push(out, line, n, where, e));
    }
    return ST_OK;
}

static size_t skip_white(const char *s, size_t n, size_t at)
{
    while (at < n && (s[at] == ' ' || s[at] == '\t' || s[at] == '\n' || s[at] == '\r')) at++;
    return at;
}

/* The end of the value that begins at `at`: the comma or bracket that stands behind it. */
static size_t value_end(const char *s, size_t n, size_t at)
{
    bool in_string = false;
    for (int64_t depth = 0; at < n; at++) {
        char c = s[at];
        if (in_string) {
            if (c == '\\') at++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (depth == 0 && (c == ',' || c == ']')) break;
        else if (c == '{' || c == '[') depth++;
        else if (c == '}' || c == ']') depth--;
    }
    return at < n ? at : n;
}

/* The elements of a list that begins at r.at, one by one: the whole as values would take the memory twice. */
static status read_array(longbench2_data *out, line_reader r, err *e)
{
    char where[128];
    size_t at = skip_white(r.s, r.size, r.at + 1);
    for (bool more = at == r.size || r.s[at] != ']'; more;) {
        size_t end = value_end(r.s, r.size, at);
        snprintf(where, sizeof where, "%.90s record %zu", path_tail(r.name), ++r.number);
        TRY(push(out, r.s + at, end - at, where, e));
        if (end == r.size) return err_set(e, ST_FORMAT, "%s: the list has no end", where);
        more = r.s[end] == ',';
        at = more ? skip_white(r.s, r.size, end + 1) : end;
    }
    if (skip_white(r.s, r.size, at + 1) < r.size)
        return err_set(e, ST_FORMAT, "%s: more text behind the list", path_tail(r.name));
    return ST_OK;
}

status longbench2_data_add(longbench2_data *out, const char *name, const char *text, size_t n, err *e)
{
    line_reader r = {.name = name, .s = text, .size = n};
    size_t before = out->n, first = skip_white(text, n, 0);
    bool is_array = first < n && text[first] == '[';
    if (is_array) r.at = first;
    TRY(is_array ? read_array(out, r, e) : read_lines(out, r, e));
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
