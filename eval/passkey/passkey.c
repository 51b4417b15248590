/* SPDX-License-Identifier: MIT */
/* `passkey`: finds numbers hidden in long texts, by strategy. evals.md section 4. */
#include "config.h"

#include <stdio.h>
#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/evaluation.h"
#include "eval/passkey/passkey_prompt.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

static const char default_budget[] = "256";

typedef struct {
    evaluation_options common;
    bool chars, ask_first;
} passkey_options;

typedef struct {
    const passkey_options *o;
    evaluation *ev; /* one item per trial, one pass per length */
    int64_t *ctx, *budget;
    size_t n_ctx, n_budget;
    int64_t n_trials, n_chars; /* n_chars: garbage characters at the current length */
    int64_t at;                /* current length */
    int64_t *correct;          /* [rows.n] correct answers */
    json_t *table, *skipped;   /* for --json */
} passkey;

static int64_t key_of(const passkey *p, size_t trial)
{
    return passkey_key(p->ev->o->run.seed.value, p->at, (int64_t)trial);
}

/* ---- options ---- */

static status load(void *own, evaluation *ev, err *e)
{
    passkey *p = own;
    const evaluation_options *c = ev->o;
    p->o = ev->options;
    p->ev = ev;
    p->n_trials = c->trials;
    p->table = json_array();
    p->skipped = json_array();
    TRY(cli_parse_sizes(&p->ctx, &p->n_ctx, c->run.attn.ctx, "4096", "--ctx", e));
    TRY(cli_parse_sizes(&p->budget, &p->n_budget, c->run.attn.budget, default_budget, "--budget", e));
    return MEM_NEW(&p->correct, ev->rows.n, e);
}

static json_t *config(const void *own)
{
    const passkey *p = own;
    return json_pack("{s:o, s:I, s:s, s:b, s:b}", "ctx", report_sizes(p->ctx, p->n_ctx), "trials",
                     (json_int_t)p->n_trials, "protocol", protocol_of(p->ev), "chars", p->o->chars, "ask_first",
                     p->o->ask_first);
}

/* ---- prompts ---- */

static status check_ctx(const passkey *p, int64_t ctx, err *e)
{
    const model *m = p->ev->g.m;
    int64_t most = m->config.max_positions;
    if (ctx <= most) return ST_OK;
    if (!p->ev->o->run.attn.ctx)
        return err_set(e, ST_USAGE, "the model supports %lld tokens; set a length with --ctx (default: %lld)",
                       (long long)most, (long long)ctx);
    cli_warn_ctx(m, ctx);
    return ST_OK;
}

/* Starts pass k, one per length. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    passkey *p = own;
    if (k == p->n_ctx) return ST_OK;
    p->at = ev->at_least = p->ctx[k];
    p->n_chars = 4 * p->at; /* --chars: Quest's rule */
    snprintf(ev->label, sizeof ev->label, "passkey, %lld tokens", (long long)p->at);
    TRY(check_ctx(p, p->at, e));
    TRY(lineup_check(&ev->rows, &ev->g, p->at, e)); /* before making prompts of that length */
    *n = (size_t)p->n_trials;
    return p->o->chars ? ST_OK : passkey_fit(&p->n_chars, ev->g.tok, p->at, p->o->ask_first, e);
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    const utf8_text question = {PASSKEY_QUESTION, sizeof PASSKEY_QUESTION - 1};
    const passkey *p = own;
    prompt_text text;
    out->index = (int64_t)i;
    out->n_new = PASSKEY_NEW;
    int64_t before = passkey_before(p->n_chars, (int64_t)i, p->n_trials);
    status st = passkey_text(&text, p->n_chars, before, key_of(p, i), p->o->ask_first, e);
    if (st == ST_OK) st = passkey_encode(&out->tokens, ev->g.tok, &text, ev->prompter.decode ? PASSKEY_TAIL : 0, e);
    mem_free(text.s);
    return st == ST_OK ? prompt_tokens_find(&out->hint.question, &out->tokens, ev->g.tok, question, e) : st;
}

/* ---- answers ---- */

static const char *const keys[] = {"ctx", "trial", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    return json_pack("{s:I, s:I}", "ctx", (json_int_t)((const passkey *)own)->at, "trial", (json_int_t)x->index);
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const passkey *p = own;
    int64_t key = key_of(p, i);
    (void)ev;
    (void)e;
    *members =
        json_pack("{s:f, s:I, s:s%, s:b}", "depth", 100 * (double)(i + 1) / (double)p->n_trials, "key", (json_int_t)key,
                  "reply", answer.s, answer.n, "correct", passkey_answer(answer.s, answer.n) == key);
    return ST_OK;
}

