/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_tables.h"

#include <string.h>

#include "cli/output.h"

/* ---- cases ---- */

const char *bench_line_phase(const bench_line *l)
{
    return l->r.decode ? "decode" : "prefill";
}

void bench_case_columns(const lineup *l, bool batches, bool kvs, table *t)
{
    table_column(t, TABLE_KEY | TABLE_LEFT, 7, "phase");
    lineup_columns(l, t);
    table_column(t, TABLE_KEY, 6, "ctx");
    table_column(t, batches ? TABLE_KEY : TABLE_DETAIL, 0, "batch");
    table_column(t, TABLE_LEFT | (kvs ? TABLE_KEY : TABLE_DETAIL), 4, "kv");
}

void bench_case_cells(const bench_line *l, table *t)
{
    table_cell(t, "%s", bench_line_phase(l));
    lineup_cells(&l->spec, t);
    table_cell(t, "%lld", (long long)l->ctx);
    if (l->r.decode) table_cell(t, "%zu", l->r.batch);
    else table_cell(t, "-");
    table_cell(t, "%s", kv_format_name(&l->spec.kv));
}

/* ---- time by part ---- */

/* Stages as printed. */
enum { PART_PROJECTIONS, PART_INDEX, PART_SCORE, PART_TOPK, PART_ATTENTION, PART_REST, PARTS };
static const int part_of[STAGE_COUNT] = {
    [STAGE_EMBED] = PART_REST,          [STAGE_NORM] = PART_REST,       [STAGE_QKV] = PART_PROJECTIONS,
    [STAGE_INDEX] = PART_INDEX,         [STAGE_SCORE] = PART_SCORE,     [STAGE_TOPK] = PART_TOPK,
    [STAGE_ATTENTION] = PART_ATTENTION, [STAGE_OUT] = PART_PROJECTIONS, [STAGE_FFN] = PART_PROJECTIONS,
    [STAGE_LOGITS] = PART_PROJECTIONS};

double bench_unmarked_ns(const bench_result *r)
{
    double ns = (double)r->profiled_ns;
    for (int i = 0; i < STAGE_COUNT; i++) ns -= (double)r->stage_ns[i];
    return ns;
}

double bench_per_token(const bench_line *l, double x)
{
    return l->r.tokens > 0 ? x / (double)l->r.tokens : 0;
}

/* ---- tables ---- */

static double steps_of(const bench_line *l)
{
    return l->r.steps > 0 ? (double)l->r.steps : 1;
}

/* Adds numbers. */
static void add_numbers(table *t, const double *x, size_t n, int decimals)
{
    for (size_t i = 0; i < n; i++) table_number(t, x[i], decimals);
}

static void add_parts(const bench_line *l, table *t)
{
    double ns[PARTS] = {[PART_REST] = bench_unmarked_ns(&l->r)};
    for (int i = 0; i < STAGE_COUNT; i++) ns[part_of[i]] += (double)l->r.stage_ns[i];
    for (int i = 0; i < PARTS; i++) table_number(t, 1e-3 * bench_per_token(l, ns[i]), 1);
}

static void add_bytes(const bench_line *l, table *t)
{
    const attn_bytes *h = &l->r.held;
    const double x[] = {(double)h->kv / 1e6, (double)h->index / 1e6, (double)h->scratch / 1e6, l->r.kv_read / 1e6,
                        l->r.index_read / 1e6};
    add_numbers(t, x, sizeof x / sizeof *x, 3);
    table_cell(t, "%.1f %%", 100 * l->r.key_access);
}

static void add_disk(const bench_line *l, table *t)
{
    const tier_counts *c = &l->r.moved;
    const double n = steps_of(l), moved[] = {(double)c->read / 1e6 / n, (double)c->written / 1e6 / n};
    const double held[] = {(double)c->in_file / 1e6, (double)c->here / 1e6, (double)l->r.peak.kv / 1e6};
    add_numbers(t, moved, 2, 3);
    table_number(t, (double)c->pages / n, 1);
    table_cell(t, "%.1f %%", 100 * tier_hits(c));
    table_number(t, tier_per_row(c), 3);
    table_number(t, (double)c->stall_ns / 1e6 / n, 3);
    add_numbers(t, held, 3, 1);
}

