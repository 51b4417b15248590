/* SPDX-License-Identifier: MIT */
/* Scores of predictions and their means. */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <math.h>
#include <string.h>

#include "eval/prediction.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* ---- one sample ---- */

/* pred.lstrip("\n").split("\n")[0] */
static utf8_text first_line(utf8_text s)
{
    while (s.n && s.s[0] == '\n') {
        s.s++;
        s.n--;
    }
    const char *end = s.n ? memchr(s.s, '\n', s.n) : NULL;
    if (end) s.n = (size_t)(end - s.s);
    return s;
}

status longbench_score(metrics *m, const longbench_dataset *d, metric_case c, double *score, err *e)
{
    if (d->first_line) c.prediction = first_line(c.prediction);
    return metric_score(m, d->metric, &c, score, e);
}

/* ---- LongBench-E ---- */

/* NumPy's sum: eight running sums in blocks of at most 128, halves above that (pairwise summation). */
static double numpy_sum(const double *x, size_t n)
{
    if (n > 128) {
        size_t half = n / 2 - n / 2 % 8;
        return numpy_sum(x, half) + numpy_sum(x + half, n - half);
    }
    double sum = 0, r[8];
    size_t i = 0;
    if (n >= 8) {
        memcpy(r, x, sizeof r);
        for (i = 8; i + 8 <= n; i += 8)
            for (size_t k = 0; k < 8; k++) r[k] += x[i + k];
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; i++) sum += x[i];
    return sum;
}

const char *const longbench_bucket_names[LONGBENCH_BUCKETS] = {"0-4k", "4-8k", "8k+"};

/* The scores of one bucket into out, which has room for all; their number. */
static size_t scores_of_bucket(const scores *s, int bucket, double *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        int b = s->length[i] < 4000 ? 0 : s->length[i] < 8000 ? 1 : 2;
        if (b == bucket) out[n++] = s->score[i];
    }
    return n;
}

status longbench_bucket_means(const scores *s, double out[LONGBENCH_BUCKETS], err *e)
{
    double *x;
    TRY(MEM_NEW(&x, s->n, e));
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) {
        size_t n = scores_of_bucket(s, b, x);
        out[b] = n ? rint(100 * (numpy_sum(x, n) / (double)n) * 100) / 100 : (double)NAN;
    }
    mem_free(x);
    return ST_OK;
}

/* ---- files of predictions ---- */

/* The last line, for its classes; ST_FORMAT where there is none. */
static status read_last(prediction *p, line_reader r, err *e)
{
    const char *line, *last = NULL;
    size_t n, last_n = 0, number = 0;
    while (next_line(&r, &line, &n)) {
        last = line;
        last_n = n;
        number = r.number;
    }
    if (!last) return err_set(e, ST_FORMAT, "%s: no predictions", path_tail(r.name));
    r.number = number;
    return prediction_read(p, &r, last, last_n, "pred", NULL, e);
}

static status score_lines(metrics *m, const longbench_dataset *d, line_reader r, bool need_length, scores *out, err *e)
{
    prediction last = {0}, p = {0};
    const char *line;
    size_t n;
    status st;
    TRY_GOTO(read_last(&last, r, e));
    while (next_line(&r, &line, &n)) {
        double score;
        err inner = {0};
        prediction_free(&p);
        TRY_GOTO(prediction_read(&p, &r, line, n, "pred", NULL, e));
        metric_case c = {p.text, p.answers, p.n_answers, last.classes, last.n_classes};
        st = longbench_score(m, d, c, &score, &inner);
        if (st == ST_OK && need_length && p.length < 0) st = err_set(&inner, ST_FORMAT, "'length' is missing");
        if (st == ST_OK) st = scores_add(out, score, p.length, &inner);
        if (st != ST_OK) {
            prediction_failed(&r, &inner, e);
            goto done;
        }
    }
done:
    prediction_free(&last);
    prediction_free(&p);
    return st;
}

status longbench_score_file(metrics *m, const longbench_dataset *d, const char *path, bool need_length, scores *out,
                            err *e)
{
    char *file;
    line_reader r = {.name = path};
    TRY(file_read(&file, &r.size, path, MAX_FILE_BYTES, e));
    r.s = file;
    status st = score_lines(m, d, r, need_length, out, e);
    mem_free(file);
    return st;
}
