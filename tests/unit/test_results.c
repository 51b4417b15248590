/* SPDX-License-Identifier: MIT */
/* Files of results: going on, what is refused, and a file cut at any byte. */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "eval/results.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/files.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"

static char path[] = "results_XXXXXX";
static const char *const identity[] = {"dataset", "index", NULL};

static status open_with(results **r, const char *file, const char *config, err *e)
{
    json_t *c = json_loads(config, 0, NULL), *started = json_pack("{s:s}", "time", "now");
    results_options o = {file, "eval test", c, started, identity, NULL};
    *e = (err){0};
    *r = NULL;
    status st = results_open(r, &o, e);
    json_decref(c);
    json_decref(started);
    return st;
}

static json_t *line(const char *dataset, int index, double score)
{
    return json_pack("{s:s, s:i, s:f, s:s}", "dataset", dataset, "index", index, "score", score, "prediction",
                     "a \"b\"\n\xe5\x8c\x97");
}

static void get_file(char **s, size_t *n)
{
    if (file_read(s, n, path, 1 << 20, NULL) != ST_OK) abort();
}

static size_t whole_lines(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += s[i] == '\n';
    return count;
}

static bool has(const results *r, const char *dataset, int index)
{
    return results_find(r, line(dataset, index, 0)) != NULL;
}

static void test_going_on(void)
{
    results *r, *second;
    err e;
    unlink(path);
    is_ok(open_with(&r, path, "{\"seed\":1}", &e), &e, "a new file");
    is_ok(results_add(r, line("x", 0, 1.0 / 3), &e), &e, "a result");
    is_ok(results_add(r, line("x", 1, 0.5), &e), &e, "another one");
    is_err(results_add(r, line("x", 0, 0), &e), &e, ST_USAGE, "duplicate result", "the same one again");
    e = (err){0};
    is_err(results_add(r, json_object(), &e), &e, ST_FORMAT, "'dataset'", "one without identity");
    is_err(open_with(&second, path, "{\"seed\":1}", &e), &e, ST_IO, "another run", "a second run at the same time");
    results_close(r);
    is_ok(open_with(&r, path, "{\"seed\":1}", &e), &e, "the file again");
    is_int((long long)results_count(r), 2, "its results");
    ok(has(r, "x", 0) && has(r, "x", 1) && !has(r, "x", 2) && !has(r, "y", 0), "by identity");
    double score = results_number(results_find(r, line("x", 0, 0)), "score");
    ok(memcmp(&score, &(double){1.0 / 3}, sizeof score) == 0, "numbers keep all their digits");
    is_ok(results_add(r, line("y", 0, 0), &e), &e, "one more");
    results_close(r);
    is_ok(open_with(&r, NULL, "{\"seed\":1}", &e), &e, "without a file");
    is_ok(results_add(r, line("x", 0, 1), &e), &e, "results are kept");
    ok(has(r, "x", 0) && results_count(r) == 1, "too");
    results_close(r);
}

/* A kill leaves any beginning of the file: whole lines count, what follows them is gone. */
static void test_cuts(void)
{
    results *r;
    err e;
    char *s, *t;
    size_t n, m;
    int bad = 0;
    get_file(&s, &n);
    is_int((long long)whole_lines(s, n), 4, "a head and three results");
    for (size_t cut = 0; cut <= n; cut++) {
        size_t lines = whole_lines(s, cut), want = lines ? lines - 1 : 0;
        write_file(path, s, cut);
        if (open_with(&r, path, "{\"seed\":1}", &e) != ST_OK || results_count(r) != want) bad++;
        if (r && !has(r, "y", 0) && results_add(r, line("y", 0, 0), &e) != ST_OK) bad++;
        results_close(r);
        get_file(&t, &m);
        bad += t[m - 1] != '\n' || (lines == 3 && (m != n || memcmp(s, t, n) != 0));
        mem_free(t);
    }
    is_int(bad, 0, "cut at each of %zu bytes", n);
    write_file(path, s, n);
    mem_free(s);
}

static void refused(const char *config, status want, const char *part, const char *name)
{
    results *r;
    err e;
    char *before, *after;
    size_t n, m;
    get_file(&before, &n);
    is_err(open_with(&r, path, config, &e), &e, want, part, "%s", name);
    results_close(r);
    get_file(&after, &m);
    ok(n == m && memcmp(before, after, n) == 0, "the file stays as it is");
    mem_free(before);
    mem_free(after);
}

