/* SPDX-License-Identifier: MIT */
/* `bench`: tokens per second of prefill and decode at given contexts, and the machine's limits. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/lineup.h"
#include "eval/bench/bench_kernel.h"
#include "eval/bench/bench_run.h"
#include "eval/bench/bench_tables.h"
#include "eval/results.h"
#include "kernels/base/mem.h"
#include "kernels/meter.h"

enum { MAX_BATCH = 1024 };

/* One measurement, a line of the table. */
typedef struct {
    bench_base base;
    bool prefill, decode, kernel;
    int64_t *budget, *batch;
    size_t n_budget, n_batch, max_batch;
    kernel_limits limits;
    const char *shape; /* shape of the open model; NULL: the model of -m */
    bench_line *lines; /* results of the current model */
    size_t n_lines;
    char (*why)[256]; /* reasons of cases that could not run */
    size_t n_why;
    status first_why;           /* code of why[0] */
    json_t *kernels, *left_out; /* lists of --json */
} bench;

/* ---- options ---- */

static status take_phase(void *ctx, const char *word, err *e)
{
    bench *b = ctx;
    if (strcmp(word, "prefill") == 0) b->prefill = true;
    else if (strcmp(word, "decode") == 0) b->decode = true;
    else if (strcmp(word, "kernel") == 0) b->kernel = true;
    else return err_set(e, ST_USAGE, "--phase: unknown phase '%s' (prefill, decode, kernel)", word);
    return ST_OK;
}

/* Reads the strategies of --attn at all budgets, with KV rows of one type. */
static status read_rows(lineup *l, const bench *b, const char *kv, err *e)
{
    attn_args one = b->base.o->run.attn;
    one.kv = kv;
    return lineup_read(l, &one, "full", b->budget, b->n_budget, e);
}

static status check_kv(void *ctx, const char *kv, err *e)
{
    lineup l;
    status st = read_rows(&l, ctx, kv, e);
    lineup_free(&l);
    return st;
}

static status check_shape(void *ctx, const char *shape, err *e)
{
    (void)ctx;
    model_config config;
    TRY(model_shape_config(&config, shape, e));
    model_config_free(&config);
    return ST_OK;
}

static status check_weights(void *ctx, const char *type, err *e)
{
    const bench *b = ctx;
    dtype t = dtype_named(type);
    return b->base.o->shape && t < DT_COUNT ? ST_OK : cli_parse_weights(&t, type, e);
}

/* Returns the list of KV types. */
static const char *kv_list(const bench_options *o)
{
    return o->run.attn.kv ? o->run.attn.kv : "f16";
}

/* Rejects invalid words in lists before anything is measured. */
static status check_lists(bench *b, err *e)
{
    const bench_options *o = b->base.o;
    TRY(cli_each(kv_list(o), check_kv, b, e));
    if (o->run.engine.model.weights) TRY(cli_each(o->run.engine.model.weights, check_weights, b, e));
    if (!o->shape) return ST_OK;
    if (o->run.engine.model.dir) return err_set(e, ST_USAGE, "-m and --shape: cannot be combined");
    return cli_each(o->shape, check_shape, NULL, e);
}

static status parse_options(bench *b, err *e)
{
    const bench_options *o = b->base.o;
    TRY(cli_each(b->base.o->phase ? b->base.o->phase : "prefill,decode", take_phase, b, e));
    TRY(cli_parse_sizes(&b->base.ctx, &b->base.n_ctx, o->run.attn.ctx, "0,4k", "--ctx", e));
    TRY(cli_parse_sizes(&b->budget, &b->n_budget, o->run.attn.budget, "256", "--budget", e));
    TRY(cli_parse_sizes(&b->batch, &b->n_batch, b->base.o->batch, "1", "--batch", e));
    TRY(check_lists(b, e));
    b->max_batch = 1;
    for (size_t i = 0; i < b->n_batch; i++) {
        if (b->batch[i] < 1 || b->batch[i] > MAX_BATCH)
            return err_set(e, ST_USAGE, "--batch %lld: must be from 1 to %d", (long long)b->batch[i], MAX_BATCH);
        if (b->decode && (size_t)b->batch[i] > b->max_batch) b->max_batch = (size_t)b->batch[i];
    }
    return ST_OK;
}

/* ---- limits ---- */

/* Returns the operations of one prompt token: the layers' matrix products, the output matrix once per chunk, and the
 * two products of attention. */
