/* SPDX-License-Identifier: MIT */
/* Needles in a haystack. Source: NVIDIA/RULER scripts/data/synthetic/niah.py. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/ruler/ruler.h"

enum { MOST = 4, NEEDLE_MAX = 512, VALUE_MAX = PYTHON_UUID_CHARS + 1 };

typedef struct {
    char key[MOST][RULER_KEY_MAX], value[MOST][MOST][VALUE_MAX]; /* value: [key][value] */
    char needle[MOST][NEEDLE_MAX];                               /* in order of insertion */
    uint32_t at[MOST];
    size_t n; /* needles */
} hidden;

/* ---- needles ---- */

static void draw_key(ruler_maker *m, char out[RULER_KEY_MAX])
{
    if (m->task->uuid_keys) python_uuid(&m->python, out);
    else ruler_key(m->in->words, python_below(&m->python, (uint32_t)ruler_keys(m->in->words)), out);
}

static void draw_value(ruler_maker *m, char out[VALUE_MAX])
{
    enum { LEAST = 1000000, NUMBERS = 9000000 };
    if (m->task->uuid_values) python_uuid(&m->python, out);
    else snprintf(out, VALUE_MAX, "%u", (unsigned)(LEAST + python_below(&m->python, NUMBERS)));
}

static status spell(const ruler_maker *m, prompt_text *out, const char *key, const char *value, err *e)
{
    const prompt_field f[] = {
        {"{type_needle_v}", utf8_of(ruler_value_name(m->task))}, {"{key}", utf8_of(key)}, {"{value}", utf8_of(value)}};
    return prompt_append(out, m->in->templates.needle, f, sizeof f / sizeof *f, e);
}

static status draw_needles(ruler_maker *m, hidden *h, err *e)
{
    const ruler_task *task = m->task;
    char drawn[MOST][NEEDLE_MAX];
    uint32_t order[MOST];
    h->n = 0;
    for (int i = 0; i < task->keys; i++) {
        draw_key(m, h->key[i]);
        for (int k = 0; k < task->values; k++) {
            draw_value(m, h->value[i][k]);
            m->other.n = 0;
            TRY(spell(m, &m->other, h->key[i], h->value[i][k], e));
            snprintf(drawn[h->n++], NEEDLE_MAX, "%s", m->other.s);
        }
    }
    python_shuffled(order, h->n, m->seed);
    for (size_t i = 0; i < h->n; i++) memcpy(h->needle[i], drawn[order[i]], NEEDLE_MAX);
    return ST_OK;
}

/* ---- haystacks ---- */

static int descending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x > y ? -1 : x < y;
}

static status put_line(prompt_text *t, const char *line, size_t n, err *e)
{
    if (t->n) TRY(prompt_add(t, "\n", 1, e));
    return prompt_add(t, line, n, e);
}

/* Appends n other needles, one per line. */
static status draw_lines(ruler_maker *m, int64_t n, prompt_text *out, err *e)
{
    char key[RULER_KEY_MAX], value[VALUE_MAX];
    for (int64_t i = 0; i < n; i++) {
        draw_key(m, key);
        draw_value(m, value);
        TRY(spell(m, out, key, value, e));
        TRY(prompt_add(out, "\n", 1, e));
    }
    return ST_OK;
}

/* Writes n lines with the needles between them. lines: text of the haystack; NULL: each line is the noise sentence. */
static status put_lines(ruler_maker *m, hidden *h, int64_t n, const char *lines, err *e)
{
    prompt_text *out = &m->context;
    const char *noise = m->in->templates.noise;
    const size_t noise_bytes = strlen(noise);
    TRY(python_sample(&m->python, h->at, (size_t)n, h->n, e));
    qsort(h->at, h->n, sizeof *h->at, descending);
    for (int64_t i = 0; i < n; i++) {
        for (size_t k = 0; k < h->n; k++)
            if (h->at[k] == i) TRY(put_line(out, h->needle[k], strlen(h->needle[k]), e));
        size_t bytes = lines ? strcspn(lines, "\n") : noise_bytes;
        TRY(put_line(out, lines ? lines : noise, bytes, e));
        if (lines) lines += bytes + 1;
    }
    return ST_OK;
}

