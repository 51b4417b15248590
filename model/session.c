/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"
#include "model/decoder.h"

enum { LOGIT_ROWS = 16 };

/* ---- the decoder's memory ---- */

static decoder_options with_defaults(const decoder_options *o, const backend *be)
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

static size_t rows_of(const decoder_options *o)
{
    return larger(o->chunk, larger(o->max_batch, o->verify));
}

static size_t logit_rows_of(const decoder_options *o)
{
    size_t r = rows_of(o), most = larger(o->max_batch, LOGIT_ROWS);
    return r < most ? r : most;
}

static attn_shape shape_of(const model_config *c)
{
    return (attn_shape){.n_layers = c->n_layers,
                        .n_heads = c->n_heads,
                        .n_kv_heads = c->n_kv_heads,
                        .head_dim = c->head_dim,
                        .scale = (float)(1 / sqrt((double)c->head_dim)),
                        .window = c->window,
                        .max_positions = c->max_positions};
}

/* One list of the decoder's buffers serves allocation, release and the plan. */
typedef struct {
    buf *b;
    size_t bytes;
} buf_size;

enum { N_BUFS = 15 };

static void list_buffers(decoder *d, const model_config *c, int ranks, const decoder_options *o, buf_size out[N_BUFS])
{
    size_t r = rows_of(o), f = sizeof(float), d_head = (size_t)c->head_dim;
    size_t q = (size_t)c->n_heads * d_head, kv = (size_t)c->n_kv_heads * d_head, h = (size_t)c->hidden;
    const buf_size all[N_BUFS] = {
        {&d->ids, r * sizeof(int32_t)},
        {&d->pos, r * sizeof(int64_t)},
        {&d->freq, r * d_head / 2 * f},
        {&d->table, r * d_head * f},
        {&d->x, r * h * f},
        {&d->xn, r * h * f},
        {&d->q, r * q * f},
        {&d->k, r * kv * f},
        {&d->v, r * kv * f},
        {&d->att, r * q * f},
        {&d->gate, r * (size_t)c->ffn * f},
        {&d->up, r * (size_t)c->ffn * f},
        {&d->logits, (logit_rows_of(o) * (size_t)c->vocab + (size_t)ranks) * f},
        {&d->next, o->max_batch * sizeof(int32_t)},
        {&d->share, o->max_batch * f},
    };
    memcpy(out, all, sizeof all);
}

status decoder_create(decoder **out, const model *m, const decoder_options *o, err *e)
{
    decoder *d;
    buf_size list[N_BUFS];
    *out = NULL;
    TRY(MEM_NEW(&d, 1, e));
    d->m = d->w = m;
    d->be = m->be;
    d->opt = with_defaults(o, m->be);
    d->shape = shape_of(&m->config);
    d->max_rows = rows_of(&d->opt);
    d->logit_rows = logit_rows_of(&d->opt);
    list_buffers(d, &m->config, backend_ranks(m->be), &d->opt, list);
    status st = ST_OK;
    for (int i = 0; i < N_BUFS && st == ST_OK; i++)
        st = d->be->ops->alloc(d->be, list[i].b, list[i].bytes, "activations", e);
    if (st == ST_OK)
        st = mem_alloc((void **)&d->host_logits, d->logit_rows * (size_t)m->config.vocab, sizeof(float), "logits", e);
    if (st == ST_OK) st = MEM_NEW(&d->host_pos, d->max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&d->seqs, d->max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&d->host_share, d->opt.max_batch, e);
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
    list_buffers(d, &d->m->config, backend_ranks(d->be), &d->opt, list);
    for (int i = 0; i < N_BUFS; i++)
        if (list[i].b->p) d->be->ops->free(d->be, *list[i].b, list[i].bytes);
    attn_work_free(d->work);
    mem_free(d->host_logits);
    mem_free(d->host_pos);
    mem_free(d->seqs);
    mem_free(d->host_share);
    mem_free(d->rules);
    mem_free(d);
}

