/* SPDX-License-Identifier: MIT */
/* `eval agree`: how long the greedy text of a strategy stays equal to that of full attention. Pieces of a text are
 * continued. The result does not depend on the quality of the model. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/evaluation_table.h"
#include "eval/fidelity/fidelity.h"
#include "kernels/base/mem.h"

/* NEW: generated tokens. CUE: prompt tokens that protocol decode feeds one by one. */
enum { NEW = 64, CUE = 16, LEAST = 2 * (NEW + CUE) };

typedef struct {
    evaluation_options common;
    const char *file;
} agree_options;

typedef struct {
    const evaluation *ev;
    fidelity_text text;
    size_t n_trials;
    size_t full; /* lineup row of full attention */
} agree_run;

static json_t *config(const void *own)
{
    const agree_run *r = own;
    return json_pack("{s:o, s:I, s:s, s:s}", "ctx", report_sizes(r->text.ctx, r->text.n_ctx), "trials",
                     (json_int_t)r->n_trials, "protocol", r->ev->prompter.decode ? "decode" : "prefill", "text_sha256",
                     r->text.sha256);
}

/* ---- the text ---- */

static status load(void *own, evaluation *ev, err *e)
{
    agree_run *r = own;
    const evaluation_options *c = ev->o;
    r->ev = ev;
    r->n_trials = (size_t)c->trials;
    TRY(cli_parse_sizes(&r->text.ctx, &r->text.n_ctx, c->run.attn.ctx, "2048", "--ctx", e));
    ev->n_samples = r->text.n_ctx * r->n_trials;
    while (r->full < ev->rows.n && strcmp(attn_method_name(ev->rows.run[r->full].spec.method), "full") != 0) r->full++;
    if (r->full == ev->rows.n) return err_set(e, ST_USAGE, "--attn: must include 'full', the reference");
    return ST_OK;
}

static status ready(void *own, evaluation *ev, err *e)
{
    agree_run *r = own;
    for (size_t i = 0; i < r->text.n_ctx; i++)
        if (r->text.ctx[i] < LEAST)
            return err_set(e, ST_USAGE, "--ctx %lld: must be at least %d", (long long)r->text.ctx[i], LEAST);
    return fidelity_text_read(&r->text, &ev->g, ((const agree_options *)ev->options)->file, 0, e);
}

/* Makes the prompt: a piece of the text that depends only on seed, length and trial. */
static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    agree_run *r = own;
    int64_t length = r->text.ctx[i / r->n_trials];
    token_list *head = &out->tokens.head;
    out->index = (int64_t)i;
    out->stop = &ev->eos;
    out->n_new = NEW;
    TRY(fidelity_piece(head, &r->text, ev->g.tok, (size_t)length - NEW, ev->o->run.seed.value, length,
                       (int)(i % r->n_trials), e));
    if (!ev->prompter.decode) return ST_OK;
    head->n -= CUE;
    for (size_t k = 0; k < CUE; k++) TRY(token_list_push(&out->tokens.tail, head->ids[head->n + k], e));
    return ST_OK;
}

/* ---- answers ---- */

static const char *const keys[] = {"ctx", "trial", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    const agree_run *r = own;
    size_t i = (size_t)x->index;
    return json_pack("{s:I, s:I}", "ctx", (json_int_t)r->text.ctx[i / r->n_trials], "trial",
                     (json_int_t)(i % r->n_trials));
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    (void)own;
    (void)ev;
    (void)i;
    (void)e;
    *members = json_pack("{s:s%}", "prediction", answer.s, answer.n);
    return ST_OK;
}

/* ---- the report ---- */

typedef struct {
    double score; /* mean over the trials; NAN: no results */
    evaluation_costs costs;
} cell;

/* Returns the fraction of a text before the first character that differs; 1 for equal texts. */
static double agreement(const json_t *full, const json_t *other)
{
    const char *a = json_string_value(full), *b = json_string_value(other);
    size_t n = json_string_length(full), m = json_string_length(other), same = 0;
    while (same < n && same < m && a[same] == b[same]) same++;
    return n == m && same == n ? 1 : (double)same / (double)(n > m ? n : m);
}

