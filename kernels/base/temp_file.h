/* SPDX-License-Identifier: MIT */
/* A temporary file that replaces another file atomically, once it is complete and on disk. */
#ifndef BASE_TEMP_FILE_H
#define BASE_TEMP_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct {
    char *path, *part; /* final name, and temporary name used just before the rename */
    int fd;            /* open for reading and writing; -1: none */
} temp_file;

/* Creates a file in the folder of `path`, or of the file that this symbolic link names, accessible to the user alone
 * (0600). It has no name if the system supports that, so that nothing remains if the program is killed. ST_IO, also if
 * `path` exists and is not a regular file. */
status temp_file_open(temp_file *d, const char *path, err *e);
/* Writes n bytes at `at`; gaps read as 0. ST_IO names the file and the byte. */
status temp_file_write(temp_file *d, uint64_t at, const void *p, size_t n, err *e);
/* Sets the size to `size` bytes (0: unchanged), waits until the file is on disk, and renames it to its final name,
 * replacing any file of that name. */
status temp_file_commit(temp_file *d, uint64_t size, err *e);
/* Renames the file to its final name without waiting for the disk: for files whose damage is found at reading. */
status temp_file_publish(temp_file *d, err *e);
/* Frees d; removes the file if it was not committed. */
void temp_file_close(temp_file *d);

/* Test hook: the n-th following system call fails (1 = the next; 0 = never). */
void temp_file_test_fail_at(long n);

/* Decrements *calls, which a test hook sets. True, with errno EIO, if the next system call must fail. */
bool file_refused(atomic_long *calls);
/* Writes n bytes at `at`; each system call first checks file_refused(calls). ST_IO names `name` and the byte. */
status file_write_at(int fd, uint64_t at, const void *p, size_t n, const char *name, atomic_long *calls, err *e);

#endif
