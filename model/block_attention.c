/* SPDX-License-Identifier: MIT */
/* Self-attention over the keys and values of a sequence, with optional biases, norms of queries and keys, and
 * gate of the output. */
#include "config.h"

#include "model/block.h"
#include "model/decoder.h"

typedef struct {
    buf q, k, v, out, gate;
} buffers;

/* Returns the bytes of rows of n heads, rounded up to whole cache lines. */
static size_t heads_bytes(const model_config *c, int n_heads, size_t rows)
{
    return (rows * (size_t)n_heads * (size_t)c->head_dim * sizeof(float) + 63) / 64 * 64;
}

static buffers buffers_at(buf at, const model_config *c, size_t rows)
{
    size_t q = heads_bytes(c, c->n_heads, rows), kv = heads_bytes(c, c->n_kv_heads, rows);
    return (buffers){at, buf_at(at, q), buf_at(at, q + kv), buf_at(at, q + 2 * kv), buf_at(at, 2 * (q + kv))};
}

static size_t scratch(const model_config *c, size_t rows)
{
    const size_t q = heads_bytes(c, c->n_heads, rows);
    return 2 * (q + heads_bytes(c, c->n_kv_heads, rows)) + (c->family->output_gate ? q : 0);
}

void attention_scratch(const decoder *d, const block *b, size_t rows, buf *k, buf *v)
{
    buffers r = buffers_at(decoder_scratch(d, b), &d->m->config, rows);
    *k = r.k;
    *v = r.v;
}

static status qk_norms(walk *k, const model_config *c, attention_weights *a)
{
    const char *q = "self_attn.q_norm.weight", *key = "self_attn.k_norm.weight";
    const size_t d = (size_t)c->head_dim;
    if (!c->qk_norm) return ST_OK;
    if (c->query_gain > 0) {
        TRY(walk_constant(k, &a->q_norm, q, d, c->query_gain));
        return walk_constant(k, &a->k_norm, key, d, 1);
    }
    TRY(walk_norm(k, &a->q_norm, q, d));
    return walk_norm(k, &a->k_norm, key, d);
}

static status weights(walk *k, const model_config *c, void *w)
{
    attention_weights *a = w;
    size_t h = c->hidden, d = c->head_dim, q = c->n_heads * d, kv = c->n_kv_heads * d;
    TRY(walk_block_norm(k, c, &a->norm, "input_layernorm.weight"));
    walk_whole(k, "self_attn.qkv_proj.weight", q + 2 * kv);
    TRY(walk_rows(k, &a->q, "self_attn.q_proj.weight", q, h));
    TRY(walk_more_rows(k, &a->k, "self_attn.k_proj.weight", kv, h));
    TRY(walk_more_rows(k, &a->v, "self_attn.v_proj.weight", kv, h));
    walk_whole(k, "self_attn.qkv_proj.bias", q + 2 * kv);
    TRY(walk_bias(k, c->qkv_bias, &a->q_bias, "self_attn.q_proj.bias", q));
    TRY(walk_bias(k, c->qkv_bias, &a->k_bias, "self_attn.k_proj.bias", kv));
    TRY(walk_bias(k, c->qkv_bias, &a->v_bias, "self_attn.v_proj.bias", kv));
    walk_whole(k, NULL, 0);
    TRY(qk_norms(k, c, a));
    if (c->family->output_gate) TRY(walk_rows(k, &a->gate, "self_attn.gate_proj.weight", q, h));
    if (c->post_eps > 0) TRY(walk_block_norm(k, c, &a->post_norm, "post_attention_layernorm.weight"));
    TRY(walk_cols(k, &a->o, "self_attn.o_proj.weight", h, q));
    return walk_sum_bias(k, c->o_bias, &a->o_bias, "self_attn.o_proj.bias", h);
}

static void run(decoder *d, const attn_step *s, const block *b, size_t n)
{
    const backend_ops *o = d->be->ops;
    const attention_weights *w = b->w;
    const model_config *c = &d->m->config;
    const attn_step step = decoder_step(d, s, b);
    const buffers r = buffers_at(decoder_scratch(d, b), c, d->max_rows);
    const linear_job qkv[] = {
        {r.q, w->q, w->q_bias}, {r.k, w->k, w->k_bias}, {r.v, w->v, w->v_bias}, {r.gate, w->gate, {.p = {NULL}}}};
    const bool gated = w->gate.p.p;

    decoder_project(d, d->x, n, w->norm, qkv, gated ? 4 : 3, false);
    if (w->q_norm.p.p) o->rmsnorm(d->be, r.q, r.q, w->q_norm, n * (size_t)c->n_heads, c->rms_eps);
    if (w->k_norm.p.p) o->rmsnorm(d->be, r.k, r.k, w->k_norm, n * (size_t)c->n_kv_heads, c->rms_eps);
    decoder_scale_queries(d, r.q, n);
    backend_mark(d->be, STAGE_QKV);
    attn_layer(d->work, &step, b->kv, r.q, r.k, r.v, r.out);
    if (gated) o->gate(d->be, r.out, r.gate, n * (size_t)c->n_heads * (size_t)c->head_dim);
    decoder_add(d, r.out, n, w->o, w->o_bias, w->post_norm);
    backend_mark(d->be, STAGE_OUT);
}

const block_kind block_attention = {.name = "attention",
                                    .keeps_kv = true,
                                    .size = sizeof(attention_weights),
                                    .weights = weights,
                                    .scratch = scratch,
                                    .run = run};
