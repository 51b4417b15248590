/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/keys.h"

#include <stdio.h>

/* Describes a value for messages: "the string \"abc\"". */
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

/* Returns in *out the value of a key; NULL if absent or null. types: bit set of allowed JSON types. */
static status get(const keys *k, const char *key, unsigned types, const char *expected, json_t **out)
{
    json_t *j = json_object_get(k->obj, key);
    *out = json_is_null(j) ? NULL : j;
    return !*out || types >> json_typeof(j) & 1 ? ST_OK : keys_wrong(k, key, j, expected);
}

status keys_int(const keys *k, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    char want[64];
    json_t *j;
    snprintf(want, sizeof want, "an integer in %lld..%lld", (long long)lo, (long long)hi);
    TRY(get(k, key, 1u << JSON_INTEGER, want, &j));
    if (!j) return ST_OK;
    if (json_integer_value(j) < lo || json_integer_value(j) > hi) return keys_wrong(k, key, j, want);
    *out = json_integer_value(j);
    return ST_OK;
}

status keys_real(const keys *k, const char *key, double lo, double hi, double *out)
{
    char want[64];
    json_t *j;
    snprintf(want, sizeof want, "a number in %g..%g", lo, hi);
    TRY(get(k, key, 1u << JSON_INTEGER | 1u << JSON_REAL, want, &j));
    if (!j) return ST_OK;
    double v = json_number_value(j);
    if (!(v >= lo && v <= hi)) return keys_wrong(k, key, j, want);
    *out = v;
    return ST_OK;
}

status keys_bool(const keys *k, const char *key, bool *out)
{
    json_t *j;
    TRY(get(k, key, 1u << JSON_TRUE | 1u << JSON_FALSE, "true or false", &j));
    if (j) *out = json_is_true(j);
    return ST_OK;
}

status keys_string(const keys *k, const char *key, const char **out)
{
    json_t *j;
    TRY(get(k, key, 1u << JSON_STRING, "a string", &j));
    if (j) *out = json_string_value(j);
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
    return get(k, key, 1u << JSON_ARRAY, "a list", out);
}

status keys_object(const keys *k, const char *key, json_t **out)
{
    return get(k, key, 1u << JSON_OBJECT, "an object", out);
}
