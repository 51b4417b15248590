/* SPDX-License-Identifier: MIT */
/* State of a sequence between steps, declared once for saving and loading. Each owner of state walks over it in a fixed
 * order (attn_seq_state, the hook `state` of a method, ...). When saving, the visitor reads; when loading, it fills,
 * and the walk validates before use, since a file may hold anything. Derived state is recomputed. Runs only between
 * forwards, and not inside a prompt. */
#ifndef ATTENTION_STATE_H
#define ATTENTION_STATE_H

#include "kernels/ops.h"

typedef struct attn_state attn_state;

/* n pieces of `used` bytes each in a buffer, one every `stride` bytes from `at` on. */
typedef struct {
    size_t at, n, stride, used;
} state_part;

/* layer -1: of the whole sequence. Names have at most 23 bytes. */
struct attn_state {
    bool load;
    /* Numbers in host memory. */
    status (*host)(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e);
    /* In ops memory, whatever is looked up by it or counted with it: loaded as a copy that nobody else can change. */
    status (*mem)(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e);
    /* In ops memory, values alone (rows, codes, bounds), of which none can do harm: may be mapped. The buffer is
     * `bytes` long as alloc gave it; the parts are what holds something. */
    status (*rows)(attn_state *s, const char *name, int layer, buf b, size_t bytes, const state_part *part,
                   size_t n_parts, err *e);
};

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
