/* SPDX-License-Identifier: MIT */
/* Selection: splits items and lists over the threads; what is added up over items is cut at borders that do not
 * depend on the threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_select.h"
#include "kernels/ref/ref.h"

enum {
    ROWS = 256,       /* rows of one piece of exact scores: only speed depends on it */
    VOTE_CHUNK = 2048 /* items of one partial sum of a vote: part of the result's definition */
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

typedef struct {
    const float *in;
    float *out;
    size_t stride, n_heads, n_lists;
    int64_t lo, hi;
    size_t n, chunks;
    float by;             /* makes a score a logit to the base 2 */
    float *e, *top, *sum; /* [n_heads][n]; [n_heads][chunks] */
    float *lse;           /* [n_heads] */
} vote_state;

static size_t chunk_items(const vote_state *v, size_t chunk)
{
    size_t from = chunk * VOTE_CHUNK;
    return v->n - from < VOTE_CHUNK ? v->n - from : VOTE_CHUNK;
}

static void chunk_exp(const cpu_kernels *k, const vote_state *v, size_t h, size_t c)
{
    size_t from = c * VOTE_CHUNK;
    k->vote_exp(v->e + h * v->n + from, v->top + h * v->chunks + c, v->sum + h * v->chunks + c,
                v->in + h * v->stride + (size_t)v->lo + from, v->by, chunk_items(v, c));
}

/* Log-sum-exp of a head from its chunks, to the base 2. */
static void head_sum(const vote_state *v, size_t h)
{
    const float *t = v->top + h * v->chunks, *s = v->sum + h * v->chunks;
    float top = -INFINITY, sum = 0;
    for (size_t c = 0; c < v->chunks; c++)
        if (t[c] > top) top = t[c];
    for (size_t c = 0; c < v->chunks; c++)
        if (t[c] > -INFINITY) sum += s[c] * exp2f(t[c] - top);
    v->lse[h] = top == -INFINITY ? top : top + log2f(sum);
}

static void chunk_sum(const cpu_kernels *k, const vote_state *v, size_t list, size_t c)
{
    enum { MOST = 1024 };
    float factor[MOST];
    size_t group = v->n_heads / v->n_lists, h0 = list * group, from = c * VOTE_CHUNK;
    for (size_t h = 0; h < group; h++) {
        float t = v->top[(h0 + h) * v->chunks + c];
        factor[h] = t == -INFINITY ? 0 : exp2f(t - v->lse[h0 + h]);
    }
    vote_job j = {.x = v->in + h0 * v->stride + (size_t)v->lo + from,
                  .e = v->e + h0 * v->n + from,
                  .stride = v->stride,
                  .e_stride = v->n,
                  .heads = group,
                  .n = chunk_items(v, c),
                  .by = v->by,
                  .factor = factor,
                  .lse = v->lse + h0};
    k->vote_sum(v->out + list * v->stride + (size_t)v->lo + from, &j);
}

static void combine_votes(backend *be, vote_state *v)
{
    cpu_ctx *ctx = cpu_of(be);
    const cpu_kernels *k = ctx->k;
    v->chunks = (v->n + VOTE_CHUNK - 1) / VOTE_CHUNK;
    v->e = cpu_scratch(be, &ctx->parts, v->n_heads * (v->n + 2 * v->chunks + 1), sizeof *v->e, "votes");
    if (!v->e) return;
    v->top = v->e + v->n_heads * v->n;
    v->sum = v->top + v->n_heads * v->chunks;
    v->lse = v->sum + v->n_heads * v->chunks;
#pragma omp parallel num_threads(cpu_team(be, v->n * v->n_heads * 16))
    {
#pragma omp for schedule(static)
        for (size_t i = 0; i < v->n_heads * v->chunks; i++) chunk_exp(k, v, i / v->chunks, i % v->chunks);
#pragma omp for schedule(static)
        for (size_t h = 0; h < v->n_heads; h++) head_sum(v, h);
#pragma omp for schedule(static)
        for (size_t i = 0; i < v->n_lists * v->chunks; i++) chunk_sum(k, v, i / v->chunks, i % v->chunks);
    }
}

