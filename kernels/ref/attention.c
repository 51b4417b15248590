/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ops_codes.h"
#include "kernels/ref/ref.h"

attn_list ref_list_of(const attn_job *j, size_t head)
{
    size_t own = j->n_lists == j->n_heads ? head : head / (j->n_heads / j->rows.n_kv_heads);
    size_t l = j->n_lists == 1 ? 0 : own, at = l * j->idx_stride;
    return (attn_list){i32_at(j->idx, at), i32_at(j->at, at), attn_job_first(j, l), attn_job_count(j, l)};
}

bool ref_sees(const attn_job *j, const attn_list *l, size_t t, int64_t i)
{
    if (!j->masked && !l->at) return true;
    int64_t p = *i64_at(j->qpos, t), at = l->at ? l->at[l->first + i] : j->kpos + i;
    return at <= p && (j->band <= 0 || p - at < j->band);
}

/* Applies RoPE to a key of d channels. */
static void rotate(float *row, const float *table, size_t d)
{
    for (size_t c = 0; c < d / 2; c++) {
        float a = row[c], b = row[c + d / 2];
        row[c] = a * table[2 * c] - b * table[2 * c + 1];
        row[c + d / 2] = b * table[2 * c] + a * table[2 * c + 1];
    }
}

/* Attends one query head of one token in two passes over the visible keys: the maximum first. */
static void attend_one(const attn_job *j, size_t t, size_t head)
{
    size_t d = j->rows.head_dim, kv_head = head / (j->n_heads / j->rows.n_kv_heads);
    size_t q_row = t * j->n_heads + head;
    attn_list l = ref_list_of(j, head);
    double top = -(double)INFINITY, sum = 0, acc[256] = {0};
    float q[256], row[256];
    ref_floats(q, j->q, DT_F32, q_row * d, d);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < l.n; i++) {
            size_t at = head * j->score_stride + (size_t)i;
            if (j->scores.p && pass == 0) ref_put(j->scores, DT_F32, at, -INFINITY);
            if (!ref_sees(j, &l, t, i)) continue;
            size_t slot = list_slot(&l, i);
            double s = 0;
            ref_row(&j->rows, false, kv_head, slot, row);
            if (j->rope.p) rotate(row, f32_at(j->rope, (size_t)i * d), d);
            for (size_t c = 0; c < d; c++) s += (double)q[c] * (double)row[c];
            s = s * (double)j->scale + (j->bias.p ? (double)f32_at(j->bias, 0)[head * j->bias_stride + (size_t)i] : 0);
            if (pass == 0) {
                if (j->scores.p) ref_put(j->scores, DT_F32, at, (float)s);
                top = fmax(top, s);
                continue;
            }
            double w = s == -(double)INFINITY ? 0 : exp(s - top);
            sum += w;
            ref_row(&j->rows, true, kv_head, slot, row);
            for (size_t c = 0; c < d; c++) acc[c] += w * (double)row[c];
        }
    for (size_t c = 0; c < d; c++) ref_put(j->out, DT_F32, q_row * d + c, sum == 0 ? 0 : (float)(acc[c] / sum));
    if (j->lse.p) ref_put(j->lse, DT_F32, q_row, sum == 0 ? -INFINITY : (float)(top + log(sum)));
}

static bool seen(const attn_job *j, const attn_list *l, int64_t i)
{
    for (size_t t = 0; t < j->n_tok; t++)
        if (ref_sees(j, l, t, i)) return true;
    return false;
}

/* True if entry i is the first of [lo, i] with a quantized row of its group of K. */
static bool first_of_group(const kv_codes *c, const attn_list *l, int64_t lo, int64_t i)
{
    const int32_t *at = i32_at(c->k_at, 0);
    int64_t row = -1 - at[list_slot(l, i)], group = (int64_t)c->group;
    for (int64_t e = i - 1; e >= lo; e--) {
        int64_t other = -1 - at[list_slot(l, e)];
        if (other >= 0 && other / group == row / group) return false;
    }
    return true;
}

