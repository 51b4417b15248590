/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

/* ---- members ---- */

static void make_mean(const cpu_kernels *k, const cluster_index *x, const row_source *rows, size_t head, size_t c,
                      bool value)
{
    size_t d = x->mean.head_dim, at = (head * x->mean.cap + c) * d * dtype_size(x->mean.type);
    const int32_t *start = i32_at(x->start, head * (x->mean.cap + 1) + c),
                  *member = i32_at(x->member, head * x->tokens);
    double sum[HEAD_DIM_MAX] = {0};
    float row[HEAD_DIM_MAX];
    for (int32_t i = start[0]; i < start[1]; i++) {
        k->rows(row, d, rows, member, i, 1);
        for (size_t ch = 0; ch < d; ch++) sum[ch] += (double)row[ch];
    }
    int32_t n = start[1] - start[0];
    for (size_t ch = 0; ch < d; ch++) row[ch] = n > 0 ? (float)(sum[ch] / n) : value ? 0 : NAN;
    k->narrow((value ? x->mean.v : x->mean.k).p + at, row, x->mean.type, d);
}

void cpu_cluster_fill(backend *be, const cluster_index *x, const cluster_fill *j)
{
    const cpu_kernels *k = cpu_of(be)->k;
    size_t heads = x->mean.n_kv_heads;
    if (!cpu_dim_fits(be, x->mean.head_dim)) return;
#pragma omp parallel num_threads(cpu_team(be, j->n *heads * x->mean.head_dim))
    {
#pragma omp for schedule(static)
        for (size_t h = 0; h < heads; h++) ref_cluster_sort(x, j, h);
#pragma omp for schedule(dynamic, 64)
        for (size_t i = 0; i < heads * j->count; i++) {
            size_t h = i / j->count, c = j->from + i % j->count;
            for (int value = 0; value < 2; value++) {
                const row_source rows = cpu_rows(j->rows, value, h);
                make_mean(k, x, &rows, h, c, value);
            }
        }
    }
}

/* ---- selection ---- */

/* Returns the largest key at which the weights of all keys >= it reach *k, which the total weight must do. The weight
 * of a key is its cluster's size; start NULL: 1 if the key is not 0. *k becomes what remains of it for that key
 * alone. */
static uint32_t cut_of(const uint32_t *key, const int32_t *start, int64_t n, int64_t *k)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t held[256] = {0};
        uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8);
        int digit = 255;
        for (int64_t c = 0; c < n; c++)
            if ((key[c] & above) == prefix) held[key[c] >> shift & 255] += start ? start[c + 1] - start[c] : key[c] > 0;
        while (held[digit] < *k) *k -= held[digit--];
        prefix |= (uint32_t)digit << shift;
    }
    return prefix;
}

/* Takes clusters that fit k tokens and sets their keys to 0. Returns how many others have members. */
static int64_t take_best(const cluster_choice *j, size_t head, uint32_t *key)
{
    const int32_t *start = i32_at(j->x->start, head * (j->x->mean.cap + 1));
    int64_t left = j->k + 1, others = 0; /* with one more token, the last one is too large */
    uint32_t cut = j->k >= start[j->n] ? 0 : j->k <= 0 ? UINT32_MAX : cut_of(key, start, j->n, &left);
    left--;
    for (int64_t c = 0; c < j->n; c++) {
        int32_t size = start[c + 1] - start[c];
        if (key[c] == 0) continue;
        bool fits = key[c] == cut && size <= left;
        if (key[c] == cut) left = fits ? left - size : 0;
        if (key[c] > cut || fits) {
            ref_cluster_take(j, head, c);
            key[c] = 0;
        } else {
            others++;
        }
    }
    return others;
}

static void choose_head(const cluster_choice *j, size_t head)
{
    uint32_t *key = (uint32_t *)(void *)j->key.p + head * j->stride;
    ref_cluster_begin(j, head);
    for (int64_t c = 0; c < j->n; c++)
        key[c] = ref_cluster_size(j, head, c) > 0 ? cpu_key(ref_cluster_score(j, head, c)) : 0;
    int64_t others = take_best(j, head, key), left = j->most;
    ref_cluster_list(j, head);
    uint32_t cut = left >= others ? 0 : left <= 0 ? UINT32_MAX : cut_of(key, NULL, j->n, &left);
    for (int64_t c = 0; c < j->n; c++)
        if (key[c] > cut || (key[c] > 0 && key[c] == cut && left-- > 0)) ref_cluster_leave(j, head, c);
}

void cpu_cluster_choose(backend *be, const cluster_choice *jobs, size_t n)
{
    size_t heads = jobs->x->mean.n_kv_heads;
#pragma omp parallel for schedule(dynamic, 1)                                                                          \
    num_threads(cpu_team(be, n *heads *((size_t)jobs->n * 16 + (size_t)jobs->k)))
    for (size_t i = 0; i < n * heads; i++) choose_head(&jobs[i / heads], i % heads);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            add_bytes(jobs[i].read, 4 * (uint64_t)(jobs[i].n + 1 + i64_at(jobs[i].range, 2 * h)[1] - jobs[i].head));
}
