/* SPDX-License-Identifier: MIT */
/* The cuda backend: device, memory, copies, and recording of faults. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/cuda/cuda.cuh"
#include "kernels/ops_tier.h"

enum {
    OLDEST = 80,     /* compute capability 8.0 */
    KEPT = 256 << 20 /* bytes left free for scratch that no plan counts; less on a small device */
};

/* ---- faults ---- */

bool cuda_check(backend *be, cudaError_t rc, const char *fmt, ...)
{
    char op[160];
    va_list ap;
    if (rc == cudaSuccess) return true;
    va_start(ap, fmt);
    vsnprintf(op, sizeof op, fmt, ap);
    va_end(ap);
    err_set(&be->fault, ST_DEVICE, "%s: %s: %s", be->name, op, cudaGetErrorString(rc));
    return false;
}

void cuda_use_device(backend *be)
{
    int device = cuda_of(be)->device, current;
    if (cudaGetDevice(&current) == cudaSuccess && current == device) return;
    cuda_check(be, cudaSetDevice(device), "selecting the device");
}

/* Waits for the queue; errors of queued work appear here. */
static bool wait(backend *be, const char *what)
{
    cuda_step_end(be);
    return cuda_check(be, cudaStreamSynchronize(cuda_stream(be)), "%s after %s", what, cuda_of(be)->last);
}

static status no_room(backend *be, const char *what, size_t bytes, err *e)
{
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    return err_set(e, ST_NOMEM, "%s: out of device memory: %s needs %.1f MB, %.1f of %.1f MB are free", be->name, what,
                   (double)bytes / 1e6, (double)free_bytes / 1e6, (double)total / 1e6);
}

static status device_alloc(backend *be, void **out, size_t bytes, const char *what, err *e)
{
    *out = NULL;
    cuda_step_end(be);
    if (be->fault.code != ST_OK) return backend_fault(be, e);
    cudaError_t rc = cudaMalloc(out, bytes ? bytes : 16);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* otherwise the next launch would return this error */
        return no_room(be, what, bytes, e);
    }
    return cuda_check(be, rc, "%s: allocating %zu bytes", what, bytes) ? ST_OK : backend_fault(be, e);
}

void *cuda_room(backend *be, cuda_scratch *s, size_t n, size_t size, const char *what)
{
    size_t bytes;
    if (be->fault.code != ST_OK || size_mul(&bytes, n, size, what, &be->fault) != ST_OK) return NULL;
    if (s->p && bytes <= s->bytes) return s->p;
    if (s->p) bytes += bytes / 2;
    cuda_step_end(be);
    cuda_check(be, cudaFree(s->p), "%s: freeing", what); /* waits for kernels that still read it */
    *s = (cuda_scratch){NULL, 0};
    if (device_alloc(be, &s->p, bytes, what, &be->fault) == ST_OK) s->bytes = bytes;
    return s->p;
}

int *cuda_zeros(backend *be, size_t n, const char *what)
{
    cuda_scratch *s = &cuda_of(be)->zeros;
    size_t before = s->bytes;
    int *p = (int *)cuda_room(be, s, n, sizeof(int), what);
    if (!p || s->bytes == before) return p;
    return cuda_check(be, cudaMemsetAsync(p, 0, s->bytes, cuda_stream(be)), "%s: clearing", what) ? p : NULL;
}

status cuda_reserved(backend *be, err *e)
{
    if (be->fault.code != ST_NOMEM) return backend_fault(be, e);
    *e = be->fault; /* no step has begun, so the backend is still usable */
    be->fault = (err){};
    return ST_NOMEM;
}

/* ---- memory ---- */

void cuda_free(backend *be, buf b, size_t bytes)
{
    (void)bytes;
    cuda_step_end(be);
    cuda_check(be, cudaFree(b.p), "freeing");
}

