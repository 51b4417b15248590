/* SPDX-License-Identifier: MIT */
/* One generated sequence: prefill by chunks, sampling and text output. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "model/sampler.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

static status write_text(void *ctx, const char *text, size_t n, err *e)
{
    gen *g = ctx;
    return buffer_add(&g->text, text, n, e);
}

/* ---- logprobs ---- */

/* Selects the n best tokens of a row in order; ties go to the lower id. */
static int best_of(api_score *out, int n, const float *logits, size_t vocab)
{
    int k = 0;
    for (size_t i = 0; i < vocab && n > 0; i++) {
        if (isnan(logits[i]) || (k == n && logits[i] <= out[k - 1].logprob)) continue;
        int at = k < n ? k++ : n - 1;
        for (; at > 0 && out[at - 1].logprob < logits[i]; at--) out[at] = out[at - 1];
        out[at] = (api_score){(int32_t)i, logits[i]};
    }
    return k;
}

static status add_token(gen *g, const api_token *t, err *e)
{
    TRY(MEM_ROOM(&g->tokens, &g->cap_tokens, g->n_tokens + 1, e));
    g->tokens[g->n_tokens++] = *t;
    return ST_OK;
}

/* Appends the log softmax of a token and of the best tokens of a row of raw logits. id -1: no token. */
static status score(gen *g, int32_t id, const float *logits, size_t vocab, err *e)
{
    api_token t = {.own = {id, 0}, .known = true};
    if (!g->j->r.logprobs || id < 0) return ST_OK;
    const int32_t best = logits_argmax(logits, vocab);
    const double norm = logits_nll(logits, vocab, best) + (double)logits[best];
    t.n_top = best_of(t.top, g->j->r.top_logprobs, logits, vocab);
    for (int k = 0; k < t.n_top; k++) t.top[k].logprob = (float)((double)t.top[k].logprob - norm);
    t.own.logprob = (float)((double)logits[id] - norm);
    return add_token(g, &t, e);
}

/* ---- sequences of one prompt ---- */

static job_fork *fork_of(const gen *g)
{
    return g->j->forks ? &g->j->forks[g->index / g->j->r.n] : NULL;
}

static gen *first_of(const gen *g)
{
    return &g->j->gens[g->index / g->j->r.n * g->j->r.n];
}

bool gen_waits(const gen *g)
{
    const job_fork *f = fork_of(g);
    return f && g != first_of(g) && !f->of && !f->each;
}

static bool is_forked(const gen *g)
{
    const job_fork *f = fork_of(g);
    return f && g != first_of(g) && f->of;
}

static size_t fork_bytes(const gen *g, const scheduler *s)
{
    attn_bytes held = attn_seq_held(session_attn(g->q.s));
    return held.kv + held.index + s->x.vocab * sizeof(float);
}

static status take_fork(job_fork *f, const gen *g, const scheduler *s, err *e)
{
    TRY(MEM_NEW(&f->logits, s->x.vocab, e));
    memcpy(f->logits, s->x.logits, s->x.vocab * sizeof *f->logits);
    return session_keep(&f->of, g->q.s, &(session_notes){0}, e);
}

/* Copies the state after a prompt, whose last logits are in the stepper's first row. If memory is short or the session
 * cannot be copied, each sequence computes the prompt. */
static void fork_prompt(gen *g, scheduler *s)
{
    job_fork *f = fork_of(g);
    err e = {0};
    if (!f || g != first_of(g)) return;
    size_t need = fork_bytes(g, s), with = s->used + need;
    f->limit = session_limit(g->q.s);
    f->kept = g->q.hit;
    f->kept.entry = NULL;
    f->n_tokens = g->n_tokens;
    f->each = drafter_session(g->q.draft, 1).draft || with > s->o.memory ||
              (s->prefix && !prefix_shrink(prefix_cache_store(s->prefix), s->o.memory - with)) ||
              take_fork(f, g, s, &e) != ST_OK;
    if (f->each) return;
    f->bytes = need;
    f->left = (size_t)g->j->r.n - 1;
    s->used += need;
}

static void drop_fork(job_fork *f, scheduler *s)
{
    s->used -= f->of ? f->bytes : 0;
    session_file_close(f->of);
    mem_free(f->logits);
    f->of = NULL;
    f->logits = NULL;
}

void gen_drop_forks(job *j, scheduler *s)
{
    for (size_t i = 0; j->forks && i < j->n_prompts; i++) drop_fork(&j->forks[i], s);
}

/* Continues from the copied state of the first sequence of the prompt. */
static status continue_fork(gen *g, scheduler *s, err *e)
{
    job_fork *f = fork_of(g);
    const api_token *scores = first_of(g)->tokens;
    memcpy(s->x.logits, f->logits, s->x.vocab * sizeof *f->logits);
    TRY(session_load(g->q.s, f->of, &(session_notes){0}, e));
    g->q.hit = f->kept;
    g->q.n_fed = g->n_cached = (size_t)g->n_prefill;
    if (--f->left == 0) drop_fork(f, s);
    for (size_t i = 0; i < f->n_tokens; i++) TRY(add_token(g, &scores[i], e));
    g->state = GEN_DECODES;
    return gen_row(g, s, s->x.logits, e);
}

