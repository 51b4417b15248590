/* SPDX-License-Identifier: MIT */
/* `eval recall`: what strategies select, against exact attention over the same queries and keys. On text the
 * strategies follow one run of full attention: they get its q, k and v, so all see the same ones. On
 * tensors of a file every query sees all keys. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "cli/lineup.h"
#include "eval/fidelity/recall_run.h"
#include "kernels/base/mem.h"

enum { DEFAULT_QUERIES = 64 };

/* A strategy at a budget that cannot run on the model, and why. */
typedef struct {
    attn_spec spec;
    char why[256];
} refusal;

typedef struct {
    const char *dump;
    int queries, prompt_keys;
    bool window, distributions;
} recall_options;

typedef struct {
    const cli *c;
    const recall_options *o;
    engine g;
    int64_t *ctx, *budget;
    size_t n_ctx, n_budget;
    lineup rows;      /* all that were asked for */
    recall_run *runs; /* strategies at budgets, of the length under way */
    size_t n_runs;
    refusal *refused; /* those that cannot run */
    size_t n_refused;
    token_list ids; /* of the text */
    recall_dump dump;
    progress *bar;
    json_t *results;
} recall;

/* ---- options ---- */

static status list_runs(recall *r, err *e)
{
    TRY(lineup_read(&r->rows, r->c, "quest,fier", r->budget, r->n_budget, e));
    TRY(MEM_NEW(&r->runs, r->rows.n, e));
    for (size_t i = 0; i < r->rows.n; i++) r->runs[r->n_runs++].spec = r->rows.run[i].spec;
    return ST_OK;
}

/* Sets aside what cannot run; when nothing can, the first reason is the error. */
static status check_runs(recall *r, const attn_shape *shape, err *e)
{
    size_t n = 0;
    TRY(MEM_NEW(&r->refused, r->n_runs, e));
    for (size_t i = 0; i < r->n_runs; i++) {
        err why = {0};
        status st = attn_spec_check(&r->runs[i].spec, shape, &why);
        if (st != ST_OK && n == 0 && i + 1 == r->n_runs)
            return err_set(e, st, "%s", r->n_refused ? r->refused[0].why : why.msg);
        if (st == ST_OK) {
            r->runs[n++].spec = r->runs[i].spec;
        } else {
            refusal *x = &r->refused[r->n_refused++];
            x->spec = r->runs[i].spec;
            snprintf(x->why, sizeof x->why, "%s", why.msg);
        }
    }
    r->n_runs = n;
    return ST_OK;
}

static bool on_progress(void *ctx, double part)
{
    const recall *r = ctx;
    progress_set(r->bar, (int64_t)(part * 1000), 1000);
    return !cli_interrupted();
}

/* ---- results ---- */

static void number_text(char out[16], double x)
{
    if (x < 0) snprintf(out, 16, "-");
    else snprintf(out, 16, "%.4f", x);
}

static bool any_codes(const recall *r)
{
    for (size_t i = 0; i < r->n_runs; i++)
        if (r->runs[i].spec.kv.kind != KV_EXACT) return true;
    return false;
}

static bool any_tail(const recall *r)
{
    for (size_t i = 0; i < r->n_runs; i++)
        if (r->runs[i].has_tail) return true;
    return false;
}

static bool any_missed(const recall *r, const recall_shape *s)
{
    recall_missed m;
    for (size_t i = 0; i < r->n_runs; i++)
        if (recall_missed_mass(&r->runs[i], s, -1, &m)) return true;
    return false;
}

static int name_width(const recall *r)
{
    int width = 8;
    for (size_t i = 0; i < r->n_runs; i++)
        if ((int)strlen(r->runs[i].spec.text) > width) width = (int)strlen(r->runs[i].spec.text);
    return width;
}

/* One line a strategy. Then, where there are such: the error with rows that stand for what was not attended; of stores
 * with codes, the errors if the tokens in codes were not there. */
