/* SPDX-License-Identifier: MIT */
/* What of a prompt is known, between the scheduler and the prefix store. */
#include "config.h"

#include "generate/prefix_reuse.h"
#include "serve/sched_impl.h"

/* Whose the rows of a prompt are, and what they depend on. */
void known_key(job *j)
{
    const scheduler *s = j->sched;
    j->reuse = ATTN_REUSE_NEVER;
    if (!s->prefix || j->lens || j->r.no_prefix) return;
    if (drafter_session(j->draft, 1).draft) return; /* its index is made as tokens come */
    j->reuse = attn_reuse_of(&j->spec);
    reuse_key(j->key, &(reuse_origin){.d = s->o.dec,
                                      .weights = s->weights,
                                      .build = s->build,
                                      .spec = &j->spec,
                                      .ctx = s->o.ctx,
                                      .client = s->o.prefix_shared ? "" : j->client.client,
                                      .salt = j->r.cache_salt ? j->r.cache_salt : "",
                                      .before = ""});
}

/* ---- choices of one prompt ---- */

static job_fork *fork_of(const choice *c)
{
    return c->j->forks ? &c->j->forks[c->index / c->j->r.n] : NULL;
}

static bool is_first(const choice *c)
{
    return c->index % c->j->r.n == 0;
}

bool known_waits(const choice *c)
{
    const job_fork *f = fork_of(c);
    return f && !is_first(c) && !f->of && !f->each;
}

bool known_forked(const choice *c)
{
    const job_fork *f = fork_of(c);
    return f && !is_first(c) && f->of;
}

/* Where there is no room, or a session cannot be copied, each choice computes the prompt. */
void known_fork(choice *c, scheduler *s)
{
    job_fork *f = fork_of(c);
    err e = {0};
    if (!f || !is_first(c)) return;
    size_t need = fork_bytes(c->s), with = s->used + need;
    f->size = (session_size){.n_tokens = session_limit(c->s), .reach = (int64_t)c->prompt->n + c->j->r.max_tokens};
    f->n_tokens = c->n_tokens;
    f->each = drafter_session(c->draft, 1).draft || with > s->o.memory ||
              (s->prefix && !prefix_shrink(s->prefix, s->o.memory - with)) ||
              fork_take(&f->of, c->s, s->logits, &e) != ST_OK;
    if (f->each) return;
    f->bytes = need;
    f->left = (size_t)c->j->r.n - 1;
    s->used += need;
}

static void let_go(job_fork *f, scheduler *s)
{
    s->used -= f->of ? f->bytes : 0;
    fork_free(f->of);
    f->of = NULL;
}

status known_give(choice *c, scheduler *s, size_t *n_tokens, err *e)
{
    job_fork *f = fork_of(c);
    TRY(fork_give(f->of, c->s, s->logits, e));
    *n_tokens = f->n_tokens;
    c->fed = c->n_known = (size_t)c->n_prefill;
    if (--f->left == 0) let_go(f, s);
    return ST_OK;
}

void known_drop(job *j, scheduler *s)
{
    for (size_t i = 0; j->forks && i < j->n_prompts; i++) let_go(&j->forks[i], s);
}

/* ---- a sequence ---- */

static prefix_prompt prompt_of(const choice *c, size_t n)
{
    return (prefix_prompt){c->j->key, c->j->reuse == ATTN_REUSE_ANY, c->prompt->ids, n};
}

/* Scores of a prompt's own tokens need its rows of logits: all of it is computed. */
static bool reads(const choice *c)
{
    return !(c->j->r.echo && c->j->r.logprobs);
}

static void find(choice *c, scheduler *s)
{
    size_t chunk = (size_t)decoder_chunk(s->o.dec), n = ((size_t)c->n_prefill - 1) / chunk * chunk;
    c->n_known = c->keep_at = 0;
    if (c->j->reuse == ATTN_REUSE_NEVER || n == 0) return;
    if (reuse_of(s->o.dec, &c->j->spec, (size_t)c->n_prefill) == ATTN_REUSE_NEVER) return;
    const prefix_prompt of = prompt_of(c, n);
    if (reads(c)) c->known = prefix_find(s->prefix, &of, &c->n_known);
    if (n >= c->n_known + s->o.prefix_least) c->keep_at = n;
}

bool known_admit(choice *c, scheduler *s)
{
    size_t with = s->used + c->bytes;
    bool fits = with <= s->o.memory;
    if (!known_forked(c)) find(c, s);
    if (fits && s->prefix) fits = prefix_shrink(s->prefix, s->o.memory - with);
    if (fits || s->n_running == 0) return true;
    known_let_go(c);
    return false;
}

session_size known_size(const choice *c)
{
    int64_t reach = (int64_t)c->prompt->n + c->j->r.max_tokens;
    if (known_forked(c)) return fork_of(c)->size;
    if (!c->known && !c->keep_at) return drafter_session(c->draft, reach);
    return (session_size){.n_tokens = c->j->sched->o.ctx, .reach = reach};
}

/* An entry that cannot be loaded costs time, no more. */
void known_load(choice *c, scheduler *s)
{
    err e = {0};
    if (c->known && prefix_load(s->prefix, c->known, c->s, c->n_known, &e) != ST_OK) {
        known_let_go(c);
        c->n_known = 0;
    }
    c->fed = c->n_known;
    if (c->j->reuse == ATTN_REUSE_NEVER || !reads(c)) return;
    pthread_mutex_lock(&s->lock);
    s->counts.known_tokens += (int64_t)c->n_known;
    s->counts.lookups[c->n_known > 0]++;
    pthread_mutex_unlock(&s->lock);
}

/* A prompt for which there is no room is computed again when it comes again. */
void known_keep(const choice *c, scheduler *s)
{
    err e = {0};
    const prefix_prompt of = prompt_of(c, c->keep_at);
    if (c->keep_at == 0 || c->fed != c->keep_at || s->used >= s->o.memory) return;
    (void)prefix_keep(s->prefix, &of, c->s, s->o.memory - s->used, &e);
}

void known_let_go(choice *c)
{
    if (c->known) prefix_let_go(c->j->sched->prefix, c->known);
    c->known = NULL;
}
