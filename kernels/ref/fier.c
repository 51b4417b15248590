/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ref/ref.h"

static size_t ring_at(const fier_index *x, size_t head, int64_t pos, size_t c)
{
    return (head * x->group + (size_t)pos % x->group) * x->head_dim + c;
}

/* New keys from position first on; earlier ones are in the ring. */
typedef struct {
    buf k;
    int64_t first;
} new_keys;

static float key(const fier_index *x, const new_keys *n, size_t head, int64_t pos, size_t c)
{
    float row[1];
    if (pos < n->first) return ref_get(x->ring, x->type, ring_at(x, head, pos, c));
    size_t r = (size_t)(pos - n->first) * x->n_kv_heads + head;
    ref_round_row(row, n->k, r * x->head_dim + c, 1, x->type);
    return row[0];
}

typedef struct {
    float z, lo, hi;
} levels;

static levels range_of(const fier_index *x, const new_keys *n, size_t head, size_t c, int64_t from, int64_t to)
{
    float lo = key(x, n, head, from, c), hi = lo;
    for (int64_t p = from + 1; p < to; p++) {
        float v = key(x, n, head, p, c);
        if (v < lo) lo = v;
        if (v > hi) hi = v;
    }
    return (levels){0.5f * (lo + hi), lo, hi};
}

/* Sets levels and bits of one channel for the tokens [begin, to) of a group. */
static void set_channel(const fier_index *x, const new_keys *n, size_t head, size_t c, int64_t begin, int64_t to)
{
    levels l = range_of(x, n, head, c, begin, to);
    size_t groups = (x->cap + x->group - 1) / x->group, blocks = (x->cap + 31) / 32, words = fier_words(x->head_dim);
    size_t at = (head * groups + (size_t)begin / x->group) * 2 * x->head_dim + c;
    ref_put(x->levels, x->type, at, l.lo);
    ref_put(x->levels, x->type, at + x->head_dim, l.hi);
    for (int64_t p = begin; p < to; p++) {
        size_t w = ((head * blocks + (size_t)p / 32) * words + c / 32) * 32 + (size_t)p % 32;
        uint32_t *word = (uint32_t *)(void *)x->bits.p + w, bit = (uint32_t)1 << c % 32;
        *word = key(x, n, head, p, c) >= l.z ? *word | bit : *word & ~bit;
    }
}

/* Sets the group that starts at `begin` and has tokens up to `to`. */
static void set_group(const fier_index *x, const new_keys *n, int64_t begin, int64_t to)
{
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (size_t c = 0; c < x->head_dim; c++) set_channel(x, n, h, c, begin, to);
}

static void add_keys(const index_add_job *j)
{
    const fier_index *x = j->index;
    int64_t g = (int64_t)x->group, first = j->pos, end = first + (int64_t)j->n;
    new_keys keys = {j->k, first};
    for (int64_t begin = first / g * g; begin < end; begin += g)
        set_group(x, &keys, begin, begin + g < end ? begin + g : end);
    for (int64_t p = first > end - g ? first : end - g; p < end; p++)
        for (size_t h = 0; h < x->n_kv_heads; h++)
            for (size_t c = 0; c < x->head_dim; c++)
                ref_put(x->ring, x->type, ring_at(x, h, p, c), key(x, &keys, h, p, c));
}

void ref_fier_add(backend *be, const index_add_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) add_keys(&jobs[i]);
}

void ref_fier_redo(backend *be, const void *index, const kv_rows *rows, int64_t n)
{
    const fier_index *x = index;
    int64_t g = (int64_t)x->group, begin = n / g * g;
    new_keys none = {{NULL}, n};
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t p = begin; p < n; p++) {
            float row[256];
            ref_k_row(row, rows, h, p);
            for (size_t c = 0; c < x->head_dim; c++) ref_put(x->ring, x->type, ring_at(x, h, p, c), row[c]);
        }
    if (begin < n) set_group(x, &none, begin, n);
}

static bool bit_of(const fier_index *x, size_t head, int64_t t, size_t c)
{
    size_t blocks = (x->cap + 31) / 32, words = fier_words(x->head_dim);
    size_t at = ((head * blocks + (size_t)t / 32) * words + c / 32) * 32 + (size_t)t % 32;
    return ((const uint32_t *)(const void *)x->bits.p)[at] >> c % 32 & 1;
}

