/* SPDX-License-Identifier: MIT */
/* `eval scbench`: several questions on one context. A strategy prefills each context once; each further turn or request
 * continues from a copy of the session. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/prediction.h"
#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"

/* Tokens. OFFICIAL: context window of the official script. REQUESTS_SPARE: part of it that multi-request prompts
 * reserve for questions. LEAST: minimum length of a sample's context. UNCUT: no limit on the context. */
enum { OFFICIAL = 131072, REQUESTS_SPARE = 1000, LEAST = 16, UNCUT = 1 << 30 };

typedef struct {
    evaluation_options common;
    const char *dataset, *mode, *length;
    bool own; /* the model's own answers stand between turns */
} scbench_options;

typedef struct {
    const scbench_options *o;
    evaluation *ev; /* one pass per task; its items are the questions (dialogue turns) of the samples */
    scbench_prompts prompts;
    int requests; /* index of the mode: 0 or 1 */
    made_source source;
    size_t first, last;  /* range of samples of the current pass */
    scbench_parts parts; /* parts of the sample whose items are being made */
    size_t parts_of;     /* index of that sample + 1 */
} scbench_run;

static scbench_sample *sample_at(const scbench_run *r, size_t i)
{
    return samples_at(&r->ev->samples, i);
}

/* Returns an item's number within its task, which distinguishes results of a sample's turns. */
static int64_t index_of(const scbench_sample *s, size_t turn)
{
    return s->at.index * SCBENCH_TURNS + (int64_t)turn;
}

/* ---- options ---- */

static const char *const modes[] = {"multi-turn", "multi-request", NULL};

static status parse_options(scbench_run *r, err *e)
{
    const scbench_options *o = r->o;
    made_source *s = &r->source;
    TRY(cli_choose(&r->requests, o->mode, modes, "--mode", e));
    if (o->own && r->requests)
        return err_set(e, ST_USAGE, "--disable-golden-context: --mode multi-request has no answers between questions");
    s->named = o->dataset;
    if (s->named) TRY(datasets_mark(s->wanted, &r->ev->names, "--dataset", s->named, e));
    for (size_t i = 0; i < SCBENCH_TASKS; i++) {
        const scbench_task *t = &scbench_tasks[i];
        const bool makes = t->generated && !r->ev->o->data;
        if (s->wanted[i] && t->refused) return scbench_refuse(t, "--dataset", e);
        if (!s->named) s->wanted[i] = t->in_table || makes;
        s->made[i] = s->wanted[i] && makes;
    }
    TRY(made_lengths(s, o->length, 1, e));
    return s->length ? ST_OK : MEM_NEW(&s->length, s->n_length = 1, e);
}

/* ---- samples ---- */

static const metric *metric_of(const scbench_sample *s, size_t turn)
{
    return metric_find(scbench_tasks[s->turn[turn].task].metric);
}

/* Reads a sample; labels that cannot be scored fail before anything runs. */
static status read_sample(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    const scbench_run *r = own;
    const scbench_sample *s = own_sample;
    TRY(scbench_read(NULL, own_sample, path, where, e));
    for (size_t i = 0; i < s->n_turns; i++) TRY(labels_check(r->ev->m, metric_of(s, i), s->turn[i].labels, where, e));
    return ST_OK;
}

/* ---- parts of prompts ---- */

static size_t sum_new(const scbench_run *r, const scbench_sample *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_turns; i++) n += (size_t)scbench_new_tokens(&r->prompts, s, i);
    return n;
}

/* Returns the new tokens of a turn, at most a quarter of the window. */
static size_t new_tokens(const scbench_run *r, const scbench_sample *s, size_t turn)
{
    size_t n = (size_t)scbench_new_tokens(&r->prompts, s, turn), most = (size_t)r->ev->window / 4;
    return n < most ? n : most;
}

