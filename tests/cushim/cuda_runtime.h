/* SPDX-License-Identifier: MIT */
/* Stand-in for CUDA's header of this name, for kernels compiled for the host. */
#ifndef TESTS_CUSHIM_CUDA_RUNTIME_H
#define TESTS_CUSHIM_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "kernels/half.h"
#include "tests/cushim/cuda_bf16.h"
#include "tests/cushim/cuda_fp16.h"
#include "tests/cushim/shim.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
/* Kernels with launch bounds begin with empty instructions, which identify them at a launch. */
#define SHIM_NOPS              5
#define __launch_bounds__(...) __attribute__((patchable_function_entry(5)))

#define SHARED(T, name, dims)                                                                                          \
    static const char name##_tag = 0;                                                                                  \
    typedef T name##_t dims;                                                                                           \
    name##_t &name = *(name##_t *)shim_shared(&name##_tag, sizeof(name##_t))
#define SHARED_DYN(T, name) T *const name = (T *)shim_shared_dyn()

/* ---- types ---- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern int shim_lane; /* of the running thread */

/* ---- device functions ---- */

using std::max;
using std::min;

static inline void __syncthreads(const char *f = __builtin_FILE(), int l = __builtin_LINE())
{
    shim_barrier(f, l);
}

static inline void __syncwarp(unsigned mask = ~0u, const char *f = __builtin_FILE(), int l = __builtin_LINE())
{
    shim_warp(SHIM_SYNC, mask, NULL, NULL, 0, 0, f, l);
}

template <class T> T shim_shuffle(unsigned mask, T v, int source, const char *f, int l)
{
    T out;
    static_assert(sizeof v <= 8, "one register or two");
    shim_warp(SHIM_SHUFFLE, mask, &v, &out, sizeof v, source, f, l);
    return out;
}
#define SHIM_HERE const char *f = __builtin_FILE(), int l = __builtin_LINE()
template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32, SHIM_HERE)
{
    return shim_shuffle(mask, v, shim_lane / width * width + source % width, f, l);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int other, int width = 32, SHIM_HERE)
{
    int source = shim_lane ^ other;
    if (width != 32 && source / width > shim_lane / width) source = shim_lane;
    return shim_shuffle(mask, v, source, f, l);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, SHIM_HERE)
{
    int lane = shim_lane;
    return shim_shuffle(mask, v, lane % width < (int)by ? lane : lane - (int)by, f, l);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, SHIM_HERE)
{
    int lane = shim_lane;
    return shim_shuffle(mask, v, lane % width + (int)by >= width ? lane : lane + (int)by, f, l);
}
static inline unsigned __ballot_sync(unsigned mask, int v, SHIM_HERE)
{
    unsigned out;
    shim_warp(SHIM_BALLOT, mask, &v, &out, sizeof v, 0, f, l);
    return out;
}
static inline int __any_sync(unsigned mask, int v, SHIM_HERE)
{
    return __ballot_sync(mask, v, f, l) != 0;
}
static inline int __all_sync(unsigned mask, int v, SHIM_HERE)
{
    return __ballot_sync(mask, v, f, l) == mask;
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, SHIM_HERE)
{
    unsigned out;
    shim_warp(SHIM_MATCH, mask, &v, &out, sizeof v, 0, f, l);
    return out;
}

static inline void __threadfence()
{
    shim_fence();
}

