/* SPDX-License-Identifier: MIT */
/* `eval divergence`: KL divergence of a strategy's next-token distributions from those of full attention over float32
 * rows, along a given text. Source: doc/evals.md 22. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "eval/fidelity/fidelity.h"
#include "eval/measure.h"
#include "eval/perplexity.h"
#include "eval/stats.h"
#include "generate/batch.h"
#include "kernels/base/mem.h"
#include "model/sampler.h"

typedef struct {
    run_options run;
    const char *file;
    int n, trials;
} divergence_options;

typedef struct {
    measure m;
    fidelity_text text;
    const divergence_options *o;
} divergence_run;

static size_t n_trials(const divergence_run *r)
{
    return (size_t)r->o->trials;
}

/* Returns the result of a row for a piece, counted by length, then trial. */
static json_t *identity_of(const divergence_run *r, size_t piece)
{
    return json_pack("{s:I, s:I}", "ctx", (json_int_t)r->text.ctx[piece / n_trials(r)], "trial",
                     (json_int_t)(piece % n_trials(r)));
}

static const json_t *result_of(const divergence_run *r, size_t row, size_t piece)
{
    return measure_result(&r->m, row, identity_of(r, piece));
}

/* ---- options and text ---- */

static status parse(void *own, err *e)
{
    divergence_run *r = own;
    fidelity_text *t = &r->text;
    TRY(cli_parse_sizes(&t->ctx, &t->n_ctx, r->m.o->attn.ctx, "2048", "--ctx", e));
    for (size_t i = 0; i < t->n_ctx; i++)
        if (t->ctx[i] < r->o->n + 2)
            return err_set(e, ST_USAGE, "--ctx %lld: must exceed -n %d by at least 2 tokens", (long long)t->ctx[i],
                           r->o->n);
    return ST_OK;
}

static int64_t longest(const divergence_run *r)
{
    int64_t most = 0;
    for (size_t i = 0; i < r->text.n_ctx; i++)
        if (r->text.ctx[i] > most) most = r->text.ctx[i];
    return most;
}

static status ready(void *own, err *e)
{
    divergence_run *r = own;
    TRY(fidelity_text_read(&r->text, &r->m.g, r->o->file, 0, e));
    return lineup_check(&r->m.rows, &r->m.g, longest(r), e);
}

/* ---- a piece ---- */

/* A piece of the text, and the logits of full attention after each of its last n tokens. */
typedef struct {
    divergence_run *r;
    size_t piece, n, vocab;
    token_list ids;
    float *full;   /* [n, vocab] */
    float *logits; /* [n_rows, vocab] of a step */
    int32_t *feed; /* [n_rows] the step's token for each session */
} measured;

/* Rows that run together. */
typedef struct {
    size_t n;
    const size_t *row;
    session **s;  /* [n] */
    double *kl;   /* [n, steps] */
    size_t *same; /* [n] steps with the same most likely token */
} group;

static bool on_prompt(void *ctx, size_t fed)
{
    (void)ctx;
    (void)fed;
    return !cli_interrupted();
}

static void ignore_nll(void *ctx, size_t i, size_t at, double nll)
{
    (void)ctx;
    (void)i;
    (void)at;
    (void)nll;
}

/* Feeds the prompt: all but the last n tokens of the piece. */
static status feed_prompt(const measured *x, session *const *s, size_t n, err *e)
{
    const perplexity_sink sink = {.take = ignore_nll, .progress = on_prompt};
    size_t n_prompt = x->ids.n - x->n;
    return perplexity_pass(s, n, x->ids.ids, n_prompt, n_prompt, n_prompt + 1, &sink, e);
}

/* Feeds each session token i of the last n. */
static status feed_step(measured *x, session *const *s, size_t n, size_t i, float *logits, err *e)
{
    for (size_t k = 0; k < n; k++) x->feed[k] = x->ids.ids[x->ids.n - x->n + i];
    TRY(session_decode(s, n, x->feed, logits, e));
    return cli_interrupted() ? err_set(e, ST_INTERRUPTED, "interrupted") : ST_OK;
}

