/* SPDX-License-Identifier: MIT */
/* Entries of the prefix store in a folder, which is found again after a restart. An entry is a session file
 * and a footer with its key. Its name is a hash of key and ids, so that no file can pass for another one. Several
 * processes may use a folder: files come whole and go whole, what one of them maps stays until it is done, and all look
 * at what the others did. */
#ifndef GENERATE_PREFIX_DISK_H
#define GENERATE_PREFIX_DISK_H

#include <sys/types.h>

#include "model/session_file.h"

enum { PREFIX_DISK_VERSION = 2 };

typedef struct prefix_disk prefix_disk;

/* The caller's name of a prefix cache, and what takes its lines. */
typedef struct {
    const char *name;                          /* of the option, in errors and lines; lives as long as the cache */
    void (*line)(void *ctx, const char *line); /* takes a line without its end, in any thread; NULL: none */
    void *ctx;
} prefix_log;

/* Formats a line that begins with the name. */
__attribute__((format(printf, 2, 3))) void prefix_say(const prefix_log *log, const char *format, ...);

/* Whose rows they are: a key (SHA256_HEX) and the ids. */
typedef struct {
    const char *key;
    const int32_t *ids;
    size_t n;
} prefix_name;

/* A range of bytes of a file that holds something. */
typedef struct {
    off_t at, end;
} prefix_extent;

/* The name of an entry's file. */
void prefix_disk_name(char out[SHA256_HEX], const prefix_name *name);

/* What is in a folder. `has`: the store knows the file; else `entry`: one whose rows are not looked at yet; false: it
 * is not wanted, and goes. used: when it last was, in nanoseconds. */
typedef struct {
    bool (*has)(void *ctx, const char *file, size_t bytes, uint64_t used);
    bool (*entry)(void *ctx, const prefix_name *name, size_t bytes, uint64_t used);
    void *ctx;
} prefix_found;
/* Opens a folder, which is made where there is none; it must be the user's alone (0700). Files that are no entries are
 * left alone, damaged entries go; the log has a line of both. ST_USAGE, ST_IO. */
status prefix_disk_open(prefix_disk **out, const char *dir, const prefix_log *log, const prefix_found *found, err *e);
/* Fails where prefix_disk_open would refuse a folder, which is made where there is none. name: of the option. */
status prefix_disk_check(const char *dir, const char *name, err *e);
/* What is there now, where files came or went since the last time; false: none did. */
bool prefix_disk_look(prefix_disk *d, const prefix_found *found);
void prefix_disk_close(prefix_disk *d);

/* Copies an entry from the file `fd`, of which `written` holds something. It is whole and on the disk afterwards, or
 * not there. *bytes: those that it takes. */
status prefix_disk_write(prefix_disk *d, const prefix_name *name, int fd, const prefix_extent *written,
                         size_t n_written, size_t *bytes, err *e);
/* Opens an entry. ST_FORMAT, ST_IO. */
status prefix_disk_read(prefix_disk *d, const prefix_name *name, session_file **out, err *e);
/* Sets the time of an entry's file to `used` (clock_real_ns). The system's own times of files are those of its last
 * tick, and do not tell which of two entries was used last. */
void prefix_disk_touch(prefix_disk *d, const prefix_name *name, uint64_t used);
/* why: for a line of the log; NULL: none. */
void prefix_disk_remove(prefix_disk *d, const prefix_name *name, const char *why);

/* Reads the footer of an open file. For tests. */
typedef struct {
    char magic[16];
    uint32_t version, order;
    uint64_t session_bytes;
    char key[72], sum[72]; /* sum: SHA-256 of the footer with zeros in its place */
} prefix_footer;
status prefix_footer_read(prefix_footer *f, int fd, err *e);
/* Returns the right `sum` of a footer. */
void prefix_footer_seal(char out[72], const prefix_footer *f);

#endif
