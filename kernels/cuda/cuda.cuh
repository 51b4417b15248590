/* SPDX-License-Identifier: MIT */
/* What the files of the cuda backend share on the host's side. Not for other folders. */
#ifndef KERNELS_CUDA_CUDA_CUH
#define KERNELS_CUDA_CUDA_CUH

#include "kernels/backend.h"
#include "kernels/cuda/dev.cuh"

#define CUDA_DECLARE(name, OPS, type) OPS(OP_DECLARE, cuda_##name##_, cuda_##name##_)
CORE_OPS(OP_DECLARE, cuda_, cuda_)
OP_FAMILIES(CUDA_DECLARE)

/* Device memory of one purpose; grows, never shrinks, dies with the backend. */
typedef struct {
    void *p;
    size_t bytes;
} cuda_scratch;

typedef struct cuda_gemm cuda_gemm;
typedef struct cuda_nccl cuda_nccl;

enum { CUDA_PARTS = 4, CUDA_GRAPHS = 8, CUDA_LOADS = 2, CUDA_HELD = 2, CUDA_HELD_DIM = 512 };

/* A step that can be launched; exec NULL: none yet. */
typedef struct {
    cudaGraphExec_t exec;
    size_t nodes;
    unsigned long long used; /* the last step that it was launched for */
} cuda_graph;

/* Rows of heads that wait to be normed in place and rotated (heads.cu); norm or table NULL: they are not. */
typedef struct {
    float *x, *out;
    const void *norm, *table;
    size_t rows, heads, dim, half; /* half: pairs that are rotated; without a table dim / 2 */
    float eps;
    dtype norm_type;
} cuda_heads;

typedef struct {
    cudaStream_t stream;
    int device, n_sm;
    /* step.cu: pinned memory of CUDA_PARTS parts that uploads pass through one after the other, and of the slots of
     * `send` behind them; events behind the last copy of each. */
    unsigned char *pinned;
    cudaEvent_t passed[CUDA_PARTS], sent[BACKEND_SLOTS];
    int part;
    size_t used;         /* bytes of the part */
    unsigned char *load; /* pinned, for large uploads, in CUDA_LOADS pieces; NULL: there was none */
    cudaEvent_t loaded[CUDA_LOADS];
    int next_load;
    bool due[BACKEND_SLOTS]; /* sent in the step that is recorded */
    bool recording, no_graphs;
    cuda_graph graph[CUDA_GRAPHS];
    unsigned long long n_steps;
    size_t most_jobs;      /* sequences of a step */
    cuda_scratch parts;    /* attention: partial results of pieces */
    cuda_scratch rounded;  /* linear: x in 8 or 16 bits */
    cuda_scratch panel;    /* linear: a dequantized matrix, the library's work space */
    cuda_scratch zeros;    /* counts, which each use leaves at 0 */
    cuda_scratch gathered; /* ranks: what they gave */
    cuda_nccl *nccl;       /* NULL: nothing to exchange */
    cuda_gemm *gemm;       /* NULL: no cuBLAS; our own kernels do prompts too */
    cuda_heads held[CUDA_HELD];
    int n_held;
    const char *last; /* the op queued last: a fault may show later */
    char name[16];
} cuda_ctx;

static inline cuda_ctx *cuda_of(backend *be)
{
    return (cuda_ctx *)be->ctx;
}

static inline cudaStream_t cuda_stream(backend *be)
{
    return cuda_of(be)->stream;
}

/* Queues what heads.cu holds back. */
void cuda_release_held(backend *be);
/* The norm of n rows of w.cols each, in place; false: it is not held back. */
bool cuda_hold_norm(backend *be, float *x, weight w, size_t n, float eps);

/* False once a fault is recorded: ops then queue nothing. Otherwise `op` is what a later fault names. */
static inline bool cuda_begin(backend *be, const char *op)
{
    cuda_release_held(be);
    if (be->fault.code != ST_OK) return false;
    cuda_of(be)->last = op;
    return true;
}

/* Records a failed launch or call as the backend's fault, with the op and its shapes. */
bool cuda_check(backend *be, cudaError_t rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* At least n * size bytes, content undefined; NULL after a fault, which is recorded. */
void *cuda_room(backend *be, cuda_scratch *s, size_t n, size_t size, const char *what);
/* At least n counts, all 0, as who uses them leaves them; NULL after a fault. */
int *cuda_zeros(backend *be, size_t n, const char *what);
/* What became of cuda_room outside of steps: too little memory is then an error of the caller's and no fault. */
status cuda_reserved(backend *be, err *e);

/* step.cu. Pinned memory for an upload of so many bytes; NULL after a fault, and if they are too many. */
unsigned char *cuda_staging(backend *be, size_t bytes);
/* Queues an upload of any size; src may change at once. */
void cuda_load(backend *be, buf dst, const void *src, size_t bytes);
cudaError_t cuda_step_open(cuda_ctx *c);
void cuda_step_close(cuda_ctx *c);
/* Also where something inside a step cannot be recorded: what was recorded so far runs, the rest is queued op by op. */

/* Jobs of one launch: kernels take them by value, and parameters have 4 KB. */
enum { CUDA_JOBS = 16 };

template <class T> struct job_list {
    T job[CUDA_JOBS];
};

/* Calls f(list, number) for every CUDA_JOBS of the n jobs, where of(jobs[i]) is what kernels take. */
template <class J, class O, class F> static inline void in_lists(const J *jobs, size_t n, O &&of, F &&f)
{
    for (size_t i = 0; i < n; i += CUDA_JOBS) {
        job_list<decltype(of(jobs[0]))> list = {};
        size_t m = n - i < CUDA_JOBS ? n - i : (size_t)CUDA_JOBS;
        for (size_t k = 0; k < m; k++) list.job[k] = of(jobs[i + k]);
        f(list, (unsigned)m);
    }
}

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
/* 0; CUDA_GEMM_REFUSED: the library has no kernel for it, and nothing was queued; or a code of the library. */
enum { CUDA_GEMM_REFUSED = -1 };
int cuda_gemm_run(cuda_gemm *g, float *out, const void *x, const void *w, dtype type, size_t n, size_t rows,
                  size_t cols);

/* Joins the ranks, which all call it. Errors: ST_UNSUPPORTED (no NCCL), ST_DEVICE. */
status cuda_nccl_create(cuda_nccl **out, comm *ranks, cudaStream_t s, err *e);
void cuda_nccl_free(cuda_nccl *n); /* NULL is fine */
const char *cuda_nccl_name(const cuda_nccl *n);
/* Queued on the stream: x [count] becomes the sum over the ranks; out [ranks][count] gets what each rank has as in.
 * NULL, or the library's text. */
const char *cuda_nccl_sum(cuda_nccl *n, float *x, size_t count);
const char *cuda_nccl_gather(cuda_nccl *n, float *out, const float *in, size_t count);

/* x [n] on the device becomes the sum over the ranks, as part of an op that has begun. */
void cuda_sum(backend *be, float *x, size_t n);
/* Calls whose weights lie in blocks; others of few rows. At most MOST_JOBS weights of one type. What stands around the
 * products is done where these kernels are for so many rows, and the call is aligned. */
void cuda_linear_qblocks(backend *be, const projection *c);
void cuda_few(backend *be, const projection *c);
bool cuda_few_aligned(const projection *c);
/* Takes the scratch of decode steps of up to n_rows sequences and n_max keys. */
void cuda_decode_reserve(backend *be, size_t n_rows, size_t n_heads, size_t dim, int64_t n_max);
void cuda_bring(backend *be, const attn_job *job);

#endif
