/* SPDX-License-Identifier: MIT */
/* x w^T by tiles (tile.h), for prompts: x and w rounded to bf16, or to a sum hi + lo of two bf16 numbers, which holds
 * f16 exactly; then the products hi hi, hi lo and lo hi (x first) are taken for each 32 columns. Tiles of x have 16
 * rows by 32 columns; tiles of w have 16 rows in pairs of columns, the order of weights in blocks. Sums are [row of
 * x][row of w].
 *
 * A thread packs a panel of w, LINEAR_PANEL rows by DEPTH columns (hi and lo: half as many), which stays in L2 (256 KB)
 * while all rows of x pass over it, 32 at a time: these stay in L1 (32 KB). Sums wait in L2 for the next columns (512
 * KB). So a row of x reads each 32 columns of a row of w in one order, whatever the panel, the thread and the other
 * rows are. */
#include "config.h"

#include "kernels/cpu/tile.h"
#include "kernels/ops_weights.h"

enum {
    DEPTH = 16 * STEP,
    STRIP_FLOATS = DEPTH / STEP * PAIR, /* a strip of DEPTH columns */
    SUM_FLOATS = 2 * PAIR,              /* sums of two strips */
    PANEL_STRIPS = LINEAR_PANEL / STEP
};
_Static_assert((int)LINEAR_STRIP == (int)STEP && (int)QBLOCK_ROWS == (int)TILE_SIDE && (int)QBLOCK_COLS == (int)STEP,
               "tiles and blocks have one size");
_Static_assert((int)TILE_LINEAR_FLOATS == PANEL_STRIPS * (STRIP_FLOATS + LINEAR_SLICE / STEP * SUM_FLOATS),
               "work space");

/* ---- x ---- */

/* Packs columns [c, c + 32) of a row of f32 or f16; those from `cols` on become zero. lo is `apart` floats after hi, or
 * 0: not wanted. */
INLINE void pack_columns(float *to, size_t apart, const dtype t, const void *row, size_t c, size_t cols)
{
    uint16_t *hi = (uint16_t *)(void *)to, *lo = (uint16_t *)(void *)(to + apart);
    for (size_t i = 0; i < STEP; i += VF_LANES) {
        VF v = c + i < cols ? vf_load_some_as(row, c + i, t, cols - c - i) : vf_zero();
        vf_store_bf16(hi + i, v);
        if (apart) vf_store_bf16(lo + i, vf_sub(v, vf_load_bf16(hi + i)));
    }
}

void TILES(k_pack_tiles)(float *out, const float *x, size_t n, size_t cols, size_t parts, size_t s0, size_t s1)
{
    const size_t strip = tile_strip_floats(cols, parts);
    for (size_t r = s0 * STEP; r < s1 * STEP; r++) {
        float *to = out + r / STEP * strip + r % STEP * TILE_SIDE;
        for (size_t c = 0; c < cols; c += STEP, to += parts * PAIR)
            for (size_t p = 0; p < parts; p++)
                if (r >= n) memset(to + p * PAIR, 0, TILE_SIDE * sizeof *to);
                else if (p == 0) pack_columns(to, parts == 2 ? PAIR : 0, DT_F32, x + r * cols, c, cols);
    }
}

/* ---- w ---- */

/* Packs 32 columns of 16 rows of f16. Rows and columns outside w become zero. */
INLINE void pack_halves(float *to, const weight *w, size_t r, size_t c)
{
    float t[2][TILE_WORDS] = {{0}};
    for (size_t i = 0; i < TILE_SIDE && r + i < w->rows; i++)
        pack_columns(t[0] + i * TILE_SIDE, TILE_WORDS, DT_F16, w->p.p + (r + i) * w->cols * sizeof(uint16_t), c,
                     w->cols);
    for (size_t p = 0; p < 2; p++) transpose(to + p * PAIR, TILE_SIDE, t[p], TILE_SIDE, TILE_SIDE, TILE_SIDE);
}

/* The same of bf16. */
INLINE void pack_elements(float *to, const weight *w, size_t r, size_t c)
{
    float t[TILE_WORDS] = {0};
    size_t rows = w->rows - r < TILE_SIDE ? w->rows - r : TILE_SIDE, cols = w->cols - c < STEP ? w->cols - c : STEP;
    const unsigned char *from = w->p.p + (r * w->cols + c) * sizeof(uint16_t);
    for (size_t i = 0; i < rows; i++, from += w->cols * sizeof(uint16_t)) {
        if (cols == STEP) memcpy(t + i * TILE_SIDE, from, STEP * sizeof(uint16_t));
        else memcpy(t + i * TILE_SIDE, from, cols * sizeof(uint16_t));
    }
    transpose(to, TILE_SIDE, t, TILE_SIDE, TILE_SIDE, TILE_SIDE);
}

