/* SPDX-License-Identifier: MIT */
/* Scores that selections and top-p budgets are tested with, and their order. */
#ifndef TESTS_UNIT_OP_SCORES_H
#define TESTS_UNIT_OP_SCORES_H

#include "kernels/ops_select.h"
#include "tests/unit/op_table.h"

static UNUSED_OK item_range candidates(size_t slots, int64_t lo, int64_t hi)
{
    return (item_range){(int64_t)slots, lo, hi};
}

#define KINDS OP_P(0, 1, 2, 3, 4, 5, 6, 7, 8)

static UNUSED_OK float some_score(op_run *x, int64_t kind, int64_t i)
{
    float f = 2 * rng_float(&x->r) - 1;
    switch (kind) {
    case 0: return f;
    case 1: return (float)(int)(f * 4); /* many ties, and zeros of both signs */
    case 2: return 3;
    case 3: return i % 3 ? NAN : i % 2 ? -INFINITY : f;
    case 4: return (float)i;
    case 5: return (float)-i;
    case 6: return i % 50 == 0 ? f * 1e30f : f * 1e-30f;
    case 7: return i % 2 ? 0.0f : -0.0f;
    default: return i % 4 == 0 ? INFINITY : i % 4 == 1 ? -INFINITY : f;
    }
}

typedef struct {
    float score;
    int64_t i;
} ranked;

static UNUSED_OK int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->i < y->i ? -1 : 1;
}

#endif
