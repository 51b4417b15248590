/* SPDX-License-Identifier: MIT */
/* Samples of the rows that lists leave out; slopes over samples of keys. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_select.h"
#include "kernels/ops_tail.h"
#include "tests/unit/op_attn.h"

enum { KV = 3 };

/* A sample of what lists leave, attention over both, and the share of the sample's. */
static void sample(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[0], .dim = 16, .n = (size_t)p[2], .lists = (int)p[4]};
    tail_sample_job j = {.of = op_attn(x, &s), .rows = (size_t)p[1], .seed = (uint64_t)p[3], .layer = 3};
    attn_job *of = &j.of, drawn;
    size_t lists = of->n_lists, heads = of->n_heads, most = j.rows, n = 2 * s.n + 100;
    int32_t *idx = xmalloc(lists * of->idx_stride * 4);
    for (size_t i = 0; i < lists * of->idx_stride; i++) idx[i] = (int32_t)(i % of->idx_stride * 3 / 2);
    if (p[5]) of->idx = op_in(x, idx, lists * of->idx_stride * 4);
    free(idx);
    j.n = (int64_t)n;
    of->rows = op_rows(x, KV, s.dim, n, DT_F16, 0, false);
    j.idx = op_out(x, lists * most * 4, BITS, 0), j.range = op_out(x, lists * 16, BITS, 0);
    j.left = op_out(x, lists * 8, BITS, 0), j.bias = op_out(x, heads * most * 4, UNIT, 1e-6);
    tail_sample_job other = j;
    other.idx = op_out(x, lists * most * 4, BITS, 0), other.range = op_out(x, lists * 16, BITS, 0);
    other.left = op_out(x, lists * 8, BITS, 0), other.bias = op_out(x, heads * most * 4, UNIT, 1e-6);
    x->be->ops->tail->sample(x->be, (tail_sample_job[]){j, other}, 2);
    size_t lse = heads * 4;
    buf parts = op_in(x, NULL, 2 * lse), out = op_in(x, NULL, heads * s.dim * 4);
    drawn = *of;
    drawn.range = j.range, drawn.idx = j.idx, drawn.idx_stride = most, drawn.n_max = p[1], drawn.first = 0;
    drawn.bias = j.bias, drawn.bias_stride = drawn.score_stride = most;
    drawn.scores = op_in(x, NULL, heads * most * 4);
    drawn.lse = buf_at(parts, lse), of->lse = parts, drawn.out = of->out = out;
    x->be->ops->attn_decode(x->be, of, 1);
    x->be->ops->attn_decode(x->be, &drawn, 1);
    drawn.read = op_in(x, NULL, READ_KINDS * 8);
    tail_missed_job m = {.of = drawn, .left = j.left, .parts = parts, .n_parts = 2, .stride = heads};
    m.out = op_out(x, heads * 8, UNIT, 1e-4);
    x->be->ops->tail->missed(x->be, &m, 1);
}

/* Logits 0, 1, 3, 2 of four of the eight tokens outside the list, with the logarithm of 2 each, and an attended one of
 * 4: tau = 2 (e^0 + e^1 + e^3 + e^2) / (that + e^4), and successive differences. */
static void sample_example(op_run *x, const int64_t *p)
{
    const float logits[] = {0, 1, 3, 2}, beside = 4;
    float scores[4], lse[2] = {beside, 0};
    int64_t range[] = {0, 4}, left[] = {8};
    double u = 0, turns = 0, y[4];
    (void)p;
    for (int i = 0; i < 4; i++) scores[i] = logits[i] + logf(2), y[i] = 2 * exp((double)logits[i]), u += y[i];
    for (int i = 0; i < 3; i++) turns += (y[i + 1] - y[i]) * (y[i + 1] - y[i]);
    lse[1] = (float)log(u);
    tail_missed_job m = {.of = {.n_heads = 1, .n_lists = 1, .score_stride = 4}, .n_parts = 2, .stride = 1};
    m.of.scores = op_in(x, scores, 16), m.of.range = op_in(x, range, 16), m.left = op_in(x, left, 8);
    m.parts = op_in(x, lse, 8), m.out = op_out(x, 8, UNIT, 1e-5);
    x->be->ops->tail->missed(x->be, &m, 1);
    float *got = op_see(x, m.out, 8);
    double tau = u / (u + exp(4)), sigma = sqrt(0.5 * 4 / 6 * turns) / u;
    op_note(x, fabs((double)got[0] - tau) < 1e-6 && fabs((double)got[1] - sigma) < 1e-6, "%g, %g, not %g, %g",
            (double)got[0], (double)got[1], tau, sigma);
    free(got);
}

/* Estimates that are exact scores apart from a factor, an offset and noise: what is found is the factor. */
static void slope(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], share = (size_t)p[1], heads = KV * share, n = (size_t)p[2], stride = n + 3;
    size_t lists = p[3] == 0 ? heads : p[3] == 1 ? KV : 1, count = (size_t)p[5];
    float factor = (float)p[6] / 100, *key = random_f32(&x->r, n * KV * dim), *q = random_f32(&x->r, heads * dim);
    float *noise = random_f32(&x->r, heads * stride);
    buf k = op_in(x, key, 4 * n * KV * dim);
    slope_job j = {.q = op_in(x, q, 4 * heads * dim),
                   .n_heads = heads,
                   .n_lists = lists,
                   .stride = stride,
                   .rows = op_rows(x, KV, dim, n, (dtype)p[4], 0, false),
                   .items = {(int64_t)n, (int64_t)n / 5, (int64_t)n - 1},
                   .count = count,
                   .seed = 42,
                   .layer = 3,
                   .slope = op_inout(x, NULL, 4 * lists, UNIT, 1e-6),
                   .read = op_read(x)};
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &j.rows, .k = k, .v = k, .n = n}, 1);
    for (size_t h = 0; h < heads; h++)
        for (size_t t = 0; t < n; t++) {
            double dot = 0;
            for (size_t c = 0; c < dim; c++)
                dot += (double)q[h * dim + c] * (double)key[(t * KV + h / share) * dim + c];
            noise[h * stride + t] = (float)(dot / (double)factor) + 7 * (float)h + 0.001f * noise[h * stride + t];
        }
    for (size_t h = 0; h < heads; h++) noise[h * stride + n / 2] = h % 2 ? NAN : INFINITY; /* one is no number */
    j.score = op_in(x, noise, 4 * heads * stride);
    x->be->ops->select->slope(x->be, &j, 1);
    float *got = op_see(x, j.slope, 4 * lists), want = fminf(fmaxf(factor, 0.25f), 1);
    for (size_t l = 0; l < lists; l++)
        op_note(x, fabsf(got[l] - want) < 0.02f * want, "list %zu: %g, not %g", l, (double)got[l], (double)want);
    free(got), free(noise), free(q), free(key);
}

static const op_test tests[] = {
    {"a sample of what lists leave",
     sample,
     60,
     8,
     20,
     {OP_P(1, 2, 7), OP_P(2, 32, 300), OP_P(3, 33, 150), OP_P(0, 42), OP_P(ONE_LIST, LIST_PER_KV, LIST_PER_HEAD),
      OP_BOOL}},
    {"slopes of estimates, over a sample of keys",
     slope,
     60,
     7,
     13,
     {OP_P(8, 64, 100), OP_P(1, 2, 4), OP_P(40, 300), OP_P(0, 1, 2), OP_TYPES, OP_P(8, 64, 1024),
      OP_P(10, 40, 61, 130)}},
    {"the sample's example", sample_example, 1, 1, 1, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
