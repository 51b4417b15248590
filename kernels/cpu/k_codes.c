/* SPDX-License-Identifier: MIT */
/* Rows of a list as float, out of exact rows or of codes. x = a + code * b: the product is exact, so every
 * level has the same bits. A zero point's b * (code - a) becomes -a * b + code * b, all of it exact too:
 * a is below 2^8, b has 11 bits. */
#include "config.h"

#include "kernels/cpu/k.h"

/* Groups whose pairs are kept while rows are decoded. Neighbours in a list share a group, or alternate
 * between a few (rows coded out of order, as LogQuant's are). */
enum { PAIR_WAYS = 4 };

typedef struct {
    size_t group[PAIR_WAYS]; /* SIZE_MAX: none */
    float a[PAIR_WAYS][HEAD_DIM_MAX], b[PAIR_WAYS][HEAD_DIM_MAX];
} group_pairs;

/* Where the pairs of a row's group are. */
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

/* Channels [c0, c1) of a row; c0 is a multiple of VF_LANES. each: a[c - c0] and b[c - c0]; else a[0], b[0]. */
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

/* A row whose runs have a pair each. */
INLINE void decode_runs(float *out, const row_source *s, size_t row, const int bits)
{
    size_t d = s->head_dim, run = s->run, runs = (d + run - 1) / run;
    const unsigned char *code = s->code + row * s->row_bytes;
    float pair[2 * HEAD_DIM_MAX];
    LEVEL(k_widen)(pair, s->pair + row * runs * 4, DT_F16, 2 * runs);
    for (size_t i = 0; s->zero_point && i < runs; i++) pair[2 * i] *= -pair[2 * i + 1];
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

static void decode_row(float *out, const row_source *s, size_t row, group_pairs *g)
{
    const unsigned char *code = s->code + row * s->row_bytes;
    size_t d = s->head_dim;
    if (s->group) {
        size_t way = way_of_row(g, s, row);
        if (s->bits == 2) decode_span(out, code, 2, 0, d, g->a[way], g->b[way], true);
        else decode_span(out, code, 4, 0, d, g->a[way], g->b[way], true);
    } else if (s->bits == 2) decode_runs(out, s, row, 2);
    else decode_runs(out, s, row, 4);
}

void LEVEL(k_rows)(float *out, size_t stride, const row_source *s, const int32_t *idx, int64_t first, size_t n)
{
    group_pairs g;
    size_t bytes = s->head_dim * dtype_size(s->type);
    for (size_t i = 0; i < PAIR_WAYS; i++) g.group[i] = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        int64_t row = row_of(s, idx, first + (int64_t)i);
        if (row >= 0) LEVEL(k_widen)(out + i * stride, s->exact + (size_t)row * bytes, s->type, s->head_dim);
        else decode_row(out + i * stride, s, (size_t)(-1 - row), &g);
    }
}
