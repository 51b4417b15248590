/* SPDX-License-Identifier: MIT */
/* Ops of ActQKV's blocks, probes and budgets: every level against ref, ref against formulas. methods.md 9.9. */
#include "config.h"

#include "kernels/ops_block.h"
#include "tests/unit/ops_util.h"

static backend *ref;

static float *filled(size_t n, float x)
{
    float *p = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) p[i] = x;
    return p;
}

/* ---- statistics and probes ---- */

/* Mean and m2 of n rows, and the probe of the last `window` of them, in windows of at most `window`. */
typedef struct {
    float *mean, *m2, *weight, *probe;
} stats;

static stats stats_of(backend *be, const float *x, size_t n, size_t dim, size_t window, bool plain)
{
    stats s = {filled(dim, 9), filled(dim, 9), filled(window, -1), filled(dim, -1)};
    size_t last = 0, rows = 0;
    for (size_t i = 0; i < n; i += window) {
        last = i;
        rows = n - i < window ? n - i : window;
        be->ops->block->moments(be, at(s.mean), at(s.m2), i, at(x + i * dim), rows, dim);
    }
    be->ops->block->probe(be, at(s.probe), at(s.weight), at(x + last * dim), rows, dim,
                          plain ? (buf){NULL} : at(s.mean), at(s.m2), n);
    return s;
}

static void stats_free(stats *s)
{
    free(s->mean), free(s->m2), free(s->weight), free(s->probe);
}

/* The formulas, over all rows at once. */
static void naive_probe(const float *x, size_t n, size_t dim, size_t rows, double *weights, double *probe)
{
    double *mean = calloc(dim, 8), *var = calloc(dim, 8), floor = 0, total = 0;
    for (size_t i = 0; i < n * dim; i++) mean[i % dim] += (double)x[i] / (double)n;
    for (size_t i = 0; i < n * dim; i++) var[i % dim] += pow((double)x[i] - mean[i % dim], 2) / (double)(n - 1);
    for (size_t c = 0; c < dim; c++) floor += var[c] / (double)dim / 100;
    memset(probe, 0, dim * sizeof *probe);
    for (size_t j = 0; j < rows; j++) {
        weights[j] = 0;
        for (size_t c = 0; c < dim; c++)
            weights[j] += pow((double)x[(n - rows + j) * dim + c] - mean[c], 2) / (var[c] + floor);
        total += weights[j];
    }
    for (size_t j = 0; j < rows; j++) {
        weights[j] /= total;
        for (size_t c = 0; c < dim; c++) probe[c] += weights[j] * (double)x[(n - rows + j) * dim + c];
    }
    free(mean), free(var);
}

static double far_from(const float *got, const double *want, size_t n)
{
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        num += pow((double)got[i] - want[i], 2);
        den += want[i] * want[i];
    }
    return den > 0 ? num / den : num;
}

static void test_probe(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 16, 18, 40, 64, 130, 1024}, counts[] = {2, 3, 8, 31, 64, 300};
    group g = {0}, one = {0};
    rng r = {31};
    for (size_t d = 0; d < 9; d++)
        for (size_t i = 0; i < 6; i++) {
            if (left_out(1, 6)) continue;
            size_t dim = dims[d], n = counts[i], window = (d + i) % 2 ? 32 : 7, rows = n % window ? n % window : window;
            if (rows > n) rows = n;
            float *x = random_f32(&r, n * dim);
            for (size_t k = 0; k < n * dim; k++) x[k] = x[k] * (float)(1 + k % dim) + 3;
            double *w = xmalloc(8 * window), *p = xmalloc(8 * dim);
            naive_probe(x, n, dim, rows, w, p);
            stats a = stats_of(be, x, n, dim, window, false), b = stats_of(be, x, n, dim, n, false);
            double sum = 0;
            for (size_t k = 0; k < rows; k++) sum += (double)a.weight[k];
            group_note(&g,
                       far_from(a.weight, w, rows) < 1e-9 && far_from(a.probe, p, dim) < 1e-9 && fabs(sum - 1) < 1e-5,
                       "dim %zu n %zu window %zu: %.2g %.2g sum %g", dim, n, window, far_from(a.weight, w, rows),
                       far_from(a.probe, p, dim), sum);
            group_note(&one, nmse(a.mean, b.mean, dim) < 1e-11 && nmse(a.m2, b.m2, dim) < 1e-10,
                       "dim %zu n %zu: %.2g %.2g", dim, n, nmse(a.mean, b.mean, dim), nmse(a.m2, b.m2, dim));
            stats_free(&a), stats_free(&b), free(x), free(w), free(p);
        }
    group_end(&g, "weights and probe follow the formula; weights sum to 1", level);
    group_end(&one, "streamed statistics are those of all rows at once", level);
}

