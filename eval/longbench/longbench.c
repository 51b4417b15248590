/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/prompt_file.h"
#include "eval/stats.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

enum { QUESTION_CHARACTERS = 100 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* ---- datasets ---- */

static status read_dataset(longbench_dataset *d, const char *name, json_t *row, const json_t *prompts, err *e)
{
    const char *metric_text;
    json_error_t je;
    *d = (longbench_dataset){.name = name, .prompt = json_string_value(json_object_get(prompts, name))};
    if (strlen(name) > NEAREST_MAX) return err_set(e, ST_FORMAT, "datasets.json: '%.63s': name too long", name);
    if (json_unpack_ex(row, &je, 0, "{s:s, s:s, s:i, s:b, s:b, s:b, s?b, s?s}", "group", &d->group, "metric",
                       &metric_text, "max_new_tokens", &d->max_new_tokens, "chat", &d->chat, "first_line",
                       &d->first_line, "longbench_e", &d->longbench_e, "newline_stops", &d->newline_stops, "question",
                       &d->question) != 0)
        return err_set(e, ST_FORMAT, "datasets.json: '%.63s': %.100s", name, je.text);
    d->metric = metric_find(metric_text);
    if (!d->metric) return err_set(e, ST_FORMAT, "datasets.json: '%s': unknown metric '%.63s'", name, metric_text);
    if (d->max_new_tokens < 1)
        return err_set(e, ST_FORMAT, "datasets.json: '%s': max_new_tokens is %d", name, d->max_new_tokens);
    return d->prompt ? ST_OK : err_set(e, ST_FORMAT, "prompts.json: '%s' is missing", name);
}

status longbench_open(longbench_table *t, const char *data_dir, err *e)
{
    const char *name;
    json_t *row;
    *t = (longbench_table){.names = {.bench = "LongBench", .ending = "_e", .size = sizeof *t->d}};
    TRY(prompt_table_read(&t->source, data_dir, "longbench/datasets.json", e));
    TRY(prompt_table_read(&t->prompts, data_dir, "longbench/prompts.json", e));
    if (json_object_size(t->source) > LONGBENCH_DATASETS)
        return err_set(e, ST_FORMAT, "datasets.json: more than %d datasets", LONGBENCH_DATASETS);
    TRY(MEM_NEW(&t->d, json_object_size(t->source), e));
    t->names.rows = t->d;
    json_object_foreach(t->source, name, row) TRY(read_dataset(&t->d[t->names.n++], name, row, t->prompts, e));
    return t->names.n ? ST_OK : err_set(e, ST_FORMAT, "datasets.json: no dataset");
}

void longbench_close(longbench_table *t)
{
    mem_free(t->d);
    json_decref(t->source);
    json_decref(t->prompts);
    *t = (longbench_table){0};
}

status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e)
{
    size_t d;
    status st = dataset_find(&d, &t->names, name, n, e);
    *out = st == ST_OK ? &t->d[d] : NULL;
    return st;
}

/* ---- samples ---- */

static status read_sample(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    const longbench_table *t = own;
    longbench_sample *s = own_sample;
    const json_t *id = json_object_get(s->at.root, "_id");
    size_t n = 0;
    (void)path;
    TRY(prediction_of(&s->p, s->at.root, "context", NULL, where, e));
    TRY(sample_text(&s->input, s->at.root, "input", where, e));
    if (id && !json_is_string(id)) return err_set(e, ST_FORMAT, "%s: '_id': expected a string", where);
    s->id = id ? json_string_value(id) : "";
    for (size_t i = 0; i < s->p.n_answers; i++) n += s->p.answers[i].n;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: 'answers': every answer is empty", where);
    if (sample_has_nul(s->p.text)) return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    if (s->p.n_classes == 0 && strcmp(metric_name(t->d[s->at.dataset].metric), "classification") == 0)
        return err_set(e, ST_FORMAT, "%s: 'all_classes' is missing", where);
    if (s->p.length < 0 && t->longbench_e) return err_set(e, ST_FORMAT, "%s: 'length' is missing", where);
    return ST_OK;
}

