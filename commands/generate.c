/* SPDX-License-Identifier: MIT */
/* ./run generate: a prompt, then tokens as they come. */
#include "config.h"

#include "cli/command.h"
#include "cli/ranks.h"
#include "commands/generate.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/draft.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/session_file.h"

/* ---- one reply ---- */

status reply_write(void *ctx, const char *text, size_t n, err *e)
{
    (void)ctx;
    TRY(out_write(text, n, e));
    return out_flush(e);
}

static bool keep_going(void *ctx, int64_t done, int64_t total)
{
    reply *r = ctx;
    progress_set(r->bar, done, total);
    return !cli_interrupted();
}

/* Feeds what the session does not hold yet as a prompt; the logits of the next token are then in r->x. */
static status feed_prompt(reply *r, err *e)
{
    sequence *q = &r->q;
    const prompt_options o = {.logits = true, .progress = keep_going, .ctx = r};
    int64_t t0 = clock_ns();
    status st = ST_OK;
    r->bar = progress_start("prompt");
    sequence_begin_cached(q, q->ids.n, o.hint);
    r->n_cached = (int64_t)(q->n_fed - q->start);
    while (st == ST_OK && q->n_fed < q->end) st = sequence_prefill(&r->x, &q, 1, &o, e);
    progress_end(r->bar);
    r->bar = NULL;
    TRY(st);
    r->prompt_ns = clock_ns() - t0;
    r->n_prompt = (int64_t)(q->end - q->start);
    return ST_OK;
}

/* True if the last token was chosen, but not fed. */
static bool is_unfed(const reply *r)
{
    return r->q.n_fed + 1 == r->q.ids.n;
}

/* Feeds one token that was chosen. */
static status feed_token(reply *r, err *e)
{
    sequence *q = &r->q;
    int64_t t = clock_ns();
    TRY(sequence_decode(&r->x, &q, 1, e));
    r->decode_ns += clock_ns() - t;
    r->n_decoded++;
    return ST_OK;
}

/* True if the last reply ended with an end of text. */
static bool has_ended(const reply *r)
{
    return is_unfed(r) && tokenizer_is_eos(r->g->tok, r->q.ids.ids[r->q.ids.n - 1]);
}

/* What comes before the first token of a reply. The template writes the end of a reply itself, so that of the last one
 * is not fed before a prompt. */
static status feed(reply *r, const token_list *ids, err *e)
{
    sequence *q = &r->q;
    r->n_prompt = r->n_cached = r->prompt_ns = r->n_decoded = r->decode_ns = 0;
    if (q->draft) drafter_begin(q->draft);
    if (ids->n == 0) return is_unfed(r) ? feed_token(r, e) : ST_OK;
    if (has_ended(r)) sequence_truncate(q, q->ids.n - 1);
    size_t before = q->ids.n;
    TRY(sequence_push(q, ids->ids, ids->n, e));
    status st = feed_prompt(r, e);
    if (st != ST_OK) sequence_truncate(q, before);
    return st;
}

/* Token number i of the reply; the one before it is the last of the sequence. */
static status next_token(reply *r, int i, int32_t *id, err *e)
{
    sequence *q = &r->q;
    int64_t t = clock_ns();
    q->most = (size_t)(r->n_new - i);
    TRY(sequence_next(&r->x, &q, 1, e));
    *id = q->next;
    r->decode_ns += clock_ns() - t;
    r->n_decoded++;
    return ST_OK;
}

static status decode_loop(reply *r, text_out *t, err *e)
{
    int32_t id = r->n_new > 0 ? sequence_choose(&r->q, r->x.logits) : 0;
    for (int i = 0; i < r->n_new; i++) {
        TRY(comm_broadcast(r->c->engine.device.ranks, &id, sizeof id, 0, e)); /* CPUs may differ in their last bits */
        TRY(token_list_push(&r->said, id, e));
        TRY(sequence_accept(&r->q, id, e));
        if (tokenizer_is_eos(r->g->tok, id) && !r->c->ignore_eos) break;
        TRY(text_out_token(t, id, e));
        /* Here alone, so that the last token of a reply is never fed. */
        if (i + 1 == r->n_new || t->stopped || cli_interrupted() || (int64_t)r->q.n_fed >= session_limit(r->q.s)) break;
        TRY(next_token(r, i + 1, &id, e));
    }
    return sequence_settle(&r->q, e);
}

