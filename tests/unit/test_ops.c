/* SPDX-License-Identifier: MIT */
/* Every operation but attention and large products, at every SIMD level, against ref. */
#include "config.h"

#include "tests/unit/ops_util.h"

static backend *ref;
static const weight NONE = {.p = {NULL}};

static void test_rmsnorm(backend *be, const char *level)
{
    rng r = {1};
    group g = {0};
    static const size_t dims[] = {64, 100, 127, 128, 2048, 4099};
    for (size_t d = 1; d < 45; d++)
        for (size_t t = 0; t < 3; t++) {
            size_t dim = d < 39 ? d : dims[d - 39], n = 3;
            float *x = random_f32(&r, n * dim), *a = xmalloc(4 * n * dim), *b = xmalloc(4 * n * dim);
            void *w = random_as(&r, dim, ALL_TYPES[t]);
            weight wt = {at(w), ALL_TYPES[t], 1, dim};
            be->ops->rmsnorm(be, at(a), at(x), wt, n, 1e-5f);
            ref->ops->rmsnorm(ref, at(b), at(x), wt, n, 1e-5f);
            group_note(&g, nmse(a, b, n * dim) <= 1e-12, "dim %zu %s", dim, dtype_name(ALL_TYPES[t]));
            be->ops->rmsnorm(be, at(x), at(x), wt, n, 1e-5f);
            group_note(&g, memcmp(a, x, 4 * n * dim) == 0, "dim %zu in place", dim);
            free(x), free(a), free(b), free(w);
        }
    group_end(&g, "rmsnorm, all tails", level);
}

static void test_swiglu_add(backend *be, const char *level)
{
    rng r = {2};
    group g = {0}, h = {0};
    for (size_t n = 1; n < 70; n++) {
        size_t len = n < 69 ? n : 20011;
        float *x = random_f32(&r, len), *y = random_f32(&r, len), *a = xmalloc(4 * len), *b = xmalloc(4 * len);
        for (size_t i = 0; i < len; i++) x[i] *= i % 3 ? 4 : 30;
        be->ops->swiglu(be, at(a), at(x), at(y), len);
        ref->ops->swiglu(ref, at(b), at(x), at(y), len);
        group_note(&g, nmse(a, b, len) <= 1e-12, "n %zu", len);
        memcpy(a, x, 4 * len);
        memcpy(b, x, 4 * len);
        be->ops->add(be, at(a), at(y), len);
        ref->ops->add(ref, at(b), at(y), len);
        group_note(&h, memcmp(a, b, 4 * len) == 0, "n %zu", len);
        free(x), free(y), free(a), free(b);
    }
    group_end(&g, "swiglu, all tails", level);
    group_end(&h, "add, all tails", level);

    /* The relative error of the exponential, through silu at single values. */
    enum { N = 4001 };
    static float x[N], one[N], a[N], b[N];
    double worst = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i - 2000) * 0.04f;
        one[i] = 1;
    }
    be->ops->swiglu(be, at(a), at(x), at(one), N);
    ref->ops->swiglu(ref, at(b), at(x), at(one), N);
    for (int i = 0; i < N; i++)
        if (b[i] != 0) worst = fmax(worst, fabs((double)a[i] / (double)b[i] - 1));
    ok(worst < 6e-7, "%s, silu's relative error on [-80, 80] is below 6e-7", level);
    if (worst >= 6e-7) printf("#   %g\n", worst);

    const float odd[] = {NAN, INFINITY, -INFINITY, -100, -1000, 1000, 0, -0.0f};
    be->ops->swiglu(be, at(a), at(odd), at(one), 8);
    ok(isnan(a[0]) && isinf(a[1]) && fabsf(a[3]) < 1e-30f && fabsf(a[4]) < 1e-30f && a[5] == 1000 && a[6] == 0,
       "%s, silu of NaN, infinity and large values", level);
}

