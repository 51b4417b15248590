/* SPDX-License-Identifier: MIT */
/* Hash tables: blocks of tokens, tables and query heads are distributed over threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops_lsh.h"
#include "kernels/ref/ref.h"

enum {
    TOKENS = 64,  /* tokens of a hashing piece */
    TABLES = 4,   /* tables of a hashing piece, whose planes, keys and products fit L1 */
    PLANES = 160, /* planes of a piece of a query's products */
    TOUCHED = 64, /* tables whose buckets are touched (loaded) before one is read */
    ROWS = 32     /* samples whose keys are read together */
};

/* Computes codes and norms of n tokens from t0 on. */
static void hash_block(const cpu_kernels *k, uint16_t *code, const lsh_index *x, const kv_rows *rows, size_t head,
                       int64_t t0, size_t n)
{
    size_t d = x->head_dim, stride = TABLES * x->bits;
    float key[TOKENS * HEAD_DIM_MAX], dots[TOKENS * TABLES * LSH_BITS_MAX], *norm = f32_at(x->norm, head * x->cap);
    const float *mean = f32_at(x->mean, head * d);
    row_source s = cpu_rows(rows, false, head);
    k->rows(key, d, &s, NULL, t0, n);
    for (size_t i = 0; i < n; i++) {
        float *v = key + i * d, square;
        for (size_t c = 0; c < d; c++) v[c] -= mean[c];
        k->dots(&square, 1, v, 1, d, v, DT_F32, 0, 1);
        norm[t0 + (int64_t)i] = sqrtf(square);
    }
    for (size_t l = 0; l < x->tables; l += TABLES) {
        size_t some = x->tables - l < TABLES ? x->tables - l : TABLES;
        k->dots(dots, stride, key, n, d, f32_at(x->plane, l * x->bits * d), DT_F32, 0, some * x->bits);
        for (size_t i = 0; i < some; i++)
            k->lsh_codes(code + (l + i) * x->cap + t0, dots + i * x->bits, stride, n, x->bits);
    }
}

void cpu_lsh_build(backend *be, const lsh_index *x, const kv_rows *rows, slot_range range, buf code)
{
    const cpu_kernels *k = cpu_of(be)->k;
    uint16_t *codes = (uint16_t *)(void *)code.p;
    size_t n = (size_t)range.n;
    for (size_t h = 0; h < x->n_kv_heads; h++) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, n * x->tables * x->bits * x->head_dim * 2))
        for (size_t i = 0; i < n; i += TOKENS)
            hash_block(k, codes, x, rows, h, range.first + (int64_t)i, n - i < TOKENS ? n - i : TOKENS);
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, x->tables *n * 8))
        for (size_t l = 0; l < x->tables; l++) ref_lsh_fill_table(x, h, l, codes + l * x->cap, range);
    }
}

