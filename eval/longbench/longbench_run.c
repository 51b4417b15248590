/* SPDX-License-Identifier: MIT */
/* `eval longbench`: reads prompts, writes predictions and their scores, one per line. With --score FILE, prints the
 * result.json of the official eval.py for one file of predictions. */
#include "config.h"

#include <string.h>

#include "cli/command.h"
#include "cli/ranks.h"
#include "eval/answers.h"
#include "eval/longbench/longbench.h"
#include "eval/prompt_file.h"
#include "kernels/base/mem.h"

typedef struct {
    evaluation_options common;
    const char *dataset, *score, *prompts;
    bool by_length; /* option -E */
} longbench_options;

typedef struct {
    const longbench_options *o;
    const evaluation *ev; /* one item per sample */
    longbench_table t;
    prompt_file file; /* file of --prompts */
    token_list stops; /* stop ids of datasets with newline_stops */
} longbench_run;

static longbench_sample *sample_at(const evaluation *ev, size_t i)
{
    return samples_at(&ev->samples, i);
}

/* ---- prompts and answers ---- */

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    longbench_run *r = own;
    longbench_sample *s = sample_at(ev, i);
    const longbench_dataset *d = &r->t.d[s->at.dataset];
    if (d->newline_stops) out->stop = &r->stops;
    out->n_new = (size_t)d->max_new_tokens;
    out->not_first = d->newline_stops;
    TRY(longbench_prompt_make(&out->tokens, &ev->prompter, d, s->p.text, s->input, e));
    TRY(prompt_tokens_find(&out->hint.question, &out->tokens, ev->g.tok, s->input, e));
    longbench_sample_forget(s);
    return ST_OK;
}

static json_t *config(const void *own)
{
    const longbench_run *r = own;
    json_t *o = json_pack("{s:b, s:s, s:o}", "longbench_e", r->o->by_length, "protocol", protocol_of(r->ev), "samples",
                          samples_counts(&r->ev->samples, &r->ev->names));
    return prompt_file_config(&r->file, o);
}

/* Returns the last sample of a dataset: the official code scores a file with the classes of its last line. */
static const prediction *last_of_dataset(const evaluation *ev, size_t i)
{
    while (i + 1 < ev->samples.n && sample_at(ev, i + 1)->at.dataset == sample_at(ev, i)->at.dataset) i++;
    return &sample_at(ev, i)->p;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const longbench_run *r = own;
    const longbench_sample *s = sample_at(ev, i);
    const prediction *last = last_of_dataset(ev, i);
    metric_case c = {answer, s->p.answers, s->p.n_answers, last->classes, last->n_classes};
    double score;
    TRY(longbench_score(ev->m, &r->t.d[s->at.dataset], c, &score, e));
    *members = json_pack("{s:s, s:s%, s:O, s:f, s:I}", "id", s->id, "prediction", answer.s, answer.n, "answers",
                         json_object_get(s->at.root, "answers"), "score", score, "length", (json_int_t)s->p.length);
    return ST_OK;
}

static const char *const tables[] = {"longbench/datasets.json", "longbench/prompts.json", "jieba/dict.txt",
                                     "jieba/hmm.tsv", NULL};

/* ---- the report: datasets in the official groups; averages are plain means of rounded scores ---- */

static void answer_of(const void *own, size_t i, answer_id *out)
{
    const longbench_run *r = own;
    const longbench_sample *s = sample_at(r->ev, i);
    *out = (answer_id){r->t.d[s->at.dataset].name, NULL, s->at.index, {(int64_t)s->at.dataset, s->p.length}};
}

static answer_group of_dataset(size_t d)
{
    return ANSWERS((int64_t)d, ANSWER_ANY, ANSWER_ANY);
}

/* Computes the means of a dataset per range of lengths. */
static status bucket_means(const answers *a, size_t row, size_t d, double out[LONGBENCH_BUCKETS], err *e)
{
    longbench_scores s = {0};
    status st = ST_OK;
    for (size_t i = 0; i < a->n && st == ST_OK; i++) {
        const json_t *line = a->line[row * a->n + i];
        if (line && answers_has(a, i, of_dataset(d))) st = longbench_scores_add(&s, a->score(line), a->id[i].key[1], e);
    }
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) out[b] = longbench_bucket_mean(&s, b);
    longbench_scores_free(&s);
    return st;
}

/* Marks the datasets with samples in the group of dataset d; false: an earlier dataset prints the group's line. */
static bool group_of(const answers *a, bool *among, size_t d)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    size_t first = t->names.n;
    for (size_t k = t->names.n; k-- > 0;) {
        among[k] = strcmp(t->d[k].group, t->d[d].group) == 0 && answers_count(a, of_dataset(k)) > 0;
        if (among[k]) first = k;
    }
    return first == d;
}

