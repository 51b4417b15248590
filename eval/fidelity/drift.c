/* SPDX-License-Identifier: MIT */
/* `eval drift`: how quality and speed change during a long generation. For each strategy and interval of new tokens it
 * reports speed, memory, bytes read, and the selection compared with exact attention. It observes the strategy's own
 * session: rotated keys are collected in every step, and judged steps are compared with exact attention over all of
 * them. Source: doc/evals.md 20. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/fidelity/fidelity.h"
#include "eval/measure.h"
#include "eval/fidelity/recall_follow.h"
#include "generate/sequence.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

typedef struct {
    run_options run;
    const char *file;
    double temp, top_p;
    const char *n, *prompt, *every, *compare;
    int judged;
} drift_options;

typedef struct {
    measure m;
    fidelity_text text; /* the prompt */
    const drift_options *o;
    size_t n_prompt;
    int64_t n, every; /* number of new tokens; tokens of an interval, which divides n */
    int64_t compare;  /* new tokens between comparisons with full attention, a multiple of every; 0: none */
} drift_run;

/* ---- options ---- */

static status parse(void *own, err *e)
{
    drift_run *r = own;
    int64_t prompt;
    const drift_options *o = r->o;
    TRY(cli_parse_size(&r->n, o->n ? o->n : "32k", "-n", e));
    TRY(cli_parse_size(&r->every, o->every ? o->every : "1024", "--every", e));
    r->compare = 4 * r->every;
    if (o->compare) TRY(cli_parse_size(&r->compare, o->compare, "--compare", e));
    TRY(cli_parse_size(&prompt, o->prompt ? o->prompt : "2048", "--prompt", e));
    if (prompt < 1) return err_set(e, ST_USAGE, "--prompt %s: must be at least 1", o->prompt);
    if (r->every <= o->judged)
        return err_set(e, ST_USAGE, "--every %lld: must be greater than --judged %d", (long long)r->every, o->judged);
    if (r->n < r->every || r->n % r->every != 0)
        return err_set(e, ST_USAGE, "-n %lld: must be a multiple of --every %lld", (long long)r->n,
                       (long long)r->every);
    if (r->compare < 0 || r->compare % r->every != 0)
        return err_set(e, ST_USAGE, "--compare %lld: must be 0 or a multiple of --every %lld", (long long)r->compare,
                       (long long)r->every);
    r->n_prompt = (size_t)prompt;
    return ST_OK;
}

/* Reads the prompt: the first tokens of the text, after BOS if the tokenizer adds one. */
static status ready(void *own, err *e)
{
    drift_run *r = own;
    measure *m = &r->m;
    unsigned flags = tokenizer_adds_bos(m->g.tok) ? TOKENIZE_BOS : 0;
    int64_t n_tokens = (int64_t)r->n_prompt + r->n;
    TRY(fidelity_text_read(&r->text, &m->g, r->o->file, flags, e));
    if (r->text.ids.n < r->n_prompt)
        return err_set(e, ST_USAGE, "--prompt %zu: the text has only %zu tokens", r->n_prompt, r->text.ids.n);
    r->text.ids.n = r->n_prompt;
    cli_warn_length(m->g.m, "--prompt and -n together,", n_tokens);
    return lineup_check(&m->rows, &m->g, n_tokens, e);
}

/* ---- results ---- */

/* Returns the result of the interval that ends after `generated` new tokens. */
static const json_t *result_of(const drift_run *r, size_t row, int64_t generated)
{
    return measure_result(&r->m, row, json_pack("{s:I}", "generated", (json_int_t)generated));
}

/* A generation in progress. */
typedef struct {
    drift_run *r;
    size_t row;
    follow f;
    recall_run run;
    sequence q;   /* ids: prompt and new tokens */
    stepper x;    /* stepper of one sequence; its row holds the logits of the next token */
    bool judging; /* the current step is judged */
    /* State of the interval: time and number of the timed (not judged) steps; number of newest tokens attended
     * regardless of score, summed over `n_newest` layers of judged steps; counters of the strategy at its start. */
    int64_t ns, n_timed, n_newest;
    double newest;
    attn_stats before;
    /* Session of full attention over the same tokens; NULL: no comparison. */
    session *full;
    float *full_logits;
    double kl; /* interval sums over the compared steps */
    int64_t top1, n_compared;
} generation;

