/* SPDX-License-Identifier: MIT */
/* FIER's one-bit keys, used as a method's index. */
#ifndef ATTENTION_BITS_H
#define ATTENTION_BITS_H

#include "attention/method.h"
#include "kernels/ops_fier.h"

/* Member of the method's struct. */
typedef struct {
    buf *bits, *levels, *ring; /* [n_layers] */
    fier_index *index;         /* [n_layers] */
} key_bits;

/* Declares the buffers. at: offset of the key_bits; group: tokens that share two levels. */
void bits_declare(attn_decl *d, size_t at, int64_t group);
/* Fills the indexes; products are computed as in the paper. */
void bits_reset(key_bits *b, const attn_view *v, int64_t group);

#endif
