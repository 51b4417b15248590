/* SPDX-License-Identifier: MIT */
/* From scores to selections: exact scores, combination of heads, choice. ref against naive versions written
 * here, and every SIMD level against ref. */
#include "config.h"

#include <limits.h>

#include "kernels/ops_select.h"
#include "tests/unit/ops_util.h"

static const size_t GROUPS[] = {1, 2, 3, 4, 5, 6, 7, 8, 19};
static const size_t DIMS[] = {2, 6, 8, 16, 18, 32, 64, 80, 96, 128, 250, 256};
enum { N_GROUPS = sizeof GROUPS / sizeof *GROUPS, N_DIMS = sizeof DIMS / sizeof *DIMS };

static backend *ref;

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))) return false;
    return true;
}

/* ---- exact scores ---- */

static void test_exact(backend *be, const char *level)
{
    rng r = {31};
    group g = {0}, w = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < N_DIMS; d++)
            for (size_t i = 0; i < N_GROUPS; i++) {
                if (left_out(2, 11)) continue;
                size_t dim = DIMS[d], kv = 2, heads = kv * GROUPS[i], n = 1 + (d * 37 + i * 11) % 90, stride = n + 3;
                float *q = random_f32(&r, heads * dim), *a = xmalloc(4 * heads * stride),
                      *b = xmalloc(4 * heads * stride);
                kv_rows rows = {at(random_as(&r, kv * n * dim, ALL_TYPES[t])), {NULL}, ALL_TYPES[t], kv, dim, n, {0}, NULL, NULL};
                int64_t range[3] = {(int64_t)n, (int64_t)(i % 2 ? n / 3 : 0), (int64_t)n};
                uint64_t read[2] = {5, 5};
                ref->ops->select->exact(ref, at(a), stride, at(q), heads, &rows, at(range), (int64_t)n, at(&read[0]));
                be->ops->select->exact(be, at(b), stride, at(q), heads, &rows, at(range), (int64_t)n, at(&read[1]));
                double worst = 0;
                for (size_t h = 0; h < heads; h++) {
                    size_t lo = (size_t)range[1];
                    group_note(&g, same_bits(a + h * stride + lo, b + h * stride + lo, n - lo),
                               "dim %zu group %zu n %zu", dim, GROUPS[i], n);
                    for (size_t k = lo; k < n; k++) {
                        double s = 0;
                        for (size_t c = 0; c < dim; c++) {
                            size_t e = (h / GROUPS[i] * n + k) * dim + c;
                            const uint16_t *half = (const uint16_t *)(const void *)rows.k.p;
                            float x = t == 0   ? ((const float *)(const void *)rows.k.p)[e]
                                      : t == 1 ? f16_to_f32(half[e])
                                               : bf16_to_f32(half[e]);
                            s += (double)q[h * dim + c] * (double)x;
                        }
                        worst = fmax(worst, fabs(s - (double)a[h * stride + k]) / sqrt((double)dim));
                    }
                }
                uint64_t want = 5 + (n - (size_t)range[1]) * kv * dim * dtype_size(ALL_TYPES[t]);
                group_note(&w, worst < 1e-6 && read[0] == want && read[1] == want, "dim %zu: %g, read %d", dim, worst,
                           (int)read[1]);
                free(rows.k.p), free(q), free(a), free(b);
            }
    group_end(&g, "exact scores: the bits of ref", level);
    group_end(&w, "exact scores: 1e-6 of a double sum, bytes counted", level);
}

/* ---- combination ---- */

static double naive_lse(const float *x, const int64_t *n, double scale)
{
    double m = -(double)INFINITY, sum = 0;
    for (int64_t k = n[1]; k < n[2]; k++) m = fmax(m, scale * (double)x[k]);
    for (int64_t k = n[1]; k < n[2]; k++) sum += exp(scale * (double)x[k] - m);
    return m + log(sum);
}

