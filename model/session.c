/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"
#include "model/block.h"
#include "model/decoder.h"

/* ---- sessions ---- */

static attn_limits limits_of(const model *m, const decoder_options *o, session_size size)
{
    return (attn_limits){.n_tokens = size.n_tokens,
                         .chunk = (int64_t)o->chunk,
                         .prompt = size.longest_prompt,
                         .draft = size.draft,
                         .at_once = m->be->ops->at_once};
}

/* Adds the weights of drafts to a plan; some may be mapped from a file. */
static void add_draft(memory_plan *p, const model *m, const model *draft)
{
    p->draft_weights = draft->weight_bytes;
    p->weights += draft->weight_bytes;
    p->weights_in_memory += draft->memory_bytes;
    if (m->to_load) p->to_load += draft->memory_bytes;
}

status session_plan(memory_plan *p, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                    err *e)
{
    decoder_options opt = decoder_defaults(o, m->be);
    attn_shape shape = attn_shape_of(&m->config);
    attn_limits lim = limits_of(m, &opt, size);
    if (size.reach > 0 && size.reach < lim.n_tokens && !lim.at_once) lim.n_tokens = size.reach;
    attn_bytes kv;
    size_t slow;
    *p = (memory_plan){.weights = m->weight_bytes, .weights_in_memory = m->memory_bytes};
    if (m->to_load) p->to_load = m->be->ops->imports_copy ? m->weight_bytes : m->memory_bytes;
    if (opt.draft) add_draft(p, m, opt.draft);
    TRY(attn_plan(&kv, spec, &shape, &lim, e));
    TRY(attn_plan_slow(&slow, spec, &shape, &lim, e));
    snprintf(p->tier_dir, sizeof p->tier_dir, "%s", kv_tier_dir(&spec->tier));
    p->kv = kv.kv;
    if (spec->tier.kind == KV_DISK) p->disk = slow;
    else if (m->be->ops->host && m->be->ops->host->room) p->host = slow;
    else p->kv += slow;
    p->index = kv.index + kv.scratch;
    p->scratch = attn_work_bytes(&shape, decoder_rows(&opt)) + decoder_bytes(m, &opt);
    TRY(recurrent_plan(&slow, m, size.snapshots, e));
    return size_add(&p->kv, p->kv, slow, "recurrent state", e);
}

static bool leaves_a_tenth(size_t need, size_t have)
{
    return have == 0 || need <= have / 10 * 9;
}

static bool plan_fits(const memory_plan *p, backend *be, size_t room)
{
    if (p->disk && !leaves_a_tenth(p->disk, be->ops->tier->room(be, p->tier_dir))) return false;
    if (p->host && !leaves_a_tenth(p->host, be->ops->host->room(be))) return false;
    return p->to_load + p->kv + p->index + p->scratch <= room;
}

/* Returns ST_NOMEM if `need` exceeds `have`; have 0: unknown. */
static status check_slow(const char *what, size_t need, size_t have, err *e)
{
    if (need == 0 || have == 0 || need <= have) return ST_OK;
    return err_set(e, ST_NOMEM, "--kv-tier %.100s: %.1f MB of keys and values are needed, %.1f MB are available", what,
                   (double)need / 1e6, (double)have / 1e6);
}

status memory_plan_check(const memory_plan *p, backend *be, err *e)
{
    TRY(check_slow(p->tier_dir, p->disk, p->disk ? be->ops->tier->room(be, p->tier_dir) : 0, e));
    TRY(check_slow("host", p->host, p->host ? be->ops->host->room(be) : 0, e));
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
    const attn_shape shape = attn_shape_of(&m->config);
    memory_plan plan;
    if (size.n_tokens < 1) return err_set(e, ST_USAGE, "--ctx %lld: must be at least 1", (long long)size.n_tokens);
    TRY(attn_spec_check(spec, &shape, e));
    if (size.draft) TRY(attn_draft_check(size.draft, spec, &shape, e));
    if (size.draft) TRY(recurrent_draft_check(m, e));
    TRY(session_plan(&plan, m, o, spec, size, e));
    TRY(attn_backend_check(spec, m->be, e));
    if (size.draft) TRY(attn_backend_check(size.draft, m->be, e));
    return memory_plan_check(&plan, m->be, e);
}

