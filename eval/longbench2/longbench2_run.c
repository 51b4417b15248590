/* SPDX-License-Identifier: MIT */
/* `eval longbench2`: one pass of prompts, or with --cot two, whose second one has what came of the first. */
#include "config.h"

#include "cli/command.h"
#include "eval/longbench2/longbench2_run.h"

#include <string.h>

#include "kernels/base/mem.h"

/* The most tokens of the official pred.py's prompts; and what a chat template takes at most, with what a text grows by
 * when it is tokenized again (of ParisKV's script). */
enum { MOST_PROMPT = 120000, ROOM = 256, PARISKV_ROOM = 10, LEAST_PROMPT = 64 };

/* New tokens by rules: of an answer, and of the reasoning before it. */
static const struct {
    size_t answer, reasoning;
} new_tokens[] = {{128, 1024}, {129, 1025}, {16, 0}};

/* Of ParisKV's two passes both have the whole prompt, and the second one what was reasoned too. Its script takes
 * 1,024 + 10 off the window W; here W is what the window leaves beside the second answer. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    const longbench2_run *r = ev->own;
    bool pariskv = r->rules == LONGBENCH2_BY_PARISKV;
    int64_t n_new = (int64_t)(ev->passes ? new_tokens[r->rules].reasoning : new_tokens[r->rules].answer);
    if (pariskv) n_new += (int64_t)new_tokens[r->rules].answer;
    int64_t left = ev->window - n_new - (pariskv ? PARISKV_ROOM : ROOM);
    if (left < LEAST_PROMPT)
        return err_set(e, ST_USAGE,
                       "--max-length is needed: a window of %lld tokens leaves %lld beside %lld new "
                       "ones and the chat template",
                       (long long)ev->window, (long long)left, (long long)n_new);
    *out = (size_t)(left < MOST_PROMPT || pariskv ? left : MOST_PROMPT);
    return ST_OK;
}

/* ---- prompts ---- */

/* What a row reasoned. A chat template has no room for U+0000. */
static status reasoning_of(prompt_text *out, const evaluation *ev, size_t row, const longbench2_sample *s, err *e)
{
    const json_t *said = json_object_get(
        evaluation_result(ev, row, LONGBENCH2_DATASET, s->at.index, LONGBENCH2_REASONING), "prediction");
    *out = (prompt_text){0};
    TRY(prompt_add(out, json_string_value(said), json_string_length(said), e));
    return prompt_replace(out, (utf8_text){"", 1}, (utf8_text){"\xef\xbf\xbd", 3}, e);
}

/* The text of a prompt, cut and wrapped. Of the second pass the reasoning stands in the template; by ParisKV's rules
 * behind the prompt of the first. */
static status make_text(prompt_text *out, longbench2_run *r, evaluation_item *x, const longbench2_sample *s, err *e)
{
    const prompter *how = &r->ev->prompter;
    bool second = r->second_pass, pariskv = r->rules == LONGBENCH2_BY_PARISKV;
    prompt_text reasoning = {0};
    *out = (prompt_text){0};
    status st = second ? reasoning_of(&reasoning, r->ev, x->row, s, e) : ST_OK;
    if (st == ST_OK) st = longbench2_fill(out, &r->templates, r->prompt, s, (utf8_text){reasoning.s, reasoning.n}, e);
    if (st == ST_OK) st = prompter_wrap(&x->tokens, how, true, out, e);
    if (st == ST_OK && second && pariskv) st = prompt_add(out, reasoning.s, reasoning.n, e);
    mem_free(reasoning.s);
    return st;
}

/* Where the question begins: by kvpress's rules what stands before is a prompt by itself, and compressed without it. */
static size_t question_at(const longbench2_run *r, const prompt_text *text)
{
    static const char mark[] = "What is the correct answer to this question: ";
    size_t n = strlen(mark), at = text->n;
    if (r->rules != LONGBENCH2_BY_KVPRESS) return text->n;
    for (at = text->n < n ? 0 : text->n - n; at > 0; at--)
        if (memcmp(text->s + at, mark, n) == 0) return at;
    return text->n;
}

