/* SPDX-License-Identifier: MIT */
/* Logits and rules for tests of the op `draw`. */
#ifndef TESTS_UNIT_DRAW_ROWS_H
#define TESTS_UNIT_DRAW_ROWS_H

#include <float.h>
#include <math.h>

#include "kernels/base/rng.h"
#include "kernels/draw.h"

/* Kinds of logits: with ties; all different; with non-finite ones; all equal; steep; none finite; one far above. */
enum { KINDS = 7 };

static void make_row(float *x, size_t n, int kind, rng *r)
{
    const float odd[] = {NAN, -INFINITY, -NAN, -FLT_MAX, -0.0f, 0};
    for (size_t i = 0; i < n; i++) {
        float f = rng_float(r) + rng_float(r) - rng_float(r);
        uint64_t k = rng_below(r, 8);
        x[i] = 6 * f;
        if (kind == 0) x[i] = (float)rng_below(r, 40) / 20;
        if (kind == 2 && k < 6) x[i] = odd[k];
        if (kind == 3) x[i] = k < 4 ? 0.0f : -0.0f;
        if (kind == 4) x[i] = 300 * f;
        if (kind == 5) x[i] = odd[k % 4];
    }
    if (kind == 6) x[rng_below(r, n)] = 1e5f;
}

static const draw_rule rules[] = {
    {.temp = 0, .top_p = 1},
    {.temp = 1, .top_p = 1, .how = DRAW_RANK},
    {.temp = 0.7f, .top_p = 0.9, .how = DRAW_RANK},
    {.temp = 2, .top_p = 0.999, .min_p = 1e-4, .how = DRAW_RANK},
    {.temp = 1, .top_p = 1, .top_k = 40, .how = DRAW_RANK},
    {.temp = 3, .top_p = 0.5, .top_k = 7, .min_p = 0.3, .how = DRAW_RANK},
    {.temp = 1e-30f, .top_p = 1, .how = DRAW_RANK},
    {.temp = 100, .top_p = 1e-3, .how = DRAW_RANK},
    {.temp = 1.5f, .top_p = 0.95, .top_k = 2000, .min_p = 0.01, .how = DRAW_RANK},
    {.temp = 1, .top_p = 1},
    {.temp = 0.8f, .top_p = 0.95},
    {.temp = 1e-30f, .top_p = 1},
    {.temp = 100, .top_p = 1, .top_k = 40},
    {.temp = 2, .top_p = 1, .min_p = 1e-3},
    {.temp = 1.5f, .top_p = 0.9, .top_k = 2000, .min_p = 0.01},
};
enum { N_RULES = sizeof rules / sizeof *rules };

#endif
