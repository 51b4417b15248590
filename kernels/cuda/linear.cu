/* SPDX-License-Identifier: MIT */
/* Products with weight matrices. A few rows of x: our own kernels, fused with the ops around the product. Many rows:
 * the vendor library. Without the library, if it refuses a product, or with `exact`, our kernels run repeatedly for a
 * few rows each. */
#include "config.h"

#include "kernels/cuda/product.cuh"
#include "kernels/ops_weights.h"

/* ---- many rows, by the library ---- */

/* x as given; norm NULL: no norm. up not NULL: x is the gate of up, both with factors `by` of their rows (NULL: 1). */
typedef struct {
    const float *x, *up, *by;
    size_t cols;
    const void *norm;
    dtype norm_type;
    float eps;
} plain_x;

/* Converts a row of x to 16 bits. For f16 the row is scaled by a power of two if its values exceed the range. */
template <class T> static __global__ void __launch_bounds__(BLOCK) round_k(T *out, float *scale, plain_x x)
{
    SHARED(float, part, [WARPS]);
    SHARED(float, squares, [WARPS]);
    SHARED(float, by, [1]);
    const float *in = x.x + blockIdx.x * x.cols, *up = x.up + blockIdx.x * x.cols;
    float most = 0, s = 1, factor = x.by ? x.by[blockIdx.x] : 1;
    if (x.norm) norm_scale(by, squares, in, x.cols, x.eps);
    auto number = [&](size_t c) {
        if (x.by) return swiglu_scaled(in[c], up[c], factor);
        return x.norm ? normed(in[c], by[0], element(x.norm, x.norm_type, c)) : x.up ? swiglu_of(in[c], up[c]) : in[c];
    };
    if (scale) {
        for (size_t c = threadIdx.x; c < x.cols; c += BLOCK) most = fmaxf(most, fabsf(number(c)));
        most = block_max(most, part);
        while (most * s > 32768 && s > 0) s *= 0.5f;
        if (threadIdx.x == 0) scale[blockIdx.x] = 1 / s;
    }
    for (size_t c = threadIdx.x; c < x.cols; c += BLOCK) put_f32(&out[blockIdx.x * x.cols + c], number(c) * s);
}

/* A product of `all` numbers in rows of `rows`, to be scaled and to get its bias (NULL: none), and then to be added to
 * `into` (NULL: it stays in out). */
typedef struct {
    float *out, *into;
    const void *bias;
    dtype bias_type;
    size_t rows, all;
} unfinished;

static __global__ void finish_k(job_list<unfinished> jobs, const float *scale)
{
    const unfinished &j = jobs.job[blockIdx.y];
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= j.all) return;
    float x = j.out[i] * (scale ? scale[i / j.rows] : 1) + (j.bias ? element(j.bias, j.bias_type, i % j.rows) : 0);
    if (j.into) j.into[i] += x;
    else j.out[i] = x;
}

static void finish_many(backend *be, const job_list<unfinished> &jobs, unsigned n, const float *scale)
{
    size_t most = 0;
    for (unsigned i = 0; i < n; i++) most = max(most, jobs.job[i].all);
    if (n == 0) return;
    cudaError_t rc = launch(finish_k, dim3(cuda_blocks(most, BLOCK), n), dim3(BLOCK), 0, cuda_stream(be), jobs, scale);
    cuda_check(be, rc, "linear: bias [%zu]", most);
}

/* Returns x in the type that the library reads; *scale is NULL if there is no scale. The scales of a gated call outlive
 * the next one, which may have its result as x. */
static const void *round_x(backend *be, const projection *c, const cuda_gated *gate, float **scale)
{
    size_t n = c->n, cols = c->jobs[0].w.cols;
    dtype t = c->jobs[0].w.type;
    plain_x x = {
        ptr<float>(c->x), gate ? gate->up : NULL, gate ? gate->scale : NULL, cols, c->norm.p.p, c->norm.type, c->eps};
    *scale = NULL;
    if (t == DT_F32) return x.x;
    void *room = cuda_room(be, &cuda_of(be)->rounded, n * cols, sizeof(__half), "rounded activations");
    if (room && t == DT_F16) *scale = (float *)cuda_room(be, &cuda_of(be)->scales, 2 * n, sizeof(float), "scales");
    if (be->fault.code != ST_OK) return NULL;
    if (*scale && c->gated) *scale += n;
    dim3 grid((unsigned)n);
    cudaError_t rc =
        t == DT_F16
            ? launch(round_k<__half>, grid, dim3(BLOCK), 0, cuda_stream(be), (__half *)room, *scale, x)
            : launch(round_k<__nv_bfloat16>, grid, dim3(BLOCK), 0, cuda_stream(be), (__nv_bfloat16 *)room, *scale, x);
    return cuda_check(be, rc, "linear: rounding [%zu, %zu]", n, cols) ? room : NULL;
}