static double prefill_flops(const model *m, const bench_result *r)
{
    const model_config *c = &m->config;
    double n = (double)m->lm_head.rows * (double)m->lm_head.cols / (double)r->tokens;
    return 2 * (n + model_products(m)) + 4 * r->attended * c->n_heads * c->head_dim * c->n_kv;
}

/* Returns the bytes read per token. Decode: weights once per batch, rows and index per sequence, as counted. Prefill:
 * at best, weights and rows once per chunk. */
static double bytes_per_token(const model *m, const bench_line *l)
{
    const model_config *c = &m->config;
    double row = 2.0 * c->n_kv_heads * c->head_dim * (double)dtype_size(l->spec.kv.type);
    double weights = (double)m->decode_bytes, rows = l->r.attended * c->n_kv * row;
    if (!l->r.decode) return (weights + rows) / (double)l->r.tokens;
    return weights / (double)l->r.batch + l->r.kv_read + l->r.index_read;
}

static size_t chunk_of(const bench *b)
{
    return backend_chunk(b->base.g.be, (size_t)b->base.o->run.engine.device.chunk);
}

/* Returns the kind of product that prompts use. Tiles multiply quantized matrices in bf16. */
static product_kind gemm_kind(const bench *b)
{
    bool exact = cli_builtin_gemm(&b->base.o->run.engine.device);
    bool blocks = dtype_in_qblocks(b->base.g.m->type);
    bool tiles = b->base.g.be->tiles;
    if (blocks && !tiles && b->limits.gemm_gops[PRODUCT_S8] > 0 && !exact) return PRODUCT_S8;
    bool pairs = b->base.g.m->type == DT_BF16 || (blocks && tiles);
    return pairs && b->limits.gemm_gops[PRODUCT_BF16] > 0 && !exact ? PRODUCT_BF16 : PRODUCT_F32;
}

static void judge(const bench *b, bench_line *l)
{
    double tokens = (double)l->r.tokens;
    l->bytes = bytes_per_token(b->base.g.m, l);
    l->sum =
        samples_summary(&l->r.samples, tokens, tokens * (l->r.decode ? l->bytes : prefill_flops(b->base.g.m, &l->r)));
}

static const char *const gemm_names[PRODUCT_KINDS] = {"f32", "bf16", "int8"};

/* A product that this machine or build lacks has no speed. */
static status print_limits(const kernel_limits *l, int n_threads, err *e)
{
    paragraph("limits, %d thread%s: memory %s %.1f GB/s (%.1f to %.1f); products of %s", n_threads,
              n_threads == 1 ? "" : "s", l->copied ? "copied, read and written," : "read", l->read_gbs, l->read_low,
              l->read_high, l->gemm_name);
    for (int i = 0; i < PRODUCT_KINDS; i++) {
        paragraph("%s %s ", i ? "," : "", gemm_names[i]);
        if (l->gemm_gops[i] > 0) paragraph("%.0f %s", l->gemm_gops[i], i == PRODUCT_S8 ? "GOP/s" : "GFLOP/s");
        else paragraph("none (not native to this CPU or build)");
    }
    TRY(paragraph_end(2, e));
    return out_printf(e, "\n");
}

/* Measures the limits once, on the first model's backend, and prints them. */
static status measure_limits(bench *b, err *e)
{
    if (b->limits.read_gbs > 0) return ST_OK;
    meter_limits(b->base.meter, &b->limits);
    TRY(backend_fault(b->base.g.be, e));
    return print_limits(&b->limits, b->base.g.be->n_threads, e);
}

/* ---- results ---- */

static size_t taken(const bench_samples *s)
{
    return s->n + s->refused[SAMPLE_PREEMPTED] + s->refused[SAMPLE_WAITED] + s->refused[SAMPLE_UNSTEADY];
}

/* The rate of tile products, where the level has tiles: shows if the unit is shared. */
static void tile_column(const bench *b, table *t)
{
    if (meter_tiles(b->base.meter) > 0) table_column(t, TABLE_DETAIL2, 0, "tiles");
}

