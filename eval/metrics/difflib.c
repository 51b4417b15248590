/* SPDX-License-Identifier: MIT */
/* Scores with the ratio of Python's difflib.SequenceMatcher, including its rule for popular characters. It is not an
 * edit distance. Used for lines of code (fuzzywuzzy's ratio, doc/evals.md 2.7) and MRCR (2.10; the data card of
 * openai/mrcr, and google-deepmind/eval_hub for version 2). Source: CPython Lib/difflib.py. */
#include "config.h"

#include "eval/metrics/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { MOST = 1 << 16 }; /* characters; difflib's time grows at least with the square of the length */

typedef struct {
    size_t a_begin, a_end, b_begin, b_end;
} window;

typedef struct {
    size_t a, b, n;
} match;

typedef struct {
    int32_t *c;
    size_t n;
} characters;

typedef struct {
    characters a, b;
    size_t *place;     /* positions of b's characters, sorted by character, then ascending */
    size_t *first, *n; /* per position in a: part of `place` with its character; empty for popular characters */
    size_t *
        length[2]; /* per position in b + 1: length of the match that ends there, for two neighbouring positions in a */
    window *pending; /* ranges to be matched */
    size_t n_pending, cap;
} matcher;

typedef struct {
    int32_t c;
    size_t at;
} placed_char;

