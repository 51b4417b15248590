/* SPDX-License-Identifier: MIT */
/* ./run generate: continues a prompt and prints tokens as they are generated. */
#include "config.h"

#include "cli/command.h"
#include "cli/ranks.h"
#include "commands/generate.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/session_file.h"

enum { NEW_TOKENS = 256 }; /* default of -n */

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
    return r->saving || !cli_interrupted();
}

/* Feeds the tokens that the session does not hold yet as a prompt. Leaves the logits of the next token in r->x. */
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

/* True if the last token was sampled but not fed. */
static bool is_unfed(const reply *r)
{
    return r->q.n_fed + 1 == r->q.ids.n;
}

/* Feeds one sampled token. */
static status feed_token(reply *r, err *e)
{
    sequence *q = &r->q;
    int64_t t = clock_ns();
    TRY(sequence_decode(&r->x, &q, 1, e));
    r->decode_ns += clock_ns() - t;
    r->n_decoded++;
    return ST_OK;
}

/* True if the last reply ended with an end-of-text token. */
static bool has_ended(const reply *r)
{
    return is_unfed(r) && tokenizer_is_eos(r->g.tok, r->q.ids.ids[r->q.ids.n - 1]);
}

bool reply_fits(const reply *r, size_t n)
{
    return (int64_t)(r->q.ids.n - has_ended(r) + n) <= session_limit(r->q.s);
}

/* Feeds the tokens before the first token of a reply. An end-of-text token of the last reply is not fed before a
 * prompt, since the template writes it. */
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

/* Generates token i of the reply from the last token of the sequence. */
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

/* Returns why the reply ends after its token i; NULL: it does not. A signal is checked here, so that the last token of
 * a reply is not fed. */
static const char *finish_of(const reply *r, const text_out *t, int i)
{
    return t->stopped                                     ? "stop"
           : i + 1 == r->n_new                            ? "length"
           : cli_interrupted()                            ? "interrupted"
           : (int64_t)r->q.n_fed >= session_limit(r->q.s) ? "context"
                                                          : NULL;
}

static status decode_tokens(reply *r, text_out *t, err *e)
{
    r->finish = "length";
    int32_t id = r->n_new > 0 ? sequence_choose(&r->q, r->x.logits) : 0;
    for (int i = 0; i < r->n_new; i++) {
        TRY(comm_broadcast(r->o->run.engine.device.ranks, &id, sizeof id, 0,
                           e)); /* CPUs may differ in their last bits */
        TRY(token_list_push(&r->new_ids, id, e));
        TRY(sequence_accept(&r->q, id, e));
        r->finish = "stop";
        if (tokenizer_is_eos(r->g.tok, id) && !r->o->ignore_eos) break;
        r->finish = "interrupted"; /* by a failing write */
        TRY(text_out_token(t, id, e));
        if ((r->finish = finish_of(r, t, i))) break;
        TRY(next_token(r, i + 1, &id, e));
    }
    return ST_OK;
}

static status decode_loop(reply *r, text_out *t, err *e)
{
    status st = decode_tokens(r, t, e), settled = sequence_settle(&r->q, e);
    return st == ST_OK ? settled : st;
}

status reply_run(reply *r, const token_list *ids, err *e)
{
    text_out t;
    r->finish = "stop";
    if (ids->n == 0 && has_ended(r) && !r->o->ignore_eos) return ST_OK;
    TRY(feed(r, ids, e));
    TRY(reply_restrict(r, e));
    status st = text_out_open(&t, r->g.tok, r->o->stop.text, r->o->stop.n, e);
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
            "KV in files %.2f MB, %.2f MB of it in memory | a decode step read %.3f MB in %.0f blocks (%.2f per "
            "selected row), wrote %.3f MB, waited %.2f ms | block hit rate %.1f %%\n",
            (double)t.in_file / 1e6, (double)t.here / 1e6, (double)t.read / 1e6 / steps, (double)t.missed / steps,
            tier_per_row(&t), (double)t.written / 1e6 / steps, (double)t.stall_ns / 1e6 / steps, 100 * tier_hits(&t));
}