static status print_head(bench *b, const lineup *l, err *e)
{
    const model *m = b->base.g.m;
    table *t = &b->base.rows;
    paragraph("%s, %s, %.1f M parameters", m->name, dtype_name(m->type), (double)m->config.n_params / 1e6);
    TRY(lineup_print_terms(l, e));
    bench_case_columns(l, b->n_batch > 1, strchr(kv_list(b->base.o), ',') != NULL, t);
    table_column(t, 0, 9, "tokens/s");
    table_column(t, 0, 7, "spread");
    table_column(t, 0, 0, "of limit");
    table_column(t, TABLE_DETAIL2, 0, "samples");
    table_column(t, TABLE_LEFT | TABLE_DETAIL2, 0, "counts");
    table_column(t, TABLE_DETAIL2, 0, "MB/token");
    table_column(t, TABLE_DETAIL2, 0, "read GB/s");
    table_column(t, TABLE_DETAIL2, 0, "GFLOP/s");
    tile_column(b, t);
    if (meter_tiles(b->base.meter) > 0) table_column(t, TABLE_DETAIL2, 0, "of tiles");
    return table_flush(t, e);
}

/* Adds a number with its unit, or "-" if it is missing. */
static void known_cell(table *t, bool is, double x, int decimals, const char *unit)
{
    if (is) table_cell(t, "%.*f%s", decimals, x, unit);
    else table_cell(t, "-");
}

static void tile_cell(const bench *b, table *t, double rate)
{
    if (meter_tiles(b->base.meter) > 0) known_cell(t, rate > 0, rate, 0, "");
}

/* Returns the fraction of all threads' tile products that a prompt reaches; -1: unknown. */
static double tile_share(const bench *b, const bench_line *l)
{
    return l->r.decode || l->sum.of_tiles < 0 ? -1 : l->sum.of_tiles / b->base.g.be->n_threads;
}

static status print_line(bench *b, const bench_line *l, err *e)
{
    table *t = &b->base.rows;
    const sample_summary *m = &l->sum;
    const bench_samples *n = &l->r.samples;
    bench_case_cells(l, t);
    table_cell(t, "%.1f%c", m->speed, n->enough ? ' ' : '?');
    table_cell(t, "%.1f %%", 100 * m->spread);
    known_cell(t, m->fraction >= 0, 100 * m->fraction, 1, " %");
    table_cell(t, "%zu/%zu", n->n, taken(n));
    lineup_counts(&l->spec, t);
    known_cell(t, l->r.decode, l->bytes / 1e6, 2, "");
    known_cell(t, m->read_gbs > 0, m->read_gbs, 1, "");
    known_cell(t, !l->r.decode && m->limit > 0, m->limit, 0, "");
    tile_cell(b, t, m->tiles);
    double share = tile_share(b, l);
    if (meter_tiles(b->base.meter) > 0) known_cell(t, share >= 0, 100 * share, 1, " %");
    return table_flush(t, e);
}

/* Prints how many samples were refused, by reason. */
static status print_refused(const bench *b, err *e)
{
    size_t n[SAMPLE_VERDICTS] = {0}, all = 0;
    bool unsure = false;
    for (size_t k = 0; k < b->n_lines; k++) {
        const bench_samples *s = &b->lines[k].r.samples;
        for (int i = 0; i < SAMPLE_VERDICTS; i++) n[i] += s->refused[i];
        all += taken(s);
        unsure |= !s->enough;
    }
    size_t bad = n[SAMPLE_PREEMPTED] + n[SAMPLE_WAITED] + n[SAMPLE_UNSTEADY];
    if (bad == 0) return ST_OK;
    TRY(out_printf(e, "\n"));
    paragraph("%zu of %zu samples refused: %zu preempted by another process, %zu with sleeping threads, %zu with "
              "different limits before and after",
              bad, all, n[SAMPLE_PREEMPTED], n[SAMPLE_WAITED], n[SAMPLE_UNSTEADY]);
    TRY(paragraph_end(2, e));
    if (!unsure) return ST_OK;
    paragraph("? too few valid samples: the speed is the median of all samples and unreliable; the machine is busy, "
              "OMP_WAIT_POLICY is passive, or there is too little work for %d threads",
              b->base.g.be->n_threads);
    return paragraph_end(2, e);
}

/* ---- JSON ---- */

static json_t *known(bool is, double x)
{
    return is ? json_real(x) : json_null();
}

/* Returns nanoseconds per token of each stage. */
static json_t *parts_json(const bench_line *l)
{
    json_t *o = json_pack("{s:f}", "rest", bench_per_token(l, bench_unmarked_ns(&l->r)));
    for (int i = 0; i < STAGE_COUNT; i++)
        json_object_set_new(o, stage_names[i], json_real(bench_per_token(l, (double)l->r.stage_ns[i])));
    return o;
}

