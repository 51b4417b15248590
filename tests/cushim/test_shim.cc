/* SPDX-License-Identifier: MIT */
/* Tests the shim itself, in its race build: deliberately wrong kernels, each in its own process, must be found. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/dev.cuh"
extern "C" {
#include "tests/tap.h"
}

enum { N = 128 };

/* ---- correct ---- */

static __global__ void right_k(int *out)
{
    SHARED(int, a, [N]);
    int t = (int)threadIdx.x;
    a[t] = t;
    __syncthreads();
    int v = a[N - 1 - t];
    __syncthreads();
    a[t] = v + (int)blockIdx.x;
    __syncwarp();
    out[blockIdx.x * N + t] = a[t ^ 1] + (int)__popc(__ballot_sync(ALL_LANES, t % 2));
}

static __global__ void counts_k(int *sum)
{
    atomicAdd(sum, 1);
}

/* The last block reads what all have written. Wrong without any of the three. */
template <bool FENCE, bool BARRIER, bool FENCE_AGAIN> static __global__ void last_block_k(int *out)
{
    SHARED(int, last, [1]);
    int t = (int)threadIdx.x, half = N / 2;
    if (t < half) out[blockIdx.x * half + t] = t;
    if (FENCE) __threadfence();
    if (BARRIER) __syncthreads();
    if (t == 0) last[0] = atomicAdd(&out[2 * N - 1], 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (FENCE_AGAIN) __threadfence();
    if (last[0] && t < half) out[N + t] = out[t] + out[half + t];
}

template <class T> static __global__ void __launch_bounds__(512) wide_k(T *sum)
{
    atomicAdd(sum, 1);
}

/* ---- wrong ---- */

static __global__ void no_barrier_k(int *out)
{
    SHARED(int, a, [N]);
    a[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = a[N - 1 - threadIdx.x];
}

static __global__ void no_syncwarp_k(int *out)
{
    SHARED(int, a, [N]);
    a[threadIdx.x] = (int)threadIdx.x;
    int x = __shfl_xor_sync(ALL_LANES, 1, 1); /* orders no memory */
    out[threadIdx.x] = a[threadIdx.x ^ 1] + x;
}

static __global__ void same_element_k(int *out)
{
    if (threadIdx.x == 0) out[0] += 1;
}

static __global__ void plain_and_atomic_k(int *out)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) out[0] = 5;
    else atomicAdd(out, 1);
}