static float sum_of_pairs(const fier_index *x, size_t head, int64_t t, const float *q, const float *span, float sum)
{
    size_t d = x->head_dim;
    for (size_t c = 0; c < d; c += 2) {
        float part[2] = {0};
        for (size_t b = 0; b < 2 && c + b < d; b++)
            if (bit_of(x, head, t, c + b)) part[b] = q[c + b] * span[c + b];
        sum += part[0] + part[1];
    }
    return sum;
}

static int32_t whole(float x, float most, float least)
{
    float v = x * (127 / most);
    v = v > least ? v : least;
    v = v < 127 ? v : 127;
    return (int32_t)nearbyintf(v);
}

static float sum_of_bytes(const fier_index *x, size_t head, int64_t t, const float *q, const float *span, float a)
{
    float m = 0, r = 0;
    int32_t sum = 0;
    for (size_t c = 0; c < x->head_dim; c++) {
        if (span[c] > m) m = span[c];
        if (fabsf(q[c]) > r) r = fabsf(q[c]);
    }
    for (size_t c = 0; c < x->head_dim; c++)
        if (bit_of(x, head, t, c)) sum += whole(span[c], m, 0) * whole(q[c], r, -127);
    return a + (float)sum * ((m / 127) * (r / 127));
}

static float estimate(const fier_index *x, size_t head, int64_t t, const float *q)
{
    size_t groups = (x->cap + x->group - 1) / x->group, d = x->head_dim,
           at = (head * groups + (size_t)t / x->group) * 2 * d;
    float lo[256], span[256];
    for (size_t c = 0; c < d; c++) {
        lo[c] = ref_get(x->levels, x->type, at + c);
        span[c] = ref_get(x->levels, x->type, at + d + c) - lo[c];
    }
    float a = ref_dot16(q, lo, d);
    return x->products == FIER_INT8 ? sum_of_bytes(x, head, t, q, span, a) : sum_of_pairs(x, head, t, q, span, a);
}

uint64_t fier_job_bytes(const score_job *j)
{
    const fier_index *x = j->index;
    size_t parts = score_parts(j, x->n_kv_heads);
    uint64_t bytes = 0;
    if (!j->spans) return parts * fier_head_bytes(x, j->items);
    for (size_t i = 0; i < parts; i++) {
        span_list l = ref_part_columns(j, i, parts);
        for (int64_t r = 0; r < l.n; r++) {
            int64_t at[2];
            span_items(&l, r, at);
            bytes += fier_head_bytes(x, (item_range){j->items.n_slots, at[0], at[1]});
        }
    }
    return bytes;
}

void ref_fier_votes(backend *be, const score_job *j)
{
    size_t lists = ((const fier_index *)j->index)->n_kv_heads;
    score_job scores = *j;
    scores.votes.p = NULL;
    be->ops->fier->score(be, &scores, 1);
    be->ops->select->combine(be,
                             &(combine_job){.out = j->votes,
                                            .in = j->score,
                                            .stride = j->stride,
                                            .n_heads = j->n_heads,
                                            .n_lists = lists,
                                            .lo = j->items.lo,
                                            .hi = j->items.hi,
                                            .mode = GQA_VOTE,
                                            .scale = j->scale},
                             1);
}

static void score_tokens(const score_job *j)
{
    const fier_index *x = j->index;
    size_t parts = score_parts(j, x->n_kv_heads);
    for (size_t h = 0; h < j->n_heads; h++) {
        float *out = (float *)(void *)j->score.p + h * j->stride;
        span_list l = ref_part_columns(j, h / (j->n_heads / parts), parts);
        ref_span_blanks(out, j->stride, 1, &l);
        for (int64_t p = l.first; p < l.end; p++)
            out[p] = estimate(x, h / (j->n_heads / x->n_kv_heads), span_item(&l, p),
                              (const float *)(void *)j->q.p + h * x->head_dim);
    }
    add_bytes(j->read, fier_job_bytes(j));
}

void ref_fier_score(backend *be, const score_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].votes.p) ref_fier_votes(be, &jobs[i]);
        else score_tokens(&jobs[i]);
    }
}
