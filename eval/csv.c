/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/csv.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

static status wrong(const csv_reader *r, const char *what, err *e)
{
    return err_set(e, ST_FORMAT, "%s record %zu: %s", path_tail(r->name), r->number, what);
}

/* The length of the line end at `at`: CR LF, LF or CR; 0: there is none. */
static size_t line_end(const csv_reader *r, size_t at)
{
    if (at == r->size || (r->s[at] != '\n' && r->s[at] != '\r')) return 0;
    return r->s[at] == '\r' && at + 1 < r->size && r->s[at + 1] == '\n' ? 2 : 1;
}

/* What stands between quotes, the first of which is at r->at. */
static status quoted(csv_reader *r, size_t *n, err *e)
{
    for (r->at++; r->at < r->size; r->at++) {
        bool quote = r->s[r->at] == '"';
        if (quote && (++r->at == r->size || r->s[r->at] != '"')) return ST_OK;
        r->room[(*n)++] = r->s[r->at];
    }
    return wrong(r, "a quote has no end", e);
}

/* The next field; *last: a line end, or that of the file, is behind it. */
static status next_field(csv_reader *r, json_t *fields, bool *last, err *e)
{
    size_t n = 0;
    if (r->at < r->size && r->s[r->at] == '"') TRY(quoted(r, &n, e));
    else
        while (r->at < r->size && r->s[r->at] != ',' && !line_end(r, r->at)) r->room[n++] = r->s[r->at++];
    *last = r->at == r->size || line_end(r, r->at);
    if (!*last && r->s[r->at] != ',') return wrong(r, "text behind a closing quote", e);
    r->at += *last ? line_end(r, r->at) : 1;
    json_t *field = json_stringn(r->room, n);
    if (!field) return wrong(r, "a field is not UTF-8", e);
    return json_array_append_new(fields, field) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* The next record as a list; blank lines are none. */
static status next_record(csv_reader *r, json_t **fields, err *e)
{
    bool last = false;
    *fields = NULL;
    for (size_t n; (n = line_end(r, r->at)) > 0;) r->at += n;
    if (r->at == r->size) return ST_OK;
    *fields = json_array();
    status st = *fields ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    while (st == ST_OK && !last) st = next_field(r, *fields, &last, e);
    if (st == ST_OK) return ST_OK;
    json_decref(*fields);
    *fields = NULL;
    return st;
}

static status read_columns(csv_reader *r, err *e)
{
    static const char mark[] = "\xef\xbb\xbf"; /* byte order */
    TRY(MEM_NEW(&r->room, r->size, e));
    if (r->size >= 3 && memcmp(r->s, mark, 3) == 0) r->at = 3;
    TRY(next_record(r, &r->columns, e));
    if (r->columns) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: no columns", path_tail(r->name));
}

static status make_row(json_t **row, const csv_reader *r, const json_t *fields, err *e)
{
    size_t i, n = json_array_size(r->columns);
    json_t *column;
    if (json_array_size(fields) != n)
        return err_set(e, ST_FORMAT, "%s record %zu: %zu fields, expected %zu", path_tail(r->name), r->number,
                       json_array_size(fields), n);
    if (!(*row = json_object())) return err_set(e, ST_NOMEM, "out of memory");
    json_array_foreach(r->columns, i, column)
    {
        const char *name = json_string_value(column);
        if (strlen(name) != json_string_length(column) || json_object_get(*row, name))
            return err_set(e, ST_FORMAT, "%s: column %zu has the name of another, or none", path_tail(r->name), i + 1);
        if (json_object_set(*row, name, json_array_get(fields, i)) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return ST_OK;
}

status csv_next(csv_reader *r, json_t **row, err *e)
{
    json_t *fields;
    *row = NULL;
    if (!r->columns) TRY(read_columns(r, e));
    r->number++;
    TRY(next_record(r, &fields, e));
    if (!fields) return ST_OK;
    status st = make_row(row, r, fields, e);
    json_decref(fields);
    if (st == ST_OK) return ST_OK;
    json_decref(*row);
    *row = NULL;
    return st;
}

void csv_close(csv_reader *r)
{
    json_decref(r->columns);
    mem_free(r->room);
    *r = (csv_reader){0};
}