const model *decoder_model(const decoder *d)
{
    return d->m;
}

backend *decoder_backend(const decoder *d)
{
    return d->be;
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
    return (int64_t)d->max_rows;
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

/* ---- sessions ---- */

static bool has_host_memory(const backend *be)
{
    return be->ops->host && be->ops->host->room;
}

static attn_limits limits_of(const model *m, const decoder_options *o, session_size size)
{
    return (attn_limits){.n_tokens = size.n_tokens,
                         .chunk = (int64_t)o->chunk,
                         .prompt = size.longest_prompt,
                         .draft = size.draft,
                         .at_once = m->be->ops->at_once};
}

/* The weights of drafts, some of which may lie in a file. */
static void add_draft(memory_plan *p, const model *m, const model *draft)
{
    p->draft_weights = draft->weight_bytes;
    p->weights += draft->weight_bytes;
    p->weights_in_memory += draft->memory_bytes;
    if (m->source) p->to_load += draft->memory_bytes;
}

status session_plan(memory_plan *p, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                    err *e)
{
    decoder_options opt = with_defaults(o, m->be);
    attn_shape shape = shape_of(&m->config);
    attn_limits lim = limits_of(m, &opt, size);
    if (size.reach > 0 && size.reach < lim.n_tokens && !lim.at_once) lim.n_tokens = size.reach;
    attn_bytes kv;
    size_t slow;
    decoder unused;
    buf_size list[N_BUFS];
    *p = (memory_plan){.weights = m->weight_bytes, .weights_in_memory = m->memory_bytes};
    if (m->source) p->to_load = m->be->ops->imports_copy ? m->weight_bytes : m->memory_bytes;
    if (opt.draft) add_draft(p, m, opt.draft);
    TRY(attn_plan(&kv, spec, &shape, &lim, e));
    TRY(attn_plan_slow(&slow, spec, &shape, &lim, e));
    snprintf(p->tier_dir, sizeof p->tier_dir, "%s", kv_tier_dir(&spec->tier));
    p->kv = kv.kv;
    if (spec->tier.kind == KV_DISK) p->disk = slow;
    else if (has_host_memory(m->be)) p->host = slow;
    else p->kv += slow;
    p->index = kv.index + kv.scratch;
    p->scratch = attn_work_bytes(&shape, rows_of(&opt)) + logit_rows_of(&opt) * (size_t)m->config.vocab * sizeof(float);
    list_buffers(&unused, &m->config, backend_ranks(m->be), &opt, list);
    for (int i = 0; i < N_BUFS; i++) p->scratch += list[i].bytes;
    return ST_OK;
}

static status check_disk(const memory_plan *p, backend *be, err *e)
{
    size_t have = p->disk ? be->ops->tier->room(be, p->tier_dir) : 0;
    if (have == 0 || p->disk <= have) return ST_OK;
    return err_set(e, ST_NOMEM, "--kv-tier: %.100s: %.1f MB of keys and values, %.1f MB are free there", p->tier_dir,
                   (double)p->disk / 1e6, (double)have / 1e6);
}

static status check_host(const memory_plan *p, backend *be, err *e)
{
    size_t have = p->host ? be->ops->host->room(be) : 0;
    if (have == 0 || p->host <= have) return ST_OK;
    return err_set(e, ST_NOMEM,
                   "--kv-tier host: %.1f MB of keys and values, %.1f MB of the host's memory are available",
                   (double)p->host / 1e6, (double)have / 1e6);
}

status memory_plan_check(const memory_plan *p, backend *be, err *e)
{
    TRY(check_disk(p, be, e));
    TRY(check_host(p, be, e));
    size_t need = p->to_load + p->kv + p->index + p->scratch, have = be->ops->available(be);
    char weights[48] = "";
    if (have == 0 || need <= have) return ST_OK;
    if (p->to_load) snprintf(weights, sizeof weights, "weights %.1f MB, ", (double)p->to_load / 1e6);
    return err_set(e, ST_NOMEM,
                   "out of memory: %sKV %.1f MB, index %.1f MB and scratch %.1f MB are needed, %.1f "
                   "MB are available",
                   weights, (double)p->kv / 1e6, (double)p->index / 1e6, (double)p->scratch / 1e6, (double)have / 1e6);
}

status session_check(const model *m, const decoder_options *o, const attn_spec *spec, session_size size, err *e)
{
    const attn_shape shape = shape_of(&m->config);
    memory_plan plan;
    if (size.n_tokens < 1)
        return err_set(e, ST_USAGE, "--ctx %lld: at least one token is needed", (long long)size.n_tokens);
    TRY(attn_spec_check(spec, &shape, e));
    if (size.draft) TRY(attn_draft_check(size.draft, spec, &shape, e));
    TRY(session_plan(&plan, m, o, spec, size, e));
    TRY(attn_backend_check(spec, m->be, e));
    if (size.draft) TRY(attn_backend_check(size.draft, m->be, e));
    return memory_plan_check(&plan, m->be, e);
}

/* Scratch of the decoder's steps with sessions of n_tokens. */
static status reserve(decoder *d, int64_t n_tokens, err *e)
{
    const model_config *c = &d->m->config;
    int width = c->n_heads * c->head_dim;
    if (!d->be->ops->reserve) return ST_OK;
    if (c->hidden > width) width = c->hidden;
    if (c->ffn > width) width = c->ffn;
    const step_size most = {.rows = larger(d->opt.max_batch, d->opt.verify),
                            .n_heads = (size_t)c->n_heads,
                            .head_dim = (size_t)c->head_dim,
                            .width = (size_t)width,
                            .n_keys = n_tokens};
    return d->be->ops->reserve(d->be, &most, e);
}

status session_create(session **out, decoder *d, const attn_spec *spec, session_size size, err *e)
{
    session *s;
    *out = NULL;
    TRY(session_check(d->m, &d->opt, spec, size, e));
    TRY(MEM_NEW(&s, 1, e));
    s->d = d;
    s->limit = size.n_tokens;
    s->longest_prompt = size.longest_prompt;
    attn_limits lim = limits_of(d->m, &d->opt, size);
    status st = attn_seq_create(&s->attn, spec, &d->shape, &lim, d->be, e);
    if (st == ST_OK) st = reserve(d, size.n_tokens, e);
    if (st != ST_OK) session_free(s);
    else *out = s;
    return st;
}

void session_free(session *s)
{
    if (!s) return;
    attn_seq_free(s->attn);
    mem_free(s);
}

void session_reset(session *s)
{
    s->open = false;
    s->bound = (attn_span){0};
    attn_seq_reset(s->attn);
}

int64_t session_length(const session *s)
{
    return attn_seq_length(s->attn);
}

int64_t session_limit(const session *s)
{
    return s->limit;
}

decoder *session_decoder(const session *s)
{
    return s->d;
}

const attn_seq *session_attn(const session *s)
{
    return s->attn;
}

/* Returns n such that a prompt that ends at `end` can lose its last rows where k n of them stay: dynamic RoPE rotates
 * the keys of a prompt beyond the trained length by its end. */
static int64_t grain_of(const session *s, int64_t end)
{
    const rope_config *r = &s->d->m->config.rope;
    if (r->kind == ROPE_DYNAMIC && end > r->original_max) return INT64_MAX;
    return attn_prompt_grain(attn_seq_spec(s->attn), end);
}

/* Records a prompt whose rows depend on later tokens of it. */
static void bind_prompt(session *s, int64_t first, int64_t end)
{
    if (grain_of(s, end) > 1) s->bound = (attn_span){first, end};
}

/* Earlier prompts than the last bound one are not recorded. */
status session_rewind(session *s, int64_t n, err *e)
{
    const attn_span p = s->bound;
    if (n > 0 && n < p.end && n < session_length(s) && (n < p.first || (n - p.first) % grain_of(s, p.end) != 0))
        return err_set(e, ST_UNSUPPORTED,
                       "cannot go back to %lld tokens: rows of the prompt that ends at %lld depend on its later tokens",
                       (long long)n, (long long)p.end);
    TRY(attn_seq_rewind(s->attn, n, e));
    if (n <= s->opened) s->open = false;
    if (n >= p.end) return ST_OK;
    s->bound = (attn_span){0};
    bind_prompt(s, n < p.first ? n : p.first, n);
    return ST_OK;
}

bool session_can_share(const session *a, const session *b, size_t n_ids)
{
    return a->d == b->d && a->limit - session_length(a) >= (int64_t)n_ids &&
           b->limit - session_length(b) >= (int64_t)n_ids && attn_can_share(a->attn, b->attn, (int64_t)n_ids);
}

/* ---- forwards ---- */

static status check_ids(const decoder *d, const int32_t *ids, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= d->m->config.vocab)
            return err_set(e, ST_USAGE, "token id %d is outside the model's vocabulary of %d", (int)ids[i],
                           d->m->config.vocab);
    return ST_OK;
}

