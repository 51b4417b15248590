/* SPDX-License-Identifier: MIT */
/* Decode attention over one chunk of keys: online softmax in blocks of DECODE_BLOCK keys. A block's K rows are read
 * once for all query heads of the group, then its V rows. Data is prefetched one phase earlier (V during Q K, the next
 * K during P V; quantized rows, which are short, two phases). Otherwise waiting and computing would alternate (design:
 * cpu-kernels 2, 3).
 *
 * Block rows are converted to floats in registers, or, if several passes read them, once before the first pass.
 * Rotated rows are multiplied with rotated queries, and the sum of V is rotated back. A block with quantized rows is
 * widened to floats first, K at the start and V before P V. It then has the bits of a block of float rows. If keys
 * need RoPE, only K is widened and rotated. Levels with integer products process blocks that have only quantized rows,
 * or rows of 8 or 4 bits in blocks, without widening (decode.h), and merge the two sums at the end.
 *
 * Query heads are processed 4, 2 or 1 at a time with VF_LANES / heads keys. One transposition puts the sums of these
 * VF_LANES dot products into a vector. Lane head * keys + key of score vector `tile` belongs to key
 * tile * keys + key. */
#include "config.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/decode.h"
#include "kernels/cpu/k.h"
#include "kernels/cpu/rows.h"

typedef struct {
    float acc[DECODE_GROUP * HEAD_DIM_MAX];                         /* [group, head_dim] */
    float top[DECODE_GROUP][VF_LANES], sum[DECODE_GROUP][VF_LANES]; /* of a pass, stored at its first head */
    float q[DECODE_GROUP * HEAD_DIM_MAX]; /* packed for the passes (pack_queries), q_stride a head */
    size_t q_stride;
    float p[DECODE_BLOCK * VF_LANES]; /* scores, then weights, of the current heads */
    block_rows k[2], values[2], *v;   /* K and V rows of this block and the next, alternating; v: V of this one */
    row_source from_k, from_v;        /* sources for conversion to floats */
    code_sums codes;
    float scaled[DECODE_GROUP * HEAD_DIM_MAX];
    bool widen;        /* V rows of this block are widened to the chunk's work area */
    size_t heads, end; /* queries that process this block: [heads, end) */
} decode_state;

/* True if the n entries of a block from `first` on are read interleaved, from several streams. In order, the hardware
 * prefetcher would run past the ends of pages or runs of ascending rows, which costs up to half of the bandwidth. Long
 * scattered rows are faster in order, and so are pages of quantized rows, because rows of one group stay together. */
INLINE bool interleaves(const decode_chunk *c, int64_t first, size_t n)
{
    if (!c->idx || c->moved || n < DECODE_BLOCK) return false;
    bool neighbours = c->idx[first + 1] == c->idx[first] + 1;
    if (c->k.bits && c->k.group && neighbours) return false;
    return kv_row_bytes(c->k.type, c->head_dim) <= SHORT_ROW || neighbours;
}

/* Sets the rows of a store with quantized rows. */
static void rows_of_both(block_rows *b, const decode_chunk *c, const row_source *from, size_t first, size_t bytes)
{
    for (size_t i = 0; i < b->n; i++) {
        size_t entry = first + entry_of(b->interleaved, i);
        int32_t row = from->at[c->idx ? (size_t)c->idx[entry] : entry];
        b->code[i] = -1 - row;
        b->coded += row < 0;
        b->row[i] = row < 0 ? from->code + (size_t)(-1 - row) * from->row_bytes : from->exact + (size_t)row * bytes;
    }
}

