/* SPDX-License-Identifier: MIT */
/* Output of a request, and when its client is woken. */
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
    for (size_t i = 0; i < j->n_gens; i++)
        if (j->gens[i].state != GEN_DONE) return false;
    return true;
}

void job_free(job *j)
{
    for (size_t i = 0; i < j->n_gens; i++) gen_free(&j->gens[i]);
    for (size_t i = 0; i < j->n_prompts; i++) token_list_free(&j->prompts[i]);
    mem_free(j->gens);
    mem_free(j->forks);
    mem_free(j->prompts);
    mem_free(j->out.p);
    mem_free(j->lens);
    drafter_free(j->draft);
    api_stream_free(&j->form);
    compiled_release(j->sched, j->under);
    chat_text_free(&j->text);
    api_free(&j->r);
    pthread_mutex_destroy(&j->lock);
    mem_free(j);
}

/* ---- JSON ---- */

static status no_memory(err *e)
{
    return err_set(e, ST_NOMEM, "out of memory for an answer");
}

static api_usage usage_of(const job *j)
{
    api_usage u = {0};
    for (size_t i = 0; i < j->n_prompts; i++) u.prompt += (int64_t)j->prompts[i].n;
    for (size_t i = 0; i < j->n_gens; i++) u.generated += (int64_t)j->gens[i].n_new;
    for (size_t i = 0; i < j->n_gens; i++) u.thinking += (int64_t)j->gens[i].n_thinking;
    for (size_t i = 0; i < j->n_gens; i += (size_t)j->r.n) u.cached += (int64_t)j->gens[i].n_cached;
    return u;
}

static json_t *usage_json(const job *j)
{
    const api_usage u = usage_of(j);
    json_t *o = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u.prompt, "completion_tokens",
                          (json_int_t)u.generated, "total_tokens", (json_int_t)(u.prompt + u.generated),
                          "prompt_tokens_details", "cached_tokens", (json_int_t)u.cached);
    if (o && j->r.chat)
        json_object_set_new(o, "completion_tokens_details",
                            json_pack("{s:I}", "reasoning_tokens", (json_int_t)u.thinking));
    return o;
}

/* Sums the draft counts of all sequences. */
static json_t *draft_of(const job *j)
{
    draft_counts all = {0};
    for (size_t i = 0; i < j->n_gens; i++) {
        if (!j->gens[i].q.draft) continue;
        const draft_counts n = drafter_counts(j->gens[i].q.draft);
        all.proposed += n.proposed;
        all.accepted += n.accepted;
        all.verifications += n.verifications;
        all.tokens += n.tokens;
        all.withheld += n.withheld;
        all.tiles |= n.tiles;
    }
    return draft_json(j->r.draft, &all);
}

/* Returns the `kvasir` object: sums over all sequences; attended, visible and read_bytes are means per decode step. */
static json_t *kvasir_of(const job *j)
{
    char params[512], attn[1024];
    double steps = 0, attended = 0, visible = 0, read = 0;
    size_t kv = 0, index = 0, cached = 0;
    bool exact = true;
    int bad = 0;
    int layers = decoder_model(j->sched->o.dec)->config.n_kv;
    for (size_t i = 0; i < j->n_gens; i++) {
        const gen *g = &j->gens[i];
        steps += (double)g->stats.steps;
        attended += g->stats.attended;
        visible += g->stats.visible;
        read += g->stats.kv_read + g->stats.index_read;
        kv += g->held.kv;
        index += g->held.index;
        cached += g->n_cached;
        exact &= g->exact_prompt;
        bad += g->parser ? call_parser_bad(g->parser) : 0;
    }
    attn_spec_params(&j->spec, params, sizeof params);
    snprintf(attn, sizeof attn, "%s%s%s", j->spec.text, *params ? " " : "", params);
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:O, s:f, s:f, s:f}", "attn", attn, "kv_bytes",
                          (json_int_t)kv, "index_bytes", (json_int_t)index, "prefix_tokens", (json_int_t)cached, "seed",
                          (json_int_t)j->seed, "exact_prompt", exact && j->decode <= 0, "ignored", j->r.ignored,
                          "queue_seconds", (double)(j->admitted_ns - j->submitted_ns) / 1e9, "prefill_seconds",
                          (double)j->prefill_ns / 1e9, "decode_seconds", (double)j->decode_ns / 1e9);
    if (o && json_array_size(j->r.changes) > 0) json_object_set(o, "prompt_changes", j->r.changes);
    if (o && json_array_size(compiled_ignored(j->under)) > 0)
        json_object_set_new(o, "schema_ignored", json_deep_copy(compiled_ignored(j->under)));
    if (o && bad > 0) json_object_set_new(o, "bad_calls", json_integer(bad));
    if (o && j->draft) json_object_set_new(o, "draft", draft_of(j));
    if (o && steps > 0) {
        json_object_set_new(o, "attended", json_real(attended / steps / layers));
        json_object_set_new(o, "visible", json_real(visible / steps / layers));
        json_object_set_new(o, "read_bytes", json_real(read / steps));
    }
    return o;
}

