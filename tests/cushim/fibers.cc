/* SPDX-License-Identifier: MIT */
/* The threads of a block as fibers: barriers, warp operations, shared memory, and the order of threads. */
#include "tests/cushim/shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN_FIBERS 1
#endif
#endif
#ifdef ASAN_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif

#include <utility>
#include <vector>

#include "tests/cushim/cuda_runtime.h"
#include "tests/cushim/races.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
int shim_lane;
shim_where shim_now;

namespace
{

enum { STACK = 64 << 10, MOST_THREADS = 1024, MOST_SHARED_ARRAYS = 32 };
enum thread_state { READY, AT_BARRIER, AT_WARP, EXITED };

struct fiber {
    void *sp; /* stack pointer at which it resumes */
    char *stack;
    uint3 index;
    thread_state state;
    bool started, waited; /* waited: for earlier launches */
    const char *file;     /* location of the operation it waits at */
    int line, op, source;
    unsigned mask;
    const void *in;
    void *out;
    size_t size;
    void *fake_stack;
    std::vector<shim_late_copy> copies; /* not yet executed */
    long copy_group;
#ifndef __x86_64__
    ucontext_t context;
#endif
};

struct shared_array {
    const void *tag;
    void *p;
    size_t bytes;
};

fiber fibers[MOST_THREADS];
uint32_t clocks[MOST_THREADS][32];
unsigned waiting[MOST_THREADS / 32], gone[MOST_THREADS / 32]; /* lanes of a warp: at a warp operation, exited */
int n_threads, n_exited, n_at_barrier, current = -1;
int queue[2 * MOST_THREADS];
unsigned queue_at, queue_end; /* ready fibers; a ring */
fiber scheduler;
void prepare(fiber *f);
const shim_launch *launch_now;
shared_array shared[MOST_SHARED_ARRAYS];
int n_shared;
uint64_t seed, state;
uint32_t blocks_run, blocks_ended; /* ended: before any later launch starts */
#ifdef ASAN_FIBERS
const void *main_stack;
size_t main_size;
fiber *came_from, *here;
#endif

uint64_t next_random()
{
    state += 0x9e3779b97f4a7c15ull; /* SplitMix64 */
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

[[noreturn]] void die(const char *what, const char *file, int line)
{
    fprintf(stderr, "cushim: %s at %s:%d, block %u %u %u, thread %d, seed %llu\n", what, file, line, blockIdx.x,
            blockIdx.y, blockIdx.z, current, (unsigned long long)seed);
    static const char *const names[] = {"ready", "at a barrier", "at a warp operation", "exited"};
    for (int t = 0; t < n_threads; t += 32)
        fprintf(stderr, "cushim:   thread %d: %s %s:%d\n", t, names[fibers[t].state],
                fibers[t].file ? fibers[t].file : "-", fibers[t].line);
    _Exit(SHIM_EXIT);
}

/* Static functions have no name at run time, so the message gives the command that finds it. */
[[noreturn]] void die_unwaited()
{
    Dl_info at = {};
    dladdr(launch_now->kernel, &at);
    fprintf(stderr, "cushim: a dependent kernel's thread ended without grid_wait: addr2line -Cfe %s %#lx\n",
            at.dli_fname ? at.dli_fname : "",
            (unsigned long)((const char *)launch_now->kernel - (const char *)at.dli_fbase));
    _Exit(SHIM_EXIT);
}

/* ---- order ---- */

void make_ready(int t)
{
    fibers[t].state = READY;
    queue[queue_end++ % (2 * MOST_THREADS)] = t;
}

int take_ready()
{
    unsigned n = queue_end - queue_at;
    if (n == 0) die("deadlock", "the end of what can run", 0);
    int *first = &queue[queue_at % (2 * MOST_THREADS)];
    if (seed) {
        int *any = &queue[(queue_at + (unsigned)(next_random() % n)) % (2 * MOST_THREADS)], t = *any;
        *any = *first;
        *first = t;
    }
    queue_at++;
    return *first;
}

void place(int t)
{
    current = t;
    threadIdx = fibers[t].index;
    shim_lane = t % 32;
    shim_now.thread = (uint16_t)t;
    shim_now.stack = fibers[t].stack;
    shim_now.stack_end = fibers[t].stack + STACK;
    shim_now.open_first = fibers[t].waited ? shim_now.launch_first : blocks_ended + 1;
}

/* ---- switching ---- */

#ifdef __x86_64__
extern "C" void shim_switch(void **save, void *to);
asm(".text\n.globl shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size shim_switch,.-shim_switch\n");
#endif

void arrived()
{
#ifdef ASAN_FIBERS
    bool from_main = came_from == &scheduler;
    __sanitizer_finish_switch_fiber(here->fake_stack, from_main ? &main_stack : NULL, from_main ? &main_size : NULL);
#endif
}

/* The only function that switches: a processor predicts the return into a fiber that was suspended at the same
 * address. */
__attribute__((noinline)) void switch_to(fiber *from, fiber *to, bool ends)
{
#ifdef ASAN_FIBERS
    const void *bottom = to == &scheduler ? main_stack : to->stack;
    size_t size = to == &scheduler ? main_size : (size_t)STACK;
    came_from = from, here = to;
    __sanitizer_start_switch_fiber(ends ? NULL : &from->fake_stack, bottom, size);
#else
    (void)ends;
#endif
#ifdef __x86_64__
    shim_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived();
}

/* Runs the thread, on its own stack if it has one, else on a new one. */
void begin(int t)
{
    if (!fibers[t].started) prepare(&fibers[t]);
    place(t);
}

/* Suspends the current thread and resumes the next one. */
void next_thread()
{
    fiber *from = &fibers[current];
    begin(take_ready());
    if (&fibers[current] != from) switch_to(from, &fibers[current], false);
}

/* Runs a thread. When it ends, the next thread that has not begun takes its stack: a kernel without barriers needs one
 * stack. */
void fiber_main()
{
    arrived();
    for (;;) {
        launch_now->run(launch_now->args);
        fiber *ended = &fibers[current];
        if (!ended->waited) die_unwaited();
        ended->state = EXITED;
        gone[current / 32] |= 1u << current % 32;
        if (++n_exited == n_threads) switch_to(ended, &scheduler, true);
        int t = take_ready();
        bool takes_over = !fibers[t].started;
        if (takes_over) std::swap(fibers[t].stack, ended->stack);
        fibers[t].started = true;
        place(t);
        if (!takes_over) switch_to(ended, &fibers[t], true);
    }
}

/* Prepares a fiber. Stack tops have different page offsets; otherwise all would share a few sets of a cache. */
void prepare(fiber *f)
{
    if (!f->stack) {
        char *p = (char *)mmap(NULL, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p, 4096, PROT_NONE) != 0) abort();
        f->stack = p + 4096;
    }
    f->started = true;
    f->fake_stack = NULL;
#ifdef __x86_64__
    void **top = (void **)(f->stack + STACK - ((uintptr_t)f->stack >> 12) % 16 * 256);
    top[-1] = NULL; /* the stack pointer at entry must look like after a call */
    top[-2] = (void *)fiber_main;
    for (int i = 3; i <= 8; i++) top[-i] = NULL;
    f->sp = top - 8;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
#endif
}

void run_block(unsigned x, unsigned y, unsigned z)
{
    blockIdx = {x, y, z};
    n_exited = n_at_barrier = queue_at = queue_end = n_shared = 0;
    memset(waiting, 0, sizeof waiting);
    memset(gone, 0, sizeof gone);
    shim_now.block = ++blocks_run;
    shim_now.barrier = 0;
    if (shim_sees_races()) memset(clocks, 0, sizeof clocks[0] * (size_t)n_threads);
    for (int t = 0; t < n_threads; t++) {
        fibers[t].started = false;
        fibers[t].waited = !launch_now->dependent;
        fibers[t].file = NULL;
        fibers[t].line = 0;
        fibers[t].copies.clear();
        fibers[t].copy_group = 0;
        make_ready(t);
        clocks[t][t % 32] = 1;
    }
    begin(take_ready());
    switch_to(&scheduler, &fibers[current], false);
    for (int i = 0; i < n_shared; i++) {
        races_forget(shared[i].p, shared[i].bytes);
        free(shared[i].p);
    }
}

void *new_shared(const void *tag, size_t bytes)
{
    if (n_shared == MOST_SHARED_ARRAYS) die("too many shared arrays", "shim", 0);
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0xff, bytes);
    races_fresh(p, bytes);
    shared[n_shared++] = {tag, p, bytes};
    size_t sum = 0;
    for (int i = 0; i < n_shared; i++) sum += shared[i].bytes;
    if (sum > (48 << 10) + launch_now->shared_bytes) die("more than 48 KiB of static shared memory", "shim", 0);
    return p;
}

