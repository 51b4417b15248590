/* SPDX-License-Identifier: MIT */
/* `eval mrcr`: repeat one of several similar requests; scores by number of needles and length. doc/evals.md 18. */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/mrcr/mrcr.h"
#include "kernels/base/mem.h"

/* NEW: maximum tokens of an answer. FIRST_BIN: the first doubling of lengths starts at 2^12 tokens. */
enum { NEW = 1024, FIRST_BIN = 12, BINS = 12 };

typedef struct {
    evaluation_options common;
    double temp; /* NAN: as in the reference code of the data */
} mrcr_options;

typedef struct {
    const evaluation *ev;
    sampler_options sampling;
    size_t shortest; /* tokens of the shortest prompt seen */
} mrcr_run;

static mrcr_sample *sample_at(const mrcr_run *r, size_t i)
{
    return samples_at(&r->ev->samples, i);
}

/* ---- prompts ---- */

/* Returns the maximum number of new tokens: at most half of the window. The official code does not limit answers. */
static size_t new_tokens(const evaluation *ev)
{
    return ev->window / 2 < NEW ? (size_t)(ev->window / 2) : NEW;
}

static status max_length(size_t *out, const evaluation *ev, err *e)
{
    if (ev->window < 2) return err_set(e, ST_USAGE, "--ctx %lld: no room for an answer", (long long)ev->window);
    *out = (size_t)ev->window - new_tokens(ev);
    return ST_OK;
}

/* Leaves out prompts that do not fit; conversations are never cut. */
static status check_length(const mrcr_run *r, const evaluation *ev, evaluation_item *x, err *e)
{
    const size_t n = x->tokens.n_tokens, most = ev->prompter.max_length;
    x->left_out = n > most || n + new_tokens(ev) > (size_t)ev->window;
    if (!x->left_out || ev->samples.n > 1) return ST_OK;
    return err_set(e, ST_USAGE,
                   "--ctx: all %zu prompts have more than the %zu tokens that %zu new ones leave in a window of %lld; "
                   "the shortest has %zu",
                   ev->n_left_out + 1, most, new_tokens(ev), (long long)ev->window, r->shortest);
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    mrcr_run *r = own;
    const prompter *how = &ev->prompter;
    mrcr_sample *s = sample_at(r, i);
    token_list answer = {0};
    prompt_text text;
    TRY(mrcr_text(&text, s, how, e));
    mrcr_sample_forget(s);
    status st = prompter_encode(&out->tokens, how, true, &text, text.n, e);
    mem_free(text.s);
    if (st == ST_OK) st = tokenizer_encode(how->tok, s->answer.s, s->answer.n, 0, &answer, e);
    const size_t n = out->tokens.n_tokens = out->tokens.head.n;
    s->tokens = n + answer.n;
    token_list_free(&answer);
    if (n < r->shortest) r->shortest = n;
    out->random = evaluation_random(ev->o->run.seed.value, out->index, 0);
    out->n_new = new_tokens(ev);
    return st == ST_OK ? check_length(r, ev, out, e) : st;
}

/* ---- answers ---- */

static json_t *config(const void *own)
{
    const mrcr_run *r = own;
    return json_pack("{s:I, s:I, s:I, s:f}", "new_tokens", (json_int_t)new_tokens(r->ev), "samples",
                     (json_int_t)r->ev->samples.n, "left_out", (json_int_t)r->ev->n_left_out, "temp", r->sampling.temp);
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const mrcr_run *r = own;
    const mrcr_sample *s = sample_at(r, i);
    bool v2 = mrcr_is_v2(s);
    metric_case c = {answer, &s->answer, 1, v2 ? NULL : &s->prefix, !v2};
    double score;
    TRY(metric_score(ev->m, metric_find(v2 ? "mrcr_v2" : "mrcr"), &c, &score, e));
    *members =
        json_pack("{s:s%, s:[s%], s:f, s:I, s:I}", "prediction", answer.s, answer.n, "answers", s->answer.s,
                  s->answer.n, "score", score, "needles", (json_int_t)s->needles, "tokens", (json_int_t)s->tokens);
    return ST_OK;
}

/* ---- the report ---- */

/* Returns 0 for lengths below 2^12 tokens, else the number of the doubling, which includes its upper end. */
static int bin_of(size_t n)
{
    int k = 0;
    if (n < (size_t)1 << FIRST_BIN) return 0;
    while (k + 1 < BINS && n > (size_t)1 << (FIRST_BIN + k + 1)) k++;
    return k + 1;
}

