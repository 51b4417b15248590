/* SPDX-License-Identifier: MIT */
/* Rows of heads: norms, rotation, and writing K and V rows to their stores. These small ops follow each other in every
 * layer. In-place norms and rotations are therefore deferred until another op begins (cuda_begin), or until kv_write
 * stores the rows they produce. Everything deferred is then one launch. */
#include "config.h"

#include "kernels/cuda/near.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/rows.cuh"

enum { WARPS = NORM_WARPS, BLOCK = 32 * WARPS };

/* ---- kernels ---- */

/* Returns the row of a head's device copies for a slot; -1: none. newest: no later row of the call uses the same
 * row. */
static __device__ __forceinline__ int64_t near_copy_row(const near_args &n, int64_t slot, bool newest)
{
    if (slot < n.first) return slot;
    return n.window && newest ? n.first + ((unsigned)slot & (n.window - 1)) : -1;
}

/* Updates the ring for a slot whose copy in near_copy_row is written. An older copy from a read becomes invalid. */
static __device__ __forceinline__ void settle_near(const near_args &n, int head, int64_t slot, int64_t copy)
{
    unsigned s = (unsigned)slot & (n.window - 1), cache_row = (unsigned)slot & (n.slots - 1);
    if (copy >= 0 && slot >= n.first && head == 0) n.ring[s] = (int32_t)(slot + 1);
    if (n.slots) atomicCAS(&n.tag[(size_t)head * n.slots + cache_row], (int)(slot + 1), 0);
}

/* Writes channel c of a row to the device copy, if there is one. */
template <class T>
static __device__ void write_near(const near_args &n, int head, int64_t slot, size_t c, size_t d, bool newest, float k,
                                  float v)
{
    int64_t copy = near_copy_row(n, slot, newest);
    if (copy >= 0) {
        size_t to = ((size_t)(head * n.rows) + (size_t)copy) * d + c;
        put_f32(&((T *)n.k)[to], k);
        put_f32(&((T *)n.v)[to], v);
    }
    if (c == 0) settle_near(n, head, slot, copy);
}

typedef struct {
    void *k_rows, *v_rows;
    int64_t first;
    const int64_t *slot;
    const float *k, *v;
    size_t n, cap;
    near_args near;
    bool by_head;
    unsigned char rotated; /* KV_ROTATED_* for block rows */
} row_writes;

/* Writes channel c of row `row` of a job, which belongs to token row / heads. */
template <class T>
static __device__ __forceinline__ void write_channel(const row_writes &j, size_t row, size_t heads, size_t d, size_t c,
                                                     float k)
{
    size_t head = row % heads,
           at = j.slot ? (size_t)j.slot[j.by_head ? row : row / heads] : (size_t)j.first + row / heads;
    size_t to = (head * j.cap + at) * d + c;
    float v = j.v ? j.v[row * d + c] : 0;
    put_f32(&((T *)j.k_rows)[to], k);
    if (j.v) put_f32(&((T *)j.v_rows)[to], v);
    if (j.near.k) write_near<T>(j.near, (int)head, (int64_t)at, c, d, row / heads + j.near.window >= j.n, k, v);
}

template <class T> static __global__ void kv_write_k(job_list<row_writes> jobs, size_t heads, size_t d)
{
    const row_writes &j = jobs.job[blockIdx.y];
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < j.n * heads * d) write_channel<T>(j, i / d, heads, d, i % d, j.k[i]);
}

/* Writes row `row` of a job as blocks, with one warp: k [d], and v of j. */
template <class T>
static __device__ __forceinline__ void write_blocks(const row_writes &j, size_t row, size_t heads, size_t d,
                                                    const float *k)
{
    size_t head = row % heads,
           at = j.slot ? (size_t)j.slot[j.by_head ? row : row / heads] : (size_t)j.first + row / heads;
    int64_t copy = -1;
    if (j.near.k) {
        copy = near_copy_row(j.near, (int64_t)at, row / heads + j.near.window >= j.n);
        if (threadIdx.x % 32 == 0) settle_near(j.near, (int)head, (int64_t)at, copy);
        copy = copy < 0 ? copy : (int64_t)head * j.near.rows + copy;
    }
    for (int value = 0; value < (j.v ? 2 : 1); value++) {
        float x[ROW_BLOCKS_MAX];
        const void *rows = value ? j.v_rows : j.k_rows, *near = value ? j.near.v : j.near.k;
        load_lanes(x, value ? j.v + row * d : k, (int)d);
        if (j.rotated & (value ? KV_ROTATED_V : KV_ROTATED_K)) hadamard_lanes(x, (int)d);
        put_lanes((T *)row_of<T>(rows, head * j.cap + at, (int)d),
                  copy < 0 ? NULL : (T *)row_of<T>(near, (size_t)copy, (int)d), x, (int)d);
    }
}

/* One warp per row. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) write_blocks_k(job_list<row_writes> jobs, size_t heads, size_t d)
{
    const row_writes &j = jobs.job[blockIdx.y];
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row < j.n * heads) write_blocks<T>(j, row, heads, d, j.k + row * d);
}

typedef struct {
    cuda_heads of[CUDA_DEFERRED];
    job_list<row_writes> jobs;
    int written, n_jobs; /* index of the rows that the jobs write */
} deferred_rows;

