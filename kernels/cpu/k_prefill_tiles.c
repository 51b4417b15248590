/* SPDX-License-Identifier: MIT */
/* Prompt attention by tiles (tile_attend.h); rows of floats take the kernel of the level below. Key tiles and the order
 * of the loops are those of k_prefill.c: PREFILL_KEYS entries from a multiple of that on, and all query rows for each.
 */
#include "config.h"

#include "kernels/cpu/tile_attend.h"

/* Processes all key tiles that any row sees. */
INLINE void attend_block(const int parts, const prefill_block *b, const key_work *w)
{
    tile_unit u;
    int64_t lo, hi;
    rows_see(b, 0, b->n_rows, &lo, &hi);
    if (lo >= hi) return;
    tile_begin(&u);
    for (int64_t tile = lo / PREFILL_KEYS * PREFILL_KEYS; tile < hi; tile += PREFILL_KEYS) {
        pack_tile(parts, b, w, tile);
        for (size_t r = 0; r < b->n_rows; r += PAIR_ROWS) {
            int64_t from, to;
            rows_see(b, r, PAIR_ROWS, &from, &to);
            if (from >= tile + PREFILL_KEYS || to <= tile) continue;
            size_t n = to - tile < PREFILL_KEYS ? (size_t)(to - tile) : PREFILL_KEYS;
            score_rows(&u, parts, 2, b, w, r, n);
            value_rows(&u, parts, 2, b, w, r, tile, n);
        }
    }
    tile_end(&u);
}

/* Separate functions, so that `parts` is a constant in each. */
static __attribute__((noinline)) void attend_both(const prefill_block *b, const key_work *w)
{
    attend_block(2, b, w);
}

static __attribute__((noinline)) void attend_hi(const prefill_block *b, const key_work *w)
{
    attend_block(1, b, w);
}

void TILES(k_prefill)(const prefill_block *b)
{
    if (b->k.type == DT_F32) {
        LEVEL(k_prefill)(b);
        return;
    }
    key_work w = begin_block(b);
    for (size_t r = 0; r < b->n_rows; r += TILE_SIDE) pack_q(b->q + r * w.dim_pad, &w);
    if (b->k.type == DT_BF16 && !b->k.bits) attend_hi(b, &w);
    else attend_both(b, &w);
    for (size_t r = 0; r < b->n_rows; r += TILE_SIDE) unpack_acc(b->acc + r * w.dim_pad, &w);
}