/* Rope frequencies of sequence i, whose length decides them where scaling is dynamic. */
static void set_freq(decoder *d, size_t i, int64_t seq_len)
{
    size_t half = (size_t)d->shape.head_dim / 2;
    rope_frequencies(&d->m->config.rope, seq_len, d->host_freq, &d->mscale);
    d->be->ops->upload(d->be, buf_at(d->freq, i * half * sizeof(float)), d->host_freq, half * sizeof(float));
}

static void set_tables(decoder *d, size_t n_seq, size_t n_tok)
{
    size_t half = (size_t)d->shape.head_dim / 2;
    for (size_t i = 0; i < n_seq; i++)
        d->be->ops->rope_table(d->be, buf_at(d->table, i * n_tok * half * 2 * sizeof(float)),
                               buf_at(d->pos, i * n_tok * sizeof(int64_t)), n_tok,
                               buf_at(d->freq, i * half * sizeof(float)), half, d->mscale);
}

static attn_step make_step(decoder *d, session *const *s, size_t n_seq, size_t n_tok, unsigned flags)
{
    for (size_t i = 0; i < n_seq; i++) d->seqs[i] = s[i]->attn;
    d->w = d->m;
    d->n_tok = n_tok;
    return (attn_step){.seq = d->seqs,
                       .n_seq = n_seq,
                       .n_tok = n_tok,
                       .flags = flags | (d->m->config.rope.kind == ROPE_DYNAMIC ? ATTN_FREQ_MOVES : 0),
                       .pos = d->pos,
                       .table = d->table,
                       .freq = d->freq,
                       .mscale = d->mscale};
}

