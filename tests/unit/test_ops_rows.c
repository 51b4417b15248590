/* SPDX-License-Identifier: MIT */
/* Rows in blocks of 8 and 4 bits: what is held, what is read, and what attention over them may differ by. */
#include "config.h"

#include "kernels/ref/ref.h"
#include "tests/unit/op_attn.h"

#define DIMS   OP_P(32, 64, 128, 256)
#define TYPES  OP_P(DT_Q8, DT_Q4)
#define TURNED OP_P(0, KV_TURNED_K, KV_TURNED_K | KV_TURNED_V)

enum { KV = 2, CAP = 24, NEW = 9 };

/* Numbers of several sizes, a channel that is far larger, a block of zeros, and where `odd` one that is not finite. */
static float *numbers(op_run *x, size_t n, size_t dim, bool odd)
{
    float *f = random_f32(&x->r, n * dim);
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < dim; c++) f[i * dim + c] *= i % 3 == 2 ? 1e-2f : 1;
        f[i * dim + 5] *= 50;
        if (i == 1) memset(f + i * dim, 0, ROW_BLOCK * sizeof *f);
    }
    if (odd) f[3 * dim + 7] = NAN, f[4 * dim] = INFINITY;
    return f;
}

static kv_rows floats(op_run *x, size_t dim, size_t cap)
{
    size_t bytes = 4 * KV * cap * dim;
    return (kv_rows){
        .k = op_out(x, bytes, BITS, 0), .v = op_out(x, bytes, BITS, 0), .n_kv_heads = KV, .head_dim = dim, .cap = cap};
}

/* Bytes that are held are the same everywhere; rows that are read are what `round` says, and held again they are read
 * as the same numbers. */
static void hold(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], bytes = KV * CAP * kv_row_bytes((dtype)p[1], dim), n = 4 * NEW * KV * dim;
    const backend_ops *o = x->be->ops;
    kv_rows r = {.type = (dtype)p[1], .turned = (unsigned)p[2], .n_kv_heads = KV, .head_dim = dim, .cap = CAP};
    r.k = op_out(x, bytes, BITS, 0), r.v = op_out(x, bytes, BITS, 0);
    float *f = numbers(x, 2 * NEW * KV, dim, p[3]);
    buf k = op_in(x, f, n), v = op_in(x, f + n / 4, n), held[2] = {op_out(x, n, BITS, 0), op_out(x, n, BITS, 0)};
    free(f);
    o->kv_write(x->be, &(kv_write_job){.rows = &r, .first = 2, .n_lists = 1, .k = k, .v = v, .n = NEW}, 1);
    o->codes->round(x->be, held[0], k, &r, false, NEW);
    o->codes->round(x->be, held[1], v, &r, true, NEW);
    kv_rows is = floats(x, dim, NEW), again = floats(x, dim, NEW);
    o->codes->fetch(x->be, &is, &r, 2, NEW, op_read(x));
    for (size_t h = 0; h < KV; h++)
        for (size_t i = 0; i < NEW; i++)
            for (int half = 0; half < 2; half++)
                op_same(x, buf_at(half ? is.v : is.k, 4 * (h * NEW + i) * dim),
                        buf_at(held[half], 4 * (i * KV + h) * dim), 4 * dim, "rounded");
    o->kv_write(x->be, &(kv_write_job){.rows = &r, .first = 12, .n_lists = 1, .k = held[0], .v = held[1], .n = NEW}, 1);
    o->kv_move(x->be, &r, 11, 12, NEW);
    o->codes->fetch(x->be, &again, &r, 11, NEW, (buf){NULL});
    if (!p[3] && r.type == DT_Q8) op_same(x, is.k, again.k, 4 * KV * NEW * dim, "held again");
}

/* What a block loses: half a unit of its scale at most, and of turned rows a row of numbers of one size no more than
 * the same of all blocks together. */
static void loses(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], n = NEW * KV;
    kv_rows r = {.type = (dtype)p[1], .turned = (unsigned)p[2], .n_kv_heads = KV, .head_dim = dim, .cap = CAP};
    float *f = numbers(x, n, dim, false);
    buf k = op_in(x, f, 4 * n * dim), held = op_out(x, 4 * n * dim, BITS, 0);
    x->be->ops->codes->round(x->be, held, k, &r, false, NEW);
    float *got = op_see(x, held, 4 * n * dim);
    for (size_t i = 0; i < n; i++) {
        double most = 0, sum = 0, off = 0, step = r.type == DT_Q8 ? 1 / 127.0 : 1 / 7.0;
        for (size_t c = 0; c < dim; c++) {
            double a = (double)f[i * dim + c], b = (double)got[i * dim + c];
            most = fmax(most, fabs(a)), sum += a * a, off += (a - b) * (a - b);
        }
        double scale = r.turned ? sqrt(sum) : most; /* of a turned row no element is larger than its length */
        op_note(x, off <= (double)dim * pow(0.51 * step * scale, 2), "row %zu loses %g of %g", i, sqrt(off), sqrt(sum));
    }
    free(f), free(got);
}