status reply_run(reply *r, const token_list *ids, err *e)
{
    text_out t;
    if (ids->n == 0 && has_ended(r) && !r->c->ignore_eos) return ST_OK;
    TRY(feed(r, ids, e));
    status st = text_out_open(&t, r->g->tok, r->c->stop.text, r->c->stop.n, e);
    t.write = reply_write;
    if (st == ST_OK && ids->n == 0) st = text_out_begin(&t, r->q.ids.ids, r->q.ids.n, false, e);
    if (st == ST_OK) st = decode_loop(r, &t, e);
    status end = text_out_end(&t, st != ST_OK, st == ST_OK ? e : NULL);
    text_out_close(&t);
    return st != ST_OK ? st : end;
}

static void print_tier(const reply *r, const attn_stats *a)
{
    tier_counts t = attn_seq_tier(session_attn(r->q.s));
    double steps = a->steps > 0 ? (double)a->steps : 1;
    fprintf(stderr,
            "KV in files %.2f MB, %.2f MB of it in memory | a decode step read %.3f MB in %.0f blocks (%.2f a selected "
            "row), wrote %.3f MB, waited %.2f ms | %.1f %% of the blocks were in memory\n",
            (double)t.in_file / 1e6, (double)t.here / 1e6, (double)t.read / 1e6 / steps, (double)t.missed / steps,
            tier_per_row(&t), (double)t.written / 1e6 / steps, (double)t.stall_ns / 1e6 / steps, 100 * tier_hits(&t));
}

static void print_host(const reply *r, const attn_stats *a)
{
    host_counts h = attn_seq_host(session_attn(r->q.s));
    double steps = a->steps > 0 ? (double)a->steps : 1;
    fprintf(stderr,
            "KV in the host's memory %.2f MB | a decode step read %.3f MB of it, wrote %.3f MB, waited for none | %.1f "
            "%% of the "
            "rows were on the device\n",
            (double)h.held / 1e6, h.read / 1e6 / steps, h.written / 1e6 / steps, 100 * host_hits(&h));
}

static void print_draft(const reply *r)
{
    draft_counts n = drafter_counts(r->q.draft);
    double alone = (double)n.tokens * n.single_ns;
    fprintf(stderr,
            "draft %s: %.2f tokens a verification | %lld of %lld drafted tokens accepted | %lld of %lld steps saved",
            drafter_spec(r->q.draft), draft_length(&n), (long long)n.accepted, (long long)n.proposed,
            (long long)(n.tokens - n.verifications), (long long)n.tokens);
    if (n.ns > 0 && alone > 0) fprintf(stderr, " | %.2f times the speed of single steps", alone / n.ns);
    const model *m = r->g->draft;
    if (m) fprintf(stderr, " | weights of drafts %s, %.2f MB", dtype_name(m->type), (double)m->weight_bytes / 1e6);
    fputc('\n', stderr);
}

/* Half of the 95 % interval of the mean share of attention that was missed, as samples measured it. */
static double missed_error(const attn_stats *a)
{
    return 1.96 * sqrt(a->missed_var) / a->measured;
}

static void print_missed(const attn_stats *a)
{
    if (a->measured > 0)
        fprintf(stderr, "missed %.2f +- %.2f %% of the attention in decode steps, by samples (95 %% interval)\n",
                100 * a->missed / a->measured, 100 * missed_error(a));
}

static void print_certified(const attn_certified *x)
{
    double heads = x->heads > 0 ? (double)x->heads : 1, lists = x->lists > 0 ? (double)x->lists : 1;
    fprintf(
        stderr,
        "certified %.1f %% of %lld heads of steps and layers: they miss at most %.4f of their attention in the mean, "
        "%.4f in the worst; outputs are off by at most %.4f of the longest value\n",
        100 * (double)x->certified / heads, (long long)x->heads, x->bound_mean, x->bound_most, 2 * x->bound_most);
    fprintf(stderr,
            "selections of %.1f tokens in the mean, 10 %% at most %lld, 90 %% at most %lld, the longest %lld | %.1f %% "
            "attend everything\n",
            x->tokens_mean, (long long)x->tokens_p10, (long long)x->tokens_p90, (long long)x->tokens_most,
            100 * (double)x->whole / lists);
}