static void test_refused(void)
{
    static const char head[] = "{\"kvasir\":\"eval test\",\"config\":{\"seed\":1}}\n";
    char text[512];
    refused("{\"seed\":2}", ST_USAGE, "'seed' is 1 in the file, 2 now", "another value");
    refused("{\"seed\":1,\"limit\":5}", ST_USAGE, "'limit' is missing in the file, 5 now", "one more");
    refused("{}", ST_USAGE, "'seed' is 1 in the file, missing now", "one less");
    write_file(path, "{\"kvasir\":\"eval pg19\",\"config\":{}}\n", 35);
    refused("{}", ST_USAGE, "results of 'eval pg19'", "another command");
    write_file(path, "chapter 1", 9);
    refused("{}", ST_USAGE, "not a results file", "somebody's text");
    write_file(path, "{\"kvasir\":1}\n", 13);
    refused("{}", ST_USAGE, "not a results file", "no head");
    int n = snprintf(text, sizeof text, "%s{\"dataset\":\"x\",\"index\":0}\n{\"dataset\":\n", head);
    write_file(path, text, (size_t)n);
    refused("{\"seed\":1}", ST_FORMAT, "line 3", "a line that is no JSON");
    n = snprintf(text, sizeof text, "%s{\"dataset\":\"x\"}\n", head);
    write_file(path, text, (size_t)n);
    refused("{\"seed\":1}", ST_FORMAT, "line 2", "a line without its identity");
    n = snprintf(text, sizeof text,
                 "%s{\"dataset\":\"x\",\"index\":0,\"score\":1}\n"
                 "{\"dataset\":\"x\",\"index\":0,\"score\":2}\n",
                 head);
    write_file(path, text, (size_t)n);
    results *r;
    err e;
    is_ok(open_with(&r, path, "{\"seed\":1}", &e), &e, "a duplicate result");
    is_int((long long)results_count(r), 1, "counts once");
    results_close(r);
    is_err(open_with(&r, "nowhere/at/all.jsonl", "{}", &e), &e, ST_IO, "No such file", "no folder");
    is_err(open_with(&r, "/dev/null", "{}", &e), &e, ST_IO, "not a regular file", "a device");
}

static void test_difference(void)
{
    static const struct {
        const char *a, *b, *path, *left, *right;
    } cases[] = {
        {"{\"a\":{\"b\":[1,{\"c\":\"x\"}]}}", "{\"a\":{\"b\":[1,{\"c\":null}]}}", "a.b[1].c", "\"x\"", "null"},
        {"{\"a\":[1]}", "{\"a\":[1,2]}", "a[1]", "missing", "2"},
        {"{\"a\":[]}", "{\"a\":{}}", "a", "[]", "{}"},
        {"{\"z\":1,\"a\":1}", "{\"a\":1,\"y\":2,\"z\":1}", "y", "missing", "2"},
    };
    char where[96], left[48], right[48];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = json_loads(cases[i].a, 0, NULL), *b = json_loads(cases[i].b, 0, NULL);
        ok(results_difference(a, b, where, left, right) && strcmp(where, cases[i].path) == 0 &&
               strcmp(left, cases[i].left) == 0 && strcmp(right, cases[i].right) == 0,
           "%s is %s, %s", where, left, right);
        ok(!results_difference(a, a, where, left, right), "nothing differs from itself");
        json_decref(a);
        json_decref(b);
    }
    json_t *a = json_object(), *b = json_object(), *in_a = a, *in_b = b;
    for (int i = 0; i < 30; i++) {
        json_t *x = json_object(), *y = i < 29 ? json_object() : json_integer(1);
        json_object_set_new(in_a, "a long name", x);
        json_object_set_new(in_b, "a long name", y);
        in_a = x;
        in_b = y;
    }
    ok(results_difference(a, b, where, left, right) && strlen(where) < 96, "a deep difference");
    json_decref(a);
    json_decref(b);
}

/* No room: the error is said, and the file ends with its last whole line. */
static void test_full(void)
{
    struct rlimit before, small;
    results *r;
    err e;
    char *s;
    size_t n;
    unlink(path);
    is_ok(open_with(&r, path, "{\"seed\":1}", &e), &e, "a new file");
    is_ok(results_add(r, line("x", 0, 1), &e), &e, "a result");
    get_file(&s, &n);
    mem_free(s);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = n + 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    is_err(results_add(r, line("x", 1, 1), &e), &e, ST_IO, "File too large", "no room for the next");
    setrlimit(RLIMIT_FSIZE, &before);
    size_t m;
    get_file(&s, &m);
    ok(m == n && s[m - 1] == '\n', "the file ends with its last whole line");
    mem_free(s);
    ok(!has(r, "x", 1), "and the result does not count");
    results_close(r);
}

static void test_memory(void)
{
    results *r;
    oom_run o = {0};
    while (oom_next(&o)) {
        oom_saw(&o, open_with(&r, path, "{\"seed\":1}", &o.e), NULL);
        results_close(r);
    }
    oom_ok(&o, 1, "results");
}

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0) abort();
    close(fd);
    test_going_on();
    test_cuts();
    test_refused();
    test_difference();
    test_full();
    test_memory();
    unlink(path);
    return tap_done();
}