/* Computes the logits of full attention over float32 rows. */
static status run_full(measured *x, err *e)
{
    attn_spec full;
    session *s = NULL;
    const attn_options o = {.kv = kv_plain(DT_F32)};
    TRY(attn_spec_parse(&full, "full", &o, e));
    TRY(session_create(&s, x->r->m.g.dec, &full, session_of((int64_t)x->ids.n), e));
    status st = feed_prompt(x, &s, 1, e);
    for (size_t i = 0; i < x->n && st == ST_OK; i++) st = feed_step(x, &s, 1, i, x->full + i * x->vocab, e);
    session_free(s);
    return st;
}

static void compare_step(const measured *x, const group *g, size_t i)
{
    const float *p = x->full + i * x->vocab;
    for (size_t k = 0; k < g->n; k++) {
        const float *q = x->logits + k * x->vocab;
        g->kl[k * x->n + i] = fidelity_divergence(p, q, x->vocab);
        g->same[k] += logits_argmax(p, x->vocab) == logits_argmax(q, x->vocab);
    }
}

static status run_group(measured *x, group *g, err *e)
{
    divergence_run *r = x->r;
    TRY(MEM_NEW(&g->s, g->n, e));
    TRY(MEM_NEW(&g->kl, g->n * x->n, e));
    TRY(MEM_NEW(&g->same, g->n, e));
    for (size_t k = 0; k < g->n; k++)
        TRY(session_create(&g->s[k], r->m.g.dec, &r->m.rows.run[g->row[k]].spec, session_of((int64_t)x->ids.n), e));
    TRY(feed_prompt(x, g->s, g->n, e));
    for (size_t i = 0; i < x->n; i++) {
        TRY(feed_step(x, g->s, g->n, i, x->logits, e));
        compare_step(x, g, i);
        progress_set(r->m.bar, (int64_t)(x->piece * x->n + i + 1), (int64_t)(r->text.n_ctx * n_trials(r) * x->n));
    }
    for (size_t k = 0; k < g->n; k++) {
        attn_stats a = attn_seq_stats(session_attn(g->s[k]));
        double steps = (double)a.steps * r->m.g.m->config.n_kv;
        json_t *own = json_pack("{s:o, s:I, s:f, s:f}", "kl", results_reals(g->kl + k * x->n, x->n), "same",
                                (json_int_t)g->same[k], "attended", a.attended / steps, "visible", a.visible / steps);
        TRY(measure_add(&r->m, g->row[k], results_merge(identity_of(r, x->piece), own), e));
    }
    return ST_OK;
}

static void group_free(group *g)
{
    for (size_t k = 0; g->s && k < g->n; k++) session_free(g->s[k]);
    mem_free(g->s);
    mem_free(g->kl);
    mem_free(g->same);
}

/* Lists the rows without a result for a piece, if `row` is not NULL. Returns their number. */
static size_t list_wanted(const divergence_run *r, size_t piece, size_t *row)
{
    size_t n = 0;
    for (size_t i = 0; i < r->m.rows.n; i++) {
        if (r->m.rows.why[i].code != ST_OK || result_of(r, i, piece)) continue;
        if (row) row[n] = i;
        n++;
    }
    return n;
}

/* Runs the rows in groups, each as large as memory allows. */
static status run_groups(measured *x, size_t *row, err *e)
{
    divergence_run *r = x->r;
    const batch_fitting fitting = {.d = r->m.g.dec,
                                   .options = {.chunk = (size_t)r->m.o->engine.device.chunk, .max_batch = r->m.rows.n},
                                   .limit = (int64_t)x->ids.n,
                                   .sessions = 1};
    size_t n = list_wanted(r, x->piece, row);
    for (size_t from = 0; from < n;) {
        group g = {.row = row + from};
        TRY(batch_fit(&g.n, &fitting, r->m.rows.run, g.row, n - from, e));
        status st = run_group(x, &g, e);
        group_free(&g);
        TRY(st);
        from += g.n;
    }
    return ST_OK;
}

static status run_piece(void *own, size_t piece, err *e)
{
    divergence_run *r = own;
    int64_t ctx = r->text.ctx[piece / n_trials(r)];
    measured x = {.r = r, .piece = piece, .n = (size_t)r->o->n, .vocab = (size_t)r->m.g.m->config.vocab};
    size_t *row = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&row, r->m.rows.n, e));
    TRY_GOTO(MEM_NEW(&x.full, x.n * x.vocab, e));
    TRY_GOTO(MEM_NEW(&x.logits, r->m.rows.n * x.vocab, e));
    TRY_GOTO(MEM_NEW(&x.feed, r->m.rows.n, e));
    TRY_GOTO(fidelity_piece(&x.ids, &r->text, r->m.g.tok, (size_t)ctx, r->m.o->seed.value, ctx,
                            (int)(piece % n_trials(r)), e));
    TRY_GOTO(run_full(&x, e));
    TRY_GOTO(run_groups(&x, row, e));
