/* SPDX-License-Identifier: MIT */
/* One generated answer: its prompt in pieces, and tokens and text from logits. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "model/sampler.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

static status write_text(void *ctx, const char *text, size_t n, err *e)
{
    choice *c = ctx;
    return buffer_add(&c->text, text, n, e);
}

/* ---- logprobs ---- */

/* The best `n` of a row, in order; of equals the lower id first. */
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

static status add_token(choice *c, const api_token *t, err *e)
{
    TRY(MEM_ROOM(&c->tokens, &c->cap_tokens, c->n_tokens + 1, e));
    c->tokens[c->n_tokens++] = *t;
    return ST_OK;
}

/* Scores a token by a row of raw logits: log softmax, natural logarithm. */
static status score(choice *c, int32_t id, const float *logits, size_t vocab, err *e)
{
    api_token t = {.own = {id, 0}, .known = true};
    if (!c->j->r.logprobs) return ST_OK;
    const int32_t best = logits_argmax(logits, vocab);
    const double norm = logits_nll(logits, vocab, best) + (double)logits[best];
    t.n_top = best_of(t.top, c->j->r.top_logprobs, logits, vocab);
    for (int k = 0; k < t.n_top; k++) t.top[k].logprob = (float)((double)t.top[k].logprob - norm);
    t.own.logprob = (float)((double)logits[id] - norm);
    return add_token(c, &t, e);
}

/* ---- choices of one prompt ---- */

static job_fork *fork_of(const choice *c)
{
    return c->j->forks ? &c->j->forks[c->index / c->j->r.n] : NULL;
}

static choice *first_of(const choice *c)
{
    return &c->j->choices[c->index / c->j->r.n * c->j->r.n];
}

bool choice_waits(const choice *c)
{
    const job_fork *f = fork_of(c);
    return f && c != first_of(c) && !f->of && !f->each;
}

static bool is_forked(const choice *c)
{
    const job_fork *f = fork_of(c);
    return f && c != first_of(c) && f->of;
}

static size_t fork_bytes(const choice *c, const scheduler *s)
{
    attn_bytes held = attn_seq_held(session_attn(c->q.s));
    return held.kv + held.index + s->x.vocab * sizeof(float);
}

static status take_fork(job_fork *f, const choice *c, const scheduler *s, err *e)
{
    TRY(MEM_NEW(&f->logits, s->x.vocab, e));
    memcpy(f->logits, s->x.logits, s->x.vocab * sizeof *f->logits);
    return session_keep(&f->of, c->q.s, &(session_notes){0}, e);
}

/* Copies the state after a prompt, whose last logits are in the first row. Without room, or where a session cannot be
 * copied, each choice computes the prompt. */