/* Returns the maximum number of tokens that a sample needs, with its first part uncut. */
static size_t tokens_of(const scbench_run *r, const scbench_sample *s, const scbench_parts *p, bool own)
{
    size_t most = 0, before = p->part[0].n;
    for (size_t i = 0; i < s->n_turns; i++) {
        size_t question = r->requests || i > 0 ? p->part[i + r->requests].n : 0;
        size_t need = before + question + new_tokens(r, s, i);
        if (need > most) most = need;
        if (!r->requests) before += question;
        if (own) before += new_tokens(r, s, i) + 1;
    }
    return most;
}

static status make_parts(scbench_parts *p, const scbench_run *r, const scbench_sample *s, bool own, size_t most, err *e)
{
    const scbench_asking a = {&r->prompts, &r->ev->prompter, r->requests, own, &r->ev->eos};
    return scbench_parts_make(p, &a, s, most, e);
}

/* Makes the parts of sample i; the first part leaves room for the others in the window. */
static status load_parts(scbench_run *r, size_t i, err *e)
{
    const scbench_sample *s = sample_at(r, i);
    scbench_parts *p = &r->parts;
    size_t most = r->ev->prompter.max_length, taken = sum_new(r, s) + (r->requests ? REQUESTS_SPARE : 0);
    if (r->parts_of == i + 1) return ST_OK;
    r->parts_of = 0;
    scbench_parts_free(p);
    TRY(make_parts(p, r, s, r->o->own, most < OFFICIAL - taken ? most : OFFICIAL - taken, e));
    size_t need = tokens_of(r, s, p, r->o->own), window = (size_t)r->ev->window, n = p->part[0].n;
    if (need > window && need - window + LEAST > n)
        return err_set(e, ST_USAGE, "--ctx: a window of %zu tokens has no room for the questions and answers", window);
    if (need > window) scbench_parts_cut(p, n - (need - window));
    r->parts_of = i + 1;
    return ST_OK;
}

/* ---- generated samples ---- */

static status make_sample(void *s, const made_place *at, size_t units, err *e)
{
    return scbench_generate(&((sample_head *)s)->root, at, units, e);
}

/* Counts a generated sample's tokens with the correct answers, whatever stands between turns: all runs get the same
 * samples. */
static status count_tokens(const void *own, const void *s, int64_t *n, err *e)
{
    scbench_parts p = {0};
    status st = make_parts(&p, own, s, false, UNCUT, e);
    if (st == ST_OK) *n = (int64_t)tokens_of(own, s, &p, false);
    scbench_parts_free(&p);
    return st;
}

/* ---- passes, items, answers ---- */

static status max_length(size_t *out, const evaluation *ev, err *e)
{
    (void)e;
    *out = ev->window > 1 ? (size_t)ev->window : 2;
    return ST_OK;
}

static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    scbench_run *r = own;
    (void)k;
    (void)ev;
    (void)e;
    r->first = r->last;
    while (r->last < r->ev->samples.n && sample_at(r, r->last)->at.dataset == sample_at(r, r->first)->at.dataset)
        *n += sample_at(r, r->last++)->n_turns;
    if (*n) snprintf(ev->label, sizeof ev->label, "%s", scbench_tasks[sample_at(r, r->first)->at.dataset].name);
    return ST_OK;
}

/* Returns the sample of an item, counted from `first` on, and its turn. */
static size_t sample_of(const scbench_run *r, size_t first, size_t item, size_t *turn)
{
    size_t i = first;
    for (; item >= sample_at(r, i)->n_turns; i++) item -= sample_at(r, i)->n_turns;
    *turn = item;
    return i;
}

static status append(prompt_tokens *out, const token_list *part, bool last, err *e)
{
    for (size_t i = 0; i < part->n; i++) TRY(token_list_push(&out->head, part->ids[i], e));
    return last ? ST_OK : prompt_tokens_break(out, e);
}

/* Makes an item. Turns: all parts up to this one, or only this one after the model's own answer. Requests: the context
 * and a question. */
