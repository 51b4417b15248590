/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

status token_list_push(token_list *l, int32_t id, err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        TRY(MEM_GROW(&l->ids, cap, e));
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return ST_OK;
}

void token_list_free(token_list *l)
{
    mem_free(l->ids);
    memset(l, 0, sizeof *l);
}
