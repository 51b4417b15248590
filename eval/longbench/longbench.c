/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/prompt_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

enum { QUESTION_CHARACTERS = 100 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* ---- datasets ---- */

static status read_dataset(longbench_dataset *d, const char *name, json_t *row, const json_t *prompts, err *e)
{
    const char *metric_text;
    int chat, first_line, longbench_e, newline_stops = 0;
    json_error_t je;
    d->name = name;
    d->question = NULL;
    if (strlen(name) > NEAREST_MAX ||
        json_unpack_ex(row, &je, 0, "{s:s, s:s, s:i, s:b, s:b, s:b, s?b, s?s}", "group", &d->group, "metric",
                       &metric_text, "max_new_tokens", &d->max_new_tokens, "chat", &chat, "first_line", &first_line,
                       "longbench_e", &longbench_e, "newline_stops", &newline_stops, "question", &d->question) != 0)
        return err_set(e, ST_FORMAT, "datasets.json: '%.63s': %.100s", name,
                       strlen(name) > NEAREST_MAX ? "name too long" : je.text);
    d->chat = chat;
    d->first_line = first_line;
    d->longbench_e = longbench_e;
    d->newline_stops = newline_stops;
    d->metric = metric_find(metric_text);
    if (!d->metric) return err_set(e, ST_FORMAT, "datasets.json: '%s': unknown metric '%.63s'", name, metric_text);
    if (d->max_new_tokens < 1)
        return err_set(e, ST_FORMAT, "datasets.json: '%s': max_new_tokens is %d", name, d->max_new_tokens);
    d->prompt = json_string_value(json_object_get(prompts, name));
    return d->prompt ? ST_OK : err_set(e, ST_FORMAT, "prompts.json: '%s' is missing", name);
}

status longbench_open(longbench_table *t, const char *data_dir, err *e)
{
    const char *name;
    json_t *row;
    *t = (longbench_table){0};
    TRY(prompt_table_read(&t->source, data_dir, "longbench/datasets.json", e));
    TRY(prompt_table_read(&t->prompts, data_dir, "longbench/prompts.json", e));
    if (json_object_size(t->source) > LONGBENCH_DATASETS)
        return err_set(e, ST_FORMAT, "datasets.json: more than %d datasets", LONGBENCH_DATASETS);
    TRY(MEM_NEW(&t->d, json_object_size(t->source), e));
    json_object_foreach(t->source, name, row)
    {
        TRY(read_dataset(&t->d[t->n], name, row, t->prompts, e));
        t->n++;
    }
    return t->n ? ST_OK : err_set(e, ST_FORMAT, "datasets.json: no dataset");
}

void longbench_close(longbench_table *t)
{
    mem_free(t->d);
    json_decref(t->source);
    json_decref(t->prompts);
    *t = (longbench_table){0};
}

static const char *name_of(const void *own, size_t i)
{
    const longbench_table *t = own;
    return t->d[i].name;
}

dataset_names longbench_names(const longbench_table *t)
{
    return (dataset_names){"LongBench", "_e", t->n, name_of, t};
}

status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e)
{
    dataset_names names = longbench_names(t);
    size_t d;
    *out = NULL;
    TRY(dataset_find(&d, &names, name, n, e));
    *out = &t->d[d];
    return ST_OK;
}

/* ---- samples ---- */

/* Checks what a run needs in addition to prediction_of. */
static status check_sample(const longbench_table *t, const longbench_sample *s, const char *where, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < s->p.n_answers; i++) n += s->p.answers[i].n;
    if (n == 0) return err_set(e, ST_FORMAT, "%s: 'answers': all of them are empty", where);
    if (sample_has_nul(s->p.text)) return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    if (s->p.n_classes == 0 && strcmp(metric_name(t->d[s->at.dataset].metric), "classification") == 0)
        return err_set(e, ST_FORMAT, "%s: 'all_classes' is missing", where);
    if (s->p.length < 0 && t->longbench_e) return err_set(e, ST_FORMAT, "%s: 'length' is missing", where);
    return ST_OK;
}

static status read_sample(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    longbench_sample *s = own_sample;
    const json_t *id = json_object_get(s->at.root, "_id");
    (void)path;
    TRY(prediction_of(&s->p, s->at.root, "context", NULL, where, e));
    TRY(sample_text(&s->input, s->at.root, "input", where, e));
    if (id && !json_is_string(id)) return err_set(e, ST_FORMAT, "%s: '_id': expected a text", where);
    s->id = id ? json_string_value(id) : "";
    return check_sample(own, s, where, e);
}

