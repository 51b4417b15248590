/* SPDX-License-Identifier: MIT */
/* The forward pass of every supported family: the config is data, absent parts are absent weights. */
#include "config.h"

#include "model/decoder.h"

#include "kernels/draw.h"

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

void decoder_head(decoder *d, size_t first, size_t n)
{
    const backend_ops *o = d->be->ops;
    const model_config *c = &d->m->config;
    d->head_first = first;
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

status decoder_logits(decoder *d, float *out, size_t row, size_t n, err *e)
{
    size_t vocab = (size_t)d->m->config.vocab;
    d->be->ops->download(d->be, out, buf_at(d->logits, row * vocab * sizeof *out), n * vocab * sizeof *out);
    backend_mark(d->be, STAGE_LOGITS);
    TRY(backend_fault(d->be, e));
    d->checked = draw_finite(out, n * vocab);
    if (d->checked) return ST_OK;
    size_t i = 0;
    while (draw_finite(out + i * vocab, vocab)) i++;
    attn_seq *seq = d->seqs[d->n_tok == 1 ? row + i : 0];
    return decoder_not_finite(d, seq, d->host_pos[d->head_first + row + i], out + i * vocab, e);
}
