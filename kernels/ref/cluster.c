/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

/* ---- members ---- */

void ref_cluster_sort(const cluster_index *x, const cluster_fill *j, size_t head)
{
    int32_t *start = i32_at(x->start, head * (x->mean.cap + 1) + j->from),
            *member = i32_at(x->member, head * x->tokens);
    const int32_t *code = i32_at(j->code, head * j->code_cap);
    int32_t at = start[0];
    memset(start + 1, 0, j->count * sizeof *start);
    for (size_t i = 0; i < j->n; i++) start[code[i] + 1]++;
    for (size_t c = 1; c <= j->count; c++) {
        int32_t n = start[c];
        start[c] = at;
        at += n;
    }
    /* each cluster's count runs from its own start to the next one's */
    for (size_t i = 0; i < j->n; i++) member[start[code[i] + 1]++] = (int32_t)(j->first + (int64_t)i);
}

static void make_mean(const cluster_index *x, const kv_rows *rows, size_t head, size_t c, bool value)
{
    size_t d = rows->head_dim;
    const int32_t *start = i32_at(x->start, head * (x->mean.cap + 1) + c),
                  *member = i32_at(x->member, head * x->tokens);
    double sum[256] = {0};
    for (int32_t i = start[0]; i < start[1]; i++) {
        float row[256];
        ref_row(rows, value, head, (size_t)member[i], row);
        for (size_t k = 0; k < d; k++) sum[k] += (double)row[k];
    }
    int32_t n = start[1] - start[0];
    for (size_t k = 0; k < d; k++)
        ref_put(value ? x->mean.v : x->mean.k, x->mean.type, (head * x->mean.cap + c) * d + k,
                n > 0   ? (float)(sum[k] / n)
                : value ? 0
                        : NAN);
}

void ref_cluster_fill(backend *be, const cluster_index *x, const cluster_fill *j)
{
    for (size_t h = 0; h < x->mean.n_kv_heads; h++) {
        ref_cluster_sort(x, j, h);
        for (size_t c = j->from; c < j->from + j->count; c++) {
            make_mean(x, j->rows, h, c, false);
            make_mean(x, j->rows, h, c, true);
        }
    }
}

/* ---- selection ---- */

float ref_cluster_score(const cluster_choice *j, size_t head, int64_t c)
{
    float s = *f32_at(j->score, head * j->stride + (size_t)c);
    return isnan(s) ? -INFINITY : s;
}

/* Resets the selection of a head. */
void ref_cluster_begin(const cluster_choice *j, size_t head)
{
    size_t words = cluster_words(j->n_slots);
    int64_t *groups = i64_at(j->groups, 2 * head);
    memset(j->bits.p + head * words * sizeof(uint32_t), 0, words * sizeof(uint32_t));
    groups[0] = groups[1] = 0;
}

void ref_cluster_take(const cluster_choice *j, size_t head, int64_t c)
{
    const cluster_index *x = j->x;
    const int32_t *start = i32_at(x->start, head * (x->mean.cap + 1) + (size_t)c);
    const int32_t *member = i32_at(x->member, head * x->tokens);
    uint32_t *bits = (uint32_t *)(void *)j->bits.p + head * cluster_words(j->n_slots);
    for (int32_t i = start[0]; i < start[1]; i++) bits[member[i] / 32] |= 1u << member[i] % 32;
}

void ref_cluster_list(const cluster_choice *j, size_t head)
{
    const uint32_t *bits = (const uint32_t *)(const void *)j->bits.p + head * cluster_words(j->n_slots);
    int32_t *out = i32_at(j->idx, head * j->idx_stride);
    int64_t *range = i64_at(j->range, 2 * head), n = 0;
    for (; n < j->head; n++) out[n] = (int32_t)n;
    for (size_t w = 0; w < cluster_words(j->n_slots); w++)
        for (uint32_t set = bits[w]; set; set &= set - 1) out[n++] = (int32_t)(32 * w) + __builtin_ctz(set);
    range[0] = 0;
    range[1] = n;
}

void ref_cluster_leave(const cluster_choice *j, size_t head, int64_t c)
{
    size_t per = j->n_heads / j->x->mean.n_kv_heads;
    int64_t *groups = i64_at(j->groups, 2 * head), at = groups[1]++;
    i32_at(j->group, head * j->group_stride)[at] = (int32_t)c;
    for (size_t h = head * per; h < (head + 1) * per; h++)
        f32_at(j->bias, h * j->group_stride)[at] = logf((float)ref_cluster_size(j, head, c));
}

enum { DONE, OPEN, LEFT };

/* Returns the first open cluster in the order of selection, or -1. */
static int64_t first_open(const cluster_choice *j, size_t head, const uint32_t *state)
{
    int64_t best = -1;
    for (int64_t c = 0; c < j->n; c++)
        if (state[c] == OPEN && (best < 0 || ref_cluster_score(j, head, c) > ref_cluster_score(j, head, best)))
            best = c;
    return best;
}

static void choose_head(const cluster_choice *j, size_t head)
{
    uint32_t *state = (uint32_t *)(void *)j->key.p + head * j->stride;
    int64_t c, left = j->k;
    ref_cluster_begin(j, head);
    for (c = 0; c < j->n; c++) state[c] = ref_cluster_size(j, head, c) > 0 ? OPEN : DONE;
    while ((c = first_open(j, head, state)) >= 0 && ref_cluster_size(j, head, c) <= left) {
        left -= ref_cluster_size(j, head, c);
        ref_cluster_take(j, head, c);
        state[c] = DONE;
    }
    for (int64_t i = 0; i < j->most && (c = first_open(j, head, state)) >= 0; i++) state[c] = LEFT;
    for (c = 0; c < j->n; c++)
        if (state[c] == LEFT) ref_cluster_leave(j, head, c);
    ref_cluster_list(j, head);
    add_bytes(j->read, 4 * (uint64_t)(j->n + 1 + i64_at(j->range, 2 * head)[1] - j->head));
}

void ref_cluster_choose(backend *be, const cluster_choice *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < jobs[i].x->mean.n_kv_heads; h++) choose_head(&jobs[i], h);
}
