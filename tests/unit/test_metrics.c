/* SPDX-License-Identifier: MIT */
/* The metrics against what LongBench's and InfiniteBench's official code scores (tests/data/metrics). */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "eval/metrics/impl.h"
#include "eval/niah/niah.h"
#include "tests/unit/oom.h"
#include "tests/unit/metric_rows.h"
#include "tokenizer/chars.h"

static metrics *m;

/* ---- fixtures ---- */

static void test_fixture(const metric *k)
{
    char name[64];
    metric_rows rows;
    int n = 0, wrong = 0, exact = 0;
    snprintf(name, sizeof name, "%s.jsonl", metric_name(k));
    if (!rows_open(&rows, name)) return;
    for (json_t *j; (j = rows_next(&rows)); json_decref(j), n++) {
        prediction p = {0};
        err e = {0};
        double got = -1, want = json_number_value(json_object_get(j, "score"));
        status st = metric_takes_labels(k)
                        ? prediction_read(&p, &rows.r, rows.line, rows.n, "prediction", "answers", &e)
                        : prediction_read(&p, &rows.r, rows.line, rows.n, "prediction", NULL, &e);
        bool undecided = json_is_true(json_object_get(j, "undecided"));
        metric_case c = {p.text, p.answers, p.n_answers, p.classes, p.n_classes};
        if (st == ST_OK) st = metric_score(m, k, &c, &got, &e);
        if (st != ST_OK || !(fabs(got - want) <= 1e-9) || undecided != metrics_undecided(m)) {
            printf("# line %zu: %.17g, want %.17g %s\n", rows.r.number, got, want, e.msg);
            wrong++;
        }
        exact += got == want;
        prediction_free(&p);
    }
    ok(n >= 50 && wrong == 0, "%s: %d of %d cases agree to 1e-9, %d to the last bit", metric_name(k), n - wrong, n,
       exact);
    rows_close(&rows);
}

/* ---- characters ---- */

/* True if the sigma at the end of c[0..n) becomes a final one. */
static bool lowers_to_final(const int32_t *c, size_t n)
{
    str from = {0}, low = {0};
    for (size_t i = 0; i < n; i++) str_add_char(&from, c[i]);
    str_add_lower(&low, str_text(&from));
    bool final = str_at(&low, low.n - 2, "\xcf\x82");
    str_free(&from);
    str_free(&low);
    return final;
}

static bool sigma_cased(int32_t c)
{
    return lowers_to_final((const int32_t[]){c, 0x3a3}, 2);
}

static bool sigma_skipped(int32_t c)
{
    return lowers_to_final((const int32_t[]){'a', c, 0x3a3}, 3) && !sigma_cased(c);
}

static bool lower_differs(int32_t c)
{
    char utf8[4];
    str low = {0};
    utf8_text from = {utf8, (size_t)char_put(utf8, c)};
    str_add_lower(&low, from);
    bool differs = !text_equal(str_text(&low), from);
    str_free(&low);
    return differs;
}

static const struct {
    const char *name;
    bool (*test)(int32_t);
} classes[] = {
    {"space", is_python_space},       {"word", char_is_word},           {"digit", char_is_digit},
    {"punct", char_is_punct},         {"punct_zh", char_is_punct_zh},   {"sigma_cased", sigma_cased},
    {"sigma_skipped", sigma_skipped}, {"lower_differs", lower_differs},
};
enum { N_CHARS = 0x110000 };

/* Marks the characters of a row's ranges. */
static void mark(bool *in, const json_t *row)
{
    const json_t *ranges = json_object_get(row, "ranges");
    memset(in, 0, N_CHARS);
    for (size_t i = 0; i < json_array_size(ranges); i++) {
        const json_t *r = json_array_get(ranges, i);
        json_int_t end = json_integer_value(json_array_get(r, 1));
        for (json_int_t c = json_integer_value(json_array_get(r, 0)); c <= end && c < N_CHARS; c++) in[c] = true;
    }
}

static void check_class(const char *name, const bool *in, const bool *known)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strcmp(classes[i].name, name) != 0) continue;
        int wrong = 0;
        int32_t worst = 0;
        for (int32_t c = 0; c < N_CHARS; c++)
            if (known[c] && !(c >= 0xd800 && c < 0xe000) && classes[i].test(c) != in[c]) {
                wrong++;
                worst = c;
            }
        ok(wrong == 0, "class %s: every character as in Python (%d not, U+%04X)", name, wrong, (unsigned)worst);
        return;
    }
    ok(false, "class %s is unknown", name);
}

static void check_case(const json_t *row, const char *key, void (*add)(str *, utf8_text))
{
    utf8_text from = json_text(json_object_get(row, "text"));
    str got = {0};
    err e = {0};
    add(&got, from);
    is_ok(str_check(&got, &e), &e, "%s case of %zu bytes", key, from.n);
    ok(text_equal(str_text(&got), json_text(json_object_get(row, key))), "each %s case is Python's", key);
    str_free(&got);
}

