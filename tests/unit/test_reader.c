/* SPDX-License-Identifier: MIT */
/* Batched reads: every byte in its place, whatever the system gives at once, and one message when it fails. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/reader.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"

enum { FILE_BYTES = 300000, JOBS = 500, MOST = 1200, UNTOUCHED = 0xa5 };

static int fd = -1;

static unsigned char byte_at(size_t i)
{
    return (unsigned char)((i * 2654435761u) >> 11);
}

/* A file without a name that holds byte_at of each place. */
static void make_file(void)
{
    char path[] = "test_reader.XXXXXX";
    unsigned char *p = malloc(FILE_BYTES);
    fd = mkstemp(path);
    if (!p || fd < 0 || unlink(path) != 0) abort();
    for (size_t i = 0; i < FILE_BYTES; i++) p[i] = byte_at(i);
    if (write(fd, p, FILE_BYTES) != FILE_BYTES) abort();
    free(p);
}

static uint64_t seed = 42;
static size_t below(size_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(seed >> 33) % n;
}

typedef struct {
    read_job job[JOBS];
    unsigned char memory[JOBS][MOST];
} batch;

static batch *b;

/* Two places with a gap between them; some of no length, some missing. */
static void make_jobs(size_t n)
{
    memset(b->memory, UNTOUCHED, sizeof b->memory);
    for (size_t i = 0; i < n; i++) {
        size_t x = below(8) ? below(500) : 0, y = below(8) ? below(500) : 0;
        read_job *j = &b->job[i];
        *j = (read_job){.fd = fd, .at = below(FILE_BYTES - 1000), .n_to = (int)below(3)};
        j->to[0] = (struct iovec){&b->memory[i][1], x};
        j->to[1] = (struct iovec){&b->memory[i][x + 3], y};
    }
}

/* Bytes of a job's memory that are not what they should be. */
static size_t wrong_bytes(size_t n)
{
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char want[MOST];
        const read_job *j = &b->job[i];
        size_t at = j->at;
        memset(want, UNTOUCHED, sizeof want);
        for (int t = 0; t < j->n_to; t++)
            for (size_t k = 0; k < j->to[t].iov_len; k++)
                want[(unsigned char *)j->to[t].iov_base - b->memory[i] + (ptrdiff_t)k] = byte_at(at++);
        for (size_t k = 0; k < MOST; k++) wrong += b->memory[i][k] != want[k];
    }
    return wrong;
}

static void check_batches(const char *kind)
{
    const int depths[] = {1, 2, 7, 64, 1024};
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
        reader *r;
        err e = {0};
        size_t wrong = 0;
        is_ok(reader_open_kind(&r, kind, depths[d], &e), &e, "%s, %d in flight", kind, depths[d]);
        is_str(reader_kind(r), kind, "says so");
        status st = ST_OK;
        for (size_t n = 0; n <= JOBS && st == ST_OK; n = n < 5 ? n + 1 : n * 10 / 3 + 1) {
            make_jobs(n);
            st = reader_run(r, b->job, n, "batch", &e);
            wrong += wrong_bytes(n);
        }
        make_jobs(JOBS);
        if (st == ST_OK) st = reader_run(r, b->job, JOBS, "batch", &e);
        is_ok(st, &e, "batches of 0 to %d jobs", JOBS);
        is_int((long long)(wrong + wrong_bytes(JOBS)), 0, "every byte in its place");
        reader_close(r);
    }
}

/* Three jobs of 42 bytes in two places. */
static void few_jobs(void)
{
    memset(b->memory, UNTOUCHED, sizeof b->memory);
    for (size_t i = 0; i < 3; i++) {
        b->job[i] = (read_job){.fd = fd, .at = 1000 * i + 77, .n_to = 2};
        b->job[i].to[0] = (struct iovec){&b->memory[i][1], 13};
        b->job[i].to[1] = (struct iovec){&b->memory[i][20], 29};
    }
}

