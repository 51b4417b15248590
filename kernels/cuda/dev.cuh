/* SPDX-License-Identifier: MIT */
/* Device code shared by all kernels. It is also compiled for the host with the stand-ins of tests/cushim. Therefore
 * kernels use launch() instead of <<<>>>, declare shared memory with the two macros at function scope, use whole-warp
 * masks, never wait for other blocks, and keep PTX in ptx.cuh, for which the stand-ins have a plain version. */
#ifndef KERNELS_CUDA_DEV_CUH
#define KERNELS_CUDA_DEV_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef SHARED /* tests/cushim defines its own versions */
#define SHARED(T, name, dims) __shared__ T name dims
#define SHARED_DYN(T, name)                                                                                            \
    extern __shared__ uint4 dyn_smem_[];                                                                               \
    T *const name = reinterpret_cast<T *>(dyn_smem_)
#include "kernels/cuda/ptx.cuh"
#endif

#define ALL_LANES 0xffffffffu

/* Dynamic shared memory available to every kernel: 48 KB minus its fixed-size arrays, which stay below 8 KB. */
enum { FREE_SHARED = 40 << 10 };

/* Launches a kernel. Requests more shared memory than FREE_SHARED if needed; fails if the device has less. A request is
 * never lowered, since graphs of earlier steps may need it. early: the kernel may start before the previous one ends;
 * each of its threads then calls grid_wait before it accesses memory that any earlier launch writes, or writes memory
 * that any earlier launch reads. */
template <class... P, class... A>
static inline cudaError_t launch_as(bool early, void (*k)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                                    A &&...a)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute start = {};
    start.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    start.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &start;
    c.numAttrs = early;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    cudaError_t rc = cudaSuccess;
    cudaFuncAttributes had = {};
    if (shared > FREE_SHARED) rc = cudaFuncGetAttributes(&had, k);
    if (rc == cudaSuccess && shared > FREE_SHARED && (size_t)had.maxDynamicSharedSizeBytes < shared)
        rc = cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (rc != cudaSuccess) return rc;
    return cudaLaunchKernelEx(&c, k, static_cast<A &&>(a)...);
}

template <class... P, class... A>
static inline cudaError_t launch(void (*k)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s, A &&...a)
{
    return launch_as(false, k, grid, block, shared, s, static_cast<A &&>(a)...);
}

/* ---- elements ---- */

static __device__ __forceinline__ float to_f32(float x)
{
    return x;
}
static __device__ __forceinline__ float to_f32(__half x)
{
    return __half2float(x);
}
static __device__ __forceinline__ float to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ void put_f32(float *p, float x)
{
    *p = x;
}
static __device__ __forceinline__ void put_f32(__half *p, float x)
{
    *p = __float2half_rn(x);
}
static __device__ __forceinline__ void put_f32(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}

/* Number of elements in 16 bytes of a type, and their conversion to floats. */
template <class T> struct pack {
    enum { N = 16 / sizeof(T) };
};
static __device__ __forceinline__ void unpack(float out[4], uint4 u, const float *)
{
    out[0] = __uint_as_float(u.x);
    out[1] = __uint_as_float(u.y);
    out[2] = __uint_as_float(u.z);
    out[3] = __uint_as_float(u.w);
}
static __device__ __forceinline__ void unpack(float out[8], uint4 u, const __nv_bfloat16 *)
{
    const unsigned w[4] = {u.x, u.y, u.z, u.w};
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void unpack(float out[8], uint4 u, const __half *)
{
    const unsigned w[4] = {u.x, u.y, u.z, u.w};
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __half2float(__ushort_as_half((unsigned short)(w[i] & 0xffff)));
        out[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(w[i] >> 16)));
    }
}
template <class T> static __device__ __forceinline__ uint4 load16(const T *p)
{
    return *reinterpret_cast<const uint4 *>(p);
}
static __device__ __forceinline__ float4 load_f4(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}

/* ---- sums over a warp and over a block, identical in every thread and run ---- */

template <class T> static __device__ __forceinline__ T warp_sum(T x)
{
    for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(ALL_LANES, x, m);
    return x;
}

/* Sums G numbers, a power of two, over groups of L >= G lanes that are `apart` lanes from each other (lane: index in
 * the group). Needs fewer shuffles than G separate sums and gives the same bits. Returns the index of the sum that v[0]
 * holds in this lane. */
template <int G, int L> static __device__ __forceinline__ int fold_sums(float v[G], int lane, int apart = 1)
{
    int mine = 0, w = G;
#pragma unroll
    for (int m = L / 2; m > 0; m /= 2) {
        bool up = lane & m;
        if (w == 1) {
            v[0] += __shfl_xor_sync(ALL_LANES, v[0], m * apart);
            continue;
        }
        w /= 2;
#pragma unroll
        for (int i = 0; i < w; i++) {
            float send = up ? v[i] : v[i + w], keep = up ? v[i + w] : v[i];
            v[i] = keep + __shfl_xor_sync(ALL_LANES, send, m * apart);
        }
        mine += up ? w : 0;
    }
    return mine;
}

static __device__ __forceinline__ float warp_max(float x)
{
    for (int m = 16; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    return x;
}

/* Sums over a block of whole warps. part: one number of shared memory per warp. Ends with a barrier after the last
 * read. */
template <class T> static __device__ __forceinline__ T block_sum(T x, T *part)
{
    T sum = 0;
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) sum += part[w];
    __syncthreads();
    return sum;
}

static __device__ __forceinline__ float block_max(float x, float *part)
{
    float most = -INFINITY;
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) most = fmaxf(most, part[w]);
    __syncthreads();
    return most;
}

/* Adds to a byte counter once per launch; read NULL: not counted. */
static __device__ __forceinline__ void add_read(unsigned long long *read, unsigned long long bytes)
{
    if (read && bytes > 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) atomicAdd(read, bytes);
}

#endif
