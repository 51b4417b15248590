/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/votes.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_select.h"
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

/* A step's queries. */
typedef struct {
    const fier_index *x;
    const cpu_kernels *kn;
    const float *q;
    size_t group, open; /* query heads of a kv head; tokens from `open` on are scored by their keys */
} scorer;

static scorer scorer_of(backend *be, const fier_index *x, buf q, size_t n_heads, const int64_t *range)
{
    size_t n = (size_t)range[0];
    return (scorer){.x = x,
                    .kn = cpu_of(be)->k,
                    .q = cpu_f32(q),
                    .group = n_heads / x->n_kv_heads,
                    .open = x->open == FIER_EXACT ? n / x->group * x->group : n};
}

/* Those of part i, s->group each. */
static const float *queries(const scorer *s, size_t i)
{
    return s->q + i * s->group * s->x->head_dim;
}

/* Tokens [t0, t1) of a kv head to out[h * stride + t - t0] for s->group queries q [h]. */
static void score_tokens(const scorer *s, size_t kv, const float *q, size_t t0, size_t t1, float *out, size_t stride)
{
    const fier_index *x = s->x;
    size_t d = x->head_dim, blocks = (x->cap + 31) / 32, groups = (x->cap + x->group - 1) / x->group;
    size_t to = t1 < s->open ? t1 : s->open, first = t0 > s->open ? t0 : s->open;
    for (size_t h = 0; h < s->group && to > t0; h += FIER_HEADS) {
        fier_run r = {.q = q + h * d,
                      .bits = (const uint32_t *)(const void *)x->bits.p + kv * blocks * fier_words(d) * 32,
                      .levels = x->levels.p + kv * groups * 2 * d * dtype_size(x->type),
                      .type = x->type,
                      .heads = s->group - h < FIER_HEADS ? s->group - h : FIER_HEADS,
                      .head_dim = d,
                      .group = x->group,
                      .score = out + h * stride,
                      .stride = stride,
                      .t0 = t0,
                      .t1 = to};
        if (x->products == FIER_INT8) s->kn->fier_score_int8(&r);
        else s->kn->fier_score(&r);
    }
    if (t1 > first) /* they are in one group, in a row of the ring */
        s->kn->dots(out + (first - t0), stride, q, s->group, d, ring_row(x, kv, first), x->type, 0, t1 - first);
}

static void cpu_fier_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                           int64_t n_max, buf read)
{
    (void)n_max;
    const int64_t *range = cpu_i64(n);
    size_t lo = (size_t)range[1], hi = (size_t)range[2];
    if (hi <= lo) return;
    scorer s = scorer_of(be, x, q, n_heads, range);
    size_t pieces = (hi - 1) / TOKENS - lo / TOKENS + 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, (hi - lo) * n_heads * x->head_dim))
    for (size_t i = 0; i < pieces * x->n_kv_heads; i++) {
        size_t kv = i / pieces, t = lo / TOKENS + i % pieces, t0 = t * TOKENS > lo ? t * TOKENS : lo,
               t1 = (t + 1) * TOKENS < hi ? (t + 1) * TOKENS : hi;
        score_tokens(&s, kv, queries(&s, kv), t0, t1, cpu_f32(score) + kv * s.group * stride + t0, stride);
    }
    if (read.p) *(uint64_t *)(void *)read.p += fier_score_bytes(x, range);
}

/* All votes of a kv head. piece [group][VOTE_CHUNK]: scores, which are made again where they are needed again. */
static void vote_list_alone(const scorer *s, const vote_list *v, size_t kv, size_t lo, float *piece)
{
    for (size_t c = 0; c < v->of->chunks; c++) {
        size_t t0 = lo + c * VOTE_CHUNK;
        score_tokens(s, kv, queries(s, kv), t0, t0 + vote_items(v->of, c), piece, VOTE_CHUNK);
        for (size_t h = 0; h < s->group; h++) vote_exp(s->kn, v, h, c, piece + h * VOTE_CHUNK);
    }
    for (size_t h = 0; h < s->group; h++) vote_head(v, h);
    for (size_t c = 0; c < v->of->chunks; c++) {
        size_t t0 = lo + c * VOTE_CHUNK;
        if (vote_sum(s->kn, v, c, NULL, 0)) continue;
        score_tokens(s, kv, queries(s, kv), t0, t0 + vote_items(v->of, c), piece, VOTE_CHUNK);
        vote_sum(s->kn, v, c, piece, VOTE_CHUNK);
    }
}

/* A kv head is one thread's, and its scores and their exp stay in that thread's cache; where that leaves threads idle
 * the two ops share the work out better. */
static void cpu_fier_vote(backend *be, buf out, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x,
                          buf n, int64_t n_max, float scale, buf read)
{
    const int64_t *range = cpu_i64(n);
    size_t lo = (size_t)range[1], hi = (size_t)range[2], team = (size_t)cpu_team(be, (hi - lo) * n_heads);
    scorer s = scorer_of(be, x, q, n_heads, range);
    if (hi <= lo) return;
    if (x->n_kv_heads % team != 0 || s.group > VOTE_HEADS) {
        ref_fier_vote(be, out, score, stride, q, n_heads, x, n, n_max, scale, read);
        return;
    }
    vote_lists all = votes_of(cpu_f32(out) + lo, stride, s.group, hi - lo, scale);
    size_t floats = vote_floats(&all) + s.group * VOTE_CHUNK;
    float *work = cpu_scratch(be, &cpu_of(be)->parts, team * floats, sizeof *work, "votes");
    if (!work) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)team)
    for (size_t kv = 0; kv < x->n_kv_heads; kv++) {
        float *piece = work + (size_t)threads_id() * floats;
        vote_list v = vote_at(&all, kv, piece + s.group * VOTE_CHUNK);
        vote_list_alone(&s, &v, kv, lo, piece);
    }
    if (read.p) *(uint64_t *)(void *)read.p += fier_score_bytes(x, range);
}

enum { GROUPS = 8 }; /* of one piece */

static void cpu_fier_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                                  const item_groups *g, buf read)
{
    const int64_t *range = cpu_i64(n);
    size_t parts = group_parts(g, x->n_kv_heads), pieces = ((size_t)g->n_max + GROUPS - 1) / GROUPS;
    scorer s = scorer_of(be, x, q, n_heads, range);
    s.group = n_heads / parts;
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(cpu_team(be, (size_t)(g->n_max * g->per) * n_heads * x->head_dim))
    for (size_t i = 0; i < pieces * parts; i++) {
        size_t part = i / pieces;
        group_list l = ref_group_list(g, part * g->n_lists / parts, range[1], range[2]);
        float *out = cpu_f32(score) + part * s.group * stride;
        if (i % pieces == 0) ref_group_blanks(out, stride, s.group, &l);
        for (int64_t r = (int64_t)(i % pieces) * GROUPS; r < l.n && r < (int64_t)(i % pieces + 1) * GROUPS; r++) {
            int64_t at[2];
            group_items(&l, r, at);
            score_tokens(&s, part * x->n_kv_heads / parts, queries(&s, part), (size_t)at[0], (size_t)at[1],
                         out + r * l.per + (at[0] - l.group[r] * l.per), stride);
        }
    }
    for (size_t part = 0; read.p && part < parts; part++) {
        group_list l = ref_group_list(g, part * g->n_lists / parts, range[1], range[2]);
        *(uint64_t *)(void *)read.p += fier_group_bytes(x, &l, range[0]);
    }
}

const fier_ops cpu_fier = {cpu_fier_add, ref_fier_redo, cpu_fier_score, cpu_fier_vote, cpu_fier_score_groups};