static status encode(prompt_tokens *out, const longbench2_run *r, const prompt_text *text, err *e)
{
    size_t at = question_at(r, text);
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
    longbench2_sample *s = longbench2_at(r, second ? r->reasoned[i].sample : i);
    prompt_text text;
    out->dataset = LONGBENCH2_DATASET;
    out->index = s->at.index;
    out->stop = &ev->eos;
    out->random = evaluation_random(ev->c->seed, s->at.index, second);
    out->n_new = first ? new_tokens[r->rules].reasoning : new_tokens[r->rules].answer;
    if (first) out->pass = LONGBENCH2_REASONING;
    if (second) {
        out->pass = LONGBENCH2_ANSWER;
        out->row = r->reasoned[i].row;
    }
    status st = make_text(&text, r, out, s, e);
    if (r->rules != LONGBENCH2_BY_PARISKV) { /* the second pass has no document */
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
                                   longbench2_rules_names[r->rules], "samples", (json_int_t)r->list.n);
    const sampler_options *s = r->ev->sampling;
    if (!s || !own_config) return own_config;
    json_object_set_new(own_config, "temp", json_real(s->temp));
    json_object_set_new(own_config, "top_k", json_integer(s->top_k));
    json_object_set_new(own_config, "top_p", json_real(s->top_p));
    return own_config;
}

/* That of ParisKV's second pass, as it finds letters behind a chain of thought. */
static status choice_pariskv(char *letter, utf8_text output, err *e)
{
    char *answer;
    size_t n;
    TRY(metric_answer(&answer, &n, metric_find("gpqa_cot"), output, e));
    *letter = n ? *answer : 0;
    mem_free(answer);
    return ST_OK;
}

/* The letter that an output chooses, 0: none. */
static status choice_of(char *letter, const longbench2_run *r, const longbench2_sample *s, utf8_text output, err *e)
{
    if (r->rules == LONGBENCH2_BY_PARISKV) return choice_pariskv(letter, output, e);
    bool says = r->rules == LONGBENCH2_BY_KVPRESS && longbench2_says(output, s->answer);
    *letter = says ? s->answer : longbench2_choice(output);
    return ST_OK;
}

/* An empty output is no answer, not even a wrong one: the official code leaves it out of its results. */
static status judgement(json_t **out, const longbench2_run *r, const longbench2_sample *s, utf8_text output, err *e)
{
    char letter, answer[] = {s->answer, 0};
    TRY(choice_of(&letter, r, s, output, e));
    bool right = letter == s->answer, counts = output.n > 0 || r->rules != LONGBENCH2_OFFICIAL;
    char pred[] = {letter, 0};
    *out =
        json_pack("{s:s, s:s%, s:[s], s:s?, s:o, s:o, s:s, s:s}", "id", s->id, "prediction", output.s, output.n,
                  "answers", answer, "pred", letter ? pred : NULL, "judge", counts ? json_boolean(right) : json_null(),
                  "score", counts ? json_real(right) : json_null(), "difficulty", s->difficulty, "length", s->length);
    return ST_OK;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text output, json_t **members, err *e)
{
    const longbench2_run *r = own;
    const longbench2_sample *s = longbench2_at(r, r->second_pass ? r->reasoned[i].sample : i);
    if (!ev->passes || r->second_pass) return judgement(members, r, s, output, e);
    *members = json_pack("{s:s, s:s%}", "id", s->id, "prediction", output.s, output.n);
    return ST_OK;
}

static const char *const tables[] = {"longbench2/0shot.txt",       "longbench2/0shot_no_context.txt",
                                     "longbench2/0shot_cot.txt",   "longbench2/0shot_cot_ans.txt",
                                     "longbench2/pariskv_cot.txt", NULL};

/* ---- the second pass ---- */

/* Whoever reasoned is asked for the answer; by ParisKV's rules also who said nothing. */
static status list_reasoned(longbench2_run *r, err *e)
{
    TRY(MEM_NEW(&r->reasoned, r->ev->rows.n * r->list.n, e));
    for (size_t row = 0; row < r->ev->rows.n; row++)
        for (size_t i = 0; i < r->list.n; i++) {
            const json_t *line =
                evaluation_result(r->ev, row, LONGBENCH2_DATASET, longbench2_at(r, i)->at.index, LONGBENCH2_REASONING);
            bool said = json_string_length(json_object_get(line, "prediction")) > 0;
            if (said || (line && r->rules == LONGBENCH2_BY_PARISKV))
                r->reasoned[r->n_reasoned++] = (longbench2_reasoned){row, i};
        }
    return ST_OK;
}

