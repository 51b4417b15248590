/* SPDX-License-Identifier: MIT */
/* Lists of rows that are stored raw, attended as if they stood side by side: keys are rotated at their places in the
 * list or at their positions. A decode step reads its rows where they lie and rotates keys by place as it reads them; a
 * window of a prompt, and a step that rotates by position, read them into a scratch copy (of any store, as float32). */
#ifndef ATTENTION_LISTED_H
#define ATTENTION_LISTED_H

#include "attention/method.h"

typedef struct {
    kv_rows rows;     /* scratch: the copy */
    buf count, table; /* i64 0, 1, 2, ...; rotations there */
    buf pos, own;     /* by_position: i64 positions of the rows, rotations there; p NULL: by places */
    int64_t *host;    /* for uploads: count */
    size_t n;         /* of count and table */
    bool ready;       /* the table holds something */
} listed_rows;

/* at: offset of the listed_rows in the method's struct; rows: of the longest list; table: places that are asked for. */
void listed_declare(attn_decl *d, size_t at, int64_t rows, int64_t table, bool by_position);
/* Shares in hooks of the same names. */
void listed_reset(attn_view *v, listed_rows *r, int64_t rows, int64_t table);
void listed_begin(const attn_view *v, listed_rows *r, const attn_part *p);
/* Stores raw keys; also an `append` on its own. */
void listed_append(const attn_turn *t, size_t n, int layer);
/* The n tokens of idx (i32 positions, ascending, the window's own last), or with p NULL the first n; kv_need was called
 * for them. */
attn_seg listed_segment(attn_view *v, const listed_rows *r, const attn_part *p, int layer, buf idx, int64_t n);

#endif
