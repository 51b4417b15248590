/* SPDX-License-Identifier: MIT */
/* Chinese words against jieba's (tests/data/metrics), and broken tables. */
#include "config.h"

#include <stdlib.h>
#include <unistd.h>

#include "eval/metrics/dictionary.h"
#include "eval/metrics/hmm.h"
#include "eval/metrics/segment.h"
#include "kernels/base/clock.h"
#include "tests/unit/oom.h"
#include "tests/unit/metric_rows.h"
#include "tokenizer/chars.h"

static segmenter *g;

static text decoded(utf8_text s)
{
    text t;
    if (text_decode(&t, s.s, s.n, NULL) != ST_OK) abort();
    return t;
}

static bool same_words(const span_list *got, const json_t *want)
{
    bool same = got->n == json_array_size(want);
    for (size_t i = 0; same && i < got->n; i++) {
        text t = decoded(json_text(json_array_get(want, i)));
        same = span_equal(got->s[i], text_span(&t));
        text_free(&t);
    }
    return same;
}

static void test_fixture(void)
{
    metric_rows rows;
    int n = 0, wrong = 0;
    if (!rows_open(&rows, "segment.jsonl")) return;
    for (json_t *j; (j = rows_next(&rows)); json_decref(j), n++) {
        text t = decoded(json_text(json_object_get(j, "text")));
        span_list words = {0};
        err e = {0};
        if (segmenter_cut(g, text_span(&t), &words, &e) != ST_OK || !same_words(&words, json_object_get(j, "words"))) {
            printf("# line %zu differs\n", rows.r.number);
            wrong++;
        }
        span_list_free(&words);
        text_free(&t);
    }
    ok(n >= 400 && wrong == 0, "%d of %d texts are cut as jieba cuts them", n - wrong, n);
    rows_close(&rows);
}

/* ---- the real data set ---- */

static uint64_t fnv(uint64_t h, int32_t c)
{
    char byte[4];
    int n = char_put(byte, c);
    for (int i = 0; i < n; i++) h = (h ^ (unsigned char)byte[i]) * 0x100000001b3u;
    return h;
}

static bool real_line(const char *line, size_t n, const json_t *want, size_t *n_words)
{
    json_t *j;
    char hash[20];
    span_list words = {0};
    uint64_t h = 0xcbf29ce484222325u;
    if (json_parse_data(&j, line, n, "real", 16, NULL) != ST_OK) return false;
    text t = decoded(json_text(json_object_get(j, "context")));
    if (segmenter_cut(g, text_span(&t), &words, NULL) != ST_OK) abort();
    for (size_t i = 0; i < words.n; i++) {
        for (size_t k = 0; k < words.s[i].n; k++) h = fnv(h, words.s[i].c[k]);
        h = fnv(h, 0x1d);
    }
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
    *n_words += words.n;
    bool same = (json_int_t)words.n == json_integer_value(json_object_get(want, "n_words")) &&
                strcmp(hash, json_string_value(json_object_get(want, "fnv1a"))) == 0;
    span_list_free(&words);
    text_free(&t);
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

static void write_file(const char *path, const char *s)
{
    FILE *f = fopen(path, "wb");
    if (!f || fputs(s, f) < 0 || fclose(f) != 0) abort();
}

static void test_dictionary(const char *path)
{
    static const struct {
        const char *s, *message;
    } bad[] = {
        {"", "no word"},
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
    dictionary d;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        write_file(path, bad[i].s);
        is_err(dictionary_read(&d, path, &e), &e, ST_FORMAT, bad[i].message, "dictionary: %zu", i);
        dictionary_free(&d);
    }
    err e = {0};
    write_file(path, "ab 3 n\r\nb 5\nab 4 n");
    is_ok(dictionary_read(&d, path, &e), &e, "a small dictionary, without the last end of line");
    uint32_t a = dictionary_step(&d, DICTIONARY_ROOT, 'a'), ab = dictionary_step(&d, a, 'b');
    ok(a && ab && d.freq[a] == 0 && d.freq[ab] == 4 && d.total == 12, "the last of equal words, the sum of all");
    ok(!dictionary_step(&d, DICTIONARY_ROOT, 'c') && !dictionary_step(&d, ab, 'a'), "nothing behind it");
    dictionary_free(&d);
}

static void test_model(const char *path)
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
    hmm *h;
    if (MEM_NEW(&h, 1, NULL) != ST_OK) abort();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        write_file(path, bad[i]);
        is_err(hmm_read(h, path, &e), &e, ST_FORMAT, i == 0 ? "empty" : i == 12 ? "line 2" : "line 1", "model: %zu", i);
    }
    err e = {0};
    write_file(path, "emit\tS\tU+4E01\t-2.5\nemit\tS\tU+FFFFFFFFFFFF\t-1\n");
    is_ok(hmm_read(h, path, &e), &e, "a small model");
    ok(h->emit[3][1] == -2.5 && h->emit[3][0] == -3.14e100 && h->start[0] == -3.14e100,
       "what is missing is impossible");
    mem_free(h);
}

static void test_tables(void)
{
    char dir[] = "segment_XXXXXX", path[64];
    err e = {0};
    segmenter *none;
    if (!mkdtemp(dir)) abort();
    snprintf(path, sizeof path, "%s/dict.txt", dir);
    is_err(segmenter_create(&none, dir, &e), &e, ST_IO, "dict.txt", "no dictionary");
    test_dictionary(path);
    e = (err){0};
    is_err(segmenter_create(&none, dir, &e), &e, ST_IO, "hmm.tsv", "no model");
    unlink(path);
    snprintf(path, sizeof path, "%s/hmm.tsv", dir);
    test_model(path);
    unlink(path);
    rmdir(dir);
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
