/* SPDX-License-Identifier: MIT */
/* `eval recall`: compares the selection of strategies with exact attention over the same queries and keys. On text, all
 * strategies receive q, k and v of one run of full attention. On tensors of a file, every query sees all keys. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/fidelity/fidelity.h"
#include "eval/measure.h"
#include "eval/fidelity/recall_run.h"
#include "kernels/base/mem.h"

typedef struct {
    run_options run;
    prompt_source prompt;
    const char *tensors;
    const char *dump;
    int queries, prompt_keys;
    bool window, distributions;
} recall_options;

typedef struct {
    measure m;
    fidelity_text text;
    const recall_options *o;
    recall_run *runs; /* rows that can run */
    size_t n_runs;
    int64_t n_keys; /* keys of the last pass */
    out_file dump;  /* f NULL: none */
    json_t *list;   /* results */
} recall;

/* ---- the tables ---- */

/* Means of a run, which are members of --json. Those with a title are also columns: always, or (optional) if some run
 * has them. */
static const struct {
    recall_sum sum;
    const char *key, *title;
    bool optional;
} means[] = {{SUM_RECALL, "recall", "recall", false},
             {SUM_MASS, "mass", "mass", false},
             {SUM_ERROR, "out_err", "out err", false},
             {SUM_ERROR_L1, "out_err_l1", "L1 err", false},
             {SUM_WITH_TAIL, "tail_out_err", "tail err", true},
             {SUM_EVICTED, "evicted_err", "evicted", true},
             {SUM_EVICTED_L1, "evicted_err_l1", "L1", true},
             {SUM_SELECTED, "selected", NULL, false},
             /* with --distributions: */
             {SUM_DISTANCE, "attn_l1", NULL, false},
             {SUM_DISTANCE_EVICTED, "attn_l1_evicted", NULL, false},
             {SUM_COVERING, "exact_tokens", NULL, false},
             {SUM_COVERED, "exact_mass", NULL, false},
             {SUM_COVERAGE, "coverage", NULL, false}};
enum { DISTRIBUTIONS = 8, MEANS = sizeof means / sizeof *means };

/* True if the table has a column for a mean. */
static bool is_shown(const recall *r, size_t mean)
{
    if (!means[mean].optional) return means[mean].title != NULL;
    for (size_t i = 0; i < r->n_runs; i++)
        if (recall_knows(&r->runs[i], means[mean].sum)) return true;
    return false;
}

static status print_means(const recall *r, int64_t ctx, err *e)
{
    table t = {0};
    paragraph("recall: %lld tokens, means over layers that are not dense, heads and queries", (long long)ctx);
    TRY(lineup_print_terms(&r->m.rows, e));
    lineup_columns(&r->m.rows, &t);
    table_column(&t, TABLE_LEFT | TABLE_DETAIL, 0, "counts");
    table_column(&t, 0, 0, "selected");
    table_column(&t, TABLE_DETAIL2, 0, "queries");
    for (size_t k = 0; k < MEANS; k++)
        if (is_shown(r, k)) table_column(&t, 0, 0, means[k].title);
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        lineup_cells(&run->spec, &t);
        lineup_counts(&run->spec, &t);
        table_number(&t, recall_mean(run, SUM_SELECTED, -1), 1);
        table_cell(&t, "%lld", (long long)run->n_queries);
        for (size_t k = 0; k < MEANS; k++)
            if (is_shown(r, k)) table_number(&t, recall_mean(run, means[k].sum, -1), 4);
    }
    return table_print(&t, e);
}

/* Prints the spread of the selection lengths, if they differ. */
static status print_lengths(const recall *r, err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int64_t few = recall_selected_at(run, -1, 0.1), many = recall_selected_at(run, -1, 0.9);
        if (few >= many) continue;
        paragraph("%s: 10 %% of the selections have at most %lld tokens, 90 %% at most %lld", run->spec.text,
                  (long long)few, (long long)many);
        TRY(paragraph_end(2, e));
    }
    return ST_OK;
}

/* Number of heads and queries, those with a certificate, and the means and maxima of its bound and of the missed
 * mass. */
typedef struct {
    double all, certified, bound, missed, bound_most, missed_most;
} certificates;

/* Returns the certificates of a layer, or (-1) of all layers that are not dense. */
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
        paragraph("%s: %.1f %% certified; bound: mean %.4f, maximum %.4f; missed: mean %.4f, maximum %.4f",
                  run->spec.text, c.all > 0 ? 100 * c.certified / c.all : 0, c.bound, c.bound_most, c.missed,
                  c.missed_most);
        TRY(paragraph_end(2, e));
    }
    return ST_OK;
}