static void test_rope(backend *be, const char *level)
{
    rng r = {3};
    group g = {0}, h = {0};
    static const size_t halves[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 128};
    const int64_t pos[] = {0, 1, 17, 4095, 131071, 1000003, (int64_t)1 << 40};
    enum { N = sizeof pos / sizeof pos[0], HEADS = 3 };
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        size_t half = halves[i], n = N * HEADS * 2 * half;
        float *freq = random_f32(&r, half), *x = random_f32(&r, n), *a = xmalloc(4 * n), *b = xmalloc(4 * n);
        float *ta = xmalloc(8 * N * half), *tb = xmalloc(8 * N * half);
        for (size_t c = 0; c < half; c++) freq[c] = powf(500000, -(float)c / (float)half);
        be->ops->rope_table(be, at(ta), at(pos), N, at(freq), half, 1.25f);
        ref->ops->rope_table(ref, at(tb), at(pos), N - 1, at(freq), half, 1.25f);
        group_note(&g, nmse(ta, tb, 2 * (N - 1) * half) <= 1e-13, "half %zu", half);
        for (size_t c = 0; c < half; c++) { /* beyond ref's reduction: still on the circle */
            const float *p = ta + 2 * ((N - 1) * half + c);
            group_note(&g, fabsf(p[0] * p[0] + p[1] * p[1] - 1.5625f) < 1e-6f, "far position, half %zu", half);
        }
        be->ops->rope(be, at(a), at(x), at(ta), N, HEADS, half);
        ref->ops->rope(ref, at(b), at(x), at(ta), N, HEADS, half);
        group_note(&h, nmse(a, b, n) <= 1e-13, "half %zu", half);
        be->ops->rope(be, at(x), at(x), at(ta), N, HEADS, half);
        group_note(&h, memcmp(a, x, 4 * n) == 0, "in place, half %zu", half);
        free(freq), free(x), free(a), free(b), free(ta), free(tb);
    }
    group_end(&g, "rope_table", level);
    group_end(&h, "rope, all tails, in place", level);
}

/* Floats at which roundings go wrong: subnormals of either type, halfway cases, limits, NaN. */
static float *hard_floats(size_t *n)
{
    static const uint32_t base[] = {0, 1, 0x7fffff, 0x800000, 0x33000000, 0x33000001, 0x337fffff, 0x33800000,
                                    0x38000000, 0x387fe000, 0x387ff000, 0x387fffff, 0x38800000, 0x3f800000,
                                    0x3f801000, 0x3f803000, 0x3f808000, 0x3f818000, 0x477fe000, 0x477fefff,
                                    0x477ff000, 0x47800000, 0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,
                                    0x7f800000, 0x7f800001, 0x7fa00000, 0x7fc00000, 0x7fffffff};
    const size_t n_base = sizeof base / sizeof base[0], n_random = 4096;
    float *p = xmalloc(4 * (6 * n_base + n_random));
    rng r = {4};
    *n = 0;
    for (size_t i = 0; i < n_base; i++)
        for (int d = -1; d <= 1; d++)
            for (uint32_t sign = 0; sign < 2; sign++) p[(*n)++] = bits_to_f32((base[i] + (uint32_t)d) ^ sign << 31);
    for (size_t i = 0; i < n_random; i++) p[(*n)++] = bits_to_f32((uint32_t)rng_next(&r));
    return p;
}