static void print_host(const reply *r, const attn_stats *a)
{
    host_counts h = attn_seq_host(session_attn(r->q.s));
    double steps = a->steps > 0 ? (double)a->steps : 1;
    fprintf(stderr,
            "KV in host memory %.2f MB | a decode step read %.3f MB of it, wrote %.3f MB, waited for none | device hit "
            "rate of rows %.1f %%\n",
            (double)h.held / 1e6, h.read / 1e6 / steps, h.written / 1e6 / steps, 100 * host_hits(&h));
}

static void print_draft(const reply *r)
{
    draft_counts n = drafter_counts(r->q.draft);
    double alone = (double)n.tokens * n.single_ns;
    fprintf(stderr,
            "draft %s: %.2f tokens per verification | %lld of %lld drafted tokens accepted | %lld of %lld steps saved",
            drafter_spec(r->q.draft), draft_length(&n), (long long)n.accepted, (long long)n.proposed,
            (long long)(n.tokens - n.verifications), (long long)n.tokens);
    if (n.withheld > 0)
        fprintf(stderr, " | %lld of %lld verifications without drafts, which would not have paid",
                (long long)n.withheld, (long long)n.verifications);
    if (n.ns > 0 && alone > 0) fprintf(stderr, " | speedup %.2f over single steps", alone / n.ns);
    if (attn_seq_tile_rows(session_attn(r->q.s)) > 0) fprintf(stderr, " | decode=%s", draft_kernel(&n));
    const model *m = r->g.draft;
    if (m) fprintf(stderr, " | weights of drafts %s, %.2f MB", dtype_name(m->type), (double)m->weight_bytes / 1e6);
    fputc('\n', stderr);
}

/* Returns half the 95 % interval of the mean missed attention, estimated from samples. */
static double missed_error(const attn_stats *a)
{
    return 1.96 * sqrt(a->missed_var) / a->measured;
}

static void print_missed(const attn_stats *a)
{
    if (a->measured > 0)
        fprintf(stderr, "missed %.2f +- %.2f %% of the attention in decode steps (95 %% interval from samples)\n",
                100 * a->missed / a->measured, 100 * missed_error(a));
}

static void print_certified(const attn_certified *x)
{
    double heads = x->heads > 0 ? (double)x->heads : 1, lists = x->lists > 0 ? (double)x->lists : 1;
    fprintf(stderr,
            "certified %.1f %% of %lld heads of steps and layers: bound of missed attention: mean %.4f, maximum %.4f; "
            "output error at most %.4f of the longest value\n",
            100 * (double)x->certified / heads, (long long)x->heads, x->bound_mean, x->bound_most, 2 * x->bound_most);
    fprintf(stderr,
            "selection length: mean %.1f, 10th percentile %lld, 90th percentile %lld, maximum %lld | %.1f %% attend "
            "everything\n",
            x->tokens_mean, (long long)x->tokens_p10, (long long)x->tokens_p90, (long long)x->tokens_most,
            100 * (double)x->whole / lists);
}

/* Prints how many of the chosen experts' bytes were in memory, of a model that does not fit there. */
static void print_experts(const reply *r)
{
    const expert_reads x = decoder_expert_reads(r->g.dec);
    if (x.chosen > 0)
        fprintf(stderr, "experts: %.1f %% of %.2f GB chosen were in memory, %.2f GB read from files\n",
                100 * x.resident / x.chosen, x.chosen * 1e-9, (x.chosen - x.resident) * 1e-9);
}