/* ---- warp operations ---- */

/* Returns element i of a fragment of 32, 16 or 8 bits. A device may round or cut a float that is not a tf32. */
float fragment_element(const unsigned *words, int i, int kind)
{
    if (kind == SHIM_MMA_TF32 && words[i] & 0x1fff && (words[i] & 0x7f800000) != 0x7f800000)
        die("a number that tf32 does not hold", "mma", 0);
    if (kind == SHIM_MMA_TF32) return bits_to_f32(words[i]);
    if (kind == SHIM_MMA_S8) return (float)(int8_t)(words[i / 4] >> 8 * (i % 4));
    uint16_t h = (uint16_t)(words[i / 2] >> 16 * (i % 2));
    return kind == SHIM_MMA_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Computes D = A B + C of 16 x 8 x 8 tf32, 16 x 8 x 16 halves or 16 x 8 x 32 bytes, in the layouts of PTX's mma.sync.
 */
void multiply(fiber *warp, int lane0)
{
    int kind = warp[lane0].source, per_word = kind == SHIM_MMA_S8 ? 4 : kind == SHIM_MMA_TF32 ? 1 : 2;
    int depth = 8 * per_word;
    float A[16][32], B[32][8];
    for (int l = 0; l < 32; l++) {
        const shim_fragments *o = (const shim_fragments *)warp[l].in;
        int g = l / 4, t = l % 4;
        for (int i = 0; i < 6 * per_word; i++) {
            int w = i / per_word, at = per_word * t + i % per_word; /* words 4 and 5: b */
            if (w < 4) A[g + 8 * (w % 2)][at + depth / 2 * (w / 2)] = fragment_element(o->a, i, kind);
            else B[at + depth / 2 * (w - 4)][g] = fragment_element(o->b, i - 4 * per_word, kind);
        }
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const unsigned c = ((const shim_fragments *)warp[l].in)->c[i];
            int row = l / 4 + 8 * (i / 2), col = l % 4 * 2 + i % 2;
            float sum = kind == SHIM_MMA_S8 ? 0 : bits_to_f32(c); /* of bytes: below 2^24, exact */
            for (int k = 0; k < depth; k++) sum = shim_truncated((double)sum + (double)A[row][k] * (double)B[k][col]);
            ((unsigned *)warp[l].out)[i] = kind == SHIM_MMA_S8 ? c + (unsigned)(int)sum : f32_to_bits(sum);
        }
}

int64_t combine(int op, int64_t a, int64_t b)
{
    if (op == SHIM_ADD) return a + b;
    return op == SHIM_MIN ? (a < b ? a : b) : (a > b ? a : b);
}

/* Computes the result of one lane; in holds a copy of every lane's value. */
void result(fiber *warp, int lane, const unsigned char in[32][16])
{
    fiber *f = &warp[lane];
    unsigned set = 0;
    int64_t sum = 0;
    bool first = true;
    for (int l = 0; l < 32; l++) {
        if (!(f->mask >> l & 1)) continue;
        int64_t v = 0;
        memcpy(&v, in[l], f->size);
        bool hit = f->op == SHIM_MATCH ? memcmp(in[l], in[lane], f->size) == 0 : v != 0;
        set |= (unsigned)hit << l;
        sum = first ? v : combine(f->op, sum, v);
        first = false;
    }
    if (f->op == SHIM_BALLOT || f->op == SHIM_MATCH) memcpy(f->out, &set, sizeof set);
    else memcpy(f->out, &sum, f->size);
}

void copy_value(void *to, const void *from, size_t size)
{
    if (size == 4) memcpy(to, from, 4);
    else memcpy(to, from, size);
}

void order_lanes(int warp0, unsigned mask)
{
    uint32_t known[32] = {0};
    for (int l = 0; l < 32; l++)
        for (int o = 0; o < 32 && (mask >> l & 1); o++)
            if (clocks[warp0 + l][o] > known[o]) known[o] = clocks[warp0 + l][o];
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        memcpy(clocks[warp0 + l], known, sizeof known);
        clocks[warp0 + l][l]++;
    }
}

