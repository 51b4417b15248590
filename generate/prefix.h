/* SPDX-License-Identifier: MIT */
/* Prompts that were computed before, for those that begin as they do. An entry is a session file of a prompt's first
 * tokens, in memory and maybe on a disk; sessions map it, and the system copies what they change. Of two entries of one
 * key no one begins with the other where a part of the longer one serves as well. Entries are few and long: all are
 * looked at.
 *
 * One thread calls prefix_find to prefix_shrink; counts may be asked for from any. Another one writes to the disk. */
#ifndef GENERATE_PREFIX_H
#define GENERATE_PREFIX_H

#include "generate/prefix_disk.h"
#include "kernels/base/sha256.h"
#include "model/session.h"

typedef struct prefix_store prefix_store;
typedef struct prefix_entry prefix_entry;

typedef struct {
    size_t memory;   /* bytes that entries may take there */
    size_t chunk;    /* what is kept, and what is taken of it, ends at multiples of so many tokens */
    const char *dir; /* a folder that has them too, and has them still after a restart (prefix_disk.h); NULL: none */
    uint64_t disk;   /* bytes that they may take there */
    prefix_log log;  /* of the folder */
} prefix_options;

/* Errors: ST_NOMEM, and those of prefix_disk_open. */
status prefix_open(prefix_store **out, const prefix_options *o, err *e);
/* Once all is on the disk that is to be. */
void prefix_close(prefix_store *p);

/* A prompt whose first tokens may be known. key: all that their rows depend on beside them, and whose they are, as a
 * hash; any: a part of an entry serves too (ATTN_REUSE_ANY). */
typedef struct {
    const char *key; /* SHA256_HEX */
    bool any;
    const int32_t *ids;
    size_t n; /* a multiple of the chunk, less than the prompt has */
} prefix_prompt;

/* The entry that serves most of a prompt's first n tokens, *known of them; it stays until prefix_let_go. NULL: none. */
prefix_entry *prefix_find(prefix_store *p, const prefix_prompt *of, size_t *known);
void prefix_let_go(prefix_store *p, prefix_entry *x);
/* Gives an empty session the first n tokens of an entry. After an error the session is empty, and the entry goes. */
status prefix_load(prefix_store *p, prefix_entry *x, session *s, size_t n, err *e);
/* Keeps the n tokens that a session was fed, if there is room within `memory` bytes, the id behind them included in
 * ids. Entries that served nobody make room first, then those whose last use is the longest ago, of both first those
 * that no other begins with. ST_NOMEM: there is no room. */
status prefix_keep(prefix_store *p, const prefix_prompt *of, const session *s, size_t memory, err *e);
/* Entries leave the memory until the others take at most so many bytes of it; false, and all stay, where those in use
 * take more. */
bool prefix_shrink(prefix_store *p, size_t bytes);

/* Waits until all is on the disk that is to be. */
void prefix_flush(prefix_store *p);

typedef struct {
    size_t entries, bytes, disk; /* bytes of memory, and of the disk */
} prefix_counts;
prefix_counts prefix_count(prefix_store *p);

#endif
