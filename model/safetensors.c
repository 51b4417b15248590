/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { HEADER_MAX = 100000000, HEADER_DEPTH = 32 };

typedef struct {
    st_tensor t;
    size_t begin, end; /* offsets within the data area */
} entry;

struct st_file {
    char *path;
    file_map map;         /* data NULL: memory owned by the caller */
    const uint8_t *bytes; /* the whole file */
    size_t size, data_at; /* data_at: offset of the tensors' data */
    json_t *header;       /* owns the names */
    size_t n;
    entry *entries;           /* [n], in file order */
    const st_tensor **sorted; /* [n], sorted by tensor name */
};

/* Bits of one element. Source: safetensors/src/tensor.rs, Dtype. */
static const struct {
    const char *name;
    unsigned bits;
} types[] = {
    {"F64", 64},    {"F32", 32},    {"F16", 16},    {"BF16", 16}, {"I64", 64},    {"I32", 32},    {"I16", 16},
    {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16},  {"U8", 8},      {"BOOL", 8},    {"C64", 64},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

/* Prefix of messages. Names come from the file and may be long. */
#define FILE_TENSOR "%s: tensor \"%.60s\": "

static const char *label(const st_file *f)
{
    return path_tail(f->path);
}

static uint64_t read_u64_le(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Reads a member that must be an integer >= 0. */
static status read_size(const st_file *f, const char *tensor, const char *key, const json_t *j, size_t *out, err *e)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return err_set(e, ST_FORMAT, FILE_TENSOR "%s must hold integers >= 0", label(f), tensor, key);
    *out = (size_t)json_integer_value(j);
    return ST_OK;
}

static status read_type(const st_file *f, st_tensor *t, const json_t *j, unsigned *bits, err *e)
{
    const char *s = json_string_value(j);
    if (!s) return err_set(e, ST_FORMAT, FILE_TENSOR "\"dtype\" is missing or not a string", label(f), t->name);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(s, types[i].name) != 0) continue;
        memcpy(t->type, s, strlen(s) + 1);
        *bits = types[i].bits;
        return ST_OK;
    }
    return err_set(e, ST_FORMAT, FILE_TENSOR "unknown dtype \"%.20s\"", label(f), t->name, s);
}

/* Reads "shape". *bytes: size required by shape and type. */
static status read_shape(const st_file *f, st_tensor *t, const json_t *j, unsigned bits, size_t *bytes, err *e)
{
    if (!json_is_array(j))
        return err_set(e, ST_FORMAT, FILE_TENSOR "\"shape\" is missing or not a list", label(f), t->name);
    t->rank = json_array_size(j);
    if (t->rank > ST_MAX_RANK)
        return err_set(e, ST_FORMAT, FILE_TENSOR "%zu dimensions in \"shape\", at most %d allowed", label(f), t->name,
                       t->rank, ST_MAX_RANK);
    size_t n = 1;
    bool over = false;
    for (size_t i = 0; i < t->rank; i++) {
        TRY(read_size(f, t->name, "\"shape\"", json_array_get(j, i), &t->shape[i], e));
        over |= __builtin_mul_overflow(n, t->shape[i], &n);
    }
    over |= __builtin_mul_overflow(n, (size_t)bits, &n);
    if (over) return err_set(e, ST_FORMAT, FILE_TENSOR "the product of \"shape\" overflows", label(f), t->name);
    if (n % 8) return err_set(e, ST_FORMAT, FILE_TENSOR "\"shape\" does not fill whole bytes", label(f), t->name);
    *bytes = n / 8;
    return ST_OK;
}

static status read_entry(const st_file *f, entry *x, const char *name, const json_t *j, err *e)
{
    size_t want = 0, room = f->size - f->data_at;
    unsigned bits = 0;
    x->t.name = name;
    if (!json_is_object(j)) return err_set(e, ST_FORMAT, FILE_TENSOR "the entry is not a JSON object", label(f), name);
    TRY(read_type(f, &x->t, json_object_get(j, "dtype"), &bits, e));
    TRY(read_shape(f, &x->t, json_object_get(j, "shape"), bits, &want, e));
    const json_t *o = json_object_get(j, "data_offsets");
    if (!json_is_array(o) || json_array_size(o) != 2)
        return err_set(e, ST_FORMAT, FILE_TENSOR "\"data_offsets\" is missing or not [begin, end]", label(f), name);
    TRY(read_size(f, name, "\"data_offsets\"", json_array_get(o, 0), &x->begin, e));
    TRY(read_size(f, name, "\"data_offsets\"", json_array_get(o, 1), &x->end, e));
    if (x->begin > x->end)
        return err_set(e, ST_FORMAT, FILE_TENSOR "\"data_offsets\" [%zu, %zu] end before they begin", label(f), name,
                       x->begin, x->end);
    if (x->end > room)
        return err_set(e, ST_FORMAT,
                       FILE_TENSOR "\"data_offsets\" [%zu, %zu] reach past the end of the file, which "
                                   "holds %zu bytes of data (truncated?)",
                       label(f), name, x->begin, x->end, room);
    if (x->end - x->begin != want)
        return err_set(e, ST_FORMAT, FILE_TENSOR "\"data_offsets\" hold %zu bytes, but shape and dtype %s require %zu",
                       label(f), name, x->end - x->begin, x->t.type, want);
    x->t.bytes = want;
    x->t.data = f->bytes + f->data_at + x->begin;
    return ST_OK;
}