/* Sets the rows of block `at` of a chunk that ends at `end`; none past the end (n = 0). */
static void rows_of(block_rows *b, const decode_chunk *c, const row_source *from, size_t at, size_t end)
{
    size_t bytes = kv_row_bytes(from->type, c->head_dim);
    int64_t first = c->first + (int64_t)at;
    b->n = at >= end ? 0 : end - at < DECODE_BLOCK ? end - at : DECODE_BLOCK;
    b->coded = 0;
    b->interleaved = interleaves(c, first, b->n);
    if (from->bits) rows_of_both(b, c, from, (size_t)first, bytes);
    else if (!c->idx)
        for (size_t i = 0, p = (size_t)first * bytes; i < b->n; i++, p += bytes) b->row[i] = from->exact + p;
    else
        for (size_t i = 0; i < b->n; i++)
            b->row[i] = from->exact + (size_t)c->idx[(size_t)first + entry_of(b->interleaved, i)] * bytes;
    size_t most = b->coded ? from->row_bytes : bytes;
    for (size_t i = b->n; b->n && i < ROWS; i++) b->row[i] = b->row[b->n - 1];
    b->lines = b->n ? (most + LINE - 1) / LINE : 0;
    b->short_jumps = c->idx && most <= SHORT_ROW;
}

/* Converts these rows to floats at `to`. */
static void widen_rows(block_rows *b, const decode_chunk *c, const row_source *from, size_t at, float *to)
{
    LEVEL(k_rows)(to, c->head_dim, from, c->idx, c->first + (int64_t)at, b->n);
    for (size_t i = 0; i < ROWS; i++)
        b->row[i] = (const unsigned char *)(to + entry_of(b->interleaved, i < b->n ? i : b->n - 1) * c->head_dim);
}

/* Rotates channels [k, k + VF_LANES) of both halves of a row of type t, or the remaining ones (RoPE). */
INLINE void rope_channels(const dtype t, float *out, const void *row, const float *table, size_t half, size_t k,
                          const bool whole)
{
    const size_t n = whole ? VF_LANES : half - k;
    float co[VF_LANES] = {0}, si[VF_LANES] = {0};
    for (size_t l = 0; l < n; l++) co[l] = table[2 * (k + l)], si[l] = table[2 * (k + l) + 1];
    VF a = whole ? vf_load_as(row, k, t) : vf_load_as_n(row, k, t, n);
    VF b = whole ? vf_load_as(row, half + k, t) : vf_load_as_n(row, half + k, t, n);
    vf_store_some(out + k, vf_sub(vf_mul(a, vf_load(co)), vf_mul(b, vf_load(si))), n);
    vf_store_some(out + half + k, vf_add(vf_mul(b, vf_load(co)), vf_mul(a, vf_load(si))), n);
}

INLINE void rope_as(const dtype t, const block_rows *b, const decode_chunk *c, size_t at)
{
    const size_t half = c->head_dim / 2, full = half / VF_LANES * VF_LANES;
    for (size_t i = 0; i < b->n; i++) {
        size_t entry = entry_of(b->interleaved, i);
        const float *table = c->rope + (at + entry) * c->head_dim;
        float *out = c->work + entry * c->head_dim;
        for (size_t k = 0; k < full; k += VF_LANES) rope_channels(t, out, b->row[i], table, half, k, true);
        if (full < half) rope_channels(t, out, b->row[i], table, half, full, false);
    }
}

/* Converts the K rows of block `at` to floats with RoPE applied; widened: they are floats already. */
static void rope_rows(block_rows *b, const decode_chunk *c, size_t at, bool widened)
{
    const dtype t = widened ? DT_F32 : c->k.type;
    if (t == DT_F32) rope_as(DT_F32, b, c, at);
    else if (t == DT_F16) rope_as(DT_F16, b, c, at);
    else rope_as(DT_BF16, b, c, at);
    for (size_t i = 0; i < ROWS; i++)
        b->row[i] = (const unsigned char *)(c->work + entry_of(b->interleaved, i < b->n ? i : b->n - 1) * c->head_dim);
}

/* Arranges queries for score_tile: vectors of `heads` heads side by side, the last ones padded with zeros. */
static void pack_queries(float *to, const float *q, size_t heads, size_t d)
{
    for (size_t c = 0; c < d; c += VF_LANES)
        for (size_t h = 0; h < heads; h++, to += VF_LANES) vf_store(to, vf_load_some(q + h * d + c, d - c));
}