/* The numbers of 16 rows of a part: w = scale[c / 16] (code - zero) + minimum. */
typedef struct {
    float scale[2][TILE_SIDE], zero[TILE_SIDE], minimum[TILE_SIDE];
} part_numbers;

INLINE void numbers_of(part_numbers *n, const dtype t, const unsigned char *head, const unsigned char *part)
{
    const qblock_kind k = qblock_kind_of(t);
    for (size_t r = 0; r < TILE_SIDE; r += VF_LANES) {
        VF d = k.floats ? vf_load((const float *)(const void *)head + r) : vf_load_f16(head + 2 * r);
        UNROLL for (int j = 0; j < 2; j++)
        {
            const unsigned char *s = part + QBLOCK_ROWS * (j < k.scales ? j : 0) + r;
            vf_store(n->scale[j] + r, k.scales ? vf_mul(d, vf_signed_bytes(s)) : d);
        }
        vf_store(n->zero + r, k.zero ? vf_bytes(head + QBLOCK_SCALES + r) : vf_set1((float)k.offset));
        if (!k.minimum) continue;
        VF m = vf_load_f16(head + QBLOCK_SCALES + 2 * r);
        vf_store(n->minimum + r, k.scales ? vf_mul(m, vf_signed_bytes(part + QBLOCK_ROWS * k.scales + r)) : m);
    }
}

/* Codes of column c of 16 rows. */
INLINE void codes_of(floats *out, const qblock_kind k, const unsigned char *line, const int c)
{
    const int byte = 8 * (c % 4), half = c / 16, l = c % 16 / 4;
    words q, up;
    memcpy(&q, line + QBLOCK_LINE * (k.bits == 8 ? c / 4 : l), sizeof q);
    if (k.bits == 8) q = q >> byte & 255;
    else q = q >> (byte + 4 * half) & 15;
    if (k.bits == 5 || k.bits == 6) {
        const int each = k.bits - 4, shift = byte + (k.bits == 5 ? c / 4 : 2 * l);
        memcpy(&up, line + QBLOCK_LINE * (4 + (k.bits == 6 ? half : 0)), sizeof up);
        q |= (up >> shift & ((1u << each) - 1)) << 4;
    }
    *out = __builtin_convertvector(q, floats);
}

/* E4M3 numbers of column c of 16 rows. */
INLINE void numbers_e4m3(floats *out, const unsigned char *line, const int c)
{
    float f[TILE_SIDE];
    for (size_t r = 0; r < TILE_SIDE; r += VF_LANES)
        vf_store(f + r, vf_mul(vf_e4m3(line + QBLOCK_ROWS * c + r), vf_set1(256)));
    memcpy(out, f, sizeof f);
}

/* Packs part b of a group of 16 rows in blocks. */
INLINE void pack_part(float *to, const dtype t, const unsigned char *group, size_t b)
{
    const qblock_kind k = qblock_kind_of(t);
    const size_t parts = qblock_cols(t) / QBLOCK_COLS;
    const unsigned char *head = group + b / parts * qblock_bytes(t);
    const unsigned char *part = head + qblock_head_bytes(t) + b % parts * qblock_part_bytes(t);
    part_numbers n;
    floats scale, zero, minimum, w;
    float pair[2][TILE_SIDE];
    numbers_of(&n, t, head, part);
    memcpy(&zero, n.zero, sizeof zero);
    if (k.minimum) memcpy(&minimum, n.minimum, sizeof minimum);
    UNROLL for (int c = 0; c < QBLOCK_COLS; c += 2)
    {
        memcpy(&scale, n.scale[c / 16], sizeof scale);
        UNROLL for (int i = 0; i < 2; i++)
        {
            if (k.floats) numbers_e4m3(&w, part, c + i);
            else codes_of(&w, k, part + qblock_factor_bytes(t), c + i);
            w = scale * (w - zero);
            if (k.minimum) w += minimum;
            memcpy(pair[i], &w, sizeof w);
        }
        split(to + c / 2 * TILE_SIDE, NULL, pair[0], pair[1]);
    }
}

/* Packs columns [c0, c1) of 16 rows; tiles of a strip alternate with those of its other 16 rows. */
INLINE void pack_as(float *to, const dtype t, const weight *w, size_t r, size_t c0, size_t c1)
{
    if (r >= w->rows) return;
    for (size_t c = c0; c < c1; c += STEP, to += t == DT_F16 ? 2 * PAIR : PAIR) {
        if (t == DT_F16) pack_halves(to, w, r, c);
        else if (t == DT_BF16) pack_elements(to, w, r, c);
        else pack_part(to, t, w->p.p + r / QBLOCK_ROWS * qblock_group_bytes(t, w->cols), c / QBLOCK_COLS);
    }
}

