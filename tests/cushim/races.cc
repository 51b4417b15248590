/* SPDX-License-Identifier: MIT */
/* The race build: kernels are compiled with -fsanitize=thread, and its calls are handled here with CUDA's rules. Each
 * byte remembers its last write and two reads. Two accesses, one of them a write and not both atomic, must be ordered:
 * by the end of a launch, by a barrier of the block, or by __syncwarp. Blocks of one launch do not wait for each other
 * and are ordered by one pattern only: the threads of a block fence, and after a barrier one of them changes a number
 * by an atomic operation. A block that later changes the same number sees all that, and everything that block had seen,
 * after its next barrier and a fence. A thread of a dependent launch is ordered after earlier launches by grid_wait;
 * before it, only after those that were complete when the last ordinary launch started. */
#include "tests/cushim/races.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <vector>

namespace
{

struct access {
    uint32_t block, barrier, clock, fences;
    uint16_t thread;
    bool atomic;
};

enum { MOST_THREADS = 1024 };
typedef std::unordered_map<uint32_t, uint32_t> barriers; /* per block: accesses before that many barriers */

/* A block that has fenced: fences of each thread with the barrier count at the last one, and what it has seen of others
 * with its own barrier count then. */
struct fenced_block {
    uint32_t fences[MOST_THREADS], at[MOST_THREADS];
    barriers seen, since;
};

uint32_t fenced_launch;
std::unordered_map<uint32_t, fenced_block> fenced;
std::unordered_map<uintptr_t, barriers> released; /* by atomic operations on an address */

struct cell {
    access write, read[2];
    bool fresh;
};

enum { PAGE = 4096 };
struct page {
    cell at[PAGE];
};

std::unordered_map<uintptr_t, page *> pages;
uintptr_t last_key;
page *last_page;
std::set<const void *> told;
long n_races;

/* A program that has raced does not end with status 0, whatever its tests compare. */
struct verdict {
    ~verdict()
    {
        if (n_races > 0) _Exit(SHIM_EXIT);
    }
} at_the_end;

page *page_of(uintptr_t a, bool make)
{
    uintptr_t key = a / PAGE;
    if (last_page && key == last_key) return last_page;
    auto it = pages.find(key);
    page *p = it == pages.end() ? NULL : it->second;
    if (!p && make) p = pages[key] = (page *)calloc(1, sizeof *p);
    if (p) last_key = key, last_page = p;
    return p;
}

fenced_block *block_of(uint32_t block)
{
    if (fenced_launch != shim_now.launch_first) return NULL;
    auto it = fenced.find(block);
    return it == fenced.end() ? NULL : &it->second;
}

/* True if fences and atomic operations order an access of another block. */
bool published(const access &o)
{
    const fenced_block *by = block_of(o.block), *to = block_of(shim_now.block);
    if (!by || !to || by->fences[o.thread] <= o.fences) return false;
    auto seen = to->seen.find(o.block);
    return seen != to->seen.end() && o.barrier < seen->second &&
           to->at[shim_now.thread] > to->since.find(o.block)->second;
}

/* Exchanges what is seen, at an atomic operation of this thread. */
void exchange_seen(uintptr_t a)
{
    fenced_block *b = block_of(shim_now.block);
    if (!b || b->fences[shim_now.thread] == 0) return;
    barriers &all = released[a];
    for (auto &x : all)
        if (x.first != shim_now.block && b->seen[x.first] < x.second)
            b->seen[x.first] = x.second, b->since[x.first] = shim_now.barrier;
    for (auto &x : b->seen) all[x.first] = std::max(all[x.first], x.second);
    all[shim_now.block] = shim_now.barrier;
}

bool ordered(const access &o)
{
    if (o.block < shim_now.open_first) return true; /* none, or an earlier launch */
    if (o.block < shim_now.launch_first) return false;
    if (o.block != shim_now.block) return published(o);
    if (o.thread == shim_now.thread || o.barrier < shim_now.barrier) return true;
    return o.thread / 32 == shim_now.thread / 32 && shim_now.clocks[shim_now.thread][o.thread % 32] >= o.clock;
}

void tell(const char *what, const void *pc, uintptr_t a, const access &o)
{
    n_races++;
    if (!told.insert(pc).second) return;
    Dl_info at = {};
    dladdr(pc, &at);
    fprintf(stderr,
            "cushim: race: %s, address %p: block %u thread %u, before it block %u thread %u: addr2line -Cfie %s %#lx\n",
            what, (void *)a, shim_now.block, shim_now.thread, o.block, o.thread, at.dli_fname ? at.dli_fname : "",
            (unsigned long)((const char *)pc - (const char *)at.dli_fbase));
}

void visit(uintptr_t a, size_t n, bool write, bool atomic, const void *pc)
{
    const char *c = (const char *)a;
    if (shim_now.block == 0 || (c >= shim_now.stack && c < shim_now.stack_end)) return;
    uint16_t t = shim_now.thread;
    const fenced_block *own = block_of(shim_now.block);
    access now = {shim_now.block, shim_now.barrier, shim_now.clocks[t][t % 32], own ? own->fences[t] : 0, t, atomic};
    page *of = page_of(a, true);
    for (size_t i = 0; i < n; i++) {
        if ((a + i) % PAGE == 0) of = page_of(a + i, true);
        cell *x = &of->at[(a + i) % PAGE];
        if (!ordered(x->write) && !(atomic && x->write.atomic))
            tell(write ? "write after write" : "read after write", pc, a, x->write);
        if (!write) {
            if (x->fresh) tell("read of shared memory that was never written", pc, a, x->write);
            int other = x->read[0].block != now.block || x->read[0].thread / 32 == t / 32 ? 0 : 1;
            x->read[other] = now;
            continue;
        }
        for (int r = 0; r < 2; r++)
            if (!ordered(x->read[r]) && !(atomic && x->read[r].atomic)) tell("write after read", pc, a, x->read[r]);
        x->write = now;
        x->fresh = false;
    }
}

} // namespace