void reply_print_stats(const reply *r)
{
    attn_stats a = attn_seq_stats(session_attn(r->q.s));
    attn_bytes held = attn_seq_held(session_attn(r->q.s)), peak = attn_seq_peak(session_attn(r->q.s));
    double prompt_s = (double)r->prompt_ns / 1e9, decode_s = (double)r->decode_ns / 1e9;
    fprintf(stderr, "prompt %lld tokens, ", (long long)r->n_prompt);
    if (r->cache) fprintf(stderr, "%lld of them cached, ", (long long)r->n_cached);
    fprintf(stderr, "%.1f tokens/s | first token after %.3f s | decode %lld tokens, %.1f tokens/s\n",
            prompt_s > 0 ? (double)(r->n_prompt - r->n_cached) / prompt_s : 0, prompt_s, (long long)r->n_decoded,
            decode_s > 0 ? (double)r->n_decoded / decode_s : 0);
    fprintf(stderr, "KV held %.2f MB (peak %.2f MB) | attended %.1f %% of the tokens in decode steps\n",
            (double)held.kv / 1e6, (double)peak.kv / 1e6, a.visible > 0 ? 100 * a.attended / a.visible : 100.0);
    print_experts(r);
    const sampler_options *s = &r->sampling;
    if (*r->sampling_of)
        fprintf(stderr,
                "sampling: temp %g, top-k %d, top-p %g, min-p %g, repeat-penalty %g (generation_config.json: %s)\n",
                s->temp, s->top_k, s->top_p, s->min_p, s->repeat_penalty, r->sampling_of);
    if (strcmp(r->finish, "context") == 0)
        fprintf(stderr, "text cut: the context of %lld tokens is full; --ctx N sets another\n",
                (long long)session_limit(r->q.s));
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
    double steps = (double)a.steps * r->g.m->config.n_kv;
    char *text;
    size_t n;
    if (tokenizer_decode(r->g.tok, r->new_ids.ids, r->new_ids.n, false, &text, &n, e) != ST_OK) return NULL;
    json_t *j = json_pack("{s:s%, s:s, s:I, s:I, s:f, s:f, s:o, s:I, s:I}", "text", text, n, "finish_reason", r->finish,
                          "prompt_tokens", (json_int_t)r->n_prompt, "new_tokens", (json_int_t)r->new_ids.n,
                          "prompt_seconds", (double)r->prompt_ns / 1e9, "decode_seconds", (double)r->decode_ns / 1e9,
                          "attended", steps > 0 ? json_real(a.attended / steps) : json_null(), "kv_bytes",
                          (json_int_t)attn_seq_held(session_attn(r->q.s)).kv, "kv_bytes_peak",
                          (json_int_t)attn_seq_peak(session_attn(r->q.s)).kv);
    mem_free(text);
    tier_counts t = attn_seq_tier(session_attn(r->q.s));
    host_counts h = attn_seq_host(session_attn(r->q.s));
    kv_tier_kind kind = attn_seq_spec(session_attn(r->q.s))->tier.kind;
    if (j && kind == KV_DISK) json_object_set_new(j, "tier", tier_json(&t, a.steps));
    if (j && kind == KV_HOST) json_object_set_new(j, "tier", host_json(&h, a.steps));
    const expert_reads x = decoder_expert_reads(r->g.dec);
    if (j && x.chosen > 0)
        json_object_set_new(j, "experts",
                            json_pack("{s:f, s:f}", "chosen_bytes", x.chosen, "resident_bytes", x.resident));
    if (j && r->q.draft) json_object_set_new(j, "draft", drafter_json(r->q.draft, r->g.draft));
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
    const reply_options *o = r->o;
    const sampler_options *s = &r->sampling;
    const attn_spec *spec = attn_seq_spec(session_attn(r->q.s));
    char params[512], kv[128];
    attn_spec_params(spec, params, sizeof params);
    kv_format_text(&spec->kv, kv, sizeof kv);
    json_t *options = json_pack(
        "{s:s, s:s, s:o, s:s, s:I, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:I, s:s, s:s?}", "attn", spec->text,
        "params", params, "budget", lineup_budget_json(spec), "kv", kv, "ctx", (json_int_t)session_limit(r->q.s), "n",
        r->n_new, "temp", s->temp, "top_k", s->top_k, "top_p", s->top_p, "min_p", s->min_p, "repeat_penalty",
        s->repeat_penalty, "presence_penalty", s->presence_penalty, "frequency_penalty", s->frequency_penalty, "seed",
        (json_int_t)o->run.seed.value, "draw", o->draw ? o->draw : draw_names[DRAW_GUMBEL], "template", o->chat.name);
    return report_write(&o->run.out, &r->g, options, results, NULL, e);
}

