/* SPDX-License-Identifier: MIT */
/* `eval longbench2`: one pass of prompts; with --cot two passes, the second with the reasoning of the first. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/longbench2/longbench2.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* Passes of a chain of thought. */
#define REASONING "reasoning"
#define ANSWER    "answer"

/* Sources of prompts, lengths and scoring. */
enum { OFFICIAL, BY_PARISKV, BY_KVPRESS };
static const char *const rules[] = {"official", "pariskv", "kvpress", NULL};

typedef struct {
    evaluation_options common;
    bool cot, no_context;
    const char *rules;
} longbench2_options;

/* Prompt of the second pass: the reasoning of one lineup row on one sample. */
typedef struct {
    size_t row, sample;
} reasoned;

typedef struct {
    const longbench2_options *o;
    int rules;
    evaluation *ev; /* one item per sample; in the second pass, one per element of `reasoned` */
    longbench2_templates templates;
    longbench2_prompt prompt; /* prompt of the current pass */
    bool second_pass;         /* the current pass asks for answers after reasoning */
    reasoned *reasoned;       /* [rows.n * samples at most] */
    size_t n_reasoned;
    size_t n_cut; /* number of cut prompts in the first of two passes */
} longbench2_run;

static longbench2_sample *sample_at(const longbench2_run *r, size_t i)
{
    return samples_at(&r->ev->samples, i);
}

/* Returns the sample of an item of the current pass. */
static longbench2_sample *sample_of(const longbench2_run *r, size_t item)
{
    return sample_at(r, r->second_pass ? r->reasoned[item].sample : item);
}

/* Maximum prompt tokens of the official pred.py; room for a chat template; room for growth when a text is tokenized
 * again (ParisKV's script); minimum prompt tokens. */
enum { MOST_PROMPT = 120000, ROOM = 256, PARISKV_ROOM = 10, LEAST_PROMPT = 64 };

/* New tokens by rules: of an answer, and of the reasoning before it. */
static const struct {
    size_t answer, reasoning;
} new_tokens[] = {{128, 1024}, {129, 1025}, {16, 0}};

/* Returns the default of --max-length. With ParisKV's rules both passes have the whole prompt, and the second also has
 * the reasoning. Its script subtracts 1,024 + 10 from the window W; here W is the window less the tokens of the second
 * answer. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    const longbench2_run *r = ev->own;
    bool pariskv = r->rules == BY_PARISKV;
    int64_t n_new = (int64_t)(ev->passes ? new_tokens[r->rules].reasoning : new_tokens[r->rules].answer);
    if (pariskv) n_new += (int64_t)new_tokens[r->rules].answer;
    int64_t left = ev->window - n_new - (pariskv ? PARISKV_ROOM : ROOM);
    if (left < LEAST_PROMPT)
        return err_set(e, ST_USAGE,
                       "--max-length: required, because a window of %lld tokens leaves only %lld after %lld new ones "
                       "and the chat template",
                       (long long)ev->window, (long long)left, (long long)n_new);
    *out = (size_t)(left < MOST_PROMPT || pariskv ? left : MOST_PROMPT);
    return ST_OK;
}

/* ---- prompts ---- */

/* Returns the reasoning of a row. U+0000 is replaced, because chat templates do not accept it. */
static status reasoning_of(prompt_text *out, const evaluation *ev, size_t row, const longbench2_sample *s, err *e)
{
    const json_t *line = evaluation_result(ev, row, ev->kind->name, s->at.index, REASONING);
    const json_t *said = json_object_get(line, "prediction");
    *out = (prompt_text){0};
    TRY(prompt_add(out, json_string_value(said), json_string_length(said), e));
    return prompt_replace(out, (utf8_text){"", 1}, (utf8_text){"\xef\xbf\xbd", 3}, e);
}

/* Makes the text of a prompt, cut and wrapped. In the second pass the reasoning is part of the template; with ParisKV's
 * rules it follows the prompt of the first pass. */
static status make_text(prompt_text *out, longbench2_run *r, evaluation_item *x, const longbench2_sample *s, err *e)
{
    const prompter *how = &r->ev->prompter;
    bool second = r->second_pass, pariskv = r->rules == BY_PARISKV;
    prompt_text reasoning = {0};
    *out = (prompt_text){0};
    status st = second ? reasoning_of(&reasoning, r->ev, x->row, s, e) : ST_OK;
    if (st == ST_OK) st = longbench2_fill(out, &r->templates, r->prompt, s, (utf8_text){reasoning.s, reasoning.n}, e);
    if (st == ST_OK) st = prompter_wrap(&x->tokens, how, true, out, e);
    if (st == ST_OK && second && pariskv) st = prompt_add(out, reasoning.s, reasoning.n, e);
    mem_free(reasoning.s);
    return st;
}