void reply_print_stats(const reply *r)
{
    attn_stats a = attn_seq_stats(session_attn(r->q.s));
    attn_bytes held = attn_seq_held(session_attn(r->q.s)), peak = attn_seq_peak(session_attn(r->q.s));
    double prompt_s = (double)r->prompt_ns / 1e9, decode_s = (double)r->decode_ns / 1e9;
    fprintf(stderr, "prompt %lld tokens, ", (long long)r->n_prompt);
    if (r->cache) fprintf(stderr, "%lld of them known, ", (long long)r->n_cached);
    fprintf(stderr, "%.1f tokens/s | first token after %.3f s | decode %lld tokens, %.1f tokens/s\n",
            prompt_s > 0 ? (double)(r->n_prompt - r->n_cached) / prompt_s : 0, prompt_s, (long long)r->n_decoded,
            decode_s > 0 ? (double)r->n_decoded / decode_s : 0);
    fprintf(stderr, "KV held %.2f MB (peak %.2f MB) | attended %.1f %% of the tokens in decode steps\n",
            (double)held.kv / 1e6, (double)peak.kv / 1e6, a.visible > 0 ? 100 * a.attended / a.visible : 100.0);
    print_missed(&a);
    kv_tier_kind kind = attn_seq_spec(session_attn(r->q.s))->tier.kind;
    if (kind == KV_DISK) print_tier(r, &a);
    if (kind == KV_HOST) print_host(r, &a);
    attn_certified sure;
    if (attn_seq_certified(session_attn(r->q.s), &sure)) print_certified(&sure);
    if (r->q.draft) print_draft(r);
}

static json_t *missed_ci_json(const attn_stats *a)
{
    double mean = a->missed / a->measured, off = missed_error(a);
    return json_pack("[f, f]", fmax(mean - off, 0), fmin(mean + off, 1));
}

static json_t *certified_json(const attn_certified *x)
{
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:f, s:I, s:I, s:I}", "heads", (json_int_t)x->heads,
                     "certified", (json_int_t)x->certified, "bound_mean", x->bound_mean, "bound_most", x->bound_most,
                     "output_bound", 2 * x->bound_most, "lists", (json_int_t)x->lists, "whole", (json_int_t)x->whole,
                     "tokens_mean", x->tokens_mean, "tokens_p10", (json_int_t)x->tokens_p10, "tokens_p90",
                     (json_int_t)x->tokens_p90, "tokens_most", (json_int_t)x->tokens_most);
}

json_t *reply_json(const reply *r, err *e)
{
    attn_stats a = attn_seq_stats(session_attn(r->q.s));
    double steps = (double)a.steps * r->g->m->config.n_kv;
    char *text;
    size_t n;
    if (tokenizer_decode(r->g->tok, r->said.ids, r->said.n, false, &text, &n, e) != ST_OK) return NULL;
    json_t *j = json_pack("{s:s%, s:I, s:I, s:f, s:f, s:o, s:I, s:I}", "text", text, n, "prompt_tokens",
                          (json_int_t)r->n_prompt, "new_tokens", (json_int_t)r->said.n, "prompt_seconds",
                          (double)r->prompt_ns / 1e9, "decode_seconds", (double)r->decode_ns / 1e9, "attended",
                          steps > 0 ? json_real(a.attended / steps) : json_null(), "kv_bytes",
                          (json_int_t)attn_seq_held(session_attn(r->q.s)).kv, "kv_bytes_peak",
                          (json_int_t)attn_seq_peak(session_attn(r->q.s)).kv);
    mem_free(text);
    tier_counts t = attn_seq_tier(session_attn(r->q.s));
    host_counts h = attn_seq_host(session_attn(r->q.s));
    kv_tier_kind kind = attn_seq_spec(session_attn(r->q.s))->tier.kind;
    if (j && kind == KV_DISK) json_object_set_new(j, "tier", tier_json(&t, a.steps));
    if (j && kind == KV_HOST) json_object_set_new(j, "tier", host_json(&h, a.steps));
    if (j && r->q.draft) json_object_set_new(j, "draft", drafter_json(r->q.draft, r->g->draft));
    if (j && a.measured > 0) {
        json_object_set_new(j, "missed_mass", json_real(a.missed / a.measured));
        json_object_set_new(j, "ci95", missed_ci_json(&a));
    }
    attn_certified sure;
    if (j && attn_seq_certified(session_attn(r->q.s), &sure)) json_object_set_new(j, "certify", certified_json(&sure));
    if (j && r->cache) json_object_set_new(j, "prefix_tokens", json_integer(r->n_cached));
    if (!j) err_set(e, ST_NOMEM, "out of memory for the report");
    return j;
}

