/* SPDX-License-Identifier: MIT */
/* ParisKV. Encoding is split by rows, scoring by heads and chunks of tokens; results do not depend on the number of
 * threads. */
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
               rows->rotated & KV_ROTATED_K, d);
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

/* A search in parts that any thread can process. */
typedef struct {
    const paris_job *j;
    const cpu_kernels *k;
    size_t nb, n, m;
    int32_t limit[PARIS_LEVELS];
} search_work;

/* At most INT32_MAX tokens are counted. */
static search_work work_of(backend *be, const paris_job *j)
{
    search_work w = {.j = j, .k = cpu_of(be)->k, .nb = paris_subspaces(j->x->head_dim), .n = (size_t)j->range.n};
    w.m = j->m < 0 ? 0 : (size_t)j->m;
    for (size_t t = 0; t < j->n_levels; t++) {
        int64_t l = j->limit[t];
        w.limit[t] = l < 0 ? 0 : l < INT32_MAX ? (int32_t)l : INT32_MAX;
    }
    return w;
}

static void bonus_of(const search_work *w, size_t block)
{
    const paris_job *j = w->j;
    w->k->paris_bonus(j->bonus.p + block * PARIS_PATTERNS, f32_at(j->y, 0) + block * PARIS_SUBSPACE,
                      (const int32_t *)(void *)j->x->count.p + block * PARIS_PATTERNS, w->limit, j->n_levels);
}

static void collide_run(const search_work *w, size_t h, size_t from, size_t len)
{
    size_t at = h * w->j->x->cap + from;
    const unsigned char *id = w->j->x->id.p + (at + (size_t)w->j->range.first) * w->nb;
    w->k->paris_collide(w->j->score.p + at, id, w->j->bonus.p + h * w->nb * PARIS_PATTERNS, len, w->nb);
}

static void candidates_of(const search_work *w, size_t h)
{
    size_t at = h * w->j->x->cap, want = w->m < w->n ? w->m : w->n;
    int32_t *cand = (int32_t *)(void *)w->j->cand.p;
    w->k->top_bytes(cand + at, w->j->score.p + at, (int32_t)w->j->range.first, w->n, want);
}

static void estimate_run(const search_work *w, size_t h, size_t from, size_t len)
{
    const paris_index *x = w->j->x;
    size_t at = h * x->cap;
    paris_piece p = {.token = (const int32_t *)(void *)w->j->cand.p + at + from,
                     .n = len,
                     .id = x->id.p + at * w->nb,
                     .code = x->code.p + at * w->nb * PARIS_CODE,
                     .n_blocks = w->nb,
                     .y = f32_at(w->j->y, 0) + h * w->nb * PARIS_SUBSPACE,
                     .norm = f32_at(w->j->norm, 0)[h],
                     .est = f32_at(w->j->est, 0) + at + from};
    w->k->paris_estimate(&p);
}

void cpu_paris_collide(backend *be, const paris_job *j)
{
    const search_work w = work_of(be, j);
    size_t chunks = (w.n + CHUNK - 1) / CHUNK, heads = j->x->n_kv_heads;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w.n *w.nb *heads))
    for (size_t i = 0; i < chunks * heads; i++) {
        size_t from = i % chunks * CHUNK;
        collide_run(&w, i / chunks, from, w.n - from < CHUNK ? w.n - from : CHUNK);
    }
    add_bytes(j->read, w.n * heads * w.nb);
}

/* Splits each step into pieces, since a few heads would leave threads idle. */
static void search_by_steps(backend *be, const search_work *w)
{
    enum { PIECE = CHUNK / 8 };
    size_t heads = w->j->x->n_kv_heads, pieces = (w->m + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, heads * w->nb * 2048))
    for (size_t b = 0; b < heads * w->nb; b++) bonus_of(w, b);
    cpu_paris_collide(be, w->j);
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w->n *heads * 4))
    for (size_t h = 0; h < heads; h++) candidates_of(w, h);
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, w->m *heads * w->nb * PARIS_SUBSPACE))
    for (size_t i = 0; i < pieces * heads; i++) {
        size_t from = i % pieces * PIECE;
        estimate_run(w, i / pieces, from, w->m - from < PIECE ? w->m - from : PIECE);
    }
}

/* Computes all bonuses of a head. This does not wait for memory, so the head's first ids are prefetched meanwhile. */
static void bonus_head(const search_work *w, size_t h)
{
    enum { AHEAD = 128 << 10 };
    const unsigned char *id = w->j->x->id.p + (h * w->j->x->cap + (size_t)w->j->range.first) * w->nb;
    size_t bytes = w->n * w->nb < AHEAD ? w->n * w->nb : AHEAD, at = 0;
    for (size_t b = 0; b < w->nb; b++) {
        for (; at < bytes * (b + 1) / w->nb; at += 64) __builtin_prefetch(id + at, 0, 2);
        bonus_of(w, h * w->nb + b);
    }
}

/* Gives each kv head to one thread, whose caches hold its data. */
static void search_by_heads(backend *be, const search_work *w)
{
    size_t heads = w->j->x->n_kv_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, w->n * w->nb * heads))
    for (size_t h = 0; h < heads; h++) {
        bonus_head(w, h);
        collide_run(w, h, 0, w->n);
        candidates_of(w, h);
        estimate_run(w, h, 0, w->m);
    }
    add_bytes(w->j->read, heads * w->nb * w->n);
}

void cpu_paris_search(backend *be, const paris_job *j)
{
    size_t heads = j->x->n_kv_heads, team = (size_t)be->n_threads;
    const search_work w = work_of(be, j);
    (heads % team != 0 && heads < 4 * team ? search_by_steps : search_by_heads)(be, &w);
    add_bytes(j->read, heads * w.nb * (PARIS_PATTERNS * sizeof(int32_t) + w.m * (1 + PARIS_CODE)));
}
