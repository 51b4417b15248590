/* SPDX-License-Identifier: MIT */
/* `eval longbench`: a run; or, with --score FILE, the result.json of the official eval.py for one file of
 * predictions. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "cli/cli.h"
#include "eval/longbench/longbench_run.h"
#include "cli/ranks.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

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

static status print_buckets(const scores *s, err *e)
{
    double mean[LONGBENCH_BUCKETS];
    TRY(longbench_bucket_means(s, mean, e));
    TRY(out_printf(e, "{\n"));
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) {
        TRY(out_printf(e, "        \"%s\": ", longbench_bucket_names[b]));
        TRY(print_number(mean[b], e));
        TRY(out_printf(e, b + 1 < LONGBENCH_BUCKETS ? ",\n" : "\n"));
    }
    return out_printf(e, "    }");
}

static status score_file(const longbench_options *o, metrics *m, const longbench_dataset *d, scores *s, err *e)
{
    TRY(longbench_score_file(m, d, o->score, o->by_length, s, e));
    TRY(out_printf(e, "{\n    \"%s\": ", d->name));
    TRY(o->by_length ? print_buckets(s, e) : print_number(scores_mean(s), e));
    TRY(out_printf(e, "\n}\n"));
    return out_flush(e);
}

static status score_only(const cli *c, const char *dir, metrics *m, err *e)
{
    const longbench_options *o = c->own;
    longbench_table t = {0};
    scores s = {0};
    const longbench_dataset *d;
    status st;
    if (c->json) return err_set(e, ST_USAGE, "--json: --score prints its result as JSON");
    if (c->data || c->output || o->prompts)
        return err_set(e, ST_USAGE, "--score reads predictions: it takes no %s",
                       c->data     ? "--data"
                       : c->output ? "-o"
                                   : "--prompts");
    TRY_GOTO(longbench_open(&t, dir, e));
    TRY_GOTO(dataset_of(&d, &t, o, e));
    TRY_GOTO(score_file(o, m, d, &s, e));
done:
    scores_free(&s);
    longbench_close(&t);
    return st;
}

static status cmd_longbench(const cli *c, err *e)
{
    const longbench_options *o = c->own;
    metrics *m = NULL;
    const char *dir;
    if (!o->score) return evaluation_run(&longbench_evaluation, c, e);
    TRY(ranks_refuse(c, "--score", e));
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
                                   .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS |
                                             OPTIONS_PREFIX,
                                   .own = options,
                                   .own_size = sizeof(longbench_options),
                                   .compares = true,
                                   .run = cmd_longbench};
