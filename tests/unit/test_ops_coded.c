/* SPDX-License-Identifier: MIT */
/* Scores of tokens by the codes of their keys. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_coded.h"
#include "kernels/ref/ref.h"
#include "tests/unit/op_attn.h"

enum { KV = 2 };

static score_job job_of(op_run *x, const coded_index *c, buf q, size_t heads, int64_t lo, int64_t hi)
{
    size_t stride = (size_t)hi + 3;
    return (score_job){.index = c,
                       .q = q,
                       .n_heads = heads,
                       .score = op_out(x, 4 * heads * stride, BITS, 0),
                       .stride = stride,
                       .items = {hi, lo, hi},
                       .read = op_read(x)};
}

/* Two jobs of one call, and the candidates of the first one again in two pieces: the same bits. */
static void score(op_run *x, const int64_t *p)
{
    const index_ops *o = x->be->ops->coded;
    size_t dim = (size_t)p[0], n = (size_t)p[1], heads = KV * (size_t)p[2], cap = n + (size_t)p[7];
    kv_rows a = op_rows(x, KV, dim, cap, (dtype)p[3], (int)p[4], p[5]), b = a;
    buf q = op_floats(x, heads * dim);
    int64_t lo = p[6] ? (int64_t)n / 3 : 0, mid = (lo + (int64_t)n) / 2;
    b.codes.bits = 0; /* nothing in codes yet */
    coded_index codes = {&a}, exact = {&b};
    const score_job jobs[] = {job_of(x, &codes, q, heads, lo, (int64_t)n), job_of(x, &exact, q, heads, 0, mid)};
    o->score(x->be, jobs, 2);
    score_job again = job_of(x, &codes, q, heads, lo, (int64_t)n);
    again.items.hi = mid;
    o->score(x->be, &again, 1);
    again.items.lo = mid, again.items.hi = (int64_t)n;
    o->score(x->be, &again, 1);
    for (size_t h = 0; h < heads; h++) {
        size_t at = 4 * (h * again.stride + (size_t)lo);
        op_same(x, buf_at(jobs[0].score, at), buf_at(again.score, at), 4 * (n - (size_t)lo), "scores in two pieces");
    }
}

/* The product with the key that the codes give, to rounding; an example by hand: 2 bits, one group of two rows. */
static void decoded(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], n = 40;
    kv_rows r = op_rows(x, KV, dim, n, DT_F16, (int)p[1], p[2]);
    kv_rows rows = {
        .k = op_out(x, 4 * KV * n * dim, NMSE, 1e-12), .type = DT_F32, .n_kv_heads = KV, .head_dim = dim, .cap = n};
    buf q = op_floats(x, KV * dim);
    coded_index codes = {&r}, plain = {&rows};
    x->be->ops->codes->fetch(x->be, &rows, &r, 0, (int64_t)n, op_read(x));
    score_job by_codes = job_of(x, &codes, q, KV, 0, (int64_t)n), by_keys = by_codes;
    by_keys.index = &plain;
    by_keys.score = op_out(x, 4 * KV * by_keys.stride, BITS, 0);
    x->be->ops->coded->score(x->be, &by_codes, 1);
    x->be->ops->coded->score(x->be, &by_keys, 1);
    float *a = xmalloc(4 * KV * by_codes.stride), *b = xmalloc(4 * KV * by_codes.stride);
    x->be->ops->download(x->be, a, by_codes.score, 4 * KV * by_codes.stride);
    x->be->ops->download(x->be, b, by_keys.score, 4 * KV * by_codes.stride);
    for (size_t h = 0; h < KV; h++)
        for (size_t i = h * by_codes.stride; i < h * by_codes.stride + n; i++)
            op_note(x, fabsf(a[i] - b[i]) < 2e-5f * (1 + fabsf(b[i])), "score %zu: %g by codes, %g by keys", i,
                    (double)a[i], (double)b[i]);
    free(a), free(b);
}

/* Rows in blocks: the product in the order of ops_select.h with the row as it is held, to the bit, also in two pieces;
 * the bytes of all rows are read. */
