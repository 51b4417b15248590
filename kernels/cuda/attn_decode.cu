/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence: choice of the kernel for a call (attn_pieces.cuh, one file per form of rows),
 * and merging the parts of several lists. */
#include "config.h"

#include "kernels/cuda/attn_decode.cuh"

enum { MERGE_BLOCK = 128 };

/* ---- merging the parts of several lists ---- */

/* Merges n parts, `stride` rows apart, into out [dim] and *lse. weight: scratch for n floats. A part with a sum of 0
 * may hold anything. */
static __device__ void merge_row(float *out, float *lse, const float *parts, const float *lses, size_t n, size_t stride,
                                 int dim, float *weight)
{
    SHARED(float, part, [MERGE_BLOCK / 32]);
    float top = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x; i < n; i += MERGE_BLOCK) top = fmaxf(top, lses[i * stride]);
    top = block_max(top, part);
    for (size_t i = threadIdx.x; i < n; i += MERGE_BLOCK) {
        float l = lses[i * stride], w = l == -INFINITY ? 0 : expf(l - top);
        weight[i] = w;
        sum += w;
    }
    sum = block_sum(sum, part); /* its barriers also publish the weights */
    for (int c = threadIdx.x; c < dim; c += MERGE_BLOCK) {
        float acc = 0;
#pragma unroll 4
        for (size_t i = 0; i < n; i++)
            if (weight[i] != 0) acc = fmaf(weight[i], parts[i * stride * dim + c], acc);
        out[c] = sum == 0 ? 0 : acc / sum;
    }
    if (lse && threadIdx.x == 0) *lse = sum == 0 ? -INFINITY : top + logf(sum);
}

static __global__ void __launch_bounds__(MERGE_BLOCK)
    merge_parts_k(float *out, float *lse, const float *parts, const float *lses, size_t n, size_t rows, int dim)
{
    grid_wait();
    SHARED_DYN(float, weight);
    size_t r = blockIdx.x;
    merge_row(out + r * dim, lse ? lse + r : NULL, parts + r * dim, lses + r, n, rows, dim, weight);
}

void cuda_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim)
{
    if (n_rows == 0 || !cuda_begin(be, "attn_merge")) return;
    cudaError_t rc = launch_dependent(be, merge_parts_k, dim3((unsigned)n_rows), dim3(MERGE_BLOCK),
                                      n_parts * sizeof(float), ptr<float>(out), ptr<float>(lse), ptr<float>(parts),
                                      ptr<float>(lses), n_parts, n_rows, (int)dim);
    cuda_check(be, rc, "attn_merge [%zu, %zu, %zu]", n_parts, n_rows, dim);
}

/* ---- launching ---- */

static size_t most_pieces(int64_t n_max)
{
    const int64_t ends[] = {4096, 16384, 65536, 1 << 20};
    size_t most = n_max > 0 ? cuda_blocks((size_t)n_max, (size_t)piece_of(n_max)) : 1;
    for (int i = 0; i < 4; i++) {
        size_t n = (size_t)(ends[i] / piece_of(ends[i]));
        if (ends[i] <= n_max && n > most) most = n;
    }
    return most;
}

static int form_of(const attn_job *j)
{
    if (j->rows.codes.bits) return CODES;
    return j->rows.near && j->rows.near->k.p ? NEAR : EXACT;
}

static void decode_jobs(backend *be, const attn_job *jobs, size_t n)
{
    decode_batch b = {};
    extents x = {(unsigned)n, 0, 0, 0, false, true};
    int form = form_of(&jobs[0]);
    for (size_t i = 0; i < n; i++) {
        if (!attn_args_of(be, &b.job[i], &jobs[i])) return;
        x.wide = x.wide && attn_wide(&b.job[i]);
        x.units = (unsigned)b.job[i].n_units;
        x.heads = (unsigned)b.job[i].n_heads;
        x.n_max = max(x.n_max, jobs[i].n_max);
        x.listed = x.listed || jobs[i].idx.p;
        if (form == CODES) cuda_count_rows(be, &b.job[i], true);
    }
    size_t dim = (size_t)b.job[0].dim;
    b.most = most_pieces(x.n_max);
    size_t rows = n * x.heads * b.most;
    b.parts = (float *)cuda_room(be, &cuda_of(be)->parts, rows * (dim + 1), sizeof(float), "attention");
    b.done = cuda_zeros(be, n * x.units * (b.most + LEVELS), "attention");
    if (!b.parts || !b.done) return;
    b.lses = b.parts + rows * dim;
    bool blocks = dtype_in_qblocks(jobs[0].rows.type);
    auto near = blocks ? attn_decode_near_blocks : attn_decode_near;
    auto exact = blocks ? attn_decode_blocks : attn_decode_exact;
    auto queue = form == CODES ? attn_decode_codes : form == NEAR ? near : exact;
    cuda_check(be, queue(be, &b, &x, jobs[0].rows.type), "attn_decode [%zu jobs, %u heads, %zu], up to %lld keys", n,
               x.heads, dim, (long long)x.n_max);
}

static bool same_form(const attn_job *a, const attn_job *b)
{
    return a->n_lists == b->n_lists && a->rows.n_kv_heads == b->rows.n_kv_heads && a->rows.type == b->rows.type &&
           form_of(a) == form_of(b) && !a->rope.p == !b->rope.p;
}

void cuda_decode_reserve(backend *be, size_t n_rows, size_t n_heads, size_t dim, int64_t n_max)
{
    size_t heads = (n_rows < JOBS ? n_rows : (size_t)JOBS) * n_heads, most = most_pieces(n_max);
    if (cuda_room(be, &cuda_of(be)->parts, heads * most * (dim + 1), sizeof(float), "attention"))
        cuda_zeros(be, heads * (most + LEVELS), "attention");
}

void cuda_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs;) {
        size_t k = 1;
        while (i + k < n_jobs && k < JOBS && same_form(&jobs[i + k], &jobs[i])) k++;
        if (!cuda_begin(be, "attn_decode")) return;
        decode_jobs(be, jobs + i, k);
        i += k;
    }
}