/* Returns the valid samples, or all samples if too few are valid. */
static json_t *samples_json(const bench_line *l)
{
    const bench_samples *s = &l->r.samples;
    double speed[SAMPLES_MOST];
    for (size_t i = 0; i < s->n_listed; i++) speed[i] = 1e9 * (double)l->r.tokens / s->ns[i];
    return json_pack("{s:b, s:I, s:{s:I, s:I, s:I}, s:o, s:o, s:o}", "enough", s->enough, "taken", (json_int_t)taken(s),
                     "refused", "preempted", (json_int_t)s->refused[SAMPLE_PREEMPTED], "waited",
                     (json_int_t)s->refused[SAMPLE_WAITED], "unsteady", (json_int_t)s->refused[SAMPLE_UNSTEADY],
                     "tokens_per_s", results_reals(speed, s->n_listed), "read_gbps",
                     results_reals(s->read_gbs, s->n_listed), l->r.decode ? "limit_gbps" : "limit_gops",
                     results_reals(s->limit, s->n_listed));
}

static json_t *line_json(const bench *b, const bench_line *l)
{
    const model *m = b->base.g.m;
    json_t *head = json_pack("{s:o, s:s}", "model", report_model(m->name), "phase", bench_line_phase(l));
    json_t *o = json_pack("{s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:b}", "ctx",
                          (json_int_t)l->ctx, "batch", (json_int_t)l->r.batch, "layers", (json_int_t)m->config.n_layers,
                          "weights", dtype_name(m->type), "kv", kv_format_name(&l->spec.kv), "runs",
                          (json_int_t)l->r.samples.n, "tokens", (json_int_t)l->r.tokens, "tokens_per_s", l->sum.speed,
                          "spread", l->sum.spread, "attended", l->r.attended, "bytes_per_token", l->bytes,
                          "limit_share", known(l->sum.fraction >= 0, l->sum.fraction), "read_gbps",
                          known(l->sum.read_gbs > 0, l->sum.read_gbs), "samples", samples_json(l), "parts",
                          parts_json(l), "filled", l->r.filled);
    o = results_merge(results_merge(head, lineup_row_json(&l->spec)), o);
    if (!l->r.decode) json_object_set_new(o, "limit_product", json_string(gemm_names[gemm_kind(b)]));
    if (l->sum.tiles > 0) json_object_set_new(o, "tile_gflops", json_real(l->sum.tiles));
    if (l->sum.tiles > 0 && !l->r.decode)
        json_object_set_new(o, "tile_share", known(tile_share(b, l) >= 0, tile_share(b, l)));
    if (!l->r.decode) return o;
    o = results_merge(o,
                      json_pack("{s:I, s:I, s:I, s:f, s:f, s:f}", "kv_bytes", (json_int_t)l->r.held.kv, "index_bytes",
                                (json_int_t)l->r.held.index, "scratch_bytes", (json_int_t)l->r.held.scratch, "kv_read",
                                l->r.kv_read, "index_read", l->r.index_read, "key_access", l->r.key_access));
    if (l->spec.tier.kind == KV_DISK) json_object_set_new(o, "tier", tier_json(&l->r.moved, l->r.steps));
    if (l->spec.tier.kind == KV_HOST) json_object_set_new(o, "tier", host_json(&l->r.host, l->r.steps));
    return o;
}

static status add_line(bench *b, const bench_case *k, const bench_result *r, err *e)
{
    bench_line *l = &b->lines[b->n_lines++];
    *l = (bench_line){.spec = k->spec, .ctx = k->ctx, .r = *r};
    judge(b, l);
    if (b->base.o->run.out.json && json_array_append_new(b->base.list, line_json(b, l)) != 0)
        return err_set(e, ST_NOMEM, "out of memory for the report");
    return print_line(b, l, e);
}

/* ---- running ---- */

/* Shows a progress bar for one measurement. It must end before a line of the table is printed. */
static status measured(bench *b, const char *what, status (*run)(bench_case *, size_t, bench_result *, err *),
                       bench_case *k, size_t batch, err *e)
{
    bench_result r;
    b->base.bar = progress_start(what);
    status st = run(k, batch, &r, e);
    progress_end(b->base.bar);
    b->base.bar = NULL;
    return st == ST_OK && r.tokens > 0 ? add_line(b, k, &r, e) : st;
}

/* Records a row that cannot run or failed; batch 0: prefill, or the whole case. Each distinct reason is printed
 * once. */
