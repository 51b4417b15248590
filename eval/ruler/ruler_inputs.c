/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "eval/ruler/ruler_run.h"
#include "kernels/base/mem.h"

/* SAMPLES: of each task and length, where none are asked for. */
enum { SAMPLES = 20 };

/* ---- options ---- */

static const char *data_of(const ruler_options *o, const ruler_task *t)
{
    if (t->haystack == RULER_ESSAY) return o->essays;
    return strcmp(t->option, "--squad") == 0 ? o->squad : o->hotpotqa;
}

static status parse_tasks(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    in->named = o->task && strcmp(o->task, "all") != 0;
    for (size_t i = 0; i < RULER_TASKS; i++) in->runs[i] = !in->named;
    return in->named ? datasets_mark(in->runs, &ruler_names, "--task", o->task, e) : ST_OK;
}

/* Tasks without their data do not run; one that was named is an error. */
static status check_data(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    for (size_t i = 0; i < RULER_TASKS; i++) {
        const ruler_task *t = &ruler_tasks[i];
        bool lacks = t->option && !data_of(o, t);
        if (in->runs[i] && lacks && in->named)
            return err_set(e, ST_USAGE, "--task: %s needs %s FILE", t->name, t->option);
        in->lacks[i] = in->runs[i] && lacks;
        in->runs[i] &= !lacks;
        in->samples[i] = o->samples ? (size_t)o->samples : SAMPLES;
    }
    return ST_OK;
}

static status parse_lengths(ruler_inputs *in, err *e)
{
    TRY(cli_parse_sizes(&in->length, &in->n_length, in->o->length, "4096", "--length", e));
    for (size_t i = 0; i < in->n_length; i++) {
        if (in->length[i] < 1 || in->length[i] > 1 << 28)
            return err_set(e, ST_USAGE, "--length %lld: expected 1 to %d tokens", (long long)in->length[i], 1 << 28);
        for (size_t k = 0; k < i; k++)
            if (in->length[k] == in->length[i])
                return err_set(e, ST_USAGE, "--length: %lld is there twice", (long long)in->length[i]);
    }
    return ST_OK;
}

/* A word of an option; NULL: the first one. */
static status choose(bool *second, const char *word, const char *option, const char *a, const char *b, err *e)
{
    *second = word && strcmp(word, b) == 0;
    if (!word || *second || strcmp(word, a) == 0) return ST_OK;
    return err_set(e, ST_USAGE, "%s: '%.40s' is not one of: %s %s", option, word, a, b);
}

/* ---- files ---- */

static status read_data(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    bool needs[RULER_FAMILIES] = {false}, essay = false;
    for (size_t i = 0; i < RULER_TASKS; i++) {
        const ruler_task *t = &ruler_tasks[i];
        if (!in->runs[i]) continue;
        essay |= t->family == RULER_NIAH && t->haystack == RULER_ESSAY;
        if (t->family == RULER_QA) needs[strcmp(t->option, "--squad") == 0 ? RULER_SQUAD : RULER_HOTPOTQA] = true;
    }
    if (essay) TRY(ruler_essay_open(&in->essay, o->essays, in->data_dir, e));
    if (needs[RULER_SQUAD]) TRY(ruler_qa_open(&in->qa[RULER_SQUAD], RULER_SQUAD, o->squad, e));
    if (needs[RULER_HOTPOTQA]) TRY(ruler_qa_open(&in->qa[RULER_HOTPOTQA], RULER_HOTPOTQA, o->hotpotqa, e));
    return ST_OK;
}

/* What prompts are made from. */
static status open_sources(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    bool old, unused;
    TRY(check_data(in, e));
    TRY(parse_lengths(in, e));
    TRY(choose(&old, o->words, "--words", "3.0.1", "2.2.0", e));
    TRY(choose(&unused, o->tokens, "--tokens", "model", "ws", e));
    TRY(ruler_words_read(&in->words, in->data_dir, old, e));
    return read_data(in, e);
}

/* Prompts that are there: their tasks run. */
static status open_data(ruler_inputs *in, const char *paths, err *e)
{
    const ruler_options *o = in->o;
    const char *makes = o->write      ? "--write"
                        : o->length   ? "--length"
                        : o->variant  ? "--variant"
                        : o->essays   ? "--essays"
                        : o->squad    ? "--squad"
                        : o->hotpotqa ? "--hotpotqa"
                        : o->template ? "--template"
                                      : NULL;
    if (makes) return err_set(e, ST_USAGE, "%s makes prompts, which --data has already", makes);
    TRY(MEM_NEW(&in->length, 1, e));
    in->n_length = 1;
    TRY(ruler_data_open(&in->data, paths, in->runs, in->named, o->samples, e));
    for (size_t i = 0; i < RULER_TASKS; i++) {
        in->samples[i] = samples_count(&in->data, i);
        if (in->runs[i] && in->samples[i] == 0)
            err_set(&in->why[i], ST_USAGE, "--data has no samples of %s", ruler_tasks[i].name);
        if (in->named && in->why[i].code != ST_OK) return err_set(e, ST_USAGE, "%s", in->why[i].msg);
        in->runs[i] &= in->samples[i] > 0;
    }
    return ST_OK;
}

