/* SPDX-License-Identifier: MIT */
/* Choice among many numbers in host memory, such as the logits of a vocabulary, with the SIMD of this CPU and one
 * thread. Items are ordered by value, of equals the lower index first; NaN counts as -INFINITY. Nothing is sorted:
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
/* Index of the first item in order; n > 0. */
size_t draw_first(const float *x, size_t n);

typedef struct draw draw;

/* Work space for up to n numbers; nothing is allocated later. */
status draw_create(draw **out, size_t n, err *e);
void draw_free(draw *d);

/* Takes the first `keep` of x [n] in order, 0 < keep <= n, for what follows; item i has the mass
 * exp((x[i] - the largest) / temp). x is used until the next call; what is not finite in it changes. If nothing is
 * finite, all have the same mass. */
void draw_begin(draw *d, float *x, size_t n, size_t keep, float temp);
/* Mass of the items that have at least so much each; 0: of all. */
double draw_mass(draw *d, float least);

typedef struct {
    size_t at;    /* index in x */
    double up_to; /* mass of this item and all before it */
} draw_item;

/* The first item in order up to which the mass exceeds `mass`, or 1 - 1e-9 of all mass if that is less. */
draw_item draw_find(draw *d, double mass);

/* How one of many is chosen at random. GUMBEL: the largest x / temp + noise, where each item's noise follows from seed,
 * position and index (gumbel.h): that draws from the masses, and close x choose the same item where these are the same
 * (Daliri, Musco, Suresh, arXiv 2408.07978). RANK: by a share of the mass in order. */
typedef enum { DRAW_GUMBEL, DRAW_RANK, DRAW_COUNT } draw_how;
extern const char *const draw_names[DRAW_COUNT];

/* The choice is among those of the first top_k in order whose masses reach the share top_p, and have min_p of the
 * largest each. */
struct draw_rule {
    float temp;          /* 0: the first in order, whatever follows */
    size_t top_k;        /* 0: all */
    double top_p, min_p; /* 1 and 0: all */
    draw_how how;
    uint64_t seed; /* GUMBEL, */
    int64_t pos;   /* and the position that the choice is for */
    draw *work;    /* for backends that compute in the host's memory */
};

/* Items that top_k leaves of n; least mass that min_p leaves, 0: any. */
static inline size_t draw_keep(const draw_rule *r, size_t n)
{
    return r->top_k == 0 || r->top_k > n ? n : r->top_k;
}

static inline float draw_least(const draw_rule *r)
{
    float least = (float)r->min_p;
    return (double)least < r->min_p ? nextafterf(least, 1) : least;
}

/* Index of the item of x [n], which changes, that the rule chooses. share, in [0, 1), is for RANK: the item in which so
 * much of the mass that the rule leaves ends. */
size_t draw_by_rule(const draw_rule *r, float *x, size_t n, float share);

#ifdef __cplusplus
}
#endif

#endif