void shim_fence(void)
{
    if (fenced_launch != shim_now.launch_first) fenced.clear(), released.clear();
    fenced_launch = shim_now.launch_first;
    fenced_block &b = fenced[shim_now.block]; /* zeros at first */
    b.fences[shim_now.thread]++;
    b.at[shim_now.thread] = shim_now.barrier;
}

void races_fresh(const void *p, size_t bytes)
{
    for (uintptr_t a = (uintptr_t)p, end = a + bytes; a < end; a++) {
        page_of(a, true)->at[a % PAGE] = cell();
        page_of(a, true)->at[a % PAGE].fresh = true;
    }
}

void races_forget(const void *p, size_t bytes)
{
    for (uintptr_t a = (uintptr_t)p, end = a + bytes; a < end; a++)
        if (page *x = page_of(a, false)) x->at[a % PAGE] = cell();
}

long shim_races(void)
{
    return n_races;
}

bool shim_sees_races(void)
{
    return true;
}

#define PC __builtin_return_address(0)
#define PLAIN(n)                                                                                                       \
    void __tsan_read##n(void *p)                                                                                       \
    {                                                                                                                  \
        visit((uintptr_t)p, n, false, false, PC);                                                                      \
    }                                                                                                                  \
    void __tsan_write##n(void *p)                                                                                      \
    {                                                                                                                  \
        visit((uintptr_t)p, n, true, false, PC);                                                                       \
    }                                                                                                                  \
    void __tsan_unaligned_read##n(void *p)                                                                             \
    {                                                                                                                  \
        visit((uintptr_t)p, n, false, false, PC);                                                                      \
    }                                                                                                                  \
    void __tsan_unaligned_write##n(void *p)                                                                            \
    {                                                                                                                  \
        visit((uintptr_t)p, n, true, false, PC);                                                                       \
    }                                                                                                                  \
    void __tsan_volatile_read##n(void *p)                                                                              \
    {                                                                                                                  \
        visit((uintptr_t)p, n, false, false, PC);                                                                      \
    }                                                                                                                  \
    void __tsan_volatile_write##n(void *p)                                                                             \
    {                                                                                                                  \
        visit((uintptr_t)p, n, true, false, PC);                                                                       \
    }
/* Fibers switch only on request, so an atomic operation can be its plain form. */
#define FETCH(bits, name, expr)                                                                                        \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *p, uint##bits##_t v, int)                     \
    {                                                                                                                  \
        visit((uintptr_t)p, bits / 8, false, true, PC);                                                                \
        visit((uintptr_t)p, bits / 8, true, true, PC);                                                                 \
        exchange_seen((uintptr_t)p);                                                                                   \
        uint##bits##_t old = *p;                                                                                       \
        *p = (uint##bits##_t)(expr);                                                                                   \
        return old;                                                                                                    \
    }
#define SWAP(bits, name)                                                                                               \
    int __tsan_atomic##bits##_##name(volatile uint##bits##_t *p, uint##bits##_t *want, uint##bits##_t v, int, int)     \
    {                                                                                                                  \
        visit((uintptr_t)p, bits / 8, false, true, PC);                                                                \
        visit((uintptr_t)p, bits / 8, true, true, PC);                                                                 \
        exchange_seen((uintptr_t)p);                                                                                   \
        bool same = *p == *want;                                                                                       \
        if (same) *p = v;                                                                                              \
        else *want = *p;                                                                                               \
        return same;                                                                                                   \
    }
#define ATOMIC(bits)                                                                                                   \
    FETCH(bits, exchange, v)                                                                                           \
    FETCH(bits, fetch_add, old + v)                                                                                    \
    FETCH(bits, fetch_or, old | v)                                                                                     \
    FETCH(bits, fetch_and, old &v)                                                                                     \
    SWAP(bits, compare_exchange_strong)                                                                                \
    SWAP(bits, compare_exchange_weak)                                                                                  \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int)                                   \
    {                                                                                                                  \
        visit((uintptr_t)p, bits / 8, false, true, PC);                                                                \
        return *p;                                                                                                     \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t v, int)                                \
    {                                                                                                                  \
        visit((uintptr_t)p, bits / 8, true, true, PC);                                                                 \
        *p = v;                                                                                                        \
    }

extern "C" {
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
ATOMIC(32)
ATOMIC(64)
void __tsan_read_range(void *p, size_t n)
{
    visit((uintptr_t)p, n, false, false, PC);
}
void __tsan_write_range(void *p, size_t n)
{
    visit((uintptr_t)p, n, true, false, PC);
}
void *__tsan_memset(void *p, int v, size_t n)
{
    visit((uintptr_t)p, n, true, false, PC);
    return memset(p, v, n);
}
void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    visit((uintptr_t)from, n, false, false, PC);
    visit((uintptr_t)to, n, true, false, PC);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n)
{
    visit((uintptr_t)from, n, false, false, PC);
    visit((uintptr_t)to, n, true, false, PC);
    return memmove(to, from, n);
}
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
}
