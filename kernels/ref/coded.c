/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/ops_coded.h"
#include "kernels/ops_rows.h"
#include "kernels/ref/ref.h"

void ref_coded_add(backend *be, const index_add_job *jobs, size_t n)
{
}

void ref_coded_redo(backend *be, const void *x, const kv_rows *rows, int64_t n)
{
}

/* Unpacks quantized row `row` of a head to integer codes as floats. */
static void codes_of(const kv_rows *r, size_t head, size_t row, float *out)
{
    const kv_codes *c = &r->codes;
    size_t bits = (size_t)c->bits;
    const unsigned char *code = c->k.p + (head * c->cap + row) * codes_row_bytes(c, r->head_dim);
    for (size_t i = 0; i < r->head_dim; i++) out[i] = (float)(code[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1));
}

static float score_by_channel(const kv_rows *r, size_t head, size_t row, const float *q)
{
    const kv_codes *c = &r->codes;
    size_t d = r->head_dim, at = (head * (c->cap / c->group) + row / c->group) * 2 * d;
    float a[256], f[256], code[256];
    codes_of(r, head, row, code);
    ref_floats(a, c->k_pair, DT_F16, at, d);
    ref_floats(f, c->k_pair, DT_F16, at + d, d);
    for (size_t i = 0; i < d; i++) f[i] *= q[i];
    return c->zero_point ? ref_dot16(f, code, d) - ref_dot16(f, a, d) : ref_dot16(q, a, d) + ref_dot16(f, code, d);
}

static float score_by_run(const kv_rows *r, size_t head, size_t row, const float *q)
{
    const kv_codes *c = &r->codes;
    size_t d = r->head_dim, runs = codes_runs(c, d), at = (head * c->cap + row) * runs * 2;
    float code[256], one[256], score = 0;
    codes_of(r, head, row, code);
    for (size_t i = 0; i < d; i++) one[i] = 1;
    for (size_t i = 0, from = 0; i < runs; i++, from += c->run) {
        size_t n = d - from < c->run ? d - from : c->run;
        float a = ref_get(c->k_pair, DT_F16, at + 2 * i), b = ref_get(c->k_pair, DT_F16, at + 2 * i + 1);
        float s = ref_dot16(q + from, one, n), p = ref_dot16(q + from, code + from, n);
        float term = c->zero_point ? b * (p - a * s) : a * s + b * p;
        score = i == 0 ? term : score + term;
    }
    return score;
}

/* q: rotated like the rows. */
static float score_of(const kv_rows *r, size_t head, size_t slot, const float *q)
{
    int64_t row = r->codes.bits ? i32_at(r->codes.k_at, 0)[slot] : (int64_t)slot;
    if (row < 0) return (r->codes.by_token ? score_by_run : score_by_channel)(r, head, (size_t)(-1 - row), q);
    float x[256];
    ref_get_row(x, r->k.p + (head * r->cap + (size_t)row) * kv_row_bytes(r->type, r->head_dim), r->type, false,
                r->head_dim);
    return ref_dot16(q, x, r->head_dim);
}

void ref_coded_score(backend *be, const score_job *jobs, size_t n)
{
    for (const score_job *j = jobs; j < jobs + n; j++) {
        const kv_rows *r = ((const coded_index *)j->index)->rows;
        int64_t lo = j->items.lo, hi = j->items.hi;
        uint64_t count[READ_KINDS] = {0};
        for (size_t h = 0; h < j->n_heads; h++) {
            float q[256];
            memcpy(q, f32_at(j->q, h * r->head_dim), r->head_dim * sizeof *q);
            if (r->rotated & KV_ROTATED_K) ref_hadamard(q, r->head_dim);
            for (int64_t t = lo; t < hi; t++)
                f32_at(j->score, h * j->stride)[t] = score_of(r, h / (j->n_heads / r->n_kv_heads), (size_t)t, q);
        }
        attn_job read = ref_slots_job(r, lo, hi > lo ? hi - lo : 0, (buf){(unsigned char *)count});
        ref_count_read(&read, false);
        add_bytes(j->read, count[READ_K]);
    }
}
