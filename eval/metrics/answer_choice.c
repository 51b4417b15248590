/* SPDX-License-Identifier: MIT */
/* Letters of multiple choice. Source: evals.md 17.5; amy-77/ParisKV run/test_gpqa.py and run/test_longbench_v2.py,
 * openai/simple-evals common.py, EleutherAI/lm-evaluation-harness gpqa/cot_zeroshot. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"
#include "tokenizer/chars.h"

/* What ParisKV calls early, characters; and near the end. */
enum { EARLY = 200, NEAR_END = 10, LAST_LINES = 10 };

/* ---- text ---- */

static bool is_letter(int32_t c)
{
    return c >= 'A' && c <= 'D';
}

static size_t skip_space(span s, size_t at)
{
    while (at < s.n && is_python_space(s.c[at])) at++;
    return at;
}

/* Behind an ASCII word that stands at `at`; 0: it does not. */
static size_t behind_word(span s, size_t at, const char *word)
{
    size_t n = strlen(word);
    if (at > s.n || s.n - at < n) return 0;
    for (size_t i = 0; i < n; i++)
        if (s.c[at + i] != word[i]) return 0;
    return at + n;
}

/* A to D between no word characters. */
static bool stands_alone(span s, size_t at)
{
    return is_letter(s.c[at]) && !(at > 0 && char_is_word(s.c[at - 1])) && !(at + 1 < s.n && char_is_word(s.c[at + 1]));
}

/* The letter of "(L)" at `at`, and its end; 0: there is none. */
static char in_brackets(span s, size_t at, size_t *end)
{
    if (at >= s.n || s.c[at] != '(') return 0;
    size_t i = skip_space(s, at + 1);
    if (i >= s.n || !is_letter(s.c[i])) return 0;
    *end = skip_space(s, i + 1);
    if (*end >= s.n || s.c[*end] != ')') return 0;
    ++*end;
    return (char)s.c[i];
}

/* ---- ParisKV ---- */

typedef enum { IS_BRACKETS, COLON_BRACKETS, IS_LETTER, COLON_LETTER, PATTERNS } pattern;

/* The letter of a pattern that begins at `at`, and its end; 0: it does not. */
static char match(span s, size_t at, pattern p, size_t *end)
{
    bool colon = p == COLON_BRACKETS || p == COLON_LETTER, brackets = p == IS_BRACKETS || p == COLON_BRACKETS;
    size_t word = behind_word(s, at, "CORRECT"), i = word ? skip_space(s, word) : at;
    if (word && i == word) return 0;
    if (!(word = behind_word(s, i, "ANSWER"))) return 0;
    i = skip_space(s, word);
    if (colon) {
        if (i >= s.n || (s.c[i] != ':' && s.c[i] != 0xff1a)) return 0;
        word = i + 1;
    } else if (i == word || !(word = behind_word(s, i, "IS"))) {
        return 0;
    }
    i = skip_space(s, word);
    if (brackets) return in_brackets(s, i, end);
    *end = i + 1;
    return i < s.n && is_letter(s.c[i]) && (colon || i > word) && !(i + 1 < s.n && char_is_word(s.c[i + 1]))
               ? (char)s.c[i]
               : 0;
}

/* The first match; if that is early and there are late ones, the first of them. */
static char said(span s, pattern p)
{
    char first = 0;
    for (size_t at = 0, end; at < s.n;) {
        char letter = match(s, at, p, &end);
        if (letter && (at >= EARLY || !first)) first = letter;
        if (letter && at >= EARLY) break;
        at = letter ? end : at + 1;
    }
    return first;
}

/* The last "(L)", or the one before it where that stands at the very end. */
static char last_in_brackets(span s)
{
    char last = 0, before = 0;
    size_t end = 0;
    for (size_t at = 0, next; at < s.n; at++) {
        char letter = in_brackets(s, at, &next);
        if (!letter) continue;
        before = last;
        last = letter;
        end = next;
    }
    return before && s.n - end < NEAR_END ? before : last;
}

/* The last ten lines from below: the first "(L)" of a line, else its first letter that stands alone. */
static char last_lines(span s)
{
    size_t end = s.n, next;
    for (int k = 0; k < LAST_LINES; k++) {
        size_t begin = end;
        char bare = 0;
        while (begin > 0 && s.c[begin - 1] != '\n') begin--;
        span line = span_from(s, begin, end);
        for (size_t i = 0; i < line.n; i++) {
            char letter = in_brackets(line, i, &next);
            if (letter) return letter;
            if (!bare && stands_alone(line, i)) bare = (char)line.c[i];
        }
        if (bare || begin == 0) return bare;
        end = begin - 1;
    }
    return 0;
}

