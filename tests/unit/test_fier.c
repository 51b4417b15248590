/* SPDX-License-Identifier: MIT */
/* FIER: one-bit keys at every SIMD level, and the method against a naive one; points 9 and 0.3 of methods.md. */
#include "config.h"

#include <limits.h>

#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#define T_HEADS 14
#define T_KV    2
#include "tests/unit/ops_util.h"
#include "tests/unit/retrieve_oracle.h"

/* ---- ops ---- */

static backend *ref;

typedef struct {
    fier_index x;
    size_t bits, levels, ring;
} index_mem;

static index_mem index_make(size_t cap, size_t kv, size_t dim, size_t g, dtype t, fier_levels how, fier_open open)
{
    index_mem m = {
        .x = {.type = t, .n_kv_heads = kv, .head_dim = dim, .cap = cap, .group = g, .how = how, .open = open}};
    m.bits = kv * ((cap + 31) / 32) * fier_words(dim) * 32 * 4;
    m.levels = kv * ((cap + g - 1) / g) * 2 * dim * dtype_size(t);
    m.ring = kv * g * dim * dtype_size(t);
    m.x.bits = at(calloc(1, m.bits));
    m.x.levels = at(calloc(1, m.levels));
    m.x.ring = at(calloc(1, m.ring));
    return m;
}

static void index_free(index_mem *m)
{
    free(m->x.bits.p), free(m->x.levels.p), free(m->x.ring.p);
}

static bool same_index(const index_mem *a, const index_mem *b)
{
    return memcmp(a->x.bits.p, b->x.bits.p, a->bits) == 0 && memcmp(a->x.levels.p, b->x.levels.p, a->levels) == 0 &&
           memcmp(a->x.ring.p, b->x.ring.p, a->ring) == 0;
}

static void add(backend *be, const index_mem *m, const float *k, size_t from, size_t to)
{
    int64_t pos = (int64_t)from;
    be->ops->fier->add(be, &m->x, at(&pos), at(k + from * m->x.n_kv_heads * m->x.head_dim), to - from);
}

static void score(backend *be, const index_mem *m, float *out, size_t stride, const float *q, size_t heads, size_t lo,
                  size_t n, uint64_t *read)
{
    int64_t nn[3] = {(int64_t)n, (int64_t)lo, (int64_t)n};
    be->ops->fier->score(be, at(out), stride, at(q), heads, &m->x, at(nn), (int64_t)n, at(read));
}

/* The bits of both, any NaN for another. */
static bool same_scores(const float *a, const float *b, size_t heads, size_t stride, size_t lo, size_t n)
{
    bool same = true;
    for (size_t h = 0; h < heads; h++)
        for (size_t i = h * stride + lo; i < h * stride + n; i++)
            same &= isnan(a[i]) ? isnan(b[i]) : memcmp(a + i, b + i, sizeof *a) == 0;
    return same;
}

static double rounded(float x, dtype t)
{
    return (double)(t == DT_F32 ? x : t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x)));
}

/* What stands for channel c of a token, from the formulas, in double; levels rounded to t as they are stored. size: the
 * magnitudes of what is added up to it, the lower level and the way from there to the upper one. */
static double naive_key(const float *k, size_t row, size_t c, size_t n, size_t token, const fier_index *x,
                        double *size)
{
    size_t g = x->group, begin = token / g * g, to = begin + g < n ? begin + g : n, from = begin;
    bool open = to - begin < g;
    double lo = (double)INFINITY, hi = -(double)INFINITY, mean = 0, dev = 0, s[2] = {0}, count[2] = {0},
           own = rounded(k[token * row + c], x->type);
    *size = fabs(own);
    if (open && x->open == FIER_EXACT) return own;
    if (open && x->open == FIER_WINDOW) from = n > g ? n - g : 0;
    for (size_t i = from; i < to; i++) {
        double v = rounded(k[i * row + c], x->type);
        lo = fmin(lo, v);
        hi = fmax(hi, v);
        mean += v / (double)(to - from);
    }
    double z = x->how == FIER_MAD ? mean : 0.5 * (lo + hi);
    for (size_t i = from; i < to; i++) {
        double v = rounded(k[i * row + c], x->type);
        dev += fabs(v - mean) / (double)(to - from);
        s[v >= z] += v;
        count[v >= z]++;
    }
    if (x->how == FIER_MAD) lo = mean - dev, hi = mean + dev;
    if (x->how == FIER_TWO_MEAN) {
        lo = count[0] > 0 ? s[0] / count[0] : s[1] / count[1];
        hi = s[1] / count[1];
    }
    lo = rounded((float)lo, x->type);
    hi = rounded((float)hi, x->type);
    *size = fabs(lo) + fabs(hi - lo);
    return own >= z ? hi : lo;
}

