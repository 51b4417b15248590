/* SPDX-License-Identifier: MIT */
/* Blocks of decode attention with only quantized or block rows (decode.h), by integer products with 32-bit sums.
 *
 * A query and the weights of a block are 16-bit integers. Scales and offsets are moved out of the sums: the scale of a
 * channel is multiplied into the query, that of a row's run into its weight:
 *   K by runs      q.k = sum over runs of b (q.code) + a (sum of q)       (block rows: a = -offset b)
 *   K by channels  q.k = (q b).code + q.a                                 (one query for each group of rows)
 *   V              sum of w v = sum of (w b) code + sum of w a
 * w b has 16 bits relative to the largest value of the block, of a head and of two runs, so that the error is small
 * relative to the block's contribution, however small that is.
 *
 * codes_vbmi.h and codes_avx2.h define the layout of codes for the products. */
#include "config.h"

#include "kernels/cpu/decode.h"

#if SIMD_CODES

#include <float.h>
#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/cpu/rows.h"

enum {
    SLICE = 64, /* channels that are multiplied together: two runs of block rows */
    SLICES = HEAD_DIM_MAX / SLICE,
    TILE = VF_LANES,
    TILES = DECODE_BLOCK / TILE,
    TRANSPOSE_PREFETCHES = 4, /* prefetch steps of transpose_values in a slice; transpose_keys has one a tile */
    LARGEST = 32512           /* 256 * 127 */
};

/* A block in the form that the products need. */
typedef struct {
    size_t n, n_groups;
    size_t group_of[TILES]; /* K by channels: group index of each tile */
    float a[TILES][HEAD_DIM_MAX], b[TILES][HEAD_DIM_MAX];
    code_query q[DECODE_GROUP][TILES]; /* q b of each head and group */
    float unit[DECODE_GROUP][TILES], plus[DECODE_GROUP][TILES];
    float k_a[CODE_RUNS][DECODE_BLOCK], k_b[CODE_RUNS][DECODE_BLOCK]; /* K by runs */
    float v_a[CODE_RUNS][DECODE_BLOCK], v_b[CODE_RUNS][DECODE_BLOCK];
    float p[DECODE_GROUP][DECODE_BLOCK], sum[DECODE_GROUP][VF_LANES], rest[DECODE_GROUP][CODE_RUNS][VF_LANES];
    float most[DECODE_GROUP], factor[DECODE_GROUP],
        own[DECODE_GROUP]; /* factors of the sums so far, and of this block */
} code_block;

#if SIMD_VBMI
#include "kernels/cpu/codes_vbmi.h"
#else
#include "kernels/cpu/codes_avx2.h"
#endif

static float largest_of(const float *x, size_t d)
{
    VF most = vf_zero();
    for (size_t c = 0; c < d; c += VF_LANES) most = vf_max(most, size_of(vf_load(x + c)));
    return vf_hmax(most);
}

static bool rows_fit(const decode_chunk *c)
{
    const row_source *k = &c->k, *v = &c->v;
    size_t d = c->head_dim;
    if (c->rope || d % SLICE) return false;
    if (!k->bits) return dtype_in_qblocks(k->type) && k->type == v->type;
    if (k->rotated || v->rotated || v->group || v->run % ROW_BLOCK || d % v->run) return false;
    return k->group ? k->group % TILE == 0 : k->run == v->run;
}

/* ---- ordering ---- */

enum { ORDER_ROWS = 2 * CODE_CHUNK };

/* Returns how many of the first n / TILE tiles of a chunk have quantized rows of one group. */
static size_t tiles_in_order(const int32_t *number, size_t n, size_t group)
{
    size_t in_order = 0;
    for (size_t i = 0; i + TILE <= n; i += TILE) {
        if (number[i] < 0) continue;
        size_t from = (size_t)number[i] / group * group;
        in_order += !outside(number + i, (int32_t)from, (int32_t)group);
    }
    return in_order;
}

/* Writes the slots of n quantized rows by their numbers minus `lowest`; -1 for none. Other rows and numbers out of
 * range go to `rest`, whose size is returned. */
