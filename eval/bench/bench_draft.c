/* SPDX-License-Identifier: MIT */
/* `bench --draft`: drafted tokens a second against single steps, where a given share of the drafts is right. It runs
 * what --draft of generate runs, but for the choice of a token. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/bench/bench_run.h"
#include "generate/drafter.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

/* TOKENS: of a sample. The text repeats itself after PERIOD ids, so that a look-up finds some. */
enum { TOKENS = 64, PERIOD = 64 };

typedef struct {
    bench_base *base;
    attn_spec verifier;
} drafts;

/* One context. */
typedef struct {
    bench_case k;
    drafter *by;
    token_list all; /* ids of the context, and those behind it */
    bench_samples samples;
} drafted;

/* ---- single steps ---- */

static status time_single(drafts *d, int64_t ctx, sample_summary *out, err *e)
{
    bench_case k = bench_case_of(d->base, &d->verifier, ctx);
    bench_result r;
    status st = bench_open(&k, false, e);
    if (st == ST_OK) st = bench_fill(&k, 1, &r, e);
    if (st == ST_OK) st = bench_decode(&k, 1, &r, e);
    if (st == ST_OK) *out = samples_summary(&r.samples, (double)r.tokens, 0);
    bench_close(&k);
    return st;
}

/* ---- drafts ---- */

static status prepare(void *ctx, err *e)
{
    drafted *x = ctx;
    x->all.n = x->k.n_fill + 1;
    return drafter_drop(x->by, x->k.s[0], &x->all, e);
}

