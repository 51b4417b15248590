/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/json.h"

#include <stdio.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* Deepest nesting of brackets outside strings: checked before the recursive parser sees the text. */
static int nesting(const char *s, size_t n)
{
    int depth = 0, most = 0, in_string = 0;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\') i++;
            else if (s[i] == '"') in_string = 0;
        } else if (s[i] == '"') {
            in_string = 1;
        } else if (s[i] == '{' || s[i] == '[') {
            if (++depth > most) most = depth;
        } else if (s[i] == '}' || s[i] == ']') {
            depth--;
        }
    }
    return most;
}

/* The key of the object's member in which the first n bytes end, as ", in 'key'"; "" where there is none. */
static void member_at(const char *s, size_t n, char out[48])
{
    const char *key = NULL, *last = NULL;
    size_t n_key = 0, n_last = 0;
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"') {
            size_t begin = ++i;
            while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
            last = s + begin;
            n_last = (i < n ? i : n) - begin;
        } else if (s[i] == ':' && depth == 1) {
            key = last;
            n_key = n_last;
        } else if (s[i] == ',' && depth == 1) {
            key = NULL;
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
        } else if (s[i] == '}' || s[i] == ']') {
            depth--;
        }
    }
    out[0] = 0;
    if (key) snprintf(out, 48, ", in '%.*s'", n_key < 32 ? (int)n_key : 32, key);
}

static status parse(json_t **out, const char *text, size_t n, const char *name, int max_depth, size_t flags, err *e)
{
    json_error_t je;
    *out = NULL;
    int depth = nesting(text, n);
    if (depth > max_depth)
        return err_set(e, ST_FORMAT, "%s: JSON nested %d deep, at most %d allowed", name, depth, max_depth);
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | flags, &je);
    if (!j && json_error_code(&je) == json_error_out_of_memory) return err_set(e, ST_NOMEM, "%s: out of memory", name);
    if (!j) {
        char member[48] = "";
        size_t at = je.position > 0 ? (size_t)je.position : 0;
        if (flags & JSON_ALLOW_NUL) member_at(text, at < n ? at : n, member);
        return err_set(e, ST_FORMAT, "%s: not valid JSON: line %d column %d%s: %.100s", name, je.line, je.column,
                       member, je.text);
    }
    if (!json_is_object(j)) {
        json_decref(j);
        return err_set(e, ST_FORMAT, "%s: the top level is not a JSON object", name);
    }
    *out = j;
    return ST_OK;
}

status json_parse_object(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e)
{
    return parse(out, text, n, name, max_depth, 0, e);
}

status json_parse_data(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e)
{
    return parse(out, text, n, name, max_depth, JSON_ALLOW_NUL, e);
}

status json_read_object(json_t **out, const char *path, size_t max_bytes, int max_depth, err *e)
{
    char *text = NULL;
    size_t n;
    *out = NULL;
    TRY(file_read(&text, &n, path, max_bytes, e));
    status st = json_parse_object(out, text, n, path, max_depth, e);
    mem_free(text);
    return st;
}
