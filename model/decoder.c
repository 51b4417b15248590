/* SPDX-License-Identifier: MIT */
/* The decoder: its memory, and the forward pass, which runs a list of blocks. */
#include "config.h"

#include "model/decoder.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/draw.h"
#include "kernels/ops_weights.h"
#include "model/block.h"

enum { LOGIT_ROWS = 16 };

const char *const stage_names[STAGE_COUNT] = {"embed", "norm",      "qkv", "index", "score",
                                              "topk",  "attention", "out", "ffn",   "logits"};

static buf row(buf b, size_t i, size_t width)
{
    return buf_at(b, i * width * sizeof(float));
}

/* ---- memory ---- */

decoder_options decoder_defaults(const decoder_options *o, const backend *be)
{
    decoder_options r = *o;
    r.chunk = backend_chunk(be, o->chunk);
    if (r.max_batch == 0) r.max_batch = 1;
    return r;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t decoder_rows(const decoder_options *o)
{
    return larger(o->chunk, larger(o->max_batch, o->verify));
}

static size_t logit_rows_of(const decoder_options *o)
{
    size_t r = decoder_rows(o), most = larger(o->max_batch, LOGIT_ROWS);
    return r < most ? r : most;
}

attn_shape attn_shape_of(const model_config *c)
{
    return (attn_shape){.n_layers = c->n_kv,
                        .n_heads = c->n_heads,
                        .n_kv_heads = c->n_kv_heads,
                        .head_dim = c->head_dim,
                        .rotary = c->rotary,
                        .n_ropes = c->n_ropes,
                        .scale = (float)(1 / sqrt((double)c->head_dim)),
                        .window = c->kv_window,
                        .max_positions = c->max_positions};
}

/* A buffer of the decoder. One list serves allocation, release and the plan. */
typedef struct {
    buf *b;
    size_t bytes;
} buf_size;

enum { N_BUFS = 12 };

/* Returns the offset of the scratch of block n; blocks of one kind share it. n_blocks: the total. */
static size_t scratch_before(const model *m, size_t n, size_t rows)
{
    size_t bytes = 0;
    for (size_t i = 0, k; i < m->n_blocks; i++) {
        for (k = 0; m->blocks[k].kind != m->blocks[i].kind;) k++;
        if (k < i) continue; /* not the first of its kind */
        if (n < m->n_blocks && m->blocks[n].kind == m->blocks[i].kind) return bytes;
        bytes += (m->blocks[i].kind->scratch(&m->config, rows) + 63) / 64 * 64;
    }
    return bytes;
}

static void list_buffers(decoder *d, const model *m, const decoder_options *o, buf_size out[N_BUFS])
{
    const model_config *c = &m->config;
    size_t r = decoder_rows(o), f = sizeof(float), h = (size_t)c->hidden;
    size_t still = c->rope.query_beta > 0 ? (size_t)c->head_dim / 2 * f : 0;
    size_t tables = (size_t)c->n_ropes * r * (size_t)c->rotary * f, ranks = (size_t)backend_ranks(m->be);
    const buf_size all[N_BUFS] = {
        {&d->ids, r * sizeof(int32_t)},
        {&d->pos, r * sizeof(int64_t)},
        {&d->freq, tables / 2},
        {&d->table, tables},
        {&d->query_table, 2 * r * still},
        {&d->still, still},
        {&d->x, r * h * f},
        {&d->xn, r * h * f},
        {&d->scratch, scratch_before(m, m->n_blocks, r)},
        {&d->logits, (logit_rows_of(o) * (size_t)c->vocab + ranks) * f},
        {&d->next, 2 * o->max_batch * sizeof(int32_t)},
        {&d->uniform, o->max_batch * f},
    };
    memcpy(out, all, sizeof all);
}

size_t decoder_bytes(const model *m, const decoder_options *o)
{
    decoder unused;
    buf_size list[N_BUFS];
    size_t bytes = logit_rows_of(o) * (size_t)m->config.vocab * sizeof(float); /* host_logits */
    list_buffers(&unused, m, o, list);
    for (int i = 0; i < N_BUFS; i++) bytes += list[i].bytes;
    return bytes;
}

/* True if weights are mapped from files that the available memory cannot hold. */
static bool exceeds_memory(const model *m)
{
    const size_t have = mem_available();
    return m->memory_bytes < m->weight_bytes && have && m->weight_bytes - m->memory_bytes > have;
}

status decoder_create(decoder **out, const model *m, const decoder_options *o, err *e)
{
    decoder *d;
    buf_size list[N_BUFS];
    *out = NULL;
    TRY(MEM_NEW(&d, 1, e));
    d->m = d->w = m;
    d->be = m->be;
    d->opt = decoder_defaults(o, m->be);
    d->shape = attn_shape_of(&m->config);
    d->max_rows = decoder_rows(&d->opt);
    d->logit_rows = logit_rows_of(&d->opt);
    d->paged = m->config.n_experts && exceeds_memory(m);
    list_buffers(d, m, &d->opt, list);
    status st = ST_OK;
    for (int i = 0; i < N_BUFS && st == ST_OK; i++)
        if (list[i].bytes) st = d->be->ops->alloc(d->be, list[i].b, list[i].bytes, "activations", e);
    if (st == ST_OK && d->still.p) /* host_freq is still 0 */
        d->be->ops->upload(d->be, d->still, d->host_freq, (size_t)m->config.head_dim / 2 * sizeof(float));
    if (st == ST_OK)
        st = mem_alloc((void **)&d->host_logits, d->logit_rows * (size_t)m->config.vocab, sizeof(float), "logits", e);
    if (st == ST_OK) st = MEM_NEW(&d->host_pos, d->max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&d->seqs, d->max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&d->states, d->max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&d->scratch_at, m->n_blocks, e);
    for (size_t i = 0; st == ST_OK && i < m->n_blocks; i++) d->scratch_at[i] = scratch_before(m, i, d->max_rows);
    if (st == ST_OK) st = MEM_NEW(&d->host_uniform, d->opt.max_batch, e);
    if (st == ST_OK) st = MEM_NEW(&d->rules, d->opt.max_batch, e);
    if (st == ST_OK) st = attn_work_create(&d->work, &d->shape, d->max_rows, d->be, e);
    if (st != ST_OK) decoder_free(d);
    else *out = d;
    return st;
}

void decoder_free(decoder *d)
{
    buf_size list[N_BUFS];
    if (!d) return;
    if (d->be->stage_ns == d->stage) d->be->stage_ns = NULL;
    list_buffers(d, d->m, &d->opt, list);
    for (int i = 0; i < N_BUFS; i++)
        if (list[i].b->p) d->be->ops->free(d->be, *list[i].b, list[i].bytes);
    attn_work_free(d->work);
    mem_free(d->host_logits);
    mem_free(d->host_pos);
    mem_free(d->seqs);
    mem_free(d->states);
    mem_free(d->scratch_at);
    mem_free(d->host_uniform);
    mem_free(d->rules);
    mem_free(d);
}

expert_reads decoder_expert_reads(const decoder *d)
{
    return d->reads;
}

const model *decoder_model(const decoder *d)
{
    return d->m;
}

const attn_shape *decoder_attn_shape(const decoder *d)
{
    return &d->shape;
}

attn_work *decoder_attn_work(decoder *d)
{
    return d->work;
}

int64_t decoder_chunk(const decoder *d)
{
    return (int64_t)d->opt.chunk;
}

void decoder_profile(decoder *d, bool on)
{
    d->be->stage_ns = on ? d->stage : NULL;
    if (on) memset(d->stage, 0, sizeof d->stage);
}

void decoder_stages(const decoder *d, int64_t ns[STAGE_COUNT])
{
    memcpy(ns, d->stage, sizeof d->stage);
}

/* ---- the forward pass ---- */

buf decoder_scratch(const decoder *d, const block *b)
{
    return buf_at(d->scratch, d->scratch_at[b - d->w->blocks]);
}

/* Returns the bytes of the tables of one rotary embedding. */
static size_t table_bytes(const decoder *d)
{
    return d->max_rows * 2 * attn_pairs(&d->shape) * sizeof(float);
}

attn_step decoder_step(const decoder *d, const attn_step *s, const block *b)
{
    attn_step step = *s;
    size_t rope = (size_t)config_rope_of(&d->m->config, b->layer);
    step.table = buf_at(d->table, rope * table_bytes(d));
    step.freq = buf_at(d->freq, rope * table_bytes(d) / 2);
    step.mscale = d->mscale[rope];
    return step;
}

void decoder_set_freq(decoder *d, size_t i, int64_t seq_len)
{
    size_t bytes = attn_pairs(&d->shape) * sizeof(float);
    for (size_t k = 0; k < (size_t)d->m->config.n_ropes; k++) {
        rope_frequencies(k ? &d->m->config.window_rope : &d->m->config.rope, seq_len, d->host_freq, &d->mscale[k]);
        d->be->ops->upload(d->be, buf_at(d->freq, k * table_bytes(d) / 2 + i * bytes), d->host_freq, bytes);
    }
}

/* Computes query_table for n rows at host_pos, by runs of rows with the same factor. */
static void set_query_table(decoder *d, size_t n)
{
    const rope_config *r = &d->m->config.rope;
    size_t half = (size_t)d->m->config.head_dim / 2;
    for (size_t i = 0, end; d->query_table.p && i < n; i = end) {
        float scale = rope_query_scale(r, d->host_pos[i]);
        for (end = i + 1; end < n && rope_query_scale(r, d->host_pos[end]) == scale;) end++;
        d->be->ops->rope_table(d->be, row(d->query_table, i, 2 * half), buf_at(d->pos, i * sizeof(int64_t)), end - i,
                               d->still, half, scale);
    }
}

void decoder_scale_queries(const decoder *d, buf q, size_t n)
{
    const model_config *c = &d->m->config;
    size_t heads = (size_t)c->n_heads, dim = (size_t)c->head_dim;
    if (d->query_table.p) d->be->ops->rope(d->be, q, q, d->query_table, n, heads, dim, dim / 2);
}

void decoder_set_tables(decoder *d, size_t n_seq, size_t n_tok)
{
    set_query_table(d, n_seq * n_tok);

    size_t half = attn_pairs(&d->shape), row = half * sizeof(float);
    for (size_t k = 0; k < (size_t)d->m->config.n_ropes; k++)
        for (size_t i = 0; i < n_seq; i++)
            d->be->ops->rope_table(d->be, buf_at(d->table, k * table_bytes(d) + i * n_tok * 2 * row),
                                   buf_at(d->pos, i * n_tok * sizeof(int64_t)), n_tok,
                                   buf_at(d->freq, k * table_bytes(d) / 2 + i * row), half, d->mscale[k]);
}

void decoder_project(const decoder *d, buf x, size_t n, weight norm, const linear_job *jobs, size_t n_jobs, bool gated)
{
    const projection p = {.jobs = jobs,
                          .n_jobs = n_jobs,
                          .x = x,
                          .n = n,
                          .exact = d->opt.exact,
                          .norm = norm,
                          .eps = d->m->config.rms_eps,
                          .room = d->xn,
                          .gated = gated};
    d->be->ops->project(d->be, &p);
}

void decoder_add(const decoder *d, buf x, size_t n, weight w, weight bias, weight post)
{
    const backend_ops *o = d->be->ops;
    const linear_job to_x = {d->xn, w, bias};
    const projection p = {
        .jobs = &to_x, .n_jobs = 1, .x = x, .n = n, .exact = d->opt.exact, .into = d->x, .spent = true};
    if (!post.p.p) {
        o->project(d->be, &p);
        return;
    }
    o->linear(d->be, &to_x, 1, x, n, d->opt.exact);
    o->all_reduce(d->be, d->xn, n * post.cols);
    o->rmsnorm(d->be, d->xn, d->xn, post, n, d->m->config.post_eps);
    o->add(d->be, d->x, d->xn, n * post.cols);
}

void decoder_forward(decoder *d, const attn_step *step)
{
    size_t n = attn_step_rows(step);
    backend_mark(d->be, -1);
    d->be->ops->embed(d->be, d->x, d->w->embed, d->ids, n);
    const weight norm = d->w->embed_norm;
    if (norm.p.p) d->be->ops->rmsnorm(d->be, d->x, d->x, norm, n, d->m->config.rms_eps);
    backend_mark(d->be, STAGE_EMBED);
    attn_begin(d->work, step);
    backend_mark(d->be, STAGE_INDEX);
    for (const block *b = d->w->blocks; b < d->w->blocks + d->w->n_blocks; b++) b->kind->run(d, step, b, n);
    attn_end(d->work, step);
    recurrent_end(d->states, step);
    backend_mark(d->be, STAGE_INDEX);
}

void decoder_head(decoder *d, size_t first, size_t n)
{
    const model_config *c = &d->m->config;
    d->head_first = first;
    backend_mark(d->be, -1);
    const linear_job head = {d->logits, d->w->lm_head, {.p = {NULL}}};
    decoder_project(d, row(d->x, first, (size_t)c->hidden), n, d->w->norm, &head, 1, false);
    d->be->ops->gather_columns(d->be, d->logits, n, d->w->lm_head.rows, (size_t)c->vocab);
    if (c->logit_cap > 0)
        d->be->ops->softcap(d->be, d->logits, n * (size_t)c->vocab, c->logit_factor / c->logit_cap, c->logit_cap);
    backend_mark(d->be, STAGE_LOGITS);
}

status decoder_logits(decoder *d, float *out, size_t row, size_t n, err *e)
{
    size_t vocab = (size_t)d->m->config.vocab;
    d->be->ops->download(d->be, out, buf_at(d->logits, row * vocab * sizeof *out), n * vocab * sizeof *out);
    backend_mark(d->be, STAGE_LOGITS);
    TRY(backend_fault(d->be, e));
    if (draw_finite(out, n * vocab)) return ST_OK;
    size_t i = 0;
    while (draw_finite(out + i * vocab, vocab)) i++;
    attn_seq *seq = d->seqs[d->n_tok == 1 ? row + i : 0];
    return decoder_not_finite(d, seq, d->host_pos[d->head_first + row + i], out + i * vocab, e);
}
