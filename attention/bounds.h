/* SPDX-License-Identifier: MIT */
/* Quest's key bounds of pages, or their mean keys: a method's index or its second level. */
#ifndef ATTENTION_BOUNDS_H
#define ATTENTION_BOUNDS_H

#include "attention/method.h"
#include "kernels/ops_quest.h"

/* Member of the method's struct. */
typedef struct {
    buf *bound, *sum;   /* [n_layers]; sum: QUEST_MEAN only */
    quest_index *index; /* [n_layers] */
} page_bounds;

/* Declares the buffers. at: offset of the page_bounds; page: tokens per page. */
void bounds_declare(attn_decl *d, size_t at, const char *name, int64_t page, quest_how how);
void bounds_reset(page_bounds *b, const attn_view *v, int64_t page, quest_how how);

#endif