/* Returns the bytes of the K row (value: V row) of entry i, counted as in ops.h. */
static size_t entry_bytes(const attn_job *j, const attn_list *l, int64_t lo, int64_t i, bool value)
{
    const kv_codes *c = &j->rows.codes;
    size_t d = j->rows.head_dim, code = codes_row_bytes(c, d);
    buf at = value ? c->v_at : c->k_at;
    if (c->bits == 0 || *i32_at(at, list_slot(l, i)) >= 0) return kv_row_bytes(j->rows.type, d);
    if (value || c->by_token) return code + 4 * codes_runs(c, d);
    return code + (first_of_group(c, l, lo, i) ? 4 * d : 0);
}

void ref_count_read(const attn_job *j, bool values)
{
    size_t lists = j->n_lists == j->n_heads ? j->n_heads : j->rows.n_kv_heads;
    uint64_t *read = (uint64_t *)(void *)j->read.p;
    for (size_t h = 0; read && !j->copied && h < lists; h++) {
        size_t head = h * (j->n_heads / lists);
        attn_list l = ref_list_of(j, head);
        int64_t lo = 0, hi = l.n;
        while (lo < hi && !seen(j, &l, lo)) lo++;
        while (hi > lo && !seen(j, &l, hi - 1)) hi--;
        for (int64_t i = lo; i < hi; i++) {
            read[j->pseudo ? READ_INDEX : READ_K] += entry_bytes(j, &l, lo, i, false);
            if (values) read[j->pseudo ? READ_INDEX : READ_V] += entry_bytes(j, &l, lo, i, true);
        }
        if (j->bias.p) read[READ_INDEX] += (uint64_t)(hi - lo) * (j->n_heads / lists) * sizeof(float);
    }
}

static void attend(const attn_job *j)
{
    ref_count_read(j, true);
    for (size_t t = 0; t < j->n_tok; t++)
        for (size_t h = 0; h < j->n_heads; h++) attend_one(j, t, h);
}

void ref_attn_prefill(backend *be, const attn_job *j)
{
    if (attn_is_plain(be, j)) attend(j);
}

void ref_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs; i++) attend(&jobs[i]);
}

void ref_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim)
{
    for (size_t r = 0; r < n_rows; r++) {
        double top = -(double)INFINITY, sum = 0;
        for (size_t i = 0; i < n_parts; i++) top = fmax(top, (double)ref_get(lses, DT_F32, i * n_rows + r));
        for (size_t c = 0; c < dim; c++) {
            double acc = 0;
            sum = 0;
            for (size_t i = 0; i < n_parts; i++) {
                double l = (double)ref_get(lses, DT_F32, i * n_rows + r);
                if (isinf(l)) continue; /* its rows are undefined */
                double w = exp(l - top);
                sum += w;
                acc += w * (double)ref_get(parts, DT_F32, (i * n_rows + r) * dim + c);
            }
            ref_put(out, DT_F32, r * dim + c, sum == 0 ? 0 : (float)(acc / sum));
        }
        if (lse.p) ref_put(lse, DT_F32, r, sum == 0 ? -INFINITY : (float)(top + log(sum)));
    }
}

void ref_codes_fetch(backend *be, const kv_rows *out, const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    size_t d = rows->head_dim;
    float *k = (float *)(void *)out->k.p, *v = (float *)(void *)out->v.p;
    attn_job j = ref_slots_job(rows, first, n, read);
    ref_count_read(&j, v);
    for (size_t head = 0; head < rows->n_kv_heads; head++)
        for (size_t i = 0; i < (size_t)n; i++) {
            size_t to = (head * out->cap + i) * d;
            ref_row(rows, false, head, (size_t)first + i, k + to);
            if (v) ref_row(rows, true, head, (size_t)first + i, v + to);
        }
}
