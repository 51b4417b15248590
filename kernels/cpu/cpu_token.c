/* SPDX-License-Identifier: MIT */
/* Exact scores of all keys and their votes, copies of selected rows: splits work over threads for the level's serial
 * kernels. */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/votes.h"
#include "kernels/ref/ref.h"

enum {
    PIECE = 256, /* slots of a task */
    WIDE = 32    /* quantized rows that are widened at once, on the stack */
};

/* Query heads of a kv head: `n` from `first` on. */
typedef struct {
    size_t first, n;
} heads_of;

static heads_of heads_at(const token_score_job *j, size_t kv_head)
{
    size_t n = j->n_heads / j->rows.n_kv_heads;
    return (heads_of){kv_head * n, n};
}

/* Computes products of these heads with n rows: out[i * stride + r]. */
static void dots(const cpu_kernels *k, const token_score_job *j, heads_of h, const void *rows, dtype t, size_t n,
                 float *out, size_t stride)
{
    size_t d = j->rows.head_dim;
    k->dots(out, stride, f32_at(j->q, h.first * d), h.n, d, rows, t, 0, n);
}

/* Computes the products with the n slots from `from` on. */
static void score_slots(const cpu_kernels *k, const token_score_job *j, size_t kv_head, size_t from, size_t n,
                        float *out, size_t stride)
{
    float wide[WIDE * HEAD_DIM_MAX];
    heads_of h = heads_at(j, kv_head);
    row_source s = cpu_rows(&j->rows, false, kv_head);
    if (s.bits == 0 && !s.rotated) {
        dots(k, j, h, s.exact + from * kv_row_bytes(s.type, s.head_dim), s.type, n, out, stride);
        return;
    }
    for (size_t i = 0, some; i < n; i += some) {
        some = n - i < WIDE ? n - i : WIDE;
        k->rows(wide, s.head_dim, &s, NULL, (int64_t)(from + i), some);
        dots(k, j, h, wide, DT_F32, some, out + i, stride);
    }
}

static void score_all(backend *be, const token_score_job *j)
{
    size_t lo = (size_t)j->lo, n = (size_t)(j->hi - j->lo), kv = j->rows.n_kv_heads, pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * j->n_heads * j->rows.head_dim * 2))
    for (size_t i = 0; i < kv * pieces; i++) {
        heads_of h = heads_at(j, i / pieces);
        size_t at = i % pieces * PIECE, some = n - at < PIECE ? n - at : PIECE;
        score_slots(cpu_of(be)->k, j, i / pieces, lo + at, some, f32_at(j->score, h.first * j->stride + lo + at),
                    j->stride);
    }
}

/* Computes the scores of chunk c of a kv head in a thread's `piece` [heads][VOTE_CHUNK], and their exp. */
static void exp_chunk(const cpu_kernels *k, const token_score_job *j, const vote_list *v, size_t kv_head, size_t c,
                      float *piece)
{
    heads_of h = heads_at(j, kv_head);
    score_slots(k, j, kv_head, (size_t)j->lo + c * VOTE_CHUNK, vote_items(v->of, c), piece, VOTE_CHUNK);
    for (size_t i = 0; i < h.n; i++) vote_exp(k, v, h.first + i, c, piece + i * VOTE_CHUNK);
}

/* Computes the votes of chunk c; scores are recomputed when needed again. */
static void vote_chunk(const cpu_kernels *k, const token_score_job *j, const vote_list *v, size_t c)
{
    size_t from = (size_t)j->lo + c * VOTE_CHUNK;
    if (vote_sum(k, v, c, NULL, 0)) return;
    for (size_t kv = 0; kv < j->rows.n_kv_heads; kv++) {
        heads_of h = heads_at(j, kv);
        score_slots(k, j, kv, from, vote_items(v->of, c), f32_at(j->score, h.first * j->stride + from), j->stride);
    }
    vote_sum(k, v, c, f32_at(j->score, from), j->stride);
}

static void vote(backend *be, const token_score_job *j)
{
    const cpu_kernels *k = cpu_of(be)->k;
    size_t n = (size_t)(j->hi - j->lo), kv = j->rows.n_kv_heads, piece = j->n_heads / kv * VOTE_CHUNK;
    int team = cpu_team(be, n * j->n_heads * j->rows.head_dim * 2);
    vote_lists all = votes_of(f32_at(j->votes, (size_t)j->lo), 0, j->n_heads, n, j->scale);
    size_t own = vote_floats(&all);
    float *work = cpu_scratch(be, &cpu_of(be)->parts, own + (size_t)team * piece, sizeof *work, "votes");
    if (!work) return;
    vote_list v = vote_at(&all, 0, work);
#pragma omp parallel num_threads(team)
    {
        float *mine = work + own + (size_t)threads_id() * piece;
#pragma omp for schedule(static)
        for (size_t i = 0; i < all.chunks * kv; i++) exp_chunk(k, j, &v, i % kv, i / kv, mine);
#pragma omp for schedule(static)
        for (size_t h = 0; h < j->n_heads; h++) vote_head(&v, h);
#pragma omp for schedule(static)
        for (size_t c = 0; c < all.chunks; c++) vote_chunk(k, j, &v, c);
    }
}

void cpu_token_score(backend *be, const token_score_job *j)
{
    attn_job read = ref_slots_job(&j->rows, j->lo, j->hi - j->lo, j->read);
    if (j->hi <= j->lo || ref_token_again(j->state) || !cpu_dim_fits(be, j->rows.head_dim) ||
        !cpu_count_read(be, &read, false))
        return;
    if (j->votes.p && j->n_heads > 1 && j->n_heads <= VOTE_HEADS) {
        vote(be, j);
        return;
    }
    const combine_job votes = token_votes(j);
    score_all(be, j);
    if (j->votes.p) cpu_select_combine(be, &votes, 1);
}

void cpu_token_gather(backend *be, const kv_rows *out, const kv_rows *rows, buf idx, int64_t n, buf read)
{
    size_t d = rows->head_dim, all = (size_t)n, pieces = (all + PIECE - 1) / PIECE;
    attn_job job = ref_slots_job(rows, 0, n, read);
    job.idx = idx;
    if (!cpu_dim_fits(be, d) || !cpu_count_read(be, &job, true)) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, all * rows->n_kv_heads * d))
    for (size_t i = 0; i < rows->n_kv_heads * pieces; i++) {
        size_t head = i / pieces, from = i % pieces * PIECE, to = (head * out->cap + from) * d;
        size_t some = all - from < PIECE ? all - from : PIECE;
        row_source k = cpu_rows(rows, false, head), v = cpu_rows(rows, true, head);
        cpu_of(be)->k->rows(f32_at(out->k, to), d, &k, i32_at(idx, 0), (int64_t)from, some);
        cpu_of(be)->k->rows(f32_at(out->v, to), d, &v, i32_at(idx, 0), (int64_t)from, some);
    }
}
