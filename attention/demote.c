/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/demote.h"

#include <stddef.h>
#include <string.h>

/* True if keys are quantized by channel over groups of tokens. */
static bool in_groups(int how)
{
    return how == DEMOTE_KIVI2 || how == DEMOTE_KIVI4;
}

demote_rule demote_rule_of(const attn_spec *s)
{
    int how = (int)attn_value(s, "demote", DEMOTE_NONE);
    return (demote_rule){.how = how,
                         .recall = attn_value(s, "recall", ATTN_ALL),
                         .group = in_groups(how) ? attn_value(s, "demote_g", 1) : 1};
}

static int bits_of(int how)
{
    bool two = how == DEMOTE_TOKEN2 || how == DEMOTE_KIVI2, four = how == DEMOTE_TOKEN4 || how == DEMOTE_KIVI4;
    return two ? 2 : four ? 4 : 0;
}

/* Returns the quantization. By token, a run is half a row, since rotary embedding pairs channels c and c + dim / 2. */
static kv_codes codes_of(demote_rule r, const attn_shape *sh, int64_t cap)
{
    bool groups = in_groups(r.how);
    return (kv_codes){.bits = bits_of(r.how),
                      .by_token = !groups,
                      .cap = (size_t)cap,
                      .group = (size_t)r.group,
                      .run = groups ? (size_t)r.group : (size_t)sh->head_dim / 2};
}

status demote_check(const attn_spec *s, demote_rule r, const attn_shape *shape, err *e)
{
    if (r.how == DEMOTE_NONE) return ST_OK;
    if (kv_has_codes(&s->kv) || kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE, "%s: demotion requires float rows, found --kv %s; use f16, bf16 or f32", s->text,
                       kv_format_name(&s->kv));
    if (bits_of(r.how) > 0 && !in_groups(r.how) && shape->head_dim % 2)
        return err_set(e, ST_UNSUPPORTED, "%s: demotion: head_dim %d: must be even", s->text, shape->head_dim);
    for (int l = 0; l < shape->n_layers; l++)
        if (shape->window[l] > 0 && !attn_is_dense(s, shape, l))
            return err_set(e, ST_UNSUPPORTED,
                           "%s: demotion: layer %d has a window of %d tokens; sliding windows are not supported",
                           s->text, l, shape->window[l]);
    return ST_OK;
}

/* ---- memory ---- */

static void declare_recall(attn_decl *d, size_t at, int64_t recall, int64_t cap)
{
    size_t scores = ((size_t)d->shape->n_heads + d->heads) * sizeof(float);
#define AT(member) at + offsetof(demoted, member)
    decl_scratch(d, AT(score), "recall", scores, cap);
    decl_scratch(d, AT(idx), "recall", d->heads * sizeof(int32_t), min64(recall, cap));
    decl_bytes(d, MEM_SCRATCH, AT(range), "recall", d->heads * 2 * sizeof(int64_t));
    d->choose_lists = d->heads;
    d->choose_items = cap;
}

void demote_declare(attn_decl *d, size_t at, demote_rule r, int64_t cap)
{
    int64_t used = min64(d->n - d->entries, cap), g = r.group;
    size_t dim = (size_t)d->shape->head_dim, i32 = sizeof(int32_t);
    kv_codes c = codes_of(r, d->shape, cap);
    size_t row = c.bits ? codes_row_bytes(&c, dim) : dim * dtype_size(DT_F16), pair = 2 * dtype_size(DT_F16);
    if (r.how == DEMOTE_NONE) return;
    decl_regions(d, MEM_ROWS, AT(k), "demoted K", d->heads, row, cap, used);
    decl_regions(d, MEM_ROWS, AT(v), "demoted V", d->heads, row, cap, used);
    size_t runs = c.bits ? codes_runs(&c, dim) : 0, pairs = c.by_token ? runs : dim; /* per value; per group of keys */
    if (c.bits) decl_regions(d, MEM_ROWS, AT(k_pair), "demoted K", d->heads, pairs * pair, cap / g, used / g);
    if (c.bits) decl_regions(d, MEM_ROWS, AT(v_pair), "demoted V", d->heads, runs * pair, cap, used);
    if (!r.in_order) decl_regions(d, MEM_STATE, AT(at), "demoted positions", d->lists, i32, cap, used);
    decl_scratch(d, AT(slot), "demoted slots", d->lists * i32, cap);
    if (c.bits) decl_scratch(d, AT(map), "demoted slots", i32, cap);
    if (c.bits) decl_bytes(d, MEM_HOST, AT(host), "demoted slots", (size_t)cap * i32);
    decl_bytes(d, MEM_HOST, AT(rows), "demoted rows", (size_t)d->shape->n_layers * sizeof(kv_rows));
    if (r.recall > 0) declare_recall(d, at, r.recall, cap);
#undef AT
}

