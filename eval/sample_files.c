/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/sample_files.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

/* ---- names ---- */

status dataset_find(size_t *out, const dataset_names *names, const char *name, size_t n, err *e)
{
    size_t best = 0, least = SIZE_MAX, rest = n > NEAREST_MAX ? n - NEAREST_MAX : 0;
    *out = DATASET_UNKNOWN;
    n -= rest;
    for (size_t i = 0; i < names->n; i++) {
        const char *known = names->name(names->own, i);
        size_t d = nearest_distance(name, n, known, strlen(known)) + rest;
        if (d < least) {
            least = d;
            best = i;
        }
    }
    if (least > 0)
        return err_set(e, ST_USAGE, "'%.*s' is no dataset of %s; the nearest name is %s", (int)n, name, names->bench,
                       names->name(names->own, best));
    *out = best;
    return ST_OK;
}

/* The length of a name without its ending. */
static size_t without_ending(const dataset_names *names, const char *name, size_t n)
{
    size_t k = names->ending ? strlen(names->ending) : 0;
    return k && n > k && strncmp(name + n - k, names->ending, k) == 0 ? n - k : n;
}

status datasets_mark(bool *wanted, const dataset_names *names, const char *datasets, err *e)
{
    return datasets_mark_of(wanted, names, "--dataset", datasets, e);
}

status datasets_mark_of(bool *wanted, const dataset_names *names, const char *option, const char *datasets, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n, d;
    status st = cli_split(&word, &n, &store, datasets, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        err inner = {0};
        st = dataset_find(&d, names, word[i], without_ending(names, word[i], strlen(word[i])), &inner);
        if (st != ST_OK) err_set(e, st, "%s: %.200s", option, inner.msg);
        else wanted[d] = true;
    }
    mem_free(word);
    mem_free(store);
    return st;
}

status sample_dataset(size_t *out, const dataset_names *names, const json_t *sample, size_t of_file, const char *where,
                      err *e)
{
    const json_t *field = json_object_get(sample, "dataset");
    const char *name = json_string_value(field);
    err inner = {0};
    *out = of_file;
    if (!field && of_file != DATASET_UNKNOWN) return ST_OK;
    if (!name) return err_set(e, ST_FORMAT, "%s: 'dataset': expected a text", where);
    if (dataset_find(out, names, name, without_ending(names, name, strlen(name)), &inner) != ST_OK)
        return err_set(e, ST_FORMAT, "%s: 'dataset': %.120s", where, inner.msg);
    if (of_file != DATASET_UNKNOWN && of_file != *out)
        return err_set(e, ST_FORMAT, "%s: 'dataset' is %s in a file of %s", where, names->name(names->own, *out),
                       names->name(names->own, of_file));
    return ST_OK;
}

/* ---- files ---- */

static status read_lines(const sample_files *s, line_reader lines, size_t of_file, err *e)
{
    const char *line;
    size_t n;
    bool any = false;
    for (; next_line(&lines, &line, &n); any = true) TRY(s->line(s->own, &lines, line, n, of_file, e));
    return any ? ST_OK : err_set(e, ST_FORMAT, "%s: no samples", path_tail(lines.name));
}

static status read_file(const sample_files *s, const char *path, size_t of_file, err *e)
{
    char *content;
    line_reader lines = {.name = path};
    TRY(samples_file(&content, &lines.size, path, s->files, e));
    lines.s = content;
    status st = read_lines(s, lines, of_file, e);
    mem_free(content);
    return st;
}

/* DIR/NAME.jsonl with the suffix; *there false: no such file. */
static status read_of_folder(const sample_files *s, const char *dir, size_t d, bool *there, err *e)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s.jsonl", s->names->name(s->names->own, d), s->suffix);
    char *path = path_join(dir, name);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    *there = file_exists(path);
    status st = *there ? read_file(s, path, d, e) : ST_OK;
    mem_free(path);
    return st;
}

static bool is_packed(const sample_files *s, const char *dir, size_t d)
{
    char name[96];
    snprintf(name, sizeof name, "%s.jsonl.xz", s->names->name(s->names->own, d));
    char *path = path_join(dir, name);
    bool there = path && file_exists(path);
    mem_free(path);
    return there;
}

static status read_folder(const sample_files *s, const char *dir, err *e)
{
    const dataset_names *names = s->names;
    const char *first = "";
    bool any = false, packed = false;
    for (size_t i = 0; i < names->n; i++) {
        bool there = false;
        if (!s->wanted[i]) continue;
        if (!*first) first = names->name(names->own, i);
        TRY(read_of_folder(s, dir, i, &there, e));
        any |= there;
        packed |= !there && is_packed(s, dir, i);
        if (!there && s->datasets)
            return err_set(e, ST_IO, "--data %s: no file %s%s.jsonl%s", path_tail(dir), names->name(names->own, i),
                           s->suffix, packed ? " (unpack the .xz first)" : "");
    }
    return any ? ST_OK
               : err_set(e, ST_IO, "--data %s: no file of a dataset (%s%s.jsonl, ...)%s", path_tail(dir), first,
                         s->suffix, packed ? "; unpack the .xz first" : "");
}

/* The dataset that the name of a file says. */
static size_t dataset_of_name(const sample_files *s, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t d, n = without_ending(s->names, name, strcspn(name, "."));
    dataset_find(&d, s->names, name, n, NULL);
    return d;
}

status sample_files_read(const sample_files *s, const char *data, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    status st = cli_split(&word, &n, &store, data, e);
    for (size_t i = 0; st == ST_OK && i < n; i++)
        st = dir_exists(word[i]) ? read_folder(s, word[i], e) : read_file(s, word[i], dataset_of_name(s, word[i]), e);
    mem_free(word);
    mem_free(store);
    return st;
}