static void test_upper(void)
{
    metric_rows rows;
    if (!rows_open(&rows, "upper.jsonl")) return;
    json_t *j = rows_next(&rows);
    check_case(j, "upper", str_add_upper);
    json_decref(j);
    rows_close(&rows);
}

static void test_unicode(void)
{
    metric_rows rows;
    bool *known, *in;
    int n = 0;
    if (!rows_open(&rows, "unicode.jsonl")) return;
    if (MEM_NEW(&known, N_CHARS, NULL) != ST_OK || MEM_NEW(&in, N_CHARS, NULL) != ST_OK) abort();
    for (json_t *j; (j = rows_next(&rows)); json_decref(j), n++) {
        const char *name = json_string_value(json_object_get(j, "class"));
        if (strcmp(name, "lower") == 0) check_case(j, "lower", str_add_lower);
        else mark(n ? in : known, j);
        if (n && strcmp(name, "lower") != 0) check_class(name, in, known);
    }
    is_int(n, 2 + sizeof classes / sizeof *classes, "all classes are in the fixture");
    mem_free(known);
    mem_free(in);
    rows_close(&rows);
}

/* ---- what is refused ---- */

static status score(const char *name, utf8_text from, const char *answer, const char *label, double *out, err *e)
{
    utf8_text a = utf8_of(answer), l = utf8_of(label ? label : "");
    metric_case c = {from, &a, 1, label ? &l : NULL, label != NULL};
    *e = (err){0};
    return metric_score(m, metric_find(name), &c, out, e);
}

static void test_refused(void)
{
    err e;
    double x;
    ok(!metric_find("rouge-l") && !metric_find(""), "an unknown metric");
    for (const metric *k = metric_next(NULL); k; k = metric_next(k))
        is_err(score(metric_name(k), utf8_of("\xed\xa0\x80"),
                     "Paragraph 1 \xe6\xae\xb5\xe8\x90\xbd"
                     "1",
                     "x", &x, &e),
               &e, ST_FORMAT, "not UTF-8: byte 0", "%s: a surrogate", metric_name(k));
    is_err(score("qa_f1", utf8_of("x"), "y\xff", NULL, &x, &e), &e, ST_FORMAT, "byte 1", "an answer that is not UTF-8");
    is_err(score("classification", utf8_of("x"), "y", NULL, &x, &e), &e, ST_FORMAT, "all_classes", "no classes");
    is_err(score("retrieval", utf8_of("x"), "Paragraph x", NULL, &x, &e), &e, ST_FORMAT, "no paragraph", "no number");
    is_err(score("retrieval_zh", utf8_of("x"), "Paragraph 1", NULL, &x, &e), &e, ST_FORMAT, "no paragraph",
           "no number in Chinese");
    metric_case none = {utf8_of("x"), NULL, 0, NULL, 0};
    ok(metric_score(m, metric_find("qa_f1"), &none, &x, &e) == ST_OK && x == 0, "no answer scores 0");
}

static void read_labels(const char *answer, const char *want)
{
    char line[128], got[128] = "";
    prediction p;
    line_reader r = {.name = "x", .number = 3};
    err e = {0};
    size_t n = (size_t)snprintf(line, sizeof line, "{\"pred\":\"y\",\"answer\":%s}", answer);
    status st = prediction_read(&p, &r, line, n, "pred", "answer", &e);
    for (size_t i = 0; st == ST_OK && i < p.n_answers; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "", p.answers[i].s);
    if (want) is_str(st == ST_OK ? got : e.msg, want, "the labels %s", answer);
    else is_err(st, &e, ST_FORMAT, "line 3: 'answer'", "the labels %s", answer);
    prediction_free(&p);
}

static void test_labels(void)
{
    read_labels("\"x y\"", "x y");
    read_labels("5", "5");
    read_labels("5.0", "5.0");
    read_labels("-7", "-7");
    read_labels("0.1", "0.10000000000000001");
    read_labels("1e300", "1.0000000000000001e+300");
    read_labels("[1, 4.0, \"x\"]", "1 4.0 x");
    read_labels("[[1, 2]]", "1 2");
    read_labels("[]", NULL);
    read_labels("[[]]", NULL);
    read_labels("[[1],2]", NULL);
    read_labels("true", NULL);
    read_labels("{}", NULL);
    read_labels("null", NULL);
    err e;
    double x;
    is_err(score("math_find", utf8_of("5"), "five", NULL, &x, &e), &e, ST_FORMAT, "'five' is not a number",
           "a label that is no number");
    is_err(score("code_run", utf8_of("5"), "0x5", NULL, &x, &e), &e, ST_FORMAT, "is not a number",
           "nor are hexadecimal ones");
    is_err(score("math_calc", utf8_of("5"), "", NULL, &x, &e), &e, ST_FORMAT, "is not a number", "nor is nothing");
    is_err(score("math_find", utf8_of("5"), "1e999", NULL, &x, &e), &e, ST_FORMAT, "is not a number",
           "nor is infinity");
    is_err(score("code_debug", utf8_of("5"), "foo", NULL, &x, &e), &e, ST_FORMAT, "its letter",
           "an option without its letter");
    utf8_text two[] = {utf8_of("foo"), utf8_of("E")};
    metric_case c = {utf8_of("x"), two, 2, NULL, 0};
    e = (err){0};
    is_err(metric_score(m, metric_find("longbook_choice_eng"), &c, &x, &e), &e, ST_FORMAT, "its letter",
           "a letter that is none");
}