status cuda_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    void *p;
    out->p = NULL;
    TRY(device_alloc(be, &p, bytes, what, e));
    if (!cuda_check(be, cudaMemsetAsync(p, 0, bytes, cuda_stream(be)), "%s: clearing", what)) {
        cudaFree(p);
        return backend_fault(be, e);
    }
    out->p = (unsigned char *)p;
    return ST_OK;
}

status cuda_import(backend *be, buf *out, const void *host, size_t bytes, err *e)
{
    void *p;
    out->p = NULL;
    TRY(device_alloc(be, &p, bytes, "weights", e));
    *out = (buf){(unsigned char *)p};
    cuda_load(be, *out, host, bytes);
    if (be->fault.code == ST_OK) return ST_OK;
    cudaFree(p);
    out->p = NULL;
    return backend_fault(be, e);
}

/* Queues an upload after earlier work, without waiting. */
void cuda_upload(backend *be, buf dst, const void *src, size_t bytes)
{
    unsigned char *by = cuda_staging(be, bytes);
    if (be->fault.code != ST_OK) return;
    if (!by) {
        cuda_load(be, dst, src, bytes);
        return;
    }
    memcpy(by, src, bytes);
    cuda_check(be, cudaMemcpyAsync(dst.p, by, bytes, cudaMemcpyHostToDevice, cuda_stream(be)), "upload of %zu bytes",
               bytes);
}

void cuda_download(backend *be, void *dst, buf src, size_t bytes)
{
    memset(dst, 0, bytes); /* defined after a fault too */
    cuda_step_end(be);
    if (be->fault.code != ST_OK) return;
    if (cuda_check(be, cudaMemcpyAsync(dst, src.p, bytes, cudaMemcpyDeviceToHost, cuda_stream(be)),
                   "download of %zu bytes after %s", bytes, cuda_of(be)->last))
        wait(be, "download");
}

void cuda_copy(backend *be, buf dst, buf src, size_t bytes)
{
    if (!cuda_begin(be, "copy")) return;
    cuda_check(be, cudaMemcpyAsync(dst.p, src.p, bytes, cudaMemcpyDeviceToDevice, cuda_stream(be)), "copy of %zu bytes",
               bytes);
}

void cuda_discard(backend *be, buf b, size_t bytes)
{
    (void)be, (void)b, (void)bytes; /* one planned allocation: nothing is returned before it is freed */
}

status cuda_reserve(backend *be, const step_size *s, err *e)
{
    cuda_ctx *c = cuda_of(be);
    c->most_jobs = max(c->most_jobs, min(s->rows, (size_t)CUDA_JOBS));
    cuda_decode_reserve(be, s->rows, s->n_heads, s->head_dim, s->n_keys);
    cuda_room(be, &c->lse, c->most_jobs * s->n_heads, sizeof(float), "votes");
    size_t steps = 2 * s->rows * s->width, prompts = cuda_linear_room(s->prompt_rows, s->width, s->exact);
    if (be->fault.code == ST_OK) cuda_room(be, &c->rounded, max(steps, prompts), sizeof(float), "rounded activations");
    size_t scales = 2 * max(s->rows, s->prompt_rows);
    if (be->fault.code == ST_OK) cuda_room(be, &c->scales, scales, sizeof(float), "scales");
    return cuda_reserved(be, e);
}

void cuda_release(backend *be, buf b, size_t bytes)
{
    cuda_free(be, b, bytes);
}

bool cuda_map_file(backend *, buf, size_t, int, uint64_t)
{
    return false; /* files are uploaded */
}

size_t cuda_available(backend *be)
{
    size_t free_bytes = 0, total = 0;
    cuda_use_device(be);
    if (!cuda_check(be, cudaMemGetInfo(&free_bytes, &total), "querying free memory")) return 0;
    size_t kept = min((size_t)KEPT, total / 64);
    return free_bytes > kept ? free_bytes - kept : 1; /* 0 would mean unknown */
}