void demote_reset(demoted *m, const attn_view *v, demote_rule rule, size_t n_lists, int64_t cap)
{
    const attn_shape *sh = v->shape;
    m->rule = rule;
    m->n_lists = n_lists;
    m->cap = cap;
    if (rule.how == DEMOTE_NONE || m->cap == 0) return;
    for (int64_t i = 0; m->map.p && i < m->cap; i++) m->host[i] = (int32_t)(-1 - i);
    if (m->map.p) v->be->ops->upload(v->be, m->map, m->host, (size_t)m->cap * sizeof *m->host);
    for (int l = 0; l < sh->n_layers; l++) {
        kv_rows *r = &m->rows[l];
        if (!v->layers[l]) continue;
        *r = (kv_rows){.k = m->k[l],
                       .v = m->v[l],
                       .type = DT_F16,
                       .n_kv_heads = kv_store_rows(v->store, l)->n_kv_heads,
                       .head_dim = (size_t)sh->head_dim,
                       .codes = codes_of(rule, sh, m->cap)};
        if (!m->map.p) {
            r->cap = (size_t)m->cap;
            continue;
        }
        r->type = kv_number_type(&v->spec->kv); /* unused: all rows are quantized */
        r->codes.k = m->k[l], r->codes.v = m->v[l];
        r->codes.k_pair = m->k_pair[l], r->codes.v_pair = m->v_pair[l];
        r->codes.k_at = r->codes.v_at = m->map;
    }
}

/* ---- rows ---- */

void demote_listen(const demoted *m, int layer, int64_t first, keep_rule *r)
{
    if (m->rule.how == DEMOTE_NONE) return;
    r->gone_slot = m->slot;
    r->gone_at = buf_at(m->at[layer], (size_t)first * sizeof(int32_t));
    r->gone_stride = (size_t)m->cap;
}

void demote_take(const demoted *m, const attn_view *v, int layer, int64_t first, int64_t n)
{
    if (m->rule.how == DEMOTE_NONE || n <= 0) return;
    demote_job j = {.to = &m->rows[layer],
                    .from = kv_store_rows(v->store, layer),
                    .slot = m->slot,
                    .n_lists = m->n_lists,
                    .stride = (size_t)m->cap,
                    .first = (size_t)first,
                    .n = (size_t)n,
                    .exact = m->rule.how == DEMOTE_F16};
    if (m->factor) j.factor = m->factor[layer];
    v->be->ops->codes->demote(v->be, &j);
}

/* Restricts a segment to the best rows of each region, by votes of the heads that read it. Heads score the stored keys.
 */
static void choose_rows(const demoted *m, const attn_task *t, attn_seg *s)
{
    const attn_view *v = t->v;
    const backend_ops *o = v->be->ops;
    size_t heads = (size_t)v->shape->n_heads, regions = s->rows->n_kv_heads, stride = (size_t)m->cap;
    buf score = m->score, votes = buf_at(score, heads * stride * sizeof(float));
    o->token->score(v->be, &(token_score_job){.q = t->q,
                                              .n_heads = heads,
                                              .rows = *s->rows,
                                              .hi = s->n_max,
                                              .score = score,
                                              .stride = stride,
                                              .read = v->read});
    if (heads > regions) {
        combine_job vote = {votes, score, stride, heads, regions, 0, s->n_max, GQA_VOTE, v->shape->scale};
        o->select->combine(v->be, &vote, 1);
        score = votes;
    }
    s->n_lists = regions;
    s->idx_stride = (size_t)min64(m->rule.recall, m->cap);
    s->idx = m->idx;
    attn_choose(v,
                &(choose_job){.score = score,
                              .n_lists = regions,
                              .stride = stride,
                              .items = {s->n_max, 0, s->n_max},
                              .tail = s->n_max,
                              .k = m->rule.recall,
                              .granule = 1,
                              .most = m->cap,
                              .idx_stride = (int64_t)s->idx_stride,
                              .idx = m->idx,
                              .range = m->range},
                1);
    s->n_max = m->rule.recall;
}

void demote_select(const demoted *m, const attn_task *t, int layer, int64_t n)
{
    attn_sel *sel = t->sel;
    int64_t recall = m->rule.recall;
    if (m->rule.how == DEMOTE_NONE || n == 0 || recall == 0) return;
    attn_seg s = {.rows = &m->rows[layer], .n_lists = 1, .n_max = n};
    if (m->factor) s.factor = m->factor[layer];
    if (m->rule.in_order) s.origin = m->origin;
    else s.pos = m->at[layer], s.pos_lists = m->n_lists, s.pos_stride = (size_t)m->cap;
    s.by_row = true;
    if (recall > 0 && recall < n && !(t->p.flags & ATTN_PROMPT)) choose_rows(m, t, &s);
    sel->seg[sel->n_seg++] = s;
    sel->attended += s.n_max;
}

void demote_download(const attn_view *v, buf at, int64_t n, int64_t *out)
{
    int32_t x;
    v->be->ops->download(v->be, out, at, (size_t)n * sizeof x);
    for (int64_t i = n - 1; i >= 0; i--) { /* widens in place */
        memcpy(&x, (char *)out + (size_t)i * sizeof x, sizeof x);
        out[i] = x;
    }
}
