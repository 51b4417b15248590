/* SPDX-License-Identifier: MIT */
/* LongBench's table, post-processing and means, against its official eval.py. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "eval/longbench/longbench.h"
#include "tests/unit/files.h"
#include "tests/unit/metric_rows.h"

static longbench_table datasets;
static metrics *m;

/* ---- the table ---- */

/* evals.md 1.2: E: LongBench-E, c: chat, 1: first line only. */
static const struct {
    const char *name, *metric;
    int max_new;
    const char *flags;
} expected[] = {
    {"narrativeqa", "qa_f1", 128, "c"},
    {"qasper", "qa_f1", 128, "Ec"},
    {"multifieldqa_en", "qa_f1", 64, "Ec"},
    {"multifieldqa_zh", "qa_f1_zh", 64, "c"},
    {"hotpotqa", "qa_f1", 32, "Ec"},
    {"2wikimqa", "qa_f1", 32, "Ec"},
    {"musique", "qa_f1", 32, "c"},
    {"dureader", "rouge_zh", 128, "c"},
    {"gov_report", "rouge", 512, "Ec"},
    {"qmsum", "rouge", 512, "c"},
    {"multi_news", "rouge", 512, "Ec"},
    {"vcsum", "rouge_zh", 512, "c"},
    {"trec", "classification", 64, "E1"},
    {"triviaqa", "qa_f1", 32, "E1"},
    {"samsum", "rouge", 128, "E1"},
    {"lsht", "classification", 64, "1"},
    {"passage_count", "count", 32, "Ec"},
    {"passage_retrieval_en", "retrieval", 32, "Ec"},
    {"passage_retrieval_zh", "retrieval_zh", 32, "c"},
    {"lcc", "code_sim", 64, "E"},
    {"repobench-p", "code_sim", 64, "E"},
};
enum { N_EXPECTED = sizeof expected / sizeof *expected };

static void test_table(void)
{
    is_int((long long)datasets.names.n, N_EXPECTED, "datasets");
    for (size_t i = 0; i < datasets.names.n && i < N_EXPECTED; i++) {
        const longbench_dataset *d = &datasets.d[i];
        const char *f = expected[i].flags;
        ok(strcmp(d->name, expected[i].name) == 0 && strcmp(metric_name(d->metric), expected[i].metric) == 0 &&
               d->max_new_tokens == expected[i].max_new && d->longbench_e == (strchr(f, 'E') != NULL) &&
               d->chat == (strchr(f, 'c') != NULL) && d->first_line == (strchr(f, '1') != NULL),
           "%s is as the benchmark has it", expected[i].name);
    }
}

static void test_find(void)
{
    static const char *const near[][2] = {{"hotpot", "hotpotqa"},
                                          {"passage_retrieval", "passage_retrieval_en"},
                                          {"repobench_p", "repobench-p"},
                                          {"", "lcc"}};
    const longbench_dataset *d;
    char long_name[300];
    err e = {0};
    is_ok(longbench_find(&d, &datasets, "samsum.jsonl", 6, &e), &e, "a name with a suffix");
    is_str(d->name, "samsum", "is found");
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        e = (err){0};
        is_err(longbench_find(&d, &datasets, near[i][0], strlen(near[i][0]), &e), &e, ST_USAGE, near[i][1],
               "nearest to '%s'", near[i][0]);
    }
    memset(long_name, 'x', sizeof long_name);
    e = (err){0};
    is_err(longbench_find(&d, &datasets, long_name, sizeof long_name, &e), &e, ST_USAGE, "nearest", "a long name");
}

/* ---- scores ---- */

