/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/bits.h"

#include <stddef.h>

#define AT(member) (at + offsetof(key_bits, member))

void bits_declare(attn_decl *d, size_t at, int64_t g)
{
    size_t dim = (size_t)d->shape->head_dim, kv = (size_t)d->shape->n_kv_heads,
           row = dim * dtype_size(kv_number_type(&d->spec->kv));
    int64_t cap = d->lim->n_tokens, n = d->n;
    decl_regions(d, MEM_INDEX, AT(bits), "bits", kv, fier_words(dim) * 32 * sizeof(uint32_t), (cap + 31) / 32,
                 (n + 31) / 32);
    decl_regions(d, MEM_INDEX, AT(levels), "levels", kv, 2 * row, (cap + g - 1) / g, (n + g - 1) / g);
    decl_regions(d, MEM_INDEX, AT(ring), "newest keys", kv, (size_t)g * row, 1, n > 0);
    d->buffers.mem[d->buffers.n_mem - 1].whole = true;
    decl_bytes(d, MEM_HOST, AT(index), "bits", (size_t)d->shape->n_layers * sizeof(fier_index));
}

void bits_reset(key_bits *b, const attn_view *v, int64_t group)
{
    for (int l = 0; l < v->shape->n_layers; l++)
        b->index[l] = (fier_index){.bits = b->bits[l],
                                   .levels = b->levels[l],
                                   .ring = b->ring[l],
                                   .type = kv_number_type(&v->spec->kv),
                                   .n_kv_heads = (size_t)v->shape->n_kv_heads,
                                   .head_dim = (size_t)v->shape->head_dim,
                                   .cap = (size_t)v->lim->n_tokens,
                                   .group = (size_t)group};
}
