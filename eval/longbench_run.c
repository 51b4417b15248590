/* SPDX-License-Identifier: MIT */
/* `eval longbench`: prompts in, predictions and their scores out, one line each. */
#include "config.h"

#include "eval/longbench_run.h"

#include <string.h>

#include "eval/generate.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- what is asked for ---- */

static status parse_prompter(longbench_run *r, err *e)
{
    const cli *c = r->c;
    longbench_prompter *p = &r->prompter;
    p->chat_template = c->template_name;
    p->decode = c->protocol && strcmp(c->protocol, "decode") == 0;
    if (c->protocol && !p->decode && strcmp(c->protocol, "prefill") != 0)
        return err_set(e, ST_USAGE, "--protocol: unknown protocol '%.40s' (decode, prefill)",
                       c->protocol);
    if (c->clean_up && strcmp(c->clean_up, "on") != 0 && strcmp(c->clean_up, "off") != 0)
        return err_set(e, ST_USAGE, "--clean-up: '%.40s' is not one of: on off", c->clean_up);
    if (c->wrap) TRY(prompt_wrap_parse(&p->wrap, c->wrap, e));
    if (p->wrap == WRAP_RAW && c->template_name)
        return err_set(e, ST_USAGE, "--template: --wrap raw uses none");
    return reply_check(c, e);
}

static status read_lineup(longbench_run *r, err *e)
{
    int64_t *budget = NULL, none = 0;
    size_t n = 1;
    if (r->c->budget) TRY(cli_parse_sizes(&budget, &n, r->c->budget, "", "--budget", e));
    status st = lineup_read(&r->rows, r->c, "full", budget ? budget : &none, n, e);
    mem_free(budget);
    return st;
}

static status read_data(longbench_run *r, const char *data_dir, err *e)
{
    const cli *c = r->c;
    longbench_source s = {.data = c->data,
                          .datasets = c->dataset,
                          .longbench_e = c->longbench_e,
                          .limit = c->limit,
                          .sampled = c->sampled,
                          .seed = c->sample_seed};
    char *own = c->data ? NULL : path_join(data_dir, "longbench/samples.jsonl");
    if (!c->data) s.data = own;
    if (c->sampled && c->limit == 0)
        return err_set(e, ST_USAGE, "--sample-seed chooses the samples of --limit N");
    status st = s.data ? longbench_data_read(&r->data, &r->t, &s, e)
                       : err_set(e, ST_NOMEM, "out of memory");
    mem_free(own);
    return st;
}

/* What depends on the model: its window, its template, its tokenizer's clean-up. */
static status finish_prompter(longbench_run *r, int64_t *window, err *e)
{
    const cli *c = r->c;
    longbench_prompter *p = &r->prompter;
    int64_t max_length;
    *window = r->g.m->config.max_positions;
    p->tok = r->g.tok;
    p->clean = c->clean_up ? strcmp(c->clean_up, "on") == 0 : tokenizer_cleans_up(p->tok);
    if (c->ctx) {
        TRY(cli_parse_size(window, c->ctx, "--ctx", e));
        cli_warn_ctx(c, r->g.m, *window);
    }
    if (!c->wrap && !c->template_name && !tokenizer_chat_template(p->tok)) {
        p->wrap = WRAP_RAW;
        if (!c->quiet) fprintf(stderr, "the model has no chat template: prompts stay raw\n");
    }
    if (!c->max_length) return longbench_max_length(&p->max_length, *window, e);
    TRY(cli_parse_size(&max_length, c->max_length, "--max-length", e));
    p->max_length = (size_t)max_length;
    return max_length >= 2 ? ST_OK
                           : err_set(e, ST_USAGE, "--max-length %s: at least 2 tokens are needed",
                                     c->max_length);
}

/* ---- prompts ---- */

static status make_prompt(longbench_run *r, size_t i, int64_t window, err *e)
{
    longbench_sample *s = &r->data.s[i];
    longbench_prompt *p = &r->tokens[i];
    const token_list *stops = &r->stops[s->d - r->t.d];
    err inner = {0};
    status st = longbench_prompt_make(p, &r->prompter, s->d, s->p.text, s->input, &inner);
    if (st != ST_OK)
        return err_set(e, st, "%s sample %lld: %.180s", s->d->name, (long long)s->index, inner.msg);
    r->prompts[i] = (together_prompt){.head = p->head.ids,
                                      .tail = p->tail.ids,
                                      .n_head = p->head.n,
                                      .n_tail = p->tail.n,
                                      .stop = stops->ids,
                                      .n_stop = stops->n,
                                      .n_new = (size_t)s->d->max_new_tokens,
                                      .not_first = s->d->newline_stops};
    r->n_truncated += p->truncated;
    longbench_sample_forget(s);
    int64_t need = together_limit(&r->prompts[i], 1);
    if (need <= window) return ST_OK;
    return err_set(e, ST_USAGE,
                   "%s sample %lld takes %lld tokens with its %d new ones, the window has %lld: a "
                   "smaller --max-length, or --ctx N",
                   s->d->name, (long long)s->index, (long long)need, s->d->max_new_tokens,
                   (long long)window);
}