/* One row of the fixture: scores all its samples. */
static bool score_row(const json_t *row, longbench_scores *s)
{
    const json_t *preds = json_object_get(row, "predictions"), *labels = json_object_get(row, "all_classes");
    const char *name = json_string_value(json_object_get(row, "dataset"));
    const longbench_dataset *d;
    utf8_text answer[8], label[16];
    err e = {0};
    metric_case c = {
        .answers = answer, .classes = json_is_array(labels) ? label : NULL, .n_classes = json_array_size(labels)};
    for (size_t i = 0; i < c.n_classes; i++) label[i] = json_text(json_array_get(labels, i));
    if (longbench_find(&d, &datasets, name, strlen(name), &e) != ST_OK) return false;
    for (size_t i = 0; i < json_array_size(preds); i++) {
        const json_t *a = json_array_get(json_object_get(row, "answers"), i);
        c.prediction = json_text(json_array_get(preds, i));
        c.n_answers = json_array_size(a);
        for (size_t k = 0; k < c.n_answers; k++) answer[k] = json_text(json_array_get(a, k));
        double score;
        int64_t length = json_integer_value(json_array_get(json_object_get(row, "lengths"), i));
        if (longbench_score(m, d, c, &score, &e) != ST_OK || longbench_scores_add(s, score, length, &e) != ST_OK)
            return false;
    }
    return true;
}

static void test_scorer(void)
{
    metric_rows rows;
    int n = 0;
    if (!rows_open(&rows, "scorer.jsonl")) return;
    for (json_t *j; (j = rows_next(&rows)); json_decref(j), n++) {
        double mean[LONGBENCH_BUCKETS];
        longbench_scores s = {0};
        bool same = true;
        ok(score_row(j, &s), "line %zu: scored", rows.r.number);
        double total = longbench_mean(&s), want = json_number_value(json_object_get(j, "score"));
        for (int b = 0; b < LONGBENCH_BUCKETS; b++) {
            const json_t *e = json_array_get(json_object_get(j, "score_e"), (size_t)b);
            mean[b] = longbench_bucket_mean(&s, b);
            same &= json_is_null(e) ? isnan(mean[b]) : mean[b] == json_number_value(e);
        }
        ok(total == want && same, "line %zu: %.2f of %zu samples, %.2f %.2f %.2f", rows.r.number, total, s.n, mean[0],
           mean[1], mean[2]);
        longbench_scores_free(&s);
    }
    ok(n >= 15, "%d data sets", n);
    ok(isnan(longbench_mean(&(longbench_scores){0})), "no scores have no mean");
    rows_close(&rows);
}

/* ---- files ---- */

static char work[] = "longbench_XXXXXX";

static status score_text(const char *dataset, const char *s, size_t n, bool need_length, longbench_scores *out, err *e)
{
    char path[64];
    const longbench_dataset *d;
    *e = (err){0};
    *out = (longbench_scores){0};
    snprintf(path, sizeof path, "%s/x.jsonl", work);
    write_file(path, s, n);
    status st = longbench_find(&d, &datasets, dataset, strlen(dataset), e);
    if (st == ST_OK) st = longbench_score_file(m, d, path, need_length, out, e);
    unlink(path);
    return st;
}

