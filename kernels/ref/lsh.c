/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ops_lsh.h"
#include "kernels/ref/ref.h"

/* Computes the codes of v (head_dim numbers), one a table, `stride` apart. */
static void codes_of(uint16_t *code, size_t stride, const lsh_index *x, const float *v)
{
    for (size_t l = 0; l < x->tables; l++) {
        unsigned c = 0;
        for (size_t i = 0; i < x->bits; i++)
            c |= (unsigned)(ref_dot16(f32_at(x->plane, (l * x->bits + i) * x->head_dim), v, x->head_dim) > 0) << i;
        code[l * stride] = (uint16_t)c;
    }
}

/* Computes codes and norms of the tokens of a kv head. */
static void hash(uint16_t *code, const lsh_index *x, const kv_rows *rows, size_t head, slot_range range)
{
    float k[256];
    for (int64_t t = range.first; t < range.first + range.n; t++) {
        ref_k_row(k, rows, head, t);
        for (size_t c = 0; c < x->head_dim; c++) k[c] -= f32_at(x->mean, head * x->head_dim)[c];
        f32_at(x->norm, head * x->cap)[t] = sqrtf(ref_dot16(k, k, x->head_dim));
        codes_of(code + t, x->cap, x, k);
    }
}

void ref_lsh_fill_table(const lsh_index *x, size_t head, size_t l, const uint16_t *code, slot_range range)
{
    size_t at = head * x->tables + l, n = lsh_buckets(x);
    int32_t *start = i32_at(x->start, at * n), *entry = i32_at(x->entry, at * x->cap);
    memset(start, 0, n * sizeof *start);
    for (int64_t t = range.first; t < range.first + range.n; t++) start[code[t] + 1]++;
    for (size_t b = 1; b < n; b++) start[b] += start[b - 1];
    for (int64_t t = range.first; t < range.first + range.n; t++) entry[start[code[t]]++] = (int32_t)t;
    for (size_t b = n - 1; b > 0; b--) start[b] = start[b - 1]; /* each start was advanced to its bucket's end */
    start[0] = 0;
}

void ref_lsh_build(backend *be, const lsh_index *x, const kv_rows *rows, slot_range range, buf code)
{
    uint16_t *codes = (uint16_t *)(void *)code.p;
    for (size_t h = 0; h < x->n_kv_heads; h++) {
        hash(codes, x, rows, h, range);
        for (size_t l = 0; l < x->tables; l++) ref_lsh_fill_table(x, h, l, codes + l * x->cap, range);
    }
}

static size_t bucket_of(const lsh_index *x, const float *dots, size_t l)
{
    size_t b = 0;
    for (size_t i = 0; i < x->bits; i++) b |= (size_t)(dots[l * x->bits + i] > 0) << i;
    return b;
}

/* Counts hits of query head h, at most 2 a token; returns the bytes of the entries read. */
static size_t hits_of(const lsh_job *j, size_t h, unsigned char *hits, const float *dots)
{
    const lsh_index *x = j->x;
    size_t head = h / (j->n_heads / x->n_kv_heads), read = 0;
    memset(hits + j->range.first, 0, (size_t)j->range.n);
    for (size_t l = 0; l < x->tables; l++) {
        size_t at = head * x->tables + l;
        const int32_t *start = i32_at(x->start, at * lsh_buckets(x) + bucket_of(x, dots, l));
        const int32_t *entry = i32_at(x->entry, at * x->cap);
        for (int32_t i = start[0]; i < start[1]; i++) {
            if (entry[i] < j->range.first) continue;
            read += sizeof *entry;
            if (hits[entry[i]] < 2) hits[entry[i]]++;
        }
    }
    return read;
}

void ref_lsh_count(const lsh_job *j)
{
    attn_job keys = {.rows = *j->rows,
                     .n_tok = 1,
                     .n_heads = j->n_heads,
                     .n_lists = j->n_heads,
                     .range = j->list,
                     .idx = j->idx,
                     .idx_stride = j->x->cap,
                     .read = j->read};
    ref_count_read(&keys, false);
    for (size_t h = 0; h < j->n_heads; h++)
        add_bytes(buf_at(j->read, READ_INDEX * sizeof(uint64_t)),
                  (uint64_t)*i64_at(j->list, 2 * h + 1) * sizeof(float));
}

void ref_lsh_collide(backend *be, const lsh_job *j)
{
    const lsh_index *x = j->x;
    size_t d = x->head_dim, planes = x->tables * x->bits;
    for (size_t h = 0; h < j->n_heads; h++) {
        size_t head = h / (j->n_heads / x->n_kv_heads), bytes;
        const float *q = f32_at(j->q, h * d);
        float *dots = f32_at(j->dots, h * planes), length = sqrtf(ref_dot16(q, q, d)), k[256];
        unsigned char *hits = j->hits.p + h * lsh_hits(x->cap);
        int64_t n = 0, *list = i64_at(j->list, 2 * h);
        for (size_t i = 0; i < planes; i++) dots[i] = ref_dot16(f32_at(x->plane, i * d), q, d);
        bytes = hits_of(j, h, hits, dots);
        for (int64_t t = j->range.first; t < j->range.first + j->range.n; t++) {
            if (hits[t] < 2) continue;
            float by = length * f32_at(x->norm, head * x->cap)[t];
            ref_k_row(k, j->rows, head, t);
            for (size_t c = 0; c < d; c++) k[c] -= f32_at(x->mean, head * d)[c];
            size_t at = h * x->cap + (size_t)n++;
            *i32_at(j->idx, at) = (int32_t)t;
            *f32_at(j->bias, at) = lsh_bias(by > 0 ? ref_dot16(q, k, d) / by : 0, x->bits, x->tables);
        }
        list[0] = 0, list[1] = n;
        add_bytes(buf_at(j->read, READ_INDEX * sizeof(uint64_t)), bytes);
    }
    ref_lsh_count(j);
}
