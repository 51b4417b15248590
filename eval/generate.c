/* SPDX-License-Identifier: MIT */
/* ./run generate: a prompt, then tokens as they come. */
#include "config.h"

#include "eval/generate.h"

#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- stop strings ---- */

/* Text is held back while it could be the beginning of a stop string. Returns the bytes of t->held that
 * may be printed; *stopped when a stop string is complete (it is not printed). */
static size_t releasable(const text_out *t, bool *stopped)
{
    size_t safe = t->n;
    *stopped = false;
    for (int i = 0; i < t->n_stop; i++) {
        size_t len = strlen(t->stop[i]);
        const char *hit = len ? memmem(t->held, t->n, t->stop[i], len) : NULL;
        if (hit) {
            *stopped = true;
            if ((size_t)(hit - t->held) < safe) safe = (size_t)(hit - t->held);
        }
    }
    if (*stopped) return safe;
    for (int i = 0; i < t->n_stop; i++)
        for (size_t k = strlen(t->stop[i]); k-- > 1;)
            if (k <= t->n && memcmp(t->held + t->n - k, t->stop[i], k) == 0) {
                if (t->n - k < safe) safe = t->n - k;
                break;
            }
    return safe;
}

status text_out_add(text_out *t, const char *text, size_t n, bool *stopped, err *e)
{
    *stopped = false;
    if (n == 0) return ST_OK; /* nothing new can be released */
    if (t->n + n > t->cap) {
        size_t cap = 2 * (t->n + n) + 64;
        TRY(mem_resize((void **)&t->held, cap, 1, "text", e));
        t->cap = cap;
    }
    memcpy(t->held + t->n, text, n);
    t->n += n;
    size_t k = releasable(t, stopped);
    TRY(out_write(t->held, k, e));
    memmove(t->held, t->held + k, t->n - k);
    t->n -= k;
    return out_flush(e);
}

status text_out_end(text_out *t, bool stopped, err *e)
{
    status st = stopped ? ST_OK : out_write(t->held, t->n, e);
    if (st == ST_OK) st = out_flush(e);
    mem_free(t->held);
    *t = (text_out){0};
    return st;
}

/* ---- one reply ---- */

static bool keep_going(void *ctx, int64_t done, int64_t total)
{
    reply *r = ctx;
    progress_set(r->bar, done, total);
    return !cli_interrupted();
}

static void take_logits(void *ctx, int64_t first, size_t n, const float *logits)
{
    reply *r = ctx;
    (void)first;
    memcpy(r->logits, logits + (n - 1) * (size_t)r->g->m->config.vocab,
           (size_t)r->g->m->config.vocab * sizeof(float));
}

/* The prompt; its end's logits are in r->logits. */
static status feed_prompt(reply *r, const token_list *ids, err *e)
{
    prefill_options o = {
        .which = LOGITS_LAST, .rows = take_logits, .progress = keep_going, .ctx = r};
    int64_t t0 = clock_ns();
    r->bar = progress_start(r->c, "prompt");
    status st = session_prefill(&r->s, 1, ids->ids, ids->n, &o, e);
    progress_end(r->bar);
    r->bar = NULL;
    TRY(st);
    r->prompt_ns = clock_ns() - t0;
    r->n_prompt = (int64_t)ids->n;
    for (size_t i = 0; i < ids->n; i++) sampler_accept(r->sampler, ids->ids[i]);
    return ST_OK;
}

/* Prints one token; *stopped at a stop string. */
static status print_token(text_out *t, token_stream *stream, int32_t id, bool *stopped, err *e)
{
    const char *text;
    size_t n;
    TRY(token_stream_push(stream, id, &text, &n, e));
    return text_out_add(t, text, n, stopped, e);
}

static status decode_loop(reply *r, text_out *t, token_stream *stream, bool *stopped, err *e)
{
    r->decode_ns = r->n_decoded = 0;
    for (int i = 0; i < r->n_new; i++) {
        int32_t id = sampler_next(r->sampler, r->logits);
        sampler_accept(r->sampler, id);
        TRY(token_list_push(&r->said, id, e));
        if (tokenizer_is_eos(r->g->tok, id) && !r->c->ignore_eos) break;
        TRY(print_token(t, stream, id, stopped, e));
        /* Here alone, so that the last token of a reply is never fed. */
        if (i + 1 == r->n_new || *stopped || cli_interrupted() ||
            session_length(r->s) >= session_limit(r->s))
            break;
        int64_t t1 = clock_ns();
        TRY(session_decode(&r->s, 1, &id, r->logits, e));
        r->decode_ns += clock_ns() - t1;
        r->n_decoded++;
    }
    return ST_OK;
}

