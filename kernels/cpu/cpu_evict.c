/* SPDX-License-Identifier: MIT */
/* Column sums: one work item is a group of heads and a tile of keys. The other ops of eviction touch a few numbers a
 * row and use ref's code. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_evict.h"
#include "kernels/ref/ref.h"

typedef struct {
    const attn_job *j;
    size_t n_groups, stride;
    int how;
    bool add;
    buf sum;
} call;

/* Per-thread arrays of a work item. */
typedef struct {
    float *k, *sum, *work;
    uint8_t *lo, *hi;
} tile_space;

/* Returns the number of kv heads that a group reads; per_kv: query heads at each. */
static size_t group_kv(const call *c, size_t *per_kv)
{
    size_t heads = c->j->n_heads / c->n_groups, group = c->j->n_heads / c->j->rows.n_kv_heads;
    *per_kv = heads < group ? heads : group;
    return heads / *per_kv;
}

static size_t space_bytes(const call *c)
{
    size_t per_kv, n_kv = group_kv(c, &per_kv), d = c->j->rows.head_dim;
    size_t floats = PREFILL_KEYS * (n_kv * d + 1) + colsum_work_floats(d, n_kv, per_kv);
    return (floats * sizeof(float) + 2 * c->j->n_tok + 127) / 64 * 64;
}

static tile_space space_at(const call *c, unsigned char *p)
{
    size_t per_kv, n_kv = group_kv(c, &per_kv), d = c->j->rows.head_dim;
    tile_space s = {.k = (float *)(void *)p};
    s.sum = s.k + PREFILL_KEYS * n_kv * d;
    s.work = s.sum + PREFILL_KEYS;
    s.lo = (uint8_t *)(s.work + colsum_work_floats(d, n_kv, per_kv));
    s.hi = s.lo + c->j->n_tok;
    return s;
}

/* Returns an entry's index in a tile of n keys, clamped to its ends. */
static uint8_t within(int64_t i, size_t n)
{
    return (uint8_t)(i < 0 ? 0 : i < (int64_t)n ? i : (int64_t)n);
}

/* Computes the range of the tile that each query sees; false if none sees any of it. */
static bool see(const call *c, const attn_list *l, int64_t i0, size_t n, tile_space *s)
{
    bool any = false;
    for (size_t t = 0; t < c->j->n_tok; t++) {
        int64_t lo, hi;
        cpu_visible(c->j, l, t, &lo, &hi);
        s->lo[t] = within(lo - l->first - i0, n);
        s->hi[t] = within(hi - l->first - i0, n);
        any |= s->lo[t] < s->hi[t];
    }
    return any;
}

/* Gathers the K rows of the tile in all kv heads of the group. */
static void gather(backend *be, const call *c, const attn_list *l, size_t kv0, size_t n_kv, int64_t i0, size_t n,
                   float *out)
{
    size_t d = c->j->rows.head_dim;
    for (size_t kv = 0; kv < n_kv; kv++) {
        row_source from = cpu_rows(&c->j->rows, false, kv0 + kv);
        float *to = out + kv * PREFILL_KEYS * d;
        cpu_of(be)->k->rows(to, d, &from, l->idx, l->first + i0, n);
        memset(to + n * d, 0, (PREFILL_KEYS - n) * d * sizeof *to);
    }
}

/* Processes entries [i0, i0 + PREFILL_KEYS) of group g. */
static void tile(backend *be, const call *c, size_t g, int64_t i0, tile_space s)
{
    const attn_job *j = c->j;
    attn_list l = ref_list_of(j, g * (j->n_heads / c->n_groups));
    if (i0 >= l.n) return;
    size_t n = l.n - i0 < PREFILL_KEYS ? (size_t)(l.n - i0) : PREFILL_KEYS, d = j->rows.head_dim, per_kv;
    size_t n_kv = group_kv(c, &per_kv), heads = n_kv * per_kv, head = g * heads;
    float *sum = f32_at(c->sum, 0) + g * c->stride + (size_t)i0;
    memset(s.sum, 0, PREFILL_KEYS * sizeof *s.sum);
    if (c->add) memcpy(s.sum, sum, n * sizeof *sum);
    if (see(c, &l, i0, n, &s)) {
        gather(be, c, &l, head / (j->n_heads / j->rows.n_kv_heads), n_kv, i0, n, s.k);
        colsum_tile b = {.q = f32_at(j->q, 0) + head * d,
                         .lse = f32_at(j->lse, 0) + head,
                         .n_tok = j->n_tok,
                         .n_heads = j->n_heads,
                         .head_dim = d,
                         .n_kv = n_kv,
                         .per_kv = per_kv,
                         .k = s.k,
                         .lo = s.lo,
                         .hi = s.hi,
                         .scale = j->scale,
                         .factor = c->how == COMBINE_MEAN ? 1 / (float)heads : 1,
                         .max = c->how == COMBINE_MAX,
                         .sum = s.sum,
                         .work = s.work};
        cpu_of(be)->k->colsum(&b);
    }
    memcpy(sum, s.sum, n * sizeof *sum);
}

/* Does the same from scores. */
static void scored_tile(backend *be, const call *c, size_t g, int64_t i0)
{
    const attn_job *j = c->j;
    size_t heads = j->n_heads / c->n_groups, head = g * heads;
    attn_list l = ref_list_of(j, head);
    if (i0 >= l.n) return;
    weigh_run w = {.score = f32_at(j->scores, 0) + head * j->score_stride + i0,
                   .lse = f32_at(j->lse, 0) + head,
                   .stride = j->score_stride,
                   .heads = heads,
                   .n = l.n - i0 < PREFILL_KEYS ? (size_t)(l.n - i0) : PREFILL_KEYS,
                   .factor = c->how == COMBINE_MEAN ? 1 / (float)heads : 1,
                   .max = c->how == COMBINE_MAX,
                   .add = c->add,
                   .sum = f32_at(c->sum, 0) + g * c->stride + i0};
    cpu_of(be)->k->weigh(&w);
}

void cpu_evict_colsum(backend *be, const attn_job *j, size_t n_groups, int how, bool add, buf sum, size_t stride)
{
    call c = {j, n_groups, stride, how, add, sum};
    size_t bytes = space_bytes(&c), tiles = ((size_t)j->n_max + PREFILL_KEYS - 1) / PREFILL_KEYS;
    if (j->scores.p) {
        ref_count_sums(j, n_groups, add);
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, j->n_heads *(size_t)j->n_max * 16))
        for (size_t i = 0; i < n_groups * tiles; i++)
            scored_tile(be, &c, i % n_groups, (int64_t)(i / n_groups * PREFILL_KEYS));
        return;
    }
    if (!cpu_dim_fits(be, j->rows.head_dim)) return;
    unsigned char *space = cpu_scratch(be, &cpu_of(be)->parts, (size_t)be->n_threads, bytes, "column sums");
    if (!space) return;
    ref_count_sums(j, n_groups, add);
#pragma omp parallel for schedule(dynamic, 1)                                                                          \
    num_threads(cpu_team(be, j->n_tok * j->n_heads * (size_t)j->n_max * j->rows.head_dim * 2))
    for (size_t i = 0; i < n_groups * tiles; i++)
        tile(be, &c, i % n_groups, (int64_t)(i / n_groups * PREFILL_KEYS),
             space_at(&c, space + (size_t)threads_id() * bytes));
}
