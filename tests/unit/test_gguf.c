/* SPDX-License-Identifier: MIT */
/* GGUF files: header, metadata, the table of tensors, and what is refused. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/base/gguf.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/files.h"
#include "tests/unit/gguf_file.h"
#include "tests/unit/oom.h"

static gguf *open_file(const gguf_file *f, const char *what)
{
    gguf *g;
    err e = {0};
    is_ok(gguf_open_memory(&g, f->p, f->n, "mem", &e), &e, "%s", what);
    return g;
}

/* Expects that a file is refused; the message names it. Frees the file. */
static void refused(gguf_file *f, status want, const char *part, const char *name)
{
    gguf *g;
    err e = {0};
    is_err(gguf_open_memory(&g, f->p, f->n, "dir/x.gguf", &e), &e, want, part, "%s", name);
    ok(!g && strstr(e.msg, "dir/x.gguf: "), "%s: names the file", name);
    gguf_close(g);
    free(f->p);
    *f = (gguf_file){0};
}

/* ---- tensors ---- */

/* Two tensors of rows of 32, the second one of the table first in the file. */
static void two_tensors(gguf_file *f, uint32_t version)
{
    file_begin(f, version, 2, 0);
    entry(f, "b.weight", 2, (const uint64_t[]){64, 3}, GGUF_Q8_0, 32);
    entry(f, "a.weight", 1, (const uint64_t[]){7}, GGUF_F32, 0);
    file_data(f, 32, 32 + 6 * 34);
}

static void test_tensors(void)
{
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_file f = {0};
        two_tensors(&f, version);
        gguf *g = open_file(&f, version == 2 ? "version 2 opens" : "version 3 opens");
        if (g) {
            is_int((long long)gguf_n_tensors(g), 2, "tensors");
            const gguf_tensor *t = gguf_find_tensor(g, "b.weight");
            ok(t == gguf_tensor_at(g, 0), "is the first of the table");
            is_str(t->encoding->name, "Q8_0", "encoding");
            ok(t->rank == 2 && t->shape[0] == 3 && t->shape[1] == 64, "shape, slowest first");
            is_int((long long)t->bytes, 6 * 34, "bytes");
            is_int(t->data[0], 32, "data");
            is_int(gguf_find_tensor(g, "a.weight")->data[0], 0, "data of the other");
            ok(!gguf_find_tensor(g, "c") && !gguf_find_tensor(g, ""), "unknown names");
            char name[80];
            memset(name, 'n', sizeof name);
            name[79] = 0;
            ok(!gguf_find_tensor(g, name), "a name that is too long");
            ok(strcmp(gguf_path(g), "mem") == 0 && gguf_size(g) == f.n, "path, size");
        }
        gguf_close(g);
        free(f.p);
    }
    gguf_file f = {0};
    file_begin(&f, 3, 0, 0);
    gguf *g = open_file(&f, "a file without tensors and keys opens");
    ok(g && gguf_n_tensors(g) == 0 && !gguf_find_tensor(g, "a") && !gguf_has(g, "k"), "and holds none");
    gguf_close(g);
    gguf_close(NULL);
    free(f.p);
}

static void test_alignment(void)
{
    gguf_file f = {0};
    file_begin(&f, 3, 2, 1);
    pair_u32(&f, "general.alignment", 128);
    entry(&f, "a", 1, (const uint64_t[]){1}, GGUF_F16, 128);
    entry(&f, "b", 4, (const uint64_t[]){1, 1, 2, 1}, GGUF_F16, 0);
    file_data(&f, 128, 130);
    gguf *g = open_file(&f, "alignment 128");
    if (g) is_int(gguf_find_tensor(g, "a")->data[0], 128, "data after a gap");
    if (g) ok((gguf_find_tensor(g, "b")->data - f.p) % 128 == 0, "the data start at a multiple");
    gguf_close(g);
    free(f.p);
    f = (gguf_file){0};
    file_begin(&f, 3, 1, 1);
    pair_u32(&f, "general.alignment", 1);
    entry(&f, "a", 1, (const uint64_t[]){3}, GGUF_F32, 1);
    file_data(&f, 1, 13);
    g = open_file(&f, "alignment 1, floats at an odd address");
    if (g) is_int(gguf_find_tensor(g, "a")->data[0], 1, "their data");
    gguf_close(g);
    free(f.p);
}

