/* SPDX-License-Identifier: MIT */
/* `bench`: tokens a second of prefill and decode at given contexts, and the machine's limits. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/lineup.h"
#include "eval/bench/bench_kernel.h"
#include "eval/bench/bench_run.h"
#include "eval/results.h"
#include "kernels/base/mem.h"
#include "kernels/meter.h"

enum { MAX_BATCH = 1024 };

/* A line of the table, or why there is none. */
typedef struct {
    attn_spec spec;
    int64_t ctx;
    bench_result r;
    sample_summary sum;
    double bytes; /* read by a token */
} bench_line;

typedef struct {
    bench_base base;
    bool prefill, decode, kernel;
    int64_t *budget, *batch;
    size_t n_budget, n_batch, max_batch;
    kernel_limits limits;
    const char *shape; /* of the open model; NULL: the model of -m */
    int width;         /* of the strategy's column; 0: no table yet */
    bench_line *lines; /* of the model under way */
    size_t n_lines;
    char (*why)[256]; /* cases that could not run */
    size_t n_why;
    status first_why;           /* code of why[0] */
    json_t *kernels, *left_out; /* of --json */
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

/* Reads the strategies of --attn at all budgets, with rows of one type. */
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
    (void)ctx;
    dtype t;
    return cli_parse_weights(&t, type, e);
}

/* Returns the list of --kv. */
static const char *kv_list(const bench_options *o)
{
    return o->run.attn.kv ? o->run.attn.kv : "f16";
}

/* Refuses a wrong word in a list before anything is measured. */
static status check_lists(bench *b, err *e)
{
    const bench_options *o = b->base.o;
    TRY(cli_each(kv_list(o), check_kv, b, e));
    if (o->run.engine.model.weights) TRY(cli_each(o->run.engine.model.weights, check_weights, NULL, e));
    if (!o->shape) return ST_OK;
    if (o->run.engine.model.dir) return err_set(e, ST_USAGE, "-m and --shape: one of them, not both");
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
            return err_set(e, ST_USAGE, "--batch %lld: a number from 1 to %d is expected", (long long)b->batch[i],
                           MAX_BATCH);
        if (b->decode && (size_t)b->batch[i] > b->max_batch) b->max_batch = (size_t)b->batch[i];
    }
    return ST_OK;
}

/* ---- limits ---- */

/* Operations of one prompt token: products with the layers' matrices, the output matrix once a
 * chunk, and the two products of attention. */
static double prefill_flops(const model *m, const bench_result *r)
{
    const model_config *c = &m->config;
    double n = (double)m->lm_head.rows * (double)m->lm_head.cols / (double)r->tokens;
    return 2 * (n + model_products(m)) + 4 * r->attended * c->n_heads * c->head_dim * c->n_kv;
}

/* Decode: weights are read once for the whole batch, rows and index by each sequence (counted where they are
 * read). Prefill: at best weights and rows are read once a chunk. */
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

/* The product that prompts use. */
static product_kind gemm_kind(const bench *b)
{
    bool exact = cli_builtin_gemm(&b->base.o->run.engine.device);
    bool blocks = b->base.g.m->type == DT_Q8 || b->base.g.m->type == DT_Q4;
    if (blocks && b->limits.gemm_gops[PRODUCT_S8] > 0 && !exact) return PRODUCT_S8;
    return b->base.g.m->type == DT_BF16 && b->limits.gemm_gops[PRODUCT_BF16] > 0 && !exact ? PRODUCT_BF16 : PRODUCT_F32;
}

static void judge(const bench *b, bench_line *l)
{
    double tokens = (double)l->r.tokens;
    l->bytes = bytes_per_token(b->base.g.m, l);
    l->sum =
        samples_summary(&l->r.samples, tokens, tokens * (l->r.decode ? l->bytes : prefill_flops(b->base.g.m, &l->r)));
}

static const char *const gemm_names[PRODUCT_KINDS] = {"f32", "bf16", "int8"};