/* Hands the logits that were asked for to the caller: n rows of this chunk, the first is prompt row
 * `done`. */
static status give_logits(decoder *d, const prefill_options *o, int64_t done, size_t n, bool last, err *e)
{
    size_t from = n - 1, before = (size_t)done;
    if (o->which == LOGITS_ALL) from = o->from > before ? o->from - before : 0;
    if (!o->rows || (o->which == LOGITS_LAST && !last)) return ST_OK;
    for (size_t i = from; i < n;) {
        size_t k = n - i < d->logit_rows ? n - i : d->logit_rows;
        decoder_head(d, i, k);
        TRY(decoder_logits(d, d->host_logits, 0, k, e));
        o->rows(o->ctx, done + (int64_t)i, k, d->host_logits);
        i += k;
    }
    return ST_OK;
}

/* Whether attention may round as the products around it do. Beside matrices of float32 or float16, whose products
 * do not, it would be most of the logits' error: 1e-5 to 6e-5 (NMSE) of two layers of random weights. On a device those
 * of float16 do, to float16, and so may attention over such rows. */
static bool may_round(const session *s)
{
    const decoder *d = s->d;
    const kv_format *rows = &attn_seq_spec(s->attn)->kv;
    bool f16 = d->m->type == DT_F16 && d->be->ops->rounds_f16 && rows->kind == KV_EXACT && rows->type == DT_F16;
    return !d->opt.exact && (d->m->type == DT_BF16 || dtype_in_qblocks(d->m->type) || f16);
}