static size_t sort_rows(int32_t slot_of[ORDER_ROWS], int32_t *rest, const int32_t *number, size_t n, int32_t first,
                        uint32_t lowest)
{
    size_t n_rest = 0;
    memset(slot_of, 0xff, ORDER_ROWS * sizeof *slot_of);
    for (size_t i = 0; i < n; i++) {
        uint32_t row = (uint32_t)number[i] - lowest;
        if (row < ORDER_ROWS) slot_of[row] = first + (int32_t)i;
        else rest[n_rest++] = first + (int32_t)i;
    }
    return n_rest;
}

bool LEVEL(codes_order)(decode_chunk *to, int32_t slot[CODE_CHUNK], const decode_chunk *c, size_t least, size_t most)
{
    int32_t slot_of[ORDER_ROWS], number[CODE_CHUNK],
        rest[CODE_CHUNK]; /* number: of quantized rows; others' are negative */
    const size_t group = c->k.group;
    if (!c->k.bits || !group || group % TILE || ORDER_ROWS % group || c->idx || c->rope || most > CODE_CHUNK)
        return false;
    uint32_t lowest = UINT32_MAX;
    for (size_t i = 0; i < least; i++) {
        number[i] = -1 - c->k.at[(size_t)c->first + i];
        if ((uint32_t)number[i] < lowest) lowest = (uint32_t)number[i];
    }
    if (tiles_in_order(number, least, group) * TILE * 4 > least * 3 || lowest > INT32_MAX) return false;
    lowest -= lowest % (uint32_t)group;
    size_t n = 0, left = sort_rows(slot_of, rest, number, least, (int32_t)c->first, lowest), whole = 0;
    for (size_t g = 0; g < ORDER_ROWS; g += group) {
        unsigned missing = 0;
        for (size_t i = 0; i < group; i += TILE) missing |= outside(slot_of + g + i, 0, INT32_MAX);
        if (!missing) {
            memcpy(slot + n, slot_of + g, group * sizeof *slot);
            n += group, whole++;
            continue;
        }
        for (size_t i = g; i < g + group; i++)
            if (slot_of[i] >= 0) rest[left++] = slot_of[i];
    }
    memcpy(slot + n, rest, left * sizeof *slot);
    n += left;
    for (size_t i = least; i < most; i++) slot[n++] = (int32_t)c->first + (int32_t)i;
    *to = *c;
    to->idx = slot, to->first = 0, to->moved = true, to->origin = c->first;
    return whole > 0;
}

void LEVEL(codes_open)(code_sums *s, const decode_chunk *c, const float *q)
{
    const size_t d = c->head_dim, heads = c->n_queries * c->group;
    s->on = rows_fit(c);
    s->c = c, s->q = q;
    s->bits = c->k.bits ? c->k.bits : c->k.type == DT_Q8 ? 8 : 4;
    s->offset = c->k.bits ? 0 : (int)qblock_offset(c->k.type);
    for (size_t i = 0; s->on && i < heads * d; i += VF_LANES) s->on = !not_finite(vf_load(q + i));
    if (!s->on) return;
    for (size_t h = 0; h < heads; h++) {
        s->top[h] = -INFINITY;
        if (c->k.bits && c->k.group) continue;
        const float largest = largest_of(q + h * d, d);
        if (s->bits == 8) s->q_scale[h] = halve(8, &s->number[h], q + h * d, largest, d);
        else if (s->bits == 4) s->q_scale[h] = halve(4, &s->number[h], q + h * d, largest, d);
        else s->q_scale[h] = halve(2, &s->number[h], q + h * d, largest, d);
        for (size_t r = 0; r < d / ROW_BLOCK; r++) {
            s->q_sum[h][r] = 0;
            for (size_t i = r * ROW_BLOCK, e = i + ROW_BLOCK; i < e; i++) s->q_sum[h][r] += number_of(&s->number[h], i);
        }
    }
    memset(s->acc, 0, heads * d * sizeof *s->acc);
    memset(s->sum, 0, heads * sizeof *s->sum);
    memset(s->rest, 0, heads * sizeof *s->rest);
}

/* ---- a block's rows ---- */

