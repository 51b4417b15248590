/* SPDX-License-Identifier: MIT */
/* `passkey`: how often each strategy finds a number hidden in a long text. evals.md section 4. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/cli.h"
#include "eval/lineup.h"
#include "eval/passkey_prompt.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

typedef struct {
    const cli *c;
    engine g;
    int64_t *ctx, *budget;
    size_t n_ctx, n_budget;
    int64_t n_trials;
    bool decode;              /* the question goes through the decode path */
    passkey_trial *trials;    /* of the length under way, */
    together_prompt *prompts; /* [n_trials], */
    lineup rows;
    int64_t *correct; /* [rows.n] and what the rows got right */
    token_list stop;
    progress *bar;
    json_t *results, *skipped;
} passkey;

/* ---- what is asked for ---- */

static status parse_options(passkey *p, err *e)
{
    const cli *c = p->c;
    p->n_trials = c->trials;
    p->decode = !c->protocol || strcmp(c->protocol, "decode") == 0;
    if (!p->decode && strcmp(c->protocol, "prefill") != 0)
        return err_set(e, ST_USAGE, "--protocol: unknown protocol '%s' (decode, prefill)",
                       c->protocol);
    TRY(cli_parse_sizes(&p->ctx, &p->n_ctx, c->ctx, "4096", "--ctx", e));
    return cli_parse_sizes(&p->budget, &p->n_budget, c->budget, "256", "--budget", e);
}

/* ---- one length ---- */