/* ---- the prefix cache ---- */

/* True if the prompt's tokens are scored, which requires computing all of its rows. */
static bool scores_prompt(const gen *g)
{
    return g->j->r.echo && g->j->r.logprobs;
}

bool gen_admit(gen *g, scheduler *s)
{
    const job *j = g->j;
    size_t with = s->used + g->bytes;
    bool fits = with <= s->o.memory;
    const prefix_lookup p = {.spec = &j->spec,
                             .limit = s->o.ctx,
                             .ids = g->prompt->ids,
                             .n = (size_t)g->n_prefill,
                             .client = s->o.prefix_shared ? NULL : j->client.client,
                             .salt = j->r.cache_salt,
                             .keep_only = scores_prompt(g),
                             .replies = true};
    if (j->cached && !is_forked(g)) prefix_cache_find(&g->found, s->prefix, &p);
    if (fits && s->prefix) fits = prefix_shrink(prefix_cache_store(s->prefix), s->o.memory - with);
    if (fits || s->n_running == 0) return true;
    prefix_cache_release(&g->found, s->prefix);
    return false;
}

static void begin_prompt(gen *g, scheduler *s)
{
    sequence_begin_found(&g->q, (size_t)g->n_prefill, &g->found);
    g->found = (prefix_hit){0};
    g->n_cached = g->q.n_fed;
    g->state = GEN_PROMPT;
    if (!g->j->cached || scores_prompt(g)) return;
    sched_count(s, &s->counts.cached_tokens, (int64_t)g->n_cached);
    sched_count(s, &s->counts.lookups[g->n_cached > 0], 1);
}

/* ---- a sequence ---- */

/* Returns the prefix cache if it serves the sequence or may store it. */
static prefix_cache *cache_of(const gen *g, const scheduler *s)
{
    const prefix_hit *k = is_forked(g) ? &fork_of(g)->kept : &g->found;
    const size_t most = g->prompt->n + (size_t)g->j->r.max_tokens;
    return k->entry || k->keep || prefix_cache_may_keep(k, s->prefix, most) ? s->prefix : NULL;
}

/* Opens the session. It has room for the whole context only if the prefix cache serves or stores it. */
status gen_open(gen *g, scheduler *s, err *e)
{
    const job *j = g->j;
    const int64_t reach = (int64_t)g->prompt->n + j->r.max_tokens;
    sampler_options sampling = j->r.sampling;
    sampling.seed = j->seed + (uint64_t)g->index;
    const sequence_options o = {.spec = &j->spec,
                                .size = {.n_tokens = is_forked(g) ? fork_of(g)->limit : reach, .reach = reach},
                                .sampling = &sampling,
                                .drafts = &(draft_options){.spec = j->r.draft, .name = "draft"},
                                .cache = cache_of(g, s)};
    TRY(sequence_open(&g->q, s->o.dec, &o, e));
    TRY(sequence_push(&g->q, g->prompt->ids, g->prompt->n, e));
    TRY(sequence_restrict(&g->q, compiled_grammar(j->under), s->words, e));
    TRY(text_out_open(&g->out, s->o.tok, j->r.stop, j->r.n_stop, e));
    g->out.write = write_text;
    g->out.ctx = g;
    g->exact_prompt = session_can_share(g->q.s, g->q.s, (size_t)g->n_prefill);
    if (j->r.chat) TRY(reply_open(g, s, e));
    else TRY(text_out_begin(&g->out, g->prompt->ids, g->prompt->n, j->r.echo, e));
    if (is_forked(g)) return continue_fork(g, s, e);
    if (scores_prompt(g)) TRY(add_token(g, &(api_token){.own = {g->prompt->ids[0], 0}}, e));
    begin_prompt(g, s);
    return ST_OK;
}

void gen_close(gen *g, bool keep)
{
    lens_close(g->lens);
    g->lens = NULL;
    if (keep) sequence_keep(&g->q);
    sequence_end(&g->q);
    prefix_cache_release(&g->found, g->j->sched->prefix);
}

void gen_free(gen *g)
{
    lens_close(g->lens);
    sequence_close(&g->q);
    text_out_close(&g->out);
    call_parser_free(g->parser);
    token_list_free(&g->closing);
    api_events_free(&g->events);
    mem_free(g->text.p);
    mem_free(g->tokens);
}

/* Counts the calls of a reply. n: number of events before its end. */
static void count_calls(const gen *g, size_t n, bool by_length)
{
    scheduler *s = g->j->sched;
    const int bad = call_parser_bad(g->parser);
    int cut = 0;
    for (; n < g->events.n && by_length; n++) cut |= g->events.list[n].what == CALL_END;
    sched_count(s, &s->counts.calls[CALL_BAD], bad);
    sched_count(s, &s->counts.calls[CALL_CUT], cut);
    sched_count(s, &s->counts.calls[CALL_COMPLETE], call_parser_calls(g->parser) - bad - cut);
}

