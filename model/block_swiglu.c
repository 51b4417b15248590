/* SPDX-License-Identifier: MIT */
/* The gated feed-forward network of dense models: down(silu(gate x) * up x). */
#include "config.h"

#include "model/block.h"
#include "model/decoder.h"

static size_t scratch(const model_config *c, size_t rows)
{
    return 2 * rows * (size_t)c->ffn * sizeof(float);
}

static status weights(walk *k, const model_config *c, void *w)
{
    swiglu_weights *s = w;
    size_t h = c->hidden, f = c->ffn;
    const bool post = c->post_eps > 0;
    TRY(walk_block_norm(k, c, &s->norm, post ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"));
    if (post) TRY(walk_block_norm(k, c, &s->post_norm, "post_feedforward_layernorm.weight"));
    walk_whole(k, c->family->fused ? "mlp.gate_up_proj.weight" : NULL, 2 * f);
    TRY(walk_rows(k, &s->gate, "mlp.gate_proj.weight", f, h));
    TRY(walk_more_rows(k, &s->up, "mlp.up_proj.weight", f, h));
    walk_whole(k, NULL, 0);
    TRY(walk_cols(k, &s->down, "mlp.down_proj.weight", h, f));
    TRY(walk_bias(k, c->mlp_bias, &s->gate_bias, "mlp.gate_proj.bias", f));
    TRY(walk_bias(k, c->mlp_bias, &s->up_bias, "mlp.up_proj.bias", f));
    return walk_sum_bias(k, c->mlp_bias, &s->down_bias, "mlp.down_proj.bias", h);
}

static void run(decoder *d, const attn_step *step, const block *b, size_t n)
{
    const swiglu_weights *w = b->w;
    buf gate = decoder_scratch(d, b), up = buf_at(gate, d->max_rows * (size_t)d->m->config.ffn * sizeof(float));
    const linear_job gate_up[] = {{gate, w->gate, w->gate_bias}, {up, w->up, w->up_bias}};

    (void)step;
    decoder_project(d, d->x, n, w->norm, gate_up, 2, true);
    decoder_add(d, gate, n, w->down, w->down_bias, w->post_norm);
    backend_mark(d->be, STAGE_FFN);
}

const block_kind block_swiglu = {
    .name = "swiglu", .size = sizeof(swiglu_weights), .weights = weights, .scratch = scratch, .run = run};
