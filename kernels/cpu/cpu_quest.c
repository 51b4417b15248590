/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_quest.h"
#include "kernels/ref/ref.h"

enum { PAGES = 256 }; /* of one piece: only speed depends on it */

static void cpu_quest_add(backend *be, const quest_index *x, buf pos, buf k, size_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    size_t d = x->head_dim, es = dtype_size(x->type), p0 = (size_t)cpu_i64(pos)[0];
#pragma omp parallel num_threads(cpu_team(be, n * x->n_kv_heads * d * 2))
    {
        size_t a, b;
        float row[HEAD_DIM_MAX], half[HEAD_DIM_MAX];
        threads_split(x->n_kv_heads, 1, &a, &b);
        for (size_t h = a; h < b; h++)
            for (size_t i = 0; i < n; i++) {
                size_t p = p0 + i, page = h * x->cap + p / x->page;
                kn->narrow(half, cpu_f32(k) + (i * x->n_kv_heads + h) * d, x->type, d);
                kn->widen(row, half, x->type, d);
                kn->quest_add(x->bound.p + page * 2 * d * es, row, d, x->type, p % x->page == 0);
            }
    }
}

static void cpu_quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                            int64_t n_max, bool max_channel, buf read)
{
    if (max_channel) { /* a variant for comparison: speed does not matter */
        ref_quest_score(be, score, stride, q, n_heads, x, n, n_max, max_channel, read);
        return;
    }
    const cpu_kernels *k = cpu_of(be)->k;
    size_t d = x->head_dim, bytes = 2 * d * dtype_size(x->type), group = n_heads / x->n_kv_heads;
    int64_t lo = cpu_i64(n)[1], hi = cpu_i64(n)[2];
    if (hi <= lo) return;
    size_t pieces = (size_t)(hi - lo + PAGES - 1) / PAGES;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, (size_t)(hi - lo) * n_heads * d * 3))
    for (size_t i = 0; i < pieces * x->n_kv_heads; i++) {
        size_t kv = i / pieces, p0 = (size_t)lo + i % pieces * PAGES,
               p1 = p0 + PAGES < (size_t)hi ? p0 + PAGES : (size_t)hi;
        k->bounds(cpu_f32(score) + kv * group * stride, stride, cpu_f32(q) + kv * group * d, group, d,
                  x->bound.p + kv * x->cap * bytes, x->type, p0, p1);
    }
    if (read.p) *(uint64_t *)(void *)read.p += (uint64_t)(hi - lo) * x->n_kv_heads * bytes;
}

enum { GROUPS = 16 }; /* of one piece: only speed depends on it */

static void cpu_quest_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x,
                                   buf n, const item_groups *g, bool max_channel, buf read)
{
    if (max_channel) {
        ref_quest_score_groups(be, score, stride, q, n_heads, x, n, g, max_channel, read);
        return;
    }
    const cpu_kernels *k = cpu_of(be)->k;
    int64_t lo = cpu_i64(n)[1], hi = cpu_i64(n)[2];
    size_t d = x->head_dim, bytes = 2 * d * dtype_size(x->type), parts = group_parts(g, x->n_kv_heads),
           heads = n_heads / parts, pieces = ((size_t)g->n_max + GROUPS - 1) / GROUPS;
    uint64_t pages = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : pages) \
    num_threads(cpu_team(be, (size_t)(g->n_max * g->per) * n_heads * d * 3))
    for (size_t i = 0; i < pieces * parts; i++) {
        size_t part = i / pieces;
        group_list l = ref_group_list(g, part * g->n_lists / parts, lo, hi);
        float *out = cpu_f32(score) + part * heads * stride;
        const unsigned char *head = x->bound.p + part * x->n_kv_heads / parts * x->cap * bytes;
        if (i % pieces == 0) ref_group_blanks(out, stride, heads, &l);
        for (int64_t r = (int64_t)(i % pieces) * GROUPS; r < l.n && r < (int64_t)(i % pieces + 1) * GROUPS; r++) {
            int64_t at[2];
            group_items(&l, r, at);
            k->bounds(out + r * l.per + (at[0] - l.group[r] * l.per), stride, cpu_f32(q) + part * heads * d, heads, d,
                      head + (size_t)at[0] * bytes, x->type, 0, (size_t)(at[1] - at[0]));
            pages += (uint64_t)(at[1] - at[0]);
        }
    }
    if (read.p) *(uint64_t *)(void *)read.p += pages * bytes;
}

const quest_ops cpu_quest = {cpu_quest_add, ref_quest_redo, cpu_quest_score, cpu_quest_score_groups};
