/* SPDX-License-Identifier: MIT */
/* Products of prompts by tiles: exact sums of integers over all shapes and types, the bits of a row, errors. */
#include "config.h"

#define TILE_LEVELS "amx-emulated", "amx"
#include "tests/unit/ops_util.h"

#include "kernels/cpu/cpu.h"
#include "kernels/ops_weights.h"

enum { MOST_COLS = 1100, MOST_ROWS = 100, MOST_X = 70 };

static const char *const LEVELS[] = {TILE_LEVELS};
static const dtype TYPES[] = {DT_BF16, DT_F16, DT_Q8, DT_Q4, DT_Q4Z, DT_Q4K, DT_Q5K, DT_Q6K, DT_FP8, DT_Q4G, DT_Q4G32};

static const cpu_kernels *level(const char *name)
{
    const cpu_level *l;
    setenv("KVASIR_CPU", name, 1);
    status st = cpu_choose_level(&l, NULL);
    unsetenv("KVASIR_CPU");
    return st == ST_OK ? l->kernels : NULL;
}

/* ---- integers ---- */

/* Fills a row of a block with integers that bf16 holds: sums of their products with small ones are exact. */
static void integers(qblock_values *v, dtype t, rng *r)
{
    const qblock_kind k = qblock_kind_of(t);
    v->d = f32_to_f16(1), v->m = f32_to_f16(-1), v->scale = 1;
    v->z = (uint8_t)(rng_next(r) % 16);
    for (size_t i = 0; i < sizeof v->s; i++) v->s[i] = (int8_t)(rng_next(r) % 7 - 3);
    for (size_t i = 0; i < sizeof v->t; i++) v->t[i] = (int8_t)(rng_next(r) % 32);
    for (size_t c = 0; c < k.cols; c++) {
        uint8_t any = (uint8_t)(rng_next(r) >> (64 - k.bits));
        v->code[c] = k.floats ? 0x50 | (any & 0x8f) : any; /* 8 to 15, and their negatives */
    }
}

/* f16: times `by`; beyond 256 integers need lo. */
static unsigned char *integer_weights(rng *r, dtype t, size_t rows, size_t cols, float by)
{
    unsigned char *w = xmalloc(weight_bytes(t, rows, cols));
    qblock_values v = {0};
    for (size_t i = 0; !dtype_in_qblocks(t) && i < rows * cols; i++) {
        float f = (float)(rng_next(r) % 401) - 200;
        uint16_t h = t == DT_F16 ? f32_to_f16(by * f) : f32_to_bf16(f);
        memcpy(w + 2 * i, &h, 2);
    }
    for (size_t i = 0; dtype_in_qblocks(t) && i < qblock_groups(rows) * QBLOCK_ROWS; i++)
        for (size_t b = 0; b * qblock_cols(t) < cols; b++) {
            integers(&v, t, r);
            qblock_put(qblock_at(w, t, cols, i, b), t, i, &v);
        }
    return w;
}