/* Appends a JSON value to the output and frees it. prefix: beginning of a stream event, or "". */
static status put(job *j, json_t *what, const char *prefix, const char *end, err *e)
{
    const size_t digits = j->r.style == API_MESSAGES ? 17 : 9; /* arguments of calls are exact */
    char *text = what ? json_dumps(what, JSON_COMPACT | JSON_REAL_PRECISION(digits)) : NULL;
    json_decref(what);
    if (!text) return no_memory(e);
    status st = buffer_add(&j->out, prefix, strlen(prefix), e);
    if (st == ST_OK) st = buffer_add(&j->out, text, strlen(text), e);
    if (st == ST_OK) st = buffer_add(&j->out, end, strlen(end), e);
    free(text);
    return st;
}

/* Returns the part of a sequence that was not written yet. */
static api_choice news_of(const gen *g)
{
    const size_t ids = g->n_new - g->sent_ids;
    return (api_choice){.index = g->index,
                        .events = g->j->r.chat ? &g->events : NULL,
                        .text = g->text.p ? g->text.p + g->text.at : "",
                        .n_text = g->text.n - g->text.at,
                        .tokens = g->tokens ? g->tokens + g->sent_tokens : NULL,
                        .n_tokens = g->n_tokens - g->sent_tokens,
                        .text_offset = g->sent_offset,
                        .ids = ids ? g->q.ids.ids + g->prompt->n + g->sent_ids : NULL,
                        .n_ids = ids};
}

/* ---- other APIs ---- */

/* Writes the part of the reply since the last call; at its end the whole answer in *answer. */
static status form_news(job *j, json_t **answer, err *e)
{
    gen *g = &j->gens[0];
    const api_usage u = usage_of(j);
    *answer = NULL;
    TRY(api_stream_begin(&j->form, &u, e));
    TRY(api_stream_add(&j->form, &g->events, e));
    g->events.n = g->events.text.n = g->events.text.at = 0;
    if (g->state != GEN_DONE || g->closed) return ST_OK;
    g->closed = true;
    const char *stop = g->out.stopped ? j->r.stop[g->out.stops.hit] : NULL;
    return api_stream_end(&j->form, answer, g->finish, stop, &u, kvasir_of(j), e);
}

/* ---- complete answers ---- */

static status whole(job *j, err *e)
{
    json_t *choices, *answer;
    if (j->r.style != API_OPENAI) {
        TRY(form_news(j, &answer, e));
        return put(j, answer, "", "\n", e);
    }
    choices = json_array();
    for (size_t i = 0; i < j->n_gens; i++) {
        api_choice a = news_of(&j->gens[i]);
        a.finish_reason = j->gens[i].finish;
        if (json_array_append_new(choices, api_choice_json(&j->head, &a, false)) != 0) {
            json_decref(choices);
            return no_memory(e);
        }
    }
    return put(j, api_answer(&j->head, choices, usage_json(j), kvasir_of(j), false), "", "\n", e);
}

/* ---- streams ---- */

