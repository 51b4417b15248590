/* SPDX-License-Identifier: MIT */
/* `eval longbench2`: one pass of prompts, or with --cot two, whose second one has what came of the first. */
#include "config.h"

#include "eval/command.h"
#include "eval/longbench2/longbench2_run.h"

#include <string.h>

#include "kernels/base/mem.h"

/* New tokens of the official pred.py; the most tokens of its prompts; and what a chat template takes at most, with what
 * a text grows by when it is tokenized again. */
enum { NEW_ANSWER = 128, NEW_REASONING = 1024, MOST_PROMPT = 120000, ROOM = 256, LEAST_PROMPT = 64 };

static status max_length(size_t *out, const evaluation *ev, err *e)
{
    int64_t n_new = ev->passes ? NEW_REASONING : NEW_ANSWER, left = ev->window - n_new - ROOM;
    if (left < LEAST_PROMPT)
        return err_set(e, ST_USAGE,
                       "--max-length is needed: a window of %lld tokens leaves %lld beside %lld new "
                       "ones and the chat template",
                       (long long)ev->window, (long long)left, (long long)n_new);
    *out = (size_t)(left < MOST_PROMPT ? left : MOST_PROMPT);
    return ST_OK;
}

/* ---- prompts ---- */

/* What a row reasoned. A chat template has no room for U+0000. */
static status reasoning_of(prompt_text *out, const evaluation *ev, size_t row, const longbench2_sample *s, err *e)
{
    const json_t *said =
        json_object_get(evaluation_result(ev, row, LONGBENCH2_DATASET, s->index, LONGBENCH2_REASONING), "prediction");
    *out = (prompt_text){.n = json_string_length(said)};
    TRY(mem_alloc((void **)&out->s, out->n + 1, 1, "reasoning", e));
    memcpy(out->s, json_string_value(said), out->n);
    return prompt_replace(out, (utf8_text){"", 1}, (utf8_text){"\xef\xbf\xbd", 3}, e);
}

static status fill(prompt_text *out, const longbench2_run *r, const evaluation_item *x, const longbench2_sample *s,
                   err *e)
{
    prompt_text reasoning = {0};
    *out = (prompt_text){0};
    status st = r->prompt == LONGBENCH2_COT_ANSWER ? reasoning_of(&reasoning, r->ev, x->row, s, e) : ST_OK;
    if (st == ST_OK) st = longbench2_fill(out, &r->templates, r->prompt, s, (utf8_text){reasoning.s, reasoning.n}, e);
    mem_free(reasoning.s);
    return st;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    longbench2_run *r = own;
    bool second = r->prompt == LONGBENCH2_COT_ANSWER, first = r->prompt == LONGBENCH2_COT;
    longbench2_sample *s = &r->data.s[second ? r->reasoned[i].sample : i];
    prompt_text text;
    out->dataset = LONGBENCH2_DATASET;
    out->index = s->index;
    out->stop = &ev->eos;
    out->n_new = first ? NEW_REASONING : NEW_ANSWER;
    if (first) out->pass = LONGBENCH2_REASONING;
    if (second) {
        out->pass = LONGBENCH2_ANSWER;
        out->row = r->reasoned[i].row;
    }
    TRY(fill(&text, r, out, s, e));
    longbench2_sample_forget(s); /* the second pass has no document */
    status st = prompter_wrap(&out->tokens, &ev->prompter, true, &text, e);
    if (st == ST_OK) st = prompter_encode(&out->tokens, &ev->prompter, true, &text, text.n, e);
    mem_free(text.s);
    return st;
}

/* ---- answers ---- */

static json_t *config(const void *own)
{
    const longbench2_run *r = own;
    return json_pack("{s:s, s:I}", "prompt", longbench2_prompt_name(r->prompt), "samples", (json_int_t)r->data.n);
}

/* An empty output is no answer, not even a wrong one: the official code leaves it out of its results. */
static json_t *judgement(const longbench2_sample *s, utf8_text output)
{
    char letter = longbench2_choice(output), pred[] = {letter, 0}, answer[] = {s->answer, 0};
    bool right = letter == s->answer;
    return json_pack("{s:s, s:s%, s:[s], s:s?, s:o, s:o, s:s, s:s}", "id", s->id, "prediction", output.s, output.n,
                     "answers", answer, "pred", letter ? pred : NULL, "judge",
                     output.n ? json_boolean(right) : json_null(), "score", output.n ? json_real(right) : json_null(),
                     "difficulty", s->difficulty, "length", s->length);
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text output, json_t **members, err *e)
{
    (void)ev;
    (void)e;
    const longbench2_run *r = own;
    bool second = r->prompt == LONGBENCH2_COT_ANSWER;
    const longbench2_sample *s = &r->data.s[second ? r->reasoned[i].sample : i];
    *members = r->prompt == LONGBENCH2_COT ? json_pack("{s:s, s:s%}", "id", s->id, "prediction", output.s, output.n)
                                           : judgement(s, output);
    return ST_OK;
}

static const char *const tables[] = {"longbench2/0shot.txt", "longbench2/0shot_no_context.txt",
                                     "longbench2/0shot_cot.txt", "longbench2/0shot_cot_ans.txt", NULL};

/* ---- the second pass ---- */

/* Whoever reasoned is asked for the answer. */
static status list_reasoned(longbench2_run *r, err *e)
{
    TRY(MEM_NEW(&r->reasoned, r->ev->rows.n * r->data.n, e));
    for (size_t row = 0; row < r->ev->rows.n; row++)
        for (size_t i = 0; i < r->data.n; i++) {
            const json_t *line =
                evaluation_result(r->ev, row, LONGBENCH2_DATASET, r->data.s[i].index, LONGBENCH2_REASONING);
            if (json_string_length(json_object_get(line, "prediction")) > 0)
                r->reasoned[r->n_reasoned++] = (longbench2_reasoned){row, i};
        }
    return ST_OK;
}

/* With --cot there are two passes. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    longbench2_run *r = own;
    if (k == 0) *n = r->data.n;
    if (k != 1 || !ev->passes) return ST_OK;
    TRY(list_reasoned(r, e));
    r->prompt = LONGBENCH2_COT_ANSWER;
    *n = r->n_reasoned;
    return ST_OK;
}

/* ---- the command ---- */

static status load(void *own, evaluation *ev, err *e)
{
    longbench2_run *r = own;
    const longbench2_options *o = ev->c->own;
    if (o->cot && o->no_context) return err_set(e, ST_USAGE, "--no-context: there is no such prompt with --cot");
    r->o = o;
    r->ev = ev;
    r->prompt = o->cot ? LONGBENCH2_COT : o->no_context ? LONGBENCH2_NO_CONTEXT : LONGBENCH2_0SHOT;
    ev->passes = o->cot;
    TRY(longbench2_templates_read(&r->templates, ev->data_dir, e));
    TRY(longbench2_data_read(&r->data, &ev->source, e));
    ev->files = r->data.files;
    return ST_OK;
}

static void free_run(void *own)
{
    longbench2_run *r = own;
    mem_free(r->reasoned);
    longbench2_data_free(&r->data);
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
    {0}};

const command longbench2_command = {.name = "eval longbench2",
                                    .args = "",
                                    .summary = "LongBench v2, multiple choice: strategies and budgets compared",
                                    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS,
                                    .own = options,
                                    .own_size = sizeof(longbench2_options),
                                    .compares = true,
                                    .evaluation = &evaluation_of_longbench2};