/* Positions and tables of n rows of a prompt of `total`, of which `done` are stored. */
static attn_step prompt_step(session *const *s, size_t n_sessions, size_t n, int64_t done, int64_t total)
{
    decoder *d = s[0]->d;
    int64_t pos0 = session_length(s[0]);
    for (size_t i = 0; i < n; i++) d->host_pos[i] = pos0 + (int64_t)i;
    d->be->ops->upload(d->be, d->pos, d->host_pos, n * sizeof *d->host_pos);
    set_freq(d, 0, pos0 - done + total);
    set_tables(d, 1, n);
    unsigned flags = ATTN_PROMPT | (done + (int64_t)n == total ? ATTN_PROMPT_END : 0);
    attn_step step = make_step(d, s, n_sessions, n, flags | (may_round(s[0]) ? ATTN_ROUNDED : 0));
    for (size_t i = 0; i < n_sessions; i++) {
        if (!s[i]->open) s[i]->opened = pos0;
        s[i]->open = !(step.flags & ATTN_PROMPT_END);
        bind_prompt(s[i], pos0 - done, pos0 - done + total);
    }
    step.n_prompt = total;
    step.prompt_done = done;
    return step;
}

static status prefill_chunk(session *const *s, size_t n_sessions, const int32_t *ids, size_t n, int64_t done,
                            int64_t total, const prefill_options *o, err *e)
{
    decoder *d = s[0]->d;
    bool last = done + (int64_t)n == total;
    d->be->ops->upload(d->be, d->ids, ids, n * sizeof *ids);
    attn_step step = prompt_step(s, n_sessions, n, done, total);
    step.hint = o->hint;
    decoder_forward(d, &step);
    TRY(backend_fault(d->be, e));
    TRY(give_logits(d, o, done, n, last, e));
    if (o->progress && !o->progress(o->ctx, done + (int64_t)n, total)) return err_set(e, ST_INTERRUPTED, "interrupted");
    return ST_OK;
}

/* A store with codes has exact rows for no longer prompt. */
static status check_waiting(const session *s, int64_t n, err *e)
{
    const kv_format *f = &attn_seq_spec(s->attn)->kv;
    if (f->kind == KV_EXACT || s->longest_prompt == 0 || n <= s->longest_prompt) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "prompt of %lld tokens, the store has room for one of %lld", (long long)n,
                   (long long)s->longest_prompt);
}

status session_prefill(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_ids, const prefill_options *o,
                       err *e)
{
    decoder *d = s[0]->d;
    if (n_sessions > d->max_rows)
        return err_set(e, ST_USAGE, "%zu sessions, at most %zu in one batch", n_sessions, d->max_rows);
    TRY(check_ids(d, ids, n_ids, e));
    for (size_t i = 0; i < n_sessions; i++)
        if (session_length(s[i]) + (int64_t)n_ids > s[i]->limit)
            return err_set(e, ST_UNSUPPORTED,
                           "prompt of %zu tokens behind %lld does not fit the context of %lld (see --ctx)", n_ids,
                           (long long)session_length(s[i]), (long long)s[i]->limit);
    int64_t before = (int64_t)o->before, total = before + (int64_t)(n_ids + o->after);
    for (size_t i = 0; i < n_sessions; i++) TRY(check_waiting(s[i], total, e));
    for (size_t done = 0; done < n_ids;) {
        size_t n = n_ids - done < d->opt.chunk ? n_ids - done : d->opt.chunk;
        TRY(prefill_chunk(s, n_sessions, ids + done, n, before + (int64_t)done, total, o, e));
        done += n;
    }
    return ST_OK;
}