static void cpu_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n,
                        int64_t n_max, gqa_mode mode, float scale)
{
    size_t group = n_heads / n_lists;
    int64_t lo = cpu_i64(n)[1], hi = cpu_i64(n)[2];
    if (group > 1024) {
        ref_combine(be, out, in, stride, n_heads, n_lists, n, n_max, mode, scale); /* says why not */
        return;
    }
    if (hi <= lo) return;
    if (group > 1 && (mode == GQA_VOTE || mode == GQA_LAYER_VOTE)) {
        vote_state v = {.in = cpu_f32(in),
                        .out = cpu_f32(out),
                        .stride = stride,
                        .n_heads = n_heads,
                        .n_lists = n_lists,
                        .lo = lo,
                        .hi = hi,
                        .n = (size_t)(hi - lo),
                        .by = scale * 1.44269504f};
        combine_votes(be, &v);
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

/* The k-th largest of n numbers, 1 <= k <= n: bins between the least and the largest key, then bins between
 * those of the k-th's bin, and so on. rough: the least of the first such bin, which at least k numbers reach.
 * keys [n] is overwritten. */
static float kth_largest(const float *x, size_t n, size_t k, bool rough, uint32_t *keys)
{
    enum { BITS = 8 };
    for (size_t i = 0; i < n; i++) keys[i] = key_of(x[i]);
    for (;;) {
        uint32_t least = keys[0], most = keys[0], count[1 << BITS] = {0};
        for (size_t i = 1; i < n; i++) {
            least = keys[i] < least ? keys[i] : least;
            most = keys[i] > most ? keys[i] : most;
        }
        if (least == most) return of_key(least);
        int width = 32 - __builtin_clz(most - least), shift = width > BITS ? width - BITS : 0;
        uint32_t bin = (most - least) >> shift;
        size_t left = 0;
        for (size_t i = 0; i < n; i++) count[(keys[i] - least) >> shift]++;
        while (count[bin] < k) k -= count[bin--];
        for (size_t i = 0; i < n; i++) {
            keys[left] = keys[i];
            left += (keys[i] - least) >> shift == bin;
        }
        n = left;
        if (!rough) continue;
        least = keys[0];
        for (size_t i = 1; i < n; i++) least = keys[i] < least ? keys[i] : least;
        return of_key(least);
    }
}

/* Work space of one thread for n candidates. */
typedef struct {
    float *val;
    int32_t *idx;
    uint32_t *keys;
} choose_space;

/* All candidates, or the maxima of their sets with the lanes that stick out. */
static size_t space_words(size_t n)
{
    return 3 * (n + 64);
}

static choose_space space_at(void *p, size_t n)
{
    uint32_t *w = p;
    return (choose_space){(float *)(void *)w, (int32_t *)(void *)(w + n + 64), w + 2 * (n + 64)};
}

/* The first k of n scores in the order of choose_job as ascending indexes into s->idx; returns k. Of many
 * scores the k-th largest of the maxima of disjoint sets is a bound from below that few scores reach. */
static size_t top_k(const cpu_kernels *kn, const float *x, size_t n, size_t k, const choose_space *s)
{
    float least = -INFINITY;
    size_t per = n / (2 * k), kept = 0, count;
    if (per >= 4) {
        size_t maxima = kn->lane_maxima(s->val, x, n, per);
        if (maxima >= k) least = kth_largest(s->val, maxima, k, true, s->keys);
    }
    count = kn->at_least(s->idx, s->val, x, n, least);
    float limit = kth_largest(s->val, count, k, false, s->keys);
    size_t ties = k;
    for (size_t i = 0; i < count; i++) ties -= s->val[i] > limit;
    for (size_t i = 0; i < count; i++) {
        if (s->val[i] < limit || (s->val[i] == limit && ties == 0)) continue;
        ties -= s->val[i] == limit;
        s->idx[kept++] = s->idx[i];
    }
    return kept;
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

static void choose_list(const cpu_kernels *kn, const choose_job *j, size_t list, const choose_space *s)
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
    if (hi > lo && k >= hi - lo) put_items(&l, lo, hi);
    else if (hi > lo && k > 0) {
        size_t kept = top_k(kn, cpu_f32(j->score) + list * j->stride + lo, (size_t)(hi - lo), (size_t)k, s);
        for (size_t i = 0; i < kept; i++) put_items(&l, lo + s->idx[i], lo + s->idx[i] + 1);
    }
    put_items(&l, tail, items);
    int64_t *range = (int64_t *)(void *)j->range.p + 2 * list;
    range[0] = 0;
    range[1] = l.count;
}

static void cpu_choose(backend *be, const choose_job *j)
{
    cpu_ctx *c = cpu_of(be);
    int64_t span = cpu_i64(j->n)[2] - cpu_i64(j->n)[1];
    size_t n = span > 0 ? (size_t)span : 0, threads = (size_t)be->n_threads;
    uint32_t *space = cpu_scratch(be, &c->parts, threads, space_words(n) * sizeof *space, "selection work space");
    if (!space) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * j->n_lists * 4))
    for (size_t l = 0; l < j->n_lists; l++) {
        choose_space s = space_at(space + (size_t)threads_id() * space_words(n), n);
        choose_list(c->k, j, l, &s);
    }
}

const select_ops cpu_select = {ref_mean_heads, cpu_exact, cpu_combine, cpu_choose};
