/* SPDX-License-Identifier: MIT */
/* Host-side declarations shared by the files of the cuda backend. Not for other folders. */
#ifndef KERNELS_CUDA_CUDA_CUH
#define KERNELS_CUDA_CUDA_CUH

#include "kernels/backend.h"
#include "kernels/cuda/dev.cuh"
#include "kernels/ops_select.h"

#define CUDA_DECLARE(name, OPS, type) OPS(OP_DECLARE, cuda_##name##_, cuda_##name##_)
CORE_OPS(OP_DECLARE, cuda_, cuda_)
OP_FAMILIES(CUDA_DECLARE)

/* Device memory for one purpose. It grows, never shrinks, and is freed with the backend. */
typedef struct {
    void *p;
    size_t bytes;
} cuda_scratch;

typedef struct cuda_gemm cuda_gemm;
typedef struct cuda_nccl cuda_nccl;

/* CUDA_JOBS: jobs of one launch. Kernels take them by value, and parameters are limited to 4 KB. */
enum { CUDA_JOBS = 16, CUDA_PARTS = 4, CUDA_GRAPHS = 8, CUDA_LOADS = 2, CUDA_DEFERRED = 2, CUDA_DEFERRED_DIM = 512 };

/* Executable graph of a step; exec NULL: none yet. */
typedef struct {
    cudaGraphExec_t exec;
    size_t nodes;
    unsigned long long used; /* number of the last step it was launched for */
} cuda_graph;

/* Rows of heads whose norm or rotation is deferred (heads.cu). norm NULL: no norm. table NULL: no rotation. */
typedef struct {
    float *x, *out;
    const void *norm, *table;
    size_t rows, heads, dim, half; /* pairs that are rotated; dim / 2 without a table */
    float eps;
    dtype norm_type;
} cuda_heads;

/* A gate whose swiglu with up, in place, is deferred (linear.cu). up NULL: none. scale: factors of rows of `cols`
 * numbers of both, to be applied before; NULL: none. */
typedef struct {
    float *gate;
    const float *up, *scale;
    size_t n, cols;
} cuda_gated;

/* Combinations of heads that are deferred, so that the choice that reads them can compute them (select.cu). lse: of the
 * heads; NULL: no votes. */
typedef struct {
    combine_job job[CUDA_JOBS];
    const float *lse;
    size_t n; /* 0: none */
} cuda_combined;

