/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/reason/reason.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "eval/records.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

const char *reason_task_name(reason_task t)
{
    static const char *const names[REASON_TASKS] = {"gsm8k", "math", "aime", "gpqa", "mmlu"};
    return names[t];
}

/* ---- one record ---- */

/* A text or whole number, which becomes a text in the record. */
static status read_label(utf8_text *out, json_t *record, const char *field, const char *where, err *e)
{
    char digits[24];
    const json_t *j = json_object_get(record, field);
    if (j && !json_is_integer(j) && !json_is_string(j))
        return err_set(e, ST_FORMAT, "%s: '%s': expected a text or a whole number", where, field);
    if (json_is_integer(j)) {
        snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(j));
        if (json_object_set_new(record, field, json_string(digits)) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return sample_text(out, record, field, where, e);
}

/* A member that need not be there. */
static status read_optional(utf8_text *out, json_t *record, const char *field, const char *where, err *e)
{
    return json_object_get(record, field) ? read_label(out, record, field, where, e) : ST_OK;
}

static status read_gsm8k(reason_problem *p, const char *where, err *e)
{
    TRY(sample_text(&p->question, p->at.root, "question", where, e));
    return read_label(&p->answer, p->at.root, "answer", where, e);
}

/* "level 5" of a number or of "Level 5". */
static status read_level(reason_problem *p, const char *where, err *e)
{
    utf8_text level = {0};
    char name[40];
    TRY(read_optional(&level, p->at.root, "level", where, e));
    if (level.n == 0) return ST_OK;
    bool digits = strspn(level.s, "0123456789") == level.n;
    snprintf(name, sizeof name, "%s%.20s", digits ? "level " : "", level.s);
    for (char *c = name; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c += 'a' - 'A';
    if (json_object_set_new(p->at.root, "level", json_string(name)) != 0)
        return err_set(e, ST_FORMAT, "%s: 'level': expected a whole number", where);
    return sample_text(&p->group, p->at.root, "level", where, e);
}

static status read_math(reason_problem *p, const char *where, err *e)
{
    TRY(sample_text(&p->question, p->at.root, "problem", where, e));
    TRY(read_label(&p->answer, p->at.root, "answer", where, e));
    TRY(read_optional(&p->id, p->at.root, "unique_id", where, e));
    return read_level(p, where, e);
}

static status read_aime(reason_problem *p, const char *where, err *e)
{
    const char *field = json_object_get(p->at.root, "problem") ? "problem" : "question";
    TRY(sample_text(&p->question, p->at.root, field, where, e));
    TRY(read_label(&p->answer, p->at.root, "answer", where, e));
    if (p->answer.n == 0 || p->answer.n > 8 || strspn(p->answer.s, "0123456789") != p->answer.n)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected a whole number", where, p->answer.s);
    return read_optional(&p->id, p->at.root, "id", where, e);
}

static status read_gpqa(reason_problem *p, const char *where, err *e)
{
    static const char *const fields[] = {"Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                                         "Incorrect Answer 3"};
    TRY(sample_text(&p->question, p->at.root, "Question", where, e));
    for (int i = 0; i < REASON_CHOICES; i++) {
        TRY(read_label(&p->choice[i], p->at.root, fields[i], where, e));
        trim_python(&p->choice[i].s, &p->choice[i].n);
    }
    return read_optional(&p->id, p->at.root, "Record ID", where, e);
}

/* A to D, or 0 to 3. */
static status read_letter(reason_problem *p, const char *where, err *e)
{
    static const char letters[] = "A\0B\0C\0D";
    TRY(read_label(&p->answer, p->at.root, "answer", where, e));
    trim_python(&p->answer.s, &p->answer.n);
    char c = p->answer.n == 1 ? p->answer.s[0] : 0;
    int at = c >= 'A' && c <= 'D' ? c - 'A' : c >= '0' && c <= '3' ? c - '0' : -1;
    if (at < 0)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected A, B, C or D, or 0 to 3", where, p->answer.s);
    p->answer = (utf8_text){letters + 2 * at, 1};
    return ST_OK;
}

static status read_mmlu(reason_problem *p, const char *where, err *e)
{
    static const char *const fields[] = {"A", "B", "C", "D"};
    json_t *list = json_object_get(p->at.root, "choices");
    TRY(sample_text(&p->question, p->at.root, "question", where, e));
    if (list && json_array_size(list) != REASON_CHOICES)
        return err_set(e, ST_FORMAT, "%s: 'choices': expected a list of four texts", where);
    for (size_t i = 0; i < REASON_CHOICES; i++) {
        json_t *j = list ? json_incref(json_array_get(list, i)) : NULL;
        if (j && json_object_set_new(p->at.root, fields[i], j) != 0) return err_set(e, ST_NOMEM, "out of memory");
        TRY(read_label(&p->choice[i], p->at.root, fields[i], where, e));
    }
    TRY(sample_text(&p->group, p->at.root, "subject", where, e));
    return read_letter(p, where, e);
}

/* ---- files ---- */

typedef struct {
    reason_data *out;
    bool shots;
    char subject[80]; /* of a CSV file of MMLU, whose name tells it; "": records do */
} file;

static status grow(reason_problem **s, size_t n, size_t *cap, err *e)
{
    if (n < *cap) return ST_OK;
    size_t more = *cap ? 2 * *cap : 64;
    TRY(MEM_GROW(s, more, e));
    *cap = more;
    return ST_OK;
}

static status keep(file *f, const reason_problem *p, err *e)
{
    reason_data *d = f->out;
    const char *split = json_string_value(json_object_get(p->at.root, "split"));
    if (f->shots || (d->task == REASON_MMLU && split && strcmp(split, "dev") == 0)) {
        TRY(grow(&d->shot, d->n_shots, &d->cap_shots, e));
        d->shot[d->n_shots++] = *p;
    } else {
        TRY(grow(&d->s, d->n, &d->cap, e));
        d->s[d->n++] = *p;
    }
    return ST_OK;
}

static status push(void *own, json_t *record, const char *where, err *e)
{
    static status (*const read[REASON_TASKS])(reason_problem *, const char *,
                                              err *) = {read_gsm8k, read_math, read_aime, read_gpqa, read_mmlu};
    file *f = own;
    reason_problem p = {.at = {0, (int64_t)f->out->n, record}};
    status st = ST_OK;
    if (f->subject[0] && json_object_set_new(record, "subject", json_string(f->subject)) != 0)
        st = err_set(e, ST_FORMAT, "%s: the file's name is not UTF-8", where);
    if (st == ST_OK) st = read[f->out->task](&p, where, e);
    if (st == ST_OK) st = keep(f, &p, e);
    if (st != ST_OK) json_decref(record);
    return st;
}

/* "abstract_algebra" of "x/abstract_algebra_test.csv"; shots where it ends in "dev". */
static void read_name(file *f, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : strlen(name);
    f->shots = n >= 3 && memcmp(name + n - 3, "dev", 3) == 0;
    if (!dot || strcmp(dot, ".csv") != 0) return;
    while (n > 0 && name[n - 1] != '_') n--;
    snprintf(f->subject, sizeof f->subject, "%.*s", n > 0 ? (int)n - 1 : 0, name);
}

status reason_data_add(reason_data *out, const char *name, const char *text, size_t n, err *e)
{
    static const char *const mmlu[] = {"question", "A", "B", "C", "D", "answer", NULL};
    file f = {.out = out};
    bool is_mmlu = out->task == REASON_MMLU;
    size_t before = out->n + out->n_shots;
    if (is_mmlu) read_name(&f, name);
    record_reader r = {.take = push, .own = &f, .columns = is_mmlu ? mmlu : NULL};
    TRY(records_read(&r, name, text, n, e));
    return out->n + out->n_shots > before ? ST_OK : err_set(e, ST_FORMAT, "%s: no problems", path_tail(name));
}

static status read_file(reason_data *out, const char *path, err *e)
{
    char *text;
    size_t n;
    TRY(samples_file(&text, &n, path, out->files, e));
    status st = reason_data_add(out, path, text, n, e);
    mem_free(text);
    return st;
}

/* ---- folders of MMLU ---- */

static int is_table(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return (n > 8 && strcmp(d->d_name + n - 8, "_dev.csv") == 0) ||
           (n > 9 && strcmp(d->d_name + n - 9, "_test.csv") == 0);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static status read_folder(reason_data *out, const char *dir, err *e)
{
    struct dirent **entry;
    status st = ST_OK;
    int n = scandir(dir, &entry, is_table, by_name);
    if (n < 0) return err_set(e, ST_IO, "--data %s: %s", path_tail(dir), strerror(errno));
    for (int i = 0; i < n; i++) {
        char *path = st == ST_OK ? path_join(dir, entry[i]->d_name) : NULL;
        if (st == ST_OK) st = path ? read_file(out, path, e) : err_set(e, ST_NOMEM, "out of memory");
        mem_free(path);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static status read_folders(reason_data *out, const char *dir, err *e)
{
    static const char *const within[] = {"dev", "test"};
    size_t before = out->n;
    status st = read_folder(out, dir, e);
    for (size_t i = 0; i < 2 && st == ST_OK; i++) {
        char *path = path_join(dir, within[i]);
        if (!path) return err_set(e, ST_NOMEM, "out of memory");
        if (dir_exists(path)) st = read_folder(out, path, e);
        mem_free(path);
    }
    if (st != ST_OK || out->n > before) return st;
    return err_set(e, ST_IO, "--data %s: no *_test.csv", path_tail(dir));
}

static status read_source(reason_data *out, const char *path, err *e)
{
    if (!dir_exists(path)) return read_file(out, path, e);
    if (out->task == REASON_MMLU) return read_folders(out, path, e);
    return err_set(e, ST_USAGE, "--data %s: a folder, expected a file", path_tail(path));
}

/* ---- which problems ---- */

static status choose(reason_data *d, const sample_source *from, err *e)
{
    sample_list l = {.size = sizeof *d->s, .s = (char *)d->s, .n = d->n, .cap = d->cap};
    status st = samples_keep(&l, from, e);
    d->s = (void *)l.s;
    d->n = l.n;
    d->cap = l.cap;
    return st;
}

status reason_data_read(reason_data *out, reason_task task, const sample_source *s, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    *out = (reason_data){.task = task, .files = json_array()};
    if (!out->files) return err_set(e, ST_NOMEM, "out of memory");
    status st = cli_split(&word, &n, &store, s->data, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = read_source(out, word[i], e);
    mem_free(word);
    mem_free(store);
    if (st == ST_OK && out->n == 0) st = err_set(e, ST_FORMAT, "--data: there are shots, but no problems");
    return st == ST_OK ? choose(out, s, e) : st;
}

status reason_data_read_shots(reason_data *out, const char *option, const char *path, err *e)
{
    reason_data shots = {.task = out->task, .files = json_array()};
    err inner = {0};
    status st = shots.files ? read_file(&shots, path, &inner) : err_set(&inner, ST_NOMEM, "out of memory");
    if (st == ST_OK && json_array_extend(out->files, shots.files) != 0) st = err_set(&inner, ST_NOMEM, "out of memory");
    if (st != ST_OK) err_set(e, st, "%s: %.200s", option, inner.msg);
    json_decref(shots.files);
    for (size_t i = 0; i < out->n_shots; i++) json_decref(out->shot[i].at.root);
    mem_free(out->shot);
    out->shot = shots.s;
    out->n_shots = shots.n;
    return st;
}

void reason_data_free(reason_data *d)
{
    for (size_t i = 0; i < d->n; i++) json_decref(d->s[i].at.root);
    for (size_t i = 0; i < d->n_shots; i++) json_decref(d->shot[i].at.root);
    mem_free(d->s);
    mem_free(d->shot);
    json_decref(d->files);
    *d = (reason_data){0};
}