static status finish(gen *g, const char *why, err *e)
{
    const size_t n = g->events.n;
    g->finish = why;
    g->state = GEN_DONE;
    g->stats = attn_seq_stats(session_attn(g->q.s));
    g->held = attn_seq_peak(session_attn(g->q.s));
    if (!g->j->r.chat) return text_out_end(&g->out, false, e);
    TRY(reply_end(g, e));
    count_calls(g, n, strcmp(why, "length") == 0);
    kept_add(g->j->sched, g);
    if (strcmp(why, "stop") == 0 && call_parser_calls(g->parser) > 0) g->finish = "tool_calls";
    return ST_OK;
}

/* Appends a sampled token and its text; ends the sequence after its last token. */
static status accept_token(gen *g, scheduler *s, int32_t id, err *e)
{
    const api_request *r = &g->j->r;
    TRY(sequence_accept(&g->q, id, e));
    g->n_new++;
    sched_count(s, &s->counts.new_tokens, 1);
    if (tokenizer_is_eos(s->o.tok, id) && !r->ignore_eos) return finish(g, "stop", e);
    TRY(r->chat ? reply_token(g, s, id, e) : text_out_token(&g->out, id, e));
    if (g->out.stopped || reply_ended(g)) return finish(g, "stop", e);
    return (int64_t)g->n_new < r->max_tokens ? ST_OK : finish(g, "length", e);
}

/* Chooses a token: one of the closing marker if thinking is at its budget. */
static int32_t choose(gen *g, scheduler *s, float *logits)
{
    const int64_t budget = g->j->r.thinking_budget;
    const int32_t id = sequence_choose(&g->q, logits);
    if (g->q.under) sched_count_time(s, &s->counts.mask, sequence_mask_ns(&g->q));
    const bool over = budget >= 0 && (int64_t)g->n_thinking >= budget && call_parser_thinks(g->parser);
    return over && g->n_closing < g->closing.n ? g->closing.ids[g->n_closing++] : id;
}

status gen_row(gen *g, scheduler *s, float *logits, err *e)
{
    const api_request *r = &g->j->r;
    const sequence *q = &g->q;
    size_t vocab = s->x.vocab;
    if (q->n_fed < q->ids.n) /* a prompt token fed as a decode step */
        return r->echo ? score(g, q->ids.ids[q->n_fed], logits, vocab, e) : ST_OK;
    if (r->max_tokens == 0) return finish(g, "length", e);
    if (!r->logprobs) return accept_token(g, s, choose(g, s, logits), e);
    memcpy(s->row, logits, vocab * sizeof *logits); /* sampling modifies the logits */
    int32_t id = choose(g, s, s->row);
    TRY(score(g, id, logits, vocab, e));
    return accept_token(g, s, id, e);
}

bool gen_needs_row(const gen *g)
{
    const api_request *r = &g->j->r;
    return r->logprobs || r->max_tokens == 0 || g->q.draft || g->q.n_fed + 1 < g->q.ids.n;
}

status gen_chosen(gen *g, scheduler *s, err *e)
{
    return accept_token(g, s, g->q.next, e);
}

/* ---- drafts ---- */

bool gen_drafts(const gen *g)
{
    return g->q.draft && g->j->r.thinking_budget < 0 && g->state == GEN_DECODES && g->q.n_fed >= g->prompt->n;
}

status gen_draft(gen *g, scheduler *s, err *e)
{
    sequence *q = &g->q;
    if (g->j->r.logprobs) drafter_copy_logits(q->draft, s->row);
    do {
        q->most = (size_t)g->j->r.max_tokens - g->n_new;
        TRY(sequence_next(&s->x, &q, 1, e));
        if (q->under) sched_count_time(s, &s->counts.mask, sequence_mask_ns(q));
        TRY(score(g, q->next, s->row, s->x.vocab, e));
        TRY(accept_token(g, s, q->next, e));
    } while (g->state == GEN_DECODES && drafter_ready(q->draft, &q->ids));
    return ST_OK;
}

/* ---- prompts ---- */

typedef struct {
    gen *g;
    scheduler *s;
    status st;
    err *e;
} scoring;

/* Scores prompt token `at`. */
static void take_row(void *ctx, size_t at, const float *logits)
{
    scoring *x = ctx;
    if (x->st == ST_OK) x->st = score(x->g, x->g->prompt->ids[at], logits, x->s->x.vocab, x->e);
}

status gen_prefill(gen *g, scheduler *s, err *e)
{
    sequence *q = &g->q;
    scoring x = {g, s, ST_OK, e};
    const prompt_options o = {
        .most = (size_t)decoder_chunk(s->o.dec), .logits = true, .row = scores_prompt(g) ? take_row : NULL, .ctx = &x};
    TRY(sequence_prefill(&s->x, &q, 1, &o, e));
    TRY(x.st);
    if (q->n_fed < q->end) return ST_OK;
    fork_prompt(g, s);
    g->state = GEN_DECODES;
    return gen_row(g, s, s->x.logits, e);
}
