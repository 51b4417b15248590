/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ops_codes.h"
#include "kernels/ref/ref.h"

/* K or V of a store: both have the same layout except for their pairs. */
typedef struct {
    buf exact, code, pair;
    const int32_t *at;
    bool by_token, rotated;
} half_rows;

static half_rows half_of(const kv_rows *r, bool value)
{
    const kv_codes *c = &r->codes;
    bool k_rotated = r->rotated & KV_ROTATED_K, v_rotated = r->rotated & KV_ROTATED_V;
    if (value) return (half_rows){r->v, c->v, c->v_pair, (const int32_t *)(void *)c->v_at.p, true, v_rotated};
    return (half_rows){r->k, c->k, c->k_pair, (const int32_t *)(void *)c->k_at.p, c->by_token, k_rotated};
}

/* Returns the index of the f16 number a of a quantized row's channel, and in *b that of b. */
static size_t pair_at(const kv_rows *r, bool by_token, size_t head, size_t row, size_t ch, size_t *b)
{
    const kv_codes *c = &r->codes;
    size_t d = r->head_dim, a;
    if (by_token) {
        a = ((head * c->cap + row) * codes_runs(c, d) + ch / c->run) * 2;
        *b = a + 1;
    } else {
        a = (head * (c->cap / c->group) + row / c->group) * 2 * d + ch;
        *b = a + d;
    }
    return a;
}

void ref_row(const kv_rows *r, bool value, size_t head, size_t slot, float *out)
{
    const kv_codes *c = &r->codes;
    half_rows h = half_of(r, value);
    size_t d = r->head_dim, bits = (size_t)c->bits;
    int64_t row = bits ? h.at[slot] : (int64_t)slot;
    if (row >= 0) {
        ref_get_row(out, h.exact.p + (head * r->cap + (size_t)row) * kv_row_bytes(r->type, d), r->type, h.rotated, d);
        return;
    }
    row = -1 - row;
    const unsigned char *code = h.code.p + (head * c->cap + (size_t)row) * codes_row_bytes(c, d);
    for (size_t i = 0; i < d; i++) {
        size_t ib, ia = pair_at(r, h.by_token, head, (size_t)row, i, &ib);
        float a = ref_get(h.pair, DT_F16, ia), b = ref_get(h.pair, DT_F16, ib);
        float x = (float)(code[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1));
        out[i] = c->zero_point ? b * (x - a) : a + x * b; /* the product is exact */
    }
}

static unsigned code_of(const codes_rule *r, float top, float x)
{
    x = rintf((x - r->less) * r->times / r->by) + r->add;
    return !(x > 0) ? 0 : x > top ? (unsigned)top : (unsigned)x; /* NaN becomes 0 */
}

static void put_code(const kv_rows *r, buf code, size_t head, size_t row, size_t ch, unsigned x)
{
    size_t bits = (size_t)r->codes.bits;
    unsigned char *p = code.p + (head * r->codes.cap + row) * codes_row_bytes(&r->codes, r->head_dim) + ch * bits / 8;
    unsigned shift = (unsigned)(ch * bits % 8), mask = ((1u << bits) - 1) << shift;
    *p = (unsigned char)((*p & ~mask) | x << shift);
}

/* Rows of one head to quantize. */
typedef struct {
    const kv_rows *rows;
    bool value; /* their V, not K */
    size_t head;
    const int64_t *all;  /* rows: one list for all heads, */
    const int32_t *each; /* or this head's */
    const float *factor; /* factor of each channel; NULL: 1 */
} source;

static void source_row(float *x, const source *s, size_t i)
{
    kv_rows exact = *s->rows;
    exact.codes.bits = 0;
    ref_row(&exact, s->value, s->head, (size_t)(s->all ? s->all[i] : s->each[i]), x);
    for (size_t c = 0; s->factor && c < exact.head_dim; c++) x[c] *= s->factor[c];
}

static float channel_of(const source *s, size_t i, size_t c)
{
    float x[256];
    source_row(x, s, i);
    return x[c];
}