static void weight_row(float *out, unsigned char *w, dtype t, size_t cols, size_t r)
{
    if (dtype_in_qblocks(t)) qblock_row(out, w, t, cols, r);
    else
        for (size_t c = 0; c < cols; c++) {
            uint16_t h;
            memcpy(&h, w + 2 * (r * cols + c), 2);
            out[c] = t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
}

/* Returns the number of wrong outputs of rows [from, rows) of w. */
static size_t count_wrong(const cpu_kernels *k, rng *r, dtype t, size_t n, size_t rows, size_t cols, size_t from)
{
    static float x[MOST_X * MOST_COLS], out[MOST_X * MOST_ROWS], bias[MOST_ROWS], row[MOST_COLS];
    static _Alignas(64) float packed[(MOST_X + LINEAR_STRIP) * (MOST_COLS + 32)], work[TILE_LINEAR_FLOATS];
    unsigned char *w = integer_weights(r, t, rows, cols, n % 2 ? 1 : 7);
    const size_t parts = cpu_tile_parts(k, t), strips = (n + LINEAR_STRIP - 1) / LINEAR_STRIP;
    const float x_by = t == DT_F16 && n % 2 ? 33 : 1; /* lo of x, where w has none: lo lo is left out */
    size_t wrong = 0;
    for (size_t i = 0; i < n * cols; i++) x[i] = x_by * ((float)(rng_next(r) % 17) - 8);
    for (size_t i = 0; i < rows; i++) bias[i] = (float)i;
    for (size_t i = 0; i < n * rows; i++) out[i] = -7777;
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) packed[i] = NAN;
    for (size_t s = strips; s-- > 0;) k->pack_tiles(packed, x, n, cols, parts, s, s + 1);
    k->linear_tiles(&(tile_linear){.out = out,
                                   .out_stride = rows,
                                   .x = packed,
                                   .n = n,
                                   .parts = parts,
                                   .w = {at(w), t, rows, cols, {NULL}},
                                   .bias = {at(n % 2 ? bias : NULL), DT_F32, 1, rows, {NULL}},
                                   .work = work},
                    from, rows);
    for (size_t j = 0; j < rows; j++) {
        weight_row(row, w, t, cols, j);
        for (size_t i = 0; i < n; i++) {
            double sum = n % 2 ? (double)bias[j] : 0;
            for (size_t c = 0; c < cols; c++) sum += (double)x[i * cols + c] * (double)row[c];
            wrong += (double)out[i * rows + j] != (j < from ? -7777 : sum);
        }
    }
    free(w);
    return wrong;
}

static void test_integers(const cpu_kernels *k, const char *name)
{
    static const size_t cols[] = {1, 31, 32, 33, 64, 100, 257, 520, MOST_COLS};
    static const size_t rows[] = {1, 15, 16, 17, 31, 32, 33, 40, 65, MOST_ROWS};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        rng r = {41 + i};
        group g = {0};
        char what[60];
        for (size_t n = 1; n <= MOST_X; n++) {
            size_t m = rows[(n + i) % 10], d = cols[(n + 3 * i) % 9], from = m > 32 && n % 3 == 0 ? 32 : 0;
            size_t wrong = count_wrong(k, &r, TYPES[i], n, m, d, from);
            group_note(&g, wrong == 0, "%zu rows of x, %zu of w, %zu columns: %zu outputs wrong", n, m, d, wrong);
        }
        snprintf(what, sizeof what, "exact sums of integers, %s", dtype_name(TYPES[i]));
        group_end(&g, what, name);
    }
}

/* ---- through the backend ---- */

typedef struct {
    size_t n, rows, cols;
    float *x, *out[4];
    linear_job job[3];
    void *w[3];
} product;

static product product_of(backend *be, dtype t, size_t n, size_t rows, size_t cols)
{
    rng r = {43};
    product p = {.n = n, .rows = rows, .cols = cols, .x = random_f32(&r, n * cols)};
    for (int k = 0; k < 3; k++) {
        dtype from = dtype_in_qblocks(t) ? DT_F32 : k == 1 ? DT_F32 : t;
        void *w = random_as(&r, rows * cols, from);
        weight of = {at(w), from, rows, cols, {NULL}};
        if (dtype_in_qblocks(t)) {
            p.w[k] = xmalloc(weight_bytes(t, rows, cols));
            be->ops->quantize(be, at(p.w[k]), t, of);
            of.p = at(p.w[k]), of.type = t;
            free(w);
        } else p.w[k] = w;
        p.job[k].w = of;
    }
    for (int k = 0; k < 4; k++) p.out[k] = xmalloc(4 * n * rows);
    return p;
}

static void product_free(product *p)
{
    for (int k = 0; k < 3; k++) free(p->w[k]);
    for (int k = 0; k < 4; k++) free(p->out[k]);
    free(p->x);
}

/* Runs the jobs on rows [from, from + n) of x; the first's output is out[to]. */
static void run(backend *be, product *p, int to, size_t from, size_t n, bool exact)
{
    static const int others[] = {2, 3};
    for (int k = 0; k < 3; k++) p->job[k].out = at(p->out[k ? others[k - 1] : to] + from * p->rows);
    be->ops->linear(be, p->job, 3, at(p->x + from * p->cols), n, exact);
}