/* ---- observation ---- */

static void judge_layer(generation *g, const attn_seen *seen)
{
    follow *f = &g->f;
    int64_t head_end, tail;
    follow_query(f, seen->layer, seen->q);
    follow_judge(f, 0, seen->layer, 0);
    if (!attn_retrieves(&g->run.spec) || g->run.dense[seen->layer]) return;
    attn_last_selection(f->work, 0, 0, NULL, &head_end, &tail);
    if (tail == 0) return; /* everything was attended */
    g->newest += (double)(f->rows[seen->layer].n - tail);
    g->n_newest++;
}

static void on_seen(void *ctx, const attn_seen *seen)
{
    generation *g = ctx;
    follow *f = &g->f;
    g->run.seq = seen->step->seq[0];
    if (seen->layer >= 0 && seen->layer < f->shape->n_layers) {
        follow_append(f, seen->layer, seen->k, seen->v, seen->step->n_tok);
        if (g->judging) judge_layer(g, seen);
    }
}

/* ---- full attention over the same tokens ---- */

/* Feeds full attention its missing tokens as a prompt, except the last token, which is a decode step as in the
 * strategy. */
static status feed_full(generation *g, err *e)
{
    size_t from = (size_t)session_length(g->full), last = g->q.ids.n - 1;
    const prefill_options o = {.which = LOGITS_LAST};
    if (last > from) TRY(session_prefill(&g->full, 1, g->q.ids.ids + from, last - from, &o, e));
    return session_decode(&g->full, 1, &g->q.ids.ids[last], g->full_logits, e);
}

static status compare(generation *g, err *e)
{
    size_t vocab = (size_t)g->r->m.g.m->config.vocab;
    attn_watch(g->f.work, NULL, NULL);
    status st = feed_full(g, e);
    attn_watch(g->f.work, on_seen, g);
    TRY(st);
    g->kl += fidelity_divergence(g->full_logits, g->x.logits, vocab);
    g->top1 += logits_argmax(g->full_logits, vocab) == logits_argmax(g->x.logits, vocab);
    g->n_compared++;
    return ST_OK;
}

/* ---- an interval ---- */

static void interval_begin(generation *g)
{
    size_t n = (size_t)g->f.shape->n_layers * (size_t)g->f.shape->n_heads;
    memset(g->run.sum[0], 0, RECALL_SUMS * n * sizeof(double));
    g->run.n_queries = g->ns = g->n_timed = g->n_newest = 0;
    g->newest = g->kl = 0;
    g->top1 = g->n_compared = 0;
    g->before = attn_seq_stats(session_attn(g->q.s));
}

/* Returns the results of the judged steps. */
static json_t *judged_json(const generation *g)
{
    const recall_run *run = &g->run;
    double n = (double)g->n_compared; /* 0: the quotients are NAN, written as null */
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "selected", results_real(recall_mean(run, SUM_SELECTED, -1)),
                     "recall", results_real(recall_mean(run, SUM_RECALL, -1)), "mass",
                     results_real(recall_mean(run, SUM_MASS, -1)), "newest",
                     results_real(g->newest / (double)g->n_newest), "kl", results_real(g->kl / n), "top1",
                     results_real((double)g->top1 / n));
}

static json_t *interval_json(const generation *g, int64_t generated)
{
    attn_stats a = attn_seq_stats(session_attn(g->q.s));
    attn_bytes held = attn_seq_held(session_attn(g->q.s));
    double steps = (double)(a.steps - g->before.steps);
    json_t *costs = json_pack("{s:I, s:I, s:o, s:I, s:I, s:f, s:f, s:f}", "generated", (json_int_t)generated, "length",
                              (json_int_t)session_length(g->q.s), "tokens_per_s",
                              results_real((double)g->n_timed * 1e9 / (double)g->ns), "kv_bytes", (json_int_t)held.kv,
                              "index_bytes", (json_int_t)held.index, "kv_read", (a.kv_read - g->before.kv_read) / steps,
                              "index_read", (a.index_read - g->before.index_read) / steps, "attended",
                              (a.attended - g->before.attended) / steps / g->f.shape->n_layers);
    return results_merge(costs, judged_json(g));
}