/* Every file that is cut short is refused. */
static void test_cuts(void)
{
    gguf_file f = {0};
    two_tensors(&f, 3);
    bool all = true;
    size_t i;
    for (i = 0; all && i < f.n; i++) {
        uint8_t *copy = malloc(i + 1); /* so that sanitizers see each byte that is read beyond it */
        gguf *g;
        err e = {0};
        if (!copy) exit(1);
        memcpy(copy, f.p, i);
        const char *want = i < 4 ? "does not begin with" : "truncated";
        all = gguf_open_memory(&g, copy, i, "x.gguf", &e) == ST_FORMAT && strstr(e.msg, want);
        free(copy);
    }
    ok(all, "cut at every byte: refused (%zu of %zu)", i, f.n);
    free(f.p);
}

/* ---- refused headers and tables ---- */

static void test_header(void)
{
    static const struct {
        const char *name;
        uint32_t version;
        uint64_t n_tensors, n_pairs;
        status want;
        const char *part;
    } bad[] = {
        {"version 0", 0, 0, 0, ST_UNSUPPORTED, "GGUF version 0; 2 and 3 are supported"},
        {"version 1", 1, 0, 0, ST_UNSUPPORTED, "GGUF version 1; 2 and 3 are supported"},
        {"version 4", 4, 0, 0, ST_UNSUPPORTED, "GGUF version 4; 2 and 3 are supported"},
        {"big-endian", 3u << 24, 0, 0, ST_UNSUPPORTED, "big-endian"},
        {"2^64 - 1 keys", 3, 0, UINT64_MAX, ST_FORMAT, "18446744073709551615 metadata keys do not fit into 0 bytes"},
        {"2^64 - 1 tensors", 3, UINT64_MAX, 0, ST_FORMAT, "18446744073709551615 tensors do not fit into 0 bytes"},
    };
    gguf_file f = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file_begin(&f, bad[i].version, bad[i].n_tensors, bad[i].n_pairs);
        refused(&f, bad[i].want, bad[i].part, bad[i].name);
    }
    put(&f, "GGML", 4);
    refused(&f, ST_FORMAT, "not a GGUF file: it does not begin with \"GGUF\"", "other magic bytes");
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 273672\n";
    put(&f, pointer, strlen(pointer));
    refused(&f, ST_FORMAT, "a Git LFS pointer", "a pointer");
}

/* One tensor each. */
static void test_entries(void)
{
    static const struct {
        const char *name;
        uint32_t rank;
        uint64_t dim[5];
        uint32_t type;
        uint64_t offset;
        const char *part;
    } bad[] = {
        {"no dimensions", 0, {0}, GGUF_F32, 0, "tensor t has 0 dimensions, 1 to 4 are supported"},
        {"5 dimensions", 5, {1, 1, 1, 1, 1}, GGUF_F32, 0, "tensor t has 5 dimensions"},
        {"empty", 2, {32, 0}, GGUF_F32, 0, "tensor t has no elements"},
        {"product 2^64", 2, {1ull << 32, 1ull << 32}, GGUF_F32, 0, "the product of its dimensions overflows"},
        {"product 2^64 and 0", 3, {1ull << 32, 1ull << 32, 0}, GGUF_F32, 0, "overflows"},
        {"product 2^63", 2, {1ull << 32, 1ull << 31}, GGUF_Q4_0, 0, "the product of its dimensions overflows"},
        {"a dimension of 2^64 - 1", 1, {UINT64_MAX}, GGUF_F32, 0, "overflows"},
        {"too large for the file", 1, {1ull << 59}, GGUF_F32, 0, "truncated: tensor t"},
        {"row of 31", 2, {31, 32}, GGUF_Q8_0, 0, "rows of 31 elements, Q8_0 needs a multiple of 32"},
        {"row of 32", 2, {32, 8}, GGUF_Q4_K, 0, "rows of 32 elements, Q4_K needs a multiple of 256"},
        {"row of 32", 2, {32, 2}, GGUF_NVFP4, 0, "rows of 32 elements, NVFP4 needs a multiple of 64"},
        {"offset 16", 1, {1}, GGUF_F32, 16, "offset 16, not a multiple of the alignment 32"},
        {"beyond the end", 1, {33}, GGUF_F32, 0, "truncated: tensor t"},
        {"offset beyond the end", 1, {1}, GGUF_F32, 160, "truncated: tensor t"},
        {"offset 2^64 - 32", 1, {16}, GGUF_F32, UINT64_MAX - 31, "truncated: tensor t"},
    };
    gguf_file f = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file_begin(&f, 3, 1, 0);
        entry(&f, "t", bad[i].rank, bad[i].dim, bad[i].type, bad[i].offset);
        file_data(&f, 32, 128);
        refused(&f, ST_FORMAT, bad[i].part, bad[i].name);
    }
}