static status make_prompts(longbench_run *r, int64_t window, err *e)
{
    TRY(MEM_NEW(&r->stops, r->t.n, e));
    TRY(MEM_NEW(&r->tokens, r->data.n, e));
    TRY(MEM_NEW(&r->prompts, r->data.n, e));
    for (size_t i = 0; i < r->t.n; i++) TRY(longbench_stops(&r->stops[i], r->g.tok, &r->t.d[i], e));
    r->bar = progress_start(r->c, "reading prompts");
    status st = ST_OK;
    for (size_t i = 0; i < r->data.n && st == ST_OK; i++) {
        st = make_prompt(r, i, window, e);
        progress_set(r->bar, (int64_t)i, (int64_t)r->data.n);
        if (cli_interrupted()) st = err_set(e, ST_INTERRUPTED, "interrupted");
    }
    progress_end(r->bar);
    r->bar = NULL;
    r->limit = together_limit(r->prompts, r->data.n);
    return st;
}

/* ---- results ---- */

static const char *const identity[] = {"dataset", "index", "attn", "budget", NULL};

static json_t *identity_json(const longbench_run *r, size_t row, size_t sample)
{
    const longbench_sample *s = &r->data.s[sample];
    const attn_spec *spec = &r->rows.run[row].spec;
    return json_pack("{s:s, s:I, s:s, s:o}", "dataset", s->d->name, "index", (json_int_t)s->index,
                     "attn", spec->text, "budget", lineup_budget_json(spec));
}

const json_t *longbench_result(const longbench_run *r, size_t row, size_t sample)
{
    json_t *like = identity_json(r, row, sample);
    const json_t *found = like ? results_find(r->out, like) : NULL;
    json_decref(like);
    return found;
}

/* How many samples of each dataset. */
static json_t *counts_json(const longbench_run *r)
{
    json_t *o = json_object();
    for (size_t i = 0; i < r->data.n; i++) {
        const char *name = r->data.s[i].d->name;
        json_int_t n = json_integer_value(json_object_get(o, name));
        json_object_set_new(o, name, json_integer(n + 1));
    }
    return o;
}

static status add_config(json_t *config, const longbench_run *r, err *e)
{
    const cli *c = r->c;
    const longbench_prompter *p = &r->prompter;
    const char *chat = c->template_name ? c->template_name : tokenizer_chat_template(r->g.tok);
    json_t *own = json_pack(
        "{s:O, s:b, s:o, s:o, s:I, s:s, s:s?, s:s, s:b, s:o}", "data", r->data.files, "longbench_e",
        c->longbench_e, "limit", c->limit ? json_integer(c->limit) : json_null(), "sample_seed",
        c->sampled ? json_integer((json_int_t)c->sample_seed) : json_null(), "max_length",
        (json_int_t)p->max_length, "wrap", prompt_wrap_name(p->wrap), "template",
        p->wrap == WRAP_RAW ? NULL : chat, "protocol", p->decode ? "decode" : "prefill", "clean_up",
        p->clean, "samples", counts_json(r));
    bool good = own && json_object_update(config, own) == 0;
    json_decref(own);
    return good ? ST_OK : err_set(e, ST_NOMEM, "out of memory for the configuration");
}

static status open_results(longbench_run *r, err *e)
{
    json_t *config = NULL, *started = NULL;
    status st;
    TRY_GOTO(provenance_config(&config, r->c, &r->g, &r->rows, e));
    TRY_GOTO(add_config(config, r, e));
    TRY_GOTO(provenance_started(&started, &r->g, e));
    results_options o = {r->c->output, r->c->command, config, started, identity};
    TRY_GOTO(results_open(&r->out, &o, e));
    TRY_GOTO(MEM_NEW(&r->known, r->rows.n * r->data.n, e));
    for (size_t i = 0; i < r->rows.n; i++)
        for (size_t k = 0; k < r->data.n; k++)
            r->known[i * r->data.n + k] = longbench_result(r, i, k) != NULL;
    if (results_count(r->out) > 0 && !r->c->quiet)
        fprintf(stderr, "%s: %zu results are there, going on\n", path_tail(r->c->output),
                results_count(r->out));
done:
    json_decref(config);
    json_decref(started);
    return st;
}

/* ---- one answer ---- */

static bool skip(void *ctx, size_t row, size_t sample)
{
    const longbench_run *r = ctx;
    return r->rows.why[row].code != ST_OK || r->known[row * r->data.n + sample];
}

