/* SPDX-License-Identifier: MIT */
/* Selection: splits items and lists over the threads. Sums over items are split at borders that do not depend on the
 * threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/votes.h"
#include "kernels/ops_select.h"
#include "kernels/ref/ref.h"

/* ---- scores ---- */

/* Scores piece number `piece` of a job, if it exists. */
static void score_piece(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t items, size_t spans,
                        size_t piece, score_items *score)
{
    size_t heads = j->n_heads / parts, lo = (size_t)j->items.lo, hi = (size_t)j->items.hi;
    size_t from = (lo / items + piece) * items, to = from + items < hi ? from + items : hi;
    float *out = f32_at(j->score, 0) + part * heads * j->stride;
    if (!j->spans) {
        if (from < lo) from = lo;
        if (from < to) score(k, j, part, parts, from, to, out + from);
        return;
    }
    span_list l = ref_part_columns(j, part, parts);
    if (piece == 0) ref_span_blanks(out, j->stride, heads, &l);
    for (int64_t r = (int64_t)(piece * spans); r < l.n && r < (int64_t)((piece + 1) * spans); r++) {
        int64_t at[2];
        span_items(&l, r, at);
        score(k, j, part, parts, (size_t)at[0], (size_t)at[1], out + r * l.per + (at[0] - l.group[r] * l.per));
    }
}

void cpu_score_jobs(backend *be, const score_job *jobs, size_t n, size_t parts, size_t items, size_t spans, size_t work,
                    score_items *score)
{
    size_t pieces = 0, all = 0;
    for (const score_job *j = jobs; j < jobs + n; j++) {
        size_t lo = (size_t)j->items.lo, hi = (size_t)j->items.hi,
               mine = hi > lo ? (hi - 1) / items - lo / items + 1 : 0;
        if (j->spans) mine = ((size_t)j->spans->n_max + spans - 1) / spans;
        all += j->spans ? (size_t)(j->spans->n_max * j->spans->per) : hi > lo ? hi - lo : 0;
        if (mine > pieces) pieces = mine;
    }
    size_t each = parts * pieces;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, all *work))
    for (size_t i = 0; i < n * each; i++)
        score_piece(cpu_of(be)->k, &jobs[i / each], i % each / pieces, parts, items, spans, i % pieces, score);
}

/* ---- combine ---- */

/* Computes exp for chunk i % chunks of head i / chunks. */
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

/* Computes votes; called by every thread of a team. */
static void vote_together(const cpu_kernels *k, const vote_list *v, const float *in)
{
#pragma omp for schedule(static)
    for (size_t i = 0; i < v->of->heads * v->of->chunks; i++) exp_of(k, v, in, i);
#pragma omp for schedule(static)
    for (size_t h = 0; h < v->of->heads; h++) vote_head(v, h);
#pragma omp for schedule(static)
    for (size_t c = 0; c < v->of->chunks; c++) vote_sum(k, v, c, in + c * VOTE_CHUNK, v->of->stride);
}

static vote_lists votes_of_job(const combine_job *j)
{
    return votes_of(f32_at(j->out, 0) + j->lo, j->stride, j->n_heads / j->n_lists,
                    j->hi > j->lo ? (size_t)(j->hi - j->lo) : 0, j->scale);
}

/* The lists of one thread share its work space, which stays in a nearby cache. */
static void combine_votes(backend *be, const combine_job *jobs, size_t n)
{
    cpu_ctx *ctx = cpu_of(be);
    size_t lists = jobs->n_lists, heads = jobs->n_heads / lists, floats = 0, items = 0;
    for (size_t i = 0; i < n; i++) {
        vote_lists all = votes_of_job(&jobs[i]);
        items += all.n;
        if (vote_floats(&all) > floats) floats = vote_floats(&all);
    }
    size_t team = (size_t)cpu_team(be, items * heads * lists * 16);
    bool alone = n * lists % team == 0;
    float *work = cpu_scratch(be, &ctx->parts, floats * (alone ? team : 1), sizeof *work, "votes");
    if (!work) return;
#pragma omp parallel num_threads((int)team)
    {
        size_t a = 0, b = n * lists;
        if (alone) threads_split(n * lists, 1, &a, &b);
        for (size_t l = a; l < b; l++) {
            const combine_job *j = &jobs[l / lists];
            vote_lists all = votes_of_job(j);
            vote_list v = vote_at(&all, l % lists, work + (alone ? (size_t)threads_id() * floats : 0));
            const float *x = f32_at(j->in, 0) + j->lo + l % lists * heads * j->stride;
            if (all.n == 0) continue;
            if (alone) vote_alone(ctx->k, &v, x);
            else vote_together(ctx->k, &v, x);
        }
    }
}