static json_t *sums_json(const attn_stats *s)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "steps", (json_int_t)s->steps, "attended", s->attended,
                     "visible", s->visible, "kv_read", s->kv_read, "k_read", s->k_read, "index_read", s->index_read,
                     "full_keys", s->full_keys);
}

static json_t *costs(const evaluation *ev, const evaluation_item *x, const batch_reply *r)
{
    const prompt_tokens *t = &x->tokens;
    double attended = batch_attended(&r->stats, ev->g.m->config.n_kv);
    return json_pack("{s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:o, s:o}", "prompt_tokens",
                     (json_int_t)(t->head.n + t->tail.n), "decoded_prompt_tokens", (json_int_t)t->tail.n, "new_tokens",
                     (json_int_t)r->n, "seconds", (double)r->time_ns * 1e-9, "kv_bytes", (json_int_t)r->held.kv,
                     "kv_bytes_peak", (json_int_t)r->peak.kv, "index_bytes", (json_int_t)r->held.index, "scratch_bytes",
                     (json_int_t)r->held.scratch, "attended", attended < 0 ? json_null() : json_real(attended), "sums",
                     sums_json(&r->stats));
}

/* ---- end of a length ---- */

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static size_t bytes(const json_t *line, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(line, key));
    return n > 0 ? (size_t)n : 0;
}

/* Restores the reply from the members that costs() wrote. */
static batch_reply reply_of(const json_t *line)
{
    const json_t *sums = json_object_get(line, "sums");
    return (batch_reply){
        .stats = {.steps = (int64_t)number(sums, "steps"),
                  .attended = number(sums, "attended"),
                  .visible = number(sums, "visible"),
                  .kv_read = number(sums, "kv_read"),
                  .k_read = number(sums, "k_read"),
                  .index_read = number(sums, "index_read"),
                  .full_keys = number(sums, "full_keys")},
        .held = {bytes(line, "kv_bytes"), bytes(line, "index_bytes"), bytes(line, "scratch_bytes")},
        .peak = {.kv = bytes(line, "kv_bytes_peak")},
        .time_ns = (int64_t)(number(line, "seconds") * 1e9),
    };
}

/* Adds up the rows' totals in order of trials, so that resumed runs and any number of jobs give the same sums. */
static void add_up(passkey *p)
{
    for (size_t i = 0; i < p->ev->rows.n; i++) {
        batch_run *run = &p->ev->rows.run[i];
        *run = (batch_run){.spec = run->spec};
        p->correct[i] = 0;
        for (int64_t t = 0; t < p->n_trials; t++) {
            const json_t *line = evaluation_result(p->ev, i, NULL, t, NULL);
            if (!line) continue;
            batch_reply r = reply_of(line);
            batch_add(run, &r);
            p->correct[i] += json_is_true(json_object_get(line, "correct"));
        }
    }
}

/* ---- the report ---- */

static void add_columns(const passkey *p, table *t)
{
    lineup_columns(&p->ev->rows, t);
    table_column(t, TABLE_LEFT | TABLE_DETAIL2, 0, "counts");
    table_column(t, 0, 0, "correct");
    table_column(t, 0, 0, "accuracy");
    table_column(t, 0, 0, "95 % interval");
    table_column(t, 0, 0, "attended");
    table_column(t, TABLE_DETAIL, 0, "KV MB");
    table_column(t, TABLE_DETAIL2, 0, "index MB");
    table_column(t, TABLE_DETAIL, 0, "read MB");
    table_column(t, TABLE_DETAIL2, 0, "index rd");
    table_column(t, TABLE_DETAIL, 0, "keys");
}

/* Adds the cells after the interval: tokens attended, MB held by kind, MB read per decode step by kind, and the
 * key-cache access ratio. */
static void add_costs(const passkey *p, const batch_run *r, table *t)
{
    double n = batch_attended(&r->stats, p->ev->g.m->config.n_kv), steps = n < 0 ? (double)NAN : (double)r->stats.steps;
    table_number(t, n < 0 ? (double)NAN : n, 1);
    table_number(t, (double)r->held.kv / 1e6, 2);
    table_number(t, (double)r->held.index / 1e6, 2);
    table_number(t, r->stats.kv_read / steps / 1e6, 3);
    table_number(t, r->stats.index_read / steps / 1e6, 3);
    if (n < 0) table_rest(t, "-");
    else table_cell(t, "%.1f %%", 100 * attn_key_access(&r->stats));
}