/* Checks the message for each type without a decoder. */
static void test_types(void)
{
    static const struct {
        uint32_t type;
        const char *name;
    } bad[] = {
        {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},      {15, "Q8_K"},
        {16, "IQ2_XXS"},    {17, "IQ2_XS"},     {18, "IQ3_XXS"},  {19, "IQ1_S"},
        {21, "IQ3_S"},      {22, "IQ2_S"},      {24, "I8"},       {25, "I16"},
        {26, "I32"},        {27, "I64"},        {28, "F64"},      {29, "IQ1_M"},
        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"}, {34, "TQ1_0"},
        {35, "TQ2_0"},      {41, "Q1_0"},       {42, "Q2_0"},     {36, "IQ4_NL_4_4"},
        {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {43, "43"},       {1u << 31, "2147483648"},
    };
    gguf_file f = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char part[64];
        snprintf(part, sizeof part, "tensor t has type %s, which is ", bad[i].name);
        file_begin(&f, 3, 1, 0);
        entry(&f, "t", 1, (const uint64_t[]){256}, bad[i].type, 0);
        file_data(&f, 32, 128);
        refused(&f, ST_UNSUPPORTED, part, bad[i].name);
    }
}

static void test_names(void)
{
    gguf_file f = {0};
    char name[80];
    for (int i = 0; i < 3; i++) { /* of 0, 64 and 63 bytes */
        int n = i == 0 ? 0 : i == 1 ? 64 : 63;
        snprintf(name, sizeof name, "%0*d", n, 0);
        if (n == 0) name[0] = 0;
        file_begin(&f, 3, 1, 0);
        entry(&f, name, 1, (const uint64_t[]){1}, GGUF_F32, 0);
        file_data(&f, 32, 4);
        if (i < 2) refused(&f, ST_FORMAT, i ? "a name of 64 bytes" : "a name of 0 bytes", "length of a name");
    }
    gguf *g = open_file(&f, "a name of 63 bytes");
    ok(g && gguf_find_tensor(g, name), "is found");
    gguf_close(g);
    f.p[24 + 8 + 5] = 0;
    refused(&f, ST_FORMAT, "without U+0000", "U+0000 in a name");
    file_begin(&f, 3, 1, 0);
    put_le(&f, 1ull << 60, 8);
    put(&f, name, 60);
    refused(&f, ST_FORMAT, "a string of 1152921504606846976 bytes", "a name of 2^60 bytes");
    for (int i = 0; i < 2; i++) {
        file_begin(&f, 3, 3, 0);
        entry(&f, "x", 1, (const uint64_t[]){8}, GGUF_F32, 32);
        entry(&f, "y", 1, (const uint64_t[]){i ? 8 : 9}, GGUF_F32, 0);
        entry(&f, i ? "x" : "z", 1, (const uint64_t[]){8}, GGUF_F32, 64);
        file_data(&f, 32, 96);
        refused(&f, ST_FORMAT, i ? "duplicate tensor x" : "tensors y and x overlap", "two tensors");
    }
}

/* ---- metadata ---- */

/* Integers of all widths, with values at the limits. */
static void all_integers(gguf_file *f, uint64_t bits)
{
    static const struct {
        const char *key;
        uint32_t kind;
        unsigned bytes;
    } kinds[] = {{"u8", K_U8, 1},   {"i8", K_I8, 1},   {"u16", K_U16, 2}, {"i16", K_I16, 2},
                 {"u32", K_U32, 4}, {"i32", K_I32, 4}, {"u64", K_U64, 8}, {"i64", K_I64, 8}};
    file_begin(f, 3, 0, 8);
    for (size_t i = 0; i < 8; i++) {
        pair_begin(f, kinds[i].key, kinds[i].kind);
        put_le(f, bits, kinds[i].bytes);
    }
}

