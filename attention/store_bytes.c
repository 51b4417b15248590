/* SPDX-License-Identifier: MIT */
/* Sizes of stored rows, which depend only on the format. */
#include "config.h"

#include "attention/store_impl.h"
#include "kernels/base/mem.h"

size_t kv_plain_bytes(const kv_format *f, size_t n_heads, size_t head_dim, int64_t n)
{
    return 2 * n_heads * kv_row_bytes(f->type, head_dim) * (size_t)n;
}

int64_t kv_code_group(const kv_format *f)
{
    return f->hf ? 1 : f->group;
}

int64_t kv_float_rows(const kv_format *f, int64_t prompt, int64_t n)
{
    int64_t rows = prompt + 3 * f->residual + 2 * kv_code_group(f) + f->sink;
    return prompt > 0 && rows < n ? rows : n;
}

kv_codes kv_codes_of(const kv_format *f, int64_t cap)
{
    size_t group = (size_t)kv_code_group(f);
    return (kv_codes){.bits = f->bits,
                      .by_token = f->hf,
                      .zero_point = f->hf && !f->float_zero,
                      .cap = ((size_t)cap + group - 1) / group * group,
                      .group = group,
                      .run = (size_t)f->group};
}

size_t kv_code_bytes(const kv_format *f, size_t head_dim, int half, int64_t n)
{
    kv_codes c = kv_codes_of(f, n);
    size_t pair = 2 * sizeof(uint16_t), rows = (size_t)n * codes_row_bytes(&c, head_dim);
    if (half == KV_V || c.by_token) return rows + (size_t)n * codes_runs(&c, head_dim) * pair;
    return rows + (size_t)n / c.group * head_dim * pair;
}

size_t kv_half_bytes(const kv_format *f, size_t head_dim, int half, int64_t n, int64_t n_coded)
{
    return kv_code_bytes(f, head_dim, half, n_coded) + (size_t)(n - n_coded) * head_dim * dtype_size(f->type);
}

size_t kv_map_bytes(const kv_format *f, int64_t n, int64_t chunk)
{
    if (!kv_has_codes(f)) return 0;
    return (size_t)n * KV_HALVES * (sizeof(int32_t) + sizeof(int64_t)) + (size_t)chunk * sizeof(int64_t);
}

status kv_plan_bytes(size_t *out, const kv_format *f, const attn_shape *shape, const attn_limits *lim, size_t n_heads,
                     int64_t n, err *e)
{
    size_t d = (size_t)shape->head_dim, sum = 0;
    if (f->kind == KV_PLAIN) return size_mul(out, (size_t)n, kv_plain_bytes(f, n_heads, d, 1), "KV plan", e);
    /* Overflow check with an upper bound of any row. */
    TRY(size_mul(out, (size_t)n, 16 * n_heads * d, "KV plan", e));
    int64_t coded[KV_HALVES] = {n - n % kv_code_group(f), n};
    int64_t whole = (int64_t)kv_codes_of(f, n).cap;
    size_t waiting = kv_half_bytes(f, d, KV_K, kv_float_rows(f, lim->prompt, n), 0);
    for (int h = 0; h < KV_HALVES; h++) {
        size_t plain = kv_half_bytes(f, d, h, n, 0), codes = kv_half_bytes(f, d, h, n, coded[h]);
        size_t parts = codes + waiting, most = plain > codes ? plain : codes;
        /* Without at_once the memory of quantized float rows is released, so the peak is smaller. */
        sum += lim->at_once ? waiting + kv_half_bytes(f, d, h, whole, whole) : parts < most ? parts : most;
    }
    *out = n_heads * sum;
    return ST_OK;
}

size_t kv_plain_half_bytes(const kv_rows *r)
{
    return r->cap * r->n_kv_heads * kv_row_bytes(r->type, r->head_dim);
}

void kv_code_bufs(kv_rows *r, sized_buf out[N_CODE_BUFS])
{
    kv_codes *c = &r->codes;
    size_t rows = r->n_kv_heads * c->cap, pair = 2 * sizeof(uint16_t);
    size_t codes = rows * ((r->head_dim * (size_t)r->codes.bits + 7) / 8);
    size_t by_run = rows * codes_runs(c, r->head_dim) * pair;
    out[0] = (sized_buf){&c->k, codes};
    out[1] = (sized_buf){&c->v, codes};
    out[2] = (sized_buf){&c->k_pair, c->by_token ? by_run : rows / c->group * r->head_dim * pair};
    out[3] = (sized_buf){&c->v_pair, by_run};
}