static void blocks(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], n = (size_t)p[2], heads = KV * (size_t)p[3], row;
    kv_rows r = op_rows(x, KV, dim, n, (dtype)p[1], 0, false);
    int64_t lo = p[5] ? (int64_t)n / 3 : 0, mid = (lo + (int64_t)n) / 2;
    uint64_t read = 0;
    r.rotated = (unsigned)p[4];
    row = kv_row_bytes(r.type, dim);
    coded_index index = {&r};
    score_job j = job_of(x, &index, op_floats(x, heads * dim), heads, lo, (int64_t)n), again = j;
    j.read = op_in(x, &read, sizeof read);
    x->be->ops->coded->score(x->be, &j, 1);
    again.score = op_out(x, 4 * heads * j.stride, BITS, 0);
    again.items.hi = mid;
    x->be->ops->coded->score(x->be, &again, 1);
    again.items.lo = mid, again.items.hi = (int64_t)n;
    x->be->ops->coded->score(x->be, &again, 1);
    float *q = op_see(x, j.q, 4 * heads * dim), *got = op_see(x, j.score, 4 * heads * j.stride), k[256];
    unsigned char *held = op_see(x, r.k, KV * n * row);
    for (size_t h = 0; h < heads; h++) {
        size_t at = 4 * (h * j.stride + (size_t)lo);
        if (r.rotated & KV_ROTATED_K) ref_hadamard(q + h * dim, dim);
        for (size_t t = (size_t)lo; t < n; t++) {
            ref_get_row(k, held + (h / (size_t)p[3] * n + t) * row, r.type, false, dim);
            op_note(x, got[h * j.stride + t] == ref_dot16(q + h * dim, k, dim), "head %zu, token %zu: %g", h, t,
                    (double)got[h * j.stride + t]);
        }
        op_same(x, buf_at(j.score, at), buf_at(again.score, at), 4 * (n - (size_t)lo), "scores in two pieces");
    }
    x->be->ops->download(x->be, &read, j.read, sizeof read);
    op_note(x, read == KV * (n - (size_t)lo) * row, "%d bytes are read", (int)read);
    free(q), free(got), free(held);
}

/* doc/methods.md 7d: channels with minima 0, -1 and steps 1, 1/2; codes 2 0 | 3 1; an exact row between them. */
static void example(op_run *x, const int64_t *p)
{
    static const float q[] = {1, -2}, exact[] = {0, 0, 1, 1, 0, 0}, pairs[] = {0, -1, 1, .5f}, want[] = {4, -1, 4};
    static const unsigned char code[] = {2, 3 | 1 << 2};
    static const int32_t at[] = {-1, 1, -2};
    uint16_t half[4];
    float got[3];
    uint64_t read = 0;
    (void)p;
    for (int i = 0; i < 4; i++) half[i] = f32_to_f16(pairs[i]);
    kv_rows r = {.k = op_in(x, exact, sizeof exact), .type = DT_F32, .n_kv_heads = 1, .head_dim = 2, .cap = 3};
    r.codes = (kv_codes){.bits = 2, .cap = 2, .group = 2, .run = 2};
    r.codes.k = op_in(x, code, sizeof code);
    r.codes.k_pair = op_in(x, half, sizeof half);
    r.codes.k_at = r.codes.v_at = op_in(x, at, sizeof at);
    coded_index codes = {&r};
    score_job j = job_of(x, &codes, op_in(x, q, sizeof q), 1, 0, 3);
    j.read = op_in(x, &read, sizeof read);
    x->be->ops->coded->score(x->be, &j, 1);
    x->be->ops->download(x->be, got, j.score, sizeof got);
    x->be->ops->download(x->be, &read, j.read, sizeof read);
    for (int i = 0; i < 3; i++) op_note(x, got[i] == want[i], "token %d: %g", i, (double)got[i]);
    op_note(x, read == 2 * 1 + 2 * 4 + 2 * 4, "%d bytes are read", (int)read);
}

static const op_test tests[] = {
    {"scores by codes",
     score,
     160,
     8,
     31,
     {OP_P(2, 13, 16, 22, 32, 64, 80, 96, 128, 256), OP_P(1, 2, 17, 40, 130, 700), OP_P(1, 2, 3, 4, 9, 12), OP_TYPES,
      OP_P(2, 4), OP_BOOL, OP_BOOL, OP_P(0, 1, 4)}},
    {"scores by codes of a wide group",
     score,
     2,
     1,
     0,
     {OP_P(256), OP_P(40), OP_P(60), OP_TYPES, OP_P(4), OP_BOOL, OP_P(0), OP_P(0)}},
    {"scores by codes and by the keys that they give", decoded, 24, 4, 7, {OP_P(16, 40, 64, 128), OP_P(2, 4), OP_BOOL}},
    {"scores by rows in blocks",
     blocks,
     120,
     7,
     41,
     {OP_P(32, 64, 128, 256), OP_P(DT_Q8, DT_Q4), OP_P(1, 2, 17, 130, 700), OP_P(1, 2, 3, 4, 9, 12),
      OP_P(0, KV_ROTATED_K, KV_ROTATED_K | KV_ROTATED_V), OP_BOOL}},
    {"the example", example, 1, 1, 1, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