/* Returns the bytes between two elements of a row; 1 for block rows, whose elements are indexed. */
INLINE size_t step_of(const dtype t)
{
    return dtype_in_qblocks(t) ? 1 : dtype_size(t);
}

/* Loads the elements from number i after `at` on, of a row of d elements. */
INLINE VF row_load(const unsigned char *row, size_t at, size_t i, const dtype t, size_t d)
{
    return dtype_in_qblocks(t) ? vf_load_block(row, at + i, t, d) : vf_load_as(row + at, i, t);
}

/* acc[h * keys + j] += q of head h times row j, over `vecs` vectors. */
INLINE void products(const int heads, const int vecs, const dtype t, VF acc[VF_LANES], const float *q,
                     const unsigned char *const row[VF_LANES], size_t at, size_t d)
{
    const int keys = VF_LANES / heads;
    UNROLL for (int i = 0; i < vecs; i++)
    {
        VF kv[VF_LANES];
        UNROLL for (int j = 0; j < keys; j++) kv[j] = row_load(row[j], at, (size_t)(i * VF_LANES), t, d);
        UNROLL for (int h = 0; h < heads; h++)
        {
            VF qv = vf_held(vf_load(q + (i * heads + h) * VF_LANES));
            UNROLL for (int j = 0; j < keys; j++) acc[h * keys + j] = vf_fma(qv, kv[j], acc[h * keys + j]);
        }
    }
}

/* Returns the scores of VF_LANES / heads keys. */
INLINE VF score_tile(const int heads, const dtype t, const float *q, size_t d, const unsigned char *const *rows)
{
    enum { STEP = 4 };
    const int keys = VF_LANES / heads;
    const size_t bytes = step_of(t), full = d / VF_LANES * VF_LANES * bytes;
    const unsigned char *row[VF_LANES];
    VF acc[VF_LANES];
    UNROLL for (int j = 0; j < keys; j++) row[j] = rows[j];
    UNROLL for (int a = 0; a < VF_LANES; a++) acc[a] = vf_zero();
    size_t at = 0;
    for (; at + STEP * VF_LANES * bytes <= full; at += STEP * VF_LANES * bytes, q += STEP * heads * VF_LANES)
        products(heads, STEP, t, acc, q, row, at, d);
    for (; at < full; at += VF_LANES * bytes, q += heads * VF_LANES) products(heads, 1, t, acc, q, row, at, d);
    if (d % VF_LANES) UNROLL for (int j = 0; j < keys; j++)
        {
            VF kv = vf_load_as_n(row[j] + at, 0, t, d % VF_LANES);
            UNROLL for (int h = 0; h < heads; h++) acc[h * keys + j] =
                vf_fma(vf_load(q + h * VF_LANES), kv, acc[h * keys + j]);
        }
    return vf_sum_each(acc);
}

/* Adds the biases of the block to its scores; returns their maxima, lane by lane. Not inlined, to keep it out of the
 * loops of jobs without a bias. */
static __attribute__((noinline)) VF add_biases(size_t heads, float *p, const float *biases, const decode_chunk *c,
                                               const block_rows *k, size_t at)
{
    size_t keys = VF_LANES / heads;
    float most[VF_LANES];
    for (size_t i = 0; i < VF_LANES; i++) most[i] = -INFINITY;
    for (size_t h = 0; h < heads; h++) {
        const float *bias = biases + h * c->bias_stride;
        for (size_t i = 0; i < k->n; i++) {
            size_t lane = h * keys + i % keys;
            float *s = p + i / keys * VF_LANES + lane;
            *s += bias[column_of(c, k, at, i)];
            if (*s > most[lane]) most[lane] = *s;
        }
    }
    return vf_load(most);
}