/* Item i straight from the definition, in double. lse: of each head. */
static double naive_combined(const float *in, size_t stride, size_t heads, size_t i, gqa_mode mode, double scale,
                             const double *lse)
{
    double sum = 0, top = -(double)INFINITY, best = top;
    for (size_t h = 0; h < heads; h++) {
        sum += (double)in[h * stride + i];
        best = fmax(best, (double)in[h * stride + i]);
        top = fmax(top, scale * (double)in[h * stride + i] - lse[h]);
    }
    if (mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN) return sum / (double)heads;
    if (mode == GQA_MAX_S) return best;
    if (mode != GQA_VOTE && mode != GQA_LAYER_VOTE) return sum;
    sum = 0;
    for (size_t h = 0; h < heads; h++) sum += exp(scale * (double)in[h * stride + i] - lse[h] - top);
    return top + log(sum);
}

static const gqa_mode MODES[] = {GQA_MEAN_S,     GQA_SUM_S,      GQA_MAX_S,       GQA_VOTE,
                                 GQA_LAYER_MEAN, GQA_LAYER_VOTE, GQA_LAYER_CONCAT};

static void test_combine(backend *be, const char *level)
{
    static const size_t lengths[] = {1, 2, 7, 16, 33, 130, 257, 600, 2049};
    rng r = {32};
    group g = {0}, naive = {0};
    for (size_t m = 0; m < 7; m++)
        for (size_t i = 0; i < N_GROUPS; i++)
            for (size_t k = 0; k < 9; k++) {
                if (left_out(2, 20)) continue;
                size_t kv = MODES[m] >= GQA_LAYER_MEAN ? 1 : 2, heads = kv * GROUPS[i], n = lengths[k], stride = n + 5;
                /* the last spread makes most votes underflow */
                float *in = random_f32(&r, heads * stride), *a = xmalloc(4 * kv * stride),
                      *b = xmalloc(4 * kv * stride);
                float spread = k % 3 == 0 ? 1 : k % 3 == 1 ? 40 : 900, scale = 0.125f;
                for (size_t e = 0; e < heads * stride; e++) in[e] *= spread;
                int64_t range[3] = {(int64_t)n, (int64_t)(k % 2 ? n / 4 : 0), (int64_t)n};
                size_t lo = (size_t)range[1];
                ref->ops->select->combine(ref, at(a), at(in), stride, heads, kv, at(range), (int64_t)n, MODES[m],
                                          scale);
                be->ops->select->combine(be, at(b), at(in), stride, heads, kv, at(range), (int64_t)n, MODES[m], scale);
                bool vote = (MODES[m] == GQA_VOTE || MODES[m] == GQA_LAYER_VOTE) && GROUPS[i] > 1, good = true,
                     right = true;
                for (size_t l = 0; l < kv; l++) {
                    const float *x = in + l * GROUPS[i] * stride;
                    double lse[64];
                    for (size_t h = 0; h < GROUPS[i]; h++) lse[h] = naive_lse(x + h * stride, range, (double)scale);
                    if (!vote) good &= same_bits(a + l * stride + lo, b + l * stride + lo, n - lo);
                    for (size_t e = lo; e < n; e++) {
                        double want = GROUPS[i] == 1
                                          ? (double)x[e]
                                          : naive_combined(x, stride, GROUPS[i], e, MODES[m], (double)scale, lse);
                        double tol = 1e-5 * (1 + fabs(want)) + 1e-6 * (double)spread;
                        right &= fabs((double)a[l * stride + e] - want) <= tol &&
                                 fabs((double)b[l * stride + e] - want) <= tol;
                    }
                }
                group_note(&g, good, "mode %d group %zu n %zu", (int)MODES[m], GROUPS[i], n);
                group_note(&naive, right, "mode %d group %zu n %zu spread %g", (int)MODES[m], GROUPS[i], n,
                           (double)spread);
                free(in), free(a), free(b);
            }
    group_end(&g, "combine: the bits of ref where nothing but sums is formed", level);
    group_end(&naive, "combine: 1e-5 of the definition in double", level);
}