void longbench_drop(void *s)
{
    prediction_free(&((longbench_sample *)s)->p);
}

status longbench_read(sample_list *out, const longbench_table *t, const sample_source *from, const char *datasets,
                      err *e)
{
    bool wanted[LONGBENCH_DATASETS] = {0};
    const sample_reader r = {.names = &t->names,
                             .datasets = datasets,
                             .wanted = wanted,
                             .suffix = t->longbench_e ? "_e" : "",
                             .read = read_sample,
                             .own = t};
    if (datasets) TRY(datasets_mark(wanted, &t->names, "--dataset", datasets, e));
    for (size_t i = 0; i < t->names.n; i++) {
        bool member = !t->longbench_e || t->d[i].longbench_e;
        if (!datasets) wanted[i] = member;
        else if (wanted[i] && !member) return err_set(e, ST_USAGE, "--dataset: %s is not in LongBench-E", t->d[i].name);
    }
    TRY(samples_read(out, &r, from, e));
    return out->n > 0 ? ST_OK : err_set(e, ST_USAGE, "--data: no samples of the selected datasets");
}

void longbench_sample_forget(longbench_sample *s)
{
    sample_forget(&s->at, "context");
    s->p.text = (utf8_text){0};
}

/* ---- prompts ---- */

/* max(len(prompt) - 100, position), Quest's rule. Its position is -1 if there is no question. In a prompt of less than
 * 100 characters, -1 is the index of the last one. */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n)
{
    size_t chars = prompt_characters(s, n), found = d->question ? prompt_find_last(s, n, d->question) : n;
    if (chars < QUESTION_CHARACTERS) return found < n ? found : prompt_character_at(s, n, chars ? chars - 1 : 0);
    size_t last = prompt_character_at(s, n, chars - QUESTION_CHARACTERS);
    return found < n && found > last ? found : last;
}

status longbench_stops(token_list *out, const tokenizer *tok, err *e)
{
    token_list newline = {0};
    TRY(tokenizer_eos_ids(tok, out, e));
    status st = tokenizer_encode(tok, "\n", 1, 0, &newline, e);
    if (st == ST_OK && newline.n) st = token_list_push(out, newline.ids[newline.n - 1], e);
    token_list_free(&newline);
    return st;
}

status longbench_max_length(size_t *out, const evaluation *ev, err *e)
{
    const int64_t window = ev->window;
    if (window < 600)
        return err_set(e, ST_USAGE,
                       "--max-length: required, because a window of %lld tokens is too short for a default",
                       (long long)window);
    *out = (size_t)(window < 2000 ? window : window / 1000 * 1000) - 500;
    return ST_OK;
}

status longbench_prompt_make(prompt_tokens *out, const prompter *p, const longbench_dataset *d, utf8_text context,
                             utf8_text input, err *e)
{
    const prompt_field fields[] = {{"{context}", context}, {"{input}", input}};
    prompt_text text;
    *out = (prompt_tokens){0};
    TRY(prompt_fill(&text, d->prompt, fields, 2, e));
    status st = prompter_wrap(out, p, d->chat, &text, e);
    size_t cut = p->decode ? longbench_cut(d, text.s, text.n) : text.n;
    if (st == ST_OK) st = prompter_encode(out, p, d->chat, &text, cut, e);
    mem_free(text.s);
    return st;
}

/* ---- scores ---- */

/* pred.lstrip("\n").split("\n")[0] */
static utf8_text first_line(utf8_text s)
{
    while (s.n && s.s[0] == '\n') {
        s.s++;
        s.n--;
    }
    const char *end = s.n ? memchr(s.s, '\n', s.n) : NULL;
    if (end) s.n = (size_t)(end - s.s);
    return s;
}

