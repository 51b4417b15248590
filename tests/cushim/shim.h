/* SPDX-License-Identifier: MIT */
/* CUDA kernels on the host, for tests: each CUDA thread is a fiber of one OS thread, blocks run one after another.
 * What tests set and ask, and what the stand-ins of CUDA's headers in this folder call.
 * A fault in how a kernel synchronises ends the process with status SHIM_EXIT and one line that says where. */
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

/* Order of threads and blocks: 0 as numbered, otherwise random. */
void shim_seed(uint64_t seed);
/* Devices that cudaGetDeviceCount finds; 0: none, -1: no driver. */
void shim_devices(int n);
/* Bytes of device memory. */
void shim_memory(size_t bytes);
/* The n-th runtime call or launch from now on fails, and all after it; 0: none. */
void shim_fail_at(long n);
long shim_calls(void);  /* runtime calls and launches so far */
size_t shim_held(void); /* bytes of device memory that are allocated */
/* Whether work waits until something waits for it, as on a device, instead of being done at once. */
void shim_lazy(bool on);
/* Counts since the start. */
enum {
    SHIM_WAITS,  /* calls that wait for work which is not done yet, or might */
    SHIM_ALLOCS, /* device memory taken or given back */
    SHIM_SINGLE, /* launches and copies outside graphs */
    SHIM_GRAPHS, /* launches of graphs */
    SHIM_MADE,   /* executable graphs */
    SHIM_STALLS, /* executable graphs that were updated before their last launch was done */
    SHIM_LATE,   /* executable graphs that outlived the library whose kernels they may hold */
    SHIM_QUEUED, /* launches and copies, in graphs that are recorded too */
    SHIM_COUNTS
};
long shim_count(int what);
/* Races found so far; each place is told once on stderr. Always 0 but in the race build. */
long shim_races(void);
bool shim_sees_races(void);
/* What becomes of products by the vendor's library from now on, and whether opening a device finds it. */
enum { SHIM_GEMM, SHIM_GEMM_REFUSES, SHIM_GEMM_MISSING };
void shim_gemm(int how);

/* ---- for the stand-in headers ---- */

enum { SHIM_SYNC, SHIM_SHUFFLE, SHIM_BALLOT, SHIM_MATCH, SHIM_ADD, SHIM_MIN, SHIM_MAX, SHIM_MMA };

/* What SHIM_MMA's source says: the type of a and b. */
enum { SHIM_MMA_BF16, SHIM_MMA_F16, SHIM_MMA_S8 };

/* A lane's part of D = A B + C, in the layouts of ptx.cuh. */
typedef struct {
    unsigned a[4], b[2], c[4];
} shim_fragments;

/* 16 bytes that a thread copies to shared memory while it goes on. */
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
} shim_launch;

/* False: the launch is refused. */
bool shim_fits(const shim_launch *l, size_t most_shared);
void shim_run(const shim_launch *l);
void shim_barrier(const char *file, int line);
/* A warp operation of the lanes in mask: out [size bytes] from all lanes' in. */
void shim_warp(int op, unsigned mask, const void *in, void *out, size_t size, int source, const char *file, int line);
void *shim_shared(const void *tag, size_t bytes);
void *shim_shared_dyn(void);
void shim_copy_later(void *to, const void *from, bool inside);
void shim_copies_end_group(void);
/* The thread's oldest copy that is not of its last `under_way` groups; false: none. */
bool shim_copy_due(int under_way, shim_late_copy *out);
/* __threadfence, for the race check. */
void shim_fence(void);
/* One in four atomics lets others go first. */
void shim_yield(void);
int shim_next_call(void); /* 0, or the error that this runtime call returns */
int shim_device_count(int *n);
int shim_alloc(void **p, size_t bytes);
int shim_free(void *p);
void shim_memory_info(size_t *free_bytes, size_t *total);
int shim_alloc_pinned(void **p, size_t bytes);
void shim_free_pinned(void *p);
/* Pinned memory that there is (at the start without limit), and what is held of it. */
void shim_pinned(size_t bytes);
size_t shim_pinned_held(void);
int shim_copy(void *to, const void *from, size_t n, int kind);
void shim_wait(void); /* does all work that was kept */
void shim_library_closes(void);
/* Whether a stream is being recorded; the record is void then. */
bool shim_capture_broken(void);
/* With SHIM_GUARD in the environment, device memory can be read and written between these two alone: what else touches
 * it is host code that would fail on a device. */
void shim_enter(void);
void shim_leave(void);

#ifdef __cplusplus
}
#endif

/* ---- between fibers.cc and races.cc ---- */

typedef struct {
    uint32_t block;        /* of all launches, in the order of running; 0: no kernel runs */
    uint32_t launch_first; /* first block of this launch */
    uint32_t barrier;      /* barriers that the block has passed */
    uint16_t thread;
    const char *stack, *stack_end; /* of the running fiber */
    uint32_t (*clocks)[32];        /* [thread]: what it knows of the lanes of its warp */
} shim_where;

#endif
