/* SPDX-License-Identifier: MIT */
/* One sequence of a request: its prompt in pieces, and tokens and text from logits. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "model/sampler.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

enum { PRIME = 16 }; /* tokens of a prompt that say whether a text begins with a space; special ones have no text */

static size_t vocab_of(const scheduler *s)
{
    return (size_t)decoder_model(s->o.dec)->config.vocab;
}

/* ---- text ---- */

static status add_text(choice *c, const char *text, size_t n, err *e)
{
    if (c->cap_text - c->n_text < n) {
        size_t cap = 2 * (c->n_text + n) + 64;
        TRY(MEM_GROW(&c->text, cap, e));
        c->cap_text = cap;
    }
    if (n) memcpy(c->text + c->n_text, text, n);
    c->n_text += n;
    return ST_OK;
}

/* A completion goes on where its prompt ends, which is also said with `echo`. */
static status begin_text(choice *c, err *e)
{
    const token_list *p = c->prompt;
    size_t from = c->j->r.echo || p->n < PRIME ? 0 : p->n - PRIME;
    const char *text;
    size_t n;
    if (c->j->r.chat) return ST_OK;
    for (size_t i = from; i < p->n; i++) {
        TRY(token_stream_push(c->stream, p->ids[i], &text, &n, e));
        if (c->j->r.echo) TRY(add_text(c, text, n, e));
    }
    return ST_OK;
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
    if (c->n_tokens == c->cap_tokens) {
        size_t cap = 2 * c->cap_tokens + 32;
        TRY(MEM_GROW(&c->tokens, cap, e));
        c->cap_tokens = cap;
    }
    c->tokens[c->n_tokens++] = *t;
    return ST_OK;
}

/* What a row of raw logits says of a token: log softmax, natural logarithm. */
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

/* ---- a sequence ---- */

/* From where the first choice of the prompt was behind it. */
static status go_on(choice *c, scheduler *s, err *e)
{
    const choice *first = &c->j->choices[c->index / c->j->r.n * c->j->r.n];
    size_t n_tokens;
    TRY(known_give(c, s, &n_tokens, e));
    for (size_t i = 0; i < n_tokens; i++) TRY(add_token(c, &first->tokens[i], e));
    c->state = CHOICE_DECODES;
    return choice_row(c, s, s->logits, e);
}

status choice_open(choice *c, scheduler *s, err *e)
{
    const job *j = c->j;
    sampler_options so = j->r.sampling;
    so.seed = j->seed + (uint64_t)c->index;
    TRY(drafter_create(&c->draft, &(draft_options){.spec = j->r.draft, .name = "draft"}, &j->spec, e));
    TRY(session_create(&c->s, s->o.dec, &j->spec, known_size(c), e));
    TRY(sampler_create(&c->sampler, &so, vocab_of(s), e));
    TRY(token_stream_create(&c->stream, s->o.tok, e));
    c->stops = (stop_text){.stop = j->r.stop, .n_stop = j->r.n_stop};
    c->exact_prompt = session_can_share(c->s, c->s, (size_t)c->n_prefill);
    for (size_t i = 0; i < c->prompt->n; i++) sampler_accept(c->sampler, c->prompt->ids[i]);
    TRY(begin_text(c, e));
    if (known_forked(c)) return go_on(c, s, e);
    if (j->r.echo && j->r.logprobs) TRY(add_token(c, &(api_token){.own = {c->prompt->ids[0], 0}}, e));
    c->state = CHOICE_PROMPT;
    known_load(c, s);
    return ST_OK;
}

/* The session is not needed any more. */
void choice_close(choice *c)
{
    lens_close(c->lens);
    c->lens = NULL;
    if (c->s) {
        c->stats = attn_seq_stats(session_attn(c->s));
        c->held = attn_seq_peak(session_attn(c->s));
    }
    session_free(c->s);
    c->s = NULL;
    known_let_go(c);
}

void choice_free(choice *c)
{
    lens_close(c->lens);
    session_free(c->s);
    sampler_free(c->sampler);
    token_stream_free(c->stream);
    stop_text_free(&c->stops);
    token_list_free(&c->said);
    token_list_free(&c->all);
    drafter_free(c->draft);
    mem_free(c->text);
    mem_free(c->tokens);
}

static status finish(choice *c, const char *why, bool stopped, err *e)
{
    const char *text;
    size_t n;
    bool late = false;
    c->finish = why;
    c->state = CHOICE_DONE;
    if (stopped) return ST_OK;
    TRY(token_stream_end(c->stream, &text, &n, e));
    TRY(stop_text_add(&c->stops, text, n, &text, &n, &late, e));
    TRY(add_text(c, text, n, e));
    if (late) return ST_OK;
    stop_text_rest(&c->stops, &text, &n);
    return add_text(c, text, n, e);
}

