/* SPDX-License-Identifier: MIT */
/* Examples and edge cases of k-means and product-quantized keys; test_ops_kmeans.c compares backends. */
#include "config.h"

#include "kernels/ops_kmeans.h"
#include "kernels/ops_pq.h"
#include "tests/unit/ops_util.h"

/* The centroids and codes of the example of doc/methods.md 7b. */
static void test_worked(backend *be, const char *level)
{
    float k[] = {0, 0, 4, 4, 0, 2, 4, 2, 4, 4, 0, 0, 4, 6, 2, 0}, c[8];
    const float centroids[] = {0, 1, 4, 5, 4, 3, 1, 0};
    uint16_t half[8];
    unsigned char code[8];
    kv_rows rows = {.k = at(k), .type = DT_F32, .n_kv_heads = 1, .head_dim = 4, .cap = 4};
    int32_t work[8];
    kmeans_job j = {.rows = &rows,
                    .n = 4,
                    .parts = 2,
                    .count = 2,
                    .cap = 2,
                    .centroid = at(c),
                    .start = {.n = 4, .count = 2},
                    .iters = 10,
                    .work = at(work),
                    .code_cap = 4};
    be->ops->kmeans->train(be, &j, 1);
    ok(memcmp(c, centroids, sizeof c) == 0, "%s, the example: centroids", level);
    be->ops->convert(be, at(half), DT_F16, at(c), DT_F32, 8);
    j.centroid = at(half);
    j.type = DT_F16;
    j.code = at(code);
    be->ops->kmeans->assign(be, &j, 1);
    ok(memcmp(code, "\0\0\0\0\1\1\1\1", 8) == 0, "%s, the example: codes", level);
}

/* Products decide: the two directions of a plane, whatever the lengths; a key that is no number counts as the worst. */
static void test_dot(backend *be, const char *level)
{
    float k[] = {3, 0, 0, 5, 1, 0, 0, 2}, c[4];
    const float want[] = {1, 0, 0, 1};
    kv_rows rows = {.k = at(k), .type = DT_F32, .n_kv_heads = 1, .head_dim = 2, .cap = 4};
    int32_t work[2];
    kmeans_job j = {.rows = &rows,
                    .n = 2,
                    .parts = 1,
                    .count = 2,
                    .cap = 2,
                    .metric = KMEANS_DOT,
                    .centroid = at(c),
                    .start = {.n = 2, .count = 2},
                    .iters = 3,
                    .work = at(work)};
    be->ops->kmeans->train(be, &j, 1);
    ok(memcmp(c, want, sizeof c) == 0, "%s, products: centroids have norm 1", level);
    unsigned char code[4] = {9, 9, 9, 9};
    k[4] = NAN;
    j.n = 4;
    j.code = at(code);
    j.code_cap = 4;
    be->ops->kmeans->assign(be, &j, 1);
    ok(memcmp(code, "\0\1\0\1", 4) == 0, "%s, products: codes", level);
}

/* Zeros of both signs are equal: the lower centroid. */
static void test_zeros(backend *be, const char *level)
{
    float k[] = {0, -0.f, 0, -0.f}, c[] = {-0.f, 0, -0.f, 0};
    unsigned char code[4] = {9, 9, 9, 9};
    kv_rows rows = {.k = at(k), .type = DT_F32, .n_kv_heads = 1, .head_dim = 1, .cap = 4};
    kmeans_job j = {.rows = &rows, .n = 4, .parts = 1, .count = 4, .cap = 4, .centroid = at(c), .type = DT_F32};
    j.code = at(code);
    j.code_cap = 4;
    be->ops->kmeans->assign(be, &j, 1);
    ok(memcmp(code, "\0\0\0\0", 4) == 0, "%s: zeros have no sign", level);
}

/* Scores of the same example. */
static void test_scores(backend *be, const char *level)
{
    const float centroids[] = {0, 1, 4, 5, 4, 3, 1, 0}, q[] = {1, 0, 1, 1}, want[] = {7, 7, 5, 5};
    float score[4] = {0};
    uint16_t half[8];
    unsigned char code[] = {0, 0, 0, 0, 1, 1, 1, 1};
    uint64_t read = 0;
    be->ops->convert(be, at(half), DT_F16, at(centroids), DT_F32, 8);
    pq_index x = {
        .code = at(code), .centroid = at(half), .n_kv_heads = 1, .head_dim = 4, .cap = 4, .parts = 2, .bits = 1};
    score_job j = {
        .index = &x, .q = at(q), .n_heads = 1, .score = at(score), .stride = 4, .items = {4, 0, 4}, .read = at(&read)};
    be->ops->pq->score(be, &j, 1);
    ok(memcmp(score, want, sizeof score) == 0 && read == 4 * 2 + 2 * 4 * 2, "%s, the example: scores", level);
}

int main(void)
{
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        if (!be) continue;
        test_worked(be, level);
        test_scores(be, level);
        test_dot(be, level);
        test_zeros(be, level);
        if (i) backend_close(be);
    }
    return tap_done();
}
