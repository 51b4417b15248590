/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/records.h"

#include <string.h>

#include "eval/metrics/text.h"
#include "eval/prediction.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"

enum { MAX_DEPTH = 64, MAX_COLUMNS = 256, MAX_WHERE = 128 };

/* ---- JSON ---- */

static status take_json(const record_reader *r, const char *text, size_t n, const char *where, err *e)
{
    json_t *record;
    TRY(json_parse_data(&record, text, n, where, MAX_DEPTH, e));
    return r->take(r->own, record, where, e);
}

static status read_lines(const record_reader *r, line_reader lines, err *e)
{
    const char *line;
    size_t n;
    char where[MAX_WHERE];
    while (next_line(&lines, &line, &n)) {
        snprintf(where, sizeof where, "%.90s line %zu", path_tail(lines.name), lines.number);
        TRY(take_json(r, line, n, where, e));
    }
    return ST_OK;
}

static size_t skip_white(const char *s, size_t n, size_t at)
{
    while (at < n && (s[at] == ' ' || s[at] == '\t' || s[at] == '\n' || s[at] == '\r')) at++;
    return at;
}

/* Returns the end of the value that begins at `at`: the position of the comma or bracket after it. */
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

/* Reads the elements of a list that begins at l.at, one by one. Parsing the whole list would double the memory. */
static status read_array(const record_reader *r, line_reader l, err *e)
{
    char where[MAX_WHERE];
    size_t at = skip_white(l.s, l.size, l.at + 1);
    for (bool more = at == l.size || l.s[at] != ']'; more;) {
        size_t end = value_end(l.s, l.size, at);
        snprintf(where, sizeof where, "%.90s record %zu", path_tail(l.name), ++l.number);
        TRY(take_json(r, l.s + at, end - at, where, e));
        if (end == l.size) return err_set(e, ST_FORMAT, "%s: unterminated list", where);
        more = l.s[end] == ',';
        at = more ? skip_white(l.s, l.size, end + 1) : end;
    }
    if (skip_white(l.s, l.size, at + 1) < l.size)
        return err_set(e, ST_FORMAT, "%s: trailing text after the list", path_tail(l.name));
    return ST_OK;
}

/* ---- CSV ---- */

typedef struct {
    const char *s;
    size_t n, at, line; /* line: that of the next byte, from 1 */
    str field;
} csv;

static bool ends_field(char c)
{
    return c == ',' || c == '\r' || c == '\n';
}

/* Reads the rest of a quoted field, after the opening quote. */
static status read_quoted(csv *c, const char *where, err *e)
{
    for (; c->at < c->n; c->at++) {
        char x = c->s[c->at];
        if (x == '"' && c->at + 1 < c->n && c->s[c->at + 1] == '"') c->at++;
        else if (x == '"') break;
        c->line += x == '\n';
        str_add(&c->field, &x, 1);
    }
    if (c->at == c->n) return err_set(e, ST_FORMAT, "%s: unterminated quoted field", where);
    c->at++;
    if (c->at < c->n && !ends_field(c->s[c->at])) return err_set(e, ST_FORMAT, "%s: text after a quoted field", where);
    return ST_OK;
}

/* Reads the next field. The byte after it is a comma, a line end, or the end of the file. */
static status read_field(csv *c, const char *where, err *e)
{
    str_set(&c->field, "", 0);
    if (c->at < c->n && c->s[c->at] == '"') {
        c->at++;
        TRY(read_quoted(c, where, e));
    } else {
        size_t from = c->at;
        while (c->at < c->n && !ends_field(c->s[c->at])) c->at++;
        str_add(&c->field, c->s + from, c->at - from);
    }
    return str_check(&c->field, e);
}

/* Reads a row as a list of strings. */
static status read_row(csv *c, json_t *row, const char *where, err *e)
{
    for (;;) {
        TRY(read_field(c, where, e));
        json_t *text = json_stringn(c->field.s, c->field.n);
        if (!text) return err_set(e, ST_FORMAT, "%s: field %zu is not UTF-8", where, json_array_size(row) + 1);
        if (json_array_append_new(row, text) != 0) return err_set(e, ST_NOMEM, "out of memory");
        if (json_array_size(row) > MAX_COLUMNS)
            return err_set(e, ST_FORMAT, "%s: more than %d fields", where, MAX_COLUMNS);
        if (c->at == c->n || c->s[c->at] != ',') break;
        c->at++;
    }
    while (c->at < c->n && c->s[c->at] == '\r') c->at++;
    if (c->at < c->n && c->s[c->at] != '\n') return err_set(e, ST_FORMAT, "%s: a carriage return in a field", where);
    c->at += c->at < c->n;
    c->line++;
    return ST_OK;
}

/* Passes on a row as an object with the names of its columns. */
static status take_row(const record_reader *r, const json_t *names, const json_t *row, const char *where, err *e)
{
    if (json_array_size(row) != json_array_size(names))
        return err_set(e, ST_FORMAT, "%s: %zu fields, expected %zu", where, json_array_size(row),
                       json_array_size(names));
    json_t *record = json_object();
    for (size_t i = 0; record && i < json_array_size(names); i++)
        if (json_object_set(record, json_string_value(json_array_get(names, i)), json_array_get(row, i)) != 0) {
            json_decref(record);
            record = NULL;
        }
    return record ? r->take(r->own, record, where, e) : err_set(e, ST_NOMEM, "out of memory");
}

static bool is_blank(const json_t *row)
{
    return json_array_size(row) == 1 && json_string_length(json_array_get(row, 0)) == 0;
}

/* Refuses duplicate column names. */
static status check_names(const json_t *names, const char *where, err *e)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(names, i), json_array_get(names, k)))
                return err_set(e, ST_FORMAT, "%s: column %zu has a duplicate name", where, i + 1);
    return ST_OK;
}

static status read_rows(const record_reader *r, csv *c, const char *name, json_t **names, err *e)
{
    char where[MAX_WHERE];
    status st = ST_OK;
    while (c->at < c->n && st == ST_OK) {
        json_t *row = json_array();
        snprintf(where, sizeof where, "%.90s line %zu", path_tail(name), c->line);
        st = row ? read_row(c, row, where, e) : err_set(e, ST_NOMEM, "out of memory");
        if (st == ST_OK && !is_blank(row)) {
            if (*names) st = take_row(r, *names, row, where, e);
            else st = check_names(*names = json_incref(row), where, e);
        }
        json_decref(row);
    }
    return st;
}

static status read_csv(const record_reader *r, const char *name, const char *text, size_t n, err *e)
{
    csv c = {.s = text, .n = n, .at = file_mark(text, n), .line = 1};
    json_t *names = r->columns ? json_array() : NULL;
    status st = ST_OK;
    for (const char *const *k = r->columns; k && *k && st == ST_OK; k++)
        if (json_array_append_new(names, json_string(*k)) != 0) st = err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = read_rows(r, &c, name, &names, e);
    json_decref(names);
    str_free(&c.field);
    return st;
}

status records_read(const record_reader *r, const char *name, const char *text, size_t n, err *e)
{
    line_reader l = {.name = name, .s = text, .size = n};
    size_t first = skip_white(text, n, file_mark(text, n)), length = strlen(name);
    if (length >= 4 && strcmp(name + length - 4, ".csv") == 0) return read_csv(r, name, text, n, e);
    if (first == n || text[first] != '[') return read_lines(r, l, e);
    l.at = first;
    return read_array(r, l, e);
}
