/* SPDX-License-Identifier: MIT */
/* Variable tracking. Source: NVIDIA/RULER scripts/data/synthetic/variable_tracking.py. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

/* An example of EXAMPLE_LENGTH tokens stands in front of each question. */
enum {
    NAMES = 5,
    MOST_NAMES = 64,
    NAME_CHARS = 5,
    EXAMPLE_CHARS = 3,
    LINE_MAX = 48,
    EXAMPLE_LENGTH = 500,
    EXAMPLE_STEP = 5
};

static const char EXAMPLE_VALUE[] = "12345";

typedef struct {
    char name[MOST_NAMES][NAME_CHARS + 1];
    char line[NAMES][LINE_MAX], value[16];
    uint32_t at[NAMES];
} chain;

/* ---- the chain ---- */

/* The number of names, one more for each that came twice. */
static size_t draw_names(ruler_maker *m, chain *c)
{
    size_t n = 0, distinct = 0;
    for (; n < NAMES || (distinct < NAMES && n < MOST_NAMES); n++) {
        bool known = false;
        python_letters(&m->python, c->name[n], m->example ? EXAMPLE_CHARS : NAME_CHARS, 'A', 26);
        for (size_t i = 0; i < n; i++) known |= strcmp(c->name[i], c->name[n]) == 0;
        distinct += !known;
    }
    return n;
}

static void draw_value(ruler_maker *m, char out[16])
{
    if (m->example) memcpy(out, EXAMPLE_VALUE, sizeof EXAMPLE_VALUE);
    else snprintf(out, 16, "%u", (unsigned)numpy_five_digits(&m->numpy));
}

