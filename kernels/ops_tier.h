/* SPDX-License-Identifier: MIT */
/* Rows of a store whose older part lies in a file.
 *
 * Rows keep their addresses, but their pages may be released. Pages of rows of one kv head are written to the file
 * once, in order, and may then be absent from memory. Readers announce rows with `need` or `span`; these stay in
 * memory until the next such call for the same layer. The most recently used pages that were read back stay in memory,
 * up to a number of bytes. Writing a row that is already in the file is a caller error: call `forget` first.
 *
 * A file is created without a name, so it disappears however the program ends, and only its owner can open it. Reads
 * and writes bypass the system's page cache (O_DIRECT) if all sizes allow that; otherwise cached data is released
 * after every call. Failures are faults of the backend that name the folder, layer and byte. */
#ifndef KERNELS_OPS_TIER_H
#define KERNELS_OPS_TIER_H

#include "kernels/ops.h"

typedef struct tier tier;             /* tier of one sequence */
typedef struct tier_layer tier_layer; /* one of its layers */

enum { TIER_EXACT, TIER_CODES, TIER_AREAS, TIER_PLANES = 4, TIER_PAGE = 16 };

/* Page b of head h is at `at` + h * stride + b * bytes. */
typedef struct {
    buf at;
    size_t bytes, stride;
} tier_plane;

/* An area has the float or block rows, or the quantized rows with their pairs: pages of `rows` rows, of which the first
 * `stay` always stay in memory. In the file a page is the concatenation of its planes. A page of all heads precedes the
 * next page. */
typedef struct {
    tier_plane plane[TIER_PLANES];
    int n_planes;
    int64_t rows, n_pages, stay;
} tier_area;

typedef struct {
    const char *dir;
    size_t cache;   /* bytes of a layer's pages that may stay in memory after being read back */
    size_t n_heads; /* number of kv heads */
} tier_options;

/* Counters since the tier was opened. rows: rows requested that are in the file; pages: pages that contain them, of
 * which `missed` were absent; stall_ns: time spent moving data. in_file: valid bytes in the file; here: those also in
 * memory; most_here: maximum of here. */
typedef struct {
    uint64_t rows, pages, missed, read, written;
    int64_t stall_ns;
    size_t in_file, here, most_here;
} tier_counts;

/* Returns the difference of two counters. */
static inline tier_counts tier_counts_since(tier_counts now, const tier_counts *from)
{
    now.rows -= from->rows;
    now.pages -= from->pages;
    now.missed -= from->missed;
    now.read -= from->read;
    now.written -= from->written;
    now.stall_ns -= from->stall_ns;
    return now;
}

/* Returns the mean number of pages per requested row: 1 / rows of a page for neighbouring rows, 1 at worst. */
static inline double tier_per_row(const tier_counts *c)
{
    return c->rows ? (double)c->pages / (double)c->rows : 0;
}

/* Returns the fraction of requested pages that were in memory. */
static inline double tier_hits(const tier_counts *c)
{
    return c->pages ? 1 - (double)c->missed / (double)c->pages : 1;
}

#define TIER_OPS(OP, own, plain)                                                                                       \
    /* Errors: ST_IO if no file can be created in the folder. */                                                       \
    OP(own, status, open, (backend *, tier * *out, const tier_options *o, err *e))                                     \
    OP(own, void, close, (backend *, tier *))                                                                          \
    /* Adds a layer with its areas (no planes: no such area), which lives as long as the tier. */                      \
    OP(own, status, add, (backend *, tier_layer * *out, tier *, int layer, const tier_area area[TIER_AREAS], err *e))  \
    /* Writes the pages of an area before `end` to the file, unless they are there already. */                         \
    OP(own, void, write, (backend *, tier_layer *, int area, int64_t end))                                             \
    /* Returns the number of an area's pages in the file. */                                                           \
    OP(own, int64_t, written, (const tier_layer *, int area))                                                          \
    /* Invalidates the file's pages from `end` on; their rows may be written again. */                                 \
    OP(own, void, forget, (backend *, tier_layer *, int area, int64_t end))                                            \
    /* Releases the least recently used pages until the pages read back fit the layer's cache. */                      \
    OP(own, void, trim, (backend *, tier_layer *))                                                                     \
    /* Reads back the rows that an attention over job's rows will read. Uses the job's rows, range, idx, n_lists       \
     * and idx_stride; qpos, kpos and band determine where a contiguous list starts. Does nothing if job->rows.tier    \
     * is NULL. */                                                                                                     \
    OP(own, void, need, (backend *, const attn_job *job))                                                              \
    /* Reads back the slots [from, to) of all heads. Does nothing if rows->tier is NULL. */                            \
    OP(own, void, span, (backend *, const kv_rows *rows, int64_t from, int64_t to))                                    \
    OP(own, void, counts, (const tier *, tier_counts *out))                                                            \
    /* Returns the bytes that files in the folder may still take; 0: unknown. */                                       \
    OP(own, size_t, room, (backend *, const char *dir))

struct tier_ops {
    TIER_OPS(OP_POINTER, , )
};

/* Device copies of some rows of a layer whose rows lie in host memory.
 * k, v   n_kv_heads regions of first + window + slots rows. Slots s < first are permanent. The newest `window` of the
 *        other slots that were written are in row first + s mod window. Some slots that were read are in row first +
 *        window + s mod slots. window and slots are powers of two, or 0. k.p NULL, for a store with codes: codes lie
 *        in host memory, and exact rows on the device if `exact`; reads are counted all the same
 * ring   i32 [window], tag i32 [n_kv_heads][slots]: 1 + the slot whose row is stored, 0: none
 * claim  i32 [n_kv_heads][slots], 0 between ops; layers may share it
 * count  u64 [NEAR_KINDS]
 * kv_write writes both copies; the slots of one call ascend by one. attn_decode reads the device's copy if there is
 * one, all other ops the host's. */
typedef struct kv_near {
    buf k, v, ring, tag, claim, count;
    int64_t first, window, slots;
    bool exact;
} kv_near;

/* Counters of attention in decode steps and of fetched rows: rows requested, K and V separately; rows found on the
 * device; bytes read from host memory instead. */
enum { NEAR_ASKED, NEAR_FOUND, NEAR_LINK, NEAR_KINDS };

/* Buffers in host memory that ops read and write in place, like any other buffer. */
struct host_ops {
    /* Allocates zeroed memory; ST_NOMEM names the requested and the available bytes. */
    status (*alloc)(backend *, buf *out, size_t bytes, const char *what, err *e);
    void (*free)(backend *, buf, size_t bytes);
    /* Returns the bytes that alloc may still give to this rank; 0: unknown. NULL: memory of backend_ops.alloc. */
    size_t (*room)(backend *);
    /* Copies the slots that an attention of a decode step will read to the device, as far as space allows, and counts
     * them. job->rows.near must not be NULL. NULL: host memory is device memory, and near is not used. */
    void (*bring)(backend *, const attn_job *job);
};

/* Bookkeeping bytes for a page of one head. */
enum { TIER_NOTE = 16 };

/* Test hook: the n-th following system call that creates, writes or reads a file fails with EIO (0: none does). */
void tier_test_fail_at(long n);

#endif