static void add_row(const passkey *p, size_t i, table *t)
{
    const batch_run *run = &p->ev->rows.run[i];
    double low, high;
    lineup_cells(&run->spec, t);
    lineup_counts(&run->spec, t);
    if (p->ev->rows.why[i].code != ST_OK) {
        table_rest(t, "-");
        return;
    }
    stats_wilson((double)p->correct[i], p->n_trials, &low, &high);
    table_cell(t, "%lld/%lld", (long long)p->correct[i], (long long)p->n_trials);
    table_cell(t, "%.1f %%", 100 * (double)p->correct[i] / (double)p->n_trials);
    table_cell(t, "%.1f .. %.1f %%", 100 * low, 100 * high);
    add_costs(p, run, t);
}

static status print_table(const passkey *p, err *e)
{
    table t = {0};
    paragraph("passkey: %lld tokens (%lld characters of garbage), %lld trial%s, protocol %s, seed %llu",
              (long long)p->at, (long long)p->n_chars, (long long)p->n_trials, p->n_trials == 1 ? "" : "s",
              protocol_of(p->ev), (unsigned long long)p->ev->o->run.seed.value);
    TRY(lineup_print_terms(&p->ev->rows, e));
    add_columns(p, &t);
    for (size_t i = 0; i < p->ev->rows.n; i++) add_row(p, i, &t);
    TRY(table_print(&t, e));
    TRY(lineup_print_why(&p->ev->rows, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* Adds the bytes held by kind and read per decode step (null without decode steps). */
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
    json_t *o = json_pack("{s:s, s:s, s:o, s:I, s:s, s:I, s:I, s:f, s:[f,f], s:o, s:f}", "attn", run->spec.text,
                          "params", params, "budget", lineup_budget_json(&run->spec), "ctx", (json_int_t)p->at,
                          "protocol", protocol_of(p->ev), "trials", (json_int_t)p->n_trials, "correct",
                          (json_int_t)correct, "accuracy", (double)correct / (double)p->n_trials, "ci95", low, high,
                          "attended", n < 0 ? json_null() : json_real(n), "seconds", (double)run->time_ns * 1e-9);
    add_bytes(o, run);
    return o;
}

static status add_json(passkey *p, err *e)
{
    int bad = 0;
    for (size_t i = 0; p->ev->o->run.out.json && i < p->ev->rows.n; i++) {
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

static status write_json(void *run, evaluation *ev, err *e)
{
    passkey *p = run;
    if (!p->ev->o->run.out.json) return ST_OK;
    json_t *options = json_pack("{s:o, s:o, s:s, s:I, s:s, s:b, s:I}", "ctx", report_sizes(p->ctx, p->n_ctx), "budget",
                                report_sizes(p->budget, p->n_budget), "attn",
                                p->ev->o->run.attn.names ? p->ev->o->run.attn.names : "all", "trials",
                                (json_int_t)p->n_trials, "protocol", protocol_of(p->ev), "chars", (int)p->o->chars,
                                "seed", (json_int_t)p->ev->o->run.seed.value);
    json_t *list = p->table, *extra = json_pack("{s:o}", "skipped", p->skipped);
    p->table = p->skipped = NULL;
    return report_write(&p->ev->o->run.out, &ev->g, options, list, extra, e);
}

/* ---- the command ---- */

static status passed(void *own, evaluation *ev, err *e)
{
    passkey *p = own;
    (void)ev;
    add_up(p);
    TRY(print_table(p, e));
    return add_json(p, e);
}

static void free_run(void *own)
{
    passkey *p = own;
    json_decref(p->table);
    json_decref(p->skipped);
    mem_free(p->correct);
    mem_free(p->ctx);
    mem_free(p->budget);
}

static const evaluation_kind evaluation_of_passkey = {.name = "passkey",
                                                      .size = sizeof(passkey),
                                                      .attn = "all",
                                                      .budget = default_budget,
                                                      .decode = true,
                                                      .keys = keys,
                                                      .identity = identity,
                                                      .load = load,
                                                      .pass = pass,
                                                      .item = make_item,
                                                      .config = config,
                                                      .judge = judge,
                                                      .costs = costs,
                                                      .passed = passed,
                                                      .report = write_json,
                                                      .free = free_run};

static const cli_option options[] = {
    OPTION("protocol", "decode|prefill", TEXT, AT(passkey_options, common.protocol),
           "feed the question token by token (default), or all at once"),
    OPTION("chars", NULL, FLAG, AT(passkey_options, chars), "a length of N means 4N characters of filler, as in Quest"),
    OPTION("ask-first", NULL, FLAG, AT(passkey_options, ask_first), "also ask the question before the text"),
    {0}};

const command passkey_command = {.name = "passkey",
                                 .args = "",
                                 .summary = "find a hidden key",
                                 .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS | OPTIONS_TRIALS,
                                 .own = options,
                                 .size = sizeof(passkey_options),
                                 .evaluation = &evaluation_of_passkey};