/* Returns the factor by which rmsnorm multiplies a row, with one warp and the same order of sums. */
static __device__ __forceinline__ float head_scale(const float *x, size_t d, float eps)
{
    float all = 0;
    for (size_t q = 0; q < d; q += 128) {
        float sum = 0;
        size_t c = q + threadIdx.x % 32 * 4;
        for (size_t i = c; i < c + 4; i++) sum = i < d ? fmaf(x[i], x[i], sum) : sum;
        all += warp_sum(sum);
    }
    return 1 / sqrtf(all / (float)d + eps);
}

/* One warp per row; a lane has both elements of its pairs. */
template <class T> static __global__ void __launch_bounds__(BLOCK) heads_k(deferred_rows p)
{
    grid_wait();
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int e = 0, job = 0;
    while (e + 1 < CUDA_DEFERRED && row >= p.of[e].rows) row -= p.of[e++].rows;
    const cuda_heads &h = p.of[e];
    if (row >= h.rows) return;
    const size_t pairs = h.dim / 2, rest = pairs - h.half;
    const float2 *table = h.table ? (const float2 *)h.table + row / h.heads * h.half : NULL;
    float *x = h.x + row * h.dim, *out = h.out + row * h.dim, scale = 1;
    size_t at = row; /* row within the job */
    bool write = e == p.written;
    while (write && job + 1 < p.n_jobs && at >= p.jobs.job[job].n * h.heads) at -= p.jobs.job[job++].n * h.heads;
    write = write && at < p.jobs.job[job].n * h.heads;
    if (h.norm) {
        scale = head_scale(x, h.dim, h.eps);
        __syncwarp();
    }
    for (size_t i = threadIdx.x % 32; i < pairs; i += 32) {
        const bool ropes = i < h.half; /* channels after the rotated ones form pairs of their own */
        const size_t c = ropes ? i : i + h.half, d = ropes ? i + h.half : c + rest;
        float a = x[c], b = x[d];
        if (h.norm) {
            a = normed(a, scale, element(h.norm, h.norm_type, c));
            b = normed(b, scale, element(h.norm, h.norm_type, d));
            x[c] = a, x[d] = b;
        }
        if (table && ropes) {
            float2 t = table[c];
            float first = __fsub_rn(__fmul_rn(a, t.x), __fmul_rn(b, t.y));
            b = __fadd_rn(__fmul_rn(b, t.x), __fmul_rn(a, t.y)), a = first;
        }
        if (table) out[c] = a, out[d] = b;
        if constexpr (!in_blocks<T>) {
            if (!write) continue;
            write_channel<T>(p.jobs.job[job], at, h.heads, h.dim, c, a);
            write_channel<T>(p.jobs.job[job], at, h.heads, h.dim, d, b);
        }
    }
    if constexpr (in_blocks<T>) {
        __syncwarp();
        if (write) write_blocks<T>(p.jobs.job[job], at, h.heads, h.dim, out);
    }
}

/* ---- deferred rows ---- */

template <class T> static cudaError_t run_deferred(backend *be, const deferred_rows *p)
{
    size_t rows = 0;
    for (const cuda_heads &h : p->of) rows += h.rows;
    return launch_dependent(be, heads_k<T>, dim3(cuda_blocks(rows, WARPS)), dim3(BLOCK), 0, *p);
}

static deferred_rows take_deferred(backend *be)
{
    cuda_ctx *c = cuda_of(be);
    deferred_rows p = {};
    for (int i = 0; i < c->n_deferred; i++) p.of[i] = c->deferred[i];
    p.written = -1;
    c->n_deferred = 0;
    return p;
}

void cuda_queue_deferred(backend *be)
{
    if (cuda_of(be)->n_deferred == 0) return;
    deferred_rows p = take_deferred(be);
    if (be->fault.code != ST_OK) return;
    cuda_check(be, run_deferred<float>(be, &p), "norm and rope [%zu, %zu]", p.of[0].rows, p.of[0].dim);
}

static bool overlap(const float *a, size_t n, const float *b, size_t m)
{
    return a < b + m && b < a + n;
}

/* True if one writes memory that the other reads or writes. */
static bool conflict(const cuda_heads *a, const cuda_heads *b)
{
    size_t n = a->rows * a->dim, m = b->rows * b->dim;
    return overlap(a->out, n, b->out, m) || overlap(a->out, n, b->x, m) || overlap(a->x, n, b->out, m) ||
           ((a->norm || b->norm) && overlap(a->x, n, b->x, m));
}

static void defer(backend *be, const cuda_heads *h)
{
    cuda_ctx *c = cuda_of(be);
    bool fits = c->n_deferred < CUDA_DEFERRED;
    cuda_use_device(be);
    cuda_queue_combined(be);
    cuda_queue_gated(be);
    for (int i = 0; i < c->n_deferred; i++) fits = fits && !conflict(&c->deferred[i], h);
    if (!fits) cuda_queue_deferred(be);
    c->deferred[c->n_deferred++] = *h;
}