static void test_ops(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 18, 32, 34, 64, 80, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 17},
                        sizes[] = {1, 2, 7, 16, 32, 33, 64};
    rng r = {51};
    group bits = {0}, naive = {0}, inc = {0}, redo = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < 11; d++)
            for (size_t i = 0; i < 7; i++) {
                if (left_out(4, 40)) continue;
                size_t per = groups[(d + 2 * i) % 9], dim = dims[d], kv = 2, heads = kv * per, g = sizes[(d + i) % 7],
                       n = 1 + (d * 53 + i * 37) % (dims[d] > 64 ? 40 : 80), stride = n + 3, lo = i % 2 ? n / 3 : 0;
                fier_levels how = (fier_levels)((d + i) % 3);
                fier_open open = (fier_open)((d + t) % 3);
                index_mem a = index_make(n, kv, dim, g, ALL_TYPES[t], how, open),
                          b = index_make(n, kv, dim, g, ALL_TYPES[t], how, open);
                float *k = random_f32(&r, n * kv * dim), *q = random_f32(&r, heads * dim),
                      *s1 = xmalloc(4 * heads * stride), *s2 = xmalloc(4 * heads * stride);
                uint64_t read[2] = {0};
                add(ref, &a, k, 0, n);
                add(be, &b, k, 0, n / 2);
                for (size_t j = n / 2; j < n; j++) add(be, &b, k, j, j + 1);
                group_note(&inc, same_index(&a, &b), "%s dim %zu g %zu n %zu levels %d open %d",
                           dtype_name(ALL_TYPES[t]), dim, g, n, (int)how, (int)open);
                score(ref, &a, s1, stride, q, heads, lo, n, &read[0]);
                score(be, &b, s2, stride, q, heads, lo, n, &read[1]);
                bool same = read[0] == read[1] && read[0] > 0 && same_scores(s1, s2, heads, stride, lo, n);
                double worst = 0, key[256], size[256];
                for (size_t j = lo; j < n; j++)
                    for (size_t h = 0; h < heads; h++) {
                        double want = 0, terms = 0;
                        for (size_t c = 0; c < dim && h % per == 0; c++)
                            key[c] = naive_key(k + h / per * dim, kv * dim, c, n, j, &a.x, &size[c]);
                        for (size_t c = 0; c < dim; c++) {
                            want += (double)q[h * dim + c] * key[c];
                            terms += fabs((double)q[h * dim + c]) * size[c];
                        }
                        worst = fmax(worst, fabs(want - (double)s1[h * stride + j]) / terms);
                    }
                group_note(&bits, same, "%s dim %zu group %zu g %zu n %zu lo %zu", dtype_name(ALL_TYPES[t]), dim,
                           per, g, n, lo);
                /* a level on the border of two f16 numbers may round to either */
                group_note(&naive, worst < (how == FIER_RANGE || t == 0 ? 1e-6 : 1e-2),
                           "%s dim %zu g %zu n %zu levels %d open %d: %g", dtype_name(ALL_TYPES[t]), dim, g, n,
                           (int)how, (int)open, worst);
                /* back to m tokens */
                size_t m = n - n / 4;
                index_mem c = index_make(n, kv, dim, g, ALL_TYPES[t], how, open);
                kv_rows rows = {
                    at(xmalloc(kv * n * dim * 4)), at(xmalloc(kv * n * dim * 4)), ALL_TYPES[t], kv, dim, n, {0}, NULL, NULL};
                int64_t *slots = xmalloc(8 * n);
                for (size_t j = 0; j < n; j++) slots[j] = (int64_t)j;
                be->ops->kv_write(be, &rows, at(slots), 1, at(k), at(k), n);
                be->ops->fier->redo(be, &b.x, &rows, (int64_t)m);
                add(be, &c, k, 0, m);
                score(be, &b, s1, stride, q, heads, 0, m, &read[0]);
                score(be, &c, s2, stride, q, heads, 0, m, &read[0]);
                same = true;
                for (size_t h = 0; h < heads; h++) same &= memcmp(s1 + h * stride, s2 + h * stride, 4 * m) == 0;
                for (size_t j = m; j < n; j++) {
                    add(be, &b, k, j, j + 1);
                    add(be, &c, k, j, j + 1);
                }
                group_note(&redo, same && (open == FIER_EXACT || same_index(&a, &b)) && same_index(&a, &c),
                           "dim %zu g %zu n %zu m %zu open %d", dim, g, n, m, (int)open);
                free(k), free(q), free(s1), free(s2), free(slots), free(rows.k.p), free(rows.v.p);
                index_free(&a), index_free(&b), index_free(&c);
            }
    group_end(&inc, "bits, levels and newest keys: one by one in SIMD = at once in ref", level);
    group_end(&bits, "estimates: the bits of ref, bytes counted", level);
    group_end(&naive, "estimates: from the formulas in double", level);
    group_end(&redo, "after a rewind", level);
}