/* Encodes a prompt. With kvpress's rules, the text before the question is a prompt by itself, which is compressed
 * without the question. */
static status encode(prompt_tokens *out, const longbench2_run *r, const prompt_text *text, err *e)
{
    static const char mark[] = "What is the correct answer to this question: ";
    size_t at = r->rules == BY_KVPRESS ? prompt_find_last(text->s, text->n, mark) : text->n;
    TRY(prompter_encode(out, &r->ev->prompter, true, text, at, e));
    if (at == text->n) return ST_OK;
    TRY(prompt_tokens_break(out, e));
    for (size_t i = 0; i < out->tail.n; i++) TRY(token_list_push(&out->head, out->tail.ids[i], e));
    out->tail.n = 0;
    return ST_OK;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    longbench2_run *r = own;
    bool second = r->second_pass, first = ev->passes && !second;
    longbench2_sample *s = sample_of(r, i);
    prompt_text text;
    out->index = s->at.index;
    out->random = evaluation_random(ev->o->run.seed.value, s->at.index, second);
    out->n_new = first ? new_tokens[r->rules].reasoning : new_tokens[r->rules].answer;
    if (first) out->pass = REASONING;
    if (second) {
        out->pass = ANSWER;
        out->row = r->reasoned[i].row;
    }
    status st = make_text(&text, r, out, s, e);
    if (r->rules != BY_PARISKV) { /* the second pass has no document */
        sample_forget(&s->at, "context");
        s->context = (utf8_text){0};
    }
    if (st == ST_OK) st = encode(&out->tokens, r, &text, e);
    mem_free(text.s);
    return st;
}

/* ---- answers ---- */

static json_t *config(const void *own)
{
    const longbench2_run *r = own;
    json_t *own_config = json_pack("{s:s, s:s, s:I}", "prompt", longbench2_prompt_name(r->prompt), "rules",
                                   rules[r->rules], "samples", (json_int_t)r->ev->samples.n);
    const sampler_options *s = r->ev->sampling;
    if (!s || !own_config) return own_config;
    json_object_set_new(own_config, "temp", json_real(s->temp));
    json_object_set_new(own_config, "top_k", json_integer(s->top_k));
    json_object_set_new(own_config, "top_p", json_real(s->top_p));
    return own_config;
}

/* Finds the letter that an output chooses; 0: none. ParisKV always uses the extraction rules of a chain of thought. */
static status choice_of(char *letter, const longbench2_run *r, const longbench2_sample *s, utf8_text output, err *e)
{
    char *answer;
    size_t n;
    bool says = r->rules == BY_KVPRESS && longbench2_says(output, s->answer);
    *letter = says ? s->answer : longbench2_choice(output);
    if (r->rules != BY_PARISKV) return ST_OK;
    TRY(metric_answer(&answer, &n, metric_find("gpqa_cot"), output, e));
    *letter = n ? *answer : 0;
    mem_free(answer);
    return ST_OK;
}

/* Scores an output. The official code omits empty outputs from its results, so they do not count as wrong. */
static status judgement(json_t **out, const longbench2_run *r, const longbench2_sample *s, utf8_text output, err *e)
{
    char letter, answer[] = {s->answer, 0};
    TRY(choice_of(&letter, r, s, output, e));
    bool right = letter == s->answer, counts = output.n > 0 || r->rules != OFFICIAL;
    char pred[] = {letter, 0};
    *out = json_pack("{s:s, s:s%, s:[s], s:s?, s:o, s:o, s:s, s:s}", "id", s->id.s, "prediction", output.s, output.n,
                     "answers", answer, "pred", letter ? pred : NULL, "judge",
                     counts ? json_boolean(right) : json_null(), "score", counts ? json_real(right) : json_null(),
                     "difficulty", s->difficulty.s, "length", s->length.s);
    return ST_OK;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text output, json_t **members, err *e)
{
    const longbench2_run *r = own;
    const longbench2_sample *s = sample_of(r, i);
    if (!ev->passes || r->second_pass) return judgement(members, r, s, output, e);
    *members = json_pack("{s:s, s:s%}", "id", s->id.s, "prediction", output.s, output.n);
    return ST_OK;
}

static const char *const tables[] = {"longbench2/0shot.txt",       "longbench2/0shot_no_context.txt",
                                     "longbench2/0shot_cot.txt",   "longbench2/0shot_cot_ans.txt",
                                     "longbench2/pariskv_cot.txt", NULL};

/* ---- the second pass ---- */

