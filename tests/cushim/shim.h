/* SPDX-License-Identifier: MIT */
/* CUDA kernels on the host, for tests: each CUDA thread is a fiber of one OS thread, and blocks run one after another.
 * Declares the controls for tests and the functions that the stand-ins of CUDA's headers in this folder call. A
 * synchronization fault of a kernel ends the process with status SHIM_EXIT and one line with its location. */
#ifndef TESTS_CUSHIM_SHIM_H
#define TESTS_CUSHIM_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_EXIT = 86 };

/* ---- for tests ---- */

/* Sets the order of threads and blocks: 0 as numbered, otherwise random. */
void shim_seed(uint64_t seed);
/* Sets the number of devices that cudaGetDeviceCount finds; 0: none, -1: no driver. */
void shim_devices(int n);
/* Sets the bytes of device memory. */
void shim_memory(size_t bytes);
/* Makes the n-th runtime call or launch from now on fail, and all after it; 0: none. */
void shim_fail_at(long n);
long shim_calls(void);  /* runtime calls and launches so far */
size_t shim_held(void); /* bytes of allocated device memory */
/* Selects if work is deferred until something waits for it, as on a device, or done immediately. */
void shim_lazy(bool on);
/* Selects if work is checked and counted, but not done. */
void shim_idle(bool on);
/* Counts since the start. */
enum {
    SHIM_WAITS,     /* calls that wait for work that is, or may be, unfinished */
    SHIM_ALLOCS,    /* allocations and releases of device memory */
    SHIM_SINGLE,    /* launches and copies outside graphs */
    SHIM_GRAPHS,    /* launches of graphs */
    SHIM_MADE,      /* executable graphs */
    SHIM_STALLS,    /* executable graphs updated before their last launch was done */
    SHIM_LATE,      /* executable graphs that outlived the library whose kernels they may contain */
    SHIM_ELSEWHERE, /* allocations on a device other than that of the last stream */
    SHIM_EARLY,     /* pinned memory released before the queued work was done */
    SHIM_QUEUED,    /* launches and copies, including those in captured graphs */
    SHIM_FETCHED,   /* bytes copied to the host */
    SHIM_PRODUCTS,  /* calls of the vendor library that it did not refuse */
    SHIM_LAUNCHES,  /* of SHIM_QUEUED, launches */
    SHIM_DEPENDENT, /* of these, launches that may start before the previous one ends */
    SHIM_COUNTS
};
long shim_count(int what);
/* Returns the races found so far; each location is printed once on stderr. Always 0 except in the race build. */
long shim_races(void);
bool shim_sees_races(void);
/* Selects the result of the vendor library's products from now on, and if opening a device finds the library. Products
 * are refused with "not supported" or with "invalid value", or if a call has several. */
enum { SHIM_GEMM, SHIM_GEMM_REFUSES, SHIM_GEMM_INVALID, SHIM_GEMM_SINGLE, SHIM_GEMM_MISSING };
void shim_gemm(int how);

/* ---- for the stand-in headers ---- */

enum { SHIM_SYNC, SHIM_SHUFFLE, SHIM_BALLOT, SHIM_MATCH, SHIM_ADD, SHIM_MIN, SHIM_MAX, SHIM_MMA };

/* Types of a and b for SHIM_MMA. */
enum { SHIM_MMA_BF16, SHIM_MMA_F16, SHIM_MMA_S8, SHIM_MMA_TF32 };

/* A lane's part of D = A B + C, in the layouts of ptx.cuh. */
typedef struct {
    unsigned a[4], b[2], c[4];
} shim_fragments;

/* 16 bytes that a thread copies to shared memory asynchronously. */
typedef struct {
    void *to;
    const void *from;
    bool inside;
    long group;
} shim_late_copy;

typedef struct {
    unsigned grid[3], block[3];
    size_t shared_bytes;
    void (*run)(void *args); /* the kernel, with its arguments */
    void *args;
    const void *kernel;
    bool dependent; /* may start before the previous launch ends */
} shim_launch;

/* Returns false if the launch is refused. */
bool shim_fits(const shim_launch *l, size_t most_shared);
void shim_run(const shim_launch *l);
void shim_barrier(const char *file, int line);
/* Executes a warp operation for the lanes in mask: out [size bytes] from the in of all lanes. */
void shim_warp(int op, unsigned mask, const void *in, void *out, size_t size, int source, const char *file, int line);
void *shim_shared(const void *tag, size_t bytes);
void *shim_shared_dyn(void);
void shim_copy_later(void *to, const void *from, bool inside);
void shim_copies_end_group(void);
/* Returns the thread's oldest copy that is not in its last `under_way` groups; false: none. */
bool shim_copy_due(int under_way, shim_late_copy *out);
/* __threadfence, for the race check. */
void shim_fence(void);
/* Waits for earlier launches (ptx.h). A thread of a dependent launch that ends without it ends the process. */
void shim_grid_wait(void);
/* Marks all launches so far as complete before any later one starts: at ordinary launches, at copies, at both ends of
 * graphs, and where the host waits. */
void shim_launches_end(void);
/* Lets other threads run first in one of four atomics. */
void shim_yield(void);
/* Sets the thread's current device; returns it; returns a stream of it; true if a stream is of it. */
void shim_set_device(int n);
int shim_device(void);
void *shim_stream(void);
bool shim_on_device(const void *stream);
int shim_next_call(void); /* 0, or the error that this runtime call must return */
int shim_device_count(int *n);
int shim_alloc(void **p, size_t bytes);
int shim_free(void *p);
void shim_memory_info(size_t *free_bytes, size_t *total);
int shim_alloc_pinned(void **p, size_t bytes);
void shim_free_pinned(void *p);
/* Sets the limit of pinned memory (initially none), and returns the amount allocated. */
void shim_pinned(size_t bytes);
size_t shim_pinned_held(void);
int shim_copy(void *to, const void *from, size_t n, int kind);
void shim_wait(void); /* does all deferred work */
void shim_counts_product(void);
void shim_library_closes(void);
/* True if a stream is being captured; invalidates the capture. */
bool shim_capture_broken(void);
/* With SHIM_GUARD in the environment, device memory can be accessed only between these two calls. Any other access is
 * host code that would fail on a device. */
void shim_enter(void);
void shim_leave(void);

#ifdef __cplusplus
}
#endif

/* ---- between fibers.cc and races.cc ---- */

typedef struct {
    uint32_t block;        /* numbered over all launches in running order; 0: no kernel runs */
    uint32_t launch_first; /* first block of this launch */
    uint32_t open_first;   /* first block that need not be complete for this thread; up to launch_first */
    uint32_t barrier;      /* number of barriers that the block has passed */
    uint16_t thread;
    const char *stack, *stack_end; /* of the running fiber */
    uint32_t (*clocks)[32];        /* [thread]: its clocks for the lanes of its warp */
} shim_where;

#endif