static void draw_chain(ruler_maker *m, chain *c)
{
    char unused[16], line[LINE_MAX];
    size_t n = draw_names(m, c);
    draw_value(m, c->value);
    for (int i = 0; i < NAMES; i++) {
        if (i == 0) snprintf(line, sizeof line, "VAR %s = %s", c->name[0], c->value);
        else snprintf(line, sizeof line, "VAR %s = VAR %s ", c->name[i], c->name[i - 1]);
        memcpy(c->line[i], line, sizeof line);
    }
    if (n == NAMES) return;
    draw_value(m, unused); /* a name too many begins a chain that the official code cannot end */
    m->draft.failed = "two variables have one name";
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static status put_lines(ruler_maker *m, chain *c, int64_t n, grown_text *out, err *e)
{
    TRY(python_sample(&m->python, c->at, (size_t)n, NAMES, e));
    qsort(c->at, NAMES, sizeof *c->at, ascending);
    for (int64_t i = 0, k = 0; i < n; i++) {
        if (i > 0) TRY(grown_put(out, "\n", 1, e));
        if (k < NAMES && c->at[k] == i) {
            TRY(grown_puts(out, c->line[k++], e));
            TRY(grown_put(out, "\n", 1, e));
        }
        TRY(grown_puts(out, m->s.templates->noise, e));
    }
    return ST_OK;
}

static status fill(ruler_maker *m, chain *c, int64_t n, err *e)
{
    grown_text context = {0};
    status st = put_lines(m, c, n, &context, e);
    const prompt_field f[] = {
        {"{context}", {context.s, context.n}}, {"{query}", utf8_of(c->value)}, {"{num_v}", utf8_of("5")}};
    if (st == ST_OK) st = prompt_fill(&m->draft.text, m->template.s, f, sizeof f / sizeof *f, e);
    for (int i = 0; i < NAMES && st == ST_OK; i++)
        st = ruler_draft_answer(&m->draft, c->name[i], strlen(c->name[i]), e);
    grown_free(&context);
    return st;
}

status ruler_vt(ruler_maker *m, int64_t n, err *e)
{
    chain c;
    TRY(ruler_draft_start(&m->draft, e));
    draw_chain(m, &c);
    if (!m->draft.failed && n < NAMES) m->draft.failed = "more variables than lines";
    return m->draft.failed ? ST_OK : fill(m, &c, n, e);
}

/* ---- the example ---- */

/* With other names and another value. */
static status vary_example(ruler_maker *m, prompt_text *t, err *e)
{
    char name[NAMES][NAME_CHARS + 1], drawn[NAME_CHARS + 1], value[16];
    const char *s = t->s + t->n - 1; /* the names are its last words; a newline follows */
    for (int i = NAMES; i-- > 0; s--) {
        s -= EXAMPLE_CHARS;
        memcpy(name[i], s, EXAMPLE_CHARS);
        name[i][EXAMPLE_CHARS] = 0;
    }
    for (int i = 0; i < NAMES; i++) {
        python_letters(&m->python, drawn, EXAMPLE_CHARS, 'A', 26);
        TRY(prompt_replace(t, utf8_of(name[i]), utf8_of(drawn), e));
    }
    snprintf(value, sizeof value, "%u", (unsigned)numpy_five_digits(&m->numpy));
    return prompt_replace(t, utf8_of(EXAMPLE_VALUE), utf8_of(value), e);
}

/* In front of the question, behind what the wrapper has there. */
static status put_example(ruler_maker *m, const prompt_text *example, err *e)
{
    enum { MARK = 20 }; /* characters of the task's text that tell where it begins */
    prompt_text *t = &m->draft.text;
    grown_text whole = {0};
    const char *question = memmem(t->s, t->n, m->s.templates->text[RULER_VT], MARK);
    size_t before = question ? (size_t)(question - t->s) : 0;
    status st = grown_put(&whole, t->s, before, e);
    if (st == ST_OK) st = grown_put(&whole, example->s, example->n, e);
    if (st == ST_OK) st = grown_put(&whole, "\n", 1, e);
    if (st == ST_OK) st = grown_put(&whole, t->s + before, t->n - before, e);
    mem_free(t->s);
    *t = (prompt_text){whole.s, whole.n};
    return st;
}

status ruler_vt_sample(ruler_maker *m, int64_t n, err *e)
{
    prompt_text example = {0};
    TRY(ruler_vt(m, n, e));
    if (m->draft.failed) return ST_OK;
    if (!m->example) {
        TRY(mem_alloc((void **)&example.s, m->shown.n + 1, 1, "example", e));
        memcpy(example.s, m->shown.s, m->shown.n + 1);
        example.n = m->shown.n;
        status st = vary_example(m, &example, e);
        if (st == ST_OK) st = put_example(m, &example, e);
        mem_free(example.s);
        TRY(st);
    }
    return m->s.one_line ? ruler_one_line(&m->draft.text, e) : ST_OK;
}

/* The example's prompt with its answers behind it. */
static status keep_example(ruler_maker *m, err *e)
{
    grown_text t = {0};
    size_t i;
    const json_t *name;
    status st = grown_put(&t, m->draft.text.s, m->draft.text.n, e);
    json_array_foreach(m->draft.answers, i, name)
    {
        if (st == ST_OK) st = grown_put(&t, " ", 1, e);
        if (st == ST_OK) st = grown_puts(&t, json_string_value(name), e);
    }
    if (st == ST_OK) st = grown_put(&t, "\n", 1, e);
    m->shown = (prompt_text){t.s, t.n};
    return st;
}

static status fit_example(ruler_maker *m, err *e)
{
    int64_t tokens;
    err inner = {0};
    status st = ruler_fit(m, ruler_vt_sample, EXAMPLE_LENGTH, 0, &tokens, &inner);
    if (st != ST_USAGE) return st == ST_OK ? ST_OK : err_set(e, st, "%s", inner.msg);
    return err_set(e, ST_UNSUPPORTED, "its example has %lld tokens with this tokenizer, RULER allows %d",
                   (long long)m->least, EXAMPLE_LENGTH);
}

status ruler_vt_start(ruler_maker *m, int64_t *reserve, err *e)
{
    prompt_text template = m->template, bare;
    int64_t step = m->step;
    TRY(ruler_template(&bare, m->s.templates, m->task, false, e));
    m->template = bare;
    m->example = true;
    m->step = EXAMPLE_STEP;
    status st = ruler_find_size(m, ruler_vt, EXAMPLE_LENGTH, 0, e);
    if (st == ST_OK) st = fit_example(m, e);
    if (st == ST_OK) st = keep_example(m, e);
    m->example = false;
    m->step = step;
    m->template = template;
    mem_free(bare.s);
    return st == ST_OK ? ruler_count(m->s.counter, m->shown.s, m->shown.n, reserve, e) : st;
}
