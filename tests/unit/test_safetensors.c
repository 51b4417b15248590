/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "model/safetensors.h"
#include "tests/unit/files.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"

/* A file in memory: 8 bytes of length, the header, n_data bytes 0, 1, 2, ... */
typedef struct {
    uint8_t *p;
    size_t size;
} blob;

static blob make(const char *header, size_t n_data)
{
    size_t n = strlen(header);
    blob b = {malloc(8 + n + n_data), 8 + n + n_data};
    if (!b.p) exit(1);
    for (int i = 0; i < 8; i++) b.p[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(b.p + 8, header, n);
    for (size_t i = 0; i < n_data; i++) b.p[8 + n + i] = (uint8_t)i;
    return b;
}

#define T(name, dtype, shape, offsets)                                                                                 \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_good(void)
{
    err e = {0};
    st_file *f;
    blob b = make("{\"__metadata__\":{\"format\":\"pt\"}," T("b", "F32", "[2,1]", "[6,14]") "," T(
                      "a", "BF16", "[3]", "[0,6]") "," T("scalar", "I64", "[]",
                                                         "[14,22]") "," T("empty", "F16", "[0,5]", "[14,14]") "}   ",
                  22);
    if (is_ok(st_open_memory(&f, b.p, b.size, "mem", &e), &e, "a good file opens")) {
        is_int((long long)st_count(f), 4, "tensors, without __metadata__");
        is_str(st_at(f, 0)->name, "a", "file order: first");
        is_str(st_at(f, 1)->name, "b", "file order: second");
        is_str(st_at(f, 2)->name, "empty", "file order: an empty tensor between");
        const st_tensor *t = st_find(f, "b");
        ok(t == st_at(f, 1), "found by its name");
        is_str(t->type, "F32", "dtype");
        is_int((long long)t->rank, 2, "rank");
        is_int((long long)t->shape[0], 2, "first dimension");
        is_int((long long)t->bytes, 8, "bytes");
        is_int(t->data[0], 6, "data");
        is_int((long long)st_find(f, "scalar")->rank, 0, "a scalar has rank 0");
        is_int((long long)st_find(f, "scalar")->bytes, 8, "and one element");
        ok(!st_find(f, "c") && !st_find(f, "__metadata__") && !st_find(f, ""), "unknown names");
        is_str(st_path(f), "mem", "path");
        is_int((long long)st_size(f), (long long)b.size, "size");
        st_close(f);
    }
    free(b.p);
    b = make("{}", 0);
    e = (err){0};
    is_ok(st_open_memory(&f, b.p, b.size, "mem", &e), &e, "a file without tensors opens");
    ok(f && st_count(f) == 0 && !st_find(f, "a"), "and holds none");
    st_close(f);
    st_close(NULL);
    free(b.p);
}

/* Headers that the reference, safetensors 0.8, accepts too. */
static void test_metadata(void)
{
    static const char *const headers[] = {
        "{" T("a", "U8", "[1]", "[0,1]") "}",
        "{\"__metadata__\":null," T("a", "U8", "[1]", "[0,1]") "}",
        "{" T("a", "U8", "[1]", "[0,1]") ",\"__metadata__\":{}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"size\":100000000000000000000}}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        err e = {0};
        st_file *f;
        blob b = make(headers[i], 1);
        if (is_ok(st_open_memory(&f, b.p, b.size, "mem", &e), &e, "%s", headers[i]))
            ok(st_count(f) == 1 && st_find(f, "a"), "  one tensor");
        st_close(f);
        free(b.p);
    }
}

static const struct {
    const char *name, *header;
    size_t n_data;
    const char *want; /* in the message, in addition to the file's name */
} bad[] = {
    {"not JSON", "{\"a\":", 0, "not valid JSON: line 1"},
    {"not an object", "[1,2]", 0, "not a JSON object"},
    {"empty header", "", 0, "not valid JSON"},
    {"bad UTF-8", "{\"\xff\":1}", 0, "not valid JSON"},
    {"duplicate tensor", "{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "uplicate"},
    {"metadata is a list", "{\"__metadata__\":[]}", 0, "\"__metadata__\" is not a JSON object"},
    {"metadata value", "{\"__metadata__\":{\"k\":1}}", 0, "\"__metadata__\": \"k\" is not a string"},
    {"metadata is false", "{\"__metadata__\":false}", 0, "\"__metadata__\" is not a JSON object"},
    {"metadata value is null", "{\"__metadata__\":{\"k\":null}}", 0, "\"__metadata__\": \"k\" is not a string"},
    {"entry is null", "{\"a\":null}", 0, "tensor \"a\": the entry is not"},
    {"entry is a number", "{\"a\":1}", 0, "tensor \"a\": the entry is not"},
    {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor \"a\": \"dtype\" is missing"},
    {"dtype is a number", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "\"dtype\" is missing or not"},
    {"unknown dtype", "{" T("a", "Q4_0", "[1]", "[0,4]") "}", 4, "tensor \"a\": unknown dtype \"Q4_0\""},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor \"a\": \"shape\" is missing"},
    {"rank 9", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "9 dimensions in \"shape\", at most 8"},
    {"negative dimension", "{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "\"shape\" must hold integers"},
    {"real dimension", "{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, "\"shape\" must hold integers"},
    {"shape overflow", "{" T("a", "U8", "[4294967296,4294967296,2]", "[0,1]") "}", 1, "\"shape\" overflows"},
    {"shape overflow in bits", "{" T("a", "F64", "[9223372036854775807]", "[0,1]") "}", 1, "\"shape\" overflows"},
    {"integer beyond 64 bits", "{" T("a", "U8", "[99999999999999999999]", "[0,1]") "}", 1,
     "\"shape\" must hold integers"},
    {"offset beyond 64 bits", "{" T("a", "U8", "[1]", "[0,18446744073709551617]") "}", 1, "must hold integers >= 0"},
    {"half a byte", "{" T("a", "F4", "[3]", "[0,1]") "}", 1, "tensor \"a\": \"shape\" does not fill"},
    {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor \"a\": \"data_offsets\" is missing"},
    {"three offsets", "{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, "\"data_offsets\" is missing or not"},
    {"offsets are strings", "{" T("a", "U8", "[1]", "[\"0\",1]") "}", 1, "\"data_offsets\" must hold integers"},
    {"negative offset", "{" T("a", "U8", "[1]", "[-1,0]") "}", 1, "\"data_offsets\" must hold integers"},
    {"begin after end", "{" T("a", "U8", "[1]", "[1,0]") "}", 1, "tensor \"a\": \"data_offsets\" [1, 0] end before"},
    {"past the end", "{" T("a", "F32", "[2]", "[0,8]") "}", 4, "\"data_offsets\" [0, 8] reach past the end"},
    {"far past the end", "{" T("a", "U8", "[1]", "[9223372036854775806,9223372036854775807]") "}", 4, "past the end"},
    {"too few bytes", "{" T("a", "F32", "[2]", "[0,4]") "}", 4, "hold 4 bytes, but shape and dtype F32 require 8"},
    {"too many bytes", "{" T("a", "F16", "[2]", "[0,8]") "}", 8, "hold 8 bytes, but shape and dtype F16 require 4"},
    {"overlap", "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8,
     "tensor \"b\": \"data_offsets\" [4, 8] overlap tensor \"a\""},
    {"same place", "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlap tensor \"a\""},
    {"hole", "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[3,4]") "}", 4, "tensor \"b\": gap of 2 bytes"},
    {"hole at the start", "{" T("a", "U8", "[1]", "[1,2]") "}", 2, "tensor \"a\": gap of 1 bytes"},
    {"overlong", "{" T("a", "U8", "[1]", "[0,1]") "}", 4, "3 bytes after the last tensor"},
    {"overlong without tensors", "{}", 1, "1 bytes after the last tensor"},
};

