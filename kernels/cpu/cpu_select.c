/* SPDX-License-Identifier: MIT */
/* Selection: splits items and lists over the threads; what is added up over items is cut at borders that do not
 * depend on the threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/votes.h"
#include "kernels/ops_select.h"
#include "kernels/ref/ref.h"

enum {
    ROWS = 256 /* rows of one piece of exact scores: only speed depends on it */
};

static void cpu_exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n,
                      int64_t n_max, buf read)
{
    if (rows->codes.bits) {
        ref_exact(be, score, stride, q, n_heads, rows, n, n_max, read);
        return;
    }
    const cpu_kernels *k = cpu_of(be)->k;
    size_t d = rows->head_dim, bytes = d * dtype_size(rows->type), group = n_heads / rows->n_kv_heads;
    int64_t lo = cpu_i64(n)[1], hi = cpu_i64(n)[2];
    if (hi <= lo) return;
    size_t pieces = (size_t)(hi - lo + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, (size_t)(hi - lo) * n_heads * d * 2))
    for (size_t i = 0; i < pieces * rows->n_kv_heads; i++) {
        size_t kv = i / pieces, r0 = (size_t)lo + i % pieces * ROWS,
               r1 = r0 + ROWS < (size_t)hi ? r0 + ROWS : (size_t)hi;
        k->dots(cpu_f32(score) + kv * group * stride, stride, cpu_f32(q) + kv * group * d, group, d,
                rows->k.p + kv * rows->cap * bytes, rows->type, r0, r1);
    }
    if (read.p) *(uint64_t *)(void *)read.p += (uint64_t)(hi - lo) * rows->n_kv_heads * bytes;
}

/* ---- combine ---- */

/* Chunk i % chunks of head i / chunks. */
static void exp_of(const cpu_kernels *k, const vote_list *v, const float *in, size_t i)
{
    size_t h = i / v->of->chunks, c = i % v->of->chunks;
    vote_exp(k, v, h, c, in + h * v->of->stride + c * VOTE_CHUNK);
}

static void vote_alone(const cpu_kernels *k, const vote_list *v, const float *in)
{
    for (size_t i = 0; i < v->of->heads * v->of->chunks; i++) exp_of(k, v, in, i);
    for (size_t h = 0; h < v->of->heads; h++) vote_head(v, h);
    for (size_t c = 0; c < v->of->chunks; c++) vote_sum(k, v, c, in + c * VOTE_CHUNK, v->of->stride);
}

/* By all threads of a team, each of which calls it. */
static void vote_together(const cpu_kernels *k, const vote_list *v, const float *in)
{
#pragma omp for schedule(static)
    for (size_t i = 0; i < v->of->heads * v->of->chunks; i++) exp_of(k, v, in, i);
#pragma omp for schedule(static)
    for (size_t h = 0; h < v->of->heads; h++) vote_head(v, h);
#pragma omp for schedule(static)
    for (size_t c = 0; c < v->of->chunks; c++) vote_sum(k, v, c, in + c * VOTE_CHUNK, v->of->stride);
}

/* in: the first list's scores from the first candidate on. Lists of one thread share its work space, which then
 * stays in a cache near it. */
static void combine_votes(backend *be, const vote_lists *all, const float *in, size_t n_lists)
{
    cpu_ctx *ctx = cpu_of(be);
    size_t floats = vote_floats(all), team = (size_t)cpu_team(be, all->n * all->heads * n_lists * 16);
    bool alone = n_lists % team == 0;
    float *work = cpu_scratch(be, &ctx->parts, floats * (alone ? team : 1), sizeof *work, "votes");
    if (!work) return;
#pragma omp parallel num_threads((int)team)
    {
        size_t a = 0, b = n_lists;
        if (alone) threads_split(n_lists, 1, &a, &b);
        for (size_t l = a; l < b; l++) {
            vote_list v = vote_at(all, l, work + (alone ? (size_t)threads_id() * floats : 0));
            const float *x = in + l * all->heads * all->stride;
            if (alone) vote_alone(ctx->k, &v, x);
            else vote_together(ctx->k, &v, x);
        }
    }
}

