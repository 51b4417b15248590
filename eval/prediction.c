/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/prediction.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 64 };

static bool is_blank(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\r')) i++;
    return i == n;
}

bool next_line(line_reader *r, const char **line, size_t *n)
{
    while (r->at < r->size) {
        const char *end = memchr(r->s + r->at, '\n', r->size - r->at);
        *line = r->s + r->at;
        *n = (end ? (size_t)(end - r->s) : r->size) - r->at;
        r->at += *n + 1;
        r->number++;
        if (!is_blank(*line, *n)) return true;
    }
    return false;
}

static bool text_of(utf8_text *out, const json_t *j)
{
    if (!json_is_string(j)) return false;
    *out = (utf8_text){json_string_value(j), json_string_length(j)};
    return true;
}

static status text_list(utf8_text **out, size_t *n, const json_t *list, const char *where,
                        const char *field, err *e)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return err_set(e, ST_FORMAT, "%s: '%s': expected a list of texts that is not empty", where,
                       field);
    TRY(MEM_NEW(out, json_array_size(list), e));
    for (; *n < json_array_size(list); ++*n)
        if (!text_of(&(*out)[*n], json_array_get(list, *n)))
            return err_set(e, ST_FORMAT, "%s: '%s': element %zu is no text", where, field, *n);
    return ST_OK;
}

status prediction_read(prediction *p, const line_reader *r, const char *line, size_t n,
                       const char *field, err *e)
{
    char where[128];
    *p = (prediction){.length = -1};
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(r->name), r->number);
    TRY(json_parse_data(&p->root, line, n, where, MAX_DEPTH, e));
    if (!text_of(&p->text, json_object_get(p->root, field)))
        return err_set(e, ST_FORMAT, "%s: '%s': expected a text", where, field);
    TRY(text_list(&p->answers, &p->n_answers, json_object_get(p->root, "answers"), where, "answers",
                  e));
    const json_t *classes = json_object_get(p->root, "all_classes"),
                 *length = json_object_get(p->root, "length");
    if (classes && !json_is_null(classes))
        TRY(text_list(&p->classes, &p->n_classes, classes, where, "all_classes", e));
    if (!length) return ST_OK;
    p->length = json_integer_value(length);
    return json_is_integer(length) && p->length >= 0
               ? ST_OK
               : err_set(e, ST_FORMAT, "%s: 'length': expected a whole number", where);
}

void prediction_free(prediction *p)
{
    json_decref(p->root);
    mem_free(p->answers);
    mem_free(p->classes);
    *p = (prediction){0};
}

status prediction_failed(const line_reader *r, const err *inner, err *e)
{
    return err_set(e, inner->code, "%.90s line %zu: %.140s", path_tail(r->name), r->number,
                   inner->msg);
}
