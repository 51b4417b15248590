/* SPDX-License-Identifier: MIT */
/* What the files of the cpu backend share. Not for other folders. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/level.h"
#include "kernels/ops.h"

/* Scratch memory of one purpose; grows, never shrinks, dies with the backend. */
typedef struct {
    void *p;
    size_t bytes;
} scratch;

typedef struct {
    const cpu_kernels *k;
    gemm *gemm;     /* NULL: built-in only */
    bool bf16_gemm; /* the level allows it and the library has it */
    scratch panel;  /* linear: f32 copy of some rows of w; a bias */
    scratch halves; /* linear: bf16 copy of x */
    scratch bytes;  /* linear: x in 8 bits */
    scratch tasks;  /* attention: list of work items */
    scratch parts;  /* attention: partial results, per-thread work space */
    backend_ops ops;
} cpu_ctx;

/* Work below this many float operations is not worth waking the other threads (about 1 us). */
enum { SERIAL_BELOW = 32768 };

/* Threads for that much work. */
static inline int cpu_team(const backend *be, size_t work)
{
    return work < SERIAL_BELOW ? 1 : be->n_threads;
}

static inline cpu_ctx *cpu_of(backend *be)
{
    return be->ctx;
}

static inline float *cpu_f32(buf b)
{
    return (float *)(void *)b.p;
}

static inline const int64_t *cpu_i64(buf b)
{
    return (const int64_t *)(void *)b.p;
}

/* At least n * size bytes, 64-byte aligned, content undefined; NULL after a fault, which is recorded
 * in be. Grows by half, so that a growing context reallocates rarely. */
void *cpu_scratch(backend *be, scratch *s, size_t n, size_t size, const char *what);

/* Those of the level that a backend would take, for what host code computes; without a message if KVASIR_CPU names
 * none. */
const cpu_kernels *cpu_best_kernels(void);
/* The k-th largest of n numbers, 1 <= k <= n, or one between it and the next smaller one. No NaN. */
float cpu_kth_largest(const cpu_kernels *kn, const float *x, size_t n, size_t k);

/* The K rows (value: V rows) of one kv head. */
row_source cpu_rows(const kv_rows *r, bool value, size_t kv_head);
/* As ref_count_read; false after a fault. */
bool cpu_count_read(backend *be, const attn_job *job, bool values);
/* Records a fault for rows that the kernels' fixed arrays cannot hold. */
bool cpu_dim_fits(backend *be, size_t head_dim);

/* x [n] becomes the sum over the ranks, or its mean. */
void cpu_over_ranks(backend *be, float *x, size_t n, bool mean);

void cpu_embed(backend *be, buf out, weight table, buf ids, size_t n);
void cpu_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps);
void cpu_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact);
void cpu_quantize(backend *be, buf out, dtype type, weight w);
void cpu_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n);
void cpu_swiglu(backend *be, buf out, buf gate, buf up, size_t n);
void cpu_add(backend *be, buf x, buf y, size_t n);
void cpu_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale);
void cpu_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t half);
void cpu_kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v, size_t n);
void cpu_attn_prefill(backend *be, const attn_job *job);
void cpu_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs);
void cpu_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows,
                    size_t dim);
extern const codes_ops cpu_codes;

#endif