/* A row has the same bits for any number of threads, chunk, and other jobs. */
static void test_bits(const char *name, dtype t)
{
    enum { N = 600, FIRST = 535, ROWS = 300, COLS = 70, SIZE = 4 * N * ROWS };
    float *want = xmalloc(SIZE);
    for (int threads = 1; threads <= 3; threads++) {
        backend *be = open_level(name, threads);
        if (!be) continue;
        product p = product_of(be, t, N, ROWS, COLS);
        run(be, &p, 0, 0, N, false);
        if (threads == 1) memcpy(want, p.out[0], SIZE);
        else ok(memcmp(want, p.out[0], SIZE) == 0, "%s, %s: bits of %d threads", name, dtype_name(t), threads);
        if (threads == 2) {
            run(be, &p, 1, 0, FIRST, false);
            run(be, &p, 1, FIRST, N - FIRST, false);
            ok(memcmp(want, p.out[1], SIZE) == 0, "%s, %s: bits of two chunks", name, dtype_name(t));
        }
        is_ok(backend_fault(be, NULL), NULL, "%s: no fault", name);
        product_free(&p);
        backend_close(be);
    }
    free(want);
}

/* exact has the bits of the level below. */
static void test_exact(const char *name, const char *below, dtype t)
{
    enum { N = 64, ROWS = 40, COLS = 70 };
    backend *a = open_level(name, 2), *b = open_level(below, 2);
    if (a && b) {
        product p = product_of(a, t, N, ROWS, COLS);
        run(a, &p, 0, 0, N, true);
        run(b, &p, 1, 0, N, true);
        ok(memcmp(p.out[0], p.out[1], 4 * N * ROWS) == 0, "%s, %s: exact does not use tiles", name, dtype_name(t));
        product_free(&p);
    }
    if (a) backend_close(a);
    if (b) backend_close(b);
}

/* NMSE against float32, of many rows and of the same rows in few calls, which round x to 8 bits (blocks) or not. */
static void test_error(const char *name, dtype t, double most)
{
    enum { N = 64, FEW = 16, ROWS = 96, COLS = 512, ALL = N * ROWS };
    backend *be = open_level(name, 2);
    if (!be) return;
    product p = product_of(be, t, N, ROWS, COLS);
    run(be, &p, 0, 0, N, true);
    float *want = p.out[0];
    p.out[0] = xmalloc(4 * ALL);
    run(be, &p, 0, 0, N, false);
    for (size_t i = 0; i < N; i += FEW) run(be, &p, 1, i, FEW, false);
    double tiles = nmse(p.out[0], want, ALL), few = nmse(p.out[1], want, ALL);
    ok(tiles > 0 && tiles <= most && (!dtype_in_qblocks(t) || tiles < few / 2), "%s, %s: NMSE %.2g, in few rows %.2g",
       name, dtype_name(t), tiles, few);
    free(want);
    product_free(&p);
    backend_close(be);
}

/* An infinite number in x stays in its row. */
static void test_infinite(const char *name)
{
    enum { N = 50, ROWS = 20, COLS = 40, BAD = 17 };
    backend *be = open_level(name, 1);
    if (!be) return;
    product p = product_of(be, DT_Q8, N, ROWS, COLS);
    run(be, &p, 0, 0, N, false);
    p.x[BAD * COLS + 3] = INFINITY;
    run(be, &p, 1, 0, N, false);
    bool same = true, odd = true;
    for (size_t i = 0; i < N * ROWS; i++)
        if (i / ROWS == BAD) odd &= !isfinite(p.out[1][i]);
        else same &= memcmp(&p.out[0][i], &p.out[1][i], 4) == 0;
    ok(same && odd, "%s: an infinite number in x stays in its row", name);
    product_free(&p);
    backend_close(be);
}

int main(void)
{
    for (size_t i = 0; i < sizeof LEVELS / sizeof *LEVELS; i++) {
        const char *name = LEVELS[i], *below = i ? "avx512_bf16" : "generic";
        const cpu_kernels *k = level(name);
        if (!k) {
            tap_skip("no level %s", name);
            continue;
        }
        test_integers(k, name);
        for (int t = 0; t < 4; t++) {
            test_bits(name, TYPES[t]);
            test_exact(name, below, TYPES[t]);
            test_error(name, TYPES[t], TYPES[t] == DT_F16 ? 1e-10 : 8e-6);
        }
        test_infinite(name);
    }
    return tap_done();
}