void cuda_sync(backend *be)
{
    if (be->fault.code == ST_OK) wait(be, "waiting");
}

/* ---- host memory that kernels access directly, at the same address (--kv-tier host) ---- */

static size_t host_room(backend *be)
{
    return mem_available() / (size_t)(be->ranks ? be->ranks->local_size : 1);
}

static status host_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    void *p = NULL;
    out->p = NULL;
    cuda_step_end(be);
    if (be->fault.code != ST_OK) return backend_fault(be, e);
    cudaError_t rc = cudaHostAlloc(&p, bytes ? bytes : 16, cudaHostAllocMapped | cudaHostAllocPortable);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* otherwise the next launch would return this error */
        return err_set(e, ST_NOMEM, "%s: out of pinned host memory: %s needs %.1f MB, %.1f MB are available", be->name,
                       what, (double)bytes / 1e6, (double)host_room(be) / 1e6);
    }
    if (!cuda_check(be, rc, "%s: pinning %zu bytes of host memory", what, bytes)) return backend_fault(be, e);
    memset(p, 0, bytes);
    out->p = (unsigned char *)p;
    return ST_OK;
}

/* Waits for the stream first, since cudaFreeHost need not wait for kernels that use the memory. */
static void host_free(backend *be, buf b, size_t bytes)
{
    (void)bytes;
    cuda_step_end(be);
    cudaError_t rc = cudaStreamSynchronize(cuda_stream(be));
    cudaError_t freed = cudaFreeHost(b.p);
    cuda_check(be, rc != cudaSuccess ? rc : freed, "freeing host memory after %s", cuda_of(be)->last);
}

static const host_ops cuda_host = {.alloc = host_alloc, .free = host_free, .room = host_room, .bring = cuda_bring};

/* ---- opening ---- */

static void close_backend(backend *be)
{
    cuda_ctx *c = cuda_of(be);
    if (!c) return;
    cuda_step_end(be);
    if (c->stream) cudaStreamSynchronize(c->stream); /* kernels may still access pinned memory */
    cuda_step_close(c);                              /* graphs first, since they may hold kernels of the libraries */
    cuda_gemm_destroy(c->gemm);
    cuda_nccl_free(c->nccl);
    /* After a fault these calls fail too; their errors are ignored. */
    cudaFree(c->parts.p);
    cudaFree(c->lse.p);
    cudaFree(c->rounded.p);
    cudaFree(c->scales.p);
    cudaFree(c->gathered.p);
    cudaFree(c->zeros.p);
    if (c->stream) cudaStreamDestroy(c->stream);
    mem_free(c);
    be->ctx = NULL;
}

#define CUDA_TABLE(name, OPS, type)  static const type cuda_##name = {OPS(OP_ENTRY, cuda_##name##_, cuda_##name##_)};
#define CUDA_FAMILY(name, OPS, type) .name = &cuda_##name,

OP_FAMILIES(CUDA_TABLE)

/* A chunk reads all weights: 2,048 rows are 2,048 operations per byte of bf16 weights, and an H100 needs 300. */
static const backend_ops cuda_ops = {.chunk = 2048,
                                     .short_chunk = 1024,
                                     .at_once = true,
                                     .imports_copy = true,
                                     .queues = true,
                                     .rounds_f16 = true,
                                     .qblocks = 1u << DT_Q8 | 1u << DT_Q4,
                                     .tier = NULL, /* files */
                                     .host = &cuda_host,
                                     .certify = NULL,
                                     CORE_OPS(OP_ENTRY, cuda_, cuda_) OP_FAMILIES(CUDA_FAMILY)};