/* `vote` is `score` and `combine`: also over several chunks of a vote, where the list begins or ends within a group,
 * where votes underflow, and for the open group's keys. */
static void test_vote(backend *be, const char *level)
{
    enum { N = 4300, D = 16, KV = 2 };
    static const size_t groups[] = {2, 3, 4, 17}, sizes[] = {32, 7, 64, 2000}, first[] = {0, 5, 2047, N - 3};
    rng r = {56};
    group g = {0};
    float *k = random_f32(&r, N * KV * D);
    for (size_t i = 0; i < 16; i++) {
        size_t heads = KV * groups[i % 4], lo = first[i / 4], hi = i % 2 ? N : N - 1;
        index_mem m = index_make(N, KV, D, sizes[(i + i / 4) % 4], ALL_TYPES[i % 3], FIER_RANGE,
                                 i % 3 ? FIER_EXACT : FIER_REQUANT);
        float *q = random_f32(&r, heads * D), *s = xmalloc(4 * heads * N), *a = xmalloc(4 * KV * N),
              *b = xmalloc(4 * KV * N), scale = i % 4 == 3 ? 60 : 0.25f;
        int64_t n[3] = {N, (int64_t)lo, (int64_t)hi};
        uint64_t read[2] = {0};
        m.x.products = i / 2 % 2 ? FIER_INT8 : FIER_FLOAT;
        if (i == 6) q[0] = NAN;
        add(ref, &m, k, 0, N);
        be->ops->fier->score(be, at(s), N, at(q), heads, &m.x, at(n), N, at(&read[0]));
        be->ops->select->combine(be, at(a), at(s), N, heads, KV, at(n), N, GQA_VOTE, scale);
        memset(s, 0xff, 4 * heads * N);
        be->ops->fier->vote(be, at(b), at(s), N, at(q), heads, &m.x, at(n), N, scale, at(&read[1]));
        group_note(&g, read[0] == read[1] && same_scores(a, b, KV, N, lo, hi), "group %zu g %zu lo %zu scale %g",
                   groups[i % 4], m.x.group, lo, (double)scale);
        free(q), free(s), free(a), free(b);
        index_free(&m);
    }
    free(k);
    group_end(&g, "vote: the bits of score and combine", level);
}

/* How far whole numbers may move the estimate of a token: half a step of each weight and of each query. */
static double int8_slack(const index_mem *m, const float *q, size_t kv, size_t token)
{
    const fier_index *x = &m->x;
    size_t d = x->head_dim, groups = (x->cap + x->group - 1) / x->group;
    const float *lo = (const float *)(const void *)x->levels.p + (kv * groups + token / x->group) * 2 * d;
    double most = 0, r = 0, sum = 1e-5;
    for (size_t c = 0; c < d; c++) {
        most = fmax(most, (double)lo[d + c] - (double)lo[c]);
        r = fmax(r, fabs((double)q[c]));
    }
    for (size_t c = 0; c < d; c++)
        sum += (fabs((double)q[c]) * most + ((double)lo[d + c] - (double)lo[c]) * r + most * r / 254) / 254;
    return sum;
}

