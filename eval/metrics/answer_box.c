/* SPDX-License-Identifier: MIT */
/* Answers of MATH and AIME. Source: evals.md 17.3 and 17.4; hendrycks/math, EleutherAI/lm-evaluation-harness
 * hendrycks_math500 and aime, NVIDIA/kvpress, amy-77/ParisKV run/test_aime2025.py. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"
#include "tokenizer/chars.h"

/* Bytes of an answer without a box. */
enum { MOST_BARE = 256 };

/* ---- text ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static size_t skip_spaces(utf8_text s, size_t at)
{
    while (at < s.n && is_space(s.s[at])) at++;
    return at;
}

static const char *find(utf8_text s, size_t from, const char *word)
{
    return from < s.n ? memmem(s.s + from, s.n - from, word, strlen(word)) : NULL;
}

/* Where `word` stands last; s.n: nowhere. */
static size_t find_last(utf8_text s, const char *word)
{
    size_t n = strlen(word);
    for (size_t at = s.n; at-- > 0;)
        if (s.n - at >= n && memcmp(s.s + at, word, n) == 0) return at;
    return s.n;
}

/* From the bracket at `at` to the one that closes it. */
static bool braced(utf8_text *out, utf8_text s, size_t at)
{
    size_t open = 0;
    for (size_t i = at; i < s.n; i++) {
        open += s.s[i] == '{';
        if (s.s[i] == '}' && --open == 0) {
            *out = (utf8_text){s.s + at + 1, i - at - 1};
            return true;
        }
    }
    return false;
}

/* Between the first and the last `$`; the whole without two of them. */
static utf8_text between_dollars(utf8_text s)
{
    const char *first = find(s, 0, "$");
    size_t last = find_last(s, "$"), from = first ? (size_t)(first - s.s) + 1 : 0;
    return first && last >= from ? (utf8_text){s.s + from, last - from} : s;
}

static status give(str *out, bool *found, utf8_text answer, err *e)
{
    *found = true;
    str_set(out, answer.s, answer.n);
    return str_check(out, e);
}

/* ---- boxes ---- */

bool answer_box(utf8_text *out, utf8_text s)
{
    size_t at = find_last(s, "\\boxed"), n = strlen("\\boxed");
    if (at == s.n) {
        at = find_last(s, "\\fbox");
        n = strlen("\\fbox");
    }
    if (at == s.n) return false;
    at = skip_spaces(s, at + n);
    return at < s.n && s.s[at] == '{' && braced(out, s, at);
}

/* The same, where `\boxed ` with a space means what follows up to a `$`. */
static bool lmeval_box(utf8_text *out, utf8_text s)
{
    size_t at = find_last(s, "\\boxed ");
    if (at == s.n) return answer_box(out, s);
    at += strlen("\\boxed ");
    const char *end = find(s, at, "$");
    *out = (utf8_text){s.s + at, (end ? (size_t)(end - s.s) : s.n) - at};
    return true;
}

/* From behind "boxed{" at `at` to the next brace that closes. */
static utf8_text cut_box(utf8_text s, size_t at)
{
    at += strlen("boxed{");
    const char *end = find(s, at, "}");
    return (utf8_text){s.s + at, (end ? (size_t)(end - s.s) : s.n) - at};
}

/* The last box; a short text without any is an answer itself. */
static status extract_box(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = s;
    if (find(s, 0, "\\boxed") || find(s, 0, "\\fbox")) {
        *found = answer_box(&a, s);
        return *found ? give(out, found, a, e) : ST_OK;
    }
    trim_python(&a.s, &a.n);
    *found = a.n > 0 && a.n <= MOST_BARE && !find(a, 0, "\n\n");
    return *found ? give(out, found, a, e) : ST_OK;
}

static status extract_dollars(str *out, bool *found, utf8_text s, err *e)
{
    return give(out, found, between_dollars(s), e);
}