/* A head with one large norm may not silence the other; -INFINITY and NaN give a head no vote. */
static void test_votes(backend *be, const char *level)
{
    enum { N = 40 };
    float in[2 * N], out[N];
    int64_t range[3] = {N, 0, N};
    for (int i = 0; i < N; i++) {
        in[i] = i == 7 ? 1000 : -1000;
        in[N + i] = i == 30 ? 3 : 0;
    }
    be->ops->select->combine(be, at(out), at(in), N, 2, 1, at(range), N, GQA_VOTE, 1);
    bool second = true;
    for (int i = 0; i < N; i++) second &= i == 7 || i == 30 || out[30] > out[i];
    ok(second && out[7] > out[30], "%s, vote: each head's favourite wins", level);
    for (int i = 0; i < N; i++) in[i] = i % 2 ? NAN : -INFINITY;
    be->ops->select->combine(be, at(out), at(in), N, 2, 1, at(range), N, GQA_VOTE, 1);
    bool only = fabsf(out[30] - 3 - out[0]) < 1e-5f;
    for (int i = 0; i < N; i++) in[N + i] = NAN;
    be->ops->select->combine(be, at(out), at(in), N, 2, 1, at(range), N, GQA_VOTE, 1);
    for (int i = 0; i < N; i++) only &= out[i] == -INFINITY;
    ok(only, "%s, vote: heads without a finite score have none", level);
    /* far below the maximum the order stays */
    for (int i = 0; i < N; i++) in[i] = in[N + i] = i == 0 ? 0 : -200 - (float)i;
    be->ops->select->combine(be, at(out), at(in), N, 2, 1, at(range), N, GQA_VOTE, 1);
    bool order = true;
    for (int i = 1; i < N; i++) order &= out[i] < out[i - 1];
    ok(order, "%s, vote: no ties by underflow", level);
}

static void test_vote_levels(backend *be, const char *level)
{
    enum { N = 5000, H = 7 };
    static float first[N];
    static bool have;
    rng r = {36};
    float *in = random_f32(&r, H * N), out[N];
    int64_t range[3] = {N, 0, N};
    for (size_t i = 0; i < H * N; i++) in[i] *= 150;
    be->ops->select->combine(be, at(out), at(in), N, H, 1, at(range), N, GQA_VOTE, 0.5f);
    if (have) ok(same_bits(first, out, N), "%s, vote: the bits of the other levels", level);
    memcpy(first, out, sizeof out);
    have = true;
    free(in);
}

static void test_mean_heads(backend *be, const char *level)
{
    rng r = {33};
    group g = {0};
    for (size_t i = 0; i < N_GROUPS; i++) {
        enum { ROWS = 3, KV = 2, D = 10 };
        size_t heads = KV * GROUPS[i];
        float *q = random_f32(&r, ROWS * heads * D), out[ROWS * KV * D];
        be->ops->select->mean_heads(be, at(out), at(q), ROWS, heads, KV, D);
        for (size_t e = 0; e < ROWS * KV * D; e++) {
            double sum = 0;
            for (size_t h = 0; h < GROUPS[i]; h++) sum += (double)q[(e / D * GROUPS[i] + h) * D + e % D];
            group_note(&g, fabs(sum / (double)GROUPS[i] - (double)out[e]) < 1e-6, "group %zu", GROUPS[i]);
        }
        free(q);
    }
    group_end(&g, "mean of the queries of a group", level);
}

/* ---- choice ---- */

typedef struct {
    const float *score;
    int64_t i;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    float s = *x->score, t = *y->score;
    if (isnan(s)) s = -INFINITY;
    if (isnan(t)) t = -INFINITY;
    return s != t ? (s < t ? 1 : -1) : x->i < y->i ? -1 : 1;
}

/* Slots of one list by a sort; returns their number. */
static int64_t naive_choose(const float *score, const int64_t *n, int64_t k, int64_t head, int64_t tail, int64_t first,
                            int64_t granule, int32_t *out)
{
    int64_t items = (n[0] + granule - 1) / granule, m = 0, count = 0;
    ranked *list = xmalloc((size_t)(items + 1) * sizeof *list);
    bool *take = xmalloc((size_t)items + 1);
    for (int64_t i = 0; i < items; i++) {
        take[i] = i < head || i >= tail;
        if (!take[i] && i >= n[1] && i < n[2]) list[m++] = (ranked){score + i, i};
    }
    qsort(list, (size_t)m, sizeof *list, by_rank);
    for (int64_t i = 0; i < m && i < k; i++) take[list[i].i] = true;
    for (int64_t s = 0; s < n[0]; s++)
        if (take[s / granule] && s >= first) out[count++] = (int32_t)s;
    free(list), free(take);
    return count;
}