/* score=int8: the bits of ref, near the estimates in float32, whatever the numbers are. */
static void test_int8(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 18, 32, 34, 64, 80, 96, 128, 256}, sizes[] = {1, 7, 16, 32, 33, 64, 40};
    static const float odd[] = {0, NAN, INFINITY, -INFINITY, 1e-42f, 3e38f, -3e38f};
    rng r = {54};
    group bits = {0}, near = {0}, rare = {0};
    for (size_t d = 0; d < 11; d++)
        for (size_t i = 1; i <= 8; i++) {
            if (left_out(4, 40)) continue;
            size_t dim = dims[d], kv = 2, heads = kv * i, g = sizes[(d + i) % 7], n = 30 + (d * 53 + i * 37) % 70,
                   stride = n + 3, lo = i % 2 ? n / 3 : 0;
            index_mem m = index_make(n, kv, dim, g, ALL_TYPES[i % 3], (fier_levels)(d % 3), FIER_REQUANT);
            float *k = random_f32(&r, n * kv * dim), *q = random_f32(&r, heads * dim),
                  *s1 = xmalloc(4 * heads * stride), *s2 = xmalloc(4 * heads * stride),
                  *f = xmalloc(4 * heads * stride);
            uint64_t read;
            for (size_t c = 0; c < n * kv; c++) k[c * dim + dim / 2] *= 9; /* an outlier channel */
            add(ref, &m, k, 0, n);
            score(ref, &m, f, stride, q, heads, lo, n, &read);
            m.x.products = FIER_INT8;
            score(ref, &m, s1, stride, q, heads, lo, n, &read);
            score(be, &m, s2, stride, q, heads, lo, n, &read);
            group_note(&bits, same_scores(s1, s2, heads, stride, lo, n), "dim %zu group %zu g %zu n %zu", dim, i, g, n);
            bool good = true;
            for (size_t h = 0; h < heads && m.x.type == DT_F32; h++)
                for (size_t t = lo; t < n; t++)
                    good &= fabs((double)s1[h * stride + t] - (double)f[h * stride + t]) <=
                            int8_slack(&m, q + h * dim, h / i, t);
            group_note(&near, good, "dim %zu group %zu g %zu n %zu", dim, i, g, n);
            for (size_t v = 0; v < 7; v++) {
                k[dim * (v % (n * kv)) + v % dim] = odd[v];
                q[v % (heads * dim)] = odd[6 - v];
            }
            memset(q + (heads - 1) * dim, 0, 4 * dim);
            for (size_t t = 0; t < g && t < n; t++)
                for (size_t c = 0; c < dim; c++) k[(t * kv + 1) * dim + c] = 0.5f;
            add(ref, &m, k, 0, n);
            score(ref, &m, s1, stride, q, heads, lo, n, &read);
            score(be, &m, s2, stride, q, heads, lo, n, &read);
            group_note(&rare, same_scores(s1, s2, heads, stride, lo, n), "dim %zu group %zu g %zu n %zu", dim, i, g, n);
            free(k), free(q), free(s1), free(s2), free(f);
            index_free(&m);
        }
    group_end(&bits, "score=int8: the bits of ref", level);
    group_end(&near, "score=int8: within half a step of each number", level);
    group_end(&rare, "score=int8: NaN, infinite, tiny, constant: the bits of ref", level);
}

