/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* Kinds of metadata values, as numbered in the file. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_KINDS };

enum {
    PAIR_MIN = 8 + 1 + 4 + 1,           /* bytes of the shortest pair */
    TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* and of the shortest entry of a tensor */
    STRING_MAX = 1 << 30,
    DEFAULT_ALIGNMENT = 32
};

static const struct {
    const char *name;
    unsigned bytes; /* 0: variable */
} kinds[N_KINDS] = {{"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
                    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};

static const gguf_encoding encodings[] = {
    {GGUF_F32, "F32", 1, 4},       {GGUF_F16, "F16", 1, 2},         {GGUF_BF16, "BF16", 1, 2},
    {GGUF_Q4_0, "Q4_0", 32, 18},   {GGUF_Q4_1, "Q4_1", 32, 20},     {GGUF_Q5_0, "Q5_0", 32, 22},
    {GGUF_Q5_1, "Q5_1", 32, 24},   {GGUF_Q8_0, "Q8_0", 32, 34},     {GGUF_Q2_K, "Q2_K", 256, 84},
    {GGUF_Q3_K, "Q3_K", 256, 110}, {GGUF_Q4_K, "Q4_K", 256, 144},   {GGUF_Q5_K, "Q5_K", 256, 176},
    {GGUF_Q6_K, "Q6_K", 256, 210}, {GGUF_IQ4_NL, "IQ4_NL", 32, 18}, {GGUF_IQ4_XS, "IQ4_XS", 256, 136},
    {GGUF_MXFP4, "MXFP4", 32, 17}, {GGUF_NVFP4, "NVFP4", 64, 36},
};

/* Encodings that are known and have no decoder, by number. */
static const struct {
    uint32_t type;
    const char *name;
} refused[] = {{9, "Q8_1"},       {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},     {18, "IQ3_XXS"},
               {19, "IQ1_S"},     {21, "IQ3_S"}, {22, "IQ2_S"},   {24, "I8"},         {25, "I16"},
               {26, "I32"},       {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},      {34, "TQ1_0"},
               {35, "TQ2_0"},     {41, "Q1_0"},  {42, "Q2_0"},    {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
               {33, "Q4_0_8_8"},  {4, "Q4_2"},   {5, "Q4_3"},     {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"},
               {38, "IQ4_NL_8_8"}};

typedef struct {
    const char *key; /* not terminated */
    size_t key_bytes;
    uint32_t kind;
    bool array;
    uint64_t n; /* number of elements */
    const uint8_t *data;
} pair;

struct gguf {
    char *path;
    file_map map;
    const uint8_t *bytes;
    size_t size;
    pair *pairs; /* [n_pairs], by key */
    size_t n_pairs;
    gguf_tensor *tensors; /* [n_tensors] */
    const gguf_tensor **sorted;
    size_t n_tensors;
    err *e; /* while the file is read */
    const uint8_t *at;
};

static const char *label(const gguf *g)
{
    return path_tail(g->path);
}

/* ---- little-endian numbers ---- */

static uint64_t read_le(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = bytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static size_t left(const gguf *g)
{
    return (size_t)(g->bytes + g->size - g->at);
}

static status truncated(const gguf *g, const char *what)
{
    return err_set(g->e, ST_FORMAT, "%s: truncated: the file ends inside %s", label(g), what);
}

static status take(gguf *g, unsigned bytes, uint64_t *v, const char *what)
{
    *v = 0;
    if (left(g) < bytes) return truncated(g, what);
    *v = read_le(g->at, bytes);
    g->at += bytes;
    return ST_OK;
}

static status take_string(gguf *g, const char **s, size_t *n, const char *what)
{
    uint64_t bytes;
    TRY(take(g, 8, &bytes, what));
    if (bytes > STRING_MAX)
        return err_set(g->e, ST_FORMAT, "%s: %s: a string of %llu bytes, at most %d are allowed", label(g), what,
                       (unsigned long long)bytes, STRING_MAX);
    if (bytes > left(g)) return truncated(g, what);
    *s = (const char *)g->at;
    *n = (size_t)bytes;
    g->at += bytes;
    return ST_OK;
}

/* ---- metadata ---- */

static int compare_text(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int by_key(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return compare_text(x->key, x->key_bytes, y->key, y->key_bytes);
}

static status skip_values(gguf *g, const pair *p, const char *what)
{
    unsigned bytes = kinds[p->kind].bytes;
    if (bytes) {
        if (p->n > left(g) / bytes) return truncated(g, what);
        g->at += p->n * bytes;
        return ST_OK;
    }
    if (p->n > left(g) / 8) return truncated(g, what);
    for (uint64_t i = 0; i < p->n; i++) {
        const char *s;
        size_t n;
        TRY(take_string(g, &s, &n, what));
    }
    return ST_OK;
}

static status read_kind(gguf *g, uint32_t *kind, const char *what)
{
    uint64_t v;
    TRY(take(g, 4, &v, what));
    if (v >= N_KINDS)
        return err_set(g->e, ST_FORMAT, "%s: %s: value type %llu is unknown", label(g), what, (unsigned long long)v);
    *kind = (uint32_t)v;
    return ST_OK;
}

static status read_pair(gguf *g, pair *p)
{
    char what[96];
    TRY(take_string(g, &p->key, &p->key_bytes, "the metadata"));
    if (p->key_bytes == 0) return err_set(g->e, ST_FORMAT, "%s: a metadata key is empty", label(g));
    snprintf(what, sizeof what, "metadata key \"%.*s\"", p->key_bytes > 60 ? 60 : (int)p->key_bytes, p->key);
    TRY(read_kind(g, &p->kind, what));
    p->n = 1;
    p->array = p->kind == ARRAY;
    if (p->array) {
        TRY(read_kind(g, &p->kind, what));
        if (p->kind == ARRAY)
            return err_set(g->e, ST_UNSUPPORTED, "%s: %s: an array of arrays is not supported", label(g), what);
        TRY(take(g, 8, &p->n, what));
    }
    p->data = g->at;
    return skip_values(g, p, what);
}

static status read_pairs(gguf *g, uint64_t n)
{
    if (n > left(g) / PAIR_MIN)
        return err_set(g->e, ST_FORMAT, "%s: truncated: %llu metadata keys do not fit into %zu bytes", label(g),
                       (unsigned long long)n, left(g));
    TRY(MEM_NEW(&g->pairs, (size_t)n, g->e));
    for (; g->n_pairs < n; g->n_pairs++) TRY(read_pair(g, &g->pairs[g->n_pairs]));
    if (n) qsort(g->pairs, (size_t)n, sizeof *g->pairs, by_key);
    for (size_t i = 1; i < n; i++) {
        const pair *p = &g->pairs[i];
        if (by_key(p - 1, p) == 0)
            return err_set(g->e, ST_FORMAT, "%s: duplicate metadata key \"%.*s\"", label(g),
                           p->key_bytes > 60 ? 60 : (int)p->key_bytes, p->key);
    }
    return ST_OK;
}

static const pair *find(const gguf *g, const char *key)
{
    if (g->n_pairs == 0) return NULL;
    const pair want = {.key = key, .key_bytes = strlen(key)};
    return bsearch(&want, g->pairs, g->n_pairs, sizeof *g->pairs, by_key);
}

/* ---- the table of tensors ---- */

static status read_encoding(const gguf *g, gguf_tensor *t, uint64_t type)
{
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        if (encodings[i].type != type) continue;
        t->encoding = &encodings[i];
        return ST_OK;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].type == type)
            return err_set(
                g->e, ST_UNSUPPORTED,
                "%s: tensor %s has type %s, which is not supported; use a file in another quantization, such "
                "as Q4_K_M or Q8_0",
                label(g), t->name, refused[i].name);
    return err_set(g->e, ST_UNSUPPORTED, "%s: tensor %s has type %llu, which is unknown", label(g), t->name,
                   (unsigned long long)type);
}

/* Reads the sizes, which the file lists with the fastest dimension first, and computes the bytes. */
static status read_shape(gguf *g, gguf_tensor *t, uint64_t rank)
{
    uint64_t dims[GGUF_MAX_RANK] = {0}, type;
    size_t n = 1;
    bool over = false;
    if (rank < 1 || rank > GGUF_MAX_RANK)
        return err_set(g->e, ST_FORMAT, "%s: tensor %s has %llu dimensions, 1 to %d are supported", label(g), t->name,
                       (unsigned long long)rank, GGUF_MAX_RANK);
    t->rank = (size_t)rank;
    for (size_t i = 0; i < t->rank; i++) {
        TRY(take(g, 8, &dims[i], "the table of tensors"));
        t->shape[t->rank - 1 - i] = (size_t)dims[i];
        over |= __builtin_mul_overflow(n, (size_t)dims[i], &n) || n > INT64_MAX / 8;
    }
    TRY(take(g, 4, &type, "the table of tensors"));
    TRY(read_encoding(g, t, type));
    if (over)
        return err_set(g->e, ST_FORMAT, "%s: tensor %s: the product of its dimensions overflows", label(g), t->name);
    if (n == 0) return err_set(g->e, ST_FORMAT, "%s: tensor %s has no elements", label(g), t->name);
    if (dims[0] % t->encoding->elements)
        return err_set(g->e, ST_FORMAT, "%s: tensor %s: rows of %llu elements, %s needs a multiple of %u", label(g),
                       t->name, (unsigned long long)dims[0], t->encoding->name, t->encoding->elements);
    t->bytes = n / t->encoding->elements;
    if (__builtin_mul_overflow(t->bytes, (size_t)t->encoding->bytes, &t->bytes))
        return err_set(g->e, ST_FORMAT, "%s: tensor %s: its size overflows", label(g), t->name);
    return ST_OK;
}

/* Reads an entry; t->data is the offset until the data's start is known. */
static status read_tensor(gguf *g, gguf_tensor *t, uint64_t *offset)
{
    const char *name;
    size_t n;
    uint64_t rank;
    TRY(take_string(g, &name, &n, "the table of tensors"));
    if (n == 0 || n >= GGUF_NAME || memchr(name, 0, n))
        return err_set(g->e, ST_FORMAT, "%s: a tensor has a name of %zu bytes; 1 to %d without U+0000 are allowed",
                       label(g), n, GGUF_NAME - 1);
    memcpy(t->name, name, n);
    TRY(take(g, 4, &rank, "the table of tensors"));
    TRY(read_shape(g, t, rank));
    return take(g, 8, offset, "the table of tensors");
}

static int by_name(const void *a, const void *b)
{
    const gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int by_place(const void *a, const void *b)
{
    const gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

/* Checks that no two tensors share bytes or a name; leaves them in the order of names. */
static status check_tensors(const gguf *g)
{
    const gguf_tensor **s = g->sorted;
    if (g->n_tensors == 0) return ST_OK;
    qsort(s, g->n_tensors, sizeof *s, by_place);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (s[i]->data < s[i - 1]->data + s[i - 1]->bytes)
            return err_set(g->e, ST_FORMAT, "%s: tensors %s and %s overlap", label(g), s[i - 1]->name, s[i]->name);
    qsort(s, g->n_tensors, sizeof *s, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (strcmp(s[i]->name, s[i - 1]->name) == 0)
            return err_set(g->e, ST_FORMAT, "%s: duplicate tensor %s", label(g), s[i]->name);
    return ST_OK;
}

static status locate_tensors(gguf *g, const uint64_t *offsets, uint64_t alignment)
{
    size_t start = (size_t)(g->at - g->bytes), pad = (size_t)(-start & (alignment - 1));
    size_t room = pad < left(g) ? left(g) - pad : 0; /* bytes of data */
    for (size_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % alignment)
            return err_set(g->e, ST_FORMAT, "%s: tensor %s has offset %llu, not a multiple of the alignment %llu",
                           label(g), t->name, (unsigned long long)offsets[i], (unsigned long long)alignment);
        if (offsets[i] > room || t->bytes > room - offsets[i])
            return err_set(g->e, ST_FORMAT, "%s: truncated: tensor %s ends at byte %llu of the data, the file has %zu",
                           label(g), t->name, (unsigned long long)(offsets[i] + t->bytes), room);
        t->data = g->at + pad + offsets[i];
        g->sorted[i] = t;
    }
    return check_tensors(g);
}

static status read_tensors(gguf *g, uint64_t n)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    uint64_t *offsets = NULL;
    status st;
    if (n > left(g) / TENSOR_MIN)
        return err_set(g->e, ST_FORMAT, "%s: truncated: %llu tensors do not fit into %zu bytes", label(g),
                       (unsigned long long)n, left(g));
    TRY(gguf_int(g, "general.alignment", 1, 1 << 30, &alignment, g->e));
    if (alignment & (alignment - 1))
        return err_set(g->e, ST_FORMAT, "%s: general.alignment is %lld, expected a power of two", label(g),
                       (long long)alignment);
    TRY_GOTO(MEM_NEW(&g->tensors, (size_t)n, g->e));
    TRY_GOTO(MEM_NEW(&g->sorted, (size_t)n, g->e));
    TRY_GOTO(MEM_NEW(&offsets, (size_t)n, g->e));
    for (; g->n_tensors < n; g->n_tensors++)
        TRY_GOTO(read_tensor(g, &g->tensors[g->n_tensors], &offsets[g->n_tensors]));
    st = locate_tensors(g, offsets, (uint64_t)alignment);
done:
    mem_free(offsets);
    return st;
}

/* ---- the file ---- */

static status read_version(gguf *g)
{
    uint64_t v;
    TRY(take(g, 4, &v, "the header"));
    if ((v & 0xffff) == 0 && v)
        return err_set(g->e, ST_UNSUPPORTED, "%s: a big-endian GGUF file; only little-endian files are supported",
                       label(g));
    if (v != 2 && v != 3)
        return err_set(g->e, ST_UNSUPPORTED, "%s: GGUF version %llu; 2 and 3 are supported", label(g),
                       (unsigned long long)v);
    return ST_OK;
}

static status read_file(gguf *g)
{
    uint64_t n_tensors, n_pairs;
    TRY(file_check_pointer(g->bytes, g->size, label(g), g->e));
    g->at = g->bytes;
    if (g->size < 4 || memcmp(g->bytes, "GGUF", 4) != 0)
        return err_set(g->e, ST_FORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"", label(g));
    g->at += 4;
    TRY(read_version(g));
    TRY(take(g, 8, &n_tensors, "the header"));
    TRY(take(g, 8, &n_pairs, "the header"));
    TRY(read_pairs(g, n_pairs));
    return read_tensors(g, n_tensors);
}

static status open_any(gguf **out, const char *path, const uint8_t *data, size_t size, err *e)
{
    gguf *g;
    status st = ST_OK;
    *out = NULL;
    TRY(MEM_NEW(&g, 1, e));
    g->e = e;
    g->path = mem_strdup(path);
    if (!g->path) st = err_set(e, ST_NOMEM, "%s: out of memory", path_tail(path));
    if (st == ST_OK && !data) {
        st = file_map_open(&g->map, path, e);
        data = g->map.data;
        size = g->map.size;
    }
    g->bytes = data;
    g->size = data ? size : 0;
    if (st == ST_OK) st = read_file(g);
    if (st == ST_OK) *out = g;
    else gguf_close(g);
    return st;
}

status gguf_open(gguf **out, const char *path, err *e)
{
    return open_any(out, path, NULL, 0, e);
}

status gguf_open_memory(gguf **out, const uint8_t *data, size_t size, const char *name, err *e)
{
    return open_any(out, name, data, size, e);
}

void gguf_close(gguf *g)
{
    if (!g) return;
    file_map_close(&g->map);
    mem_free(g->pairs);
    mem_free(g->tensors);
    mem_free(g->sorted);
    mem_free(g->path);
    mem_free(g);
}

bool gguf_is_file(const char *path)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    size_t n = fread(magic, 1, sizeof magic, f);
    fclose(f);
    return n == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
}

const char *gguf_path(const gguf *g)
{
    return g->path;
}

size_t gguf_size(const gguf *g)
{
    return g->size;
}

size_t gguf_n_tensors(const gguf *g)
{
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i)
{
    return &g->tensors[i];
}

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    gguf_tensor want;
    const gguf_tensor *w = &want;
    if (g->n_tensors == 0 || strlen(name) >= GGUF_NAME) return NULL;
    strcpy(want.name, name);
    const gguf_tensor **t = bsearch(&w, g->sorted, g->n_tensors, sizeof *g->sorted, by_name);
    return t ? *t : NULL;
}

/* ---- values ---- */

enum {
    INTEGERS = 1 << U8 | 1 << I8 | 1 << U16 | 1 << I16 | 1 << U32 | 1 << I32 | 1 << U64 | 1 << I64,
    REALS = 1 << F32 | 1 << F64
};

/* Finds a value of one of some kinds; *out is NULL if the key is missing. */
static status find_value(const pair **out, const gguf *g, const char *key, unsigned allowed, bool array,
                         const char *wanted, err *e)
{
    const pair *p = *out = find(g, key);
    if (!p || (p->array == array && allowed >> p->kind & 1)) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: %s is %s%s, expected %s%s", label(g), key, p->array ? "an array of " : "of type ",
                   kinds[p->kind].name, array ? "an array of " : "", wanted);
}

static int64_t to_int(const uint8_t *p, uint32_t kind)
{
    uint64_t v = read_le(p, kinds[kind].bytes);
    switch (kind) {
    case I8: return (int8_t)v;
    case I16: return (int16_t)v;
    case I32: return (int32_t)v;
    case I64: return (int64_t)v;
    default: return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
}

static double to_real(const uint8_t *p, uint32_t kind)
{
    uint64_t bits = read_le(p, kinds[kind].bytes);
    uint32_t low = (uint32_t)bits;
    float f;
    double d;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return kind == F32 ? (double)f : d;
}

static status check_range(const gguf *g, const char *key, int64_t x, int64_t lo, int64_t hi, err *e)
{
    if (x >= lo && x <= hi) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: %s is %lld, expected %lld to %lld", label(g), key, (long long)x, (long long)lo,
                   (long long)hi);
}

status gguf_int(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, err *e)
{
    const pair *p;
    TRY(find_value(&p, g, key, INTEGERS, false, "an integer", e));
    if (!p) return ST_OK;
    int64_t x = to_int(p->data, p->kind);
    TRY(check_range(g, key, x, lo, hi, e));
    *v = x;
    return ST_OK;
}

status gguf_equal_ints(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, err *e)
{
    gguf_array a;
    if (!gguf_is_array(g, key)) return gguf_int(g, key, lo, hi, v, e);
    TRY(gguf_ints(g, key, &a, e));
    if (a.n == 0) return err_set(e, ST_FORMAT, "%s: %s is an empty array", label(g), key);
    int64_t first = gguf_next_int(&a);
    for (size_t i = 1; i < a.n; i++)
        if (gguf_next_int(&a) != first)
            return err_set(e, ST_UNSUPPORTED, "%s: %s differs between layers, which is not supported", label(g), key);
    TRY(check_range(g, key, first, lo, hi, e));
    *v = first;
    return ST_OK;
}

status gguf_real(const gguf *g, const char *key, double lo, double hi, double *v, err *e)
{
    const pair *p;
    TRY(find_value(&p, g, key, REALS | INTEGERS, false, "a number", e));
    if (!p) return ST_OK;
    double x = REALS >> p->kind & 1 ? to_real(p->data, p->kind) : (double)to_int(p->data, p->kind);
    if (!(x >= lo && x <= hi))
        return err_set(e, ST_FORMAT, "%s: %s is %g, expected %g to %g", label(g), key, x, lo, hi);
    *v = x;
    return ST_OK;
}

status gguf_bool(const gguf *g, const char *key, bool *v, err *e)
{
    const pair *p;
    TRY(find_value(&p, g, key, 1 << BOOL, false, "a bool", e));
    if (p) *v = *p->data != 0;
    return ST_OK;
}

status gguf_string(const gguf *g, const char *key, const char **v, size_t *n, err *e)
{
    const pair *p;
    TRY(find_value(&p, g, key, 1 << STRING, false, "a string", e));
    if (!p) return ST_OK;
    gguf_array a = {.at = p->data, .n = 1};
    *v = gguf_next_string(&a, n);
    return ST_OK;
}

status gguf_text(const gguf *g, const char *key, size_t max, char **v, err *e)
{
    const char *s = NULL;
    size_t n = 0;
    TRY(gguf_string(g, key, &s, &n, e));
    if (!s) return ST_OK;
    if (n > max || memchr(s, 0, n))
        return err_set(e, ST_FORMAT, "%s: %s is a string of %zu bytes; at most %zu without U+0000 are allowed",
                       label(g), key, n, max);
    TRY(mem_alloc((void **)v, n + 1, 1, key, e));
    memcpy(*v, s, n);
    return ST_OK;
}

bool gguf_has(const gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

bool gguf_is_array(const gguf *g, const char *key)
{
    const pair *p = find(g, key);
    return p && p->array;
}

static status find_array(const gguf *g, const char *key, unsigned allowed, const char *wanted, gguf_array *a, err *e)
{
    const pair *p;
    *a = (gguf_array){.key = key};
    TRY(find_value(&p, g, key, allowed, true, wanted, e));
    if (p) *a = (gguf_array){key, p->kind, (size_t)p->n, p->data};
    return ST_OK;
}

status gguf_ints(const gguf *g, const char *key, gguf_array *a, err *e)
{
    return find_array(g, key, INTEGERS, "integers", a, e);
}

status gguf_reals(const gguf *g, const char *key, gguf_array *a, err *e)
{
    return find_array(g, key, REALS | INTEGERS, "numbers", a, e);
}

status gguf_strings(const gguf *g, const char *key, gguf_array *a, err *e)
{
    return find_array(g, key, 1 << STRING, "strings", a, e);
}

int64_t gguf_next_int(gguf_array *a)
{
    int64_t v = to_int(a->at, a->kind);
    a->at += kinds[a->kind].bytes;
    return v;
}

double gguf_next_real(gguf_array *a)
{
    double v = REALS >> a->kind & 1 ? to_real(a->at, a->kind) : (double)to_int(a->at, a->kind);
    a->at += kinds[a->kind].bytes;
    return v;
}

const char *gguf_next_string(gguf_array *a, size_t *n)
{
    const char *s = (const char *)a->at + 8;
    *n = (size_t)read_le(a->at, 8);
    a->at += 8 + *n;
    return s;
}