/* Returns the first of the sorted entries [lo, hi) that is at least t. */
static const int32_t *from(const int32_t *lo, const int32_t *hi, int64_t t)
{
    while (lo < hi && *lo < t) {
        const int32_t *mid = lo + (hi - lo) / 2;
        if (*mid < t) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Loads all lines without waiting for them. Prefetches would be dropped on a TLB miss, which is the usual case here. */
static void touch(const void *from, const void *to)
{
    for (const unsigned char *p = from; p < (const unsigned char *)to; p += 64)
        (void)*(const volatile unsigned char *)p;
}

/* Tokens of a word of hits: the first hit sets bit i of the lower half, further hits bit i of the upper half. */
enum { WORD = 32 };

/* Marks the hits of query head h; returns the bytes of the entries read. Bucket borders and entries are spread over the
 * tables. */
static size_t mark(const cpu_kernels *k, const lsh_job *j, size_t h, uint64_t *hits)
{
    const lsh_index *x = j->x;
    size_t first = h / (j->n_heads / x->n_kv_heads) * x->tables, borders = lsh_buckets(x), read = 0;
    const float *dots = f32_at(j->dots, h * x->tables * x->bits);
    for (size_t l = 0; l < x->tables; l += TOUCHED) {
        uint16_t code[TOUCHED];
        size_t n = x->tables - l < TOUCHED ? x->tables - l : TOUCHED;
        const int32_t *lo[TOUCHED], *hi[TOUCHED], *border[TOUCHED];
        k->lsh_codes(code, dots + l * x->bits, x->bits, n, x->bits);
        for (size_t i = 0; i < n; i++) {
            border[i] = i32_at(x->start, (first + l + i) * borders + code[i]);
            touch(border[i], border[i] + 2);
        }
        for (size_t i = 0; i < n; i++) {
            const int32_t *entry = i32_at(x->entry, (first + l + i) * x->cap);
            lo[i] = entry + border[i][0];
            hi[i] = entry + border[i][1];
            touch(lo[i], hi[i]);
        }
        for (size_t i = 0; i < n; i++) {
            const int32_t *p = from(lo[i], hi[i], j->range.first);
            read += (size_t)(hi[i] - p);
            for (; p < hi[i]; p++) {
                uint64_t *word = hits + (uint32_t)*p / WORD, bit = (uint64_t)1 << (uint32_t)*p % WORD;
                *word |= (*word & bit) << WORD | bit;
            }
        }
    }
    return read * sizeof(int32_t);
}

/* Computes the biases of the n tokens of a sample. */
static void weigh(const cpu_kernels *k, const lsh_job *j, size_t h, const int32_t *idx, size_t n)
{
    const lsh_index *x = j->x;
    size_t d = x->head_dim, head = h / (j->n_heads / x->n_kv_heads), bytes = kv_row_bytes(j->rows->type, d);
    const float *q = f32_at(j->q, h * d), *norm = f32_at(x->norm, head * x->cap);
    float length = sqrtf(ref_dot16(q, q, d)), offset = ref_dot16(q, f32_at(x->mean, head * d), d);
    float row[ROWS * HEAD_DIM_MAX], cosine[ROWS], *bias = f32_at(j->bias, h * x->cap);
    row_source s = cpu_rows(j->rows, false, head);
    for (size_t i = 0; i < n; i += ROWS) {
        size_t some = n - i < ROWS ? n - i : ROWS;
        for (size_t next = i + ROWS; next < n && next < i + 2 * ROWS && !s.bits; next++) {
            touch(s.exact + (size_t)idx[next] * bytes, s.exact + (size_t)(idx[next] + 1) * bytes);
            touch(norm + idx[next], norm + idx[next] + 1);
        }
        k->rows(row, d, &s, idx, (int64_t)i, some);
        k->dots(cosine, ROWS, q, 1, d, row, DT_F32, 0, some);
        for (size_t c = 0; c < some; c++) {
            float by = length * norm[idx[i + c]];
            cosine[c] = by > 0 ? (cosine[c] - offset) / by : 0;
        }
        k->lsh_bias(bias + i, cosine, some, x->bits, x->tables);
    }
}

/* Writes the list of query head h; returns the bytes read. */
static size_t sample(const cpu_kernels *k, const lsh_job *j, size_t h)
{
    uint64_t *hits = (uint64_t *)(void *)(j->hits.p + h * lsh_hits(j->x->cap));
    int32_t *idx = i32_at(j->idx, h * j->x->cap);
    int64_t n = 0, *list = i64_at(j->list, 2 * h), first = j->range.first / WORD, end = j->range.first + j->range.n;
    end = (end + WORD - 1) / WORD;
    memset(hits + first, 0, (size_t)(end - first) * sizeof *hits);
    size_t bytes = mark(k, j, h, hits);
    for (int64_t w = first; w < end; w++)
        for (uint64_t more = hits[w] >> WORD; more; more &= more - 1)
            idx[n++] = (int32_t)(w * WORD) + __builtin_ctzll(more);
    list[0] = 0, list[1] = n;
    weigh(k, j, h, idx, (size_t)n);
    return bytes;
}

void cpu_lsh_collide(backend *be, const lsh_job *j)
{
    const cpu_kernels *k = cpu_of(be)->k;
    const lsh_index *x = j->x;
    size_t planes = x->tables * x->bits, d = x->head_dim, bytes = 0, group = j->n_heads / x->n_kv_heads;
    int team = cpu_team(be, j->n_heads * planes * d * 2);
    size_t together = (size_t)team > x->n_kv_heads ? 1 : group; /* heads that read the same keys and norms */
#pragma omp parallel num_threads(team)
    {
#pragma omp for schedule(static)
        for (size_t p = 0; p < planes; p += PLANES)
            for (size_t h = 0; h < j->n_heads; h += 4) {
                size_t heads = j->n_heads - h < 4 ? j->n_heads - h : 4, n = planes - p < PLANES ? planes - p : PLANES;
                k->dots(f32_at(j->dots, h * planes + p), planes, f32_at(j->q, h * d), heads, d, f32_at(x->plane, p * d),
                        DT_F32, 0, n);
            }
#pragma omp for schedule(dynamic, 1) reduction(+ : bytes)
        for (size_t h = 0; h < j->n_heads; h += together)
            for (size_t i = 0; i < together; i++) bytes += sample(k, j, h + i);
    }
    add_bytes(buf_at(j->read, READ_INDEX * sizeof(uint64_t)), bytes);
    ref_lsh_count(j);
}