/* Queries and spans that 8 and 7 bits hold, also where all of them are as large as can be. */
static void test_int8_exact(backend *be, const char *level)
{
    enum { D = 256, N = 64, H = 5 };
    rng r = {55};
    static float k[N * D], q[H * D], s[H * N];
    uint64_t read;
    index_mem m = index_make(N, 1, D, 32, DT_F32, FIER_RANGE, FIER_REQUANT);
    m.x.products = FIER_INT8;
    for (int full = 0; full < 2; full++) {
        bool good = true;
        for (size_t c = 0; c < D; c++) {
            float span = full || c == 3 ? 127 : floorf(rng_float(&r) * 128), base = floorf(rng_float(&r) * 9) - 4;
            for (size_t t = 0; t < N; t++)
                k[t * D + c] = base + ((t % 32 ? t % 32 == 31 || rng_float(&r) < 0.5f : 0) ? span : 0);
        }
        for (size_t i = 0; i < H * D; i++) q[i] = floorf(rng_float(&r) * 255) - 127;
        for (size_t h = 0; h < H; h++) q[h * D + h] = h % 2 ? 127 : -127;
        for (size_t i = 0; i < 2 * D && full; i++) q[i] = i < D ? -127 : 127;
        add(be, &m, k, 0, N);
        score(be, &m, s, N, q, H, 0, N, &read);
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < N; t++) {
                double want = 0;
                for (size_t c = 0; c < D; c++) want += (double)q[h * D + c] * (double)k[t * D + c];
                good &= (double)s[h * N + t] == want;
            }
        ok(good, "%s, score=int8 is exact where the numbers are whole%s", level, full ? " and as large as can be" : "");
    }
    index_free(&m);
}

/* Two values a channel and group, groups of one, scaled and shifted keys. */
static void test_points(backend *be, const char *level)
{
    enum { KV = 1, D = 20, N = 96, H = 3 };
    rng r = {52};
    float *k = random_f32(&r, N * D), *two = xmalloc(4 * N * D), *q = random_f32(&r, H * D), a[H * N], b[H * N],
          exact[H * N];
    int64_t nn[3] = {N, 0, N};
    uint64_t read;
    for (size_t i = 0; i < N * D; i++) two[i] = k[i] > 0 ? 0.5f + (float)(i % D) : -2.0f - (float)(i / D / 32);
    for (int pass = 0; pass < 2; pass++) {
        index_mem m = index_make(N, KV, D, pass ? 1 : 32, DT_F32, FIER_RANGE, FIER_REQUANT);
        kv_rows rows = {at(pass ? k : two), {NULL}, DT_F32, KV, D, N, {0}, NULL, NULL};
        add(be, &m, pass ? k : two, 0, N);
        score(be, &m, a, N, q, H, 0, N, &read);
        be->ops->select->exact(be, at(exact), N, at(q), H, &rows, at(nn), N, (buf){NULL});
        bool good = true;
        for (int i = 0; i < H * N; i++) good &= fabsf(a[i] - exact[i]) <= 1e-5f * (pass ? 1 : 40);
        ok(good, "%s, %s", level, pass ? "groups of one token are exact" : "two values a channel and group are exact");
        index_free(&m);
    }
    index_mem m = index_make(N, KV, D, 32, DT_F32, FIER_RANGE, FIER_REQUANT);
    bool scaled = true, shifted = true;
    add(be, &m, k, 0, N);
    score(be, &m, a, N, q, H, 0, N, &read);
    for (size_t i = 0; i < N * D; i++) two[i] = 8 * k[i];
    add(be, &m, two, 0, N);
    score(be, &m, b, N, q, H, 0, N, &read);
    for (int i = 0; i < H * N; i++) scaled &= b[i] == 8 * a[i];
    for (size_t i = 0; i < N * D; i++) two[i] = (i % D == 7 ? 64 : 0) + floorf(k[i] * 256);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < N * D && pass; i++) two[i] -= i % D == 7 ? 64 : 0;
        add(be, &m, two, 0, N);
        score(be, &m, pass ? b : a, N, q, H, 0, N, &read);
    }
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++) shifted &= fabsf(a[h * N + i] - b[h * N + i] - 64 * q[h * D + 7]) < 2e-3f;
    ok(scaled, "%s, keys times 8: estimates times 8, to the bit", level);
    ok(shifted, "%s, a shifted channel shifts all estimates equally", level);
    index_free(&m);
    free(k), free(two), free(q);
}

