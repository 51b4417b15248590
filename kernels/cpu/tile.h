/* SPDX-License-Identifier: MIT */
/* Levels with tiles have the kernels of the level below except for CPU_TILE_KERNELS: amx those of avx512_bf16,
 * amx-emulated those of generic.
 *
 * Tiles are eight registers of 16 rows of 16 words, for products of pairs of bf16 numbers, the even one in the low half
 * of a word. A tile in memory is 1 KB without gaps. Register numbers are literals.
 *
 *   tile_begin(u) tile_end(u)      configures the unit of this thread; releases it (about 300 cycles for both)
 *   TILE_ZERO(u, t)                sets register t to 0
 *   TILE_LOAD(u, t, p) TILE_STORE(u, t, p)
 *   TILE_DOT(u, c, a, b)           c[i][j] += sum over k of a[i][k] . b[k][j], of floats c
 *
 * Either the unit of the CPU (AMX; TILE_UNIT is defined), or plain C with the same bits. The unit adds the products of
 * the even numbers of a row by fused multiply-adds from zero, those of the odd ones likewise, then both sums, then the
 * old value. Denormals count as 0 in operands and results. Source: Intel 64 and IA-32 Architectures Software
 * Developer's Manual, TDPBF16PS; the order was confirmed on a Xeon for 1.5 million results. */
#ifndef KERNELS_CPU_TILE_H
#define KERNELS_CPU_TILE_H

#include "kernels/cpu/k.h"

enum {
    TILE_SIDE = 16,
    TILE_WORDS = TILE_SIDE * TILE_SIDE,
    PAIR = 2 * TILE_WORDS,    /* two tiles */
    STEP = 2 * TILE_SIDE,     /* numbers of a row that a product of tiles adds */
    PAIR_ROWS = 2 * TILE_SIDE /* rows of two tiles */
};

typedef uint32_t words __attribute__((vector_size(4 * TILE_SIDE)));
typedef float floats __attribute__((vector_size(4 * TILE_SIDE)));

#ifdef TILE_UNIT

#define TILES(name) name##_amx

/* Operand of ldtilecfg. */
typedef struct {
    uint8_t palette, start, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) tile_unit;

/* Not an intrinsic: that of GCC 12 names only 8 bytes of the configuration as its operand. */
INLINE void tile_begin(tile_unit *u)
{
    *u = (tile_unit){.palette = 1};
    for (int i = 0; i < 8; i++) {
        u->row_bytes[i] = 4 * TILE_SIDE;
        u->rows[i] = TILE_SIDE;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(*u));
}

INLINE void tile_end(tile_unit *u)
{
    (void)u;
    __asm__ volatile("tilerelease");
}

#define TILE_ASM(u, ...)                                                                                               \
    do {                                                                                                               \
        (void)(u);                                                                                                     \
        __asm__ volatile(__VA_ARGS__);                                                                                 \
    } while (0)