/* ---- sessions ---- */

static const char *kept_by(const reply_options *o)
{
    return o->save ? "--save" : o->load ? "--load" : "--prefix-disk";
}

/* Checks that --save FILE can be written, before a long run. */
static status check_save(const reply_options *o, err *e)
{
    temp_file d;
    err why = {0};
    kv_tier where = {.kind = KV_DEVICE};
    if (o->run.attn.kv_tier) TRY(kv_tier_parse(&where, o->run.attn.kv_tier, e));
    if (where.kind != KV_DEVICE && (o->save || o->load || o->prefix.disk))
        return err_set(e, ST_UNSUPPORTED, "%s: a session in --kv-tier %s cannot be saved or loaded", kept_by(o),
                       kv_tier_name(where.kind));
    if (!o->save) return ST_OK;
    status st = temp_file_open(&d, o->save, &why);
    temp_file_close(&d);
    return st == ST_OK ? ST_OK : err_set(e, st, "--save %s", why.msg);
}

static status check_options(const reply_options *o, err *e)
{
    const comm *ranks = o->run.engine.device.ranks;
    if (o->save || o->load) TRY(ranks_refuse(ranks, kept_by(o), e));
    TRY(check_save(o, e));
    if (o->load && o->prefix.disk) return err_set(e, ST_USAGE, "--prefix-disk and --load: mutually exclusive");
    if (o->prefix.disk) TRY(cli_check_prefix(o->prefix.disk, ranks, e));
    if (o->no_verify && !o->load) return err_set(e, ST_USAGE, "--no-verify: requires --load");
    if (o->load && o->system) return err_set(e, ST_USAGE, "--system and --load: mutually exclusive");
    return ST_OK;
}

/* Takes each sampling option from the command line, else from the model, else the default. */
static status choose_sampling(reply *r, err *e)
{
    const sampler_options *given = &r->o->sampling;
    sampler_options *s = &r->sampling;
    *s = (sampler_options){.temp = 0.8, .top_p = 0.95, .repeat_penalty = 1};
    TRY(generation_config_read(s, r->sampling_of, r->g.m->name, e));
    if (!isnan(given->temp)) s->temp = given->temp;
    if (!isnan(given->top_p)) s->top_p = given->top_p;
    if (!isnan(given->min_p)) s->min_p = given->min_p;
    if (!isnan(given->repeat_penalty)) s->repeat_penalty = given->repeat_penalty;
    if (given->top_k >= 0) s->top_k = given->top_k;
    s->presence_penalty = given->presence_penalty;
    s->frequency_penalty = given->frequency_penalty;
    return ST_OK;
}

status reply_find(reply *r, const reply_options *o, int n_new, err *e)
{
    *r = (reply){.o = o, .n_new = o->n_new < 0 ? n_new : o->n_new};
    TRY(check_options(o, e));
    TRY(engine_find(&r->g, &o->run.engine, true, e));
    TRY(choose_sampling(r, e));
    TRY(reply_read_schema(r, e));
    return cli_set_template(r->g.tok, &o->chat, e);
}

status reply_tokens(const reply *r, int64_t need, int64_t *out, err *e)
{
    enum { ROOM = 8192 }; /* tokens for continuing a saved session */
    const char *ctx = r->o->run.attn.ctx;
    int64_t max = r->g.m->config.max_positions;
    *out = need;
    if (r->o->save && need < max) *out = max - need < ROOM ? max : need + ROOM;
    if (ctx) {
        attn_spec spec;
        TRY(attn_args_parse(&spec, &r->o->run.attn, r->o->run.out.command, e));
        TRY(engine_context(out, &r->g, &spec, ctx, 0, e));
        cli_warn_ctx(r->g.m, *out);
    } else if (need > max) {
        return err_set(e, ST_UNSUPPORTED,
                       "%lld tokens (prompt and new ones) exceed the model's max_position_embeddings of %lld; --ctx N "
                       "overrides it",
                       (long long)need, (long long)max);
    }
    return ST_OK;
}