/* Prints the heading of a table and starts it with the columns of the strategies and n others. */
static status begin_table(table *t, const recall *r, const char *heading, const char *const *titles, size_t n, err *e)
{
    *t = (table){0};
    TRY(out_printf(e, "\n"));
    paragraph("%s", heading);
    TRY(paragraph_end(0, e));
    lineup_columns(&r->m.rows, t);
    for (size_t i = 0; i < n; i++) table_column(t, 0, 0, titles[i]);
    return ST_OK;
}

/* Prints distances from exact attention, and the mass of unquantized tokens. */
static status print_distributions(const recall *r, err *e)
{
    static const char *const titles[] = {"L1", "sum", "evicted", "sum", "exact", "mass", "a token"};
    static const char heading[] =
        "attention distributions: L1 distance from exact attention per head (0 to 2) and summed over layers and heads, "
        "the same without the quantized tokens; unquantized tokens except 0 and 1, and their mass";
    table t;
    TRY(begin_table(&t, r, heading, titles, sizeof titles / sizeof *titles, e));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        int layers = 0;
        for (int l = 0; l < run->shape.n_layers; l++) layers += !run->dense[l];
        if (layers == 0) continue;
        lineup_cells(&run->spec, &t);
        for (int k = 0; k < 2; k++) {
            double distance = recall_mean(run, k ? SUM_DISTANCE_EVICTED : SUM_DISTANCE, -1);
            table_number(&t, distance, 4);
            table_number(&t, distance * (layers * run->shape.n_heads), 2);
        }
        table_number(&t, recall_mean(run, SUM_COVERING, -1), 1);
        table_number(&t, recall_mean(run, SUM_COVERED, -1), 4);
        table_number(&t, recall_mean(run, SUM_COVERAGE, -1), 6);
    }
    return table_print(&t, e);
}

/* Prints the missed mass estimated from samples, with its interval, and the exact value. */
static status print_missed(const recall *r, err *e)
{
    static const char *const titles[] = {"missed", "from", "to", "exact", "hold it"};
    static const char heading[] =
        "missed mass, estimated from samples: mean, its 95 % interval, exact value, and the fraction of the 95 % "
        "intervals of one head and query that contain the exact value";
    table t;
    recall_missed m;
    bool any = false;
    for (size_t i = 0; i < r->n_runs; i++) any |= recall_missed_mass(&r->runs[i], -1, &m);
    if (!any) return ST_OK;
    TRY(begin_table(&t, r, heading, titles, sizeof titles / sizeof *titles, e));
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        if (!recall_missed_mass(run, -1, &m)) continue;
        lineup_cells(&run->spec, &t);
        const double x[] = {m.mean, m.lo, m.hi, 1 - recall_mean(run, SUM_MASS, -1)};
        for (size_t k = 0; k < sizeof x / sizeof *x; k++) table_number(&t, x[k], 4);
        table_number(&t, m.covers, 3);
    }
    return table_print(&t, e);
}

static status print_layers(const recall *r, err *e)
{
    table t = {0};
    char name[24];
    int n = r->n_runs ? r->runs[0].shape.n_layers : 0;
    TRY(out_printf(e, "\nrecall by layer\n"));
    lineup_columns(&r->m.rows, &t);
    for (int l = 0; l < n; l++) {
        snprintf(name, sizeof name, "%d", l);
        table_column(&t, 0, 0, name);
    }
    for (size_t i = 0; i < r->n_runs; i++) {
        const recall_run *run = &r->runs[i];
        lineup_cells(&run->spec, &t);
        for (int l = 0; l < n; l++) table_number(&t, run->dense[l] ? (double)NAN : recall_mean(run, SUM_RECALL, l), 4);
    }
    return table_print(&t, e);
}

static status print_runs(const recall *r, int64_t ctx, err *e)
{
    TRY(print_means(r, ctx, e));
    TRY(print_lengths(r, e));
    TRY(print_missed(r, e));
    TRY(print_certificates(r, e));
    TRY(lineup_print_why(&r->m.rows, e));
    TRY(print_layers(r, e));
    if (r->o->distributions) TRY(print_distributions(r, e));
    return out_printf(e, "\n");
}

/* ---- JSON ---- */

static json_t *heads_json(const recall_run *run, recall_sum sum, int layer)
{
    json_t *list = json_array();
    const double *x = run->sum[sum] + layer * run->shape.n_heads;
    for (int h = 0; h < run->shape.n_heads; h++) list = results_append(list, json_real(x[h] / (double)run->n_queries));
    return list;
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
                     1 - recall_mean(run, SUM_MASS, layer), "ci95_holds", m.covers);
}

