/* SPDX-License-Identifier: MIT */
/* The table of a level with tiles: the kernels of the level below, except those that multiply tiles. */
#include "config.h"

#include "kernels/cpu/simd_int8.h"
#include "kernels/cpu/tile.h"

#ifdef TILE_UNIT
#define LEVEL_NAME "AVX-512 VNNI, AMX"
#else
#define LEVEL_NAME "generic, AMX emulated"
#endif

#define TILES_ENTRY(ret, name, args) .name = TILES(k_##name),
#define LEVEL_ENTRY(ret, name, args) .name = LEVEL(k_##name),

/* Rows of a prefill_block, by tiles and by the level below. */
enum { BLOCK_OF_ROWS = 96 };
_Static_assert(BLOCK_OF_ROWS % PAIR_ROWS == 0 && BLOCK_OF_ROWS % TILE_ROWS == 0, "whole tiles of rows");

static void tile_products(float *c, const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    tile_unit u;
    tile_begin(&u);
    TILE_LOAD(&u, 0, c);
    TILE_LOAD(&u, 1, c + TILE_WORDS);
    TILE_LOAD(&u, 2, c + 2 * TILE_WORDS);
    TILE_LOAD(&u, 3, c + 3 * TILE_WORDS);
    TILE_LOAD(&u, 4, x);
    TILE_LOAD(&u, 5, x + 4 * TILE_WORDS);
    TILE_LOAD(&u, 6, y);
    TILE_LOAD(&u, 7, y + 4 * TILE_WORDS);
    for (size_t i = 0; i < n; i++) {
        TILE_DOT(&u, 0, 4, 6);
        TILE_DOT(&u, 1, 5, 6);
        TILE_DOT(&u, 2, 4, 7);
        TILE_DOT(&u, 3, 5, 7);
    }
    TILE_STORE(&u, 0, c);
    TILE_STORE(&u, 1, c + TILE_WORDS);
    TILE_STORE(&u, 2, c + 2 * TILE_WORDS);
    TILE_STORE(&u, 3, c + 3 * TILE_WORDS);
    tile_end(&u);
}

const cpu_kernels TILES(cpu_kernels) = {.name = LEVEL_NAME,
                                        .tile_rows = BLOCK_OF_ROWS,
                                        .lanes = VF_LANES,
                                        .qblock_gemm = INT8_GEMM,
                                        .tile_products = tile_products,
                                        .decode_tiles = TILES(k_decode),
                                        CPU_TILE_LINEAR(TILES_ENTRY) CPU_TILE_KERNELS(TILES_ENTRY)
                                            CPU_OTHER_KERNELS(LEVEL_ENTRY)};
