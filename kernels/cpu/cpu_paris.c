/* SPDX-License-Identifier: MIT */
/* ParisKV. Encoding goes by rows, scoring by heads and chunks of tokens; nothing depends on the number of threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops_paris.h"
#include "kernels/ref/ref.h"

enum { CHUNK = 4096 }; /* tokens or candidates of a piece of work */

static float normalise(const cpu_kernels *k, const paris_index *x, float *v)
{
    size_t dim = paris_dim(x->head_dim);
    float norm = fmaxf(sqrtf(ref_dot8(v, v, dim)), 1e-8f);
    k->scale(v, v, 1 / norm, dim);
    k->paris_rotate(v, f32_at(x->sign, 0), x->rounds, (float)(1 / sqrt((double)dim)), dim);
    return norm;
}

static void encode_row(const cpu_kernels *k, const paris_index *x, const kv_rows *rows, size_t head, int64_t slot)
{
    size_t nb = paris_subspaces(x->head_dim), d = x->head_dim, at = head * x->cap + (size_t)slot;
    int64_t row = rows->codes.bits ? ((const int32_t *)(void *)rows->codes.k_at.p)[slot] : slot;
    float v[PARIS_DIM_MAX] = {0};
    k->get_row(v, rows->k.p + (head * rows->cap + (size_t)row) * kv_row_bytes(rows->type, d), rows->type,
               rows->turned & KV_TURNED_K, d);
    for (size_t c = 0; x->mean.p && c < d; c++) v[c] -= f32_at(x->mean, 0)[head * d + c];
    float norm = normalise(k, x, v);
    unsigned char *code = x->code.p + at * PARIS_CODE * nb;
    for (size_t b = 0; b < nb; b++)
        ref_paris_code(x->id.p + at * nb + b, code + 2 * b, code + 2 * nb + 3 * b, v + b * PARIS_SUBSPACE, norm,
                       x->alpha);
}

void cpu_paris_encode(backend *be, const paris_index *x, const kv_rows *rows, slot_range range)
{
    int64_t first = range.first, n = range.n * (int64_t)x->n_kv_heads;
    const cpu_kernels *k = cpu_of(be)->k;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, (size_t)n * 32 * paris_dim(x->head_dim)))
    for (int64_t i = 0; i < n; i++)
        encode_row(k, x, rows, (size_t)i % x->n_kv_heads, first + i / (int64_t)x->n_kv_heads);
}

void cpu_paris_query(backend *be, buf y, buf norm, buf q, size_t n_heads, const paris_index *x)
{
    size_t dim = paris_dim(x->head_dim), d = x->head_dim;
    for (size_t h = 0; h < n_heads; h++) {
        float *v = f32_at(y, 0) + h * dim;
        memset(v, 0, dim * sizeof *v);
        memcpy(v, f32_at(q, 0) + h * d, d * sizeof *v);
        f32_at(norm, 0)[h] = normalise(cpu_of(be)->k, x, v);
    }
}

/* What the searching ops do, in parts that any thread may take. */
typedef struct {
    const cpu_kernels *k;
    const paris_index *x;
    size_t nb;
    int32_t limit[PARIS_LEVELS];
    size_t n_levels;
    unsigned char *bonus, *score;
    size_t first, n; /* tokens */
    int32_t *cand;
    size_t m;
    float *est;
    const float *y, *norm;
    size_t group; /* queries a kv head */
    size_t score_stride, stride;
} search_work;

static search_work work_of(backend *be, const paris_index *x)
{
    return (search_work){.k = cpu_of(be)->k, .x = x, .nb = paris_subspaces(x->head_dim)};
}

/* No more tokens than INT32_MAX are counted. */
static void set_limits(search_work *w, const int64_t *limit, size_t n_levels)
{
    w->n_levels = n_levels;
    for (size_t t = 0; t < n_levels; t++) {
        int64_t l = limit[t];
        w->limit[t] = l < 0 ? 0 : l < INT32_MAX ? (int32_t)l : INT32_MAX;
    }
}

static void set_tokens(search_work *w, slot_range range, unsigned char *score, size_t stride)
{
    w->first = (size_t)range.first;
    w->n = (size_t)range.n;
    w->score = score;
    w->score_stride = stride;
}

static void set_candidates(search_work *w, int64_t m, buf cand, size_t stride)
{
    w->m = m < 0 ? 0 : (size_t)m;
    w->cand = (int32_t *)(void *)cand.p;
    w->stride = stride;
}

static void set_queries(search_work *w, buf est, buf y, buf norm, size_t group)
{
    w->est = f32_at(est, 0);
    w->y = f32_at(y, 0);
    w->norm = f32_at(norm, 0);
    w->group = group;
}

static void bonus_of(const search_work *w, size_t block)
{
    w->k->paris_bonus(w->bonus + block * PARIS_PATTERNS, w->y + block * PARIS_SUBSPACE,
                      (const int32_t *)(void *)w->x->count.p + block * PARIS_PATTERNS, w->limit, w->n_levels);
}

static void collide_run(const search_work *w, size_t h, size_t from, size_t len)
{
    const unsigned char *id = w->x->id.p + (h * w->x->cap + w->first + from) * w->nb;
    w->k->paris_collide(w->score + h * w->score_stride + from, id, w->bonus + h * w->nb * PARIS_PATTERNS, len, w->nb);
}