/* Computes the sum, mean or maximum of the heads, for a thread's part of the items. */
static void reduce_job(const cpu_kernels *k, const combine_job *j)
{
    size_t a, b, group = j->n_heads / j->n_lists;
    bool mean = j->mode == GQA_MEAN_S || j->mode == GQA_LAYER_MEAN;
    if (j->hi <= j->lo) return;
    threads_split((size_t)(j->hi - j->lo), 64, &a, &b);
    for (size_t l = 0; l < j->n_lists && b > a; l++)
        k->reduce_heads(f32_at(j->out, 0) + l * j->stride + (size_t)j->lo + a,
                        f32_at(j->in, 0) + l * group * j->stride + (size_t)j->lo + a, j->stride, group, b - a,
                        j->mode == GQA_MAX_S, mean ? (float)group : 1);
}

void cpu_select_combine(backend *be, const combine_job *jobs, size_t n)
{
    size_t group = jobs->n_heads / jobs->n_lists, items = 0;
    gqa_mode mode = jobs->mode;
    if (group > VOTE_HEADS) {
        ref_select_combine(be, jobs, n); /* reports the fault */
        return;
    }
    if (group > 1 && (mode == GQA_VOTE || mode == GQA_LAYER_VOTE)) {
        combine_votes(be, jobs, n);
        return;
    }
    for (size_t i = 0; i < n; i++) items += jobs[i].hi > jobs[i].lo ? (size_t)(jobs[i].hi - jobs[i].lo) : 0;
#pragma omp parallel num_threads(cpu_team(be, items * jobs->n_heads))
    for (size_t i = 0; i < n; i++) reduce_job(cpu_of(be)->k, &jobs[i]);
    for (const combine_job *j = jobs; mode >= GQA_LAYER_MEAN && j < jobs + n; j++)
        if (j->hi > j->lo)
            cpu_over_ranks(be, f32_at(j->out, 0) + j->lo, (size_t)(j->hi - j->lo), mode == GQA_LAYER_MEAN);
}

/* Reduces item i, counted over the items of all heads of a job. */
static void reduce_page(const page_reduce_job *j, size_t i)
{
    size_t items = (size_t)(j->items.hi - j->items.lo), head = i / items;
    int64_t item = j->items.lo + (int64_t)(i % items);
    f32_at(j->out, head * j->stride)[item] = ref_reduce_item(j, head, item);
}

void cpu_select_page_reduce(backend *be, const page_reduce_job *jobs, size_t n)
{
    size_t tokens = 0;
    for (const page_reduce_job *j = jobs; j < jobs + n; j++)
        if (j->items.hi > j->items.lo) tokens += (size_t)((j->items.hi - j->items.lo) * j->granule) * j->n_heads;
#pragma omp parallel num_threads(cpu_team(be, tokens))
    for (const page_reduce_job *j = jobs; j < jobs + n; j++) {
        size_t a, b;
        if (j->items.hi <= j->items.lo) continue;
        threads_split((size_t)(j->items.hi - j->items.lo) * j->n_heads, 64, &a, &b);
        for (size_t i = a; i < b; i++) reduce_page(j, i);
    }
}

/* ---- choose ---- */