static void cpu_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n,
                        int64_t n_max, gqa_mode mode, float scale)
{
    size_t group = n_heads / n_lists;
    int64_t lo = cpu_i64(n)[1], hi = cpu_i64(n)[2];
    if (group > VOTE_HEADS) {
        ref_combine(be, out, in, stride, n_heads, n_lists, n, n_max, mode, scale); /* says why not */
        return;
    }
    if (hi <= lo) return;
    if (group > 1 && (mode == GQA_VOTE || mode == GQA_LAYER_VOTE)) {
        vote_lists v = votes_of(cpu_f32(out) + lo, stride, group, (size_t)(hi - lo), scale);
        combine_votes(be, &v, cpu_f32(in) + lo, n_lists);
        return;
    }
    bool mean = mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN;
    const cpu_kernels *k = cpu_of(be)->k;
#pragma omp parallel num_threads(cpu_team(be, (size_t)(hi - lo) * n_heads))
    {
        size_t a, b;
        threads_split((size_t)(hi - lo), 64, &a, &b);
        for (size_t l = 0; l < n_lists && b > a; l++)
            k->reduce_heads(cpu_f32(out) + l * stride + (size_t)lo + a,
                            cpu_f32(in) + l * group * stride + (size_t)lo + a, stride, group, b - a, mode == GQA_MAX_S,
                            mean ? (float)group : 1);
    }
    if (mode >= GQA_LAYER_MEAN)
        cpu_over_ranks(be, cpu_f32(out) + lo, (size_t)(hi - lo), mode == GQA_LAYER_MEAN);
}

/* ---- choose ---- */