/* Marks the datasets of --dataset, else all that belong to the benchmark. */
static status list_wanted(bool *wanted, const longbench_table *t, const char *datasets, err *e)
{
    const dataset_names names = longbench_names(t);
    if (datasets) TRY(datasets_mark(wanted, &names, "--dataset", datasets, e));
    for (size_t i = 0; i < t->n; i++) {
        bool member = !t->longbench_e || t->d[i].longbench_e;
        if (!datasets) wanted[i] = member;
        else if (wanted[i] && !member) return err_set(e, ST_USAGE, "--dataset: %s is not in LongBench-E", t->d[i].name);
    }
    return ST_OK;
}

void longbench_drop(void *s)
{
    prediction_free(&((longbench_sample *)s)->p);
}

status longbench_read(sample_list *out, const longbench_table *t, const sample_source *from, const char *datasets,
                      err *e)
{
    const dataset_names names = longbench_names(t);
    bool *wanted;
    TRY(MEM_NEW(&wanted, t->n, e));
    const sample_reader r = {.names = &names,
                             .datasets = datasets,
                             .wanted = wanted,
                             .suffix = t->longbench_e ? "_e" : "",
                             .read = read_sample,
                             .own = t};
    status st = list_wanted(wanted, t, datasets, e);
    if (st == ST_OK) st = samples_read(out, &r, from, e);
    if (st == ST_OK && out->n == 0) st = err_set(e, ST_USAGE, "--data: no samples of --dataset");
    mem_free(wanted);
    return st;
}

void longbench_sample_forget(longbench_sample *s)
{
    sample_forget(&s->at, "context");
    s->p.text = (utf8_text){0};
}

/* ---- prompts ---- */

/* Byte of the last occurrence of the dataset's question, n: none. */
static size_t find_question(const longbench_dataset *d, const char *s, size_t n)
{
    size_t len = d->question ? strlen(d->question) : 0;
    for (size_t i = len && n >= len ? n - len + 1 : 0; i-- > 0;)
        if (memcmp(s + i, d->question, len) == 0) return i;
    return n;
}

/* max(len(prompt) - 100, position) of Quest, whose position is -1 where there is none: in a prompt of less than 100
 * characters -1 then means its last one. */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n)
{
    size_t chars = prompt_characters(s, n), found = find_question(d, s, n);
    if (chars < QUESTION_CHARACTERS) return found < n ? found : prompt_character_at(s, n, chars ? chars - 1 : 0);
    size_t last = prompt_character_at(s, n, chars - QUESTION_CHARACTERS);
    return found < n && found > last ? found : last;
}

status longbench_stops(token_list *out, const tokenizer *tok, const longbench_dataset *d, err *e)
{
    token_list newline = {0};
    TRY(tokenizer_eos_ids(tok, out, e));
    if (!d->newline_stops) return ST_OK;
    status st = tokenizer_encode(tok, "\n", 1, 0, &newline, e);
    if (st == ST_OK && newline.n) st = token_list_push(out, newline.ids[newline.n - 1], e);
    token_list_free(&newline);
    return st;
}

status longbench_max_length(size_t *out, int64_t window, err *e)
{
    if (window < 600)
        return err_set(e, ST_USAGE, "--max-length is needed: a window of %lld tokens is too short for a default",
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

/* NumPy's sum: eight running sums in blocks of at most 128, halves above that (pairwise summation). */
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

double longbench_mean(const double *score, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += score[i];
    return n ? round_decimals(100 * sum / (double)n, 2) : (double)NAN;
}

status longbench_bucket_means(const double *score, const int64_t *length, size_t n, double out[LONGBENCH_BUCKETS],
                              err *e)
{
    double *x;
    TRY(MEM_NEW(&x, n, e));
    for (int b = 0; b < LONGBENCH_BUCKETS; b++) {
        size_t of_bucket = 0;
        for (size_t i = 0; i < n; i++)
            if ((length[i] < 4000 ? 0 : length[i] < 8000 ? 1 : 2) == b) x[of_bucket++] = score[i];
        out[b] = of_bucket ? rint(100 * (numpy_sum(x, of_bucket) / (double)of_bucket) * 100) / 100 : (double)NAN;
    }
    mem_free(x);
    return ST_OK;
}

/* ---- files of predictions ---- */

/* The last line, for its classes; ST_FORMAT where there is none. */
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

void longbench_scores_free(longbench_scores *s)
{
    mem_free(s->score);
    mem_free(s->length);
    *s = (longbench_scores){0};
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
    longbench_scores *s = f->out;
    metric_case c = {p->text, p->answers, p->n_answers, f->last.classes, f->last.n_classes};
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        TRY(MEM_GROW(&s->score, cap, e));
        TRY(MEM_GROW(&s->length, cap, e));
        s->cap = cap;
    }
    TRY(longbench_score(f->m, f->d, c, &s->score[s->n], e));
    if (f->need_length && p->length < 0) return err_set(e, ST_FORMAT, "'length' is missing");
    s->length[s->n++] = p->length;
    return ST_OK;
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