/* Returns the object of one strategy, budget, length and layer; NULL: out of memory. */
static json_t *layer_json(const recall *r, const recall_run *run, int layer, int64_t ctx)
{
    json_t *o = results_merge(lineup_row_json(&run->spec),
                              json_pack("{s:I, s:i, s:b, s:I}", "ctx", (json_int_t)ctx, "layer", layer, "dense",
                                        (int)run->dense[layer], "queries", (json_int_t)run->n_queries));
    for (size_t k = 0; k < (r->o->distributions ? MEANS : DISTRIBUTIONS); k++)
        o = results_merge(o, json_pack("{s:o}", means[k].key, results_real(recall_mean(run, means[k].sum, layer))));
    o = results_merge(o, json_pack("{s:I, s:I, s:o, s:o, s:o}", "selected_p10",
                                   (json_int_t)recall_selected_at(run, layer, 0.1), "selected_p90",
                                   (json_int_t)recall_selected_at(run, layer, 0.9), "recall_heads",
                                   heads_json(run, SUM_RECALL, layer), "mass_heads", heads_json(run, SUM_MASS, layer),
                                   "certified", certificates_json(run, layer)));
    return results_merge(o, missed_json(run, layer));
}

/* ---- text and tensors ---- */

static size_t passes(const void *own)
{
    const recall *r = own;
    return r->o->tensors ? 1 : r->text.n_ctx;
}

static status parse(void *own, err *e)
{
    recall *r = own;
    const recall_options *o = r->o;
    if (o->dump) TRY(out_file_open(&r->dump, "--dump", o->dump, e));
    if (o->tensors && o->run.attn.ctx)
        return err_set(e, ST_USAGE, "--ctx: not supported with --tensors; the context is the file's keys");
    if (o->tensors && o->window)
        return err_set(e, ST_USAGE, "--window: not supported with --tensors; its queries follow all keys");
    if (o->tensors && o->distributions)
        return err_set(e, ST_USAGE, "--distributions: not supported with --tensors; use a text");
    r->m.g.name = o->tensors;
    r->m.no_model = o->tensors != NULL;
    if (o->tensors) return ST_OK;
    if (o->prompt_keys) return err_set(e, ST_USAGE, "--prompt-keys: requires --tensors");
    if (!o->prompt.text && !o->prompt.file)
        return err_set(e, ST_USAGE, "eval recall: requires -f FILE, -p TEXT or --tensors FILE");
    return cli_parse_sizes(&r->text.ctx, &r->text.n_ctx, o->run.attn.ctx, "1024", "--ctx", e);
}

static status can_run(void *ctx, const attn_spec *s, err *why)
{
    return attn_spec_check(s, ctx, why);
}

static status read_text(recall *r, err *e)
{
    char *text = NULL;
    size_t n = 0;
    attn_shape shape = attn_shape_of(&r->m.g.m->config);
    TRY(lineup_check_by(&r->m.rows, can_run, &shape, e));
    TRY(cli_read_text(&text, &n, &r->o->prompt, r->m.o->engine.device.ranks, e));
    status st = tokenizer_encode(r->m.g.tok, text, n, TOKENIZE_BOS, &r->text.ids, e);
    mem_free(text);
    return st;
}

static status ready(void *own, err *e)
{
    recall *r = own;
    const lineup *l = &r->m.rows;
    if (!r->o->tensors) TRY(read_text(r, e));
    TRY(MEM_NEW(&r->runs, l->n, e));
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code == ST_OK) r->runs[r->n_runs++].spec = l->run[i].spec;
    return ST_OK;
}

static status measure_text(recall *r, int64_t ctx, err *e)
{
    const fidelity_text *text = &r->text;
    recall_text job = {.d = r->m.g.dec,
                       .ids = text->ids.ids,
                       .n_ids = ctx,
                       .n_queries = r->o->queries,
                       .window = r->o->window,
                       .distributions = r->o->distributions,
                       .bar = r->m.bar,
                       .dump = r->dump.f};
    if (ctx > (int64_t)text->ids.n)
        return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)ctx, text->ids.n);
    if (job.n_queries >= ctx)
        return err_set(e, ST_USAGE, "--queries %lld: must be less than --ctx %lld", (long long)job.n_queries,
                       (long long)ctx);
    return recall_on_text(&job, r->runs, r->n_runs, e);
}

