/* SPDX-License-Identifier: MIT */
/* Weights of 8 and 4 bits: the format against formulas of its own, products against doubles and ref. */
#include "config.h"

#include "tests/unit/ops_util.h"

#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"

static backend *ref;
static const dtype BLOCK_TYPES[] = {DT_Q8, DT_Q4};
#ifdef HAVE_NEON_KERNELS
static const char *const LEVELS[] = {"generic", "neon", "neon_dot"};
#else
static const char *const LEVELS[] = {"generic", "avx2", "avx512", "avx512_bf16"};
#endif
static const weight NONE = {.p = {NULL}};

typedef struct {
    size_t n, m, k;
} shape;

/* Code of row r, column c as ops_weights.h says, less its offset, and the scale. */
static int code_of(const unsigned char *q, dtype t, size_t cols, size_t r, size_t c, float *d)
{
    size_t bytes = t == DT_Q8 ? 544 : 288, blocks = (cols + 31) / 32;
    const unsigned char *block = q + (r / 16 * blocks + c / 32) * bytes;
    size_t lane = r % 16, col = c % 32;
    *d = f16_to_f32((uint16_t)(block[2 * lane] | block[2 * lane + 1] << 8));
    if (t == DT_Q8) return block[32 + 64 * (col / 4) + 4 * lane + col % 4] - 128;
    bool high = col >= 16;
    col %= 16;
    int u = block[32 + 64 * (col / 4) + 4 * lane + col % 4];
    return (high ? u >> 4 : u & 15) - 8;
}

static double value_of(const unsigned char *q, dtype t, size_t cols, size_t r, size_t c)
{
    float d;
    int code = code_of(q, t, cols, r, c, &d);
    return (double)d * code;
}

/* A block of exactly the matrix's size, so that sanitizers see what lies behind it. */
static unsigned char *quantized(backend *be, dtype t, const void *w, dtype from, size_t m, size_t k)
{
    unsigned char *q = xmalloc(weight_bytes(t, m, k));
    memset(q, 0xa5, weight_bytes(t, m, k));
    be->ops->quantize(be, at(q), t, (weight){at((void *)(uintptr_t)w), from, m, k});
    return q;
}

/* ---- the format ---- */

/* Squared error of 32 weights with the scale d, codes from lo to hi. */
static double error_with(const float *w, double d, int lo, int hi)
{
    double sum = 0;
    for (int c = 0; c < 32; c++) {
        double q = d != 0 ? fmin(fmax(rint((double)w[c] / d), lo), hi) : 0;
        sum += ((double)w[c] - d * q) * ((double)w[c] - d * q);
    }
    return sum;
}

/* The least error that a scale of the definition gives. */
static double best_error(const float *w, dtype t)
{
    double a = 0, least = 1e300;
    bool negative = false;
    for (int c = 0; c < 32; c++)
        if (fabs((double)w[c]) > a) a = fabs((double)w[c]); /* GCC 12 for AArch64 fails over fmax here */
    for (int c = 0; c < 32; c++) negative |= (double)w[c] == -a;
    if (t == DT_Q8) return error_with(w, (double)f16_to_f32(f32_to_f16((float)a / 127)), -127, 127);
    static const double ends[] = {8, 7.5, 7, 8.5, 9};
    for (int i = 0; i < 5; i++) {
        float d = (float)((negative ? a : -a) / ends[i]);
        least = fmin(least, error_with(w, (double)f16_to_f32(f32_to_f16(d)), -8, 7));
    }
    return least;
}