static void expect_bad(const uint8_t *p, size_t n, const char *want, const char *name)
{
    err e = {0};
    st_file *f;
    is_err(st_open_memory(&f, p, n, "dir/file.safetensors", &e), &e, ST_FORMAT, want, "%s", name);
    ok(strstr(e.msg, "dir/file.safetensors") && !f, "%s: names the file", name);
    st_close(f);
}

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        blob b = make(bad[i].header, bad[i].n_data);
        expect_bad(b.p, b.size, bad[i].want, bad[i].name);
        free(b.p);
    }
    blob b = make("{\"a\":1}", 0);
    expect_bad(b.p, 0, "truncated header: 0 bytes", "empty file");
    expect_bad(b.p, 7, "truncated header: 7 bytes", "7 bytes");
    expect_bad(b.p, b.size - 1, "truncated header: its length is 7, but only 6 bytes follow", "header cut off");
    b.p[3] = 0xff;
    expect_bad(b.p, b.size, "at most 100000000 allowed", "huge header length");
    memset(b.p, 0xff, 8);
    expect_bad(b.p, b.size, "at most 100000000 allowed", "header length 2^64 - 1");
    free(b.p);
    char deep[256] = "{\"a\":";
    for (int i = 0; i < 33; i++) strcat(deep, "[");
    for (int i = 0; i < 33; i++) strcat(deep, "]");
    strcat(deep, "}");
    b = make(deep, 0);
    expect_bad(b.p, b.size, "nested 34 deep, at most 32", "nesting");
    free(b.p);
}

