/* SPDX-License-Identifier: MIT */
/* k-means over keys, product-quantized keys, clusters. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_cluster.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_pq.h"
#include "tests/unit/op_attn.h"

enum { KV = 3, SEGMENTS = 2 };

/* Numbers that are not finite, or large, in a few of n rows. */
static void odd_rows(op_run *x, kv_rows *r)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0};
    for (size_t i = 0; i < 6; i++)
        x->be->ops->convert(x->be, buf_at(r->k, (i * 7 % r->cap * r->head_dim + i) * dtype_size(r->type)), r->type,
                            op_in(x, &odd[i], 4), DT_F32, 1);
}

/* Centroids of two segments in one row, then the codes of all keys by all of them. */
static void kmeans(op_run *x, const int64_t *p)
{
    const kmeans_ops *o = x->be->ops->kmeans;
    size_t parts = (size_t)p[0], dim = parts * (size_t)p[1], each = (size_t)p[2], n = (size_t)p[3],
           count = SEGMENTS * each;
    kv_rows rows = op_rows(x, KV, dim, n + 9, (dtype)p[4], (int)p[5], p[6]);
    buf mean = op_out(x, 4 * KV * dim, BITS, 0), less = op_floats(x, KV * dim);
    buf centroid = op_inout(x, NULL, 4 * KV * (count + 1) * dim, UNIT, 0);
    kmeans_job j[SEGMENTS];
    o->mean(x->be, mean, &rows, 5, n);
    if (p[9]) odd_rows(x, &rows);
    for (size_t i = 0; i < SEGMENTS; i++)
        j[i] = (kmeans_job){.rows = &rows,
                            .first = 5 + (int64_t)(i * (n / 2)),
                            .n = i ? n - n / 2 : n / 2,
                            .parts = parts,
                            .count = each,
                            .cap = count + 1,
                            .metric = (kmeans_metric)p[7],
                            .less = p[8] ? less : (buf){NULL},
                            .centroid = buf_at(centroid, i * each * 4 * (size_t)p[1]),
                            .start = {.base = 5, .at = i * each, .n = n, .count = count, .half = p[8]},
                            .iters = (int)i * 2 + 1,
                            .work = op_in(x, NULL, 4 * KV * parts * n)};
    o->train(x->be, j, SEGMENTS);
    kmeans_job all = j[0];
    all.n = n, all.count = count, all.code_cap = n + 2, all.wide = p[8] || count > 256;
    if (p[9]) {
        all.type = DT_F16;
        all.centroid = op_in(x, NULL, 2 * KV * (count + 1) * dim);
        x->be->ops->convert(x->be, all.centroid, DT_F16, centroid, DT_F32, KV * (count + 1) * dim);
    }
    all.code = op_out(x, KV * (n + 2) * parts * (all.wide ? 4 : 1), BITS, 0);
    o->assign(x->be, &all, 1);
}

static void pq(op_run *x, const int64_t *p)
{
    const index_ops *o = x->be->ops->pq;
    size_t parts = (size_t)p[0], dim = parts * (size_t)p[1], n = (size_t)p[3], heads = KV * (size_t)p[4];
    size_t stride = n + 3, lo = n / 4;
    pq_index a = {
        .type = (dtype)p[5], .n_kv_heads = KV, .head_dim = dim, .cap = n + 4, .parts = parts, .bits = (size_t)p[2]};
    a.centroid = op_as(x, KV * dim << p[2], DT_F16);
    a.code = op_out(x, KV * (n + 4) * parts, BITS, 0);
    pq_index b = a;
    buf k = op_floats(x, n * KV * dim), q = op_floats(x, heads * dim), score = op_out(x, 4 * heads * stride, UNIT, 0);
    o->add(x->be, &(index_add_job){&a, 0, k, n}, 1); /* untrained: nothing */
    a.trained = b.trained = 1;
    b.code = op_out(x, KV * (n + 4) * parts, BITS, 0);
    const index_add_job one[] = {{&a, 0, k, n}, {&b, 0, k, n - 1}};
    o->add(x->be, one, 2);
    o->add(x->be, &(index_add_job){&b, (int64_t)n - 1, buf_at(k, (n - 1) * KV * dim * 4), 1}, 1);
    op_same(x, a.code, b.code, KV * (n + 4) * parts, "codes, the last one apart");
    o->score(x->be,
             &(score_job){.index = &a,
                          .q = q,
                          .n_heads = heads,
                          .score = score,
                          .stride = stride,
                          .items = {(int64_t)n, (int64_t)lo, (int64_t)n},
                          .read = op_read(x)},
             1);
}