static status print_dataset(const answers *a, size_t d, err *e)
{
    const longbench_run *r = a->t.ev->own;
    double mean[LONGBENCH_BUCKETS];
    TRY(answers_line(a, 2, r->t.d[d].name, of_dataset(d), e));
    for (int b = 0; r->o->by_length && b < LONGBENCH_BUCKETS; b++) {
        for (size_t row = 0; row < a->t.ev->rows.n; row++) {
            TRY(bucket_means(a, row, d, mean, e));
            a->t.x[row] = mean[b];
        }
        TRY(evaluation_table_line(&a->t, 4, longbench_bucket_names[b], 0, a->decimals, e));
    }
    return ST_OK;
}

/* Prints each group's average and its datasets. */
static status print_groups(const answers *a, err *e)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    bool among[LONGBENCH_DATASETS];
    for (size_t d = 0; d < t->names.n; d++) {
        if (!group_of(a, among, d)) continue;
        TRY(answers_average_line(a, t->d[d].group, t->names.n, among, e));
        for (size_t k = d; k < t->names.n; k++)
            if (among[k]) TRY(print_dataset(a, k, e));
    }
    return answers_average_line(a, "average of datasets", t->names.n, NULL, e);
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    const longbench_run *r = ev->own;
    paragraph("LongBench%s: %zu samples, prompts of at most %zu tokens (%zu cut in the middle), "
              "wrap %s, protocol %s%s%s",
              r->o->by_length ? "-E" : "", ev->samples.n, ev->prompter.max_length, ev->n_truncated,
              prompt_wrap_name(ev->prompter.wrap), protocol_of(ev), r->file.name ? ", prompts " : "",
              r->file.name ? r->file.name : "");
}

static void add_cells(json_t **list, const answers *a, size_t row)
{
    const longbench_run *r = a->t.ev->own;
    double mean[LONGBENCH_BUCKETS];
    for (size_t d = 0; d < r->t.names.n; d++) {
        if (answers_cell(a, row, of_dataset(d)).costs.n == 0) continue;
        json_t *head = json_pack("{s:s, s:s}", "dataset", r->t.d[d].name, "group", r->t.d[d].group);
        answers_json(list, a, row, of_dataset(d), head, NULL);
        if (!r->o->by_length || bucket_means(a, row, d, mean, NULL) != ST_OK) continue;
        json_t *buckets = json_object();
        for (int b = 0; b < LONGBENCH_BUCKETS; b++)
            json_object_set_new(buckets, longbench_bucket_names[b], results_real(mean[b]));
        json_object_set_new(json_array_get(*list, json_array_size(*list) - 1), "buckets", buckets);
    }
}

static void add_averages(json_t *o, const answers *a, size_t row)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    bool among[LONGBENCH_DATASETS];
    if (a->t.ev->rows.why[row].code != ST_OK) return;
    json_t *groups = json_object();
    for (size_t d = 0; d < t->names.n; d++)
        if (group_of(a, among, d))
            json_object_set_new(groups, t->d[d].group, results_real(answers_average(a, row, t->names.n, among)));
    json_object_set_new(o, "average", results_real(answers_average(a, row, t->names.n, NULL)));
    json_object_set_new(o, "groups", groups);
}

static json_t *options_json(const void *own)
{
    const longbench_run *r = own;
    return json_pack("{s:b, s:s*}", "longbench_e", r->o->by_length, "prompts", r->file.name);
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = add_title,
                                      .lines = print_groups,
                                      .cells = add_cells,
                                      .averages = add_averages,
                                      .options = options_json};

/* ---- a run ---- */

/* Takes the templates of all datasets with samples from the file. */
static status take_prompts(longbench_run *r, err *e)
{
    for (size_t i = 0; r->file.name && i < r->ev->samples.n; i++) {
        longbench_dataset *d = &r->t.d[sample_at(r->ev, i)->at.dataset];
        TRY(prompt_file_template(&d->prompt, &r->file, d->name, "{context} {input}", e));
    }
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    longbench_run *r = own;
    r->o = ev->options;
    r->ev = ev;
    TRY(longbench_open(&r->t, ev->data_dir, e));
    r->t.longbench_e = r->o->by_length;
    ev->names = r->t.names;
    if (r->o->prompts) TRY(prompt_file_read(&r->file, r->o->prompts, e));
    TRY(longbench_read(&ev->samples, &r->t, &ev->source, r->o->dataset, e));
    return take_prompts(r, e);
}

static status find_stops(void *own, evaluation *ev, err *e)
{
    longbench_run *r = own;
    return longbench_stops(&r->stops, ev->g.tok, e);
}

static void free_run(void *own)
{
    longbench_run *r = own;
    token_list_free(&r->stops);
    prompt_file_close(&r->file);
    longbench_close(&r->t);
}

