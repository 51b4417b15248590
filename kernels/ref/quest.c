/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ref/ref.h"

static void add_to_mean(const quest_index *x, size_t head, int64_t pos, const float *k)
{
    size_t d = x->head_dim, page = (size_t)pos / x->page, before = (size_t)pos % x->page;
    float *sum = f32_at(x->sum, head * d);
    for (size_t c = 0; c < d; c++) {
        sum[c] = before == 0 ? k[c] : sum[c] + k[c];
        ref_put(x->bound, x->type, (head * x->cap + page) * d + c, sum[c] / (float)(before + 1));
    }
}

/* Adds one key to its page of a head. */
static void add_key(const quest_index *x, size_t head, int64_t pos, const float *k)
{
    size_t d = x->head_dim, page = (size_t)pos / x->page, at = (head * x->cap + page) * 2 * d;
    bool anew = (size_t)pos % x->page == 0;
    if (x->how == QUEST_MEAN) {
        add_to_mean(x, head, pos, k);
        return;
    }
    for (size_t c = 0; c < d; c++) {
        float top = ref_get(x->bound, x->type, at + c), low = ref_get(x->bound, x->type, at + d + c);
        ref_put(x->bound, x->type, at + c, anew || k[c] > top ? k[c] : top);
        ref_put(x->bound, x->type, at + d + c, anew || k[c] < low ? k[c] : low);
    }
}

void ref_quest_add(backend *be, const index_add_job *jobs, size_t n)
{
    for (const index_add_job *j = jobs; j < jobs + n; j++) {
        const quest_index *x = j->index;
        for (size_t i = 0; i < j->n; i++)
            for (size_t h = 0; h < x->n_kv_heads; h++) {
                float row[256];
                ref_round_row(row, j->k, i * x->n_kv_heads + h, x->head_dim, x->type);
                add_key(x, h, j->pos + (int64_t)i, row);
            }
    }
}

void ref_quest_redo(backend *be, const void *index, const kv_rows *rows, int64_t n)
{
    const quest_index *x = index;
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t p = n / (int64_t)x->page * (int64_t)x->page; p < n; p++) {
            float row[256];
            ref_k_row(row, rows, h, p);
            ref_round_row(row, (buf){(unsigned char *)row}, 0, x->head_dim, x->type);
            add_key(x, h, p, row);
        }
}

/* Returns the score of a page. Each term is the larger of two rounded products, so no key of the page scores more
 * despite rounding. */
static float page_score(const quest_index *x, size_t head, int64_t page, const float *q)
{
    size_t d = x->head_dim, at = (head * x->cap + (size_t)page) * quest_rows(x) * d;
    float part[16] = {0}, best = -INFINITY, mean[256];
    if (x->how == QUEST_MEAN) {
        ref_floats(mean, x->bound, x->type, at, d);
        return ref_dot16(q, mean, d);
    }
    for (size_t c = 0; c < d; c++) {
        float a = q[c] * ref_get(x->bound, x->type, at + c), b = q[c] * ref_get(x->bound, x->type, at + d + c);
        float term = a > b ? a : b;
        part[c % 16] += term;
        if (term > best) best = term;
    }
    return x->how == QUEST_MAXCH ? best : ref_sum16(part);
}

void ref_quest_score(backend *be, const score_job *jobs, size_t n)
{
    for (const score_job *j = jobs; j < jobs + n; j++) {
        const quest_index *x = j->index;
        size_t d = x->head_dim, parts = score_parts(j, x->n_kv_heads), heads = j->n_heads / parts;
        for (size_t h = 0; h < j->n_heads; h++) {
            float *out = (float *)(void *)j->score.p + h * j->stride;
            span_list l = ref_part_columns(j, h / heads, parts);
            ref_span_blanks(out, j->stride, 1, &l);
            for (int64_t p = l.first; p < l.end; p++)
                out[p] = page_score(x, h / (j->n_heads / x->n_kv_heads), span_item(&l, p),
                                    (const float *)(void *)j->q.p + h * d);
            if (h % heads == 0 && l.end > l.first) add_bytes(j->read, quest_bytes(x, l.end - l.first));
        }
    }
}