done:
    token_list_free(&x.ids);
    mem_free(row);
    mem_free(x.full);
    mem_free(x.logits);
    mem_free(x.feed);
    return st;
}

static size_t passes(const void *own)
{
    const divergence_run *r = own;
    return r->text.n_ctx * n_trials(r);
}

static bool lacks(const void *own, size_t piece)
{
    return list_wanted(own, piece, NULL) > 0;
}

/* ---- figures ---- */

/* Results of a row over the pieces of a length; NAN: none. */
typedef struct {
    int64_t n, same;
    double mean, error; /* of the KL divergence; its standard error */
    double median, p99, attended, visible;
} figures;

static void add_values(figures *f, double *kl, const json_t *line)
{
    const json_t *list = json_object_get(line, "kl");
    size_t i;
    json_t *x;
    json_array_foreach(list, i, x) kl[f->n++] = json_number_value(x);
    f->same += (int64_t)results_number(line, "same");
    f->attended += results_number(line, "attended");
    f->visible += results_number(line, "visible");
}

static void set_moments(figures *f, const double *kl)
{
    double n = (double)f->n, sum = 0, squares = 0;
    for (int64_t i = 0; i < f->n; i++) sum += kl[i];
    f->mean = sum / n;
    for (int64_t i = 0; i < f->n; i++) squares += (kl[i] - f->mean) * (kl[i] - f->mean);
    f->error = f->n > 1 ? sqrt(squares / (n - 1) / n) : (double)NAN;
}

/* Computes the figures of a row at a length. kl: room for the values of all trials. */
static figures figures_of(const divergence_run *r, size_t row, size_t length, double *kl)
{
    figures f = {0};
    size_t pieces = 0;
    for (size_t t = 0; t < n_trials(r); t++) {
        const json_t *line = result_of(r, row, length * n_trials(r) + t);
        if (line) add_values(&f, kl, line);
        pieces += line != NULL;
    }
    set_moments(&f, kl);
    f.median = f.n ? stats_median(kl, (size_t)f.n) : (double)NAN;
    f.p99 = f.n ? stats_quantile(kl, (size_t)f.n, 0.99) : (double)NAN;
    f.attended /= (double)pieces;
    f.visible /= (double)pieces;
    return f;
}

/* ---- the table ---- */

static status print_head(void *own, err *e)
{
    const divergence_run *r = own;
    paragraph("divergence: KL divergence from full attention over f32 rows after each of the last %d tokens of %d "
              "pieces, seed %llu",
              r->o->n, r->o->trials, (unsigned long long)r->m.o->seed.value);
    return lineup_print_terms(&r->m.rows, e);
}

static void add_columns(const divergence_run *r, table *t)
{
    lineup_columns(&r->m.rows, t);
    table_column(t, 0, 0, "tokens");
    table_column(t, TABLE_DETAIL, 5, "n");
    table_column(t, 0, 0, "attended");
    table_column(t, 0, 0, "KL");
    table_column(t, 0, 0, "error");
    table_column(t, 0, 0, "median");
    table_column(t, 0, 0, "99 %");
    table_column(t, 0, 0, "top 1");
    table_column(t, TABLE_DETAIL | TABLE_LEFT, 13, "95 %");
}

static void add_line(const divergence_run *r, table *t, size_t row, size_t length, double *kl)
{
    figures f = figures_of(r, row, length, kl);
    double low, high;
    stats_wilson((double)f.same, f.n, &low, &high);
    lineup_cells(&r->m.rows.run[row].spec, t);
    table_cell(t, "%lld", (long long)r->text.ctx[length]);
    table_cell(t, "%lld", (long long)f.n);
    table_cell(t, "%.1f %%", 100 * f.attended / f.visible);
    table_cell(t, "%.2g", f.mean);
    table_cell(t, "%.1g", f.error);
    table_cell(t, "%.2g", f.median);
    table_cell(t, "%.2g", f.p99);
    table_number(t, (double)f.same / (double)f.n, 4);
    table_cell(t, "%.4f-%.4f", low, high);
}

