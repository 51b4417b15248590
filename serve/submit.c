/* SPDX-License-Identifier: MIT */
/* Request admission: encoding, strategy, length and memory. Runs in the thread that submits the request. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

/* True if a request names this model, or no model. */
static bool is_ours(const scheduler *s, const char *name)
{
    size_t n = strlen(s->o.model);
    return !name || sched_alias_of(s, name) || (strncmp(name, s->o.model, n) == 0 && (name[n] == 0 || name[n] == '@'));
}

/* ---- tokens ---- */

static bool refuse(api_error *e, const char *param, const err *why)
{
    if (why->code == ST_NOMEM) return api_fail(e, 500, NULL, "%s", why->msg);
    return api_bad(e, param, "%s", why->msg);
}

/* Returns the field that an error of a strategy names first, else the one that selects the strategy. */
static const char *strategy_field(const api_request *r, const err *why)
{
    static const char *const fields[] = {"budget", "kv", "skip"};
    const char *s = why->msg + 2 * (strncmp(why->msg, "--", 2) == 0);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strncmp(s, fields[i], strlen(fields[i])) == 0 && strchr(": ", s[strlen(fields[i])])) return fields[i];
    return r->attn ? "attn" : "model";
}

static bool check_ids(const scheduler *s, const token_list *l, api_error *e)
{
    int vocab = decoder_model(s->o.dec)->config.vocab;
    if (l->n == 0) return api_bad(e, "prompt", "prompt: no tokens");
    for (size_t i = 0; i < l->n; i++)
        if (l->ids[i] >= vocab)
            return api_bad(e, "prompt", "prompt: token id %d is outside the vocabulary of %d", (int)l->ids[i], vocab);
    return true;
}

