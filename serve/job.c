/* SPDX-License-Identifier: MIT */
/* Answers of a request, and when its client gets them. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

void job_wake(job *j)
{
    if (!j->asleep) return;
    j->asleep = false;
    j->client.wake(j->client.ctx);
}

bool job_done(const job *j)
{
    for (size_t i = 0; i < j->n_choices; i++)
        if (j->choices[i].state != CHOICE_DONE) return false;
    return true;
}

void job_free(job *j)
{
    for (size_t i = 0; i < j->n_choices; i++) choice_free(&j->choices[i]);
    for (size_t i = 0; i < j->n_prompts; i++) token_list_free(&j->prompts[i]);
    mem_free(j->choices);
    mem_free(j->forks);
    mem_free(j->prompts);
    mem_free(j->out.p);
    mem_free(j->lens);
    drafter_free(j->draft);
    api_free(&j->r);
    pthread_mutex_destroy(&j->lock);
    mem_free(j);
}

/* ---- JSON ---- */

static status no_memory(err *e)
{
    return err_set(e, ST_NOMEM, "out of memory for an answer");
}

static json_t *usage_of(const job *j)
{
    int64_t prompt = 0, said = 0, known = 0;
    for (size_t i = 0; i < j->n_prompts; i++) prompt += (int64_t)j->prompts[i].n;
    for (size_t i = 0; i < j->n_choices; i++) said += (int64_t)j->choices[i].n_new;
    for (size_t i = 0; i < j->n_choices; i += (size_t)j->r.n) known += (int64_t)j->choices[i].n_cached;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)said, "total_tokens", (json_int_t)(prompt + said), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)known);
}

/* Sums the counts of drafts over all choices. */
static json_t *draft_of(const job *j)
{
    draft_counts all = {0};
    for (size_t i = 0; i < j->n_choices; i++) {
        if (!j->choices[i].q.draft) continue;
        const draft_counts n = drafter_counts(j->choices[i].q.draft);
        all.proposed += n.proposed;
        all.accepted += n.accepted;
        all.verifications += n.verifications;
        all.tokens += n.tokens;
    }
    return draft_json(j->r.draft, &all);
}

/* Our own object: sums of all choices; counts are of decode steps, means over layers. */
static json_t *kvasir_of(const job *j)
{
    char params[512], attn[1024];
    double steps = 0, attended = 0, visible = 0, read = 0;
    size_t kv = 0, index = 0, known = 0;
    bool exact = true;
    int layers = decoder_model(j->sched->o.dec)->config.n_kv;
    for (size_t i = 0; i < j->n_choices; i++) {
        const choice *c = &j->choices[i];
        steps += (double)c->stats.steps;
        attended += c->stats.attended;
        visible += c->stats.visible;
        read += c->stats.kv_read + c->stats.index_read;
        kv += c->held.kv;
        index += c->held.index;
        known += c->n_cached;
        exact &= c->exact_prompt;
    }
    attn_spec_params(&j->spec, params, sizeof params);
    snprintf(attn, sizeof attn, "%s%s%s", j->spec.text, *params ? " " : "", params);
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:O, s:f, s:f, s:f}", "attn", attn, "kv_bytes",
                          (json_int_t)kv, "index_bytes", (json_int_t)index, "prefix_tokens", (json_int_t)known, "seed",
                          (json_int_t)j->seed, "exact_prompt", exact && j->decode <= 0, "ignored", j->r.ignored,
                          "queue_seconds", (double)(j->admitted_ns - j->submitted_ns) / 1e9, "prefill_seconds",
                          (double)j->prefill_ns / 1e9, "decode_seconds", (double)j->decode_ns / 1e9);
    if (o && j->draft) json_object_set_new(o, "draft", draft_of(j));
    if (o && steps > 0) {
        json_object_set_new(o, "attended", json_real(attended / steps / layers));
        json_object_set_new(o, "visible", json_real(visible / steps / layers));
        json_object_set_new(o, "read_bytes", json_real(read / steps));
    }
    return o;
}

