/* SPDX-License-Identifier: MIT */
/* Builds samples and searches for the haystack's size. The official search makes prompts, which uses up random numbers:
 * it affects the samples. Search of 2024: hsiehjackson/RULER 4f6507e, scripts/data/synthetic/, copied by
 * microsoft/MInference in experiments/ruler. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/ruler/ruler.h"

/* TRIES: attempts at the shortest prompt; the official generator never gives up. MOST_A_TOKEN: maximum haystack items
 * per token of the length, since a tokenizer may drop nearly everything. */
enum { CWE_PROBE = 4096, TRIES = 100, MOST_A_TOKEN = 4 };

/* ---- building a sample ---- */

status ruler_builder_start(ruler_maker *m, err *e)
{
    m->context.n = m->builder.text.n = 0;
    m->builder.failed = NULL;
    json_decref(m->builder.answers);
    m->builder.answers = json_array();
    return m->builder.answers ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status ruler_builder_fill(ruler_maker *m, const prompt_field *f, size_t n, err *e)
{
    return prompt_append(&m->builder.text, m->template.s, f, n, e);
}

status ruler_builder_answer(ruler_maker *m, utf8_text s, err *e)
{
    return json_array_append_new(m->builder.answers, json_stringn(s.s, s.n)) == 0
               ? ST_OK
               : err_set(e, ST_NOMEM, "out of memory");
}

/* ---- the size ---- */

status ruler_too_short(const ruler_maker *m, err *e)
{
    if (m->least == 0)
        return err_set(e, ST_USAGE, "--length %lld: no sample of %s in %d tries: %s", (long long)m->length,
                       m->task->name, TRIES, m->builder.failed);
    return err_set(e, ST_USAGE, "--length %lld: too short for %s; the shortest prompt and its new tokens take %lld",
                   (long long)m->length, m->task->name, (long long)m->least);
}

/* Builds a sample of n items and counts its tokens; -1: the official code fails. */
static status try_size(ruler_maker *m, ruler_generate *generate, int64_t n, int64_t *tokens, err *e)
{
    *tokens = -1;
    TRY(generate(m, n, e));
    return m->builder.failed ? ST_OK : ruler_count(&m->in->counter, m->builder.text.s, m->builder.text.n, tokens, e);
}

/* Returns an error where the official search fails. For cwe, too many words only mean that the size is too large. */
static status check_search(const ruler_maker *m, err *e)
{
    if (!m->builder.failed || m->task->family == RULER_CWE) return ST_OK;
    return err_set(e, ST_USAGE, "--seed %llu: RULER's generator fails for %s with %lld tokens: %s",
                   (unsigned long long)m->seed, m->task->name, (long long)m->length, m->builder.failed);
}

static status find_bounds(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t *high, err *e)
{
    bool cwe = m->task->family == RULER_CWE;
    int64_t probe = cwe ? CWE_PROBE : m->step, tokens;
    TRY(try_size(m, generate, probe, &tokens, e));
    TRY(check_search(m, e));
    double each = (double)(tokens > 0 ? tokens : 1) / (double)probe, fits = (double)length / each;
    *high = cwe ? (int64_t)fits * 2 : (int64_t)(fits * 3);
    if (*high < 2 * m->step) *high = 2 * m->step;
    return ST_OK;
}

static status find_size(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e)
{
    int64_t low = m->step, high;
    TRY(find_bounds(m, generate, length, &high, e));
    m->size = m->step;
    while (low <= high) {
        int64_t mid = (low + high) / 2, tokens;
        TRY(try_size(m, generate, mid, &tokens, e));
        TRY(check_search(m, e));
        if (tokens >= 0 && tokens + reserve <= length) {
            m->size = mid;
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    return ST_OK;
}

/* ---- the size of 2024 ---- */

/* Appends the answers: as a list " ['a', 'b']", as words "a b", or as numbered words " 1. a 2. b". */
static status add_answers(prompt_text *t, const json_t *answers, bool list, bool numbered, err *e)
{
    size_t i;
    const json_t *one;
    if (list) TRY(prompt_puts(t, " [", e));
    json_array_foreach(answers, i, one)
    {
        char before[32];
        snprintf(before, sizeof before, " %zu. ", i + 1);
        if (numbered) TRY(prompt_puts(t, before, e));
        else if (i > 0) TRY(prompt_puts(t, list ? ", " : " ", e));
        if (list) TRY(prompt_add_repr(t, json_text(one), e));
        else TRY(prompt_puts(t, json_string_value(one), e));
    }
    return list ? prompt_puts(t, "]", e) : ST_OK;
}

/* Builds a sample of n items, appends its answers and counts the tokens. */
static status try_size_2024(ruler_maker *m, ruler_generate *generate, int64_t n, int64_t *tokens, err *e)
{
    const ruler_family family = m->task->family;
    prompt_text *t = &m->builder.text;
    TRY(generate(m, n, e));
    TRY(check_search(m, e));
    TRY(add_answers(t, m->builder.answers, family == RULER_VT || family == RULER_QA, family == RULER_CWE, e));
    return ruler_count(&m->in->counter, t->s, t->n, tokens, e);
}

static int64_t most_items(const ruler_maker *m)
{
    switch (m->task->family) {
    case RULER_CWE: return (int64_t)ruler_common_words(m->in->words);
    case RULER_QA: return (int64_t)m->in->qa[m->task->file].n_documents;
    case RULER_NIAH: return m->task->haystack == RULER_ESSAY ? (int64_t)m->in->essay.words : INT64_MAX;
    default: return INT64_MAX;
    }
}

static status find_size_2024(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e)
{
    const int64_t step = m->step, most = most_items(m);
    const bool essay = m->task->family == RULER_NIAH; /* one size beyond the essay is tried */
    int64_t n = step, tokens = 0;
    while (tokens + reserve < length && n - (essay ? step : 0) <= most) {
        TRY(try_size_2024(m, generate, n > most ? most : n, &tokens, e));
        n += tokens + reserve > length ? -step : step;
        if (n > MOST_A_TOKEN * length)
            return err_set(e, ST_UNSUPPORTED, "%s: %lld items have only %lld tokens with this tokenizer", m->task->name,
                           (long long)(n - step), (long long)tokens);
    }
    m->size = n > most ? most : n < step ? step : n;
    return ST_OK;
}

/* ---- both ---- */

status ruler_find_size(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e)
{
    return (m->in->old ? find_size_2024 : find_size)(m, generate, length, reserve, e);
}

status ruler_fit(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, int64_t *tokens, err *e)
{
    /* vt of 2024 never reduces the size. */
    const int64_t step = m->in->old && m->task->family == RULER_VT ? 0 : m->step;
    int64_t n = m->size;
    for (int tries = 0; tries < TRIES; tries += step == 0 || n <= step, n -= n > step ? step : 0) {
        TRY(try_size(m, generate, n, tokens, e));
        if (*tokens < 0) continue;
        *tokens += reserve;
        if (*tokens <= length) return ST_OK;
        if (m->least == 0 || *tokens < m->least) m->least = *tokens;
    }
    return ruler_too_short(m, e);
}
