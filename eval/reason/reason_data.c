/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/reason/reason.h"

#include <stdio.h>
#include <string.h>

#include "cli/values.h"
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

/* Reads a text or a whole number, which becomes a text in the record. */
static status read_label(utf8_text *out, json_t *record, const char *field, const char *where, err *e)
{
    char digits[24];
    const json_t *j = json_object_get(record, field);
    if (j && !json_is_integer(j) && !json_is_string(j))
        return err_set(e, ST_FORMAT, "%s: '%s': expected a string or a whole number", where, field);
    if (json_is_integer(j)) {
        snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(j));
        if (json_object_set_new(record, field, json_string(digits)) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return sample_text(out, record, field, where, e);
}

static status read_optional(utf8_text *out, json_t *record, const char *field, const char *where, err *e)
{
    return json_object_get(record, field) ? read_label(out, record, field, where, e) : ST_OK;
}

/* Sets the group to "level 5" for the number 5 or "Level 5". */
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

static status check_number(reason_problem *p, const char *where, err *e)
{
    if (p->answer.n > 0 && p->answer.n <= 8 && strspn(p->answer.s, "0123456789") == p->answer.n) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected a whole number", where, p->answer.s);
}

static status read_choices(reason_problem *p, const char *where, err *e)
{
    static const char *const fields[] = {"Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                                         "Incorrect Answer 3"};
    for (int i = 0; i < REASON_CHOICES; i++) {
        TRY(read_label(&p->choice[i], p->at.root, fields[i], where, e));
        trim_python(&p->choice[i].s, &p->choice[i].n);
    }
    return ST_OK;
}

/* Reads choices, subject and answer, which is A to D or 0 to 3. */
static status read_mmlu(reason_problem *p, const char *where, err *e)
{
    static const char *const fields[] = {"A", "B", "C", "D"};
    json_t *list = json_object_get(p->at.root, "choices");
    if (list && json_array_size(list) != REASON_CHOICES)
        return err_set(e, ST_FORMAT, "%s: 'choices': expected a list of four texts", where);
    for (size_t i = 0; i < REASON_CHOICES; i++) {
        if (list && json_object_set(p->at.root, fields[i], json_array_get(list, i)) != 0)
            return err_set(e, ST_NOMEM, "out of memory");
        TRY(read_label(&p->choice[i], p->at.root, fields[i], where, e));
    }
    TRY(sample_text(&p->group, p->at.root, "subject", where, e));
    trim_python(&p->answer.s, &p->answer.n);
    char c = p->answer.n == 1 ? p->answer.s[0] : 0;
    int at = c >= 'A' && c <= 'D' ? c - 'A' : c >= '0' && c <= '3' ? c - '0' : -1;
    if (at < 0)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected A, B, C or D, or 0 to 3", where, p->answer.s);
    p->answer = (utf8_text){fields[at], 1};
    return ST_OK;
}

static status read_problem(reason_problem *p, reason_task task, const char *where, err *e)
{
    static const struct {
        const char *question, *answer, *id; /* NULL: none */
        status (*rest)(reason_problem *, const char *, err *);
    } fields[REASON_TASKS] = {{"question", "answer", NULL, NULL},
                              {"problem", "answer", "unique_id", read_level},
                              {"problem", "answer", "id", check_number},
                              {"Question", NULL, "Record ID", read_choices},
                              {"question", "answer", NULL, read_mmlu}};
    const char *question = fields[task].question, *answer = fields[task].answer, *id = fields[task].id;
    if (task == REASON_AIME && !json_object_get(p->at.root, question)) question = "question";
    TRY(sample_text(&p->question, p->at.root, question, where, e));
    if (answer) TRY(read_label(&p->answer, p->at.root, answer, where, e));
    if (id) TRY(read_optional(&p->id, p->at.root, id, where, e));
    return fields[task].rest ? fields[task].rest(p, where, e) : ST_OK;
}

/* ---- files ---- */

typedef struct {
    reason_data *out;
    bool shots;
    char subject[80]; /* from the name of an MMLU CSV file; "": in the records */
} file;

static status push(void *own, json_t *record, const char *where, err *e)
{
    const file *f = own;
    reason_data *d = f->out;
    reason_problem p = {.at = {.index = (int64_t)d->problems->n, .root = record}};
    const char *split = json_string_value(json_object_get(record, "split"));
    status st = ST_OK;
    if (f->subject[0] && json_object_set_new(record, "subject", json_string(f->subject)) != 0)
        st = err_set(e, ST_FORMAT, "%s: the file's name is not UTF-8", where);
    if (st == ST_OK) st = read_problem(&p, d->task, where, e);
    bool shot = f->shots || (d->task == REASON_MMLU && split && strcmp(split, "dev") == 0);
    if (st == ST_OK) return samples_push(shot ? &d->shots : d->problems, &p, e);
    json_decref(record);
    return st;
}

/* Takes the subject from a CSV name: "abstract_algebra" from "x/abstract_algebra_test.csv". Names ending in "dev" hold
 * shots. */
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
    size_t before = out->problems->n + out->shots.n;
    if (is_mmlu) read_name(&f, name);
    record_reader r = {.take = push, .own = &f, .columns = is_mmlu ? mmlu : NULL};
    TRY(records_read(&r, name, text, n, e));
    return out->problems->n + out->shots.n > before ? ST_OK : err_set(e, ST_FORMAT, "%s: no problems", path_tail(name));
}

static status read_file(void *ctx, const char *path, err *e)
{
    reason_data *out = ctx;
    char *text;
    size_t n;
    TRY(samples_file(&text, &n, path, out->problems->files, e));
    status st = reason_data_add(out, path, text, n, e);
    mem_free(text);
    return st;
}

/* ---- folders of MMLU ---- */

static bool is_table(const char *name)
{
    size_t n = strlen(name);
    return (n > 8 && strcmp(name + n - 8, "_dev.csv") == 0) || (n > 9 && strcmp(name + n - 9, "_test.csv") == 0);
}

static status read_folder(reason_data *out, const char *dir, err *e)
{
    char where[128];
    size_t n;
    snprintf(where, sizeof where, "--data %s", path_tail(dir));
    return file_each(dir, is_table, read_file, out, where, &n, e);
}

static status read_folders(reason_data *out, const char *dir, err *e)
{
    static const char *const within[] = {"dev", "test"};
    size_t before = out->problems->n;
    status st = read_folder(out, dir, e);
    for (size_t i = 0; i < 2 && st == ST_OK; i++) {
        char *path = path_join(dir, within[i]);
        if (!path) return err_set(e, ST_NOMEM, "out of memory");
        if (dir_exists(path)) st = read_folder(out, path, e);
        mem_free(path);
    }
    if (st != ST_OK || out->problems->n > before) return st;
    return err_set(e, ST_IO, "--data %s: no *_test.csv", path_tail(dir));
}

static status read_source(reason_data *out, const char *path, err *e)
{
    if (!dir_exists(path)) return read_file(out, path, e);
    if (out->task == REASON_MMLU) return read_folders(out, path, e);
    return err_set(e, ST_USAGE, "--data %s: expected a file, not a folder", path_tail(path));
}

/* ---- all files ---- */

void reason_data_start(reason_data *out, reason_task task, sample_list *problems)
{
    *out = (reason_data){.task = task, .problems = problems, .shots = {.size = sizeof(reason_problem)}};
    problems->size = sizeof(reason_problem);
}

status reason_data_read(reason_data *out, const sample_source *s, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    if (!(out->problems->files = json_array())) return err_set(e, ST_NOMEM, "out of memory");
    status st = cli_split(&word, &n, &store, s->data, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = read_source(out, word[i], e);
    mem_free(word);
    mem_free(store);
    if (st == ST_OK && out->problems->n == 0) st = err_set(e, ST_FORMAT, "--data: shots, but no problems");
    if (st == ST_OK) samples_keep(out->problems, s);
    return st;
}

status reason_data_read_shots(reason_data *out, const char *option, const char *path, err *e)
{
    sample_list read = {.files = json_array()};
    reason_data shots;
    err inner = {0};
    reason_data_start(&shots, out->task, &read);
    status st = read.files ? read_file(&shots, path, &inner) : err_set(&inner, ST_NOMEM, "out of memory");
    if (st == ST_OK && json_array_extend(out->problems->files, read.files) != 0)
        st = err_set(&inner, ST_NOMEM, "out of memory");
    if (st != ST_OK) err_set(e, st, "%s: %.200s", option, inner.msg);
    samples_free(&out->shots);
    out->shots = read;
    return st;
}

void reason_data_free(reason_data *d)
{
    samples_free(&d->shots);
}
