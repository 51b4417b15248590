/* SPDX-License-Identifier: MIT */
/* Batched reads of files, several in flight at once: io_uring where it was built in and the kernel allows it, else
 * threads with preadv. */
#ifndef BASE_READER_H
#define BASE_READER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/base/err.h"

typedef struct reader reader;

/* One read of a file: the bytes from `at` on go to the n_to places of `to`, one after the other. */
typedef struct {
    int fd;
    uint64_t at;
    struct iovec to[2];
    int n_to;
} read_job;

enum { READER_DEPTH = 1024, READER_THREADS = 128 };

/* depth: requests in flight, 1 to READER_DEPTH; threads are at most READER_THREADS, the caller one of them. */
status reader_open(reader **out, int depth, err *e);
/* The same of a kind; ST_UNSUPPORTED, with the reason, where there is none. */
status reader_open_kind(reader **out, const char *kind, int depth, err *e);
/* "io_uring" or "threads", for messages. */
const char *reader_kind(const reader *r);
void reader_close(reader *r);

/* Reads all of n jobs; where jobs write to the same memory its content is undefined. One call at a time for a reader,
 * from any thread. A short read is continued. When it returns nothing writes to memory any more, in success and
 * failure alike. ST_IO names `what`, the byte and the reason of the first failure in the order of jobs; a file that
 * ends before a job does is one. */
status reader_run(reader *r, const read_job *jobs, size_t n, const char *what, err *e);

/* Test hook: the n-th read from now on (1 = the next; 0 = never) gives `result`: an error as -errno, 0 as at the end
 * of a file, otherwise at most so many bytes. */
void reader_test_give(long n, long result);

#endif
