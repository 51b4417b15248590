/* SPDX-License-Identifier: MIT */
/* Scores of tokens by the store's K rows, quantized or not. The pairs of a group are multiplied into the query once;
 * its rows are then dot products with codes. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops_coded.h"
#include "kernels/ref/ref.h"

enum { HEADS = 8, RUN_ROWS = 32, RUN_PAIRS = 1024 };

void cpu_coded_add(backend *be, const index_add_job *jobs, size_t n)
{
    ref_coded_add(be, jobs, n);
}

/* Up to HEADS query heads of a kv head, [heads][head_dim], and the stride of their scores. */
typedef struct {
    const cpu_kernels *k;
    const float *q;
    size_t heads, stride;
} head_group;

/* Scores quantized rows [row, row + n) of one group. */
static void by_channel(const head_group *g, const row_source *s, size_t row, size_t n, float *out)
{
    size_t d = s->head_dim;
    const unsigned char *pair = s->pair + row / s->group * 4 * d;
    float a[HEAD_DIM_MAX], b[HEAD_DIM_MAX], f[HEADS * HEAD_DIM_MAX], add[HEADS];
    g->k->widen(a, pair, DT_F16, d);
    g->k->widen(b, pair + 2 * d, DT_F16, d);
    for (size_t h = 0; h < g->heads; h++)
        for (size_t c = 0; c < d; c++) f[h * d + c] = g->q[h * d + c] * b[c];
    g->k->dots(add, 1, s->zero_point ? f : g->q, g->heads, d, a, DT_F32, 0, 1);
    g->k->code_dots(out, g->stride, f, d, g->heads, d, s->code + row * s->row_bytes, s->row_bytes, s->bits, n);
    for (size_t h = 0; h < g->heads; h++) {
        float base = s->zero_point ? -add[h] : add[h];
        for (size_t i = 0; i < n; i++) out[h * g->stride + i] = base + out[h * g->stride + i];
    }
}

/* Adds run i of n rows, at most RUN_ROWS, with pairs [n][runs][2] of the rows. */
static void add_run(const head_group *g, const row_source *s, size_t row, size_t n, size_t i, const float *pair,
                    float *out)
{
    size_t d = s->head_dim, runs = (d + s->run - 1) / s->run, from = i * s->run;
    size_t len = d - from < s->run ? d - from : s->run;
    const unsigned char *code = s->code + row * s->row_bytes + from * (size_t)s->bits / 8;
    float p[HEADS * RUN_ROWS], one[HEAD_DIM_MAX];
    for (size_t c = 0; c < len; c++) one[c] = 1;
    g->k->code_dots(p, RUN_ROWS, g->q + from, d, g->heads, len, code, s->row_bytes, s->bits, n);
    for (size_t h = 0; h < g->heads; h++) {
        float sum, *to = out + h * g->stride;
        g->k->dots(&sum, 1, g->q + h * d + from, 1, len, one, DT_F32, 0, 1);
        for (size_t r = 0; r < n; r++) {
            float a = pair[2 * (r * runs + i)], b = pair[2 * (r * runs + i) + 1], x = p[h * RUN_ROWS + r];
            float term = s->zero_point ? b * (x - a * sum) : a * sum + b * x;
            to[r] = i == 0 ? term : to[r] + term;
        }
    }
}

static void by_run(const head_group *g, const row_source *s, size_t row, size_t n, float *out)
{
    size_t runs = (s->head_dim + s->run - 1) / s->run, step = RUN_PAIRS / runs < RUN_ROWS ? RUN_PAIRS / runs : RUN_ROWS;
    float pair[2 * RUN_PAIRS];
    for (size_t at = 0; at < n; at += step) {
        size_t some = n - at < step ? n - at : step;
        g->k->widen(pair, s->pair + (row + at) * runs * 4, DT_F16, 2 * runs * some);
        for (size_t i = 0; i < runs; i++) add_run(g, s, row + at, some, i, pair, out + at);
    }
}

size_t cpu_rows_alike(const row_source *s, size_t from, size_t to)
{
    size_t n = 1, most = to - from;
    if (!s->bits) return most;
    int64_t first = s->at[from], way = first < 0 ? -1 : 1;
    if (first < 0 && s->group) {
        size_t left = s->group - (size_t)(-1 - first) % s->group;
        if (left < most) most = left;
    }
    while (n < most && s->at[from + n] == first + way * (int64_t)n) n++;
    return n;
}

/* Scores rotated rows, none of which is quantized, with rotated queries. */
static void score_rotated(const cpu_kernels *k, const score_job *j, const row_source *s, const float *q, size_t heads,
                          size_t from, size_t to, float *out)
{
    size_t d = s->head_dim;
    float rotated[HEADS * HEAD_DIM_MAX];
    for (size_t h = 0; h < heads; h += HEADS) {
        size_t some = heads - h < HEADS ? heads - h : HEADS;
        memcpy(rotated, q + h * d, some * d * sizeof *q);
        for (size_t i = 0; i < some; i++) k->hadamard(rotated + i * d, d);
        k->dots(out + h * j->stride, j->stride, rotated, some, d, s->exact + from * kv_row_bytes(s->type, d), s->type,
                0, to - from);
    }
}

static void score_slots(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                        float *out)
{
    const kv_rows *rows = ((const coded_index *)j->index)->rows;
    row_source s = cpu_rows(rows, false, part);
    size_t d = s.head_dim, heads = j->n_heads / parts, row_bytes = kv_row_bytes(s.type, d);
    const float *q = f32_at(j->q, part * heads * d);
    if (s.rotated) {
        score_rotated(k, j, &s, q, heads, from, to, out);
        return;
    }
    for (size_t t = from, n; t < to; t += n, out += n) {
        n = cpu_rows_alike(&s, t, to);
        int64_t row = s.bits ? s.at[t] : (int64_t)t;
        if (row >= 0) {
            k->dots(out, j->stride, q, heads, d, s.exact + (size_t)row * row_bytes, s.type, 0, n);
            continue;
        }
        for (size_t h = 0; h < heads; h += HEADS) {
            head_group g = {k, q + h * d, heads - h < HEADS ? heads - h : HEADS, j->stride};
            (s.group ? by_channel : by_run)(&g, &s, (size_t)(-1 - row), n, out + h * j->stride);
        }
    }
}

void cpu_coded_score(backend *be, const score_job *jobs, size_t n)
{
    const kv_rows *rows = ((const coded_index *)jobs->index)->rows;
    if (!cpu_dim_fits(be, rows->head_dim)) return;
    cpu_score_jobs(be, jobs, n, rows->n_kv_heads, 512, 16, jobs->n_heads * rows->head_dim * 2, score_slots);
    for (; n > 0; n--, jobs++) {
        uint64_t count[READ_KINDS] = {0};
        attn_job read = ref_slots_job(((const coded_index *)jobs->index)->rows, jobs->items.lo,
                                      jobs->items.hi - jobs->items.lo, (buf){(unsigned char *)count});
        if (!jobs->read.p || read.n_max <= 0) continue;
        if (!cpu_count_read(be, &read, false)) return;
        add_bytes(jobs->read, count[READ_K]);
    }
}
