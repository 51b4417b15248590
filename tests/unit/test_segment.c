/* SPDX-License-Identifier: MIT */
/* Chinese words against jieba's (tests/data/metrics), and broken tables. */
#include "config.h"

#include <stdlib.h>
#include <unistd.h>

#include "eval/metrics/segment.h"
#include "kernels/base/clock.h"
#include "tests/unit/oom.h"
#include "tests/unit/files.h"
#include "tests/unit/metric_rows.h"

static segmenter *g;

static bool same_words(const text_list *got, const json_t *want)
{
    bool same = got->n == json_array_size(want);
    for (size_t i = 0; same && i < got->n; i++) same = text_equal(got->s[i], json_text(json_array_get(want, i)));
    return same;
}

static void test_fixture(void)
{
    metric_rows rows;
    int n = 0, wrong = 0;
    if (!rows_open(&rows, "segment.jsonl")) return;
    for (json_t *j; (j = rows_next(&rows)); json_decref(j), n++) {
        utf8_text t = json_text(json_object_get(j, "text"));
        text_list words = {0};
        err e = {0};
        if (segmenter_cut(g, t, &words, &e) != ST_OK || !same_words(&words, json_object_get(j, "words"))) {
            printf("# line %zu differs\n", rows.r.number);
            wrong++;
        }
        text_list_free(&words);
    }
    ok(n >= 400 && wrong == 0, "%d of %d texts are cut as jieba cuts them", n - wrong, n);
    rows_close(&rows);
}

/* ---- the real data set ---- */

static uint64_t fnv(uint64_t h, utf8_text s)
{
    for (size_t i = 0; i < s.n; i++) h = (h ^ (unsigned char)s.s[i]) * 0x100000001b3u;
    return h;
}

static bool real_line(const char *line, size_t n, const json_t *want, size_t *n_words)
{
    json_t *j;
    char hash[20];
    text_list words = {0};
    uint64_t h = 0xcbf29ce484222325u;
    if (json_parse_data(&j, line, n, "real", 16, NULL) != ST_OK) return false;
    utf8_text t = json_text(json_object_get(j, "context"));
    if (segmenter_cut(g, t, &words, NULL) != ST_OK) abort();
    for (size_t i = 0; i < words.n; i++) {
        h = fnv(h, words.s[i]);
        h = fnv(h, utf8_of("\x1d"));
    }
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
    *n_words += words.n;
    bool same = (json_int_t)words.n == json_integer_value(json_object_get(want, "n_words")) &&
                strcmp(hash, json_string_value(json_object_get(want, "fnv1a"))) == 0;
    text_list_free(&words);
    json_decref(j);
    return same;
}

static void test_real(void)
{
    const char *path = tap_data("longbench/multifieldqa_zh.jsonl.xz");
    char cmd[4200], *line = NULL;
    size_t cap = 0, words = 0;
    ssize_t n;
    metric_rows rows;
    int count = 0, wrong = 0;
    if (!path) {
        tap_skip("no real data");
        return;
    }
    if (!rows_open(&rows, "segment_real.jsonl")) return;
    snprintf(cmd, sizeof cmd, "xz -dc '%s'", path);
    FILE *f = popen(cmd, "r");
    int64_t t0 = clock_ns();
    for (json_t *want; f && (n = getline(&line, &cap, f)) > 0 && (want = rows_next(&rows)); json_decref(want), count++)
        wrong += !real_line(line, (size_t)n, want, &words);
    printf("# %zu words in %.3f s\n", words, (double)(clock_ns() - t0) / 1e9);
    ok(count == 20 && wrong == 0, "%d of %d real contexts are cut as jieba cuts them", count - wrong, count);
    free(line);
    if (f) pclose(f);
    rows_close(&rows);
}

/* ---- broken tables ---- */

/* A folder of tables. */
static struct {
    char dir[32], dictionary[64], model[64];
} work = {.dir = "segment_XXXXXX"};