/* Returns the maximum over the lanes of each head, in all of them. */
INLINE VF max_of_heads(const int heads, VF v)
{
    UNROLL for (int by = 1; by < VF_LANES / heads; by *= 2) v = vf_max(v, vf_swap(v, by));
    return v;
}

/* Converts the block's scores with maximum `most` to weights. top and sum: vectors of the heads' lanes; the lanes of
 * sum are added at the end. may_hide: all scores of a head may be -INFINITY. Returns the factor for the sums so far. */
INLINE VF softmax_block(const int heads, float *p, size_t n, VF most, float *top, float *sum, bool may_hide)
{
    const size_t keys = (size_t)(VF_LANES / heads), tiles = (n + keys - 1) / keys;
    for (size_t i = n; i < tiles * keys; i++)
        for (size_t h = 0; h < (size_t)heads; h++) p[(tiles - 1) * VF_LANES + h * keys + i % keys] = -INFINITY;
    VF old = vf_load(top), now = vf_max(old, max_of_heads(heads, most)), total = vf_zero(); /* NaN in most is kept */
    vf_store(top, now);
    if (may_hide)
        now = vf_max(now, vf_set1(-FLT_MAX)); /* a finite value, so that subtracting it from -INFINITY is defined */
    for (size_t i = 0; i < tiles; i++) {
        VF e = vf_exp_down(vf_sub(vf_load(p + i * VF_LANES), now));
        vf_store(p + i * VF_LANES, e);
        total = vf_add(total, e);
    }
    VF factor = vf_exp_down(vf_sub(old, now)); /* exp(-inf) = 0 for the first block */
    vf_store(sum, vf_fma(vf_load(sum), factor, total));
    return factor;
}

/* acc[h][c..] = acc * factor + sum over the block's keys of weight * v, for `vecs` vectors. n_tail: lanes of a partial
 * vector (then vecs is 1), 0 for full ones. next: NULL, or the next block's K to prefetch. */
INLINE void values_tile(const int heads, const int vecs, const dtype t, const decode_state *s, float *acc, size_t d,
                        size_t c, size_t n_tail, const float *factor, prefetcher *next)
{
    const int keys = VF_LANES / heads;
    VF a[PV_ACC];
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int j = 0; j < vecs; j++)
    {
        const float *from = acc + (size_t)h * d + c + (size_t)j * VF_LANES;
        a[h * vecs + j] = vf_mul(n_tail ? vf_load_n(from, n_tail) : vf_load(from), vf_set1(factor[h * keys]));
    }
    const size_t at = c * step_of(t);
    const float *w = s->p;
    const unsigned char *const *row = s->v->row, *const *end = row + s->v->n;
    for (; row < end; row += keys, w += VF_LANES) {
        if (next) prefetch_next(next);
        UNROLL for (int i = 0; i < keys; i++)
        {
            VF v[PV_ACC];
            UNROLL for (int j = 0; j < vecs; j++) v[j] =
                n_tail ? vf_load_as_n(row[i] + at, 0, t, n_tail) : row_load(row[i], at, (size_t)(j * VF_LANES), t, d);
            UNROLL for (int h = 0; h < heads; h++)
            {
                VF wv = vf_held(vf_set1(w[h * keys + i]));
                UNROLL for (int j = 0; j < vecs; j++) a[h * vecs + j] = vf_fma(wv, v[j], a[h * vecs + j]);
            }
        }
    }
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int j = 0; j < vecs; j++)
    {
        float *to = acc + (size_t)h * d + c + (size_t)j * VF_LANES;
        if (n_tail) vf_store_n(to, a[h * vecs + j], n_tail);
        else vf_store(to, a[h * vecs + j]);
    }
}