static status parse_draw(draw_how *how, const char *text, err *e)
{
    for (int i = 0; i < DRAW_COUNT; i++) {
        *how = (draw_how)i;
        if (!text ? i == DRAW_GUMBEL : strcmp(text, draw_names[i]) == 0) return ST_OK;
    }
    return err_set(e, ST_USAGE, "--draw: '%.40s' is not one of: gumbel rank", text);
}

/* Checks that a session can be created, before the weights are loaded. */
static status check_session(const reply *r, const attn_spec *spec, int64_t n_tokens, err *e)
{
    if (r->o->prefix.disk) TRY(cli_check_reuse(&r->o->run.engine, spec, e));
    return engine_check_session(&r->g, spec, n_tokens, e);
}

static status open_sequence(const reply *r, sequence *out, const attn_spec *spec, int64_t n_tokens, err *e)
{
    sampler_options so = r->sampling;
    const draft_options drafts = engine_drafts(&r->o->run.engine);
    so.seed = r->o->run.seed.value;
    TRY(parse_draw(&so.draw, r->o->draw, e));
    const sequence_options q = {
        .spec = spec, .size = session_of(n_tokens), .sampling = &so, .drafts = &drafts, .cache = r->cache};
    return sequence_open(out, r->g.dec, &q, e);
}

static status create_with(reply *r, const attn_spec *spec, int64_t n_tokens, err *e)
{
    const reply_options *o = r->o;
    TRY(check_session(r, spec, n_tokens, e));
    TRY(engine_load(&r->g, 1, e));
    TRY(cli_open_prefix(&r->cache, &o->prefix, o->run.attn.ctx, &r->g, e));
    TRY(open_sequence(r, &r->q, spec, n_tokens, e));
    return stepper_open(&r->x, r->g.dec, 1, e);
}

status reply_change_attn(reply *r, const char *attn, err *e)
{
    attn_args a = r->o->run.attn;
    attn_spec spec;
    sequence q;
    a.names = attn;
    TRY(attn_args_parse(&spec, &a, r->o->run.out.command, e));
    TRY(check_session(r, &spec, session_limit(r->q.s), e));
    TRY(open_sequence(r, &q, &spec, session_limit(r->q.s), e));
    status st = sequence_push(&q, r->q.ids.ids, r->q.ids.n - has_ended(r), e);
    if (st != ST_OK) {
        sequence_close(&q);
        return st;
    }
    q.reply = r->q.reply;
    sequence_close(&r->q);
    r->q = q;
    return ST_OK;
}

void reply_clear(reply *r)
{
    sequence_restart(&r->q);
    sequence_truncate(&r->q, 0);
}

status reply_create(reply *r, int64_t n_tokens, err *e)
{
    attn_spec spec;
    TRY(attn_args_parse(&spec, &r->o->run.attn, r->o->run.out.command, e));
    return create_with(r, &spec, n_tokens, e);
}

static status load_from(reply *r, session_file *f, err *e)
{
    const reply_options *o = r->o;
    const attn_args *a = &o->run.attn;
    attn_spec spec;
    session_notes n;
    int64_t n_tokens = session_file_context(f);
    if (a->names || a->budget || a->skip || a->certify || a->kv) TRY(attn_args_parse(&spec, a, o->run.out.command, e));
    else TRY(attn_spec_read(&spec, session_file_strategy(f), session_file_store(f), e));
    if (a->ctx) TRY(engine_context(&n_tokens, &r->g, &spec, a->ctx, 0, e));
    TRY(create_with(r, &spec, n_tokens, e));
    if (o->no_verify) session_file_trust(f);
    TRY(session_load(r->q.s, f, &n, e));
    if (!session_file_summed(f))
        fprintf(stderr, "warning: --load %s: saved by an earlier version: rows are not checksummed\n",
                path_tail(o->load));
    TRY(sequence_push(&r->q, n.ids, n.n_ids, e));
    r->q.reply -= n.n_generated;
    r->q.n_fed = (size_t)session_length(r->q.s);
    if (n.logits) memcpy(r->x.logits, n.logits, (size_t)r->g.m->config.vocab * sizeof *r->x.logits);
    if (!o->run.seed.given) sampler_set_random(r->q.by, n.random);
    return ST_OK;
}

