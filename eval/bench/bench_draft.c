/* SPDX-License-Identifier: MIT */
/* `bench --draft`: compares decoding with drafts and single steps, if a given fraction of the drafts is right. Runs the
 * same code as generate --draft, except for the choice of tokens. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/bench/bench_run.h"
#include "generate/drafter.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

/* TOKENS: tokens of a sample. PERIOD: the text repeats after this many ids, so that n-gram lookup finds drafts. */
enum { TOKENS = 64, PERIOD = 64 };

typedef struct {
    bench_base *base;
    attn_spec verifier;
} drafts;

/* One context length. */
typedef struct {
    bench_case k;
    drafter *by;
    token_list all; /* ids of the context and of the tokens after it */
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
    TRY(run_drafted(x, &ns, e)); /* warm-up; also measures the cost of steps for the drafter */
    drafter_begin(x->by);
    return bench_sample(&x->samples, t, e);
}

/* ---- results ---- */

/* Returns the type of the draft weights; "": the model's own weights. */
static const char *draft_weights(const drafts *d)
{
    return d->base->g.draft ? dtype_name(d->base->g.draft->type) : "";
}

static status print_head(const drafts *d, err *e)
{
    static const struct {
        const char *title;
        unsigned flags;
        size_t width;
    } columns[] = {{"ctx", 0, 6},
                   {"kv", TABLE_LEFT, 4},
                   {"single/s", 0, 9},
                   {"spread", 0, 7},
                   {"drafted/s", 0, 9},
                   {"spread", 0, 7},
                   {"times", 0, 0},
                   {"length", 0, 0},
                   {"drafted", TABLE_DETAIL, 0},
                   {"draft", TABLE_DETAIL2, 0},
                   {"verify", TABLE_DETAIL2, 0},
                   {"decode", TABLE_LEFT | TABLE_DETAIL2, 0},
                   {"drafts", TABLE_LEFT | TABLE_DETAIL2, 0}};
    const model *m = d->base->g.m;
    paragraph("%s, %s, %.1f M parameters; drafts: %s; a fraction of %.4g of the drafted tokens is treated as accepted",
              m->name, dtype_name(m->type), (double)m->config.n_params / 1e6, d->base->o->run.engine.draft,
              d->base->o->accept);
    TRY(paragraph_end(2, e));
    paragraph(
        "a verification of `drafted` tokens yields `length` tokens, including its own%s%s; `draft`, `verify`: mean "
        "time of a drafted token and of a verification, in single steps",
        d->base->g.draft ? "; drafts run with weights " : "", draft_weights(d));
    TRY(paragraph_end(2, e));
    TRY(out_printf(e, "\n"));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        table_column(&d->base->rows, columns[i].flags, columns[i].width, columns[i].title);
    return table_flush(&d->base->rows, e);
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
    if (o) json_object_set_new(o, "decode", json_string(draft_kernel(&n)));
    if (o) json_object_set_new(o, "draft_weights", d->base->g.draft ? json_string(draft_weights(d)) : json_null());
    if (json_array_append_new(d->base->list, o) != 0) return err_set(e, ST_NOMEM, "out of memory for the report");
    table *t = &d->base->rows;
    table_cell(t, "%lld", (long long)ctx);
    table_cell(t, "%s", kv_format_name(&d->verifier.kv));
    table_cell(t, "%.1f ", single->speed);
    table_cell(t, "%.1f %%", 100 * single->spread);
    table_cell(t, "%.1f%c", m.speed, x->samples.enough ? ' ' : '?');
    table_cell(t, "%.1f %%", 100 * m.spread);
    table_number(t, times, 2);
    table_number(t, length, 2);
    table_number(t, proposed, 2);
    table_number(t, draft, 2);
    table_number(t, verify, 2);
    table_cell(t, "%s", draft_kernel(&n));
    table_cell(t, "%s", drafter_spec(x->by));
    return table_flush(t, e);
}

/* Measures one context length. The progress bar must end before a line of the table is printed. */
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
    if (!(o->accept >= 0 && o->accept <= 1)) return err_set(e, ST_USAGE, "--accept %g: must be in [0, 1]", o->accept);
    if (o->phase || o->batch)
        return err_set(e, ST_USAGE,
                       "--draft: times decode steps of one sequence; --phase and --batch are not supported");
    if (o->run.engine.model.dir && o->shape) return err_set(e, ST_USAGE, "-m and --shape: cannot be combined");
    TRY(cli_parse_sizes(&d->base->ctx, &d->base->n_ctx, o->run.attn.ctx, "4k", "--ctx", e));
    TRY(attn_args_parse(&d->verifier, &o->run.attn, o->run.out.command, e));
    TRY(drafter_create(&unused, &wanted, &d->verifier, e)); /* reports an invalid option before anything is opened */
    drafter_free(unused);
    cli_catch_interrupt();
    TRY(bench_open_model(d->base, o->shape, o->run.engine.model.weights, 1, e));
    for (size_t i = 0; i < d->base->n_ctx; i++) cli_warn_ctx(d->base->g.m, d->base->ctx[i]);
    TRY(print_head(d, e));
    for (size_t i = 0; i < d->base->n_ctx; i++) TRY(run_context(d, d->base->ctx[i], e));
    TRY(table_print(&d->base->rows, e));
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
    return report_check_end(&b->o->run.out, run_all(&d, e), e);
}