/* Uniform weights where nothing differs; order by distance from the mean; q -> a q + b changes nothing. */
static void test_probe_rules(backend *be, const char *level)
{
    enum { N = 20, DIM = 24 };
    rng r = {32};
    float *x = random_f32(&r, N * DIM), *y = xmalloc(4 * N * DIM);
    stats a = stats_of(be, x, N, DIM, N, false), plain = stats_of(be, x, N, DIM, N, true);
    bool even = true, same = true;
    double sum = 0;
    for (size_t i = 0; i < N; i++) even &= fabsf(plain.weight[i] - 1 / (float)N) < 1e-7f;
    for (size_t i = 0; i < N; i++) sum += (double)x[i * DIM] / N;
    ok(even && fabs((double)plain.probe[0] - sum) < 1e-6, "%s, the plain mean on request", level);
    for (size_t i = 0; i < N * DIM; i++) y[i] = 8 * x[i] + (float)(i % DIM);
    stats b = stats_of(be, y, N, DIM, N, false);
    for (size_t i = 0; i < N; i++) same &= fabsf(a.weight[i] - b.weight[i]) < 1e-5f;
    ok(same, "%s, an affine change of all queries leaves the weights", level);
    for (size_t i = 0; i < N * DIM; i++) y[i] = (float)(i % DIM) + (i / DIM % 2 ? 1 : -1) * (i / DIM < 4 ? 5.0f : 1.0f);
    stats c = stats_of(be, y, N, DIM, N, false);
    bool order = true;
    for (size_t i = 4; i < N; i++) order &= c.weight[i] < c.weight[i % 4];
    ok(order, "%s, queries far from the mean weigh more", level);
    for (size_t i = 0; i < N * DIM; i++) y[i] = 0.3f * (float)(i % DIM);
    stats d = stats_of(be, y, N, DIM, N, false), e = stats_of(be, y, 1, DIM, N, false);
    ok(fabsf(d.weight[7] - 1 / (float)N) < 1e-7f && nmse(d.probe, y, DIM) < 1e-12, "%s, equal queries: their mean",
       level);
    ok(e.weight[0] == 1 && nmse(e.probe, y, DIM) == 0, "%s, a single query is the probe", level);
    stats_free(&a), stats_free(&b), stats_free(&c), stats_free(&d), stats_free(&e), stats_free(&plain);
    free(x), free(y);
}

/* ---- scores ---- */

static void test_score(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 30, 32, 64, 80, 96, 128, 256};
    group g = {0}, h = {0};
    rng r = {33};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < 10; d++)
            for (size_t i = 0; i < 5; i++) {
                if (left_out(2, 10)) continue;
                size_t n_heads = (1 + (t + d + i) % 8) * 2, dim = n_heads * dims[d], n = 1 + (d * 5 + i * 3) % 19;
                float *probe = random_f32(&r, dim), *got = filled(n, 9), *want = filled(n, 9);
                void *rep = random_as(&r, n * dim, ALL_TYPES[t]);
                memset((char *)rep + (n - 1) * dim * dtype_size(ALL_TYPES[t]), 0, dim * dtype_size(ALL_TYPES[t]));
                int64_t range[3] = {(int64_t)n, (int64_t)(i % 3 < n ? i % 3 : 0), (int64_t)n};
                uint64_t read[2] = {5, 5};
                block_index x = {at(rep), ALL_TYPES[t], n_heads, 2, dims[d], n, 8, 2};
                for (size_t parts = 1; parts <= n_heads; parts += n_heads - 1) {
                    ref->ops->block->score(ref, at(want), at(probe), &x, parts, at(range), (int64_t)n, at(&read[0]));
                    be->ops->block->score(be, at(got), at(probe), &x, parts, at(range), (int64_t)n, at(&read[1]));
                    group_note(&g, nmse(got, want, n) < 1e-11 && read[0] == read[1], "%s heads %zu dim %zu n %zu: %.2g",
                               dtype_name(ALL_TYPES[t]), n_heads, dims[d], n, nmse(got, want, n));
                    if (n > 1)
                        group_note(&h, got[n - 1] == 0, "heads %zu dim %zu: %g", n_heads, dims[d], (double)got[n - 1]);
                }
                free(probe), free(got), free(want), free(rep);
            }
    group_end(&g, "cosines of whole vectors and of each head", level);
    group_end(&h, "a representative of zeros scores 0", level);
}

