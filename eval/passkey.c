/* SPDX-License-Identifier: MIT */
/* `passkey`: how often each strategy finds a number hidden in a long text. evals.md section 4. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/cli.h"
#include "eval/passkey_run.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* A row of the table: a strategy at a budget, or why it cannot run. */
typedef struct {
    passkey_run run;
    bool runs;
    char why[256];
} row;

typedef struct {
    const cli *c;
    engine g;
    int64_t *ctx, *budget;
    size_t n_ctx, n_budget;
    int64_t n_trials;
    bool decode;           /* the question goes through the decode path */
    passkey_trial *trials; /* of the length under way, */
    row *rows;             /* and its rows */
    size_t n_rows;
    passkey_run *runs; /* [n_rows] those that run, packed */
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

/* Whether the strategy at this budget equals one before: it has no budget, or one of its own. */
static bool is_repeat(const attn_spec *s, const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].run.spec.text, s->text) == 0 && rows[i].run.spec.budget == s->budget)
            return true;
    return false;
}

/* All strategies at all budgets, budgets of one strategy together. */
static status list_rows(passkey *p, err *e)
{
    attn_spec **at_budget;
    size_t n = 0;
    TRY(MEM_NEW(&at_budget, p->n_budget, e));
    status st = ST_OK;
    for (size_t b = 0; b < p->n_budget && st == ST_OK; b++)
        st = cli_parse_attn(&at_budget[b], &n, p->c, "all", p->budget[b], e);
    if (st == ST_OK) st = MEM_NEW(&p->rows, n * p->n_budget, e);
    if (st == ST_OK) st = MEM_NEW(&p->runs, n * p->n_budget, e);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        for (size_t b = 0; b < p->n_budget; b++)
            if (!is_repeat(&at_budget[b][i], p->rows, p->n_rows))
                p->rows[p->n_rows++].run.spec = at_budget[b][i];
    for (size_t b = 0; b < p->n_budget; b++) mem_free(at_budget[b]);
    mem_free(at_budget);
    return st;
}

/* ---- one length ---- */