status reply_report(const reply *r, json_t *results, err *e)
{
    const cli *c = r->c;
    const attn_spec *spec = attn_seq_spec(session_attn(r->q.s));
    char params[512], kv[128];
    attn_spec_params(spec, params, sizeof params);
    kv_format_text(&spec->kv, kv, sizeof kv);
    json_t *options = json_pack(
        "{s:s, s:s, s:o, s:s, s:I, s:i, s:f, s:i, s:f, s:f, s:f, s:I, s:s, s:s?}", "attn", spec->text, "params", params,
        "budget", attn_has_budget(spec) ? json_integer(spec->budget) : json_null(), "kv", kv, "ctx",
        (json_int_t)session_limit(r->q.s), "n", r->n_new, "temp", c->temp, "top_k", c->top_k, "top_p", c->top_p,
        "min_p", c->min_p, "repeat_penalty", c->repeat_penalty, "seed", (json_int_t)c->seed.value, "draw",
        c->draw ? c->draw : draw_names[DRAW_GUMBEL], "template", c->template_name);
    return report_write(&c->out, r->g, options, results, NULL, e);
}

static const char *kept_by(const cli *c)
{
    return c->save ? "--save" : c->load ? "--load" : "--prefix-disk";
}

/* Whether --save FILE can be written, before anything runs for hours. */
static status check_save(const cli *c, err *e)
{
    file_draft d;
    err why = {0};
    kv_tier where = {.kind = KV_DEVICE};
    if (c->attn.kv_tier) TRY(kv_tier_parse(&where, c->attn.kv_tier, e));
    if (where.kind != KV_DEVICE && (c->save || c->load || c->prefix.disk))
        return err_set(e, ST_UNSUPPORTED, "%s: a session in --kv-tier %s cannot be saved or loaded", kept_by(c),
                       kv_tier_name(where.kind));
    if (!c->save) return ST_OK;
    status st = file_draft_open(&d, c->save, &why);
    file_draft_close(&d);
    return st == ST_OK ? ST_OK : err_set(e, st, "--save %s", why.msg);
}

status reply_check(const cli *c, err *e)
{
    if (c->save || c->load) TRY(ranks_refuse(c->engine.device.ranks, kept_by(c), e));
    TRY(check_save(c, e));
    if (c->load && c->prefix.disk)
        return err_set(e, ST_USAGE, "--prefix-disk and --load exclude each other: the session has begun already");
    if (c->prefix.disk) TRY(cli_check_prefix(c->prefix.disk, c->engine.device.ranks, e));
    if (c->no_verify && !c->load) return err_set(e, ST_USAGE, "--no-verify: needs --load");
    if (c->load && c->system)
        return err_set(e, ST_USAGE, "--system and --load exclude each other: the session has begun already");
    return cli_check_template(c->template_name, e);
}

static status parse_draw(draw_how *how, const cli *c, err *e)
{
    for (int i = 0; i < DRAW_COUNT; i++) {
        *how = (draw_how)i;
        if (!c->draw ? i == DRAW_GUMBEL : strcmp(c->draw, draw_names[i]) == 0) return ST_OK;
    }
    return err_set(e, ST_USAGE, "--draw: '%.40s' is not one of: gumbel rank", c->draw);
}