static status find_device(const backend *be, int *index, err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0)
        return err_set(e, ST_DEVICE, "--device cuda: no usable GPU: %s",
                       rc == cudaSuccess ? "no device found" : cudaGetErrorString(rc));
    if (*index >= n && backend_ranks(be) > 1)
        return err_set(e, ST_USAGE, "--device cuda: %d ranks on this machine need a GPU each, it has %d",
                       be->ranks->local_size, n);
    if (*index >= n)
        return err_set(e, ST_USAGE, "--device cuda:%d: the last GPU of this machine is cuda:%d", *index, n - 1);
    if (*index < 0) *index = 0;
    return ST_OK;
}

/* Makes the device current; returns its name, compute capability and number of multiprocessors. */
static cudaError_t take_device(cuda_ctx *c, char *model, size_t size, int *capability)
{
    int major = 0, minor = 0;
    cudaDeviceProp prop;
    cudaError_t rc = cudaSetDevice(c->device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&c->n_sm, cudaDevAttrMultiProcessorCount, c->device);
    if (rc == cudaSuccess) rc = cudaGetDeviceProperties(&prop, c->device);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (rc == cudaSuccess) rc = cuda_step_open(c);
    *capability = 10 * major + minor;
    if (rc == cudaSuccess) snprintf(model, size, "%.64s", prop.name);
    return rc;
}

/* Creates the communicator. A single rank works without the library. */
static status join_ranks(backend *be, err *e)
{
    err why = {};
    if (!be->ranks) return ST_OK;
    status st = cuda_nccl_create(&cuda_of(be)->nccl, be->ranks, cuda_stream(be), &why);
    if (st == ST_OK || (st == ST_UNSUPPORTED && be->ranks->size == 1)) return ST_OK;
    return err_set(e, st, "%s", why.msg);
}

/* Warns once per process: without cublasLt prompts take an estimated 30 to 100 times as long. */
static void warn_no_gemm(const backend *be)
{
    static bool warned;
    if (!warned)
        dprintf(STDERR_FILENO,
                "%s: cublasLt was not found: prompts are processed 8 rows at a time, which is slow; set CUDA_HOME to "
                "the toolkit's folder or LD_LIBRARY_PATH to the library's\n",
                be->name);
    warned = true;
}

extern "C" status backend_cuda_init(backend *be, int index, err *e) noexcept
{
    cuda_ctx *c;
    char model[80] = "";
    int capability;
    TRY(find_device(be, &index, e));
    TRY(MEM_NEW(&c, 1, e));
    c->device = index;
    c->last = "opening";
    c->no_graphs = getenv("KVASIR_NO_GRAPHS") != NULL;
    be->ctx = c;
    snprintf(c->name, sizeof c->name, "cuda:%d", index);
    be->name = c->name;
    cudaError_t rc = take_device(c, model, sizeof model, &capability);
    status st = ST_OK;
    if (rc != cudaSuccess) st = err_set(e, ST_DEVICE, "--device %s: %s", c->name, cudaGetErrorString(rc));
    else if (capability < OLDEST)
        st = err_set(e, ST_UNSUPPORTED, "--device %s: %s has compute capability %d.%d, %d.%d is the oldest supported",
                     c->name, model, capability / 10, capability % 10, OLDEST / 10, OLDEST % 10);
    else c->dependent = cuda_step_dependent();
    if (st == ST_OK) st = join_ranks(be, e);
    if (st != ST_OK) {
        close_backend(be);
        return st;
    }
    bool left_out = getenv("KVASIR_NO_CUBLASLT") != NULL;
    if (!left_out) c->gemm = cuda_gemm_create(index, c->stream);
    if (!c->gemm && !left_out) warn_no_gemm(be);
    be->ops = &cuda_ops;
    be->close = close_backend;
    be->n_threads = 1;
    snprintf(be->about, sizeof be->about, "%s, %s%s%s", model, c->gemm ? cuda_gemm_name(c->gemm) : "built-in GEMM",
             be->ranks ? ", " : "",
             c->nccl     ? cuda_nccl_name(c->nccl)
             : be->ranks ? "no NCCL"
                         : "");
    return ST_OK;
}