static const evaluation_kind evaluation_of_longbench = {.name = "longbench",
                                                        .size = sizeof(longbench_run),
                                                        .sample_size = sizeof(longbench_sample),
                                                        .drop = longbench_drop,
                                                        .own_samples = "longbench/samples.jsonl",
                                                        .tables = tables,
                                                        .load = load,
                                                        .ready = find_stops,
                                                        .max_length = longbench_max_length,
                                                        .item = make_item,
                                                        .config = config,
                                                        .judge = judge,
                                                        .report = answers_report_layout,
                                                        .layout = &layout,
                                                        .free = free_run};

/* ---- scores of a file ---- */

/* Finds the dataset of --dataset, or of the file name up to its first dot ("qasper.jsonl"). */
static status dataset_of(const longbench_dataset **out, const longbench_table *t, const longbench_options *o, err *e)
{
    if (o->dataset) return longbench_find(out, t, o->dataset, strlen(o->dataset), e);
    const char *slash = strrchr(o->score, '/'), *name = slash ? slash + 1 : o->score;
    size_t n = strcspn(name, ".");
    if (n > 2 && strncmp(name + n - 2, "_e", 2) == 0) n -= 2;
    err inner = {0};
    status st = longbench_find(out, t, name, n, &inner);
    return st == ST_OK ? st : err_set(e, st, "--score: %s; use --dataset NAME", inner.msg);
}

/* Prints scores as Python does with at most two decimals: 50.0, 83.33, NaN. */
static status print_scores(const longbench_options *o, const longbench_dataset *d, const longbench_scores *s, err *e)
{
    json_t *buckets = json_object(), *total = results_real(longbench_mean(s));
    for (int b = 0; b < LONGBENCH_BUCKETS; b++)
        json_object_set_new(buckets, longbench_bucket_names[b], results_real(longbench_bucket_mean(s, b)));
    json_t *o_json = json_pack("{s:O}", d->name, o->by_length ? buckets : total);
    char *json = json_dumps(o_json, JSON_INDENT(4) | JSON_REAL_PRECISION(5));
    prompt_text text = {0};
    status st = json ? prompt_puts(&text, json, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = prompt_replace(&text, (utf8_text){"null", 4}, (utf8_text){"NaN", 3}, e);
    if (st == ST_OK) st = out_printf(e, "%s\n", text.s);
    json_decref(o_json);
    json_decref(buckets);
    json_decref(total);
    mem_free(text.s);
    free(json);
    return st == ST_OK ? out_flush(e) : st;
}

static status score_only(const longbench_options *o, err *e)
{
    const run_options *run = &o->common.run;
    const char *more = o->common.data ? "--data" : run->out.output ? "-o" : o->prompts ? "--prompts" : NULL;
    metrics *m = NULL;
    longbench_table t = {0};
    longbench_scores s = {0};
    const longbench_dataset *d;
    const char *dir;
    status st;
    TRY(ranks_refuse(run->engine.device.ranks, "--score", e));
    if (run->out.json) return err_set(e, ST_USAGE, "--json: not supported with --score, which prints JSON");
    if (more) return err_set(e, ST_USAGE, "--score: not supported with %s", more);
    TRY(cli_data_dir(&dir, e));
    TRY_GOTO(metrics_open(&m, dir, e));
    TRY_GOTO(longbench_open(&t, dir, e));
    TRY_GOTO(dataset_of(&d, &t, o, e));
    TRY_GOTO(longbench_score_file(m, d, o->score, o->by_length, &s, e));
    TRY_GOTO(print_scores(o, d, &s, e));
done:
    longbench_scores_free(&s);
    longbench_close(&t);
    metrics_destroy(m);
    return st;
}

static status cmd_longbench(void *options, err *e)
{
    const longbench_options *o = options;
    return o->score ? score_only(o, e) : evaluation_run(&evaluation_of_longbench, o, e);
}

#define OWN(field) AT(longbench_options, field)

static const cli_option options[] = {
    OPTION("dataset", "NAME,...", TEXT, OWN(dataset),
           "only these datasets (default: all that are found; with --score: from the file's name)"),
    {.name = "e", .letter = 'E', FLAG, OWN(by_length), .help = "LongBench-E: one score per range of lengths"},
    OPTION("score", "FILE.jsonl", TEXT, OWN(score),
           "only score predictions: lines with pred, answers, all_classes, length"),
    OPTION("prompts", "FILE.json", TEXT, OWN(prompts),
           "custom templates: a JSON object, dataset -> text with {context} and {input}"),
    OPTION("protocol", "prefill|decode", TEXT, OWN(common.protocol),
           "feed the prompt at once (default), or its question token by token (Quest)"),
    {0}};

const command longbench_command = {.name = "eval longbench",
                                   .args = "",
                                   .summary = "LongBench v1, or predictions scored",
                                   .groups = SAMPLE_OPTIONS_GROUPS,
                                   .own = options,
                                   .size = sizeof(longbench_options),
                                   .place = EVALUATION_PLACES,
                                   .run = cmd_longbench};
