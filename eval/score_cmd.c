/* SPDX-License-Identifier: MIT */
/* `eval score METRIC`: reads predictions, prints scores. Applies no dataset's post-processing. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/prediction.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

typedef struct {
    tool_options t;
    const char *metric; /* command-line argument */
    bool mean;
} score_options;

static const size_t MAX_INPUT_BYTES = (size_t)1 << 30;

static status find_metric(const metric **out, const char *name, err *e)
{
    nearest near;
    char known[160];
    size_t n = 0;
    *out = name ? metric_find(name) : NULL;
    if (*out) return ST_OK;
    nearest_start(&near, name ? name : "");
    for (const metric *k = metric_next(NULL); k; k = metric_next(k)) {
        if (!metric_takes_labels(k) && n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, " %s", metric_name(k));
        nearest_try(&near, metric_name(k), strlen(metric_name(k)));
    }
    return err_set(e, ST_USAGE,
                   "%.40s: unknown metric%s; supported:%s, tasks of InfiniteBench and SCBench, gsm8k, math, aime, gpqa",
                   name ? name : "METRIC", nearest_hint(&near), known);
}

typedef struct {
    metrics *m;
    const metric *k;
    double sum;
    size_t count;
} scorer;

static status score_one(void *own, const prediction *p, err *e)
{
    scorer *s = own;
    const metric_case one = {p->text, p->answers, p->n_answers, p->classes, p->n_classes};
    double score;
    TRY(metric_score(s->m, s->k, &one, &score, e));
    s->sum += score;
    s->count++;
    return out_printf(e, "%.17g\n", score);
}

static status score_lines(const score_options *o, metrics *m, const metric *k, line_reader r, err *e)
{
    scorer s = {.m = m, .k = k};
    /* Some metrics accept numbers. */
    TRY(predictions_each(r, "prediction", metric_takes_labels(k) ? "answers" : NULL, score_one, &s, e));
    if (o->mean && s.count == 0) return err_set(e, ST_FORMAT, "--mean: no predictions");
    if (o->mean) TRY(out_printf(e, "mean %.17g\n", s.sum / (double)s.count));
    return out_flush(e);
}

static status cmd_score(void *options, err *e)
{
    const score_options *o = options;
    line_reader r = {.name = "standard input"};
    const metric *k;
    metrics *m = NULL;
    const char *dir;
    char *input = NULL;
    status st;
    if (o->t.out.json) return err_set(e, ST_USAGE, "--json: not supported; scores are written to standard output");
    TRY_GOTO(find_metric(&k, o->metric, e));
    TRY_GOTO(cli_data_dir(&dir, e));
    TRY_GOTO(metrics_open(&m, dir, e));
    TRY_GOTO(file_read_text(&input, &r.size, "-", MAX_INPUT_BYTES, e));
    r.s = input;
    TRY_GOTO(score_lines(o, m, k, r, e));
done:
    metrics_destroy(m);
    mem_free(input);
    return st;
}

static const cli_option rows[] = {
    {.name = "mean", .type = OPTION_FLAG, AT(score_options, mean), .help = "print the mean of the scores at the end"},
    {0}};

const command score_command = {.name = "eval score",
                               .args = "METRIC",
                               .summary = "score predictions on standard input, one line each",
                               .own = rows,
                               .size = sizeof(score_options),
                               .place[IN_ARGUMENT] = offsetof(score_options, metric),
                               .alone = true,
                               .run = cmd_score};
