/* SPDX-License-Identifier: MIT */
/* Rows in blocks of 8 and 4 bits: what is held, what is read, and what attention over them may differ by. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ref/ref.h"
#include "tests/unit/op_attn.h"

#define DIMS    OP_P(32, 64, 128, 256)
#define TYPES   OP_P(DT_Q8, DT_Q4)
#define ROTATED OP_P(0, KV_ROTATED_K, KV_ROTATED_K | KV_ROTATED_V)

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
    return (kv_rows){.k = op_out(x, bytes, BITS_F32, 0),
                     .v = op_out(x, bytes, BITS_F32, 0),
                     .n_kv_heads = KV,
                     .head_dim = dim,
                     .cap = cap};
}

/* Bytes that are held are the same everywhere; rows that are read are what `round` says, and held again they are read
 * as the same numbers. */
static void hold(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], bytes = KV * CAP * kv_row_bytes((dtype)p[1], dim), n = 4 * NEW * KV * dim;
    const backend_ops *o = x->be->ops;
    kv_rows r = {.type = (dtype)p[1], .rotated = (unsigned)p[2], .n_kv_heads = KV, .head_dim = dim, .cap = CAP};
    r.k = op_out(x, bytes, BITS, 0), r.v = op_out(x, bytes, BITS, 0);
    float *f = numbers(x, 2 * NEW * KV, dim, p[3]);
    buf k = op_in(x, f, n), v = op_in(x, f + n / 4, n),
        held[2] = {op_out(x, n, BITS_F32, 0), op_out(x, n, BITS_F32, 0)};
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

/* Error of a block: at most half a unit of its scale. For rotated rows of equal-sized numbers, a row's error is at most
 * that of all blocks together. */
static void loses(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], n = NEW * KV;
    kv_rows r = {.type = (dtype)p[1], .rotated = (unsigned)p[2], .n_kv_heads = KV, .head_dim = dim, .cap = CAP};
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
        double scale = r.rotated ? sqrt(sum) : most; /* of a turned row no element is larger than its length */
        op_note(x, off <= (double)dim * pow(0.51 * step * scale, 2), "row %zu loses %g of %g", i, sqrt(off), sqrt(sum));
    }
    free(f), free(got);
}

static double allowed(const op_run *x)
{
    return multiplies_codes(x->be->about) ? 1e-8 : 1e-10;
}

/* A job's results as floats, its scores, and what it reads. */
typedef struct {
    float *q, *k, *v, *score, *out, *bias;
    int32_t *slot;
} seen;

static seen see(op_run *x, const attn_job *j, const kv_rows *row)
{
    size_t d = row->head_dim, heads = j->n_heads, bytes = 4 * KV * row->cap * d;
    seen f = {.q = op_see(x, j->q, 4 * heads * d),
              .k = op_see(x, row->k, bytes),
              .v = op_see(x, row->v, bytes),
              .score = op_see(x, j->scores, 4 * heads * j->score_stride),
              .out = op_see(x, j->out, 4 * heads * d)};
    if (j->bias.p) f.bias = op_see(x, j->bias, 4 * heads * j->bias_stride);
    if (j->idx.p) f.slot = op_see(x, j->idx, 4 * j->idx_stride);
    for (size_t h = 0; h < heads; h++) {
        if (j->rows.rotated & KV_ROTATED_K) ref_hadamard(f.q + h * d, d);
        if (j->rows.rotated & KV_ROTATED_V) ref_hadamard(f.out + h * d, d);
    }
    return f;
}

static void forget(seen *f)
{
    free(f->q), free(f->k), free(f->v), free(f->score), free(f->out), free(f->bias), free(f->slot);
}

/* The scores of head h, within the tolerance of sums in double; w: as the job has them. */
static void scores_fit(op_run *x, const attn_job *j, const seen *f, size_t h, size_t cap, double *w)
{
    size_t d = j->rows.head_dim, shared = j->n_heads / KV, n = (size_t)j->n_max;
    double most = 0;
    for (size_t c = 0; c < d; c++) most = fmax(most, fabs((double)f->q[h * d + c]));
    for (size_t i = 0; i < n; i++) {
        const float *k = f->k + (h / shared * cap + (f->slot ? (size_t)f->slot[i] : i)) * d;
        double dot = 0, size = 0, got = w[i] = (double)f->score[h * j->score_stride + i];
        for (size_t c = 0; c < d; c++) {
            dot += (double)f->q[h * d + c] * (double)k[c];
            size += most * fabs((double)k[c]);
        }
        dot *= (double)j->scale, size *= (double)j->scale;
        if (f->bias) dot += (double)f->bias[h * j->bias_stride + i], size += fabs(dot);
        op_note(x, (isinf(dot) && got < 0 && isinf(got)) || fabs(got - dot) <= 0x1p-15 * size,
                "a score is off by %g of %g", fabs(got - dot), size);
    }
}

