/* SPDX-License-Identifier: MIT */
/* k-means over keys, whole or split into sub-spaces: mean, centroids, and the nearest centroid of each key. methods.md
 * 7b. */
#ifndef KERNELS_OPS_KMEANS_H
#define KERNELS_OPS_KMEANS_H

#include "kernels/ops.h"

/* L2: nearest by distance, centroids are means. DOT: nearest by product, centroids are means of norm 1. */
typedef enum { KMEANS_L2, KMEANS_DOT } kmeans_metric;

/* Initial centroids. Centroid i of a job starts as the key in slot base + floor((2 (at + i) + half) n / (2 count)),
 * evenly over n slots, for `count` centroids of which the job's start at `at`. half: in the middle of each centroid's
 * interval. */
typedef struct {
    int64_t base;
    size_t at, n, count;
    bool half;
} kmeans_start;

/* The keys in the slots [first, first + n) of one layer, quantized or not, split into `parts` sub-spaces of
 * head_dim / parts channels.
 * less      f32 [n_kv_heads][head_dim], subtracted in float32 from each key, including initial centroids; p NULL: 0
 * centroid  [n_kv_heads][parts][cap][head_dim / parts]; the first `count` >= 1 are used
 * code      of row i, sub-space p: code[(head * code_cap + i) * parts + p]; i32 if wide, otherwise u8, for up to 256
 *           centroids
 *
 * The nearest centroid c of a key x has the largest b + sum of x_j c_j: in float32 without fused multiply-adds,
 * starting with b, channels in ascending order. b = 0 (dot) or minus half of the sum of c_j^2, added in this order
 * from 0 on (l2). A sum counts as the nearest finite number, NaN as the lowest; the lower centroid wins ties. */
typedef struct {
    const kv_rows *rows;
    int64_t first;
    size_t n, parts, count, cap;
    kmeans_metric metric;
    buf less;
    buf centroid;
    kmeans_start start; /* train */
    int iters;          /* train */
    buf work;           /* train: i32 [n_kv_heads][parts][n], content undefined; not shared by the jobs of a call */
    dtype type;         /* type of centroid for assign; train uses f32 */
    buf code;           /* assign: out */
    size_t code_cap;
    bool wide;
} kmeans_job;

/* A job is a layer of a sequence, or a segment of it. Jobs of a call have the same layout of rows, parts, metric, type
 * and wide, and all or none have `less`. */
#define KMEANS_OPS(OP, own, plain)                                                                                     \
    /* out f32 [n_kv_heads][head_dim]: the mean of the keys in the slots [first, first + n), n >= 1: their sum in      \
     * double, in ascending order, divided by n, rounded to f32 once. */                                               \
    OP(own, void, mean, (backend *, buf out, const kv_rows *rows, int64_t first, size_t n))                            \
    /* Runs `iters` iterations: each key is assigned to its nearest centroid, and each centroid becomes the sum of     \
     * its keys, in double, rows in ascending order, divided by their number (l2) or by the sum's norm (dot),          \
     * rounded to f32 once. A centroid without keys, or with a norm of 0, is unchanged. */                             \
    OP(own, void, train, (backend *, const kmeans_job *jobs, size_t n))                                                \
    OP(own, void, assign, (backend *, const kmeans_job *jobs, size_t n))

struct kmeans_ops {
    KMEANS_OPS(OP_POINTER, , )
};

/* Returns the slot of the key that centroid i starts as. */
static inline int64_t kmeans_slot(const kmeans_start *s, size_t i)
{
    return s->base + (int64_t)((2 * (s->at + i) + s->half) * s->n / (2 * s->count));
}

#endif