static status print_means(const recall *r, const recall_shape *s, int64_t ctx, err *e)
{
    int width = name_width(r);
    bool codes = any_codes(r) && s->has_v, tail = any_tail(r);
    TRY(out_printf(e, "recall: %lld tokens, means over layers that are not dense, heads and queries", (long long)ctx));
    TRY(lineup_print_terms(&r->rows, r->c, e));
    TRY(out_printf(e, "%-*s %8s %-10s %9s %8s %8s %8s %8s %8s%s%s\n", width, "strategy", "budget", "counts", "selected",
                   "queries", "recall", "mass", "out err", "L1 err", tail ? " tail err" : "",
                   codes ? "  evicted       L1" : ""));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        bool has = codes && run->spec.kv.kind != KV_EXACT;
        const double *const x[] = {run->recall,    run->mass,    run->error,     run->error_l1,
                                   run->with_tail, run->evicted, run->evicted_l1};
        const bool known[] = {true, true, s->has_v, s->has_v, run->has_tail, has, has};
        char budget[24], counts[16], selected[16] = "-", n[7][16];
        double tokens = recall_mean(run, s, run->selected);
        lineup_budget_text(budget, sizeof budget, &run->spec);
        attn_budget_counts(&run->spec, counts);
        if (tokens >= 0) snprintf(selected, sizeof selected, "%.1f", tokens);
        for (int k = 0; k < 7; k++) number_text(n[k], known[k] ? recall_mean(run, s, x[k]) : -1);
        TRY(out_printf(e, "%-*s %8s %-10s %9s %8lld %8s %8s %8s %8s", width, run->spec.text, budget, counts, selected,
                       (long long)run->n_queries, n[0], n[1], n[2], n[3]));
        if (tail) TRY(out_printf(e, " %8s", n[4]));
        TRY(codes ? out_printf(e, " %8s %8s\n", n[5], n[6]) : out_printf(e, "\n"));
    }
    return ST_OK;
}

/* Where selections differ in length. */
static status print_lengths(const recall *r, const recall_shape *s, err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int64_t few = recall_selected_at(run, s, -1, 0.1), many = recall_selected_at(run, s, -1, 0.9);
        if (few < many)
            TRY(out_printf(e, "%s: 10 %% of the selections have at most %lld tokens, 90 %% at most %lld\n",
                           run->spec.text, (long long)few, (long long)many));
    }
    return ST_OK;
}

/* Of layers that are not dense, or of one: heads and queries, those with a certificate, means and maxima of theirs. */
typedef struct {
    double all, certified, bound, missed, bound_most, missed_most;
} certificates;

static certificates certificates_of(const recall_run *run, const recall_shape *s, int layer)
{
    certificates c = {0};
    for (int i = 0; i < s->n_layers * s->n_heads; i++) {
        int l = i / s->n_heads;
        if (run->dense[l] || (layer >= 0 && l != layer)) continue;
        c.all += (double)run->n_queries;
        c.certified += run->certified[i];
        c.bound += run->bound[i];
        c.missed += run->sure_missed[i];
        c.bound_most = fmax(c.bound_most, run->bound_most[i]);
        c.missed_most = fmax(c.missed_most, run->missed_most[i]);
    }
    if (c.certified > 0) c.bound /= c.certified, c.missed /= c.certified;
    return c;
}

/* What selections certify that they miss at most, beside what they miss. */
static status print_certificates(const recall *r, const recall_shape *s, err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        if (!run->certified) continue;
        certificates c = certificates_of(run, s, -1);
        TRY(out_printf(
            e,
            "%s: %.1f %% certified; their bound is %.4f in the mean, %.4f at most, and they miss %.4f in the "
            "mean, %.4f at most\n",
            run->spec.text, c.all > 0 ? 100 * c.certified / c.all : 0, c.bound, c.bound_most, c.missed, c.missed_most));
    }
    return ST_OK;
}