static status extract_first_cut(str *out, bool *found, utf8_text s, err *e)
{
    const char *box = find(s, 0, "boxed{");
    return give(out, found, box ? cut_box(s, (size_t)(box - s.s)) : s, e);
}

static status extract_last_cut(str *out, bool *found, utf8_text s, err *e)
{
    size_t box = find_last(s, "boxed{");
    return give(out, found, box < s.n ? cut_box(s, box) : s, e);
}

static status extract_lmeval(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a;
    return give(out, found, lmeval_box(&a, s) ? a : between_dollars(s), e);
}

/* ---- whole numbers ---- */

/* Sign and digits at `at`; their end, or `at`: none. */
static size_t integer_end(utf8_text s, size_t at)
{
    size_t first = at + (at < s.n && s.s[at] == '-'), end = first;
    while (end < s.n && is_digit(s.s[end])) end++;
    return end > first ? end : at;
}

/* Without zeros in front. */
static void put_integer(str *out, const char *s, size_t n)
{
    bool negative = n && s[0] == '-';
    s += negative;
    n -= negative;
    while (n > 1 && *s == '0') s++, n--;
    out->n = 0;
    if (negative && !(n == 1 && *s == '0')) str_add(out, "-", 1);
    str_add(out, s, n);
}

/* -?\d+ or -?\d+.0... */
static bool is_whole(str *out, const char *s, size_t n)
{
    size_t end = integer_end((utf8_text){s, n}, 0), rest = end;
    if (end == 0) return false;
    if (rest < n && s[rest] == '.' && rest + 1 < n)
        for (rest++; rest < n && s[rest] == '0';) rest++;
    if (rest == n) put_integer(out, s, end);
    return rest == n;
}

/* The contents of a box, without white space, `$` and `,`. */
static bool is_whole_box(str *out, utf8_text box, err *e, status *st)
{
    str t = {0}, number = {0};
    for (size_t i = 0; i < box.n; i++)
        if (!is_space(box.s[i]) && box.s[i] != '$' && box.s[i] != ',') str_add(&t, box.s + i, 1);
    bool whole = t.n > 0 && is_whole(&number, t.s, t.n);
    *st = str_check(&t, e);
    if (*st == ST_OK) *st = str_check(&number, e);
    if (whole && *st == ST_OK) str_set(out, number.s, number.n);
    str_free(&t);
    str_free(&number);
    return whole;
}

/* Bytes of a box that may hold a whole number. */
enum { MOST_BOX = 4096 };

/* The last box that holds a whole number. */
static bool last_whole_box(str *out, utf8_text s, err *e, status *st)
{
    utf8_text box;
    *st = ST_OK;
    for (size_t n = s.n, at; n > 0 && *st == ST_OK; n = at) {
        at = find_last((utf8_text){s.s, n}, "\\boxed{");
        if (at == n) break;
        utf8_text near = {s.s, s.n - at < MOST_BOX ? s.n : at + MOST_BOX};
        if (braced(&box, near, at + strlen("\\boxed")) && is_whole_box(out, box, e, st)) return true;
    }
    return false;
}

/* Whether s at `at` begins with a word of small letters, in any case. */
static bool has_word(utf8_text s, size_t at, const char *word)
{
    size_t n = strlen(word);
    if (s.n - at < n) return false;
    for (size_t i = 0; i < n; i++)
        if ((s.s[at + i] | 32) != word[i]) return false;
    return true;
}

/* The last S = 7, total = 7 and the like. */
static bool last_sum(str *out, utf8_text s)
{
    static const char *const words[] = {"s", "sum", "total", "answer", "result"};
    bool found = false;
    for (size_t at = 0; at < s.n; at++)
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
            if (!has_word(s, at, words[k])) continue;
            size_t i = skip_spaces(s, at + strlen(words[k]));
            if (i == s.n || s.s[i] != '=') continue;
            i = skip_spaces(s, i + 1);
            size_t end = integer_end(s, i);
            if (end == i) continue;
            put_integer(out, s.s + i, end - i);
            found = true;
        }
    return found;
}