/* The step of a chunk of given rows. */
static attn_step store_step(session *const *s, size_t n_sessions, size_t n, int64_t done, const store_options *o)
{
    int64_t from = o->piece > 0 ? done / o->piece * o->piece : 0, total = o->n_tokens + o->after - from;
    if (o->piece > 0 && total > o->piece) total = o->piece;
    return prompt_step(s, n_sessions, n, done - from, total);
}

/* One chunk in every layer. */
static void store_chunk(session *const *s, size_t n_sessions, size_t n, int64_t done, const store_options *o)
{
    decoder *d = s[0]->d;
    attn_step step = store_step(s, n_sessions, n, done, o);
    attn_begin(d->work, &step);
    for (int l = 0; l < d->shape.n_layers; l++) {
        o->rows(o->source, l, done, n, d->k, d->v);
        attn_store(d->work, &step, l, d->k, d->v);
    }
    attn_end(d->work, &step);
}

status session_store(session *const *s, size_t n_sessions, const store_options *o, err *e)
{
    decoder *d = s[0]->d;
    int64_t chunk = (int64_t)d->opt.chunk;
    status st = ST_OK;
    if (n_sessions > d->max_rows || session_length(s[0]) + o->n_tokens > s[0]->limit)
        return err_set(e, ST_UNSUPPORTED, "%lld tokens do not fit the context of %lld", (long long)o->n_tokens,
                       (long long)s[0]->limit);
    for (size_t i = 0; i < n_sessions; i++)
        TRY(check_waiting(s[i], o->piece > 0 ? o->piece : o->n_tokens + o->after, e));
    for (int64_t done = 0; done < o->n_tokens && st == ST_OK;) {
        size_t n = (size_t)(o->n_tokens - done < chunk ? o->n_tokens - done : chunk);
        store_chunk(s, n_sessions, n, done, o);
        done += (int64_t)n;
        st = backend_fault(d->be, e);
        if (st == ST_OK && o->progress && !o->progress(o->ctx, done, o->n_tokens))
            st = err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return st;
}

/* Whether n sessions can take a token more each; positions go to host_pos. */
static status check_step(session *const *s, size_t n, err *e)
{
    decoder *d = s[0]->d;
    if (n > d->opt.max_batch)
        return err_set(e, ST_USAGE, "%zu sessions, at most %zu in one batch", n, d->opt.max_batch);
    for (size_t i = 0; i < n; i++) {
        d->host_pos[i] = session_length(s[i]);
        if (d->host_pos[i] >= s[i]->limit)
            return err_set(e, ST_UNSUPPORTED, "the context of %lld tokens is full (see --ctx)", (long long)s[i]->limit);
    }
    return ST_OK;
}

/* Queues a step up to its logits; ids NULL: those that the step before chose. */
static void queue_step(session *const *s, size_t n, const int32_t *ids, unsigned flags)
{
    decoder *d = s[0]->d;
    for (size_t i = 0; i < n; i++) set_freq(d, i, d->host_pos[i] + 1);
    if (ids) d->be->ops->upload(d->be, d->ids, ids, n * sizeof *ids);
    else d->be->ops->copy(d->be, d->ids, d->next, n * sizeof *ids);
    d->be->ops->upload(d->be, d->pos, d->host_pos, n * sizeof *d->host_pos);
    set_tables(d, n, 1);
    attn_step step = make_step(d, s, n, 1, flags);
    if (flags & ATTN_DRAFT && d->opt.draft) d->w = d->opt.draft;
    decoder_forward(d, &step);
    decoder_head(d, 0, n);
}

status session_decode(session *const *s, size_t n, const int32_t *ids, float *logits, err *e)
{
    decoder *d = s[0]->d;
    TRY(check_step(s, n, e));
    TRY(check_ids(d, ids, n, e));
    backend_step_begin(d->be);
    queue_step(s, n, ids, 0);
    backend_step_end(d->be);
    return decoder_logits(d, logits, 0, n, e);
}

/* The logits of a row of the last step. */
static buf logits_of(const decoder *d, size_t row)
{
    return buf_at(d->logits, row * (size_t)d->m->config.vocab * sizeof(float));
}

/* Queues the choice of tokens from n rows of the step's logits, and sends them on their way. */
static void queue_choice(decoder *d, size_t row, size_t n, sampler *const *by)
{
    const backend_ops *o = d->be->ops;
    for (size_t i = 0; i < n; i++) {
        d->rules[i] = by ? sampler_rule(by[i], d->host_pos[row + i] + 1) : (draw_rule){.top_p = 1};
        d->host_share[i] = by ? sampler_share(by[i]) : 0;
    }
    o->upload(d->be, d->share, d->host_share, n * sizeof *d->host_share);
    o->draw(d->be, d->next, logits_of(d, row), n, (size_t)d->m->config.vocab, d->rules, d->share);
    backend_send(d->be, (unsigned)(d->n_queued % BACKEND_SLOTS), d->next, n * sizeof(int32_t));
    backend_mark(d->be, STAGE_LOGITS);
}

/* True if logits are checked before each choice. A backend that queues would have to wait: it checks once. */
static bool checks_choices(const decoder *d)
{
    return !d->be->ops->queues;
}

/* Queues a step and its choice; nothing is chosen after an error. */
static status queue_chosen(session *const *s, size_t n, const int32_t *ids, sampler *const *by, unsigned flags, err *e)
{
    decoder *d = s[0]->d;
    backend_step_begin(d->be);
    queue_step(s, n, ids, flags);
    status st = checks_choices(d) ? decoder_logits(d, d->host_logits, 0, n, e) : ST_OK;
    if (st == ST_OK) queue_choice(d, 0, n, by);
    backend_step_end(d->be);
    TRY(st);
    d->n_queued++;
    return d->checked ? backend_fault(d->be, e) : decoder_logits(d, d->host_logits, 0, n, e);
}

status session_queue(session *const *s, size_t n, const int32_t *ids, sampler *const *by, err *e)
{
    decoder *d = s[0]->d;
    TRY(check_step(s, n, e));
    if (n > SESSION_QUEUE_ROWS || d->n_queued - d->n_taken >= BACKEND_SLOTS)
        return err_set(e, ST_USAGE, "%zu sessions in a queued step, at most %d, and %d steps", n, SESSION_QUEUE_ROWS,
                       BACKEND_SLOTS);
    if (ids) TRY(check_ids(d, ids, n, e));
    return queue_chosen(s, n, ids, by, 0, e);
}

status session_take(decoder *d, size_t n, int32_t *ids, err *e)
{
    backend_receive(d->be, ids, (unsigned)(d->n_taken++ % BACKEND_SLOTS), n * sizeof *ids);
    return backend_fault(d->be, e);
}

/* ---- steps of one session together ---- */

static status check_verify(const session *s, size_t n, err *e)
{
    const decoder *d = s->d;
    int64_t length = session_length(s);
    TRY(attn_verify_check(attn_seq_spec(s->attn), e));
    if (n > d->opt.verify)
        return err_set(e, ST_USAGE, "%zu rows of a session in one step, at most %zu", n, d->opt.verify);
    if (length + (int64_t)n > s->limit)
        return err_set(e, ST_UNSUPPORTED, "%zu tokens behind %lld do not fit the context of %lld (see --ctx)", n,
                       (long long)length, (long long)s->limit);
    return ST_OK;
}

/* After a step that failed: back to the first n tokens, with nothing queued. The backend keeps the fault. */
static void take_back(session *s, int64_t n)
{
    s->d->n_taken = s->d->n_queued;
    if (session_length(s) > n) (void)session_rewind(s, n, NULL);
}

status session_verify(session *s, const int32_t *ids, size_t n, err *e)
{
    decoder *d = s->d;
    int64_t length = session_length(s);
    TRY(check_verify(s, n, e));
    TRY(check_ids(d, ids, n, e));
    for (size_t i = 0; i < n; i++) d->host_pos[i] = session_length(s) + (int64_t)i;
    backend_step_begin(d->be);
    for (size_t i = 0; i < n; i++) set_freq(d, i, d->host_pos[i] + 1);
    d->be->ops->upload(d->be, d->ids, ids, n * sizeof *ids);
    d->be->ops->upload(d->be, d->pos, d->host_pos, n * sizeof *d->host_pos);
    set_tables(d, n, 1);
    attn_step step = make_step(d, &s, 1, n, ATTN_VERIFY);
    decoder_forward(d, &step);
    decoder_head(d, 0, n);
    backend_step_end(d->be);
    bool later = d->checked || checks_choices(d);
    status st = later ? backend_fault(d->be, e) : decoder_logits(d, d->host_logits, 0, n, e);
    if (st != ST_OK) take_back(s, length);
    return st;
}

status session_verified_logits(session *s, size_t row, float *logits, err *e)
{
    return decoder_logits(s->d, logits, row, 1, e);
}

status session_verified(session *s, size_t row, sampler *by, int32_t *id, err *e)
{
    decoder *d = s->d;
    if (by && !sampler_is_plain(by)) {
        TRY(session_verified_logits(s, row, d->host_logits, e));
        *id = sampler_next(by, d->host_logits, d->host_pos[row] + 1);
        return ST_OK;
    }
    if (checks_choices(d)) TRY(decoder_logits(d, d->host_logits, row, 1, e));
    queue_choice(d, row, 1, by ? &by : NULL);
    d->n_queued++;
    return session_take(d, 1, id, e);
}

/* ---- drafts ---- */

/* A step whose choice needs the tokens before it on the host. */
static status draft_one(session *s, int32_t fed, sampler *by, int32_t *id, err *e)
{
    decoder *d = s->d;
    TRY(check_step(&s, 1, e));
    backend_step_begin(d->be);
    queue_step(&s, 1, &fed, ATTN_DRAFT);
    backend_step_end(d->be);
    TRY(decoder_logits(d, d->host_logits, 0, 1, e));
    *id = sampler_next(by, d->host_logits, session_length(s));
    sampler_accept(by, *id);
    return ST_OK;
}

status session_draft_on(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e)
{
    decoder *d = s->d;
    size_t taken = 0;
    TRY(check_ids(d, &first, 1, e));
    if (by && !sampler_is_plain(by)) {
        for (size_t i = 0; i < n; i++) TRY(draft_one(s, i ? ids[i - 1] : first, by, &ids[i], e));
        return ST_OK;
    }
    for (size_t i = 0; i < n; i++) {
        TRY(check_step(&s, 1, e));
        if (i - taken == BACKEND_SLOTS) TRY(session_take(d, 1, &ids[taken++], e));
        TRY(queue_chosen(&s, 1, i ? NULL : &first, by ? &by : NULL, ATTN_DRAFT, e));
    }
    while (taken < n) TRY(session_take(d, 1, &ids[taken++], e));
    return ST_OK;
}

status session_draft(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e)
{
    int64_t length = session_length(s);
    size_t seen = by ? sampler_seen(by) : 0;
    uint64_t random = by ? sampler_random(by) : 0;
    status st = session_draft_on(s, first, n, by, ids, e);
    if (by) {
        sampler_forget(by, seen);
        sampler_set_random(by, random);
    }
    if (st == ST_OK) return session_rewind(s, length, e);
    take_back(s, length);
    return st;
}

int decoder_ahead(const decoder *d)
{
    return backend_ahead(d->be);
}
