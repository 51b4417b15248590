/* SPDX-License-Identifier: MIT */
/* `eval longbench`: prompts in, predictions and their scores out, one line each. */
#include "config.h"

#include "eval/longbench/longbench_run.h"

#include "kernels/base/mem.h"

static status max_length(size_t *out, const evaluation *ev, err *e)
{
    return longbench_max_length(out, ev->window, e);
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    longbench_run *r = own;
    longbench_sample *s = longbench_at(r, i);
    const longbench_dataset *d = longbench_of(r, s);
    out->dataset = d->name;
    out->index = s->at.index;
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
    const dataset_names names = longbench_names(&r->t);
    json_t *o = json_pack("{s:b, s:s, s:o}", "longbench_e", r->o->by_length, "protocol",
                          r->ev->prompter.decode ? "decode" : "prefill", "samples", samples_counts(&r->list, &names));
    if (!o || !r->file.name || prompt_file_config(&r->file, o)) return o;
    json_decref(o);
    return NULL;
}

/* The official code scores a file with the classes of its last line. */
static const prediction *last_of_dataset(const longbench_run *r, size_t i)
{
    while (i + 1 < r->list.n && longbench_at(r, i + 1)->at.dataset == longbench_at(r, i)->at.dataset) i++;
    return &longbench_at(r, i)->p;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    (void)ev;
    const longbench_run *r = own;
    const longbench_sample *s = longbench_at(r, i);
    const prediction *last = last_of_dataset(r, i);
    metric_case c = {answer, s->p.answers, s->p.n_answers, last->classes, last->n_classes};
    double score;
    TRY(longbench_score(r->m, longbench_of(r, s), c, &score, e));
    *members = json_pack("{s:s, s:s%, s:O, s:f, s:I}", "id", s->id, "prediction", answer.s, answer.n, "answers",
                         json_object_get(s->at.root, "answers"), "score", score, "length", (json_int_t)s->p.length);
    return ST_OK;
}

static const char *const tables[] = {"longbench/datasets.json", "longbench/prompts.json", "jieba/dict.txt",
                                     "jieba/hmm.tsv", NULL};

/* ---- steps ---- */

/* Data sets that have samples take their templates from the file. */
static status take_prompts(longbench_run *r, err *e)
{
    for (size_t i = 0; r->file.name && i < r->list.n; i++) {
        longbench_dataset *d = longbench_of(r, longbench_at(r, i));
        TRY(prompt_file_template(&d->prompt, &r->file, d->name, "{context} {input}", e));
    }
    return ST_OK;
}

static status load(void *own, evaluation *ev, err *e)
{
    longbench_run *r = own;
    r->o = ev->c->own;
    r->ev = ev;
    TRY(metrics_open(&r->m, ev->data_dir, e));
    TRY(longbench_open(&r->t, ev->data_dir, e));
    longbench_source s = {ev->source, r->o->dataset, r->o->by_length};
    if (r->o->prompts) TRY(prompt_file_read(&r->file, r->o->prompts, e));
    TRY(longbench_read(&r->list, &r->t, &s, e));
    TRY(take_prompts(r, e));
    ev->files = r->list.files;
    ev->n_samples = r->list.n;
    return ST_OK;
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
    samples_free(&r->list);
    prompt_file_close(&r->file);
    longbench_close(&r->t);
    metrics_destroy(r->m);
}

const evaluation_kind longbench_evaluation = {.name = "longbench",
                                              .size = sizeof(longbench_run),
                                              .own_samples = "longbench/samples.jsonl",
                                              .tables = tables,
                                              .load = load,
                                              .ready = find_stops,
                                              .max_length = max_length,
                                              .item = make_item,
                                              .config = config,
                                              .judge = judge,
                                              .report = longbench_report,
                                              .free = free_run};
