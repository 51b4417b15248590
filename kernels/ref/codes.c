/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ops_codes.h"
#include "kernels/ref/ref.h"

/* Which of a row's two halves: K and V have the same form but for the place of their pairs. */
typedef struct {
    buf exact, code, pair;
    const int32_t *at;
    bool by_token;
} half_rows;

static half_rows half_of(const kv_rows *r, bool value)
{
    const kv_codes *c = &r->codes;
    if (value) return (half_rows){r->v, c->v, c->v_pair, (const int32_t *)(void *)c->v_at.p, true};
    return (half_rows){r->k, c->k, c->k_pair, (const int32_t *)(void *)c->k_at.p, c->by_token};
}

/* Index of the f16 number a of a code row's channel; that of b, behind it. */
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
        ref_floats(out, h.exact, r->type, (head * r->cap + (size_t)row) * d, d);
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
    return !(x > 0) ? 0 : x > top ? (unsigned)top : (unsigned)x; /* NaN: 0 */
}

static void put_code(const kv_rows *r, buf code, size_t head, size_t row, size_t ch, unsigned x)
{
    size_t bits = (size_t)r->codes.bits;
    unsigned char *p = code.p + (head * r->codes.cap + row) * codes_row_bytes(&r->codes, r->head_dim) + ch * bits / 8;
    unsigned shift = (unsigned)(ch * bits % 8), mask = ((1u << bits) - 1) << shift;
    *p = (unsigned char)((*p & ~mask) | x << shift);
}

/* The group of code rows [row, row + n) and channels [ch, end), made of exact rows src[0..n). */
static void encode_group(const kv_rows *r, const half_rows *h, size_t head, const int64_t *src, size_t row, size_t n,
                         size_t ch, size_t end)
{
    float lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++)
        for (size_t c = ch; c < end; c++) {
            float x = ref_get(h->exact, r->type, (head * r->cap + (size_t)src[i]) * r->head_dim + c);
            if (x < lo) lo = x;
            if (x > hi) hi = x;
        }
    float top = (float)((1 << r->codes.bits) - 1);
    codes_rule q = codes_rule_of(top, r->codes.zero_point, lo, hi);
    for (size_t i = 0; i < n; i++)
        for (size_t c = ch; c < end; c++) {
            float x = ref_get(h->exact, r->type, (head * r->cap + (size_t)src[i]) * r->head_dim + c);
            put_code(r, h->code, head, row + i, c, code_of(&q, top, x));
        }
    size_t ib, ia = pair_at(r, h->by_token, head, row, ch, &ib);
    ref_put(h->pair, DT_F16, ia, q.a);
    ref_put(h->pair, DT_F16, ib, q.b);
}

/* Encodes one head. */
static void encode_head(const kv_rows *r, bool value, size_t head, const int64_t *src, size_t first, size_t n)
{
    half_rows h = half_of(r, value);
    size_t rows = h.by_token ? 1 : r->codes.group, chans = h.by_token ? r->codes.run : 1;
    for (size_t i = 0; i + rows <= n; i += rows)
        for (size_t ch = 0; ch < r->head_dim; ch += chans) {
            size_t end = ch + chans < r->head_dim ? ch + chans : r->head_dim;
            encode_group(r, &h, head, src + i, first + i, rows, ch, end);
        }
}

void ref_codes_encode(backend *be, const kv_rows *rows, bool value, buf src, size_t first, size_t n)
{
    for (size_t h = 0; h < rows->n_kv_heads; h++) encode_head(rows, value, h, (const int64_t *)(void *)src.p, first, n);
}

attn_job ref_slots_job(const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    return (attn_job){
        .n_tok = 1, .n_heads = rows->n_kv_heads, .rows = *rows, .first = first, .n_max = n, .n_lists = 1, .read = read};
}

void ref_codes_fetch(backend *be, const kv_rows *out, const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    size_t d = rows->head_dim;
    float *k = (float *)(void *)out->k.p, *v = (float *)(void *)out->v.p;
    attn_job j = ref_slots_job(rows, first, n, read);
    ref_count_read(&j, v);
    for (size_t head = 0; head < rows->n_kv_heads; head++)
        for (size_t i = 0; i < (size_t)n; i++) {
            size_t to = (head * out->cap + i) * d;
            ref_row(rows, false, head, (size_t)first + i, k + to);
            if (v) ref_row(rows, true, head, (size_t)first + i, v + to);
        }
}