status reply_run(reply *r, const token_list *ids, err *e)
{
    token_stream *stream = NULL;
    text_out t = {.stop = r->c->stop, .n_stop = r->c->n_stop};
    bool stopped = false;
    const char *text;
    size_t n;
    TRY(feed_prompt(r, ids, e));
    TRY(token_stream_create(&stream, r->g->tok, e));
    status st = decode_loop(r, &t, stream, &stopped, e);
    if (st == ST_OK && !stopped) {
        st = token_stream_end(stream, &text, &n, e);
        if (st == ST_OK) st = text_out_add(&t, text, n, &stopped, e);
    }
    status end = text_out_end(&t, stopped, st == ST_OK ? e : NULL);
    token_stream_free(stream);
    return st != ST_OK ? st : end;
}

void reply_print_stats(const reply *r)
{
    attn_stats a = attn_seq_stats(session_attn(r->s));
    attn_bytes held = attn_seq_held(session_attn(r->s)), peak = attn_seq_peak(session_attn(r->s));
    double prompt_s = (double)r->prompt_ns / 1e9, decode_s = (double)r->decode_ns / 1e9;
    fprintf(stderr,
            "prompt %lld tokens, %.1f tokens/s | first token after %.3f s | decode %lld tokens, "
            "%.1f tokens/s\n",
            (long long)r->n_prompt, prompt_s > 0 ? (double)r->n_prompt / prompt_s : 0, prompt_s,
            (long long)r->n_decoded, decode_s > 0 ? (double)r->n_decoded / decode_s : 0);
    fprintf(stderr,
            "KV held %.2f MB (peak %.2f MB) | attended %.1f %% of the tokens in decode steps\n",
            (double)held.kv / 1e6, (double)peak.kv / 1e6,
            a.visible > 0 ? 100 * a.attended / a.visible : 100.0);
}

json_t *reply_json(const reply *r, err *e)
{
    attn_stats a = attn_seq_stats(session_attn(r->s));
    double steps = (double)a.steps * r->g->m->config.n_layers;
    char *text;
    size_t n;
    if (tokenizer_decode(r->g->tok, r->said.ids, r->said.n, false, &text, &n, e) != ST_OK)
        return NULL;
    json_t *j =
        json_pack("{s:s%, s:I, s:I, s:f, s:f, s:o, s:I, s:I}", "text", text, n, "prompt_tokens",
                  (json_int_t)r->n_prompt, "new_tokens", (json_int_t)r->said.n, "prompt_seconds",
                  (double)r->prompt_ns / 1e9, "decode_seconds", (double)r->decode_ns / 1e9,
                  "attended", steps > 0 ? json_real(a.attended / steps) : json_null(), "kv_bytes",
                  (json_int_t)attn_seq_held(session_attn(r->s)).kv, "kv_bytes_peak",
                  (json_int_t)attn_seq_peak(session_attn(r->s)).kv);
    mem_free(text);
    if (!j) err_set(e, ST_NOMEM, "out of memory for the report");
    return j;
}

status reply_report(const reply *r, json_t *results, err *e)
{
    const cli *c = r->c;
    const attn_spec *spec = attn_seq_spec(session_attn(r->s));
    char params[512], kv[128];
    attn_spec_params(spec, params, sizeof params);
    kv_format_text(&spec->kv, kv, sizeof kv);
    json_t *options =
        json_pack("{s:s, s:s, s:o, s:s, s:I, s:i, s:f, s:i, s:f, s:f, s:f, s:I, s:s?}", "attn",
                  spec->text, "params", params, "budget",
                  attn_has_budget(spec) ? json_integer(spec->budget) : json_null(), "kv", kv, "ctx",
                  (json_int_t)session_limit(r->s), "n", r->n_new, "temp", c->temp, "top_k",
                  c->top_k, "top_p", c->top_p, "min_p", c->min_p, "repeat_penalty",
                  c->repeat_penalty, "seed", (json_int_t)c->seed, "template", c->template_name);
    return report_write(c, r->g, options, results, NULL, e);
}

status reply_check(const cli *c, err *e)
{
    const char *const *name = chat_template_names();
    char list[160] = "";
    size_t n = 0;
    if (!c->template_name) return ST_OK;
    for (; *name && n < sizeof list; name++) {
        if (strcmp(*name, c->template_name) == 0) return ST_OK;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", *name);
    }
    return err_set(e, ST_USAGE, "--template: unknown template '%.40s' (%s)", c->template_name,
                   list);
}

status reply_create(reply *r, const cli *c, engine *g, int64_t n_tokens, err *e)
{
    attn_spec spec;
    sampler_options so = {c->temp, c->top_k, c->top_p, c->min_p, c->repeat_penalty, c->seed};
    *r = (reply){.c = c, .g = g, .n_new = c->n_new};
    TRY(cli_parse_one_attn(&spec, c, e));
    status st = session_create(&r->s, g->dec, &spec, n_tokens, e);
    if (st == ST_OK) st = sampler_create(&r->sampler, &so, (size_t)g->m->config.vocab, e);
    if (st == ST_OK) st = MEM_NEW(&r->logits, (size_t)g->m->config.vocab, e);
    if (st != ST_OK) reply_free(r);
    return st;
}

