/* SPDX-License-Identifier: MIT */
/* What the files of the cuda backend share on the host's side. Not for other folders. */
#ifndef KERNELS_CUDA_CUDA_CUH
#define KERNELS_CUDA_CUDA_CUH

#include "kernels/backend.h"
#include "kernels/cuda/dev.cuh"
#include "kernels/ops.h"

/* Device memory of one purpose; grows, never shrinks, dies with the backend. */
typedef struct {
    void *p;
    size_t bytes;
} cuda_scratch;

typedef struct cuda_gemm cuda_gemm;

typedef struct {
    cudaStream_t stream;
    int device, n_sm;
    unsigned char *pinned; /* host memory that uploads pass through; [0, pinned_at) may still be read */
    size_t pinned_at;
    cuda_scratch parts;  /* attention: partial results of pieces */
    cuda_scratch rounded; /* linear: x in 8 or 16 bits */
    cuda_scratch panel;  /* linear: a dequantized matrix, the library's work space */
    cuda_gemm *gemm;     /* NULL: no cuBLAS; our own kernels do prompts too */
    const char *last;    /* the op queued last: a fault may show later */
    char name[16];
    backend_ops ops;
} cuda_ctx;

static inline cuda_ctx *cuda_of(backend *be)
{
    return (cuda_ctx *)be->ctx;
}

static inline cudaStream_t cuda_stream(backend *be)
{
    return cuda_of(be)->stream;
}

/* False once a fault is recorded: ops then queue nothing. Otherwise `op` is what a later fault names. */
static inline bool cuda_begin(backend *be, const char *op)
{
    if (be->fault.code != ST_OK) return false;
    cuda_of(be)->last = op;
    return true;
}

/* Records a failed launch or call as the backend's fault, with the op and its shapes. */
bool cuda_check(backend *be, cudaError_t rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* At least n * size bytes, content undefined; NULL after a fault, which is recorded. */
void *cuda_room(backend *be, cuda_scratch *s, size_t n, size_t size, const char *what);

static inline unsigned cuda_blocks(size_t n, size_t size)
{
    return (unsigned)((n + size - 1) / size);
}

/* Calls f with a value of the element type, for its decltype. */
template <class F> static inline void by_type(dtype t, F &&f)
{
    if (t == DT_F16) f(__half());
    else if (t == DT_BF16) f(__nv_bfloat16());
    else f(0.0f);
}

template <class T> static inline T *ptr(buf b)
{
    return reinterpret_cast<T *>(b.p);
}

/* A vendor's product for many rows: out [n, rows] f32 = x w^T, x and w in the same 16-bit type or f32. */
cuda_gemm *cuda_gemm_create(int device, cudaStream_t s);
void cuda_gemm_destroy(cuda_gemm *g);
const char *cuda_gemm_name(const cuda_gemm *g);
/* 0, or a code of the library. */
int cuda_gemm_run(cuda_gemm *g, float *out, const void *x, const void *w, dtype type, size_t n, size_t rows, size_t cols);

void cuda_embed(backend *be, buf out, weight table, buf ids, size_t n);
void cuda_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps);
void cuda_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact);
/* linear's jobs whose weights lie in blocks. */
void cuda_linear_blocks(backend *be, const linear_job *job, const float *x, size_t n, bool exact);
void cuda_quantize(backend *be, buf out, dtype type, weight w);
void cuda_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n);
void cuda_swiglu(backend *be, buf out, buf gate, buf up, size_t n);
void cuda_add(backend *be, buf x, buf y, size_t n);
void cuda_i64_add(backend *be, buf x, size_t n, int64_t by);
void cuda_pos_iota(backend *be, buf out, buf base, size_t n);
void cuda_pos_shift(backend *be, buf out, buf pos, size_t n, int64_t cap, buf shift);
void cuda_pos_ring(backend *be, buf out, buf pos, size_t n, int64_t sink, int64_t ring, buf base);
void cuda_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale);
void cuda_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t half);
void cuda_kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v, size_t n);
void cuda_kv_copy(backend *be, const kv_rows *to, buf dst, const kv_rows *from, buf src, size_t n);
void cuda_attn_prefill(backend *be, const attn_job *job);
void cuda_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs);
void cuda_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim);

extern const select_ops cuda_select;
extern const quest_ops cuda_quest;
extern const fier_ops cuda_fier;

#endif
