/* SPDX-License-Identifier: MIT */
/* `eval accept`: the share of a strategy's tokens that full attention would have chosen over the same rows, at the same
 * random numbers. It needs no task, and no length of drafts: that of any length follows. Source: doc/evals.md 21. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "cli/command.h"
#include "eval/evaluation.h"
#include "eval/fidelity/fidelity.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* Tokens of a draft. */
enum { ACCEPT_AHEAD = SESSION_VERIFY_ROWS };

typedef struct {
    run_options run;
    const char *file;
    const char *temp;
    int n, trials;
} accept_options;

/* What was counted. right[j]: drafts of which the first j + 1 tokens are full attention's. tokens, differences: of
 * texts along which the strategy went on by itself, from exact rows behind each difference. */
typedef struct {
    int64_t n, right[ACCEPT_AHEAD];
    int64_t tokens, differences;
} sums;

typedef struct {
    fidelity f;
    const accept_options *o;
    int64_t *ctx;
    double *temp;
    size_t n_ctx, n_temp;
} accept_run;

/* A piece of the text at a temperature. */
typedef struct {
    size_t row;
    int64_t ctx;
    int trial;
    double temp;
} case_id;

/* What a strategy is measured with: a session of full attention over rows of the same type, in which it drafts; `full`
 * drafts as what it is. */
typedef struct {
    attn_spec full, draft;
    session_size size; /* size.draft: &draft, or NULL */
} sessions;
/* Returns the tokens of a session for pieces of at most `ctx` tokens. */
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
    out->draft.tier = (kv_tier){0}; /* its rows are the other's */
    out->size.draft = &out->draft;
    return ST_OK;
}

/* Returns {"attn", "budget", "ctx", "trial", "temp"}, the identity of a result. */
static json_t *identity_of(const accept_run *r, const case_id *x)
{
    const attn_spec *spec = &r->f.rows.run[x->row].spec;
    return json_pack("{s:s, s:o, s:I, s:i, s:f}", "attn", spec->text, "budget", lineup_budget_json(spec), "ctx",
                     (json_int_t)x->ctx, "trial", x->trial, "temp", x->temp);
}

static const json_t *result_of(const accept_run *r, const case_id *x)
{
    return results_find(r->f.out, identity_of(r, x));
}

/* Returns {"n", "right", "tokens", "differences"}; NULL: out of memory. */
static json_t *counts_json(const sums *s)
{
    json_t *right = json_array();
    int bad = 0;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++)
        bad |= json_array_append_new(right, json_integer((json_int_t)s->right[i]));
    json_t *o = json_pack("{s:I, s:o, s:I, s:I}", "n", (json_int_t)s->n, "right", right, "tokens",
                          (json_int_t)s->tokens, "differences", (json_int_t)s->differences);
    return fidelity_json(o, bad);
}

/* ---- options ---- */

static status take_temp(void *own, const char *word, err *e)
{
    accept_run *r = own;
    char *end;
    double temp = strtod(word, &end);
    if (end == word || *end || !(temp >= 0 && isfinite(temp)))
        return err_set(e, ST_USAGE, "--temp: '%.40s', expected temperatures from 0 on, separated by commas", word);
    TRY(MEM_GROW(&r->temp, r->n_temp + 1, e));
    r->temp[r->n_temp++] = temp;
    return ST_OK;
}

static status parse(void *own, err *e)
{
    accept_run *r = own;
    TRY(cli_each(r->o->temp ? r->o->temp : "0,1", take_temp, r, e));
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, r->f.o->attn.ctx, "2048", "--ctx", e));
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] < r->o->n + 2)
            return err_set(e, ST_USAGE, "--ctx %lld: at least 2 tokens are needed before the %d of -n",
                           (long long)r->ctx[i], r->o->n);
    return lineup_read_budgets(&r->f.rows, &r->f.o->attn, "full,streaming,quest,fier", "256", e);
}

/* ---- who can run ---- */

static status can_run(void *ctx, const attn_spec *row, err *why)
{
    const accept_run *r = ctx;
    const decoder_options o = {.chunk = (size_t)r->f.o->engine.device.chunk, .verify = ACCEPT_AHEAD};
    int64_t longest = 0;
    sessions p;
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] > longest) longest = r->ctx[i];
    TRY(pair_of(&p, row, limit_of(r, longest), why));
    return session_check(r->f.g.m, &o, &p.full, p.size, why);
}

