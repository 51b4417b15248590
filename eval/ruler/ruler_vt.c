/* SPDX-License-Identifier: MIT */
/* Variable tracking. Source: NVIDIA/RULER scripts/data/synthetic/variable_tracking.py. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

/* Each question follows an example of at most EXAMPLE_LENGTH tokens. */
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

/* Draws names until NAMES are distinct. Returns their number, including duplicates. */
static size_t draw_variables(ruler_maker *m, chain *c)
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
    if (m->example && !m->in->old) memcpy(out, EXAMPLE_VALUE, sizeof EXAMPLE_VALUE);
    else snprintf(out, 16, "%u", (unsigned)numpy_five_digits(&m->numpy));
}

static void draw_chain(ruler_maker *m, chain *c)
{
    char unused[16], line[LINE_MAX];
    size_t n = draw_variables(m, c);
    draw_value(m, c->value);
    for (int i = 0; i < NAMES; i++) {
        if (i == 0) snprintf(line, sizeof line, "VAR %s = %s", c->name[0], c->value);
        else snprintf(line, sizeof line, "VAR %s = VAR %s ", c->name[i], c->name[i - 1]);
        memcpy(c->line[i], line, sizeof line);
    }
    if (n == NAMES) return;
    draw_value(m, unused); /* an extra name begins a chain that the official code cannot end */
    m->builder.failed = "two variables have the same name";
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static size_t sentences_of(const char *noise)
{
    size_t n = 0;
    for (; *noise; noise++) n += *noise == '.';
    return n;
}

/* Appends item i of the haystack: the noise as a line. In 2024 the line included its newline. With at most NAMES items,
 * each sentence and each newline was an item. */
static status put_item(const ruler_maker *m, prompt_text *out, size_t i, size_t each, err *e)
{
    const char *s = m->in->templates.noise;
    size_t k = i % each;
    if (!m->in->old) return prompt_puts(out, s, e);
    if (each > 1 && k + 1 == each) return prompt_add(out, "\n", 1, e);
    for (; k > 0; k--) s += strcspn(s, ".") + 1;
    if (each > 1) return prompt_add(out, s, strcspn(s, ".") + 1, e);
    TRY(prompt_puts(out, s, e));
    return prompt_add(out, "\n", 1, e);
}

static status put_lines(ruler_maker *m, chain *c, int64_t n, prompt_text *out, err *e)
{
    const char *between = m->in->old ? " " : "\n";
    size_t each = m->in->old && n <= NAMES ? sentences_of(m->in->templates.noise) + 1 : 1, items = (size_t)n * each,
           k = 0;
    TRY(python_sample(&m->python, c->at, items, NAMES, e));
    qsort(c->at, NAMES, sizeof *c->at, ascending);
    for (size_t i = 0; i < items; i++) {
        if (i > 0) TRY(prompt_add(out, between, 1, e));
        if (k < NAMES && c->at[k] == i) {
            TRY(prompt_puts(out, c->line[k++], e));
            TRY(prompt_add(out, between, 1, e));
        }
        TRY(put_item(m, out, i, each, e));
    }
    return ST_OK;
}

static status fill(ruler_maker *m, chain *c, int64_t n, err *e)
{
    prompt_text *context = &m->context;
    TRY(put_lines(m, c, n, context, e));
    /* In 2024 there was no space between a sentence and its newline. */
    if (m->in->old) TRY(prompt_replace(context, utf8_of(". \n"), utf8_of(".\n"), e));
    const prompt_field f[] = {
        {"{context}", {context->s, context->n}}, {"{query}", utf8_of(c->value)}, {"{num_v}", utf8_of("5")}};
    TRY(ruler_builder_fill(m, f, sizeof f / sizeof *f, e));
    for (int i = 0; i < NAMES; i++) TRY(ruler_builder_answer(m, utf8_of(c->name[i]), e));
    return ST_OK;
}

status ruler_vt(ruler_maker *m, int64_t n, err *e)
{
    chain c;
    TRY(ruler_builder_start(m, e));
    draw_chain(m, &c);
    if (!m->builder.failed && n < NAMES) m->builder.failed = "more variables than lines";
    return m->builder.failed ? ST_OK : fill(m, &c, n, e);
}

/* ---- the example ---- */

/* Replaces the example's names and value by newly drawn ones. */
static status vary_example(ruler_maker *m, prompt_text *t, err *e)
{
    char name[NAMES][NAME_CHARS + 1], drawn[NAME_CHARS + 1], value[16];
    const char *s = t->s + t->n - 1; /* the names are the last words; a newline follows */
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

status ruler_vt_example(ruler_maker *m, const prompt_text *example, err *e)
{
    enum { MARK = 20 }; /* characters that identify the start of the task's text */
    prompt_text *t = &m->builder.text, whole = {0};
    const char *question = memmem(t->s, t->n, m->in->templates.text[RULER_VT], MARK);
    size_t before = question ? (size_t)(question - t->s) : 0;
    str_add(&whole, t->s, before);
    if (m->in->old) str_add(&whole, " ", 1);
    str_add(&whole, example->s, example->n);
    str_add(&whole, "\n\n", m->in->old ? 2 : 1);
    str_add(&whole, t->s + before, t->n - before);
    str_free(t);
    *t = whole;
    return str_check(t, e);
}

status ruler_vt_sample(ruler_maker *m, int64_t n, err *e)
{
    TRY(ruler_vt(m, n, e));
    if (m->builder.failed) return ST_OK;
    if (!m->example) {
        m->other.n = 0;
        TRY(prompt_add(&m->other, m->shown.s, m->shown.n, e));
        TRY(vary_example(m, &m->other, e));
        TRY(ruler_vt_example(m, &m->other, e));
    }
    return m->in->o->one_line ? ruler_one_line(&m->builder.text, e) : ST_OK;
}

/* Stores the example's prompt, followed by its answers. */
static status keep_example(ruler_maker *m, err *e)
{
    size_t i;
    const json_t *name;
    TRY(prompt_add(&m->shown, m->builder.text.s, m->builder.text.n, e));
    json_array_foreach(m->builder.answers, i, name)
    {
        TRY(prompt_add(&m->shown, " ", 1, e));
        TRY(prompt_puts(&m->shown, json_string_value(name), e));
    }
    return prompt_puts(&m->shown, m->in->old ? "\n\n" : "\n", e);
}

static status find_example(ruler_maker *m, err *e)
{
    int64_t tokens, reserve = m->in->old ? m->in->templates.n_new[RULER_VT] : 0;
    err inner = {0};
    TRY(ruler_find_size(m, ruler_vt, EXAMPLE_LENGTH, reserve, e));
    status st = ruler_fit(m, m->in->old ? ruler_vt : ruler_vt_sample, EXAMPLE_LENGTH, reserve, &tokens, &inner);
    if (st == ST_OK && m->in->old && m->in->o->one_line) st = ruler_one_line(&m->builder.text, &inner);
    if (st != ST_USAGE) return st == ST_OK ? ST_OK : err_set(e, st, "%s", inner.msg);
    return err_set(e, ST_UNSUPPORTED, "the example has %lld tokens with this tokenizer; RULER allows %d",
                   (long long)m->least, EXAMPLE_LENGTH);
}

/* Writes the example's template, which has no wrapper. In 2024 it was cut out of the wrapped template, with white space
 * squeezed and without its last word. */
static status example_template(const ruler_maker *m, prompt_text *out, err *e)
{
    const ruler_templates *t = &m->in->templates;
    enum { BEGIN = 20, END = 10 }; /* characters that identify the start of the text and of the answer prefix */
    if (!m->in->old) return ruler_template(out, t, m->task, false, e);
    const char *s = m->template.s, *end = s + m->template.n;
    const char *text = memmem(s, m->template.n, t->text[RULER_VT], BEGIN);
    const char *prefix = text ? memmem(text, (size_t)(end - text), t->prefix[RULER_VT], END) : NULL;
    if (!prefix)
        return err_set(e, ST_FORMAT, "ruler/templates.json: the text of variable_tracking is not in its wrapper");
    TRY(ruler_squeeze(out, text, (size_t)(prefix - text), true, e));
    while (out->n > 0 && out->s[out->n - 1] != ' ') out->n--;
    out->n -= out->n > 0;
    return prompt_add(out, prefix, (size_t)(end - prefix), e);
}

status ruler_vt_start(ruler_maker *m, err *e)
{
    prompt_text template = m->template, bare = {0};
    int64_t step = m->step;
    status st = example_template(m, &bare, e);
    m->template = bare;
    m->example = true;
    m->step = EXAMPLE_STEP;
    if (st == ST_OK) st = find_example(m, e);
    if (st == ST_OK) st = keep_example(m, e);
    m->example = false;
    m->step = step;
    m->template = template;
    mem_free(bare.s);
    return st == ST_OK ? ruler_count(&m->in->counter, m->shown.s, m->shown.n, &m->shown_tokens, e) : st;
}