static status create_with(reply *r, const cli *c, engine *g, const attn_spec *spec, int64_t n_tokens, err *e)
{
    sampler_options so = {c->temp, c->top_k, c->top_p, c->min_p, c->repeat_penalty, c->seed.value, DRAW_GUMBEL};
    const decoder_options o = engine_decoder(g, 1);
    const draft_options drafts = engine_drafts(&c->engine);
    sequence_options q = {.spec = spec, .size = session_of(n_tokens), .sampling = &so, .drafts = &drafts};
    drafter *d;
    *r = (reply){.c = c, .g = g, .n_new = c->n_new};
    TRY(parse_draw(&so.draw, c, e));
    TRY(drafter_create(&d, &drafts, spec, e));
    session_size size = drafter_session(d, n_tokens);
    status st = c->prefix.disk ? prefix_cache_check(spec, size.draft, "--prefix-disk", e) : ST_OK;
    if (st == ST_OK) st = session_check(g->m, &o, spec, size, e);
    drafter_free(d);
    if (st == ST_OK) st = engine_load(g, 1, e);
    if (st == ST_OK) st = cli_open_prefix(&r->cache, &c->prefix, c->attn.ctx, g, e);
    q.cache = r->cache;
    if (st == ST_OK) st = sequence_open(&r->q, g->dec, &q, e);
    if (st == ST_OK) st = stepper_open(&r->x, g->dec, 1, e);
    if (st != ST_OK) reply_free(r);
    return st;
}

status reply_create(reply *r, const cli *c, engine *g, int64_t n_tokens, err *e)
{
    attn_spec spec;
    *r = (reply){0};
    TRY(attn_args_parse(&spec, &c->attn, c->out.command, e));
    return create_with(r, c, g, &spec, n_tokens, e);
}

/* ---- sessions on disk ---- */

static status load_from(reply *r, const cli *c, engine *g, session_file *f, err *e)
{
    attn_spec spec;
    session_notes n;
    int64_t n_tokens = session_file_context(f);
    if (c->attn.names || c->attn.budget || c->attn.skip || c->attn.certify || c->attn.kv)
        TRY(attn_args_parse(&spec, &c->attn, c->out.command, e));
    else TRY(attn_spec_read(&spec, session_file_strategy(f), session_file_store(f), e));
    if (c->attn.ctx) TRY(cli_parse_size(&n_tokens, c->attn.ctx, "--ctx", e));
    TRY(create_with(r, c, g, &spec, n_tokens, e));
    if (c->no_verify) session_file_trust(f);
    TRY(session_load(r->q.s, f, &n, e));
    if (!session_file_summed(f))
        fprintf(stderr, "warning: --load %s: saved by an earlier version: rows are not checksummed\n",
                path_tail(c->load));
    TRY(sequence_push(&r->q, n.ids, n.n_ids, e));
    r->q.n_fed = (size_t)session_length(r->q.s);
    if (n.logits) memcpy(r->x.logits, n.logits, (size_t)g->m->config.vocab * sizeof *r->x.logits);
    if (!c->seed.given) sampler_set_random(r->q.by, n.random);
    return ST_OK;
}

status reply_load(reply *r, const cli *c, engine *g, err *e)
{
    session_file *f;
    err why = {0};
    *r = (reply){0};
    status st = session_file_open(&f, c->load, &why);
    if (st == ST_OK) st = load_from(r, c, g, f, &why);
    session_file_close(f);
    if (st == ST_OK) return ST_OK;
    reply_free(r);
    return err_set(e, st, "--load %s", why.msg);
}

status reply_save(reply *r, err *e)
{
    err why = {0};
    if (!r->c->save) return ST_OK;
    /* After a prompt that was stopped the session is to be fed anew. */
    if (r->q.n_fed + is_unfed(r) < r->q.ids.n) TRY(feed_prompt(r, e));
    session_notes n = {.ids = r->q.ids.ids,
                       .n_ids = r->q.ids.n,
                       .logits = is_unfed(r) || r->q.ids.n == 0 ? NULL : r->x.logits,
                       .random = sampler_random(r->q.by)};
    status st = session_save(r->q.s, r->c->save, &n, &why);
    return st == ST_OK ? ST_OK : err_set(e, st, "--save %s", why.msg);
}