static void check_format(backend *be, dtype t, dtype from, shape s, group *g)
{
    rng r = {(uint64_t)(s.m * 1000 + s.k)};
    unsigned char *w = random_as(&r, s.m * s.k, from), *q = quantized(be, t, w, from, s.m, s.k);
    for (size_t i = 0; i < (s.m + 15) / 16 * 16; i++)
        for (size_t b = 0; b < (s.k + 31) / 32; b++) {
            float v[32] = {0}, d = 0;
            double error = 0;
            for (size_t c = 0; c < 32; c++) {
                size_t e = i * s.k + b * 32 + c;
                if (i < s.m && b * 32 + c < s.k)
                    v[c] = from == DT_F32   ? ((float *)(void *)w)[e]
                           : from == DT_F16 ? f16_to_f32(((uint16_t *)(void *)w)[e])
                                            : bf16_to_f32(((uint16_t *)(void *)w)[e]);
                int code = code_of(q, t, s.k, i, b * 32 + c, &d);
                error += pow((double)v[c] - (double)d * code, 2);
                bool pads = i >= s.m || b * 32 + c >= s.k;
                if (pads) group_note(g, code == 0, "%s %zu x %zu: padding at %zu, %zu", dtype_name(t), s.m, s.k, i, b);
            }
            double best = best_error(v, t);
            group_note(g, error <= best * 1.0001 + 1e-12, "%s %zu x %zu row %zu block %zu: %g, possible %g",
                       dtype_name(t), s.m, s.k, i, b, error, best);
        }
    unsigned char *again = quantized(ref, t, w, from, s.m, s.k);
    group_note(g, memcmp(q, again, weight_bytes(t, s.m, s.k)) == 0, "%s of %s %zu x %zu: not ref's bytes",
               dtype_name(t), dtype_name(from), s.m, s.k);
    free(w), free(q), free(again);
}

static void test_format(backend *be, const char *level)
{
    static const shape shapes[] = {{0, 1, 1}, {0, 16, 32}, {0, 17, 33}, {0, 15, 31}, {0, 18, 530}};
    group g = {0};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < 2; t++)
            for (size_t f = 0; f < 3; f++) check_format(be, BLOCK_TYPES[t], ALL_TYPES[f], shapes[i], &g);
    group_end(&g, "layout, padding, best scale, ref's bytes", level);
}

/* Weights at the ends of what f16 scales hold, and what is not finite. */
static void test_extremes(backend *be, const char *level)
{
    static const float tops[] = {0, 1e-30f, 1e-7f, 1e-5f, 3e-4f, 1, 60000, 1e7f, 3e38f, INFINITY, NAN};
    group g = {0};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
            float w[32], d = 0;
            bool same = true;
            for (int c = 0; c < 32; c++) w[c] = tops[i] * ((float)(c - 15) / 16);
            w[3] = tops[i];
            unsigned char *q = quantized(be, BLOCK_TYPES[t], w, DT_F32, 1, 32);
            unsigned char *want = quantized(ref, BLOCK_TYPES[t], w, DT_F32, 1, 32);
            same = memcmp(q, want, weight_bytes(BLOCK_TYPES[t], 1, 32)) == 0;
            double x = value_of(q, BLOCK_TYPES[t], 32, 0, 3);
            code_of(q, BLOCK_TYPES[t], 32, 0, 3, &d);
            double top = (double)tops[i], limit = BLOCK_TYPES[t] == DT_Q8 ? 8.4e6 : 5.3e5;
            bool near = !isfinite(top) ? isnan(d)
                        : top > limit  ? fabs((double)d) == 65504
                                       : fabs(x - top) <= fmax(top * 0.13, 2.5e-7);
            group_note(&g, same && near, "%s largest %g: %g (scale %g)", dtype_name(BLOCK_TYPES[t]), top, x, (double)d);
            free(q), free(want);
        }
    group_end(&g, "largest weights from 0 to NaN", level);
}

/* ---- products ---- */

typedef struct {
    shape s;
    dtype type;
    float *w, *x, *bias, *out, *want;
    unsigned char *q;
    linear_job job;
} product;

