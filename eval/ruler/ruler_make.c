/* SPDX-License-Identifier: MIT */
/* Makers of samples: size search of a task, and its samples. */
#include "config.h"

#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

enum { SHORT_LENGTH = 4096, MARK = 10 };

/* ---- a task ---- */

/* Generator of a family, and its preparation of the size search. NULL: fwe finds its size itself. */
static const struct {
    ruler_generate *generate;
    status (*start)(ruler_maker *m, err *e);
} families[RULER_FAMILIES] = {[RULER_NIAH] = {ruler_niah, NULL},
                              [RULER_VT] = {ruler_vt, ruler_vt_start},
                              [RULER_CWE] = {ruler_cwe, ruler_cwe_start},
                              [RULER_FWE] = {NULL, ruler_fwe_start},
                              [RULER_QA] = {ruler_qa_ask, NULL}};

static int64_t step_of(const ruler_maker *m)
{
    bool small = m->length < SHORT_LENGTH;
    if (m->task->family == RULER_NIAH) return m->task->haystack == RULER_ESSAY ? 500 : small ? 5 : 25;
    return m->task->family == RULER_VT && small && !m->in->old ? 5 : 10;
}

static status search(ruler_maker *m, err *e)
{
    const ruler_family family = m->task->family;
    m->step = step_of(m);
    if (families[family].start) TRY(families[family].start(m, e));
    if (!families[family].generate) return ST_OK;
    m->searching = true;
    status st =
        ruler_find_size(m, families[family].generate, m->length, m->in->templates.n_new[family] + m->shown_tokens, e);
    m->searching = false;
    return st;
}

status ruler_maker_open(ruler_maker *m, ruler_inputs *in, const ruler_task *task, int64_t length, err *e)
{
    *m = (ruler_maker){.task = task, .in = in, .seed = in->seed, .length = length};
    if (m->seed > UINT32_MAX)
        return err_set(e, ST_USAGE, "--seed %llu: must be at most %u for RULER", (unsigned long long)m->seed,
                       UINT32_MAX);
    mersenne_seed_python(&m->python, m->seed);
    mersenne_seed_numpy(&m->numpy, (uint32_t)m->seed);
    TRY(ruler_template(&m->template, &in->templates, task, true, e));
    return search(m, e);
}

void ruler_maker_close(ruler_maker *m)
{
    mem_free(m->builder.text.s);
    json_decref(m->builder.answers);
    mem_free(m->context.s);
    mem_free(m->other.s);
    mem_free(m->template.s);
    mem_free(m->shown.s);
    mem_free(m->order);
    *m = (ruler_maker){0};
}

/* ---- samples ---- */

/* Returns the start of the answer prefix: the last occurrence of its first characters. */
static size_t find_prefix(const ruler_maker *m, const prompt_text *t)
{
    const char *prefix = m->in->templates.prefix[m->task->family];
    size_t n = strlen(prefix) < MARK ? strlen(prefix) : MARK, at = t->n;
    while (at > 0 && (t->n - at < n || memcmp(t->s + at, prefix, n) != 0)) at--;
    return at;
}

static status find_answer(ruler_maker *m, ruler_sample *out, err *e)
{
    const utf8_text first = json_text(json_array_get(out->answers, 0));
    const char *s = out->text.s, *found = memmem(s, out->cut, first.s, first.n);
    size_t before = found ? (size_t)(found - s) : 0;
    out->at_char = (int64_t)prompt_characters(s, before);
    return ruler_count(&m->in->counter, s, before, &out->at_token, e);
}

/* Builds the next sample. vt's example counts toward the length; in 2024 it was inserted after the length test. */
static status build_sample(ruler_maker *m, int64_t *tokens, err *e)
{
    const ruler_family family = m->task->family;
    const int64_t n_new = m->in->templates.n_new[family];
    if (family == RULER_FWE) return ruler_fwe(m, tokens, e);
    if (family != RULER_VT) return ruler_fit(m, families[family].generate, m->length, n_new, tokens, e);
    if (!m->in->old) return ruler_fit(m, ruler_vt_sample, m->length, n_new, tokens, e);
    TRY(ruler_fit(m, ruler_vt, m->length, n_new + m->shown_tokens, tokens, e));
    return ruler_vt_example(m, &m->shown, e);
}

status ruler_make(ruler_maker *m, ruler_sample *out, err *e)
{
    *out = (ruler_sample){.number = m->number};
    m->least = 0;
    TRY(build_sample(m, &out->length, e));
    if (m->in->o->one_line) TRY(ruler_one_line(&m->builder.text, e));
    out->text = m->builder.text;
    out->cut = find_prefix(m, &out->text);
    out->answers = m->builder.answers;
    m->builder = (ruler_builder){0};
    m->number++;
    return m->task->family == RULER_NIAH ? find_answer(m, out, e) : ST_OK;
}

void ruler_sample_free(ruler_sample *s)
{
    mem_free(s->text.s);
    json_decref(s->answers);
    *s = (ruler_sample){0};
}

json_t *ruler_sample_json(const ruler_sample *s, const ruler_task *task, bool old)
{
    bool niah = task->family == RULER_NIAH;
    if (old) /* the prompt includes its answer prefix */
        return json_pack("{s:I, s:s%, s:O, s:I}", "index", (json_int_t)s->number, "input", s->text.s, s->text.n,
                         "outputs", s->answers, "length", (json_int_t)s->length);
    return json_pack("{s:I, s:s%, s:O, s:I, s:I, s:s%, s:o*}", "index", (json_int_t)(niah ? s->at_char : s->number),
                     "input", s->text.s, s->cut, "outputs", s->answers, "length", (json_int_t)s->length,
                     "length_w_model_temp", (json_int_t)s->length, "answer_prefix", s->text.s + s->cut,
                     s->text.n - s->cut, "token_position_answer", niah ? json_integer((json_int_t)s->at_token) : NULL);
}