bool cuda_defer_norm(backend *be, float *x, weight w, size_t n, float eps)
{
    if (w.cols > CUDA_DEFERRED_DIM || w.cols % 2) return false;
    cuda_heads h = {x, x, w.p.p, NULL, n, 1, w.cols, w.cols / 2, eps, w.type};
    defer(be, &h);
    return true;
}

void cuda_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t dim, size_t half)
{
    cuda_ctx *c = cuda_of(be);
    cuda_heads h = {ptr<float>(x), ptr<float>(out), NULL, ptr<void>(table), n * heads, heads, dim, half, 0, DT_F32};
    if (h.rows * half == 0 || be->fault.code != ST_OK) return;
    c->last = "rope";
    for (int i = 0; i < c->n_deferred; i++) { /* after its norm */
        cuda_heads *of = &c->deferred[i], both = h;
        both.norm = of->norm, both.eps = of->eps, both.norm_type = of->norm_type;
        if (of->table || of->x != h.x || of->rows != h.rows || of->dim != h.dim) continue;
        if (c->n_deferred == CUDA_DEFERRED && conflict(&c->deferred[1 - i], &both)) break;
        *of = both;
        return;
    }
    defer(be, &h);
}

/* ---- KV rows ---- */

static row_writes writes_of(const kv_write_job &j)
{
    return {j.rows->k.p,
            j.rows->v.p,
            j.first,
            ptr<int64_t>(j.slots),
            ptr<float>(j.k),
            ptr<float>(j.v),
            j.n,
            j.rows->cap,
            near_of(j.rows),
            j.n_lists > 1,
            (unsigned char)j.rows->rotated};
}

/* Returns the deferred rows that the jobs write one after the other; -1: none. */
static int deferred_source(const cuda_ctx *c, const kv_write_job *jobs, size_t n_jobs)
{
    const kv_rows *r = jobs->rows;
    size_t width = r->n_kv_heads * r->head_dim, n = 0;
    int e = 0;
    while (e < c->n_deferred && c->deferred[e].out != ptr<float>(jobs->k)) e++;
    if (e == c->n_deferred || n_jobs > CUDA_JOBS) return -1;
    const cuda_heads *h = &c->deferred[e];
    if (!h->table || h->heads != r->n_kv_heads || h->dim != r->head_dim) return -1;
    for (size_t i = 0; i < n_jobs; n += jobs[i++].n) {
        if (ptr<float>(jobs[i].k) != h->out + n * width) return -1;
        for (int o = 0; o < c->n_deferred && jobs[i].v.p; o++) {
            const cuda_heads *other = &c->deferred[o];
            size_t m = other->rows * other->dim;
            if (overlap(other->out, m, ptr<float>(jobs[i].v), jobs[i].n * width) ||
                overlap(other->x, m, ptr<float>(jobs[i].v), jobs[i].n * width))
                return -1;
        }
    }
    return n * h->heads <= h->rows ? e : -1;
}

static bool write_deferred(backend *be, const kv_write_job *jobs, size_t n_jobs)
{
    const kv_rows *r = jobs->rows;
    int e = deferred_source(cuda_of(be), jobs, n_jobs);
    if (e < 0) return false;
    deferred_rows p = take_deferred(be);
    p.written = e;
    p.n_jobs = (int)n_jobs;
    for (size_t i = 0; i < n_jobs; i++) p.jobs.job[i] = writes_of(jobs[i]);
    cuda_of(be)->last = "kv_write";
    by_rows(r->type, [&](auto t) {
        cudaError_t rc = run_deferred<decltype(t)>(be, &p);
        cuda_check(be, rc, "rope and kv_write [%zu, %zu]", p.of[e].rows, r->head_dim);
    });
    return true;
}

template <class T> static constexpr auto writer_of()
{
    if constexpr (in_blocks<T>) return write_blocks_k<T>;
    else return kv_write_k<T>;
}

void cuda_kv_write(backend *be, const kv_write_job *jobs, size_t n_jobs)
{
    const kv_rows *r = jobs->rows;
    size_t most = 0;
    for (size_t i = 0; i < n_jobs; i++) most = max(most, jobs[i].n * r->n_kv_heads * r->head_dim);
    if (most == 0 || be->fault.code != ST_OK || write_deferred(be, jobs, n_jobs) || !cuda_begin(be, "kv_write")) return;
    by_rows(r->type, [&](auto t) {
        typedef decltype(t) T;
        in_lists(jobs, n_jobs, writes_of, [&](auto &list, unsigned m) {
            unsigned blocks = cuda_blocks(most, in_blocks<T> ? WARPS * r->head_dim : (size_t)BLOCK);
            cudaError_t rc = launch(writer_of<T>(), dim3(blocks, m), dim3(BLOCK), 0, cuda_stream(be), list,
                                    r->n_kv_heads, r->head_dim);
            cuda_check(be, rc, "kv_write [%zu, %zu]", most, r->head_dim);
        });
    });
}