static json_t *certificates_json(const recall_run *run, const recall_shape *s, int layer)
{
    if (!run->certified || run->dense[layer]) return json_null();
    certificates c = certificates_of(run, s, layer);
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "share", c.all > 0 ? c.certified / c.all : 0, "bound", c.bound,
                     "bound_most", c.bound_most, "missed", c.missed, "missed_most", c.missed_most);
}

/* One line a strategy: distances of attention from the exact one, and what the exact tokens hold of it. */
static status print_distributions(const recall *r, const recall_shape *s, err *e)
{
    int width = name_width(r);
    TRY(out_printf(
        e, "\nattention distributions: L1 distance from the exact one of a head (0 to 2) and summed over layers and "
           "heads,\nthe same if what is in codes were not there; exact tokens but 0 and 1, and their mass\n"));
    TRY(out_printf(e, "%-*s %8s %8s %8s %8s %8s %8s %8s %10s\n", width, "strategy", "budget", "L1", "sum", "evicted",
                   "sum", "exact", "mass", "a token"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int layers = 0;
        for (int l = 0; l < s->n_layers; l++) layers += !run->dense[l];
        double heads = layers * s->n_heads, held = recall_mean(run, s, run->distance);
        double evicted = recall_mean(run, s, run->distance_evicted);
        char budget[24], n[2][16] = {"-", "-"}, sum[2][16] = {"-", "-"};
        lineup_budget_text(budget, sizeof budget, &run->spec);
        if (layers == 0) continue;
        if (recall_has_distance(&run->spec)) {
            number_text(n[0], held);
            snprintf(sum[0], sizeof sum[0], "%.2f", held * heads);
        }
        if (run->spec.kv.kind != KV_EXACT) {
            number_text(n[1], evicted);
            snprintf(sum[1], sizeof sum[1], "%.2f", evicted * heads);
        }
        TRY(out_printf(e, "%-*s %8s %8s %8s %8s %8s %8.1f %8.4f %10.6f\n", width, run->spec.text, budget, n[0], sum[0],
                       n[1], sum[1], recall_mean(run, s, run->covering), recall_mean(run, s, run->covered),
                       recall_mean(run, s, run->coverage)));
    }
    return ST_OK;
}

/* One line a strategy with a sample: the mass that it says was missed, with its interval, and what was missed. */
static status print_missed(const recall *r, const recall_shape *s, err *e)
{
    if (!any_missed(r, s)) return ST_OK;
    TRY(out_printf(
        e,
        "\nmissed mass, as samples measured it: mean, its 95 %% interval, what exact scores say, and the share "
        "of the\n95 %% intervals of one head and query that hold that\n%-*s %8s %8s %8s %8s %8s %8s\n",
        name_width(r), "strategy", "budget", "missed", "from", "to", "exact", "hold it"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        char budget[24];
        recall_missed m;
        if (!recall_missed_mass(run, s, -1, &m)) continue;
        lineup_budget_text(budget, sizeof budget, &run->spec);
        TRY(out_printf(e, "%-*s %8s %8.4f %8.4f %8.4f %8.4f %8.3f\n", name_width(r), run->spec.text, budget, m.mean,
                       m.lo, m.hi, 1 - recall_mean(run, s, run->mass), m.covers));
    }
    return ST_OK;
}

static status print_runs(const recall *r, const recall_shape *s, int64_t ctx, err *e)
{
    TRY(print_means(r, s, ctx, e));
    TRY(print_lengths(r, s, e));
    TRY(print_missed(r, s, e));
    TRY(print_certificates(r, s, e));
    for (size_t i = 0; i < r->n_refused; i++) TRY(out_printf(e, "  - %s\n", r->refused[i].why));
    TRY(out_printf(e, "\nrecall by layer\n"));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        char budget[24];
        lineup_budget_text(budget, sizeof budget, &run->spec);
        TRY(out_printf(e, "%-*s %8s", name_width(r), run->spec.text, budget));
        for (int l = 0; l < s->n_layers; l++) {
            char n[16];
            number_text(n, run->dense[l] ? -1 : recall_layer_mean(run, s, run->recall, l));
            TRY(out_printf(e, " %7s", n));
        }
        TRY(out_printf(e, "\n"));
    }
    if (r->o->distributions) TRY(print_distributions(r, s, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* A layer's mean, or null where it is not known. */
static json_t *mean_json(const recall_run *run, const recall_shape *s, const double *x, int layer, bool known)
{
    return known ? json_real(recall_layer_mean(run, s, x, layer)) : json_null();
}

static json_t *heads_json(const recall_run *run, const recall_shape *s, const double *x, int layer)
{
    json_t *a = json_array();
    for (int h = 0; h < s->n_heads; h++)
        json_array_append_new(a, json_real(x[layer * s->n_heads + h] / (double)run->n_queries));
    return a;
}

/* Distances and coverage of a layer; bad: there is no memory for them. */
static bool add_distributions(json_t *o, const recall_run *run, const recall_shape *s, int l)
{
    bool codes = run->spec.kv.kind != KV_EXACT;
    const struct {
        const char *key;
        const double *of;
        bool known;
    } all[] = {{"attn_l1", run->distance, recall_has_distance(&run->spec)},
               {"attn_l1_evicted", run->distance_evicted, codes},
               {"exact_tokens", run->covering, true},
               {"exact_mass", run->covered, true},
               {"coverage", run->coverage, true}};
    int bad = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bad |= json_object_set_new(o, all[i].key, mean_json(run, s, all[i].of, l, all[i].known));
    return bad == 0;
}

/* What samples say of a layer; bad: there is no memory for it. */
static bool add_missed(json_t *o, const recall_run *run, const recall_shape *s, int l)
{
    recall_missed m;
    int bad = 0;
    if (!recall_missed_mass(run, s, l, &m)) return true;
    bad |= json_object_set_new(o, "missed_mass", json_real(m.mean));
    bad |= json_object_set_new(o, "ci95", json_pack("[f, f]", m.lo, m.hi));
    bad |= json_object_set_new(o, "missed_mass_exact", json_real(1 - recall_layer_mean(run, s, run->mass, l)));
    bad |= json_object_set_new(o, "ci95_holds", json_real(m.covers));
    return bad == 0;
}

/* One object a strategy, budget, length and layer. */
static status add_json(recall *r, const recall_shape *s, int64_t ctx, err *e)
{
    char params[512];
    int bad = 0;
    for (size_t i = 0; i < r->n_runs * (size_t)s->n_layers && r->c->json; i++) {
        const recall_run *run = &r->runs[i / (size_t)s->n_layers];
        int l = (int)(i % (size_t)s->n_layers);
        bool codes = s->has_v && run->spec.kv.kind != KV_EXACT;
        attn_spec_params(&run->spec, params, sizeof params);
        json_t *o = json_pack(
            "{s:s, s:s, s:o, s:I, s:i, s:b, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:f, s:I, s:I, s:o, s:o}", "attn",
            run->spec.text, "params", params, "budget", lineup_budget_json(&run->spec), "ctx", (json_int_t)ctx, "layer",
            l, "dense", (int)run->dense[l], "queries", (json_int_t)run->n_queries, "recall",
            recall_layer_mean(run, s, run->recall, l), "mass", recall_layer_mean(run, s, run->mass, l), "out_err",
            mean_json(run, s, run->error, l, s->has_v), "out_err_l1", mean_json(run, s, run->error_l1, l, s->has_v),
            "tail_out_err", mean_json(run, s, run->with_tail, l, run->has_tail), "evicted_err",
            mean_json(run, s, run->evicted, l, codes), "evicted_err_l1", mean_json(run, s, run->evicted_l1, l, codes),
            "selected", recall_layer_mean(run, s, run->selected, l), "selected_p10",
            (json_int_t)recall_selected_at(run, s, l, 0.1), "selected_p90",
            (json_int_t)recall_selected_at(run, s, l, 0.9), "recall_heads", heads_json(run, s, run->recall, l),
            "mass_heads", heads_json(run, s, run->mass, l));
        if (o) bad |= json_object_set_new(o, "certified", certificates_json(run, s, l)) != 0;
        if (o && r->o->distributions) bad |= !add_distributions(o, run, s, l);
        if (o) bad |= !add_missed(o, run, s, l);
        bad |= !o || json_array_append_new(r->results, o);
    }
    return bad ? err_set(e, ST_NOMEM, "out of memory for the report") : ST_OK;
}

static status finish(recall *r, const recall_shape *s, int64_t ctx, err *e)
{
    TRY(print_runs(r, s, ctx, e));
    TRY(add_json(r, s, ctx, e));
    recall_runs_clear(r->runs, r->n_runs);
    return ST_OK;
}

/* ---- text and tensors ---- */

static int64_t queries_of(const recall *r)
{
    return r->o->queries ? r->o->queries : DEFAULT_QUERIES;
}

static status run_text(recall *r, err *e)
{
    char *text = NULL;
    size_t n = 0;
    int64_t queries = queries_of(r);
    if (r->o->prompt_keys) return err_set(e, ST_USAGE, "--prompt-keys: only with --tensors");
    if (!r->c->prompt && !r->c->prompt_file)
        return err_set(e, ST_USAGE, "eval recall: a text is needed (-f FILE or -p TEXT), or --tensors FILE");
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, r->c->ctx, "1024", "--ctx", e));
    TRY(engine_open(&r->g, r->c, 1, false, true, e));
    TRY(check_runs(r, decoder_attn_shape(r->g.dec), e));
    TRY(cli_read_text(&text, &n, r->c, e));
    status st = tokenizer_encode(r->g.tok, text, n, TOKENIZE_BOS, &r->ids, e);
    mem_free(text);
    TRY(st);
    for (size_t i = 0; i < r->n_ctx; i++) {
        recall_text job = {.d = r->g.dec,
                           .ids = r->ids.ids,
                           .n_ids = r->ctx[i],
                           .n_queries = queries,
                           .window = r->o->window,
                           .distributions = r->o->distributions,
                           .progress = on_progress,
                           .ctx = r,
                           .dump = &r->dump};
        if (r->ctx[i] > (int64_t)r->ids.n)
            return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)r->ctx[i], r->ids.n);
        if (queries >= r->ctx[i])
            return err_set(e, ST_USAGE, "--queries %lld: at least one of the %lld tokens must come before",
                           (long long)queries, (long long)r->ctx[i]);
        r->bar = progress_start(r->c, "recall");
        st = recall_on_text(&job, r->runs, r->n_runs, e);
        progress_end(r->bar);
        r->bar = NULL;
        TRY(st);
        TRY(finish(r, &job.shape, r->ctx[i], e));
    }
    return ST_OK;
}