static int64_t get_int(const gguf *g, const char *key)
{
    int64_t v = -77;
    err e = {0};
    if (gguf_int(g, key, INT64_MIN, INT64_MAX, &v, &e) != ST_OK) printf("# %s\n", e.msg);
    return v;
}

static void test_integers(void)
{
    gguf_file f = {0};
    all_integers(&f, UINT64_MAX);
    gguf *g = open_file(&f, "integers, all bits set");
    if (!g) exit(1);
    is_int(get_int(g, "u8"), 255, "u8");
    is_int(get_int(g, "i8"), -1, "i8");
    is_int(get_int(g, "u16"), 65535, "u16");
    is_int(get_int(g, "i16"), -1, "i16");
    is_int(get_int(g, "u32"), 4294967295, "u32");
    is_int(get_int(g, "i32"), -1, "i32");
    is_int(get_int(g, "u64"), INT64_MAX, "u64: clipped");
    is_int(get_int(g, "i64"), -1, "i64");
    is_int(get_int(g, "none"), -77, "a missing key leaves the value");
    int64_t v = 5;
    double r = 5;
    err e = {0};
    is_err(gguf_int(g, "i8", 0, 9, &v, &e), &e, ST_FORMAT, "mem: i8 is -1, expected 0 to 9", "below the range");
    e = (err){0};
    is_err(gguf_int(g, "u8", 0, 9, &v, &e), &e, ST_FORMAT, "mem: u8 is 255, expected 0 to 9", "above the range");
    e = (err){0};
    ok(v == 5, "and the value is left");
    is_ok(gguf_real(g, "u16", 0, 1e9, &r, &e), &e, "an integer as a real");
    ok(r == 65535, "its value");
    gguf_close(g);
    free(f.p);
}

static void put_f64(gguf_file *f, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    put_le(f, bits, 8);
}

/* A file with one key of each other kind. */
static gguf_file mixed(void)
{
    gguf_file f = {0};
    file_begin(&f, 3, 0, 11);
    pair_begin(&f, "f32", K_F32), put_le(&f, 0xc0200000, 4);
    pair_begin(&f, "f64", K_F64), put_f64(&f, 1e-300);
    pair_begin(&f, "nan", K_F32), put_le(&f, 0x7fc00000, 4);
    pair_begin(&f, "true", K_BOOL), put_le(&f, 1, 1);
    pair_begin(&f, "false", K_BOOL), put_le(&f, 0, 1);
    pair_text(&f, "text", "h\xc3\xa9llo");
    pair_text(&f, "", "x");
    f.n -= 8 + 4 + 9; /* no empty key */
    pair_begin(&f, "zero", K_STRING), put_le(&f, 3, 8), put(&f, "a\0b", 3);
    array_begin(&f, "ints", K_I16, 3), put_le(&f, 7, 2), put_le(&f, 0xfffe, 2), put_le(&f, 9, 2);
    array_begin(&f, "reals", K_F64, 2), put_f64(&f, 0.5), put_f64(&f, -3);
    array_begin(&f, "strings", K_STRING, 3), put_text(&f, "one"), put_text(&f, ""), put_text(&f, "three");
    array_begin(&f, "nothing", K_STRING, 0);
    return f;
}

