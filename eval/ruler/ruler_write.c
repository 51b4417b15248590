/* SPDX-License-Identifier: MIT */
/* `eval ruler --write`: prompts as the official generator writes them. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/ranks.h"
#include "eval/ruler/ruler.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

typedef struct {
    ruler_inputs in;
    tokenizer *tok;
    progress *bar;
    int64_t done, all; /* samples */
} writer;

static status make_folder(const char *path, err *e)
{
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && dir_exists(path))) return ST_OK;
    return err_set(e, ST_IO, "--write %s: %s", path_tail(path), strerror(errno));
}

static status write_sample(writer *w, ruler_maker *m, FILE *f, err *e)
{
    ruler_sample s;
    status st = ruler_make(m, &s, e);
    json_t *o = st == ST_OK ? ruler_sample_json(&s, m->task, m->in->old) : NULL;
    if (st == ST_OK && !o) st = err_set(e, ST_NOMEM, "out of memory");
    if (o && (json_dumpf(o, f, 0) != 0 || fputc('\n', f) == EOF))
        st = err_set(e, ST_IO, "--write %s: %s", path_tail(w->in.o->write), strerror(errno));
    json_decref(o);
    ruler_sample_free(&s);
    progress_set(w->bar, ++w->done, w->all);
    return st;
}

static status write_samples(writer *w, const ruler_task *task, int64_t length, FILE *f, err *e)
{
    ruler_maker m;
    status st = ruler_maker_open(&m, &w->in, task, length, e);
    for (size_t i = 0; i < w->in.samples[task - ruler_tasks] && st == ST_OK; i++) st = write_sample(w, &m, f, e);
    if (st == ST_OK && m.too_few_words)
        out_note("%s with %" PRId64 " tokens: RULER uses other words for lists of more than %zu, which are not "
                 "included; the prompts differ from RULER's",
                 task->name, length, ruler_common_words(w->in.words));
    ruler_maker_close(&m);
    return st;
}

static status write_file(writer *w, const char *folder, const ruler_task *task, int64_t length, err *e)
{
    char name[64];
    out_file out;
    snprintf(name, sizeof name, "%s.jsonl", task->name);
    char *path = path_join(folder, name);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = out_file_open(&out, "--write", path, e);
    if (st == ST_OK) {
        st = write_samples(w, task, length, out.f, e);
        status closed = out_file_close(&out, st == ST_OK, e);
        if (st == ST_OK) st = closed;
    }
    mem_free(path);
    return st;
}

/* Writes DIR/TASK.jsonl if there is one length, DIR/LENGTH/TASK.jsonl otherwise. */
static status write_length(writer *w, int64_t length, err *e)
{
    const char *dir = w->in.o->write;
    char name[32];
    snprintf(name, sizeof name, "%" PRId64, length);
    char *folder = w->in.n_length > 1 ? path_join(dir, name) : mem_strdup(dir);
    status st = folder ? make_folder(folder, e) : err_set(e, ST_NOMEM, "out of memory");
    for (size_t i = 0; i < RULER_TASKS && st == ST_OK; i++)
        if (w->in.runs[i]) st = write_file(w, folder, &ruler_tasks[i], length, e);
    mem_free(folder);
    return st;
}

static status write_all(writer *w, err *e)
{
    const ruler_options *o = w->in.o;
    const char *dir;
    if (!w->in.choice[RULER_TOKENS]) {
        TRY(cli_model_dir(&dir, o->common.run.engine.model.dir, e));
        TRY(cli_open_tokenizer(&w->tok, dir, e));
    }
    TRY(ruler_inputs_check(&w->in, w->tok, e));
    TRY(make_folder(o->write, e));
    for (size_t i = 0; i < RULER_TASKS; i++) {
        w->all += w->in.runs[i] ? (int64_t)(w->in.samples[i] * w->in.n_length) : 0;
        if (w->in.lacks[i])
            out_note("%s is not written: requires %s FILE", ruler_tasks[i].name,
                     ruler_file_options[ruler_tasks[i].file]);
        if (w->in.why[i].code != ST_OK) out_note("%s is not written: %s", ruler_tasks[i].name, w->in.why[i].msg);
    }
    w->bar = progress_start("writing prompts");
    status st = ST_OK;
    for (size_t i = 0; i < w->in.n_length && st == ST_OK; i++) st = write_length(w, w->in.length[i], e);
    progress_end(w->bar);
    return st;
}

status ruler_write(const ruler_options *o, err *e)
{
    const result_options *out = &o->common.run.out;
    writer w = {0};
    TRY(ranks_refuse(o->common.run.engine.device.ranks, "--write", e));
    if (out->json || out->output)
        return err_set(e, ST_USAGE, "--write: runs no model and does not support %s", out->json ? "--json" : "-o");
    cli_catch_interrupt();
    status st = ruler_inputs_open(&w.in, o, e);
    if (st == ST_OK) st = write_all(&w, e);
    cli_clear_interrupt();
    ruler_inputs_close(&w.in);
    tokenizer_free(w.tok);
    return st;
}
