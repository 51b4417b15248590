/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/pg19/pg19.h"
#include "eval/prediction.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"

enum { MAX_DEPTH = 64 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 32;

typedef struct {
    pg19_books *out;
    size_t limit;
} reader;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- one book ---- */

static status check_text(const pg19_book *b, const char *where, err *e)
{
    size_t line = 1;
    if (b->n == 0) return err_set(e, ST_FORMAT, "%s: the text is empty", where);
    for (size_t i = 0; i < b->n;) {
        int k = utf8_valid_len((const unsigned char *)b->text + i, b->n - i);
        if (k == 0)
            return err_set(e, ST_FORMAT, "%s: not UTF-8: byte %zu (0x%02x), line %zu", where, i,
                           (unsigned char)b->text[i], line);
        line += b->text[i] == '\n';
        i += (size_t)k;
    }
    return ST_OK;
}

/* Adds the book; takes ownership, also after an error. */
static status push(reader *r, pg19_book *b, const char *where, err *e)
{
    pg19_books *out = r->out;
    sha256 h;
    status st =
        b->name && b->title && b->text ? check_text(b, where, e) : err_set(e, ST_NOMEM, "%s: out of memory", where);
    if (st == ST_OK) {
        sha256_init(&h);
        sha256_add(&h, b->text, b->n);
        sha256_hex(&h, b->sha256);
    }
    for (size_t i = 0; i < out->n && st == ST_OK; i++)
        if (strcmp(out->book[i].sha256, b->sha256) == 0)
            st = err_set(e, ST_USAGE, "--data: %s duplicates the text of %.60s", where, out->book[i].name);
    if (st == ST_OK) st = MEM_ROOM(&out->book, &out->cap, out->n + 1, e);
    if (st == ST_OK) {
        out->book[out->n++] = *b;
        return ST_OK;
    }
    mem_free(b->name);
    mem_free(b->title);
    mem_free(b->text);
    return st;
}

/* Returns a copy of a name in UTF-8; other bytes are escaped as in error messages. */
static char *shown(const char *name)
{
    err text = {0};
    err_set(&text, ST_OK, "%s", name);
    return mem_strdup(text.msg);
}

/* Returns a NUL-terminated copy of n bytes. */
static char *copy(const char *s, size_t n)
{
    char *out;
    if (mem_alloc((void **)&out, n + 1, 1, "book", NULL) != ST_OK) return NULL;
    if (n) memcpy(out, s, n);
    return out;
}

static status read_text(reader *r, const char *path, err *e)
{
    pg19_book b = {0};
    TRY(file_read(&b.text, &b.n, path, MAX_FILE_BYTES, e));
    b.name = shown(base_name(path));
    b.title = shown(base_name(path));
    char *dot = b.title ? strrchr(b.title, '.') : NULL;
    if (dot && dot > b.title) *dot = 0;
    return push(r, &b, path_tail(path), e);
}

static status read_line(reader *r, const line_reader *lines, const char *line, size_t n, err *e)
{
    char where[128], name[160];
    json_t *j;
    pg19_book b = {0};
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(lines->name), lines->number);
    snprintf(name, sizeof name, "%.120s:%zu", base_name(lines->name), lines->number);
    TRY(json_parse_data(&j, line, n, where, MAX_DEPTH, e));
    const json_t *text = json_object_get(j, "text"), *title = json_object_get(j, "short_book_title");
    status st = json_is_string(text) ? ST_OK : err_set(e, ST_FORMAT, "%s: 'text': expected a string", where);
    if (st == ST_OK && title && !json_is_string(title))
        st = err_set(e, ST_FORMAT, "%s: 'short_book_title': expected a string", where);
    if (st == ST_OK) {
        b.n = json_string_length(text);
        b.text = copy(json_string_value(text), b.n);
        b.name = shown(name);
        b.title = title ? shown(json_string_value(title)) : shown(name);
        st = push(r, &b, where, e);
    }
    json_decref(j);
    return st;
}

/* ---- files ---- */

static status read_lines(reader *r, const char *path, err *e)
{
    char *content;
    const char *line;
    size_t n;
    line_reader lines = {.name = path};
    TRY(file_read(&content, &lines.size, path, MAX_FILE_BYTES, e));
    lines.s = content;
    status st = ST_OK;
    bool any = false;
    while (st == ST_OK && r->out->n < r->limit && next_line(&lines, &line, &n)) {
        st = read_line(r, &lines, line, n, e);
        any = true;
    }
    mem_free(content);
    if (st != ST_OK || any) return st;
    return err_set(e, ST_FORMAT, "%s: no line with a book", path_tail(path));
}

static status read_file(void *ctx, const char *path, err *e)
{
    reader *r = ctx;
    if (r->out->n >= r->limit) return ST_OK;
    return ends_with(path, ".jsonl") ? read_lines(r, path, e) : read_text(r, path, e);
}

static bool is_book(const char *name)
{
    return name[0] != '.' && (ends_with(name, ".txt") || ends_with(name, ".jsonl"));
}

static status read_folder(reader *r, const char *dir, err *e)
{
    char where[128];
    size_t n;
    snprintf(where, sizeof where, "--data %s", path_tail(dir));
    TRY(file_each(dir, is_book, read_file, r, where, &n, e));
    if (n > 0) return ST_OK;
    return err_set(e, ST_IO, "--data %s: no .txt or .jsonl file (compressed files are not supported)", path_tail(dir));
}

static status read_path(void *ctx, const char *path, err *e)
{
    return dir_exists(path) ? read_folder(ctx, path, e) : read_file(ctx, path, e);
}

status pg19_read(pg19_books *out, const char *data, size_t limit, err *e)
{
    reader r = {out, limit};
    *out = (pg19_books){0};
    return cli_each(data, read_path, &r, e);
}

void pg19_books_free(pg19_books *b)
{
    for (size_t i = 0; i < b->n; i++) {
        mem_free(b->book[i].name);
        mem_free(b->book[i].title);
        mem_free(b->book[i].text);
        token_list_free(&b->book[i].ids);
    }
    mem_free(b->book);
    *b = (pg19_books){0};
}