static void note_reason(bench *b, const bench_case *k, size_t batch, const err *why)
{
    json_array_append_new(b->left_out, json_pack("{s:o, s:s, s:o, s:I, s:I, s:s, s:s, s:s}", "model",
                                                 report_model(b->base.g.m->name), "attn", k->spec.text, "budget",
                                                 lineup_budget_json(&k->spec), "ctx", (json_int_t)k->ctx, "batch",
                                                 (json_int_t)batch, "weights", dtype_name(b->base.g.m->type), "kv",
                                                 kv_format_name(&k->spec.kv), "reason", why->msg));
    for (size_t i = 0; i < b->n_why; i++)
        if (strcmp(b->why[i], why->msg) == 0) return;
    if (b->n_why == 0) b->first_why = why->code;
    snprintf(b->why[b->n_why++], sizeof *b->why, "%s", why->msg);
}

/* Opens a case with room for the largest batch that fits. Larger batches are recorded as failures. */
static status open_case(bench *b, bench_case *k, err *why)
{
    status st;
    while ((st = bench_open(k, b->prefill, why)) == ST_NOMEM) {
        size_t less = 0;
        bench_close(k);
        for (size_t i = 0; i < b->n_batch; i++)
            if ((size_t)b->batch[i] < k->max_batch && (size_t)b->batch[i] > less) less = (size_t)b->batch[i];
        if (less == 0) break;
        note_reason(b, k, k->max_batch, why);
        k->max_batch = less;
    }
    return st;
}

/* Records a failed row and continues, unless the device has failed. */
static status row_ends(bench *b, const bench_case *k, size_t batch, status st, err *e)
{
    if (st == ST_OK || st == ST_INTERRUPTED || b->base.g.be->fault.code != ST_OK) return st;
    note_reason(b, k, batch, e);
    *e = (err){0};
    return ST_OK;
}

/* Measures one strategy at one context length. Records what cannot run and continues. */
static status run_case(bench *b, const attn_spec *spec, int64_t ctx, err *e)
{
    char what[64];
    err why = {0};
    bench_case k = bench_case_of(&b->base, spec, ctx);
    k.max_batch = b->max_batch;
    k.timing.kind = gemm_kind(b);
    status st = attn_spec_check(spec, decoder_attn_shape(b->base.g.dec), &why);
    if (st == ST_OK) st = open_case(b, &k, &why);
    if (st != ST_OK) {
        bench_close(&k);
        note_reason(b, &k, 0, &why);
        return ST_OK;
    }
    snprintf(what, sizeof what, "bench, prompt of %zu tokens", k.n_ids);
    if (b->prefill) st = row_ends(b, &k, 0, measured(b, what, bench_prefill, &k, 1, e), e);
    if (b->decode && st == ST_OK) st = measured(b, what, bench_fill, &k, 1, e);
    bool filled = st == ST_OK;
    st = row_ends(b, &k, k.max_batch, st, e);
    for (size_t i = 0; b->decode && filled && i < b->n_batch && st == ST_OK; i++)
        if ((size_t)b->batch[i] <= k.max_batch)
            st = row_ends(b, &k, (size_t)b->batch[i], measured(b, what, bench_decode, &k, (size_t)b->batch[i], e), e);
    bench_close(&k);
    return st;
}

static status run_specs(bench *b, const lineup *l, err *e)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t x = 0; x < b->base.n_ctx; x++) {
            if (!b->base.o->run.attn.ctx && b->base.ctx[x] > b->base.g.m->config.max_positions) continue;
            TRY(run_case(b, &l->run[i].spec, b->base.ctx[x], e));
        }
    return ST_OK;
}

/* Measures all strategies at all budgets with rows of one type. */
static status run_kv(void *ctx, const char *kv, err *e)
{
    bench *b = ctx;
    lineup l;
    status st = read_rows(&l, b, kv, e);
    size_t most = l.n * b->base.n_ctx * (1 + b->n_batch);
    if (st == ST_OK) st = MEM_GROW(&b->lines, b->n_lines + most, e);
    if (st == ST_OK) st = MEM_GROW(&b->why, b->n_why + most, e);
    if (st == ST_OK && b->base.rows.n_columns == 0) st = print_head(b, &l, e);
    if (st == ST_OK) st = run_specs(b, &l, e);
    lineup_free(&l);
    return st;
}