static bool on_progress(void *ctx, double part)
{
    const passkey *p = ctx;
    progress_set(p->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

static bool skip(void *ctx, size_t run, size_t trial)
{
    const passkey *p = ctx;
    (void)trial;
    return p->rows.why[run].code != ST_OK;
}

static status score(void *ctx, size_t run, size_t trial, const together_reply *r, err *e)
{
    passkey *p = ctx;
    char *text;
    size_t len;
    TRY(tokenizer_decode(p->g.tok, r->ids, r->n, false, &text, &len, e));
    p->correct[run] += passkey_answer(text, len) == p->trials[trial].key;
    mem_free(text);
    return ST_OK;
}

static status check_ctx(const passkey *p, int64_t ctx, err *e)
{
    int64_t most = p->g.m->config.max_positions;
    if (ctx <= most) return ST_OK;
    if (!p->c->ctx)
        return err_set(
            e, ST_USAGE,
            "the model was made for %lld tokens: give a length with --ctx (%lld by default)",
            (long long)most, (long long)ctx);
    cli_warn_ctx(p->c, p->g.m, ctx);
    return ST_OK;
}

static status make_prompts(passkey *p, err *e)
{
    for (size_t i = 0; i < p->rows.n; i++) p->correct[i] = 0;
    mem_free(p->prompts);
    TRY(MEM_NEW(&p->prompts, (size_t)p->n_trials, e));
    for (int64_t t = 0; t < p->n_trials; t++)
        p->prompts[t] = (together_prompt){.head = p->trials[t].head.ids,
                                          .tail = p->trials[t].tail.ids,
                                          .n_head = p->trials[t].head.n,
                                          .n_tail = p->trials[t].tail.n,
                                          .stop = p->stop.ids,
                                          .n_stop = p->stop.n,
                                          .n_new = PASSKEY_NEW};
    return ST_OK;
}

static status run_rows(passkey *p, int64_t ctx, err *e)
{
    char what[64];
    TRY(make_prompts(p, e));
    together_job job = {.d = p->g.dec,
                        .prompts = p->prompts,
                        .n_prompts = (size_t)p->n_trials,
                        .limit = together_limit(p->prompts, (size_t)p->n_trials),
                        .max_together = (size_t)decoder_chunk(p->g.dec),
                        .jobs = 1,
                        .share = true,
                        .skip = skip,
                        .done = score,
                        .progress = on_progress,
                        .ctx = p};
    if (job.limit < ctx) job.limit = ctx;
    TRY(lineup_check(&p->rows, p->c, &p->g, job.limit, e));
    snprintf(what, sizeof what, "passkey, %lld tokens", (long long)ctx);
    p->bar = progress_start(p->c, what);
    status st = together_execute(&job, p->rows.run, p->rows.n, e);
    progress_end(p->bar);
    p->bar = NULL;
    if (st == ST_OK) lineup_say_shared(p->c, what, &job);
    return st;
}

/* ---- results ---- */

/* What a row shows behind its interval: tokens attended, MB held by kind, MB read in a decode step by
 * kind, and the key-cache access ratio. */
static status print_costs(const passkey *p, const together_run *r, err *e)
{
    double n = together_attended(&r->stats, p->g.m->config.n_layers),
           steps = (double)r->stats.steps;
    if (n < 0)
        return out_printf(e, " %10s %9.2f %9.2f %9s %9s %7s\n", "-", (double)r->held.kv / 1e6,
                          (double)r->held.index / 1e6, "-", "-", "-");
    return out_printf(e, " %10.1f %9.2f %9.2f %9.3f %9.3f %5.1f %%\n", n, (double)r->held.kv / 1e6,
                      (double)r->held.index / 1e6, r->stats.kv_read / steps / 1e6,
                      r->stats.index_read / steps / 1e6, 100 * attn_key_access(&r->stats));
}

static status print_row(const passkey *p, size_t i, int width, err *e)
{
    const together_run *run = &p->rows.run[i];
    char budget[24], share[24], interval[32];
    double low, high;
    lineup_budget_text(budget, sizeof budget, &run->spec);
    if (p->rows.why[i].code != ST_OK)
        return out_printf(e, "%-*s %8s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width,
                          run->spec.text, budget, "-", "-", "-", "-", "-", "-", "-", "-", "-");
    stats_wilson(p->correct[i], p->n_trials, &low, &high);
    snprintf(share, sizeof share, "%lld/%lld", (long long)p->correct[i], (long long)p->n_trials);
    snprintf(interval, sizeof interval, "%.1f .. %.1f %%", 100 * low, 100 * high);
    TRY(out_printf(e, "%-*s %8s %10s %7.1f %% %17s", width, run->spec.text, budget, share,
                   100 * (double)p->correct[i] / (double)p->n_trials, interval));
    return print_costs(p, run, e);
}

static status print_table(const passkey *p, int64_t ctx, int64_t n_chars, err *e)
{
    int width = lineup_width(&p->rows);
    TRY(out_printf(e,
                   "passkey: %lld tokens (%lld characters of garbage), %lld trial%s, protocol %s, "
                   "seed %llu\n\n",
                   (long long)ctx, (long long)n_chars, (long long)p->n_trials,
                   p->n_trials == 1 ? "" : "s", p->decode ? "decode" : "prefill",
                   (unsigned long long)p->c->seed));
    TRY(out_printf(e, "%-*s %8s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width, "strategy",
                   "budget", "correct", "accuracy", "95 % interval", "attended", "KV MB",
                   "index MB", "read MB", "index rd", "keys"));
    for (size_t i = 0; i < p->rows.n; i++) TRY(print_row(p, i, width, e));
    TRY(lineup_print_why(&p->rows, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* Bytes held by kind, and read by a decode step (null without one). */
static void add_bytes(json_t *o, const together_run *r)
{
    double n = (double)r->stats.steps;
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)r->held.kv));
    json_object_set_new(o, "kv_bytes_peak", json_integer((json_int_t)r->peak.kv));
    json_object_set_new(o, "index_bytes", json_integer((json_int_t)r->held.index));
    json_object_set_new(o, "scratch_bytes", json_integer((json_int_t)r->held.scratch));
    json_object_set_new(o, "kv_read", n > 0 ? json_real(r->stats.kv_read / n) : json_null());
    json_object_set_new(o, "index_read", n > 0 ? json_real(r->stats.index_read / n) : json_null());
    json_object_set_new(o, "key_access",
                        n > 0 ? json_real(attn_key_access(&r->stats)) : json_null());
}

static json_t *result_json(const passkey *p, size_t i, int64_t ctx)
{
    const together_run *run = &p->rows.run[i];
    const int64_t correct = p->correct[i];
    char params[512];
    double low, high, n = together_attended(&run->stats, p->g.m->config.n_layers);
    attn_spec_params(&run->spec, params, sizeof params);
    stats_wilson(correct, p->n_trials, &low, &high);
    json_t *o = json_pack(
        "{s:s, s:s, s:o, s:I, s:s, s:I, s:I, s:f, s:[f,f], s:o, s:f}", "attn", run->spec.text,
        "params", params, "budget", lineup_budget_json(&run->spec), "ctx", (json_int_t)ctx,
        "protocol", p->decode ? "decode" : "prefill", "trials", (json_int_t)p->n_trials, "correct",
        (json_int_t)correct, "accuracy", (double)correct / (double)p->n_trials, "ci95", low, high,
        "attended", n < 0 ? json_null() : json_real(n), "seconds", (double)run->time_ns * 1e-9);
    add_bytes(o, run);
    return o;
}

static status add_json(passkey *p, int64_t ctx, err *e)
{
    int bad = 0;
    for (size_t i = 0; p->c->json && i < p->rows.n; i++) {
        const attn_spec *s = &p->rows.run[i].spec;
        const err *why = &p->rows.why[i];
        if (why->code == ST_OK) bad |= json_array_append_new(p->results, result_json(p, i, ctx));
        else
            bad |=
                json_array_append_new(p->skipped, json_pack("{s:s, s:o, s:I, s:s}", "attn", s->text,
                                                            "budget", lineup_budget_json(s), "ctx",
                                                            (json_int_t)ctx, "reason", why->msg));
    }
    return bad ? err_set(e, ST_NOMEM, "out of memory for the report") : ST_OK;
}

static status write_report(passkey *p, err *e)
{
    json_t *options = json_pack(
        "{s:o, s:o, s:s, s:I, s:s, s:b, s:I}", "ctx", report_sizes(p->ctx, p->n_ctx), "budget",
        report_sizes(p->budget, p->n_budget), "attn", p->c->attn ? p->c->attn : "all", "trials",
        (json_int_t)p->n_trials, "protocol", p->decode ? "decode" : "prefill", "chars",
        (int)p->c->chars, "seed", (json_int_t)p->c->seed);
    json_t *results = p->results, *extra = json_pack("{s:o}", "skipped", p->skipped);
    p->results = p->skipped = NULL;
    return report_write(p->c, &p->g, options, results, extra, e);
}

/* ---- the command ---- */

static status run_length(passkey *p, int64_t ctx, err *e)
{
    int64_t n_chars = 4 * ctx; /* --chars: Quest's rule */
    TRY(check_ctx(p, ctx, e));
    TRY(lineup_check(&p->rows, p->c, &p->g, ctx, e)); /* before a prompt of that length is made */
    if (!p->c->chars) TRY(passkey_fit(&n_chars, p->g.tok, ctx, e));
    TRY(passkey_trials(&p->trials, p->g.tok, p->c->seed, ctx, n_chars, p->n_trials,
                       p->decode ? PASSKEY_TAIL : 0, e));
    status st = run_rows(p, ctx, e);
    passkey_trials_free(p->trials, p->n_trials);
    p->trials = NULL;
    if (st == ST_OK) st = print_table(p, ctx, n_chars, e);
    return st == ST_OK ? add_json(p, ctx, e) : st;
}

static status run_lengths(passkey *p, err *e)
{
    TRY(parse_options(p, e));
    TRY(lineup_read(&p->rows, p->c, "all", p->budget, p->n_budget, e));
    TRY(MEM_NEW(&p->correct, p->rows.n, e));
    TRY(engine_open(&p->g, p->c, 1, false, true, e));
    TRY(tokenizer_eos_ids(p->g.tok, &p->stop, e));
    cli_catch_interrupt();
    for (size_t i = 0; i < p->n_ctx; i++) TRY(run_length(p, p->ctx[i], e));
    return p->c->json ? write_report(p, e) : ST_OK;
}

status cmd_passkey(const cli *c, err *e)
{
    passkey p = {.c = c, .results = json_array(), .skipped = json_array()};
    status st = run_lengths(&p, e);
    cli_clear_interrupt();
    json_decref(p.results);
    json_decref(p.skipped);
    mem_free(p.prompts);
    mem_free(p.correct);
    token_list_free(&p.stop);
    lineup_free(&p.rows);
    mem_free(p.ctx);
    mem_free(p.budget);
    engine_close(&p.g);
    return st;
}
