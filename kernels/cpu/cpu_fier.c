/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/votes.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_select.h"
#include "kernels/ref/ref.h"

static unsigned char *ring_row(const fier_index *x, size_t head, size_t pos)
{
    return x->ring.p + (head * x->group + pos % x->group) * x->head_dim * dtype_size(x->type);
}

/* New keys at the positions from `first` on. */
typedef struct {
    const fier_index *x;
    const cpu_kernels *kn;
    const float *k;
    size_t first, end;
} new_keys;

/* Reads the key at position pos as the store rounds it, an earlier one from the ring. */
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

/* Sets one group of one head: tokens [begin, to). rows: space for to - begin rows. */
static void set_group(const new_keys *n, size_t head, size_t begin, size_t to, float *rows)
{
    const fier_index *x = n->x;
    float z[HEAD_DIM_MAX], lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX];
    size_t d = x->head_dim, es = dtype_size(x->type), words = fier_words(d), blocks = (x->cap + 31) / 32;
    size_t groups = (x->cap + x->group - 1) / x->group;
    for (size_t p = begin; p < to; p++) key_row(rows + (p - begin) * d, n, head, p);
    n->kn->fier_levels(z, lo, hi, rows, to - begin, d);
    unsigned char *levels = x->levels.p + (head * groups + begin / x->group) * 2 * d * es;
    n->kn->narrow(levels, lo, x->type, d);
    n->kn->narrow(levels + d * es, hi, x->type, d);
    uint32_t *bits = (uint32_t *)(void *)x->bits.p + head * blocks * words * 32;
    for (size_t p = begin; p < to; p++)
        n->kn->fier_bits(bits + p / 32 * words * 32 + p % 32, z, rows + (p - begin) * d, d);
}

/* Updates all groups that the new keys touch, and the ring. */
static void add_head(const new_keys *n, size_t head, float *rows)
{
    const fier_index *x = n->x;
    size_t g = x->group, d = x->head_dim;
    for (size_t begin = n->first / g * g; begin < n->end; begin += g)
        set_group(n, head, begin, begin + g < n->end ? begin + g : n->end, rows);
    for (size_t p = n->end > n->first + g ? n->end - g : n->first; p < n->end; p++)
        n->kn->narrow(ring_row(x, head, p), n->k + ((p - n->first) * x->n_kv_heads + head) * d, x->type, d);
}

void cpu_fier_add(backend *be, const index_add_job *jobs, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    const fier_index *x = jobs->index;
    size_t floats = x->group * x->head_dim, heads = x->n_kv_heads;
    float *rows = cpu_scratch(be, &c->parts, (size_t)be->n_threads * floats, sizeof *rows, "keys of a group");
    if (!rows) return;
#pragma omp parallel num_threads(cpu_team(be, n * jobs->n * heads * x->head_dim * 8))
    {
        size_t a, b;
        threads_split(n * heads, 1, &a, &b);
        for (size_t i = a; i < b; i++) {
            const index_add_job *j = &jobs[i / heads];
            new_keys keys = {j->index, c->k, f32_at(j->k, 0), (size_t)j->pos, (size_t)j->pos + j->n};
            add_head(&keys, i % heads, rows + (size_t)threads_id() * floats);
        }
    }
}

/* Queries of a job. */
typedef struct {
    const fier_index *x;
    const cpu_kernels *kn;
    const float *q;
    size_t group; /* query heads of a part */
} scorer;

static scorer scorer_of(const cpu_kernels *kn, const score_job *j, size_t parts)
{
    return (scorer){.x = j->index, .kn = kn, .q = f32_at(j->q, 0), .group = j->n_heads / parts};
}

/* Returns the queries of part i, s->group of them. */
static const float *queries(const scorer *s, size_t i)
{
    return s->q + i * s->group * s->x->head_dim;
}

/* Scores tokens [t0, t1) of a kv head for s->group queries q: out[h * stride + t - t0]. */
static void score_tokens(const scorer *s, size_t kv, const float *q, size_t t0, size_t t1, float *out, size_t stride)
{
    const fier_index *x = s->x;
    size_t d = x->head_dim, blocks = (x->cap + 31) / 32, groups = (x->cap + x->group - 1) / x->group;
    for (size_t h = 0; h < s->group; h += FIER_HEADS) {
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
                      .t1 = t1};
        if (x->products == FIER_INT8) s->kn->fier_score_int8(&r);
        else s->kn->fier_score(&r);
    }
}

static void score_of_part(const cpu_kernels *kn, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                          float *out)
{
    scorer s = scorer_of(kn, j, parts);
    score_tokens(&s, part * s.x->n_kv_heads / parts, queries(&s, part), from, to, out, j->stride);
}

/* Computes all votes of a kv head. piece [group][VOTE_CHUNK]: scores, recomputed when needed again. */
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

static vote_lists votes_of_job(const score_job *j, size_t group)
{
    return votes_of(f32_at(j->votes, 0) + j->items.lo, j->stride, group, (size_t)(j->items.hi - j->items.lo), j->scale);
}

/* Each kv head of a job is processed by one thread, whose cache holds its scores and their exp. If that would leave
 * threads idle, scoring and combining in separate steps distributes the work better. */
static void fier_votes(backend *be, const score_job *jobs, size_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    size_t heads = ((const fier_index *)jobs->index)->n_kv_heads, group = jobs->n_heads / heads, floats = 0;
    size_t items = 0;
    for (size_t i = 0; i < n; i++)
        if (jobs[i].items.hi > jobs[i].items.lo) items += (size_t)(jobs[i].items.hi - jobs[i].items.lo);
    size_t team = (size_t)cpu_team(be, items * jobs->n_heads);
    if (n * heads % team != 0 || group > VOTE_HEADS) {
        for (size_t i = 0; i < n; i++) ref_fier_votes(be, &jobs[i]);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].items.hi <= jobs[i].items.lo) continue;
        vote_lists all = votes_of_job(&jobs[i], group);
        if (vote_floats(&all) + group * VOTE_CHUNK > floats) floats = vote_floats(&all) + group * VOTE_CHUNK;
    }
    if (floats == 0) return;
    float *work = cpu_scratch(be, &cpu_of(be)->parts, team * floats, sizeof *work, "votes");
    if (!work) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)team)
    for (size_t i = 0; i < n * heads; i++) {
        const score_job *j = &jobs[i / heads];
        if (j->items.hi <= j->items.lo) continue;
        float *piece = work + (size_t)threads_id() * floats;
        scorer s = scorer_of(kn, j, heads);
        vote_lists all = votes_of_job(j, group);
        vote_list v = vote_at(&all, i % heads, piece + group * VOTE_CHUNK);
        vote_list_alone(&s, &v, i % heads, (size_t)j->items.lo, piece);
    }
    for (size_t i = 0; i < n; i++)
        if (jobs[i].items.hi > jobs[i].items.lo) add_bytes(jobs[i].read, fier_job_bytes(&jobs[i]));
}

void cpu_fier_score(backend *be, const score_job *jobs, size_t n)
{
    const fier_index *x = jobs->index;
    if (jobs->votes.p) {
        fier_votes(be, jobs, n);
        return;
    }
    cpu_score_jobs(be, jobs, n, score_parts(jobs, x->n_kv_heads), 512, 8, jobs->n_heads * x->head_dim, score_of_part);
    for (size_t i = 0; i < n; i++)
        if (jobs[i].spans || jobs[i].items.hi > jobs[i].items.lo) add_bytes(jobs[i].read, fier_job_bytes(&jobs[i]));
}