static __global__ void never_written_k(int *out)
{
    SHARED(int, a, [N]);
    if (threadIdx.x < N - 1) a[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = a[threadIdx.x];
}

static __global__ void copied_too_soon_k(int *out)
{
    SHARED(uint4, a, [N]);
    a[threadIdx.x] = make_uint4(1, 1, 1, 1);
    __syncthreads();
    unsigned x = a[N - 1 - threadIdx.x].x;
    copy16_async(&a[threadIdx.x], out, true); /* others may still read the old content */
    copies_end_group();
    __syncthreads();
    copies_wait<0>();
    __syncthreads();
    if (threadIdx.x > 3) out[threadIdx.x] = (int)(x + a[N - 1 - threadIdx.x].x);
}

static __global__ void early_exit_k(int *out)
{
    if (threadIdx.x == 3) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void two_barriers_k(int *out)
{
    if (threadIdx.x < 64) __syncthreads();
    else __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void bad_mask_k(int *out)
{
    out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1);
}

static __global__ void bad_source_k(int *out)
{
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

static __global__ void half_warp_k(int *out)
{
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1, 1);
}

static __global__ void too_much_k(int *out)
{
    SHARED(int, a, [13 << 10]);
    a[threadIdx.x] = 1;
    out[threadIdx.x] = a[threadIdx.x];
}

/* ---- launches that start early ---- */

enum { WAITED = 1, CONSTANT = 2, READ = 4, WRITE = 8, HALF = 16 };

static __global__ void first_k(int *out)
{
    out[threadIdx.x] = out[2 * N + threadIdx.x];
}

/* Accesses memory before or after the wait: the constant at N, and out, which first_k writes, or what it reads. */
template <int DOES> static __global__ void next_k(int *out)
{
    int t = (int)threadIdx.x, x = 0;
    if (DOES & CONSTANT) x = out[N + t];
    if (DOES & READ) x += out[t];
    if (DOES & WRITE) out[2 * N + t] = 1;
    if (DOES & WAITED && !(DOES & HALF && t % 2)) grid_wait();
    x += out[t];
    out[2 * N + t] = x;
}

alignas(16) static int data[3 * N];

static bool run(void (*k)(int *), unsigned blocks)
{
    return launch(k, dim3(blocks), dim3(N), 0, NULL, data) == cudaSuccess;
}

/* Returns the exit status of a child that calls f: 0 fine, 1 a race, SHIM_EXIT. */
template <class F> static int outcome(F &&f)
{
    int st = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        for (int &x : data) x = 0;
        f();
        _exit(shim_races() ? 1 : 0);
    }
    waitpid(pid, &st, 0);
    return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

/* Queues kernels: f first_k; n or N next_k, which may start early (n) or not (N); c a copy. */
template <int DOES> static int outcome_of(const char *queue)
{
    return outcome([queue] {
        int other[1];
        for (const char *p = queue; *p; p++) {
            auto k = *p == 'f' ? first_k : next_k<DOES>;
            if (*p == 'c') cudaMemcpyAsync(other, data, sizeof other, cudaMemcpyDeviceToDevice, NULL);
            else launch_as(*p == 'n', k, dim3(1), dim3(N), 0, NULL, data);
        }
    });
}

static void test_dependent()
{
    static const struct {
        const char *name;
        int (*run)(const char *);
        const char *queue;
        int want;
    } cases[] = {
        {"a constant before the wait", outcome_of<WAITED | CONSTANT>, "fnn", 0},
        {"no wait", outcome_of<0>, "fn", SHIM_EXIT},
        {"no wait in some threads", outcome_of<WAITED | HALF>, "fn", SHIM_EXIT},
        {"no wait in an ordinary launch", outcome_of<0>, "fN", 0},
        {"a read before the wait", outcome_of<WAITED | READ>, "fn", 1},
        {"a read before the wait in an ordinary launch", outcome_of<WAITED | READ>, "fN", 0},
        {"a write before the wait", outcome_of<WAITED | WRITE>, "fn", 1},
        {"a read of what the last launch but one wrote", outcome_of<WAITED | READ>, "fnn", 1},
        {"a read of what a launch before an ordinary one wrote", outcome_of<WAITED | READ>, "fNn", 0},
        {"a write over what the ordinary one before wrote", outcome_of<WAITED | WRITE>, "Nn", 1},
        {"a read after a copy", outcome_of<WAITED | READ>, "fcn", 0},
        {"a read two launches after a copy", outcome_of<WAITED | READ>, "fcnn", 0},
    };
    for (auto &c : cases) is_int(c.run(c.queue), c.want, "early start: %s", c.name);
}

/* ---- ptx.h ---- */

/* Before the wait, a copy shows neither the old bytes nor the new ones. */
static __global__ void late_copy_k(int *out)
{
    SHARED(uint4, a, [N]);
    uint4 &mine = a[threadIdx.x];
    mine = make_uint4(9, 9, 9, 9);
    copy16_async(&mine, out + 4 * (threadIdx.x % 32), true);
    unsigned asked = mine.y;
    copies_end_group();
    copies_end_group();
    copies_wait<1>();
    unsigned first = mine.y;
    copy16_async(&mine, out, false);
    copies_end_group();
    copies_wait<0>();
    out[N + threadIdx.x] = (int)(1000 * (asked == ~0u) + 10 * first + mine.y);
}

static void test_copies()
{
    bool good = true;
    for (int i = 0; i < N; i++) data[i] = i;
    launch(late_copy_k, dim3(1), dim3(N), 0, NULL, data);
    for (int i = 0; i < N; i++) good &= data[N + i] == 1000 + 10 * (4 * (i % 32) + 1);
    ok(good, "a copy to shared memory happens where it is waited for");
}

/* Compares matrices from load_matrices with mma's fragments of the same numbers read one by one. */
static __global__ void fragments_k(const uint16_t *a, unsigned *out)
{
    SHARED(uint4, tile, [32]); /* 16 x 16 halves */
    int l = (int)threadIdx.x, g = l / 4, t = l % 4;
    const uint16_t *s = (const uint16_t *)tile;
    tile[l] = ((const uint4 *)a)[l];
    __syncthreads();
    unsigned r[4], transposed[4], bad = 0;
    load_matrices(r, s + (l % 16) * 16 + l / 16 * 8);
    load_matrices_transposed(transposed, s + (l % 16) * 16 + l / 16 * 8);
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
        const uint16_t *q = a + (2 * t + 8 * (i % 2)) * 16 + g + 8 * (i / 2);
        bad += r[i] != (p[0] | (unsigned)p[1] << 16);
        bad += transposed[i] != (q[0] | (unsigned)q[16] << 16);
    }
    out[l] = bad;
}

/* Computes D = A B + C of small integers through the fragments of ptx.cuh. */
static __global__ void product_k(const uint16_t *a, const uint16_t *b, float *d)
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    unsigned fa[4], fb[2];
    float out[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
        fa[i] = p[0] | (unsigned)p[1] << 16;
    }
    for (int i = 0; i < 2; i++) fb[i] = b[(2 * t + 8 * i) * 8 + g] | (unsigned)b[(2 * t + 8 * i + 1) * 8 + g] << 16;
    mma(out, fa, fb, __nv_bfloat16());
    for (int i = 0; i < 4; i++) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = out[i];
}

