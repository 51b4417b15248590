/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/comm.h"
#include "kernels/ref/ref.h"

void ref_all_reduce(backend *be, buf x, size_t n)
{
    if (be->ranks && be->fault.code == ST_OK) comm_all_reduce(be->ranks, (float *)(void *)x.p, n, &be->fault);
}

/* Columns of all ranks, gathered one behind the other, go to their places: the last ones overlap. */
static void place(float *row, size_t ranks, size_t part, size_t total)
{
    for (size_t r = 0; r < ranks; r++)
        if (r * part > total - part) memmove(row + total - part, row + r * part, part * sizeof *row);
}

/* The last row first: a row's end and what is gathered lie behind the parts of those before it. What the gathered parts
 * reach into of the next row is put back. */
void ref_gather_columns(backend *be, buf x, size_t n, size_t part, size_t total)
{
    size_t ranks = (size_t)backend_ranks(be), over = part * ranks - total;
    float *all = (float *)(void *)x.p, next[COMM_RANKS_MAX];
    if (ranks == 1) return;
    for (size_t i = n; i-- > 0 && be->fault.code == ST_OK;) {
        float *row = all + i * total, *own = row + (size_t)backend_rank(be) * part;
        memcpy(next, row + total, over * sizeof *next);
        memmove(own, all + i * part, part * sizeof *own);
        comm_all_gather(be->ranks, row, own, part * sizeof *own, &be->fault);
        place(row, ranks, part, total);
        if (i + 1 < n) memcpy(row + total, next, over * sizeof *next);
    }
}
