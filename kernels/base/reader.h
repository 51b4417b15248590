/* SPDX-License-Identifier: MIT */
/* Batched reads of files with several requests in flight: io_uring if it was built in and the kernel allows it,
 * otherwise threads with preadv. */
#ifndef BASE_READER_H
#define BASE_READER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/base/err.h"

typedef struct reader reader;

/* One read of a file: the bytes from `at` on go to the n_to buffers `to`, in order. */
typedef struct {
    int fd;
    uint64_t at;
    struct iovec to[2];
    int n_to;
} read_job;

enum { READER_DEPTH = 1024, READER_THREADS = 128 };

/* depth: requests in flight, 1 to READER_DEPTH. There are at most READER_THREADS threads, including the caller. */
status reader_open(reader **out, int depth, err *e);
/* Opens a reader of a given kind; ST_UNSUPPORTED, with the reason, if it is not available. */
status reader_open_kind(reader **out, const char *kind, int depth, err *e);
/* Returns "io_uring" or "threads", for messages. */
const char *reader_kind(const reader *r);
void reader_close(reader *r);

/* Performs all n jobs. If jobs write to the same memory, its content is undefined. One call at a time for a reader,
 * from any thread. Short reads are continued. No memory is written after it returns, in success or failure. ST_IO names
 * `what`, the byte and the reason of the first failure in the order of jobs; reaching the end of the file too early is
 * a failure. */
status reader_run(reader *r, const read_job *jobs, size_t n, const char *what, err *e);

/* Test hook: the n-th following read (1 = the next; 0 = never) returns `result`: -errno, 0 for the end of a file, or a
 * maximum number of bytes. */
void reader_test_give(long n, long result);

#endif