static product product_make(rng *r, shape s, dtype t)
{
    product p = {.s = s, .type = t};
    p.w = random_f32(r, s.m * s.k);
    for (size_t i = 0; i < s.m * s.k; i++) p.w[i] += 0.5f; /* no sum cancels to almost nothing */
    p.q = quantized(ref, t, p.w, DT_F32, s.m, s.k);
    p.x = random_f32(r, s.n * s.k);
    for (size_t i = 0; i < s.n * s.k; i++) p.x[i] += 0.5f;
    p.bias = random_f32(r, s.m);
    p.out = xmalloc(4 * s.n * s.m);
    p.want = xmalloc(4 * s.n * s.m);
    p.job = (linear_job){.out = at(p.out), .w = {at(p.q), t, s.m, s.k}, .bias = {at(p.bias), DT_F32, 1, s.m}};
    return p;
}

static void product_free(product *p)
{
    free(p->w), free(p->q), free(p->x), free(p->bias), free(p->out), free(p->want);
}

/* In doubles, with x in 8 bits unless exact. */
static void naive(product *p, bool exact)
{
    shape s = p->s;
    double *x = xmalloc(8 * s.k);
    for (size_t i = 0; i < s.n; i++) {
        for (size_t b = 0; b < s.k; b += 32) {
            size_t end = b + 32 < s.k ? b + 32 : s.k;
            float a = 0;
            for (size_t c = b; c < end; c++) a = fmaxf(a, fabsf(p->x[i * s.k + c]));
            float by = a >= 0x1p-100f ? 127 / a : 0, back = a >= 0x1p-100f ? a / 127 : 0;
            for (size_t c = b; c < end; c++) {
                float v = p->x[i * s.k + c];
                x[c] = exact ? (double)v : (double)back * (double)rintf(v * by);
            }
        }
        for (size_t r = 0; r < s.m; r++) {
            double sum = p->job.bias.p.p ? (double)p->bias[r] : 0;
            for (size_t c = 0; c < s.k; c++) sum += x[c] * value_of(p->q, p->type, s.k, r, c);
            p->want[i * s.m + r] = (float)sum;
        }
    }
    free(x);
}

static void test_products(backend *be, const char *level)
{
    static const size_t ms[] = {1, 15, 16, 17, 50}, ns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    rng r = {41};
    group g = {0}, e = {0};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < 45; i++) {
            shape s = {ns[i % 9], ms[i % 5], i < 40 ? 1 + 7 * i : 2051 + 3 * i};
            product p = product_make(&r, s, BLOCK_TYPES[t]);
            if (i % 3 == 0) p.job.bias = NONE;
            naive(&p, false);
            be->ops->linear(be, &p.job, 1, at(p.x), s.n, false);
            double got = nmse(p.out, p.want, s.n * s.m);
            group_note(&g, got <= 1e-11, "%s n %zu m %zu k %zu: %.2g", dtype_name(p.type), s.n, s.m, s.k, got);
            naive(&p, true);
            be->ops->linear(be, &p.job, 1, at(p.x), s.n, true);
            got = nmse(p.out, p.want, s.n * s.m);
            group_note(&e, got <= 1e-11, "%s n %zu m %zu k %zu: %.2g", dtype_name(p.type), s.n, s.m, s.k, got);
            product_free(&p);
        }
    group_end(&g, "x in 8 bits, all tails", level);
    group_end(&e, "exact, all tails", level);
}

/* Sums at the ends of 16 bits: every product of a block has the same sign and the largest size. */
static void test_saturation(backend *be, const char *level)
{
    group g = {0};
    for (size_t t = 0; t < 2; t++)
        for (int sign = 0; sign < 4; sign++) {
            rng r = {42};
            product p = product_make(&r, (shape){3, 18, 96}, BLOCK_TYPES[t]);
            for (size_t i = 0; i < 18 * 96; i++) p.w[i] = sign & 1 ? -1 : 1;
            for (size_t i = 0; i < 3 * 96; i++) p.x[i] = sign & 2 ? -1 : 1;
            unsigned char *q = quantized(ref, p.type, p.w, DT_F32, 18, 96);
            memcpy(p.q, q, weight_bytes(p.type, 18, 96));
            if (p.type == DT_Q4 && sign & 1) /* codes 15 in place of 0 */
                for (size_t c = 0; c < weight_bytes(DT_Q4, 18, 96); c++)
                    if (c % 288 >= 32) p.q[c] = 0xff;
            p.job.bias = NONE;
            naive(&p, false);
            be->ops->linear(be, &p.job, 1, at(p.x), 3, false);
            group_note(&g, memcmp(p.out, p.want, 4 * 3 * 18) == 0, "%s signs %d: %g, not %g", dtype_name(p.type), sign,
                       (double)p.out[0], (double)p.want[0]);
            free(q);
            product_free(&p);
        }
    group_end(&g, "nothing saturates", level);
}