status reply_load(reply *r, err *e)
{
    session_file *f;
    err why = {0};
    status st = session_file_open(&f, r->o->load, &why);
    if (st == ST_OK) st = load_from(r, f, &why);
    session_file_close(f);
    return st == ST_OK ? ST_OK : err_set(e, st, "--load %s", why.msg);
}

status reply_save(reply *r, const char *path, err *e)
{
    r->saving = true;
    /* After an interrupted prompt all tokens are fed again. */
    status st = r->q.n_fed + is_unfed(r) < r->q.ids.n ? feed_prompt(r, e) : ST_OK;
    r->saving = false;
    TRY(st);
    session_notes n = {.ids = r->q.ids.ids,
                       .n_ids = r->q.ids.n,
                       .logits = is_unfed(r) || r->q.ids.n == 0 ? NULL : r->x.logits,
                       .random = sampler_random(r->q.by),
                       .n_generated = r->q.ids.n - r->q.reply};
    return session_save(r->q.s, path, &n, e);
}

static status save(reply *r, err *e)
{
    err why = {0};
    status st = r->o->save ? reply_save(r, r->o->save, &why) : ST_OK;
    return st == ST_OK ? ST_OK : err_set(e, st, "--save %s", why.msg);
}

status reply_keep(reply *r, json_t *results, status st, err *e)
{
    err why[2] = {{0}, {0}};
    if (st != ST_OK && st != ST_INTERRUPTED && st != ST_IO) { /* the session is not what was asked for */
        json_decref(results);
        return st;
    }
    (void)save(r, &why[0]);
    if (!r->o->run.out.json) json_decref(results);
    else if (results) (void)reply_report(r, results, &why[1]);
    for (int i = 0; i < 2; i++)
        if (why[i].code != ST_OK && st == ST_OK) st = err_set(e, why[i].code, "%s", why[i].msg);
        else if (why[i].code != ST_OK) fprintf(stderr, "%s\n", why[i].msg);
    return st;
}

status reply_encode(reply *r, const chat_message *msg, size_t n, token_list *out, err *e)
{
    json_t *list;
    TRY(chat_messages(&list, msg, n, e));
    chat_text text = {0};
    status st = chat_render_marked(r->g.tok, &(chat_input){.messages = list}, &text, e);
    json_decref(list);
    if (st != ST_OK) return st;
    r->thinking = call_thinking_of(r->g.tok, &text, n > 0 && strcmp(msg[n - 1].role, "assistant") == 0);
    st = tokenizer_encode_marked(r->g.tok, text.text, text.n, text.input, out, e);
    chat_text_free(&text);
    return st;
}

/* Encodes a turn. The cache holds the reply as generated; encoding its text again could give other ids. So the
 * conversation is encoded with an empty reply, and the beginning that it shares with the previous prompt is dropped. */
status reply_encode_turn(reply *r, chat_message *msg, size_t n, token_list *out, err *e)
{
    token_list before = {0}, with = {0};
    const chat_message last = msg[n - 2];
    status st = reply_encode(r, msg, n - 2, &before, e);
    msg[n - 2].content = "";
    if (st == ST_OK) st = reply_encode(r, msg, n, &with, e);
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
    reply_free_schema(r);
    stepper_close(&r->x);
    prefix_cache_close(r->cache);
    token_list_free(&r->new_ids);
    engine_close(&r->g);
    *r = (reply){0};
}

/* ---- the command ---- */

/* A reply to the prompt of the options, of which r.o is the first member. */
typedef struct {
    reply r;
    const generate_options *o;
    token_list ids; /* ids to feed */
} generation;

static bool has_prompt(const generation *x)
{
    return x->o->prompt.text || x->o->prompt.file;
}