/* The reply itself is in the cache as it was generated; encoding its text again could give other ids. So the
 * conversation is encoded with an empty reply, and what it shares with the prompt of the turn before is dropped. */
status reply_encode_turn(const reply *r, chat_message *msg, size_t n, token_list *out, err *e)
{
    token_list before = {0}, with = {0};
    const char *name = r->c->template_name;
    chat_message last = msg[n - 2];
    status st = chat_encode(r->g->tok, name, msg, n - 2, &before, e);
    msg[n - 2].content = "";
    if (st == ST_OK) st = chat_encode(r->g->tok, name, msg, n, &with, e);
    msg[n - 2] = last;
    size_t same = 0;
    while (same < before.n && same < with.n && before.ids[same] == with.ids[same]) same++;
    for (size_t i = same; st == ST_OK && i < with.n; i++) st = token_list_push(out, with.ids[i], e);
    token_list_free(&before);
    token_list_free(&with);
    return st;
}

void reply_free(reply *r)
{
    sequence_close(&r->q);
    stepper_close(&r->x);
    prefix_cache_close(r->cache);
    token_list_free(&r->said);
    *r = (reply){0};
}

/* ---- the command ---- */

/* A turn behind a session; only the session's end matters here. */
static status encode_later_turn(const reply *r, const char *text, token_list *ids, err *e)
{
    chat_message msg[] = {{"user", "x"}, {"assistant", ""}, {"user", text}};
    return reply_encode_turn(r, msg, 3, ids, e);
}

/* r: the session that it is for, without one or an empty one NULL. */
static status encode_prompt(const cli *c, const engine *g, const reply *r, token_list *ids, err *e)
{
    char *text;
    size_t n;
    TRY(cli_read_text(&text, &n, &c->prompt, c->engine.device.ranks, e));
    status st;
    if (c->chat && r) {
        st = encode_later_turn(r, text, ids, e);
    } else if (c->chat) {
        chat_message msg[2];
        size_t k = 0;
        if (c->system) msg[k++] = (chat_message){"system", c->system};
        msg[k++] = (chat_message){"user", text};
        st = chat_encode(g->tok, c->template_name, msg, k, ids, e);
    } else {
        unsigned flags = tokenizer_adds_bos(g->tok) && !r ? TOKENIZE_BOS : 0;
        st = tokenizer_encode(g->tok, text, n, flags | (c->special ? TOKENIZE_SPECIAL : 0), ids, e);
    }
    mem_free(text);
    if (st == ST_OK && ids->n == 0)
        st = err_set(e, ST_USAGE, "the prompt is empty and the model has no BOS token to start from");
    return st;
}