/* Returns room for the values of one row and length. */
static status new_values(double **out, const divergence_run *r, err *e)
{
    return MEM_NEW(out, n_trials(r) * (size_t)r->o->n, e);
}

static status print_all(const void *own, err *e)
{
    const divergence_run *r = own;
    table t = {0};
    double *kl;
    TRY(new_values(&kl, r, e));
    add_columns(r, &t);
    for (size_t row = 0; row < r->m.rows.n; row++)
        for (size_t i = 0; i < r->text.n_ctx && r->m.rows.why[row].code == ST_OK; i++) add_line(r, &t, row, i, kl);
    mem_free(kl);
    TRY(table_print(&t, e));
    return lineup_print_why(&r->m.rows, e);
}

/* ---- reports ---- */

static json_t *figures_json(const divergence_run *r, size_t row, size_t length, double *kl)
{
    figures f = figures_of(r, row, length, kl);
    char kv[128];
    double low, high;
    stats_wilson((double)f.same, f.n, &low, &high);
    kv_format_text(&r->m.rows.run[row].spec.kv, kv, sizeof kv);
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:[f, f], s:o, s:o}", "kv", kv, "ctx",
                     (json_int_t)r->text.ctx[length], "n", (json_int_t)f.n, "kl", results_real(f.mean), "kl_error",
                     results_real(f.error), "kl_median", results_real(f.median), "kl_p99", results_real(f.p99), "top1",
                     results_real((double)f.same / (double)f.n), "ci95", low, high, "attended",
                     results_real(f.attended), "visible", results_real(f.visible));
}

static json_t *results_json(const void *own)
{
    const divergence_run *r = own;
    json_t *list = json_array();
    double *kl;
    if (new_values(&kl, r, NULL) != ST_OK) return NULL;
    for (size_t i = 0; i < r->m.rows.n * r->text.n_ctx; i++) {
        size_t row = i / r->text.n_ctx;
        list = results_append(list, measure_row_json(&r->m, row, figures_json(r, row, i % r->text.n_ctx, kl)));
    }
    mem_free(kl);
    return list;
}

static json_t *config(const void *own)
{
    const divergence_run *r = own;
    return json_pack("{s:o, s:i, s:i, s:s}", "ctx", report_sizes(r->text.ctx, r->text.n_ctx), "trials", r->o->trials,
                     "n", r->o->n, "text_sha256", r->text.sha256);
}

static json_t *json_config(const void *own)
{
    const run_options *o = ((const divergence_run *)own)->m.o;
    return json_pack("{s:s?, s:I}", "attn", o->attn.names, "seed", (json_int_t)o->seed.value);
}

/* ---- the command ---- */

static const char *const identity[] = {"attn", "budget", "ctx", "trial", NULL};

static const measure_kind divergence_kind = {.attn = "full,streaming,quest,fier",
                                             .budget = "256",
                                             .identity = identity,
                                             .resume = "from there",
                                             .together = true,
                                             .passes = passes,
                                             .parse = parse,
                                             .ready = ready,
                                             .config = config,
                                             .json_config = json_config,
                                             .head = print_head,
                                             .lacks = lacks,
                                             .run = run_piece,
                                             .end = print_all,
                                             .results = results_json};

static status cmd_divergence(void *options, err *e)
{
    const divergence_options *o = options;
    divergence_run r = {.m.o = &o->run, .o = o};
    status st = measure_run(&r.m, &divergence_kind, e);
    measure_close(&r.m);
    fidelity_text_free(&r.text);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'f', .arg = "FILE", AT(divergence_options, file), .help = "text file (default: the book of eval pg19)"},
    {.letter = 'n',
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 20,
     .def = 64,
     AT(divergence_options, n),
     .help = "compared tokens at the end of each piece (default 64)"},
    OPTION("trials", "N", WHOLE(1, 100000, 4), AT(divergence_options, trials),
           "pieces of the text per length (default 4)"),
    {0}};

const command divergence_command = {.name = "eval divergence",
                                    .measure = "divergence",
                                    .args = "",
                                    .summary = "KL divergence of the next token's distribution from full attention's",
                                    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS,
                                    .own = rows,
                                    .size = sizeof(divergence_options),
                                    .alone = true,
                                    .run = cmd_divergence};