typedef struct {
    int64_t items, lo, hi, k, head, tail, first, granule;
    int kind; /* of scores */
    size_t lists;
} choice;

static float score_of(rng *r, int kind, int64_t i)
{
    float x = 2 * rng_float(r) - 1;
    switch (kind) {
    case 0: return x;
    case 1: return (float)(int)(x * 4); /* many ties, and zeros of both signs */
    case 2: return 3;
    case 3: return i % 3 ? NAN : i % 2 ? -INFINITY : x;
    case 4: return (float)i;
    case 5: return (float)-i;
    case 6: return i % 50 == 0 ? x * 1e30f : x * 1e-30f;
    case 7: return i % 2 ? 0.0f : -0.0f;
    default: return i % 4 == 0 ? INFINITY : i % 4 == 1 ? -INFINITY : x;
    }
}

static void check_choice(backend *be, group *g, rng *r, choice c)
{
    int64_t slots = c.items * c.granule - (c.granule > 1 ? c.items % c.granule : 0), stride = slots + 3;
    size_t n = (size_t)c.items, lists = c.lists;
    float *score = xmalloc(4 * lists * (n + 1));
    int32_t *idx = xmalloc(4 * lists * (size_t)stride), *want = xmalloc(4 * (size_t)stride);
    int64_t nn[3] = {slots, c.lo, c.hi}, *k = xmalloc(8 * lists), *range = xmalloc(16 * lists), tail = c.tail,
            first = c.first;
    for (size_t l = 0; l < lists; l++) {
        k[l] = c.k + (int64_t)l;
        for (size_t i = 0; i < n + 1; i++) score[l * (n + 1) + i] = score_of(r, c.kind, (int64_t)i);
    }
    choose_job j = {.score = at(score),
                    .n = at(nn),
                    .k = at(k),
                    .tail = at(&tail),
                    .n_lists = lists,
                    .stride = n + 1,
                    .n_k = lists,
                    .granule = c.granule,
                    .head = c.head,
                    .n_items_max = c.items,
                    .idx_stride = stride,
                    .idx = at(idx),
                    .range = at(range)};
    if (first) j.first = at(&first);
    if (lists > 1 && c.kind == 1) j.n_k = 1;
    for (int pass = c.items > 2000; pass < 2; pass++) { /* ref: a time that grows with the square of the items */
        backend *b = pass ? be : ref;
        memset(idx, 0xff, 4 * lists * (size_t)stride);
        b->ops->select->choose(b, &j);
        for (size_t l = 0; l < lists; l++) {
            int64_t m =
                naive_choose(score + l * (n + 1), nn, k[j.n_k == 1 ? 0 : l], c.head, tail, first, c.granule, want);
            group_note(g,
                       range[2 * l] == 0 && range[2 * l + 1] == m &&
                           memcmp(want, idx + l * (size_t)stride, 4 * (size_t)m) == 0,
                       "%s kind %d items %d [%d, %d) k %d head %d tail %d first %d granule %d list %zu: %d of %d",
                       b->name, c.kind, (int)c.items, (int)c.lo, (int)c.hi, (int)k[j.n_k == 1 ? 0 : l], (int)c.head,
                       (int)c.tail, (int)first, (int)c.granule, l, (int)range[2 * l + 1], (int)m);
        }
    }
    free(score), free(idx), free(want), free(k), free(range);
}