static void test_kv(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 10, 14, 16, 18, 30, 32, 34, 64, 80, 96, 128, 256};
    size_t n_hard;
    float *hard = hard_floats(&n_hard);
    group g = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            size_t d = dims[i], heads = 3, n = n_hard / (d * heads), cap = n + 5;
            if (n > 60) n = 60;
            size_t bytes = heads * cap * d * dtype_size(ALL_TYPES[t]);
            unsigned char *a = xmalloc(2 * bytes), *b = xmalloc(2 * bytes);
            memset(a, 0x5a, 2 * bytes);
            memset(b, 0x5a, 2 * bytes);
            int64_t slots[60 * 3];
            size_t lists = i % 2 ? heads : 1; /* slots of all heads, or of each */
            for (size_t s = 0; s < n * lists; s++) slots[s] = (int64_t)((s * 7 + 3) % cap);
            kv_rows ra = {at(a), at(a + bytes), ALL_TYPES[t], heads, d, cap, {0}, NULL, NULL};
            kv_rows rb = {at(b), at(b + bytes), ALL_TYPES[t], heads, d, cap, {0}, NULL, NULL};
            const float *v = hard + (n_hard - n * heads * d);
            be->ops->kv_write(be, &ra, at(slots), lists, at(hard), at(v), n);
            ref->ops->kv_write(ref, &rb, at(slots), lists, at(hard), at(v), n);
            group_note(&g, memcmp(a, b, 2 * bytes) == 0, "%s, head_dim %zu", dtype_name(ALL_TYPES[t]), d);
            int64_t to[2] = {0, 2}, from[2] = {3, 10};
            if (n < 12) goto next;
            be->ops->kv_copy(be, &ra, at(to), &ra, at(from), 2);
            ref->ops->kv_copy(ref, &rb, at(to), &rb, at(from), 2);
            group_note(&g, memcmp(a, b, 2 * bytes) == 0, "copy, %s, head_dim %zu", dtype_name(ALL_TYPES[t]), d);
        next:
            free(a), free(b);
        }
    free(hard);
    group_end(&g, "kv_write and kv_copy: the bits of ref (subnormals, halves, NaN)", level);
}

/* Widening is exact: all 65,536 values of both types. */
static void test_embed(backend *be, const char *level)
{
    enum { N = 65536, COLS = 37, ROWS = N / COLS };
    group g = {0};
    uint16_t *h = xmalloc(2 * N);
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    int32_t *ids = xmalloc(4 * ROWS);
    for (int i = 0; i < ROWS; i++) ids[i] = (i * 5 + 1) % ROWS;
    float *a = xmalloc(4 * N), *b = xmalloc(4 * N);
    for (size_t t = 0; t < 3; t++) {
        size_t rows = ALL_TYPES[t] == DT_F32 ? ROWS / 2 : ROWS, n = rows;
        for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)((i * 5 + 1) % rows);
        weight table = {at(h), ALL_TYPES[t], rows, COLS};
        be->ops->embed(be, at(a), table, at(ids), n);
        ref->ops->embed(ref, at(b), table, at(ids), n);
        group_note(&g, memcmp(a, b, 4 * n * COLS) == 0, "%s", dtype_name(ALL_TYPES[t]));
    }
    free(h), free(ids), free(a), free(b);
    group_end(&g, "embed: every value of f16 and bf16 widens to the bits of ref", level);
}

static void test_merge(backend *be, const char *level)
{
    rng r = {5};
    group g = {0};
    static const size_t dims[] = {2, 6, 8, 10, 32, 64, 80, 96, 128, 256};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (size_t parts = 1; parts <= 5; parts++) {
            enum { ROWS = 7 };
            size_t d = dims[i], n = parts * ROWS;
            float *p = random_f32(&r, n * d), *l = random_f32(&r, n), *a = xmalloc(4 * ROWS * d), *b = xmalloc(4 * ROWS * d);
            float la[ROWS], lb[ROWS];
            for (size_t k = 0; k < n; k++) l[k] *= 20;
            for (size_t k = 0; k < parts; k++) l[k * ROWS + 3] = -INFINITY; /* row 3: all empty */
            if (parts > 1) { /* an empty part's row may hold anything */
                l[ROWS + 1] = -INFINITY;
                p[(ROWS + 1) * d] = NAN;
            }
            be->ops->attn_merge(be, at(a), at(la), at(p), at(l), parts, ROWS, d);
            ref->ops->attn_merge(ref, at(b), at(lb), at(p), at(l), parts, ROWS, d);
            group_note(&g, nmse(a, b, ROWS * d) <= 1e-12 && nmse(la, lb, ROWS) <= 1e-12, "dim %zu, %zu parts", d, parts);
            be->ops->attn_merge(be, at(b), (buf){0}, at(p), at(l), parts, ROWS, d);
            group_note(&g, memcmp(a, b, 4 * ROWS * d) == 0, "without lse, dim %zu", d);
            free(p), free(l), free(a), free(b);
        }
    group_end(&g, "attn_merge, empty parts", level);
}