/* Measures the open model, with every type of KV rows. */
static status run_model(bench *b, err *e)
{
    b->n_lines = b->n_why = 0;
    TRY(measure_limits(b, e));
    for (size_t x = 0; b->base.o->run.attn.ctx && x < b->base.n_ctx; x++) cli_warn_ctx(b->base.g.m, b->base.ctx[x]);
    TRY(cli_each(kv_list(b->base.o), run_kv, b, e));
    if (b->n_lines == 0 && b->n_why > 0) return err_set(e, b->first_why, "nothing can run: %s", b->why[0]);
    TRY(table_print(&b->base.rows, e));
    for (size_t i = 0; i < b->n_why; i++) TRY(lineup_print_reason(b->why[i], e));
    TRY(print_refused(b, e));
    TRY(bench_print_tables(b->lines, b->n_lines, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* ---- single kernels ---- */

static json_t *kernel_json(const char *name, const kernel_shape *s, const kernel_result *k, const sample_summary *m,
                           double ns)
{
    json_t *o = json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:I}", "model", report_model(name),
                          "kernel", k->name, "unit", k->unit, "ctx", (json_int_t)s->ctx, "budget",
                          (json_int_t)s->budget, "head_dim", (json_int_t)s->head_dim, "ns", ns, "spread", m->spread,
                          "limit_share", known(k->need > 0 && m->fraction >= 0, m->fraction), "read_gbps",
                          known(m->read_gbs > 0, m->read_gbs), "runs", (json_int_t)k->samples.n);
    if (m->tiles > 0) json_object_set_new(o, "tile_gflops", json_real(m->tiles));
    return o;
}

/* Prints a row: cost of an item, rate of bytes or operations, and the limit. */
static status print_kernel(bench *b, const char *name, const kernel_shape *s, const kernel_result *k, err *e)
{
    table *t = &b->base.rows;
    const sample_summary m = samples_summary(&k->samples, k->units, k->need);
    double ns = m.speed > 0 ? 1e9 / m.speed : 0, per_unit = k->need / k->units;
    bool compared = k->need > 0 && m.limit > 0;
    if (b->base.o->run.out.json && json_array_append_new(b->kernels, kernel_json(name, s, k, &m, ns)) != 0)
        return err_set(e, ST_NOMEM, "out of memory for the report");
    table_cell(t, "%s", k->name);
    table_cell(t, "%lld", (long long)s->ctx);
    table_cell(t, "%.3f%c", ns, k->samples.enough ? ' ' : '?');
    known_cell(t, compared && m.fraction >= 0, 100 * m.fraction, 1, " %");
    table_cell(t, "%s", k->unit);
    table_cell(t, "%.1f %%", 100 * m.spread);
    table_cell(t, "%lld", (long long)s->budget);
    table_cell(t, "%zu", s->head_dim);
    known_cell(t, k->need > 0, ns > 0 ? per_unit / ns : 0, 1, "");
    known_cell(t, compared, m.limit, 1, "");
    table_cell(t, "%zu/%zu", k->samples.n, taken(&k->samples));
    tile_cell(b, t, m.tiles);
    return table_flush(t, e);
}

/* budgets: there are several; else the column is a detail. */
static status kernel_columns(const bench *b, table *t, bool budgets, err *e)
{
    table_column(t, TABLE_LEFT, 27, "kernel");
    table_column(t, 0, 6, "ctx");
    table_column(t, 0, 9, "ns");
    table_column(t, 0, 0, "of limit");
    table_column(t, TABLE_LEFT | TABLE_DETAIL, 22, "ns of a");
    table_column(t, TABLE_DETAIL, 7, "spread");
    table_column(t, budgets ? 0 : TABLE_DETAIL2, 0, "budget");
    table_column(t, TABLE_DETAIL2, 3, "dim");
    table_column(t, TABLE_DETAIL2, 6, "G/s");
    table_column(t, TABLE_DETAIL2, 0, "limit G/s");
    table_column(t, TABLE_DETAIL2, 0, "samples");
    tile_column(b, t);
    return table_flush(t, e);
}

/* Successive kernels that cannot run for the same reason. */
typedef struct {
    char names[160];
    err why;
} missing_kernels;

/* Adds a kernel (NULL: none), and prints those before it if their reason is another one. */
static void add_missing(bench *b, missing_kernels *m, const char *name, const err *why)
{
    size_t n = strlen(m->names);
    if (n > 0 && (!name || strcmp(m->why.msg, why->msg) != 0)) {
        table_line(&b->base.rows, "%s: %s", m->names, m->why.msg);
        n = 0;
    }
    snprintf(m->names + n, sizeof m->names - n, "%s%s", n ? "; " : "", name ? name : "");
    if (name) m->why = *why;
}

/* Times every kernel at one context length. The limit of prompt attention is the fastest product with float sums. */
static status time_kernels(bench *b, const char *name, const kernel_shape *s, err *e)
{
    bench_timing t = {.meter = b->base.meter,
                      .n_threads = b->base.g.be->n_threads,
                      .wanted = (size_t)b->base.o->samples,
                      .kind = b->limits.gemm_gops[PRODUCT_BF16] > 0 ? PRODUCT_BF16 : PRODUCT_F32};
    missing_kernels missing = {.names = ""};
    for (size_t i = 0; i < bench_kernels(); i++) {
        kernel_result k;
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
        err why = {0};
        status st = bench_kernel(i, b->base.g.be, s, &t, &k, &why);
        TRY(backend_fault(b->base.g.be, e));
        add_missing(b, &missing, st == ST_OK ? NULL : bench_kernel_name(i), &why);
        if (st == ST_OK) TRY(print_kernel(b, name, s, &k, e));
    }
    add_missing(b, &missing, NULL, NULL);
    return ST_OK;
}

static status run_kernels(bench *b, const char *name, const model_config *c, err *e)
{
    TRY(measure_limits(b, e));
    paragraph("%s, %d query heads, %d kv heads, f16 rows unless a kernel names others", name, (int)c->n_heads,
              (int)c->n_kv_heads);
    TRY(paragraph_end(2, e));
    TRY(out_printf(e, "\n"));
    TRY(kernel_columns(b, &b->base.rows, b->n_budget > 1, e));
    for (size_t x = 0; x < b->base.n_ctx; x++)
        for (size_t i = 0; i < b->n_budget; i++) {
            kernel_shape s = {.n_heads = (size_t)c->n_heads,
                              .n_kv_heads = (size_t)c->n_kv_heads,
                              .head_dim = (size_t)c->head_dim,
                              .ctx = b->base.ctx[x],
                              .budget = b->budget[i],
                              .seed = b->base.o->run.seed.value};
            if (s.ctx < BENCH_KERNEL_CTX || s.ctx < s.budget) continue;
            TRY(time_kernels(b, name, &s, e));
        }
    TRY(table_print(&b->base.rows, e));
    return out_printf(e, "\n");
}

/* Times kernels of a shape, which need no weights. */
static status run_shape_kernels(void *ctx, const char *shape, err *e)
{
    bench *b = ctx;
    model_config c;
    TRY(model_shape_config(&c, shape, e));
    bench_close_model(&b->base);
    status st = cli_open_backend(&b->base.g.be, &b->base.o->run.engine.device, e);
    if (st == ST_OK) st = meter_create(&b->base.meter, b->base.g.be, e);
    if (st == ST_OK) st = run_kernels(b, shape, &c, e);
    model_config_free(&c);
    return st;
}

/* Measures b->shape with weights of one type; weights NULL: as in the model's files. */
static status run_weights(void *ctx, const char *weights, err *e)
{
    bench *b = ctx;
    TRY(bench_open_model(&b->base, b->shape, weights, b->max_batch, e));
    if (!b->shape && b->kernel) TRY(run_kernels(b, b->base.g.m->name, &b->base.g.m->config, e));
    return b->prefill || b->decode ? run_model(b, e) : ST_OK;
}

/* Measures a shape, or (NULL) the model of -m. */
static status run_shape(void *ctx, const char *shape, err *e)
{
    bench *b = ctx;
    b->shape = shape;
    return b->base.o->run.engine.model.weights ? cli_each(b->base.o->run.engine.model.weights, run_weights, b, e)
                                               : run_weights(b, NULL, e);
}

/* ---- the command ---- */

static status write_report(bench *b, err *e)
{
    const kernel_limits *l = &b->limits;
    json_t *limits =
        l->read_gbs > 0
            ? json_pack("{s:s, s:f, s:[f,f], s:f, s:f, s:f, s:s}", "memory", l->copied ? "copied" : "read", "read_gbps",
                        l->read_gbs, "read_range", l->read_low, l->read_high, "gemm_f32_gflops",
                        l->gemm_gops[PRODUCT_F32], "gemm_bf16_gflops", l->gemm_gops[PRODUCT_BF16], "gemm_int8_gops",
                        l->gemm_gops[PRODUCT_S8], "gemm", l->gemm_name)
            : json_null();
    json_t *options =
        json_pack("{s:o, s:o, s:o, s:s, s:i, s:s, s:I, s:b}", "ctx", report_sizes(b->base.ctx, b->base.n_ctx), "budget",
                  report_sizes(b->budget, b->n_budget), "batch", report_sizes(b->batch, b->n_batch), "attn",
                  b->base.o->run.attn.names ? b->base.o->run.attn.names : "full", "chunk", (int)chunk_of(b), "gemm",
                  b->base.o->run.engine.device.gemm ? b->base.o->run.engine.device.gemm : "auto", "seed",
                  (json_int_t)b->base.o->run.seed.value, "fill", b->base.o->fill);
    json_t *extra = json_pack("{s:s, s:o}", "cpu", b->base.g.be->about, "limits", limits);
    if (b->kernel) json_object_set(extra, "kernels", b->kernels);
    json_object_set(extra, "left_out", b->left_out);
    b->base.g.name = b->base.o->shape;
    return report_write(&b->base.o->run.out, &b->base.g, options, json_incref(b->base.list), extra, e);
}

static status run_all(bench *b, err *e)
{
    const char *shapes = b->base.o->shape;
    TRY(parse_options(b, e));
    cli_catch_interrupt();
    status st = shapes && b->kernel ? cli_each(shapes, run_shape_kernels, b, e) : ST_OK;
    if (st == ST_OK && !shapes) st = run_shape(b, NULL, e);
    else if (st == ST_OK && (b->prefill || b->decode)) st = cli_each(shapes, run_shape, b, e);
    if (!b->base.g.be) return report_check_end(&b->base.o->run.out, st, e);
    if (!b->base.o->run.out.json || (st != ST_OK && st != ST_INTERRUPTED)) return st;
    status written = write_report(b, e); /* after Ctrl-C with the cases that were measured */
    return st == ST_OK ? written : st;
}

static status cmd_bench(void *options, err *e)
{
    const bench_options *o = options;
    bench b = {.base = {.o = o, .list = json_array()}, .kernels = json_array(), .left_out = json_array()};
    status st = cli_check_draft_weights(&o->run.engine, e);
    if (st == ST_OK) st = o->run.engine.draft ? bench_drafts(&b.base, e) : run_all(&b, e);
    cli_clear_interrupt();
    json_decref(b.base.list);
    json_decref(b.kernels);
    json_decref(b.left_out);
    mem_free(b.lines);
    mem_free(b.why);
    mem_free(b.base.ctx);
    mem_free(b.budget);
    mem_free(b.batch);
    table_free(&b.base.rows);
    bench_close_model(&b.base);
    return st;
}

static const cli_option rows[] = {
    OPTION("shape", "NAME,...", TEXT, AT(bench_options, shape),
           "models of known shapes with random weights, e.g. llama-3.2-1b or "
           "qwen3-30b-a3b:layers=8"),
    OPTION("phase", "LIST", TEXT, AT(bench_options, phase),
           "phases to time: prefill, decode (default: both), kernel (single operations)"),
    OPTION("batch", "N,...", TEXT, AT(bench_options, batch), "sequences per decode step (default 1)"),
    OPTION("samples", "N", WHOLE(1, 20, 0), AT(bench_options, samples),
           "valid timed runs, out of at most 2 N (default 20)"),
    OPTION("fill", NULL, FLAG, AT(bench_options, fill),
           "random rows as context instead of a prompt (always for prompts beyond 8k tokens)"),
    OPTION("draft", "SPEC[:n=K]", TEXT, AT(bench_options, run.engine.draft),
           "compare decode steps with these drafts (see generate --draft) and single steps"),
    OPTION("draft-weights", "q8|q4", TEXT, AT(bench_options, run.engine.draft_weights),
           "with --draft STRATEGY: draft with matrices in 8 or 4 bits (see generate --draft-weights)"),
    OPTION("accept", "P", NUMBER(0.9), AT(bench_options, accept),
           "with --draft: fraction of drafted tokens treated as accepted (default 0.9)"),
    {0}};

const command bench_command = {.name = "bench",
                               .args = "",
                               .summary = "measure speed, also as a fraction of the machine's limits",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_TABLE,
                               .own = rows,
                               .size = sizeof(bench_options),
                               .run = cmd_bench};