static void check_short_reads(const char *kind)
{
    reader *r;
    err e = {0};
    size_t wrong = 0;
    status st = reader_open_kind(&r, kind, 2, &e);
    for (long at = 1; at <= 3; at++)
        for (long got = 1; got <= 42 && st == ST_OK; got++) {
            few_jobs();
            reader_test_give(at, got);
            st = reader_run(r, b->job, 3, "short", &e);
            wrong += wrong_bytes(3);
        }
    is_ok(st, &e, "%s: reads that end early", kind);
    is_int((long long)wrong, 0, "continue where they ended");
    for (long at = 1; at <= 3 && st == ST_OK; at++)
        for (int i = 0; i < 2 && st == ST_OK; i++) {
            few_jobs();
            reader_test_give(at, i ? -EINTR : -EAGAIN);
            st = reader_run(r, b->job, 3, "again", &e);
            wrong += wrong_bytes(3);
        }
    is_ok(st, &e, "and so do those that were interrupted");
    is_int((long long)wrong, 0, "with every byte in its place");
    reader_test_give(0, 0);
    reader_close(r);
}

/* Each read of a batch fails; the next batch is as good as ever. */
static void check_failures(const char *kind, int depth)
{
    enum { N = 40 };
    const struct {
        long give;
        const char *part;
    } bad[] = {{-EIO, "reading at byte"}, {-EIO, strerror(EIO)}, {0, "unexpected end of file at"}};
    reader *r;
    err e = {0};
    size_t missed = 0, wrong = 0;
    is_ok(reader_open_kind(&r, kind, depth, &e), &e, "%s, %d in flight", kind, depth);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (long at = 1; at <= N + 1; at++) {
            err why = {0};
            make_jobs(N);
            for (size_t k = 0; k < N; k++) b->job[k].n_to = 2, b->job[k].to[0].iov_len = 1;
            reader_test_give(at, bad[i].give);
            status st = reader_run(r, b->job, N, "a tier", &why);
            bool told = st == ST_IO && strncmp(why.msg, "a tier: ", 8) == 0 && strstr(why.msg, bad[i].part);
            if (at <= N ? !told : st != ST_OK) missed++;
            reader_test_give(0, 0);
            make_jobs(N);
            if (reader_run(r, b->job, N, "after", &e) != ST_OK) missed++;
            wrong += wrong_bytes(N);
        }
    is_int((long long)missed, 0, "a failure of any of %d reads is reported, and of no other", N);
    is_int((long long)wrong, 0, "what is read after it is right");
    reader_close(r);
}

/* The first of several failures by order is reported, whichever ended first. */
static void check_first_failure(const char *kind)
{
    reader *r;
    err e = {0};
    size_t missed = 0;
    char part[64];
    is_ok(reader_open_kind(&r, kind, 32, &e), &e, "%s", kind);
    for (int trial = 0; trial < 200; trial++) {
        err why = {0};
        size_t first = JOBS;
        make_jobs(JOBS);
        for (int i = 0; i < 20; i++) {
            size_t at = below(JOBS);
            if (at < first) first = at;
            b->job[at] = (read_job){.fd = fd, .at = FILE_BYTES - 10 + at, .n_to = 1, .to = {{b->memory[at], 1000}}};
        }
        snprintf(part, sizeof part, "end of file at %zu of %zu bytes",
                 first < 10 ? (size_t)FILE_BYTES : FILE_BYTES - 10 + first, FILE_BYTES - 10 + first + 1000);
        status st = reader_run(r, b->job, JOBS, "file", &why);
        if (st != ST_IO || !strstr(why.msg, part)) missed++;
    }
    is_int((long long)missed, 0, "the first failure by order is reported");
    reader_close(r);
}

static void check_bad_files(const char *kind)
{
    reader *r;
    err e = {0}, gone = {0}, closed = {0}, end = {0};
    void *page = NULL;
    is_ok(reader_open_kind(&r, kind, 4, &e), &e, "%s", kind);
    int other = dup(fd);
    close(other);
    few_jobs();
    b->job[1].fd = -1;
    is_err(reader_run(r, b->job, 3, "no file", &gone), &gone, ST_IO, "no file: reading at byte 1077: Bad file", "none");
    b->job[1].fd = other;
    is_err(reader_run(r, b->job, 3, "it", &closed), &closed, ST_IO, "reading at byte 1077", "a closed one");
    few_jobs();
    b->job[2].at = FILE_BYTES - 41;
    is_err(reader_run(r, b->job, 3, "it", &end), &end, ST_IO, "it: unexpected end of file at 300000 of 300001 bytes",
           "its end");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int direct = open(path, O_RDONLY | O_DIRECT);
    if (direct >= 0 && posix_memalign(&page, 4096, 8192) == 0) {
        size_t last = FILE_BYTES / 4096 * 4096;
        err why = {0};
        read_job j = {.fd = direct, .at = last, .n_to = 1, .to = {{page, 8192}}};
        status st = reader_run(r, &j, 1, "it", &why);
        if (st == ST_IO && strstr(why.msg, "at byte 294912: Invalid"))
            tap_skip("this file system has blocks of another size");
        else is_err(st, &why, ST_IO, "it: unexpected end of file at 300000", "its end, read by blocks");
        free(page);
    } else {
        tap_skip("no reads past the page cache here");
    }
    if (direct >= 0) close(direct);
    reader_close(r);
}