/* Kernels only add, or, and compare integers. */
template <class T> T atomicAdd(T *p, T v)
{
    shim_yield();
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T> T atomicCAS(T *p, T want, T v)
{
    shim_yield();
    __atomic_compare_exchange_n(p, &want, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return want; /* the previous value */
}
template <class T> T atomicExch(T *p, T v)
{
    T was = __atomic_load_n(p, __ATOMIC_RELAXED);
    shim_yield();
    while (!__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return was;
}
template <class T> T atomicMax(T *p, T v)
{
    T was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (was < v && !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    shim_yield();
    return was;
}
template <class T> T atomicOr(T *p, T v)
{
    shim_yield();
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}

static inline float __fmul_rn(float a, float b)
{
    return shim_rounded(a * b);
}
static inline float __fadd_rn(float a, float b)
{
    return shim_rounded(a + b);
}
static inline double __dmul_rn(double a, double b)
{
    return shim_rounded(a * b);
}
static inline double __dadd_rn(double a, double b)
{
    return shim_rounded(a + b);
}
static inline float __fsub_rn(float a, float b)
{
    return shim_rounded(a - b);
}
static inline float __fdiv_rn(float a, float b)
{
    return shim_rounded(a / b);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return shim_nan(fmaf(a, b, c));
}
static inline float __fsqrt_rn(float a)
{
    return shim_nan(sqrtf(a));
}
static inline float shim_expf(float x)
{
    return shim_inexact(expf(x));
}
static inline float shim_logf(float x)
{
    return shim_inexact(logf(x));
}
#define expf shim_expf
#define logf shim_logf
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline unsigned __float_as_uint(float x)
{
    return f32_to_bits(x);
}
static inline float __uint_as_float(unsigned x)
{
    return bits_to_f32(x);
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) c += (int8_t)(unsigned char)(a >> 8 * i) * (int8_t)(unsigned char)(b >> 8 * i);
    return c;
}
template <class T> T __ldg(const T *p)
{
    return *p;
}

/* ---- the runtime ---- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorGraphExecUpdateFailure = 910
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor
};
enum { cudaStreamNonBlocking = 1 };
typedef struct CUstream_st *cudaStream_t;
struct cudaDeviceProp {
    char name[256];
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
    int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

static inline const char *cudaGetErrorString(cudaError_t rc)
{
    switch (rc) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "invalid argument";
    }
}
#define SHIM_CALL()                                                                                                    \
    if (int shim_rc = shim_next_call()) return (cudaError_t)shim_rc
static inline cudaError_t cudaGetDeviceCount(int *n)
{
    return (cudaError_t)shim_device_count(n);
}
static inline cudaError_t cudaGetDevice(int *n)
{
    *n = shim_device();
    return cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int n)
{
    SHIM_CALL();
    shim_set_device(n);
    return cudaSuccess;
}
/* For calls that need the device of their stream to be the thread's current one. */
#define SHIM_CALL_ON(s)                                                                                                \
    SHIM_CALL();                                                                                                       \
    if (!shim_on_device(s)) return cudaErrorInvalidResourceHandle
#define CUDART_VERSION 13000
static inline cudaError_t cudaDriverGetVersion(int *v)
{
    SHIM_CALL();
    *v = CUDART_VERSION;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int)
{
    SHIM_CALL();
    *v = a == cudaDevAttrMultiProcessorCount ? 4 : a == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    SHIM_CALL();
    strcpy(p->name, "host shim");
    return cudaSuccess;
}
/* Submits work to the stream: done at once, deferred until a wait (shim_lazy), or added to the graph being captured.
 * what: the kernel or kind of copy, which an executable graph cannot exchange. launch NULL: a copy, or a call of a
 * library. */
cudaError_t shim_submit(const void *what, std::function<void()> work, const shim_launch *launch = NULL);

/* For calls that are not allowed while a stream is captured; they invalidate the capture. */
#define SHIM_CALL_OUTSIDE()                                                                                            \
    SHIM_CALL();                                                                                                       \
    if (shim_capture_broken()) return cudaErrorStreamCaptureUnsupported
static inline cudaError_t cudaMalloc(void **p, size_t n)
{
    SHIM_CALL_OUTSIDE();
    return (cudaError_t)shim_alloc(p, n);
}
static inline cudaError_t cudaFree(void *p)
{
    if (p && shim_capture_broken()) return cudaErrorStreamCaptureUnsupported;
    int rc = shim_free(p);
    SHIM_CALL();
    return (cudaError_t)rc;
}
static inline cudaError_t cudaMallocHost(void **p, size_t n)
{
    SHIM_CALL_OUTSIDE();
    return (cudaError_t)shim_alloc_pinned(p, n);
}
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
static inline cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    return cudaMallocHost(p, n);
}
static inline cudaError_t cudaFreeHost(void *p)
{
    shim_free_pinned(p);
    SHIM_CALL();
    return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *f, size_t *t)
{
    SHIM_CALL();
    shim_memory_info(f, t);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t)
{
    SHIM_CALL();
    return (cudaError_t)shim_copy(to, from, n, kind);
}
static inline cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s)
{
    SHIM_CALL_ON(s);
    return shim_submit((const void *)"memset", [=] { memset(p, v, n); });
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    SHIM_CALL();
    *s = (cudaStream_t)shim_stream();
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t)
{
    shim_wait();
    SHIM_CALL();
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    SHIM_CALL_OUTSIDE();
    shim_wait();
    return cudaSuccess;
}
static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

typedef void (*cudaHostFn_t)(void *);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *data);

