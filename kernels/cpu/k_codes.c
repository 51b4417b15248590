/* SPDX-License-Identifier: MIT */
/* Rows of a list as floats, dequantized if needed, and quantization of rows. x = a + code * b: the product is exact, so
 * every level has the same bits. With a zero point, b * (code - a) becomes -a * b + code * b, which is exact too: a is
 * below 2^8, and b has 11 bits. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/ops_codes.h"

/* Groups whose pairs are cached while rows are dequantized. Neighbours in a list share a group, or alternate between a
 * few (rows that were quantized out of order, as LogQuant does). */
enum { PAIR_WAYS = 4 };
/* Pairs of runs that are widened at once. */
enum { PAIRS_MAX = HEAD_DIM_MAX };

typedef struct {
    size_t group[PAIR_WAYS]; /* SIZE_MAX: none */
    float a[PAIR_WAYS][HEAD_DIM_MAX], b[PAIR_WAYS][HEAD_DIM_MAX];
} group_pairs;

/* Returns the cache way with the pairs of a row's group. */
static size_t way_of_row(group_pairs *g, const row_source *s, size_t row)
{
    size_t group = row / s->group, way = group % PAIR_WAYS, d = s->head_dim;
    if (g->group[way] == group) return way;
    const unsigned char *pair = s->pair + group * 4 * d;
    float *a = g->a[way], *b = g->b[way];
    g->group[way] = group;
    LEVEL(k_widen)(a, pair, DT_F16, d);
    LEVEL(k_widen)(b, pair + 2 * d, DT_F16, d);
    for (size_t c = 0; s->zero_point && c < d; c++) a[c] *= -b[c];
    return way;
}

/* Dequantizes channels [c0, c1) of a row; c0 is a multiple of VF_LANES. each: a[c - c0] and b[c - c0]; otherwise a[0],
 * b[0]. */
INLINE void decode_span(float *out, const unsigned char *code, const int bits, size_t c0, size_t c1, const float *a,
                        const float *b, const bool each)
{
    size_t c = c0;
    VF av = vf_set1(*a), bv = vf_set1(*b);
    for (; c + VF_LANES <= c1; c += VF_LANES) {
        if (each) av = vf_load(a + c - c0), bv = vf_load(b + c - c0);
        vf_store(out + c, vf_fma(vf_codes(code + c * (size_t)bits / 8, bits), bv, av));
    }
    if (c == c1) return;
    unsigned char last[VF_LANES] = {0};
    memcpy(last, code + c * (size_t)bits / 8, ((c1 - c) * (size_t)bits + 7) / 8);
    if (each) av = vf_load_n(a + c - c0, c1 - c), bv = vf_load_n(b + c - c0, c1 - c);
    vf_store_n(out + c, vf_fma(vf_codes(last, bits), bv, av), c1 - c);
}

/* Dequantizes a row with runs. pair: a and b of each run. */
INLINE void decode_runs(float *out, const row_source *s, const unsigned char *code, const float *pair, const int bits)
{
    size_t d = s->head_dim, run = s->run, runs = (d + run - 1) / run;
    if (run % VF_LANES == 0 || runs == 1) {
        for (size_t i = 0; i < runs; i++) {
            size_t end = (i + 1) * run < d ? (i + 1) * run : d;
            decode_span(out, code, bits, i * run, end, pair + 2 * i, pair + 2 * i + 1, false);
        }
        return;
    }
    float a[HEAD_DIM_MAX], b[HEAD_DIM_MAX];
    for (size_t c = 0; c < d; c++) a[c] = pair[c / run * 2], b[c] = pair[c / run * 2 + 1];
    decode_span(out, code, bits, 0, d, a, b, true);
}

/* Dequantizes n rows from `row` on, with at most PAIRS_MAX runs in total. */
static void decode_by_runs(float *out, size_t stride, const row_source *s, size_t row, size_t n)
{
    float pair[PAIRS_MAX * 2];
    size_t runs = (s->head_dim + s->run - 1) / s->run;
    LEVEL(k_widen)(pair, s->pair + row * runs * 4, DT_F16, 2 * runs * n);
    for (size_t i = 0; s->zero_point && i < n * runs; i++) pair[2 * i] *= -pair[2 * i + 1];
    for (size_t i = 0; i < n; i++) {
        const unsigned char *code = s->code + (row + i) * s->row_bytes;
        if (s->bits == 2) decode_runs(out + i * stride, s, code, pair + 2 * i * runs, 2);
        else decode_runs(out + i * stride, s, code, pair + 2 * i * runs, 4);
    }
}

