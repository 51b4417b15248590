/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_fier.h"
#include "kernels/ref/ref.h"

enum { TOKENS = 512 }; /* of one piece: only speed depends on it */

static unsigned char *ring_row(const fier_index *x, size_t head, size_t pos)
{
    return x->ring.p + (head * x->group + pos % x->group) * x->head_dim * dtype_size(x->type);
}

/* New keys of the positions from `first` on. */
typedef struct {
    const fier_index *x;
    const cpu_kernels *kn;
    const float *k;
    size_t first, end;
} new_keys;

/* Key of position pos as the store rounds it, from the ring if it is an older one. */
static void key_row(float *out, const new_keys *n, size_t head, size_t pos)
{
    const fier_index *x = n->x;
    size_t d = x->head_dim;
    float half[HEAD_DIM_MAX];
    if (pos < n->first) {
        n->kn->widen(out, ring_row(x, head, pos), x->type, d);
        return;
    }
    n->kn->narrow(half, n->k + ((pos - n->first) * x->n_kv_heads + head) * d, x->type, d);
    n->kn->widen(out, half, x->type, d);
}

/* One group of one head: tokens [begin, to), levels from [from, to). rows: space for to - from rows. */
static void set_group(const new_keys *n, size_t head, size_t from, size_t begin, size_t to, float *rows)
{
    const fier_index *x = n->x;
    float z[HEAD_DIM_MAX], lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX];
    size_t d = x->head_dim, es = dtype_size(x->type), words = fier_words(d), blocks = (x->cap + 31) / 32;
    size_t groups = (x->cap + x->group - 1) / x->group;
    for (size_t p = from; p < to; p++) key_row(rows + (p - from) * d, n, head, p);
    n->kn->fier_levels(z, lo, hi, rows, to - from, d, x->how);
    unsigned char *levels = x->levels.p + (head * groups + begin / x->group) * 2 * d * es;
    n->kn->narrow(levels, lo, x->type, d);
    n->kn->narrow(levels + d * es, hi, x->type, d);
    uint32_t *bits = (uint32_t *)(void *)x->bits.p + head * blocks * words * 32;
    for (size_t p = begin; p < to; p++)
        n->kn->fier_bits(bits + p / 32 * words * 32 + p % 32, z, rows + (p - from) * d, d);
}

/* All groups that the new keys touch, and the ring. */
static void add_head(const new_keys *n, size_t head, float *rows)
{
    const fier_index *x = n->x;
    size_t g = x->group, d = x->head_dim;
    for (size_t begin = n->first / g * g; begin < n->end; begin += g) {
        size_t to = begin + g < n->end ? begin + g : n->end, from = begin;
        bool open = to - begin < g;
        if (open && (x->open == FIER_EXACT || x->open == FIER_KEEP)) break;
        if (open && x->open == FIER_WINDOW) from = to > g ? to - g : 0;
        set_group(n, head, from, begin, to, rows);
    }
    for (size_t p = n->end > n->first + g ? n->end - g : n->first; p < n->end; p++)
        n->kn->narrow(ring_row(x, head, p), n->k + ((p - n->first) * x->n_kv_heads + head) * d, x->type, d);
}

static void cpu_fier_add(backend *be, const fier_index *x, buf pos, buf k, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t first = (size_t)cpu_i64(pos)[0], floats = x->group * x->head_dim;
    new_keys keys = {.x = x, .kn = c->k, .k = cpu_f32(k), .first = first, .end = first + n};
    float *rows = cpu_scratch(be, &c->parts, (size_t)be->n_threads * floats, sizeof *rows, "keys of a group");
    if (!rows) return;
#pragma omp parallel num_threads(cpu_team(be, n * x->n_kv_heads * x->head_dim * 8))
    {
        size_t a, b;
        threads_split(x->n_kv_heads, 1, &a, &b);
        for (size_t h = a; h < b; h++) add_head(&keys, h, rows + (size_t)threads_id() * floats);
    }
}

/* Tokens [from, to) of the open group by their keys. */
static void score_ring(backend *be, buf score, size_t stride, const float *q, size_t n_heads, const fier_index *x,
                       size_t from, size_t to)
{
    size_t d = x->head_dim, group = n_heads / x->n_kv_heads, row0 = from % x->group;
    for (size_t kv = 0; kv < x->n_kv_heads && to > from; kv++)
        cpu_of(be)->k->dots(cpu_f32(score) + kv * group * stride + from - row0, stride, q + kv * group * d, group, d,
                            ring_row(x, kv, 0), x->type, row0, row0 + to - from);
}

static void cpu_fier_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                           int64_t n_max, buf read)
{
    (void)n_max;
    const int64_t *range = cpu_i64(n);
    const cpu_kernels *k = cpu_of(be)->k;
    size_t lo = (size_t)range[1], hi = (size_t)range[2], d = x->head_dim, group = n_heads / x->n_kv_heads;
    if (hi <= lo) return;
    size_t open = x->open == FIER_EXACT ? (size_t)range[0] / x->group * x->group : hi, to = hi < open ? hi : open;
    size_t blocks = (x->cap + 31) / 32, groups = (x->cap + x->group - 1) / x->group;
    size_t pieces = to > lo ? (to - 1) / TOKENS - lo / TOKENS + 1 : 0, passes = (group + FIER_HEADS - 1) / FIER_HEADS;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, (hi - lo) * n_heads * d))
    for (size_t i = 0; i < pieces * passes * x->n_kv_heads; i++) {
        size_t kv = i / (pieces * passes), h = kv * group + i / pieces % passes * FIER_HEADS,
               t = lo / TOKENS + i % pieces;
        size_t left = (kv + 1) * group - h;
        fier_run r = {.q = cpu_f32(q) + h * d,
                      .bits = (const uint32_t *)(const void *)x->bits.p + kv * blocks * fier_words(d) * 32,
                      .levels = x->levels.p + kv * groups * 2 * d * dtype_size(x->type),
                      .type = x->type,
                      .heads = left < FIER_HEADS ? left : FIER_HEADS,
                      .head_dim = d,
                      .group = x->group,
                      .score = cpu_f32(score) + h * stride,
                      .stride = stride,
                      .t0 = t * TOKENS > lo ? t * TOKENS : lo,
                      .t1 = (t + 1) * TOKENS < to ? (t + 1) * TOKENS : to};
        if (x->products == FIER_INT8) k->fier_score_int8(&r);
        else k->fier_score(&r);
    }
    score_ring(be, score, stride, cpu_f32(q), n_heads, x, lo > open ? lo : open, hi);
    if (read.p) *(uint64_t *)(void *)read.p += fier_score_bytes(x, range);
}

const fier_ops cpu_fier = {cpu_fier_add, ref_fier_redo, cpu_fier_score};
