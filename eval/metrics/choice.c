/* SPDX-License-Identifier: MIT */
/* Which choice a long response makes, as ParisKV's scripts find it (amy-77/ParisKV, the function
 * extract_answer_from_response; doc/evals.md 7): patterns of regular expressions over the upper-cased text. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "tokenizer/chars.h"

/* EARLY: characters at the start in which a first match may be one of the question. LAST: of the end, in which a last
 * choice in brackets may be cut off. LINES: of the end that count in a chain of thought. */
enum { EARLY = 200, LAST = 10, LINES = 10 };

/* ---- parts of patterns ---- */

static bool take_word(span s, size_t *at, const char *word)
{
    size_t i = *at;
    for (; *word; word++, i++)
        if (i == s.n || s.c[i] != *word) return false;
    *at = i;
    return true;
}

/* White space, at least `least` characters. */
static bool take_space(span s, size_t *at, size_t least)
{
    size_t from = *at;
    while (*at < s.n && is_python_space(s.c[*at])) ++*at;
    return *at - from >= least;
}

static char letter_at(span s, size_t at)
{
    return at < s.n && s.c[at] >= 'A' && s.c[at] <= 'D' ? (char)s.c[at] : 0;
}

static bool is_word_at(span s, size_t at)
{
    return at < s.n && char_is_word(s.c[at]);
}

/* The letter in "(L)". */
static char bracketed(span s, size_t at)
{
    return at + 2 < s.n && s.c[at] == '(' && s.c[at + 2] == ')' ? letter_at(s, at + 1) : 0;
}

/* A letter that is a word by itself. */
static char alone(span s, size_t at)
{
    return (at == 0 || !is_word_at(s, at - 1)) && !is_word_at(s, at + 1) ? letter_at(s, at) : 0;
}

/* ---- "answer is", "answer:" ---- */

/* The letter of a match at *at, which becomes its end: "ANSWER IS", or with a colon, then (L) or L. 0: none. */
static char answer_at(span s, size_t *at, bool colon, bool brackets)
{
    size_t i = *at, before = i;
    if (take_word(s, &i, "CORRECT") && !take_space(s, &i, 1)) i = before;
    if (!take_word(s, &i, "ANSWER")) return 0;
    if (colon) {
        take_space(s, &i, 0);
        if (i == s.n || (s.c[i] != ':' && s.c[i] != 0xff1a)) return 0;
        i++;
        take_space(s, &i, 0);
    } else if (!take_space(s, &i, 1) || !take_word(s, &i, "IS") || !take_space(s, &i, 1)) {
        return 0;
    }
    char letter = brackets ? bracketed(s, i) : is_word_at(s, i + 1) ? 0 : letter_at(s, i);
    if (letter) *at = i + (brackets ? 3 : 1);
    return letter;
}

/* The first match of a pattern; a later one where that one stands among the first characters. 0: there is none. */
static char find_answer(span s, bool colon, bool brackets)
{
    char first = 0;
    for (size_t i = 0; i < s.n; i++) {
        size_t end = i;
        char letter = answer_at(s, &end, colon, brackets);
        if (!letter) continue;
        if (i >= EARLY) return letter;
        if (!first) first = letter;
        i = end - 1;
    }
    return first;
}

/* ---- letters ---- */

/* The last "(L)"; the one before it where the last one stands at the very end. */
static char last_bracketed(span s)
{
    char last = 0, before = 0;
    size_t end = 0;
    for (size_t i = 0; i < s.n; i++) {
        char letter = bracketed(s, i);
        if (!letter) continue;
        before = last;
        last = letter;
        end = i + 3;
    }
    return last && before && s.n - end < LAST ? before : last;
}

static char first_alone(span s)
{
    char letter = 0;
    for (size_t i = 0; i < s.n && !letter; i++) letter = alone(s, i);
    return letter;
}

/* The first letter of the last line, or of one before it, that has one. */
static char last_line_choice(span s)
{
    char letter = 0;
    size_t end, begin;
    s = span_strip(s);
    end = s.n;
    for (int line = 0; line < LINES && !letter; line++) {
        for (begin = end; begin > 0 && s.c[begin - 1] != '\n';) begin--;
        letter = first_alone(span_from(s, begin, end));
        if (begin == 0) break;
        end = begin - 1;
    }
    return letter;
}

/* Whether " SINGLE" stands there, with more behind it. */
static bool before_single(span s, size_t at)
{
    return at + 7 < s.n && take_word(s, &at, " SINGLE");
}

static char last_alone(span s, bool single)
{
    for (size_t i = s.n; i-- > 0;) {
        char letter = alone(s, i);
        if (letter && (single || !before_single(s, i + 1))) return letter;
    }
    return 0;
}

/* ---- the response ---- */

static char choice_in(span s, bool cot)
{
    char letter = 0;
    for (int i = 0; i < 4 && !letter; i++) letter = find_answer(s, i % 2 == 1, i < 2);
    if (!letter) letter = last_bracketed(s);
    if (!letter && cot) letter = last_line_choice(s);
    if (!letter) letter = last_alone(span_from(s, s.n / 2, s.n), true);
    return letter ? letter : last_alone(s, false);
}

status choice_pariskv(char *letter, utf8_text response, bool cot, err *e)
{
    text t, upper = {0};
    *letter = 0;
    TRY(text_decode(&t, response.s, response.n, e));
    status st = text_upper(&upper, text_span(&t), e);
    if (st == ST_OK) *letter = choice_in(text_span(&upper), cot);
    text_free(&t);
    text_free(&upper);
    return st;
}