/* A chain of thought has two passes. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    longbench2_run *r = own;
    if (k == 0) *n = r->list.n;
    if (k != 1 || !ev->passes) return ST_OK;
    TRY(list_reasoned(r, e));
    r->second_pass = true;
    r->n_cut = ev->n_truncated;
    if (r->rules == LONGBENCH2_OFFICIAL) r->prompt = LONGBENCH2_COT_ANSWER;
    *n = r->n_reasoned;
    return ST_OK;
}

/* ---- the command ---- */

static const sampler_options pariskv_sampling = {.temp = 0.1, .top_k = 20, .top_p = 0.95, .repeat_penalty = 1};

/* Whose rules, and what they do not go with. */
static status parse_rules(longbench2_run *r, evaluation *ev, err *e)
{
    const longbench2_options *o = r->o;
    const char *name = o->rules ? o->rules : longbench2_rules_names[0];
    while (r->rules < 3 && strcmp(longbench2_rules_names[r->rules], name) != 0) r->rules++;
    if (r->rules == 3)
        return err_set(e, ST_USAGE, "--rules: '%.40s' is not one of: official pariskv kvpress", o->rules);
    if (o->cot && o->no_context) return err_set(e, ST_USAGE, "--no-context: there is no such prompt with --cot");
    if (r->rules != LONGBENCH2_OFFICIAL && (o->cot || o->no_context))
        return err_set(e, ST_USAGE, "--rules %s has its own prompts: not with --cot or --no-context", name);
    if (r->rules != LONGBENCH2_BY_PARISKV) return ST_OK;
    if (ev->c->template_name || (ev->c->wrap && ev->prompter.wrap != WRAP_RAW))
        return err_set(e, ST_USAGE, "--rules pariskv: its prompts are raw, without a chat template");
    ev->sampling = &pariskv_sampling;
    ev->prompter.wrap = WRAP_RAW;
    ev->prompter.joined = false;
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    longbench2_run *r = own;
    const longbench2_options *o = ev->c->own;
    r->o = o;
    r->ev = ev;
    TRY(parse_rules(r, ev, e));
    r->prompt = r->rules == LONGBENCH2_BY_PARISKV ? LONGBENCH2_PARISKV
                : o->cot                          ? LONGBENCH2_COT
                : o->no_context                   ? LONGBENCH2_NO_CONTEXT
                                                  : LONGBENCH2_0SHOT;
    ev->passes = o->cot || r->rules == LONGBENCH2_BY_PARISKV;
    TRY(longbench2_templates_read(&r->templates, ev->data_dir, e));
    r->list = (sample_list){.size = sizeof(longbench2_sample)};
    TRY(samples_read(&r->list, &longbench2_reader, &ev->source, e));
    ev->files = r->list.files;
    return ST_OK;
}

static void free_run(void *own)
{
    longbench2_run *r = own;
    mem_free(r->reasoned);
    samples_free(&r->list);
    longbench2_templates_free(&r->templates);
}

static const evaluation_kind evaluation_of_longbench2 = {.name = "longbench2",
                                                         .size = sizeof(longbench2_run),
                                                         .own_samples = "longbench2/samples.jsonl",
                                                         .tables = tables,
                                                         .joined = true,
                                                         .load = load,
                                                         .max_length = max_length,
                                                         .pass = pass,
                                                         .item = make_item,
                                                         .config = config,
                                                         .judge = judge,
                                                         .report = longbench2_report,
                                                         .free = free_run};

static const cli_option options[] = {
    {.name = "cot",
     .type = OPTION_FLAG,
     AT_OWN(longbench2_options, cot),
     .help = "chain of thought: reasoning first, then the answer that follows from it"},
    {.name = "no-context",
     .type = OPTION_FLAG,
     AT_OWN(longbench2_options, no_context),
     .help = "the questions alone, without their documents"},
    {.name = "rules",
     .arg = "official|pariskv|kvpress",
     AT_OWN(longbench2_options, rules),
     .help = "whose prompts, lengths and judgement: the benchmark's (default), ParisKV's two passes, or kvpress's"},
    {0}};

const command longbench2_command = {.name = "eval longbench2",
                                    .args = "",
                                    .summary = "LongBench v2, multiple choice: strategies and budgets compared",
                                    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS |
                                              OPTIONS_PREFIX,
                                    .own = options,
                                    .own_size = sizeof(longbench2_options),
                                    .compares = true,
                                    .evaluation = &evaluation_of_longbench2};
