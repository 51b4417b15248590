/* SPDX-License-Identifier: MIT */
/* Format of session files. Included by session_file.c, session_state.c and their tests.
 *
 * A file consists of:
 *   - the header;
 *   - the directory, with one entry per item that the walk over the state visits (attention/state.h), in its order;
 *   - checksums of the blocks of all rows (base/sums.h), in the order of the directory;
 *   - copied state, concatenated;
 *   - buffers of rows, each as long as in memory and aligned to SESSION_ALIGN.
 *
 * Numbers are in native byte order. Version 4 has no checksums of rows. */
#ifndef MODEL_SESSION_FILE_IMPL_H
#define MODEL_SESSION_FILE_IMPL_H

#include "attention/state.h"
#include "model/session_file.h"

enum { SESSION_ALIGN = 65536, SESSION_HEADER = 4096, SESSION_SUM = 72 };
#define SESSION_MAGIC "kvasir session\n"
#define SESSION_ORDER 0x01020304u

typedef struct {
    char magic[16];
    uint32_t version, order;
    uint64_t file_bytes, state_bytes, n_items; /* bytes of file and copied state, number of directory entries */
    int64_t context, chunk;
    uint64_t n_ids, random;
    char model[72], store[128], strategy[ATTN_WRITTEN];
    char sum[SESSION_SUM]; /* SHA-256 of everything before the rows, computed with zeros in this field */
    uint64_t n_sums;       /* checksums of rows; 0 in version 4 */
    attn_span bound;       /* session.bound; zeros in files of older programs */
    uint64_t n_generated;  /* of the ids; 0 in files of older programs */
} session_header;

enum { SESSION_STATE, SESSION_ROWS };

/* Directory entry. at: offset from the start of the copied state, or of the first buffer. n, stride, used: see
 * state_part; copied state has stride = used. */
typedef struct {
    char name[24];
    int32_t layer;
    uint32_t kind;
    uint64_t at, n, stride, used;
} session_item;

struct session_file {
    session_header h;
    unsigned char *rest; /* directory, checksums of rows, copied state */
    size_t rest_bytes;
    bool is_prompt; /* see session_file_is_prompt */
    bool trusted;   /* rows need no check, or passed it */
    char *path;
    int fd;
};

static inline uint64_t session_align(uint64_t x)
{
    return (x + SESSION_ALIGN - 1) / SESSION_ALIGN * SESSION_ALIGN;
}

/* Returns the bytes of directory and checksums, which precede the copied state. */
static inline uint64_t session_tables(const session_header *h)
{
    return h->n_items * sizeof(session_item) + h->n_sums * sizeof(uint64_t);
}

/* Returns the offset of the first buffer. */
static inline uint64_t session_rows_at(const session_header *h)
{
    return session_align(SESSION_HEADER + session_tables(h) + h->state_bytes);
}

/* Computes the checksum of a header, padded with zeros, and of the `bytes` bytes between header and rows. */
void session_sum(char out[SESSION_SUM], const session_header *h, const void *rest, size_t bytes);
/* Fills in the header of a session, except for sizes and checksum. */
void session_header_of(session_header *h, const session *s);
/* Returns ST_FORMAT unless the file has the session's model, strategy, store, context and chunk. */
status session_file_check(const session_file *f, const session *s, err *e);

#endif
