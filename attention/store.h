/* SPDX-License-Identifier: MIT */
/* K/V rows of the layers of one sequence, in f32, f16 or bf16. */
#ifndef ATTENTION_STORE_H
#define ATTENTION_STORE_H

#include <stdbool.h>

#include "kernels/ops.h"

typedef struct {
    backend *be;
    int n_layers;
    kv_rows *layer; /* [n_layers]; k.p NULL: nothing stored for this layer */
} kv_store;

/* Room for cap[l] rows in each layer l (0: none). Address space is reserved, memory taken as rows
 * are written. On failure nothing is held. */
status kv_store_init(kv_store *s, backend *be, int n_layers, size_t n_kv_heads, size_t head_dim,
                     dtype type, const int64_t *cap, err *e);
void kv_store_free(kv_store *s);

/* Bytes of one row (K and V, all heads). */
size_t kv_row_bytes(size_t n_kv_heads, size_t head_dim, dtype type);

#endif
