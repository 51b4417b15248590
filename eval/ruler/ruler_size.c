/* SPDX-License-Identifier: MIT */
/* Drafts of prompts, and the size of the haystack. The official generator finds the size by making prompts, which uses
 * up random numbers, so the search decides what the samples say. */
#include "config.h"

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

/* TRIES: of the shortest prompt, which is drawn again each time; the official generator tries for ever. */
enum { CWE_PROBE = 4096, TRIES = 100 };

/* ---- drafts ---- */

void ruler_draft_free(ruler_draft *d)
{
    mem_free(d->text.s);
    json_decref(d->answers);
    *d = (ruler_draft){0};
}

status ruler_draft_start(ruler_draft *d, err *e)
{
    ruler_draft_free(d);
    d->answers = json_array();
    return d->answers ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status ruler_draft_answer(ruler_draft *d, const char *s, size_t n, err *e)
{
    return json_array_append_new(d->answers, json_stringn(s, n)) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* ---- the size ---- */

status ruler_too_short(const ruler_maker *m, err *e)
{
    if (m->least == 0)
        return err_set(e, ST_USAGE, "--length %lld: no sample of %s in %d tries: %s", (long long)m->s.length,
                       m->task->name, TRIES, m->draft.failed);
    return err_set(e, ST_USAGE,
                   "--length %lld: too short for %s: the shortest prompt has %lld tokens with its new ones",
                   (long long)m->s.length, m->task->name, (long long)m->least);
}

/* A draft of n items, and its tokens; -1: the official code fails. */
static status try_size(ruler_maker *m, ruler_generate *generate, int64_t n, int64_t *tokens, err *e)
{
    *tokens = -1;
    TRY(generate(m, n, e));
    return m->draft.failed ? ST_OK : ruler_count(m->s.counter, m->draft.text.s, m->draft.text.n, tokens, e);
}

status ruler_check_search(const ruler_maker *m, err *e)
{
    if (!m->draft.failed || m->task->family == RULER_CWE) return ST_OK;
    return err_set(e, ST_USAGE, "--seed %llu: RULER's generator fails for %s with %lld tokens: %s",
                   (unsigned long long)m->s.seed, m->task->name, (long long)m->s.length, m->draft.failed);
}

/* The bounds of the search. */
static status find_bounds(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t *high, err *e)
{
    bool cwe = m->task->family == RULER_CWE;
    int64_t probe = cwe ? CWE_PROBE : m->step, tokens;
    TRY(try_size(m, generate, probe, &tokens, e));
    TRY(ruler_check_search(m, e));
    double each = (double)(tokens > 0 ? tokens : 1) / (double)probe, fits = (double)length / each;
    *high = cwe ? (int64_t)fits * 2 : (int64_t)(fits * 3);
    if (*high < 2 * m->step) *high = 2 * m->step;
    return ST_OK;
}

status ruler_find_size(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, err *e)
{
    int64_t low = m->step, high;
    TRY(find_bounds(m, generate, length, &high, e));
    m->size = m->step;
    while (low <= high) {
        int64_t mid = (low + high) / 2, tokens;
        TRY(try_size(m, generate, mid, &tokens, e));
        TRY(ruler_check_search(m, e));
        if (tokens >= 0 && tokens + reserve <= length) {
            m->size = mid;
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    return ST_OK;
}

status ruler_fit(ruler_maker *m, ruler_generate *generate, int64_t length, int64_t reserve, int64_t *tokens, err *e)
{
    /* vt of 2024 keeps its size. */
    const int64_t step = m->s.old && m->task->family == RULER_VT ? 0 : m->step;
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

/* ---- lines ---- */

status ruler_one_line(prompt_text *t, err *e)
{
    grown_text line = {0};
    status st = grown_squeeze(&line, t->s, t->n, true, e);
    mem_free(t->s);
    *t = (prompt_text){line.s, line.n};
    return st;
}