/* Processes block `at` for query heads [h0, h0 + heads): one of the group's passes over it. */
INLINE void block_heads(const int heads, const dtype kt, const dtype vt, const decode_chunk *c, decode_state *s,
                        const block_rows *k, const block_rows *next, size_t at, size_t h0)
{
    const size_t keys = (size_t)(VF_LANES / heads), d = c->head_dim;
    const int vecs = PV_ACC / heads;
    const bool first = h0 == s->heads, last = h0 + (size_t)heads == s->end;
    const decode_query *of = &c->of[h0 / c->group];
    const size_t own = h0 % c->group;
    float factor[VF_LANES];
    VF most = vf_set1(-INFINITY);
    size_t n = k->n;
    prefetcher v = {s->v, 0, keys, 1, 0};
    const float *q = s->q + h0 * s->q_stride;
    for (size_t i = 0; i < n; i += keys) {
        if (first) prefetch_next(&v);
        VF score = score_tile(heads, kt, q, d, k->row + i);
        most = vf_max(most, score);
        vf_store(s->p + i / keys * VF_LANES, score);
    }
    if (of->bias) most = add_biases((size_t)heads, s->p, of->bias + own * c->bias_stride, c, k, at);
    for (size_t h = 0; of->scores && h < (size_t)heads; h++)
        for (size_t i = 0; i < n; i++)
            of->scores[(own + h) * c->score_stride + column_of(c, k, at, i)] =
                s->p[i / keys * VF_LANES + h * keys + i % keys];
    if (first && s->widen) widen_rows(s->v, c, &s->from_v, at, c->work + DECODE_BLOCK * d);
    vf_store(factor, softmax_block(heads, s->p, n, most, s->top[h0], s->sum[h0], of->bias));
    float *acc = s->acc + h0 * d;
    size_t wide = (size_t)vecs * VF_LANES, parts = d / wide + d % wide / VF_LANES + (d % VF_LANES != 0);
    prefetcher ahead = {next, 0, keys, parts, 0}, *look = last && next->n ? &ahead : NULL;
    for (size_t ch = 0, end; ch < d; ch = end) {
        end = ch + wide <= d ? ch + wide : ch + VF_LANES <= d ? ch + VF_LANES : d;
        if (ch + wide <= d) values_tile(heads, vecs, vt, s, acc, d, ch, 0, factor, look);
        else if (ch + VF_LANES <= d) values_tile(heads, 1, vt, s, acc, d, ch, 0, factor, look);
        else values_tile(heads, 1, vt, s, acc, d, ch, d - ch, factor, look);
    }
}

