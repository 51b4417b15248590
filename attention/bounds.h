/* SPDX-License-Identifier: MIT */
/* Page bounds of all layers of a sequence (ops_quest.h): quest's index, and the second level over an index. */
#ifndef ATTENTION_BOUNDS_H
#define ATTENTION_BOUNDS_H

#include "attention/method.h"
#include "kernels/ops_quest.h"

/* Bytes of one layer that holds n tokens in pages of `page`. */
status bounds_bytes(size_t *out, const attn_spec *s, const attn_shape *shape, int64_t page, int64_t n, err *e);
/* [n_layers], for as many tokens as the context's limit; layers that it does not serve hold nothing. On failure too
 * *out goes to bounds_close. */
status bounds_open(quest_index **out, const attn_ctx *c, int64_t page, const char *what, err *e);
void bounds_close(quest_index *x, const attn_ctx *c);
/* Those of a layer that holds c->length tokens (state.h). */
status bounds_state(const quest_index *x, const attn_ctx *c, attn_state *v, const char *what, int layer, err *e);
/* First position whose key a rewind to n tokens reads again. */
static inline int64_t bounds_redo_from(int64_t page, int64_t n)
{
    return n / page * page;
}

#endif