/* A product that this machine or build lacks has no number. */
static status print_limits(const kernel_limits *l, int n_threads, err *e)
{
    TRY(out_printf(e, "limits, %d thread%s: memory %s %.1f GB/s (%.1f to %.1f); products of %s", n_threads,
                   n_threads == 1 ? "" : "s", l->copied ? "copied, read and written," : "read", l->read_gbs,
                   l->read_low, l->read_high, l->gemm_name));
    for (int i = 0; i < PRODUCT_KINDS; i++) {
        TRY(out_printf(e, "%s %s ", i ? "," : "", gemm_names[i]));
        if (l->gemm_gops[i] > 0) TRY(out_printf(e, "%.0f %s", l->gemm_gops[i], i == PRODUCT_S8 ? "GOP/s" : "GFLOP/s"));
        else TRY(out_printf(e, "none (not native to this CPU or build)"));
    }
    return out_printf(e, "\n\n");
}

/* Of the first model's run; the meter is the backend's. */
static status measure_limits(bench *b, err *e)
{
    if (b->limits.read_gbs > 0) return ST_OK;
    meter_limits(b->base.meter, &b->limits);
    TRY(backend_fault(b->base.g.be, e));
    return print_limits(&b->limits, b->base.g.be->n_threads, e);
}

/* ---- results ---- */

static const char *phase_of(const bench_line *l)
{
    return l->r.decode ? "decode" : "prefill";
}

static size_t taken(const bench_samples *s)
{
    return s->n + s->refused[SAMPLE_PREEMPTED] + s->refused[SAMPLE_WAITED] + s->refused[SAMPLE_UNSTEADY];
}

static status print_head(const bench *b, const lineup *l, err *e)
{
    const model *m = b->base.g.m;
    TRY(out_printf(e, "%s, %s, %.1f M parameters", m->name, dtype_name(m->type), (double)m->config.n_params / 1e6));
    TRY(lineup_print_terms(l, e));
    return out_printf(e, "%-8s %-*s %7s %-10s %8s %5s %-9s %11s %8s %10s %9s %9s %9s %8s\n", "phase", b->width,
                      "strategy", "budget", "counts", "ctx", "batch", "kv", "tokens/s ", "spread", "MB/token",
                      "read GB/s", "GFLOP/s", "of limit", "samples");
}

/* A number that may be missing. */
static const char *cell(char out[24], bool there, const char *unit, int digits, double x)
{
    snprintf(out, 24, "-");
    if (there) snprintf(out, 24, "%.*f%s", digits, x, unit);
    return out;
}

/* Prints the columns that identify a case; counts: what the budget counts too. */
static status print_case(const bench *b, const bench_line *l, bool counts, err *e)
{
    char what[16], batch[24] = "-";
    attn_budget_counts(&l->spec, what);
    if (l->r.decode) snprintf(batch, sizeof batch, "%zu", l->r.batch);
    TRY(out_printf(e, "%-8s ", phase_of(l)));
    TRY(lineup_print_row(&l->spec, b->width, 7, e));
    if (counts) TRY(out_printf(e, " %-10s", what));
    return out_printf(e, " %8lld %5s %-9s", (long long)l->ctx, batch, kv_format_name(&l->spec.kv));
}

static status print_line(const bench *b, const bench_line *l, err *e)
{
    char bytes[24], read[24], product[24], share[24];
    const sample_summary *m = &l->sum;
    const bench_samples *n = &l->r.samples;
    TRY(print_case(b, l, true, e));
    TRY(out_printf(e, " %10.1f%c %6.1f %% %10s %9s %9s %9s %5zu/%zu\n", m->speed, n->enough ? ' ' : '?',
                   100 * m->spread, cell(bytes, l->r.decode, "", 2, l->bytes / 1e6),
                   cell(read, m->read_gbs > 0, "", 1, m->read_gbs),
                   cell(product, !l->r.decode && m->limit > 0, "", 0, m->limit),
                   cell(share, m->share >= 0, " %", 1, 100 * m->share), n->n, taken(n)));
    return out_flush(e);
}