static void answer_of(const void *own, size_t i, answer_id *out)
{
    const mrcr_run *r = own;
    const mrcr_sample *s = sample_at(r, i);
    *out = (answer_id){r->ev->kind->name, NULL, s->at.index, {s->needles, bin_of(s->tokens)}};
}

static bool name_group(const void *own, const answer_group *g, int level, char out[ANSWER_NAME])
{
    const int needles = (int)g->key[0], bin = (int)g->key[1], k = FIRST_BIN + bin - 11;
    (void)own;
    if (level == 0 && needles == 0) snprintf(out, ANSWER_NAME, "unknown number of needles");
    else if (level == 0) snprintf(out, ANSWER_NAME, "%d needles", needles);
    else if (bin == 0) snprintf(out, ANSWER_NAME, "under %dk tokens", (1 << FIRST_BIN) / 1024);
    else snprintf(out, ANSWER_NAME, "%dk to %dk tokens", 1 << k, 2 << k);
    return level < 2;
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    const mrcr_run *r = ev->own;
    paragraph("MRCR: %zu samples (%zu too long for the window), mean similarity in %%, wrap %s", ev->samples.n,
              ev->n_left_out, prompt_wrap_name(ev->prompter.wrap));
    if (!ev->sampling) return;
    paragraph(", temperature %g, seed %llu", r->sampling.temp, (unsigned long long)ev->o->run.seed.value);
}

static void add_cell(json_t **list, const answers *a, size_t row, const answer_group *g, int level)
{
    const int bin = (int)g->key[1];
    if (level != 1) return;
    answers_json(list, a, row, *g, json_object(),
                 json_pack("{s:o, s:i, s:i}", "needles", g->key[0] ? json_integer((json_int_t)g->key[0]) : json_null(),
                           "from", bin ? 1 << (FIRST_BIN + bin - 1) : 0, "to", 1 << (FIRST_BIN + bin)));
}

static const answers_layout layout = {
    .answer = answer_of, .title = add_title, .name = name_group, .cell = add_cell, .options = config};

/* ---- the command ---- */

/* Defaults to the published sampling: temperature 1 for version 2, greedy otherwise. */
static status parse_sampling(mrcr_run *r, evaluation *ev, err *e)
{
    const mrcr_options *o = ev->options;
    sampler *unused;
    size_t v2 = 0;
    for (size_t i = 0; i < r->ev->samples.n; i++) v2 += mrcr_is_v2(sample_at(r, i));
    if (isnan(o->temp) && v2 > 0 && v2 < r->ev->samples.n)
        return err_set(e, ST_USAGE,
                       "--data: samples of version 2 use temperature 1, the others are greedy; set --temp T or run "
                       "them separately");
    r->sampling = (sampler_options){.temp = isnan(o->temp) ? v2 > 0 : o->temp, .top_p = 1, .repeat_penalty = 1};
    TRY(sampler_create(&unused, &r->sampling, 1, e)); /* checks the ranges */
    sampler_free(unused);
    if (r->sampling.temp > 0) ev->sampling = &r->sampling;
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    mrcr_run *r = own;
    r->ev = ev;
    r->shortest = SIZE_MAX;
    TRY(samples_read(&ev->samples, &mrcr_reader, &ev->source, e));
    return parse_sampling(r, ev, e);
}

static const evaluation_kind evaluation_of_mrcr = {.name = "mrcr",
                                                   .size = sizeof(mrcr_run),
                                                   .sample_size = sizeof(mrcr_sample),
                                                   .drop = mrcr_drop,
                                                   .own_samples = "mrcr/samples.jsonl",
                                                   .load = load,
                                                   .max_length = max_length,
                                                   .item = make_item,
                                                   .config = config,
                                                   .judge = judge,
                                                   .report = answers_report_layout,
                                                   .layout = &layout};

static const cli_option options[] = {OPTION("temp", "T", NUMBER((double)NAN), AT(mrcr_options, temp),
                                            "temperature, 0 = greedy (default: 0; for version 2, 1)"),
                                     {0}};

EVALUATION_COMMAND(mrcr, SAMPLE_OPTIONS_GROUPS, "MRCR, repeating one of several similar requests");