static void *run_few(void *arg)
{
    err e = {0};
    return reader_run(arg, b->job, 3, "thread", &e) == ST_OK ? arg : NULL;
}

static void check_other_thread(const char *kind)
{
    reader *r;
    err e = {0};
    pthread_t t;
    void *out = NULL;
    is_ok(reader_open_kind(&r, kind, 2, &e), &e, "%s", kind);
    few_jobs();
    ok(pthread_create(&t, NULL, run_few, r) == 0 && pthread_join(t, &out) == 0 && out, "works in another thread");
    is_int((long long)wrong_bytes(3), 0, "with every byte in its place");
    reader_close(r);
}

static void check_memory(const char *kind)
{
    oom_run o = {0};
    reader *r;
    while (oom_next(&o)) oom_saw(&o, reader_open_kind(&r, kind, 8, &o.e), &r);
    reader_close(r);
    oom_ok(&o, 0, kind);
}

/* The kernel refuses one call of io_uring: threads read. In a process of its own. */
static bool reads_without(unsigned call)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog p = {.len = sizeof f / sizeof *f, .filter = f};
    int how;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        reader *r;
        err e = {0};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) != 0)
            _exit(2);
        if (reader_open(&r, 4, &e) != ST_OK || strcmp(reader_kind(r), "threads") != 0) _exit(1);
        few_jobs();
        bool good = reader_run(r, b->job, 3, "forbidden", &e) == ST_OK && wrong_bytes(3) == 0;
        reader_close(r);
        _exit(good ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &how, 0) != child || !WIFEXITED(how)) return false;
    if (WEXITSTATUS(how) == 2) tap_skip("no filters of system calls here");
    return WEXITSTATUS(how) != 1;
}

static void check_kind(const char *kind)
{
    check_batches(kind);
    check_short_reads(kind);
    check_failures(kind, 1);
    check_failures(kind, 16);
    check_first_failure(kind);
    check_bad_files(kind);
    check_other_thread(kind);
    check_memory(kind);
}

int main(void)
{
    reader *r;
    err e = {0}, none = {0}, deep = {0}, odd = {0};
    b = malloc(sizeof *b);
    if (!b) abort();
    make_file();
    is_err(reader_open(&r, 0, &none), &none, ST_USAGE, "0 reads in flight", "no reads in flight");
    is_err(reader_open(&r, READER_DEPTH + 1, &deep), &deep, ST_USAGE, "in [1, 1024]", "or too many");
    is_err(reader_open_kind(&r, "tape", 1, &odd), &odd, ST_USAGE, "'tape': unknown kind; use io_uring or threads",
           "or of no kind");
    check_kind("threads");
    status st = reader_open_kind(&r, "io_uring", 1, &e);
    if (st == ST_OK) {
        reader_close(r);
        check_kind("io_uring");
    } else {
        is_err(st, &e, ST_UNSUPPORTED, "io_uring: ", "io_uring says why not");
        tap_skip("%s", e.msg);
    }
    e = (err){0};
    is_ok(reader_open(&r, 8, &e), &e, "the best there is");
    is_str(reader_kind(r), st == ST_OK ? "io_uring" : "threads", "is io_uring where it can be");
    reader_close(r);
#ifdef SYS_io_uring_setup
    ok(reads_without(SYS_io_uring_setup), "threads read where the kernel makes no rings");
    ok(reads_without(SYS_io_uring_enter), "or takes nothing from them");
#endif
    free(b);
    close(fd);
    return tap_done();
}