/* How many samples were refused, and why. */
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
    TRY(out_printf(e,
                   "\n%zu of %zu samples refused: in %zu another process took a core, in %zu threads slept, in %zu "
                   "the limits before and after differ\n",
                   bad, all, n[SAMPLE_PREEMPTED], n[SAMPLE_WAITED], n[SAMPLE_UNSTEADY]));
    if (!unsure) return ST_OK;
    return out_printf(e,
                      "? too few samples are left: the speed is the median of all of them and no measure; the "
                      "machine has other work, OMP_WAIT_POLICY is passive, or there is too little to do for %d "
                      "threads\n",
                      b->base.g.be->n_threads);
}

/* The stages as they are printed. */
enum { PART_PROJECTIONS, PART_INDEX, PART_SCORE, PART_TOPK, PART_ATTENTION, PART_REST, PARTS };
static const int part_of[STAGE_COUNT] = {
    [STAGE_EMBED] = PART_REST,          [STAGE_NORM] = PART_REST,       [STAGE_QKV] = PART_PROJECTIONS,
    [STAGE_INDEX] = PART_INDEX,         [STAGE_SCORE] = PART_SCORE,     [STAGE_TOPK] = PART_TOPK,
    [STAGE_ATTENTION] = PART_ATTENTION, [STAGE_OUT] = PART_PROJECTIONS, [STAGE_FFN] = PART_PROJECTIONS,
    [STAGE_LOGITS] = PART_PROJECTIONS};

/* Time in no stage: the host's work between them. */
static double unmarked_ns(const bench_result *r)
{
    double ns = (double)r->profiled_ns;
    for (int i = 0; i < STAGE_COUNT; i++) ns -= (double)r->stage_ns[i];
    return ns;
}

static double per_token(const bench_line *l, double x)
{
    return l->r.tokens > 0 ? x / (double)l->r.tokens : 0;
}

/* ---- tables by case ---- */

static double steps_of(const bench_line *l)
{
    return l->r.steps > 0 ? (double)l->r.steps : 1;
}

static status print_parts(const bench_line *l, err *e)
{
    double ns[PARTS] = {[PART_REST] = unmarked_ns(&l->r)};
    for (int i = 0; i < STAGE_COUNT; i++) ns[part_of[i]] += (double)l->r.stage_ns[i];
    for (int i = 0; i < PARTS; i++) TRY(out_printf(e, " %11.1f", 1e-3 * per_token(l, ns[i])));
    return ST_OK;
}

static status print_bytes(const bench_line *l, err *e)
{
    const attn_bytes *h = &l->r.held;
    return out_printf(e, " %9.3f %9.3f %9.3f %9.3f %9.3f %6.1f %%", (double)h->kv / 1e6, (double)h->index / 1e6,
                      (double)h->scratch / 1e6, l->r.kv_read / 1e6, l->r.index_read / 1e6, 100 * l->r.key_access);
}

static status print_disk(const bench_line *l, err *e)
{
    const tier_counts *t = &l->r.moved;
    double n = steps_of(l);
    return out_printf(e, " %9.3f %9.3f %9.1f %5.1f %% %7.3f %9.3f %10.1f %9.1f %9.1f", (double)t->read / 1e6 / n,
                      (double)t->written / 1e6 / n, (double)t->pages / n, 100 * tier_hits(t), tier_per_row(t),
                      (double)t->stall_ns / 1e6 / n, (double)t->in_file / 1e6, (double)t->here / 1e6,
                      (double)l->r.peak.kv / 1e6);
}

static status print_hosted(const bench_line *l, err *e)
{
    const host_counts *h = &l->r.host;
    double n = steps_of(l);
    return out_printf(e, " %9.1f %9.3f %9.3f %5.1f %%", (double)h->held / 1e6, h->read / 1e6 / n, h->written / 1e6 / n,
                      100 * host_hits(h));
}