static __global__ void bytes_product_k(const int8_t *a, const int8_t *b, int *d)
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    unsigned fa[4] = {}, fb[2] = {};
    int out[4];
    for (int i = 0; i < 16; i++)
        fa[i / 4] |= (unsigned)(uint8_t)a[(g + 8 * (i / 4 % 2)) * 32 + 4 * t + 16 * (i / 8) + i % 4] << 8 * (i % 4);
    for (int i = 0; i < 8; i++)
        fb[i / 4] |= (unsigned)(uint8_t)b[(4 * t + 16 * (i / 4) + i % 4) * 8 + g] << 8 * (i % 4);
    mma_bytes(out, fa, fb, 1);
    for (int i = 0; i < 4; i++) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = out[i];
}

static __global__ void tf32_product_k(const float *a, const float *b, float *d)
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    const float fa[4] = {a[8 * g + t], a[8 * (g + 8) + t], a[8 * g + t + 4], a[8 * (g + 8) + t + 4]};
    const float fb[2] = {b[8 * t + g], b[8 * (t + 4) + g]};
    float out[4] = {1, 1, 1, 1};
    mma(out, fa, fb);
    for (int i = 0; i < 4; i++) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = out[i];
}

static void test_tf32_product()
{
    float a[128], b[64], d[128];
    bool good = true;
    for (int i = 0; i < 128; i++) a[i] = (float)(i * 37 % 1023 - 511);
    for (int i = 0; i < 64; i++) b[i] = (float)(i * 91 % 1023 - 511) / 1024;
    launch(tf32_product_k, dim3(1), dim3(32), 0, NULL, a, b, d);
    for (int i = 0; i < 128; i++) {
        float sum = 1;
        for (int k = 0; k < 8; k++) sum += a[i / 8 * 8 + k] * b[8 * k + i % 8];
        good &= sum == d[i];
    }
    ok(good, "a matrix product of a warp, of tf32");
}

static __global__ void not_tf32_k(int *)
{
    const float a[4] = {1.0001f, 1, 1, 1}, b[2] = {1, 1};
    float d[4] = {};
    mma(d, a, b);
}