static status run_drafted(void *ctx, int64_t *ns, err *e)
{
    drafted *x = ctx;
    int64_t t0 = clock_ns();
    for (size_t i = 0; i < TOKENS; i++) {
        int32_t id;
        TRY(drafter_next(x->by, x->k.s[0], NULL, &x->all, SESSION_VERIFY_ROWS, &id, e));
        TRY(token_list_push(&x->all, id, e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    *ns = clock_ns() - t0;
    return ST_OK;
}

static status time_drafted(drafts *d, drafted *x, err *e)
{
    bench_timing *t = &x->k.timing;
    int64_t ns;
    TRY(bench_open(&x->k, false, e));
    bench_result unused;
    TRY(bench_fill(&x->k, 1, &unused, e));
    for (size_t i = 0; i <= x->k.n_fill; i++) TRY(token_list_push(&x->all, (int32_t)(i % PERIOD), e));
    drafter_force(x->by, d->base->o->accept, PERIOD, d->base->o->run.seed.value);
    t->prepare = prepare;
    t->run = run_drafted;
    t->ctx = x;
    TRY(prepare(x, e));
    TRY(run_drafted(x, &ns, e)); /* what steps cost is learned */
    drafter_begin(x->by);
    return bench_sample(&x->samples, t, e);
}

/* ---- results ---- */

/* "": the model's own. */
static const char *draft_weights(const drafts *d)
{
    return d->base->g.draft ? dtype_name(d->base->g.draft->type) : "";
}

static status print_head(const drafts *d, err *e)
{
    const model *m = d->base->g.m;
    return out_printf(
        e,
        "%s, %s, %.1f M parameters; of the drafted tokens a share of %.4g is right, by decree\n"
        "a verification yields `length` tokens, its own included, of `drafted` ones%s%s; `draft`, `verify`: "
        "mean time of a\ndrafted token and of a verification, in single steps\n\n"
        "%8s %-6s %11s %8s %11s %8s %7s %8s %7s %7s %7s  %s\n",
        m->name, dtype_name(m->type), (double)m->config.n_params / 1e6, d->base->o->accept,
        d->base->g.draft ? "; drafts run with weights " : "", draft_weights(d), "ctx", "kv", "single/s ", "spread",
        "drafted/s ", "spread", "times", "drafted", "length", "draft", "verify", "drafts");
}

static status add_line(drafts *d, int64_t ctx, const sample_summary *single, const drafted *x, err *e)
{
    const sample_summary m = samples_summary(&x->samples, TOKENS, 0);
    draft_counts n = drafter_counts(x->by);
    double rounds = n.verifications > 0 ? (double)n.verifications : 1, times = m.speed / single->speed;
    double proposed = (double)n.proposed / rounds, length = (double)n.tokens / rounds, step_ns = 1e9 / single->speed;
    double draft = n.proposed > 0 ? (double)n.draft_ns / (double)n.proposed / step_ns : 0;
    double verify = (double)n.verify_ns / rounds / step_ns;
    json_t *o =
        json_pack("{s:o, s:I, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "model",
                  report_model(d->base->g.m->name), "ctx", (json_int_t)ctx, "attn", d->verifier.text, "draft",
                  drafter_spec(x->by), "weights", dtype_name(d->base->g.m->type), "kv", kv_format_name(&d->verifier.kv),
                  "accept", d->base->o->accept, "single_tokens_per_s", single->speed, "single_spread", single->spread,
                  "tokens_per_s", m.speed, "spread", m.spread, "times", times, "drafted", proposed, "accepted_length",
                  length, "draft_steps", draft, "verify_steps", verify, "enough", x->samples.enough);
    if (o) json_object_set_new(o, "draft_weights", d->base->g.draft ? json_string(draft_weights(d)) : json_null());
    if (json_array_append_new(d->base->list, o) != 0) return err_set(e, ST_NOMEM, "out of memory for the report");
    TRY(out_printf(e, "%8lld %-6s %10.1f  %6.1f %% %10.1f%c %6.1f %% %7.2f %8.2f %7.2f %7.2f %7.2f  %s\n",
                   (long long)ctx, kv_format_name(&d->verifier.kv), single->speed, 100 * single->spread, m.speed,
                   x->samples.enough ? ' ' : '?', 100 * m.spread, times, proposed, length, draft, verify,
                   drafter_spec(x->by)));
    return out_flush(e);
}

/* A bar would run into the table's lines: it lives for one context. */
static status run_context(drafts *d, int64_t ctx, err *e)
{
    drafted x = {.k = bench_case_of(d->base, &d->verifier, ctx)};
    const draft_options options = engine_drafts(&d->base->o->run.engine);
    sample_summary single;
    TRY(drafter_create(&x.by, &options, &d->verifier, e));
    x.k.draft = drafter_session(x.by, 1).draft;
    d->base->bar = progress_start("bench, drafts");
    status st = time_single(d, ctx, &single, e);
    if (st == ST_OK) st = time_drafted(d, &x, e);
    progress_end(d->base->bar);
    d->base->bar = NULL;
    if (st == ST_OK) st = add_line(d, ctx, &single, &x, e);
    bench_close(&x.k);
    token_list_free(&x.all);
    drafter_free(x.by);
    return st;
}

/* ---- the command ---- */

static status run_all(drafts *d, err *e)
{
    const bench_options *o = d->base->o;
    const draft_options wanted = engine_drafts(&o->run.engine);
    drafter *unused;
    if (!(o->accept >= 0 && o->accept <= 1))
        return err_set(e, ST_USAGE, "--accept %g: a share from 0 to 1 is expected", o->accept);
    if (o->phase || o->batch)
        return err_set(e, ST_USAGE, "--draft: times decode steps of one sequence, without --phase and --batch");
    if (o->run.engine.model.dir && o->shape) return err_set(e, ST_USAGE, "-m and --shape: one of them, not both");
    TRY(cli_parse_sizes(&d->base->ctx, &d->base->n_ctx, o->run.attn.ctx, "4k", "--ctx", e));
    TRY(attn_args_parse(&d->verifier, &o->run.attn, o->run.out.command, e));
    TRY(drafter_create(&unused, &wanted, &d->verifier, e)); /* a wrong word shows before anything is opened */
    drafter_free(unused);
    cli_catch_interrupt();
    TRY(bench_open_model(d->base, o->shape, o->run.engine.model.weights, 1, e));
    for (size_t i = 0; i < d->base->n_ctx; i++) cli_warn_ctx(d->base->g.m, d->base->ctx[i]);
    TRY(print_head(d, e));
    for (size_t i = 0; i < d->base->n_ctx; i++) TRY(run_context(d, d->base->ctx[i], e));
    if (!o->run.out.json) return ST_OK;
    json_t *options =
        json_pack("{s:s, s:f, s:o, s:b, s:I}", "draft", o->run.engine.draft, "accept", o->accept, "ctx",
                  report_sizes(d->base->ctx, d->base->n_ctx), "fill", o->fill, "seed", (json_int_t)o->run.seed.value);
    return report_write(&o->run.out, &d->base->g, options, json_incref(d->base->list),
                        json_pack("{s:s}", "cpu", d->base->g.be->about), e);
}

status bench_drafts(bench_base *b, err *e)
{
    drafts d = {.base = b};
    return run_all(&d, e);
}