static status chunk(job *j, const api_choice *a, err *e)
{
    json_t *choices = json_array();
    if (a && json_array_append_new(choices, api_choice_json(&j->head, a, true)) != 0) {
        json_decref(choices);
        return no_memory(e);
    }
    json_t *usage = a ? NULL : usage_json(j);
    return put(j, api_answer(&j->head, choices, usage, a ? NULL : kvasir_of(j), true), "data: ", "\n\n", e);
}

/* Notes that everything so far was written. */
static void sent(gen *g)
{
    g->opened = true;
    if (g->text.p) g->sent_offset += api_characters(g->text.p + g->text.at, g->text.n - g->text.at);
    g->text.at = g->text.n;
    g->sent_tokens = g->n_tokens;
    g->sent_ids = g->n_new;
}

/* Writes the part of a completion since its last chunk. */
static status news(job *j, gen *g, err *e)
{
    const bool done = g->state == GEN_DONE;
    api_choice a = news_of(g);
    const bool any = a.n_text || (j->r.logprobs && a.n_tokens) || (j->r.return_token_ids && a.n_ids);
    if (done) a.finish_reason = g->finish;
    g->closed = done;
    return any || done ? chunk(j, &a, e) : ST_OK;
}

/* Writes the part of a chat since its last chunk: the role, a chunk for each event, and the reason of its end. The
 * first of these chunks has the new tokens. */
static status chat_news(job *j, gen *g, err *e)
{
    api_choice a = news_of(g);
    bool due = (j->r.logprobs && a.n_tokens) || (j->r.return_token_ids && a.n_ids);
    a.first = !g->opened;
    if (a.first) TRY(chunk(j, &a, e));
    for (size_t i = 0; i < g->events.n; i++) {
        if (a.first || a.event) a.n_tokens = a.n_ids = 0;
        due = due && !a.first;
        a.first = false;
        if (g->events.list[i].what == CALL_END) continue;
        a.event = &g->events.list[i];
        TRY(chunk(j, &a, e));
    }
    if (due && !a.first && !a.event) TRY(chunk(j, &a, e));
    g->events.n = g->events.text.n = g->events.text.at = 0;
    if (g->state != GEN_DONE) return ST_OK;
    g->closed = true;
    return chunk(j, &(api_choice){.index = g->index, .events = &g->events, .finish_reason = g->finish}, e);
}

/* Writes the number of prompt tokens in the KV cache if it grew. Only the first sequence of a prompt counts. */
static status progress(job *j, err *e)
{
    api_progress p = {.ms = (clock_ns() - j->admitted_ns) / 1000000};
    for (size_t i = 0; i < j->n_gens; i += (size_t)j->r.n) {
        const gen *g = &j->gens[i];
        p.total += (int64_t)g->prompt->n;
        p.cached += (int64_t)g->n_cached;
        p.done += (int64_t)(g->n_new || g->state == GEN_DONE ? g->prompt->n : g->q.n_fed);
    }
    if (p.done <= j->n_reported) return ST_OK;
    j->n_reported = p.done;
    return put(j, api_progress_json(&j->head, &p), "data: ", "\n\n", e);
}

static status stream(job *j, err *e)
{
    json_t *answer = NULL;
    status st = j->r.style != API_OPENAI ? form_news(j, &answer, e) : ST_OK;
    json_decref(answer);
    if (j->r.style != API_OPENAI) return st;
    if (j->r.return_progress) TRY(progress(j, e));
    for (size_t i = 0; i < j->n_gens; i++) {
        gen *g = &j->gens[i];
        if (g->state < GEN_DECODES || g->closed) continue;
        TRY(j->r.chat ? chat_news(j, g, e) : news(j, g, e));
        sent(g);
    }
    if (!job_done(j)) return ST_OK;
    if (j->r.include_usage) TRY(chunk(j, NULL, e));
    static const char end[] = "data: [DONE]\n\n";
    return buffer_add(&j->out, end, sizeof end - 1, e);
}