/* True if the reply of a chat continues the assistant's last message. */
static bool continues_message(const chat_input *talk)
{
    const json_t *last = json_array_get(talk->messages, json_array_size(talk->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return talk->end == CHAT_CONTINUES && role && strcmp(role, "assistant") == 0;
}

static status encode_chat(scheduler *s, job *j, token_list *out, err *e)
{
    const bool continues = continues_message(&j->r.talk); /* rendering may replace messages */
    TRY(api_render_chat(s, &j->r, &j->text, e));
    if (s->o.calls) j->thinking = call_thinking_of(s->o.tok, &j->text, continues);
    return kept_encode(s, j, out, e);
}

static bool encode(scheduler *s, job *j, api_error *e)
{
    api_request *r = &j->r;
    err why = {0};
    size_t n = r->chat ? 1 : r->n_prompts;
    if (MEM_NEW(&j->prompts, n, &why) != ST_OK) return refuse(e, "", &why);
    j->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        token_list *l = &j->prompts[i];
        status st = ST_OK;
        if (r->chat) st = encode_chat(s, j, l, &why);
        else if (r->prompts[i].text) st = sched_encode(s, r->prompts[i].text, r->prompts[i].n, true, l, &why);
        else *l = r->prompts[i].ids, r->prompts[i].ids = (token_list){0};
        if (st != ST_OK) refuse(e, r->chat ? "messages" : "prompt", &why);
        if (st != ST_OK && r->chat && st != ST_NOMEM && st != ST_UNSUPPORTED) e->code = "template_error";
        if (st != ST_OK) return false;
        if (!check_ids(s, l, e)) return false;
    }
    return true;
}

/* ---- lengths and memory ---- */

static bool check_length(const scheduler *s, job *j, api_error *e)
{
    size_t most = 0;
    for (size_t i = 0; i < j->n_prompts; i++)
        if (j->prompts[i].n > most) most = j->prompts[i].n;
    int64_t room = s->o.ctx - (int64_t)most;
    if (j->r.max_tokens < 0) j->r.max_tokens = room < s->o.max_new ? room : s->o.max_new;
    if (j->r.style != API_OPENAI && room > 0 && j->r.max_tokens > room) {
        j->r.max_tokens = room;
        j->r.shortened = true;
    }
    if (room >= j->r.max_tokens && (j->r.max_tokens > 0 || j->r.echo)) return true;
    if (j->r.style == API_MESSAGES)
        return api_bad(e, "messages", "prompt is too long: %zu tokens > %" PRId64 " maximum", most, s->o.ctx);
    api_bad(e, j->r.chat ? "messages" : "prompt",
            "the context has %" PRId64 " tokens, the prompt %zu, and max_tokens is %" PRId64, s->o.ctx, most,
            j->r.max_tokens > 0 ? j->r.max_tokens : 1);
    e->code = "context_length_exceeded";
    return false;
}

static bool plan(const scheduler *s, job *j, api_error *e)
{
    const model *m = decoder_model(s->o.dec);
    err why = {0};
    for (size_t i = 0; i < j->n_gens; i++) {
        gen *g = &j->gens[i];
        memory_plan p = {0};
        session_size size = drafter_session(j->draft, (int64_t)g->prompt->n + j->r.max_tokens); /* as in gen_open */
        status st = j->lens ? gen_plan_lens(g, s, &why) : session_plan(&p, m, &s->o.decoder, &j->spec, size, &why);
        if (st != ST_OK) return refuse(e, j->lens ? "prompt" : "attn", &why);
        if (!j->lens) g->bytes = p.kv + p.index;
        if (g->bytes > s->o.memory)
            return api_fail(e, 503, "memory_exceeded", "the request needs %.1f MB of KV and index; --memory is %.1f MB",
                            (double)g->bytes / 1e6, (double)s->o.memory / 1e6);
    }
    return true;
}

/* Checks that the draft of a request is valid and that its strategy can verify drafts. */
static bool check_draft(const scheduler *s, job *j, api_error *e)
{
    err why = {0};
    if (!j->r.draft) return true;
    status st = drafter_create(&j->draft, &(draft_options){.spec = j->r.draft, .name = "draft"}, &j->spec, &why);
    const attn_spec *by = st == ST_OK ? drafter_session(j->draft, 1).draft : NULL;
    if (by) st = attn_draft_check(by, &j->spec, decoder_attn_shape(s->o.dec), &why);
    if (by && st == ST_OK) st = attn_backend_check(by, decoder_model(s->o.dec)->be, &why);
    return st == ST_OK || refuse(e, "draft", &why);
}

static bool make_gens(job *j, api_error *e)
{
    err why = {0};
    size_t n = j->n_prompts * (size_t)j->r.n;
    if (MEM_NEW(&j->gens, n, &why) != ST_OK) return refuse(e, "", &why);
    if (j->r.n > 1 && MEM_NEW(&j->forks, j->n_prompts, &why) != ST_OK) return refuse(e, "", &why);
    j->n_gens = n;
    for (size_t i = 0; i < n; i++) {
        const token_list *prompt = &j->prompts[i / (size_t)j->r.n];
        int64_t exact = (int64_t)prompt->n - (j->decode > 0 ? j->decode : 0);
        j->gens[i] = (gen){.j = j, .index = (int)i, .prompt = prompt, .n_prefill = exact < 1 ? 1 : exact};
    }
    return true;
}

static void name(job *j)
{
    const scheduler *s = j->sched;
    uint64_t random[2] = {0};
    j->head = (api_head){.r = &j->r,
                         .tok = s->o.tok,
                         .created = (int64_t)time(NULL),
                         .model = s->o.model,
                         .fingerprint = s->fingerprint};
    if (getrandom(random, sizeof random, 0) != sizeof random) random[0] = (uint64_t)clock_ns();
    snprintf(j->head.id, sizeof j->head.id, "%s%016" PRIx64,
             j->lens                       ? "lens-"
             : j->r.style == API_MESSAGES  ? "msg_"
             : j->r.style == API_RESPONSES ? "resp_"
             : j->r.chat                   ? "chatcmpl-"
                                           : "cmpl-",
             random[0]);
    j->seed = j->r.seeded ? j->r.sampling.seed : random[1] >> 11; /* fits a JSON number */
    j->submitted_ns = clock_ns();
}

static bool prepare(scheduler *s, job *j, api_error *e)
{
    err why = {0};
    if (!is_ours(s, j->r.model)) {
        api_fail(e, 404, "model_not_found", "unknown model '%.80s'; this server has '%.80s'", j->r.model, s->o.model);
        return false;
    }
    if (j->r.lens && !job_read_lens(s, j, e)) return false;
    if (!j->lens && sched_spec(s, &j->r, &j->spec, &j->decode, &why) != ST_OK)
        return refuse(e, strategy_field(&j->r, &why), &why);
    if (!check_draft(s, j, e)) return false;
    j->cached = s->prefix && !j->lens && j->r.cache_prefix && attn_reuse_of(&j->spec) != ATTN_REUSE_NEVER &&
                !drafter_session(j->draft, 1).draft; /* a draft strategy's index is built as tokens arrive */
    j->keeps = j->cached && j->r.chat && attn_reuse_steps(&j->spec);
    if (!encode(s, j, e) || !job_read_format(s, j, e) || !check_length(s, j, e) || !make_gens(j, e) || !plan(s, j, e))
        return false;
    name(j);
    if (j->r.style == API_OPENAI) return true;
    return api_stream_open(&j->form, j->r.style == API_MESSAGES ? &messages_form : &responses_form, &j->head,
                           j->r.stream ? &j->out : NULL, &why) == ST_OK ||
           refuse(e, "", &why);
}

/* ---- the queue ---- */

static bool enqueue(scheduler *s, job *j, api_error *e)
{
    size_t own = 0;
    bool good = true;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < 2; i++)
        for (const job *o = i ? s->jobs : s->incoming; o; o = o->next)
            own += strcmp(o->client.client, j->client.client) == 0;
    if (s->draining) good = api_fail(e, 503, "draining", "the server is stopping");
    else if (s->n_jobs >= s->o.queue + s->o.batch)
        good = api_fail(e, 429, "queue_full", "%zu requests in progress or waiting, at most --batch %zu + --queue %zu",
                        s->n_jobs, s->o.batch, s->o.queue);
    else if (own >= s->o.a_client + s->o.batch)
        good = api_fail(e, 429, "queue_full",
                        "%zu requests of this client in progress or waiting, at most --batch %zu + --per-client %zu",
                        own, s->o.batch, s->o.a_client);
    if (good) {
        job **end = &s->incoming;
        while (*end) end = &(*end)->next;
        *end = j;
        s->n_jobs++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

/* Answers a prompt beyond the context as a stream of the Responses API that fails: clients then shorten the
 * conversation. False: the error is an answer of its own. */
static bool fail_in_stream(job *j, const api_error *e)
{
    err why = {0};
    if (j->r.style != API_RESPONSES || !j->r.stream || !e->code || strcmp(e->code, "context_length_exceeded") != 0)
        return false;
    name(j);
    if (api_stream_open(&j->form, &responses_form, &j->head, &j->out, &why) != ST_OK ||
        api_stream_begin(&j->form, &(api_usage){0}, &why) != ST_OK)
        return false;
    j->admitted = j->dropped = true;
    job_fail(j, e);
    return true;
}

job *sched_submit(scheduler *s, api_request *r, const job_client *client, api_error *e)
{
    job *j;
    err why = {0};
    if (MEM_NEW(&j, 1, &why) != ST_OK) {
        api_free(r);
        refuse(e, "", &why);
        return NULL;
    }
    j->sched = s;
    j->r = *r;
    *r = (api_request){0};
    j->client = *client;
    pthread_mutex_init(&j->lock, NULL);
    if (prepare(s, j, e) && enqueue(s, j, e)) return j;
    if (fail_in_stream(j, e)) return j;
    job_free(j);
    return NULL;
}

/* ---- counts ---- */

#define ALL(list) (list), sizeof(list) / sizeof *(list)

void sched_metrics(scheduler *s, FILE *f)
{
    pthread_mutex_lock(&s->lock);
    sched_counts c = s->counts;
    size_t jobs = s->n_jobs;
    pthread_mutex_unlock(&s->lock);
    prefix_counts kept = s->prefix ? prefix_count(prefix_cache_store(s->prefix)) : (prefix_counts){0};
    const metric counters[] = {{"kvasir_cancelled_total", "", c.cancelled},
                               {"kvasir_prompt_tokens_total", "source=\"computed\"", c.prompt_tokens},
                               {"kvasir_prompt_tokens_total", "source=\"prefix\"", c.cached_tokens},
                               {"kvasir_prefix_lookups_total", "result=\"miss\"", c.lookups[0]},
                               {"kvasir_prefix_lookups_total", "result=\"hit\"", c.lookups[1]},
                               {"kvasir_new_tokens_total", "", c.new_tokens},
                               {"kvasir_tool_calls_total", "result=\"complete\"", c.calls[CALL_COMPLETE]},
                               {"kvasir_tool_calls_total", "result=\"cut\"", c.calls[CALL_CUT]},
                               {"kvasir_tool_calls_total", "result=\"bad\"", c.calls[CALL_BAD]},
                               {"kvasir_schema_total", "result=\"compiled\"", c.schemas[SCHEMA_COMPILED]},
                               {"kvasir_schema_total", "result=\"cached\"", c.schemas[SCHEMA_CACHED]},
                               {"kvasir_schema_total", "result=\"unsupported\"", c.schemas[SCHEMA_UNSUPPORTED]},
                               {"kvasir_schema_total", "result=\"unsatisfiable\"", c.schemas[SCHEMA_UNSATISFIABLE]},
                               {"kvasir_steps_total", "", c.steps}};
    const metric gauges[] = {{"kvasir_running", "", (int64_t)c.running},
                             {"kvasir_waiting", "", (int64_t)jobs - c.admitted},
                             {"kvasir_kv_bytes", "", (int64_t)c.used},
                             {"kvasir_prefix_entries", "", (int64_t)kept.entries},
                             {"kvasir_prefix_bytes", "tier=\"memory\"", (int64_t)kept.bytes},
                             {"kvasir_prefix_bytes", "tier=\"disk\"", (int64_t)kept.disk}};
    metrics_write(f, "counter", ALL(counters));
    metrics_write(f, "gauge", ALL(gauges));
    histogram_write(f, "kvasir_queue_seconds", &c.queue);
    histogram_write(f, "kvasir_first_token_seconds", &c.first_token);
    histogram_write(f, "kvasir_step_seconds", &c.step);
    histogram_write(f, "kvasir_mask_seconds", &c.mask);
}