/* Attention against sums in double over the rows that are held, `row`: within ops_rows.h's tolerance. */
static void by_formula(op_run *x, const attn_job *j, const kv_rows *row)
{
    enum { MOST = 256 };
    seen f = see(x, j, row);
    size_t d = row->head_dim, shared = j->n_heads / KV, n = (size_t)j->n_max;
    for (size_t h = 0; h < j->n_heads; h++) {
        double w[MOST], top = (double)-INFINITY, sum = 0, acc[256] = {0}, size = 0;
        scores_fit(x, j, &f, h, row->cap, w);
        for (size_t i = 0; i < n; i++) top = fmax(top, w[i]);
        for (size_t i = 0; i < n; i++) sum += w[i] = exp(w[i] - top);
        for (size_t i = 0; i < n; i++) {
            const float *v = f.v + (h / shared * row->cap + (f.slot ? (size_t)f.slot[i] : i)) * d;
            double largest = 0;
            for (size_t c = 0; c < d; c++) {
                acc[c] += w[i] / sum * (double)v[c];
                largest = fmax(largest, fabs((double)v[c]));
            }
            size += w[i] / sum * largest;
        }
        for (size_t c = 0; c < d; c++)
            op_note(x, fabs((double)f.out[h * d + c] - acc[c]) <= 0x1p-10 * size, "an output is off by %g of %g",
                    fabs((double)f.out[h * d + c] - acc[c]), size);
    }
    forget(&f);
}

static void attend(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[2], .dim = (size_t)p[0], .n = 137, .type = (dtype)p[1]};
    attn_job j = op_attn(x, &s);
    size_t d = s.dim, cap = j.rows.cap, heads = j.n_heads;
    kv_rows row = floats(x, d, cap);
    j.range = (buf){NULL}, j.first = 0, j.n_max = (int64_t)s.n;
    j.rows.rotated = (unsigned)p[3];
    j.out = op_out(x, 4 * heads * d, NMSE, allowed(x));
    j.score_stride = s.n;
    j.scores = op_out(x, 4 * heads * s.n, UNIT, 1e-4);
    x->be->ops->attn_decode(x->be, &j, 1);
    kv_rows held = j.rows;
    held.rotated = 0; /* as it is held */
    x->be->ops->codes->fetch(x->be, &row, &held, 0, (int64_t)cap, (buf){NULL});
    by_formula(x, &j, &row);
}

/* A row of V with a block that is not finite: so are the channels of that block, and no others. */
static void spoilt(op_run *x, const int64_t *p)
{
    enum { N = 70, ROOM = 72, BAD = 40 };
    size_t d = (size_t)p[0], heads = 2 * KV, bytes = KV * ROOM * kv_row_bytes((dtype)p[1], d);
    kv_rows r = {.type = (dtype)p[1], .n_kv_heads = KV, .head_dim = d, .cap = ROOM};
    r.k = op_out(x, bytes, BITS, 0), r.v = op_out(x, bytes, BITS, 0);
    float *f = random_f32(&x->r, 2 * N * KV * d);
    f[(N + BAD) * KV * d + d - 1] = NAN; /* of head 0 */
    buf k = op_in(x, f, 4 * N * KV * d), v = op_in(x, f + N * KV * d, 4 * N * KV * d);
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &r, .n_lists = 1, .k = k, .v = v, .n = N}, 1);
    attn_job j = {.n_tok = 1, .n_heads = heads, .n_lists = 1, .n_max = N, .scale = 0.2f, .rows = r};
    j.q = op_floats(x, heads * d);
    j.out = op_inout(x, NULL, 4 * heads * d, IN, 0);
    x->be->ops->attn_decode(x->be, &j, 1);
    float *out = op_see(x, j.out, 4 * heads * d);
    for (size_t i = 0; i < heads * d; i++) {
        bool bad = i / d < heads / KV && i % d >= d - ROW_BLOCK;
        op_note(x, bad == !isfinite(out[i]), "channel %zu of head %zu is %g", i % d, i / d, (double)out[i]);
    }
    free(f), free(out);
}

/* Code rows of the slots: in their order; pages in another one; every other token first. The last are exact. */
enum { IN_ORDER, PAGES, APART };
enum { BY_CHANNEL, BY_RUN, BY_ZERO_POINT };