static void test_positions(backend *be, const char *level)
{
    group g = {0};
    enum { N = 40 };
    int64_t a[N], b[N], base = 5, pos[N], shift = 3;
    for (int i = 0; i < N; i++) pos[i] = i;
    be->ops->pos_iota(be, at(a), at(&base), N);
    ref->ops->pos_iota(ref, at(b), at(&base), N);
    group_note(&g, memcmp(a, b, sizeof a) == 0 && a[2] == 7, "pos_iota");
    be->ops->pos_shift(be, at(a), at(pos), N, 20, at(&shift));
    ref->ops->pos_shift(ref, at(b), at(pos), N, 20, at(&shift));
    group_note(&g, memcmp(a, b, sizeof a) == 0 && a[30] == 17, "pos_shift");
    be->ops->i64_add(be, at(a), N, -4);
    group_note(&g, a[30] == 13, "i64_add");
    group_end(&g, "positions", level);
}

/* x and w of odd sizes in blocks of exact length; 16-bit weights lie at addresses = 2 mod 4. */
typedef struct {
    size_t n, m, k;
    dtype type;
    float *x, *out;
    unsigned char *block;
    weight w, bias;
    float *bias_data;
} product;

static product product_make(rng *r, size_t n, size_t m, size_t k, dtype t)
{
    product p = {.n = n, .m = m, .k = k, .type = t};
    size_t skip = t == DT_F32 ? 0 : 2;
    float *f = random_f32(r, m * k);
    void *w = xmalloc(4 * m * k);
    for (size_t i = 0; i < m * k; i++) {
        f[i] += 0.5f;
        if (t == DT_F32) ((float *)w)[i] = f[i];
        else ((uint16_t *)w)[i] = t == DT_F16 ? f32_to_f16(f[i]) : f32_to_bf16(f[i]);
    }
    p.block = xmalloc(m * k * dtype_size(t) + skip);
    memcpy(p.block + skip, w, m * k * dtype_size(t));
    free(w), free(f);
    p.x = random_f32(r, n * k);
    for (size_t i = 0; i < n * k; i++) p.x[i] += 0.5f; /* no sum cancels to almost nothing */
    p.out = xmalloc(4 * n * m);
    p.bias_data = random_f32(r, m);
    p.w = (weight){at(p.block + skip), t, m, k};
    p.bias = (weight){at(p.bias_data), DT_F32, 1, m};
    return p;
}

static void product_free(product *p)
{
    free(p->x), free(p->out), free(p->block), free(p->bias_data);
}

static void test_linear_shapes(backend *be, const char *level)
{
    rng r = {6};
    group g = {0};
    static const size_t ms[] = {1, 2, 3, 5, 33}, ns[] = {1, 2, 3, 4, 5, 9};
    for (size_t t = 0; t < 3; t++)
        for (size_t k = 1; k < 72; k++)
            for (size_t i = 0; i < 5; i++) {
                size_t n = ns[(k + i) % 6];
                product p = product_make(&r, n, ms[i], k < 71 ? k : 2051, ALL_TYPES[t]);
                float *want = xmalloc(4 * n * p.m);
                linear_job job = {.out = at(p.out), .w = p.w, .bias = k % 2 ? p.bias : NONE};
                be->ops->linear(be, &job, 1, at(p.x), n, true);
                job.out = at(want);
                ref->ops->linear(ref, &job, 1, at(p.x), n, true);
                group_note(&g, nmse(p.out, want, n * p.m) <= 1e-11, "%s n %zu m %zu k %zu", dtype_name(p.type), n, p.m, p.k);
                free(want);
                product_free(&p);
            }
    group_end(&g, "linear, all tails of k, 16-bit weights at odd addresses", level);
}