/* Multiplies with our own kernels if the library refuses a product. */
static void multiply_ours(backend *be, const projection *c, const linear_job *j)
{
    projection one = *c;
    one.jobs = j, one.n_jobs = 1, one.gated = false, one.into.p = NULL;
    if (c->norm.p.p) {
        cuda_rmsnorm(be, c->room, c->x, c->norm, c->n, c->eps);
        one.x = c->room, one.norm.p.p = NULL;
    }
    if (cuda_begin(be, "linear")) cuda_few(be, &one);
}

/* Returns a call of the library for job i and for those after it that have its shape, whose w follows the previous one
 * directly, and whose out have one stride. */
static cuda_product product_at(const projection *c, size_t i, const void *x)
{
    const linear_job *j = &c->jobs[i];
    cuda_product p = {ptr<float>(j->out), x, j->w.p.p, j->w.type, c->n, j->w.rows, j->w.cols, 1, 0, false};
    const size_t bytes = p.rows * p.cols * dtype_size(p.type);
    for (size_t k = 1; i + k < c->n_jobs; k++) {
        const ptrdiff_t stride = j[k].out.p - j[k - 1].out.p;
        bool next = j[k].w.rows == p.rows && j[k].w.p.p == j[k - 1].w.p.p + bytes && stride > 0;
        if (!next || (k > 1 && (size_t)stride / sizeof(float) != p.out_stride)) break;
        p.out_stride = (size_t)stride / sizeof(float);
        p.count++;
    }
    return p;
}

/* Computes products with the library. If it refuses several at once, the first is computed alone. Returns their number;
 * 0: refused, or a fault. */
static size_t multiply_some(backend *be, cuda_product p)
{
    int rc = cuda_gemm_run(cuda_of(be)->gemm, &p);
    if (rc == CUDA_GEMM_REFUSED && p.count > 1) {
        p.count = 1;
        rc = cuda_gemm_run(cuda_of(be)->gemm, &p);
    }
    if (rc == 0) return p.count;
    if (rc != CUDA_GEMM_REFUSED)
        err_set(&be->fault, ST_DEVICE, "%s: linear [%zu, %zu] x [%zu, %zu]: cublasLt error %d", be->name, p.n, p.cols,
                p.rows, p.cols, rc);
    return 0;
}

/* Applies the norm, or the gate whose result is x, and computes at most MOST_JOBS products, without gate and sum over
 * ranks. With c->into there is one product, which the library adds if it needs no scale and no bias. The scales of a
 * gated call without biases are left to its gate. */
static void multiply_many(backend *be, const projection *c, const cuda_gated *gate)
{
    float *scale;
    job_list<unfinished> rest = {};
    unsigned n_rest = 0;
    bool later = c->gated && !c->jobs[0].bias.p.p && !c->jobs[1].bias.p.p;
    const void *in = round_x(be, c, gate, &scale);
    for (size_t i = 0, done; in && i < c->n_jobs; i += max(done, (size_t)1)) {
        const linear_job *j = &c->jobs[i];
        cuda_product p = product_at(c, i, in);
        p.add = c->into.p && !scale && !j->bias.p.p;
        if (p.add) p.out = ptr<float>(c->into);
        done = multiply_some(be, p);
        if (be->fault.code != ST_OK) return;
        if (done == 0) {
            if (gate) cuda_of(be)->gated = *gate;
            gate = NULL, later = false;
            multiply_ours(be, c, j);
            if (c->into.p) cuda_add(be, c->into, j->out, c->n * p.rows);
        }
        for (size_t k = 0; k < done; k++)
            if (scale || j[k].bias.p.p)
                rest.job[n_rest++] = {ptr<float>(j[k].out), ptr<float>(c->into), j[k].bias.p.p, j[k].bias.type, p.rows,
                                      c->n * p.rows};
    }
    if (later) cuda_of(be)->gated.scale = scale;
    else finish_many(be, rest, n_rest, scale);
}

/* ---- calls ---- */

/* True if the library multiplies weights of this type. */
static bool by_library(const backend *be, const projection *c, dtype t)
{
    return !dtype_in_qblocks(t) && c->n > most_x(t) && !c->exact && ((const cuda_ctx *)be->ctx)->gemm;
}

/* Multiplies in one launch, or one per job; all weights have one type. gate: see take_gate. */
static void multiply(backend *be, const projection *c, const cuda_gated *gate)
{
    dtype t = c->jobs[0].w.type;
    if (dtype_in_qblocks(t)) cuda_linear_qblocks(be, c, gate ? gate->up : NULL);
    else if (by_library(be, c, t)) multiply_many(be, c, gate);
    else cuda_few(be, c);
}