/* Measures one length, or the tensors. */
static status run_pass(void *own, size_t pass, err *e)
{
    recall *r = own;
    recall_tensors job = {.be = r->m.g.be, .path = r->o->tensors, .dump = r->dump.f, .n_prompt = r->o->prompt_keys};
    int64_t ctx = job.path ? 0 : r->text.ctx[pass];
    TRY(job.path ? recall_on_tensors(&job, r->runs, r->n_runs, e) : measure_text(r, ctx, e));
    r->n_keys = job.path ? job.n_keys : ctx;
    return ST_OK;
}

static status print_pass(void *own, size_t pass, err *e)
{
    const recall *r = own;
    (void)pass;
    TRY(print_runs(r, r->n_keys, e));
    for (size_t i = 0; i < r->n_runs && r->m.o->out.json; i++)
        for (int l = 0; l < r->runs[i].shape.n_layers; l++)
            if (json_array_append_new(r->list, layer_json(r, &r->runs[i], l, r->n_keys)) != 0)
                return err_set(e, ST_NOMEM, "out of memory for the report");
    recall_runs_clear(r->runs, r->n_runs);
    return ST_OK;
}

/* ---- the command ---- */

static json_t *config(const void *own)
{
    const recall *r = own;
    return json_pack("{s:o}", "queries", r->o->tensors ? json_null() : json_integer(r->o->queries));
}

static json_t *json_config(const void *own)
{
    const attn_args *a = &((const recall *)own)->m.o->attn;
    return json_pack("{s:s, s:s}", "attn", a->names ? a->names : "quest,fier", "budget", a->budget ? a->budget : "256");
}

static json_t *results_json(const void *own)
{
    return json_incref(((const recall *)own)->list);
}

static json_t *skipped_json(const void *own)
{
    const lineup *l = &((const recall *)own)->m.rows;
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code != ST_OK)
            list = results_append(list, json_pack("{s:s, s:o, s:s}", "attn", l->run[i].spec.text, "budget",
                                                  lineup_budget_json(&l->run[i].spec), "reason", l->why[i].msg));
    return json_pack("{s:o}", "skipped", list);
}

static const measure_kind recall_kind = {.attn = "quest,fier",
                                         .budget = "256",
                                         .passes = passes,
                                         .parse = parse,
                                         .ready = ready,
                                         .config = config,
                                         .json_config = json_config,
                                         .run = run_pass,
                                         .print = print_pass,
                                         .results = results_json,
                                         .extra = skipped_json};

static status cmd_recall(void *options, err *e)
{
    const recall_options *o = options;
    recall r = {.m.o = &o->run, .o = o, .list = json_array()};
    status st = measure_run(&r.m, &recall_kind, e);
    if (r.dump.f) {
        status closed = out_file_close(&r.dump, st == ST_OK && !ferror(r.dump.f), st == ST_OK ? e : NULL);
        if (st == ST_OK) st = closed;
    }
    recall_runs_clear(r.runs, r.n_runs);
    json_decref(r.list);
    mem_free(r.runs);
    measure_close(&r.m);
    fidelity_text_free(&r.text);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'p', .arg = "TEXT", AT(recall_options, prompt.text), .help = "the text"},
    {.letter = 'f', .arg = "FILE", AT(recall_options, prompt.file), .help = "text file"},
    OPTION("queries", "N", WHOLE(1, 1 << 30, 64), AT(recall_options, queries),
           "number of judged positions at the end of the text (default 64)"),
    OPTION("window", NULL, FLAG, AT(recall_options, window),
           "judge them as one prompt window (for strategies that select per window: actqkv, infllm)"),
    OPTION("distributions", NULL, FLAG, AT(recall_options, distributions),
           "also compare attention distributions (LogQuant's Figures 4 and 5)"),
    OPTION("tensors", "FILE", TEXT, AT(recall_options, tensors),
           "q [heads, m, d], k [kv_heads, n, d] and optionally v of a safetensors file instead of a text"),
    OPTION("prompt-keys", "N", WHOLE(1, 1 << 30, 0), AT(recall_options, prompt_keys),
           "with --tensors: keys of the prompt; the others are fed one by one (default: all but the last)"),
    OPTION("dump", "FILE", TEXT, AT(recall_options, dump), "write the selected positions as JSON lines"),
    {0}};

const command recall_command = {.name = "eval recall",
                                .measure = "selection",
                                .args = "",
                                .summary = "compare the selection of strategies with exact attention",
                                .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_TABLE,
                                .own = rows,
                                .size = sizeof(recall_options),
                                .alone = true,
                                .run = cmd_recall};
