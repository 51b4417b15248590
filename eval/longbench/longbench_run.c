/* SPDX-License-Identifier: MIT */
/* `eval longbench`: prompts in, predictions and their scores out, one line each; or, with --score FILE, the result.json
 * of the official eval.py for one file of predictions. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/command.h"
#include "cli/ranks.h"
#include "eval/answers.h"
#include "eval/longbench/longbench.h"
#include "eval/prompt_file.h"
#include "kernels/base/mem.h"

typedef struct {
    const char *dataset, *score, *prompts;
    bool by_length; /* -E */
} longbench_options;

typedef struct {
    const longbench_options *o;
    const evaluation *ev; /* an item for each sample */
    longbench_table t;
    prompt_file file;  /* --prompts */
    token_list *stops; /* [t.n] */
} longbench_run;

static longbench_sample *sample_at(const evaluation *ev, size_t i)
{
    return samples_at(&ev->samples, i);
}

/* ---- prompts and answers ---- */

static status max_length(size_t *out, const evaluation *ev, err *e)
{
    return longbench_max_length(out, ev->window, e);
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    longbench_run *r = own;
    longbench_sample *s = sample_at(ev, i);
    const longbench_dataset *d = &r->t.d[s->at.dataset];
    out->stop = &r->stops[s->at.dataset];
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
    json_t *o = json_pack("{s:b, s:s, s:o}", "longbench_e", r->o->by_length, "protocol",
                          r->ev->prompter.decode ? "decode" : "prefill", "samples",
                          samples_counts(&r->ev->samples, &r->ev->names));
    if (!o || !r->file.name || prompt_file_config(&r->file, o)) return o;
    json_decref(o);
    return NULL;
}

/* The official code scores a file with the classes of its last line. */
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

/* The means of a dataset's ranges of lengths. */
static status bucket_means(const answers *a, size_t row, size_t d, double out[LONGBENCH_BUCKETS], err *e)
{
    double *score;
    int64_t *length = NULL;
    size_t n = 0;
    TRY(MEM_NEW(&score, a->n, e));
    status st = MEM_NEW(&length, a->n, e);
    for (size_t i = 0; i < a->n && st == ST_OK; i++) {
        const json_t *line = a->line[row * a->n + i];
        if (!line || !answers_has(a, i, of_dataset(d))) continue;
        score[n] = a->score(line);
        length[n++] = a->id[i].key[1];
    }
    if (st == ST_OK) st = longbench_bucket_means(score, length, n, out, e);
    mem_free(score);
    mem_free(length);
    return st;
}

/* Marks the datasets of the group of dataset d that have samples; false where an earlier one has the group's line. */
static bool group_of(const answers *a, bool *among, size_t d)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    size_t first = t->n;
    for (size_t k = t->n; k-- > 0;) {
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
    for (size_t d = 0; d < t->n; d++) {
        if (!group_of(a, among, d)) continue;
        TRY(answers_average_line(a, t->d[d].group, t->n, among, e));
        for (size_t k = d; k < t->n; k++)
            if (among[k]) TRY(print_dataset(a, k, e));
    }
    return answers_average_line(a, "average of datasets", t->n, NULL, e);
}

static status print_title(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const longbench_run *r = ev->own;
    return out_printf(e,
                      "LongBench%s: %zu samples, prompts of at most %zu tokens (%zu cut in the middle), "
                      "wrap %s, protocol %s%s%s",
                      r->o->by_length ? "-E" : "", ev->samples.n, ev->prompter.max_length, ev->n_truncated,
                      prompt_wrap_name(ev->prompter.wrap), ev->prompter.decode ? "decode" : "prefill",
                      r->file.name ? ", prompts " : "", r->file.name ? r->file.name : "");
}

static void add_cells(json_t **list, const answers *a, size_t row)
{
    const longbench_run *r = a->t.ev->own;
    double mean[LONGBENCH_BUCKETS];
    for (size_t d = 0; d < r->t.n; d++) {
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
    for (size_t d = 0; d < t->n; d++)
        if (group_of(a, among, d))
            json_object_set_new(groups, t->d[d].group, results_real(answers_average(a, row, t->n, among)));
    json_object_set_new(o, "average", results_real(answers_average(a, row, t->n, NULL)));
    json_object_set_new(o, "groups", groups);
}

static json_t *options_json(const void *own)
{
    const longbench_run *r = own;
    return json_pack("{s:b, s:s*}", "longbench_e", r->o->by_length, "prompts", r->file.name);
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = print_title,
                                      .lines = print_groups,
                                      .cells = add_cells,
                                      .averages = add_averages,
                                      .options = options_json};

/* ---- a run ---- */

/* Data sets that have samples take their templates from the file. */
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
    r->o = ev->c->own;
    r->ev = ev;
    TRY(longbench_open(&r->t, ev->data_dir, e));
    r->t.longbench_e = r->o->by_length;
    ev->names = longbench_names(&r->t);
    if (r->o->prompts) TRY(prompt_file_read(&r->file, r->o->prompts, e));
    TRY(longbench_read(&ev->samples, &r->t, &ev->source, r->o->dataset, e));
    return take_prompts(r, e);
}

static status find_stops(void *own, evaluation *ev, err *e)
{
    longbench_run *r = own;
    TRY(MEM_NEW(&r->stops, r->t.n, e));
    for (size_t i = 0; i < r->t.n; i++) TRY(longbench_stops(&r->stops[i], ev->g.tok, &r->t.d[i], e));
    return ST_OK;
}

