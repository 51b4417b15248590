/* SPDX-License-Identifier: MIT */
/* The op `draw` of ref, a whole sort, and of cpu, which sorts nothing. */
#include "config.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "kernels/draw.h"
#include "tests/tap.h"
#include "tests/unit/ops_util.h"

enum { MOST = 5000, KINDS = 6, TRIALS = 30 };

static const draw_rule rules[] = {
    {.temp = 0, .top_p = 1},
    {.temp = 1, .top_p = 1},
    {.temp = 0.7f, .top_p = 0.9},
    {.temp = 2, .top_p = 0.999, .min_p = 1e-4},
    {.temp = 1, .top_p = 1, .top_k = 40},
    {.temp = 3, .top_p = 0.5, .top_k = 7, .min_p = 0.3},
    {.temp = 1e-30f, .top_p = 1},
    {.temp = 100, .top_p = 1e-3},
};

/* All different; equal values; what is not finite; zeros of both signs; a steep one; one value far above. */
static void make_row(float *x, size_t n, int kind, rng *r)
{
    const float odd[] = {NAN, -INFINITY, -FLT_MAX, -0.0f, 0};
    for (size_t i = 0; i < n; i++) {
        x[i] = 6 * (rng_float(r) + rng_float(r) - rng_float(r));
        if (kind == 1) x[i] = (float)rng_below(r, 40) / 20;
        if (kind == 2 && rng_below(r, 8) < 6) x[i] = odd[rng_below(r, 5)];
        if (kind == 3) x[i] = rng_below(r, 2) ? 0.0f : -0.0f;
        if (kind == 4) x[i] *= 50;
    }
    if (kind == 5) x[rng_below(r, n)] = 1e5f;
}

static int32_t draw_on(backend *be, const float *x, size_t n, const draw_rule *rule, float share)
{
    static float copy[MOST];
    int32_t id = -1;
    memcpy(copy, x, n * sizeof *x);
    be->ops->draw(be, at(&id), at(copy), 1, n, rule, at(&share));
    return id;
}

/* cpu's masses have an error of 2^-21: of a share that far from the border between two items both are right. */
static bool same(backend *ref, backend *cpu, const float *x, size_t n, const draw_rule *rule, float share)
{
    const float off = 0x1p-20f;
    int32_t want = draw_on(ref, x, n, rule, share);
    return draw_on(cpu, x, n, rule, share) == want || draw_on(cpu, x, n, rule, fmaxf(share - off, 0)) == want ||
           draw_on(cpu, x, n, rule, fminf(share + off, 0.99999994f)) == want;
}

int main(void)
{
    static const size_t sizes[] = {1, 5, 130, 1500, MOST};
    static float x[MOST];
    backend *ref = open_ref(), *cpu;
    err e = {0};
    if (!is_ok(backend_open(&cpu, &(backend_options){.device = "cpu", .n_threads = 1}, &e), &e, "cpu"))
        return tap_done();
    rng r = {7};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
            draw_rule rule = rules[k];
            int wrong = 0;
            if (!is_ok(draw_create(&rule.work, sizes[s], &e), &e, "work space")) return tap_done();
            for (int i = 0; i < KINDS * TRIALS; i++) {
                make_row(x, sizes[s], i % KINDS, &r);
                wrong += !same(ref, cpu, x, sizes[s], &rule, i < KINDS ? 0 : rng_float(&r));
            }
            ok(wrong == 0, "%zu ids, rule %zu: cpu draws what ref draws (%d of %d differ)", sizes[s], k, wrong,
               KINDS * TRIALS);
            draw_free(rule.work);
        }
    backend_close(cpu);
    return tap_done();
}