/* Reads a and b of each run of the block's rows; block rows have scales only. False if some are not finite. */
static bool runs_of(float (*a)[DECODE_BLOCK], float (*b)[DECODE_BLOCK], const row_source *s, const block_rows *r)
{
    uint32_t h[DECODE_BLOCK];
    const unsigned char *pair[DECODE_BLOCK], *const *from = r->row;
    const size_t d = s->head_dim, pairs = s->bits ? d / s->run : d / ROW_BLOCK / 2;
    size_t at = s->bits ? 0 : row_code_bytes(s->type, d);
    unsigned odd = 0;
    for (size_t i = 0; s->bits && i < DECODE_BLOCK; i++)
        pair[i] = s->pair + (size_t)r->code[i < r->n ? i : r->n - 1] * 4 * pairs;
    if (s->bits) from = pair;
    for (size_t j = 0; j < pairs; j++, at += sizeof *h) {
        for (size_t i = 0; i < DECODE_BLOCK; i++) memcpy(&h[i], from[i] + at, sizeof *h);
        float *to_x = s->bits ? a[j] : b[2 * j], *to_y = s->bits ? b[j] : b[2 * j + 1];
        for (size_t i = 0; i < DECODE_BLOCK; i += VF_LANES) {
            VF x, y;
            two_numbers(&x, &y, &h[i]);
            if (s->zero_point) x = vf_sub(vf_zero(), vf_mul(x, y));
            odd |= not_finite(x) | not_finite(y);
            vf_store(to_x + i, x);
            vf_store(to_y + i, y);
        }
    }
    return !odd;
}

/* Reads the pairs of a group of rows; returns a mask of non-finite values. */
static unsigned pairs_of(float *a, float *b, const row_source *s, size_t group)
{
    const size_t d = s->head_dim;
    const unsigned char *pair = s->pair + group * 4 * d;
    unsigned odd = 0;
    for (size_t c = 0; c < d; c += VF_LANES) {
        VF x = vf_load_f16(pair + 2 * c), y = vf_load_f16(pair + 2 * (d + c));
        if (s->zero_point) x = vf_sub(vf_zero(), vf_mul(x, y));
        odd |= not_finite(x) | not_finite(y);
        vf_store(a + c, x);
        vf_store(b + c, y);
    }
    return odd;
}

/* Reads the groups of the block's tiles, and their pairs. False if a tile has rows of several groups, or some pairs are
 * not finite. */
static bool groups_of(code_block *b, const row_source *s, const block_rows *k)
{
    size_t before = SIZE_MAX;
    unsigned odd = 0;
    b->n_groups = 0;
    for (size_t t = 0; t < TILES; t++) {
        size_t first = t * TILE < k->n ? t * TILE : k->n - 1, left = k->n - first,
               group = (size_t)k->code[first] / s->group;
        unsigned out = outside(k->code + t * TILE, (int32_t)(group * s->group), (int32_t)s->group);
        if (t * TILE < k->n && out & ((1u << (left < TILE ? left : TILE)) - 1)) return false;
        if (group != before) odd |= pairs_of(b->a[b->n_groups], b->b[b->n_groups], s, group), b->n_groups++;
        before = group;
        b->group_of[t] = b->n_groups - 1;
    }
    return !odd;
}

/* ---- scores ---- */

static void score_runs(const code_sums *s, const code_block *b, const uint8_t *k, size_t h, float *p)
{
    const size_t d = s->c->head_dim, run = s->c->k.bits ? s->c->k.run : ROW_BLOCK;
    const VF unit = vf_set1(s->q_scale[h]);
    const code_query *q[TILES];
    VF sum[TILES];
    size_t j = 0;
    UNROLL for (int t = 0; t < TILES; t++) sum[t] = vf_zero(), q[t] = &s->number[h];
    for (size_t r = 0; r < d / ROW_BLOCK; r++) {
        int_sums x[TILES];
        if (r * ROW_BLOCK == (j + 1) * run) j++;
        UNROLL for (int t = 0; t < TILES; t++) x[t] = sums_from(-s->offset * s->q_sum[h][r]);
        add_keys(TILES, x, k + r * ROW_BLOCK * DECODE_BLOCK * CODE_BYTES, q, r * ROW_BLOCK, ROW_BLOCK);
        UNROLL for (int t = 0; t < TILES; t++)
        {
            sum[t] = vf_fma(as_floats(x[t]), vf_load(&b->k_b[j][t * TILE]), sum[t]);
            if (s->c->k.bits) sum[t] = vf_fma(vf_load(&b->k_a[j][t * TILE]), vf_set1((float)s->q_sum[h][r]), sum[t]);
        }
    }
    UNROLL for (int t = 0; t < TILES; t++) vf_store(p + t * TILE, vf_mul(sum[t], unit));
}

