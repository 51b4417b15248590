/* SPDX-License-Identifier: MIT */
/* `eval mrcr`: which of several requests that are alike is repeated, by needles and lengths. doc/evals.md 18. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/mrcr/mrcr.h"
#include "kernels/base/mem.h"

/* NEW: tokens of an answer, at most. FIRST_BIN: the shortest bin of lengths begins at 2^12 tokens. */
enum { NEW = 1024, FIRST_BIN = 12, BINS = 12 };

typedef struct {
    evaluation_options common;
    double temp; /* NAN: as the data's own code */
} mrcr_options;

typedef struct {
    const evaluation *ev;
    sampler_options sampling;
    prompt_tokens *prompts; /* [samples] */
    size_t *n_tokens;       /* [samples] of prompt and answer, which make the length */
    size_t n_new, left_out; /* samples beyond the window */
} mrcr_run;

static mrcr_sample *sample_at(const mrcr_run *r, size_t i)
{
    return samples_at(&r->ev->samples, i);
}

/* ---- prompts ---- */

/* Official prompts have room for answers of any length; here an answer takes at most half of the window. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    mrcr_run *r = ev->own;
    r->n_new = ev->window / 2 < NEW ? (size_t)(ev->window / 2) : NEW;
    if (r->n_new == 0) return err_set(e, ST_USAGE, "--ctx %lld: no room for an answer", (long long)ev->window);
    *out = (size_t)ev->window - r->n_new;
    return ST_OK;
}

static status make_prompt(mrcr_run *r, const evaluation *ev, size_t i, err *e)
{
    const prompter *how = &ev->prompter;
    mrcr_sample *s = sample_at(r, i);
    prompt_tokens *t = &r->prompts[i];
    token_list answer = {0};
    prompt_text text;
    TRY(mrcr_text(&text, s, how->tok, how->chat_template, how->wrap != WRAP_RAW, e));
    mrcr_sample_forget(s);
    status st = prompter_encode(t, how, true, &text, text.n, e);
    mem_free(text.s);
    if (st == ST_OK) st = tokenizer_encode(how->tok, s->answer.s, s->answer.n, 0, &answer, e);
    t->n_tokens = t->head.n;
    r->n_tokens[i] = t->head.n + answer.n;
    token_list_free(&answer);
    return st;
}

/* Keeps the prompts that fit: nothing of a conversation may be cut. */
static status keep_fitting(mrcr_run *r, evaluation *ev, err *e)
{
    size_t kept = 0, shortest = SIZE_MAX, n = ev->samples.n;
    for (size_t i = 0; i < n; i++) {
        size_t tokens = r->prompts[i].head.n;
        if (tokens < shortest) shortest = tokens;
        if (tokens > ev->prompter.max_length || tokens + r->n_new > (size_t)ev->window) {
            prompt_tokens_free(&r->prompts[i]);
            mrcr_drop(sample_at(r, i));
            json_decref(sample_at(r, i)->at.root);
            continue;
        }
        *sample_at(r, kept) = *sample_at(r, i);
        r->n_tokens[kept] = r->n_tokens[i];
        r->prompts[kept++] = r->prompts[i];
    }
    r->left_out = n - kept;
    ev->samples.n = kept;
    memset(r->prompts + kept, 0, (n - kept) * sizeof *r->prompts);
    if (kept > 0) return ST_OK;
    return err_set(e, ST_USAGE,
                   "--ctx: none of the %zu prompts has at most %zu tokens, which %zu new ones leave of a window of "
                   "%lld; the shortest has %zu",
                   n, ev->prompter.max_length, r->n_new, (long long)ev->window, shortest);
}

static status ready(void *own, evaluation *ev, err *e)
{
    mrcr_run *r = own;
    status st = ST_OK;
    TRY(MEM_NEW(&r->prompts, r->ev->samples.n, e));
    TRY(MEM_NEW(&r->n_tokens, r->ev->samples.n, e));
    progress *bar = progress_start("reading conversations");
    for (size_t i = 0; i < r->ev->samples.n && st == ST_OK; i++) {
        err inner = {0};
        st = make_prompt(r, ev, i, &inner);
        if (st != ST_OK) err_set(e, st, "mrcr sample %lld: %.180s", (long long)sample_at(r, i)->at.index, inner.msg);
        progress_set(bar, (int64_t)i, (int64_t)r->ev->samples.n);
        if (st == ST_OK && cli_interrupted()) st = err_set(e, ST_INTERRUPTED, "interrupted");
    }
    progress_end(bar);
    if (st != ST_OK) return st;
    TRY(keep_fitting(r, ev, e));
    ev->n_samples = r->ev->samples.n;
    return ST_OK;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    mrcr_run *r = own;
    (void)e;
    out->random = evaluation_random(ev->o->run.seed.value, out->index, 0);
    out->n_new = r->n_new;
    out->tokens = r->prompts[i];
    r->prompts[i] = (prompt_tokens){0};
    return ST_OK;
}

/* ---- answers ---- */

static json_t *config(const void *own)
{
    const mrcr_run *r = own;
    return json_pack("{s:I, s:I, s:I, s:f}", "new_tokens", (json_int_t)r->n_new, "samples",
                     (json_int_t)r->ev->samples.n, "left_out", (json_int_t)r->left_out, "temp", r->sampling.temp);
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
                  s->answer.n, "score", score, "needles", (json_int_t)s->needles, "tokens", (json_int_t)r->n_tokens[i]);
    return ST_OK;
}

/* ---- the report ---- */