static status make_item(void *own, const evaluation *ev, size_t item, evaluation_item *out, err *e)
{
    scbench_run *r = own;
    (void)ev;
    size_t turn, i = sample_of(r, r->first, item, &turn);
    const scbench_sample *s = sample_at(r, i);
    out->dataset = scbench_tasks[s->at.dataset].name;
    out->index = index_of(s, turn);
    out->n_new = new_tokens(r, s, turn);
    TRY(load_parts(r, i, e));
    out->tokens.n_tokens = r->parts.n_context;
    out->tokens.truncated = r->parts.cut && turn == 0;
    if (r->requests) {
        TRY(append(&out->tokens, &r->parts.part[0], false, e));
        return append(&out->tokens, &r->parts.part[1 + turn], true, e);
    }
    if (r->o->own) {
        out->follows = turn > 0;
        out->ends = r->parts.ends;
        return append(&out->tokens, &r->parts.part[turn], true, e);
    }
    for (size_t k = 0; k <= turn; k++) TRY(append(&out->tokens, &r->parts.part[k], k == turn, e));
    return ST_OK;
}

static const char *const keys[] = {"dataset", "index", "turn", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    (void)own;
    return json_pack("{s:s, s:I, s:I}", "dataset", x->dataset, "index", (json_int_t)(x->index / SCBENCH_TURNS), "turn",
                     (json_int_t)(x->index % SCBENCH_TURNS) + 1);
}

static status judge(void *own, const evaluation *ev, size_t item, utf8_text answer, json_t **members, err *e)
{
    const scbench_run *r = own;
    size_t turn;
    const scbench_sample *s = sample_at(r, sample_of(r, r->first, item, &turn));
    double score;
    TRY(labels_score(&score, ev->m, metric_of(s, turn), answer, s->turn[turn].labels, e));
    *members = json_pack("{s:O*, s:s, s:s%, s:O, s:f}", "id", json_object_get(s->at.root, "id"), "task",
                         scbench_tasks[s->turn[turn].task].name, "prediction", answer.s, answer.n, "answers",
                         s->turn[turn].labels, "score", score);
    return ST_OK;
}

static json_t *config(const void *own)
{
    const scbench_run *r = own;
    json_t *counts = json_object(), *made = json_array();
    for (size_t i = 0; i < r->ev->samples.n; i++) {
        const char *name = scbench_tasks[sample_at(r, i)->at.dataset].name;
        json_int_t n = json_integer_value(json_object_get(counts, name));
        json_object_set_new(counts, name, json_integer(n + (json_int_t)sample_at(r, i)->n_turns));
    }
    for (size_t t = 0; t < SCBENCH_TASKS; t++)
        if (r->source.made[t]) json_array_append_new(made, json_string(scbench_tasks[t].name));
    return json_pack("{s:I, s:s, s:o*, s:I, s:o, s:o}", "window", (json_int_t)r->ev->window, "mode", modes[r->requests],
                     "golden_context", r->o->own ? json_false() : NULL, "length", (json_int_t)*r->source.length, "made",
                     made, "samples", counts);
}

/* ---- report: a strategy's losses between turns show from the second turn on ---- */

/* Groups answers by task, by the kind of turn within a mixed task, and by turn. */
static void answer_of(const void *own, size_t item, answer_id *out)
{
    size_t turn;
    const scbench_sample *s = sample_at(own, sample_of(own, 0, item, &turn));
    *out = (answer_id){scbench_tasks[s->at.dataset].name,
                       NULL,
                       index_of(s, turn),
                       {(int64_t)s->at.dataset, (int64_t)s->turn[turn].task, (int64_t)turn}};
}

/* Names a group; a mixed task lists the kinds of its turns separately. */
static bool name_group(const void *own, const answer_group *g, int level, char out[ANSWER_NAME])
{
    const scbench_run *r = own;
    const char *name = scbench_tasks[g->key[level ? 1 : 0]].name + strlen("scbench_");
    if (level == 2) snprintf(out, ANSWER_NAME, "turn %d", (int)g->key[2] + 1);
    else snprintf(out, ANSWER_NAME, "%s%s", name, level == 0 && r->source.made[g->key[0]] ? " (made)" : "");
    return level == 0 || (level == 1 && !scbench_tasks[g->key[0]].metric) || (level == 2 && !r->requests);
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    const scbench_run *r = ev->own;
    paragraph("SCBench, %s: %zu contexts (%zu cut in the middle), wrap %s",
              r->requests ? "each question on the context alone"
              : r->o->own ? "turns with the model's own answers between them"
                          : "turns with the right answers between them",
              ev->samples.n, ev->n_truncated, prompt_wrap_name(ev->prompter.wrap));
}

