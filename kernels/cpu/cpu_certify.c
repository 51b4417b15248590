/* SPDX-License-Identifier: MIT */
/* Certificates. The bounds of a group of quantized rows are computed once for all its rows. Lists are sorted by their
 * scores, and the needed number of entries is searched from the end, where sums are small. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_certify.h"
#include "kernels/ref/ref.h"

const certify_ops cpu_certify = {CERTIFY_OPS(OP_ENTRY, cpu_certify_, ref_certify_)};

enum { HEADS = 8 };

/* ---- bound ---- */

/* |q| of the heads of a part, and constants of the store. */
typedef struct {
    const cpu_kernels *k;
    const float *q;
    size_t heads, stride;
    certify_rule rule;
} bound_group;

static void fill(const bound_group *g, const float *bound, size_t n, float *out)
{
    for (size_t h = 0; h < g->heads; h++)
        for (size_t i = 0; i < n; i++) out[h * g->stride + i] = bound[h];
}

/* Computes the bounds of n quantized rows of one group. */
static void bound_channels(const bound_group *g, const row_source *s, size_t row, size_t n, float *out)
{
    size_t d = s->head_dim;
    const unsigned char *pair = s->pair + row / s->group * 4 * d;
    float a[HEAD_DIM_MAX], b[HEAD_DIM_MAX], bound[HEADS];
    g->k->widen(a, pair, DT_F16, d);
    g->k->widen(b, pair + 2 * d, DT_F16, d);
    for (size_t c = 0; c < d; c++) a[c] = certify_width(&g->rule, a[c], b[c]);
    g->k->dots(bound, 1, g->q, g->heads, d, a, DT_F32, 0, 1);
    fill(g, bound, n, out);
}

static void bound_exact(const bound_group *g, const row_source *s, size_t row, float *out)
{
    size_t d = s->head_dim;
    float x[HEAD_DIM_MAX], bound[HEADS];
    g->k->widen(x, s->exact + row * d * dtype_size(s->type), s->type, d);
    for (size_t c = 0; c < d; c++) x[c] = fabsf(x[c]);
    g->k->dots(bound, 1, g->q, g->heads, d, x, DT_F32, 0, 1);
    for (size_t h = 0; h < g->heads; h++) bound[h] *= g->rule.sum;
    fill(g, bound, 1, out);
}

/* Computes the bounds of block rows [row, row + n), some at a time, from their widths as rows of floats. */
static void bound_blocks(const bound_group *g, const row_source *s, size_t row, size_t n, float *out)
{
    enum { WIDE = 16 };
    size_t d = s->head_dim, bytes = kv_row_bytes(s->type, d);
    const certify_blocks rule = certify_blocks_of(s->type, s->rotated, d);
    float w[WIDE * HEAD_DIM_MAX], scale[HEAD_DIM_MAX / ROW_BLOCK], all[WIDE];
    for (size_t at = 0; at < n; at += WIDE) {
        size_t some = n - at < WIDE ? n - at : WIDE;
        for (size_t i = 0; i < some; i++) {
            const unsigned char *in = s->exact + (row + at + i) * bytes;
            g->k->widen(scale, in + row_code_bytes(s->type, d), DT_F16, d / ROW_BLOCK);
            all[i] = 0;
            for (size_t b = 0; b < d / ROW_BLOCK; b++) all[i] += certify_block_scale(scale[b]);
            float rotation = rule.rotation * all[i];
            for (size_t c = 0; c < d; c++) {
                int code = s->type == DT_Q8 ? in[c] : in[c / 2] >> c % 2 * 4 & 15;
                float x = certify_block_width(&rule, s->type, scale[c / ROW_BLOCK], code - qblock_offset(s->type));
                w[i * d + c] = (x + rotation) + rule.least;
            }
        }
        g->k->dots(out + at, g->stride, g->q, g->heads, d, w, DT_F32, 0, some);
        for (size_t i = 0; i < some; i++)
            for (size_t h = 0; h < g->heads && !(all[i] < INFINITY); h++) out[h * g->stride + at + i] = INFINITY;
    }
}

