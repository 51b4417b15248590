/* SPDX-License-Identifier: MIT */
/* Lists of raw rows, attended as if they were adjacent: keys are rotated at their index in the list. A decode step
 * reads rows in the store and rotates keys on the way; a window of a prompt gathers them into a scratch copy (of any
 * store, as float32). */
#ifndef ATTENTION_GATHERED_H
#define ATTENTION_GATHERED_H

#include "attention/method.h"

typedef struct {
    kv_rows rows;     /* scratch: the copy */
    buf count, table; /* i64 0, 1, 2, ...; rotations there */
    int64_t *host;    /* for uploads: count */
    size_t n;         /* of count and table */
    bool ready;       /* the table holds something */
} gathered_rows;

/* at: offset of the gathered_rows in the method's struct; rows: of the longest list; table: places that are asked for.
 */
void gathered_declare(attn_decl *d, size_t at, int64_t rows, int64_t table);
/* Parts of the hooks with these names. */
void gathered_reset(attn_view *v, gathered_rows *r, int64_t rows, int64_t table);
void gathered_begin(const attn_view *v, gathered_rows *r, const attn_part *p);
/* Stores raw keys; also a complete hook `append`. */
void gathered_append(const attn_turn *t, size_t n, int layer);
/* Returns the segment of the n tokens of idx (i32 positions, ascending, the window's own last), or of the first n if p
 * is NULL. The caller has called kv_need for them. */
attn_seg gathered_segment(attn_view *v, const gathered_rows *r, const attn_part *p, int layer, buf idx, int64_t n);

#endif