/* ---- blocks ---- */

static void test_fold(backend *be, const char *level)
{
    enum { HEADS = 3, RING = 11, STRIDE = 9 };
    group g = {0};
    rng r = {34};
    float *ring = filled(HEADS * RING, 7), *sum = random_f32(&r, HEADS * STRIDE);
    double want[HEADS][64] = {{0}};
    uint64_t read = 3, bytes = 3;
    band_mass m = {.mass = at(ring), .n_heads = HEADS, .ring = RING, .read = at(&read)};
    for (int64_t p = 0; p < 60; p += 2) { /* windows of two tokens, a band of seven */
        int64_t lo = p > 5 ? p - 5 : 0, where[3] = {lo, p + 2 - lo, p};
        for (size_t i = 0; i < HEADS * STRIDE; i++) sum[i] = rng_float(&r);
        for (size_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < where[1]; i++) want[h][lo + i] += (double)sum[h * STRIDE + (size_t)i];
        be->ops->block->fold(be, &m, at(sum), STRIDE, at(where), RING);
        bytes += 4 * HEADS * (uint64_t)(p - lo);
        for (size_t h = 0; h < HEADS; h++)
            for (int64_t q = lo; q < p + 2; q++)
                group_note(&g, fabs((double)ring[h * RING + (size_t)q % RING] - want[h][q]) < 1e-5, "position %d",
                           (int)q);
    }
    int64_t all[3] = {49, RING, 49};
    be->ops->block->fold(be, &m, (buf){NULL}, 0, at(all), RING);
    for (size_t i = 0; i < HEADS * RING; i++) group_note(&g, ring[i] == 0, "cleared %zu", i);
    group_note(&g, read == bytes, "masses read: %llu bytes, not %llu", (unsigned long long)read,
               (unsigned long long)bytes);
    group_end(&g, "masses add up while tokens are in the band", level);
    free(ring), free(sum);
}

/* Blocks of 4 with 2 representatives, masses with ties and a NaN. */
static void test_form(backend *be, const char *level)
{
    enum { HEADS = 4, KV = 2, D = 6, SIZE = 4, REPS = 2, N = 3, RING = 17, CAP = N * SIZE + 1 };
    static const float mass[N * SIZE] = {1, 5, 5, 5, 2, 2, 2, 2, NAN, 3, 1, -0.0f};
    static const size_t best[N][REPS] = {{1, 2}, {0, 1}, {1, 2}};
    group g = {0};
    rng r = {35};
    float *keys = random_f32(&r, KV * CAP * D), *rep = filled(5 * HEADS * D, 8), *ring = filled(HEADS * RING, 99);
    int64_t where[3] = {1, N, 9}; /* positions 9..20 go round the ring */
    for (size_t h = 0; h < HEADS; h++)
        for (size_t i = 0; i < N * SIZE; i++) ring[h * RING + (9 + i) % RING] = mass[i];
    block_index x = {at(rep), DT_F32, HEADS, KV, D, 5, SIZE, REPS};
    kv_rows rows = {.k = at(keys), .type = DT_F32, .n_kv_heads = KV, .head_dim = D, .cap = CAP};
    uint64_t read = 3;
    band_mass m = {.mass = at(ring), .n_heads = HEADS, .ring = RING, .read = at(&read)};
    for (int equal = 0; equal < 2; equal++) {
        be->ops->block->form(be, &x, &rows, equal ? NULL : &m, at(where), N);
        for (size_t b = 0; b < N; b++)
            for (size_t h = 0; h < HEADS; h++)
                for (size_t c = 0; c < D; c++) {
                    float want = 0;
                    for (size_t k = 0; k < REPS; k++)
                        want += keys[(h / 2 * CAP + b * SIZE + (equal ? k : best[b][k])) * D + c] / REPS;
                    group_note(&g, fabsf(rep[((b + 1) * HEADS + h) * D + c] - want) < 1e-6f, "block %zu head %zu", b,
                               h);
                }
    }
    group_note(&g, rep[0] == 8 && rep[4 * HEADS * D] == 8, "blocks not asked for are left alone");
    where[1] = 0;
    be->ops->block->form(be, &x, &rows, &m, at(where), N);
    group_note(&g, read == 3 + sizeof(float) * HEADS * N * SIZE, "masses read: %llu bytes", (unsigned long long)read - 3);
    group_end(&g, "representatives: best tokens, equal ones by position, NaN last", level);
    free(keys), free(rep), free(ring);
}