/* Returns the number of words in the text of a segmenter with these tables. */
static size_t count_words(const char *dictionary, const char *model, const char *from)
{
    segmenter *small;
    text_list words = {0};
    err e = {0};
    write_file(work.dictionary, dictionary, strlen(dictionary));
    write_file(work.model, model, strlen(model));
    if (!is_ok(segmenter_create(&small, work.dir, &e), &e, "small tables")) return 0;
    if (segmenter_cut(small, utf8_of(from), &words, NULL) != ST_OK) abort();
    size_t n = words.n;
    text_list_free(&words);
    segmenter_destroy(small);
    return n;
}

static void refuses(const char *dictionary, const char *model, const char *message, size_t number)
{
    segmenter *none;
    err e = {0};
    write_file(work.dictionary, dictionary, strlen(dictionary));
    write_file(work.model, model, strlen(model));
    is_err(segmenter_create(&none, work.dir, &e), &e, ST_FORMAT, message, "tables %zu", number);
}

static void test_dictionary(void)
{
    static const struct {
        const char *s, *message;
    } bad[] = {
        {"", "dict.txt: no word"},
        {"a 0 n\n", "no word"},
        {"a\n", "line 1: expected"},
        {"a 1\n\nb 1\n", "line 2: expected"},
        {" 1 n\n", "line 1"},
        {"a x n\n", "line 1"},
        {"a 1x n\n", "line 1"},
        {"a -1 n\n", "line 1"},
        {"\xff 1 n\n", "UTF-8"},
        {"a 1000000001", "line 1"},
        {"a 99999999999999999999", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuses(bad[i].s, "start\tB\t-1\n", bad[i].message, i);
    /* "ab" is a word if its frequency times the sum of all exceeds 10 times 10. */
    is_int((long long)count_words("a 10 n\r\nb 10\nab 9\nab 3 n", "start\tB\t-1\n", "ab"), 2,
           "the last of equal words counts");
    is_int((long long)count_words("a 10\nb 10\nab 9\nab 4 n", "start\tB\t-1\n", "ab"), 1, "in the sum all of them");
}

static void test_model(void)
{
    static const char *const bad[] = {"",
                                      "start\tB\n",
                                      "start\tX\t-1\n",
                                      "start\tBM\t-1\n",
                                      "start\tB\tx\n",
                                      "start\tB\t1\n",
                                      "start\tB\tnan\n",
                                      "start\tB\t-1e200\n",
                                      "trans\tB\tQ\t-1\n",
                                      "emit\tB\t4E00\t-1\n",
                                      "emit\tB\tU+\t-1\n",
                                      "emit\tB\tU+4E00\t-1\t-1\n",
                                      "start\tB\t-1\n\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses("a 1\n", bad[i], i == 0 ? "hmm.tsv: empty" : i == 12 ? "line 2" : "line 1", i);
    is_int((long long)count_words("a 1\n", "emit\tS\tU+4E01\t-2.5\nemit\tS\tU+FFFFFFFFFFFF\t-1\n",
                                  "\xe4\xb8\x81\xe4\xb8\x81"),
           2, "what is missing is impossible");
}

static void test_tables(void)
{
    err e = {0};
    segmenter *none;
    if (!mkdtemp(work.dir)) abort();
    snprintf(work.dictionary, sizeof work.dictionary, "%s/dict.txt", work.dir);
    snprintf(work.model, sizeof work.model, "%s/hmm.tsv", work.dir);
    is_err(segmenter_create(&none, work.dir, &e), &e, ST_IO, "dict.txt", "no dictionary");
    write_file(work.dictionary, "a 1\n", 4);
    e = (err){0};
    is_err(segmenter_create(&none, work.dir, &e), &e, ST_IO, "hmm.tsv", "no model");
    test_dictionary();
    test_model();
    unlink(work.dictionary);
    unlink(work.model);
    rmdir(work.dir);
    oom_run o = {0};
    while (oom_next(&o)) oom_saw(&o, segmenter_create(&none, jieba_dir(), &o.e), NULL);
    oom_ok(&o, 3, "creation");
    segmenter_destroy(none);
}

int main(void)
{
    err e = {0};
    int64_t t0 = clock_ns();
    if (!is_ok(segmenter_create(&g, jieba_dir(), &e), &e, "the tables are read")) return tap_done();
    printf("# tables read in %.3f s\n", (double)(clock_ns() - t0) / 1e9);
    test_fixture();
    test_real();
    test_tables();
    segmenter_destroy(g);
    return tap_done();
}