static void decode_by_groups(float *out, const row_source *s, size_t row, group_pairs *g)
{
    const unsigned char *code = s->code + row * s->row_bytes;
    size_t d = s->head_dim, way = way_of_row(g, s, row);
    if (s->bits == 2) decode_span(out, code, 2, 0, d, g->a[way], g->b[way], true);
    else decode_span(out, code, 4, 0, d, g->a[way], g->b[way], true);
}

/* Returns how many of the entries [first, end) are consecutive quantized rows in memory, starting with `row`, whose
 * pairs are widened together. */
static size_t neighbours(const row_source *s, const int32_t *idx, int64_t first, int64_t end, int64_t row)
{
    int64_t i = 1, most = PAIRS_MAX / (int64_t)((s->head_dim + s->run - 1) / s->run);
    while (i < most && first + i < end && row_of(s, idx, first + i) == row - i) i++;
    return (size_t)i;
}

void LEVEL(k_rows)(float *out, size_t stride, const row_source *s, const int32_t *idx, int64_t first, size_t n)
{
    group_pairs g;
    size_t bytes = kv_row_bytes(s->type, s->head_dim), done;
    int64_t end = first + (int64_t)n;
    for (size_t i = 0; i < PAIR_WAYS; i++) g.group[i] = SIZE_MAX;
    for (int64_t i = first; i < end; i += (int64_t)done, out += done * stride) {
        int64_t row = row_of(s, idx, i);
        size_t code = (size_t)(-1 - row);
        done = row >= 0 || s->group ? 1 : neighbours(s, idx, i, end, row);
        if (row >= 0) LEVEL(k_get_row)(out, s->exact + (size_t)row * bytes, s->type, s->rotated, s->head_dim);
        else if (s->group) decode_by_groups(out, s, code, &g);
        else decode_by_runs(out, stride, s, code, done);
    }
}

/* ---- quantization, with the bits of ref ---- */

enum { ROW_PAD = HEAD_DIM_MAX + 16 }; /* a multiple of vectors and of groups of 8 codes */

INLINE VF code_of(VF x, VF less, VF times, VF by, VF add, VF top)
{
    VF v = vf_add(vf_round(vf_div(vf_mul(vf_sub(x, less), times), by)), add);
    return vf_min(vf_max(v, vf_zero()), top);
}

/* Packs the d codes in q, which is padded with zeros to ROW_PAD. */
static void put_codes(unsigned char *code, const float q[ROW_PAD], size_t d, int bits)
{
    uint8_t each[ROW_PAD], packed[ROW_PAD];
    for (size_t c = 0; c < d; c += VF_LANES) vf_store_s8((int8_t *)each + c, vf_load(q + c));
    memset(each + d, 0, 8);
    for (size_t c = 0; c < d; c += 8) {
        uint64_t x;
        memcpy(&x, each + c, sizeof x);
        if (bits == 4) {
            x = (x | x >> 4) & 0x00ff00ff00ff00ff;
            x = (x | x >> 8) & 0x0000ffff0000ffff;
            x |= x >> 16;
        } else {
            x = (x | x >> 6) & 0x000f000f000f000f;
            x = (x | x >> 12) & 0x000000ff000000ff;
            x |= x >> 24;
        }
        memcpy(packed + c * (size_t)bits / 8, &x, (size_t)bits);
    }
    memcpy(code, packed, (d * (size_t)bits + 7) / 8);
}

/* Reads a row to quantize; elements of x after its channels are unchanged. */
static void source_row(float *x, const row_source *s, int64_t row)
{
    size_t d = s->head_dim;
    LEVEL(k_get_row)(x, s->exact + (size_t)row * kv_row_bytes(s->type, d), s->type, s->rotated, d);
    for (size_t c = 0; s->factor && c < d; c += VF_LANES)
        vf_store_some(x + c, vf_mul(vf_load_some(x + c, d - c), vf_load_some(s->factor + c, d - c)), d - c);
}