static void test_list(backend *be, const char *level)
{
    int32_t block[] = {77, 0, 2, 5}, idx[64];
    int64_t chosen[2] = {1, 3}, range[2] = {9, 9}, where[4] = {0, 3, 27, 29};
    static const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 23, 24, 25, 26, 27, 28};
    uint64_t count = 100;
    far_list l = {at(where), at(block), at(chosen), 4, at(idx), at(range), {NULL}};
    be->ops->block->list(be, &l);
    ok(range[0] == 0 && range[1] == 17 && !memcmp(idx, all, sizeof all), "%s, sinks, blocks, pending tokens", level);
    where[0] = 12;
    l.count = at(&count);
    be->ops->block->list(be, &l);
    ok(count == 109 && range[1] == 9 && !memcmp(idx, all + 8, 36), "%s, what lies behind a window is left out", level);
    where[0] = 0, where[3] = 27, chosen[1] = 0;
    be->ops->block->list(be, &l);
    ok(range[1] == 3 && !memcmp(idx, all, 12), "%s, sinks alone", level);
    where[1] = 0, where[2] = where[3] = 0;
    be->ops->block->list(be, &l);
    is_int(range[1], 0, "%s, an empty list", level);
}

/* ---- budgets ---- */

enum { LAYERS = 5, ITEMS = 400 };

typedef struct {
    float theta[2 * LAYERS], score[ITEMS];
    double sum[LAYERS];
    int64_t count, pool[2], bound[2], n[3], k;
    entropy_pool p;
    item_scores s;
} pool_rig;

static void pool_open(pool_rig *g, int64_t nominal, int64_t lo, int64_t hi, int64_t n)
{
    memset(g, 0, sizeof *g);
    g->pool[0] = g->pool[1] = LAYERS * nominal;
    g->bound[0] = lo, g->bound[1] = hi;
    g->n[2] = n;
    g->p = (entropy_pool){at(g->theta), at(g->sum), at(&g->count), at(g->pool), at(g->bound), LAYERS};
    g->s = (item_scores){at(g->score), at(g->n), 1, ITEMS, ITEMS};
}

static int64_t take(backend *be, pool_rig *g, size_t layer, float scale)
{
    be->ops->block->take(be, &g->p, 0, layer, &g->s, scale, at(&g->k));
    return g->k;
}

static void test_entropy(backend *be, const char *level)
{
    pool_rig g;
    pool_open(&g, 10, 0, 1000, 0);
    group c = {0};
    for (int64_t n = 0; n <= ITEMS; n += 57) {
        g.n[2] = n;
        for (size_t i = 0; i < ITEMS; i++) g.score[i] = -0.25f;
        take(be, &g, 1, 1);
        group_note(&c, fabsf(g.theta[1] - (n ? logf((float)n) : 0)) < 1e-5f, "uniform over %d: %g", (int)n,
                   (double)g.theta[1]);
    }
    for (size_t i = 0; i < ITEMS; i++) g.score[i] = i == 3 ? 1000 : i == 9 ? NAN : 0;
    take(be, &g, 1, 1);
    group_note(&c, fabsf(g.theta[1]) < 1e-6f, "one score far above: %g", (double)g.theta[1]);
    g.score[3] = 0, g.n[1] = 9, g.n[2] = 12;
    take(be, &g, 1, 1);
    group_note(&c, fabsf(g.theta[1] - logf(2)) < 1e-6f, "NaN counts as -inf: %g", (double)g.theta[1]);
    g.n[2] = 10;
    take(be, &g, 1, 1);
    group_note(&c, g.theta[1] == 0, "only a NaN: %g", (double)g.theta[1]);
    g.score[9] = 1, g.score[10] = 3, g.n[2] = 11;
    take(be, &g, 1, 0.5f); /* logits .5 and 1.5 */
    double p = 1 / (1 + exp(1.0)), h = -p * log(p) - (1 - p) * log(1 - p);
    group_note(&c, fabs((double)g.theta[1] - h) < 1e-6, "two items: %g", (double)g.theta[1]);
    float two[2 * 4] = {1, 3, 0, 0, 2, 2, 0, 0};
    g.s = (item_scores){at(two), at(g.n), 2, 4, 4};
    g.n[1] = 0, g.n[2] = 2;
    take(be, &g, 1, 0.5f);
    group_note(&c, fabs((double)g.theta[1] - (h + log(2.0)) / 2) < 1e-6, "mean over lists: %g", (double)g.theta[1]);
    group_end(&c, "entropies", level);
}