static status run_tensors(recall *r, err *e)
{
    recall_tensors job = {.path = r->c->tensors, .dump = &r->dump, .n_prompt = r->o->prompt_keys};
    if (r->c->ctx) return err_set(e, ST_USAGE, "--ctx: with --tensors the file's keys are the context");
    if (r->o->window) return err_set(e, ST_USAGE, "--window: not with --tensors, whose queries come after all keys");
    if (r->o->distributions) return err_set(e, ST_USAGE, "--distributions: not with --tensors, but on a text");
    TRY(cli_open_backend(&r->g.be, r->c, e));
    job.be = r->g.be;
    TRY(recall_on_tensors(&job, r->runs, r->n_runs, e));
    return finish(r, &job.shape, job.n_keys, e);
}

static status write_report(recall *r, err *e)
{
    json_t *options = json_pack("{s:s, s:s, s:o}", "attn", r->c->attn ? r->c->attn : "quest,fier", "budget",
                                r->c->budget ? r->c->budget : "256", "queries",
                                r->c->tensors ? json_null() : json_integer(queries_of(r)));
    json_t *results = r->results, *skipped = json_array();
    int bad = skipped == NULL;
    r->results = NULL;
    for (size_t i = 0; i < r->n_refused; i++) {
        const refusal *x = &r->refused[i];
        bad |= json_array_append_new(skipped, json_pack("{s:s, s:o, s:s}", "attn", x->spec.text, "budget",
                                                        lineup_budget_json(&x->spec), "reason", x->why));
    }
    json_t *extra = json_pack("{s:o}", "skipped", skipped);
    status st = report_write(r->c, &r->g, options, results, extra, e);
    return st == ST_OK && bad ? err_set(e, ST_NOMEM, "out of memory for the report") : st;
}

