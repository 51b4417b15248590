/* SPDX-License-Identifier: MIT */
/* State of a sequence between steps, declared once for saving and loading. Each owner of state walks over it in a fixed
 * order (attn_seq_state, the hook `state` of a method, ...). When saving, the visitor reads; when loading, it fills,
 * and the walk validates before use, since a file may hold anything. Derived state is recomputed. Runs only between
 * forwards, and not inside a prompt. */
#ifndef ATTENTION_STATE_H
#define ATTENTION_STATE_H

#include "kernels/ops.h"

typedef struct attn_state attn_state;

/* n pieces of `used` bytes each in a buffer, one every `stride` bytes. */
typedef struct {
    size_t n, stride, used;
} state_part;

/* layer -1: of the whole sequence. Names have at most 23 bytes. */
struct attn_state {
    bool load;
    /* Numbers in host memory. */
    status (*host)(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e);
    /* In ops memory, whatever is looked up by it or counted with it: loaded as a copy that nobody else can change. */
    status (*mem)(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e);
    /* In ops memory, values alone (rows, codes, bounds), of which none can do harm: may be mapped. The buffer is
     * `bytes` long as alloc gave it; the part is what holds something. */
    status (*rows)(attn_state *s, const char *name, int layer, buf b, size_t bytes, state_part part, err *e);
};

/* ---- declaring buffers ---- */

/* INDEX: values that last from step to step: counted as index, saved. ROWS: the same, but counted as K and V. STATE: as
 * INDEX, but ops look things up by it or count with it, so that the method checks it after loading. COUNTS: as STATE,
 * but counted as scratch. SCRATCH: made anew in each forward. HOST: host memory, not counted. */
typedef enum { MEM_INDEX, MEM_ROWS, MEM_STATE, MEM_COUNTS, MEM_SCRATCH, MEM_HOST } mem_kind;

/* A buffer of `regions` equal regions with room for `cap` items of `item` bytes, of which the first `used` of each
 * region hold something when the sequence holds attn_decl.n tokens. */
typedef struct {
    const char *name; /* in errors and in saved sessions: at most 23 bytes */
    mem_kind kind;
    bool each_layer; /* one for each of the method's layers, else one for the sequence */
    size_t at;       /* offset in the method's struct of a buf; each_layer: of a buf *; HOST: of a pointer */
    size_t regions, item;
    int64_t cap, used;
    bool whole; /* saved whole, not only what is used */
} mem_decl;

enum { STATE_MAX_BUFFERS = 40 };

/* The buffers of an owner, in the order in which they are allocated, saved and loaded. */
typedef struct {
    mem_decl mem[STATE_MAX_BUFFERS];
    int n_mem;
} state_decl;

/* Adds a buffer, unless it is empty. */
void state_add(state_decl *d, mem_decl m);
/* Returns its bytes in *out. */
status state_bytes(size_t *out, const mem_decl *m, err *e);
/* Shows it, allocated as b, to a walk. */
status state_visit(attn_state *s, const mem_decl *m, int layer, buf b, err *e);

#define STATE_HOST(s, name, p, e) ((s)->host((s), (name), -1, (p), sizeof *(p), (e)))

/* Error for invalid loaded state: ST_FORMAT with a part of the text. */
static inline status state_bad(const char *what, err *e)
{
    return err_set(e, ST_FORMAT, "damaged: %s", what);
}

/* Checks lo <= x <= hi; else ST_FORMAT with the numbers. */
static inline status state_within(const char *what, int64_t x, int64_t lo, int64_t hi, err *e)
{
    if (x >= lo && x <= hi) return ST_OK;
    return err_set(e, ST_FORMAT, "damaged: %s is %lld, expected %lld to %lld", what, (long long)x, (long long)lo,
                   (long long)hi);
}

#endif