static void add_hosted(const bench_line *l, table *t)
{
    const host_counts *h = &l->r.host;
    const double n = steps_of(l), moved[] = {h->read / 1e6 / n, h->written / 1e6 / n};
    table_number(t, (double)h->held / 1e6, 1);
    add_numbers(t, moved, 2, 3);
    table_cell(t, "%.1f %%", 100 * host_hits(h));
}

_Static_assert(TIER_PAGE == 16, "a table names the rows of a block");

enum { TITLES_MOST = 10 };

/* Tables with one line per applicable case. */
static const struct {
    const char *about, *titles[TITLES_MOST]; /* text above the table; columns after those that identify a case */
    unsigned details;                        /* bit i: column i is a detail */
    bool decode;                             /* only decode cases */
    kv_tier_kind tier;                       /* only rows on this tier; KV_DEVICE: any */
    void (*add)(const bench_line *l, table *t);
} case_tables[] = {
    {"microseconds per token, from a separate run",
     {"projections", "index", "score", "top-k", "attention", "rest"},
     1u << 3,
     false,
     KV_DEVICE,
     add_parts},
    {"MB that a sequence holds and that its decode step reads; keys: fraction of all key bytes read (rows and index)",
     {"KV", "index", "scratch", "rows read", "index rd", "keys"},
     1u << 2,
     true,
     KV_DEVICE,
     add_bytes},
    {"between memory and files, per decode step of a sequence: MB read and written, blocks of 16 rows with selected "
     "rows, fraction of them in memory, blocks per selected row, ms waited; MB in files, of these in memory, and peak "
     "KV in memory",
     {"read", "written", "blocks", "hits", "a row", "waited", "files", "of these", "KV most"},
     0,
     true,
     KV_DISK,
     add_disk},
    {"in host memory: MB that a sequence holds and that its decode step reads and writes there, and fraction of its "
     "rows that were on the device; kernels read in place, no step waits",
     {"KV", "read", "written", "hits"},
     0,
     true,
     KV_HOST,
     add_hosted}};

static bool is_in(const bench_line *l, size_t k)
{
    kv_tier_kind kind = case_tables[k].tier;
    return !case_tables[k].decode || (l->r.decode && (kind == KV_DEVICE || l->spec.tier.kind == kind));
}

static status print_table(const bench_line *lines, size_t n_lines, size_t k, err *e)
{
    table t = {0};
    size_t n = 0;
    const lineup none = {0};
    bool batches = false, kvs = false;
    for (size_t i = 0; i < n_lines; i++) {
        n += is_in(&lines[i], k);
        batches |= lines[i].r.decode && lines[i].r.batch != lines[n_lines - 1].r.batch;
        kvs |= strcmp(kv_format_name(&lines[i].spec.kv), kv_format_name(&lines[0].spec.kv)) != 0;
    }
    if (n == 0) return ST_OK;
    TRY(out_printf(e, "\n"));
    paragraph("%s", case_tables[k].about);
    TRY(paragraph_end(2, e));
    TRY(out_printf(e, "\n"));
    bench_case_columns(&none, batches, kvs, &t);
    for (unsigned i = 0; case_tables[k].titles[i]; i++)
        table_column(&t, case_tables[k].details & (1u << i) ? TABLE_DETAIL : 0, 0, case_tables[k].titles[i]);
    for (size_t i = 0; i < n_lines; i++) {
        if (!is_in(&lines[i], k)) continue;
        bench_case_cells(&lines[i], &t);
        case_tables[k].add(&lines[i], &t);
    }
    return table_print(&t, e);
}

status bench_print_tables(const bench_line *lines, size_t n, err *e)
{
    for (size_t k = 0; k < sizeof case_tables / sizeof *case_tables; k++) TRY(print_table(lines, n, k, e));
    return ST_OK;
}