static status ready(void *own, err *e)
{
    accept_run *r = own;
    fidelity *f = &r->f;
    TRY(fidelity_read_text(&f->text, f->sha256, &f->g, r->o->file, 0, e));
    TRY(fidelity_check_ctx(&f->text, r->ctx, r->n_ctx, &f->g, e));
    return lineup_check_by(&f->rows, can_run, r, e);
}

typedef struct {
    accept_run *r;
    session *s;
    sampler *by;      /* of the case at hand */
    token_list piece; /* of the text; all but its last n tokens are the prompt */
    int32_t *text;    /* [n + 1] full attention's, behind the piece */
    size_t n;
    sums sums;
} measured;

/* ---- drafts from exact rows ---- */

/* Drafts behind x, which follows what the session holds, and feeds x. *next: full attention's token behind x. */
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

/* From each of the last n tokens of the piece. */
static status draft_all(measured *m, err *e)
{
    for (size_t i = m->piece.n - m->n; i < m->piece.n; i++) {
        TRY(draft_behind(m, m->piece.ids[i], &m->text[0], e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- along full attention's text ---- */

/* The text behind text[0], which follows what the session holds. */
static status write_text(measured *m, err *e)
{
    int64_t length = session_length(m->s);
    for (size_t i = 0; i < m->n; i++) {
        TRY(session_verify(m->s, &m->text[i], 1, e));
        TRY(session_verified(m->s, 0, m->by, &m->text[i + 1], e));
    }
    return session_rewind(m->s, length, e);
}

/* The strategy goes on behind text[at] by itself, over rows of its own, up to a difference or the end: *n tokens. The
 * session is as before. */
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

/* Exact rows of n tokens of the text. */
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

static status take_piece(measured *m, const case_id *x, err *e)
{
    const accept_run *r = m->r;
    bool bos = tokenizer_adds_bos(r->f.g.tok);
    size_t n = (size_t)x->ctx - bos;
    const int32_t *from = fidelity_piece(&r->f.text, n, r->f.o->seed.value, x->ctx, (size_t)x->trial);
    m->piece.n = 0;
    if (bos) TRY(token_list_push(&m->piece, tokenizer_bos(r->f.g.tok), e));
    for (size_t i = 0; i < n; i++) TRY(token_list_push(&m->piece, from[i], e));
    return ST_OK;
}

/* A temperature, over a piece whose prompt is in the session. */
static status measure_case(measured *m, const case_id *x, err *e)
{
    const sampler_options so = {.temp = x->temp,
                                .top_p = 1,
                                .repeat_penalty = 1,
                                .seed = evaluation_random(m->r->f.o->seed.value, x->trial, (uint64_t)x->ctx)};
    int64_t prompt = session_length(m->s);
    m->sums = (sums){0};
    TRY(sampler_create(&m->by, &so, (size_t)m->r->f.g.m->config.vocab, e));
    status st = draft_all(m, e);
    if (st == ST_OK) st = run_along(m, e);
    if (st == ST_OK) st = session_rewind(m->s, prompt, e);
    sampler_free(m->by);
    m->by = NULL;
    return st == ST_OK ? results_add(m->r->f.out, results_merge(identity_of(m->r, x), counts_json(&m->sums)), e) : st;
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
            TRY(take_piece(m, x, e));
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
    int64_t ctx = r->ctx[length];
    TRY(pair_of(&p, &r->f.rows.run[row].spec, limit_of(r, ctx), e));
    TRY(session_create(&m->s, r->f.g.dec, &p.full, p.size, e));
    status st = ST_OK;
    for (int i = 0; i < r->o->trials && st == ST_OK; i++) {
        st = measure_piece(m, &(case_id){.row = row, .ctx = ctx, .trial = i}, e);
        progress_set(r->f.bar, (int64_t)length * r->o->trials + i + 1, (int64_t)r->n_ctx * r->o->trials);
    }
    session_free(m->s);
    m->s = NULL;
    return st;
}

static status measure_row(void *own, size_t row, err *e)
{
    accept_run *r = own;
    measured m = {.r = r, .n = (size_t)r->o->n};
    status st = MEM_NEW(&m.text, m.n + 1, e);
    for (size_t i = 0; i < r->n_ctx && st == ST_OK; i++) st = measure_length(&m, row, i, e);
    token_list_free(&m.piece);
    mem_free(m.text);
    return st;
}

enum { REPORTED = 4 }; /* accepted_length is of so many drafted tokens */

/* The drafts whose accepted length has a column. */
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

/* Of a row at a temperature: of one length, or (n_ctx) of all. */
static sums sums_of(const accept_run *r, size_t row, double temp, size_t length)
{
    sums s = {0};
    for (size_t i = 0; i < r->n_ctx; i++)
        for (int t = 0; t < r->o->trials && (length == r->n_ctx || length == i); t++) {
            const json_t *line = result_of(r, &(case_id){.row = row, .ctx = r->ctx[i], .trial = t, .temp = temp});
            if (line) add(&s, line);
        }
    return s;
}

/* What follows from them; NAN: unknown. */
typedef struct {
    double hazard[ACCEPT_AHEAD]; /* the chance of a token whose predecessors were all right */
    double low, high;            /* 95 % interval of the first */
    double run;                  /* tokens from one difference to the next */
} figures;

static double share(int64_t part, int64_t all)
{
    return all > 0 ? (double)part / (double)all : (double)NAN;
}

static figures figures_of(const sums *s)
{
    figures f;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) f.hazard[i] = share(s->right[i], i > 0 ? s->right[i - 1] : s->n);
    stats_wilson((double)s->right[0], s->n, &f.low, &f.high);
    f.run = share(s->tokens, s->differences);
    return f;
}

static double length_of(const sums *s, const figures *f, size_t n)
{
    return s->n > 0 ? stats_accepted_length(f->hazard, n) : (double)NAN;
}

/* ---- the table ---- */

static status print_head(const void *own, err *e)
{
    const accept_run *r = own;
    TRY(out_printf(e,
                   "accept: drafts of %d tokens from %d places of each of %d pieces, against full attention over the "
                   "same rows, seed %llu",
                   (int)ACCEPT_AHEAD, r->o->n, r->o->trials, (unsigned long long)r->f.o->seed.value));
    TRY(lineup_print_terms(&r->f.rows, e));
    TRY(out_printf(e, "%-*s %7s %7s %5s %6s %9s %-15s %6s %7s", lineup_width(&r->f.rows), "strategy", "budget",
                   "tokens", "temp", "n", "agreement", " 95 %", "h8", "run"));
    for (size_t i = 0; i < LENGTHS; i++) TRY(out_printf(e, "   E(%zu)", drafted[i]));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

static status print_line(const accept_run *r, size_t row, double temp, size_t length, err *e)
{
    const attn_spec *spec = &r->f.rows.run[row].spec;
    sums s = sums_of(r, row, temp, length);
    figures f = figures_of(&s);
    char budget[24], tokens[24] = "all";
    lineup_budget_text(budget, sizeof budget, spec);
    if (length < r->n_ctx) snprintf(tokens, sizeof tokens, "%lld", (long long)r->ctx[length]);
    TRY(out_printf(e, "%-*s %7s %7s %5.3g %6lld", lineup_width(&r->f.rows), spec->text, budget, tokens, temp,
                   (long long)s.n));
    TRY(fidelity_print_number(f.hazard[0], 9, 4, e));
    TRY(out_printf(e, "  %.4f-%.4f ", f.low, f.high));
    TRY(fidelity_print_number(f.hazard[ACCEPT_AHEAD - 1], 6, 4, e));
    TRY(fidelity_print_number(f.run, 7, 1, e));
    for (size_t i = 0; i < LENGTHS; i++) TRY(fidelity_print_number(length_of(&s, &f, drafted[i]), 6, 3, e));
    return out_printf(e, "\n");
}

static status print_row(const void *own, size_t row, err *e)
{
    const accept_run *r = own;
    for (size_t t = 0; t < r->n_temp; t++) {
        for (size_t i = 0; i < r->n_ctx; i++) TRY(print_line(r, row, r->temp[t], i, e));
        if (r->n_ctx > 1) TRY(print_line(r, row, r->temp[t], r->n_ctx, e));
    }
    return out_flush(e);
}

/* ---- JSON ---- */

static json_t *list_json(const double *x, size_t n)
{
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad |= json_array_append_new(list, results_real(x[i]));
    return fidelity_json(list, bad);
}

/* Takes o, to which the counts are added, and what follows from them. */
static json_t *with_figures(json_t *o, const sums *s)
{
    figures f = figures_of(s);
    double all[ACCEPT_AHEAD];
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) all[i] = length_of(s, &f, i + 1);
    json_t *more = json_pack("{s:o, s:[f, f], s:o, s:o, s:o, s:o, s:o}", "agreement", results_real(f.hazard[0]), "ci95",
                             f.low, f.high, "h8", results_real(f.hazard[ACCEPT_AHEAD - 1]), "run", results_real(f.run),
                             "accepted_length", results_real(all[REPORTED - 1]), "hazards",
                             list_json(f.hazard, ACCEPT_AHEAD), "accepted_lengths", list_json(all, ACCEPT_AHEAD));
    return results_merge(results_merge(o, counts_json(s)), more);
}

static json_t *by_context(const accept_run *r, size_t row, double temp)
{
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < r->n_ctx; i++) {
        sums s = sums_of(r, row, temp, i);
        json_t *o = with_figures(json_pack("{s:I}", "ctx", (json_int_t)r->ctx[i]), &s);
        bad |= json_array_append_new(list, o);
    }
    return fidelity_json(list, bad);
}

static size_t per_row(const void *own)
{
    const accept_run *r = own;
    return r->n_temp;
}

/* A row at the i-th temperature. */
static json_t *row_json(const void *own, size_t row, size_t i)
{
    const accept_run *r = own;
    double temp = r->temp[i];
    const attn_spec *spec = &r->f.rows.run[row].spec;
    const err *why = &r->f.rows.why[row];
    char kv[128];
    sums s = sums_of(r, row, temp, r->n_ctx);
    kv_format_text(&spec->kv, kv, sizeof kv);
    json_t *o = json_pack("{s:s, s:f, s:o, s:s*}", "kv", kv, "temp", temp, "by_context", by_context(r, row, temp),
                          "reason", why->code == ST_OK ? NULL : why->msg);
    return with_figures(results_merge(lineup_row_json(spec), o), &s);
}

static json_t *options_json(const void *own)
{
    const accept_run *r = own;
    return json_pack("{s:s, s:s?, s:o, s:i, s:i, s:o, s:I}", "text_sha256", r->f.sha256, "attn", r->f.o->attn.names,
                     "ctx", report_sizes(r->ctx, r->n_ctx), "trials", r->o->trials, "n", r->o->n, "temp",
                     list_json(r->temp, r->n_temp), "seed", (json_int_t)r->f.o->seed.value);
}

/* ---- the command ---- */

static json_t *config(const void *own)
{
    const accept_run *r = own;
    return json_pack("{s:o, s:i, s:i, s:o, s:s}", "ctx", report_sizes(r->ctx, r->n_ctx), "trials", r->o->trials, "n",
                     r->o->n, "temp", list_json(r->temp, r->n_temp), "text_sha256", r->f.sha256);
}

static const char *const identity[] = {"attn", "budget", "ctx", "trial", "temp", NULL};

static const fidelity_measure accept_kind = {.identity = identity,
                                             .resume = "from there",
                                             .parse = parse,
                                             .ready = ready,
                                             .config = config,
                                             .head = print_head,
                                             .measure = measure_row,
                                             .print = print_row,
                                             .per_row = per_row,
                                             .json = row_json,
                                             .options = options_json};

static status cmd_accept(void *options, err *e)
{
    accept_options *o = options;
    o->run.engine.verifies = true;
    accept_run r = {.f.o = &o->run, .o = o};
    status st = fidelity_run(&r.f, &accept_kind, e);
    fidelity_close(&r.f);
    mem_free(r.ctx);
    mem_free(r.temp);
    return st;
}

static const cli_option rows[] = {
    {.letter = 'f', .arg = "FILE", AT(accept_options, file), .help = "the text (default: the book of eval pg19)"},
    {.letter = 'n',
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 20,
     .def = 64,
     AT(accept_options, n),
     .help = "places at the end of a piece that are drafted from, and new tokens behind it (default 64)"},
    OPTION("trials", "N", WHOLE(1, 100000, 4), AT(accept_options, trials),
           "pieces of the text of each length (default 4)"),
    OPTION("temp", "T", TEXT, AT(accept_options, temp), "temperatures, a list; 0 = greedy (default 0,1)"),
    {0}};

const command accept_command = {.name = "eval accept",
                                .measure = "tokens",
                                .args = "",
                                .summary = "how often a strategy's next token is that of full attention, and drafts of "
                                           "any length by it",
                                .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS,
                                .own = rows,
                                .size = sizeof(accept_options),
                                .alone = true,
                                .run = cmd_accept};
