/* SPDX-License-Identifier: MIT */
/* `eval accept`: the fraction of a strategy's tokens that full attention would have chosen over the same rows with the
 * same random numbers. It needs no task; results for drafts of any length follow from it. Source: doc/evals.md 21. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "cli/command.h"
#include "eval/evaluation.h"
#include "eval/fidelity/fidelity.h"
#include "eval/measure.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* Tokens per draft. */
enum { ACCEPT_AHEAD = SESSION_VERIFY_ROWS };

typedef struct {
    run_options run;
    const char *file;
    const char *temp;
    int n, trials;
} accept_options;

/* Counts of a case. right[j]: drafts whose first j + 1 tokens equal those of full attention. tokens, differences: of
 * texts that the strategy generates by itself, restarting with full attention's rows after each difference. */
typedef struct {
    int64_t n, right[ACCEPT_AHEAD];
    int64_t tokens, differences;
} sums;

typedef struct {
    measure m;
    fidelity_text text;
    const accept_options *o;
    double *temp;
    size_t n_temp;
} accept_run;

/* A piece of the text at a temperature. */
typedef struct {
    size_t row;
    int64_t ctx;
    int trial;
    double temp;
} case_id;

/* Specs of a measurement: a session of full attention over rows of the same type, and the strategy that drafts in it.
 * `full` drafts as itself. */
typedef struct {
    attn_spec full, draft;
    session_size size; /* size.draft: &draft, or NULL */
} sessions;
/* Returns the session length for pieces of at most `ctx` tokens. */
static int64_t limit_of(const accept_run *r, int64_t ctx)
{
    return ctx + r->o->n + ACCEPT_AHEAD;
}

static status pair_of(sessions *out, const attn_spec *row, int64_t n_tokens, err *e)
{
    const attn_options o = {.kv = row->kv, .tier = &row->tier};
    *out = (sessions){.draft = *row, .size = session_of(n_tokens)};
    TRY(attn_spec_parse(&out->full, "full", &o, e));
    TRY(attn_verify_check(&out->full, e));
    if (row->method == out->full.method) return ST_OK;
    out->draft.tier = (kv_tier){0}; /* it uses the rows of the full session */
    out->size.draft = &out->draft;
    return ST_OK;
}

/* Returns {"ctx", "trial", "temp"}, which identify a result of a row. */
static json_t *identity_of(const case_id *x)
{
    return json_pack("{s:I, s:i, s:f}", "ctx", (json_int_t)x->ctx, "trial", x->trial, "temp", x->temp);
}

static const json_t *result_of(const accept_run *r, const case_id *x)
{
    return measure_result(&r->m, x->row, identity_of(x));
}

/* Returns {"n", "right", "tokens", "differences"}; NULL: out of memory. */
static json_t *counts_json(const sums *s)
{
    return json_pack("{s:I, s:o, s:I, s:I}", "n", (json_int_t)s->n, "right", report_sizes(s->right, ACCEPT_AHEAD),
                     "tokens", (json_int_t)s->tokens, "differences", (json_int_t)s->differences);
}

/* ---- options ---- */

static status take_temp(void *own, const char *word, err *e)
{
    accept_run *r = own;
    char *end;
    double temp = strtod(word, &end);
    if (end == word || *end || !(temp >= 0 && isfinite(temp)))
        return err_set(e, ST_USAGE, "--temp: '%.40s': expected a comma-separated list of numbers >= 0", word);
    TRY(MEM_GROW(&r->temp, r->n_temp + 1, e));
    r->temp[r->n_temp++] = temp;
    return ST_OK;
}

static status parse(void *own, err *e)
{
    accept_run *r = own;
    fidelity_text *t = &r->text;
    TRY(cli_each(r->o->temp ? r->o->temp : "0,1", take_temp, r, e));
    TRY(cli_parse_sizes(&t->ctx, &t->n_ctx, r->m.o->attn.ctx, "2048", "--ctx", e));
    for (size_t i = 0; i < t->n_ctx; i++)
        if (t->ctx[i] < r->o->n + 2)
            return err_set(e, ST_USAGE, "--ctx %lld: must exceed -n %d by at least 2 tokens", (long long)t->ctx[i],
                           r->o->n);
    return ST_OK;
}

