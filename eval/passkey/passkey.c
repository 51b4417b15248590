/* SPDX-License-Identifier: MIT */
/* `passkey`: how often each strategy finds a number hidden in a long text. evals.md section 4. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/passkey/passkey_run.h"
#include "kernels/base/mem.h"

/* ---- options ---- */

static const char default_budget[] = "256";

static status load(void *own, evaluation *ev, err *e)
{
    passkey *p = own;
    const cli *c = ev->c;
    p->c = c;
    p->o = c->own;
    p->ev = ev;
    p->n_trials = c->trials;
    p->table = json_array();
    p->skipped = json_array();
    TRY(cli_parse_sizes(&p->ctx, &p->n_ctx, c->ctx, "4096", "--ctx", e));
    TRY(cli_parse_sizes(&p->budget, &p->n_budget, c->budget, default_budget, "--budget", e));
    return MEM_NEW(&p->correct, ev->rows.n, e);
}

static json_t *config(const void *own)
{
    const passkey *p = own;
    return json_pack("{s:o, s:I, s:s, s:b, s:b}", "ctx", report_sizes(p->ctx, p->n_ctx), "trials",
                     (json_int_t)p->n_trials, "protocol", p->ev->prompter.decode ? "decode" : "prefill", "chars",
                     p->o->chars, "ask_first", p->o->ask_first);
}

/* ---- prompts ---- */

static status check_ctx(const passkey *p, int64_t ctx, err *e)
{
    const model *m = p->ev->g.m;
    int64_t most = m->config.max_positions;
    if (ctx <= most) return ST_OK;
    if (!p->c->ctx)
        return err_set(e, ST_USAGE, "the model was made for %lld tokens: give a length with --ctx (%lld by default)",
                       (long long)most, (long long)ctx);
    cli_warn_ctx(p->c, m, ctx);
    return ST_OK;
}

/* A pass for each length. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    passkey *p = own;
    passkey_trials_free(p->trials, p->n_trials);
    p->trials = NULL;
    if (k == p->n_ctx) return ST_OK;
    p->at = ev->at_least = p->ctx[k];
    p->n_chars = 4 * p->at; /* --chars: Quest's rule */
    snprintf(ev->label, sizeof ev->label, "passkey, %lld tokens", (long long)p->at);
    TRY(check_ctx(p, p->at, e));
    TRY(lineup_check(&ev->rows, p->c, &ev->g, p->at, e)); /* before a prompt of that length is made */
    if (!p->o->chars) TRY(passkey_fit(&p->n_chars, ev->g.tok, p->at, p->o->ask_first, e));
    *n = (size_t)p->n_trials;
    return passkey_trials(&p->trials, ev->g.tok, p->c->seed, p->at, p->n_chars, p->n_trials,
                          ev->prompter.decode ? PASSKEY_TAIL : 0, p->o->ask_first, e);
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    const utf8_text question = {PASSKEY_QUESTION, sizeof PASSKEY_QUESTION - 1};
    passkey_trial *t = &((passkey *)own)->trials[i];
    out->index = (int64_t)i;
    out->stop = &ev->eos;
    out->n_new = PASSKEY_NEW;
    out->tokens.head = t->head;
    out->tokens.tail = t->tail;
    t->head = t->tail = (token_list){0};
    return prompt_tokens_find(&out->hint.question, &out->tokens, ev->g.tok, question, e);
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
    int64_t key = p->trials[i].key;
    (void)ev;
    (void)e;
    *members =
        json_pack("{s:f, s:I, s:s%, s:b}", "depth", 100 * (double)(i + 1) / (double)p->n_trials, "key", (json_int_t)key,
                  "reply", answer.s, answer.n, "correct", passkey_answer(answer.s, answer.n) == key);
    return ST_OK;
}

/* Sums over decode steps and layers, as attn_stats has them. */
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

/* ---- a length is done ---- */

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static size_t bytes(const json_t *line, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(line, key));
    return n > 0 ? (size_t)n : 0;
}

/* The reply that costs() wrote. */
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

/* The rows' totals, from the lines in the order of trials: the same for a run that went on, and for
 * any number of jobs. */
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

static status passed(void *own, evaluation *ev, err *e)
{
    passkey *p = own;
    (void)ev;
    add_up(p);
    TRY(passkey_print(p, e));
    return passkey_add_json(p, e);
}

static void free_run(void *own)
{
    passkey *p = own;
    passkey_trials_free(p->trials, p->n_trials);
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
                                                      .report = passkey_write_json,
                                                      .free = free_run};

static const cli_option options[] = {{.name = "protocol",
                                      .arg = "decode|prefill",
                                      AT(protocol),
                                      .help = "feed the question token by token (default), or all at once"},
                                     {.name = "chars",
                                      .type = OPTION_FLAG,
                                      AT_OWN(passkey_options, chars),
                                      .help = "a length of N means 4N characters of filler, as in Quest"},
                                     {.name = "ask-first",
                                      .type = OPTION_FLAG,
                                      AT_OWN(passkey_options, ask_first),
                                      .help = "the question stands before the text too"},
                                     {0}};

const command passkey_command = {.name = "passkey",
                                 .args = "",
                                 .summary = "find a hidden key: strategies and budgets compared",
                                 .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS | OPTIONS_TRIALS,
                                 .own = options,
                                 .own_size = sizeof(passkey_options),
                                 .compares = true,
                                 .evaluation = &evaluation_of_passkey};