/* Writes a ping if nothing was written for a while: proxies close silent connections. */
static status ping(job *j, size_t before, err *e)
{
    static const char event[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n", comment[] = ": ping\n\n";
    const char *text = j->r.style == API_MESSAGES ? event : comment;
    const int64_t every = j->sched->o.ping_ns, now = clock_ns();
    const bool silent = j->out.n == before && every && j->wrote_ns && now - j->wrote_ns >= every;
    if (silent) TRY(buffer_add(&j->out, text, strlen(text), e));
    if (j->out.n != before || !j->wrote_ns) j->wrote_ns = now;
    return ST_OK;
}

status job_hand_out(job *j, err *e)
{
    bool done = job_done(j);
    const size_t before = j->out.n;
    j->usage = usage_of(j);
    if (j->gens[0].parser) j->n_calls = call_parser_calls(j->gens[0].parser);
    j->finish = j->gens[0].finish;
    status st = j->lens ? ST_OK : j->r.stream ? stream(j, e) : done ? whole(j, e) : ST_OK;
    if (st == ST_OK && j->r.stream && !j->lens && !done) st = ping(j, before, e);
    if (st != ST_OK) return st;
    size_t unread = j->out.n - j->out.at;
    if (unread < JOB_BUFFER) j->unread_ns = 0;
    else if (j->unread_ns == 0) j->unread_ns = clock_ns();
    j->ended |= done;
    if (done || (j->r.stream && unread)) job_wake(j);
    return ST_OK;
}

/* Writes an error as the last event of a stream. */
static void write_error(job *j, const api_error *e)
{
    char *text = api_error_text(e);
    err no = {0};
    const char *before = j->lens ? "{\"kind\":\"error\"," : "data: ", *from = text ? text + (j->lens != NULL) : "";
    if (text && buffer_add(&j->out, before, strlen(before), &no) == ST_OK &&
        buffer_add(&j->out, from, strlen(from), &no) == ST_OK)
        (void)buffer_add(&j->out, "\n\n", 2, &no);
    free(text);
}

void job_fail(job *j, const api_error *e)
{
    err no = {0};
    if (j->ended) return;
    if (j->admitted && j->r.stream) {
        if (j->r.style != API_OPENAI) (void)j->form.form->fail(&j->form, e, &no);
        else write_error(j, e);
    }
    j->error = *e;
    j->ended = true;
    job_wake(j);
}

/* ---- client side ---- */

bool job_streams(const job *j)
{
    return j->r.stream;
}

bool job_start(job *j, api_error *e)
{
    *e = (api_error){0};
    pthread_mutex_lock(&j->lock);
    bool ready = j->ended || (j->admitted && j->r.stream);
    if (ready && !(j->admitted && j->r.stream)) *e = j->error;
    if (!ready) {
        j->asleep = true;
        j->client.sleep(j->client.ctx);
    }
    pthread_mutex_unlock(&j->lock);
    return ready;
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
    if (k == 0 && j->ended) got = -1;
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

static api_usage job_usage(job *j)
{
    pthread_mutex_lock(&j->lock);
    const api_usage u = j->usage;
    pthread_mutex_unlock(&j->lock);
    return u;
}

void job_describe(job *j, char *out, size_t n)
{
    const api_usage u = job_usage(j);
    const json_t *choice = json_object_get(j->r.body, "tool_choice");
    int at = snprintf(out, n, " | prompt %lld, cached %lld, new %lld tokens", (long long)u.prompt, (long long)u.cached,
                      (long long)u.generated);
    if (!j->r.chat || at < 0 || (size_t)at >= n) return;
    pthread_mutex_lock(&j->lock);
    snprintf(out + at, n - (size_t)at, " | thinking %lld, tools %zu, choice %s, %s%.8s, calls %d, %s",
             (long long)u.thinking, json_array_size(j->r.tools),
             json_is_object(choice)   ? "function"
             : json_is_string(choice) ? json_string_value(choice)
             : j->r.tools             ? "auto"
                                      : "none",
             j->under ? "constraint " : "no constraint", j->under ? compiled_key(j->under) : "", j->n_calls,
             j->finish ? j->finish : "unfinished");
    pthread_mutex_unlock(&j->lock);
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
