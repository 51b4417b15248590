/* SPDX-License-Identifier: MIT */
/* Products of tiles: the emulation against the definition (tile.h), and the unit of the CPU, where there is one,
 * against the emulation. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/half.h"
#include "tests/tap.h"

enum { SIDE = 16, PRODUCTS = 250 }; /* 1,024 numbers each, of each kind */

typedef uint16_t pairs[2][SIDE][SIDE][2];
typedef float sums[2][2][SIDE][SIDE]; /* [tile of b][tile of a] */

static const cpu_kernels *level(const char *name)
{
    const cpu_level *l;
    err e = {0};
    setenv("KVASIR_CPU", name, 1);
    status st = cpu_choose_level(&l, &e);
    unsetenv("KVASIR_CPU");
    return st == ST_OK ? l->kernels : NULL;
}

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* x y + s with one rounding, without fma: the product is exact in double. The sum is rounded to odd, so that rounding
 * it again has no effect (Boldo and Melquiond, 2008). */
static float fused(float x, float y, float s)
{
    double p = (double)x * (double)y, sum = p + (double)s;
    if (isfinite(sum)) {
        double t = sum - p, rest = (p - (sum - t)) + ((double)s - t);
        uint64_t u;
        memcpy(&u, &sum, sizeof u);
        if (rest != 0 && !(u & 1)) u = (rest > 0) == (sum > 0) ? u + 1 : u - 1;
        memcpy(&sum, &u, sizeof u);
    }
    return (float)sum;
}

static void product(sums c, const pairs a, const pairs b)
{
    for (int n = 0; n < 4 * SIDE * SIDE; n++) {
        float *to = &c[0][0][0][0] + n, half[2] = {0, 0};
        int i = n / SIDE % SIDE, j = n % SIDE, ta = n / (SIDE * SIDE) % 2, tb = n / (2 * SIDE * SIDE);
        for (int k = 0; k < SIDE; k++)
            for (int h = 0; h < 2; h++)
                half[h] = fused(flushed(bf16_to_f32(a[ta][i][k][h])), flushed(bf16_to_f32(b[tb][k][j][h])), half[h]);
        *to = flushed((half[0] + half[1]) + flushed(*to));
    }
}

typedef enum { ORDINARY, WIDE, TINY, DENORMAL, HUGE_ONES, NOT_FINITE, KINDS } kind;
static const char *const kind_names[] = {"ordinary", "wide", "tiny", "denormal", "huge", "not finite"};

static float some(rng *r, kind k)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0};
    float x = 2 * rng_float(r) - 1;
    int by = (int)(rng_next(r) % 40);
    if (k == WIDE) return ldexpf(x, by - 20);
    if (k == TINY) return ldexpf(x, by % 12 - 66); /* products around 2^-126 */
    if (k == DENORMAL) return ldexpf(x, by % 2 ? by : -120 - by % 12);
    if (k == HUGE_ONES) return ldexpf(x, 45 + by / 2);
    if (k == NOT_FINITE && by == 0) return odd[rng_next(r) % 4];
    return x;
}

static void fill(rng *r, kind k, pairs a, pairs b, sums c)
{
    for (int i = 0; i < 4 * SIDE * SIDE; i++) {
        (&a[0][0][0][0])[i] = f32_to_bf16(some(r, k));
        (&b[0][0][0][0])[i] = f32_to_bf16(some(r, k));
        float old = some(r, k);
        (&c[0][0][0][0])[i] = i % 3 == 0 ? 0 : k == TINY || k == DENORMAL ? ldexpf(old, -60) : old;
    }
}

static bool same(float x, float y)
{
    return memcmp(&x, &y, sizeof x) == 0 || (isnan(x) && isnan(y));
}