status session_tokens(const cli *c, const engine *g, int64_t need, int64_t *out, err *e)
{
    enum { ROOM = 8192 }; /* tokens behind a session that is saved */
    int64_t max = g->m->config.max_positions;
    *out = need;
    if (c->save && need < max) *out = max - need < ROOM ? max : need + ROOM;
    if (c->attn.ctx) {
        TRY(cli_parse_size(out, c->attn.ctx, "--ctx", e));
        if (*out < 1) return err_set(e, ST_USAGE, "--ctx %s: at least 1 token is needed", c->attn.ctx);
        cli_warn_ctx(g->m, *out);
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
    const decoder_options o = engine_decoder(g, 1);
    drafter *d;
    TRY(attn_args_parse(&spec, &c->attn, c->out.command, e));
    const draft_options drafts = engine_drafts(&c->engine);
    TRY(drafter_create(&d, &drafts, &spec, e));
    status st = session_plan(&p, g->m, &o, &spec, drafter_session(d, n_tokens), e);
    drafter_free(d);
    TRY(st);
    TRY(out_printf(e, "%lld tokens: weights %.1f MB (mapped)", (long long)n_tokens,
                   (double)(p.weights - p.weights_in_memory) / 1e6));
    if (p.weights_in_memory) TRY(out_printf(e, " and %.1f MB in memory", (double)p.weights_in_memory / 1e6));
    if (p.draft_weights) TRY(out_printf(e, " (those of drafts %.1f MB)", (double)p.draft_weights / 1e6));
    TRY(out_printf(e, ", KV %.1f MB, index %.1f MB, scratch %.1f MB; available %.1f MB", (double)p.kv / 1e6,
                   (double)p.index / 1e6, (double)p.scratch / 1e6, (double)g->be->ops->available(g->be) / 1e6));
    if (p.disk)
        TRY(out_printf(e, "; in files in %s %.1f MB, available %.1f MB", p.tier_dir, (double)p.disk / 1e6,
                       (double)g->be->ops->tier->room(g->be, p.tier_dir) / 1e6));
    if (p.host)
        TRY(out_printf(e, "; in the host's memory %.1f MB, available %.1f MB", (double)p.host / 1e6,
                       (double)g->be->ops->host->room(g->be) / 1e6));
    return out_printf(e, "\n");
}

static status check_options(const cli *c, err *e)
{
    bool prompt = c->prompt.text || c->prompt.file;
    if (c->prompt.text && c->prompt.file) return err_set(e, ST_USAGE, "-p and -f exclude each other");
    if (!c->chat && (c->system || c->template_name))
        return err_set(e, ST_USAGE, "%s needs --chat", c->system ? "--system" : "--template");
    if (c->load && c->plan) return err_set(e, ST_USAGE, "--plan and --load exclude each other");
    if (c->load && c->chat && !prompt) return err_set(e, ST_USAGE, "--chat with --load needs -p or -f");
    return reply_check(c, e);
}

/* A saved session and what is to be asked of it: without -p and -f it goes on. */
static status start_loaded(reply *r, const cli *c, engine *g, token_list *ids, err *e)
{
    bool prompt = c->prompt.text || c->prompt.file;
    TRY(reply_load(r, c, g, e));
    if (prompt) return encode_prompt(c, g, r->q.ids.n ? r : NULL, ids, e);
    if (r->q.ids.n == 0)
        return err_set(e, ST_USAGE, "--load %s: the session is empty, -p or -f is needed", path_tail(c->load));
    if (has_ended(r) && !c->ignore_eos)
        out_note("the reply of this session has ended: -p or -f asks on, --ignore-eos goes on");
    return ST_OK;
}

/* The session and its prompt; with --plan no session is made. */
static status start(reply *r, const cli *c, engine *g, token_list *ids, err *e)
{
    int64_t n_tokens;
    if (c->load) return start_loaded(r, c, g, ids, e);
    TRY(encode_prompt(c, g, NULL, ids, e));
    TRY(session_tokens(c, g, (int64_t)ids->n + c->n_new, &n_tokens, e));
    return c->plan ? print_plan(c, g, n_tokens, e) : reply_create(r, c, g, n_tokens, e);
}

static status cmd_generate(const cli *c, err *e)
{
    engine g;
    reply r = {0};
    token_list ids = {0};
    TRY(check_options(c, e));
    TRY(engine_find(&g, &c->engine, true, e));
    status st = start(&r, c, &g, &ids, e);
    if (st != ST_OK || c->plan) goto done;
    r.q.ahead = !c->save;
    cli_catch_interrupt();
    TRY_GOTO(reply_run(&r, &ids, e));
    TRY_GOTO(out_write("\n", 1, e));
    TRY_GOTO(out_flush(e));
    if (!out_is_quiet()) reply_print_stats(&r);
    if (cli_interrupted()) {
        st = err_set(e, ST_INTERRUPTED, "interrupted");
        goto done; /* part of a reply is no result: no report, no session */
    }
    TRY_GOTO(reply_save(&r, e));
    if (c->out.json) {
        json_t *result = reply_json(&r, e);
        st = result ? reply_report(&r, json_pack("[o]", result), e) : e->code;
    }
done:
    reply_free(&r);
    token_list_free(&ids);
    engine_close(&g);
    return st;
}

const command generate_command = {.name = "generate",
                                  .args = "",
                                  .summary = "continue a prompt",
                                  .groups =
                                      OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_REPLY | OPTIONS_PROMPT | OPTIONS_PREFIX,
                                  .n_new = 256,
                                  .run = cmd_generate};