static void test_values(void)
{
    gguf_file f = mixed();
    gguf *g = open_file(&f, "values of the other kinds");
    err e = {0};
    double r = 0;
    bool yes = false, no = true;
    const char *s = NULL;
    char *copy = NULL;
    size_t n = 0;
    if (!g) exit(1);
    is_ok(gguf_real(g, "f32", -10, 10, &r, &e), &e, "f32");
    ok(r == -2.5, "its value");
    is_ok(gguf_real(g, "f64", 0, 1, &r, &e), &e, "f64");
    ok(r == 1e-300, "its value");
    is_ok(gguf_bool(g, "true", &yes, &e), &e, "true");
    is_ok(gguf_bool(g, "false", &no, &e), &e, "false");
    ok(yes && !no, "their values");
    is_ok(gguf_string(g, "text", &s, &n, &e), &e, "a string");
    ok(n == 6 && s && memcmp(s, "h\xc3\xa9llo", 6) == 0, "its bytes");
    is_ok(gguf_text(g, "text", 6, &copy, &e), &e, "a copy");
    is_str(copy, "h\xc3\xa9llo", "is terminated");
    mem_free(copy);
    copy = NULL;
    is_ok(gguf_text(g, "none", 6, &copy, &e), &e, "a missing key");
    ok(!copy, "gives no copy");
    ok(gguf_has(g, "text") && !gguf_has(g, "tex") && !gguf_has(g, "texts"), "keys that are there");
    ok(gguf_is_array(g, "ints") && !gguf_is_array(g, "text") && !gguf_is_array(g, "none"), "arrays");
    is_err(gguf_real(g, "nan", -1e30, 1e30, &r, &e), &e, ST_FORMAT, "nan is nan, expected", "NaN");
    e = (err){0};
    is_err(gguf_text(g, "text", 5, &copy, &e), &e, ST_FORMAT, "text is a string of 6 bytes; at most 5", "too long");
    e = (err){0};
    is_err(gguf_text(g, "zero", 5, &copy, &e), &e, ST_FORMAT, "without U+0000", "U+0000 in a text");
    ok(!copy, "no copy after an error");
    gguf_close(g);
    free(f.p);
}

static void test_arrays(void)
{
    gguf_file f = mixed();
    gguf *g = open_file(&f, "arrays");
    err e = {0};
    gguf_array a;
    size_t n;
    if (!g) exit(1);
    is_ok(gguf_ints(g, "ints", &a, &e), &e, "integers");
    bool right = a.n == 3 && gguf_next_int(&a) == 7 && gguf_next_int(&a) == -2 && gguf_next_int(&a) == 9;
    ok(right, "their values");
    is_ok(gguf_reals(g, "ints", &a, &e), &e, "integers as reals");
    right = a.n == 3 && gguf_next_real(&a) == 7 && gguf_next_real(&a) == -2;
    ok(right, "their values");
    is_ok(gguf_reals(g, "reals", &a, &e), &e, "reals");
    right = a.n == 2 && gguf_next_real(&a) == 0.5 && gguf_next_real(&a) == -3;
    ok(right, "their values");
    is_ok(gguf_strings(g, "strings", &a, &e), &e, "strings");
    is_int((long long)a.n, 3, "their number");
    right = !memcmp(gguf_next_string(&a, &n), "one", 3) && n == 3;
    gguf_next_string(&a, &n);
    right &= n == 0;
    right &= !memcmp(gguf_next_string(&a, &n), "three", 5) && n == 5;
    ok(right, "their bytes");
    is_ok(gguf_strings(g, "nothing", &a, &e), &e, "an empty array");
    is_int((long long)a.n, 0, "has no elements");
    is_ok(gguf_ints(g, "none", &a, &e), &e, "a missing array");
    is_int((long long)a.n, 0, "has no elements either");
    gguf_close(g);
    free(f.p);
}

/* Values of another kind than asked for; the message names the key and both kinds. */
static void test_other_kinds(void)
{
    gguf_file f = mixed();
    gguf *g = open_file(&f, "kinds");
    err e = {0};
    gguf_array a;
    int64_t i;
    bool b;
    double r;
    const char *s;
    size_t n;
    if (!g) exit(1);
    is_err(gguf_int(g, "f32", 0, 9, &i, &e), &e, ST_FORMAT, "mem: f32 is of type f32, expected an integer", "int");
    e = (err){0};
    is_err(gguf_int(g, "true", 0, 9, &i, &e), &e, ST_FORMAT, "true is of type bool, expected an integer", "int");
    e = (err){0};
    is_err(gguf_int(g, "ints", 0, 9, &i, &e), &e, ST_FORMAT, "ints is an array of i16, expected an integer", "int");
    e = (err){0};
    is_err(gguf_real(g, "text", 0, 9, &r, &e), &e, ST_FORMAT, "text is of type string, expected a number", "real");
    e = (err){0};
    is_err(gguf_bool(g, "f64", &b, &e), &e, ST_FORMAT, "f64 is of type f64, expected a bool", "bool");
    e = (err){0};
    is_err(gguf_string(g, "strings", &s, &n, &e), &e, ST_FORMAT, "strings is an array of string, expected a string",
           "string");
    e = (err){0};
    is_err(gguf_strings(g, "text", &a, &e), &e, ST_FORMAT, "text is of type string, expected an array of strings",
           "strings");
    ok(a.n == 0, "no elements after an error");
    e = (err){0};
    is_err(gguf_ints(g, "reals", &a, &e), &e, ST_FORMAT, "reals is an array of f64, expected an array of integers",
           "ints");
    e = (err){0};
    is_err(gguf_reals(g, "strings", &a, &e), &e, ST_FORMAT, "expected an array of numbers", "reals");
    gguf_close(g);
    free(f.p);
}

