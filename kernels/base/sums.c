/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/sums.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/base/mem.h"

/* Bytes per thread: about half a millisecond of work. */
enum { THREAD_BYTES = 8 << 20 };

bool sums_zero(const unsigned char *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

uint64_t sums_of(const void *p, size_t n)
{
    if (sums_zero(p, n)) return 0;
    uint64_t sum = XXH3_64bits(p, n);
    return sum ? sum : 1;
}

uint64_t sums_count(uint64_t n, uint64_t used)
{
    return n * (used / SUMS_BLOCK + (used % SUMS_BLOCK != 0));
}

/* ---- all blocks, with several threads ---- */

typedef struct {
    uint64_t number, at, sum;
    const unsigned char *p;
    size_t part, bytes;
} block;

typedef struct {
    int fd;
    const sums_part *part;
    size_t n_parts;
    uint64_t *make; /* checksums to compute; NULL: those of the parts are verified */
    pthread_mutex_t lock;
    /* protected by the lock: next block, first damaged block */
    size_t i;
    uint64_t piece, done, taken, number;
    bool failed;
    block bad;
} checker;

/* Takes the next block; false if none is left or one was damaged. */
static bool next_block(checker *c, block *b)
{
    pthread_mutex_lock(&c->lock);
    while (c->i < c->n_parts && (c->piece == c->part[c->i].n || c->part[c->i].used == 0)) {
        c->i++;
        c->piece = c->taken = 0;
    }
    bool found = !c->failed && c->i < c->n_parts;
    if (found) {
        const sums_part *part = &c->part[c->i];
        uint64_t at = c->piece * part->stride + c->done, left = part->used - c->done;
        *b = (block){.number = c->number++,
                     .at = part->at + at,
                     .sum = c->make ? 0 : part->sum[c->taken++],
                     .p = part->p + at,
                     .part = c->i,
                     .bytes = left < SUMS_BLOCK ? (size_t)left : SUMS_BLOCK};
        c->done += b->bytes;
        if (c->done == part->used) {
            c->done = 0;
            c->piece++;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

static bool is_hole(int fd, const block *b)
{
    off_t data = lseek(fd, (off_t)b->at, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (uint64_t)data >= b->at + b->bytes;
}

/* Sums or checks blocks until none is left. Keeps the first damaged one in the order of the file. */
static void *work(void *arg)
{
    checker *c = arg;
    block b;
    while (next_block(c, &b)) {
        if (c->make) {
            c->make[b.number] = sums_of(b.p, b.bytes);
            continue;
        }
        if ((b.sum == 0 && is_hole(c->fd, &b)) || sums_of(b.p, b.bytes) == b.sum) continue;
        pthread_mutex_lock(&c->lock);
        if (!c->failed || b.number < c->bad.number) c->bad = b;
        c->failed = true;
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* Starts the threads without signals, which belong to the caller. If a thread cannot be started, the others do its
 * work. */
static void run(checker *c, pthread_t *id, int n)
{
    sigset_t all, before;
    int started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < n && pthread_create(&id[started], NULL, work, c) == 0) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(c);
    while (started > 0) pthread_join(id[--started], NULL);
}

/* Works through all blocks with at most n_threads threads. */
static status run_all(checker *c, int n_threads, err *e)
{
    pthread_t *id = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_parts; i++) bytes += c->part[i].n * c->part[i].used;
    uint64_t more = bytes / THREAD_BYTES;
    int n = more < (uint64_t)n_threads ? (int)more : n_threads - 1;
    TRY(MEM_NEW(&id, (size_t)(n < 0 ? 0 : n), e));
    pthread_mutex_init(&c->lock, NULL);
    run(c, id, n);
    pthread_mutex_destroy(&c->lock);
    mem_free(id);
    return ST_OK;
}

status sums_make(uint64_t *sum, const unsigned char *p, uint64_t n, int n_threads, err *e)
{
    const sums_part all = {.n = 1, .used = n, .p = p};
    checker c = {.fd = -1, .part = &all, .n_parts = 1, .make = sum};
    return run_all(&c, n_threads, e);
}

status sums_check(int fd, const sums_part *part, size_t n_parts, int n_threads, sums_bad *bad, err *e)
{
    checker c = {.fd = fd, .part = part, .n_parts = n_parts};
    TRY(run_all(&c, n_threads, e));
    if (!c.failed) return ST_OK;
    *bad = (sums_bad){c.bad.part, c.bad.at, c.bad.bytes};
    return ST_FORMAT;
}