static kv_rows in_codes(op_run *x, size_t dim, int bits, int how, int order)
{
    enum { CODED = 256, EXACT = 9, GROUP = 32 };
    kv_rows r = {.type = DT_F16, .n_kv_heads = KV, .head_dim = dim, .cap = CODED};
    int32_t at[CODED];
    int64_t src[CODED];
    for (int i = 0; i < CODED; i++) {
        int row = order == PAGES ? i / 16 * 7 % 16 * 16 + i % 16 : order == APART ? i % 2 * CODED / 2 + i / 2 : i;
        src[i] = i, at[i] = i < CODED - EXACT ? -1 - row : i;
    }
    r.k = op_as(x, KV * CODED * dim, r.type), r.v = op_as(x, KV * CODED * dim, r.type);
    kv_codes c = {.bits = bits, .by_token = how != BY_CHANNEL, .zero_point = how == BY_ZERO_POINT, .cap = CODED};
    c.group = c.by_token ? 1 : GROUP, c.run = how == BY_RUN && dim > 64 ? 2 * GROUP : GROUP;
    size_t n = KV * CODED, bytes = n * codes_row_bytes(&c, dim), pairs = 4 * n * codes_runs(&c, dim);
    c.k = op_out(x, bytes, BITS, 0), c.v = op_out(x, bytes, BITS, 0);
    c.k_pair = op_out(x, c.by_token ? pairs : 4 * n / GROUP * dim, BITS, 0), c.v_pair = op_out(x, pairs, BITS, 0);
    c.k_at = c.v_at = op_in(x, at, sizeof at);
    r.codes = c;
    buf from = op_in(x, src, sizeof src);
    x->be->ops->codes->encode(x->be, &r, false, from, 0, CODED);
    x->be->ops->codes->encode(x->be, &r, true, from, 0, CODED);
    return r;
}

/* Attention over blocks of code rows: by the formula, of all rows or of pages of 16 among them, with a bias that hides
 * a whole block from one head. */
static void coded(op_run *x, const int64_t *p)
{
    size_t d = (size_t)p[0], heads = 3 * KV;
    attn_job j = {.n_tok = 1, .n_heads = heads, .n_lists = 1, .scale = 1.5f / sqrtf((float)d)};
    j.rows = in_codes(x, d, (int)p[1], (int)p[2], (int)p[3]);
    j.n_max = (int64_t)j.rows.cap - (p[3] == PAGES ? 0 : 11);
    j.q = op_floats(x, heads * d);
    j.score_stride = j.bias_stride = j.idx_stride = j.rows.cap;
    if (p[4] == 1) {
        int32_t idx[256], n = 0;
        for (int32_t i = 0; i < 256; i++)
            if (i / 16 % 3 != 1) idx[n++] = i;
        j.idx = op_in(x, idx, sizeof idx);
        j.n_max = n - 5;
    } else if (p[4] == 2) {
        float *b = random_f32(&x->r, heads * j.bias_stride);
        for (size_t i = 0; i < 70; i++) b[j.bias_stride + i] = -INFINITY;
        j.bias = op_in(x, b, 4 * heads * j.bias_stride);
        free(b);
    }
    j.out = op_out(x, 4 * heads * d, NMSE, allowed(x));
    j.scores = op_inout(x, NULL, 4 * heads * j.score_stride, UNIT, 1e-4);
    x->be->ops->attn_decode(x->be, &j, 1);
    kv_rows row = floats(x, d, j.rows.cap);
    x->be->ops->codes->fetch(x->be, &row, &j.rows, 0, (int64_t)j.rows.cap, (buf){NULL});
    by_formula(x, &j, &row);
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
    first.rows.rotated = (unsigned)p[3];
    first.score_stride = first.bias_stride = s.n;
    for (size_t i = 0; i < JOBS; i++) {
        job[i] = first;
        job[i].q = op_floats(x, heads * s.dim);
        job[i].n_max = (int64_t)(s.n - JOBS + i); /* 125 to 130: across the end of a block */
        if (i % 2 == 0) job[i].bias = op_floats(x, heads * s.n);
        job[i].out = out[i] = op_out(x, bytes, NMSE, allowed(x));
        job[i].scores = scores[i] = op_inout(x, NULL, 4 * heads * s.n, UNIT, 1e-4);
        x->be->ops->attn_decode(x->be, &job[i], 1);
        job[i].out = op_out(x, bytes, IN, 0);
        job[i].scores = op_inout(x, NULL, 4 * heads * s.n, IN, 0);
    }
    x->be->ops->attn_decode(x->be, job, JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        op_same(x, out[i], job[i].out, bytes, "in a batch with other jobs of its sequence");
        op_same(x, scores[i], job[i].scores, 4 * heads * s.n, "scores in a batch");
    }
}

static const op_test tests[] = {
    {"rows in blocks: held and read", hold, 48, 1, 6, {DIMS, TYPES, ROTATED, OP_BOOL}},
    {"rows in blocks: what they lose", loses, 24, 3, 0, {DIMS, TYPES, ROTATED}},
    {"rows in blocks: attention", attend, 60, 1, 12, {DIMS, TYPES, OP_P(1, 3, 4), OP_P(0, 1, 2, 3)}},
    {"rows in blocks: not finite", spoilt, 8, 1, 4, {DIMS, TYPES}},
    {"blocks of codes: attention",
     coded,
     108,
     0,
     0,
     {OP_P(64, 128), OP_P(2, 4), OP_P(BY_CHANNEL, BY_RUN, BY_ZERO_POINT), OP_P(IN_ORDER, PAGES, APART), OP_P(0, 1, 2)}},
    {"rows in blocks: queries of one sequence", together, 36, 2, 12, {DIMS, TYPES, OP_P(1, 3, 4, 8), OP_P(0, 1, 2, 3)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