/* Returns the query heads of the pass that starts at head h; all belong to one query. */
INLINE size_t pass_heads(const decode_chunk *c, size_t h)
{
    size_t left = c->group - h % c->group;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Separate functions: in a common one the loops spill addresses. */
typedef void pass_fn(const decode_chunk *c, decode_state *s, const block_rows *k, const block_rows *next, size_t at,
                     size_t h0);
#define PASS(heads, k_type, v_type)                                                                                    \
    static __attribute__((noinline)) void pass_##heads##_##k_type##_##v_type(                                          \
        const decode_chunk *c, decode_state *s, const block_rows *k, const block_rows *next, size_t at, size_t h0)     \
    {                                                                                                                  \
        block_heads(heads, DT_##k_type, DT_##v_type, c, s, k, next, at, h0);                                           \
    }
#define PASSES(k_type, v_type) PASS(1, k_type, v_type) PASS(2, k_type, v_type) PASS(4, k_type, v_type)
PASSES(F32, F32)
PASSES(F16, F16)
PASSES(BF16, BF16)
PASSES(F32, F16)
PASSES(F32, BF16)
PASSES(Q8, Q8)
PASSES(Q4, Q4)

/* K with the type of V, and K after RoPE; for 1, 2 and 4 heads. */
static pass_fn *const passes[][DT_Q4 + 1][3] = {
    {[DT_F32] = {pass_1_F32_F32, pass_2_F32_F32, pass_4_F32_F32},
     [DT_F16] = {pass_1_F16_F16, pass_2_F16_F16, pass_4_F16_F16},
     [DT_BF16] = {pass_1_BF16_BF16, pass_2_BF16_BF16, pass_4_BF16_BF16},
     [DT_Q8] = {pass_1_Q8_Q8, pass_2_Q8_Q8, pass_4_Q8_Q8},
     [DT_Q4] = {pass_1_Q4_Q4, pass_2_Q4_Q4, pass_4_Q4_Q4}},
    {[DT_F32] = {pass_1_F32_F32, pass_2_F32_F32, pass_4_F32_F32},
     [DT_F16] = {pass_1_F32_F16, pass_2_F32_F16, pass_4_F32_F16},
     [DT_BF16] = {pass_1_F32_BF16, pass_2_F32_BF16, pass_4_F32_BF16}},
};

/* True if block rows need RoPE and are therefore converted to floats, rotated back. */
static bool all_widened(const decode_chunk *c)
{
    return c->rope && dtype_in_qblocks(c->k.type);
}

/* True if n queries' passes over a block cost more than converting its rows to floats once: from three passes on
 * (measured with AVX2). */
static bool worth_widening(const decode_chunk *c, size_t n)
{
    return dtype_in_qblocks(c->k.type) && n * ((c->group + 3) / 4) > 2;
}

static void decode_start(decode_state *s, const decode_chunk *c)
{
    const size_t d = c->head_dim, g = c->group;
    float *scaled = s->scaled;
    s->from_k = c->k, s->from_v = c->v;
    if (!all_widened(c))
        s->from_k.rotated = s->from_v.rotated = false; /* rows are used as stored: queries are rotated */
    for (size_t i = 0; i < c->n_queries; i++) LEVEL(k_scale)(scaled + i * g * d, c->of[i].q, c->scale, g * d);
    for (size_t h = 0; h < c->n_queries * g && c->k.rotated && !all_widened(c); h++)
        LEVEL(k_hadamard)(scaled + h * d, d);
    s->q_stride = (d + VF_LANES - 1) / VF_LANES * VF_LANES;
    memset(s->acc, 0, c->n_queries * g * d * sizeof *s->acc);
    for (size_t h = 0; h < c->n_queries * g; h += pass_heads(c, h)) {
        pack_queries(s->q + h * s->q_stride, scaled + h * d, pass_heads(c, h), d);
        vf_store(s->top[h], vf_set1(-INFINITY));
        vf_store(s->sum[h], vf_zero());
    }
    LEVEL(codes_open)(&s->codes, c, scaled);
}

/* Sums the lanes of each head, and adds the sums of integer products. */
static void decode_end(decode_state *s, const decode_chunk *c)
{
    const size_t d = c->head_dim, g = c->group;
    for (size_t h = 0, heads; h < c->n_queries * g; h += heads) {
        const decode_query *of = &c->of[h / g];
        heads = pass_heads(c, h);
        size_t keys = VF_LANES / heads;
        for (size_t i = 0; i < heads; i++) {
            size_t own = h % g + i;
            float *acc = s->acc + (h + i) * d;
            of->top[own] = s->top[h][i * keys];
            of->sum[own] = 0;
            for (size_t j = 0; j < keys; j++) of->sum[own] += s->sum[h][i * keys + j];
            if (s->codes.on) LEVEL(codes_close)(&s->codes, h + i, acc, of->top + own, of->sum + own);
            memcpy(of->acc + own * d, acc, d * sizeof *acc);
            if (c->v.rotated && !all_widened(c)) LEVEL(k_hadamard)(of->acc + own * d, d);
        }
    }
}

/* Sets the rows of block `at`, the current or the next one, up to `end`. */
static void both_rows_of(decode_state *s, const decode_chunk *c, size_t at, size_t end)
{
    size_t slot = at / DECODE_BLOCK % 2;
    rows_of(&s->k[slot], c, &c->k, at, end);
    rows_of(&s->values[slot], c, &c->v, at, end);
}

/* Processes block `at` for the queries [i, i + n), which all see its rows up to `end`. */
static void block_queries(const decode_chunk *c, decode_state *s, size_t at, size_t i, size_t n, size_t end)
{
    size_t slot = at / DECODE_BLOCK % 2;
    block_rows *k = &s->k[slot];
    const block_rows *next = &s->k[slot ^ 1];
    s->v = &s->values[slot];
    both_rows_of(s, c, at + DECODE_BLOCK, end);
    s->heads = i * c->group, s->end = (i + n) * c->group;
    if (s->codes.on && (!c->k.bits || (k->coded == k->n && s->v->coded == k->n)) &&
        LEVEL(codes_block)(&s->codes, k, s->v, next, &s->values[slot ^ 1], at, s->heads, s->end))
        return;
    s->widen = k->coded || s->v->coded || all_widened(c) || worth_widening(c, n);
    if (s->widen) widen_rows(k, c, &s->from_k, at, c->work);
    if (c->rope) rope_rows(k, c, at, s->widen);
    for (size_t h = s->heads; h < s->end; h += pass_heads(c, h))
        passes[c->rope != NULL][s->widen ? DT_F32 : c->k.type][pass_heads(c, h) / 2](c, s, k, next, at, h);
}

void LEVEL(k_decode)(const decode_chunk *job)
{
    decode_state s;
    decode_chunk ordered;
    int32_t slot[CODE_CHUNK];
    const decode_chunk *c = job;
    size_t least = c->of[0].n, most = 0;
    for (size_t i = 0; i < c->n_queries; i++) {
        if (c->of[i].n < least) least = c->of[i].n;
        if (c->of[i].n > most) most = c->of[i].n;
    }
    if (LEVEL(codes_order)(&ordered, slot, c, least, most)) c = &ordered;
    decode_start(&s, c);
    both_rows_of(&s, c, 0, most);
    prefetcher begin = {&s.k[0], 0, s.k[0].n, 1, 0}, then = {&s.values[0], 0, s.k[0].n, 1, 0};
    prefetch_next(&begin);
    if (s.codes.on) prefetch_next(&then);
    for (size_t at = 0; at < most; at += DECODE_BLOCK) {
        if (least == most || at + DECODE_BLOCK <= least) {
            block_queries(c, &s, at, 0, c->n_queries, most);
            continue;
        }
        for (size_t i = 0; i < c->n_queries; i++) { /* the end, where each query sees a different number of rows */
            if (at >= c->of[i].n) continue;
            both_rows_of(&s, c, at, c->of[i].n);
            block_queries(c, &s, at, i, 1, c->of[i].n);
        }
    }
    decode_end(&s, c);
}

/* Source: methods.md 0.2.10 (flash-decoding's split and merge). */
void LEVEL(k_merge)(float *out, float *lse, const float *acc, const float *top, const float *sum, size_t n_parts,
                    size_t acc_stride, size_t stat_stride, size_t dim)
{
    float max = -INFINITY, total = 0;
    for (size_t i = 0; i < n_parts; i++)
        if (top[i * stat_stride] > max) max = top[i * stat_stride];
    memset(out, 0, dim * sizeof *out);
    for (size_t i = 0; i < n_parts; i++) {
        float t = top[i * stat_stride], w[VF_LANES];
        if (t == -INFINITY) continue; /* its row is undefined */
        vf_store(w, vf_exp(vf_set1(t - max)));
        total += w[0] * (sum ? sum[i * stat_stride] : 1);
        const float *a = acc + i * acc_stride;
        for (size_t c = 0; c < dim; c += VF_LANES) {
            size_t left = dim - c;
            if (left >= VF_LANES) vf_store(out + c, vf_fma(vf_set1(w[0]), vf_load(a + c), vf_load(out + c)));
            else vf_store_n(out + c, vf_fma(vf_set1(w[0]), vf_load_n(a + c, left), vf_load_n(out + c, left)), left);
        }
    }
    if (lse) *lse = total == 0 ? -INFINITY : max + logf(total); /* NaN stays NaN */
    if (!(total == 0)) LEVEL(k_scale)(out, out, 1 / total, dim);
}