static float of_key(uint32_t u)
{
    float x;
    u = u & 0x80000000u ? u & 0x7fffffffu : ~u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns a number that at least k of n numbers reach, but at most `most`, if one exists, otherwise the k-th largest. 1
 * <= k <= n, no NaN; at least k reach `least`. */
static float bound_of(const cpu_kernels *kn, const float *x, size_t n, size_t k, size_t most, float least)
{
    uint32_t lo = cpu_key(least), hi = cpu_key(kn->largest(x, n));
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

/* Returns the words for all candidates, or for the maxima of their sets with incomplete lanes. */
static size_t space_words(size_t n)
{
    return 3 * (n + 64);
}

static choose_space space_at(void *p, size_t n)
{
    uint32_t *w = p;
    return (choose_space){(float *)(void *)w, (int32_t *)(void *)(w + n + 64), (int32_t *)(void *)(w + 2 * (n + 64))};
}

/* Writes the first k of n scores in the order of choose_job as ascending indexes to `best`; least: see bound_of. */
static void best_of(const cpu_kernels *kn, int32_t *best, const float *x, size_t n, size_t k, float least)
{
    float limit = bound_of(kn, x, n, k, k, least);
    kn->best(best, x, n, limit, k - kn->count_at_least(x, n, of_key(cpu_key(limit) + 1)));
}

/* Returns a lower bound of the k-th largest score that few scores reach. With many scores, it is the k-th largest of
 * the maxima of disjoint sets. */
static float low_bound(const cpu_kernels *kn, const float *x, size_t n, size_t k, const choose_space *s)
{
    size_t per = n / (2 * k), maxima = per < 4 ? 0 : kn->lane_maxima(s->val, x, n, per);
    return maxima >= k ? bound_of(kn, s->val, maxima, k, k + k / 8, -INFINITY) : -INFINITY;
}

/* Writes the first k of n scores to s->best. */
static void top_k(const cpu_kernels *kn, const float *x, size_t n, size_t k, const choose_space *s)
{
    float least = low_bound(kn, x, n, k, s);
    if (least == -INFINITY) {
        best_of(kn, s->best, x, n, k, least);
        return;
    }
    size_t count = kn->at_least(s->idx, s->val, x, n, least);
    best_of(kn, s->best, s->val, count, k, least);
    for (size_t i = 0; i < k; i++) s->best[i] = s->idx[s->best[i]];
}

/* ---- mass ---- */

/* Computes the mass of the scores above a key, and from the key on. */
static void mass_at(const cpu_kernels *kn, double sum[2], const choose_space *s, size_t n, uint32_t key)
{
    kn->split(s->idx, sum, s->val, (const float *)(const void *)s->best, n, of_key(key), of_key(key));
}

/* Returns how many of the n largest scores have the mass `want`, if all together have it. The scores are in s->val,
 * their masses in s->best. */
static size_t fewest(const cpu_kernels *kn, const choose_space *s, size_t n, double want, float largest)
{
    uint32_t lo = cpu_key(-INFINITY), hi = cpu_key(largest);
    double sum[2];
    while (lo < hi) { /* the largest key at which the mass is reached */
        uint32_t mid = hi - (hi - lo) / 2;
        mass_at(kn, sum, s, n, mid);
        if (sum[1] < want) hi = mid - 1;
        else lo = mid;
    }
    mass_at(kn, sum, s, n, lo);
    size_t above = kn->count_at_least(s->val, n, of_key(lo + 1)),
           ties = kn->count_at_least(s->val, n, of_key(lo)) - above;
    double more = ceil((want - sum[0]) / ((sum[1] - sum[0]) / (double)ties));
    return above + (more < 1 ? 1 : more < (double)ties ? (size_t)more : ties);
}

static int64_t mass_of(const cpu_kernels *kn, const mass_job *j, size_t list, const choose_space *s)
{
    span_list l = {.first = j->items.lo, .end = j->items.hi};
    if (j->spans) l = ref_span_list(j->spans, list, j->items.lo, j->items.hi);
    int64_t n = l.end > l.first ? l.end - l.first : 0, most = j->most < n ? j->most : n;
    const float *x = f32_at(j->score, list * j->stride + (size_t)l.first);
    float top, all, few, by = ref_mass_scale(j, list) * 1.44269504f, *mass = (float *)(void *)s->best;
    if (most <= j->least || j->p >= 1) return most;
    kn->vote_exp(mass, &top, &all, x, by, (size_t)n);
    if (!isfinite(top)) return most;
    float least = low_bound(kn, x, (size_t)n, (size_t)most, s);
    size_t count = kn->at_least(s->idx, s->val, x, (size_t)n, least);
    float largest = kn->clamp(s->val, count);
    kn->vote_exp(mass, &top, &few, s->val, by, count);
    double want = (double)j->p * (double)all;
    if ((double)few < want) return most;
    int64_t k = (int64_t)fewest(kn, s, count, want, largest);
    return k < j->least ? j->least : k < most ? k : most;
}

void cpu_select_mass(backend *be, const mass_job *jobs, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t lists = jobs->n_lists, threads = (size_t)be->n_threads, most = 0;
    for (const mass_job *j = jobs; j < jobs + n; j++) {
        int64_t span = j->spans ? j->spans->n_max * j->spans->per : j->items.hi - j->items.lo;
        if (span > 0 && (size_t)span > most) most = (size_t)span;
    }
    uint32_t *space = cpu_scratch(be, &c->parts, threads, space_words(most) * sizeof *space, "selection work space");
    if (!space) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n *most *lists * 16))
    for (size_t l = 0; l < n * lists; l++) {
        choose_space s = space_at(space + (size_t)threads_id() * space_words(most), most);
        i64_at(jobs[l / lists].k, 0)[l % lists] = mass_of(c->k, &jobs[l / lists], l % lists, &s);
    }
}

