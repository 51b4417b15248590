/* SPDX-License-Identifier: MIT */
/* Selection among many numbers in host memory, such as the logits of a vocabulary, with the SIMD of this CPU and one
 * thread. Items are ordered by value, the lower index first among equals; NaN counts as -INFINITY. Nothing is sorted:
 * the time is that of a few passes over the numbers. */
#ifndef KERNELS_DRAW_H
#define KERNELS_DRAW_H

#include <math.h>
#include <stddef.h>

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if no number of x [n] is NaN or infinite. */
bool draw_finite(const float *x, size_t n);
/* Returns the index of the first item in order; n > 0. */
size_t draw_first(const float *x, size_t n);

typedef struct draw draw;

/* Allocates work space for up to n numbers; later calls allocate nothing. */
status draw_create(draw **out, size_t n, err *e);
void draw_free(draw *d);

/* Restricts the following calls to the first `keep` of x [n] in order, 0 < keep <= n. Item i has the mass exp((x[i] -
 * the largest) / temp). x is used until the next call, and its non-finite values are changed. If no value is finite,
 * all have the same mass. */
void draw_begin(draw *d, float *x, size_t n, size_t keep, float temp);
/* Returns the mass of the items that have at least `least` each; 0: of all. */
double draw_mass(draw *d, float least);

typedef struct {
    size_t at;    /* index in x */
    double up_to; /* mass of this item and all before it */
} draw_item;

/* Returns the first item in order up to which the mass exceeds `mass`, or 1 - 1e-9 of all mass if that is less. */
draw_item draw_find(draw *d, double mass);

/* Method of a random choice. GUMBEL: the largest x / temp + noise, where each item's noise follows from seed, position
 * and index (gumbel.h). It draws from the masses, and similar x choose the same item if seed and position are the same
 * (Daliri, Musco, Suresh, arXiv 2408.07978). RANK: the item at a given fraction of the mass in order. */
typedef enum { DRAW_GUMBEL, DRAW_RANK, DRAW_COUNT } draw_how;
extern const char *const draw_names[DRAW_COUNT];

/* Candidates are the first top_k in order whose masses reach the fraction top_p, and which have at least min_p of the
 * largest mass each. */
struct draw_rule {
    float temp;          /* 0: the first in order, whatever the other fields are */
    size_t top_k;        /* 0: all */
    double top_p, min_p; /* 1 and 0: all */
    draw_how how;
    uint64_t seed; /* for GUMBEL */
    int64_t pos;   /* for GUMBEL: position of the token to choose */
    draw *work;    /* for backends that compute in host memory */
};

/* Number of items of n that top_k leaves, and least mass that min_p allows (0: any). */
static inline size_t draw_keep(const draw_rule *r, size_t n)
{
    return r->top_k == 0 || r->top_k > n ? n : r->top_k;
}

static inline float draw_least(const draw_rule *r)
{
    float least = (float)r->min_p;
    return (double)least < r->min_p ? nextafterf(least, 1) : least;
}

/* Returns the index of the item of x [n] that the rule chooses; x changes. fraction, in [0, 1), is for RANK: the
 * fraction of the remaining mass at which the chosen item is found. */
size_t draw_by_rule(const draw_rule *r, float *x, size_t n, float fraction);

#ifdef __cplusplus
}
#endif

#endif
