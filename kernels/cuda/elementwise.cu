/* SPDX-License-Identifier: MIT */
/* Ops without matrix products: lookup, norms, activations, positions, rotation tables, moving KV rows. */
#include "config.h"

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/ops_rows.h"
#include "kernels/ops_weights.h"

enum { BLOCK = NORM_THREADS, COPY_ROWS = 8 };

static __device__ __forceinline__ size_t thread_id()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Returns the thread count of a block that shares `n` columns. */
static dim3 block_for(size_t n)
{
    return dim3(n >= BLOCK ? (unsigned)BLOCK : (unsigned)((n + 31) / 32 * 32));
}

/* ---- rows of the transformer ---- */

template <class T> static __global__ void embed_k(float *out, const T *table, const int32_t *id, size_t cols)
{
    grid_wait();
    const T *row = table + (size_t)id[blockIdx.x] * cols;
    for (size_t c = threadIdx.x; c < cols; c += blockDim.x) out[blockIdx.x * cols + c] = to_f32(row[c]);
}

/* Decodes rows of a matrix in blocks (ops_weights.h). */
template <dtype TYPE>
static __global__ void embed_blocks_k(float *out, const unsigned char *table, const int32_t *id, size_t cols)
{
    grid_wait();
    constexpr size_t BYTES = QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (TYPE == DT_Q8 ? 1 : 2);
    const size_t row = (size_t)id[blockIdx.x], r = row % QBLOCK_ROWS, blocks = (cols + QBLOCK_COLS - 1) / QBLOCK_COLS;
    const unsigned char *group = table + row / QBLOCK_ROWS * blocks * BYTES;
    for (size_t c = threadIdx.x; c < cols; c += blockDim.x) {
        const unsigned char *block = group + c / QBLOCK_COLS * BYTES;
        const size_t i = c % QBLOCK_COLS, low = TYPE == DT_Q4 ? i % (QBLOCK_COLS / 2) : i;
        int code = block[QBLOCK_SCALES + QBLOCK_LINE * (low / 4) + 4 * r + low % 4];
        if (TYPE == DT_Q4) code = i == low ? code & 15 : code >> 4;
        const float d = to_f32(((const __half *)block)[r]);
        out[blockIdx.x * cols + c] = d * (float)(code - (TYPE == DT_Q8 ? 128 : 8));
    }
}

static void embed_blocks(backend *be, buf out, const weight *table, buf ids, size_t n)
{
    auto *kernel = table->type == DT_Q8 ? embed_blocks_k<DT_Q8> : embed_blocks_k<DT_Q4>;
    cudaError_t rc = launch_dependent(be, kernel, dim3((unsigned)n), block_for(table->cols), 0, ptr<float>(out),
                                      ptr<unsigned char>(table->p), ptr<int32_t>(ids), table->cols);
    cuda_check(be, rc, "embed [%zu, %zu]", n, table->cols);
}

void cuda_embed(backend *be, buf out, weight table, buf ids, size_t n)
{
    if (n == 0 || !cuda_begin(be, "embed")) return;
    if (dtype_in_qblocks(table.type)) return embed_blocks(be, out, &table, ids, n);
    by_type(table.type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = launch_dependent(be, embed_k<T>, dim3((unsigned)n), block_for(table.cols), 0, ptr<float>(out),
                                          ptr<T>(table.p), ptr<int32_t>(ids), table.cols);
        cuda_check(be, rc, "embed [%zu, %zu]", n, table.cols);
    });
}

/* out may be x: each thread reads only what it writes. */
template <class T> static __global__ void rmsnorm_k(float *out, const float *x, const T *w, size_t cols, float eps)
{
    SHARED(float, part, [NORM_WARPS]);
    SHARED(float, scale, [1]);
    const float *in = x + blockIdx.x * cols;
    norm_scale(scale, part, in, cols, eps);
    for (size_t c = threadIdx.x; c < cols; c += blockDim.x)
        out[blockIdx.x * cols + c] = normed(in[c], scale[0], to_f32(w[c]));
}

void cuda_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps)
{
    if (n == 0 || (out.p == x.p && be->fault.code == ST_OK && cuda_defer_norm(be, ptr<float>(x), w, n, eps))) return;
    if (!cuda_begin(be, "rmsnorm")) return;
    by_type(w.type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = launch(rmsnorm_k<T>, dim3((unsigned)n), block_for(w.cols), 0, cuda_stream(be), ptr<float>(out),
                                ptr<float>(x), ptr<T>(w.p), w.cols, eps);
        cuda_check(be, rc, "rmsnorm [%zu, %zu]", n, w.cols);
    });
}

