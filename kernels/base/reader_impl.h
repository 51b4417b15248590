/* SPDX-License-Identifier: MIT */
/* Code shared by all kinds of readers: a job in progress, and the choice of the failure to report. */
#ifndef BASE_READER_IMPL_H
#define BASE_READER_IMPL_H

#include <stdbool.h>
#include <sys/types.h>

#include "kernels/base/reader.h"

/* The first failure in the order of jobs; job = SIZE_MAX: none. */
typedef struct {
    size_t job;
    uint64_t at, end; /* byte requested, and end of the job */
    int why;          /* errno, 0: end of the file */
} read_failure;

typedef struct {
    const char *kind;
    status (*open)(void **out, int depth, err *e);
    void (*close)(void *way);
    void (*run)(void *way, const read_job *jobs, size_t n, read_failure *f);
} read_way;

extern const read_way read_uring, read_threads;

/* A job in progress: the next read fills the n_to buffers `to` from byte `at` of job->fd. */
typedef struct {
    const read_job *job;
    size_t index, done, size;
    uint64_t at;
    struct iovec to[2];
    int n_to, tries;
    long given; /* result set by a test hook; 1: none */
} reading;

typedef enum { READING_MORE, READING_DONE, READING_FAILED } reading_step;

/* Prepares the first read of a job; READING_DONE if it has no bytes. */
reading_step reading_start(reading *g, const read_job *job, size_t index);
/* Handles a read's result, a number of bytes or -errno, and returns the next step. */
reading_step reading_next(reading *g, ssize_t got);
/* Records the failure unless an earlier job has failed. */
void reading_failed(const reading *g, read_failure *f);

#endif