/* Lists the rows and samples with reasoning, which are asked for answers. With ParisKV's rules, empty reasoning counts
 * too. */
static status list_reasoned(longbench2_run *r, err *e)
{
    TRY(MEM_NEW(&r->reasoned, r->ev->rows.n * r->ev->samples.n, e));
    for (size_t row = 0; row < r->ev->rows.n; row++)
        for (size_t i = 0; i < r->ev->samples.n; i++) {
            const json_t *line = evaluation_result(r->ev, row, r->ev->kind->name, sample_at(r, i)->at.index, REASONING);
            bool said = json_string_length(json_object_get(line, "prediction")) > 0;
            if (said || (line && r->rules == BY_PARISKV)) r->reasoned[r->n_reasoned++] = (reasoned){row, i};
        }
    return ST_OK;
}

/* Begins a pass; a chain of thought has two. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    longbench2_run *r = own;
    if (k == 0) *n = r->ev->samples.n;
    if (k != 1 || !ev->passes) return ST_OK;
    TRY(list_reasoned(r, e));
    r->second_pass = true;
    r->n_cut = ev->n_truncated;
    if (r->rules == OFFICIAL) r->prompt = LONGBENCH2_COT_ANSWER;
    *n = r->n_reasoned;
    return ST_OK;
}

/* Counts a sample only once among the cut prompts. */
static status passed(void *own, evaluation *ev, err *e)
{
    const longbench2_run *r = own;
    (void)e;
    if (r->second_pass) ev->n_truncated = r->n_cut;
    return ST_OK;
}

/* ---- the report: accuracies by difficulty and length ---- */

/* Groups of answers: all, by difficulty, by length, and from CELLS on by length and difficulty. */
enum { OVERALL, EASY, HARD, SHORT, MEDIUM, LONG, CELLS, CATEGORIES = CELLS + 6 };
static const struct {
    const char *name;
    answer_group group; /* difficulty, length, is reasoning */
} categories[CATEGORIES] = {{"overall", {{ANSWER_ANY, ANSWER_ANY, false}}},
                            {"easy", {{0, ANSWER_ANY, false}}},
                            {"hard", {{1, ANSWER_ANY, false}}},
                            {"short", {{ANSWER_ANY, 0, false}}},
                            {"medium", {{ANSWER_ANY, 1, false}}},
                            {"long", {{ANSWER_ANY, 2, false}}},
                            {"short, easy", {{0, 0, false}}},
                            {"short, hard", {{1, 0, false}}},
                            {"medium, easy", {{0, 1, false}}},
                            {"medium, hard", {{1, 1, false}}},
                            {"long, easy", {{0, 2, false}}},
                            {"long, hard", {{1, 2, false}}}};

/* Describes answer i: the answers of all samples come first, then the reasoning of all. Difficulties other than easy
 * count as hard; lengths other than short and medium count as long. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const longbench2_run *r = own;
    bool first = i >= r->ev->samples.n;
    const longbench2_sample *s = sample_at(r, i % r->ev->samples.n);
    int length = strcmp(s->length.s, "short") == 0 ? 0 : strcmp(s->length.s, "medium") == 0 ? 1 : 2;
    const char *pass = first ? REASONING : r->ev->passes ? ANSWER : NULL;
    *out = (answer_id){r->ev->kind->name, pass, s->at.index, {strcmp(s->difficulty.s, "easy") != 0, length, first}};
}

static double judged(const json_t *line)
{
    const json_t *judge = json_object_get(line, "judge");
    return json_is_boolean(judge) ? json_is_true(judge) : (double)NAN;
}

static bool has_no_choice(const json_t *line)
{
    return json_is_null(json_object_get(line, "pred"));
}

static const answer_group all = {{ANSWER_ANY, ANSWER_ANY, false}}, reasoning = {{ANSWER_ANY, ANSWER_ANY, true}};

/* Returns 100 k / n, rounded; NAN: n is 0. */
static double percent(double k, size_t n, int decimals)
{
    return n ? round_decimals(100 * k / (double)n, decimals) : (double)NAN;
}

static double accuracy(const answer_cell *c)
{
    return percent(c->sum, c->n, 1);
}

/* Rounds as in ParisKV's Table 3. */
static double accuracy_of_cell(const answer_cell *c)
{
    return percent(c->sum, c->n, 2);
}

/* Counts an output without a choice as a random guess. */
static double compensated(const answer_cell *c)
{
    return percent(c->sum + 0.25 * (double)c->marked, c->n, 1);
}

static double without_choice(const answer_cell *c)
{
    return c->n ? (double)c->marked : (double)NAN;
}