static bool on_progress(void *ctx, double part)
{
    const longbench_run *r = ctx;
    progress_set(r->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

/* The official code scores a file with the classes of its last line. */
static const prediction *last_of_dataset(const longbench_run *r, size_t i)
{
    while (i + 1 < r->data.n && r->data.s[i + 1].d == r->data.s[i].d) i++;
    return &r->data.s[i].p;
}

static json_t *answer_json(const longbench_run *r, size_t row, size_t i, const together_reply *a,
                           utf8_text text, double score)
{
    const longbench_sample *s = &r->data.s[i];
    const longbench_prompt *p = &r->tokens[i];
    double attended = together_attended(&a->stats, r->g.m->config.n_layers);
    json_t *o = identity_json(r, row, i);
    json_t *more = json_pack(
        "{s:s, s:s%, s:O, s:f, s:I, s:I, s:I, s:b, s:I, s:b, s:f, s:I, s:I, s:I, s:o}", "id", s->id,
        "prediction", text.s, text.n, "answers", json_object_get(s->p.root, "answers"), "score",
        score, "length", (json_int_t)s->p.length, "prompt_tokens",
        (json_int_t)(p->head.n + p->tail.n), "decoded_prompt_tokens", (json_int_t)p->tail.n,
        "truncated", p->truncated, "new_tokens", (json_int_t)a->n, "stopped", a->stopped, "seconds",
        (double)a->time_ns * 1e-9, "kv_bytes", (json_int_t)a->held.kv, "kv_bytes_peak",
        (json_int_t)a->peak.kv, "index_bytes", (json_int_t)a->held.index, "attended",
        attended < 0 ? json_null() : json_real(attended));
    if (!more || json_object_update(o, more) != 0) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    return o;
}

static status on_answer(void *ctx, size_t row, size_t i, const together_reply *a, err *e)
{
    longbench_run *r = ctx;
    const longbench_sample *s = &r->data.s[i];
    const prediction *last = last_of_dataset(r, i);
    char *text;
    size_t n;
    double score;
    TRY(tokenizer_decode(r->g.tok, a->ids, a->n, false, &text, &n, e));
    if (r->prompter.clean) tokenizer_clean_up(text, &n);
    metric_case c = {{text, n}, s->p.answers, s->p.n_answers, last->classes, last->n_classes};
    status st = longbench_score(r->m, s->d, c, &score, e);
    json_t *line = st == ST_OK ? answer_json(r, row, i, a, c.prediction, score) : NULL;
    if (st == ST_OK) st = results_add(r->out, line, e);
    if (st == ST_OK) r->known[row * r->data.n + i] = true;
    mem_free(text);
    return st;
}

static status answer_all(longbench_run *r, err *e)
{
    together_job job = {.d = r->g.dec,
                        .prompts = r->prompts,
                        .n_prompts = r->data.n,
                        .limit = r->limit,
                        .max_together = (size_t)decoder_chunk(r->g.dec),
                        .jobs = (size_t)r->c->jobs,
                        .share = true,
                        .skip = skip,
                        .done = on_answer,
                        .progress = on_progress,
                        .ctx = r};
    r->bar = progress_start(r->c, "longbench");
    status st = together_execute(&job, r->rows.run, r->rows.n, e);
    progress_end(r->bar);
    r->bar = NULL;
    if (st == ST_OK) lineup_say_shared(r->c, "longbench", &job);
    if (st != ST_OK && r->c->output && !r->c->quiet)
        fprintf(stderr, "%s: %zu results; the same command goes on from there\n",
                path_tail(r->c->output), results_count(r->out));
    return st;
}

/* ---- the command ---- */

static status evaluate(longbench_run *r, const char *data_dir, err *e)
{
    int64_t window;
    TRY(parse_prompter(r, e));
    TRY(read_lineup(r, e));
    TRY(longbench_open(&r->t, data_dir, e));
    TRY(read_data(r, data_dir, e));
    TRY(engine_open(&r->g, r->c, (size_t)r->c->jobs, false, true, e));
    cli_catch_interrupt();
    TRY(finish_prompter(r, &window, e));
    TRY(make_prompts(r, window, e));
    TRY(lineup_check(&r->rows, r->c, &r->g, r->limit, e));
    TRY(open_results(r, e));
    TRY(answer_all(r, e));
    return longbench_report(r, e);
}

status longbench_evaluate(const cli *c, const char *data_dir, metrics *m, err *e)
{
    longbench_run r = {.c = c, .m = m};
    status st = evaluate(&r, data_dir, e);
    cli_clear_interrupt();
    results_close(r.out);
    mem_free(r.known);
    for (size_t i = 0; r.tokens && i < r.data.n; i++) longbench_prompt_free(&r.tokens[i]);
    for (size_t i = 0; r.stops && i < r.t.n; i++) token_list_free(&r.stops[i]);
    mem_free(r.tokens);
    mem_free(r.prompts);
    mem_free(r.stops);
    lineup_free(&r.rows);
    longbench_data_free(&r.data);
    longbench_close(&r.t);
    engine_close(&r.g);
    return st;
}
