/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* Form in which Jansson receives a number. It rejects integers beyond 64 bits, reals beyond double, NaN and
 * Infinity. */
typedef enum { NUMBER_AS_IS, NUMBER_AS_REAL, NUMBER_AS_STRING } number_form;

/* Returns the length of the number or of Python's NaN, Infinity or -Infinity at s, at least 1. A number at the end of
 * the text is left unchanged: no JSON object ends like that. */
static size_t number_length(const char *s, size_t n, number_form *form)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i]);
        if (n <= len || memcmp(s, words[i], len) != 0) continue;
        *form = NUMBER_AS_STRING;
        return len;
    }
    size_t len = 1;
    bool integer = true, exponent = false;
    for (; len < n && s[len] && strchr("+-.0123456789eE", s[len]); len++) {
        exponent |= s[len] == 'e' || s[len] == 'E';
        integer &= s[len] >= '0' && s[len] <= '9';
    }
    char copy[512], *end;
    if (len == n || (len < 19 && !exponent)) return len;
    if (len >= sizeof copy) {
        if (integer) *form = NUMBER_AS_STRING;
        return len;
    }
    memcpy(copy, s, len);
    copy[len] = 0;
    double v = strtod(copy, &end);
    if (*end) return len;
    errno = 0;
    if (isinf(v)) *form = NUMBER_AS_STRING;
    else if (integer && (strtoll(copy, NULL, 10), errno == ERANGE)) *form = NUMBER_AS_REAL;
    return len;
}

/* Returns the length of the string at s, including its quotes. */
static size_t string_length(const char *s, size_t n)
{
    size_t i = 1;
    while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
    return i < n ? i + 1 : n;
}

/* Rewrites the numbers that Jansson rejects. An integer gets an exponent, which makes it a real. A number that no
 * double can hold becomes a string of its spelling, so that a key that needs a number rejects it.
 * out    buffer for the result, or NULL to measure it.
 * depth  deepest nesting of brackets; the parser is recursive.
 * Returns the length of the result: n if nothing changes. */
static size_t rewrite(const char *s, size_t n, char *out, int *depth)
{
    size_t size = 0;
    int level = 0;
    *depth = 0;
    for (size_t i = 0, len; i < n; i += len) {
        number_form form = NUMBER_AS_IS;
        len = 1;
        if (s[i] == '"') len = string_length(s + i, n - i);
        else if ((s[i] >= '0' && s[i] <= '9') || s[i] == '-' || s[i] == 'N' || s[i] == 'I')
            len = number_length(s + i, n - i, &form);
        else if (s[i] == '{' || s[i] == '[') level++;
        else if (s[i] == '}' || s[i] == ']') level--;
        if (level > *depth) *depth = level;
        const char *ends = form == NUMBER_AS_STRING ? "\"" : "e0";
        size_t before = form == NUMBER_AS_STRING, after = form == NUMBER_AS_IS ? 0 : strlen(ends);
        if (out) {
            memcpy(out + size, ends, before);
            memcpy(out + size + before, s + i, len);
            memcpy(out + size + before + len, ends, after);
        }
        size += before + len + after;
    }
    return size;
}

/* Writes the key of the object's member in which the first n bytes end, as ", in 'key'", or "" if there is none. */
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

static status parse(json_t **out, const char *text, size_t n, const char *name, size_t flags, err *e)
{
    json_error_t je;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | flags, &je);
    if (!j && json_error_code(&je) == json_error_out_of_memory) return err_set(e, ST_NOMEM, "%s: out of memory", name);
    if (!j) {
        char member[48] = "";
        size_t at = je.position > 0 ? (size_t)je.position : 0;
        if (flags & JSON_ALLOW_NUL) member_at(text, at < n ? at : n, member);
        const bool null = json_error_code(&je) == json_error_null_character;
        const bool big = json_error_code(&je) == json_error_numeric_overflow;
        return err_set(e, ST_FORMAT, "%s: not valid JSON: line %d column %d%s: %.100s%s", name, je.line, je.column,
                       member, null ? "U+0000 in a string" : je.text,
                       big ? "; integers are from -2^63 to 2^63 - 1" : "");
    }
    *out = j;
    return ST_OK;
}

/* Frees *out and fails unless it is an object. */
static status need_object(json_t **out, const char *name, err *e)
{
    if (json_is_object(*out)) return ST_OK;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ST_FORMAT, "%s: the top level is not a JSON object", name);
}

static status check_depth(int depth, int max_depth, const char *name, err *e)
{
    if (depth <= max_depth) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: JSON nested %d deep, at most %d allowed", name, depth, max_depth);
}

/* Parses an object, or with `any` another value, with Python's extensions. */
static status parse_python(json_t **out, const char *text, size_t n, const char *name, bool any, int max_depth, err *e)
{
    char *copy = NULL;
    int depth;
    *out = NULL;
    TRY(file_check_text(text, n, name, e));
    size_t size = rewrite(text, n, NULL, &depth);
    TRY(check_depth(depth, max_depth, name, e));
    if (size != n) {
        TRY(mem_alloc((void **)&copy, size, 1, name, e));
        rewrite(text, n, copy, &depth);
    }
    status st = parse(out, copy ? copy : text, size, name, any ? JSON_DECODE_ANY : 0, e);
    mem_free(copy);
    return st == ST_OK && !any ? need_object(out, name, e) : st;
}

status json_parse_object(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e)
{
    return parse_python(out, text, n, name, false, max_depth, e);
}

status json_parse_any(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e)
{
    return parse_python(out, text, n, name, true, max_depth, e);
}

status json_parse_data(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e)
{
    int depth;
    *out = NULL;
    rewrite(text, n, NULL, &depth);
    TRY(check_depth(depth, max_depth, name, e));
    TRY(parse(out, text, n, name, JSON_ALLOW_NUL, e));
    return need_object(out, name, e);
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