/* Returns the number of samples with an empty output or empty reasoning; NAN: no samples. */
static double empty_of(const answers *a, size_t row)
{
    size_t n = answers_cell(a, row, a->t.ev->passes ? reasoning : all).costs.n;
    return n ? (double)(n - answers_cell(a, row, all).n) : (double)NAN;
}

/* Prints a line with one value of a group. counted: also its number of samples. */
static status print_line(const answers *a, int indent, const char *name, answer_group g, bool counted, int decimals,
                         double (*value)(const answer_cell *c), err *e)
{
    for (size_t row = 0; row < a->t.ev->rows.n; row++) {
        const answer_cell c = answers_cell(a, row, g);
        a->t.x[row] = value(&c);
    }
    return evaluation_table_line(&a->t, indent, name, counted ? answers_count(a, g) : 0, decimals, e);
}

/* Prints accuracies and numbers of right answers by length and difficulty. */
static status print_cells(const answers *a, err *e)
{
    table_line(a->t.text, "%s", "");
    table_line(a->t.text, "length, difficulty");
    for (int k = CELLS; k < CATEGORIES; k++) {
        const answer_group g = categories[k].group;
        if (answers_count(a, g) == 0) continue;
        TRY(print_line(a, 2, categories[k].name, g, true, 2, accuracy_of_cell, e));
        evaluation_table_name(&a->t, 4, "right", 0);
        for (size_t row = 0; row < a->t.ev->rows.n; row++) {
            const answer_cell c = answers_cell(a, row, g);
            if (c.n) table_cell(a->t.text, "%.0f/%zu", c.sum, c.n);
            else table_cell(a->t.text, "-");
        }
    }
    return ST_OK;
}

static status print_scores(const answers *a, err *e)
{
    double empty = 0;
    for (int k = 0; k < CELLS; k++)
        TRY(print_line(a, k == OVERALL ? 0 : 2, categories[k].name, categories[k].group, true, 1, accuracy, e));
    TRY(print_line(a, 0, "overall, compensated", all, false, 1, compensated, e));
    TRY(print_line(a, 0, "outputs without a choice", all, false, 0, without_choice, e));
    for (size_t row = 0; row < a->t.ev->rows.n; row++) {
        a->t.x[row] = empty_of(a, row);
        if (a->t.x[row] > 0) empty += a->t.x[row];
    }
    if (empty > 0) TRY(evaluation_table_line(&a->t, 0, "empty, not counted", 0, 0, e));
    return print_cells(a, e);
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    const longbench2_run *r = ev->own;
    paragraph("LongBench v2%s: %zu samples, rules %s, prompts of at most %zu tokens (%zu cut in the "
              "middle), wrap %s",
              ev->passes                           ? ", chain of thought"
              : r->prompt == LONGBENCH2_NO_CONTEXT ? ", without the documents"
                                                   : "",
              ev->samples.n, rules[r->rules], ev->prompter.max_length, ev->n_truncated,
              prompt_wrap_name(ev->prompter.wrap));
}

static status print_costs(const answers *a, err *e)
{
    if (!a->t.ev->passes) return answers_costs(a, all, e);
    table_line(a->t.text, "reasoning");
    TRY(answers_costs(a, reasoning, e));
    table_line(a->t.text, "%s", "");
    table_line(a->t.text, "answers");
    return answers_costs(a, all, e);
}

static json_t *cells_json(const answers *a, size_t row)
{
    json_t *cells = json_array();
    for (int k = CELLS; k < CATEGORIES; k++) {
        const answer_cell c = answers_cell(a, row, categories[k].group);
        json_array_append_new(cells, json_pack("{s:s, s:s, s:I, s:I, s:o}", "length",
                                               categories[SHORT + (k - CELLS) / 2].name, "difficulty",
                                               categories[EASY + (k - CELLS) % 2].name, "right", (json_int_t)c.sum, "n",
                                               (json_int_t)c.n, "accuracy", results_real(accuracy_of_cell(&c))));
    }
    return cells;
}

static json_t *row_json(const answers *a, size_t row)
{
    const evaluation *ev = a->t.ev;
    const answer_cell overall = answers_cell(a, row, all);
    const double empty = empty_of(a, row);
    json_t *o = evaluation_row_json(ev, row);
    if (ev->rows.why[row].code != ST_OK) return o;
    json_object_set_new(o, "n", json_integer((json_int_t)overall.n));
    for (int k = 0; k < CELLS; k++) {
        const answer_cell c = answers_cell(a, row, categories[k].group);
        json_object_set_new(o, categories[k].name, results_real(accuracy(&c)));
    }
    json_object_set_new(o, "cells", cells_json(a, row));
    json_object_set_new(o, "compensated", results_real(compensated(&overall)));
    json_object_set_new(o, "no_choice", json_integer((json_int_t)overall.marked));
    json_object_set_new(o, "empty", json_integer(empty > 0 ? (json_int_t)empty : 0));
    evaluation_costs_json(o, &overall.costs);
    if (!ev->passes) return o;
    const answer_cell first = answers_cell(a, row, reasoning);
    json_t *costs = json_object();
    evaluation_costs_json(costs, &first.costs);
    json_object_set_new(o, "reasoning", costs);
    return o;
}