static status interval_end(generation *g, int64_t generated, err *e)
{
    if (result_of(g->r, g->row, generated)) return ST_OK;
    return measure_add(&g->r->m, g->row, interval_json(g, generated), e);
}

/* ---- the run ---- */

static bool on_prompt(void *ctx, int64_t done, int64_t total)
{
    const generation *g = ctx;
    progress_set(g->r->m.bar, done, total + g->r->n);
    return !cli_interrupted();
}

/* Samples a token and feeds it. End-of-text tokens do not stop the generation. */
static status step(generation *g, bool judging, err *e)
{
    sequence *q = &g->q;
    TRY(sequence_accept(q, sequence_choose(q, g->x.logits), e));
    g->judging = judging;
    int64_t t = clock_ns();
    TRY(sequence_decode(&g->x, &q, 1, e));
    if (judging) {
        g->run.n_queries++;
    } else {
        g->ns += clock_ns() - t;
        g->n_timed++;
    }
    if (g->f.st != ST_OK) *e = g->f.e;
    return g->f.st;
}

static status generate(generation *g, err *e)
{
    drift_run *r = g->r;
    sequence *q = &g->q;
    const prompt_options o = {.logits = true, .progress = on_prompt, .ctx = g};
    TRY(sequence_push(q, r->text.ids.ids, r->text.ids.n, e));
    sequence_begin(q, q->ids.n);
    TRY(sequence_prefill(&g->x, &q, 1, &o, e));
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = i % r->every;
        if (at == 0) interval_begin(g);
        bool judging = at >= r->every - r->o->judged;
        TRY(step(g, judging, e));
        if (judging && g->full && (i / r->every + 1) * r->every % r->compare == 0) TRY(compare(g, e));
        if (at == r->every - 1) TRY(interval_end(g, i + 1, e));
        progress_set(r->m.bar, session_length(g->q.s), (int64_t)r->text.ids.n + r->n);
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* Opens a session of full attention, if comparisons take place. */
static status open_full(generation *g, int64_t n_tokens, err *e)
{
    const drift_run *r = g->r;
    attn_spec full;
    const attn_options o = {.kv = kv_plain(g->f.type)};
    if (r->compare == 0 || r->compare > r->n) return ST_OK;
    TRY(attn_spec_parse(&full, "full", &o, e));
    TRY(session_create(&g->full, r->m.g.dec, &full, session_of(n_tokens), e));
    return MEM_NEW(&g->full_logits, (size_t)r->m.g.m->config.vocab, e);
}

static status open_all(generation *g, err *e)
{
    drift_run *r = g->r;
    const drift_options *o = r->o;
    follow *f = &g->f;
    int64_t n_tokens = (int64_t)r->text.ids.n + r->n;
    const attn_limits lim = {.n_tokens = n_tokens, .chunk = decoder_chunk(r->m.g.dec)};
    const sampler_options so = {.temp = o->temp, .top_p = o->top_p, .repeat_penalty = 1, .seed = o->run.seed.value};
    g->run.spec = r->m.rows.run[g->row].spec;
    f->be = r->m.g.be;
    f->shape = decoder_attn_shape(r->m.g.dec);
    f->runs = &g->run;
    f->n_runs = 1;
    f->watched = true;
    f->work = decoder_attn_work(r->m.g.dec);
    f->prompt = (int64_t)r->text.ids.n;
    const sequence_options qo = {.spec = &g->run.spec, .size = session_of(n_tokens), .sampling = &so};
    TRY(sequence_open(&g->q, r->m.g.dec, &qo, e));
    TRY(follow_open(f, &lim, false, e));
    TRY(open_full(g, n_tokens, e));
    return stepper_open(&g->x, r->m.g.dec, 1, e);
}

static status run_row(void *own, size_t row, err *e)
{
    drift_run *r = own;
    generation g = {.r = r, .row = row};
    status st = open_all(&g, e);
    if (st == ST_OK) {
        attn_watch(g.f.work, on_seen, &g);
        st = generate(&g, e);
        attn_watch(g.f.work, NULL, NULL);
    }
    g.run.seq = NULL; /* it belongs to the session */
    recall_runs_clear(&g.run, 1);
    follow_close(&g.f);
    sequence_close(&g.q);
    stepper_close(&g.x);
    session_free(g.full);
    mem_free(g.full_logits);
    return st;
}

/* Columns of the table; values are divided by `unit`. */
static const struct {
    const char *title, *keys[2]; /* one member, or two to add */
    double unit;
    int decimals;
    bool detail;
} columns[] = {{"tokens/s", {"tokens_per_s"}, 1, 1, false},
               {"KV MB", {"kv_bytes"}, 1e6, 3, false},
               {"index MB", {"index_bytes"}, 1e6, 3, true},
               {"read MB", {"kv_read", "index_read"}, 1e6, 3, false},
               {"attended", {"attended"}, 1, 1, true},
               {"recall", {"recall"}, 1, 4, false},
               {"mass", {"mass"}, 1, 4, false},
               {"newest", {"newest"}, 1, 1, true},
               {"KL", {"kl"}, 1, 4, false},
               {"top 1", {"top1"}, 1, 4, false}};

enum { COLUMNS = sizeof columns / sizeof *columns };

/* Returns the value of a column; NAN: unknown or not measured. */
static double value_of(const json_t *line, int column)
{
    double sum = 0;
    for (int i = 0; i < 2 && columns[column].keys[i]; i++) sum += results_number(line, columns[column].keys[i]);
    return sum / columns[column].unit;
}

/* Returns the value in the last interval in which it is known, divided by that in the first. */
static double ratio_of(const drift_run *r, size_t row, int column)
{
    double start = (double)NAN, end = (double)NAN;
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        double x = value_of(result_of(r, row, k), column);
        if (isnan(start)) start = x;
        if (!isnan(x)) end = x;
    }
    return start > 0 ? end / start : (double)NAN;
}

