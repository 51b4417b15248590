/* SPDX-License-Identifier: MIT */
/* What the kinds of readers share: a job under way, and which failure is told. */
#ifndef BASE_READER_IMPL_H
#define BASE_READER_IMPL_H

#include <stdbool.h>
#include <sys/types.h>

#include "kernels/base/reader.h"

/* The first failure in the order of jobs; job = SIZE_MAX: none. */
typedef struct {
    size_t job;
    uint64_t at, end; /* the byte that was asked for, and the end of the job */
    int why;          /* errno, 0: end of the file */
} read_failure;

typedef struct {
    const char *kind;
    status (*open)(void **out, int depth, err *e);
    void (*close)(void *way);
    void (*run)(void *way, const read_job *jobs, size_t n, read_failure *f);
} read_way;

extern const read_way read_uring, read_threads;

/* A job under way: the next read is of the n_to places `to`, at byte `at` of job->fd. */
typedef struct {
    const read_job *job;
    size_t index, done, size;
    uint64_t at;
    struct iovec to[2];
    int n_to, tries;
    long given; /* what a test wants; 1: nothing */
} reading;

typedef enum { READING_MORE, READING_DONE, READING_FAILED } reading_step;

/* The first read of a job; READING_DONE where it has no bytes. */
reading_step reading_start(reading *g, const read_job *job, size_t index);
/* The read gave `got` bytes, or -errno: what is next. */
reading_step reading_go_on(reading *g, ssize_t got);
/* Notes why it failed, if none before it did. */
void reading_failed(const reading *g, read_failure *f);

#endif