static void candidates_of(const search_work *w, size_t h)
{
    size_t want = w->m < w->n ? w->m : w->n;
    w->k->top_bytes(w->cand + h * w->stride, w->score + h * w->score_stride, (int32_t)w->first, w->n, want);
}

static void estimate_run(const search_work *w, size_t h, size_t from, size_t len)
{
    paris_piece p = {.token = w->cand + h * w->stride + from,
                     .n = len,
                     .id = w->x->id.p + h * w->x->cap * w->nb,
                     .code = w->x->code.p + h * w->x->cap * w->nb * PARIS_CODE,
                     .n_blocks = w->nb,
                     .y = w->y + h * w->group * w->nb * PARIS_SUBSPACE,
                     .norm = w->norm + h * w->group,
                     .group = w->group,
                     .est = w->est + h * w->group * w->stride + from,
                     .stride = w->stride};
    w->k->paris_estimate(&p);
}

void cpu_paris_bonus(backend *be, buf bonus, const paris_index *x, buf y, const int64_t *limit, size_t n_levels,
                     buf read)
{
    search_work w = work_of(be, x);
    size_t n = x->n_kv_heads * w.nb;
    set_limits(&w, limit, n_levels);
    set_queries(&w, (buf){NULL}, y, (buf){NULL}, 1);
    w.bonus = bonus.p;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * 2048))
    for (size_t b = 0; b < n; b++) bonus_of(&w, b);
    add_bytes(read, n * PARIS_PATTERNS * sizeof(int32_t));
}

void cpu_paris_collide(backend *be, buf score, size_t stride, const paris_index *x, buf bonus, slot_range range,
                       buf read)
{
    search_work w = work_of(be, x);
    set_tokens(&w, range, score.p, stride);
    w.bonus = bonus.p;
    size_t chunks = (w.n + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w.n *w.nb * x->n_kv_heads))
    for (size_t i = 0; i < chunks * x->n_kv_heads; i++) {
        size_t from = i % chunks * CHUNK;
        collide_run(&w, i / chunks, from, w.n - from < CHUNK ? w.n - from : CHUNK);
    }
    add_bytes(read, w.n * x->n_kv_heads * w.nb);
}

void cpu_paris_candidates(backend *be, buf cand, size_t stride, buf score, size_t score_stride, size_t n_kv_heads,
                          slot_range range, int64_t m)
{
    search_work w = {.k = cpu_of(be)->k};
    set_tokens(&w, range, score.p, score_stride);
    set_candidates(&w, m, cand, stride);
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w.n *n_kv_heads * 4))
    for (size_t h = 0; h < n_kv_heads; h++) candidates_of(&w, h);
}

void cpu_paris_estimate(backend *be, buf est, const paris_index *x, buf y, buf norm, size_t n_heads, buf cand,
                        size_t stride, int64_t m, buf read)
{
    enum { PIECE = CHUNK / 8 };
    search_work w = work_of(be, x);
    set_candidates(&w, m, cand, stride);
    set_queries(&w, est, y, norm, n_heads / x->n_kv_heads);
    size_t pieces = (w.m + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w.m *n_heads *w.nb *PARIS_SUBSPACE))
    for (size_t i = 0; i < pieces * x->n_kv_heads; i++) {
        size_t from = i % pieces * PIECE;
        estimate_run(&w, i / pieces, from, w.m - from < PIECE ? w.m - from : PIECE);
    }
    add_bytes(read, w.m * x->n_kv_heads * w.nb * (1 + PARIS_CODE));
}

/* All tiers of a head. They wait for no memory, so its first ids are fetched meanwhile. */
static void bonus_head(const search_work *w, size_t h)
{
    enum { AHEAD = 128 << 10 };
    const unsigned char *id = w->x->id.p + (h * w->x->cap + w->first) * w->nb;
    size_t bytes = w->n * w->nb < AHEAD ? w->n * w->nb : AHEAD, at = 0;
    for (size_t b = 0; b < w->nb; b++) {
        for (; at < bytes * (b + 1) / w->nb; at += 64) __builtin_prefetch(id + at, 0, 2);
        bonus_of(w, h * w->nb + b);
    }
}

void cpu_paris_search(backend *be, const paris_job *j)
{
    size_t heads = j->x->n_kv_heads, team = (size_t)be->n_threads;
    if (heads % team != 0 && heads < 4 * team) { /* few heads would leave threads without work */
        ref_paris_search(be, j);
        return;
    }
    search_work w = work_of(be, j->x);
    set_limits(&w, j->limit, j->n_levels);
    set_tokens(&w, j->range, j->score.p, j->x->cap);
    set_candidates(&w, j->m, j->cand, j->x->cap);
    set_queries(&w, j->est, j->y, j->norm, 1);
    w.bonus = j->bonus.p;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, w.n *w.nb *heads))
    for (size_t h = 0; h < heads; h++) {
        bonus_head(&w, h);
        collide_run(&w, h, 0, w.n);
        candidates_of(&w, h);
        if (w.est) estimate_run(&w, h, 0, w.m);
    }
    add_bytes(j->read, heads * w.nb * (PARIS_PATTERNS * sizeof(int32_t) + w.n + (w.est ? w.m * (1 + PARIS_CODE) : 0)));
}