/* A row's bits: alone with one thread, and in any batch with any number of threads. */
static void test_linear_bits(backend *one, backend *two, const char *level)
{
    rng r = {7};
    group g = {0};
    enum { N = 64, M = 301, K = 203 };
    for (size_t t = 0; t < 3; t++) {
        product p = product_make(&r, N, M, K, ALL_TYPES[t]);
        float *want = xmalloc(4 * N * M);
        linear_job job = {.w = p.w, .bias = p.bias};
        for (size_t i = 0; i < N; i++) {
            job.out = at(want + i * M);
            one->ops->linear(one, &job, 1, at(p.x + i * K), 1, false);
        }
        for (size_t n = 1; n <= 18; n++) {
            size_t rows = n == 18 ? N : n;
            for (int b = 0; b < 2; b++) {
                backend *be = b ? two : one;
                /* two jobs: the same weight, and its last rows alone */
                linear_job jobs[2] = {job, job};
                float *last = xmalloc(4 * rows * 40);
                jobs[0].out = at(p.out);
                jobs[1].out = at(last);
                jobs[1].w.rows = 40;
                jobs[1].w.p = buf_at(job.w.p, (M - 40) * K * dtype_size(p.type));
                jobs[1].bias.p = buf_at(job.bias.p, (M - 40) * 4);
                be->ops->linear(be, jobs, 2, at(p.x), rows, true);
                bool same = memcmp(p.out, want, 4 * rows * M) == 0;
                for (size_t i = 0; i < rows; i++) same &= memcmp(last + i * 40, want + i * M + M - 40, 160) == 0;
                group_note(&g, same, "%s n %zu, %d threads", dtype_name(p.type), rows, be->n_threads);
                free(last);
            }
        }
        free(want);
        product_free(&p);
    }
    group_end(&g, "linear: same bits for n = 1..17, 64, threads 1 and 2, and parts of w", level);
}

/* Element-wise results do not depend on the split of a call. */
static void test_split_bits(backend *one, backend *two, const char *level)
{
    rng r = {8};
    enum { N = 30011 };
    float *x = random_f32(&r, N), *y = random_f32(&r, N), *a = xmalloc(4 * N), *b = xmalloc(4 * N);
    one->ops->swiglu(one, at(a), at(x), at(y), N);
    two->ops->swiglu(two, at(b), at(x), at(y), N);
    bool same = memcmp(a, b, 4 * N) == 0;
    for (size_t i = 0; i < N; i += 977) {
        size_t n = N - i < 977 ? N - i : 977;
        one->ops->swiglu(one, at(b + i), at(x + i), at(y + i), n);
    }
    ok(same && memcmp(a, b, 4 * N) == 0, "%s, swiglu: same bits for any split and threads 1 and 2", level);
    free(x), free(y), free(a), free(b);
}

static void test_levels(void)
{
    backend *be;
    err e = {0};
    backend_options o = {.device = "cpu"};
    setenv("KVASIR_CPU", "sse9", 1);
    status st = backend_open(&be, &o, &e);
    is_err(st, &e, ST_USAGE, "sse9", "an unknown KVASIR_CPU is refused");
    unsetenv("KVASIR_CPU");
    e = (err){0};
    if (!is_ok(backend_open(&be, &o, &e), &e, "the best level opens")) return;
    printf("# %s\n", be->about);
    ok(be->n_threads >= 1, "threads: physical cores by default");
    is_ok(backend_fault(be, &e), &e, "no fault");
    backend_close(be);
}

int main(void)
{
    ref = open_ref();
    test_levels();
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        const char *level = ALL_LEVELS[i];
        backend *one = open_level(level, 1), *two = one ? open_level(level, 2) : NULL;
        if (!two) continue;
        test_rmsnorm(two, level);
        test_swiglu_add(two, level);
        test_rope(two, level);
        test_kv(two, level);
        test_embed(two, level);
        test_merge(two, level);
        test_positions(two, level);
        test_linear_shapes(two, level);
        test_linear_bits(one, two, level);
        test_split_bits(one, two, level);
        backend_close(one);
        backend_close(two);
    }
    return tap_done();
}
