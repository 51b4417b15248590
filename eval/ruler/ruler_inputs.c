/* SPDX-License-Identifier: MIT */
/* Inputs of `eval ruler`: options, files of the user, and prompts of --data. */
#include "config.h"

#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

/* SAMPLES: default per task and length. */
enum { SAMPLES = 20, MOST_NEW = 1 << 20 };

/* ---- options ---- */

static status parse_tasks(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    in->named = o->task && strcmp(o->task, "all") != 0;
    for (size_t i = 0; i < RULER_TASKS; i++) in->runs[i] = !in->named;
    return in->named ? datasets_mark(in->runs, &ruler_names, "--task", o->task, e) : ST_OK;
}

/* Excludes tasks whose file is missing; for a task named by --task that is an error. */
static status check_data(ruler_inputs *in, err *e)
{
    const ruler_options *o = in->o;
    for (size_t i = 0; i < RULER_TASKS; i++) {
        const ruler_task *t = &ruler_tasks[i];
        bool lacks = t->file != RULER_FILES && !o->file[t->file];
        if (in->runs[i] && lacks && in->named)
            return err_set(e, ST_USAGE, "--task: %s requires %s FILE", t->name, ruler_file_options[t->file]);
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
                return err_set(e, ST_USAGE, "--length: duplicate length %lld", (long long)in->length[i]);
    }
    return ST_OK;
}

static const struct {
    const char *option, *words[3];
} choices[RULER_CHOICES] = {{"--variant", {"2025", "2024"}},
                            {"--words", {"3.0.1", "2.2.0"}},
                            {"--tokens", {"model", "ws"}},
                            {"--answer-prefix", {"on", "off"}}};

const char *ruler_word(const ruler_inputs *in, ruler_choice k)
{
    return choices[k].words[in->choice[k]];
}

/* ---- files ---- */

static status read_data(ruler_inputs *in, err *e)
{
    for (size_t i = 0; i < RULER_TASKS; i++) {
        const ruler_file f = ruler_tasks[i].file;
        if (!in->runs[i] || f == RULER_FILES) continue;
        const char *path = in->o->file[f];
        if (f == RULER_ESSAYS && !in->essay.punkt) TRY(ruler_essay_open(&in->essay, path, in->data_dir, e));
        if (f != RULER_ESSAYS && !in->qa[f].root) TRY(ruler_qa_open(&in->qa[f], f, path, e));
    }
    return ST_OK;
}

static status open_sources(ruler_inputs *in, err *e)
{
    TRY(check_data(in, e));
    TRY(parse_lengths(in, e));
    TRY(ruler_words_read(&in->words, in->data_dir, in->choice[RULER_WORDS], e));
    return read_data(in, e);
}

/* ---- prompts of --data ---- */

/* Returns the task named by the folder of a path "DIR/TASK/validation.jsonl". */
static size_t task_of_folder(const char *path)
{
    const char *end = strrchr(path, '/'), *begin = end;
    size_t task;
    if (!end) return DATASET_UNKNOWN;
    while (begin > path && begin[-1] != '/') begin--;
    dataset_find(&task, &ruler_names, begin, (size_t)(end - begin), NULL);
    return task;
}

static status find_task(size_t *task, const json_t *root, const char *path, const char *where, err *e)
{
    const json_t *member = json_object_get(root, "task");
    utf8_text name;
    err inner = {0};
    if (*task == DATASET_UNKNOWN) *task = task_of_folder(path);
    if (!member && *task != DATASET_UNKNOWN) return ST_OK;
    if (!member)
        return err_set(e, ST_FORMAT, "%s: 'task' is missing, and neither the file nor its folder is named after a task",
                       where);
    TRY(sample_text(&name, root, "task", where, e));
    if (dataset_find(task, &ruler_names, name.s, name.n, &inner) == ST_OK) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'task': %.120s", where, inner.msg);
}

/* Reads answers: a string or a list of strings. */
static status read_answers(ruler_record *x, const char *field, const char *where, err *e)
{
    json_t *answers = json_object_get(x->at.root, field);
    x->answers = json_is_string(answers) ? json_pack("[O]", answers) : json_incref(answers);
    bool good = json_array_size(x->answers) > 0;
    size_t i;
    const json_t *one;
    json_array_foreach(x->answers, i, one) good &= json_is_string(one);
    return good ? ST_OK : err_set(e, ST_FORMAT, "%s: '%s': expected a string or a list of strings", where, field);
}

static status read_columns(ruler_record *x, const char *where, err *e)
{
    const json_t *n = json_object_get(x->at.root, "max_new_tokens");
    TRY(sample_text(&x->context, x->at.root, "context", where, e));
    TRY(sample_text(&x->question, x->at.root, "question", where, e));
    TRY(sample_text(&x->prefix, x->at.root, "answer_prefix", where, e));
    if (n && (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > MOST_NEW))
        return err_set(e, ST_FORMAT, "%s: 'max_new_tokens': expected a number of tokens", where);
    x->n_new = (int)json_integer_value(n);
    return read_answers(x, "answer", where, e);
}

static status read_record(const void *own, void *record, const char *path, const char *where, err *e)
{
    ruler_record *x = record;
    const json_t *root = x->at.root;
    (void)own;
    (void)path;
    if (json_object_get(root, "context")) return read_columns(x, where, e);
    TRY(sample_text(&x->context, root, "input", where, e));
    if (json_object_get(root, "answer_prefix")) TRY(sample_text(&x->prefix, root, "answer_prefix", where, e));
    return read_answers(x, "outputs", where, e);
}