/* Adds the results of each kind in each task: per turn and in total. */
static void add_cell(json_t **list, const answers *a, size_t row, const answer_group *g, int level)
{
    const scbench_run *r = a->t.ev->own;
    const char *task = scbench_tasks[g->key[0]].name, *kind = level ? scbench_tasks[g->key[1]].name : NULL;
    if (level == 0) return;
    answers_json(list, a, row, *g, json_pack("{s:s, s:s}", "dataset", task, "task", kind),
                 json_pack("{s:o, s:b}", "turn", level == 1 ? json_null() : json_integer((json_int_t)g->key[2] + 1),
                           "made", r->source.made[g->key[0]]));
}

static json_t *options_json(const void *own)
{
    const scbench_run *r = own;
    return json_pack("{s:s, s:I}", "mode", modes[r->requests], "length", (json_int_t)*r->source.length);
}

static double percent(double sum, size_t n)
{
    return 100 * (sum / (double)n);
}

static size_t count_turns(const void *own)
{
    const scbench_run *r = own;
    size_t n = 0;
    for (size_t i = 0; i < r->ev->samples.n; i++) n += sample_at(r, i)->n_turns;
    return n;
}

static const answers_layout layout = {.count = count_turns,
                                      .answer = answer_of,
                                      .title = add_title,
                                      .name = name_group,
                                      .average = "average of tasks",
                                      .cell = add_cell,
                                      .options = options_json,
                                      .decimals = 3,
                                      .mean = percent};

/* ---- the command ---- */

static status load(void *own, evaluation *ev, err *e)
{
    scbench_run *r = own;
    r->o = ev->options;
    r->ev = ev;
    ev->names = scbench_names;
    r->source = (made_source){.own = r, .read = read_sample, .make = make_sample, .count = count_tokens};
    TRY(scbench_prompts_open(&r->prompts, ev->data_dir, e));
    TRY(parse_options(r, e));
    return made_read(ev, &r->source, e);
}

static status ready(void *own, evaluation *ev, err *e)
{
    scbench_run *r = own;
    return made_add(ev, &r->source, e);
}

static void free_run(void *own)
{
    scbench_run *r = own;
    made_close(&r->source);
    scbench_parts_free(&r->parts);
    scbench_prompts_close(&r->prompts);
}

static const char *const tables[] = {"scbench/prompts.json", NULL};

static const evaluation_kind evaluation_of_scbench = {.name = "scbench",
                                                      .size = sizeof(scbench_run),
                                                      .sample_size = sizeof(scbench_sample),
                                                      .drop = scbench_drop,
                                                      .own_samples = "scbench/samples.jsonl",
                                                      .tables = tables,
                                                      .keys = keys,
                                                      .identity = identity,
                                                      .load = load,
                                                      .ready = ready,
                                                      .max_length = max_length,
                                                      .pass = pass,
                                                      .item = make_item,
                                                      .config = config,
                                                      .judge = judge,
                                                      .report = answers_report_layout,
                                                      .layout = &layout,
                                                      .free = free_run};

#define OWN(field) AT(scbench_options, field)

static const cli_option options[] = {
    OPTION("dataset", "NAME,...", TEXT, OWN(dataset),
           "run only these tasks (default: those that the benchmark reports, except scbench_repoqa)"),
    OPTION("mode", "multi-turn|multi-request", TEXT, OWN(mode),
           "questions as turns with the correct answers between them (default), or each on the context alone"),
    OPTION("length", "N", TEXT, OWN(length),
           "make samples of N tokens (without --data; default: --ctx, else at most 4k)"),
    OPTION("disable-golden-context", NULL, FLAG, OWN(own),
           "keep the model's own answers between turns, instead of the correct ones"),
    {0}};

EVALUATION_COMMAND(scbench, SAMPLE_OPTIONS_GROUPS, "SCBench, several questions on one context");