static void add_row(json_t **list, const answers *a, size_t row)
{
    *list = results_append(*list, row_json(a, row));
}

static json_t *options_json(const void *own)
{
    const longbench2_run *r = own;
    return json_pack("{s:b, s:b, s:s}", "cot", r->o->cot, "no_context", r->o->no_context, "rules", rules[r->rules]);
}

static size_t count_answers(const void *own)
{
    const longbench2_run *r = own;
    return (r->ev->passes ? 2 : 1) * r->ev->samples.n;
}

static const answers_layout layout = {.count = count_answers,
                                      .answer = answer_of,
                                      .title = add_title,
                                      .lines = print_scores,
                                      .costs = print_costs,
                                      .cells = add_row,
                                      .options = options_json,
                                      .score = judged,
                                      .is_marked = has_no_choice};

/* ---- the command ---- */

static const sampler_options pariskv_sampling = {.temp = 0.1, .top_k = 20, .top_p = 0.95, .repeat_penalty = 1};

/* Parses --rules and rejects options that it does not support. */
static status parse_rules(longbench2_run *r, evaluation *ev, err *e)
{
    const longbench2_options *o = r->o;
    TRY(cli_choose(&r->rules, o->rules, rules, "--rules", e));
    if (o->cot && o->no_context) return err_set(e, ST_USAGE, "--no-context: not supported with --cot");
    if (r->rules != OFFICIAL && (o->cot || o->no_context))
        return err_set(e, ST_USAGE, "--rules %s: not supported with --cot or --no-context", o->rules);
    if (r->rules != BY_PARISKV) return ST_OK;
    if (ev->o->template.name || (ev->o->wrap && ev->prompter.wrap != WRAP_RAW))
        return err_set(e, ST_USAGE, "--rules pariskv: not supported with a chat template; its prompts are raw");
    ev->sampling = &pariskv_sampling;
    ev->prompter.wrap = WRAP_RAW;
    ev->prompter.joined = false;
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    longbench2_run *r = own;
    const longbench2_options *o = ev->options;
    r->o = o;
    r->ev = ev;
    TRY(parse_rules(r, ev, e));
    r->prompt = r->rules == BY_PARISKV ? LONGBENCH2_PARISKV
                : o->cot               ? LONGBENCH2_COT
                : o->no_context        ? LONGBENCH2_NO_CONTEXT
                                       : LONGBENCH2_0SHOT;
    ev->passes = o->cot || r->rules == BY_PARISKV;
    TRY(longbench2_templates_read(&r->templates, ev->data_dir, e));
    return samples_read(&ev->samples, &longbench2_reader, &ev->source, e);
}

static void free_run(void *own)
{
    longbench2_run *r = own;
    mem_free(r->reasoned);
    longbench2_templates_free(&r->templates);
}

static const evaluation_kind evaluation_of_longbench2 = {.name = "longbench2",
                                                         .size = sizeof(longbench2_run),
                                                         .sample_size = sizeof(longbench2_sample),
                                                         .own_samples = "longbench2/samples.jsonl",
                                                         .tables = tables,
                                                         .joined = true,
                                                         .load = load,
                                                         .max_length = max_length,
                                                         .pass = pass,
                                                         .item = make_item,
                                                         .config = config,
                                                         .judge = judge,
                                                         .passed = passed,
                                                         .report = answers_report_layout,
                                                         .layout = &layout,
                                                         .free = free_run};

#define OWN(field) AT(longbench2_options, field)

static const cli_option options[] = {
    OPTION("cot", NULL, FLAG, OWN(cot), "chain of thought: reasoning first, then the answer in a second pass"),
    OPTION("no-context", NULL, FLAG, OWN(no_context), "ask the questions without their documents"),
    OPTION("rules", "official|pariskv|kvpress", TEXT, OWN(rules),
           "prompts, lengths and scoring of the benchmark (default), of ParisKV (two passes), or of kvpress"),
    {0}};

EVALUATION_COMMAND(longbench2, SAMPLE_OPTIONS_GROUPS, "LongBench v2, multiple choice");
