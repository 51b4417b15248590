/* SPDX-License-Identifier: MIT */
/* `eval infinitebench`: reads or generates samples, writes predictions and their scores, one per line. */
#include "config.h"

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/infinitebench/infinitebench.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* SPARE_TOKENS: maximum growth of a cut prompt, whose seam is tokenized again. UNCUT: greater than every window. */
enum { OFFICIAL_LENGTH = 131072, SPARE_TOKENS = 32, UNCUT = 1 << 30 };

typedef struct {
    evaluation_options common;
    const char *dataset, *prompts, *rules, *length;
} infinitebench_options;

typedef struct {
    const infinitebench_options *o;
    evaluation *ev; /* one item per sample */
    infinitebench_prompts prompts;
    int infllm_rules; /* index into `rules`: 0 or 1 */
    made_source source;
    size_t n_wrap; /* tokens that the chat template adds to a prompt */
} infinitebench_run;

static const char *const rules[] = {"official", "infllm", NULL};

static infinitebench_sample *sample_at(const infinitebench_run *r, size_t i)
{
    return samples_at(&r->ev->samples, i);
}

/* ---- options ---- */

/* Parses --prompts. Prompts of base models are wrapped only on request. The texts of a file replace those of InfLLM, on
 * whose harness ActQKV's is based; everything else stays as in InfLLM. */
static status parse_prompts(infinitebench_run *r, const char *data_dir, err *e)
{
    const evaluation_options *c = r->ev->o;
    const infinitebench_options *o = r->o;
    infinitebench_set set = PROMPTS_INFLLM;
    bool of_file = infinitebench_set_parse(&set, o->prompts, NULL) != ST_OK;
    if (of_file && !file_exists(o->prompts))
        return err_set(e, ST_USAGE, "--prompts: '%.40s' is neither a file nor one of: official chat infllm",
                       o->prompts);
    TRY(cli_choose(&r->infllm_rules, o->rules, rules, "--rules", e));
    if (!o->rules) r->infllm_rules = set == PROMPTS_INFLLM;
    if (set == PROMPTS_OFFICIAL && !c->wrap && !c->template.name) r->ev->prompter.wrap = WRAP_RAW;
    r->ev->prompter.halves = true;
    TRY(infinitebench_prompts_open(&r->prompts, data_dir, set, e));
    return of_file ? prompt_file_read(&r->prompts.file, o->prompts, e) : ST_OK;
}

static status parse_tasks(infinitebench_run *r, err *e)
{
    made_source *s = &r->source;
    const infinitebench_options *o = r->o;
    bool all = o->dataset && strcmp(o->dataset, "all") == 0;
    if (!all) s->named = o->dataset;
    if (s->named) TRY(datasets_mark(s->wanted, &r->ev->names, "--dataset", s->named, e));
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) {
        const infinitebench_task *t = &infinitebench_tasks[i];
        if (!s->named) s->wanted[i] = all || t->in_table;
        s->made[i] = s->wanted[i] && t->generated && (!r->ev->o->data || o->length);
    }
    return made_lengths(s, o->length, SIZE_MAX, e);
}

/* ---- samples ---- */

static const metric *metric_of(const infinitebench_run *r, size_t task)
{
    const infinitebench_task *t = &infinitebench_tasks[task];
    return metric_find(r->infllm_rules ? t->infllm : t->name);
}

/* Reads a sample. Labels that cannot be scored are reported before anything runs. */
static status read_sample(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    const infinitebench_run *r = own;
    const infinitebench_sample *s = own_sample;
    TRY(infinitebench_read(&r->prompts, own_sample, path, where, e));
    return labels_check(r->ev->m, metric_of(r, s->at.dataset), s->labels, where, e);
}

static status make_sample(void *own_sample, const made_place *at, size_t units, err *e)
{
    infinitebench_sample *s = own_sample;
    s->length = at->length;
    return infinitebench_generate(&s->at.root, &s->depth, at, units, e);
}

