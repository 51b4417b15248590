/* SPDX-License-Identifier: MIT */
/* Gathered rows: lists of raw rows that are attended as if they were adjacent. Keys are rotated at their index in the
 * list. A decode step reads the rows in the store and rotates keys as it reads them. A prompt window, and a step of a
 * model that rotates only a part of a head, gathers the rows into a float32 scratch copy, from any store. */
#ifndef ATTENTION_GATHERED_H
#define ATTENTION_GATHERED_H

#include "attention/method.h"

typedef struct {
    kv_rows rows;     /* scratch copy */
    buf count, table; /* i64 0, 1, 2, ...; rotation table of these positions */
    int64_t *host;    /* host copy of count, for uploads */
    size_t n;         /* entries of count and table */
    bool ready;       /* the table is valid */
} gathered_rows;

/* Declares the buffers. at: offset of the gathered_rows in the method's struct; rows: longest list; table: positions.
 */
void gathered_declare(attn_decl *d, size_t at, int64_t rows, int64_t table);
/* Parts of the hooks with these names. gathered_begin computes the table for each prompt; decode steps reuse that of
 * the last prompt, unless their frequencies differ. It returns true if it computed the table. */
void gathered_reset(attn_view *v, gathered_rows *r, int64_t rows, int64_t table);
bool gathered_begin(const attn_view *v, gathered_rows *r, const attn_part *p);
/* The hook `append`: stores raw keys. */
void gathered_append(const attn_task *t, size_t n, int layer);
/* Returns the segment of the n tokens in idx, i32 positions, ascending, the window's own last. idx.p NULL: the first n
 * tokens. The caller has called kv_need for them. */
attn_seg gathered_segment(attn_view *v, const gathered_rows *r, const attn_part *p, int layer, buf idx, int64_t n);

#endif