void reply_free(reply *r)
{
    session_free(r->s);
    sampler_free(r->sampler);
    mem_free(r->logits);
    token_list_free(&r->said);
    *r = (reply){0};
}

/* ---- the command ---- */

static status encode_prompt(const cli *c, const engine *g, token_list *ids, err *e)
{
    char *text;
    size_t n;
    TRY(cli_read_text(&text, &n, c, e));
    status st;
    if (c->chat) {
        chat_message msg[2];
        size_t k = 0;
        if (c->system) msg[k++] = (chat_message){"system", c->system};
        msg[k++] = (chat_message){"user", text};
        st = chat_encode(g->tok, c->template_name, msg, k, ids, e);
    } else {
        unsigned flags = tokenizer_adds_bos(g->tok) ? TOKENIZE_BOS : 0;
        st = tokenizer_encode(g->tok, text, n, flags | (c->special ? TOKENIZE_SPECIAL : 0), ids, e);
    }
    mem_free(text);
    if (st == ST_OK && ids->n == 0)
        st = err_set(e, ST_USAGE,
                     "the prompt is empty and the model has no BOS token to start from");
    return st;
}

status session_tokens(const cli *c, const engine *g, int64_t need, int64_t *out, err *e)
{
    int64_t max = g->m->config.max_positions;
    *out = need;
    if (c->ctx) {
        TRY(cli_parse_size(out, c->ctx, "--ctx", e));
        if (*out < 1) return err_set(e, ST_USAGE, "--ctx %s: at least 1 token is needed", c->ctx);
        cli_warn_ctx(c, g->m, *out);
    } else if (need > max) {
        return err_set(e, ST_UNSUPPORTED,
                       "%lld tokens (prompt and new ones) exceed the model's "
                       "max_position_embeddings of %lld; --ctx N goes beyond it",
                       (long long)need, (long long)max);
    }
    return ST_OK;
}

static status print_plan(const cli *c, const engine *g, int64_t n_tokens, err *e)
{
    attn_spec spec;
    memory_plan p;
    decoder_options o = {.chunk = (size_t)c->chunk, .max_batch = 1};
    TRY(cli_parse_one_attn(&spec, c, e));
    TRY(session_plan(&p, g->m, &o, &spec, n_tokens, e));
    TRY(out_printf(e, "%lld tokens: weights %.1f MB (mapped)", (long long)n_tokens,
                   (double)(p.weights - p.weights_in_memory) / 1e6));
    if (p.weights_in_memory)
        TRY(out_printf(e, " and %.1f MB in memory", (double)p.weights_in_memory / 1e6));
    return out_printf(e, ", KV %.1f MB, index %.1f MB, scratch %.1f MB; available %.1f MB\n",
                      (double)p.kv / 1e6, (double)p.index / 1e6, (double)p.scratch / 1e6,
                      (double)mem_available() / 1e6);
}

status cmd_generate(const cli *c, err *e)
{
    engine g;
    reply r = {0};
    token_list ids = {0};
    int64_t n_tokens;
    if (c->prompt && c->prompt_file) return err_set(e, ST_USAGE, "-p and -f exclude each other");
    if (!c->chat && (c->system || c->template_name))
        return err_set(e, ST_USAGE, "%s needs --chat", c->system ? "--system" : "--template");
    TRY(reply_check(c, e));
    TRY(engine_open(&g, c, 1, false, true, e));
    status st = encode_prompt(c, &g, &ids, e);
    if (st != ST_OK) goto done;
    TRY_GOTO(session_tokens(c, &g, (int64_t)ids.n + c->n_new, &n_tokens, e));
    if (c->plan) {
        st = print_plan(c, &g, n_tokens, e);
        goto done;
    }
    TRY_GOTO(reply_create(&r, c, &g, n_tokens, e));
    cli_catch_interrupt();
    TRY_GOTO(reply_run(&r, &ids, e));
    TRY_GOTO(out_write("\n", 1, e));
    TRY_GOTO(out_flush(e));
    if (!c->quiet) reply_print_stats(&r);
    if (cli_interrupted()) {
        st = err_set(e, ST_INTERRUPTED, "interrupted");
        goto done; /* part of a reply is no result: no report */
    }
    if (c->json) {
        json_t *result = reply_json(&r, e);
        st = result ? reply_report(&r, json_pack("[o]", result), e) : e->code;
    }
done:
    reply_free(&r);
    token_list_free(&ids);
    engine_close(&g);
    return st;
}
