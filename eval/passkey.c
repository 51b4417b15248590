/* SPDX-License-Identifier: MIT */
/* `passkey`: how often each strategy finds a number hidden in a long text. evals.md section 4. */
#include "config.h"

#include "eval/passkey_run.h"

#include <stdio.h>
#include <string.h>

#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

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

/* ---- results ---- */

static const char *const identity[] = {"ctx", "trial", "attn", "budget", NULL};

static json_t *identity_json(const passkey *p, size_t row, size_t trial)
{
    const attn_spec *s = &p->rows.run[row].spec;
    return json_pack("{s:I, s:I, s:s, s:o}", "ctx", (json_int_t)p->at, "trial", (json_int_t)trial,
                     "attn", s->text, "budget", lineup_budget_json(s));
}

static const json_t *result_of(const passkey *p, size_t row, size_t trial)
{
    json_t *like = identity_json(p, row, trial);
    const json_t *found = like ? results_find(p->out, like) : NULL;
    json_decref(like);
    return found;
}

static status open_results(passkey *p, err *e)
{
    json_t *own = json_pack("{s:o, s:I, s:s, s:b}", "ctx", report_sizes(p->ctx, p->n_ctx), "trials",
                            (json_int_t)p->n_trials, "protocol", p->decode ? "decode" : "prefill",
                            "chars", p->c->chars);
    return provenance_open(&p->out, p->c, &p->g, &p->rows, own, identity, e);
}

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static size_t bytes(const json_t *line, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(line, key));
    return n > 0 ? (size_t)n : 0;
}

/* The rows' totals, from the lines in the order of trials: the same for a run that went on, and for
 * any number of jobs. */
static void add_up(passkey *p)
{
    for (size_t i = 0; i < p->rows.n; i++) {
        together_run *run = &p->rows.run[i];
        *run = (together_run){.spec = run->spec};
        p->correct[i] = 0;
        for (size_t t = 0; t < (size_t)p->n_trials; t++) {
            const json_t *line = result_of(p, i, t), *sums = json_object_get(line, "sums");
            if (!line) continue;
            together_reply r = {
                .stats = {.steps = (int64_t)number(sums, "steps"),
                          .attended = number(sums, "attended"),
                          .visible = number(sums, "visible"),
                          .kv_read = number(sums, "kv_read"),
                          .k_read = number(sums, "k_read"),
                          .index_read = number(sums, "index_read"),
                          .full_keys = number(sums, "full_keys")},
                .held = {bytes(line, "kv_bytes"), bytes(line, "index_bytes"),
                         bytes(line, "scratch_bytes")},
                .peak = {.kv = bytes(line, "kv_bytes_peak")},
                .time_ns = (int64_t)(number(line, "seconds") * 1e9),
            };
            together_add(run, &r);
            p->correct[i] += json_is_true(json_object_get(line, "correct"));
        }
    }
}

/* ---- one answer ---- */

static bool on_progress(void *ctx, double part)
{
    const passkey *p = ctx;
    progress_set(p->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

static bool skip(void *ctx, size_t row, size_t trial)
{
    const passkey *p = ctx;
    return p->rows.why[row].code != ST_OK || result_of(p, row, trial);
}

/* Sums over decode steps and layers, as attn_stats has them. */
static json_t *sums_json(const attn_stats *s)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "steps", (json_int_t)s->steps,
                     "attended", s->attended, "visible", s->visible, "kv_read", s->kv_read,
                     "k_read", s->k_read, "index_read", s->index_read, "full_keys", s->full_keys);
}

static json_t *answer_json(const passkey *p, size_t row, size_t trial, const together_reply *r,
                           const char *text, size_t len)
{
    const passkey_trial *t = &p->trials[trial];
    double attended = together_attended(&r->stats, p->g.m->config.n_layers);
    json_t *o = identity_json(p, row, trial);
    json_t *more = json_pack(
        "{s:f, s:I, s:s%, s:b, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:o, s:o}", "depth",
        100 * (double)(trial + 1) / (double)p->n_trials, "key", (json_int_t)t->key, "reply", text,
        len, "correct", passkey_answer(text, len) == t->key, "prompt_tokens",
        (json_int_t)(t->head.n + t->tail.n), "decoded_prompt_tokens", (json_int_t)t->tail.n,
        "new_tokens", (json_int_t)r->n, "seconds", (double)r->time_ns * 1e-9, "kv_bytes",
        (json_int_t)r->held.kv, "kv_bytes_peak", (json_int_t)r->peak.kv, "index_bytes",
        (json_int_t)r->held.index, "scratch_bytes", (json_int_t)r->held.scratch, "attended",
        attended < 0 ? json_null() : json_real(attended), "sums", sums_json(&r->stats));
    if (more && json_object_update(o, more) == 0) {
        json_decref(more);
        return o;
    }
    json_decref(more);
    json_decref(o);
    return NULL;
}