static void test_products()
{
    alignas(16) uint16_t a[256];
    uint16_t b[128];
    int8_t a8[512], b8[256];
    float d[128];
    int d8[128];
    unsigned bad[32];
    bool good = true, good8 = true;
    for (int i = 0; i < 256; i++) a[i] = f32_to_bf16((float)(i % 7 - 3));
    for (int i = 0; i < 128; i++) b[i] = f32_to_bf16((float)(i % 5 - 2));
    for (int i = 0; i < 512; i++) a8[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < 256; i++) b8[i] = (int8_t)(i * 91 % 255 - 127);
    launch(product_k, dim3(1), dim3(32), 0, NULL, a, b, d);
    launch(bytes_product_k, dim3(1), dim3(32), 0, NULL, a8, b8, d8);
    for (int i = 0; i < 128; i++) {
        int r = i / 8, c = i % 8, sum8 = 1;
        float sum = 1;
        for (int k = 0; k < 16; k++) sum += (float)((r * 16 + k) % 7 - 3) * (float)((k * 8 + c) % 5 - 2);
        for (int k = 0; k < 32; k++) sum8 += a8[r * 32 + k] * b8[k * 8 + c];
        good &= sum == d[i];
        good8 &= sum8 == d8[i];
    }
    ok(good, "a matrix product of a warp");
    ok(good8, "a matrix product of a warp, of bytes");
    launch(fragments_k, dim3(1), dim3(32), 0, NULL, a, bad);
    good = true;
    for (int l = 0; l < 32; l++) good &= bad[l] == 0;
    ok(good, "matrices from shared memory, as they lie and turned");
}

int main()
{
    static const struct {
        const char *name;
        void (*kernel)(int *);
        unsigned blocks;
        int want;
    } cases[] = {
        {"a right kernel passes", right_k, 2, 0},
        {"atomics pass", counts_k, 2, 0},
        {"a missing barrier", no_barrier_k, 1, 1},
        {"a missing __syncwarp, with a shuffle between", no_syncwarp_k, 1, 1},
        {"blocks add to one element", same_element_k, 2, 1},
        {"a plain store concurrent with atomics", plain_and_atomic_k, 2, 1},
        {"shared memory that was never written", never_written_k, 1, 1},
        {"a copy over what is still read", copied_too_soon_k, 1, 1},
        {"the last block, fenced", last_block_k<true, true, true>, 2, 0},
        {"the last block without a fence of those that write", last_block_k<false, true, true>, 2, 1},
        {"the last block without a barrier", last_block_k<true, false, true>, 2, 1},
        {"the last block without a fence of its own", last_block_k<true, true, false>, 2, 1},
        {"a barrier after an exit", early_exit_k, 1, SHIM_EXIT},
        {"two barriers in one", two_barriers_k, 1, SHIM_EXIT},
        {"a mask without the lane", bad_mask_k, 1, SHIM_EXIT},
        {"a source outside the mask", bad_source_k, 1, SHIM_EXIT},
        {"a mask of lanes that do not come", half_warp_k, 1, SHIM_EXIT},
        {"more than 48 KiB of static shared memory", too_much_k, 1, SHIM_EXIT},
        {"a tf32 that has more bits", not_tf32_k, 1, SHIM_EXIT},
    };
    for (uint64_t seed = 0; seed < 3; seed++) {
        shim_seed(seed);
        ok(run(right_k, 2) && data[N] == N - 2 + 1 + 16 && data[1] == N - 1 + 16, "values, order %d", (int)seed);
    }
    shim_seed(0);
    for (auto &c : cases) is_int(outcome([&c] { run(c.kernel, c.blocks); }), c.want, "%s", c.name);
    test_dependent();
    ok(launch(counts_k, dim3(1), dim3(1025), 0, NULL, data) != cudaSuccess, "1025 threads are refused");
    ok(launch(counts_k, dim3(0), dim3(32), 0, NULL, data) != cudaSuccess, "an empty grid is refused");
    ok(launch(counts_k, dim3(1), dim3(32), 49 << 10, NULL, data) == cudaSuccess, "49 KiB are asked for");
    ok(launch(counts_k, dim3(1), dim3(32), 228 << 10, NULL, data) != cudaSuccess, "228 KiB are refused");
    ok(launch(counts_k, dim3(1), dim3(512), 0, NULL, data) != cudaSuccess, "512 threads without bounds are refused");
    ok(launch(wide_k<int>, dim3(1), dim3(512), 0, NULL, data) == cudaSuccess, "and taken with them");
    test_copies();
    test_products();
    test_tf32_product();
    return tap_done();
}
