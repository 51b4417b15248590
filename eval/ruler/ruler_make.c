/* SPDX-License-Identifier: MIT */
/* The makers of samples: a task, its search for the size, and its prompts. */
#include "config.h"

#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

enum { SHORT_LENGTH = 4096, MARK = 10 };

/* ---- a task ---- */

static ruler_generate *generator(const ruler_maker *m, bool sample)
{
    switch (m->task->family) {
    case RULER_NIAH: return ruler_niah;
    case RULER_VT: return sample && !m->s.old ? ruler_vt_sample : ruler_vt;
    case RULER_CWE: return ruler_cwe;
    default: return ruler_qa_ask;
    }
}

static int64_t step_of(const ruler_maker *m)
{
    bool small = m->s.length < SHORT_LENGTH;
    switch (m->task->family) {
    case RULER_NIAH: return m->task->haystack == RULER_ESSAY ? 500 : small ? 5 : 25;
    case RULER_VT: return small && !m->s.old ? 5 : 10;
    default: return 10;
    }
}

static status search(ruler_maker *m, err *e)
{
    const ruler_family family = m->task->family;
    m->step = step_of(m);
    if (family == RULER_FWE) return ruler_fwe_start(m, e);
    if (family == RULER_CWE) TRY(ruler_cwe_start(m, e));
    if (family == RULER_VT) TRY(ruler_vt_start(m, e));
    m->searching = true;
    status st = (m->s.old ? ruler_find_size_2024 : ruler_find_size)(m, generator(m, false), m->s.length,
                                                                    m->s.templates->n_new[family] + m->shown_tokens, e);
    m->searching = false;
    return st;
}

status ruler_maker_open(ruler_maker *m, const ruler_task *task, const ruler_settings *s, err *e)
{
    *m = (ruler_maker){.task = task, .s = *s};
    if (s->seed > UINT32_MAX)
        return err_set(e, ST_USAGE, "--seed %llu: RULER takes at most %u", (unsigned long long)s->seed, UINT32_MAX);
    mersenne_seed_python(&m->python, s->seed);
    mersenne_seed_numpy(&m->numpy, (uint32_t)s->seed);
    TRY(ruler_template(&m->template, s->templates, task, true, e));
    return search(m, e);
}

void ruler_maker_close(ruler_maker *m)
{
    ruler_draft_free(&m->draft);
    mem_free(m->template.s);
    mem_free(m->shown.s);
    mem_free(m->order);
    *m = (ruler_maker){0};
}

/* ---- samples ---- */

/* Where the answer prefix begins: at the last place that has the first characters of the task's own one. */
static size_t find_prefix(const ruler_maker *m, const prompt_text *t)
{
    const char *prefix = m->s.templates->prefix[m->task->family];
    size_t n = strlen(prefix) < MARK ? strlen(prefix) : MARK, at = t->n;
    while (at > 0 && (t->n - at < n || memcmp(t->s + at, prefix, n) != 0)) at--;
    return at;
}

static status find_answer(ruler_maker *m, ruler_sample *out, err *e)
{
    const char *first = json_string_value(json_array_get(out->answers, 0));
    const char *found = strstr(out->input.s, first);
    size_t before = found ? (size_t)(found - out->input.s) : 0;
    out->at_char = (int64_t)prompt_characters(out->input.s, before);
    return ruler_count(m->s.counter, out->input.s, before, &out->at_token, e);
}

/* The draft of the next sample. vt's example is part of the draft; in 2024 it was put in after the length was tested.
 */
static status make_draft(ruler_maker *m, int64_t *tokens, err *e)
{
    const ruler_family family = m->task->family;
    const int64_t n_new = m->s.templates->n_new[family];
    if (family == RULER_FWE) return ruler_fwe(m, tokens, e);
    if (family != RULER_VT || !m->s.old) return ruler_fit(m, generator(m, true), m->s.length, n_new, tokens, e);
    TRY(ruler_fit(m, ruler_vt, m->s.length, n_new + m->shown_tokens, tokens, e));
    return ruler_vt_example(m, &m->shown, e);
}

status ruler_make(ruler_maker *m, ruler_sample *out, err *e)
{
    const ruler_family family = m->task->family;
    *out = (ruler_sample){.number = m->number};
    m->least = 0;
    TRY(make_draft(m, &out->length, e));
    if (m->s.one_line) TRY(ruler_one_line(&m->draft.text, e));
    const prompt_text *t = &m->draft.text;
    size_t cut = find_prefix(m, t);
    TRY(grown_put(&out->input, t->s, cut, e));
    TRY(grown_put(&out->prefix, t->s + cut, t->n - cut, e));
    out->answers = m->draft.answers;
    m->draft.answers = NULL;
    m->number++;
    return family == RULER_NIAH ? find_answer(m, out, e) : ST_OK;
}

void ruler_sample_free(ruler_sample *s)
{
    grown_free(&s->input);
    grown_free(&s->prefix);
    json_decref(s->answers);
    *s = (ruler_sample){0};
}

/* In 2024 the prompt and its answer prefix were one text. */
static json_t *sample_json_2024(const ruler_sample *s)
{
    grown_text whole = {0};
    json_t *o = NULL;
    err e;
    if (grown_put(&whole, s->input.s, s->input.n, &e) == ST_OK &&
        grown_put(&whole, s->prefix.s, s->prefix.n, &e) == ST_OK)
        o = json_pack("{s:I, s:s%, s:O, s:I}", "index", (json_int_t)s->number, "input", whole.s, whole.n, "outputs",
                      s->answers, "length", (json_int_t)s->length);
    grown_free(&whole);
    return o;
}

json_t *ruler_sample_json(const ruler_sample *s, const ruler_task *task, bool old)
{
    if (old) return sample_json_2024(s);
    bool niah = task->family == RULER_NIAH;
    json_t *o = json_pack("{s:I, s:s%, s:O, s:I, s:I, s:s%}", "index", (json_int_t)(niah ? s->at_char : s->number),
                          "input", s->input.s, s->input.n, "outputs", s->answers, "length", (json_int_t)s->length,
                          "length_w_model_temp", (json_int_t)s->length, "answer_prefix", s->prefix.s, s->prefix.n);
    if (o && niah && json_object_set_new(o, "token_position_answer", json_integer((json_int_t)s->at_token)) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}
