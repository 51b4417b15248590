/* SPDX-License-Identifier: MIT */
/* Numbers of items that hold a fraction of the attention (top-p budgets). */
/* Builds: shim race device */
#include "config.h"

#include "tests/unit/op_scores.h"

static double weight_of(float score, double top, double scale)
{
    return isnan(score) ? 0 : exp(((double)score - top) * scale);
}

/* True if k is right for the ranked scores: the first k hold p of the sum, but k - 1 do not. */
static bool holds(const ranked *list, int64_t n, const mass_job *j, double scale, int64_t k)
{
    double all = 0, before = 0, top = n > 0 ? (double)list[0].score : 0;
    int64_t most = j->most < n ? j->most : n;
    if (j->p >= 1 || isinf(top) || most <= j->least) return k == most;
    if (k < j->least || k > most) return false;
    for (int64_t i = 0; i < n; i++) all += weight_of(list[i].score, top, scale);
    for (int64_t i = 0; i < k - 1; i++) before += weight_of(list[i].score, top, scale);
    double with = before + (k > 0 ? weight_of(list[k - 1].score, top, scale) : 0), near = 1e-5 * all;
    double want = (double)j->p * all;
    return (with >= want - near || k == most) && (before < want + near || k == j->least);
}

/* Checks the counts of a list of jobs over the same scores. column(i): that of item i. */
static void check_mass(op_run *x, const mass_job *jobs, size_t n, const float *score, const float *slopes,
                       int64_t (*column)(const mass_job *, int64_t))
{
    for (const mass_job *j = jobs; j < jobs + n; j++) {
        int64_t *k = op_see(x, j->k, 8 * j->n_lists);
        ranked *list = xmalloc((size_t)(j->items.hi + 1) * sizeof *list);
        for (size_t l = 0; l < j->n_lists; l++) {
            int64_t m = 0;
            for (int64_t i = j->items.lo; i < j->items.hi; i++) {
                int64_t at = column(j, i);
                if (at < 0) continue;
                float s = score[l * j->stride + (size_t)at];
                list[m++] = (ranked){isnan(s) ? -INFINITY : s, i};
            }
            qsort(list, (size_t)m, sizeof *list, by_rank);
            double scale = (double)(j->slope.p ? j->scale * slopes[l] : j->scale);
            op_note(x, holds(list, m, j, scale, k[l]), "job %d list %zu: %d of %d", (int)(j - jobs), l, (int)k[l],
                    (int)m);
        }
        free(list), free(k);
    }
}

static int64_t own_column(const mass_job *j, int64_t item)
{
    (void)j;
    return item;
}

/* Counts the first items in order that hold a fraction of the mass, for two sequences: one of half the items. Twice,
 * since a call leaves its counters at 0 for the next one. */
static void mass(op_run *x, const int64_t *p)
{
    static const float slopes[] = {0.5f, 1, 0.25f};
    size_t lists = (size_t)p[4], n = (size_t)p[0], stride = n + 3;
    if (n > 2000 && strcmp(x->be->name, "ref") == 0) return;
    float *score = xmalloc(4 * lists * stride);
    for (size_t i = 0; i < lists * stride; i++) score[i] = 8 * some_score(x, p[1], (int64_t)(i % stride));
    mass_job j[2] = {{.score = op_in(x, score, 4 * lists * stride),
                      .n_lists = lists,
                      .stride = stride,
                      .items = candidates(n, p[5] ? (int64_t)n / 3 : 0, (int64_t)n - p[5]),
                      .scale = 0.25f,
                      .p = (float)p[2] / 10000,
                      .least = p[3] / 8,
                      .most = p[3],
                      .k = op_in(x, NULL, 8 * lists)}};
    if (p[0] % 2) j[0].slope = op_in(x, slopes, sizeof slopes);
    j[1] = j[0];
    j[1].items.hi = (j[0].items.lo + j[0].items.hi) / 2, j[1].k = op_in(x, NULL, 8 * lists);
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1) j[0].k = op_in(x, NULL, 8 * lists), j[1].k = op_in(x, NULL, 8 * lists);
        x->be->ops->select->mass(x->be, j, 2);
        check_mass(x, j, 2, score, slopes, own_column);
    }
    free(score);
}

enum { SPAN = 64 };

/* Returns the column of an item among every second span; -1: none. */
static int64_t column_of_half(const mass_job *j, int64_t item)
{
    int64_t span = item / SPAN;
    (void)j;
    return span % 2 ? -1 : span / 2 * SPAN + item % SPAN;
}