/* Appends the sentences [from, to), separated by single spaces. */
static status put_sentences(const ruler_essay *t, size_t from, size_t to, prompt_text *out, err *e)
{
    for (size_t i = from; i < to; i++) {
        const sentence *s = &t->sentences.s[i];
        if (i > from) TRY(prompt_add(out, " ", 1, e));
        TRY(prompt_add(out, t->part.s + s->begin, s->end - s->begin, e));
    }
    return ST_OK;
}

static status put_essay(ruler_maker *m, hidden *h, int64_t n, err *e)
{
    enum { DEPTHS = 40 };
    static const int depth[DEPTHS] = {0,  3,  5,  8,  10, 13, 15, 18, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44, 46, 49,
                                      51, 54, 56, 59, 62, 64, 67, 69, 72, 74, 77, 79, 82, 85, 87, 90, 92, 95, 97, 100};
    ruler_essay *t = &m->in->essay;
    prompt_text *out = &m->context;
    TRY(ruler_essay_cut(t, (size_t)n, e));
    TRY(python_sample(&m->python, h->at, DEPTHS, h->n, e));
    for (size_t i = 0; i < h->n; i++) h->at[i] = (uint32_t)((double)t->sentences.n * ((double)depth[h->at[i]] / 100.0));
    qsort(h->at, h->n, sizeof *h->at, descending);
    size_t from = 0;
    for (size_t i = 0; i < h->n; i++) {
        size_t to = h->at[h->n - 1 - i];
        TRY(put_sentences(t, from, to, out, e));
        TRY(prompt_add(out, " ", 1, e));
        TRY(prompt_puts(out, h->needle[i], e));
        TRY(prompt_add(out, " ", 1, e));
        from = to;
    }
    return put_sentences(t, from, t->sentences.n, out, e);
}

static status put_haystack(ruler_maker *m, hidden *h, int64_t n, err *e)
{
    bool needles = m->task->haystack == RULER_NEEDLES;
    if (m->task->haystack == RULER_ESSAY) return put_essay(m, h, n, e);
    m->other.n = 0;
    if (needles) TRY(draw_lines(m, n, &m->other, e));
    if (n >= (int64_t)h->n) return put_lines(m, h, n, needles ? m->other.s : NULL, e);
    m->builder.failed = "more needles than lines";
    return ST_OK;
}

/* ---- questions ---- */

/* Appends "a, b, c, and d" of the keys asked for; adds their values as answers. */
static status put_query(ruler_maker *m, const hidden *h, prompt_text *out, err *e)
{
    const ruler_task *task = m->task;
    uint32_t asked[MOST];
    TRY(python_sample(&m->python, asked, (size_t)task->keys, (size_t)task->queries, e));
    for (int i = 0; i < task->queries; i++) {
        if (i > 0) TRY(prompt_puts(out, i + 1 == task->queries ? ", and " : ", ", e));
        TRY(prompt_puts(out, h->key[asked[i]], e));
        for (int k = 0; k < task->values; k++) TRY(ruler_builder_answer(m, utf8_of(h->value[asked[i]][k]), e));
    }
    return ST_OK;
}

status ruler_niah(ruler_maker *m, int64_t n, err *e)
{
    hidden h;
    const char *values = ruler_value_name(m->task);
    bool one = m->task->queries * m->task->values == 1;
    TRY(ruler_builder_start(m, e));
    TRY(draw_needles(m, &h, e));
    TRY(put_haystack(m, &h, n, e));
    if (m->builder.failed) return ST_OK;
    m->other.n = 0;
    TRY(put_query(m, &h, &m->other, e));
    const prompt_field f[] = {{"{type_needle_v}", {values, strlen(values) - one}},
                              {"{context}", {m->context.s, m->context.n}},
                              {"{query}", {m->other.s, m->other.n}}};
    return ruler_builder_fill(m, f, sizeof f / sizeof *f, e);
}