/* n words of the same kind in one sentence (mem_free). */
static utf8_text many_words(size_t n)
{
    char *s;
    if (MEM_NEW(&s, 2 * n, NULL) != ST_OK) abort();
    for (size_t i = 0; i < n; i++) memcpy(s + 2 * i, "x ", 2);
    return (utf8_text){s, 2 * n};
}

static void test_long(void)
{
    utf8_text long_text = many_words(1 << 17), short_text = many_words(3000);
    metric_case c = {long_text, &long_text, 1, NULL, 0};
    err e = {0};
    double x;
    is_err(metric_score(m, metric_find("rouge"), &c, &x, &e), &e, ST_UNSUPPORTED, "131072 and 131072 words",
           "texts that are too long to be aligned");
    e = (err){0};
    is_err(metric_score(m, metric_find("code_sim"), &(metric_case){short_text, &long_text, 1, NULL, 0}, &x, &e), &e,
           ST_UNSUPPORTED, "6000 and 262144 characters", "a line that is too long to be compared");
    c = (metric_case){short_text, &long_text, 1, NULL, 0};
    e = (err){0};
    is_ok(metric_score(m, metric_find("qa_f1"), &c, &x, &e), &e, "many words");
    double p = 1, r = 3000.0 / (1 << 17);
    ok(x == 2 * p * r / (p + r), "F1 of many equal words: %.17g", x);
    c = (metric_case){short_text, &short_text, 1, NULL, 0};
    is_ok(metric_score(m, metric_find("rouge"), &c, &x, &e), &e, "a path longer than Python's stack");
    ok(x == 2.0 * (1.0 / (2 + 1e-8)), "which scores as any perfect match: %.17g", x);
    mem_free((void *)(uintptr_t)long_text.s);
    mem_free((void *)(uintptr_t)short_text.s);
}

/* Every allocation fails once: no leak (the sanitizer looks), ST_NOMEM, and the next call works. */
static void test_memory(void)
{
    double x;
    long all = 0;
    utf8_text two[] = {utf8_of("12"), utf8_of("B")};
    for (const metric *k = metric_next(NULL); k; k = metric_next(k)) {
        const char *name = metric_name(k), *answer = "Paragraph 1. \xe6\xae\xb5\xe8\x90\xbd"
                                                     "1 \xe6\x88\x91\xe7\x88\xb1 x";
        bool choice = strstr(name, "choice") || strstr(name, "debug");
        metric_case labels = {utf8_of("it says 12 is: x\n12"), two, choice ? 2 : 1, NULL, 0};
        oom_run o = {0};
        while (oom_next(&o)) {
            status st = metric_takes_labels(k) ? metric_score(m, k, &labels, &x, &o.e)
                                               : score(name, utf8_of(answer + 1), answer, "x", &x, &o.e);
            oom_saw(&o, st, NULL);
        }
        oom_ok(&o, -1, name); /* some need no memory */
        all += o.n - 1;
    }
    ok(all > 80, "%ld allocations failed in all", all);
}

/* eval niah: shares of words, and the whole key. */
static void test_needle(void)
{
    static const struct {
        const char *answer, *key;
        double share;
        bool found;
    } cases[] = {
        {"A sandwich, I think.", "eat a sandwich", 2.0 / 3, false},
        {"You EAT a Sandwich!", "eat a sandwich", 1, true},
        {"eat eat", "eat, eat; drink", 0.5, false},
        {"714321", "71432", 0, true},
        {"", "x", 0, false},
        {"well?", "?", 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double share;
        bool found;
        err e = {0};
        is_ok(niah_score(&share, &found, utf8_of(cases[i].answer), utf8_of(cases[i].key), &e), &e, "needle %zu", i);
        ok(share == cases[i].share && found == cases[i].found, "needle %zu: %g, %d", i, share, found);
    }
}

int main(void)
{
    err e = {0};
    if (!is_ok(metrics_open(&m, tap_path("eval"), &e), &e, "metrics")) return tap_done();
    for (const metric *k = metric_next(NULL); k; k = metric_next(k))
        if (!metric_finds_answers(k)) test_fixture(k); /* those that do: tests/cli/reason.t */
    test_unicode();
    test_upper();
    test_needle();
    test_labels();
    test_refused();
    test_long();
    test_memory();
    metrics_destroy(m);
    return tap_done();
}
