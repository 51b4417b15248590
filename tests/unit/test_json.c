/* SPDX-License-Identifier: MIT */
/* JSON files as Python and other writers make them. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/json.h"
#include "tests/tap.h"
#include "tests/unit/oom.h"

#define TEXT(s) s, sizeof s - 1
#define SYNTAX  "x: not valid JSON: line 1 column"

/* Texts and what is read: Python's json module reads the same keys and, where C can hold them, the same values. */
static const struct {
    const char *text, *want;
} good[] = {
    {"{\"a\":1000000000000000019884624838656}", "{\"a\":1e30}"},
    {"{\"a\":-1000000000000000019884624838656 }", "{\"a\":-1e30}"},
    {"{\"a\":9223372036854775807,\"b\":-9223372036854775808}",
     "{\"a\":9223372036854775807,\"b\":-9223372036854775808}"},
    {"{\"a\":9223372036854775808,\"b\":-9223372036854775809}",
     "{\"a\":9223372036854775808.0,\"b\":-9223372036854775808.0}"},
    {"{\"a\":18446744073709551615}", "{\"a\":18446744073709551615.0}"},
    {"{\"a\":NaN,\"b\":[NaN,Infinity, -Infinity]}", "{\"a\":\"NaN\",\"b\":[\"NaN\",\"Infinity\",\"-Infinity\"]}"},
    {"{\"a\":1e999,\"b\":-1.5E+400}", "{\"a\":\"1e999\",\"b\":\"-1.5E+400\"}"},
    {"{\"a\":1e-999,\"b\":1e308,\"c\":1e-05}", "{\"a\":0.0,\"b\":1e308,\"c\":0.00001}"},
    {"{\"a\":0.12345678901234567890123456789}", "{\"a\":0.12345678901234568}"},
    {"{\"NaN\":\"NaN, Infinity: 1000000000000000019884624838656\"}",
     "{\"NaN\":\"NaN, Infinity: 1000000000000000019884624838656\"}"},
    {"{\"a\":\"\\\\\",\"b\":\"\\\"NaN\",\"c\":NaN}", "{\"a\":\"\\\\\",\"b\":\"\\\"NaN\",\"c\":\"NaN\"}"},
    {"\r\n\t {\r\n\"a\" : 1\r\n}\r\n \n", "{\"a\":1}"},
};

static void test_good(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        err e = {0};
        json_t *j, *want = json_loads(good[i].want, 0, NULL);
        if (is_ok(json_parse_object(&j, good[i].text, strlen(good[i].text), "x", 8, &e), &e, "%s", good[i].text))
            ok(want && json_equal(j, want), "  is %s", good[i].want);
        json_decref(j);
        json_decref(want);
    }
    char text[512] = "{\"a\":1";
    err e = {0};
    json_t *j;
    memset(text + strlen(text), '0', 400);
    strcat(text, "}");
    is_ok(json_parse_object(&j, text, strlen(text), "x", 8, &e), &e, "an integer beyond double");
    is_int((long long)json_string_length(json_object_get(j, "a")), 401, "  is its spelling");
    json_decref(j);
    memset(text + 5, '0', 495);
    strcpy(text + 500, "}");
    e = (err){0};
    is_err(json_parse_object(&j, text, strlen(text), "x", 8, &e), &e, ST_FORMAT, SYNTAX,
           "an integer with leading zeros");
    char *longer = calloc(1, 5000);
    if (!longer) exit(1);
    strcpy(longer, "{\"a\":-1");
    memset(longer + 7, '7', 4300);
    strcat(longer, "}");
    e = (err){0};
    is_ok(json_parse_object(&j, longer, strlen(longer), "x", 8, &e), &e, "as many digits as Python reads");
    json_decref(j);
    free(longer);
}

static const struct {
    const char *text;
    size_t n;
    const char *want;
} bad[] = {
    {TEXT("\xef\xbb\xbf{}"), "x: begins with a byte order mark; save it as UTF-8 without one"},
    {TEXT("\xff\xfe{\0}\0"), "x: encoded as UTF-16 or UTF-32; save it as UTF-8"},
    {TEXT("\xfe\xff\0{\0}"), "x: encoded as UTF-16"},
    {TEXT("{\0}\0"), "x: encoded as UTF-16"},
    {TEXT("\0\0\0{\0\0\0}"), "x: encoded as UTF-16 or UTF-32"},
    {TEXT("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), "x: a Git LFS pointer"},
    {TEXT("version https://git-lfs.github.com/spec/v1\r\n"), "run `git lfs pull`"},
    {TEXT(""), SYNTAX},
    {TEXT("{\"a\":NaNa}"), SYNTAX},
    {TEXT("{\"a\":-NaN}"), SYNTAX},
    {TEXT("{\"a\":nan}"), SYNTAX},
    {TEXT("{\"a\":infinity}"), SYNTAX},
    {TEXT("{\"a\":+1}"), SYNTAX},
    {TEXT("{\"a\":01}"), SYNTAX},
    {TEXT("{\"a\":1e}"), SYNTAX},
    {TEXT("{\"a\":1e999-5}"), SYNTAX},
    {TEXT("{\"a\":0x1p99999}"), SYNTAX},
    {TEXT("{\"a\":99999999999999999999x}"), SYNTAX},
    {TEXT("{\"a\":99999999999999999999"), SYNTAX},
    {TEXT("{\"a\":NaN"), SYNTAX},
    {TEXT("{\"a\":-"), SYNTAX},
    {TEXT("{\"a\":\"\\"), SYNTAX},
    {TEXT("{\"a\":1,\"a\":2}"), "duplicate object key"},
    {TEXT("{\"a\":[[[[[[[[1]]]]]]]]}"), "x: JSON nested 9 deep, at most 8 allowed"},
    {TEXT("[1]"), "x: the top level is not a JSON object"},
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        json_t *j;
        char *text = malloc(bad[i].n ? bad[i].n : 1); /* no NUL follows: a sanitizer reports reads beyond the end */
        if (!text) exit(1);
        memcpy(text, bad[i].text, bad[i].n);
        is_err(json_parse_object(&j, text, bad[i].n, "x", 8, &e), &e, ST_FORMAT, bad[i].want, "text %zu", i);
        ok(!j, "  gives nothing");
        free(text);
    }
}

/* Data stays strict JSON. */
static void test_data(void)
{
    static const char *const texts[] = {"{\"a\":NaN}", "{\"a\":1000000000000000000000}", "{\"a\":1e999}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        err e = {0};
        json_t *j;
        is_err(json_parse_data(&j, texts[i], strlen(texts[i]), "x", 8, &e), &e, ST_FORMAT, SYNTAX, "%s", texts[i]);
    }
}

static void test_out_of_memory(void)
{
    oom_run o = {0};
    json_t *j;
    while (oom_next(&o)) {
        oom_saw(&o, json_parse_object(&j, TEXT("{\"a\":NaN}"), "x", 8, &o.e), &j);
        json_decref(j);
    }
    oom_ok(&o, 0, "parsing");
}

int main(void)
{
    test_good();
    test_bad();
    test_data();
    test_out_of_memory();
    return tap_done();
}