void finish_warp(int warp0, unsigned mask)
{
    unsigned char in[32][16];
    fiber *warp = &fibers[warp0];
    int op = fibers[current].op, first = __builtin_ctz(mask);
    bool values = op != SHIM_SYNC && op != SHIM_MMA;
    for (int l = 0; l < 32 && values; l++)
        if (mask >> l & 1) copy_value(in[l], warp[l].in, warp[l].size);
    if (op == SHIM_SYNC && shim_sees_races()) order_lanes(warp0, mask);
    if (op == SHIM_MMA) multiply(warp, current - warp0);
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        if (op == SHIM_SHUFFLE) copy_value(warp[l].out, in[warp[l].source], warp[l].size);
        else if (values && (l == first || op == SHIM_MATCH)) result(warp, l, in);
        else if (values) memcpy(warp[l].out, warp[first].out, op == SHIM_BALLOT ? sizeof(unsigned) : warp[l].size);
        make_ready(warp0 + l);
    }
    waiting[warp0 / 32] &= ~mask;
}

} // namespace

void shim_warp(int op, unsigned mask, const void *in, void *out, size_t size, int source, const char *file, int line)
{
    int warp0 = current / 32 * 32, lane = current % 32;
    fiber *f = &fibers[current];
    if (!(mask >> lane & 1)) die("a warp operation whose mask lacks the lane itself", file, line);
    if (op == SHIM_SHUFFLE && !(mask >> source & 1)) die("a shuffle from a lane outside the mask", file, line);
    if (op == SHIM_MMA && mask != ~0u) die("a matrix product of less than a warp", file, line);
    f->op = op, f->mask = mask, f->in = in, f->out = out, f->size = size, f->source = source, f->file = file,
    f->line = line;
    f->state = AT_WARP;
    unsigned &there = waiting[warp0 / 32], others = there & mask;
    int lanes = n_threads - warp0;
    if ((mask & gone[warp0 / 32]) || (lanes < 32 && mask >> lanes))
        die("a mask that names a lane that is not there", file, line);
    if (others) { /* all that wait with an overlapping mask agree, so checking one is enough */
        const fiber *o = &fibers[warp0 + __builtin_ctz(others)];
        if (o->mask != mask || o->op != op || o->line != line)
            die("lanes of one mask at different warp operations", file, line);
    }
    there |= 1u << lane;
    bool all = (there & mask) == mask;
    if (all) finish_warp(warp0, mask);
    next_thread();
}