/* Computes the queries of head h for the groups of the block. */
INLINE void queries_of(const int bits, const code_sums *s, code_block *b, size_t h)
{
    const size_t d = s->c->head_dim;
    const float *q = s->q + h * d;
    for (size_t g = 0; g < b->n_groups; g++) {
        VF dot = vf_zero(), most = vf_zero();
        float x[HEAD_DIM_MAX];
        for (size_t c = 0; c < d; c += VF_LANES) {
            VF v = vf_load(q + c), y = vf_mul(v, vf_load(b->b[g] + c));
            vf_store(x + c, y);
            most = vf_max(most, size_of(y));
            dot = vf_fma(v, vf_load(b->a[g] + c), dot);
        }
        b->plus[h][g] = vf_sum(dot);
        b->unit[h][g] = halve(bits, &b->q[h][g], x, vf_hmax(most), d);
    }
}

static void score_channels(const code_sums *s, const code_block *b, const uint8_t *k, size_t h, float *p)
{
    enum { HALF = TILES / 2 };
    const size_t d = s->c->head_dim;
    const code_query *q[TILES];
    int_sums x[TILES];
    bool alike = true; /* the tiles of each half share a group */
    UNROLL for (int t = 0; t < TILES; t++)
    {
        q[t] = &b->q[h][b->group_of[t]];
        alike = alike && q[t] == q[t / HALF * HALF];
        x[t] = sums_from(0);
    }
    if (alike) add_keys(HALF, x, k, q, 0, d);
    else add_keys(1, x, k, q, 0, d);
    UNROLL for (int t = 0; t < TILES; t++)
    {
        size_t g = b->group_of[t];
        vf_store(p + t * TILE, vf_fma(as_floats(x[t]), vf_set1(b->unit[h][g]), vf_set1(b->plus[h][g])));
    }
}

/* Computes the products of queries and keys to p, and prefetches the next keys. */
INLINE void score_rows(const int bits, const bool by_channel, const code_sums *s, code_block *b, const block_rows *k,
                       const block_rows *next, size_t h0, size_t h1)
{
    prefetcher then = {next, 0, next->n, TILES + h1 - h0, 0};
    uint8_t *transposed = (uint8_t *)s->c->work;
    transpose_keys(bits, transposed, k, s->c->head_dim / SLICE, &then);
    for (size_t h = h0; h < h1; h++) {
        prefetch_next(&then);
        if (by_channel) score_channels(s, b, transposed, h, b->p[h]);
        else score_runs(s, b, transposed, h, b->p[h]);
    }
}

/* Adds a bias to the scores of head h, stores them if requested, and finds the largest. */
static void finish_scores(const code_sums *s, code_block *b, const block_rows *k, size_t at, size_t h)
{
    const decode_chunk *c = s->c;
    const decode_query *of = &c->of[h / c->group];
    size_t own = h % c->group;
    float *p = b->p[h];
    for (size_t i = b->n; i < DECODE_BLOCK; i++) p[i] = -INFINITY;
    for (size_t i = 0; of->bias && i < b->n; i++) p[i] += of->bias[own * c->bias_stride + column_of(c, k, at, i)];
    for (size_t i = 0; of->scores && i < b->n; i++) of->scores[own * c->score_stride + column_of(c, k, at, i)] = p[i];
    VF most = vf_load(p);
    UNROLL for (int t = 1; t < TILES; t++) most = vf_max(most, vf_load(p + t * TILE));
    b->most[h] = vf_hmax(most);
}

