/* SPDX-License-Identifier: MIT */
/* Quest's bounds of the keys of pages, or their means, as an index of a method or as its second level. */
#ifndef ATTENTION_BOUNDS_H
#define ATTENTION_BOUNDS_H

#include "attention/method.h"
#include "kernels/ops_quest.h"

/* A member of the method's struct. */
typedef struct {
    buf *bound, *sum;   /* [n_layers]; sum: means alone */
    quest_index *index; /* [n_layers] */
} page_bounds;

/* at: offset of the page_bounds; page: tokens of one. */
void bounds_declare(attn_decl *d, size_t at, const char *name, int64_t page, quest_how how);
void bounds_reset(page_bounds *b, const attn_view *v, int64_t page, quest_how how);

#endif