static status count_tokens(const void *own, const void *own_sample, int64_t *n, err *e)
{
    const infinitebench_run *r = own;
    const infinitebench_sample *s = own_sample;
    prompter how = r->ev->prompter;
    prompt_tokens t;
    how.max_length = UNCUT;
    status st = infinitebench_prompt_make(&t, &r->prompts, &how, s, e);
    *n = (int64_t)(t.head.n + t.tail.n) + r->prompts.n_new[s->at.dataset];
    prompt_tokens_free(&t);
    return st;
}

static status read_samples(infinitebench_run *r, err *e)
{
    const evaluation_options *c = r->ev->o;
    bool all_made = true;
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) all_made &= !r->source.wanted[i] || r->source.made[i];
    if (c->data && all_made)
        return err_set(e, ST_USAGE, "--data: not used; all tasks of --dataset are generated at --length");
    if (c->sample_seed.given && all_made)
        return err_set(e, ST_USAGE, "--sample-seed: not used; all tasks are generated, with --seed");
    return made_read(r->ev, &r->source, e);
}

/* ---- prompts and answers ---- */

/* Returns the number of new tokens of a task: the official number, at most half of the window. */
static size_t new_tokens(const infinitebench_run *r, size_t task, int64_t window)
{
    int64_t n = r->prompts.n_new[task];
    return (size_t)(n < window / 2 ? n : window / 2);
}

/* True if the task has samples or will have generated ones. */
static bool has_task(const infinitebench_run *r, size_t task)
{
    return r->source.made[task] || samples_count(&r->ev->samples, task) > 0;
}

/* Returns the tokens of a task's prompts without --max-length: what the window leaves, limited to the official length
 * except for InfLLM; less than 2: the window is too small. */
static int64_t longest_prompt(const infinitebench_run *r, size_t task, int64_t window)
{
    int64_t left = window - (int64_t)new_tokens(r, task, window) - (int64_t)r->n_wrap - SPARE_TOKENS;
    return r->prompts.set != PROMPTS_INFLLM && left > OFFICIAL_LENGTH ? OFFICIAL_LENGTH : left;
}

/* Counts the tokens that the chat template adds, with a chat of one letter. */
static status count_wrap(infinitebench_run *r, err *e)
{
    prompter how = r->ev->prompter;
    prompt_tokens t = {0};
    prompt_text text = {0};
    how.max_length = UNCUT;
    TRY(prompt_puts(&text, "x", e));
    status st = prompter_take(&t, &how, true, &text, e);
    r->n_wrap = t.head.n;
    prompt_tokens_free(&t);
    return st;
}

/* Returns the longest prompt of all tasks; each task has its own limit. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    infinitebench_run *r = ev->own;
    int64_t most = 0;
    TRY(count_wrap(r, e));
    for (size_t t = 0; t < INFINITEBENCH_TASKS; t++) {
        int64_t n = has_task(r, t) ? longest_prompt(r, t, ev->window) : 0;
        if (n > most) most = n;
        if (n != 0 && n < 2)
            return err_set(e, ST_USAGE, "--ctx: a window of %lld tokens leaves no room for %s", (long long)ev->window,
                           infinitebench_tasks[t].name);
    }
    *out = (size_t)most;
    return ST_OK;
}

/* Returns the prompter of a sample. Generated samples fit; others are cut. */
static prompter prompter_of(const infinitebench_run *r, const infinitebench_sample *s)
{
    prompter p = r->ev->prompter;
    if (s->length) p.max_length = UNCUT;
    else if (!r->ev->o->max_length) p.max_length = (size_t)longest_prompt(r, s->at.dataset, r->ev->window);
    return p;
}

/* Returns the question of a sample, from the fields of its prompt. A key or phrase is preferred to the whole input. */
static utf8_text question_of(const infinitebench_sample *s)
{
    static const char *const names[] = {"{key}", "{prefix}", "{question}", "{input}"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t f = 0; f < s->n_fields; f++)
            if (strcmp(s->field[f].name, names[i]) == 0) return s->field[f].value;
    return (utf8_text){"", 0};
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    infinitebench_run *r = own;
    infinitebench_sample *s = sample_at(r, i);
    prompter how = prompter_of(r, s);
    out->n_new = new_tokens(r, s->at.dataset, ev->window);
    TRY(infinitebench_prompt_make(&out->tokens, &r->prompts, &how, s, e));
    TRY(prompt_tokens_find(&out->hint.question, &out->tokens, ev->g.tok, question_of(s), e));
    infinitebench_sample_forget(s);
    return ST_OK;
}