/* Returns 0 for lengths below 2^12 tokens, else the number of the doubling, whose end belongs to it. */
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
    *out = (answer_id){r->ev->kind->name, NULL, s->at.index, {s->needles, bin_of(r->n_tokens[i])}};
}

/* Returns the next larger number of needles that samples have; -1: there is none. */
static int64_t next_needles(const mrcr_run *r, int64_t after)
{
    int64_t next = -1;
    for (size_t i = 0; i < r->ev->samples.n; i++) {
        int64_t n = sample_at(r, i)->needles;
        if (n > after && (next < 0 || n < next)) next = n;
    }
    return next;
}

static status print_needles(const answers *a, int64_t needles, err *e)
{
    char name[48] = "needles not told";
    if (needles > 0) snprintf(name, sizeof name, "%lld needles", (long long)needles);
    TRY(answers_line(a, 0, name, ANSWERS(needles, ANSWER_ANY, ANSWER_ANY), e));
    for (int bin = 0; bin <= BINS; bin++) {
        int k = FIRST_BIN + bin - 11;
        if (bin == 0) snprintf(name, sizeof name, "under %dk tokens", (1 << FIRST_BIN) / 1024);
        else snprintf(name, sizeof name, "%dk to %dk tokens", 1 << k, 2 << k);
        TRY(answers_line(a, 2, name, ANSWERS(needles, bin, ANSWER_ANY), e));
    }
    return ST_OK;
}

static status print_title(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const mrcr_run *r = ev->own;
    TRY(out_printf(e, "MRCR: %zu samples (%zu too long for the window), mean similarity in %%, wrap %s", ev->samples.n,
                   r->left_out, prompt_wrap_name(ev->prompter.wrap)));
    if (!ev->sampling) return ST_OK;
    return out_printf(e, ", temperature %g, seed %llu", r->sampling.temp, (unsigned long long)ev->o->run.seed.value);
}

static status print_scores(const answers *a, err *e)
{
    const mrcr_run *r = a->t.ev->own;
    for (int64_t k = next_needles(r, -1); k >= 0; k = next_needles(r, k)) TRY(print_needles(a, k, e));
    return ST_OK;
}

static void add_cells(json_t **list, const answers *a, size_t row)
{
    const mrcr_run *r = a->t.ev->own;
    for (int64_t k = next_needles(r, -1); k >= 0; k = next_needles(r, k))
        for (int bin = 0; bin <= BINS; bin++) {
            const answer_group g = ANSWERS(k, bin, ANSWER_ANY);
            if (answers_count(a, g) == 0) continue;
            json_t *more = json_pack("{s:o, s:i, s:i}", "needles", k ? json_integer((json_int_t)k) : json_null(),
                                     "from", bin ? 1 << (FIRST_BIN + bin - 1) : 0, "to", 1 << (FIRST_BIN + bin));
            answers_json(list, a, row, g, json_object(), more);
        }
}

static const answers_layout layout = {
    .answer = answer_of, .title = print_title, .lines = print_scores, .cells = add_cells, .options = config};

/* ---- the command ---- */

/* The published runs of version 2 sample with temperature 1; the others are greedy. */
static status parse_sampling(mrcr_run *r, evaluation *ev, err *e)
{
    const mrcr_options *o = ev->options;
    sampler *unused;
    size_t v2 = 0;
    for (size_t i = 0; i < r->ev->samples.n; i++) v2 += mrcr_is_v2(sample_at(r, i));
    if (isnan(o->temp) && v2 > 0 && v2 < r->ev->samples.n)
        return err_set(e, ST_USAGE,
                       "--data: samples of version 2 are drawn with temperature 1, the others are greedy: "
                       "--temp T for all, or runs apart");
    r->sampling = (sampler_options){.temp = isnan(o->temp) ? v2 > 0 : o->temp, .top_p = 1, .repeat_penalty = 1};
    TRY(sampler_create(&unused, &r->sampling, 1, e)); /* its ranges */
    sampler_free(unused);
    if (r->sampling.temp > 0) ev->sampling = &r->sampling;
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    mrcr_run *r = own;
    r->ev = ev;
    TRY(samples_read(&ev->samples, &mrcr_reader, &ev->source, e));
    return parse_sampling(r, ev, e);
}

static void free_run(void *own)
{
    mrcr_run *r = own;
    for (size_t i = 0; r->prompts && i < r->ev->samples.n; i++) prompt_tokens_free(&r->prompts[i]);
    mem_free(r->prompts);
    mem_free(r->n_tokens);
}

static const evaluation_kind evaluation_of_mrcr = {.name = "mrcr",
                                                   .size = sizeof(mrcr_run),
                                                   .sample_size = sizeof(mrcr_sample),
                                                   .drop = mrcr_drop,
                                                   .own_samples = "mrcr/samples.jsonl",
                                                   .load = load,
                                                   .ready = ready,
                                                   .max_length = max_length,
                                                   .item = make_item,
                                                   .config = config,
                                                   .judge = judge,
                                                   .report = answers_report_layout,
                                                   .layout = &layout,
                                                   .free = free_run};

static const cli_option options[] = {{.name = "temp",
                                      .arg = "T",
                                      .type = OPTION_NUMBER,
                                      AT(mrcr_options, temp),
                                      .def = (double)NAN,
                                      .help = "temperature, 0 = greedy (default 0, of version 2 it is 1)"},
                                     {0}};

EVALUATION_COMMAND(mrcr, SAMPLE_OPTIONS_GROUPS,
                   "MRCR, one of several like requests repeated: strategies and budgets compared");
