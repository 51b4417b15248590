/* SPDX-License-Identifier: MIT */
/* Any bytes as a line of predictions, with texts or labels for answers; where it is none, as prediction and answers
 * with a byte 0xff between them. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/impl.h"
#include "eval/prediction.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static metrics *m;
enum { MOST = 512 }; /* of an input: some metrics take the time of all pairs of words */

static void score_all(const metric_case *c)
{
    for (const metric *k = metric_next(NULL); k; k = metric_next(k)) {
        err e = {0};
        double x = -1;
        status st = metric_score(m, k, c, &x, &e);
        if (st == ST_OK ? !(x >= 0 && x <= 1) : !e.msg[0]) abort();
    }
}

/* The words are the text, in order. */
static void cut(utf8_text s)
{
    const segmenter *g;
    text_list words = {0};
    size_t at = 0;
    if (text_check(s, NULL) != ST_OK) return;
    if (metrics_segmenter(m, &g, NULL) != ST_OK || segmenter_cut(g, s, &words, NULL) != ST_OK) abort();
    for (size_t i = 0; i < words.n; at += words.s[i++].n)
        if (words.s[i].s != s.s + at || words.s[i].n == 0) abort();
    if (at != s.n) abort();
    text_list_free(&words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n > MOST) return 0;
    if (!m && metrics_open(&m, tap_path("eval"), NULL) != ST_OK) abort();
    prediction p;
    err e = {0};
    line_reader r = {.name = "input", .number = 1};
    const uint8_t *split = n ? memchr(data, 0xff, n) : NULL;
    status st = prediction_read(&p, &r, (const char *)data, n, "pred", "label", &e);
    if (st == ST_OK) {
        metric_case c = {p.text, p.answers, p.n_answers, NULL, 0};
        score_all(&c);
    }
    prediction_free(&p);
    e = (err){0};
    st = prediction_read(&p, &r, (const char *)data, n, "pred", NULL, &e);
    if (st == ST_OK) {
        metric_case c = {p.text, p.answers, p.n_answers, p.classes, p.n_classes};
        score_all(&c);
        cut(p.text);
    } else if (split) {
        const char *s = (const char *)data;
        size_t at = (size_t)(split - data);
        utf8_text answer[] = {{s + at + 1, n - at - 1}, {"B", 1}};
        metric_case c = {{s, at}, answer, 1 + n % 2, answer, 1};
        score_all(&c);
        cut(c.prediction);
    } else if (!e.msg[0]) {
        abort();
    }
    prediction_free(&p);
    return 0;
}