static void pack_rows(float *to, const weight *w, size_t r, size_t c0, size_t c1)
{
    switch (w->type) {
    case DT_F16: pack_as(to, DT_F16, w, r, c0, c1); break;
    case DT_BF16: pack_as(to, DT_BF16, w, r, c0, c1); break;
    case DT_Q8: pack_as(to, DT_Q8, w, r, c0, c1); break;
    case DT_Q4: pack_as(to, DT_Q4, w, r, c0, c1); break;
    case DT_Q4Z: pack_as(to, DT_Q4Z, w, r, c0, c1); break;
    case DT_Q4K: pack_as(to, DT_Q4K, w, r, c0, c1); break;
    case DT_Q5K: pack_as(to, DT_Q5K, w, r, c0, c1); break;
    case DT_Q6K: pack_as(to, DT_Q6K, w, r, c0, c1); break;
    case DT_FP8: pack_as(to, DT_FP8, w, r, c0, c1); break;
    case DT_Q4G: pack_as(to, DT_Q4G, w, r, c0, c1); break;
    default: pack_as(to, DT_Q4G32, w, r, c0, c1); break;
    }
}

/* ---- the product ---- */

/* Sums of two strips (+)= their products over n tiles: [n][parts][2] tiles each. */
INLINE void multiply(tile_unit *u, size_t parts, float *sums, const float *x, const float *w, size_t n, const bool add)
{
    float *const both[2] = {sums, sums + PAIR};
    sums_load(u, 2, both, add);
    for (size_t i = 0; i < n; i++, x += parts * PAIR, w += parts * PAIR) {
        dot_pairs(u, 2, x, w, w + TILE_WORDS);
        if (parts == 1) continue;
        dot_pairs(u, 2, x, w + PAIR, w + PAIR + TILE_WORDS);
        dot_pairs(u, 2, x + PAIR, w, w + TILE_WORDS);
    }
    sums_store(u, 2, both);
}

/* Writes the sums [strip of x][strip of w][half of w's][half of x's][tile] of outputs [r0, r1). */
static void write_sums(const tile_linear *p, const float *sums, size_t r0, size_t r1)
{
    float bias[LINEAR_PANEL] = {0};
    const weight *b = &p->bias;
    if (b->p.p) LEVEL(k_widen)(bias, b->p.p + r0 * dtype_size(b->type), b->type, r1 - r0);
    for (size_t i = 0; i < p->n; i++) {
        const float *of = sums + i / STEP * PANEL_STRIPS * SUM_FLOATS + i % STEP * TILE_SIDE;
        float *out = p->out + i * p->out_stride + r0;
        for (size_t j = 0; j < r1 - r0; j += VF_LANES) {
            const float *s = of + j / TILE_SIDE * PAIR + j % TILE_SIDE;
            vf_store_some(out + j, vf_add(vf_load(s), vf_load(bias + j)), r1 - r0 - j);
        }
    }
}

void TILES(k_linear_tiles)(const tile_linear *p, size_t r0, size_t r1)
{
    const weight *w = &p->w;
    const size_t strip = tile_strip_floats(w->cols, p->parts), depth = DEPTH / p->parts;
    float *panel = p->work, *sums = panel + PANEL_STRIPS * STRIP_FLOATS;
    tile_unit u;
    tile_begin(&u);
    for (size_t r = r0; r < r1; r += LINEAR_PANEL) {
        size_t last = r1 - r < LINEAR_PANEL ? r1 : r + LINEAR_PANEL, strips = (last - r + STEP - 1) / STEP;
        for (size_t c = 0; c < w->cols; c += depth) {
            size_t end = w->cols - c < depth ? w->cols : c + depth, steps = (end - c + STEP - 1) / STEP;
            for (size_t i = 0; i < 2 * strips; i++)
                pack_rows(panel + i / 2 * STRIP_FLOATS + i % 2 * TILE_WORDS, w, r + i * TILE_SIDE, c, end);
            for (size_t i = 0; i * STEP < p->n; i++)
                for (size_t j = 0; j < strips; j++)
                    multiply(&u, p->parts, sums + (i * PANEL_STRIPS + j) * SUM_FLOATS,
                             p->x + i * strip + c / STEP * p->parts * PAIR, panel + j * STRIP_FLOATS, steps, c > 0);
        }
        write_sums(p, sums, r, last);
    }
    tile_end(&u);
}
