/* SPDX-License-Identifier: MIT */
/* SCBench's tasks and samples. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/prediction.h"
#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

const scbench_task scbench_tasks[SCBENCH_TASKS] = {
    {"scbench_kv", "scbench_kv", .in_table = true, .generated = true},
    {"scbench_prefix_suffix", "scbench_kv", .in_table = true, .generated = true},
    {"scbench_vt", "scbench_vt", .letters = true, .in_table = true, .generated = true},
    {"scbench_qa_eng", "scbench_qa_eng", .in_table = true},
    {"scbench_qa_chn", "longbook_qa_chn", .letters = true, .in_table = true},
    {"scbench_choice_eng", "longbook_choice_eng", .options = true, .in_table = true},
    {"scbench_many_shot", "scbench_qa_eng", .letters = true, .in_table = true},
    {"scbench_summary", "longbook_sum_eng", .in_table = true},
    {"scbench_mf", "scbench_mf", .in_table = true, .generated = true},
    {"scbench_summary_with_needles", .in_table = true},
    {"scbench_passkey", "passkey", .generated = true},
    {"scbench_kv_hard", .metric = "scbench_kv"},
    {"scbench_hashhop", .metric = "scbench_kv"},
    {"scbench_kv_compressible", .metric = "scbench_kv"},
    {"scbench_repoqa", "scbench_kv", .refused = true},
    {"scbench_repoqa_and_kv", .refused = true},
};

const dataset_names scbench_names = {"SCBench", NULL, SCBENCH_TASKS, scbench_tasks, sizeof *scbench_tasks};

/* ---- labels ---- */

/* Returns a text as a list of its characters. */
static status letters_of(json_t **out, const json_t *label, err *e)
{
    const char *s = json_string_value(label);
    size_t n = json_string_length(label);
    int32_t c;
    *out = json_array();
    for (size_t i = 0, k; i < n; i += k) {
        k = (size_t)char_at(s + i, n - i, &c);
        if (json_array_append_new(*out, json_stringn(s + i, k)) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return ST_OK;
}

static status read_labels(scbench_turn *t, const char *where, err *e)
{
    const scbench_task *task = &scbench_tasks[t->task];
    if (!t->answer) return err_set(e, ST_FORMAT, "%s: 'answer' is missing", where);
    utf8_text text = {json_string_value(t->answer), json_string_length(t->answer)};
    if (task->options) return sample_choice(&t->labels, text, t->option, where, e);
    if (task->letters && json_is_string(t->answer)) TRY(letters_of(&t->labels, t->answer, e));
    else TRY(labels_spell(&t->labels, t->answer, where, "answer", e));
    return json_array_size(t->labels) > 0 ? ST_OK : err_set(e, ST_FORMAT, "%s: 'answer' is empty", where);
}

/* ---- turns ---- */

static status read_task(scbench_turn *t, const json_t *turn, const char *where, err *e)
{
    utf8_text name;
    TRY(sample_text(&name, turn, "task", where, e));
    TRY(dataset_find(&t->task, &scbench_names, name.s, name.n, e));
    if (scbench_tasks[t->task].metric && !scbench_tasks[t->task].refused) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'task': %.40s cannot be part of a mixed task", where, name.s);
}

static status read_turn(scbench_turn *t, size_t task, const json_t *turn, const char *where, err *e)
{
    t->task = task;
    t->answer = json_object_get(turn, "answer");
    TRY(sample_text(&t->input, turn, "input", where, e));
    if (!scbench_tasks[task].metric) TRY(read_task(t, turn, where, e));
    if (scbench_tasks[t->task].options) TRY(sample_options(t->option, turn, where, e));
    return read_labels(t, where, e);
}

/* ---- a sample ---- */

status scbench_refuse(const scbench_task *t, const char *where, err *e)
{
    return err_set(e, ST_UNSUPPORTED,
                   "%s: %s is not supported: its score parses the answer with tree-sitter and compares it with all "
                   "functions of a repository",
                   where, t->name);
}

/* Replaces a context that is a list of whole numbers, as in scbench_mf, by its text as written by Python. */
static status spell_numbers(json_t *root, err *e)
{
    const json_t *list = json_object_get(root, "context"), *one;
    size_t i;
    bool whole = json_is_array(list);
    json_array_foreach(list, i, one) whole &= json_is_integer(one);
    if (!whole) return ST_OK;
    char *text = json_dumps(list, 0);
    status st = text && json_object_set_new(root, "context", json_string(text)) == 0
                    ? ST_OK
                    : err_set(e, ST_NOMEM, "out of memory");
    free(text);
    return st;
}

status scbench_read(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    scbench_sample *s = own_sample;
    (void)own;
    (void)path;
    json_t *root = s->at.root;
    char of_turn[160];
    if (scbench_tasks[s->at.dataset].refused) return scbench_refuse(&scbench_tasks[s->at.dataset], where, e);
    TRY(spell_numbers(root, e));
    TRY(sample_text(&s->context, root, json_object_get(root, "context") ? "context" : "input", where, e));
    const json_t *turns = json_object_get(root, "multi_turns");
    if (json_array_size(turns) == 0) return err_set(e, ST_FORMAT, "%s: 'multi_turns': expected a list of turns", where);
    for (size_t i = 0; i < json_array_size(turns) && i < SCBENCH_TURNS; i++) {
        snprintf(of_turn, sizeof of_turn, "%s turn %zu", where, i + 1);
        s->n_turns++;
        TRY(read_turn(&s->turn[i], s->at.dataset, json_array_get(turns, i), of_turn, e));
    }
    return ST_OK;
}

void scbench_drop(void *own_sample)
{
    scbench_sample *s = own_sample;
    for (size_t i = 0; i < s->n_turns; i++) json_decref(s->turn[i].labels);
}
