/* SPDX-License-Identifier: MIT */
/* Entries of the prefix store in a folder, which survive a restart. An entry is a session file and a footer with its
 * key. Its name is a hash of key and ids, so that no file can pass for another. Several processes may use a folder:
 * files appear and disappear atomically, a mapped file stays valid until unmapped, and each process rescans the folder
 * for changes. */
#ifndef GENERATE_PREFIX_DISK_H
#define GENERATE_PREFIX_DISK_H

#include <sys/types.h>

#include "model/session_file.h"

enum { PREFIX_DISK_VERSION = 2 };

typedef struct prefix_disk prefix_disk;

/* Name of a prefix cache for messages, and receiver of its log lines. */
typedef struct {
    const char *name;                          /* of the option, in errors and lines; must outlive the cache */
    void (*line)(void *ctx, const char *line); /* takes a line without newline, from any thread; NULL: none */
    void *ctx;
} prefix_log;

/* Logs a formatted line, prefixed with the name. */
__attribute__((format(printf, 2, 3))) void prefix_log_line(const prefix_log *log, const char *format, ...);

/* Identity of an entry: a key (SHA256_HEX) and the ids. */
typedef struct {
    const char *key;
    const int32_t *ids;
    size_t n;
} prefix_name;

/* A written range of bytes of a file. */
typedef struct {
    off_t at, end;
} prefix_extent;

/* Returns the file name of an entry. */
void prefix_disk_name(char out[SHA256_HEX], const prefix_name *name);

/* Callbacks of a scan. `has` returns true if the store has the file; otherwise `entry` adds it (its rows are not
 * checked yet) or returns false to delete it. used: time of last use in nanoseconds. */
typedef struct {
    bool (*has)(void *ctx, const char *file, size_t bytes, uint64_t used);
    bool (*entry)(void *ctx, const prefix_name *name, size_t bytes, uint64_t used);
    void *ctx;
} prefix_found;
/* Opens a folder, which is created if missing and must be private to the user (0700). Foreign files are left alone and
 * damaged entries deleted; both are logged. ST_USAGE, ST_IO. */
status prefix_disk_open(prefix_disk **out, const char *dir, const prefix_log *log, const prefix_found *found, err *e);
/* Checks a folder like prefix_disk_open, and creates it if missing. name: of the option. */
status prefix_disk_check(const char *dir, const char *name, err *e);
/* Rescans the folder if files were added or removed since the last scan; otherwise returns false. */
bool prefix_disk_scan(prefix_disk *d, const prefix_found *found);
void prefix_disk_close(prefix_disk *d);

/* Copies the `written` ranges of the file `fd` to an entry. Afterwards the entry is complete and on disk, or does not
 * exist. *bytes: disk space taken. */
status prefix_disk_write(prefix_disk *d, const prefix_name *name, int fd, const prefix_extent *written,
                         size_t n_written, size_t *bytes, err *e);
/* Opens an entry. ST_FORMAT, ST_IO. */
status prefix_disk_read(prefix_disk *d, const prefix_name *name, session_file **out, err *e);
/* Sets the time of an entry's file to `used` (clock_real_ns). File times set by the system have the resolution of a
 * tick, too coarse to order the uses of two entries. */
void prefix_disk_touch(prefix_disk *d, const prefix_name *name, uint64_t used);
/* Deletes an entry. why: reason to log; NULL: none. */
void prefix_disk_remove(prefix_disk *d, const prefix_name *name, const char *why);

/* Reads the footer of an open file. For tests. */
typedef struct {
    char magic[16];
    uint32_t version, order;
    uint64_t session_bytes;
    char key[72], sum[72]; /* sum: SHA-256 of the footer with zeros in this field */
} prefix_footer;
status prefix_footer_read(prefix_footer *f, int fd, err *e);
/* Returns the correct `sum` of a footer. */
void prefix_footer_seal(char out[72], const prefix_footer *f);

#endif
