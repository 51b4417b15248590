/* SPDX-License-Identifier: MIT */
/* Reads by threads that block in preadv, the calling thread among them. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/reader_impl.h"

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    /* protected by the lock */
    const read_job *jobs;
    size_t n; /* 0: nothing to do */
    read_failure *failure;
    int active; /* threads that may touch the jobs */
    bool stop;
    /* Jobs are taken in order. Once one has failed, all earlier ones have been taken and are completed. */
    atomic_size_t next;
    atomic_bool failed;
    int n_threads;
    pthread_t threads[];
} pool;

/* Takes jobs until none is left. */
static void read_jobs(pool *p, const read_job *jobs, size_t n, read_failure *f)
{
    reading g;
    while (!atomic_load(&p->failed)) {
        size_t i = atomic_fetch_add(&p->next, 1);
        if (i >= n) return;
        reading_step s = reading_start(&g, &jobs[i], i);
        while (s == READING_MORE) {
            ssize_t got = preadv(g.job->fd, g.to, g.n_to, (off_t)g.at);
            s = reading_next(&g, got < 0 ? -errno : got);
        }
        if (s == READING_DONE) continue;
        atomic_store(&p->failed, true);
        pthread_mutex_lock(&p->lock);
        reading_failed(&g, f);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *work(void *arg)
{
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (atomic_load(&p->next) >= p->n || atomic_load(&p->failed)) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        const read_job *jobs = p->jobs;
        size_t n = p->n;
        read_failure *f = p->failure;
        p->active++;
        pthread_mutex_unlock(&p->lock);
        read_jobs(p, jobs, n, f);
        pthread_mutex_lock(&p->lock);
        if (--p->active == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_run(void *way, const read_job *jobs, size_t n, read_failure *f)
{
    pool *p = way;
    pthread_mutex_lock(&p->lock);
    p->jobs = jobs;
    p->n = n;
    p->failure = f;
    atomic_store(&p->next, 0);
    atomic_store(&p->failed, false);
    for (int i = 0; i < p->n_threads && (size_t)i + 1 < n; i++) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    read_jobs(p, jobs, n, f);
    pthread_mutex_lock(&p->lock);
    while (p->active) pthread_cond_wait(&p->idle, &p->lock);
    p->n = 0; /* threads that wake up later find no work */
    pthread_mutex_unlock(&p->lock);
}

static void pool_close(void *way)
{
    pool *p = way;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* Starts threads with small stacks and without signals, which belong to the caller. */
static int start_threads(pool *p, int n)
{
    sigset_t all, before;
    pthread_attr_t a;
    int why = pthread_attr_init(&a);
    if (why) return why;
    pthread_attr_setstacksize(&a, (size_t)256 << 10); /* if the system rejects this size, its default applies */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!why && p->n_threads < n) {
        why = pthread_create(&p->threads[p->n_threads], &a, work, p);
        if (!why) p->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&a);
    return why;
}

static status pool_open(void **out, int depth, err *e)
{
    pool *p;
    int n = (depth < READER_THREADS ? depth : READER_THREADS) - 1;
    TRY(mem_alloc((void **)&p, 1, sizeof *p + (size_t)n * sizeof p->threads[0], "reader", e));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
    int why = start_threads(p, n);
    if (why) {
        status st = err_set(e, ST_IO, "reader: cannot start thread %d of %d: %s", p->n_threads + 1, n, strerror(why));
        pool_close(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

const read_way read_threads = {.kind = "threads", .open = pool_open, .close = pool_close, .run = pool_run};