/* Share of the exact top k that is among the estimated top k; iid keys, equal bytes. */
static void test_recall(backend *be, const char *level)
{
    enum { D = 64, N = 2048, PAGE = 16, PAGES = N / PAGE };
    rng r = {53};
    float *k = random_f32(&r, N * D), *q = random_f32(&r, D), *est = xmalloc(4 * N), *exact = xmalloc(4 * N),
          *rough = xmalloc(4 * N), pages[PAGES];
    static int32_t best[N], mine[N], theirs[N], whole[N];
    int64_t n[3] = {N, 0, N}, np[3] = {N, 0, PAGES}, zero = 0, range[2], tail = N;
    uint64_t read;
    index_mem m = index_make(N, 1, D, 32, DT_F32, FIER_RANGE, FIER_REQUANT);
    quest_index x = {.bound = at(xmalloc(4 * PAGES * 2 * D)),
                     .type = DT_F32,
                     .n_kv_heads = 1,
                     .head_dim = D,
                     .cap = PAGES,
                     .page = PAGE};
    kv_rows rows = {at(k), {NULL}, DT_F32, 1, D, N, {0}, NULL, NULL};
    add(be, &m, k, 0, N);
    be->ops->quest->add(be, &x, at(&zero), at(k), N);
    score(be, &m, est, N, q, 1, 0, N, &read);
    m.x.products = FIER_INT8;
    score(be, &m, rough, N, q, 1, 0, N, &read);
    be->ops->quest->score(be, at(pages), PAGES, at(q), 1, &x, at(np), PAGES, false, (buf){NULL});
    be->ops->select->exact(be, at(exact), N, at(q), 1, &rows, at(n), N, (buf){NULL});
    for (int64_t top = 32; top <= 512; top *= 4) {
        int64_t few = top / PAGE, hits = 0, page_hits = 0, whole_hits = 0, same = 0;
        choose_job j = {.score = at(exact),
                        .n = at(n),
                        .k = at(&top),
                        .tail = at(&tail),
                        .n_lists = 1,
                        .stride = N,
                        .n_k = 1,
                        .granule = 1,
                        .n_items_max = N,
                        .idx_stride = N,
                        .idx = at(best),
                        .range = at(range)};
        be->ops->select->choose(be, &j);
        j.score = at(est), j.idx = at(mine);
        be->ops->select->choose(be, &j);
        j.score = at(rough), j.idx = at(whole);
        be->ops->select->choose(be, &j);
        j.score = at(pages), j.idx = at(theirs), j.n = at(np), j.granule = PAGE, j.k = at(&few);
        j.stride = j.n_items_max = PAGES;
        be->ops->select->choose(be, &j);
        for (int64_t a = 0; a < top; a++)
            for (int64_t b = 0; b < top; b++) {
                hits += best[a] == mine[b];
                page_hits += best[a] == theirs[b];
                whole_hits += best[a] == whole[b];
                same += mine[a] == whole[b];
            }
        ok(hits >= page_hits && hits * 5 > top, "%s, recall at %d: %d tokens, by pages %d", level, (int)top, (int)hits,
           (int)page_hits);
        ok(same * 100 >= top * 97 && whole_hits * 100 >= hits * 97,
           "%s, score=int8 at %d: %d tokens, %d in common with float32", level, (int)top, (int)whole_hits, (int)same);
    }
    is_near(rough, est, N, 1e-4, "%s, score=int8: near the estimates in float32", level);
    free(k), free(q), free(est), free(rough), free(exact), free(x.bound.p);
    index_free(&m);
}

/* ---- the method ---- */

static struct {
    int64_t g, sink, recent, budget;
    fier_open open;
    fier_levels how;
    bool extra;
} par;

/* Keys as the index holds them are the same for all queries of a step. */
static void token_scores(int layer, int64_t n, int kv, const double *q, double *out)
{
    static double key[T_LAYERS][T_KV][T_MAX][T_DIM];
    static int64_t made[T_LAYERS][T_KV];
    static fier_index x;
    if (x.group != (size_t)par.g || x.open != par.open || x.how != par.how) memset(made, 0, sizeof made);
    x = (fier_index){.group = (size_t)par.g, .open = par.open, .how = par.how};
    for (int64_t t = 0; t < n && made[layer][kv] != n; t++)
        for (int c = 0; c < T_DIM; c++) {
            double size;
            key[layer][kv][t][c] =
                naive_key(&rot_k[layer][0][kv][0], T_KV * T_DIM, (size_t)c, (size_t)n, (size_t)t, &x, &size);
        }
    made[layer][kv] = n;
    for (int64_t t = 0; t < n; t++) {
        out[t] = 0;
        for (int c = 0; c < T_DIM; c++) out[t] += q[c] * key[layer][kv][t][c];
    }
}