/* The last letter that stands alone. single: not one before " SINGLE". */
static char last_alone(span s, bool single)
{
    for (size_t at = s.n; at-- > 0;) {
        if (!stands_alone(s, at)) continue;
        if (!single || !behind_word(s, at + 1, " SINGLE")) return (char)s.c[at];
    }
    return 0;
}

static char choice_pariskv(span s, bool cot)
{
    char letter = 0;
    for (int p = 0; p < PATTERNS && !letter; p++) letter = said(s, (pattern)p);
    if (!letter) letter = last_in_brackets(s);
    if (!letter && cot) letter = last_lines(s);
    if (!letter) letter = last_alone((span){s.c + s.n / 2, s.n - s.n / 2}, false); /* the half is a text of its own */
    return letter ? letter : last_alone(s, true);
}

static status put(str *out, bool *found, char letter, err *e)
{
    *found = letter != 0;
    if (letter) str_set(out, &letter, 1);
    return str_check(out, e);
}

static status extract_pariskv(str *out, bool *found, utf8_text output, bool cot, err *e)
{
    text t = {0}, upper = {0};
    status st = text_decode(&t, output.s, output.n, e);
    if (st == ST_OK) st = text_upper(&upper, text_span(&t), e);
    if (st == ST_OK) st = put(out, found, choice_pariskv(text_span(&upper), cot), e);
    text_free(&t);
    text_free(&upper);
    return st;
}

static status extract_plain(str *out, bool *found, utf8_text output, err *e)
{
    return extract_pariskv(out, found, output, false, e);
}

static status extract_cot(str *out, bool *found, utf8_text output, err *e)
{
    return extract_pariskv(out, found, output, true, e);
}

/* ---- others ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The first "Answer: $L", in any case. */
static status extract_simple_evals(str *out, bool *found, utf8_text s, err *e)
{
    static const char word[] = "answer";
    enum { N = sizeof word - 1 };
    char letter = 0;
    for (size_t at = 0; s.n >= N && at <= s.n - N && !letter; at++) {
        size_t k = 0, i = at + N;
        while (k < N && (s.s[at + k] | 32) == word[k]) k++;
        if (k < N) continue;
        while (i < s.n && is_blank(s.s[i])) i++;
        if (i == s.n || s.s[i] != ':') continue;
        for (i++; i < s.n && is_blank(s.s[i]);) i++;
        if (i < s.n && s.s[i] == '$') i++;
        char c = i < s.n ? (char)(s.s[i] & ~32) : 0;
        if (is_letter(c)) letter = c;
    }
    return put(out, found, letter, e);
}

/* The last "(X)" of any capital, else the last of A to D behind a colon and spaces. */
static status extract_lmeval(str *out, bool *found, utf8_text s, err *e)
{
    char letter = 0;
    for (size_t at = 0; at + 2 < s.n; at++)
        if (s.s[at] == '(' && s.s[at + 1] >= 'A' && s.s[at + 1] <= 'Z' && s.s[at + 2] == ')') letter = s.s[at + 1];
    if (letter) return put(out, found, letter, e);
    for (size_t at = 0; at < s.n; at++) {
        if (s.s[at] != ':') continue;
        utf8_text rest = {s.s + at + 1, s.n - at - 1};
        trim_python(&rest.s, &rest.n);
        if (rest.n && is_letter(*rest.s)) letter = *rest.s;
    }
    return put(out, found, letter, e);
}

/* "B" or "(B)". */
static status same_letter(bool *same, const str *answer, utf8_text label, err *e)
{
    trim_python(&label.s, &label.n);
    if (label.n == 3 && label.s[0] == '(' && label.s[2] == ')') label = (utf8_text){label.s + 1, 1};
    if (label.n != 1 || !is_letter(label.s[0]))
        return err_set(e, ST_FORMAT, "the answer '%.*s' is none of A, B, C, D", label.n < 40 ? (int)label.n : 40,
                       label.s);
    *same = answer->n == 1 && answer->s[0] == label.s[0];
    return ST_OK;
}

const answer_rule answer_gpqa = {.extract = extract_plain, .same = same_letter},
                  answer_gpqa_cot = {.extract = extract_cot, .same = same_letter},
                  answer_gpqa_simple_evals = {.extract = extract_simple_evals, .same = same_letter},
                  answer_gpqa_lmeval = {.extract = extract_lmeval, .same = same_letter};