static status on_answer(void *ctx, size_t row, size_t trial, const together_reply *r, err *e)
{
    passkey *p = ctx;
    char *text;
    size_t len;
    TRY(tokenizer_decode(p->g.tok, r->ids, r->n, false, &text, &len, e));
    json_t *line = answer_json(p, row, trial, r, text, len);
    mem_free(text);
    return results_add(p->out, line, e);
}

/* ---- one length ---- */

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

static status run_rows(passkey *p, err *e)
{
    char what[64];
    TRY(make_prompts(p, e));
    together_job job = {.d = p->g.dec,
                        .prompts = p->prompts,
                        .n_prompts = (size_t)p->n_trials,
                        .limit = together_limit(p->prompts, (size_t)p->n_trials),
                        .max_together = (size_t)decoder_chunk(p->g.dec),
                        .jobs = (size_t)p->c->jobs,
                        .share = true,
                        .skip = skip,
                        .done = on_answer,
                        .progress = on_progress,
                        .ctx = p};
    if (job.limit < p->at) job.limit = p->at;
    TRY(lineup_check(&p->rows, p->c, &p->g, job.limit, e));
    snprintf(what, sizeof what, "passkey, %lld tokens", (long long)p->at);
    p->bar = progress_start(p->c, what);
    status st = together_execute(&job, p->rows.run, p->rows.n, e);
    progress_end(p->bar);
    p->bar = NULL;
    if (st == ST_OK) lineup_say_shared(p->c, what, &job);
    if (st != ST_OK && p->c->output && !p->c->quiet)
        fprintf(stderr, "%s: %zu results; the same command goes on from there\n",
                path_tail(p->c->output), results_count(p->out));
    add_up(p);
    return st;
}

/* ---- the command ---- */

static status run_length(passkey *p, int64_t ctx, err *e)
{
    int64_t n_chars = 4 * ctx; /* --chars: Quest's rule */
    p->at = ctx;
    TRY(check_ctx(p, ctx, e));
    TRY(lineup_check(&p->rows, p->c, &p->g, ctx, e)); /* before a prompt of that length is made */
    if (!p->c->chars) TRY(passkey_fit(&n_chars, p->g.tok, ctx, e));
    TRY(passkey_trials(&p->trials, p->g.tok, p->c->seed, ctx, n_chars, p->n_trials,
                       p->decode ? PASSKEY_TAIL : 0, e));
    status st = run_rows(p, e);
    passkey_trials_free(p->trials, p->n_trials);
    p->trials = NULL;
    if (st == ST_OK) st = passkey_print(p, ctx, n_chars, e);
    return st == ST_OK ? passkey_add_json(p, ctx, e) : st;
}

static status run_lengths(passkey *p, err *e)
{
    TRY(parse_options(p, e));
    TRY(lineup_read(&p->rows, p->c, "all", p->budget, p->n_budget, e));
    TRY(MEM_NEW(&p->correct, p->rows.n, e));
    TRY(engine_find(&p->g, p->c, true, e));
    TRY(tokenizer_eos_ids(p->g.tok, &p->stop, e));
    TRY(lineup_check(&p->rows, p->c, &p->g, p->ctx[0], e));
    TRY(engine_load(&p->g, p->c, (size_t)p->c->jobs, false, e));
    TRY(open_results(p, e));
    cli_catch_interrupt();
    for (size_t i = 0; i < p->n_ctx; i++) TRY(run_length(p, p->ctx[i], e));
    return p->c->json ? passkey_write_json(p, e) : ST_OK;
}

status cmd_passkey(const cli *c, err *e)
{
    passkey p = {.c = c, .table = json_array(), .skipped = json_array()};
    status st = run_lengths(&p, e);
    cli_clear_interrupt();
    results_close(p.out);
    json_decref(p.table);
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
