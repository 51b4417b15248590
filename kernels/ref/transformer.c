/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ops_weights.h"
#include "kernels/ref/ref.h"

void ref_embed(backend *be, buf out, weight table, buf ids, size_t n)
{
    const int32_t *id = (const int32_t *)(void *)ids.p;
    for (size_t i = 0; i < n; i++) {
        float *row = (float *)(void *)out.p + i * table.cols;
        if (dtype_in_qblocks(table.type)) qblock_row(row, table.p.p, table.type, table.cols, (size_t)id[i]);
        else ref_floats(row, table.p, table.type, (size_t)id[i] * table.cols, table.cols);
    }
}

void ref_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps)
{
    const float *in = (const float *)(void *)x.p;
    float *o = (float *)(void *)out.p;
    for (size_t r = 0; r < n; r++, in += w.cols, o += w.cols) {
        double sum = 0;
        for (size_t c = 0; c < w.cols; c++) sum += (double)in[c] * (double)in[c];
        double scale = 1 / sqrt(sum / (double)w.cols + (double)eps);
        for (size_t c = 0; c < w.cols; c++) o[c] = (float)((double)in[c] * scale * (double)ref_get(w.p, w.type, c));
    }
}

static void linear_one(const linear_job *j, const float *x, size_t n)
{
    float *out = (float *)(void *)j->out.p;
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < j->w.rows; r++) {
            double sum = j->bias.p.p ? (double)ref_get(j->bias.p, j->bias.type, r) : 0;
            for (size_t c = 0; c < j->w.cols; c++)
                sum += (double)x[i * j->w.cols + c] * (double)ref_get(j->w.p, j->w.type, r * j->w.cols + c);
            out[i * j->w.rows + r] = (float)sum;
        }
}

void ref_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    const float *in = (const float *)(void *)x.p;
    for (size_t j = 0; j < n_jobs; j++)
        if (dtype_in_qblocks(jobs[j].w.type)) ref_linear_qblocks(&jobs[j], in, n, exact);
        else linear_one(&jobs[j], in, n);
}

void ref_swiglu(backend *be, buf out, buf gate, buf up, size_t n)
{
    const float *g = (const float *)(void *)gate.p, *u = (const float *)(void *)up.p;
    float *o = (float *)(void *)out.p;
    for (size_t i = 0; i < n; i++) o[i] = (float)((double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i]);
}

void ref_gate(backend *be, buf x, buf gate, size_t n)
{
    float *a = (float *)(void *)x.p;
    const float *g = (const float *)(void *)gate.p;
    for (size_t i = 0; i < n; i++) a[i] = (float)((double)a[i] / (1 + exp(-(double)g[i])));
}

void ref_softcap(backend *be, buf x, size_t n, float by, float cap)
{
    float *a = (float *)(void *)x.p;
    for (size_t i = 0; i < n; i++) a[i] = (float)((double)cap * tanh((double)a[i] * (double)by));
}

void ref_add(backend *be, buf x, buf y, size_t n)
{
    float *a = (float *)(void *)x.p;
    const float *b = (const float *)(void *)y.p;
    for (size_t i = 0; i < n; i++) a[i] += b[i];
}

void ref_sum_rows(backend *be, buf out, buf x, buf at, buf by, size_t n, size_t terms, size_t cols)
{
    const int32_t *row = (const int32_t *)(void *)at.p;
    for (size_t i = 0; i < n; i++) {
        float *sum = f32_at(out, i * cols);
        for (size_t c = 0; c < cols; c++) sum[c] = 0;
        for (size_t t = i * terms; t < (i + 1) * terms; t++) {
            const float *in = f32_at(x, (size_t)row[t] * cols), factor = *f32_at(by, t);
            for (size_t c = 0; c < cols; c++) sum[c] += factor * in[c];
        }
    }
}

void ref_project(backend *be, const projection *p)
{
    const backend_ops *o = be->ops;
    const linear_job *j = p->jobs;
    size_t all = p->n * j->w.rows;
    if (p->norm.p.p) o->rmsnorm(be, p->room, p->x, p->norm, p->n, p->eps);
    o->linear(be, j, p->n_jobs, p->norm.p.p ? p->room : p->x, p->n, p->exact);
    if (p->gated) o->swiglu(be, j[0].out, j[0].out, j[1].out, all);
    if (!p->into.p) return;
    o->all_reduce(be, j->out, all);
    o->add(be, p->into, j->out, all);
}

void ref_project_each(backend *be, const projection *list, size_t n)
{
    for (size_t i = 0; i < n; i++) be->ops->project(be, &list[i]);
}

void ref_count_lists(backend *be, buf total, buf range, size_t n, size_t n_lists, const bool *chose)
{
    const int64_t *r = (const int64_t *)(void *)range.p;
    for (size_t l = 0; l < n; l++) {
        uint64_t sum = 0;
        for (size_t i = 0; chose[l] && i < n_lists; i++) sum += (uint64_t)r[2 * (l * n_lists + i) + 1];
        add_bytes(total, (sum + n_lists - 1) / n_lists);
    }
}

void ref_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale)
{
    float *o = (float *)(void *)out.p;
    const int64_t *p = (const int64_t *)(void *)pos.p;
    const float *f = (const float *)(void *)freq.p;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < half; c++) {
            double a = (double)p[i] * (double)f[c]; /* cos and sin reduce it exactly */
            *o++ = (float)(cos(a) * (double)mscale);
            *o++ = (float)(sin(a) * (double)mscale);
        }
}

void ref_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t dim, size_t half)
{
    const float *in = (const float *)(void *)x.p, *t = (const float *)(void *)table.p;
    float *o = (float *)(void *)out.p;
    for (size_t i = 0; i < n; i++, t += 2 * half)
        for (size_t h = 0; h < heads; h++, in += dim, o += dim) {
            for (size_t c = 0; c < half; c++) {
                float a = in[c], b = in[c + half];
                o[c] = a * t[2 * c] - b * t[2 * c + 1];
                o[c + half] = b * t[2 * c] + a * t[2 * c + 1];
            }
            for (size_t c = 2 * half; c < dim; c++) o[c] = in[c];
        }
}

static void write_rows(const kv_write_job *j)
{
    const kv_rows *rows = j->rows;
    const int64_t *slot = (const int64_t *)(void *)j->slots.p;
    size_t d = rows->head_dim, heads = rows->n_kv_heads, row = kv_row_bytes(rows->type, d);
    for (size_t i = 0; i < j->n; i++)
        for (size_t h = 0; h < heads; h++) {
            size_t at = slot ? (size_t)slot[j->n_lists == 1 ? i : i * heads + h] : (size_t)j->first + i;
            size_t to = (h * rows->cap + at) * row, from = (i * heads + h) * d;
            ref_put_row(rows->k.p + to, rows->type, rows->rotated & KV_ROTATED_K, f32_at(j->k, from), d);
            if (j->v.p) ref_put_row(rows->v.p + to, rows->type, rows->rotated & KV_ROTATED_V, f32_at(j->v, from), d);
        }
}

void ref_kv_write(backend *be, const kv_write_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs; i++) write_rows(&jobs[i]);
}

void ref_kv_move(backend *be, const kv_rows *r, int64_t to, int64_t from, size_t n)
{
    size_t row = kv_row_bytes(r->type, r->head_dim);
    for (size_t h = 0; h < r->n_kv_heads; h++) {
        size_t t = (h * r->cap + (size_t)to) * row, f = (h * r->cap + (size_t)from) * row;
        memmove(r->k.p + t, r->k.p + f, n * row);
        memmove(r->v.p + t, r->v.p + f, n * row);
    }
}