static void fork_prompt(choice *c, scheduler *s)
{
    job_fork *f = fork_of(c);
    err e = {0};
    if (!f || c != first_of(c)) return;
    size_t need = fork_bytes(c, s), with = s->used + need;
    f->limit = session_limit(c->q.s);
    f->n_tokens = c->n_tokens;
    f->each = drafter_session(c->q.draft, 1).draft || with > s->o.memory ||
              (s->prefix && !prefix_shrink(prefix_cache_store(s->prefix), s->o.memory - with)) ||
              take_fork(f, c, s, &e) != ST_OK;
    if (f->each) return;
    f->bytes = need;
    f->left = (size_t)c->j->r.n - 1;
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

void choice_drop_forks(job *j, scheduler *s)
{
    for (size_t i = 0; j->forks && i < j->n_prompts; i++) drop_fork(&j->forks[i], s);
}

/* Continues from the state that the first choice of the prompt left. */
static status continue_fork(choice *c, scheduler *s, err *e)
{
    job_fork *f = fork_of(c);
    const api_token *scores = first_of(c)->tokens;
    memcpy(s->x.logits, f->logits, s->x.vocab * sizeof *f->logits);
    TRY(session_load(c->q.s, f->of, &(session_notes){0}, e));
    c->q.n_fed = c->n_cached = (size_t)c->n_prefill;
    if (--f->left == 0) drop_fork(f, s);
    for (size_t i = 0; i < f->n_tokens; i++) TRY(add_token(c, &scores[i], e));
    c->state = CHOICE_DECODES;
    return choice_row(c, s, s->x.logits, e);
}

/* ---- the prefix cache ---- */

/* True if the prompt's own tokens are scored, for which all of its rows are computed. */
static bool scores_prompt(const choice *c)
{
    return c->j->r.echo && c->j->r.logprobs;
}

bool choice_admit(choice *c, scheduler *s)
{
    const job *j = c->j;
    size_t with = s->used + c->bytes;
    bool fits = with <= s->o.memory;
    const prefix_lookup p = {.spec = &j->spec,
                             .limit = s->o.ctx,
                             .ids = c->prompt->ids,
                             .n = (size_t)c->n_prefill,
                             .client = s->o.prefix_shared ? NULL : j->client.client,
                             .salt = j->r.cache_salt,
                             .keep_only = scores_prompt(c)};
    if (j->cached && !is_forked(c)) prefix_cache_find(&c->found, s->prefix, &p);
    if (fits && s->prefix) fits = prefix_shrink(prefix_cache_store(s->prefix), s->o.memory - with);
    if (fits || s->n_running == 0) return true;
    prefix_cache_release(&c->found, s->prefix);
    return false;
}

static void begin_prompt(choice *c, scheduler *s)
{
    sequence_begin_found(&c->q, (size_t)c->n_prefill, &c->found);
    c->found = (prefix_hit){0};
    c->n_cached = c->q.n_fed;
    c->state = CHOICE_PROMPT;
    if (!c->j->cached || scores_prompt(c)) return;
    sched_count(s, &s->counts.cached_tokens, (int64_t)c->n_cached);
    sched_count(s, &s->counts.lookups[c->n_cached > 0], 1);
}

/* ---- a sequence ---- */

/* Sessions have room for the whole context only where the prefix cache serves or keeps them. */
status choice_open(choice *c, scheduler *s, err *e)
{
    const job *j = c->j;
    const int64_t reach = (int64_t)c->prompt->n + j->r.max_tokens;
    sampler_options sampling = j->r.sampling;
    sampling.seed = j->seed + (uint64_t)c->index;
    const sequence_options o = {.spec = &j->spec,
                                .size = {.n_tokens = is_forked(c) ? fork_of(c)->limit : reach, .reach = reach},
                                .sampling = &sampling,
                                .drafts = &(draft_options){.spec = j->r.draft, .name = "draft"},
                                .cache = c->found.entry || c->found.keep ? s->prefix : NULL};
    TRY(sequence_open(&c->q, s->o.dec, &o, e));
    TRY(sequence_push(&c->q, c->prompt->ids, c->prompt->n, e));
    TRY(text_out_open(&c->out, s->o.tok, j->r.stop, j->r.n_stop, e));
    c->out.write = write_text;
    c->out.ctx = c;
    c->exact_prompt = session_can_share(c->q.s, c->q.s, (size_t)c->n_prefill);
    if (!j->r.chat) TRY(text_out_begin(&c->out, c->prompt->ids, c->prompt->n, j->r.echo, e));
    if (is_forked(c)) return continue_fork(c, s, e);
    if (scores_prompt(c)) TRY(add_token(c, &(api_token){.own = {c->prompt->ids[0], 0}}, e));
    begin_prompt(c, s);
    return ST_OK;
}

void choice_close(choice *c)
{
    lens_close(c->lens);
    c->lens = NULL;
    if (c->q.s) {
        c->stats = attn_seq_stats(session_attn(c->q.s));
        c->held = attn_seq_peak(session_attn(c->q.s));
    }
    sequence_end(&c->q);
    prefix_cache_release(&c->found, c->j->sched->prefix);
}

void choice_free(choice *c)
{
    lens_close(c->lens);
    sequence_close(&c->q);
    text_out_close(&c->out);
    mem_free(c->text.p);
    mem_free(c->tokens);
}

static status finish(choice *c, const char *why, err *e)
{
    c->finish = why;
    c->state = CHOICE_DONE;
    return text_out_end(&c->out, false, e);
}

/* Accepts a token that was chosen: adds its text, and ends the choice if it is the last. */
static status say(choice *c, scheduler *s, int32_t id, err *e)
{
    const api_request *r = &c->j->r;
    TRY(sequence_accept(&c->q, id, e));
    c->n_new++;
    sched_count(s, &s->counts.new_tokens, 1);
    if (tokenizer_is_eos(s->o.tok, id) && !r->ignore_eos) return finish(c, "stop", e);
    TRY(text_out_token(&c->out, id, e));
    if (c->out.stopped) return finish(c, "stop", e);
    return (int64_t)c->n_new < r->max_tokens ? ST_OK : finish(c, "length", e);
}

status choice_row(choice *c, scheduler *s, float *logits, err *e)
{
    const api_request *r = &c->j->r;
    const sequence *q = &c->q;
    size_t vocab = s->x.vocab;
    if (q->n_fed < q->ids.n) /* the prompt's end as decode steps */
        return r->echo ? score(c, q->ids.ids[q->n_fed], logits, vocab, e) : ST_OK;
    if (r->max_tokens == 0) return finish(c, "length", e);
    if (!r->logprobs) return say(c, s, sequence_choose(&c->q, logits), e);
    memcpy(s->row, logits, vocab * sizeof *logits); /* sampling changes them */
    int32_t id = sequence_choose(&c->q, s->row);
    TRY(score(c, id, logits, vocab, e));
    return say(c, s, id, e);
}

/* ---- drafts ---- */

bool choice_drafts(const choice *c)
{
    return c->q.draft && c->state == CHOICE_DECODES && c->q.n_fed >= c->prompt->n;
}

status choice_draft(choice *c, scheduler *s, err *e)
{
    sequence *q = &c->q;
    if (c->j->r.logprobs) drafter_copy_logits(q->draft, s->row);
    do {
        q->most = (size_t)c->j->r.max_tokens - c->n_new;
        TRY(sequence_next(&s->x, &q, 1, e));
        TRY(score(c, q->next, s->row, s->x.vocab, e));
        TRY(say(c, s, q->next, e));
    } while (c->state == CHOICE_DECODES && drafter_ready(q->draft, &q->ids));
    return ST_OK;
}

/* ---- prompts ---- */

typedef struct {
    choice *c;
    scheduler *s;
    status st;
    err *e;
} scoring;

/* Scores token `at` of the prompt. */
static void take_row(void *ctx, size_t at, const float *logits)
{
    scoring *x = ctx;
    if (x->st == ST_OK) x->st = score(x->c, x->c->prompt->ids[at], logits, x->s->x.vocab, x->e);
}

status choice_prefill(choice *c, scheduler *s, err *e)
{
    sequence *q = &c->q;
    scoring x = {c, s, ST_OK, e};
    const prompt_options o = {
        .most = (size_t)decoder_chunk(s->o.dec), .logits = true, .row = scores_prompt(c) ? take_row : NULL, .ctx = &x};
    TRY(sequence_prefill(&s->x, &q, 1, &o, e));
    TRY(x.st);
    if (q->n_fed < q->end) return ST_OK;
    fork_prompt(c, s);
    c->state = CHOICE_DECODES;
    return choice_row(c, s, s->x.logits, e);
}