_Static_assert(TIER_PAGE == 16, "a table names the rows of a block");

/* Tables with a line for each case that they apply to. */
static const struct {
    const char *about, *titles; /* the text above it; its columns after those of print_case */
    bool decode;                /* of decode alone, */
    kv_tier_kind tier;          /* with rows on this tier; KV_DEVICE: any */
    status (*print)(const bench_line *l, err *e);
} case_tables[] = {
    {"microseconds a token, from a run of its own",
     " projections       index       score       top-k   attention        rest", false, KV_DEVICE, print_parts},
    {"MB that a sequence holds, and that its decode step reads; keys: share of all keys' bytes (rows and index)",
     "        KV     index   scratch rows read  index rd     keys", true, KV_DEVICE, print_bytes},
    {"between memory and files, a decode step of a sequence: MB read and written, blocks of 16 rows that the selected "
     "rows lie in, share of them in memory, blocks a selected row, ms waited; MB in files, of these in memory, and KV "
     "in memory at most",
     "      read   written    blocks    hits   a row    waited      files  of these   KV most", true, KV_DISK,
     print_disk},
    {"in the host's memory: MB that a sequence holds, that its decode step reads and writes there, and share of its "
     "rows that were on the device; kernels read in place, no step waits",
     "        KV      read   written    hits", true, KV_HOST, print_hosted}};

static bool is_in(const bench_line *l, size_t table)
{
    kv_tier_kind kind = case_tables[table].tier;
    return !case_tables[table].decode || (l->r.decode && (kind == KV_DEVICE || l->spec.tier.kind == kind));
}

static status print_table(const bench *b, size_t table, err *e)
{
    size_t n = 0;
    for (size_t k = 0; k < b->n_lines; k++) {
        const bench_line *l = &b->lines[k];
        if (!is_in(l, table)) continue;
        if (n++ == 0)
            TRY(out_printf(e, "\n%s\n\n%-8s %-*s %7s %8s %5s %-9s%s", case_tables[table].about, "phase", b->width,
                           "strategy", "budget", "ctx", "batch", "kv", case_tables[table].titles));
        TRY(out_printf(e, "\n"));
        TRY(print_case(b, l, false, e));
        TRY(case_tables[table].print(l, e));
    }
    return n ? out_printf(e, "\n") : ST_OK;
}

/* ---- JSON ---- */

static json_t *known(bool is, double x)
{
    return is ? json_real(x) : json_null();
}

/* Nanoseconds a token, each stage by itself. */
static json_t *parts_json(const bench_line *l)
{
    json_t *o = json_pack("{s:f}", "rest", per_token(l, unmarked_ns(&l->r)));
    for (int i = 0; i < STAGE_COUNT; i++)
        json_object_set_new(o, stage_names[i], json_real(per_token(l, (double)l->r.stage_ns[i])));
    return o;
}

/* Those that count; all, where these are too few. */
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
    json_t *head = json_pack("{s:o, s:s}", "model", report_model(m->name), "phase", phase_of(l));
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:b}", "ctx", (json_int_t)l->ctx,
        "batch", (json_int_t)l->r.batch, "layers", (json_int_t)m->config.n_layers, "weights", dtype_name(m->type), "kv",
        kv_format_name(&l->spec.kv), "runs", (json_int_t)l->r.samples.n, "tokens", (json_int_t)l->r.tokens,
        "tokens_per_s", l->sum.speed, "spread", l->sum.spread, "attended", l->r.attended, "bytes_per_token", l->bytes,
        "limit_share", known(l->sum.share >= 0, l->sum.share), "read_gbps", known(l->sum.read_gbs > 0, l->sum.read_gbs),
        "samples", samples_json(l), "parts", parts_json(l), "filled", l->r.filled);
    o = results_merge(results_merge(head, lineup_row_json(&l->spec)), o);
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

