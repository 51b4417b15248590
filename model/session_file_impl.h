/* SPDX-License-Identifier: MIT */
/* Inside of session files. Included by session_file.c, session_state.c and their tests.
 *
 * header | directory: one entry for each thing that is shown by the walk over the state (attention/state.h), in its
 * order | checksums of the blocks of all rows (base/sums.h), in the order of the directory | what is copied, one after
 * the other | from the next multiple of SESSION_ALIGN on: buffers of values, each at such a multiple and as long as it
 * is in memory. Numbers in the machine's order. Version 4 had no checksums of rows. */
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
    uint64_t file_bytes, state_bytes, n_items; /* of the whole file, of what is copied, of the directory */
    int64_t context, chunk;
    uint64_t n_ids, random;
    char model[72], store[128], strategy[ATTN_WRITTEN];
    char sum[SESSION_SUM]; /* SHA-256 of everything before the rows, with zeros in its own place */
    uint64_t n_sums;       /* of the rows; 0 in version 4 */
    attn_span bound;       /* of the session; zeros in files of older programs */
} session_header;

enum { SESSION_STATE, SESSION_ROWS };

/* at: from the start of what is copied, or of the first buffer. The others as in state_part, of what is copied
 * stride = used. */
typedef struct {
    char name[24];
    int32_t layer;
    uint32_t kind;
    uint64_t at, n, stride, used;
} session_item;

struct session_file {
    session_header h;
    unsigned char *rest; /* directory, checksums of rows, state */
    size_t rest_bytes;
    bool trusted; /* rows are not to be checked, or were */
    char *path;
    int fd;
};

static inline uint64_t session_align(uint64_t x)
{
    return (x + SESSION_ALIGN - 1) / SESSION_ALIGN * SESSION_ALIGN;
}

/* Returns the bytes of directory and checksums, after which comes what is copied. */
static inline uint64_t session_tables(const session_header *h)
{
    return h->n_items * sizeof(session_item) + h->n_sums * sizeof(uint64_t);
}

/* Returns the offset of the first buffer. */
static inline uint64_t session_rows_at(const session_header *h)
{
    return session_align(SESSION_HEADER + session_tables(h) + h->state_bytes);
}

/* The sum of a header and of what follows it up to the rows, zeros behind it. */
void session_sum(char out[SESSION_SUM], const session_header *h, const void *rest, size_t bytes);
/* The header of a session as it is, but for sizes and sum. */
void session_header_of(session_header *h, const session *s);
/* ST_FORMAT unless the file is of the session's model, strategy, store, context and chunk. */
status session_file_check(const session_file *f, const session *s, err *e);

#endif