static void bound_runs(const bound_group *g, const row_source *s, size_t row, size_t n, float *out)
{
    size_t d = s->head_dim, runs = (d + s->run - 1) / s->run;
    float pair[2 * HEAD_DIM_MAX], one[HEAD_DIM_MAX], sum[HEAD_DIM_MAX];
    for (size_t c = 0; c < d; c++) one[c] = 1;
    for (size_t h = 0; h < g->heads; h++) {
        for (size_t i = 0, from = 0; i < runs; i++, from += s->run)
            g->k->dots(&sum[i], 1, g->q + h * d + from, 1, d - from < s->run ? d - from : s->run, one, DT_F32, 0, 1);
        for (size_t t = 0; t < n; t++) {
            float bound = 0;
            g->k->widen(pair, s->pair + (row + t) * runs * 4, DT_F16, 2 * runs);
            for (size_t i = 0; i < runs; i++) {
                float term = certify_width(&g->rule, pair[2 * i], pair[2 * i + 1]) * sum[i];
                bound = i == 0 ? term : bound + term;
            }
            out[h * g->stride + t] = bound;
        }
    }
}

static void bound_slots(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                        float *out)
{
    const kv_rows *rows = ((const coded_index *)j->index)->rows;
    row_source s = cpu_rows(rows, false, part);
    size_t d = s.head_dim, all = j->n_heads / parts;
    float q[HEADS * HEAD_DIM_MAX];
    for (size_t h = 0; h < all; h += HEADS) {
        bound_group g = {k, q, all - h < HEADS ? all - h : HEADS, j->stride, certify_rule_of(s.bits, d)};
        const float *in = f32_at(j->q, (part * all + h) * d);
        float *to_head = out + h * j->stride;
        memcpy(q, in, g.heads * d * sizeof *q);
        for (size_t i = 0; i < g.heads && s.rotated; i++) k->hadamard(q + i * d, d);
        for (size_t c = 0; c < g.heads * d; c++) q[c] = fabsf(q[c]);
        if (dtype_in_qblocks(s.type)) {
            bound_blocks(&g, &s, from, to - from, to_head);
            continue;
        }
        for (size_t t = from, n; t < to; t += n) {
            int64_t row = s.bits ? s.at[t] : (int64_t)t;
            n = row < 0 ? cpu_rows_alike(&s, t, to) : 1;
            if (row >= 0) bound_exact(&g, &s, (size_t)row, to_head + (t - from));
            else (s.group ? bound_channels : bound_runs)(&g, &s, (size_t)(-1 - row), n, to_head + (t - from));
        }
    }
}

void cpu_certify_bound(backend *be, const score_job *jobs, size_t n)
{
    const kv_rows *rows = ((const coded_index *)jobs->index)->rows;
    if (!cpu_dim_fits(be, rows->head_dim)) return;
    cpu_score_jobs(be, jobs, n, rows->n_kv_heads, 512, 16, jobs->n_heads * 8, bound_slots);
}

/* ---- choose ---- */

/* Work space of one thread for lists that see n tokens. */
typedef struct {
    float *x, *up, *low; /* logits; exp of the upper and the lower ones relative to the largest */
    uint32_t *key, *idx, *other;
} certify_space;

static size_t space_words(size_t n)
{
    return 6 * (n + 64);
}

static certify_space space_at(void *p, size_t n)
{
    uint32_t *w = p;
    size_t each = n + 64;
    float *f = p;
    return (certify_space){f, f + each, f + 2 * each, w + 3 * each, w + 4 * each, w + 5 * each};
}

/* Sorts candidates to s->idx in the order of choose_job: three stable passes by 11 bits of their keys. */
static void sort_list(const certify_space *s, const float *x, size_t n)
{
    enum { BITS = 11, SIZE = 1 << BITS, PASSES = 3 };
    uint32_t *from = s->other, *to = s->idx;
    for (size_t i = 0; i < n; i++) {
        s->key[i] = ~cpu_key(isnan(x[i]) ? -INFINITY : x[i]);
        from[i] = (uint32_t)i;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        uint32_t at[SIZE + 1] = {0};
        int shift = pass * BITS;
        for (size_t i = 0; i < n; i++) at[(s->key[i] >> shift & (SIZE - 1)) + 1]++;
        for (int b = 0; b < SIZE; b++) at[b + 1] += at[b];
        for (size_t i = 0; i < n; i++) to[at[s->key[from[i]] >> shift & (SIZE - 1)]++] = from[i];
        uint32_t *done = to;
        to = from;
        from = done;
    }
}