status session_longest(int64_t *n, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                       size_t room, err *e)
{
    int64_t low = 0, high = size.n_tokens; /* low fits, what is above high does not */
    memory_plan p;
    while (low < high) {
        size.n_tokens = low + (high - low + 1) / 2;
        TRY(session_plan(&p, m, o, spec, size, e));
        if (plan_fits(&p, m->be, room)) low = size.n_tokens;
        else high = size.n_tokens - 1;
    }
    *n = size.n_tokens = low ? low : 1;
    return session_check(m, o, spec, size, e);
}

/* Reserves the backend's scratch for prompts and for decode steps over n_tokens. */
static status reserve(decoder *d, int64_t n_tokens, err *e)
{
    const model_config *c = &d->m->config;
    const int widths[] = {c->hidden, c->ffn, c->expert_ffn, c->shared_ffn};
    int width = c->n_heads * c->head_dim;
    if (!d->be->ops->reserve) return ST_OK;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] > width) width = widths[i];
    const step_size most = {.rows = d->opt.max_batch > d->opt.verify ? d->opt.max_batch : d->opt.verify,
                            .n_heads = (size_t)c->n_heads,
                            .head_dim = (size_t)c->head_dim,
                            .width = (size_t)width,
                            .prompt_rows = d->opt.chunk,
                            .n_keys = n_tokens,
                            .exact = d->opt.exact};
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
    if (st == ST_OK) st = recurrent_create(&s->state, d->m, size.snapshots, e);
    if (st == ST_OK) st = reserve(d, size.n_tokens, e);
    if (st != ST_OK) session_free(s);
    else *out = s;
    return st;
}

void session_free(session *s)
{
    if (!s) return;
    attn_seq_free(s->attn);
    recurrent_free(s->state);
    mem_free(s);
}