/* Order of floats as order of integers; -0 counts as 0. */
static uint32_t key_of(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static float of_key(uint32_t u)
{
    float x;
    u = u & 0x80000000u ? u & 0x7fffffffu : ~u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A number that at least k of n numbers reach, but not more than `most`, where there is one; else the k-th
 * largest. 1 <= k <= n, no NaN; at least k reach `least`. */
static float bound_of(const cpu_kernels *kn, const float *x, size_t n, size_t k, size_t most, float least)
{
    uint32_t lo = key_of(least), hi = key_of(kn->largest(x, n));
    while (lo < hi) {
        uint32_t mid = hi - (hi - lo) / 2;
        size_t count = kn->count_at_least(x, n, of_key(mid));
        if (count < k) hi = mid - 1;
        else lo = mid;
        if (count >= k && count <= most) break;
    }
    return of_key(lo);
}

float cpu_kth_largest(const cpu_kernels *kn, const float *x, size_t n, size_t k)
{
    return bound_of(kn, x, n, k, k, -INFINITY);
}

/* Work space of one thread for n candidates. */
typedef struct {
    float *val;
    int32_t *idx, *best;
} choose_space;

/* All candidates, or the maxima of their sets with the lanes that stick out. */
static size_t space_words(size_t n)
{
    return 3 * (n + 64);
}

static choose_space space_at(void *p, size_t n)
{
    uint32_t *w = p;
    return (choose_space){(float *)(void *)w, (int32_t *)(void *)(w + n + 64), (int32_t *)(void *)(w + 2 * (n + 64))};
}

/* The first k of n scores in the order of choose_job as ascending indexes into `best`; least: of bound_of. */
static void best_of(const cpu_kernels *kn, int32_t *best, const float *x, size_t n, size_t k, float least)
{
    float limit = bound_of(kn, x, n, k, k, least);
    kn->best(best, x, n, limit, k - kn->count_at_least(x, n, of_key(key_of(limit) + 1)));
}

/* The same into s->best. Of many scores the k-th largest of the maxima of disjoint sets is a bound from below that
 * few scores reach. */
static void top_k(const cpu_kernels *kn, const float *x, size_t n, size_t k, const choose_space *s)
{
    size_t per = n / (2 * k);
    if (per < 4) {
        best_of(kn, s->best, x, n, k, -INFINITY);
        return;
    }
    size_t maxima = kn->lane_maxima(s->val, x, n, per);
    float least = maxima >= k ? bound_of(kn, s->val, maxima, k, k + k / 8, -INFINITY) : -INFINITY;
    size_t count = kn->at_least(s->idx, s->val, x, n, least);
    best_of(kn, s->best, s->val, count, k, least);
    for (size_t i = 0; i < k; i++) s->best[i] = s->idx[s->best[i]];
}

typedef struct {
    int32_t *out;
    int64_t granule, n_slots, first, count;
} slot_list;

/* Appends the slots of items [from, to). */
static void put_items(slot_list *l, int64_t from, int64_t to)
{
    int64_t a = from * l->granule, b = to * l->granule;
    if (a < l->first) a = l->first;
    if (b > l->n_slots) b = l->n_slots;
    for (; a < b; a++) l->out[l->count++] = (int32_t)a;
}

/* The best k of the candidates in groups. */
static void put_places(const cpu_kernels *kn, slot_list *l, const group_list *of, const float *score, int64_t k,
                       const choose_space *s)
{
    int64_t n = of->end - of->first;
    if (n > k && k > 0) top_k(kn, score + of->first, (size_t)n, (size_t)k, s);
    for (int64_t i = 0; i < (n < k ? n : k); i++) {
        int64_t item = group_item(of, of->first + (n > k ? s->best[i] : i));
        put_items(l, item, item + 1);
    }
}

/* g NULL: scores are by items. */
static void choose_list(const cpu_kernels *kn, const choose_job *j, const item_groups *g, size_t list,
                        const choose_space *s)
{
    const int64_t *n = cpu_i64(j->n);
    int64_t tail = cpu_i64(j->tail)[0], items = (n[0] + j->granule - 1) / j->granule,
            k = cpu_i64(j->k)[j->n_k == 1 ? 0 : list];
    int64_t lo = n[1] > j->head ? n[1] : j->head, hi = n[2] < tail ? n[2] : tail;
    slot_list l = {.out = (int32_t *)(void *)j->idx.p + list * (size_t)j->idx_stride,
                   .granule = j->granule,
                   .n_slots = n[0],
                   .first = j->first.p ? cpu_i64(j->first)[0] : 0};
    put_items(&l, 0, j->head < tail ? j->head : tail);
    const float *score = cpu_f32(j->score) + list * j->stride;
    if (g) {
        group_list of = ref_group_list(g, list, lo, hi);
        put_places(kn, &l, &of, score, k, s);
    } else if (hi > lo && k >= hi - lo) {
        put_items(&l, lo, hi);
    } else if (hi > lo && k > 0) {
        top_k(kn, score + lo, (size_t)(hi - lo), (size_t)k, s);
        if (j->granule > 1 || lo < l.first)
            for (int64_t i = 0; i < k; i++) put_items(&l, lo + s->best[i], lo + s->best[i] + 1);
        else
            for (int64_t i = 0; i < k; i++) l.out[l.count++] = (int32_t)lo + s->best[i];
    }
    put_items(&l, tail, items);
    int64_t *range = (int64_t *)(void *)j->range.p + 2 * list;
    range[0] = 0;
    range[1] = l.count;
}

static void cpu_choose_groups(backend *be, const choose_job *j, const item_groups *g)
{
    cpu_ctx *c = cpu_of(be);
    int64_t span = g ? g->n_max * g->per : cpu_i64(j->n)[2] - cpu_i64(j->n)[1];
    size_t n = span > 0 ? (size_t)span : 0, threads = (size_t)be->n_threads;
    uint32_t *space = cpu_scratch(be, &c->parts, threads, space_words(n) * sizeof *space, "selection work space");
    if (!space) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * j->n_lists * 4))
    for (size_t l = 0; l < j->n_lists; l++) {
        choose_space s = space_at(space + (size_t)threads_id() * space_words(n), n);
        choose_list(c->k, j, g, l, &s);
    }
}

static void cpu_choose(backend *be, const choose_job *j)
{
    cpu_choose_groups(be, j, NULL);
}

const select_ops cpu_select = {ref_mean_heads, cpu_exact, cpu_combine, cpu_choose, NULL, cpu_choose_groups};
