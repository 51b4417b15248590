/* SPDX-License-Identifier: MIT */
/* Weights of 8 and 4 bits: their format against formulas of its own, and sums at the ends of what integers hold. Other
 * products are cases of test_ops. */
#include "config.h"

#include "tests/unit/ops_util.h"

#include "kernels/ops_weights.h"

static backend *ref;
static const dtype BLOCK_TYPES[] = {DT_Q8, DT_Q4};
#ifdef HAVE_NEON_KERNELS
static const char *const LEVELS[] = {"generic", "neon", "neon_dot"};
#else
static const char *const LEVELS[] = {"generic", "avx2", "avx512", "avx512_bf16"};
#endif

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

/* Allocates exactly the matrix's size, so that sanitizers detect accesses past its end. */
static unsigned char *quantized(backend *be, dtype t, const void *w, dtype from, size_t m, size_t k)
{
    unsigned char *q = xmalloc(weight_bytes(t, m, k));
    memset(q, 0xa5, weight_bytes(t, m, k));
    be->ops->quantize(be, at(q), t, (weight){at((void *)(uintptr_t)w), from, m, k, {NULL}});
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

/* Sums at the ends of 16 bits: every product of a block has the same sign and the largest size. */
static void test_saturation(backend *be, const char *level)
{
    enum { N = 3, ROWS = 18, COLS = 256 };
    group g = {0};
    for (dtype t = DT_Q8; t < DT_COUNT; t++)
        for (int sign = 0; sign < 4; sign++) {
            const qblock_kind k = qblock_kind_of(t);
            const int low = k.floats ? 0xfe : t == DT_Q8, high = k.floats ? 0x7e : (1 << k.bits) - 1;
            qblock_values v = {.d = f32_to_f16(sign & 1 ? -1 : 1), .m = f32_to_f16(1)};
            float x[N * COLS], out[N * ROWS], want[N * ROWS], row[COLS];
            unsigned char *w = xmalloc(weight_bytes(t, ROWS, COLS));
            v.scale = sign & 1 ? -1 : 1;
            v.z = sign & 1 ? 16 : 0;
            memset(v.code, sign & 1 ? low : high, sizeof v.code);
            memset(v.s, k.scales == 2 ? -128 : 63, sizeof v.s);
            memset(v.t, 63, sizeof v.t);
            for (size_t r = 0; r < 2 * QBLOCK_ROWS; r++)
                for (size_t b = 0; b < COLS / k.cols; b++) qblock_put(qblock_at(w, t, COLS, r, b), t, r, &v);
            for (size_t i = 0; i < N * COLS; i++) x[i] = sign & 2 ? -1 : 1;
            qblock_row(row, w, t, COLS, 0);
            for (size_t i = 0; i < N * ROWS; i++) want[i] = (sign & 2 ? -COLS : COLS) * row[0];
            linear_job job = {.out = at(out), .w = {.p = at(w), .type = t, .rows = ROWS, .cols = COLS}};
            be->ops->linear(be, &job, 1, at(x), N, false);
            for (size_t i = 0; i < N * ROWS; i++)
                group_note(&g, fabsf(out[i] - want[i]) <= 1e-6f * fabsf(want[i]), "%s signs %d: %g, not %g",
                           dtype_name(t), sign, (double)out[i], (double)want[i]);
            free(w);
        }
    group_end(&g, "nothing saturates", level);
}

int main(void)
{
    ref = open_ref();
    for (size_t i = 0; i <= sizeof LEVELS / sizeof *LEVELS; i++) {
        const char *level = i ? LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : ref;
        if (!be) continue;
        test_format(be, level);
        test_extremes(be, level);
        test_saturation(be, level);
        is_ok(backend_fault(be, NULL), NULL, "%s, no fault", level);
        if (i) backend_close(be);
    }
    return tap_done();
}