static void free_run(void *own)
{
    longbench_run *r = own;
    for (size_t i = 0; r->stops && i < r->t.n; i++) token_list_free(&r->stops[i]);
    mem_free(r->stops);
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
                                                        .max_length = max_length,
                                                        .item = make_item,
                                                        .config = config,
                                                        .judge = judge,
                                                        .report = answers_report_layout,
                                                        .layout = &layout,
                                                        .free = free_run};

/* ---- scores of a file ---- */

/* The dataset of --dataset, else of the file's name up to its first full stop ("qasper.jsonl"). */
static status dataset_of(const longbench_dataset **out, const longbench_table *t, const longbench_options *o, err *e)
{
    if (o->dataset) return longbench_find(out, t, o->dataset, strlen(o->dataset), e);
    const char *slash = strrchr(o->score, '/'), *name = slash ? slash + 1 : o->score;
    size_t n = strcspn(name, ".");
    if (n > 2 && strncmp(name + n - 2, "_e", 2) == 0) n -= 2;
    err inner = {0};
    status st = longbench_find(out, t, name, n, &inner);
    return st == ST_OK ? st : err_set(e, st, "--score: by its name, %s (--dataset NAME says it)", inner.msg);
}

/* As Python writes a number of at most two decimals: 50.0, 83.33, NaN. */
static status print_number(double x, err *e)
{
    char text[32];
    if (isnan(x)) return out_printf(e, "NaN");
    size_t n = (size_t)snprintf(text, sizeof text, "%.2f", x);
    if (text[n - 1] == '0') text[n - 1] = 0;
    return out_printf(e, "%s", text);
}

static status print_buckets(const longbench_scores *s, err *e)
{
    double mean[LONGBENCH_BUCKETS];
    TRY(longbench_bucket_means(s->score, s->length, s->n, mean, e));
    TRY(out_printf(e, "{\n"));
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) {
        TRY(out_printf(e, "        \"%s\": ", longbench_bucket_names[b]));
        TRY(print_number(mean[b], e));
        TRY(out_printf(e, b + 1 < LONGBENCH_BUCKETS ? ",\n" : "\n"));
    }
    return out_printf(e, "    }");
}

static status score_file(const longbench_options *o, metrics *m, const longbench_dataset *d, longbench_scores *s,
                         err *e)
{
    TRY(longbench_score_file(m, d, o->score, o->by_length, s, e));
    TRY(out_printf(e, "{\n    \"%s\": ", d->name));
    TRY(o->by_length ? print_buckets(s, e) : print_number(longbench_mean(s->score, s->n), e));
    TRY(out_printf(e, "\n}\n"));
    return out_flush(e);
}

static status score_only(const cli *c, const char *dir, metrics *m, err *e)
{
    const longbench_options *o = c->own;
    longbench_table t = {0};
    longbench_scores s = {0};
    const longbench_dataset *d;
    status st;
    if (c->out.json) return err_set(e, ST_USAGE, "--json: --score prints its result as JSON");
    if (c->data || c->out.output || o->prompts)
        return err_set(e, ST_USAGE, "--score reads predictions: it takes no %s",
                       c->data         ? "--data"
                       : c->out.output ? "-o"
                                       : "--prompts");
    TRY_GOTO(longbench_open(&t, dir, e));
    TRY_GOTO(dataset_of(&d, &t, o, e));
    TRY_GOTO(score_file(o, m, d, &s, e));
done:
    longbench_scores_free(&s);
    longbench_close(&t);
    return st;
}

static status cmd_longbench(const cli *c, err *e)
{
    const longbench_options *o = c->own;
    metrics *m = NULL;
    const char *dir;
    if (!o->score) return evaluation_run(&evaluation_of_longbench, c, e);
    TRY(ranks_refuse(c->engine.device.ranks, "--score", e));
    TRY(cli_data_dir(&dir, e));
    status st = metrics_open(&m, dir, e);
    if (st == ST_OK) st = score_only(c, dir, m, e);
    metrics_destroy(m);
    return st;
}

static const cli_option options[] = {
    {.name = "dataset",
     .arg = "NAME,...",
     AT_OWN(longbench_options, dataset),
     .help = "only these datasets (default: all that are there; --score: the one of the file's name)"},
    {.name = "e",
     .letter = 'E',
     .type = OPTION_FLAG,
     AT_OWN(longbench_options, by_length),
     .help = "LongBench-E: a score for each range of lengths"},
    {.name = "score",
     .arg = "FILE.jsonl",
     AT_OWN(longbench_options, score),
     .help = "only score predictions: lines with pred, answers, all_classes, length"},
    {.name = "prompts",
     .arg = "FILE.json",
     AT_OWN(longbench_options, prompts),
     .help = "templates of one's own: a JSON object of a text for each dataset, with {context} and {input}"},
    {.name = "protocol",
     .arg = "prefill|decode",
     AT(protocol),
     .help = "feed the prompt at once (default), or its question token by token (Quest)"},
    {0}};

const command longbench_command = {.name = "eval longbench",
                                   .args = "",
                                   .summary = "LongBench v1: strategies and budgets compared, or predictions scored",
                                   .groups = SAMPLE_OPTIONS_GROUPS,
                                   .own = options,
                                   .own_size = sizeof(longbench_options),
                                   .compares = true,
                                   .run = cmd_longbench};