/* ---- checking the lineup ---- */

static status can_run(void *ctx, const attn_spec *row, err *why)
{
    const accept_run *r = ctx;
    const decoder_options o = {.chunk = (size_t)r->m.o->engine.device.chunk, .verify = ACCEPT_AHEAD};
    int64_t longest = 0;
    sessions p;
    for (size_t i = 0; i < r->text.n_ctx; i++)
        if (r->text.ctx[i] > longest) longest = r->text.ctx[i];
    TRY(pair_of(&p, row, limit_of(r, longest), why));
    return session_check(r->m.g.m, &o, &p.full, p.size, why);
}

static status ready(void *own, err *e)
{
    accept_run *r = own;
    TRY(fidelity_text_read(&r->text, &r->m.g, r->o->file, 0, e));
    return lineup_check_by(&r->m.rows, can_run, r, e);
}

typedef struct {
    accept_run *r;
    session *s;
    sampler *by;      /* sampler of the current case */
    token_list piece; /* piece of the text; all but its last n tokens are the prompt */
    int32_t *text;    /* [n + 1] text of full attention after the piece */
    size_t n;
    sums sums;
} measured;

/* ---- drafts from full attention's rows ---- */

/* Feeds x after the session's tokens, drafts after it, and counts the right tokens. *next: full attention's token after
 * x. */
static status draft_behind(measured *m, int32_t x, int32_t *next, err *e)
{
    int32_t fed[ACCEPT_AHEAD + 1] = {x}, id;
    int64_t length = session_length(m->s);
    TRY(session_draft(m->s, x, ACCEPT_AHEAD, m->by, fed + 1, e));
    TRY(session_verify(m->s, fed, ACCEPT_AHEAD, e));
    m->sums.n++;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) {
        TRY(session_verified(m->s, i, m->by, &id, e));
        if (i == 0) *next = id;
        if (id != fed[i + 1]) break;
        m->sums.right[i]++;
    }
    return session_rewind(m->s, length + 1, e);
}