/* A bar would run into the table's lines: it lives for one measurement only. */
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

/* A row that cannot run, or that failed; batch 0: of prefill, or all. Printed once for all lengths and row types that
 * have the same reason. */
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

/* With room for the largest batch that fits; larger ones are noted. */
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

/* A row that fails is noted and the rest goes on, unless the device does not. */
static status row_ends(bench *b, const bench_case *k, size_t batch, status st, err *e)
{
    if (st == ST_OK || st == ST_INTERRUPTED || b->base.g.be->fault.code != ST_OK) return st;
    note_reason(b, k, batch, e);
    *e = (err){0};
    return ST_OK;
}

/* One strategy at one context. What cannot run is noted, and the rest goes on. */
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
    bool first = b->width == 0;
    status st = read_rows(&l, b, kv, e);
    size_t most = l.n * b->base.n_ctx * (1 + b->n_batch);
    if (st == ST_OK) st = MEM_GROW(&b->lines, b->n_lines + most, e);
    if (st == ST_OK) st = MEM_GROW(&b->why, b->n_why + most, e);
    if (st == ST_OK && lineup_width(&l) > b->width) b->width = lineup_width(&l);
    if (st == ST_OK && first) st = print_head(b, &l, e);
    if (st == ST_OK) st = run_specs(b, &l, e);
    lineup_free(&l);
    return st;
}

/* Measures the open model, with every type of KV rows. */
static status run_model(bench *b, err *e)
{
    b->n_lines = b->n_why = 0;
    b->width = 0;
    TRY(measure_limits(b, e));
    for (size_t x = 0; b->base.o->run.attn.ctx && x < b->base.n_ctx; x++) cli_warn_ctx(b->base.g.m, b->base.ctx[x]);
    TRY(cli_each(kv_list(b->base.o), run_kv, b, e));
    if (b->n_lines == 0 && b->n_why > 0) return err_set(e, b->first_why, "nothing can run: %s", b->why[0]);
    for (size_t i = 0; i < b->n_why; i++) TRY(out_printf(e, "  - %s\n", b->why[i]));
    TRY(print_refused(b, e));
    for (size_t i = 0; i < sizeof case_tables / sizeof *case_tables; i++) TRY(print_table(b, i, e));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

/* ---- single kernels ---- */

static json_t *kernel_json(const char *name, const kernel_shape *s, const kernel_result *k, const sample_summary *m,
                           double ns)
{
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:I}", "model", report_model(name), "kernel",
                     k->name, "unit", k->unit, "ctx", (json_int_t)s->ctx, "budget", (json_int_t)s->budget, "head_dim",
                     (json_int_t)s->head_dim, "ns", ns, "spread", m->spread, "limit_share",
                     known(k->need > 0 && m->share >= 0, m->share), "read_gbps", known(m->read_gbs > 0, m->read_gbs),
                     "runs", (json_int_t)k->samples.n);
}

/* One row: what an item costs, at what rate bytes or operations go, and the limit beside it. */
static status print_kernel(const bench *b, const char *name, const kernel_shape *s, const kernel_result *k, err *e)
{
    char rate[24], limit[24], share[24];
    const sample_summary m = samples_summary(&k->samples, k->units, k->need);
    double ns = m.speed > 0 ? 1e9 / m.speed : 0, per_unit = k->need / k->units;
    bool compared = k->need > 0 && m.limit > 0;
    if (b->base.o->run.out.json && json_array_append_new(b->kernels, kernel_json(name, s, k, &m, ns)) != 0)
        return err_set(e, ST_NOMEM, "out of memory for the report");
    TRY(out_printf(e, "%-28s %8lld %7lld %4zu %10.3f%c %7.1f %% %9s %9s %9s %5zu/%-5zu %s\n", k->name,
                   (long long)s->ctx, (long long)s->budget, s->head_dim, ns, k->samples.enough ? ' ' : '?',
                   100 * m.spread, cell(rate, k->need > 0, "", 1, ns > 0 ? per_unit / ns : 0),
                   cell(limit, compared, "", 1, m.limit), cell(share, compared && m.share >= 0, " %", 1, 100 * m.share),
                   k->samples.n, taken(&k->samples), k->unit));
    return out_flush(e);
}