static status check_metadata(const st_file *f, json_t *meta, err *e)
{
    const char *key;
    json_t *v;
    if (json_is_null(meta)) return ST_OK; /* the reference treats null as absent */
    if (!json_is_object(meta)) return err_set(e, ST_FORMAT, "%s: \"__metadata__\" is not a JSON object", label(f));
    json_object_foreach(meta, key, v)
    {
        if (!json_is_string(v))
            return err_set(e, ST_FORMAT, "%s: \"__metadata__\": \"%.60s\" is not a string", label(f), key);
    }
    return ST_OK;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

static int by_name(const void *a, const void *b)
{
    const st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Checks that the tensors fill the data area exactly, as the reference implementation requires: uncovered bytes could
 * hide a second file. */
static status check_layout(const st_file *f, err *e)
{
    size_t at = 0, room = f->size - f->data_at;
    for (size_t i = 0; i < f->n; i++) {
        const entry *x = &f->entries[i];
        if (x->begin < at)
            return err_set(e, ST_FORMAT, FILE_TENSOR "\"data_offsets\" [%zu, %zu] overlap tensor \"%.60s\"", label(f),
                           x->t.name, x->begin, x->end, f->entries[i - 1].t.name);
        if (x->begin > at)
            return err_set(e, ST_FORMAT, FILE_TENSOR "gap of %zu bytes before its data", label(f), x->t.name,
                           x->begin - at);
        at = x->end;
    }
    if (at != room)
        return err_set(e, ST_FORMAT, "%s: %zu bytes after the last tensor (file too long)", label(f), room - at);
    return ST_OK;
}

static status read_header(st_file *f, err *e)
{
    const char *key;
    json_t *v;
    TRY(file_check_pointer(f->bytes, f->size, label(f), e));
    if (f->size < 8)
        return err_set(e, ST_FORMAT,
                       "%s: truncated header: %zu bytes, a safetensors file begins with 8 "
                       "bytes of header length",
                       label(f), f->size);
    uint64_t n = read_u64_le(f->bytes);
    if (n > HEADER_MAX)
        return err_set(e, ST_FORMAT, "%s: header of %llu bytes, at most %d allowed (not a safetensors file?)", label(f),
                       (unsigned long long)n, HEADER_MAX);
    if (n > f->size - 8)
        return err_set(e, ST_FORMAT, "%s: truncated header: its length is %llu, but only %zu bytes follow", label(f),
                       (unsigned long long)n, f->size - 8);
    f->data_at = 8 + (size_t)n;
    TRY(json_parse_object(&f->header, (const char *)f->bytes + 8, (size_t)n, label(f), HEADER_DEPTH, e));
    size_t count = json_object_size(f->header);
    TRY(MEM_NEW(&f->entries, count, e));
    TRY(MEM_NEW(&f->sorted, count, e));
    json_object_foreach(f->header, key, v)
    {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(check_metadata(f, v, e));
        } else {
            TRY(read_entry(f, &f->entries[f->n], key, v, e));
            f->n++;
        }
    }
    if (f->n) qsort(f->entries, f->n, sizeof *f->entries, by_offset);
    TRY(check_layout(f, e));
    for (size_t i = 0; i < f->n; i++) f->sorted[i] = &f->entries[i].t;
    if (f->n) qsort(f->sorted, f->n, sizeof *f->sorted, by_name);
    return ST_OK;
}

static status open_any(st_file **out, const char *path, const uint8_t *data, size_t size, bool map, err *e)
{
    st_file *f = NULL;
    status st;
    *out = NULL;
    TRY(MEM_NEW(&f, 1, e));
    f->path = mem_strdup(path);
    if (!f->path) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", path_tail(path));
        goto done;
    }
    if (map) {
        TRY_GOTO(file_map_open(&f->map, path, e));
        data = f->map.data;
        size = f->map.size;
    }
    f->bytes = data;
    f->size = size;
    TRY_GOTO(read_header(f, e));
    *out = f;
    f = NULL;
done:
    st_close(f);
    return st;
}

status st_open(st_file **out, const char *path, err *e)
{
    return open_any(out, path, NULL, 0, true, e);
}

status st_open_memory(st_file **out, const uint8_t *data, size_t size, const char *name, err *e)
{
    return open_any(out, name, data, size, false, e);
}

void st_close(st_file *f)
{
    if (!f) return;
    json_decref(f->header);
    file_map_close(&f->map);
    mem_free(f->entries);
    mem_free(f->sorted);
    mem_free(f->path);
    mem_free(f);
}

size_t st_count(const st_file *f)
{
    return f->n;
}

const st_tensor *st_at(const st_file *f, size_t i)
{
    return &f->entries[i].t;
}

const st_tensor *st_find(const st_file *f, const char *name)
{
    const st_tensor key = {.name = name}, *k = &key;
    if (!f->n) return NULL;
    const st_tensor **hit = bsearch(&k, f->sorted, f->n, sizeof *f->sorted, by_name);
    return hit ? *hit : NULL;
}

const char *st_path(const st_file *f)
{
    return f->path;
}

size_t st_size(const st_file *f)
{
    return f->size;
}
