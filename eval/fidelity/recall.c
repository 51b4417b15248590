/* SPDX-License-Identifier: MIT */
/* `eval recall`: what strategies select, against exact attention over the same queries and keys. On text the
 * strategies follow one run of full attention: they get its q, k and v, so all see the same ones. On
 * tensors of a file every query sees all keys. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/fidelity/fidelity.h"
#include "eval/fidelity/recall_run.h"
#include "kernels/base/mem.h"

enum { DEFAULT_QUERIES = 64 };

typedef struct {
    run_options run;
    prompt_source prompt;
    const char *tensors;
    const char *dump;
    int queries, prompt_keys;
    bool window, distributions;
} recall_options;

typedef struct {
    fidelity f;
    const recall_options *o;
    int64_t *ctx;
    size_t n_ctx;
    recall_run *runs; /* rows that can run */
    size_t n_runs;
    int width;    /* of their names */
    FILE *dump;   /* NULL: none */
    json_t *list; /* of results */
} recall;

static status list_runs(recall *r, err *e)
{
    const lineup *l = &r->f.rows;
    TRY(MEM_NEW(&r->runs, l->n, e));
    r->width = 8;
    for (size_t i = 0; i < l->n; i++) {
        int width = (int)strlen(l->run[i].spec.text);
        if (l->why[i].code != ST_OK) continue;
        r->runs[r->n_runs++].spec = l->run[i].spec;
        if (width > r->width) r->width = width;
    }
    return ST_OK;
}