static status print_row(void *own, size_t row, err *e)
{
    const drift_run *r = own;
    const attn_spec *spec = &r->m.rows.run[row].spec;
    table t = {0};
    char budget[24];
    lineup_budget_text(budget, sizeof budget, spec);
    TRY(out_printf(e, "%s, budget %s\n", spec->text, budget));
    table_column(&t, TABLE_KEY, 0, "new tokens");
    for (int c = 0; c < COLUMNS; c++) table_column(&t, columns[c].detail ? TABLE_DETAIL : 0, 0, columns[c].title);
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        const json_t *line = result_of(r, row, k);
        table_cell(&t, "%lld", (long long)k);
        for (int c = 0; c < COLUMNS; c++) table_number(&t, value_of(line, c), columns[c].decimals);
    }
    table_cell(&t, "end / start");
    for (int c = 0; c < COLUMNS; c++) table_number(&t, ratio_of(r, row, c), 3);
    TRY(table_print(&t, e));
    return out_printf(e, "\n");
}

/* ---- JSON ---- */

/* Returns a row with its intervals, or the reason why there are none. */
static json_t *row_json(const drift_run *r, size_t row)
{
    json_t *intervals = json_array(), *ratios = json_object();
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        const json_t *line = result_of(r, row, k);
        if (line) intervals = results_append(intervals, json_incref((json_t *)(uintptr_t)line));
    }
    for (int c = 0; c < COLUMNS; c++)
        ratios = results_merge(ratios, json_pack("{s:o}", columns[c].title, results_real(ratio_of(r, row, c))));
    json_t *o = json_pack("{s:o, s:o, s:n}", "intervals", intervals, "end_over_start", ratios, "reason");
    return measure_row_json(&r->m, row, o);
}

