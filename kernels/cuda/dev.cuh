/* SPDX-License-Identifier: MIT */
/* What kernels share. They are also compiled for the host, by the stand-ins of tests/cushim, and therefore: launch()
 * in place of <<<>>>, shared memory through the two macros at function scope, whole-warp masks, no waiting for other
 * blocks, PTX in ptx.cuh alone, of which the stand-ins have a plain form. */
#ifndef KERNELS_CUDA_DEV_CUH
#define KERNELS_CUDA_DEV_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifndef SHARED /* tests/cushim has its own of all this */
#define SHARED(T, name, dims) __shared__ T name dims
#define SHARED_DYN(T, name)                                                                                            \
    extern __shared__ uint4 dyn_smem_[];                                                                               \
    T *const name = reinterpret_cast<T *>(dyn_smem_)
#include "kernels/cuda/ptx.cuh"
#endif

#define ALL_LANES 0xffffffffu

/* Dynamic shared memory that every kernel may have: 48 KB with its arrays of fixed size, which stay below 8. */
enum { FREE_SHARED = 40 << 10 };

/* More shared memory is asked for; what the device does not have is an error. */
template <class... P, class... A>
static inline cudaError_t launch(void (*k)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s, A &&...a)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    cudaError_t rc = cudaSuccess;
    if (shared > FREE_SHARED) rc = cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (rc != cudaSuccess) return rc;
    return cudaLaunchKernelEx(&c, k, static_cast<A &&>(a)...);
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

/* 16 bytes of a type: so many elements, as floats. */
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

/* ---- sums of a warp and of a block, the same in every thread and run ---- */

template <class T> static __device__ __forceinline__ T warp_sum(T x)
{
    for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(ALL_LANES, x, m);
    return x;
}

/* Sums of G numbers, a power of two, over groups of L >= G lanes that are `apart` lanes from each other (lane: of the
 * group), with fewer shuffles than G sums take and the same bits; returns which one's sum v[0] then is in this lane. */
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

/* part: a number of shared memory for each warp; whole warps. Ends with a barrier behind the last read. */
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

/* Adds to a counter of bytes, once in a launch; read NULL: not counted. */
static __device__ __forceinline__ void add_read(unsigned long long *read, unsigned long long bytes)
{
    if (read && bytes > 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) atomicAdd(read, bytes);
}

#endif
