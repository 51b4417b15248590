/* SPDX-License-Identifier: MIT */
/* Samples of InfiniteBench, and what its templates are filled with. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/mem.h"

enum { N_OPTIONS = SAMPLE_OPTIONS };
static const char *const letters[N_OPTIONS] = {"A", "B", "C", "D"};

static void add_field(infinitebench_sample *s, const char *name, const char *value, size_t n)
{
    s->field[s->n_fields++] = (prompt_field){name, {value, n}};
}

/* ---- options ---- */

static status read_options(infinitebench_sample *s, const char *where, err *e)
{
    static const char *const names[N_OPTIONS] = {"{OPTION_A}", "{OPTION_B}", "{OPTION_C}", "{OPTION_D}"};
    utf8_text option[N_OPTIONS];
    TRY(sample_options(option, s->at.root, where, e));
    for (int i = 0; i < N_OPTIONS; i++) add_field(s, names[i], option[i].s, option[i].n);
    return ST_OK;
}

static size_t option_of(const infinitebench_sample *s, utf8_text answer)
{
    const json_t *list = json_object_get(s->at.root, "options");
    size_t i = 0;
    for (; i < N_OPTIONS; i++) {
        const json_t *one = json_array_get(list, i);
        if (json_string_length(one) == answer.n && memcmp(json_string_value(one), answer.s, answer.n) == 0) break;
    }
    return i;
}

/* Labels are made the right option's text and its letter. */
static status read_choice(infinitebench_sample *s, const char *where, err *e)
{
    prediction *p = &s->p;
    const utf8_text *a = p->answers;
    if (p->n_answers == 1) {
        size_t i = option_of(s, a[0]);
        if (i == N_OPTIONS) return err_set(e, ST_FORMAT, "%s: 'answer' is none of 'options'", where);
        TRY(MEM_GROW(&p->answers, 2, e));
        p->answers[p->n_answers++] = (utf8_text){letters[i], 1};
    }
    a = p->answers;
    if (p->n_answers != 2 || a[1].n != 1 || a[1].s[0] < 'A' || a[1].s[0] > 'D')
        return err_set(e, ST_FORMAT, "%s: 'answer': expected an option, or it and its letter", where);
    s->answers = json_pack("[s%, s%]", a[0].s, a[0].n, a[1].s, a[1].n);
    return s->answers ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* ---- what the input says ---- */

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* The first match of func_[0-9]+\(-?[0-9]+\): the call, and the part before its bracket. */
static status read_function(infinitebench_sample *s, const char *input, const char *where, err *e)
{
    for (const char *f = input; (f = strstr(f, "func_")); f++) {
        size_t name = strlen("func_"), n;
        if (!(n = digits(f + name)) || f[name += n] != '(') continue;
        size_t end = name + 1 + (f[name + 1] == '-');
        if (!(n = digits(f + end)) || f[end += n] != ')') continue;
        add_field(s, "{func}", f, name);
        add_field(s, "{func_call}", f, end + 1);
        return ST_OK;
    }
    return err_set(e, ST_FORMAT, "%s: 'input' has no call of a function like func_1(2)", where);
}

static status read_prefix(infinitebench_sample *s, utf8_text input, const char *where, err *e)
{
    bool found;
    prompt_text t;
    status st = prompt_ask(&t, input, "of", " in the following list?", &found, e);
    s->own = t.s;
    if (st == ST_OK && !found)
        return err_set(e, ST_FORMAT, "%s: 'input' asks for nothing like \"The largest number of\"", where);
    if (st == ST_OK) add_field(s, "{prefix}", t.s, t.n);
    return st;
}

/* Characters 6 to 43 of the input, quotes included; only InfLLM's template asks for it. */
static status read_key(infinitebench_sample *s, const infinitebench_prompts *p, const char *input, const char *where,
                       err *e)
{
    enum { FIRST = 6, LAST = 43 };
    size_t n = strlen(input), a = prompt_character_at(input, n, FIRST), b = prompt_character_at(input, n, LAST);
    bool there = b < n && input[a] == '"' && input[b] == '"';
    if (there) add_field(s, "{key}", input + a, b + 1 - a);
    else if (strstr(p->template[s->at.dataset], "{key}"))
        return err_set(e, ST_FORMAT, "%s: 'input' has no key in quotes at characters %d to %d", where, FIRST, LAST);
    return ST_OK;
}

static status read_fields(infinitebench_sample *s, const infinitebench_prompts *p, const char *where, err *e)
{
    unsigned f = infinitebench_tasks[s->at.dataset].fields;
    utf8_text input = {"", 0};
    if (f & ~(unsigned)FIELD_OPTIONS) TRY(sample_text(&input, s->at.root, "input", where, e));
    if (f & FIELD_INPUT) add_field(s, "{input}", input.s, input.n);
    if (f & FIELD_QUESTION) add_field(s, "{question}", input.s, input.n);
    if (f & FIELD_FUNCTION) TRY(read_function(s, input.s, where, e));
    if (f & FIELD_PREFIX) TRY(read_prefix(s, input, where, e));
    if (f & FIELD_KEY) TRY(read_key(s, p, input.s, where, e));
    if (f & FIELD_OPTIONS) {
        TRY(read_options(s, where, e));
        return read_choice(s, where, e);
    }
    s->answers = json_incref(json_object_get(s->at.root, "answer"));
    return ST_OK;
}

/* ---- a sample ---- */

status infinitebench_read(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    infinitebench_sample *s = own_sample;
    (void)path;
    s->depth = -1;
    TRY(prediction_of(&s->p, s->at.root, "context", "answer", where, e));
    if (sample_has_nul(s->p.text)) return err_set(e, ST_FORMAT, "%s: 'context' holds the character U+0000", where);
    size_t bytes = 0;
    for (size_t i = 0; i < s->p.n_answers; i++) bytes += s->p.answers[i].n;
    if (bytes == 0) return err_set(e, ST_FORMAT, "%s: 'answer': all of it is empty", where);
    return read_fields(s, own, where, e);
}

void infinitebench_drop(void *own_sample)
{
    infinitebench_sample *s = own_sample;
    prediction_free(&s->p);
    json_decref(s->answers);
    mem_free(s->own);
}

void infinitebench_sample_forget(infinitebench_sample *s)
{
    sample_forget(&s->at, "context");
    s->p.text = (utf8_text){0};
}