/* Quantizes a group of rows with one rule for each channel. */
static void encode_channels(unsigned char *code, unsigned char *pair, const row_source *s, const int64_t *src)
{
    float lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX], x[ROW_PAD], less[ROW_PAD], by[ROW_PAD], add[ROW_PAD], times = 0;
    size_t d = s->head_dim;
    const float top = (float)((1 << s->bits) - 1);
    source_row(lo, s, src[0]);
    memcpy(hi, lo, d * sizeof *hi);
    for (size_t i = 1; i < s->group; i++) {
        source_row(x, s, src[i]);
        for (size_t c = 0; c < d; c += VF_LANES) {
            VF v = vf_load_some(x + c, d - c);
            vf_store_some(lo + c, vf_min(v, vf_load_some(lo + c, d - c)), d - c);
            vf_store_some(hi + c, vf_max(v, vf_load_some(hi + c, d - c)), d - c);
        }
    }
    for (size_t c = 0; c < d; c++) {
        codes_rule r = codes_rule_of(top, s->zero_point, lo[c], hi[c]);
        less[c] = r.less, by[c] = r.by, add[c] = r.add, lo[c] = r.a, hi[c] = r.b;
        if (r.times > times) times = r.times; /* equal for all channels except constant ones, which have x = less */
    }
    LEVEL(k_narrow)(pair, lo, DT_F16, d);
    LEVEL(k_narrow)(pair + 2 * d, hi, DT_F16, d);
    memset(x + d, 0, (ROW_PAD - d) * sizeof *x);
    for (size_t i = 0; i < s->group; i++, code += s->row_bytes) {
        source_row(x, s, src[i]);
        for (size_t c = 0; c < d; c += VF_LANES)
            vf_store_some(x + c,
                          code_of(vf_load(x + c), vf_load_some(less + c, d - c), vf_set1(times),
                                  vf_load_some(by + c, d - c), vf_load_some(add + c, d - c), vf_set1(top)),
                          d - c);
        put_codes(code, x, d, s->bits);
    }
}

/* Returns the extremes of n numbers, the first one among equals (zeros of both signs). */
static void extremes(float *lo, float *hi, const float *x, size_t n)
{
    VF least = vf_set1(x[0]), most = least;
    size_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) {
        least = vf_min(vf_load(x + i), least);
        most = vf_max(vf_load(x + i), most);
    }
    *lo = -vf_hmax(vf_sub(vf_zero(), least));
    *hi = vf_hmax(most);
    for (; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
    for (i = 0; *lo == 0 && i < n; i++)
        if (x[i] == 0) {
            *lo = x[i];
            return;
        }
}

/* Quantizes a row with one rule for each run. */
static void encode_runs(unsigned char *code, unsigned char *pair, const row_source *s, int64_t src)
{
    float x[ROW_PAD], pairs[2 * HEAD_DIM_MAX];
    size_t d = s->head_dim, n_pairs = 0;
    const float top = (float)((1 << s->bits) - 1);
    source_row(x, s, src);
    memset(x + d, 0, (ROW_PAD - d) * sizeof *x);
    for (size_t c = 0; c < d; c += s->run) {
        float lo, hi;
        size_t n = d - c < s->run ? d - c : s->run;
        extremes(&lo, &hi, x + c, n);
        codes_rule r = codes_rule_of(top, s->zero_point, lo, hi);
        pairs[n_pairs++] = r.a;
        pairs[n_pairs++] = r.b;
        for (size_t i = 0; i < n; i += VF_LANES) {
            VF v = vf_load_some(x + c + i, n - i);
            v = code_of(v, vf_set1(r.less), vf_set1(r.times), vf_set1(r.by), vf_set1(r.add), vf_set1(top));
            vf_store_some(x + c + i, v, n - i);
        }
    }
    LEVEL(k_narrow)(pair, pairs, DT_F16, n_pairs);
    put_codes(code, x, d, s->bits);
}

void LEVEL(k_encode)(unsigned char *code, unsigned char *pair, const row_source *s, const int64_t *src, size_t first,
                     size_t n)
{
    size_t d = s->head_dim, pair_bytes = 4 * (s->group ? d : (d + s->run - 1) / s->run);
    code += first * s->row_bytes;
    if (s->group) {
        for (size_t i = 0; i + s->group <= n; i += s->group)
            encode_channels(code + i * s->row_bytes, pair + (first + i) / s->group * pair_bytes, s, src + i);
        return;
    }
    for (size_t i = 0; i < n; i++) encode_runs(code + i * s->row_bytes, pair + (first + i) * pair_bytes, s, src[i]);
}