/* More items than backends take in one piece: the entropies of ref. */
static void test_long_lists(backend *be, const char *level)
{
    enum { N = 10001, LISTS = 3 };
    rng r = {38};
    float *score = random_f32(&r, LISTS * N);
    pool_rig g, h;
    for (size_t i = 0; i < N; i++) score[i] = i < 5000 ? -INFINITY : 40 * score[i], score[N + i] *= 3;
    for (int shift = 0; shift < 2; shift++) {
        pool_open(&g, 46, 32, 92, N), pool_open(&h, 46, 32, 92, N);
        g.n[1] = h.n[1] = shift ? 4444 : 0;
        g.s = (item_scores){at(score), at(g.n), LISTS, N, N}, h.s = (item_scores){at(score), at(h.n), LISTS, N, N};
        int64_t got = take(be, &g, 2, 1.5f), want = take(ref, &h, 2, 1.5f);
        ok(got == want && fabsf(g.theta[2] - h.theta[2]) < 1e-6f * h.theta[2] && h.theta[2] > 1,
           "%s, entropy of %d items, %d of them hidden: %g for %g", level, N, (int)g.n[1], (double)g.theta[2],
           (double)h.theta[2]);
    }
    free(score);
}

/* Budgets as the text has them, from the entropies that the op found. */
static int64_t naive_take(const pool_rig *g, size_t layer, int64_t pool)
{
    double later = 0, theta = (double)g->theta[layer], share = 1.0 / (double)(LAYERS - layer);
    for (size_t j = layer + 1; j < LAYERS; j++) later += g->count ? g->sum[j] / (double)g->count : 0;
    if (g->count && theta + later > 0) share = theta / (theta + later);
    int64_t b = (int64_t)floor(share * (double)pool + 0.5), reserve = g->bound[0] * (int64_t)(LAYERS - 1 - layer);
    b = b < g->bound[0] ? g->bound[0] : b > g->bound[1] ? g->bound[1] : b;
    b = b > pool - reserve ? pool - reserve : b;
    return b > g->n[2] - g->n[1] ? g->n[2] - g->n[1] : b;
}