static status cmd_recall(const cli *c, err *e)
{
    recall r = {.c = c, .o = c->own, .results = json_array()};
    cli_catch_interrupt();
    status st = cli_parse_sizes(&r.budget, &r.n_budget, c->budget, "256", "--budget", e);
    if (st == ST_OK) st = list_runs(&r, e);
    if (st == ST_OK && r.o->dump) st = recall_dump_open(&r.dump, r.o->dump, e);
    if (st == ST_OK) st = c->tensors ? run_tensors(&r, e) : run_text(&r, e);
    if (st == ST_OK) st = recall_dump_close(&r.dump, true, e);
    else recall_dump_close(&r.dump, false, NULL);
    if (st == ST_OK && c->json) st = write_report(&r, e);
    cli_clear_interrupt();
    recall_runs_clear(r.runs, r.n_runs);
    json_decref(r.results);
    token_list_free(&r.ids);
    mem_free(r.runs);
    lineup_free(&r.rows);
    mem_free(r.refused);
    mem_free(r.ctx);
    mem_free(r.budget);
    engine_close(&r.g);
    return st;
}

static const cli_option options[] = {
    {.letter = 'p', .arg = "TEXT", AT(prompt), .help = "the text"},
    {.letter = 'f', .arg = "FILE", AT(prompt_file), .help = "the text from a file"},
    {.name = "queries",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 30,
     AT_OWN(recall_options, queries),
     .help = "positions at the end of the text that are judged (default 64)"},
    {.name = "window",
     .type = OPTION_FLAG,
     AT_OWN(recall_options, window),
     .help = "judge them as one prompt window (for strategies that choose there, such as actqkv and infllm)"},
    {.name = "distributions",
     .type = OPTION_FLAG,
     AT_OWN(recall_options, distributions),
     .help = "also distances of attention distributions, and what the exact tokens hold (LogQuant's Figures 4 and 5)"},
    {.name = "tensors",
     .arg = "FILE",
     AT(tensors),
     .help = "q [heads, m, d], k [kv_heads, n, d] and optionally v of a safetensors file instead of a text"},
    {.name = "prompt-keys",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 30,
     AT_OWN(recall_options, prompt_keys),
     .help = "with --tensors: keys of a prompt; the others come one by one, as of a reply (default: all but the last)"},
    {.name = "dump", .arg = "FILE", AT_OWN(recall_options, dump), .help = "write the selected positions as JSON lines"},
    {0}};

const command recall_command = {.name = "eval recall",
                                .measure = "selection",
                                .args = "",
                                .summary = "what strategies select, against exact attention",
                                .groups = OPTIONS_MODEL | OPTIONS_LENGTH,
                                .own = options,
                                .own_size = sizeof(recall_options),
                                .compares = true,
                                .alone = true,
                                .run = cmd_recall};