void session_reset(session *s)
{
    s->open = false;
    s->bound = (attn_span){0};
    attn_seq_reset(s->attn);
    recurrent_reset(s->state);
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

void session_decode_by(session *s, bool tiles)
{
    attn_seq_decode_by(s->attn, tiles);
}

/* Returns n such that a prompt that ends at `end` can be cut only to multiples of n tokens. Dynamic RoPE rotates the
 * keys of a prompt beyond the trained length by its end, so that it cannot be cut at all. */
static int64_t grain_of(const session *s, int64_t end)
{
    if (end > config_static_length(&s->d->m->config)) return INT64_MAX;
    return attn_prompt_grain(attn_seq_spec(s->attn), end);
}

/* Records a prompt whose rows depend on its later tokens. */
static void bind_prompt(session *s, int64_t first, int64_t end)
{
    if (grain_of(s, end) > 1) s->bound = (attn_span){first, end};
}

/* Only the last bound prompt is recorded, not earlier ones. */
status session_rewind(session *s, int64_t n, err *e)
{
    const attn_span p = s->bound;
    if (n > 0 && n < p.end && n < session_length(s) && (n < p.first || (n - p.first) % grain_of(s, p.end) != 0))
        return err_set(e, ST_UNSUPPORTED,
                       "cannot rewind to %lld tokens: rows of the prompt that ends at %lld depend on its later tokens",
                       (long long)n, (long long)p.end);
    TRY(recurrent_can_rewind(s->state, n, e));
    TRY(attn_seq_rewind(s->attn, n, e));
    recurrent_rewind(s->state, n);
    if (n <= s->opened) s->open = false;
    if (n >= p.end) return ST_OK;
    s->bound = (attn_span){0};
    bind_prompt(s, n < p.first ? n : p.first, n);
    return ST_OK;
}

status session_snapshot(session *s, err *e)
{
    if (s->open) return err_set(e, ST_UNSUPPORTED, "cannot take a snapshot in the middle of a prompt");
    return recurrent_snapshot(s->state, e);
}

size_t session_state_bytes(const session *s)
{
    return recurrent_bytes(s->state);
}

bool session_can_share(const session *a, const session *b, size_t n_ids)
{
    return a->d == b->d && config_same_rotation(&a->d->m->config, a->limit, b->limit) &&
           a->limit - session_length(a) >= (int64_t)n_ids && b->limit - session_length(b) >= (int64_t)n_ids &&
           attn_can_share(a->attn, b->attn, (int64_t)n_ids);
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

static attn_step make_step(decoder *d, session *const *s, size_t n_seq, size_t n_tok, unsigned flags)
{
    for (size_t i = 0; i < n_seq; i++) {
        d->seqs[i] = s[i]->attn;
        d->states[i] = s[i]->state;
    }
    d->w = d->m;
    d->n_tok = n_tok;
    return (attn_step){.seq = d->seqs,
                       .n_seq = n_seq,
                       .n_tok = n_tok,
                       .flags = flags | (config_is_dynamic(&d->m->config) ? ATTN_FREQ_MOVES : 0),
                       .pos = d->pos,
                       .table = d->table,
                       .freq = d->freq,
                       .mscale = d->mscale[0]};
}

/* Passes the requested logits to the caller, from a chunk of n rows that begins at prompt row `done`. */
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

/* True if attention may round its inputs like the surrounding matrix products. With float32 or float16 matrices, whose
 * products do not round, this would dominate the error of the logits: NMSE 1e-5 to 6e-5 with two layers of random
 * weights. On a device, products with float16 matrices round to float16, and so may attention over float16 rows. */
static bool may_round(const session *s)
{
    const decoder *d = s->d;
    const kv_format *rows = &attn_seq_spec(s->attn)->kv;
    bool f16 = d->m->type == DT_F16 && d->be->ops->rounds_f16 && rows->kind == KV_PLAIN && rows->type == DT_F16;
    return !d->opt.exact && (d->m->type == DT_BF16 || dtype_in_qblocks(d->m->type) || f16);
}

/* Prepares positions, tables and the step for n rows of a prompt of `total` tokens, of which `done` are stored. */
static attn_step prompt_step(session *const *s, size_t n_sessions, size_t n, int64_t done, int64_t total)
{
    decoder *d = s[0]->d;
    int64_t pos0 = session_length(s[0]);
    for (size_t i = 0; i < n; i++) d->host_pos[i] = pos0 + (int64_t)i;
    d->be->ops->upload(d->be, d->pos, d->host_pos, n * sizeof *d->host_pos);
    decoder_set_freq(d, 0, config_rope_length(&d->m->config, pos0 - done + total, s[0]->limit));
    decoder_set_tables(d, 1, n);
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

/* Checks that n tokens of prompts of `whole` tokens can be stored. A quantized store has float rows for the longest
 * prompt. */
static status check_prompt(session *const *s, size_t n_sessions, int64_t n, int64_t whole, err *e)
{
    if (n_sessions > s[0]->d->max_rows)
        return err_set(e, ST_USAGE, "%zu sessions, at most %zu in one batch", n_sessions, s[0]->d->max_rows);
    for (size_t i = 0; i < n_sessions; i++) {
        bool waits = attn_seq_spec(s[i]->attn)->kv.kind != KV_PLAIN && s[i]->longest_prompt > 0;
        int64_t length = session_length(s[i]);
        if (n > s[i]->limit - length)
            return err_set(e, ST_UNSUPPORTED,
                           "prompt of %lld tokens after %lld does not fit the context of %lld (see --ctx)",
                           (long long)n, (long long)length, (long long)s[i]->limit);
        if (waits && whole > s[i]->longest_prompt)
            return err_set(e, ST_UNSUPPORTED, "prompt of %lld tokens: the store has room for %lld", (long long)whole,
                           (long long)s[i]->longest_prompt);
    }
    return ST_OK;
}

status session_prefill(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_ids, const prefill_options *o,
                       err *e)
{
    decoder *d = s[0]->d;
    int64_t before = (int64_t)o->before, total = before + (int64_t)(n_ids + o->after);
    TRY(check_ids(d, ids, n_ids, e));
    TRY(check_prompt(s, n_sessions, (int64_t)n_ids, total, e));
    for (size_t done = 0; done < n_ids;) {
        size_t n = n_ids - done < d->opt.chunk ? n_ids - done : d->opt.chunk;
        TRY(prefill_chunk(s, n_sessions, ids + done, n, before + (int64_t)done, total, o, e));
        done += n;
    }
    return ST_OK;
}

/* Prepares the step of a chunk of given rows. */
static attn_step store_step(session *const *s, size_t n_sessions, size_t n, int64_t done, const store_options *o)
{
    int64_t from = o->piece > 0 ? done / o->piece * o->piece : 0, total = o->n_tokens + o->after - from;
    if (o->piece > 0 && total > o->piece) total = o->piece;
    return prompt_step(s, n_sessions, n, done - from, total);
}

/* Stores a chunk in every layer. */
static void store_chunk(session *const *s, size_t n_sessions, size_t n, int64_t done, const store_options *o)
{
    decoder *d = s[0]->d;
    attn_step step = store_step(s, n_sessions, n, done, o);
    attn_begin(d->work, &step);
    for (const block *b = d->m->blocks; b < d->m->blocks + d->m->n_blocks; b++) {
        if (b->kv < 0) continue;
        const attn_step own = decoder_step(d, &step, b);
        buf k, v;
        attention_scratch(d, b, d->max_rows, &k, &v);
        o->rows(o->source, b->kv, done, n, k, v);
        attn_store(d->work, &own, b->kv, k, v);
    }
    attn_end(d->work, &step);
}

status session_store(session *const *s, size_t n_sessions, const store_options *o, err *e)
{
    decoder *d = s[0]->d;
    int64_t chunk = (int64_t)d->opt.chunk;
    TRY(check_prompt(s, n_sessions, o->n_tokens, o->piece > 0 ? o->piece : o->n_tokens + o->after, e));
    for (int64_t done = 0; done < o->n_tokens;) {
        size_t n = (size_t)(o->n_tokens - done < chunk ? o->n_tokens - done : chunk);
        store_chunk(s, n_sessions, n, done, o);
        done += (int64_t)n;
        TRY(backend_fault(d->be, e));
        if (o->progress && !o->progress(o->ctx, done, o->n_tokens)) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* Checks that n sessions have room for one more token, and writes their positions to host_pos. */
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

/* Queues a step up to its logits: n_tok rows at host_pos for each of n_seq sessions; n_seq or n_tok is 1. ids NULL: the
 * tokens chosen by the previous step. */
static void queue_step(session *const *s, size_t n_seq, size_t n_tok, const int32_t *ids, unsigned flags)
{
    decoder *d = s[0]->d;
    size_t n = n_seq * n_tok;
    for (size_t i = 0; i < n; i++)
        decoder_set_freq(d, i, config_rope_length(&d->m->config, d->host_pos[i] + 1, s[n_seq > 1 ? i : 0]->limit));
    if (ids) d->be->ops->upload(d->be, d->ids, ids, n * sizeof *ids);
    else d->be->ops->copy(d->be, d->ids, d->next, n * sizeof *ids);
    d->be->ops->upload(d->be, d->pos, d->host_pos, n * sizeof *d->host_pos);
    decoder_set_tables(d, n, 1);
    attn_step step = make_step(d, s, n_seq, n_tok, flags);
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
    queue_step(s, n, 1, ids, 0);
    backend_step_end(d->be);
    return decoder_logits(d, logits, 0, n, e);
}

buf decoder_row(const decoder *d, size_t row)
{
    return buf_at(d->logits, row * (size_t)d->m->config.vocab * sizeof(float));
}

/* Queues the choice of tokens from n rows of the step's logits, and their transfer to the host. */
static void queue_choice(decoder *d, size_t row, size_t n, sampler *const *by)
{
    const backend_ops *o = d->be->ops;
    for (size_t i = 0; i < n; i++) {
        sampler *s = by ? by[i] : NULL;
        d->rules[i] = s ? sampler_rule(s, d->host_pos[row + i] + 1) : (draw_rule){.top_p = 1};
        d->host_uniform[i] = s ? sampler_uniform(s) : 0;
    }
    o->upload(d->be, d->uniform, d->host_uniform, n * sizeof *d->host_uniform);
    o->draw(d->be, d->next, decoder_row(d, row), n, (size_t)d->m->config.vocab, d->rules, d->uniform);
    backend_send(d->be, (unsigned)(d->n_queued % BACKEND_SLOTS), d->next, 2 * n * sizeof(int32_t));
    backend_mark(d->be, STAGE_LOGITS);
}

/* True if logits are checked on the host before each choice. That would wait for a backend that queues: its choices are
 * checked when they are taken. */
static bool checks_choices(const decoder *d)
{
    return !d->be->ops->queues;
}

/* Queues a step and its choice. Chooses nothing after an error. */
static status queue_chosen(session *const *s, size_t n, const int32_t *ids, sampler *const *by, unsigned flags, err *e)
{
    decoder *d = s[0]->d;
    backend_step_begin(d->be);
    queue_step(s, n, 1, ids, flags);
    status st = checks_choices(d) ? decoder_logits(d, d->host_logits, 0, n, e) : ST_OK;
    if (st == ST_OK) queue_choice(d, 0, n, by);
    backend_step_end(d->be);
    TRY(st);
    d->n_queued++;
    return backend_fault(d->be, e);
}

status session_queue(session *const *s, size_t n, const int32_t *ids, sampler *const *by, err *e)
{
    decoder *d = s[0]->d;
    TRY(check_step(s, n, e));
    if (n > SESSION_QUEUE_ROWS || d->n_queued - d->n_taken >= BACKEND_SLOTS)
        return err_set(e, ST_USAGE, "%zu sessions in a queued step: at most %d sessions and %d steps", n,
                       SESSION_QUEUE_ROWS, BACKEND_SLOTS);
    if (ids) TRY(check_ids(d, ids, n, e));
    return queue_chosen(s, n, ids, by, 0, e);
}

/* Takes the choices of a queued step from n rows of logits. */
static status take(decoder *d, size_t row, size_t n, int32_t *ids, err *e)
{
    int32_t got[2 * SESSION_QUEUE_ROWS];
    bool finite = true;
    backend_receive(d->be, got, (unsigned)(d->n_taken++ % BACKEND_SLOTS), 2 * n * sizeof *ids);
    TRY(backend_fault(d->be, e));
    for (size_t i = 0; i < n; i++) {
        ids[i] = got[n + i] ? got[i] : -1;
        finite &= got[n + i] != 0;
    }
    if (finite) return ST_OK;
    TRY(decoder_logits(d, d->host_logits, row, n, e));
    return err_set(e, ST_FORMAT, "%.40s: the logits of a step are not finite", d->m->name); /* others follow it */
}

status session_take(decoder *d, size_t n, int32_t *ids, err *e)
{
    return take(d, 0, n, ids, e);
}

/* ---- several steps of one session ---- */

static status check_verify(const session *s, size_t n, err *e)
{
    const decoder *d = s->d;
    TRY(attn_verify_check(attn_seq_spec(s->attn), e));
    TRY(recurrent_draft_check(d->m, e));
    if (n > d->opt.verify)
        return err_set(e, ST_USAGE, "%zu rows of a session in one step, at most %zu", n, d->opt.verify);
    if (session_length(s) + (int64_t)n <= s->limit) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%zu rows after %lld tokens do not fit the context of %lld (see --ctx)", n,
                   (long long)session_length(s), (long long)s->limit);
}

/* Undoes a failed step: rewinds to n tokens and drops queued choices. The backend keeps the fault. */
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
    for (size_t i = 0; i < n; i++) d->host_pos[i] = length + (int64_t)i;
    backend_step_begin(d->be);
    queue_step(&s, 1, n, ids, ATTN_VERIFY);
    backend_step_end(d->be);
    status st = backend_fault(d->be, e);
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
    return take(d, row, 1, id, e);
}

/* ---- drafts ---- */

/* Runs a draft step whose choice needs the previous tokens on the host. */
static status draft_one(session *s, int32_t fed, sampler *by, int32_t *id, err *e)
{
    decoder *d = s->d;
    TRY(check_step(&s, 1, e));
    backend_step_begin(d->be);
    queue_step(&s, 1, 1, &fed, ATTN_DRAFT);
    backend_step_end(d->be);
    TRY(decoder_logits(d, d->host_logits, 0, 1, e));
    *id = sampler_next(by, d->host_logits, session_length(s));
    sampler_accept_new(by, *id);
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
    const sampler_counts counted = by ? sampler_counted(by) : (sampler_counts){0};
    uint64_t random = by ? sampler_random(by) : 0;
    status st = session_draft_on(s, first, n, by, ids, e);
    if (by) {
        sampler_forget(by, counted, ids);
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
