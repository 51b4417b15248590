/* SPDX-License-Identifier: MIT */
/* The shim itself, in its race build: kernels that are wrong on purpose, each in a process of its own, must be found. */
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

/* ---- right ---- */

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

static __global__ void early_exit_k(int *out)
{
    if (threadIdx.x == 3) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void two_barriers_k(int *out)
{
    if (threadIdx.x < 64) __syncthreads();
    else
        __syncthreads();
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

static int data[2 * N];

static bool run(void (*k)(int *), unsigned blocks)
{
    return launch(k, dim3(blocks), dim3(N), 0, NULL, data) == cudaSuccess;
}

/* Exit status of a child that runs the kernel: 0 fine, 1 a race, SHIM_EXIT. */
static int outcome(void (*k)(int *), unsigned blocks)
{
    int st = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        run(k, blocks);
        _exit(shim_races() ? 1 : 0);
    }
    waitpid(pid, &st, 0);
    return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

/* D = A B + C through the fragments of mma.sync.m16n8k16. */
static __global__ void product_k(const uint16_t *a, const uint16_t *b, float *d)
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    unsigned fa[4], fb[2];
    float c[4] = {1, 1, 1, 1}, out[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
        fa[i] = p[0] | (unsigned)p[1] << 16;
    }
    for (int i = 0; i < 2; i++) fb[i] = b[(2 * t + 8 * i) * 8 + g] | (unsigned)b[(2 * t + 8 * i + 1) * 8 + g] << 16;
    shim_mma(out, fa, fb, c, false);
    for (int i = 0; i < 4; i++) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = out[i];
}

static void test_product()
{
    uint16_t a[256], b[128];
    float d[128];
    bool good = true;
    for (int i = 0; i < 256; i++) a[i] = f32_to_bf16((float)(i % 7 - 3));
    for (int i = 0; i < 128; i++) b[i] = f32_to_bf16((float)(i % 5 - 2));
    launch(product_k, dim3(1), dim3(32), 0, NULL, a, b, d);
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 8; c++) {
            float sum = 1;
            for (int k = 0; k < 16; k++) sum += (float)((r * 16 + k) % 7 - 3) * (float)((k * 8 + c) % 5 - 2);
            good &= sum == d[r * 8 + c];
        }
    ok(good, "a matrix product of a warp");
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
        {"a plain store beside atomics", plain_and_atomic_k, 2, 1},
        {"shared memory that was never written", never_written_k, 1, 1},
        {"a barrier after an exit", early_exit_k, 1, SHIM_EXIT},
        {"two barriers in one", two_barriers_k, 1, SHIM_EXIT},
        {"a mask without the lane", bad_mask_k, 1, SHIM_EXIT},
        {"a source outside the mask", bad_source_k, 1, SHIM_EXIT},
        {"a mask of lanes that do not come", half_warp_k, 1, SHIM_EXIT},
        {"more than 48 KiB of static shared memory", too_much_k, 1, SHIM_EXIT},
    };
    for (uint64_t seed = 0; seed < 3; seed++) {
        shim_seed(seed);
        ok(run(right_k, 2) && data[N] == N - 2 + 1 + 16 && data[1] == N - 1 + 16, "values, order %d", (int)seed);
    }
    shim_seed(0);
    for (auto &c : cases) is_int(outcome(c.kernel, c.blocks), c.want, "%s", c.name);
    ok(launch(counts_k, dim3(1), dim3(1025), 0, NULL, data) != cudaSuccess, "1025 threads are refused");
    ok(launch(counts_k, dim3(0), dim3(32), 0, NULL, data) != cudaSuccess, "an empty grid is refused");
    ok(launch(counts_k, dim3(1), dim3(32), 49 << 10, NULL, data) != cudaSuccess, "49 KiB without asking are refused");
    cudaFuncSetAttribute(counts_k, cudaFuncAttributeMaxDynamicSharedMemorySize, 50 << 10);
    ok(launch(counts_k, dim3(1), dim3(32), 49 << 10, NULL, data) == cudaSuccess, "and taken after asking");
    test_product();
    return tap_done();
}