/* ---- lists ---- */

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

/* Appends the best k of the candidates in spans. */
static void put_columns(const cpu_kernels *kn, slot_list *l, const span_list *of, const float *score, int64_t k,
                        const choose_space *s)
{
    int64_t n = of->end - of->first;
    if (n > k && k > 0) top_k(kn, score + of->first, (size_t)n, (size_t)k, s);
    for (int64_t i = 0; i < (n < k ? n : k); i++) {
        int64_t item = span_item(of, of->first + (n > k ? s->best[i] : i));
        put_items(l, item, item + 1);
    }
}

static void choose_list(const cpu_kernels *kn, const choose_job *j, size_t list, const choose_space *s)
{
    int64_t n = j->items.n_slots, items = (n + j->granule - 1) / j->granule,
            k = j->budget.p ? i64_at(j->budget, j->each ? list : 0)[0] : j->k;
    int64_t lo = j->items.lo > j->head ? j->items.lo : j->head, hi = j->items.hi < j->tail ? j->items.hi : j->tail;
    slot_list l = {.out = (int32_t *)(void *)j->idx.p + list * (size_t)j->idx_stride,
                   .granule = j->granule,
                   .n_slots = n,
                   .first = j->first};
    put_items(&l, 0, j->head < j->tail ? j->head : j->tail);
    const float *score = f32_at(j->score, 0) + list * j->stride;
    if (j->spans) {
        span_list of = ref_span_list(j->spans, list, lo, hi);
        put_columns(kn, &l, &of, score, k, s);
    } else if (hi > lo && k >= hi - lo) {
        put_items(&l, lo, hi);
    } else if (hi > lo && k > 0) {
        top_k(kn, score + lo, (size_t)(hi - lo), (size_t)k, s);
        if (j->granule > 1 || lo < l.first)
            for (int64_t i = 0; i < k; i++) put_items(&l, lo + s->best[i], lo + s->best[i] + 1);
        else
            for (int64_t i = 0; i < k; i++) l.out[l.count++] = (int32_t)lo + s->best[i];
    }
    put_items(&l, j->tail, items);
    int64_t *range = (int64_t *)(void *)j->range.p + 2 * list;
    range[0] = 0;
    range[1] = l.count;
}

void cpu_select_choose(backend *be, const choose_job *jobs, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t lists = jobs->n_lists, threads = (size_t)be->n_threads, most = 0, all = 0;
    for (const choose_job *j = jobs; j < jobs + n; j++) {
        int64_t span = j->spans ? j->spans->n_max * j->spans->per : j->items.hi - j->items.lo;
        if (span <= 0) continue;
        all += (size_t)span;
        if ((size_t)span > most) most = (size_t)span;
    }
    uint32_t *space = cpu_scratch(be, &c->parts, threads, space_words(most) * sizeof *space, "selection work space");
    if (!space) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, all *lists * 4))
    for (size_t l = 0; l < n * lists; l++) {
        choose_space s = space_at(space + (size_t)threads_id() * space_words(most), most);
        choose_list(c->k, &jobs[l / lists], l % lists, &s);
    }
}