/* Zero, tiny and infinite x: only the row that holds it becomes NaN. */
static void test_odd_x(backend *be, const char *level)
{
    static const float values[] = {0, 1e-35f, 1e30f, INFINITY, NAN};
    group g = {0};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < 5; i++)
            for (int exact = 0; exact < 2; exact++) {
                rng r = {43};
                product p = product_make(&r, (shape){3, 20, 70}, BLOCK_TYPES[t]);
                for (size_t c = 32; c < 64; c++) p.x[70 + c] = values[i] == 0 ? 0 : p.x[70 + c];
                p.x[70 + 40] = values[i];
                naive(&p, exact);
                be->ops->linear(be, &p.job, 1, at(p.x), 3, exact);
                bool whole = isfinite(values[i]);
                for (size_t k = 0; k < 20; k++) whole |= !isfinite(p.out[20 + k]);
                bool others = nmse(p.out, p.want, 20) <= 1e-11 && nmse(p.out + 40, p.want + 40, 20) <= 1e-11;
                if (isfinite(values[i])) others &= nmse(p.out + 20, p.want + 20, 20) <= 1e-11;
                group_note(&g, whole && others, "%s %g exact %d", dtype_name(p.type), (double)values[i], exact);
                product_free(&p);
            }
    group_end(&g, "odd values in x stay in their row", level);
}

/* A row's bits: alone with one thread, and in any batch with any number of threads. */
static void test_bits(backend *one, backend *two, const char *level)
{
    rng r = {44};
    group g = {0};
    enum { N = 530, M = 101, K = 203 };
    for (size_t t = 0; t < 4; t++) {
        bool exact = t >= 2;
        product p = product_make(&r, (shape){N, M, K}, BLOCK_TYPES[t % 2]);
        for (size_t i = 0; i < N; i++) {
            linear_job j = p.job;
            j.out = at(p.want + i * M);
            one->ops->linear(one, &j, 1, at(p.x + i * K), 1, exact);
        }
        size_t most = exact ? N : 15; /* more without `exact` may be a vendor's */
        for (size_t n = 1; n <= most; n += n < 15 ? 1 : n < 40 ? 25 : N - 40)
            for (int b = 0; b < 2; b++) {
                backend *be = b ? two : one;
                /* two jobs: the whole weight, and its rows from 48 on alone */
                linear_job jobs[2] = {p.job, p.job};
                float *last = xmalloc(4 * n * (M - 48));
                jobs[1].out = at(last);
                jobs[1].w.rows = M - 48;
                jobs[1].w.p = buf_at(p.job.w.p, 3 * quant_group_bytes(p.type, K));
                jobs[1].bias.p = buf_at(p.job.bias.p, 48 * 4);
                be->ops->linear(be, jobs, 2, at(p.x), n, exact);
                bool same = memcmp(p.out, p.want, 4 * n * M) == 0;
                for (size_t i = 0; i < n; i++)
                    same &= memcmp(last + i * (M - 48), p.want + i * M + 48, 4 * (M - 48)) == 0;
                group_note(&g, same, "%s n %zu, %d threads, exact %d", dtype_name(p.type), n, be->n_threads, exact);
                free(last);
            }
        product_free(&p);
    }
    group_end(&g, "the same bits for any n, threads 1 and 2, and parts of w", level);
}

