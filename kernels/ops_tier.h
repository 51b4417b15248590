/* SPDX-License-Identifier: MIT */
/* Rows of a store whose older part lies in a file.
 *
 * Rows keep their addresses; what changes is whether something lies there. Pages of rows of one kv head are written
 * to the file once, in order, and from then on may be away: what reads them names them before, with `need` or `span`,
 * and they are there until the next such call about the same layer. Of those that are back the last used ones stay, up
 * to a number of bytes. Writing a row that is in the file already is an error of the caller: `forget` comes first.
 *
 * A file has no name from the start, so nothing is left of it however the program ends; only its owner could open it.
 * The system's page cache does not grow with it: it is read and written past the cache (O_DIRECT) where all sizes
 * allow that, else what was moved is given back behind every call. Failures are faults of the backend, with the folder,
 * layer and byte. */
#ifndef KERNELS_OPS_TIER_H
#define KERNELS_OPS_TIER_H

#include "kernels/ops.h"

typedef struct tier tier;             /* of one sequence */
typedef struct tier_layer tier_layer; /* of one layer of it */

enum { TIER_EXACT, TIER_CODES, TIER_AREAS, TIER_PLANES = 4, TIER_PAGE = 16 };

/* Page b of head h lies at `at` + h * stride + b * bytes. */
typedef struct {
    buf at;
    size_t bytes, stride;
} tier_plane;

/* Exact rows, or codes with their pairs: pages of `rows` rows, of which the first `stay` never go away. In the file a
 * page is what its planes hold of it, one after the other; then come the other heads', then the next page. */
typedef struct {
    tier_plane plane[TIER_PLANES];
    int n_planes;
    int64_t rows, n_pages, stay;
} tier_area;

typedef struct {
    const char *dir;
    size_t cache;   /* bytes of pages of a layer that may be back when it does not run */
    size_t n_heads; /* kv heads */
} tier_options;

/* Since the tier was opened. rows: asked for that are in the file; pages that these lie in, of which `missed` were
 * away; stall_ns: spent moving. in_file: bytes that were written and count now; here: of these in memory, and the most
 * there ever were. */
typedef struct {
    uint64_t rows, pages, missed, read, written;
    int64_t stall_ns;
    size_t in_file, here, most_here;
} tier_counts;

/* What was counted after `from`. */
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

/* Pages that a row asked for lies in, mean: 1 / rows of a page where neighbours are asked for, 1 at worst. */
static inline double tier_per_row(const tier_counts *c)
{
    return c->rows ? (double)c->pages / (double)c->rows : 0;
}

/* Share of the pages asked for that were in memory. */
static inline double tier_hits(const tier_counts *c)
{
    return c->pages ? 1 - (double)c->missed / (double)c->pages : 1;
}

#define TIER_OPS(OP, own, plain)                                                                                       \
    /* ST_IO where no file can be made in the folder. */                                                               \
    OP(own, status, open, (backend *, tier * *out, const tier_options *o, err *e))                                     \
    OP(own, void, close, (backend *, tier *))                                                                          \
    /* A layer with its areas (no planes: there is none); it lives as long as the tier. */                             \
    OP(own, status, add, (backend *, tier_layer * *out, tier *, int layer, const tier_area area[TIER_AREAS], err *e))  \
    /* The pages of an area before `end` go to the file, as far as they have not yet. */                               \
    OP(own, void, write, (backend *, tier_layer *, int area, int64_t end))                                             \
    /* Pages of an area in the file. */                                                                                \
    OP(own, int64_t, written, (const tier_layer *, int area))                                                          \
    /* From `end` on the file's pages count no more; their rows may be written anew. */                                \
    OP(own, void, forget, (backend *, tier_layer *, int area, int64_t end))                                            \
    /* Gives back the memory of the pages that are longest unused, until those that are back fit the layer's cache.    \
     */                                                                                                                \
    OP(own, void, trim, (backend *, tier_layer *))                                                                     \
    /* What an attention over job's rows will read is back. Of the job: rows, range, idx, n_lists, idx_stride, and     \
     * qpos, kpos and band, by which a contiguous list may start later. Nothing where job->rows.tier is NULL. */       \
    OP(own, void, need, (backend *, const attn_job *job))                                                              \
    /* The slots [from, to) of all heads are back. Nothing where rows->tier is NULL. */                                \
    OP(own, void, span, (backend *, const kv_rows *rows, int64_t from, int64_t to))                                    \
    OP(own, void, counts, (const tier *, tier_counts *out))                                                            \
    /* Bytes that files in the folder may still take; 0: unknown. */                                                   \
    OP(own, size_t, room, (backend *, const char *dir))

struct tier_ops {
    TIER_OPS(OP_POINTER, , )
};

/* Rows of a layer that lie in the host's memory and, some of them, in the device's as well. k, v: n_kv_heads regions of
 * first + window + slots rows: slot s < first for good; of the others the newest `window` that were written, in row
 * first + s mod window; and some that were read, in row first + window + s mod slots. window and slots are powers of
 * two, or 0. kv_write writes both copies; the slots of one call ascend by one. attn_decode reads the nearer copy, all
 * other ops the host's. ring   i32 [window], tag i32 [n_kv_heads][slots]: 1 + the slot whose row is there, 0: none.
 * claim  i32 [n_kv_heads][slots] is 0 between ops; layers may share it.
 * count  u64 [NEAR_KINDS].
 * k.p NULL, of a store with codes: codes lie in the host's memory, exact rows in the device's if `exact`; what is read
 * is counted all the same. */
typedef struct kv_near {
    buf k, v, ring, tag, claim, count;
    int64_t first, window, slots;
    bool exact;
} kv_near;

/* Of attention in decode steps and of fetched rows: rows asked for, K and V apart; those that were on the device then;
 * bytes that were read in the host's memory instead. */
enum { NEAR_ASKED, NEAR_FOUND, NEAR_LINK, NEAR_KINDS };

/* Rows in the host's memory that ops read and write where they lie: a buffer of its `alloc` is one like any other. */
struct host_ops {
    /* Zeroed; ST_NOMEM with what was asked for and what is there. */
    status (*alloc)(backend *, buf *out, size_t bytes, const char *what, err *e);
    void (*free)(backend *, buf, size_t bytes);
    /* Bytes that alloc may still give to this rank; 0: unknown. NULL: it is the memory of backend_ops.alloc. */
    size_t (*room)(backend *);
    /* The slots that an attention of a decode step will read come to the device, as far as there are places, and are
     * counted: job->rows.near is not NULL. NULL: the host's memory is the device's, and near is not used. */
    void (*bring)(backend *, const attn_job *job);
};

/* Bytes of bookkeeping for a page of one head. */
enum { TIER_NOTE = 16 };

/* Test hook: the n-th system call from now on that makes, writes or reads a file fails with EIO (0: none does). */
void tier_test_fail_at(long n);

#endif
