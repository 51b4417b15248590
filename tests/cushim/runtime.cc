/* SPDX-License-Identifier: MIT */
/* The runtime that the stand-in headers call: devices, memory, and calls that fail on request. */
#include <stdlib.h>
#include <sys/mman.h>

#include <map>

#include "tests/cushim/cuda_runtime.h"

namespace {
int n_devices = 2;
size_t total = (size_t)1 << 30, held;
long fail_at, n_calls;
std::map<void *, size_t> blocks;

/* Guarded memory: taken from one region, page by page, and never used again. */
enum : size_t { REGION = (size_t)16 << 30, PAGE = 4096 };
char *region;
size_t region_used;

bool guarded()
{
    static const bool on = getenv("SHIM_GUARD") != NULL;
    return on;
}

void *new_block(size_t bytes)
{
    if (!guarded()) return malloc(bytes ? bytes : 1);
    if (!region) region = (char *)mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t at = region_used, room = bytes / PAGE * PAGE + 2 * PAGE; /* a page between blocks stays closed */
    if (region == MAP_FAILED || at + room > REGION) return NULL;
    region_used += room;
    return region + at;
}

void protect(int how)
{
    for (auto &b : blocks)
        if (guarded() && mprotect(b.first, b.second ? b.second : 1, how) != 0) abort();
}
} // namespace

void shim_enter(void)
{
    protect(PROT_READ | PROT_WRITE);
}

void shim_leave(void)
{
    protect(PROT_NONE);
}

void shim_devices(int n)
{
    n_devices = n;
}

void shim_memory(size_t bytes)
{
    total = bytes;
}

void shim_fail_at(long n)
{
    fail_at = n ? n_calls + n : 0;
}

long shim_calls(void)
{
    return n_calls;
}

size_t shim_held(void)
{
    return held;
}

int shim_next_call(void)
{
    n_calls++;
    return fail_at && n_calls >= fail_at ? cudaErrorLaunchFailure : cudaSuccess;
}

int shim_device_count(int *n)
{
    if (n_devices > 0) *n = n_devices;
    return n_devices > 0 ? cudaSuccess : n_devices == 0 ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
}

/* Fresh memory is not zero. */
int shim_alloc(void **p, size_t bytes)
{
    if (bytes > total - held) return cudaErrorMemoryAllocation;
    *p = new_block(bytes);
    if (!*p) return cudaErrorMemoryAllocation;
    blocks[*p] = bytes;
    held += bytes;
    shim_enter();
    memset(*p, 0xff, bytes);
    shim_leave();
    return cudaSuccess;
}

int shim_free(void *p)
{
    auto it = blocks.find(p);
    if (!p) return cudaSuccess;
    if (it == blocks.end()) return cudaErrorInvalidValue;
    held -= it->second;
    if (!guarded()) free(p);
    else if (mprotect(p, it->second ? it->second : 1, PROT_NONE) != 0) abort();
    blocks.erase(it);
    return cudaSuccess;
}

void shim_memory_info(size_t *free_bytes, size_t *all)
{
    *free_bytes = total - held;
    *all = total;
}
