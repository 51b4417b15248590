/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/gathered.h"

#include <stddef.h>

#include "kernels/ops_codes.h"
#include "kernels/ops_token.h"

#define AT(member) (at + offsetof(gathered_rows, member))

void gathered_declare(attn_decl *d, size_t at, int64_t rows, int64_t table)
{
    const char *name = "gathered rows";
    size_t row = (size_t)d->shape->head_dim * sizeof(float), kv = (size_t)d->shape->n_kv_heads * row;
    decl_bytes(d, MEM_SCRATCH, AT(rows.k), name, (size_t)rows * kv);
    decl_bytes(d, MEM_SCRATCH, AT(rows.v), name, (size_t)rows * kv);
    decl_bytes(d, MEM_SCRATCH, AT(count), name, (size_t)table * sizeof(int64_t));
    decl_bytes(d, MEM_SCRATCH, AT(table), name, (size_t)table * row);
    decl_bytes(d, MEM_HOST, AT(host), name, (size_t)table * sizeof(int64_t));
}

void gathered_reset(attn_view *v, gathered_rows *r, int64_t rows, int64_t table)
{
    r->rows.type = DT_F32;
    r->rows.n_kv_heads = (size_t)v->shape->n_kv_heads;
    r->rows.head_dim = (size_t)v->shape->head_dim;
    r->rows.cap = (size_t)rows;
    r->n = (size_t)table;
    r->ready = false;
    for (size_t i = 0; i < r->n; i++) r->host[i] = (int64_t)i;
    v->be->ops->upload(v->be, r->count, r->host, r->n * sizeof *r->host);
}

bool gathered_begin(const attn_view *v, gathered_rows *r, const attn_part *p)
{
    if (r->ready && !(p->flags & (ATTN_PROMPT | ATTN_FREQ_MOVES))) return false;
    v->be->ops->rope_table(v->be, r->table, r->count, r->n, p->freq, attn_pairs(v->shape), p->mscale);
    r->ready = true;
    return true;
}

void gathered_append(const attn_task *t, size_t n, int layer)
{
    attn_task raw[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) raw[i] = t[i], raw[i].k = t[i].k_raw;
    full_append(raw, n, layer);
}

static void rotate(const attn_view *v, const gathered_rows *r, int64_t n)
{
    size_t region = r->rows.cap * r->rows.head_dim * sizeof(float);
    for (size_t h = 0; h < r->rows.n_kv_heads; h++) {
        buf k = buf_at(r->rows.k, h * region);
        v->be->ops->rope(v->be, k, k, r->table, (size_t)n, 1, r->rows.head_dim, attn_pairs(v->shape));
    }
}

/* Returns a segment of rows in the store; attention rotates their keys at their index in the list. */
static attn_seg in_place(const attn_view *v, const gathered_rows *r, const attn_part *p, int layer, buf idx, int64_t n)
{
    return (attn_seg){.rows = kv_store_rows(v->store, layer),
                      .n_lists = 1,
                      .n_max = n,
                      .idx = idx,
                      .idx_stride = r->rows.cap,
                      .at = idx,
                      .masked = !idx.p && attn_masked(v, p, layer),
                      .band = v->shape->window[layer],
                      .rope = r->table};
}

/* Returns the rotation of the first query; the queries are the last n_tok entries of the list. */
static buf own_rotation(const attn_view *v, const gathered_rows *r, const attn_part *p, int64_t n)
{
    return buf_at(r->table, (size_t)(n - (int64_t)p->n_tok) * 2 * attn_pairs(v->shape) * sizeof(float));
}

attn_seg gathered_segment(attn_view *v, const gathered_rows *r, const attn_part *p, int layer, buf idx, int64_t n)
{
    const backend_ops *o = v->be->ops;
    const kv_rows *from = kv_store_rows(v->store, layer);
    attn_seg seg = {.rows = &r->rows,
                    .copied = true,
                    .n_lists = 1,
                    .n_max = n,
                    .idx_stride = r->rows.cap,
                    .at = idx,
                    .band = v->shape->window[layer]};
    if (!(p->flags & ATTN_PROMPT) && !attn_rotates_part(v->shape)) {
        seg = in_place(v, r, p, layer, idx, n);
        if (idx.p) seg.table = own_rotation(v, r, p, n);
        return seg;
    }
    if (!idx.p) {
        o->codes->fetch(v->be, &r->rows, from, 0, n, v->read);
        rotate(v, r, n);
        seg.masked = attn_masked(v, p, layer);
        return seg;
    }
    o->token->gather(v->be, &r->rows, from, idx, n, v->read);
    seg.table = own_rotation(v, r, p, n);
    rotate(v, r, n);
    return seg;
}