/* Drafts from each of the last n tokens of the piece. */
static status draft_all(measured *m, err *e)
{
    for (size_t i = m->piece.n - m->n; i < m->piece.n; i++) {
        TRY(draft_behind(m, m->piece.ids[i], &m->text[0], e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- along full attention's text ---- */

/* Generates the text after text[0] with full attention, then rewinds the session. */
static status write_text(measured *m, err *e)
{
    int64_t length = session_length(m->s);
    for (size_t i = 0; i < m->n; i++) {
        TRY(session_verify(m->s, &m->text[i], 1, e));
        TRY(session_verified(m->s, 0, m->by, &m->text[i + 1], e));
    }
    return session_rewind(m->s, length, e);
}

/* Lets the strategy generate after text[at] over its own rows, up to a difference or the end. *n: number of tokens.
 * Rewinds the session. */
static status go_on(measured *m, size_t at, size_t *n, err *e)
{
    int64_t length = session_length(m->s);
    int32_t id = m->text[at];
    bool same = true;
    for (*n = 0; same && at + *n < m->n; ++*n) {
        TRY(session_draft_on(m->s, id, 1, m->by, &id, e));
        same = id == m->text[at + *n + 1];
    }
    m->sums.tokens += (int64_t)*n;
    m->sums.differences += !same;
    return session_rewind(m->s, length, e);
}

/* Feeds n tokens of the text with full attention. */
static status feed(measured *m, size_t at, size_t n, err *e)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < ACCEPT_AHEAD ? n - i : ACCEPT_AHEAD;
        TRY(session_verify(m->s, m->text + at + i, k, e));
    }
    return ST_OK;
}

static status run_along(measured *m, err *e)
{
    TRY(write_text(m, e));
    for (size_t at = 0, n; at < m->n; at += n) {
        TRY(go_on(m, at, &n, e));
        TRY(feed(m, at, n, e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- cases ---- */

/* Measures one temperature on a piece whose prompt is in the session. */
static status measure_case(measured *m, const case_id *x, err *e)
{
    const sampler_options so = {.temp = x->temp,
                                .top_p = 1,
                                .repeat_penalty = 1,
                                .seed = evaluation_random(m->r->m.o->seed.value, x->trial, (uint64_t)x->ctx)};
    int64_t prompt = session_length(m->s);
    m->sums = (sums){0};
    TRY(sampler_create(&m->by, &so, (size_t)m->r->m.g.m->config.vocab, e));
    status st = draft_all(m, e);
    if (st == ST_OK) st = run_along(m, e);
    if (st == ST_OK) st = session_rewind(m->s, prompt, e);
    sampler_free(m->by);
    m->by = NULL;
    return st == ST_OK ? measure_add(&m->r->m, x->row, results_merge(identity_of(x), counts_json(&m->sums)), e) : st;
}

static bool on_prompt(void *ctx, int64_t done, int64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return !cli_interrupted();
}

static status measure_piece(measured *m, case_id *x, err *e)
{
    const accept_run *r = m->r;
    const prefill_options o = {.which = LOGITS_LAST, .progress = on_prompt};
    bool ready = false;
    for (size_t i = 0; i < r->n_temp; i++) {
        x->temp = r->temp[i];
        if (result_of(r, x)) continue;
        if (!ready) {
            session_reset(m->s);
            m->piece.n = 0;
            TRY(fidelity_piece(&m->piece, &r->text, r->m.g.tok, (size_t)x->ctx, r->m.o->seed.value, x->ctx, x->trial,
                               e));
            TRY(session_prefill(&m->s, 1, m->piece.ids, m->piece.n - m->n, &o, e));
            ready = true;
        }
        TRY(measure_case(m, x, e));
    }
    return ST_OK;
}

static status measure_length(measured *m, size_t row, size_t length, err *e)
{
    accept_run *r = m->r;
    sessions p;
    int64_t ctx = r->text.ctx[length];
    TRY(pair_of(&p, &r->m.rows.run[row].spec, limit_of(r, ctx), e));
    TRY(session_create(&m->s, r->m.g.dec, &p.full, p.size, e));
    status st = ST_OK;
    for (int i = 0; i < r->o->trials && st == ST_OK; i++) {
        st = measure_piece(m, &(case_id){.row = row, .ctx = ctx, .trial = i}, e);
        progress_set(r->m.bar, (int64_t)length * r->o->trials + i + 1, (int64_t)r->text.n_ctx * r->o->trials);
    }
    session_free(m->s);
    m->s = NULL;
    return st;
}

static status run_row(void *own, size_t row, err *e)
{
    accept_run *r = own;
    measured m = {.r = r, .n = (size_t)r->o->n};
    status st = MEM_NEW(&m.text, m.n + 1, e);
    for (size_t i = 0; i < r->text.n_ctx && st == ST_OK; i++) st = measure_length(&m, row, i, e);
    token_list_free(&m.piece);
    mem_free(m.text);
    return st;
}

enum { REPORTED = 4 }; /* drafted tokens of the reported accepted_length */

/* Draft lengths with a column of accepted length. */
static const size_t drafted[] = {1, 2, REPORTED, ACCEPT_AHEAD};
enum { LENGTHS = sizeof drafted / sizeof *drafted };

/* ---- sums ---- */

static void add(sums *s, const json_t *line)
{
    const json_t *right = json_object_get(line, "right");
    s->n += (int64_t)results_number(line, "n");
    s->tokens += (int64_t)results_number(line, "tokens");
    s->differences += (int64_t)results_number(line, "differences");
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) s->right[i] += json_integer_value(json_array_get(right, i));
}

/* Returns the sums of a row at a temperature and a length; length n_ctx: all lengths. */
static sums sums_of(const accept_run *r, size_t row, double temp, size_t length)
{
    const fidelity_text *text = &r->text;
    sums s = {0};
    for (size_t i = 0; i < text->n_ctx; i++)
        for (int t = 0; t < r->o->trials && (length == text->n_ctx || length == i); t++) {
            const json_t *line = result_of(r, &(case_id){.row = row, .ctx = text->ctx[i], .trial = t, .temp = temp});
            if (line) add(&s, line);
        }
    return s;
}

/* Results derived from the sums; NAN: unknown. */
typedef struct {
    double hazard[ACCEPT_AHEAD]; /* probability that a token is right if all tokens before it were */
    double low, high;            /* 95 % interval of the first */
    double run;                  /* mean number of tokens between differences */
} figures;

static double fraction(int64_t part, int64_t all)
{
    return all > 0 ? (double)part / (double)all : (double)NAN;
}

static figures figures_of(const sums *s)
{
    figures f;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) f.hazard[i] = fraction(s->right[i], i > 0 ? s->right[i - 1] : s->n);
    stats_wilson((double)s->right[0], s->n, &f.low, &f.high);
    f.run = fraction(s->tokens, s->differences);
    return f;
}

static double length_of(const sums *s, const figures *f, size_t n)
{
    return s->n > 0 ? stats_accepted_length(f->hazard, n) : (double)NAN;
}

/* ---- the table ---- */

static status print_head(void *own, err *e)
{
    accept_run *r = own;
    table *t = &r->m.table;
    char name[24];
    paragraph("accept: drafts of %d tokens from %d places of each of %d pieces, against full attention over the same "
              "rows, seed %llu",
              (int)ACCEPT_AHEAD, r->o->n, r->o->trials, (unsigned long long)r->m.o->seed.value);
    TRY(lineup_print_terms(&r->m.rows, e));
    lineup_columns(&r->m.rows, t);
    table_column(t, 0, 0, "tokens");
    table_column(t, 0, 0, "temp");
    table_column(t, TABLE_DETAIL, 5, "n");
    table_column(t, 0, 0, "agreement");
    table_column(t, TABLE_LEFT, 13, "95 %");
    table_column(t, 0, 6, "h8");
    table_column(t, TABLE_DETAIL, 5, "run");
    for (size_t i = 0; i < LENGTHS; i++) {
        snprintf(name, sizeof name, "E(%zu)", drafted[i]);
        table_column(t, drafted[i] < 4 ? TABLE_DETAIL2 : 0, 5, name);
    }
    return ST_OK;
}

static void add_line(accept_run *r, size_t row, double temp, size_t length)
{
    sums s = sums_of(r, row, temp, length);
    figures f = figures_of(&s);
    table *t = &r->m.table;
    lineup_cells(&r->m.rows.run[row].spec, t);
    if (length < r->text.n_ctx) table_cell(t, "%lld", (long long)r->text.ctx[length]);
    else table_cell(t, "all");
    table_cell(t, "%.3g", temp);
    table_cell(t, "%lld", (long long)s.n);
    table_number(t, f.hazard[0], 4);
    table_cell(t, "%.4f-%.4f", f.low, f.high);
    table_number(t, f.hazard[ACCEPT_AHEAD - 1], 4);
    table_number(t, f.run, 1);
    for (size_t i = 0; i < LENGTHS; i++) table_number(t, length_of(&s, &f, drafted[i]), 3);
}

static status print_row(void *own, size_t row, err *e)
{
    accept_run *r = own;
    size_t n = r->text.n_ctx;
    for (size_t t = 0; t < r->n_temp; t++)
        for (size_t i = 0; i < (n > 1 ? n + 1 : n); i++) add_line(r, row, r->temp[t], i);
    return table_flush(&r->m.table, e);
}

/* ---- JSON ---- */

/* Returns the counts of a row at a temperature and length (see sums_of), and the results derived from them. */
static json_t *figures_json(const accept_run *r, size_t row, double temp, size_t length)
{
    const sums s = sums_of(r, row, temp, length);
    figures f = figures_of(&s);
    double all[ACCEPT_AHEAD];
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) all[i] = length_of(&s, &f, i + 1);
    json_t *more =
        json_pack("{s:o, s:[f, f], s:o, s:o, s:o, s:o, s:o}", "agreement", results_real(f.hazard[0]), "ci95", f.low,
                  f.high, "h8", results_real(f.hazard[ACCEPT_AHEAD - 1]), "run", results_real(f.run), "accepted_length",
                  results_real(all[REPORTED - 1]), "hazards", results_reals(f.hazard, ACCEPT_AHEAD), "accepted_lengths",
                  results_reals(all, ACCEPT_AHEAD));
    return results_merge(counts_json(&s), more);
}

static json_t *row_json(const accept_run *r, size_t row, double temp)
{
    const fidelity_text *text = &r->text;
    char kv[128];
    json_t *list = json_array();
    for (size_t i = 0; i < text->n_ctx; i++)
        list = results_append(
            list, results_merge(json_pack("{s:I}", "ctx", (json_int_t)text->ctx[i]), figures_json(r, row, temp, i)));
    kv_format_text(&r->m.rows.run[row].spec.kv, kv, sizeof kv);
    json_t *o = json_pack("{s:s, s:f, s:o}", "kv", kv, "temp", temp, "by_context", list);
    return measure_row_json(&r->m, row, results_merge(o, figures_json(r, row, temp, text->n_ctx)));
}

static json_t *results_json(const void *own)
{
    const accept_run *r = own;
    json_t *list = json_array();
    for (size_t i = 0; i < r->m.rows.n; i++)
        for (size_t t = 0; t < r->n_temp; t++) list = results_append(list, row_json(r, i, r->temp[t]));
    return list;
}

static json_t *json_config(const void *own)
{
    const run_options *o = ((const accept_run *)own)->m.o;
    return json_pack("{s:s?, s:I}", "attn", o->attn.names, "seed", (json_int_t)o->seed.value);
}

/* ---- the command ---- */

static json_t *config(const void *own)
{
    const accept_run *r = own;
    return json_pack("{s:o, s:i, s:i, s:o, s:s}", "ctx", report_sizes(r->text.ctx, r->text.n_ctx), "trials",
                     r->o->trials, "n", r->o->n, "temp", results_reals(r->temp, r->n_temp), "text_sha256",
                     r->text.sha256);
}

static const char *const identity[] = {"attn", "budget", "ctx", "trial", "temp", NULL};

static const measure_kind accept_kind = {.attn = "full,streaming,quest,fier",
                                         .budget = "256",
                                         .identity = identity,
                                         .resume = "from there",
                                         .parse = parse,
                                         .ready = ready,
                                         .config = config,
                                         .json_config = json_config,
                                         .head = print_head,
                                         .run = run_row,
                                         .print = print_row,
                                         .results = results_json};

static status cmd_accept(void *options, err *e)
{
    accept_options *o = options;
    o->run.engine.verifies = true;
    accept_run r = {.m.o = &o->run, .o = o};
    status st = measure_run(&r.m, &accept_kind, e);
    measure_close(&r.m);
    fidelity_text_free(&r.text);
    mem_free(r.temp);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'f', .arg = "FILE", AT(accept_options, file), .help = "text file (default: the book of eval pg19)"},
    {.letter = 'n',
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 20,
     .def = 64,
     AT(accept_options, n),
     .help = "draft positions at the end of each piece, and new tokens after it (default 64)"},
    OPTION("trials", "N", WHOLE(1, 100000, 4), AT(accept_options, trials), "pieces of the text per length (default 4)"),
    OPTION("temp", "T", TEXT, AT(accept_options, temp), "list of temperatures; 0 = greedy (default 0,1)"),
    {0}};

const command accept_command = {
    .name = "eval accept",
    .measure = "tokens",
    .args = "",
    .summary = "how often a strategy's next token is that of full attention, and accepted draft lengths",
    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS,
    .own = rows,
    .size = sizeof(accept_options),
    .alone = true,
    .run = cmd_accept};