const sample_reader ruler_reader = {.names = &ruler_names, .dataset = find_task, .read = read_record};

void ruler_drop(void *record)
{
    json_decref(((ruler_record *)record)->answers);
}

const ruler_record *ruler_data_at(const sample_list *l, size_t task, size_t i)
{
    size_t first = 0;
    while (((const sample_head *)samples_at(l, first))->dataset != task) first++;
    return samples_at(l, first + i);
}

/* Reads the prompts of --data, and runs only their tasks. */
static status open_data(ruler_inputs *in, const char *paths, err *e)
{
    const ruler_options *o = in->o;
    const sample_source from = {.data = paths, .limit = o->samples};
    const struct {
        const char *given, *option;
    } makes[] = {{o->write, "--write"},
                 {o->length, "--length"},
                 {o->choice[RULER_VARIANT], "--variant"},
                 {o->file[RULER_ESSAYS], "--essays"},
                 {o->file[RULER_SQUAD], "--squad"},
                 {o->file[RULER_HOTPOTQA], "--hotpotqa"},
                 {o->template, "--template"}};
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++)
        if (makes[i].given)
            return err_set(e, ST_USAGE, "%s: not supported with --data, which has prompts", makes[i].option);
    TRY(MEM_NEW(&in->length, 1, e));
    in->n_length = 1;
    sample_reader r = ruler_reader;
    r.wanted = in->runs;
    r.datasets = in->named ? "" : NULL;
    in->data = (sample_list){.size = sizeof(ruler_record), .drop = ruler_drop};
    TRY(samples_read(&in->data, &r, &from, e));
    if (in->data.n == 0) return err_set(e, ST_USAGE, "--data: no samples of the tasks of --task");
    for (size_t i = 0; i < RULER_TASKS; i++) {
        in->samples[i] = samples_count(&in->data, i);
        if (in->runs[i] && in->samples[i] == 0)
            err_set(&in->why[i], ST_USAGE, "--data has no samples of %s", ruler_tasks[i].name);
        if (in->named && in->why[i].code != ST_OK) return err_set(e, ST_USAGE, "%s", in->why[i].msg);
        in->runs[i] &= in->samples[i] > 0;
    }
    return ST_OK;
}

status ruler_inputs_open(ruler_inputs *in, const ruler_options *o, err *e)
{
    *in = (ruler_inputs){.o = o, .seed = o->common.run.seed.value};
    TRY(cli_data_dir(&in->data_dir, e));
    TRY(parse_tasks(in, e));
    for (int i = 0; i < RULER_CHOICES; i++)
        TRY(cli_choose(&in->choice[i], in->o->choice[i], choices[i].words, choices[i].option, e));
    in->old = in->choice[RULER_VARIANT];
    TRY(ruler_templates_open(&in->templates, in->data_dir, in->old, in->o->template ? in->o->template : "base", e));
    return o->common.data ? open_data(in, o->common.data, e) : open_sources(in, e);
}

void ruler_inputs_close(ruler_inputs *in)
{
    ruler_templates_close(&in->templates);
    samples_free(&in->data);
    ruler_words_free(in->words);
    ruler_essay_close(&in->essay);
    for (size_t i = 0; i < RULER_FILES; i++) ruler_qa_close(&in->qa[i]);
    token_list_free(&in->counter.ids);
    mem_free(in->length);
}

/* ---- checks ---- */

static status make_one(ruler_inputs *in, const ruler_task *task, int64_t length, err *e)
{
    ruler_maker m;
    ruler_sample sample = {0};
    status st = ruler_maker_open(&m, in, task, length, e);
    if (st == ST_OK) st = ruler_make(&m, &sample, e);
    ruler_sample_free(&sample);
    ruler_maker_close(&m);
    return st;
}

static status check_questions(const ruler_inputs *in, size_t i, err *e)
{
    const ruler_file f = ruler_tasks[i].file;
    const size_t n = in->qa[f].n_questions, skipped = (size_t)in->o->pre_samples;
    if (skipped + in->samples[i] <= n) return ST_OK;
    return err_set(e, ST_USAGE, "--samples %zu: %s has only %zu questions%s", in->samples[i], ruler_file_options[f], n,
                   skipped ? ", including those of --pre-samples" : "");
}

static status check_task(ruler_inputs *in, size_t i, int64_t length, err *e)
{
    const ruler_task *task = &ruler_tasks[i];
    err inner = {0};
    if (task->family == RULER_QA) TRY(check_questions(in, i, e));
    status st = make_one(in, task, length, &inner);
    if (st == ST_OK) return ST_OK;
    if (st != ST_UNSUPPORTED || in->named)
        return err_set(e, st, "%s%s%s", st == ST_UNSUPPORTED ? task->name : "", st == ST_UNSUPPORTED ? ": " : "",
                       inner.msg);
    in->why[i] = inner;
    in->runs[i] = false;
    return ST_OK;
}

status ruler_inputs_check(ruler_inputs *in, const tokenizer *tok, err *e)
{
    int64_t least = in->length[0];
    bool any = false;
    in->counter.tok = in->choice[RULER_TOKENS] ? NULL : tok;
    for (size_t i = 0; i < in->n_length; i++)
        if (in->length[i] < least) least = in->length[i];
    for (size_t i = 0; i < RULER_TASKS; i++) {
        if (in->runs[i]) TRY(check_task(in, i, least, e));
        any |= in->runs[i];
    }
    return any ? ST_OK : err_set(e, ST_USAGE, "no task can run");
}