typedef struct {
    cudaStream_t stream;
    int device, n_sm;
    /* step.cu: pinned memory of CUDA_PARTS parts, used in turn by uploads, followed by the slots of `send`; and events
     * after the last copy of each. */
    unsigned char *pinned;
    cudaEvent_t passed[CUDA_PARTS], sent[BACKEND_SLOTS];
    int part;
    size_t used;         /* bytes used of the current part */
    unsigned char *load; /* pinned, for large uploads, CUDA_LOADS pieces; NULL: not allocated */
    cudaEvent_t loaded[CUDA_LOADS];
    int next_load;
    bool due[BACKEND_SLOTS]; /* sent in the step being recorded */
    bool recording, no_graphs;
    bool dependent; /* launch_dependent lets kernels start early */
    cuda_graph graph[CUDA_GRAPHS];
    unsigned long long n_steps;
    size_t most_jobs;      /* sequences in a step */
    cuda_scratch parts;    /* attention: partial results of pieces */
    cuda_scratch lse;      /* votes: log-sum-exp of each head */
    cuda_scratch rounded;  /* linear: x in 8 or 16 bits */
    cuda_scratch scales;   /* linear: of rows of x in f16, and before that those of a deferred gate */
    cuda_scratch zeros;    /* counters, which each use resets to 0 */
    cuda_scratch gathered; /* ranks: gathered data */
    cuda_nccl *nccl;       /* NULL: a single rank */
    cuda_gemm *gemm;       /* NULL: no cublasLt; our own kernels also process prompts */
    cuda_heads deferred[CUDA_DEFERRED];
    int n_deferred;
    cuda_gated gated;
    cuda_combined combined;
    const char *last; /* last op queued, since a fault may appear later */
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

/* Launches a kernel that calls grid_wait (launch_as) on the backend's stream. */
template <class... P, class... A>
static inline cudaError_t launch_dependent(backend *be, void (*k)(P...), dim3 grid, dim3 block, size_t shared, A &&...a)
{
    return launch_as(cuda_of(be)->dependent, k, grid, block, shared, cuda_stream(be), static_cast<A &&>(a)...);
}

/* Makes the backend's device the current one of the calling thread: each thread starts with device 0. */
void cuda_use_device(backend *be);
/* Queue the work deferred by heads.cu, linear.cu and select.cu. Each defers only what is later than that of the files
 * after it in this order. */
void cuda_queue_deferred(backend *be);
void cuda_queue_gated(backend *be);
void cuda_queue_combined(backend *be);
/* Every call of the backend that reaches CUDA begins with this one, mostly through cuda_begin or cuda_step_end. */
static inline void cuda_enter(backend *be)
{
    cuda_use_device(be);
    cuda_queue_combined(be);
    cuda_queue_gated(be);
    cuda_queue_deferred(be);
}
/* Defers the norm of n rows of w.cols elements each, in place. Returns false if it cannot be deferred. */
bool cuda_defer_norm(backend *be, float *x, weight w, size_t n, float eps);

/* Starts an op. Returns false once a fault is recorded; ops then queue nothing. Otherwise later faults name `op`. */
static inline bool cuda_begin(backend *be, const char *op)
{
    cuda_enter(be);
    if (be->fault.code != ST_OK) return false;
    cuda_of(be)->last = op;
    return true;
}

/* Records a failed launch or call as the backend's fault, with the op and its shapes. */
bool cuda_check(backend *be, cudaError_t rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Returns at least n * size bytes with undefined content, or NULL after a recorded fault. */
void *cuda_room(backend *be, cuda_scratch *s, size_t n, size_t size, const char *what);
/* Returns at least n counters, all 0; users must reset them to 0. Returns NULL after a fault. */
int *cuda_zeros(backend *be, size_t n, const char *what);
/* Returns the result of cuda_room outside of steps, where too little memory is an error for the caller and not a
 * fault. */
status cuda_reserved(backend *be, err *e);

/* step.cu. Returns pinned memory for an upload of that many bytes. Returns NULL after a fault or if they are too
 * many. */
unsigned char *cuda_staging(backend *be, size_t bytes);
/* Queues an upload of any size. src may be changed at once. */
void cuda_load(backend *be, buf dst, const void *src, size_t bytes);
cudaError_t cuda_step_open(cuda_ctx *c);
/* True if launch_dependent may let kernels start early: not before compute capability 9.0. */
bool cuda_step_dependent(void);
void cuda_step_close(cuda_ctx *c);
/* cuda_step_end also ends a recording early, before work that cannot be recorded: it launches the recorded part, and
 * the rest of the step is queued op by op. */

template <class T> struct job_list {
    T job[CUDA_JOBS];
};

/* Calls f(list, count) for every CUDA_JOBS of the n jobs. of(jobs[i]) converts a job to the kernel's argument. */
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

/* Calls f with a value of the element type, for use with decltype. */
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

/* The vendor library, for products with many rows of x. */
cuda_gemm *cuda_gemm_create(int device, cudaStream_t s);
void cuda_gemm_destroy(cuda_gemm *g);
const char *cuda_gemm_name(const cuda_gemm *g);
/* `count` products of one x [n, cols]: out i [n, rows] f32 = x (w i)^T or, with add, out i += x (w i)^T. w is
 * [count][rows][cols], out i is at out + i * out_stride. x and w have the same type: 16 bits, or f32. */
typedef struct {
    float *out;
    const void *x, *w;
    dtype type;
    size_t n, rows, cols, count, out_stride;
    bool add;
} cuda_product;

enum { CUDA_GEMM_REFUSED = -1 };
/* Converts the library's status: of INVALID_VALUE, ARCH_MISMATCH and NOT_SUPPORTED the library has queued nothing. */
static inline int cuda_gemm_result(int rc)
{
    return rc == 7 || rc == 8 || rc == 15 ? CUDA_GEMM_REFUSED : rc;
}
/* Queues the products as one call of the library. Returns 0, CUDA_GEMM_REFUSED if the library has no kernel for them
 * (nothing was queued), or the library's error code. */
int cuda_gemm_run(cuda_gemm *g, const cuda_product *p);

/* Joins the ranks; all must call it. Errors: ST_UNSUPPORTED (no NCCL), ST_DEVICE. */
status cuda_nccl_create(cuda_nccl **out, comm *ranks, cudaStream_t s, err *e);
void cuda_nccl_free(cuda_nccl *n); /* accepts NULL */
const char *cuda_nccl_name(const cuda_nccl *n);
/* Queues a sum or gather on the stream. sum: x [count] becomes the sum over the ranks. gather: out [ranks][count]
 * receives each rank's `in`. Returns NULL, or the library's error text. */
const char *cuda_nccl_sum(cuda_nccl *n, float *x, size_t count);
const char *cuda_nccl_gather(cuda_nccl *n, float *out, const float *in, size_t count);

/* Replaces x [n] on the device by the sum over the ranks, within an op that has begun. */
void cuda_sum(backend *be, float *x, size_t n);
/* Multiplies at most MOST_JOBS weights of one type: weights in blocks, or a few rows of x with other weights. Norm,
 * gate and sum are included where these kernels support that number of rows and the call is aligned. up not NULL, for
 * many rows without a norm: x is swiglu of c->x and up. */
void cuda_linear_qblocks(backend *be, const projection *c, const float *up);
/* Returns an upper bound of the floats of scratch for products with n rows of cols numbers. */
size_t cuda_linear_room(size_t n, size_t cols, bool exact);
void cuda_few(backend *be, const projection *c);
bool cuda_few_aligned(const projection *c);
/* Allocates the scratch for decode steps of up to n_rows sequences and n_max keys. */
void cuda_decode_reserve(backend *be, size_t n_rows, size_t n_heads, size_t dim, int64_t n_max);
/* Allocates the scratch for the masses of n_lists lists of up to n_items items. */
void cuda_mass_reserve(backend *be, size_t n_lists, int64_t n_items);
void cuda_bring(backend *be, const attn_job *job);

#endif