/* Every kernel at one context. The product that limits prompts' attention is the fastest with float sums. */
static status time_kernels(bench *b, const char *name, const kernel_shape *s, err *e)
{
    bench_timing t = {.meter = b->base.meter,
                      .n_threads = b->base.g.be->n_threads,
                      .wanted = (size_t)b->base.o->samples,
                      .kind = b->limits.gemm_gops[PRODUCT_BF16] > 0 ? PRODUCT_BF16 : PRODUCT_F32};
    for (size_t i = 0; i < bench_kernels(); i++) {
        kernel_result k;
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
        err why = {0};
        status st = bench_kernel(i, b->base.g.be, s, &t, &k, &why);
        TRY(backend_fault(b->base.g.be, e));
        if (st == ST_OK) TRY(print_kernel(b, name, s, &k, e));
        else TRY(out_printf(e, "%-28s - %s\n", bench_kernel_name(i), why.msg));
    }
    return ST_OK;
}

static status run_kernels(bench *b, const char *name, const model_config *c, err *e)
{
    TRY(measure_limits(b, e));
    TRY(out_printf(e, "%s, %d query heads, %d kv heads, f16 rows\n\n%-28s %8s %7s %4s %11s %9s %9s %9s %9s %11s %s\n",
                   name, (int)c->n_heads, (int)c->n_kv_heads, "kernel", "ctx", "budget", "dim", "ns ", "spread", "G/s",
                   "limit G/s", "of limit", "samples    ", "ns of a"));
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
    if (shapes && b->kernel) TRY(cli_each(shapes, run_shape_kernels, b, e));
    if (!shapes) TRY(run_shape(b, NULL, e));
    else if (b->prefill || b->decode) TRY(cli_each(shapes, run_shape, b, e));
    return b->base.o->run.out.json ? write_report(b, e) : ST_OK;
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
    bench_close_model(&b.base);
    return st;
}

static const cli_option rows[] = {
    OPTION("shape", "NAME,...", TEXT, AT(bench_options, shape), "random weights of known shapes, e.g. llama-3.2-1b"),
    OPTION("phase", "LIST", TEXT, AT(bench_options, phase),
           "what to time: prefill, decode (default: both), or kernel, single ops"),
    OPTION("batch", "N,...", TEXT, AT(bench_options, batch), "sequences of one decode step (default 1)"),
    OPTION("samples", "N", WHOLE(1, 20, 0), AT(bench_options, samples),
           "timed runs that count, of at most 2 N (default 20; fewer for a quick look)"),
    OPTION("fill", NULL, FLAG, AT(bench_options, fill),
           "random rows as context instead of a real prompt (always so for prompts beyond 8k tokens)"),
    OPTION("draft", "SPEC[:n=K]", TEXT, AT(bench_options, run.engine.draft),
           "time decode steps with these drafts (generate --draft) against single steps"),
    OPTION("draft-weights", "q8|q4", TEXT, AT(bench_options, run.engine.draft_weights),
           "with --draft STRATEGY: drafts run with the model's matrices in 8 or 4 bits (generate --draft-weights)"),
    OPTION("accept", "P", NUMBER(0.9), AT(bench_options, accept),
           "with --draft: the share of drafted tokens that is taken as right, whatever the model says (default 0.9)"),
    {0}};

const command bench_command = {.name = "bench",
                               .args = "",
                               .summary = "speed, and its share of what the machine can do",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH,
                               .own = rows,
                               .size = sizeof(bench_options),
                               .run = cmd_bench};