/* Prompts: whatever multiplies many rows stays within the error of bf16 or of x in 8 bits. */
static void test_prompts(backend *be, const char *level)
{
    static const shape shapes[] = {{16, 1, 1}, {17, 48, 64}, {33, 130, 1000}, {40, 301, 257}, {16, 300, 4100}};
    rng r = {45};
    group g = {0};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            shape s = shapes[i];
            product p = product_make(&r, s, BLOCK_TYPES[t]);
            float *second = xmalloc(4 * s.n * s.m);
            linear_job jobs[2] = {p.job, p.job};
            jobs[1].out = at(second);
            jobs[1].bias = NONE;
            be->ops->linear(be, jobs, 2, at(p.x), s.n, false);
            naive(&p, true);
            double e = nmse(p.out, p.want, s.n * s.m);
            group_note(&g, e <= 2e-5, "%s n %zu m %zu k %zu: %.2g", dtype_name(p.type), s.n, s.m, s.k, e);
            p.job.bias = NONE;
            naive(&p, true);
            e = nmse(second, p.want, s.n * s.m);
            group_note(&g, e <= 2e-5, "second job, %s n %zu m %zu k %zu: %.2g", dtype_name(p.type), s.n, s.m, s.k, e);
            free(second);
            product_free(&p);
        }
    group_end(&g, "many rows", level);
}

static void test_no_allocation(backend *be, const char *level)
{
    rng r = {46};
    product p = product_make(&r, (shape){32, 64, 64}, DT_Q8);
    for (int exact = 0; exact < 2; exact++) be->ops->linear(be, &p.job, 1, at(p.x), 32, exact);
    long before = mem_test_count();
    for (size_t n = 1; n <= 32; n += 31)
        for (int exact = 0; exact < 2; exact++) be->ops->linear(be, &p.job, 1, at(p.x), n, exact);
    is_int(mem_test_count() - before, 0, "%s, nothing is allocated after the first calls", level);
    product_free(&p);
}

static void test_convert(backend *be, const char *level)
{
    enum { N = 2077 };
    rng r = {47};
    group g = {0};
    for (size_t a = 0; a < 3; a++)
        for (size_t b = 0; b < 3; b++) {
            void *in = random_as(&r, N, ALL_TYPES[a]);
            unsigned char *got = xmalloc(N * dtype_size(ALL_TYPES[b])), *want = xmalloc(N * dtype_size(ALL_TYPES[b]));
            be->ops->convert(be, at(got), ALL_TYPES[b], at(in), ALL_TYPES[a], N);
            ref->ops->convert(ref, at(want), ALL_TYPES[b], at(in), ALL_TYPES[a], N);
            group_note(&g, memcmp(got, want, N * dtype_size(ALL_TYPES[b])) == 0, "%s to %s", dtype_name(ALL_TYPES[a]),
                       dtype_name(ALL_TYPES[b]));
            free(in), free(got), free(want);
        }
    group_end(&g, "elements of one type from another", level);
}

static void test_all(backend *one, backend *two, const char *level)
{
    test_format(two, level);
    test_extremes(two, level);
    test_products(two, level);
    test_saturation(two, level);
    test_odd_x(two, level);
    test_bits(one, two, level);
    test_prompts(two, level);
    test_convert(two, level);
    test_no_allocation(two, level);
}

int main(void)
{
    ref = open_ref();
    test_all(ref, ref, "ref");
    for (size_t i = 0; i < sizeof LEVELS / sizeof *LEVELS; i++) {
        backend *one = open_level(LEVELS[i], 1), *two = one ? open_level(LEVELS[i], 2) : NULL;
        if (two) test_all(one, two, LEVELS[i]);
        if (two) is_ok(backend_fault(two, NULL), NULL, "%s, no fault", LEVELS[i]);
        backend_close(one);
        backend_close(two);
    }
    return tap_done();
}
