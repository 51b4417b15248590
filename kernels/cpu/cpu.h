/* SPDX-License-Identifier: MIT */
/* Code shared by the files of the cpu backend. Private to kernels/cpu. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/level.h"
#include "kernels/ref/ref.h"

#define CPU_DECLARE(name, OPS, type) OPS(OP_DECLARE, cpu_##name##_, ref_##name##_)
CORE_OPS(OP_DECLARE, cpu_, ref_)
OP_FAMILIES(CPU_DECLARE)
CERTIFY_OPS(OP_DECLARE, cpu_certify_, ref_certify_)
extern const certify_ops cpu_certify;

/* Scratch memory of one purpose. It grows, never shrinks, and is freed with the backend. */
typedef struct {
    void *p;
    size_t bytes;
} scratch;

typedef struct {
    const cpu_kernels *k;
    gemm *gemm;     /* NULL: built-in kernels only */
    bool bf16_gemm; /* supported by the level and the library */
    scratch panel;  /* linear: f32 copy of some rows of w; a bias */
    scratch halves; /* linear: bf16 copy of x */
    scratch bytes;  /* linear: x in 8 bits */
    scratch order;  /* linear: x in the order of a weight's columns */
    scratch slices; /* project_each: list of products */
    scratch tasks;  /* attention: list of work items */
    scratch parts;  /* attention: partial results, per-thread work space */
} cpu_ctx;

/* Threads are not woken for less work than this many float operations (about 1 us). */
enum { SERIAL_BELOW = 32768 };

/* Returns the number of threads for that much work. */
static inline int cpu_team(const backend *be, size_t work)
{
    return work < SERIAL_BELOW ? 1 : be->n_threads;
}

static inline cpu_ctx *cpu_of(backend *be)
{
    return be->ctx;
}

typedef struct {
    const char *name;           /* name in KVASIR_CPU */
    const cpu_kernels *kernels; /* NULL: not built */
    bool bf16_gemm;             /* the library may multiply bf16 */
    bool (*usable)(void);
} cpu_level;
/* Selects the best level, or the one named by KVASIR_CPU. */
status cpu_choose_level(const cpu_level **out, err *e);

/* Returns at least n * size bytes, 64-byte aligned, content undefined. Returns NULL after recording a fault in be.
 * Memory grows by half, so that a growing context reallocates rarely. */
void *cpu_scratch(backend *be, scratch *s, size_t n, size_t size, const char *what);

/* Returns the kernels of the level that a backend would select, for computations on the host; ignores an unknown level
 * in KVASIR_CPU. */
const cpu_kernels *cpu_best_kernels(void);
/* Returns the k-th largest of n numbers, 1 <= k <= n, or a number between it and the next smaller one. No NaN. */
float cpu_kth_largest(const cpu_kernels *kn, const float *x, size_t n, size_t k);

/* Maps the order of floats to the order of integers; -0 counts as 0. */
static inline uint32_t cpu_key(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the K rows (value: V rows) of one kv head. */
row_source cpu_rows(const kv_rows *r, bool value, size_t kv_head);
/* Returns how many of the slots [from, to) have consecutive rows of one kind: not quantized, or quantized, within one
 * group if they have groups. */
size_t cpu_rows_alike(const row_source *s, size_t from, size_t to);
/* Like ref_count_read; false after a fault. */
bool cpu_count_read(backend *be, const attn_job *job, bool values);
/* Writes the entries [*lo, *hi) of a list that token t sees. */
void cpu_visible(const attn_job *j, const attn_list *l, size_t t, int64_t *lo, int64_t *hi);
/* False, and records a fault, if rows exceed the fixed arrays of the kernels. */
bool cpu_dim_fits(backend *be, size_t head_dim);

/* Computes the scores of the items [from, to) with the heads of a part; head h's go to out[h * j->stride]. */
typedef void score_items(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                         float *out);
/* Computes all scores of jobs by `score`, over threads in pieces of `items` or `spans`, which affect only speed. parts:
 * see score_parts; work: float operations an item. */
void cpu_score_jobs(backend *be, const score_job *jobs, size_t n, size_t parts, size_t items, size_t spans, size_t work,
                    score_items *score);

/* Returns the parts (tile_linear) by which the level multiplies weights of this type by tiles; 0: it does not. */
size_t cpu_tile_parts(const cpu_kernels *k, dtype t);
/* Returns the rows [r0, r1) of a job that lie in units [from, to) of the concatenated outputs of all jobs, each unit
 * `unit` rows; false: none. base: units of the jobs before it, advanced past this one. */
static inline bool cpu_job_rows(size_t *r0, size_t *r1, size_t *base, size_t rows, size_t unit, size_t from, size_t to)
{
    size_t units = (rows + unit - 1) / unit, a = from > *base ? from - *base : 0, b = to > *base ? to - *base : 0;
    *base += units;
    *r0 = a * unit;
    *r1 = b < units ? b * unit : rows;
    return a < units && a < b;
}
/* Computes jobs of types with equal parts on one x [n, cols], whose columns are in their order. */
void cpu_linear_tiles(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n);

/* Sums or averages x [n] over the ranks. */
void cpu_over_ranks(backend *be, float *x, size_t n, bool mean);

#endif