/* A token that was chosen: its text, and whether it is the last. */
static status say(choice *c, scheduler *s, int32_t id, err *e)
{
    const api_request *r = &c->j->r;
    const char *text;
    size_t n;
    bool stopped;
    sampler_accept(c->sampler, id);
    TRY(token_list_push(&c->said, id, e));
    if (tokenizer_is_eos(s->o.tok, id) && !r->ignore_eos) return finish(c, "stop", false, e);
    TRY(token_stream_push(c->stream, id, &text, &n, e));
    TRY(stop_text_add(&c->stops, text, n, &text, &n, &stopped, e));
    TRY(add_text(c, text, n, e));
    if (stopped) return finish(c, "stop", true, e);
    c->next = id;
    return (int64_t)c->said.n < r->max_tokens ? ST_OK : finish(c, "length", false, e);
}

status choice_row(choice *c, scheduler *s, float *logits, err *e)
{
    const api_request *r = &c->j->r;
    size_t vocab = vocab_of(s);
    if (c->fed < c->prompt->n) { /* the prompt's end as decode steps */
        c->next = c->prompt->ids[c->fed];
        return r->echo ? score(c, c->next, logits, vocab, e) : ST_OK;
    }
    if (r->max_tokens == 0) return finish(c, "length", false, e);
    if (!r->logprobs) return say(c, s, sampler_next(c->sampler, logits, session_length(c->s)), e);
    memcpy(s->row, logits, vocab * sizeof *logits); /* sampling changes them */
    int32_t id = sampler_next(c->sampler, s->row, session_length(c->s));
    TRY(score(c, id, logits, vocab, e));
    return say(c, s, id, e);
}

/* ---- drafts ---- */

bool choice_drafts(const choice *c)
{
    return c->draft && c->state == CHOICE_DECODES && c->fed == c->prompt->n;
}

/* Its prompt and what it said. */
static status join(choice *c, err *e)
{
    for (size_t i = 0; i < c->prompt->n; i++) TRY(token_list_push(&c->all, c->prompt->ids[i], e));
    for (size_t i = 0; i < c->said.n; i++) TRY(token_list_push(&c->all, c->said.ids[i], e));
    return ST_OK;
}

status choice_draft(choice *c, scheduler *s, err *e)
{
    const api_request *r = &c->j->r;
    int32_t id;
    if (c->all.n == 0) TRY(join(c, e));
    if (r->logprobs) drafter_copy_logits(c->draft, s->row);
    do {
        size_t most = (size_t)r->max_tokens - c->said.n;
        TRY(drafter_next(c->draft, c->s, c->sampler, &c->all, most, &id, e));
        TRY(token_list_push(&c->all, id, e));
        TRY(score(c, id, s->row, vocab_of(s), e));
        TRY(say(c, s, id, e));
    } while (c->state == CHOICE_DECODES && drafter_ready(c->draft, &c->all));
    return ST_OK;
}

/* ---- prompts ---- */

typedef struct {
    choice *c;
    scheduler *s;
    status st;
    err *e;
} rows_of;

/* Rows of a prompt: the last of all is for the next token; the others score the prompt's own ones. */
static void take_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    rows_of *r = ctx;
    choice *c = r->c;
    size_t vocab = vocab_of(r->s);
    for (size_t i = 0; i < n && r->st == ST_OK; i++) {
        size_t at = (size_t)first + i + 1;
        if ((int64_t)at < c->n_prefill) r->st = score(c, c->prompt->ids[at], logits + i * vocab, vocab, r->e);
        else memcpy(r->s->logits, logits + i * vocab, vocab * sizeof *logits);
    }
}

status choice_prefill(choice *c, scheduler *s, err *e)
{
    rows_of rows = {c, s, ST_OK, e};
    bool all = c->j->r.echo && c->j->r.logprobs;
    size_t left = (size_t)c->n_prefill - c->fed, n = (size_t)decoder_chunk(s->o.dec);
    if (n > left) n = left;
    prefill_options o = {
        .which = all ? LOGITS_ALL : LOGITS_LAST, .rows = take_rows, .ctx = &rows, .before = c->fed, .after = left - n};
    TRY(session_prefill(&c->s, 1, c->prompt->ids + c->fed, n, &o, e));
    TRY(rows.st);
    c->fed += n;
    known_keep(c, s);
    if (n < left) return ST_OK;
    known_fork(c, s);
    c->state = CHOICE_DECODES;
    return choice_row(c, s, s->logits, e);
}