/* Computes the factors of the sums so far and of this block's sums. */
static void rescale(code_sums *s, code_block *b, size_t h0, size_t h1)
{
    for (size_t h = h0; h < h1; h += VF_LANES) {
        const size_t n = h1 - h < VF_LANES ? h1 - h : VF_LANES;
        VF top = vf_load_some(s->top + h, n), most = vf_load_some(b->most + h, n), now = vf_max(top, most);
        vf_store_some(s->top + h, now, n);
        now = vf_max(now, vf_set1(-FLT_MAX)); /* a finite value, so that subtracting it from -INFINITY is defined */
        vf_store_some(b->factor + h, vf_exp_down(vf_sub(top, now)), n);
        vf_store_some(b->own + h, vf_exp_down(vf_sub(most, now)), n);
    }
}

/* ---- values ---- */

/* Computes the weights of head h relative to the block's largest score, multiplied with V's scales; their sum; and the
 * sum of the offsets of V's runs. */
INLINE void weigh_head(const code_sums *s, code_block *b, size_t h, slice_weights *w)
{
    const size_t d = s->c->head_dim, run = s->c->v.bits ? s->c->v.run : ROW_BLOCK;
    const VF most = vf_set1(b->most[h] > -FLT_MAX ? b->most[h] : -FLT_MAX);
    VF e[TILES];
    UNROLL for (int t = 0; t < TILES; t++) e[t] = vf_exp_down(vf_sub(vf_load(b->p[h] + t * TILE), most));
    VF sum[TILES / 2];
    UNROLL for (int t = 0; t < TILES / 2; t++) sum[t] = vf_add(e[2 * t], e[2 * t + 1]);
    UNROLL for (int by = TILES / 4; by; by /= 2) UNROLL for (int t = 0; t < by; t++) sum[t] =
        vf_add(sum[t], sum[t + by]);
    vf_store(b->sum[h], sum[0]);
    for (size_t r = 0; s->c->v.bits && r < d / run; r++) {
        VF a = vf_zero();
        UNROLL for (int t = 0; t < TILES; t++) a = vf_fma(e[t], vf_load(&b->v_a[r][t * TILE]), a);
        vf_store(b->rest[h][r], a);
    }
    for (size_t i = 0; i < d / SLICE; i++)
        weigh(&w[i], e, b->v_b[i * SLICE / run], b->v_b[(i * SLICE + ROW_BLOCK) / run]);
}

/* Rescales the sums of weights of head h, and adds those of the block. */
INLINE void add_weights(code_sums *s, const code_block *b, size_t h)
{
    const size_t d = s->c->head_dim;
    const VF own = vf_set1(b->own[h]), factor = vf_set1(b->factor[h]);
    vf_store(s->sum[h], vf_fma(vf_load(b->sum[h]), own, vf_mul(vf_load(s->sum[h]), factor)));
    for (size_t r = 0; s->c->v.bits && r < d / s->c->v.run; r++)
        vf_store(s->rest[h][r], vf_fma(vf_load(b->rest[h][r]), own, vf_mul(vf_load(s->rest[h][r]), factor)));
}

/* Adds the block to the sums of a slice of head h. */
INLINE void value_slice(const int bits, code_sums *s, const code_block *b, const uint8_t *v, size_t h, size_t slice,
                        const slice_weights *w)
{
    float *acc = s->acc + h * s->c->head_dim + slice * SLICE, *rest = s->rest[h][slice];
    int_sums sum[VECTORS];
    sum_slice(bits, sum, v + slice * CODES, w);
    VF by = vf_set1(b->own[h] * w->unit), factor = vf_set1(b->factor[h]);
    UNROLL for (int j = 0; j < VECTORS; j++)
    {
        VF old = vf_mul(vf_load(acc + j * VF_LANES), factor);
        vf_store(acc + j * VF_LANES, vf_fma(as_floats(sum[j]), by, old));
    }
    if (s->offset) vf_store(rest, vf_fma(as_floats(sum_of_weights(w)), by, vf_mul(vf_load(rest), factor)));
}

