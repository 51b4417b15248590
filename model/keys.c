/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/keys.h"

#include <stdio.h>

static json_t *get(const keys *k, const char *key)
{
    json_t *j = json_object_get(k->obj, key);
    return json_is_null(j) ? NULL : j;
}

/* What a value is, for messages: "the string \"abc\"". */
static void describe(char *s, size_t n, const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT: snprintf(s, n, "an object"); break;
    case JSON_ARRAY: snprintf(s, n, "a list of %zu", json_array_size(j)); break;
    case JSON_STRING: snprintf(s, n, "the string \"%.24s\"", json_string_value(j)); break;
    case JSON_INTEGER: snprintf(s, n, "%lld", (long long)json_integer_value(j)); break;
    case JSON_REAL: snprintf(s, n, "the number %g", json_real_value(j)); break;
    case JSON_TRUE: snprintf(s, n, "true"); break;
    case JSON_FALSE: snprintf(s, n, "false"); break;
    default: snprintf(s, n, "null"); break;
    }
}

status keys_wrong(const keys *k, const char *key, const json_t *found, const char *expected)
{
    char what[64];
    describe(what, sizeof what, found);
    return err_set(k->e, ST_FORMAT, "%s: \"%s%s\" is %s, expected %s", k->file, k->prefix, key, what, expected);
}

status keys_missing(const keys *k, const char *key)
{
    return err_set(k->e, ST_FORMAT, "%s: \"%s%s\" is missing", k->file, k->prefix, key);
}

status keys_int(const keys *k, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *j = get(k, key);
    if (!j) return ST_OK;
    if (!json_is_integer(j) || json_integer_value(j) < lo || json_integer_value(j) > hi) {
        char want[64];
        snprintf(want, sizeof want, "an integer in %lld..%lld", (long long)lo, (long long)hi);
        return keys_wrong(k, key, j, want);
    }
    *out = json_integer_value(j);
    return ST_OK;
}

status keys_real(const keys *k, const char *key, double lo, double hi, double *out)
{
    const json_t *j = get(k, key);
    if (!j) return ST_OK;
    double v = json_number_value(j);
    if (!json_is_number(j) || !(v >= lo && v <= hi)) {
        char want[64];
        snprintf(want, sizeof want, "a number in %g..%g", lo, hi);
        return keys_wrong(k, key, j, want);
    }
    *out = v;
    return ST_OK;
}

status keys_bool(const keys *k, const char *key, bool *out)
{
    const json_t *j = get(k, key);
    if (!j) return ST_OK;
    if (!json_is_boolean(j)) return keys_wrong(k, key, j, "true or false");
    *out = json_is_true(j);
    return ST_OK;
}

status keys_string(const keys *k, const char *key, const char **out)
{
    const json_t *j = get(k, key);
    if (!j) return ST_OK;
    if (!json_is_string(j)) return keys_wrong(k, key, j, "a string");
    *out = json_string_value(j);
    return ST_OK;
}

status keys_dim(const keys *k, const char *key, int64_t hi, int *out)
{
    int64_t v = *out;
    TRY(keys_int(k, key, 1, hi, &v));
    if (v == 0) return keys_missing(k, key);
    *out = (int)v;
    return ST_OK;
}

status keys_array(const keys *k, const char *key, json_t **out)
{
    *out = get(k, key);
    if (*out && !json_is_array(*out)) return keys_wrong(k, key, *out, "a list");
    return ST_OK;
}

status keys_object(const keys *k, const char *key, json_t **out)
{
    *out = get(k, key);
    if (*out && !json_is_object(*out)) return keys_wrong(k, key, *out, "an object");
    return ST_OK;
}
