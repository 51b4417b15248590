/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/comm.h"
#include "kernels/ref/ref.h"

void ref_all_reduce(backend *be, buf x, size_t n)
{
    if (be->ranks && be->fault.code == ST_OK) comm_all_reduce(be->ranks, (float *)(void *)x.p, n, &be->fault);
}

/* Moves the gathered columns of all ranks to their final columns: the last ones overlap. */
static void move_columns(float *row, size_t ranks, size_t part, size_t total)
{
    for (size_t r = 0; r < ranks; r++)
        if (r * part > total - part) memmove(row + total - part, row + r * part, part * sizeof *row);
}

/* Gathers from the last row to the first, since a row and its gathered data extend past the parts of earlier rows.
 * Restores the part of the next row that gathered data overwrites. */
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
        move_columns(row, ranks, part, total);
        if (i + 1 < n) memcpy(row + total, next, over * sizeof *next);
    }
}