void shim_barrier(const char *file, int line)
{
    fiber *f = &fibers[current];
    f->state = AT_BARRIER, f->file = file, f->line = line;
    if (n_exited) die("a barrier after a thread of the block has returned", file, line);
    static int first_line;
    if (n_at_barrier++ == 0) first_line = line;
    if (first_line != line) die("threads of one block at different barriers", file, line);
    if (n_at_barrier == n_threads) {
        n_at_barrier = 0;
        shim_now.barrier++;
        for (int t = 0; t < n_threads; t++) make_ready(t);
    }
    next_thread();
}

void *shim_shared(const void *tag, size_t bytes)
{
    for (int i = 0; i < n_shared; i++)
        if (shared[i].tag == tag) return shared[i].p;
    return new_shared(tag, bytes);
}

void *shim_shared_dyn(void)
{
    return shim_shared(&launch_now, launch_now->shared_bytes);
}

void shim_copy_later(void *to, const void *from, bool inside)
{
    fiber *f = &fibers[current];
    f->copies.push_back({to, from, inside, f->copy_group});
}

void shim_copies_end_group(void)
{
    fibers[current].copy_group++;
}

bool shim_copy_due(int under_way, shim_late_copy *out)
{
    fiber *f = &fibers[current];
    if (f->copies.empty() || f->copies.front().group >= f->copy_group - under_way) return false;
    *out = f->copies.front();
    f->copies.erase(f->copies.begin());
    return true;
}

void shim_yield(void)
{
    if (current < 0 || !seed || next_random() % 4) return;
    make_ready(current);
    next_thread();
}

void shim_grid_wait(void)
{
    fibers[current].waited = true;
    shim_now.open_first = shim_now.launch_first;
}

void shim_launches_end(void)
{
    blocks_ended = blocks_run;
}

void shim_seed(uint64_t s)
{
    seed = state = s;
}

static size_t threads_of(const shim_launch *l)
{
    return (size_t)l->block[0] * l->block[1] * l->block[2];
}

static size_t blocks_of(const shim_launch *l)
{
    return (size_t)l->grid[0] * l->grid[1] * l->grid[2];
}

bool shim_fits(const shim_launch *l, size_t most_shared)
{
    size_t n = threads_of(l);
    return n > 0 && n <= MOST_THREADS && l->block[2] <= 64 && blocks_of(l) > 0 && l->grid[0] <= 0x7fffffff &&
           l->grid[1] <= 65535 && l->grid[2] <= 65535 && l->shared_bytes <= most_shared;
}

void shim_run(const shim_launch *l)
{
    size_t n = threads_of(l), blocks = blocks_of(l);
    launch_now = l;
    n_threads = (int)n;
    for (unsigned t = 0; t < n; t++)
        fibers[t].index = {t % l->block[0], t / l->block[0] % l->block[1], t / l->block[0] / l->block[1]};
    blockDim = dim3(l->block[0], l->block[1], l->block[2]);
    gridDim = dim3(l->grid[0], l->grid[1], l->grid[2]);
    if (!l->dependent) shim_launches_end();
    shim_now.launch_first = blocks_run + 1;
    shim_now.clocks = clocks;
    std::vector<size_t> order(blocks);
    for (size_t i = 0; i < blocks; i++) order[i] = i;
    for (size_t i = blocks; seed && i > 1; i--) {
        size_t j = next_random() % i, t = order[j];
        order[j] = order[i - 1];
        order[i - 1] = t;
    }
    for (size_t i : order)
        run_block((unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y),
                  (unsigned)(i / gridDim.x / gridDim.y));
    shim_now.block = 0;
    current = -1;
}