/* Clusters of n tokens in two fills, some without members; choices among them, of scores that are equal or NaN. */
static void clusters(op_run *x, const int64_t *p)
{
    const struct cluster_ops *o = x->be->ops->cluster;
    size_t dim = (size_t)p[0], n = (size_t)p[1], count = (size_t)p[2], heads = KV * (size_t)p[3], cap = 2 * count + 1;
    kv_rows rows = op_rows(x, KV, dim, n + 3, (dtype)p[4], (int)p[5], p[6]);
    cluster_index i = {.start = op_inout(x, NULL, 4 * KV * (cap + 1), BITS, 0),
                       .member = op_out(x, 4 * KV * 2 * n, BITS, 0),
                       .tokens = 2 * n,
                       .mean = {.type = rows.type, .n_kv_heads = KV, .head_dim = dim, .cap = cap}};
    size_t bytes = KV * cap * dim * dtype_size(rows.type);
    i.mean.k = op_out(x, bytes, BITS, 0), i.mean.v = op_out(x, bytes, BITS, 0);
    int32_t *code = xmalloc(4 * KV * n);
    float *score = random_f32(&x->r, KV * cap);
    for (size_t k = 0; k < KV * n; k++) code[k] = (int32_t)(rng_float(&x->r) * rng_float(&x->r) * (float)count);
    for (size_t k = 0; k + 1 < KV * cap; k += 3) score[k] = k % 2 ? NAN : score[k + 1];
    cluster_fill j = {&rows, 3, n, op_in(x, code, 4 * KV * n), n, 0, count};
    o->fill(x->be, &i, &j);
    j.from = count;
    o->fill(x->be, &i, &j);
    cluster_choice c[3];
    for (int64_t k = 0; k < 3; k++)
        c[k] = (cluster_choice){.x = &i,
                                .score = op_in(x, score, 4 * KV * cap),
                                .stride = cap,
                                .n = (int64_t)(2 * count) - k,
                                .n_slots = (int64_t)n + 3,
                                .k = k * (int64_t)n / 3,
                                .most = (1 - k) * (int64_t)count / 2 + k,
                                .head = k ? 3 : 0,
                                .idx = op_out(x, 4 * KV * (2 * n + 3), BITS, 0),
                                .range = op_out(x, 16 * KV, BITS, 0),
                                .idx_stride = 2 * n + 3,
                                .group = op_out(x, 4 * KV * cap, BITS, 0),
                                .groups = op_out(x, 16 * KV, BITS, 0),
                                .bias = op_out(x, 4 * heads * cap, UNIT, 1e-6),
                                .group_stride = cap,
                                .n_heads = heads,
                                .key = op_in(x, NULL, 4 * KV * cap),
                                .bits = op_in(x, NULL, 4 * KV * cluster_words((int64_t)n + 3)),
                                .read = op_read(x)};
    o->choose(x->be, c, 3);
    free(code), free(score);
}

static const op_test tests[] = {
    {"k-means",
     kmeans,
     60,
     6,
     15,
     {OP_P(1, 2, 4), OP_P(1, 16, 24, 64), OP_P(1, 3, 40, 70, 150), OP_P(9, 64, 150, 1100), OP_TYPES, OP_P(0, 2, 4),
      OP_BOOL, OP_P(KMEANS_L2, KMEANS_DOT), OP_BOOL, OP_BOOL}},
    {"product-quantized keys",
     pq,
     60,
     6,
     15,
     {OP_P(1, 2, 4, 16), OP_P(1, 4, 13, 16), OP_P(1, 4, 5, 6, 7, 8), OP_P(1, 15, 70, 1300), OP_P(1, 3), OP_TYPES}},
    {"clusters",
     clusters,
     60,
     6,
     15,
     {OP_P(2, 12, 64, 130), OP_P(1, 30, 70, 400), OP_P(1, 5, 11, 40), OP_P(1, 2, 3), OP_TYPES, OP_P(0, 2, 4), OP_BOOL}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
