/* SPDX-License-Identifier: MIT */
/* Files: read-only mappings, whole-file reads, whole-stream reads. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/err.h"

typedef struct {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} file_map;

/* Maps a regular file read-only. ST_IO names the path and the system's reason. */
status file_map_open(file_map *m, const char *path, err *e);
void file_map_close(file_map *m);

/* Reads a whole regular file of at most max bytes; a NUL is added behind it (not counted).
 * *out is freed with mem_free. */
status file_read(char **out, size_t *size, const char *path, size_t max, err *e);

/* The same for an open stream such as stdin; name is used in messages. */
status file_read_stream(char **out, size_t *size, FILE *f, const char *name, size_t max, err *e);

/* Reads n bytes at an offset of an open file. ST_IO, also where the file ends before them. */
status file_read_at(int fd, uint64_t at, void *to, size_t n, const char *name, err *e);

/* Calls visit with the path of each file of a folder whose name is wanted, in the order of their names; stops at an
 * error. *n: their number. name: of the folder in messages. */
status file_each(const char *dir, bool (*wanted)(const char *name),
                 status (*visit)(void *ctx, const char *path, err *e), void *ctx, const char *name, size_t *n, err *e);

/* Refuses data, the start of a file, if it is a Git LFS pointer: a clone without Git LFS has one in place of each large
 * file. Errors: ST_FORMAT. Source: git-lfs, docs/spec.md. */
status file_check_pointer(const void *data, size_t n, const char *name, err *e);
/* Also refuses a text that begins with a byte order mark or is encoded as UTF-16 or UTF-32. */
status file_check_text(const char *text, size_t n, const char *name, err *e);

/* "dir/name" in a new string (mem_free), NULL when out of memory. */
char *path_join(const char *dir, const char *name);
/* The last components of a path, at most 100 bytes where they allow it: for messages of fixed size. */
const char *path_tail(const char *path);
bool file_exists(const char *path);
bool dir_exists(const char *path);

#endif
