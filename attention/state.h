/* SPDX-License-Identifier: MIT */
/* State of a sequence between steps, declared once for saving and loading. Each owner of state walks over it in a fixed
 * order (attn_seq_state, the hook `state` of a method, ...). The visitor reads the state to save it, or fills it to
 * load it. Loaded state is untrusted, so the walk validates it before use. Derived state is recomputed. Walks run only
 * between forwards, not inside a prompt. */
#ifndef ATTENTION_STATE_H
#define ATTENTION_STATE_H

#include "kernels/ops.h"

typedef struct attn_state attn_state;

/* n pieces of `used` bytes in a buffer, one every `stride` bytes. */
typedef struct {
    size_t n, stride, used;
} state_part;

/* Visitor of a walk. layer -1: state of the whole sequence. Names have at most 23 bytes. */
struct attn_state {
    bool load;
    /* Visits numbers in host memory. */
    status (*host)(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e);
    /* Visits indexes and counters in ops memory; loaded as a private copy, so that they cannot change after checks. */
    status (*mem)(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e);
    /* Visits values in ops memory (rows, quantized rows, bounds). Any values are safe, so they may be mapped. The
     * buffer was allocated with `bytes` bytes; `part` is the used part. */
    status (*rows)(attn_state *s, const char *name, int layer, buf b, size_t bytes, state_part part, err *e);
};

/* ---- declaring buffers ---- */

/* Kinds of buffers.
 * INDEX: values that persist between steps; counted as index, saved.
 * ROWS: as INDEX, but counted as K and V.
 * STATE: as INDEX, but ops use the values as indexes or counters, so the method validates them after loading.
 * COUNTS: as STATE, but counted as scratch.
 * SCRATCH: rewritten in each forward.
 * HOST: host memory, not counted. */
typedef enum { MEM_INDEX, MEM_ROWS, MEM_STATE, MEM_COUNTS, MEM_SCRATCH, MEM_HOST } mem_kind;

/* Buffer of `regions` equal regions with `cap` items of `item` bytes. With attn_decl.n tokens in the sequence the first
 * `used` items of each region are in use. */
typedef struct {
    const char *name; /* name in errors and saved sessions, at most 23 bytes */
    mem_kind kind;
    bool each_layer; /* one per layer of the method; otherwise one per sequence */
    size_t at;       /* offset in the method's struct of a buf; with each_layer a buf *; HOST: a pointer */
    size_t regions, item;
    int64_t cap, used;
    bool whole; /* saved whole, not only the used items */
} mem_decl;

enum { STATE_MAX_BUFFERS = 40 };

/* Buffers of an owner, in the order of allocation, saving and loading. */
typedef struct {
    mem_decl mem[STATE_MAX_BUFFERS];
    int n_mem;
} state_decl;

/* Adds a buffer, unless it is empty. */
void state_add(state_decl *d, mem_decl m);
/* Computes the bytes of a buffer. */
status state_bytes(size_t *out, const mem_decl *m, err *e);
/* Passes a buffer, allocated as b, to the visitor. */
status state_visit(attn_state *s, const mem_decl *m, int layer, buf b, err *e);

#define STATE_HOST(s, name, p, e) ((s)->host((s), (name), -1, (p), sizeof *(p), (e)))

/* Returns the error for invalid loaded state, ST_FORMAT. */
static inline status state_bad(const char *what, err *e)
{
    return err_set(e, ST_FORMAT, "damaged: %s", what);
}

/* Checks lo <= x <= hi; otherwise ST_FORMAT with the numbers. */
static inline status state_within(const char *what, int64_t x, int64_t lo, int64_t hi, err *e)
{
    if (x >= lo && x <= hi) return ST_OK;
    return err_set(e, ST_FORMAT, "damaged: %s is %lld, expected %lld to %lld", what, (long long)x, (long long)lo,
                   (long long)hi);
}

#endif