/* Steps over layers with random scores: pools never overdrawn, and spent where nothing is cut. */
static void test_pool(backend *be, const char *level)
{
    group c = {0}, spent = {0};
    rng r = {36};
    for (int run = 0; run < 60; run++) {
        pool_rig g;
        int64_t nominal = 1 + (int64_t)(rng_float(&r) * 40), lo = run % 3 ? nominal * 7 / 10 : 0;
        int64_t hi = run % 3 == 1 ? 2 * nominal : ITEMS, n = run % 2 ? ITEMS : 1 + (int64_t)(rng_float(&r) * 60);
        pool_open(&g, nominal, lo, hi, n);
        for (int step = 0; step < 4; step++) {
            int64_t pool = g.pool[0] = LAYERS * nominal, total = 0;
            for (size_t l = 0; l < LAYERS; l++) {
                float sharp = run % 5 ? 4 * rng_float(&r) * (float)l : 0;
                for (size_t i = 0; i < ITEMS; i++) g.score[i] = sharp * rng_float(&r);
                int64_t k = take(be, &g, l, 1), want = naive_take(&g, l, pool);
                pool -= k, total += k;
                group_note(&c, k == want && k >= 0 && g.pool[0] == pool && pool >= 0, "run %d layer %zu: %d, not %d",
                           run, l, (int)k, (int)want);
                if (run % 5 == 0 && n == ITEMS)
                    group_note(&c, k == nominal, "equal entropies, run %d layer %zu: %d of %d", run, l, (int)k,
                               (int)nominal);
            }
            if (run % 3 == 0 && n == ITEMS)
                group_note(&spent, total == LAYERS * nominal, "run %d: %d of %d", run, (int)total,
                           (int)(LAYERS * nominal));
            double before[LAYERS];
            memcpy(before, g.sum, sizeof before);
            be->ops->block->close_pools(be, &g.p, 1);
            for (size_t l = 0; l < LAYERS; l++)
                group_note(&c, g.sum[l] == before[l] + (double)g.theta[l] && g.count == step + 1, "sums");
        }
    }
    group_end(&c, "budgets: shares, bounds, reserve, never below zero, equal for equal entropies", level);
    group_end(&spent, "without bounds the whole pool is spent", level);
    pool_rig g;
    pool_open(&g, 10, 0, 1000, ITEMS);
    for (size_t i = 0; i < 2 * LAYERS; i++) g.theta[i] = (float)i;
    be->ops->block->close_pools(be, &g.p, 2);
    ok(g.count == 2 && g.sum[3] == 11, "%s, two windows are two samples", level);
}

/* The largest excess that the text names: entropies tenfold their means in all layers. */
static void test_overdraw(backend *be, const char *level)
{
    pool_rig g;
    pool_open(&g, 46, 32, 92, ITEMS);
    for (size_t l = 0; l < LAYERS; l++) g.sum[l] = 0.1 * log(ITEMS);
    g.count = 1;
    int64_t total = 0;
    bool bounded = true;
    for (size_t l = 0; l < LAYERS; l++) {
        int64_t k = take(be, &g, l, 1);
        bounded &= k >= 32 && k <= 92;
        total += k;
    }
    ok(bounded && total <= LAYERS * 46 && g.pool[0] == LAYERS * 46 - total,
       "%s, greedy layers leave the least to later ones", level);
}

static void run_all(backend *be, const char *level)
{
    test_probe(be, level);
    test_probe_rules(be, level);
    test_score(be, level);
    test_fold(be, level);
    test_form(be, level);
    test_list(be, level);
    test_entropy(be, level);
    test_long_lists(be, level);
    test_pool(be, level);
    test_overdraw(be, level);
}

/* Threads split channels and blocks: not a bit may change. */
static void test_threads(const char *level)
{
    enum { N = 256, DIM = 1040, BLOCKS = 90 };
    backend *be[2] = {open_level(level, 1), open_level(level, 3)};
    if (!be[0] || !be[1]) return;
    rng r = {37};
    float *x = random_f32(&r, N * DIM), *rep = random_f32(&r, BLOCKS * DIM), *score[2];
    int64_t n[3] = {BLOCKS, 0, BLOCKS};
    stats s[2];
    block_index b = {at(rep), DT_F32, 13, 1, 80, BLOCKS, 8, 2};
    for (int i = 0; i < 2; i++) {
        s[i] = stats_of(be[i], x, N, DIM, 100, false);
        score[i] = filled(BLOCKS, 0);
        be[i]->ops->block->score(be[i], at(score[i]), at(s[i].probe), &b, 13, at(n), BLOCKS, (buf){NULL});
    }
    ok(!memcmp(s[0].m2, s[1].m2, 4 * DIM) && !memcmp(s[0].probe, s[1].probe, 4 * DIM) &&
           !memcmp(score[0], score[1], 4 * BLOCKS),
       "%s, the same bits with one thread and three", level);
    for (int i = 0; i < 2; i++) stats_free(&s[i]), free(score[i]), backend_close(be[i]);
    free(x), free(rep);
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    run_all(ref, "ref");
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        err e = {0};
        if (!be) continue;
        run_all(be, ALL_LEVELS[i]);
        test_threads(ALL_LEVELS[i]);
        is_ok(backend_fault(be, &e), &e, "%s, no fault", ALL_LEVELS[i]);
        backend_close(be);
    }
    check_races();
    return tap_done();
}
