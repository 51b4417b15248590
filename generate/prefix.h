/* SPDX-License-Identifier: MIT */
/* Store of computed prompt prefixes. An entry is a session file of the first tokens of a prompt, in memory and
 * optionally on disk; sessions map it copy-on-write. If parts of entries can be used, no entry is a prefix of another
 * with the same key. Lookups scan all entries, because they are few and long.
 *
 * prefix_find to prefix_shrink must be called from one thread; prefix_count from any. A second thread writes to
 * disk. */
#ifndef GENERATE_PREFIX_H
#define GENERATE_PREFIX_H

#include "generate/prefix_disk.h"
#include "kernels/base/sha256.h"
#include "model/session.h"

typedef struct prefix_store prefix_store;
typedef struct prefix_entry prefix_entry;

typedef struct {
    size_t memory;   /* limit of entries in memory, in bytes; there are also at most 256 */
    size_t chunk;    /* entries, and the parts used of them, end at multiples of this many tokens */
    const char *dir; /* folder for entries, which survive a restart (prefix_disk.h); NULL: none */
    uint64_t disk;   /* limit of entries on disk, in bytes */
    prefix_log log;  /* log of the folder */
} prefix_options;

/* Opens a store. Errors: ST_NOMEM, and those of prefix_disk_open. */
status prefix_open(prefix_store **out, const prefix_options *o, err *e);
/* Closes a store after pending writes to disk. */
void prefix_close(prefix_store *p);

/* A prompt to look up or keep. key: hash of everything that its rows depend on in addition to the ids, and of its
 * owner. any: part of an entry can be used (ATTN_REUSE_ANY). */
typedef struct {
    const char *key; /* SHA256_HEX */
    bool any;
    const int32_t *ids;
    size_t n; /* a multiple of the chunk, less than the length of the prompt */
} prefix_prompt;

/* Finds the entry that covers most of a prompt's first n tokens and returns that number in *n_cached. The entry stays
 * valid until prefix_release. NULL: none. */
prefix_entry *prefix_find(prefix_store *p, const prefix_prompt *of, size_t *n_cached);
void prefix_release(prefix_store *p, prefix_entry *x);
/* Loads the first n tokens of an entry into an empty session. After an error the session is empty and the entry is
 * removed. */
status prefix_load(prefix_store *p, prefix_entry *x, session *s, size_t n, err *e);
/* Keeps the n tokens that a session was fed, if they fit in `memory` bytes. ids also contains the token after them.
 * Evicts entries that were never used first, then the least recently used; among these, entries that are no prefix of
 * another. ST_NOMEM: no room. */
status prefix_keep(prefix_store *p, const prefix_prompt *of, const session *s, size_t memory, err *e);
/* Evicts entries from memory until at most `bytes` are used. Returns false, and evicts none, if entries in use take
 * more. */
bool prefix_shrink(prefix_store *p, size_t bytes);

/* Waits until all pending writes to disk are done. */
void prefix_flush(prefix_store *p);

typedef struct {
    size_t entries, bytes, disk; /* bytes in memory, and on disk */
} prefix_counts;
prefix_counts prefix_count(prefix_store *p);

#endif