static bool on_progress(void *ctx, double part)
{
    const recall *r = ctx;
    progress_set(r->f.bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

/* ---- the tables ---- */

static bool has_codes(const recall_run *run)
{
    return run->spec.kv.kind != KV_EXACT && run->shape.has_v;
}

static bool has_tail(const recall_run *run)
{
    return run->has_tail;
}

static bool has_sample(const recall_run *run)
{
    recall_missed m;
    return recall_missed_mass(run, -1, &m);
}

static bool any(const recall *r, bool (*has)(const recall_run *run))
{
    for (size_t i = 0; i < r->n_runs; i++)
        if (has(&r->runs[i])) return true;
    return false;
}

/* Means of a run, in the order of --json. The table has those with a title, if a run has values for it. */
static const struct {
    recall_sum sum;
    const char *key, *title;
    bool (*has)(const recall_run *run); /* NULL: all runs do */
} means[] = {{SUM_RECALL, "recall", "   recall", NULL},
             {SUM_MASS, "mass", "     mass", NULL},
             {SUM_ERROR, "out_err", "  out err", NULL},
             {SUM_ERROR_L1, "out_err_l1", "   L1 err", NULL},
             {SUM_WITH_TAIL, "tail_out_err", " tail err", has_tail},
             {SUM_EVICTED, "evicted_err", "  evicted", has_codes},
             {SUM_EVICTED_L1, "evicted_err_l1", "       L1", has_codes},
             {SUM_SELECTED, "selected", NULL, NULL}};
/* With --distributions. */
static const struct {
    recall_sum sum;
    const char *key;
} distributions[] = {{SUM_DISTANCE, "attn_l1"},
                     {SUM_DISTANCE_EVICTED, "attn_l1_evicted"},
                     {SUM_COVERING, "exact_tokens"},
                     {SUM_COVERED, "exact_mass"},
                     {SUM_COVERAGE, "coverage"}};
enum { MEANS = sizeof means / sizeof *means, DISTRIBUTIONS = sizeof distributions / sizeof *distributions };

/* Prints the first two columns of a row. */
static status print_name(const recall *r, const recall_run *run, err *e)
{
    char budget[24];
    lineup_budget_text(budget, sizeof budget, &run->spec);
    return out_printf(e, "%-*s %8s", r->width, run->spec.text, budget);
}

static status print_means(const recall *r, int64_t ctx, err *e)
{
    bool shown[MEANS];
    TRY(out_printf(e, "recall: %lld tokens, means over layers that are not dense, heads and queries", (long long)ctx));
    TRY(lineup_print_terms(&r->f.rows, e));
    TRY(out_printf(e, "%-*s %8s %-10s %9s %8s", r->width, "strategy", "budget", "counts", "selected", "queries"));
    for (size_t k = 0; k < MEANS; k++) {
        shown[k] = means[k].title && (!means[k].has || any(r, means[k].has));
        if (shown[k]) TRY(out_printf(e, "%s", means[k].title));
    }
    TRY(out_printf(e, "\n"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        char counts[16];
        attn_budget_counts(&run->spec, counts);
        TRY(print_name(r, run, e));
        TRY(out_printf(e, " %-10s", counts));
        TRY(fidelity_print_number(recall_mean(run, SUM_SELECTED), 9, 1, e));
        TRY(out_printf(e, " %8lld", (long long)run->n_queries));
        for (size_t k = 0; k < MEANS; k++)
            if (shown[k]) TRY(fidelity_print_number(recall_mean(run, means[k].sum), 8, 4, e));
        TRY(out_printf(e, "\n"));
    }
    return ST_OK;
}

/* Prints the spread of the lengths of selections, if they differ. */
static status print_lengths(const recall *r, err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int64_t few = recall_selected_at(run, -1, 0.1), many = recall_selected_at(run, -1, 0.9);
        if (few < many)
            TRY(out_printf(e, "%s: 10 %% of the selections have at most %lld tokens, 90 %% at most %lld\n",
                           run->spec.text, (long long)few, (long long)many));
    }
    return ST_OK;
}

/* Heads and queries, those with a certificate, and the means and maxima of its bound and of the missed mass. */
typedef struct {
    double all, certified, bound, missed, bound_most, missed_most;
} certificates;

/* Returns those of a layer, or (-1) of all that are not dense. */
static certificates certificates_of(const recall_run *run, int layer)
{
    certificates c = {0};
    for (int i = 0; i < run->shape.n_layers * run->shape.n_heads; i++) {
        int l = i / run->shape.n_heads;
        if (run->dense[l] || (layer >= 0 && l != layer)) continue;
        c.all += (double)run->n_queries;
        c.certified += run->sum[SUM_CERTIFIED][i];
        c.bound += run->sum[SUM_BOUND][i];
        c.missed += run->sum[SUM_SURE_MISSED][i];
        c.bound_most = fmax(c.bound_most, run->sum[MAX_BOUND][i]);
        c.missed_most = fmax(c.missed_most, run->sum[MAX_MISSED][i]);
    }
    if (c.certified > 0) c.bound /= c.certified, c.missed /= c.certified;
    return c;
}

static status print_certificates(const recall *r, err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        if (attn_certify_eps(&run->spec) <= 0) continue;
        certificates c = certificates_of(run, -1);
        TRY(out_printf(
            e,
            "%s: %.1f %% certified; their bound is %.4f in the mean, %.4f at most, and they miss %.4f in the "
            "mean, %.4f at most\n",
            run->spec.text, c.all > 0 ? 100 * c.certified / c.all : 0, c.bound, c.bound_most, c.missed, c.missed_most));
    }
    return ST_OK;
}

/* Prints distances of attention from the exact one, and what the exact tokens hold of it. */
static status print_distributions(const recall *r, err *e)
{
    TRY(out_printf(
        e, "\nattention distributions: L1 distance from the exact one of a head (0 to 2) and summed over layers and "
           "heads,\nthe same if what is in codes were not there; exact tokens but 0 and 1, and their mass\n"));
    TRY(out_printf(e, "%-*s %8s %8s %8s %8s %8s %8s %8s %10s\n", r->width, "strategy", "budget", "L1", "sum", "evicted",
                   "sum", "exact", "mass", "a token"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int layers = 0;
        for (int l = 0; l < run->shape.n_layers; l++) layers += !run->dense[l];
        if (layers == 0) continue;
        TRY(print_name(r, run, e));
        for (int k = 0; k < 2; k++) {
            double distance = recall_mean(run, k ? SUM_DISTANCE_EVICTED : SUM_DISTANCE);
            TRY(fidelity_print_number(distance, 8, 4, e));
            TRY(fidelity_print_number(distance * (layers * run->shape.n_heads), 8, 2, e));
        }
        TRY(out_printf(e, " %8.1f %8.4f %10.6f\n", recall_mean(run, SUM_COVERING), recall_mean(run, SUM_COVERED),
                       recall_mean(run, SUM_COVERAGE)));
    }
    return ST_OK;
}

/* Prints the missed mass that samples measured, with its interval, and the exact one. */
static status print_missed(const recall *r, err *e)
{
    if (!any(r, has_sample)) return ST_OK;
    TRY(out_printf(
        e,
        "\nmissed mass, as samples measured it: mean, its 95 %% interval, what exact scores say, and the share "
        "of the\n95 %% intervals of one head and query that hold that\n%-*s %8s %8s %8s %8s %8s %8s\n",
        r->width, "strategy", "budget", "missed", "from", "to", "exact", "hold it"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        recall_missed m;
        if (!recall_missed_mass(run, -1, &m)) continue;
        TRY(print_name(r, run, e));
        TRY(out_printf(e, " %8.4f %8.4f %8.4f %8.4f %8.3f\n", m.mean, m.lo, m.hi, 1 - recall_mean(run, SUM_MASS),
                       m.covers));
    }
    return ST_OK;
}

static status print_runs(const recall *r, int64_t ctx, err *e)
{
    TRY(print_means(r, ctx, e));
    TRY(print_lengths(r, e));
    TRY(print_missed(r, e));
    TRY(print_certificates(r, e));
    TRY(lineup_print_why(&r->f.rows, e));
    TRY(out_printf(e, "\nrecall by layer\n"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        TRY(print_name(r, run, e));
        for (int l = 0; l < run->shape.n_layers; l++)
            TRY(fidelity_print_number(run->dense[l] ? (double)NAN : recall_layer_mean(run, SUM_RECALL, l), 7, 4, e));
        TRY(out_printf(e, "\n"));
    }
    if (r->o->distributions) TRY(print_distributions(r, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* ---- JSON ---- */

static json_t *heads_json(const recall_run *run, recall_sum sum, int layer)
{
    json_t *list = json_array();
    const double *x = run->sum[sum] + layer * run->shape.n_heads;
    int bad = 0;
    for (int h = 0; h < run->shape.n_heads; h++)
        bad |= json_array_append_new(list, json_real(x[h] / (double)run->n_queries));
    return fidelity_json(list, bad);
}

static json_t *certificates_json(const recall_run *run, int layer)
{
    if (attn_certify_eps(&run->spec) <= 0 || run->dense[layer]) return json_null();
    certificates c = certificates_of(run, layer);
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "share", c.all > 0 ? c.certified / c.all : 0, "bound", c.bound,
                     "bound_most", c.bound_most, "missed", c.missed, "missed_most", c.missed_most);
}

static json_t *missed_json(const recall_run *run, int layer)
{
    recall_missed m;
    if (!recall_missed_mass(run, layer, &m)) return json_object();
    return json_pack("{s:f, s:[f, f], s:f, s:f}", "missed_mass", m.mean, "ci95", m.lo, m.hi, "missed_mass_exact",
                     1 - recall_layer_mean(run, SUM_MASS, layer), "ci95_holds", m.covers);
}

/* Returns the object of a strategy, budget, length and layer; NULL: out of memory. */
static json_t *layer_json(const recall *r, const recall_run *run, int layer, int64_t ctx)
{
    json_t *o = results_merge(lineup_row_json(&run->spec),
                              json_pack("{s:I, s:i, s:b, s:I}", "ctx", (json_int_t)ctx, "layer", layer, "dense",
                                        (int)run->dense[layer], "queries", (json_int_t)run->n_queries));
    int bad = 0;
    for (size_t k = 0; k < MEANS; k++)
        bad |= json_object_set_new(o, means[k].key, results_real(recall_layer_mean(run, means[k].sum, layer)));
    o = results_merge(o, json_pack("{s:I, s:I, s:o, s:o, s:o}", "selected_p10",
                                   (json_int_t)recall_selected_at(run, layer, 0.1), "selected_p90",
                                   (json_int_t)recall_selected_at(run, layer, 0.9), "recall_heads",
                                   heads_json(run, SUM_RECALL, layer), "mass_heads", heads_json(run, SUM_MASS, layer),
                                   "certified", certificates_json(run, layer)));
    for (size_t k = 0; k < DISTRIBUTIONS && r->o->distributions; k++)
        bad |= json_object_set_new(o, distributions[k].key,
                                   results_real(recall_layer_mean(run, distributions[k].sum, layer)));
    return fidelity_json(results_merge(o, missed_json(run, layer)), bad);
}

static status finish(recall *r, int64_t ctx, err *e)
{
    int bad = 0;
    TRY(print_runs(r, ctx, e));
    for (size_t i = 0; i < r->n_runs && r->f.o->out.json; i++)
        for (int l = 0; l < r->runs[i].shape.n_layers; l++)
            bad |= json_array_append_new(r->list, layer_json(r, &r->runs[i], l, ctx));
    recall_runs_clear(r->runs, r->n_runs);
    return bad ? err_set(e, ST_NOMEM, "out of memory for the report") : ST_OK;
}

/* ---- text and tensors ---- */

static int64_t queries_of(const recall *r)
{
    return r->o->queries ? r->o->queries : DEFAULT_QUERIES;
}

static status can_run(void *ctx, const attn_spec *s, err *why)
{
    return attn_spec_check(s, ctx, why);
}

static status run_length(recall *r, int64_t ctx, err *e)
{
    recall_text job = {.d = r->f.g.dec,
                       .ids = r->f.text.ids,
                       .n_ids = ctx,
                       .n_queries = queries_of(r),
                       .window = r->o->window,
                       .distributions = r->o->distributions,
                       .progress = on_progress,
                       .ctx = r,
                       .dump = r->dump};
    if (ctx > (int64_t)r->f.text.n)
        return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)ctx, r->f.text.n);
    if (job.n_queries >= ctx)
        return err_set(e, ST_USAGE, "--queries %lld: at least one of the %lld tokens must come before",
                       (long long)job.n_queries, (long long)ctx);
    r->f.bar = progress_start("recall");
    status st = recall_on_text(&job, r->runs, r->n_runs, e);
    progress_end(r->f.bar);
    r->f.bar = NULL;
    return st == ST_OK ? finish(r, ctx, e) : st;
}

static status run_text(recall *r, err *e)
{
    const recall_options *o = r->o;
    engine *g = &r->f.g;
    char *text = NULL;
    size_t n = 0;
    if (r->o->prompt_keys) return err_set(e, ST_USAGE, "--prompt-keys: only with --tensors");
    if (!o->prompt.text && !o->prompt.file)
        return err_set(e, ST_USAGE, "eval recall: a text is needed (-f FILE or -p TEXT), or --tensors FILE");
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, o->run.attn.ctx, "1024", "--ctx", e));
    TRY(engine_open(g, &o->run.engine, 1, true, e));
    attn_shape shape = *decoder_attn_shape(g->dec);
    TRY(lineup_check_by(&r->f.rows, can_run, &shape, e));
    TRY(list_runs(r, e));
    TRY(cli_read_text(&text, &n, &o->prompt, o->run.engine.device.ranks, e));
    status st = tokenizer_encode(g->tok, text, n, TOKENIZE_BOS, &r->f.text, e);
    mem_free(text);
    for (size_t i = 0; i < r->n_ctx && st == ST_OK; i++) st = run_length(r, r->ctx[i], e);
    return st;
}

static status run_tensors(recall *r, err *e)
{
    const recall_options *o = r->o;
    recall_tensors job = {.path = o->tensors, .dump = r->dump, .n_prompt = r->o->prompt_keys};
    if (o->run.attn.ctx) return err_set(e, ST_USAGE, "--ctx: with --tensors the file's keys are the context");
    if (r->o->window) return err_set(e, ST_USAGE, "--window: not with --tensors, whose queries come after all keys");
    if (r->o->distributions) return err_set(e, ST_USAGE, "--distributions: not with --tensors, but on a text");
    TRY(list_runs(r, e));
    r->f.g.name = o->tensors;
    TRY(cli_open_backend(&r->f.g.be, &o->run.engine.device, e));
    job.be = r->f.g.be;
    TRY(recall_on_tensors(&job, r->runs, r->n_runs, e));
    return finish(r, job.n_keys, e);
}

static status write_report(recall *r, err *e)
{
    const recall_options *o = r->o;
    const lineup *l = &r->f.rows;
    json_t *list = r->list, *skipped = json_array();
    int bad = 0;
    r->list = NULL;
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code != ST_OK)
            bad |=
                json_array_append_new(skipped, json_pack("{s:s, s:o, s:s}", "attn", l->run[i].spec.text, "budget",
                                                         lineup_budget_json(&l->run[i].spec), "reason", l->why[i].msg));
    json_t *options = json_pack("{s:s, s:s, s:o}", "attn", o->run.attn.names ? o->run.attn.names : "quest,fier",
                                "budget", o->run.attn.budget ? o->run.attn.budget : "256", "queries",
                                o->tensors ? json_null() : json_integer(queries_of(r)));
    status st = report_write(&o->run.out, &r->f.g, options, list, json_pack("{s:o}", "skipped", skipped), e);
    return st == ST_OK && bad ? err_set(e, ST_NOMEM, "out of memory for the report") : st;
}

static status run(recall *r, err *e)
{
    out_file dump;
    bool dumps = r->o->dump != NULL;
    TRY(lineup_read_budgets(&r->f.rows, &r->f.o->attn, "quest,fier", "256", e));
    if (dumps) TRY(out_file_open(&dump, "--dump", r->o->dump, e));
    if (dumps) r->dump = dump.f;
    status st = r->o->tensors ? run_tensors(r, e) : run_text(r, e);
    status closed = dumps ? out_file_close(&dump, st == ST_OK && !ferror(dump.f), st == ST_OK ? e : NULL) : ST_OK;
    if (st == ST_OK) st = closed;
    return st == ST_OK && r->f.o->out.json ? write_report(r, e) : st;
}

static status cmd_recall(void *options, err *e)
{
    const recall_options *o = options;
    recall r = {.f.o = &o->run, .o = o, .list = json_array()};
    cli_catch_interrupt();
    status st = run(&r, e);
    recall_runs_clear(r.runs, r.n_runs);
    json_decref(r.list);
    mem_free(r.runs);
    mem_free(r.ctx);
    fidelity_close(&r.f);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'p', .arg = "TEXT", AT(recall_options, prompt.text), .help = "the text"},
    {.letter = 'f', .arg = "FILE", AT(recall_options, prompt.file), .help = "the text from a file"},
    OPTION("queries", "N", WHOLE(1, 1 << 30, 0), AT(recall_options, queries),
           "positions at the end of the text that are judged (default 64)"),
    OPTION("window", NULL, FLAG, AT(recall_options, window),
           "judge them as one prompt window (for strategies that choose there, such as actqkv and infllm)"),
    OPTION("distributions", NULL, FLAG, AT(recall_options, distributions),
           "also distances of attention distributions, and what the exact tokens hold (LogQuant's Figures 4 and 5)"),
    OPTION("tensors", "FILE", TEXT, AT(recall_options, tensors),
           "q [heads, m, d], k [kv_heads, n, d] and optionally v of a safetensors file instead of a text"),
    OPTION("prompt-keys", "N", WHOLE(1, 1 << 30, 0), AT(recall_options, prompt_keys),
           "with --tensors: keys of a prompt; the others come one by one, as of a reply (default: all but the last)"),
    OPTION("dump", "FILE", TEXT, AT(recall_options, dump), "write the selected positions as JSON lines"),
    {0}};

const command recall_command = {.name = "eval recall",
                                .measure = "selection",
                                .args = "",
                                .summary = "what strategies select, against exact attention",
                                .groups = OPTIONS_MODEL | OPTIONS_LENGTH,
                                .own = rows,
                                .size = sizeof(recall_options),
                                .alone = true,
                                .run = cmd_recall};
