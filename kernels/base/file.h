/* SPDX-License-Identifier: MIT */
/* Files: read-only mappings, reads of whole files and streams. */
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

/* Reads a whole regular file of at most max bytes and appends a NUL that is not counted. Free *out with mem_free. */
status file_read(char **out, size_t *size, const char *path, size_t max, err *e);

/* Reads a whole open stream such as stdin in the same way; name is used in messages. */
status file_read_stream(char **out, size_t *size, FILE *f, const char *name, size_t max, err *e);

/* As file_read, for a file that the user names: also a pipe, a device, or standard input ("-"). */
status file_read_input(char **out, size_t *size, const char *path, size_t max, err *e);
/* As file_read_input, without the byte order mark of a text. Errors: also ST_FORMAT for UTF-16. */
status file_read_text(char **out, size_t *size, const char *path, size_t max, err *e);

/* Reads n bytes at an offset of an open file. ST_IO, also if the file ends too early. */
status file_read_at(int fd, uint64_t at, void *to, size_t n, const char *name, err *e);

/* Calls visit with the path of each file in a folder whose name is wanted, in the order of names; stops at an error.
 * *n: number of these files. name: of the folder in messages. */
status file_each(const char *dir, bool (*wanted)(const char *name),
                 status (*visit)(void *ctx, const char *path, err *e), void *ctx, const char *name, size_t *n, err *e);

/* Rejects data, the start of a file, if it is a Git LFS pointer, which a clone without Git LFS contains in place of
 * each large file. Errors: ST_FORMAT. Source: git-lfs, docs/spec.md. */
status file_check_pointer(const void *data, size_t n, const char *name, err *e);
/* Returns the length of the UTF-8 byte order mark at the start of a text: 3, or 0 without one. */
size_t file_mark(const char *text, size_t n);
/* Also rejects text that begins with a byte order mark or is encoded as UTF-16 or UTF-32. */
status file_check_text(const char *text, size_t n, const char *name, err *e);

/* Returns "dir/name" in a new string (mem_free), or NULL when out of memory. */
char *path_join(const char *dir, const char *name);
/* Returns the path of a file in the folder of a model, which is that folder or a file in it. Freed with mem_free; NULL:
 * out of memory. */
char *path_in_model(const char *model, const char *name);
/* Returns the last components of a path, at most 100 bytes of it, for messages of fixed size. */
const char *path_tail(const char *path);
/* Returns the file that a path names after all symbolic links of its last component, which may not exist yet, in a new
 * string (mem_free). NULL with errno: ELOOP, or ENOMEM. */
char *path_target(const char *path);
bool file_exists(const char *path);
bool dir_exists(const char *path);
/* Creates a folder and its parents with mode 0700, as the XDG base directory specification requires. ST_IO. */
status dir_make(const char *path, err *e);

#endif