static bool on_progress(void *ctx, double part)
{
    const passkey *p = ctx;
    progress_set(p->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

static bool is_eos(void *ctx, int32_t id)
{
    const passkey *p = ctx;
    return tokenizer_is_eos(p->g.tok, id);
}

static status score(void *ctx, bool *correct, size_t run, int64_t trial, const int32_t *ids,
                    size_t n, err *e)
{
    const passkey *p = ctx;
    char *text;
    size_t len;
    (void)run;
    TRY(tokenizer_decode(p->g.tok, ids, n, false, &text, &len, e));
    *correct = passkey_answer(text, len) == p->trials[trial].key;
    mem_free(text);
    return ST_OK;
}

/* Whether each row can run with sessions of `limit` tokens, before anything runs. When none can, the
 * first reason is the error: an empty table is no result. */
static status check_rows(passkey *p, int64_t limit, err *e)
{
    const model *m = p->g.m;
    size_t n = 0;
    status first = ST_USAGE;
    for (size_t i = 0; i < p->n_rows; i++) {
        row *r = &p->rows[i];
        decoder_options o = {.chunk = (size_t)p->c->chunk};
        memory_plan plan;
        err why = {0};
        status st = attn_spec_check(&r->run.spec, decoder_attn_shape(p->g.dec), &why);
        if (st == ST_OK) st = session_plan(&plan, m, &o, &r->run.spec, limit, &why);
        if (st == ST_OK) st = memory_plan_check(&plan, &why);
        r->runs = st == ST_OK;
        snprintf(r->why, sizeof r->why, "%s", why.msg);
        if (st != ST_OK && p->n_rows == 1) return err_set(e, st, "%s", why.msg);
        if (i == 0 && st != ST_OK) first = st;
        if (r->runs) p->runs[n++] = (passkey_run){.spec = r->run.spec};
    }
    return n > 0 ? ST_OK : err_set(e, first, "no strategy can run: %s", p->rows[0].why);
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

static void say_shared(const passkey *p, const passkey_job *job, int64_t ctx)
{
    if (p->c->quiet || job->prefills == job->prefills_done) return;
    fprintf(stderr,
            "passkey: %lld tokens: %lld prompts took %lld prefills, since strategies shared them; "
            "about %.1f s saved\n",
            (long long)ctx, (long long)job->prefills, (long long)job->prefills_done,
            (double)job->saved_ns * 1e-9);
}

static status run_rows(passkey *p, int64_t ctx, err *e)
{
    size_t n = 0;
    char what[64];
    passkey_job job = {.d = p->g.dec,
                       .trials = p->trials,
                       .n_trials = p->n_trials,
                       .limit = passkey_limit(p->trials, p->n_trials),
                       .max_together = p->c->chunk > 0 ? (size_t)p->c->chunk : DECODER_CHUNK,
                       .share = true,
                       .is_eos = is_eos,
                       .score = score,
                       .progress = on_progress,
                       .ctx = p};
    if (job.limit < ctx) job.limit = ctx;
    TRY(check_rows(p, job.limit, e));
    for (size_t i = 0; i < p->n_rows; i++) n += p->rows[i].runs;
    snprintf(what, sizeof what, "passkey, %lld tokens", (long long)ctx);
    p->bar = progress_start(p->c, what);
    status st = passkey_execute(&job, p->runs, n, e);
    progress_end(p->bar);
    p->bar = NULL;
    if (st != ST_OK) return st;
    for (size_t i = 0, k = 0; i < p->n_rows; i++)
        if (p->rows[i].runs) p->rows[i].run = p->runs[k++];
    say_shared(p, &job, ctx);
    return ST_OK;
}

/* ---- results ---- */

/* Tokens attended by a decode step and layer; -1 when there was no step. */
static double attended(const passkey *p, const passkey_run *r)
{
    double n = (double)r->stats.steps * p->g.m->config.n_layers;
    return n > 0 ? r->stats.attended / n : -1;
}

static void budget_text(char *out, size_t size, const attn_spec *s)
{
    if (attn_has_budget(s)) snprintf(out, size, "%lld", (long long)s->budget);
    else snprintf(out, size, "-");
}

/* What a row shows behind its interval: tokens attended, MB held by kind, MB read in a decode step by
 * kind, and the key-cache access ratio. */
static status print_costs(const passkey *p, const passkey_run *r, err *e)
{
    double n = attended(p, r), steps = (double)r->stats.steps;
    if (n < 0)
        return out_printf(e, " %10s %9.2f %9.2f %9s %9s %7s\n", "-", (double)r->held.kv / 1e6,
                          (double)r->held.index / 1e6, "-", "-", "-");
    return out_printf(e, " %10.1f %9.2f %9.2f %9.3f %9.3f %5.1f %%\n", n,
                      (double)r->held.kv / 1e6, (double)r->held.index / 1e6,
                      r->stats.kv_read / steps / 1e6, r->stats.index_read / steps / 1e6,
                      100 * attn_key_access(&r->stats));
}

static status print_row(const passkey *p, const row *r, int width, err *e)
{
    const passkey_run *run = &r->run;
    char budget[24], share[24], interval[32];
    double low, high;
    budget_text(budget, sizeof budget, &run->spec);
    if (!r->runs)
        return out_printf(e, "%-*s %8s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width,
                          run->spec.text, budget, "-", "-", "-", "-", "-", "-", "-", "-", "-");
    stats_wilson(run->correct, p->n_trials, &low, &high);
    snprintf(share, sizeof share, "%lld/%lld", (long long)run->correct, (long long)p->n_trials);
    snprintf(interval, sizeof interval, "%.1f .. %.1f %%", 100 * low, 100 * high);
    TRY(out_printf(e, "%-*s %8s %10s %7.1f %% %17s", width, run->spec.text, budget, share,
                   100 * (double)run->correct / (double)p->n_trials, interval));
    return print_costs(p, run, e);
}

static status print_table(const passkey *p, int64_t ctx, int64_t n_chars, err *e)
{
    int width = 8;
    for (size_t i = 0; i < p->n_rows; i++) {
        int len = (int)strlen(p->rows[i].run.spec.text);
        if (len > width) width = len;
    }
    TRY(out_printf(e,
                   "passkey: %lld tokens (%lld characters of garbage), %lld trial%s, protocol %s, "
                   "seed %llu\n\n",
                   (long long)ctx, (long long)n_chars, (long long)p->n_trials,
                   p->n_trials == 1 ? "" : "s", p->decode ? "decode" : "prefill",
                   (unsigned long long)p->c->seed));
    TRY(out_printf(e, "%-*s %8s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width, "strategy",
                   "budget", "correct", "accuracy", "95 % interval", "attended", "KV MB",
                   "index MB", "read MB", "index rd", "keys"));
    for (size_t i = 0; i < p->n_rows; i++) TRY(print_row(p, &p->rows[i], width, e));
    for (size_t i = 0; i < p->n_rows; i++)
        if (!p->rows[i].runs) TRY(out_printf(e, "  - %s\n", p->rows[i].why));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

static json_t *budget_json(const attn_spec *s)
{
    return attn_has_budget(s) ? json_integer(s->budget) : json_null();
}

/* Bytes held by kind, and read by a decode step (null without one). */
static void add_bytes(json_t *o, const passkey_run *r)
{
    double n = (double)r->stats.steps;
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)r->held.kv));
    json_object_set_new(o, "kv_bytes_peak", json_integer((json_int_t)r->peak.kv));
    json_object_set_new(o, "index_bytes", json_integer((json_int_t)r->held.index));
    json_object_set_new(o, "scratch_bytes", json_integer((json_int_t)r->held.scratch));
    json_object_set_new(o, "kv_read", n > 0 ? json_real(r->stats.kv_read / n) : json_null());
    json_object_set_new(o, "index_read", n > 0 ? json_real(r->stats.index_read / n) : json_null());
    json_object_set_new(o, "key_access", n > 0 ? json_real(attn_key_access(&r->stats)) : json_null());
}

static json_t *result_json(const passkey *p, const row *r, int64_t ctx)
{
    const passkey_run *run = &r->run;
    char params[512];
    double low, high, n = attended(p, run);
    attn_spec_params(&run->spec, params, sizeof params);
    stats_wilson(run->correct, p->n_trials, &low, &high);
    json_t *o = json_pack("{s:s, s:s, s:o, s:I, s:s, s:I, s:I, s:f, s:[f,f], s:o, s:f}", "attn",
                          run->spec.text, "params", params, "budget", budget_json(&run->spec),
                          "ctx", (json_int_t)ctx, "protocol", p->decode ? "decode" : "prefill",
                          "trials", (json_int_t)p->n_trials, "correct", (json_int_t)run->correct,
                          "accuracy", (double)run->correct / (double)p->n_trials, "ci95", low, high,
                          "attended", n < 0 ? json_null() : json_real(n), "seconds",
                          (double)run->time_ns * 1e-9);
    add_bytes(o, run);
    return o;
}

static status add_json(passkey *p, int64_t ctx, err *e)
{
    int bad = 0;
    for (size_t i = 0; p->c->json && i < p->n_rows; i++) {
        const row *r = &p->rows[i];
        if (r->runs) bad |= json_array_append_new(p->results, result_json(p, r, ctx));
        else
            bad |= json_array_append_new(p->skipped,
                                         json_pack("{s:s, s:o, s:I, s:s}", "attn", r->run.spec.text,
                                                   "budget", budget_json(&r->run.spec), "ctx",
                                                   (json_int_t)ctx, "reason", r->why));
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
    TRY(check_rows(p, ctx, e)); /* before a prompt of that length is made */
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
    TRY(list_rows(p, e));
    TRY(engine_open(&p->g, p->c, 1, false, true, e));
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
    mem_free(p.runs);
    mem_free(p.rows);
    mem_free(p.ctx);
    mem_free(p.budget);
    engine_close(&p.g);
    return st;
}