static json_t *config(const void *own)
{
    const infinitebench_run *r = own;
    json_t *o = json_pack("{s:I, s:s, s:s, s:o, s:o}", "window", (json_int_t)r->ev->window, "prompts",
                          infinitebench_prompts_name(&r->prompts), "rules", rules[r->infllm_rules], "lengths",
                          report_sizes(r->source.length, r->source.n_length), "samples",
                          samples_counts(&r->ev->samples, &r->ev->names));
    return prompt_file_config(&r->prompts.file, o);
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const infinitebench_run *r = own;
    const infinitebench_sample *s = sample_at(r, i);
    double score;
    TRY(labels_score(&score, ev->m, metric_of(r, s->at.dataset), answer, s->labels, e));
    *members = json_pack("{s:O*, s:s%, s:O, s:f}", "id", json_object_get(s->at.root, "id"), "prediction", answer.s,
                         answer.n, "answers", infinitebench_answers(s), "score", score);
    if (metrics_undecided(ev->m)) json_object_set_new(*members, "undecided", json_true());
    if (s->length == 0) return ST_OK;
    json_object_set_new(*members, "length", json_integer((json_int_t)s->length));
    json_object_set_new(*members, "depth", json_real(s->depth));
    return ST_OK;
}

static const char *const tables[] = {
    "infinitebench/official_prompts.json", "infinitebench/official_max_new_tokens.json",
    "infinitebench/infllm_dataset2prompt.json", "infinitebench/infllm_dataset2maxlen.json", NULL};

/* ---- the report: tasks in the order of ActQKV's Table 2; the average is the plain mean of rounded scores ---- */

/* Groups are tasks, then lengths of generated samples, numbered from 1; 0: samples from data. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const infinitebench_run *r = own;
    const infinitebench_sample *s = sample_at(r, i);
    int64_t length = 0;
    while (s->length && r->source.length[length++] != s->length) continue;
    *out = (answer_id){infinitebench_tasks[s->at.dataset].name, NULL, s->at.index, {(int64_t)s->at.dataset, length}};
}

static bool name_group(const void *own, const answer_group *g, int level, char out[ANSWER_NAME])
{
    const made_source *s = &((const infinitebench_run *)own)->source;
    if (level == 0) snprintf(out, ANSWER_NAME, "%s", infinitebench_tasks[g->key[0]].title);
    if (level != 1 || g->key[1] == 0 || s->n_length < 2) return level == 0;
    snprintf(out, ANSWER_NAME, "%lld tokens", (long long)s->length[g->key[1] - 1]);
    return true;
}

/* Prints the number of answers that InfLLM's rules decide at random; they count as wrong here. */
static status print_undecided(const answers *a, err *e)
{
    double sum = 0;
    for (size_t i = 0; i < a->t.ev->rows.n; i++) {
        a->t.x[i] = (double)answers_cell(a, i, ALL_ANSWERS).marked;
        sum += a->t.x[i];
    }
    return sum > 0 ? evaluation_table_line(&a->t, 0, "Code.Debug: no answer", 0, 0, e) : ST_OK;
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    const infinitebench_run *r = ev->own;
    size_t made = a->n - answers_count(a, ANSWERS(ANSWER_ANY, 0, ANSWER_ANY));
    paragraph("InfiniteBench: %zu samples (%zu of them made), prompts %s (%zu cut in the "
              "middle), wrap %s, rules %s",
              a->n, made, infinitebench_prompts_name(&r->prompts), ev->n_truncated, prompt_wrap_name(ev->prompter.wrap),
              rules[r->infllm_rules]);
}

static status print_costs(const answers *a, err *e)
{
    TRY(answers_costs(a, ALL_ANSWERS, e));
    return print_undecided(a, e);
}