status ruler_inputs_open(ruler_inputs *in, const cli *c, err *e)
{
    bool unused;
    *in = (ruler_inputs){.o = c->own};
    TRY(cli_data_dir(&in->data_dir, e));
    TRY(parse_tasks(in, e));
    TRY(choose(&in->old, in->o->variant, "--variant", "2025", "2024", e));
    TRY(choose(&unused, in->o->answer_prefix, "--answer-prefix", "on", "off", e));
    TRY(ruler_templates_open(&in->templates, in->data_dir, in->old, in->o->template ? in->o->template : "base", e));
    return c->data ? open_data(in, c->data, e) : open_sources(in, e);
}

void ruler_inputs_close(ruler_inputs *in)
{
    ruler_templates_close(&in->templates);
    samples_free(&in->data);
    ruler_words_free(in->words);
    ruler_essay_close(&in->essay);
    for (size_t i = 0; i < 2; i++) ruler_qa_close(&in->qa[i]);
    token_list_free(&in->counter.ids);
    mem_free(in->length);
}

/* ---- prompts ---- */

ruler_settings ruler_inputs_settings(ruler_inputs *in, uint64_t seed, int64_t length)
{
    return (ruler_settings){.templates = &in->templates,
                            .words = in->words,
                            .essay = &in->essay,
                            .qa = {&in->qa[RULER_SQUAD], &in->qa[RULER_HOTPOTQA]},
                            .counter = &in->counter,
                            .seed = seed,
                            .length = length,
                            .skip = in->o->pre_samples,
                            .one_line = in->o->one_line,
                            .old = in->old};
}

static status make_one(ruler_inputs *in, const ruler_task *task, uint64_t seed, int64_t length, err *e)
{
    const ruler_settings s = ruler_inputs_settings(in, seed, length);
    ruler_maker m;
    ruler_sample sample = {0};
    status st = ruler_maker_open(&m, task, &s, e);
    if (st == ST_OK) st = ruler_make(&m, &sample, e);
    ruler_sample_free(&sample);
    ruler_maker_close(&m);
    return st;
}

static status check_questions(const ruler_inputs *in, const ruler_task *task, err *e)
{
    const ruler_options *o = in->o;
    size_t n = in->qa[strcmp(task->option, "--squad") == 0 ? RULER_SQUAD : RULER_HOTPOTQA].n_questions;
    size_t samples = in->samples[task - ruler_tasks];
    if ((size_t)o->pre_samples + samples <= n) return ST_OK;
    return err_set(e, ST_USAGE, "--samples %zu: %s has %zu questions%s", samples, task->option, n,
                   o->pre_samples ? ", with those of --pre-samples" : "");
}

static status check_task(ruler_inputs *in, size_t i, uint64_t seed, int64_t length, err *e)
{
    const ruler_task *task = &ruler_tasks[i];
    err inner = {0};
    if (task->family == RULER_QA) TRY(check_questions(in, task, e));
    status st = make_one(in, task, seed, length, &inner);
    if (st == ST_OK) return ST_OK;
    if (st != ST_UNSUPPORTED || in->named)
        return err_set(e, st, "%s%s%s", st == ST_UNSUPPORTED ? task->name : "", st == ST_UNSUPPORTED ? ": " : "",
                       inner.msg);
    in->why[i] = inner;
    in->runs[i] = false;
    return ST_OK;
}

status ruler_inputs_check(ruler_inputs *in, const tokenizer *tok, uint64_t seed, err *e)
{
    int64_t least = in->length[0];
    bool words = in->o->tokens && strcmp(in->o->tokens, "ws") == 0;
    in->counter.tok = words ? NULL : tok;
    for (size_t i = 0; i < in->n_length; i++)
        if (in->length[i] < least) least = in->length[i];
    for (size_t i = 0; i < RULER_TASKS; i++)
        if (in->runs[i]) TRY(check_task(in, i, seed, least, e));
    for (size_t i = 0; i < RULER_TASKS; i++)
        if (in->runs[i]) return ST_OK;
    return err_set(e, ST_USAGE, "no task can run");
}