static void test_files(void)
{
    static const char good[] = "{\"pred\":\"x\",\"answers\":[\"x\"],\"all_classes\":[\"y\"],\"length\":1}\r\n \n"
                               "{\"answers\":[\"z\\u0000\",\"q\"],\"pred\":\"\\nz\\u0000\\nx\",\"all_classes\":[\"x\","
                               "\"z\\u0000\"]}";
    static const struct {
        const char *s, *message;
    } bad[] = {
        {"", "x.jsonl: no predictions"},
        {"\n \n", "no predictions"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"]}\n{", "line 2: not valid JSON"},
        {"[]", "line 1: the top level"},
        {"{\"answers\":[\"x\"]}", "line 1: 'pred'"},
        {"{\"pred\":1,\"answers\":[\"x\"]}", "'pred': expected a string"},
        {"{\"pred\":\"x\"}", "'answers'"},
        {"\n{\"pred\":\"x\",\"answers\":[]}", "line 2: 'answers'"},
        {"{\"pred\":\"x\",\"answers\":\"x\"}", "'answers'"},
        {"{\"pred\":\"x\",\"answers\":[\"x\",null]}", "'answers': element 1"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"],\"all_classes\":[1]}", "'all_classes': element 0"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"],\"all_classes\":{}}", "'all_classes'"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"],\"length\":-1}", "'length'"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"],\"length\":1.5}", "'length'"},
        {"{\"pred\":\"x\",\"answers\":[\"x\"]}", "'length' is missing"},
        {"{\"pred\":\"\xff\",\"answers\":[\"x\"]}", "line 1: not valid JSON"},
        {"{\"pred\":\"\\ud800\",\"answers\":[\"x\"]}", "line 1: not valid JSON"},
        {"{\"pred\":\"x\",\"pred\":\"x\",\"answers\":[\"x\"]}", "duplicate"},
    };
    longbench_scores s;
    err e;
    is_ok(score_text("trec", good, sizeof good - 1, false, &s, &e), &e, "a good file");
    ok(s.n == 2 && s.sum == 2, "the last line's classes hold for all; only first lines count");
    longbench_scores_free(&s);
    is_err(score_text("trec", good, sizeof good - 1, true, &s, &e), &e, ST_FORMAT, "line 3: 'length' is missing",
           "the same for LongBench-E");
    longbench_scores_free(&s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        is_err(score_text("qasper", bad[i].s, strlen(bad[i].s), true, &s, &e), &e, ST_FORMAT, bad[i].message,
               "file %zu", i);
        longbench_scores_free(&s);
    }
    is_err(score_text("trec", bad[14].s, strlen(bad[14].s), false, &s, &e), &e, ST_FORMAT, "line 1: classification",
           "a classification without classes");
    longbench_scores_free(&s);
}

static void test_bad_table(void)
{
    static const char row[] = "\"group\":\"g\",\"chat\":true,\"first_line\":true,\"longbench_e\":true";
    static const struct {
        const char *more, *message;
    } bad[] = {{",\"metric\":\"qa\",\"max_new_tokens\":1", "unknown metric 'qa'"},
               {",\"metric\":\"qa_f1\",\"max_new_tokens\":0", "max_new_tokens is 0"},
               {",\"metric\":\"qa_f1\"", "max_new_tokens"},
               {",\"metric\":1,\"max_new_tokens\":1", "'x'"},
               {",\"metric\":\"qa_f1\",\"max_new_tokens\":1,\"question\":1", "'x'"},
               {",\"metric\":\"qa_f1\",\"max_new_tokens\":1", "prompts.json: 'x' is missing"}};
    char dir[96], path[128], prompts[128], text[512];
    longbench_table t;
    err e = {0};
    snprintf(dir, sizeof dir, "%s/longbench", work);
    snprintf(path, sizeof path, "%s/datasets.json", dir);
    is_err(longbench_open(&t, work, &e), &e, ST_IO, "datasets.json", "no table");
    longbench_close(&t);
    snprintf(text, sizeof text, "mkdir '%s'", dir);
    if (system(text) != 0) abort();
    snprintf(prompts, sizeof prompts, "%s/prompts.json", dir);
    write_file(prompts, "{\"y\":\"\"}", 8);
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        bool empty = i == sizeof bad / sizeof *bad;
        int n =
            empty ? snprintf(text, sizeof text, "{}") : snprintf(text, sizeof text, "{\"x\":{%s%s}}", row, bad[i].more);
        write_file(path, text, (size_t)n);
        e = (err){0};
        is_err(longbench_open(&t, work, &e), &e, ST_FORMAT, empty ? "no dataset" : bad[i].message, "table %zu", i);
        longbench_close(&t);
    }
    unlink(path);
    unlink(prompts);
    rmdir(dir);
}

int main(void)
{
    err e = {0};
    if (!mkdtemp(work)) abort();
    if (!is_ok(longbench_open(&datasets, tap_path("eval"), &e), &e, "the table opens")) return tap_done();
    if (!is_ok(metrics_open(&m, tap_path("eval"), &e), &e, "metrics")) return tap_done();
    test_table();
    test_find();
    test_scorer();
    test_files();
    test_bad_table();
    metrics_destroy(m);
    longbench_close(&datasets);
    rmdir(work);
    return tap_done();
}
