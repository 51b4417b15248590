/* SPDX-License-Identifier: MIT */
/* Tables of hashes and samples of them: on every backend those of ref. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_lsh.h"
#include "tests/unit/op_attn.h"

typedef struct {
    kv_rows rows;
    lsh_index x;
    buf code;
} tables;

static tables tables_of(op_run *x, kv_rows rows, size_t bits, size_t n_tables)
{
    size_t kv = rows.n_kv_heads, cap = rows.cap, dim = rows.head_dim;
    lsh_index i = {.n_kv_heads = kv, .head_dim = dim, .cap = cap, .bits = bits, .tables = n_tables};
    i.plane = op_floats(x, bits * n_tables * dim);
    i.mean = op_floats(x, kv * dim);
    i.norm = op_out(x, 4 * kv * cap, BITS, 0);
    i.start = op_inout(x, NULL, 4 * kv * n_tables * lsh_buckets(&i), BITS, 0);
    i.entry = op_inout(x, NULL, 4 * kv * n_tables * cap, BITS, 0);
    return (tables){.rows = rows, .x = i, .code = op_out(x, 2 * n_tables * cap, BITS, 0)};
}

/* Samples of n heads among the tokens of a range; the last query is 0. Of two channels many cosines are near 1, where
 * the last bit of one is much of its angle. */
static void draw(op_run *x, const tables *t, size_t n, slot_range range)
{
    size_t cap = t->x.cap, dim = t->x.head_dim;
    float *q = random_f32(&x->r, n * dim);
    memset(q + (n - 1) * dim, 0, dim * sizeof *q);
    lsh_job j = {.x = &t->x,
                 .rows = &t->rows,
                 .q = op_in(x, q, 4 * n * dim),
                 .n_heads = n,
                 .range = range,
                 .idx = op_out(x, 4 * n * cap, BITS, 0),
                 .bias = op_out(x, 4 * n * cap, UNIT, dim < 4 ? 1e-3 : 2e-5),
                 .list = op_out(x, 16 * n, BITS, 0),
                 .dots = op_out(x, 4 * n * t->x.tables * t->x.bits, IN, 0),
                 .hits = op_out(x, n * lsh_hits(cap), IN, 0),
                 .read = op_read(x)};
    x->be->ops->lsh->collide(x->be, &j);
    int64_t *list = op_see(x, j.list, 16 * n);
    int32_t *idx = op_see(x, j.idx, 4 * n * cap);
    for (size_t h = 0; h < n; h++)
        for (int64_t i = 0; i < list[2 * h + 1]; i++) {
            int32_t slot = idx[h * cap + (size_t)i];
            op_note(x, slot >= range.first && slot < range.first + range.n, "slot %d", slot);
            op_note(x, i == 0 || slot > idx[h * cap + (size_t)i - 1], "slot %d out of order", slot);
        }
    free(q), free(list), free(idx);
}

/* Tables of all tokens, then of a part; samples of all tokens, of those before a window, of none. */
static void lsh(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], kv = (size_t)p[1], n = (size_t)p[2], heads = kv * (size_t)p[3];
    int64_t end = (int64_t)n - 1, mid = end / 2;
    kv_rows rows = op_rows(x, kv, dim, n + 2, (dtype)p[4], (int)p[7], p[8]);
    tables t = tables_of(x, rows, (size_t)p[5], (size_t)p[6]), part = t;
    part.x.start = op_inout(x, NULL, 4 * kv * t.x.tables * lsh_buckets(&t.x), BITS, 0);
    part.x.entry = op_inout(x, NULL, 4 * kv * t.x.tables * t.x.cap, BITS, 0);
    x->be->ops->lsh->build(x->be, &part.x, &rows, (slot_range){1, end - 1}, t.code);
    x->be->ops->lsh->build(x->be, &part.x, &rows, (slot_range){1, mid - 1}, t.code);
    x->be->ops->lsh->build(x->be, &t.x, &rows, (slot_range){1, end - 1}, t.code);
    draw(x, &t, heads, (slot_range){1, end - 1});
    draw(x, &t, heads, (slot_range){mid, end - mid});
    draw(x, &t, heads, (slot_range){end + 1, 0});
    draw(x, &part, heads, (slot_range){1, mid - 1});
}

static const op_test tests[] = {
    {"lsh: codes, tables, samples",
     lsh,
     120,
     9,
     41,
     {OP_P(2, 6, 8, 16, 18, 40, 64, 128, 130, 256), OP_P(1, 2, 3), OP_P(4, 7, 40, 100, 333), OP_P(1, 2, 7), OP_TYPES,
      OP_P(1, 2, 3, 5, 8), OP_P(2, 5, 17, 60), OP_P(0, 0, 2, 4), OP_BOOL}},
    {"lsh: many buckets",
     lsh,
     6,
     5,
     0,
     {OP_P(16, 18), OP_P(1, 2), OP_P(700), OP_P(2), OP_TYPES, OP_P(10, 11, 14), OP_P(2, 9), OP_P(0, 2), OP_BOOL}},
    {"lsh: many tokens",
     lsh,
     2,
     2,
     0,
     {OP_P(16), OP_P(1), OP_P(40000), OP_P(1), OP_P(DT_F16), OP_P(3), OP_P(4), OP_P(0), OP_BOOL}},
};

/* Chances of a sample. */
static void test_example(void)
{
    static const float cosine[] = {0, .1f, .3f, .5f, .7f};
    static const double w[] = {.00968, .03074, .21367, .73555, .99768};
    bool good = fabs((double)lsh_bias(.5f, 2, 3) - .87441) < 1e-5;
    for (int i = 0; i < 5; i++) good &= fabs(exp(-(double)lsh_bias(cosine[i], 10, 150)) - 1e-4 - w[i]) < 6e-6;
    ok(good, "chances of methods.md 20.3");
    ok(lsh_bias(1.0000001f, 10, 150) == lsh_bias(1, 10, 150) && fabs((double)lsh_bias(-1, 10, 150) - log(1e4)) < 1e-5,
       "cosines beyond 1; an opposite key has no chance");
}

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    test_example();
    return tap_done();
}