/* Compares a level with the definition, or with the emulation if that is given. */
static void check_sums(const cpu_kernels *k, const cpu_kernels *emulation, const char *name)
{
    static _Alignas(64) pairs a, b;
    static _Alignas(64) sums c, got, want;
    rng r = {17};
    for (int kind_at = 0; kind_at < KINDS; kind_at++) {
        long wrong = 0, plain = 0;
        for (int t = 0; t < PRODUCTS; t++) {
            fill(&r, (kind)kind_at, a, b, c);
            memcpy(got, c, sizeof c);
            memcpy(want, c, sizeof c);
            k->tile_products(&got[0][0][0][0], a, b, 1);
            if (emulation) emulation->tile_products(&want[0][0][0][0], a, b, 1);
            else product(want, a, b);
            for (int i = 0; i < 4 * SIDE * SIDE; i++) {
                wrong += !same((&got[0][0][0][0])[i], (&want[0][0][0][0])[i]);
                plain += isfinite((&want[0][0][0][0])[i]) && (&want[0][0][0][0])[i] != 0;
            }
        }
        ok(wrong == 0 && plain > 0, "%s: %d sums of %s numbers (%ld wrong, %ld finite and not 0)", name,
           PRODUCTS * 4 * SIDE * SIDE, kind_names[kind_at], wrong, plain);
    }
}

/* One row times one column of at most three pairs. */
typedef struct {
    const char *what;
    float a[3][2], b[3][2], old, want;
} known;

static const known knowns[] = {
    {"small numbers behind 1 are lost", {{1}, {1}, {1}}, {{1}, {0x1p-24f}, {0x1p-24f}}, 0, 1},
    {"and before it are not", {{1}, {1}, {1}}, {{0x1p-24f}, {0x1p-24f}, {1}}, 0, 1 + 0x1p-23f},
    {"even and odd numbers meet before the old value", {{1, 1}}, {{0x1p-24f, 0x1p-24f}}, 1, 1 + 0x1p-23f},
    {"even numbers are summed apart from odd ones", {{1, 1}, {1, 1}}, {{1, 0x1p-24f}, {0, 0x1p-24f}}, 0, 1 + 0x1p-23f},
    {"a denormal operand is 0", {{0x1p-127f}}, {{0x1p120f}}, 0, 0},
    {"a denormal old value is 0", {{0}}, {{0}}, 0x1p-127f, 0},
    {"a denormal result is 0", {{0x1p-100f}}, {{0x1p-27f}}, 0, 0},
    {"sums on the way are not flushed", {{0x1p-100f}, {0x1p-100f}}, {{0x1p-27f}, {0x1p-27f}}, 0, 0x1p-126f},
    {"0 times infinity", {{0}}, {{INFINITY}}, 0, NAN},
    {"infinity", {{1}}, {{-INFINITY}}, 3, -INFINITY},
    {"a sum that is too large", {{0x1p100f}, {0x1p100f}}, {{0x1p27f}, {0x1p27f}}, 0, INFINITY},
};

static void check_knowns(const cpu_kernels *k, const char *name)
{
    for (size_t n = 0; n < sizeof knowns / sizeof *knowns; n++) {
        static _Alignas(64) pairs a, b;
        static _Alignas(64) sums c;
        const known *x = &knowns[n];
        memset(a, 0, sizeof a), memset(b, 0, sizeof b), memset(c, 0, sizeof c);
        for (int i = 0; i < 6; i++) {
            a[1][5][i / 2][i % 2] = f32_to_bf16(x->a[i / 2][i % 2]);
            b[0][i / 2][9][i % 2] = f32_to_bf16(x->b[i / 2][i % 2]);
        }
        c[0][1][5][9] = x->old;
        k->tile_products(&c[0][0][0][0], a, b, 1);
        ok(same(c[0][1][5][9], x->want), "%s: %s (%a)", name, x->what, (double)c[0][1][5][9]);
    }
}

int main(void)
{
    const cpu_kernels *emulation = level("amx-emulated"), *unit = level("amx");
    check_knowns(emulation, "emulation");
    check_sums(emulation, NULL, "emulation");
    if (unit) {
        check_knowns(unit, "unit");
        check_sums(unit, emulation, "unit");
    } else tap_skip("no unit for tiles");
    return tap_done();
}
