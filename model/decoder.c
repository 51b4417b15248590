/* SPDX-License-Identifier: MIT */
/* The forward pass of every supported family: the config is data, absent parts are absent weights. */
#include "config.h"

#include "model/decoder.h"

#include <math.h>

const char *const stage_names[STAGE_COUNT] = {"embed", "norm",      "qkv", "index", "score",
                                              "topk",  "attention", "out", "ffn",   "logits"};

static buf row(buf b, size_t i, size_t width)
{
    return buf_at(b, i * width * sizeof(float));
}

static void attention_block(decoder *d, const attn_step *step, int l, size_t n)
{
    const backend_ops *o = d->be->ops;
    const layer_weights *w = &d->w->layers[l];
    const model_config *c = &d->m->config;
    const linear_job qkv[] = {{d->q, w->q, w->q_bias}, {d->k, w->k, w->k_bias}, {d->v, w->v, w->v_bias}};
    const linear_job to_x = {d->xn, w->o, w->o_bias};
    const projection in = {.jobs = qkv,
                           .n_jobs = 3,
                           .x = d->x,
                           .n = n,
                           .exact = d->opt.exact,
                           .norm = w->attn_norm,
                           .eps = c->rms_eps,
                           .room = d->xn};
    const projection out = {.jobs = &to_x, .n_jobs = 1, .x = d->att, .n = n, .exact = d->opt.exact, .into = d->x};

    o->project(d->be, &in);
    if (w->q_norm.p.p) o->rmsnorm(d->be, d->q, d->q, w->q_norm, n * (size_t)c->n_heads, c->rms_eps);
    if (w->k_norm.p.p) o->rmsnorm(d->be, d->k, d->k, w->k_norm, n * (size_t)c->n_kv_heads, c->rms_eps);
    backend_mark(d->be, STAGE_QKV);
    attn_layer(d->work, step, l, d->q, d->k, d->v, d->att);
    o->project(d->be, &out);
    backend_mark(d->be, STAGE_OUT);
}

static void ffn_block(decoder *d, int l, size_t n)
{
    const layer_weights *w = &d->w->layers[l];
    const linear_job gate_up[] = {{d->gate, w->gate, w->gate_bias}, {d->up, w->up, w->up_bias}};
    const linear_job down = {d->xn, w->down, w->down_bias};
    const projection in = {.jobs = gate_up,
                           .n_jobs = 2,
                           .x = d->x,
                           .n = n,
                           .exact = d->opt.exact,
                           .norm = w->ffn_norm,
                           .eps = d->m->config.rms_eps,
                           .room = d->xn,
                           .gated = true};
    const projection out = {.jobs = &down, .n_jobs = 1, .x = d->gate, .n = n, .exact = d->opt.exact, .into = d->x};

    d->be->ops->project(d->be, &in);
    d->be->ops->project(d->be, &out);
    backend_mark(d->be, STAGE_FFN);
}

void decoder_forward(decoder *d, const attn_step *step)
{
    size_t n = attn_step_rows(step);
    backend_mark(d->be, -1);
    d->be->ops->embed(d->be, d->x, d->w->embed, d->ids, n);
    backend_mark(d->be, STAGE_EMBED);
    attn_begin(d->work, step);
    backend_mark(d->be, STAGE_INDEX);
    for (int l = 0; l < d->m->config.n_layers; l++) {
        attention_block(d, step, l, n);
        ffn_block(d, l, n);
    }
    attn_end(d->work, step);
    backend_mark(d->be, STAGE_INDEX);
}

/* Weights are not read through at open; broken ones show in the first logits. */
static status check_finite(decoder *d, size_t n, err *e)
{
    size_t total = n * (size_t)d->m->config.vocab;
    for (size_t i = 0; i < total; i++) {
        if (isfinite(d->host_logits[i])) continue;
        char name[160];
        if (model_find_nonfinite(d->w, name, sizeof name) == ST_FORMAT)
            return err_set(e, ST_FORMAT, "%s: tensor %s holds NaN or infinity", d->m->name, name);
        return err_set(e, ST_FORMAT, "%s: the first logits are not finite", d->m->name);
    }
    d->checked = true;
    return ST_OK;
}

void decoder_head(decoder *d, size_t first, size_t n)
{
    const backend_ops *o = d->be->ops;
    const model_config *c = &d->m->config;
    backend_mark(d->be, -1);
    const linear_job head = {d->logits, d->w->lm_head, {.p = {NULL}}};
    const projection p = {.jobs = &head,
                          .n_jobs = 1,
                          .x = row(d->x, first, (size_t)c->hidden),
                          .n = n,
                          .exact = d->opt.exact,
                          .norm = d->w->norm,
                          .eps = c->rms_eps,
                          .room = d->xn};
    o->project(d->be, &p);
    o->gather_columns(d->be, d->logits, n, d->w->lm_head.rows, (size_t)c->vocab);
    backend_mark(d->be, STAGE_LOGITS);
}

status decoder_logits(decoder *d, size_t n, err *e)
{
    d->be->ops->download(d->be, d->host_logits, d->logits, n * (size_t)d->m->config.vocab * sizeof(float));
    backend_mark(d->be, STAGE_LOGITS);
    TRY(backend_fault(d->be, e));
    return d->checked ? ST_OK : check_finite(d, n, e);
}