static json_t *results_json(const void *own)
{
    const drift_run *r = own;
    json_t *list = json_array();
    for (size_t i = 0; i < r->m.rows.n; i++) list = results_append(list, row_json(r, i));
    return list;
}

static json_t *json_config(const void *own)
{
    const run_options *o = ((const drift_run *)own)->m.o;
    return json_pack("{s:s, s:I}", "attn", o->attn.names ? o->attn.names : "all", "seed", (json_int_t)o->seed.value);
}

/* ---- the command ---- */

static const char *const identity[] = {"attn", "budget", "generated", NULL};

static json_t *config(const void *own)
{
    const drift_run *r = own;
    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:f, s:f}", "n", (json_int_t)r->n, "prompt", (json_int_t)r->n_prompt,
                     "every", (json_int_t)r->every, "compare", (json_int_t)r->compare, "judged", r->o->judged, "temp",
                     r->o->temp, "top_p", r->o->top_p);
}

static json_t *output_config(const void *own)
{
    return json_pack("{s:s}", "text_sha256", ((const drift_run *)own)->text.sha256);
}

static status print_head(void *own, err *e)
{
    const drift_run *r = own;
    paragraph("drift: %lld new tokens after a prompt of %zu, seed %llu, the last %d of each %lld judged",
              (long long)r->n, r->n_prompt, (unsigned long long)r->m.o->seed.value, r->o->judged, (long long)r->every);
    return lineup_print_terms(&r->m.rows, e);
}

/* True if an interval has no result. The row is then generated again from its start. */
static bool lacks(const void *own, size_t row)
{
    const drift_run *r = own;
    for (int64_t k = r->every; k <= r->n; k += r->every)
        if (!result_of(r, row, k)) return true;
    return false;
}

static const measure_kind drift_kind = {.attn = "all",
                                        .identity = identity,
                                        .resume = "after the last complete strategy",
                                        .parse = parse,
                                        .ready = ready,
                                        .config = config,
                                        .output_config = output_config,
                                        .json_config = json_config,
                                        .head = print_head,
                                        .lacks = lacks,
                                        .run = run_row,
                                        .print = print_row,
                                        .results = results_json};

static status cmd_drift(void *options, err *e)
{
    const drift_options *o = options;
    drift_run r = {.m.o = &o->run, .o = o};
    status st = measure_run(&r.m, &drift_kind, e);
    measure_close(&r.m);
    fidelity_text_free(&r.text);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'n', .arg = "N", AT(drift_options, n), .help = "new tokens of each strategy (default 32k)"},
    {.letter = 'f',
     .arg = "FILE",
     AT(drift_options, file),
     .help = "text file of the prompt (default: the book of eval pg19)"},
    OPTION("prompt", "N", TEXT, AT(drift_options, prompt),
           "length of the prompt: the first N tokens of the text (default 2048)"),
    OPTION("every", "N", TEXT, AT(drift_options, every), "new tokens per interval (default 1024)"),
    OPTION("compare", "N", TEXT, AT(drift_options, compare),
           "compare with full attention every N new tokens (default: every fourth interval; 0: never)"),
    OPTION("judged", "N", WHOLE(1, 1 << 20, 8), AT(drift_options, judged),
           "steps at the end of each interval compared with exact attention (default 8)"),
    OPTION("temp", "T", NUMBER(0.8), AT(drift_options, temp), "temperature, 0 = greedy (default 0.8)"),
    OPTION("top-p", "P", NUMBER(0.95), AT(drift_options, top_p),
           "keep the most likely tokens up to mass P (default 0.95)"),
    {0}};

const command drift_command = {.name = "eval drift",
                               .measure = "logits",
                               .args = "",
                               .summary = "speed, memory and selection along a long generation",
                               .groups = OPTIONS_MODEL | OPTIONS_RESULTS,
                               .own = rows,
                               .size = sizeof(drift_options),
                               .alone = true,
                               .run = cmd_drift};