/* The same in every second span, from within the first to within the last one. */
static void mass_of_spans(op_run *x, const int64_t *p)
{
    size_t n = (size_t)p[0], stride = n * SPAN + 1;
    int32_t *listed = xmalloc(4 * 2 * n);
    float *score = xmalloc(4 * 2 * stride);
    int64_t range[2][2] = {{0, (int64_t)n}, {0, (int64_t)n}}, end = (int64_t)(2 * n - 2) * SPAN + SPAN;
    for (size_t i = 0; i < 2 * n; i++) listed[i] = (int32_t)(i % n * 2);
    item_range items = candidates((size_t)end, SPAN / 2, end - SPAN / 4);
    for (size_t i = 0; i < 2 * stride; i++) score[i] = 8 * some_score(x, p[1], (int64_t)(i % stride));
    for (size_t i = 0; i < 2 * stride; i++)
        if (i % stride < SPAN / 2 || i % stride >= n * SPAN - SPAN / 4) score[i] = -INFINITY;
    item_spans spans = {op_in(x, listed, 8 * n), op_in(x, range, sizeof range), 2, n, SPAN, (int64_t)n};
    mass_job j = {.score = op_in(x, score, 8 * stride),
                  .n_lists = 2,
                  .stride = stride,
                  .items = items,
                  .spans = &spans,
                  .scale = 0.25f,
                  .p = 0.9f,
                  .most = p[2],
                  .k = op_in(x, NULL, 16)};
    x->be->ops->select->mass(x->be, &j, 1);
    check_mass(x, &j, 1, score, NULL, column_of_half);
    free(listed), free(score);
}

/* Half of the mass: of equal scores, of a huge one, of equal ones among scores without mass, without a finite largest
 * score, and of scores that are half a bin of a device's last digit apart. */
static void mass_by_hand(op_run *x, const int64_t *p)
{
    size_t n = (size_t)p[1], half = n / 2;
    if (n > 2000 && strcmp(x->be->name, "ref") == 0) return;
    float *score = xmalloc(4 * n);
    double step = 0x1p-18, with_mass = p[0] == 2 ? (double)half : (double)n;
    double share = 0.5 * with_mass, near = 1e-5 * with_mass; /* for k, where each score has the same mass */
    for (size_t i = 0; i < n; i++) {
        score[i] = 7;
        if (p[0] == 1) score[i] = i == half ? 1e30f : -1e30f;
        if (p[0] == 2) score[i] = i % 2 ? 3 : -40;
        if (p[0] == 3) score[i] = i % 2 ? NAN : -INFINITY;
        if (p[0] == 4) score[i] = i == half ? INFINITY : 1;
        if (p[0] == 5) score[i] = -(float)((double)i * step);
    }
    if (p[0] == 1) share = 1, near = 0;
    if (p[0] == 3 || p[0] == 4) share = with_mass, near = 0;
    if (p[0] == 5) share = -log(1 - 0.5 * (1 - exp(-with_mass * step))) / step, near *= 2;
    mass_job j = {.score = op_in(x, score, 4 * n),
                  .n_lists = 1,
                  .stride = n,
                  .items = candidates(n, 0, (int64_t)n),
                  .scale = 1,
                  .p = 0.5f,
                  .most = (int64_t)n,
                  .k = op_in(x, NULL, 8)};
    x->be->ops->select->mass(x->be, &j, 1);
    int64_t *k = op_see(x, j.k, 8);
    op_note(x, (double)k[0] >= share - near && (double)k[0] < share + near + 1, "%d, not %g", (int)k[0], share);
    free(score), free(k);
}

/* Weights 8 4 2 1 1 (methods.md 17.1). 0.75 is on a border, where a device may round exp to either side. */
static void mass_of_five(op_run *x, const int64_t *p)
{
    static const float score[] = {0, 3, 1, 2, 0}; /* logs to the base 2 */
    const struct {
        float p;
        int64_t k;
    } want[] = {{0.25f, 1}, {op_on_cuda(x) ? 0.74f : 0.75f, 2}, {0.85f, 3}, {0.9f, 4}, {0.95f, 5}, {1, 5}};
    (void)p;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        mass_job j = {.score = op_in(x, score, sizeof score),
                      .n_lists = 1,
                      .stride = 5,
                      .items = candidates(5, 0, 5),
                      .scale = 0.693147181f,
                      .p = want[i].p,
                      .most = 9,
                      .k = op_in(x, NULL, 8)};
        x->be->ops->select->mass(x->be, &j, 1);
        int64_t *k = op_see(x, j.k, 8);
        op_note(x, k[0] == want[i].k, "p %.2f: %d", (double)j.p, (int)k[0]);
        free(k);
    }
}

static const op_test tests[] = {
    {"mass",
     mass,
     400,
     17,
     71,
     {OP_P(1, 2, 15, 16, 17, 100, 301, 2049), KINDS, OP_P(1, 500, 5000, 9000, 9500, 9999, 10000),
      OP_P(0, 1, 5, 40, 300, 4000), OP_P(1, 2, 3), OP_BOOL}},
    {"mass of many",
     mass,
     12,
     2,
     3,
     {OP_P(16384, 16385, 40000), OP_P(0, 1, 3, 6), OP_P(9000), OP_P(100, 2048), OP_P(2), OP_BOOL}},
    {"mass of spans", mass_of_spans, 8, 2, 3, {OP_P(1, 2, 9, 300), OP_P(0, 1), OP_P(40, 5000)}},
    {"mass by hand", mass_by_hand, 18, 1, 5, {OP_P(0, 1, 2, 3, 4, 5), OP_P(5, 1000, 16384, 24577)}},
    {"mass of five items", mass_of_five, 1, 1, 1, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