/* A message has 256 bytes: a long path must not push the reason out. */
static void test_long_path(void)
{
    char path[600] = "";
    for (int i = 0; i < 40; i++) strcat(path, "/long_folder");
    strcat(path, "/model.safetensors");
    err e = {0};
    st_file *f;
    blob b = make("{" T("a", "U8", "[1]", "[1,2]") "}", 2);
    is_err(st_open_memory(&f, b.p, b.size, path, &e), &e, ST_FORMAT, "model.safetensors: tensor \"a\": gap of 1 bytes",
           "a long path is shortened");
    free(b.p);
}

static void test_files(void)
{
    err e = {0};
    st_file *f;
    const char *path = "test_safetensors.tmp";
    blob b = make("{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    write_file(path, b.p, b.size);
    if (is_ok(st_open(&f, path, &e), &e, "a file on disk"))
        ok(memcmp(st_find(f, "a")->data, b.p + b.size - 8, 8) == 0, "holds its data");
    st_close(f);
    write_file(path, b.p, b.size - 1);
    is_err(st_open(&f, path, &e), &e, ST_FORMAT, "past the end of the file", "cut by one byte");
    ok(strstr(e.msg, path) != NULL, "names the file");
    write_file(path, "", 0);
    e = (err){0};
    is_err(st_open(&f, path, &e), &e, ST_FORMAT, "truncated header", "an empty file");
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 273672\n";
    write_file(path, pointer, strlen(pointer));
    e = (err){0};
    is_err(st_open(&f, path, &e), &e, ST_FORMAT, "a Git LFS pointer, not the file itself; run `git lfs pull`",
           "a pointer");
    unlink(path);
    e = (err){0};
    is_err(st_open(&f, path, &e), &e, ST_IO, path, "a file that is not there");
    e = (err){0};
    is_err(st_open(&f, ".", &e), &e, ST_IO, "not a regular file", "a folder");
    ok(!f, "nothing is opened");
    free(b.p);
}

/* More tensors than any fixed table would hold; the last name is found. */
static void test_many(void)
{
    enum { N = 5000 };
    size_t cap = (size_t)N * 96, n = 1;
    char *h = malloc(cap), name[32];
    if (!h) exit(1);
    h[0] = '{';
    for (int i = 0; i < N; i++)
        n += (size_t)snprintf(h + n, cap - n, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                              i ? "," : "", i, i, i + 1);
    snprintf(h + n, cap - n, "}");
    blob b = make(h, N);
    err e = {0};
    st_file *f;
    bool all = true;
    is_ok(st_open_memory(&f, b.p, b.size, "many", &e), &e, "%d tensors", N);
    for (int i = 0; f && i < N; i++) {
        snprintf(name, sizeof name, "t%d", i);
        const st_tensor *t = st_find(f, name);
        all &= t && t->data[0] == (uint8_t)i;
    }
    ok(f && all, "each is found");
    st_close(f);
    free(b.p);
    free(h);
}

static void test_out_of_memory(void)
{
    blob b = make("{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    oom_run o = {0};
    st_file *f;
    while (oom_next(&o)) {
        oom_saw(&o, st_open_memory(&f, b.p, b.size, "mem", &o.e), &f);
        st_close(f);
    }
    oom_ok(&o, 0, "opening");
    free(b.p);
}

int main(void)
{
    test_good();
    test_metadata();
    test_bad();
    test_long_path();
    test_files();
    test_many();
    test_out_of_memory();
    return tap_done();
}