static cell cell_of(const agree_run *r, size_t row, size_t length)
{
    cell c = {0};
    for (size_t t = 0; t < r->n_trials; t++) {
        int64_t i = (int64_t)(length * r->n_trials + t);
        const json_t *line = evaluation_result(r->ev, row, NULL, i, NULL),
                     *full = evaluation_result(r->ev, r->full, NULL, i, NULL);
        if (!line || !full) continue;
        c.score += agreement(json_object_get(full, "prediction"), json_object_get(line, "prediction"));
        evaluation_costs_add(&c.costs, line);
    }
    c.score = c.costs.n ? c.score / (double)c.costs.n : (double)NAN;
    return c;
}

static status print_table(const agree_run *r, evaluation_table *t, err *e)
{
    const evaluation *ev = r->ev;
    char name[32];
    paragraph("agree: percent of %d new tokens' text before it leaves that of full attention, protocol %s, seed %llu",
              NEW, ev->prompter.decode ? "decode" : "prefill", (unsigned long long)ev->o->run.seed.value);
    TRY(lineup_print_terms(&ev->rows, e));
    TRY(evaluation_table_head(t, e));
    for (size_t k = 0; k < r->text.n_ctx; k++) {
        snprintf(name, sizeof name, "%lld tokens", (long long)r->text.ctx[k]);
        for (size_t i = 0; i < ev->rows.n; i++) t->x[i] = 100 * cell_of(r, i, k).score;
        TRY(evaluation_table_line(t, 0, name, r->n_trials, 1, e));
    }
    return evaluation_table_end(t, e);
}

static status write_json(const agree_run *r, err *e)
{
    const evaluation *ev = r->ev;
    json_t *list = json_array(), *options = config(r);
    for (size_t i = 0; i < ev->rows.n * r->text.n_ctx; i++) {
        json_t *o = evaluation_row_json(ev, i / r->text.n_ctx);
        cell c = cell_of(r, i / r->text.n_ctx, i % r->text.n_ctx);
        json_object_set_new(o, "ctx", json_integer((json_int_t)r->text.ctx[i % r->text.n_ctx]));
        json_object_set_new(o, "score", results_real(c.score));
        evaluation_costs_json(o, &c.costs);
        json_array_append_new(list, o);
    }
    return report_write(&ev->o->run.out, &ev->g, options, list, NULL, e);
}

static status report(void *own, evaluation *ev, err *e)
{
    evaluation_table t;
    status st = evaluation_table_open(&t, ev, e);
    if (st == ST_OK) st = print_table(own, &t, e);
    if (st == ST_OK && ev->o->run.out.json) st = write_json(own, e);
    evaluation_table_close(&t);
    return st;
}

static void free_run(void *own)
{
    fidelity_text_free(&((agree_run *)own)->text);
}

static const evaluation_kind evaluation_of_agree = {.name = "agree",
                                                    .size = sizeof(agree_run),
                                                    .attn = "all",
                                                    .budget = "256",
                                                    .keys = keys,
                                                    .identity = identity,
                                                    .load = load,
                                                    .ready = ready,
                                                    .item = make_item,
                                                    .config = config,
                                                    .judge = judge,
                                                    .report = report,
                                                    .free = free_run};

static const cli_option options[] = {
    {.letter = 'f', .arg = "FILE", AT(agree_options, file), .help = "text file (default: the book of eval pg19)"},
    OPTION("protocol", "prefill|decode", TEXT, AT(agree_options, common.protocol),
           "feed the piece at once (default), or its last 16 tokens one by one"),
    {0}};

const command agree_command = {.name = "eval agree",
                               .measure = "text",
                               .args = "",
                               .summary = "how long greedy text stays equal to that of full attention",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS | OPTIONS_TRIALS,
                               .own = options,
                               .size = sizeof(agree_options),
                               .evaluation = &evaluation_of_agree};
