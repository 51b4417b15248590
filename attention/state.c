/* SPDX-License-Identifier: MIT */
/* Declared buffers: sizes and walks, for strategies and for recurrent blocks of models. */
#include "config.h"

#include "attention/state.h"

#include <assert.h>

#include "kernels/base/mem.h"

void state_add(state_decl *d, mem_decl m)
{
    if (m.item == 0 || m.cap == 0 || m.regions == 0) return;
    assert(d->n_mem < STATE_MAX_BUFFERS);
    d->mem[d->n_mem++] = m;
}

status state_bytes(size_t *out, const mem_decl *m, err *e)
{
    TRY(size_mul(out, (size_t)m->cap, m->item, m->name, e));
    return size_mul(out, *out, m->regions, m->name, e);
}

status state_visit(attn_state *s, const mem_decl *m, int layer, buf b, err *e)
{
    size_t stride = (size_t)m->cap * m->item, used = (size_t)(m->whole ? m->cap : m->used) * m->item;
    if (m->kind == MEM_INDEX || m->kind == MEM_ROWS)
        return s->rows(s, m->name, layer, b, m->regions * stride, (state_part){m->regions, stride, used}, e);
    if (stride == used) return s->mem(s, m->name, layer, b, m->regions * used, e);
    for (size_t i = 0; i < m->regions; i++) TRY(s->mem(s, m->name, layer, buf_at(b, i * stride), used, e));
    return ST_OK;
}