template <class T, class F> static __global__ void convert_k(T *out, const F *in, size_t n)
{
    size_t i = thread_id();
    if (i < n) put_f32(&out[i], to_f32(in[i]));
}

void cuda_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n)
{
    if (n == 0 || !cuda_begin(be, "convert")) return;
    by_type(to, [&](auto a) {
        by_type(from, [&](auto b) {
            typedef decltype(a) T;
            typedef decltype(b) F;
            cudaError_t rc = launch(convert_k<T, F>, dim3(cuda_blocks(n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                                    ptr<T>(out), ptr<F>(in), n);
            cuda_check(be, rc, "convert [%zu]", n);
        });
    });
}

static __global__ void swiglu_k(float *out, cuda_gated g)
{
    size_t i = thread_id();
    if (i >= g.n) return;
    out[i] = g.scale ? swiglu_scaled(g.gate[i], g.up[i], g.scale[i / g.cols]) : swiglu_of(g.gate[i], g.up[i]);
}

static void run_swiglu(backend *be, float *out, const cuda_gated &g)
{
    cudaError_t rc = launch(swiglu_k, dim3(cuda_blocks(g.n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), out, g);
    cuda_check(be, rc, "swiglu [%zu]", g.n);
}

void cuda_swiglu(backend *be, buf out, buf gate, buf up, size_t n)
{
    if (n > 0 && cuda_begin(be, "swiglu"))
        run_swiglu(be, ptr<float>(out), {ptr<float>(gate), ptr<float>(up), NULL, n, n});
}

void cuda_queue_gated(backend *be)
{
    const cuda_gated g = cuda_of(be)->gated;
    cuda_of(be)->gated = {};
    if (g.up && be->fault.code == ST_OK) run_swiglu(be, g.gate, g);
}

static __global__ void gate_k(float *x, const float *gate, size_t n)
{
    size_t i = thread_id();
    if (i < n) x[i] /= 1.0f + expf(-gate[i]);
}

void cuda_gate(backend *be, buf x, buf gate, size_t n)
{
    if (n == 0 || !cuda_begin(be, "gate")) return;
    cudaError_t rc = launch(gate_k, dim3(cuda_blocks(n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(x),
                            ptr<float>(gate), n);
    cuda_check(be, rc, "gate [%zu]", n);
}

static __global__ void sum_rows_k(float *out, const float *x, const int32_t *at, const float *by, size_t terms,
                                  size_t cols)
{
    const size_t first = blockIdx.x * terms;
    for (size_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float sum = 0;
        for (size_t t = first; t < first + terms; t++)
            sum = __fadd_rn(sum, __fmul_rn(by[t], x[(size_t)at[t] * cols + c]));
        out[blockIdx.x * cols + c] = sum;
    }
}

void cuda_sum_rows(backend *be, buf out, buf x, buf at, buf by, size_t n, size_t terms, size_t cols)
{
    if (n == 0 || !cuda_begin(be, "sum_rows")) return;
    cudaError_t rc = launch(sum_rows_k, dim3((unsigned)n), block_for(cols), 0, cuda_stream(be), ptr<float>(out),
                            ptr<float>(x), ptr<int32_t>(at), ptr<float>(by), terms, cols);
    cuda_check(be, rc, "sum_rows [%zu, %zu, %zu]", n, terms, cols);
}

static __global__ void softcap_k(float *x, size_t n, float by, float cap)
{
    size_t i = thread_id();
    if (i < n) x[i] = cap * tanhf(x[i] * by);
}

void cuda_softcap(backend *be, buf x, size_t n, float by, float cap)
{
    if (n == 0 || !cuda_begin(be, "softcap")) return;
    cudaError_t rc =
        launch(softcap_k, dim3(cuda_blocks(n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(x), n, by, cap);
    cuda_check(be, rc, "softcap [%zu]", n);
}

static __global__ void add_k(float *x, const float *y, size_t n)
{
    size_t i = thread_id();
    if (i < n) x[i] += y[i];
}

void cuda_add(backend *be, buf x, buf y, size_t n)
{
    if (n == 0 || !cuda_begin(be, "add")) return;
    cudaError_t rc =
        launch(add_k, dim3(cuda_blocks(n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(x), ptr<float>(y), n);
    cuda_check(be, rc, "add [%zu]", n);
}

/* ---- positions ---- */

/* Layers that made a selection, one bit each. */
typedef struct {
    unsigned bits[BLOCK / 32];
} layer_set;

/* One thread per layer. */
static __global__ void count_lists_k(unsigned long long *total, const int64_t *range, size_t n, size_t n_lists,
                                     layer_set chose)
{
    grid_wait();
    size_t l = threadIdx.x;
    unsigned long long sum = 0;
    if (l >= n || !(chose.bits[l / 32] >> l % 32 & 1)) return;
    for (size_t i = 0; i < n_lists; i++) sum += (unsigned long long)range[2 * (l * n_lists + i) + 1];
    atomicAdd(total, (sum + n_lists - 1) / n_lists);
}

void cuda_count_lists(backend *be, buf total, buf range, size_t n, size_t n_lists, const bool *chose)
{
    for (size_t l0 = 0, m; l0 < n && cuda_begin(be, "count_lists"); l0 += m) {
        layer_set set = {};
        m = n - l0 < BLOCK ? n - l0 : (size_t)BLOCK;
        for (size_t l = 0; l < m; l++) set.bits[l / 32] |= (unsigned)chose[l0 + l] << l % 32;
        cudaError_t rc = launch_dependent(be, count_lists_k, dim3(1), dim3(BLOCK), 0, ptr<unsigned long long>(total),
                                          (const int64_t *)ptr<int64_t>(range) + 2 * l0 * n_lists, m, n_lists, set);
        cuda_check(be, rc, "count_lists [%zu, %zu]", n, n_lists);
    }
}

/* ---- rotary embedding ---- */

static __global__ void rope_table_k(float2 *out, const int64_t *pos, size_t n, const float *freq, size_t half,
                                    float mscale)
{
    grid_wait();
    size_t i = thread_id();
    if (i >= n * half) return;
    double a = (double)pos[i / half] * (double)freq[i % half]; /* cos and sin reduce the argument exactly */
    out[i] = make_float2((float)(cos(a) * (double)mscale), (float)(sin(a) * (double)mscale));
}

void cuda_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale)
{
    if (n * half == 0 || !cuda_begin(be, "rope_table")) return;
    cudaError_t rc = launch_dependent(be, rope_table_k, dim3(cuda_blocks(n * half, BLOCK)), dim3(BLOCK), 0,
                                      ptr<float2>(out), ptr<int64_t>(pos), n, ptr<float>(freq), half, mscale);
    cuda_check(be, rc, "rope_table [%zu, %zu]", n, half);
}

/* ---- KV rows; writing is in heads.cu ---- */

/* Moves rows of `units` units of type U. A thread copies one unit of rows [first, first + count) in order. If a row may
 * be overwritten before it is read, one block has all rows. */
template <class U>
static __global__ void kv_move_k(U *rows, int64_t to, int64_t from, size_t n, size_t count, size_t cap, size_t units)
{
    size_t first = blockIdx.x * count;
    U *x = rows + blockIdx.y * cap * units;
    for (size_t i = first; i < n && i < first + count; i++)
        for (size_t c = threadIdx.x; c < units; c += blockDim.x)
            x[((size_t)to + i) * units + c] = x[((size_t)from + i) * units + c];
}

template <class U>
static cudaError_t move_rows(backend *be, buf half, const kv_rows *r, int64_t to, int64_t from, size_t n)
{
    size_t units = kv_row_bytes(r->type, r->head_dim) / sizeof(U);
    size_t count = to <= from && to + (int64_t)n > from ? n : (size_t)COPY_ROWS;
    return launch(kv_move_k<U>, dim3(cuda_blocks(n, count), (unsigned)r->n_kv_heads), block_for(units), 0,
                  cuda_stream(be), ptr<U>(half), to, from, n, count, r->cap, units);
}

void cuda_kv_move(backend *be, const kv_rows *r, int64_t to, int64_t from, size_t n)
{
    bool wide = kv_row_bytes(r->type, r->head_dim) % sizeof(uint4) == 0;
    if (n == 0 || !cuda_begin(be, "kv_move")) return;
    for (buf half : {r->k, r->v}) {
        cudaError_t rc =
            wide ? move_rows<uint4>(be, half, r, to, from, n) : move_rows<uint16_t>(be, half, r, to, from, n);
        cuda_check(be, rc, "kv_move [%zu, %zu, %zu]", n, r->n_kv_heads, r->head_dim);
    }
}