/* Adds the cells of each task and length, for rows that can run. */
static void add_cell(json_t **list, const answers *a, size_t row, const answer_group *g, int level)
{
    const infinitebench_run *r = a->t.ev->own;
    const infinitebench_task *t = &infinitebench_tasks[g->key[0]];
    if (level != 1 || answers_cell(a, row, ANSWERS(g->key[0], ANSWER_ANY, ANSWER_ANY)).costs.n == 0) return;
    answers_json(list, a, row, *g, json_pack("{s:s, s:s}", "dataset", t->name, "title", t->title),
                 g->key[1] ? json_pack("{s:I}", "length", (json_int_t)r->source.length[g->key[1] - 1]) : NULL);
}

static json_t *options_json(const void *own)
{
    const infinitebench_run *r = own;
    return json_pack("{s:s, s:s, s:I}", "prompts", infinitebench_prompts_name(&r->prompts), "rules",
                     rules[r->infllm_rules], "seed", (json_int_t)r->ev->o->run.seed.value);
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = add_title,
                                      .name = name_group,
                                      .average = "average of tasks",
                                      .costs = print_costs,
                                      .cell = add_cell,
                                      .options = options_json};

/* ---- the command ---- */

static void say_shortened(const infinitebench_run *r)
{
    int64_t window = r->ev->window;
    for (size_t t = 0; t < INFINITEBENCH_TASKS; t++)
        if (has_task(r, t) && new_tokens(r, t, window) < (size_t)r->prompts.n_new[t])
            out_note("%s: answers limited to %zu tokens instead of %d, because the window has %lld",
                     infinitebench_tasks[t].name, new_tokens(r, t, window), r->prompts.n_new[t], (long long)window);
}

static status load(void *own, evaluation *ev, err *e)
{
    infinitebench_run *r = own;
    r->o = ev->options;
    r->ev = ev;
    ev->names = infinitebench_names;
    r->source = (made_source){.exact = true, .own = r, .read = read_sample, .make = make_sample, .count = count_tokens};
    TRY(parse_prompts(r, ev->data_dir, e));
    TRY(parse_tasks(r, e));
    if (r->prompts.file.name) TRY(infinitebench_prompts_take(&r->prompts, r->source.wanted, e));
    return read_samples(r, e);
}

static status ready(void *own, evaluation *ev, err *e)
{
    infinitebench_run *r = own;
    TRY(made_add(ev, &r->source, e));
    say_shortened(r);
    return ST_OK;
}

static void free_run(void *own)
{
    infinitebench_run *r = own;
    made_close(&r->source);
    infinitebench_prompts_close(&r->prompts);
}

static const evaluation_kind evaluation_of_infinitebench = {.name = "infinitebench",
                                                            .size = sizeof(infinitebench_run),
                                                            .sample_size = sizeof(infinitebench_sample),
                                                            .drop = infinitebench_drop,
                                                            .own_samples = "infinitebench/samples.jsonl",
                                                            .tables = tables,
                                                            .joined = true,
                                                            .load = load,
                                                            .ready = ready,
                                                            .max_length = max_length,
                                                            .item = make_item,
                                                            .config = config,
                                                            .judge = judge,
                                                            .report = answers_report_layout,
                                                            .layout = &layout,
                                                            .free = free_run};

#define OWN(field) AT(infinitebench_options, field)

static const cli_option options[] = {
    OPTION("dataset", "NAME,...", TEXT, OWN(dataset), "only these tasks, or all (default: the six of ActQKV's table)"),
    OPTION("prompts", "official|chat|infllm|FILE", TEXT, OWN(prompts),
           "prompts of base models (default), chat models or InfLLM, or InfLLM's with texts from a JSON file"),
    OPTION("rules", "official|infllm", TEXT, OWN(rules),
           "scoring of En.MC and Code.Debug (default: that of the prompts)"),
    OPTION("length", "N,...", TEXT, OWN(length),
           "generate retrieval tasks with prompts of N tokens (default without --data: --ctx or at most 4k)"),
    {0}};

EVALUATION_COMMAND(infinitebench, SAMPLE_OPTIONS_GROUPS,
                   "InfiniteBench: retrieval tasks of any length, and tasks from its data");
