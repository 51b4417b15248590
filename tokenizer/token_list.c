/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

status token_list_push(token_list *l, int32_t id, err *e)
{
    TRY(MEM_ROOM(&l->ids, &l->cap, l->n + 1, e));
    l->ids[l->n++] = id;
    return ST_OK;
}

void token_list_free(token_list *l)
{
    mem_free(l->ids);
    memset(l, 0, sizeof *l);
}