/* ---- events and graphs ---- */

enum { cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
struct cudaGraphExecUpdateResultInfo {
    int result;
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t x, cudaGraph_t g, cudaGraphExecUpdateResultInfo *info);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);

/* True if a block has enough registers. Without bounds a kernel may take 255, too many for a block of more than 256
 * threads. */
static inline bool shim_has_registers(const void *kernel, dim3 block)
{
    if (block.x * block.y * block.z <= 256) return true;
#ifdef __x86_64__
    const unsigned char *code = (const unsigned char *)kernel, enter[] = {0xf3, 0x0f, 0x1e, 0xfa};
    if (memcmp(code, enter, sizeof enter) == 0) code += sizeof enter;
    for (int i = 0; i < SHIM_NOPS; i++)
        if (code[i] != 0x90) return false;
#else
    (void)kernel;
#endif
    return true;
}

/* Returns the dynamic shared memory above 48 KiB that a kernel requested; one variable per kernel. */
template <class... P> size_t &shim_most_shared(void (*k)(P...))
{
    static std::tuple<void (*)(P...), size_t> most[256];
    for (auto &m : most) {
        if (!std::get<0>(m)) m = {k, 48 << 10};
        if (std::get<0>(m) == k) return std::get<1>(m);
    }
    abort();
}
struct cudaFuncAttributes {
    int maxDynamicSharedSizeBytes, ptxVersion;
};
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, void (*k)(P...))
{
    SHIM_CALL();
    a->maxDynamicSharedSizeBytes = (int)shim_most_shared(k);
    a->ptxVersion = 90;
    return cudaSuccess;
}
template <class... P> cudaError_t cudaFuncSetAttribute(void (*k)(P...), cudaFuncAttribute, int bytes)
{
    SHIM_CALL();
    if (bytes > 227 << 10) return cudaErrorInvalidValue;
    shim_most_shared(k) = (size_t)bytes;
    return cudaSuccess;
}
template <class... P, class... A> cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*k)(P...), A &&...a)
{
    SHIM_CALL_ON(c->stream);
    struct call {
        void (*k)(P...);
        std::tuple<P...> args;
        static void run(void *p)
        {
            std::apply(((call *)p)->k, ((call *)p)->args);
        }
    } call_now = {k, std::tuple<P...>(static_cast<A &&>(a)...)};
    shim_launch l = {{c->gridDim.x, c->gridDim.y, c->gridDim.z},
                     {c->blockDim.x, c->blockDim.y, c->blockDim.z},
                     c->dynamicSmemBytes,
                     call::run,
                     NULL,
                     (const void *)k,
                     c->numAttrs > 0 && c->attrs->val.programmaticStreamSerializationAllowed};
    if (!shim_fits(&l, shim_most_shared(k)) || !shim_has_registers((const void *)k, c->blockDim))
        return cudaErrorInvalidConfiguration;
    return shim_submit((const void *)k,
                       [l, call_now]() mutable {
                           l.args = &call_now;
                           shim_run(&l);
                       },
                       &l);
}

#include "tests/cushim/ptx.h"

#endif