#define TILE_ZERO(u, t) TILE_ASM(u, "tilezero %%tmm" #t : :)
#define TILE_LOAD(u, t, p)                                                                                             \
    TILE_ASM(u, "tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(p)), "r"((long)(4 * TILE_SIDE)) : "memory")
#define TILE_STORE(u, t, p)                                                                                            \
    TILE_ASM(u, "tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(p)), "r"((long)(4 * TILE_SIDE)) : "memory")
#define TILE_DOT(u, c, a, b) TILE_ASM(u, "tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#else

#include <math.h>

#include "kernels/half.h"

#define TILES(name) name##_amx_emulated

typedef struct {
    uint32_t t[8][TILE_WORDS];
} tile_unit;

INLINE void tile_begin(tile_unit *u)
{
    memset(u, 0, sizeof *u);
}

INLINE void tile_end(tile_unit *u)
{
    (void)u;
}

/* Each element: 0 with the same sign for the bits of a denormal, otherwise x. */
INLINE void tile_normal(words *x)
{
    *x &= (words)((*x & 0x7f800000) != 0) | 0x80000000;
}

/* Splits 16 rows of words into the even and odd numbers. Returns false if a product with another such number may be no
 * normal float, or not exact: if a number is neither 0 nor between 2^-60 and 2^60. */
INLINE bool tile_split(words even[TILE_SIDE], words odd[TILE_SIDE], const uint32_t *w)
{
    const words none = {0};
    words wrong = none;
    for (int r = 0; r < TILE_SIDE; r++, w += TILE_SIDE) {
        memcpy(&odd[r], w, sizeof *odd);
        even[r] = odd[r] << 16;
        odd[r] &= 0xffff0000;
        tile_normal(&even[r]);
        tile_normal(&odd[r]);
        words e = even[r] & 0x7fffffff, o = odd[r] & 0x7fffffff;
        const uint32_t least = (127 - 60) << 23, range = 120 << 23;
        wrong |= (words)(e - least >= range) & (words)(e != 0);
        wrong |= (words)(o - least >= range) & (words)(o != 0);
    }
    return memcmp(&wrong, &none, sizeof none) == 0;
}

/* c[j] += sum over k of a[k] b[k][j]. plain: products are exact, so that fmaf, a slow call, is not needed. */
INLINE void tile_chain(const bool plain, floats *c, const words *a, const words b[TILE_SIDE])
{
    float x[TILE_SIDE], y[TILE_SIDE], sum[TILE_SIDE];
    memcpy(x, a, sizeof x);
    for (int k = 0; plain && k < TILE_SIDE; k++) *c += x[k] * (floats)b[k];
    if (plain) return;
    memcpy(sum, c, sizeof sum);
    for (int k = 0; k < TILE_SIDE; k++) {
        memcpy(y, &b[k], sizeof y);
        for (int j = 0; j < TILE_SIDE; j++) sum[j] = fmaf(x[k], y[j], sum[j]);
    }
    memcpy(c, sum, sizeof sum);
}

/* In vectors, because sanitizers check every access to an element. */
static __attribute__((unused)) void tile_dot(uint32_t *c, const uint32_t *a, const uint32_t *b)
{
    words x[2][TILE_SIDE], y[2][TILE_SIDE], old;
    bool plain = tile_split(x[0], x[1], a);
    plain &= tile_split(y[0], y[1], b);
    for (int i = 0; i < TILE_SIDE; i++, c += TILE_SIDE) {
        floats sum[2] = {{0}};
        for (int h = 0; h < 2; h++)
            if (plain) tile_chain(true, &sum[h], &x[h][i], y[h]);
            else tile_chain(false, &sum[h], &x[h][i], y[h]);
        memcpy(&old, c, sizeof old);
        tile_normal(&old);
        old = (words)(sum[0] + sum[1] + (floats)old);
        tile_normal(&old);
        memcpy(c, &old, sizeof old);
    }
}

#define TILE_ZERO(u, r)      memset((u)->t[r], 0, 4 * TILE_WORDS)
#define TILE_LOAD(u, r, p)   memcpy((u)->t[r], p, 4 * TILE_WORDS)
#define TILE_STORE(u, r, p)  memcpy(p, (u)->t[r], 4 * TILE_WORDS)
#define TILE_DOT(u, c, a, b) tile_dot((u)->t[c], (u)->t[a], (u)->t[b])

#endif

#define TILES_DECLARE(ret, name, args) ret TILES(k_##name) args;
CPU_TILE_KERNELS(TILES_DECLARE)
void TILES(k_decode)(const decode_chunk *c);
CPU_TILE_LINEAR(TILES_DECLARE)

/* Rounds to bf16 in the upper half of each word, half away from zero; a NaN stays one. */
INLINE void upper(words *u, const floats *x)
{
    *u = ((words)*x + ((words)(*x == *x) & 0x8000)) & 0xffff0000;
}

/* Splits pairs of floats: hi rounded to bf16, lo (NULL: not wanted) the rest likewise. */
INLINE void split(float *hi, float *lo, const float *x, const float *y)
{
    floats a, b;
    words u, v, w;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    upper(&u, &a);
    upper(&v, &b);
    w = u >> 16 | v;
    memcpy(hi, &w, sizeof w);
    if (!lo) return;
    a -= (floats)u;
    b -= (floats)v;
    upper(&u, &a);
    upper(&v, &b);
    w = u >> 16 | v;
    memcpy(lo, &w, sizeof w);
}

/* Row i of out, at out + i * to, becomes column i of in [rows][cols], rows `from` apart. */
INLINE void transpose(float *out, size_t to, const float *in, size_t from, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r += VF_LANES)
        for (size_t c = 0; c < cols; c += VF_LANES) vf_transpose(out + c * to + r, to, in + r * from + c, from);
}

/* Registers 0 and 1 have the sums of two tiles a with the first tile b; if tiles is 2, registers 2 and 3 those with the
 * second one. This fills them with zeros, or to add with sums, two tiles each. */
INLINE void sums_load(tile_unit *u, const int tiles, float *const sums[2], const bool add)
{
    if (add) {
        TILE_LOAD(u, 0, sums[0]);
        TILE_LOAD(u, 1, sums[0] + TILE_WORDS);
        if (tiles == 2) TILE_LOAD(u, 2, sums[1]);
        if (tiles == 2) TILE_LOAD(u, 3, sums[1] + TILE_WORDS);
    } else {
        TILE_ZERO(u, 0);
        TILE_ZERO(u, 1);
        if (tiles == 2) TILE_ZERO(u, 2);
        if (tiles == 2) TILE_ZERO(u, 3);
    }
}

INLINE void sums_store(tile_unit *u, const int tiles, float *const sums[2])
{
    TILE_STORE(u, 0, sums[0]);
    TILE_STORE(u, 1, sums[0] + TILE_WORDS);
    if (tiles == 2) TILE_STORE(u, 2, sums[1]);
    if (tiles == 2) TILE_STORE(u, 3, sums[1] + TILE_WORDS);
}

/* Adds the products of two tiles a with one or two tiles b to registers 0 to 3. */
INLINE void dot_pairs(tile_unit *u, const int tiles, const float *a, const float *b0, const float *b1)
{
    TILE_LOAD(u, 4, a);
    TILE_LOAD(u, 6, b0);
    TILE_DOT(u, 0, 4, 6);
    if (tiles == 2) {
        TILE_LOAD(u, 7, b1);
        TILE_DOT(u, 2, 4, 7);
    }
    TILE_LOAD(u, 5, a + TILE_WORDS);
    TILE_DOT(u, 1, 5, 6);
    if (tiles == 2) TILE_DOT(u, 3, 5, 7);
}

#endif