static void test_choose(backend *be, const char *level)
{
    static const int64_t sizes[] = {1, 2, 3, 15, 16, 17, 64, 100, 255, 300};
    rng r = {34};
    group g = {0}, forced = {0}, large = {0};
    for (int kind = 0; kind < 9; kind++)
        for (size_t s = 0; s < 10; s++) {
            int64_t n = sizes[s], ks[] = {0, 1, 2, n / 20, n / 3, n - 1, n, n + 5, -3};
            for (size_t i = 0; i < 9; i++)
                if (!left_out(3, 20)) check_choice(be, &g, &r, (choice){n, 0, n, ks[i], 0, n, 0, 1, kind, 1 + i % 3});
        }
    for (int kind = 0; kind < 9; kind++)
        for (int64_t granule = 1; granule <= 16; granule = granule == 1 ? 3 : granule == 3 ? 16 : 17)
            for (int64_t k = 0; k < 60; k += 11) {
                check_choice(be, &forced, &r, (choice){100, 0, 99, k, 0, 99, 0, granule, kind, 1}); /* the last item */
                check_choice(be, &forced, &r, (choice){100, 0, 100, k, 4, 90, 0, granule, kind, 8});
                check_choice(
                    be, &forced, &r,
                    (choice){100, 30, 95, k, 4, 95, 30 * granule + granule / 2, granule, kind, 2});   /* a window */
                check_choice(be, &forced, &r, (choice){100, 0, 100, k, 60, 50, 0, granule, kind, 1}); /* all of it */
                check_choice(be, &forced, &r,
                             (choice){100, 20, 20, k, 0, 99, 20 * granule, granule, kind, 1}); /* no candidates */
            }
    for (int kind = 0; kind < 9; kind++)
        for (int64_t k = 1; k < 1200; k = 5 * k + 1)
            check_choice(be, &large, &r, (choice){900, 1, 899, k, 1, 899, 0, 1, kind, 1});
    group_end(&g, "choose: sizes x k x kinds of scores, by a sort", level);
    group_end(&forced, "choose: forced items, windows, granules", level);
    group_end(&large, "choose: few of many", level);
}

/* Lists that the cuda backend cuts into runs of 1024 items over many blocks, and the last ones that it does not. Every size,
 * k and kind of scores in a few of their combinations. */
static void test_choose_wide(backend *be, const char *level)
{
    static const int64_t sizes[] = {16384, 16385, 17408, 24577}, ks[] = {1, 100, 2048, 16000, 24577, 0};
    rng r = {35};
    group g = {0}, forced = {0}, million = {0};
    for (int kind = 0; kind < 9; kind++)
        for (size_t s = 0; s < 4; s++)
            for (size_t i = (size_t)(kind + (int)s) % 3; i < 6; i += 3)
                if (!left_out(1, 7))
                    check_choice(be, &g, &r, (choice){sizes[s], 0, sizes[s], ks[i], 0, sizes[s], 0, 1, kind, 1 + i % 3});
    for (int kind = 0; kind < 9; kind++)
        for (int64_t granule = 1 + kind % 3 * 4, k = 7; k < 20000; k = 9 * k + 1) {
            int64_t n = 20000, first = 5000 * granule + granule / 2;
            if (left_out(1, 15)) continue;
            check_choice(be, &forced, &r, (choice){n, 10, n - 3, k, 4, n - 3, 0, granule, kind, 2});
            check_choice(be, &forced, &r, (choice){n, 5000, n - 1, k, 4, n - 1, first, granule, kind, 1});
            if (k == 7) /* all of it */
                check_choice(be, &forced, &r, (choice){n, 3, n, k, 12000, 9000, 0, granule, kind, 1});
        }
    group_end(&g, "choose: many items, by a sort", level);
    group_end(&forced, "choose: many items, forced items, windows, granules", level);
    if (left_out(1, INT_MAX)) return; /* the race build is too slow for it */
    for (int kind = 0; kind < 2; kind++)
        check_choice(be, &million, &r, (choice){1000000, 4, 999900, 2048, 4, 999900, 0, 1, kind, 1});
    group_end(&million, "choose: 2,048 of a million", level);
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        err e = {0};
        if (!be) continue;
        test_exact(be, ALL_LEVELS[i]);
        test_combine(be, ALL_LEVELS[i]);
        test_votes(be, ALL_LEVELS[i]);
        test_vote_levels(be, ALL_LEVELS[i]);
        test_mean_heads(be, ALL_LEVELS[i]);
        test_choose(be, ALL_LEVELS[i]);
        test_choose_wide(be, ALL_LEVELS[i]);
        is_ok(backend_fault(be, &e), &e, "%s, no fault", ALL_LEVELS[i]);
        backend_close(be);
    }
    check_races();
    return tap_done();
}
