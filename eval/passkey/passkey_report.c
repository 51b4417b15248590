/* SPDX-License-Identifier: MIT */
/* The tables of `passkey`, and its --json. */
#include "config.h"

#include <stdio.h>

#include "eval/passkey/passkey_run.h"
#include "eval/stats.h"

/* What a row shows behind its interval: tokens attended, MB held by kind, MB read in a decode step by
 * kind, and the key-cache access ratio. */
static status print_costs(const passkey *p, const batch_run *r, err *e)
{
    double n = batch_attended(&r->stats, p->ev->g.m->config.n_kv), steps = (double)r->stats.steps;
    if (n < 0)
        return out_printf(e, " %10s %9.2f %9.2f %9s %9s %7s\n", "-", (double)r->held.kv / 1e6,
                          (double)r->held.index / 1e6, "-", "-", "-");
    return out_printf(e, " %10.1f %9.2f %9.2f %9.3f %9.3f %5.1f %%\n", n, (double)r->held.kv / 1e6,
                      (double)r->held.index / 1e6, r->stats.kv_read / steps / 1e6, r->stats.index_read / steps / 1e6,
                      100 * attn_key_access(&r->stats));
}

static status print_row(const passkey *p, size_t i, int width, err *e)
{
    const batch_run *run = &p->ev->rows.run[i];
    char budget[24], counts[16], share[24], interval[32];
    double low, high;
    lineup_budget_text(budget, sizeof budget, &run->spec);
    attn_budget_counts(&run->spec, counts);
    if (p->ev->rows.why[i].code != ST_OK)
        return out_printf(e, "%-*s %8s %-10s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width, run->spec.text, budget,
                          counts, "-", "-", "-", "-", "-", "-", "-", "-", "-");
    stats_wilson((double)p->correct[i], p->n_trials, &low, &high);
    snprintf(share, sizeof share, "%lld/%lld", (long long)p->correct[i], (long long)p->n_trials);
    snprintf(interval, sizeof interval, "%.1f .. %.1f %%", 100 * low, 100 * high);
    TRY(out_printf(e, "%-*s %8s %-10s %10s %7.1f %% %17s", width, run->spec.text, budget, counts, share,
                   100 * (double)p->correct[i] / (double)p->n_trials, interval));
    return print_costs(p, run, e);
}

status passkey_print(const passkey *p, err *e)
{
    int width = lineup_width(&p->ev->rows);
    TRY(out_printf(e,
                   "passkey: %lld tokens (%lld characters of garbage), %lld trial%s, protocol %s, "
                   "seed %llu",
                   (long long)p->at, (long long)p->n_chars, (long long)p->n_trials, p->n_trials == 1 ? "" : "s",
                   p->ev->prompter.decode ? "decode" : "prefill", (unsigned long long)p->c->seed));
    TRY(lineup_print_terms(&p->ev->rows, p->c, e));
    TRY(out_printf(e, "%-*s %8s %-10s %10s %9s %17s %10s %9s %9s %9s %9s %7s\n", width, "strategy", "budget", "counts",
                   "correct", "accuracy", "95 % interval", "attended", "KV MB", "index MB", "read MB", "index rd",
                   "keys"));
    for (size_t i = 0; i < p->ev->rows.n; i++) TRY(print_row(p, i, width, e));
    TRY(lineup_print_why(&p->ev->rows, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* Bytes held by kind, and read by a decode step (null without one). */
static void add_bytes(json_t *o, const batch_run *r)
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

static json_t *result_json(const passkey *p, size_t i)
{
    const batch_run *run = &p->ev->rows.run[i];
    const int64_t correct = p->correct[i];
    char params[512];
    double low, high, n = batch_attended(&run->stats, p->ev->g.m->config.n_kv);
    attn_spec_params(&run->spec, params, sizeof params);
    stats_wilson((double)correct, p->n_trials, &low, &high);
    json_t *o =
        json_pack("{s:s, s:s, s:o, s:I, s:s, s:I, s:I, s:f, s:[f,f], s:o, s:f}", "attn", run->spec.text, "params",
                  params, "budget", lineup_budget_json(&run->spec), "ctx", (json_int_t)p->at, "protocol",
                  p->ev->prompter.decode ? "decode" : "prefill", "trials", (json_int_t)p->n_trials, "correct",
                  (json_int_t)correct, "accuracy", (double)correct / (double)p->n_trials, "ci95", low, high, "attended",
                  n < 0 ? json_null() : json_real(n), "seconds", (double)run->time_ns * 1e-9);
    add_bytes(o, run);
    return o;
}

status passkey_add_json(passkey *p, err *e)
{
    int bad = 0;
    for (size_t i = 0; p->c->json && i < p->ev->rows.n; i++) {
        const attn_spec *s = &p->ev->rows.run[i].spec;
        const err *why = &p->ev->rows.why[i];
        if (why->code == ST_OK) bad |= json_array_append_new(p->table, result_json(p, i));
        else
            bad |= json_array_append_new(p->skipped, json_pack("{s:s, s:o, s:I, s:s}", "attn", s->text, "budget",
                                                               lineup_budget_json(s), "ctx", (json_int_t)p->at,
                                                               "reason", why->msg));
    }
    return bad ? err_set(e, ST_NOMEM, "out of memory for the report") : ST_OK;
}

status passkey_write_json(void *run, evaluation *ev, err *e)
{
    passkey *p = run;
    if (!p->c->json) return ST_OK;
    json_t *options = json_pack("{s:o, s:o, s:s, s:I, s:s, s:b, s:I}", "ctx", report_sizes(p->ctx, p->n_ctx), "budget",
                                report_sizes(p->budget, p->n_budget), "attn", p->c->attn ? p->c->attn : "all", "trials",
                                (json_int_t)p->n_trials, "protocol", p->ev->prompter.decode ? "decode" : "prefill",
                                "chars", (int)p->o->chars, "seed", (json_int_t)p->c->seed);
    json_t *table = p->table, *extra = json_pack("{s:o}", "skipped", p->skipped);
    p->table = p->skipped = NULL;
    return report_write(p->c, &ev->g, options, table, extra, e);
}