/* Attention against sums in double over the rows that are held: within ops_rows.h's tolerance. */
static void attend(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[2], .dim = (size_t)p[0], .n = 37, .type = (dtype)p[1]};
    attn_job j = op_attn(x, &s);
    size_t d = s.dim, cap = j.rows.cap, heads = j.n_heads, bytes = 4 * KV * cap * d;
    kv_rows row = floats(x, d, cap);
    j.range = (buf){NULL}, j.first = 0, j.n_max = (int64_t)s.n;
    j.rows.turned = (unsigned)p[3];
    j.out = op_out(x, 4 * heads * d, NMSE, 1e-10);
    j.score_stride = s.n;
    j.scores = op_out(x, 4 * heads * s.n, UNIT, 1e-4);
    x->be->ops->attn_decode(x->be, &j, 1);
    kv_rows held = j.rows;
    held.turned = 0; /* as it is held */
    x->be->ops->codes->fetch(x->be, &row, &held, 0, (int64_t)cap, (buf){NULL});
    float *q = op_see(x, j.q, 4 * heads * d), *k = op_see(x, row.k, bytes), *v = op_see(x, row.v, bytes),
          *score = op_see(x, j.scores, 4 * heads * s.n), *out = op_see(x, j.out, 4 * heads * d);
    for (size_t h = 0; h < heads; h++) {
        double w[64], top = (double)-INFINITY, sum = 0, acc[256] = {0}, terms[256] = {0}, largest = 0;
        if (j.rows.turned & KV_TURNED_K) ref_turn(q + h * d, d);
        if (j.rows.turned & KV_TURNED_V) ref_turn(out + h * d, d);
        for (size_t i = 0; i < s.n; i++) {
            double dot = 0, size = 0;
            for (size_t c = 0; c < d; c++) {
                double t = (double)q[h * d + c] * (double)k[(h / s.group * cap + i) * d + c];
                dot += t, size += fabs(t);
            }
            dot *= (double)j.scale, size *= (double)j.scale;
            op_note(x, fabs((double)score[h * s.n + i] - dot) <= 0x1p-16 * size, "a score is off by %g of %g",
                    fabs((double)score[h * s.n + i] - dot), size);
            w[i] = (double)score[h * s.n + i];
            top = fmax(top, w[i]);
        }
        for (size_t i = 0; i < s.n; i++) sum += w[i] = exp(w[i] - top);
        for (size_t c = 0; c < d; c++) {
            for (size_t i = 0; i < s.n; i++) {
                double t = w[i] / sum * (double)v[(h / s.group * cap + i) * d + c];
                acc[c] += t, terms[c] += fabs(t);
            }
            largest = fmax(largest, terms[c]);
        }
        for (size_t c = 0; c < d; c++)
            op_note(x, fabs((double)out[h * d + c] - acc[c]) <= 0x1p-16 * largest, "an output is off by %g of %g",
                    fabs((double)out[h * d + c] - acc[c]), largest);
    }
    free(q), free(k), free(v), free(score), free(out);
}

/* Queries of one sequence in one call, each of which sees one key more, all or some with a bias: results and scores
 * have the bits of each alone. */
static void together(op_run *x, const int64_t *p)
{
    enum { JOBS = 6 };
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[2], .dim = (size_t)p[0], .n = 131, .type = (dtype)p[1]};
    attn_job job[JOBS], first = op_attn(x, &s);
    buf out[JOBS], scores[JOBS];
    size_t heads = first.n_heads, bytes = 4 * heads * s.dim;
    first.range = (buf){NULL}, first.first = 0;
    first.rows.turned = (unsigned)p[3];
    first.score_stride = first.bias_stride = s.n;
    for (size_t i = 0; i < JOBS; i++) {
        job[i] = first;
        job[i].q = op_floats(x, heads * s.dim);
        job[i].n_max = (int64_t)(s.n - JOBS + i); /* 125 to 130: across the end of a block */
        if (i % 2 == 0) job[i].bias = op_floats(x, heads * s.n);
        job[i].out = out[i] = op_out(x, bytes, NMSE, 1e-10);
        job[i].scores = scores[i] = op_inout(x, NULL, 4 * heads * s.n, UNIT, 1e-4);
        x->be->ops->attn_decode(x->be, &job[i], 1);
        job[i].out = op_out(x, bytes, IN, 0);
        job[i].scores = op_inout(x, NULL, 4 * heads * s.n, IN, 0);
    }
    x->be->ops->attn_decode(x->be, job, JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        op_same(x, out[i], job[i].out, bytes, "beside others of its sequence");
        op_same(x, scores[i], job[i].scores, 4 * heads * s.n, "scores beside others");
    }
}

static const op_test tests[] = {
    {"rows in blocks: held and read", hold, 48, 0, 0, {DIMS, TYPES, TURNED, OP_BOOL}},
    {"rows in blocks: what they lose", loses, 24, 0, 0, {DIMS, TYPES, TURNED}},
    {"rows in blocks: attention", attend, 60, 0, 0, {DIMS, TYPES, OP_P(1, 3, 4), OP_P(0, 1, 2, 3)}},
    {"rows in blocks: queries of one sequence", together, 36, 0, 0, {DIMS, TYPES, OP_P(1, 3, 4, 8), OP_P(0, 1, 2, 3)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