status longbench_score(metrics *m, const longbench_dataset *d, metric_case c, double *score, err *e)
{
    if (d->first_line) c.prediction = first_line(c.prediction);
    return metric_score(m, d->metric, &c, score, e);
}

/* ---- LongBench-E ---- */

/* NumPy's sum (pairwise summation): eight running sums in blocks of at most 128; larger arrays are halved. */
static double numpy_sum(const double *x, size_t n)
{
    if (n > 128) {
        size_t half = n / 2 - n / 2 % 8;
        return numpy_sum(x, half) + numpy_sum(x + half, n - half);
    }
    double sum = 0, r[8];
    size_t i = 0;
    if (n >= 8) {
        memcpy(r, x, sizeof r);
        for (i = 8; i + 8 <= n; i += 8)
            for (size_t k = 0; k < 8; k++) r[k] += x[i + k];
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; i++) sum += x[i];
    return sum;
}

const char *const longbench_bucket_names[LONGBENCH_BUCKETS] = {"0-4k", "4-8k", "8k+"};

status longbench_scores_add(longbench_scores *s, double score, int64_t length, err *e)
{
    int b = length < 4000 ? 0 : length < 8000 ? 1 : 2;
    size_t n = s->in[b];
    if ((n & (n - 1)) == 0) TRY(MEM_GROW(&s->score[b], n ? 2 * n : 1, e)); /* full at powers of two */
    s->score[b][s->in[b]++] = score;
    s->sum += score;
    s->n++;
    return ST_OK;
}

void longbench_scores_free(longbench_scores *s)
{
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) mem_free(s->score[b]);
    *s = (longbench_scores){0};
}

double longbench_mean(const longbench_scores *s)
{
    return s->n ? round_decimals(100 * s->sum / (double)s->n, 2) : (double)NAN;
}

double longbench_bucket_mean(const longbench_scores *s, int b)
{
    const size_t n = s->in[b];
    return n ? rint(100 * (numpy_sum(s->score[b], n) / (double)n) * 100) / 100 : (double)NAN;
}

/* ---- files of predictions ---- */

/* Reads the last line, for its classes. ST_FORMAT: there are no lines. */
static status read_last(prediction *p, line_reader r, err *e)
{
    const char *line, *last = NULL;
    size_t n, last_n = 0, number = 0;
    while (next_line(&r, &line, &n)) {
        last = line;
        last_n = n;
        number = r.number;
    }
    if (!last) return err_set(e, ST_FORMAT, "%s: no predictions", path_tail(r.name));
    r.number = number;
    return prediction_read(p, &r, last, last_n, "pred", NULL, e);
}

typedef struct {
    metrics *m;
    const longbench_dataset *d;
    prediction last;
    bool need_length;
    longbench_scores *out;
} file_scorer;

static status score_line(void *own, const prediction *p, err *e)
{
    file_scorer *f = own;
    metric_case c = {p->text, p->answers, p->n_answers, f->last.classes, f->last.n_classes};
    double score;
    TRY(longbench_score(f->m, f->d, c, &score, e));
    if (f->need_length && p->length < 0) return err_set(e, ST_FORMAT, "'length' is missing");
    return longbench_scores_add(f->out, score, p->length, e);
}

status longbench_score_file(metrics *m, const longbench_dataset *d, const char *path, bool need_length,
                            longbench_scores *out, err *e)
{
    char *file;
    line_reader r = {.name = path};
    TRY(file_read(&file, &r.size, path, MAX_FILE_BYTES, e));
    r.s = file;
    file_scorer f = {.m = m, .d = d, .need_length = need_length, .out = out};
    status st = read_last(&f.last, r, e);
    if (st == ST_OK) st = predictions_each(r, "pred", NULL, score_line, &f, e);
    prediction_free(&f.last);
    mem_free(file);
    return st;
}
