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
    if (r->at == 0) r->at = file_mark(r->s, r->size);
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
    *out = json_text(j);
    return true;
}

static status text_list(utf8_text **out, size_t *n, const json_t *list, const char *where, const char *field, err *e)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return err_set(e, ST_FORMAT, "%s: '%s': expected a nonempty list of texts", where, field);
    TRY(MEM_NEW(out, json_array_size(list), e));
    for (; *n < json_array_size(list); ++*n)
        if (!text_of(&(*out)[*n], json_array_get(list, *n)))
            return err_set(e, ST_FORMAT, "%s: '%s': element %zu is not a string", where, field, *n);
    return ST_OK;
}

/* Returns a text or number as a text; NULL: neither. */
static json_t *spell(const json_t *j)
{
    char text[40];
    if (json_is_string(j)) return json_stringn(json_string_value(j), json_string_length(j));
    if (json_is_integer(j)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(j));
    } else if (json_is_real(j)) {
        snprintf(text, sizeof text - 2, "%.17g", json_real_value(j));
        if (!strpbrk(text, ".e")) strcat(text, ".0");
    } else {
        return NULL;
    }
    return json_string(text);
}

status labels_spell(json_t **out, const json_t *labels, const char *where, const char *field, err *e)
{
    const json_t *first = json_array_get(labels, 0);
    if (json_is_array(first) && json_array_size(labels) == 1) labels = first;
    size_t n = json_is_array(labels) ? json_array_size(labels) : labels != NULL;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: '%s': expected a nonempty list", where, field);
    if (!(*out = json_array())) return err_set(e, ST_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(labels) ? json_array_get(labels, i) : labels;
        if (!json_is_string(one) && !json_is_number(one))
            return err_set(e, ST_FORMAT, "%s: '%s': expected texts or numbers", where, field);
        if (json_array_append_new(*out, spell(one)) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return ST_OK;
}

/* Stores the prefix of MRCR's answers as their only class. */
static status prefix_class(prediction *p, const json_t *prefix, const char *where, err *e)
{
    TRY(MEM_NEW(&p->classes, 1, e));
    p->n_classes = 1;
    return text_of(p->classes, prefix)
               ? ST_OK
               : err_set(e, ST_FORMAT, "%s: 'random_string_to_prepend': expected a string", where);
}

status prediction_of(prediction *p, json_t *root, const char *field, const char *labels, const char *where, err *e)
{
    const char *key = labels ? labels : "answers";
    const json_t *answers = json_object_get(root, key), *classes = json_object_get(root, "all_classes"),
                 *length = json_object_get(root, "length"), *prefix = json_object_get(root, "random_string_to_prepend");
    *p = (prediction){.length = -1};
    if (!text_of(&p->text, json_object_get(root, field)))
        return err_set(e, ST_FORMAT, "%s: '%s': expected a string", where, field);
    if (labels && answers) TRY(labels_spell(&p->spelled, answers, where, key, e));
    TRY(text_list(&p->answers, &p->n_answers, p->spelled ? p->spelled : answers, where, key, e));
    if (classes && !json_is_null(classes)) TRY(text_list(&p->classes, &p->n_classes, classes, where, "all_classes", e));
    else if (prefix) TRY(prefix_class(p, prefix, where, e));
    if (!length) return ST_OK;
    p->length = json_integer_value(length);
    return json_is_integer(length) && p->length >= 0
               ? ST_OK
               : err_set(e, ST_FORMAT, "%s: 'length': expected a whole number", where);
}

status prediction_read(prediction *p, const line_reader *r, const char *line, size_t n, const char *field,
                       const char *labels, err *e)
{
    char where[128];
    json_t *root;
    *p = (prediction){0};
    snprintf(where, sizeof where, "%.90s line %zu", path_tail(r->name), r->number);
    TRY(json_parse_data(&root, line, n, where, MAX_DEPTH, e));
    status st = prediction_of(p, root, field, labels, where, e);
    p->root = root;
    return st;
}

status labels_score(double *score, metrics *m, const metric *k, utf8_text said, const json_t *labels, err *e)
{
    size_t n = json_array_size(labels);
    utf8_text *answers;
    TRY(MEM_NEW(&answers, n, e));
    for (size_t i = 0; i < n; i++) text_of(&answers[i], json_array_get(labels, i));
    const metric_case c = {said, answers, n, NULL, 0};
    status st = metric_score(m, k, &c, score, e);
    mem_free(answers);
    return st;
}

status labels_check(metrics *m, const metric *k, const json_t *labels, const char *where, err *e)
{
    double unused;
    err inner = {0};
    status st = labels_score(&unused, m, k, (utf8_text){"", 0}, labels, &inner);
    return st == ST_OK ? ST_OK : err_set(e, st, "%s: %.140s", where, inner.msg);
}

void prediction_free(prediction *p)
{
    json_decref(p->root);
    json_decref(p->spelled);
    mem_free(p->answers);
    mem_free(p->classes);
    *p = (prediction){0};
}

status predictions_each(line_reader r, const char *field, const char *labels,
                        status (*take)(void *own, const prediction *p, err *e), void *own, err *e)
{
    const char *line;
    size_t n;
    status st = ST_OK;
    while (st == ST_OK && next_line(&r, &line, &n)) {
        prediction p;
        err inner = {0};
        st = prediction_read(&p, &r, line, n, field, labels, e);
        if (st == ST_OK && (st = take(own, &p, &inner)) != ST_OK)
            err_set(e, st, "%.90s line %zu: %.140s", path_tail(r.name), r.number, inner.msg);
        prediction_free(&p);
    }
    return st;
}