static int by_char(const void *x, const void *y)
{
    const placed_char *a = x, *b = y;
    if (a->c != b->c) return a->c < b->c ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Returns the index of the first element of `order` whose character is at least c. */
static size_t lower_bound(const placed_char *order, size_t n, int32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (order[mid].c < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Finds the positions in b of each character of a. If b has at least 200 characters, those that make up more than 1 %
 * of it are popular and ignored. */
static status index_characters(matcher *m, err *e)
{
    placed_char *order;
    size_t most = m->b.n >= 200 ? m->b.n / 100 + 1 : m->b.n;
    TRY(MEM_NEW(&order, m->b.n, e));
    for (size_t i = 0; i < m->b.n; i++) order[i] = (placed_char){m->b.c[i], i};
    qsort(order, m->b.n, sizeof *order, by_char);
    for (size_t i = 0; i < m->b.n; i++) m->place[i] = order[i].at;
    for (size_t i = 0; i < m->a.n; i++) {
        m->first[i] = lower_bound(order, m->b.n, m->a.c[i]);
        size_t n = lower_bound(order, m->b.n, m->a.c[i] + 1) - m->first[i];
        m->n[i] = n > most ? 0 : n;
    }
    mem_free(order);
    return ST_OK;
}

/* Finds the longest match of indexed characters, the first in a, then in b. Extends it in both directions while the
 * characters are equal. */
static match longest_match(matcher *m, window w)
{
    match best = {w.a_begin, w.b_begin, 0};
    for (size_t i = w.a_begin; i < w.a_end; i++) {
        const size_t *p = m->place + m->first[i];
        size_t *cur = m->length[i & 1], *last = m->length[~i & 1];
        for (size_t k = 0; k < m->n[i] && p[k] < w.b_end; k++) {
            if (p[k] < w.b_begin) continue;
            size_t length = cur[p[k] + 1] = last[p[k]] + 1;
            if (length > best.n) best = (match){i + 1 - length, p[k] + 1 - length, length};
        }
        for (size_t k = 0; i > w.a_begin && k < m->n[i - 1]; k++) last[m->place[m->first[i - 1] + k] + 1] = 0;
    }
    size_t end = w.a_end - 1;
    for (size_t k = 0; k < m->n[end]; k++) m->length[end & 1][m->place[m->first[end] + k] + 1] = 0;
    while (best.a > w.a_begin && best.b > w.b_begin && m->a.c[best.a - 1] == m->b.c[best.b - 1]) {
        best.a--;
        best.b--;
        best.n++;
    }
    while (best.a + best.n < w.a_end && best.b + best.n < w.b_end && m->a.c[best.a + best.n] == m->b.c[best.b + best.n])
        best.n++;
    return best;
}

static status push_window(matcher *m, window w, err *e)
{
    if (w.a_begin == w.a_end || w.b_begin == w.b_end) return ST_OK;
    TRY(MEM_ROOM(&m->pending, &m->cap, m->n_pending + 1, e));
    m->pending[m->n_pending++] = w;
    return ST_OK;
}

/* Counts the characters in matching blocks: the longest block, and recursively those on both sides of it. */
static status count_matches(matcher *m, size_t *n, err *e)
{
    TRY(push_window(m, (window){0, m->a.n, 0, m->b.n}, e));
    while (m->n_pending) {
        window w = m->pending[--m->n_pending];
        match best = longest_match(m, w);
        if (best.n == 0) continue;
        *n += best.n;
        TRY(push_window(m, (window){w.a_begin, best.a, w.b_begin, best.b}, e));
        TRY(push_window(m, (window){best.a + best.n, w.a_end, best.b + best.n, w.b_end}, e));
    }
    return ST_OK;
}

static status decode(characters *out, utf8_text s, err *e)
{
    *out = (characters){0};
    TRY(MEM_NEW(&out->c, s.n, e));
    while (text_next(&s, &out->c[out->n])) out->n++;
    return ST_OK;
}

static status match_characters(matcher *m, const char *what, double *out, err *e)
{
    size_t n = 0;
    if (m->a.n > MOST || m->b.n > MOST)
        return err_set(e, ST_UNSUPPORTED, "%s of %zu and %zu characters exceed the limit of %d", what, m->a.n, m->b.n,
                       MOST);
    TRY(MEM_NEW(&m->place, m->b.n, e));
    TRY(MEM_NEW(&m->first, m->a.n, e));
    TRY(MEM_NEW(&m->n, m->a.n, e));
    TRY(MEM_NEW(&m->length[0], m->b.n + 1, e));
    TRY(MEM_NEW(&m->length[1], m->b.n + 1, e));
    TRY(index_characters(m, e));
    TRY(count_matches(m, &n, e));
    *out = 2.0 * (double)n / (double)(m->a.n + m->b.n);
    return ST_OK;
}

/* SequenceMatcher(None, a, b).ratio() in 0..1. It is not symmetric. what: name of the texts in errors. */
static status difflib_ratio(utf8_text a, utf8_text b, const char *what, double *out, err *e)
{
    matcher m = {0};
    *out = text_equal(a, b);
    if (*out != 0 || a.n == 0 || b.n == 0) return ST_OK;
    status st = decode(&m.a, a, e);
    if (st == ST_OK) st = decode(&m.b, b, e);
    if (st == ST_OK) st = match_characters(&m, what, out, e);
    void *const owned[] = {m.a.c, m.b.c, m.place, m.first, m.n, m.length[0], m.length[1], m.pending};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) mem_free(owned[i]);
    return st;
}

/* ---- code ---- */

/* Returns the first line without a comment or Markdown mark; empty if there is none. */
static utf8_text first_code_line(utf8_text s)
{
    size_t i = 0, end;
    while (i < s.n && s.s[i] == '\n') i++;
    for (; i <= s.n; i = end + 1) {
        end = text_find(s, i, utf8_of("\n"));
        utf8_text line = text_from(s, i, end < s.n ? end : s.n);
        if (!memchr(line.s, '`', line.n) && !memchr(line.s, '#', line.n) && !text_contains(line, utf8_of("//")))
            return line;
    }
    return text_from(s, s.n, s.n);
}

status score_code_sim(const metric_pair *p, double *score, err *e)
{
    TRY(difflib_ratio(first_code_line(p->prediction), p->answer, "code_sim: lines", score, e));
    *score = rint(100 * *score) / 100; /* half to even, as Python's round */
    return ST_OK;
}

/* ---- MRCR: similarity of the answers after the required prefix ---- */

enum { PREFIX = 10, PREFIX_V2 = 12 }; /* characters of the prefix, if the data does not give it */

/* Returns the prefix of answers: that of the record, else the second answer, else the first characters of the
 * answer. */
static utf8_text prefix_of(const metric_pair *p)
{
    if (p->n_classes == 1) return p->classes[0];
    return p->n_answers > 1 ? p->answers[1] : text_first(p->answers[0], PREFIX);
}

status score_mrcr(const metric_pair *p, double *score, err *e)
{
    utf8_text prefix = prefix_of(p), said = p->prediction, want = p->answers[0];
    if (!text_starts(said, prefix)) return ST_OK;
    if (text_starts(want, prefix)) want = text_from(want, prefix.n, want.n);
    return difflib_ratio(text_from(said, prefix.n, said.n), want, "mrcr: texts", score, e);
}

status score_mrcr_v2(const metric_pair *p, double *score, err *e)
{
    utf8_text want = text_strip(p->answer), said = p->prediction, prefix = text_first(want, PREFIX_V2);
    if (prefix.n == 0) return err_set(e, ST_FORMAT, "mrcr_v2: the answer is empty");
    size_t at = text_find_last(said, prefix);
    if (at > said.n) return ST_OK;
    said = text_strip(text_from(said, at + prefix.n, said.n));
    want = text_strip(text_from(want, prefix.n, want.n));
    return difflib_ratio(want, said, "mrcr_v2: texts", score, e);
}