/* Quantizes the group of rows [row, row + n) and channels [ch, end) from the rows [i0, i0 + n) of the source. */
static void encode_group(const kv_rows *r, const half_rows *h, const source *s, size_t i0, size_t row, size_t n,
                         size_t ch, size_t end)
{
    float lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++)
        for (size_t c = ch; c < end; c++) {
            float x = channel_of(s, i0 + i, c);
            if (x < lo) lo = x;
            if (x > hi) hi = x;
        }
    float top = (float)((1 << r->codes.bits) - 1);
    codes_rule q = codes_rule_of(top, r->codes.zero_point, lo, hi);
    for (size_t i = 0; i < n; i++)
        for (size_t c = ch; c < end; c++) {
            put_code(r, h->code, s->head, row + i, c, code_of(&q, top, channel_of(s, i0 + i, c)));
        }
    size_t ib, ia = pair_at(r, h->by_token, s->head, row, ch, &ib);
    ref_put(h->pair, DT_F16, ia, q.a);
    ref_put(h->pair, DT_F16, ib, q.b);
}

/* Quantizes n rows of one head. */
static void encode_head(const kv_rows *r, bool value, const source *s, size_t first, size_t n)
{
    half_rows h = half_of(r, value);
    size_t rows = h.by_token ? 1 : r->codes.group, chans = h.by_token ? r->codes.run : 1;
    for (size_t i = 0; i + rows <= n; i += rows)
        for (size_t ch = 0; ch < r->head_dim; ch += chans) {
            size_t end = ch + chans < r->head_dim ? ch + chans : r->head_dim;
            encode_group(r, &h, s, i, first + i, rows, ch, end);
        }
}

void ref_codes_encode(backend *be, const kv_rows *rows, bool value, buf src, size_t first, size_t n)
{
    for (size_t h = 0; h < rows->n_kv_heads; h++) {
        source s = {.rows = rows, .value = value, .head = h, .all = (const int64_t *)(void *)src.p};
        encode_head(rows, value, &s, first, n);
    }
}

/* Copies float or block rows, converting their type. */
static void copy_head(const kv_rows *to, bool value, const source *s, size_t first, size_t n)
{
    size_t d = to->head_dim, row = kv_row_bytes(to->type, d);
    for (size_t i = 0; i < n; i++) {
        float x[256];
        unsigned char *at = (value ? to->v : to->k).p + (s->head * to->cap + first + i) * row;
        source_row(x, s, i);
        ref_put_row(at, to->type, to->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K), x, d);
    }
}

void ref_codes_demote(backend *be, const demote_job *j)
{
    for (size_t h = 0; h < j->to->n_kv_heads; h++)
        for (int value = 0; value < 2; value++) {
            source s = {.rows = j->from,
                        .value = value,
                        .head = h,
                        .each = i32_at(j->slot, (j->n_lists == 1 ? 0 : h) * j->stride),
                        .factor = value || j->exact ? NULL : f32_at(j->factor, h * j->to->head_dim)};
            if (j->exact) copy_head(j->to, value, &s, j->first, j->n);
            else encode_head(j->to, value, &s, j->first, j->n);
        }
}

void ref_codes_column_max(backend *be, buf most, buf x, size_t n, size_t n_heads, size_t n_groups, size_t dim)
{
    size_t heads = n_heads / n_groups;
    for (size_t r = 0; r < n * n_heads; r++) {
        float *m = f32_at(most, r % n_heads / heads * dim), *row = f32_at(x, r * dim);
        for (size_t c = 0; c < dim; c++) m[c] = fabsf(row[c]) > m[c] ? fabsf(row[c]) : m[c];
    }
}

void ref_codes_balance(backend *be, buf out, buf q, buf k, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float b = sqrtf(*f32_at(q, i) / *f32_at(k, i));
        *f32_at(out, i) = b > 0 && isfinite(b) ? b : 1;
    }
}

void ref_codes_divide_channels(backend *be, buf out, buf x, buf factor, size_t n, size_t n_heads, size_t n_groups,
                               size_t dim)
{
    size_t heads = n_heads / n_groups;
    for (size_t r = 0; r < n * n_heads; r++)
        for (size_t c = 0; c < dim; c++)
            *f32_at(out, r * dim + c) = *f32_at(x, r * dim + c) / *f32_at(factor, r % n_heads / heads * dim + c);
}

attn_job ref_slots_job(const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    return (attn_job){
        .n_tok = 1, .n_heads = rows->n_kv_heads, .rows = *rows, .first = first, .n_max = n, .n_lists = 1, .read = read};
}