/* The first "the answer is: 7". */
static bool first_said(str *out, utf8_text s)
{
    for (size_t at = 0; at < s.n; at++) {
        if (!has_word(s, at, "the")) continue;
        size_t word = skip_spaces(s, at + 3), n = 0, i;
        if (word > at + 3 && word < s.n) n = has_word(s, word, "answer") ? 6 : has_word(s, word, "solution") ? 8 : 0;
        i = skip_spaces(s, word + n);
        if (n == 0 || i == word + n || i == s.n || !has_word(s, i, "is")) continue;
        size_t from = i + 2, end;
        for (i = from; i < s.n && (is_space(s.s[i]) || s.s[i] == ':');) i++;
        end = integer_end(s, i);
        if (i == from || end == i) continue;
        put_integer(out, s.s + i, end - i);
        return true;
    }
    return false;
}

/* The last "= 7 ." */
static bool last_equation(str *out, utf8_text s)
{
    bool found = false;
    for (size_t at = 0; at < s.n; at++) {
        if (s.s[at] != '=') continue;
        size_t i = skip_spaces(s, at + 1), end = integer_end(s, i), dot = skip_spaces(s, end);
        if (end == i || dot == s.n || s.s[dot] != '.') continue;
        put_integer(out, s.s + i, end - i);
        found = true;
    }
    return found;
}

static bool last_line(str *out, utf8_text s)
{
    trim_python(&s.s, &s.n);
    size_t from = find_last(s, "\n");
    utf8_text line = from < s.n ? (utf8_text){s.s + from + 1, s.n - from - 1} : s;
    trim_python(&line.s, &line.n);
    if (line.n == 0 || integer_end(line, 0) != line.n) return false;
    put_integer(out, line.s, line.n);
    return true;
}

static status extract_aime(str *out, bool *found, utf8_text s, err *e)
{
    status st;
    *found = last_whole_box(out, s, e, &st);
    TRY(st);
    if (!*found) *found = last_sum(out, s) || first_said(out, s) || last_equation(out, s) || last_line(out, s);
    return str_check(out, e);
}

/* ---- whether it is right ---- */

static status same_math(bool *same, const str *answer, utf8_text label, err *e)
{
    return math_same(same, (utf8_text){answer->s, answer->n}, label, e);
}

static status same_hendrycks(bool *same, const str *answer, utf8_text label, err *e)
{
    return math_same_hendrycks(same, (utf8_text){answer->s, answer->n}, label, false, e);
}

static status same_lmeval(bool *same, const str *answer, utf8_text label, err *e)
{
    return math_same_hendrycks(same, (utf8_text){answer->s, answer->n}, label, true, e);
}

static status same_text(bool *same, const str *answer, utf8_text label, err *e)
{
    (void)e;
    *same = answer->n == label.n && (label.n == 0 || memcmp(answer->s, label.s, label.n) == 0);
    return ST_OK;
}

/* The label may have zeros in front: "025". */
static status same_integer(bool *same, const str *answer, utf8_text label, err *e)
{
    str b = {0};
    trim_python(&label.s, &label.n);
    if (label.n == 0 || integer_end(label, 0) != label.n)
        return err_set(e, ST_FORMAT, "the answer '%.*s' is no whole number", label.n < 40 ? (int)label.n : 40, label.s);
    put_integer(&b, label.s, label.n);
    status st = str_check(&b, e);
    *same = st == ST_OK && answer->n == b.n && memcmp(answer->s, b.s, b.n) == 0;
    str_free(&b);
    return st;
}

const answer_rule answer_math = {extract_box, same_math}, answer_math_hendrycks = {extract_box, same_hendrycks},
                  answer_math_lmeval = {extract_dollars, same_lmeval},
                  answer_math_kvpress = {extract_first_cut, same_text}, answer_aime = {extract_aime, same_integer},
                  answer_aime_lmeval = {extract_lmeval, same_lmeval},
                  answer_aime_kvpress = {extract_last_cut, same_text};