/* Refused metadata: one pair, whose bytes after the key are built here. */
static void test_bad_pairs(void)
{
    static const struct {
        const char *name;
        uint32_t kind, element;
        uint64_t n; /* of elements, or bytes of a string */
        status want;
        const char *part;
    } bad[] = {
        {"kind 13", 13, 0, 0, ST_FORMAT, "metadata key \"k\": value type 13 is unknown"},
        {"kind 2^32 - 1", UINT32_MAX, 0, 0, ST_FORMAT, "value type 4294967295 is unknown"},
        {"elements of kind 13", K_ARRAY, 13, 1, ST_FORMAT, "value type 13 is unknown"},
        {"an array of arrays", K_ARRAY, K_ARRAY, 1, ST_UNSUPPORTED, "\"k\": an array of arrays is not supported"},
        {"2^61 numbers of 8 bytes", K_ARRAY, K_U64, 1ull << 61, ST_FORMAT, "the file ends inside metadata key \"k\""},
        {"2^63 numbers of 2 bytes", K_ARRAY, K_U16, 1ull << 63, ST_FORMAT, "the file ends inside metadata key \"k\""},
        {"2^64 - 1 strings", K_ARRAY, K_STRING, UINT64_MAX, ST_FORMAT, "the file ends inside metadata key \"k\""},
        {"17 bytes in 16", K_ARRAY, K_BOOL, 17, ST_FORMAT, "the file ends inside metadata key \"k\""},
        {"3 strings in 16 bytes", K_ARRAY, K_STRING, 3, ST_FORMAT, "the file ends inside metadata key \"k\""},
        {"a string of 2^60 bytes", K_STRING, 0, 1ull << 60, ST_FORMAT, "a string of 1152921504606846976 bytes"},
        {"a string of 17 bytes in 16", K_STRING, 0, 17, ST_FORMAT, "the file ends inside metadata key \"k\""},
    };
    static const uint8_t zeros[16];
    gguf_file f = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file_begin(&f, 3, 0, 1);
        pair_begin(&f, "k", bad[i].kind);
        if (bad[i].kind == K_ARRAY) put_le(&f, bad[i].element, 4);
        put_le(&f, bad[i].n, 8);
        put(&f, zeros, sizeof zeros);
        refused(&f, bad[i].want, bad[i].part, bad[i].name);
    }
    file_begin(&f, 3, 0, 1);
    pair_u32(&f, "", 1);
    refused(&f, ST_FORMAT, "a metadata key is empty", "an empty key");
    file_begin(&f, 3, 0, 3);
    pair_u32(&f, "twice", 1);
    pair_u32(&f, "twic", 1);
    pair_text(&f, "twice", "x");
    refused(&f, ST_FORMAT, "duplicate metadata key \"twice\"", "a key twice");
    static const uint32_t alignments[] = {0, 3, 24, 1u << 31};
    for (size_t i = 0; i < 4; i++) {
        file_begin(&f, 3, 0, 1);
        pair_u32(&f, "general.alignment", alignments[i]);
        refused(&f, ST_FORMAT, "general.alignment is ", "alignment");
    }
    file_begin(&f, 3, 0, 1);
    pair_text(&f, "general.alignment", "32");
    refused(&f, ST_FORMAT, "general.alignment is of type string", "alignment as a string");
}

/* ---- files ---- */