/* Takes j. prefix: of an event of a stream, or "". */
static status put(job *j, json_t *what, const char *prefix, const char *end, err *e)
{
    char *text = what ? json_dumps(what, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(what);
    if (!text) return no_memory(e);
    status st = buffer_add(&j->out, prefix, strlen(prefix), e);
    if (st == ST_OK) st = buffer_add(&j->out, text, strlen(text), e);
    if (st == ST_OK) st = buffer_add(&j->out, end, strlen(end), e);
    free(text);
    return st;
}

/* Returns the part of a choice that was not written yet. */
static api_choice news_of(const choice *c)
{
    const size_t ids = c->n_new - c->sent_ids;
    return (api_choice){.index = c->index,
                        .text = c->text.p ? c->text.p + c->text.at : "",
                        .n_text = c->text.n - c->text.at,
                        .tokens = c->tokens ? c->tokens + c->sent_tokens : NULL,
                        .n_tokens = c->n_tokens - c->sent_tokens,
                        .text_offset = c->sent_offset,
                        .ids = ids ? c->q.ids.ids + c->prompt->n + c->sent_ids : NULL,
                        .n_ids = ids};
}

/* ---- whole answers ---- */

static status whole(job *j, err *e)
{
    json_t *choices = json_array();
    for (size_t i = 0; i < j->n_choices; i++) {
        api_choice a = news_of(&j->choices[i]);
        a.finish_reason = j->choices[i].finish;
        if (json_array_append_new(choices, api_choice_json(&j->head, &a, false)) != 0) {
            json_decref(choices);
            return no_memory(e);
        }
    }
    return put(j, api_answer(&j->head, choices, usage_of(j), kvasir_of(j), false), "", "\n", e);
}

/* ---- streams ---- */

static status chunk(job *j, const api_choice *a, err *e)
{
    json_t *choices = json_array();
    if (a && json_array_append_new(choices, api_choice_json(&j->head, a, true)) != 0) {
        json_decref(choices);
        return no_memory(e);
    }
    json_t *usage = a ? NULL : usage_of(j);
    return put(j, api_answer(&j->head, choices, usage, a ? NULL : kvasir_of(j), true), "data: ", "\n\n", e);
}

/* Writes the part of a choice since its last chunk. */
static status news(job *j, choice *c, err *e)
{
    bool done = c->state == CHOICE_DONE, chat = j->r.chat;
    api_choice a = news_of(c);
    a.first = chat && !c->opened;
    bool any = a.n_text || (j->r.logprobs && a.n_tokens) || (j->r.return_token_ids && a.n_ids) || a.first;
    if (done && !chat) a.finish_reason = c->finish;
    if (any || (done && !chat)) TRY(chunk(j, &a, e));
    c->opened = true;
    c->sent_offset += api_characters(a.text, a.n_text);
    c->text.at = c->text.n;
    c->sent_tokens = c->n_tokens;
    c->sent_ids = c->n_new;
    if (!done) return ST_OK;
    c->closed = true;
    return chat ? chunk(j, &(api_choice){.index = c->index, .text = "", .finish_reason = c->finish}, e) : ST_OK;
}

static status stream(job *j, err *e)
{
    for (size_t i = 0; i < j->n_choices; i++) {
        choice *c = &j->choices[i];
        if (c->state >= CHOICE_DECODES && !c->closed) TRY(news(j, c, e));
    }
    if (!job_done(j)) return ST_OK;
    if (j->r.include_usage) TRY(chunk(j, NULL, e));
    static const char end[] = "data: [DONE]\n\n";
    return buffer_add(&j->out, end, sizeof end - 1, e);
}

status job_hand_out(job *j, err *e)
{
    bool done = job_done(j);
    status st = j->lens ? ST_OK : j->r.stream ? stream(j, e) : done ? whole(j, e) : ST_OK;
    if (st != ST_OK) return st;
    size_t unread = j->out.n - j->out.at;
    if (unread < JOB_BUFFER) j->unread_ns = 0;
    else if (j->unread_ns == 0) j->unread_ns = clock_ns();
    j->ended |= done;
    if (done || (j->r.stream && unread)) job_wake(j);
    return ST_OK;
}

void job_fail(job *j, const api_error *e)
{
    if (j->ended) return;
    if (j->admitted && j->r.stream) {
        char *text = api_error_text(e);
        err no = {0};
        const char *before = j->lens ? "{\"kind\":\"error\"," : "data: ", *from = text ? text + (j->lens != NULL) : "";
        if (text && buffer_add(&j->out, before, strlen(before), &no) == ST_OK &&
            buffer_add(&j->out, from, strlen(from), &no) == ST_OK)
            (void)buffer_add(&j->out, "\n\n", 2, &no);
        free(text);
    }
    j->error = *e;
    j->ended = true;
    job_wake(j);
}

/* ---- the client's side ---- */

bool job_streams(const job *j)
{
    return j->r.stream;
}

bool job_start(job *j, api_error *e)
{
    *e = (api_error){0};
    pthread_mutex_lock(&j->lock);
    bool known = j->ended || (j->admitted && j->r.stream);
    if (known && !(j->admitted && j->r.stream)) *e = j->error;
    if (!known) {
        j->asleep = true;
        j->client.sleep(j->client.ctx);
    }
    pthread_mutex_unlock(&j->lock);
    return known;
}

long job_read(job *j, char *out, size_t n)
{
    long got;
    pthread_mutex_lock(&j->lock);
    size_t k = j->out.n - j->out.at;
    if (k > n) k = n;
    if (k) memcpy(out, j->out.p + j->out.at, k);
    j->out.at += k;
    got = (long)k;
    if (k == 0 && j->ended) got = j->error.http ? -2 : -1;
    if (got == 0) {
        j->asleep = true;
        j->client.sleep(j->client.ctx);
    }
    pthread_mutex_unlock(&j->lock);
    return got;
}

const char *job_text(job *j, size_t *n)
{
    *n = j->out.n;
    return j->out.p ? j->out.p : "";
}

void job_leave(job *j)
{
    pthread_mutex_lock(&j->lock);
    j->left = true;
    j->asleep = false;
    j->client.fd = -1;
    bool last = j->dropped;
    pthread_mutex_unlock(&j->lock);
    if (last) job_free(j);
}
