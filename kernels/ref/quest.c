/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ref/ref.h"

/* One key joins page p of a head. */
static void add_key(const quest_index *x, size_t head, int64_t pos, const float *k)
{
    size_t d = x->head_dim, page = (size_t)pos / x->page, at = (head * x->cap + page) * 2 * d;
    bool anew = (size_t)pos % x->page == 0;
    for (size_t c = 0; c < d; c++) {
        float top = ref_get(x->bound, x->type, at + c), low = ref_get(x->bound, x->type, at + d + c);
        ref_put(x->bound, x->type, at + c, anew || k[c] > top ? k[c] : top);
        ref_put(x->bound, x->type, at + d + c, anew || k[c] < low ? k[c] : low);
    }
}

void ref_quest_add(backend *be, const quest_index *x, buf pos, buf k, size_t n)
{
    (void)be;
    int64_t p0 = *(const int64_t *)(void *)pos.p;
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < x->n_kv_heads; h++) {
            float row[256];
            ref_round_row(row, k, i * x->n_kv_heads + h, x->head_dim, x->type);
            add_key(x, h, p0 + (int64_t)i, row);
        }
}

void ref_quest_redo(backend *be, const quest_index *x, const kv_rows *rows, int64_t n)
{
    (void)be;
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t p = n / (int64_t)x->page * (int64_t)x->page; p < n; p++) {
            float row[256];
            ref_k_row(row, rows, h, p);
            add_key(x, h, p, row);
        }
}

/* Each term is the larger of two rounded products, so no key of the page scores more, whatever rounds. */
static float page_bound(const quest_index *x, size_t head, int64_t page, const float *q, bool max_channel)
{
    size_t d = x->head_dim, at = (head * x->cap + (size_t)page) * 2 * d;
    float part[16] = {0}, best = -INFINITY;
    for (size_t c = 0; c < d; c++) {
        float a = q[c] * ref_get(x->bound, x->type, at + c), b = q[c] * ref_get(x->bound, x->type, at + d + c);
        float term = a > b ? a : b;
        part[c % 16] += term;
        if (term > best) best = term;
    }
    return max_channel ? best : ref_sum16(part);
}

void ref_quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                     int64_t n_max, bool max_channel, buf read)
{
    (void)be;
    (void)n_max;
    const int64_t *range = (const int64_t *)(void *)n.p;
    size_t group = n_heads / x->n_kv_heads;
    for (size_t h = 0; h < n_heads; h++)
        for (int64_t p = range[1]; p < range[2]; p++)
            ((float *)(void *)score.p)[h * stride + (size_t)p] =
                page_bound(x, h / group, p, (const float *)(void *)q.p + h * x->head_dim, max_channel);
    if (read.p && range[2] > range[1])
        *(uint64_t *)(void *)read.p +=
            (uint64_t)(range[2] - range[1]) * x->n_kv_heads * 2 * x->head_dim * dtype_size(x->type);
}

void ref_quest_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                            const item_groups *g, bool max_channel, buf read)
{
    (void)be;
    const int64_t *range = (const int64_t *)(void *)n.p;
    size_t d = x->head_dim, parts = group_parts(g, x->n_kv_heads), heads = n_heads / parts;
    for (size_t h = 0; h < n_heads; h++) {
        float *out = (float *)(void *)score.p + h * stride;
        group_list l = ref_group_list(g, h / (n_heads / g->n_lists), range[1], range[2]);
        ref_group_blanks(out, stride, 1, &l);
        for (int64_t p = l.first; p < l.end; p++)
            out[p] = page_bound(x, h / (n_heads / x->n_kv_heads), group_item(&l, p), (const float *)(void *)q.p + h * d,
                                max_channel);
        if (read.p && h % heads == 0)
            *(uint64_t *)(void *)read.p += (uint64_t)(l.end - l.first) * 2 * d * dtype_size(x->type);
    }
}

const quest_ops ref_quest = {ref_quest_add, ref_quest_redo, ref_quest_score, ref_quest_score_groups};
