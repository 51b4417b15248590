/* SPDX-License-Identifier: MIT */
/* The runtime called by the stand-in headers: devices, memory, one stream, and calls that fail on request. */
#include <stdlib.h>
#include <sys/mman.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tests/cushim/cuda_runtime.h"

namespace
{
int n_devices = 2;
thread_local int device; /* current */
int opened;              /* device of the last stream */
size_t total = (size_t)1 << 30, held;
long fail_at, n_calls;
std::map<void *, size_t> blocks;
std::map<const char *, size_t> pinned; /* host memory that copies and kernels may access later */
size_t pinned_most = SIZE_MAX;
long counts[SHIM_COUNTS];

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
    size_t at = region_used, room = bytes / PAGE * PAGE + 2 * PAGE; /* a page between blocks stays inaccessible */
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

void shim_set_device(int n)
{
    device = n;
}

int shim_device(void)
{
    return device;
}

void *shim_stream(void)
{
    opened = device;
    return (void *)(uintptr_t)(device + 1);
}

bool shim_on_device(const void *stream)
{
    return !stream || (uintptr_t)stream == (uintptr_t)(device + 1); /* NULL: the default stream of each device */
}

/* Allocates device memory, filled with a nonzero pattern. */
int shim_alloc(void **p, size_t bytes)
{
    counts[SHIM_ALLOCS]++;
    counts[SHIM_ELSEWHERE] += device != opened;
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
    counts[SHIM_ALLOCS]++;
    shim_wait();
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

void shim_pinned(size_t bytes)
{
    pinned_most = bytes;
}

size_t shim_pinned_held(void)
{
    size_t sum = 0;
    for (auto &b : pinned) sum += b.second;
    return sum;
}

/* Allocates pinned memory, filled with a nonzero pattern. */
int shim_alloc_pinned(void **p, size_t bytes)
{
    counts[SHIM_ALLOCS]++;
    size_t now = shim_pinned_held();
    *p = now <= pinned_most && bytes <= pinned_most - now ? malloc(bytes) : NULL;
    if (!*p) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes);
    pinned[(const char *)*p] = bytes;
    return cudaSuccess;
}

long shim_count(int what)
{
    return counts[what];
}

/* ---- the stream ---- */

namespace
{
struct node {
    const void *what;
    std::function<void()> work;
};
typedef std::vector<node> node_list;

bool lazy, idle, recording, broken;
std::shared_ptr<node_list> record;
std::deque<std::function<void()>> kept;
long n_kept, n_done; /* since the start */
long n_executable;   /* graphs */

bool is_pinned(const void *p, size_t n)
{
    auto it = pinned.upper_bound((const char *)p);
    if (it == pinned.begin()) return false;
    --it;
    return (const char *)p + n <= it->first + it->second;
}

void run_until(long count)
{
    while (n_done < count) {
        auto work = std::move(kept.front());
        kept.pop_front();
        n_done++;
        shim_enter();
        work();
        shim_leave();
    }
}

void keep(std::function<void()> work)
{
    kept.push_back(std::move(work));
    n_kept++;
    if (!lazy) run_until(n_kept);
}
} // namespace

struct CUevent_st {
    long behind;
};
struct CUgraph_st {
    std::shared_ptr<node_list> nodes;
};
struct CUgraphExec_st {
    std::shared_ptr<node_list> nodes;
    long behind; /* its last launch */
};

void shim_lazy(bool on)
{
    lazy = on;
    if (!on) run_until(n_kept);
}

void shim_idle(bool on)
{
    idle = on;
}

void shim_wait(void)
{
    counts[SHIM_WAITS]++;
    run_until(n_kept);
    shim_launches_end();
}

void shim_free_pinned(void *p)
{
    counts[SHIM_ALLOCS]++;
    counts[SHIM_EARLY] += n_done < n_kept;
    shim_wait();
    pinned.erase((const char *)p);
    free(p);
}

bool shim_capture_broken(void)
{
    broken = broken || recording;
    return recording;
}

cudaError_t shim_submit(const void *what, std::function<void()> work, const shim_launch *launch)
{
    counts[SHIM_QUEUED]++;
    counts[SHIM_LAUNCHES] += launch != NULL;
    counts[SHIM_DEPENDENT] += launch && launch->dependent;
    if (idle) work = [] {};
    if (!launch)
        work = [rest = std::move(work)] {
            shim_launches_end();
            rest();
        };
    if (recording) {
        if (broken) return cudaErrorStreamCaptureInvalidated;
        record->push_back({what, std::move(work)});
        return cudaSuccess;
    }
    counts[SHIM_SINGLE]++;
    keep(std::move(work));
    return cudaSuccess;
}

/* Copies. Unpinned memory is read immediately, and written after a wait. */
int shim_copy(void *to, const void *from, size_t n, int kind)
{
    static const char *const names[] = {"upload", "download", "copy"};
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    if (kind == cudaMemcpyDeviceToHost) counts[SHIM_FETCHED] += (long)n;
    if (kind == cudaMemcpyDeviceToDevice || is_pinned(host, n))
        return shim_submit(names[kind], [=] { memmove(to, from, n); });
    if (shim_capture_broken()) return cudaErrorStreamCaptureUnsupported;
    if (kind == cudaMemcpyHostToDevice) {
        std::vector<char> bytes((const char *)from, (const char *)from + n);
        return shim_submit(names[kind], [=] { memcpy(to, bytes.data(), n); });
    }
    shim_wait();
    shim_enter();
    memcpy(to, from, n);
    shim_leave();
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t fn, void *data)
{
    SHIM_CALL();
    return shim_submit((const void *)fn, [=] { fn(data); });
}

/* ---- events and graphs ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    SHIM_CALL();
    *e = new CUevent_st{0};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    SHIM_CALL();
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    SHIM_CALL_OUTSIDE();
    if (!shim_on_device(s)) return cudaErrorInvalidResourceHandle;
    e->behind = n_kept;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    SHIM_CALL_OUTSIDE();
    if (n_done < e->behind) counts[SHIM_WAITS]++;
    run_until(e->behind);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    SHIM_CALL_OUTSIDE();
    recording = true;
    broken = false;
    record = std::make_shared<node_list>();
    return cudaSuccess;
}

/* Ends the capture even if the call fails: the device's stream also does so if its capture is invalid. */
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g)
{
    bool was = recording;
    std::shared_ptr<node_list> nodes = std::move(record);
    recording = false;
    *g = NULL;
    SHIM_CALL();
    if (!was) return cudaErrorInvalidValue;
    if (broken) return cudaErrorStreamCaptureInvalidated;
    *g = new CUgraph_st{nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *, size_t *n)
{
    SHIM_CALL();
    *n = g->nodes->size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    SHIM_CALL();
    counts[SHIM_MADE]++;
    *x = new CUgraphExec_st{g->nodes, 0};
    n_executable++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t x, cudaGraph_t g, cudaGraphExecUpdateResultInfo *)
{
    SHIM_CALL();
    bool same = x->nodes->size() == g->nodes->size();
    for (size_t i = 0; same && i < x->nodes->size(); i++) same = (*x->nodes)[i].what == (*g->nodes)[i].what;
    if (!same) return cudaErrorGraphExecUpdateFailure;
    counts[SHIM_STALLS] += x->behind > n_done;
    x->nodes = g->nodes; /* earlier launches keep their nodes */
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    SHIM_CALL_OUTSIDE();
    if (!shim_on_device(s)) return cudaErrorInvalidResourceHandle;
    counts[SHIM_GRAPHS]++;
    auto nodes = x->nodes;
    keep([nodes] {
        shim_launches_end();
        for (auto &n : *nodes) n.work();
        shim_launches_end();
    });
    x->behind = n_kept;
    return cudaSuccess;
}

void shim_counts_product(void)
{
    counts[SHIM_PRODUCTS]++;
}

void shim_library_closes(void)
{
    counts[SHIM_LATE] += n_executable;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    SHIM_CALL();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    delete x;
    n_executable--;
    SHIM_CALL();
    return cudaSuccess;
}