static void token_rule(int64_t first, int64_t n, naive_rule *r)
{
    r->granule = 1;
    r->k = par.budget;
    for (int64_t t = first; t < n; t++) {
        bool open = par.open == FIER_KEEP && t >= n / par.g * par.g;
        r->forced[t] = t == n - 1 || t >= n - par.recent || t < par.sink || open;
        r->candidate[t] = !r->forced[t];
        if (r->forced[t] && !par.extra) r->k--;
    }
}

static void check_one(rig *r, const char *device, const char *spec, gqa_mode gqa)
{
    naive_method m = {.spec = spec, .budget = par.budget, .gqa = gqa, .score = token_scores, .rule = token_rule};
    check_steps(r, device, &m);
}

static void check_methods(rig *r, const char *device)
{
    static const char *const names[] = {"per_q", "mean_q",     "mean_s",     "sum_s",       "max_s",
                                        "vote",  "layer_mean", "layer_vote", "layer_concat"};
    static const char *const opens[] = {"requant", "exact", "window", "keep"}, *const hows[] = {"range", "mad",
                                                                                                "two_mean"};
    char spec[96];
    for (int g = 0; g < GQA_COUNT; g++) {
        par.g = 8, par.budget = 20;
        snprintf(spec, sizeof spec, "fier:skip=1:g=8:budget=20:gqa=%s", names[g]);
        check_one(r, device, spec, (gqa_mode)g);
    }
    for (int o = 0; o < 4; o++) {
        par.g = 32, par.budget = 40, par.open = (fier_open)o, par.how = (fier_levels)(o % 3);
        snprintf(spec, sizeof spec, "fier:skip=1:budget=40:open=%s:levels=%s", opens[o], hows[o % 3]);
        check_one(r, device, spec, GQA_VOTE);
    }
    par.open = FIER_REQUANT, par.how = FIER_RANGE, par.g = 7, par.budget = 1;
    check_one(r, device, "fier:skip=1:g=7:budget=1", GQA_VOTE);
    par.sink = 3, par.recent = 5, par.budget = 12, par.extra = true;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5:budget_mode=extra", GQA_VOTE);
    par.extra = false;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5", GQA_VOTE);
    r->window[1] = 41;
    r->window[2] = 11;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5", GQA_VOTE);
    r->window[1] = r->window[2] = 0;
    par.sink = par.recent = 0;
}

/* A second level: each mode, groups cut by forced tokens and by a window, and all groups kept. */
static void check_coarse(rig *r, const char *device)
{
    static const struct {
        const char *spec;
        gqa_mode gqa;
    } t[] = {{":gqa=per_q", GQA_PER_Q},       {":gqa=mean_q", GQA_MEAN_Q},         {":gqa=max_s", GQA_MAX_S},
             {":gqa=sum_s", GQA_SUM_S},       {"", GQA_VOTE},                      {":gqa=layer_mean", GQA_LAYER_MEAN},
             {":gqa=layer_vote", GQA_LAYER_VOTE}, {":gqa=layer_concat", GQA_LAYER_CONCAT}};
    char spec[160];
    naive_method m = {.spec = spec, .score = token_scores, .rule = token_rule};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        par.g = 8, par.budget = 12, m.budget = 12, m.gqa = t[i].gqa, m.coarse = 6, m.groups = 4;
        snprintf(spec, sizeof spec, "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=2%s", t[i].spec);
        check_steps(r, device, &m);
    }
    par.open = FIER_EXACT, par.sink = 3, par.recent = 5, m.gqa = GQA_MAX_S;
    r->window[1] = 41, r->window[2] = 31;
    snprintf(spec, sizeof spec,
             "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=2:open=exact:force_sink=3:force_recent=5:gqa=max_s");
    check_steps(r, device, &m);
    r->window[1] = r->window[2] = 0;
    m.coarse = 0; /* all groups: the rule without them */
    snprintf(spec, sizeof spec,
             "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=99:open=exact:force_sink=3:force_recent=5:gqa=max_s");
    check_steps(r, device, &m);
    par.open = FIER_REQUANT, par.sink = par.recent = 0;
}