/* A message has 256 bytes and one line: long paths, and keys with odd bytes. */
static void test_messages(void)
{
    char path[600] = "", key[301];
    for (int i = 0; i < 40; i++) strcat(path, "/long_folder");
    strcat(path, "/model.gguf");
    memset(key, '\n', 300);
    key[300] = 0;
    gguf_file f = {0};
    gguf *g;
    err e = {0};
    file_begin(&f, 3, 0, 1);
    pair_begin(&f, key, 13);
    is_err(gguf_open_memory(&g, f.p, f.n, path, &e), &e, ST_FORMAT, "\": value type 13 is unknown",
           "long path and key");
    ok(strstr(e.msg, "model.gguf: metadata key \"???") && !strchr(e.msg, '\n'), "on one line, with the file's name");
    free(f.p);
}

static void test_files(void)
{
    const char *path = "test_gguf.tmp";
    gguf_file f = {0};
    gguf *g;
    err e = {0};
    two_tensors(&f, 3);
    write_file(path, f.p, f.n);
    ok(gguf_is_file(path), "known by its first bytes");
    if (is_ok(gguf_open(&g, path, &e), &e, "a file on disk"))
        ok(memcmp(gguf_find_tensor(g, "b.weight")->data, f.p + f.n - 204, 204) == 0, "holds its data");
    gguf_close(g);
    write_file(path, f.p, f.n - 1);
    is_err(gguf_open(&g, path, &e), &e, ST_FORMAT, "test_gguf.tmp: truncated: tensor b.weight", "cut by one byte");
    write_file(path, "GGU", 3);
    ok(!gguf_is_file(path), "3 bytes are no GGUF file");
    write_file(path, "", 0);
    e = (err){0};
    is_err(gguf_open(&g, path, &e), &e, ST_FORMAT, "not a GGUF file", "an empty file");
    unlink(path);
    e = (err){0};
    is_err(gguf_open(&g, path, &e), &e, ST_IO, path, "a file that is not there");
    ok(!g && !gguf_is_file(path) && !gguf_is_file("."), "nothing is opened");
    free(f.p);
}

/* More entries than any fixed table would hold. */
static void test_many(void)
{
    enum { N = 5000 };
    gguf_file f = {0};
    char name[32];
    bool all = true;
    file_begin(&f, 3, N, N);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%u", i * 7 % N);
        pair_u32(&f, name, i * 7 % N);
    }
    for (uint64_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", (int)i);
        entry(&f, name, 1, (const uint64_t[]){1}, GGUF_F32, 32 * (N - 1 - i));
    }
    file_data(&f, 32, 32 * N);
    gguf *g = open_file(&f, "many keys and tensors");
    for (int i = 0; g && i < N; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        all &= get_int(g, name) == i;
        snprintf(name, sizeof name, "t%d", i);
        const gguf_tensor *t = gguf_find_tensor(g, name);
        all &= t && t->data[0] == (uint8_t)(32 * (N - 1 - i));
    }
    ok(g && all, "each is found");
    gguf_close(g);
    free(f.p);
}

static void test_out_of_memory(void)
{
    gguf_file f = {0};
    gguf *g;
    file_begin(&f, 3, 1, 1);
    pair_text(&f, "k", "text");
    entry(&f, "t", 1, (const uint64_t[]){1}, GGUF_F32, 0);
    file_data(&f, 32, 4);
    oom_run o = {0};
    while (oom_next(&o)) {
        oom_saw(&o, gguf_open_memory(&g, f.p, f.n, "mem", &o.e), &g);
        gguf_close(g);
    }
    oom_ok(&o, 4, "opening");
    g = open_file(&f, "opens again");
    char *copy = NULL;
    oom_run text = {0};
    while (oom_next(&text)) {
        copy = NULL;
        oom_saw(&text, gguf_text(g, "k", 9, &copy, &text.e), &copy);
        mem_free(copy);
    }
    oom_ok(&text, 0, "copying a text");
    gguf_close(g);
    free(f.p);
}

int main(void)
{
    test_tensors();
    test_alignment();
    test_cuts();
    test_header();
    test_entries();
    test_types();
    test_names();
    test_integers();
    test_values();
    test_arrays();
    test_other_kinds();
    test_bad_pairs();
    test_messages();
    test_files();
    test_many();
    test_out_of_memory();
    return tap_done();
}