/* Encodes the prompt in the chat template, or as a further turn of a loaded session. */
static status encode_chat(generation *x, const char *text, err *e)
{
    const char *system = x->o->reply.system;
    if (x->r.q.ids.n) {
        chat_message msg[] = {{"user", "x"}, {"assistant", ""}, {"user", text}};
        return reply_encode_turn(&x->r, msg, 3, &x->ids, e);
    }
    const chat_message msg[] = {{"system", system}, {"user", text}};
    return reply_encode(&x->r, msg + !system, 2 - !system, &x->ids, e);
}

/* Removes a line end after the last line of a message. */
static void cut_line_end(char *text, size_t n)
{
    if (n == 0 || text[n - 1] != '\n') return;
    text[n - (n > 1 && text[n - 2] == '\r' ? 2 : 1)] = 0;
}

static status encode_prompt(generation *x, err *e)
{
    const tokenizer *tok = x->r.g.tok;
    char *text;
    size_t n;
    TRY(cli_read_text(&text, &n, &x->o->prompt, x->o->reply.run.engine.device.ranks, e));
    if (x->o->chat && !x->o->prompt.text) cut_line_end(text, n);
    status st =
        x->o->chat ? encode_chat(x, text, e) : tokenizer_encode_prompt(tok, text, n, x->r.q.ids.n == 0, &x->ids, e);
    mem_free(text);
    if (st == ST_OK && x->ids.n == 0) st = err_set(e, ST_USAGE, "the prompt is empty and the model has no BOS token");
    return st;
}

/* Prints what one token reads: bytes of this rank's weights, and parameters of all ranks if the model has experts. */
static status print_reads(const model *m, err *e)
{
    const model_config *c = &m->config;
    TRY(out_printf(e, "read per token: %.1f MB", (double)m->decode_bytes / 1e6));
    if (m->be->ranks) TRY(out_printf(e, " on each rank"));
    if (c->n_experts)
        TRY(out_printf(e, "; parameters: %.2f M, active %.2f M (%d of %d experts)", (double)c->n_params / 1e6,
                       (double)c->n_active / 1e6, c->n_chosen, c->n_experts));
    return out_printf(e, "\n");
}

static status print_plan(const reply *r, int64_t n_tokens, err *e)
{
    const engine *g = &r->g;
    const decoder_options o = engine_decoder(g, 1);
    const draft_options drafts = engine_drafts(&g->o);
    attn_spec spec;
    memory_plan p;
    drafter *d;
    TRY(attn_args_parse(&spec, &r->o->run.attn, r->o->run.out.command, e));
    TRY(drafter_create(&d, &drafts, &spec, e));
    status st = session_plan(&p, g->m, &o, &spec, drafter_session(d, n_tokens), e);
    drafter_free(d);
    TRY(st);
    TRY(out_printf(e, "%lld tokens: weights %.1f MB (mapped)", (long long)n_tokens,
                   (double)(p.weights - p.weights_in_memory) / 1e6));
    if (p.weights_in_memory) TRY(out_printf(e, " and %.1f MB in memory", (double)p.weights_in_memory / 1e6));
    if (p.draft_weights) TRY(out_printf(e, " (%.1f MB for drafts)", (double)p.draft_weights / 1e6));
    TRY(out_printf(e, ", KV %.1f MB, index %.1f MB, scratch %.1f MB; available %.1f MB", (double)p.kv / 1e6,
                   (double)p.index / 1e6, (double)p.scratch / 1e6, (double)g->be->ops->available(g->be) / 1e6));
    if (p.disk)
        TRY(out_printf(e, "; in files in %s %.1f MB, available %.1f MB", p.tier_dir, (double)p.disk / 1e6,
                       (double)g->be->ops->tier->room(g->be, p.tier_dir) / 1e6));
    if (p.host)
        TRY(out_printf(e, "; in host memory %.1f MB, available %.1f MB", (double)p.host / 1e6,
                       (double)g->be->ops->host->room(g->be) / 1e6));
    TRY(out_printf(e, "\n"));
    return print_reads(g->m, e);
}