/* pool=entropy, with sharp queries in the last layer. */
static void check_pools(rig *r, const char *device)
{
    static const struct {
        const char *spec;
        gqa_mode gqa;
    } t[] = {
        {"fier:skip=1:g=8:budget=20:pool=entropy", GQA_VOTE},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=per_q", GQA_PER_Q},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=max_s", GQA_MAX_S},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=layer_vote", GQA_LAYER_VOTE},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=mean_q", GQA_MEAN_Q},
    };
    par.g = 8, par.budget = 20;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        naive_method m = {.spec = t[i].spec, .budget = 20, .gqa = t[i].gqa, .score = token_scores, .rule = token_rule,
                          .pooled = true};
        if (check_steps(r, device, &m)) check_pool(r, device, t[i].spec);
    }
    /* A window cuts the candidates of a layer; forced tokens and those beyond it. */
    par.sink = 3, par.recent = 5, par.budget = 14;
    r->window[1] = 31;
    naive_method m = {.spec = "fier:skip=1:g=8:budget=14:force_sink=3:force_recent=5:pool=entropy", .budget = 14,
                      .gqa = GQA_VOTE, .score = token_scores, .rule = token_rule, .pooled = true};
    check_steps(r, device, &m);
    ok(pool.spent <= pool.allowed, "%s, %s: within the budget of all layers (U7)", device, m.spec);
    r->window[1] = 0;
    par.sink = par.recent = 0;
}

static size_t index_bytes(int64_t n)
{
    size_t row = T_KV * T_DIM * 2, groups = (size_t)(n + 31) / 32;
    return groups * 32 * 4 * T_KV + groups * 2 * row + 32 * row;
}

static size_t two_levels(int64_t n)
{
    return index_bytes(n) + (size_t)(n + 15) / 16 * 2 * T_KV * T_DIM * 2;
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        if (!be) continue;
        backend *one = open_level(ALL_LEVELS[i], 1), *three = open_level(ALL_LEVELS[i], 3);
        test_vote(one, ALL_LEVELS[i]);
        test_vote(three, ALL_LEVELS[i]);
        backend_close(one);
        backend_close(three);
        test_ops(be, ALL_LEVELS[i]);
        test_vote(be, ALL_LEVELS[i]);
        test_int8(be, ALL_LEVELS[i]);
        test_int8_exact(be, ALL_LEVELS[i]);
        test_points(be, ALL_LEVELS[i]);
        if (!left_out(INT_MAX, INT_MAX)) test_recall(be, ALL_LEVELS[i]); /* of the formula, not of how it is computed */
        backend_close(be);
    }
    world_rotate(6);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s opened", METHOD_DEVICES[d])) continue;
        check_methods(&r, METHOD_DEVICES[d]);
        if (r.be->ops->select->choose_groups) {
            check_coarse(&r, METHOD_DEVICES[d]);
            check_rewind(&r, "fier:skip=1:budget=16:g=8:coarse=12:coarse_keep=1", DT_F16);
            check_bytes(&r, "fier:skip=1:budget=24:coarse=16:coarse_keep=1", two_levels);
            rig_check_oom(&r, "fier:skip=1:budget=24:coarse=16", 12);
        }
        check_rewind(&r, "fier:skip=1:budget=32:g=8", DT_F16);
        check_rewind(&r, "fier:skip=2:budget=16:open=window", DT_BF16);
        check_rewind(&r, "fier:skip=0:budget=16:open=exact:g=16", DT_F32);
        check_bytes(&r, "fier:skip=1:budget=24", index_bytes);
        rig_check_oom(&r, "fier:skip=1:budget=24:gqa=mean_q", 12);
        rig_close(&r);
    }
    world_sharpen(6);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!rig_open_pools(&r, METHOD_DEVICES[d], &w, 64)) continue;
        check_pools(&r, METHOD_DEVICES[d]);
        check_bytes(&r, "fier:skip=1:budget=24:pool=entropy", index_bytes);
        rig_check_oom(&r, "fier:skip=1:budget=24:pool=entropy", 12);
        rig_close(&r);
    }
    check_budget("fier:budget=31:open=keep", "at least 32");
    check_budget("fier:budget=8:force_sink=4:force_recent=5", "at least 9");
    check_races();
    return tap_done();
}
