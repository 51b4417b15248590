/* SPDX-License-Identifier: MIT */
/* A file in the making: it stands under its name once it is complete and on the disk, or not at all. */
#ifndef BASE_DRAFT_H
#define BASE_DRAFT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct {
    char *path, *part; /* its name, and the one that it has for a moment before */
    int fd;            /* open for reading and writing; -1: none */
} file_draft;

/* A new file in the folder of `path`, for the user alone (0600). Where the system can it has no name yet, so that
 * nothing is left of it when the program is killed. ST_IO, also where `path` is something else than a regular file. */
status file_draft_open(file_draft *d, const char *path, err *e);
/* n bytes at `at`; what is never written reads as 0. ST_IO names the file and the byte. */
status file_draft_write(file_draft *d, uint64_t at, const void *p, size_t n, err *e);
/* Gives it `size` bytes (0: as many as it has), waits until it is on the disk, and puts it in the place of whatever has
 * its name. */
status file_draft_commit(file_draft *d, uint64_t size, err *e);
/* Frees; a draft that was not committed is gone. */
void file_draft_close(file_draft *d);

/* Test hook: the n-th call of the system from now on fails (1 = the next; 0 = never). */
void file_draft_test_fail_at(long n);

/* Counts down *calls, which a test hook sets. True, with errno EIO, if the next call of the system must fail. */
bool file_refused(atomic_long *calls);
/* Writes n bytes at `at`; each call of the system asks file_refused(calls) first. ST_IO names `name` and the byte. */
status file_write_at(int fd, uint64_t at, const void *p, size_t n, const char *name, atomic_long *calls, err *e);

#endif