void cuda_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    if (n == 0 || !cuda_begin(be, "linear")) return;
    for (size_t i = 0, k; i < n_jobs; i += k) {
        for (k = 1; i + k < n_jobs && k < MOST_JOBS && jobs[i + k].w.type == jobs[i].w.type;) k++;
        projection c = {};
        c.jobs = jobs + i, c.n_jobs = k, c.x = x, c.n = n, c.exact = exact;
        multiply(be, &c, NULL);
    }
}

/* True if all weights of a call have one type and fit into one launch. */
static bool alike(const projection *c)
{
    bool same = c->n_jobs <= MOST_JOBS;
    for (size_t i = 1; i < c->n_jobs; i++) same = same && c->jobs[i].w.type == c->jobs[0].w.type;
    return same;
}

/* True if the kernels for few rows do all of a call at once. */
static bool at_once(const backend *be, const projection *c)
{
    dtype t = c->jobs[0].w.type;
    if (!alike(c) || c->n > most_x(t) || (c->into.p && ((const cuda_ctx *)be->ctx)->nccl)) return false;
    if (c->into.p && c->into.p == c->x.p) return false; /* other thread blocks still read what one block writes */
    if (dtype_in_qblocks(t)) return !c->gated || !c->exact;
    return cuda_few_aligned(c) && (c->norm.p.p ? c->norm.type == t : !c->gated);
}

/* True if x is converted to 8 or 16 bits before many rows are multiplied. */
static bool converts(const backend *be, const projection *c)
{
    dtype t = c->jobs[0].w.type;
    return alike(c) && (dtype_in_qblocks(t) ? c->n > most_x(t) && !c->exact : t != DT_F32 && by_library(be, c, t));
}

/* True if a product with many rows can be added to `into` at once: ranks sum it first. */
static bool adds(const backend *be, const projection *c)
{
    return c->into.p && c->into.p != c->x.p && c->n_jobs == 1 && !c->gated && !c->norm.p.p &&
           !((const cuda_ctx *)be->ctx)->nccl && (by_library(be, c, c->jobs[0].w.type) || converts(be, c));
}

/* Takes a deferred gate whose result is x of this call, to be applied while x is converted. False: there is none. */
static bool take_gate(backend *be, const projection *c, cuda_gated *out)
{
    const cuda_gated g = cuda_of(be)->gated;
    if (!g.up || !c->spent || c->norm.p.p || g.gate != ptr<float>(c->x) || g.n != c->n * c->jobs[0].w.cols ||
        (g.scale && dtype_in_qblocks(c->jobs[0].w.type)) || !converts(be, c))
        return false;
    *out = g;
    cuda_of(be)->gated = {};
    return true;
}

/* Multiplies many rows whose norm or gate is applied while they are converted. */
static void convert_and_multiply(backend *be, const projection *c, const cuda_gated *gate)
{
    projection plain = *c;
    plain.into.p = NULL;
    plain.gated = c->gated && !dtype_in_qblocks(c->jobs[0].w.type);
    if (cuda_begin(be, "project")) multiply(be, &plain, gate);
}

void cuda_project(backend *be, const projection *c)
{
    const linear_job *j = c->jobs;
    dtype t = j->w.type;
    size_t all = c->n * j->w.rows;
    if (c->n > 0 && at_once(be, c)) {
        if (cuda_begin(be, "project")) multiply(be, c, NULL);
        return;
    }
    cuda_gated taken, *gate = c->n > 0 && take_gate(be, c, &taken) ? &taken : NULL;
    if (c->n > 0 && adds(be, c)) {
        if (cuda_begin(be, "project")) multiply(be, c, gate);
        return;
    }
    if (gate || (c->n > 0 && !dtype_in_qblocks(t) && converts(be, c))) {
        convert_and_multiply(be, c, gate);
    } else {
        if (c->norm.p.p) cuda_rmsnorm(be, c->room, c->x, c->norm, c->n, c->eps);
        cuda_linear(be, j, c->n_jobs, c->norm.p.p ? c->room : c->x, c->n, c->exact);
    }
    cuda_gated *g = &cuda_of(be)->gated;
    if (c->gated && c->n > 0 && converts(be, c))
        *g = {ptr<float>(j[0].out), ptr<float>(j[1].out), g->scale, all, j->w.rows};
    else if (c->gated) cuda_swiglu(be, j[0].out, j[0].out, j[1].out, all);
    if (!c->into.p) return;
    cuda_all_reduce(be, j->out, all);
    cuda_add(be, c->into, j->out, all);
}

void cuda_project_each(backend *be, const projection *list, size_t n)
{
    for (size_t i = 0; i < n; i++) cuda_project(be, &list[i]);
}
