/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/evaluation.h"
#include "generate/prefix_cache.h"

#include <string.h>

#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

/* ---- options ---- */

static status parse_prompter(evaluation *ev, err *e)
{
    static const char *const switches[] = {"on", "off", NULL};
    const evaluation_options *c = ev->o;
    prompter *p = &ev->prompter;
    int off;
    p->joined = ev->kind->joined;
    p->decode = c->protocol ? strcmp(c->protocol, "decode") == 0 : ev->kind->decode;
    if (c->protocol && !p->decode && strcmp(c->protocol, "prefill") != 0)
        return err_set(e, ST_USAGE, "--protocol: unknown protocol '%.40s' (decode, prefill)", c->protocol);
    TRY(cli_choose(&off, c->clean_up, switches, "--clean-up", e));
    TRY(prompt_wrap_parse(&p->wrap, c->wrap, e));
    if (p->wrap == WRAP_RAW && c->template.name)
        return err_set(e, ST_USAGE, "--template: not supported with --wrap raw");
    if (c->prefix.disk) TRY(cli_check_prefix(c->prefix.disk, c->run.engine.device.ranks, e));
    TRY(cli_template_args(&ev->template_args, &c->template, e));
    p->args = ev->template_args;
    return ST_OK;
}

static status parse_source(evaluation *ev, err *e)
{
    const evaluation_options *c = ev->o;
    ev->source = (sample_source){
        .data = c->data, .limit = c->limit, .sampled = c->sample_seed.given, .seed = c->sample_seed.value};
    if (c->sample_seed.given && c->limit == 0) return err_set(e, ST_USAGE, "--sample-seed: requires --limit N");
    if (c->data || !ev->kind->own_samples) return ST_OK;
    ev->own_path = path_join(ev->data_dir, ev->kind->own_samples);
    ev->source.data = ev->own_path;
    return ev->own_path ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* Checks the options before anything is opened. */
static status start(evaluation *ev, err *e)
{
    const evaluation_kind *k = ev->kind;
    TRY(cli_data_dir(&ev->data_dir, e));
    TRY(parse_prompter(ev, e));
    if (ev->o->run.engine.draft && ev->o->jobs > 1)
        return err_set(e, ST_USAGE, "--jobs %d: not supported with --draft", ev->o->jobs);
    TRY(lineup_read_budgets(&ev->rows, &ev->o->run.attn, k->attn ? k->attn : "full", k->budget, e));
    TRY(parse_source(ev, e));
    TRY(metrics_open(&ev->m, ev->data_dir, e));
    ev->samples = (sample_list){.size = k->sample_size, .drop = k->drop};
    TRY(k->load(ev->own, ev, e));
    if (!ev->files) ev->files = ev->samples.files;
    return ST_OK;
}

/* ---- the model ---- */

/* Decides whether prompts are wrapped, and checks that the chat template exists. */
static status finish_wrap(evaluation *ev, err *e)
{
    const evaluation_options *c = ev->o;
    prompter *p = &ev->prompter;
    p->tok = ev->g.tok;
    if (p->wrap != WRAP_RAW && c->template.name) TRY(tokenizer_set_template(ev->g.tok, c->template.name, e));
    if (p->wrap != WRAP_RAW && !c->wrap && !tokenizer_chat_template(p->tok)) {
        p->wrap = WRAP_RAW;
        out_note("the model has no chat template; prompts are not wrapped");
    }
    if (p->wrap != WRAP_RAW && !tokenizer_chat_template(p->tok))
        return err_set(e, ST_USAGE, "--wrap %s: the model has no chat template; name one with --template FILE|NAME",
                       c->wrap);
    return ST_OK;
}

/* Settings that depend on the model: window, template, and the tokenizer's clean-up. */
static status finish_prompter(evaluation *ev, err *e)
{
    const evaluation_options *c = ev->o;
    prompter *p = &ev->prompter;
    int64_t max_length;
    TRY(finish_wrap(ev, e));
    p->clean = c->clean_up ? strcmp(c->clean_up, "on") == 0 : tokenizer_cleans_up(p->tok);
    if (!c->max_length) return ev->kind->max_length(&p->max_length, ev, e);
    TRY(cli_parse_size(&max_length, c->max_length, "--max-length", e));
    p->max_length = (size_t)max_length;
    return max_length >= 2 ? ST_OK : err_set(e, ST_USAGE, "--max-length %s: must be at least 2", c->max_length);
}

static status open_model(evaluation *ev, err *e)
{
    const evaluation_options *c = ev->o;
    TRY(engine_find(&ev->g, &c->run.engine, true, e));
    cli_catch_interrupt();
    TRY(tokenizer_eos_ids(ev->g.tok, &ev->eos, e));
    ev->window = INT64_MAX;
    if (ev->kind->own_samples) {
        ev->window = ev->g.m->config.max_positions;
        if (c->run.attn.ctx) {
            TRY(cli_parse_size(&ev->window, c->run.attn.ctx, "--ctx", e));
            cli_warn_ctx(ev->g.m, ev->window);
        }
        TRY(finish_prompter(ev, e));
    }
    if (ev->kind->wraps) TRY(finish_wrap(ev, e));
    if (ev->kind->ready) TRY(ev->kind->ready(ev->own, ev, e));
    if (!ev->n_samples) ev->n_samples = ev->samples.n;
    return ST_OK;
}

/* ---- prompts ---- */

static status make_item(evaluation *ev, size_t i, err *e)
{
    evaluation_item *x = &ev->items[i];
    batch_prompt *p = &ev->prompts[i];
    err inner = {0};
    *x = (evaluation_item){.row = EVALUATION_ALL_ROWS, .stop = &ev->eos, .dataset = ev->kind->name};
    if (i < ev->samples.n) {
        const sample_head *s = samples_at(&ev->samples, i);
        if (ev->names.n) x->dataset = dataset_name(&ev->names, s->dataset);
        x->index = s->index;
    }
    status st = ev->kind->item(ev->own, ev, i, x, &inner);
    if (st != ST_OK) return err_set(e, st, "%s sample %lld: %.180s", x->dataset, (long long)x->index, inner.msg);
    *p = (batch_prompt){.head = x->tokens.head.ids,
                        .tail = x->tokens.tail.ids,
                        .n_head = x->tokens.head.n,
                        .n_tail = x->tokens.tail.n,
                        .breaks = x->tokens.breaks,
                        .n_breaks = x->tokens.n_breaks,
                        .stop = x->stop->ids,
                        .n_stop = x->stop->n,
                        .n_new = x->n_new,
                        .not_first = x->not_first,
                        .only = x->only,
                        .n_only = x->n_only,
                        .follows = x->follows,
                        .ends = x->ends,
                        .hint = x->hint,
                        .random = x->random};
    if (x->left_out) return ST_OK;
    ev->n_truncated += x->tokens.truncated;
    int64_t need = batch_limit(p, 1);
    if (need <= ev->window) return ST_OK;
    return err_set(e, ST_USAGE,
                   "%s sample %lld needs %lld tokens, including %zu new ones, but the window has %lld; use a smaller "
                   "--max-length or --ctx N",
                   x->dataset, (long long)x->index, (long long)need, x->n_new, (long long)ev->window);
}

static void free_items(evaluation *ev)
{
    for (size_t i = 0; ev->items && i < ev->n_items; i++) prompt_tokens_free(&ev->items[i].tokens);
    mem_free(ev->items);
    mem_free(ev->prompts);
    ev->items = NULL;
    ev->prompts = NULL;
}

static void leave_out(evaluation *ev, size_t i)
{
    prompt_tokens_free(&ev->items[i].tokens);
    samples_remove(&ev->samples, i);
    ev->n_items--;
    ev->n_samples--;
    ev->n_left_out++;
}

/* Replaces the items by n new ones. */
static status prepare(evaluation *ev, size_t n, err *e)
{
    free_items(ev);
    ev->n_items = n;
    TRY(MEM_NEW(&ev->items, n, e));
    TRY(MEM_NEW(&ev->prompts, n, e));
    ev->bar = progress_start("reading prompts");
    status st = ST_OK;
    for (size_t i = 0; i < ev->n_items && st == ST_OK;) {
        st = make_item(ev, i, e);
        progress_set(ev->bar, (int64_t)i, (int64_t)n);
        if (st == ST_OK && cli_interrupted()) st = err_set(e, ST_INTERRUPTED, "interrupted");
        if (st == ST_OK && ev->items[i].left_out) leave_out(ev, i);
        else i++;
    }
    progress_end(ev->bar);
    ev->bar = NULL;
    ev->limit = batch_limit(ev->prompts, ev->n_items);
    if (ev->limit < ev->at_least) ev->limit = ev->at_least;
    return st;
}

/* ---- results ---- */

static const char *const *keys_of(const evaluation *ev)
{
    static const char *const keys[] = {"dataset", "index", "attn", "budget", NULL}, *const with_pass[] = {
                                                                                        "dataset", "index", "attn",
                                                                                        "budget",  "pass",  NULL};
    return ev->kind->keys ? ev->kind->keys : ev->passes ? with_pass : keys;
}

static json_t *identity_json(const evaluation *ev, size_t row, const evaluation_item *x)
{
    const attn_spec *spec = &ev->rows.run[row].spec;
    json_t *o = ev->kind->identity ? ev->kind->identity(ev->own, x)
                                   : json_pack("{s:s, s:I}", "dataset", x->dataset, "index", (json_int_t)x->index);
    bool bad = json_object_set_new(o, "attn", json_string(spec->text)) != 0 ||
               json_object_set_new(o, "budget", lineup_budget_json(spec)) != 0 ||
               (x->pass && json_object_set_new(o, "pass", json_string(x->pass)) != 0);
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

static const json_t *result_of(const evaluation *ev, size_t row, const evaluation_item *x)
{
    return results_find(ev->out, identity_json(ev, row, x));
}

const json_t *evaluation_result(const evaluation *ev, size_t row, const char *dataset, int64_t index, const char *pass)
{
    return result_of(ev, row, &(evaluation_item){.dataset = dataset, .index = index, .pass = pass});
}

/* Returns {name: SHA-256} of the benchmark's own files, a new object. */
static status tables_json(json_t **out, const evaluation *ev, err *e)
{
    status st = ST_OK;
    char sum[SHA256_HEX];
    *out = json_object();
    for (const char *const *name = ev->kind->tables; name && *name && st == ST_OK; name++) {
        char *path = path_join(ev->data_dir, *name);
        st = path ? file_sha256(path, sum, e) : err_set(e, ST_NOMEM, "out of memory");
        mem_free(path);
        if (st == ST_OK && json_object_set_new(*out, *name, json_string(sum)) != 0)
            st = err_set(e, ST_NOMEM, "out of memory");
    }
    if (st == ST_OK) return ST_OK;
    json_decref(*out);
    *out = NULL;
    return st;
}

/* Returns the members of the configuration; takes ownership of `tables`. NULL: out of memory. */
static json_t *config_json(const evaluation *ev, json_t *tables)
{
    const evaluation_options *c = ev->o;
    const prompter *p = &ev->prompter;
    const char *chat = tokenizer_chat_template(ev->g.tok);
    const bool args = json_object_size(ev->template_args) > 0;
    json_t *config = json_pack("{s:O, s:o, s:o, s:o, s:I, s:s, s:s?, s:b}", "data", ev->files, "tables", tables,
                               "limit", c->limit ? json_integer(c->limit) : json_null(), "sample_seed",
                               c->sample_seed.given ? json_integer((json_int_t)c->sample_seed.value) : json_null(),
                               "max_length", (json_int_t)p->max_length, "wrap", prompt_wrap_name(p->wrap), "template",
                               p->wrap == WRAP_RAW ? NULL : chat, "clean_up", p->clean);
    if (args && json_object_set(config, "template_args", ev->template_args) != 0) {
        json_decref(config);
        config = NULL;
    }
    return results_merge(config, ev->kind->config(ev->own));
}

/* Checks the lineup against the longest prompt. Before the first pass, also loads the weights and opens the results. */
static status begin(evaluation *ev, bool first, err *e)
{
    json_t *config, *tables;
    if (first || !ev->passes) TRY(lineup_check(&ev->rows, &ev->g, ev->limit, e));
    if (!first) return ST_OK;
    if (ev->o->prefix.disk) TRY(lineup_check_reuse(&ev->rows, &ev->o->run.engine, e));
    TRY(engine_load(&ev->g, (size_t)ev->o->jobs, e));
    TRY(cli_open_prefix(&ev->cache, &ev->o->prefix, ev->o->run.attn.ctx, &ev->g, e));
    if (ev->kind->own_samples) {
        TRY(tables_json(&tables, ev, e));
        config = config_json(ev, tables);
    } else {
        config = ev->kind->config(ev->own);
    }
    return provenance_open(&ev->out, &ev->o->run.out, ev->o->run.seed.value, &ev->g, &ev->rows, config, keys_of(ev), e);
}

/* ---- answers ---- */

static bool skip(void *ctx, size_t row, size_t i)
{
    const evaluation *ev = ctx;
    size_t of = ev->items[i].row;
    return (of != EVALUATION_ALL_ROWS && of != row) || ev->rows.why[row].code != ST_OK ||
           ev->known[row * ev->n_items + i];
}

static bool on_progress(void *ctx, double part)
{
    const evaluation *ev = ctx;
    progress_set(ev->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

json_t *evaluation_costs_of(const evaluation *ev, const evaluation_item *x, const batch_reply *a)
{
    const prompt_tokens *t = &x->tokens;
    double attended = batch_attended(&a->stats, ev->g.m->config.n_kv);
    return json_pack("{s:I, s:I, s:b, s:I, s:b, s:f, s:I, s:I, s:I, s:o}", "prompt_tokens",
                     (json_int_t)(t->head.n + t->tail.n), "decoded_prompt_tokens", (json_int_t)t->tail.n, "truncated",
                     t->truncated, "new_tokens", (json_int_t)a->n, "stopped", a->stopped, "seconds",
                     (double)a->time_ns * 1e-9, "kv_bytes", (json_int_t)a->held.kv, "kv_bytes_peak",
                     (json_int_t)a->peak.kv, "index_bytes", (json_int_t)a->held.index, "attended",
                     attended < 0 ? json_null() : json_real(attended));
}

/* Returns the number of bytes before the first stop text; n: no stop text. */
static size_t before_stop(const char *const *stop, const char *text, size_t n)
{
    for (; stop && *stop; stop++) {
        const char *hit = memmem(text, n, *stop, strlen(*stop));
        if (hit) n = (size_t)(hit - text);
    }
    return n;
}

/* Sets *end if the last token completes a stop text, which is searched in the text of the last few tokens. */
static status on_token(void *ctx, size_t i, const int32_t *ids, size_t n, bool *end, err *e)
{
    const evaluation *ev = ctx;
    const char *const *stop = ev->items[i].stop_text;
    size_t most = 0, bytes;
    char *text;
    for (const char *const *s = stop; s && *s; s++)
        if (strlen(*s) + 1 > most) most = strlen(*s) + 1;
    if (most == 0) return ST_OK;
    if (most > n) most = n;
    TRY(tokenizer_decode(ev->g.tok, ids + n - most, most, false, &text, &bytes, e));
    *end = before_stop(stop, text, bytes) < bytes;
    mem_free(text);
    return ST_OK;
}

static status on_answer(void *ctx, size_t row, size_t i, const batch_reply *a, err *e)
{
    evaluation *ev = ctx;
    const evaluation_item *x = &ev->items[i];
    char *text;
    size_t n;
    json_t *own = NULL;
    TRY(tokenizer_decode(ev->g.tok, a->ids, a->n, false, &text, &n, e));
    if (ev->prompter.clean) tokenizer_clean_up(text, &n);
    n = before_stop(x->stop_text, text, n);
    status st = ev->kind->judge(ev->own, ev, i, (utf8_text){text, n}, &own, e);
    mem_free(text);
    if (st != ST_OK) return st;
    json_t *costs = (ev->kind->costs ? ev->kind->costs : evaluation_costs_of)(ev, x, a);
    json_t *line = results_merge(results_merge(identity_json(ev, row, x), own), costs);
    if (a->draft) line = results_merge(line, json_pack("{s:o}", "draft", drafter_json(a->draft, ev->g.draft)));
    st = results_add(ev->out, line, e);
    if (st == ST_OK) ev->known[row * ev->n_items + i] = true;
    return st;
}

uint64_t evaluation_random(uint64_t seed, int64_t index, uint64_t answer)
{
    rng r = {seed};
    r.state = rng_next(&r) ^ (uint64_t)index;
    r.state = rng_next(&r) ^ answer;
    return rng_next(&r);
}

static status find_known(evaluation *ev, err *e)
{
    mem_free(ev->known);
    ev->known = NULL;
    TRY(MEM_NEW(&ev->known, ev->rows.n * ev->n_items, e));
    for (size_t row = 0; row < ev->rows.n; row++)
        for (size_t i = 0; i < ev->n_items; i++)
            ev->known[row * ev->n_items + i] = result_of(ev, row, &ev->items[i]) != NULL;
    return ST_OK;
}

static status ask(evaluation *ev, err *e)
{
    const evaluation_options *c = ev->o;
    const draft_options drafts = engine_drafts(&c->run.engine);
    batch_job job = {.d = ev->g.dec,
                     .prompts = ev->prompts,
                     .n_prompts = ev->n_items,
                     .limit = ev->limit,
                     .max_shared = (size_t)decoder_chunk(ev->g.dec),
                     .jobs = (size_t)c->jobs,
                     .share = true,
                     .drafts = &drafts,
                     .cache = ev->cache,
                     .sampling = ev->sampling,
                     .ends = on_token,
                     .skip = skip,
                     .done = on_answer,
                     .progress = on_progress,
                     .ctx = ev};
    TRY(find_known(ev, e));
    const char *what = ev->label[0] ? ev->label : ev->kind->name;
    ev->bar = progress_start(what);
    status st = batch_execute(&job, ev->rows.run, ev->rows.n, e);
    progress_end(ev->bar);
    ev->bar = NULL;
    if (st == ST_OK) lineup_note_shared(what, &job);
    if (st != ST_OK) provenance_note_rest(ev->out, &c->run.out, "from there");
    return st;
}

/* ---- the run ---- */

static status run_passes(evaluation *ev, err *e)
{
    const evaluation_kind *k = ev->kind;
    TRY(start(ev, e));
    TRY(open_model(ev, e));
    for (size_t i = 0;; i++) {
        size_t n = k->pass || i > 0 ? 0 : ev->n_samples;
        if (k->pass) TRY(k->pass(ev->own, ev, i, &n, e));
        if (n == 0) break;
        TRY(prepare(ev, n, e));
        TRY(begin(ev, i == 0, e));
        TRY(ask(ev, e));
        if (k->passed) TRY(k->passed(ev->own, ev, e));
    }
    return k->report(ev->own, ev, e);
}

status evaluation_run(const evaluation_kind *kind, const void *options, err *e)
{
    evaluation ev = {.o = options, .options = options, .kind = kind};
    TRY(mem_alloc(&ev.own, kind->size, 1, kind->name, e));
    memset(ev.own, 0, kind->size);
    status st = run_passes(&ev, e);
    st = provenance_end(ev.out, &ev.o->run.out, &ev.g, st, e);
    cli_clear_interrupt();
    results_close(ev.out);
    prefix_cache_close(ev.cache);
    free_items(&ev);
    if (kind->free) kind->free(ev.own);
    samples_free(&ev.samples);
    metrics_destroy(ev.m);
    mem_free(ev.own);
    mem_free(ev.known);
    mem_free(ev.own_path);
    token_list_free(&ev.eos);
    lineup_free(&ev.rows);
    engine_close(&ev.g);
    json_decref(ev.template_args);
    return st;
}