/* Sums over the tokens that a head sees; unit: of s->low in units of s->up. */
typedef struct {
    double low, unit;
    bool finite;
} head_sums;

static head_sums sums_of(const cpu_kernels *k, const certify_job *j, size_t h, const certify_space *s)
{
    size_t n = (size_t)(j->items.n_slots - j->first), at = h * j->stride + (size_t)j->first;
    const float *score = f32_at(j->score, at), *error = f32_at(j->error, at);
    float top, under, sum, by = j->scale * 1.44269504f, wrong = 0;
    head_sums all = {0};
    for (size_t i = 0; i < n; i++) {
        s->x[i] = score[i] + error[i];
        wrong += s->x[i] * 0;
    }
    k->vote_exp(s->up, &top, &sum, s->x, by, n);
    for (size_t i = 0; i < n; i++) {
        s->x[i] = score[i] - error[i];
        wrong += s->x[i] * 0;
    }
    k->vote_exp(s->low, &under, &sum, s->x, by, n);
    for (size_t i = 0; i < n; i++) all.low += (double)s->low[i];
    all.unit = exp2((double)under - (double)top);
    all.finite = wrong == 0 && isfinite(top) && isfinite(under);
    return all;
}

/* Removes candidates in order, from all down to `least`, while the bound is at most eps. Returns their number and its
 * bound. */
static int64_t walk_down(const certify_job *j, const certify_space *s, const head_sums *all, int64_t least, float eps,
                         float *bound)
{
    int64_t n = j->items.hi - j->items.lo, seen = j->items.n_slots - j->first, k = n;
    double f = 0, rest = 0;
    *bound = 0;
    for (; k > least; k--) {
        size_t t = (size_t)(j->items.lo - j->first) + s->idx[k - 1];
        f += (double)s->up[t];
        rest += (double)s->low[t];
        float b = all->finite ? certify_bound(f, (all->low - rest) * all->unit, n - k + 1, seen) : 1;
        if (b > eps) break;
        *bound = b;
    }
    return k;
}

static void certify_list(const cpu_kernels *kn, const certify_job *j, size_t list, const certify_space *s)
{
    size_t group = j->n_heads / j->n_lists;
    int64_t n = j->items.hi > j->items.lo ? j->items.hi - j->items.lo : 0, most = j->most < n ? j->most : n;
    if (most < 0) most = 0;
    int64_t k = j->least < most ? j->least : most;
    if (n > 0) sort_list(s, f32_at(j->order, list * j->stride + (size_t)j->items.lo), (size_t)n);
    for (int pass = 0; pass < 2; pass++) /* first the number for all heads, then the bounds at it */
        for (size_t h = list * group; h < (list + 1) * group; h++) {
            float *bound = f32_at(j->bound, h);
            head_sums all = {0};
            *bound = 0;
            if (n > 0) all = sums_of(kn, j, h, s);
            if (n > 0) k = walk_down(j, s, &all, k, pass ? INFINITY : j->eps, bound);
            if (k > most) k = most;
        }
    i64_at(j->k, 0)[list] = k;
}

void cpu_certify_choose(backend *be, const certify_job *jobs, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t lists = jobs->n_lists, threads = (size_t)be->n_threads, most = 0, all = 0;
    for (const certify_job *j = jobs; j < jobs + n; j++) {
        size_t seen = (size_t)(j->items.n_slots - j->first);
        all += seen;
        if (seen > most) most = seen;
    }
    uint32_t *space = cpu_scratch(be, &c->parts, threads, space_words(most) * sizeof *space, "certificates");
    if (!space) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, all * jobs->n_heads * 16))
    for (size_t l = 0; l < n * lists; l++) {
        certify_space s = space_at(space + (size_t)threads_id() * space_words(most), most);
        certify_list(c->k, &jobs[l / lists], l % lists, &s);
    }
    for (const certify_job *j = jobs; j < jobs + n; j++) ref_certify_count(j);
}