/* Adds the block's values to the sums. */
INLINE void add_values(const int bits, code_sums *s, const code_block *b, const block_rows *v, size_t h0, size_t h1,
                       slice_weights w[][SLICES], prefetcher *next)
{
    const size_t slices = s->c->head_dim / SLICE;
    uint8_t *transposed = (uint8_t *)s->c->work; /* the keys are no longer needed */
    transpose_values(bits, transposed, v, slices, next);
    for (size_t h = h0; h < h1; h++) {
        prefetch_next(next);
        for (size_t i = 0; i < slices; i++) value_slice(bits, s, b, transposed, h, i, &w[h][i]);
    }
}

/* ---- the whole block ---- */

INLINE bool block_as(const int bits, code_sums *s, code_block *b, const block_rows *k, const block_rows *v,
                     const block_rows *next_k, const block_rows *next_v, size_t at, size_t h0, size_t h1)
{
    const decode_chunk *c = s->c;
    const bool by_channel = bits < 8 && c->k.bits && c->k.group;
    if (by_channel ? !groups_of(b, &c->k, k) : !runs_of(b->k_a, b->k_b, &c->k, k)) return false;
    for (size_t h = h0; by_channel && h < h1; h++) queries_of(bits, s, b, h);
    if (by_channel) score_rows(bits, true, s, b, k, next_k, h0, h1);
    else score_rows(bits, false, s, b, k, next_k, h0, h1);
    for (size_t h = h0; h < h1; h++) finish_scores(s, b, k, at, h);
    if (!runs_of(b->v_a, b->v_b, &c->v, v)) return false;
    slice_weights w[DECODE_GROUP][SLICES]; /* of all heads before the sums, so that the wait for one head's maximum
                                              overlaps with the others */
    prefetcher then = {next_v, 0, next_v->n, 2 * (h1 - h0) + TRANSPOSE_PREFETCHES * c->head_dim / SLICE, 0};
    for (size_t h = h0; h < h1; h++) {
        prefetch_next(&then);
        weigh_head(s, b, h, w[h]);
    }
    rescale(s, b, h0, h1);
    for (size_t h = h0; h < h1; h++) add_weights(s, b, h);
    add_values(bits, s, b, v, h0, h1, w, &then);
    return true;
}

bool LEVEL(codes_block)(code_sums *s, const block_rows *k, const block_rows *v, const block_rows *next_k,
                        const block_rows *next_v, size_t at, size_t h0, size_t h1)
{
    code_block b;
    b.n = k->n;
    if (s->bits == 8) return block_as(8, s, &b, k, v, next_k, next_v, at, h0, h1);
    if (s->bits == 4) return block_as(4, s, &b, k, v, next_k, next_v, at, h0, h1);
    return block_as(2, s, &b, k, v, next_k, next_v, at, h0, h1);
}

void LEVEL(codes_close)(const code_sums *s, size_t h, float *acc, float *top, float *sum)
{
    const size_t d = s->c->head_dim, run = s->c->v.bits ? s->c->v.run : ROW_BLOCK;
    float now = s->top[h] > *top ? s->top[h] : *top, w[VF_LANES] = {*top - now, s->top[h] - now};
    if (s->top[h] == -INFINITY) return;
    vf_store(w, vf_exp_down(vf_load(w)));
    for (size_t i = 0; i < d; i++) { /* a word of a vector of its slice */
        size_t in = i % SLICE, c = i - in + channel_at(s->bits, in / TILE, in % TILE);
        acc[c] = acc[c] * w[0] + s->acc[h * d + i] * w[1];
    }
    for (size_t r = 0; r < d / run; r++) { /* the part that is equal for all channels of a run */
        float rest = s->c->v.bits ? vf_sum(vf_load(s->rest[h][r])) : -(float)s->offset * weights_of(s->rest[h], r);
        for (size_t c = r * run; c < (r + 1) * run; c++) acc[c] += rest * w[1];
    }
    *sum = *sum * w[0] + vf_sum(vf_load(s->sum[h])) * w[1];
    *top = now;
}

#else
typedef int k_decode_codes_is_empty; /* ISO C forbids an empty file */
#endif