static status check_prompt(const generate_options *o, err *e)
{
    const reply_options *r = &o->reply;
    bool prompt = o->prompt.text || o->prompt.file;
    if (o->prompt.text && o->prompt.file) return err_set(e, ST_USAGE, "-p and -f: mutually exclusive");
    if (!o->chat && (r->system || r->chat.name || r->chat.args.n))
        return err_set(e, ST_USAGE, "%s: requires --chat",
                       r->system      ? "--system"
                       : r->chat.name ? "--template"
                                      : "--template-arg");
    if (r->load && o->plan) return err_set(e, ST_USAGE, "--plan and --load: mutually exclusive");
    if (r->load && o->chat && !prompt) return err_set(e, ST_USAGE, "--chat with --load: requires -p or -f");
    return ST_OK;
}

/* Loads a session and encodes the prompt of -p or -f, if given. */
static status start_loaded(generation *x, err *e)
{
    TRY(reply_load(&x->r, e));
    if (has_prompt(x)) return encode_prompt(x, e);
    if (x->r.q.ids.n == 0)
        return err_set(e, ST_USAGE, "--load %s: the session is empty; give -p or -f", path_tail(x->r.o->load));
    if (has_ended(&x->r) && !x->r.o->ignore_eos)
        out_note("this session ended with an end-of-text: give -p or -f, or --ignore-eos to continue");
    return ST_OK;
}

/* Creates the session and encodes its prompt. --plan creates no session. */
static status start(generation *x, err *e)
{
    int64_t n_tokens;
    if (x->r.o->load) return start_loaded(x, e);
    TRY(encode_prompt(x, e));
    TRY(reply_tokens(&x->r, (int64_t)x->ids.n + x->r.n_new, &n_tokens, e));
    return x->o->plan ? print_plan(&x->r, n_tokens, e) : reply_create(&x->r, n_tokens, e);
}

/* Error of a signal before the first token, with the files that are missing. */
static status no_reply(const reply *r, err *e)
{
    const char *save = r->o->save ? " --save" : "", *json = r->o->run.out.json ? " --json" : "";
    *e = (err){0};
    if (!*save && !*json) return err_set(e, ST_INTERRUPTED, "interrupted");
    return err_set(e, ST_INTERRUPTED, "interrupted before the first token; not written:%s%s", save, json);
}

/* Ends a reply that ended with st. */
static status finish(generation *x, status st, err *e)
{
    reply *r = &x->r;
    if (st == ST_INTERRUPTED && r->new_ids.n == 0) return no_reply(r, e);
    if (st != ST_OK && st != ST_IO) return st;
    if (st == ST_OK) st = out_write("\n", 1, e);
    if (st == ST_OK) st = out_flush(e);
    if (!out_is_quiet()) reply_print_stats(r);
    if (st == ST_OK && cli_interrupted()) st = err_set(e, ST_INTERRUPTED, "interrupted");
    json_t *result = r->o->run.out.json ? reply_json(r, e) : NULL;
    return reply_keep(r, result ? json_pack("[o]", result) : NULL, st == ST_OK ? e->code : st, e);
}

static status run(generation *x, err *e)
{
    reply *r = &x->r;
    TRY(check_prompt(x->o, e));
    TRY(reply_find(r, &x->o->reply, NEW_TOKENS, e));
    TRY(start(x, e));
    if (x->o->plan) return ST_OK;
    r->q.ahead = !r->o->save;
    cli_catch_interrupt();
    return finish(x, reply_run(r, &x->ids, e), e);
}

static status cmd_generate(void *options, err *e)
{
    generation x = {.o = options};
    status st = run(&x, e);
    reply_free(&x.r);
    token_list_free(&x.ids);
    return st;
}

const command generate_command = {.name = "generate",
                                  .args = "",
                                  .summary = "continue a prompt",
                                  .groups =
                                      OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_REPLY | OPTIONS_PROMPT | OPTIONS_PREFIX,
                                  .size = sizeof(generate_options),
                                  .place = REPLY_PLACES,
                                  .run = cmd_generate};
