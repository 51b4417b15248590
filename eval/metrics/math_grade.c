/* SPDX-License-Identifier: MIT */
/* Whether two answers mean the same: text, then lists, sets, intervals, matrices and equations part by part, then
 * numbers and expressions by their values. Source: evals.md 17.3; made to agree with openai/prm800k grader.py
 * (grade_answer), without a computer algebra system. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/answer.h"

/* Longer answers are compared after Hendrycks' normalization alone; lists of more parts as texts. */
enum { MAX_ANSWER = 4096, MAX_PARTS = 64, MAX_DEPTH = 16 };

static bool same(utf8_text a, utf8_text b, int depth);

static utf8_text trimmed(utf8_text s)
{
    while (s.n && s.s[s.n - 1] == ' ') s.n--;
    while (s.n && *s.s == ' ') s.s++, s.n--;
    return s;
}

static bool begins(utf8_text s, const char *word)
{
    size_t n = strlen(word);
    return s.n >= n && memcmp(s.s, word, n) == 0;
}

static utf8_text rest_of(utf8_text s, size_t from)
{
    return (utf8_text){s.s + from, s.n - from};
}

static bool contains(utf8_text s, const char *word)
{
    return s.n && memmem(s.s, s.n, word, strlen(word)) != NULL;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* ---- the same text ---- */

/* The next character that counts, in lower case; 0: the end. */
static char next_plain(utf8_text s, size_t *at, bool braces)
{
    while (*at < s.n) {
        char c = s.s[*at];
        if (begins(rest_of(s, *at), "text")) *at += 4;
        else if (strchr(" \\\"'", c) || (!braces && (c == '{' || c == '}'))) ++*at;
        else {
            ++*at;
            return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
        }
    }
    return 0;
}

/* Braces say nothing, unless they tell the parts of a fraction or root. */
static bool same_text(utf8_text a, utf8_text b)
{
    size_t i = 0, j = 0;
    bool braces = contains(a, "frac") || contains(b, "frac") || contains(a, "sqrt") || contains(b, "sqrt");
    for (;;) {
        char x = next_plain(a, &i, braces), y = next_plain(b, &j, braces);
        if (x != y) return false;
        if (!x) return true;
    }
}

/* ---- parts ---- */

typedef struct {
    utf8_text part[MAX_PARTS];
    size_t n; /* MAX_PARTS + 1: too many */
} parts;

/* How deep in brackets the text is behind the byte at i. */
static int deeper(utf8_text s, size_t i)
{
    if (strchr("([{", s.s[i]) && s.s[i]) return 1;
    return strchr(")]}", s.s[i]) && s.s[i] ? -1 : 0;
}

/* Splits outside of brackets; a mark that is a command must end there. */
static void split(parts *out, utf8_text s, const char *mark)
{
    size_t n = strlen(mark), from = 0;
    int depth = 0;
    out->n = 0;
    for (size_t i = 0; i <= s.n; i++) {
        bool end = i == s.n, hit = !end && depth == 0 && begins(rest_of(s, i), mark) &&
                                   !(is_letter(mark[n - 1]) && i + n < s.n && is_letter(s.s[i + n]));
        if (!end) depth += deeper(s, i);
        if (!end && !hit) continue;
        if (out->n == MAX_PARTS) {
            out->n = MAX_PARTS + 1;
            return;
        }
        out->part[out->n++] = trimmed((utf8_text){s.s + from, i - from});
        from = i + n;
        if (hit) i += n - 1;
    }
}

static bool same_parts(const parts *a, const parts *b, int depth)
{
    if (a->n != b->n || a->n > MAX_PARTS) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same(a->part[i], b->part[i], depth)) return false;
    return true;
}

static bool same_set(const parts *a, const parts *b, int depth)
{
    bool used[MAX_PARTS] = {false};
    if (a->n != b->n || a->n > MAX_PARTS) return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t k = 0;
        while (k < b->n && (used[k] || !same(a->part[i], b->part[k], depth))) k++;
        if (k == b->n) return false;
        used[k] = true;
    }
    return true;
}

/* ---- brackets ---- */

/* Bytes of the bracket that opens, or closes, the text; 0: none. */
static size_t opening(utf8_text s)
{
    if (begins(s, "\\{")) return 2;
    if (begins(s, "\\langle")) return 7;
    return begins(s, "(") || begins(s, "[");
}

static size_t closing(utf8_text s)
{
    if (s.n >= 2 && begins(rest_of(s, s.n - 2), "\\}")) return 2;
    if (s.n >= 7 && begins(rest_of(s, s.n - 7), "\\rangle")) return 7;
    return s.n && (s.s[s.n - 1] == ')' || s.s[s.n - 1] == ']');
}

/* The parts of a list in brackets; false: it is none. */
static bool is_list(parts *out, utf8_text s, size_t *open, size_t *close)
{
    *open = opening(s);
    *close = closing(s);
    if (!*open || !*close || s.n < *open + *close) return false;
    int depth = 0;
    utf8_text inner = {s.s + *open, s.n - *open - *close};
    for (size_t i = 0; i < inner.n; i++)
        if ((depth += deeper(inner, i)) < 0) return false;
    split(out, inner, ",");
    return out->n > 1 || *open == 2;
}

static bool same_lists(utf8_text a, const parts *x, utf8_text b, const parts *y, const size_t open[2],
                       const size_t close[2], int depth)
{
    bool brackets = open[0] == open[1] && close[0] == close[1] && memcmp(a.s, b.s, open[0]) == 0 &&
                    memcmp(a.s + a.n - close[0], b.s + b.n - close[0], close[0]) == 0;
    if (!brackets) return false;
    return open[0] == 2 ? same_set(x, y, depth) : same_parts(x, y, depth);
}

/* ---- matrices ---- */

/* What stands between \begin{name} and \end{name}, where that is the whole and name ends in "matrix" or is "array". */
static bool is_matrix(utf8_text *out, utf8_text s)
{
    const char *brace = begins(s, "\\begin{") ? memchr(s.s, '}', s.n) : NULL;
    if (!brace) return false;
    utf8_text name = {s.s + 7, (size_t)(brace - s.s) - 7};
    bool known = (name.n >= 6 && memcmp(name.s + name.n - 6, "matrix", 6) == 0) ||
                 (name.n == 5 && memcmp(name.s, "array", 5) == 0);
    size_t head = name.n + 8, tail = name.n + 6;
    if (!known || s.n < head + tail) return false;
    utf8_text end = rest_of(s, s.n - tail);
    if (!begins(end, "\\end{") || memcmp(end.s + 5, name.s, name.n) != 0 || end.s[tail - 1] != '}') return false;
    *out = trimmed((utf8_text){s.s + head, s.n - head - tail});
    if (name.n == 5 && begins(*out, "{") && (brace = memchr(out->s, '}', out->n)))
        *out = rest_of(*out, (size_t)(brace - out->s) + 1);
    return true;
}

static bool same_matrices(utf8_text a, utf8_text b, int depth)
{
    parts x, y, row, other;
    split(&x, a, "\\\\");
    split(&y, b, "\\\\");
    if (x.n > 1 && x.n <= MAX_PARTS && x.part[x.n - 1].n == 0) x.n--; /* a row's end behind the last one */
    if (y.n > 1 && y.n <= MAX_PARTS && y.part[y.n - 1].n == 0) y.n--;
    if (x.n != y.n || x.n > MAX_PARTS) return false;
    for (size_t i = 0; i < x.n; i++) {
        split(&row, x.part[i], "&");
        split(&other, y.part[i], "&");
        if (!same_parts(&row, &other, depth)) return false;
    }
    return true;
}

/* ---- values ---- */

static bool near(const double a[2], const double b[2])
{
    double x = hypot(a[0], a[1]), y = hypot(b[0], b[1]), scale = fmax(1, fmax(x, y));
    return hypot(a[0] - b[0], a[1] - b[1]) <= 1e-9 * scale;
}

/* The difference of both sides of an equation. */
static bool side_value(double out[2], const parts *sides, int round)
{
    double right[2];
    if (!math_value(out, sides->part[0].s, sides->part[0].n, round) ||
        !math_value(right, sides->part[1].s, sides->part[1].n, round))
        return false;
    out[0] -= right[0];
    out[1] -= right[1];
    return true;
}

/* Up to the sign. */
static bool same_equations(const parts *a, const parts *b)
{
    bool plus = true, minus = true;
    for (int k = 0; k < MATH_ROUNDS; k++) {
        double x[2], y[2];
        if (!side_value(x, a, k) || !side_value(y, b, k)) return false;
        plus &= near(x, y);
        y[0] = -y[0];
        y[1] = -y[1];
        minus &= near(x, y);
    }
    return plus || minus;
}

static bool same_values(utf8_text a, utf8_text b)
{
    for (int k = 0; k < MATH_ROUNDS; k++) {
        double x[2], y[2];
        if (!math_value(x, a.s, a.n, k) || !math_value(y, b.s, b.n, k) || !near(x, y)) return false;
    }
    return true;
}

/* ---- numbers ---- */

/* A number as its digits, without sign and zeros in front. */
typedef struct {
    char digits[MAX_ANSWER + 1];
    bool negative;
} integer;

/* -?\d+, of which all behind the point is 0; spaces anywhere. *end: where it stopped. */
static bool read_integer(integer *out, utf8_text s, size_t *end, bool point)
{
    size_t i = 0, n = 0, digits = 0;
    while (i < s.n && s.s[i] == ' ') i++;
    out->negative = i < s.n && s.s[i] == '-';
    i += i < s.n && (s.s[i] == '-' || s.s[i] == '+');
    for (; i < s.n && ((s.s[i] >= '0' && s.s[i] <= '9') || s.s[i] == ' '); i++) {
        if (s.s[i] == ' ') continue;
        digits++;
        if (n > 0 || s.s[i] != '0') out->digits[n++] = s.s[i];
    }
    if (point && digits && i < s.n && s.s[i] == '.')
        for (i++; i < s.n && s.s[i] == '0';) i++;
    out->digits[n] = 0;
    out->negative &= n > 0;
    *end = i;
    return digits > 0;
}

static bool is_integer(integer *out, utf8_text s)
{
    size_t end;
    return read_integer(out, s, &end, true) && end == s.n;
}

static bool equal_integers(const integer *a, const integer *b)
{
    return a->negative == b->negative && strcmp(a->digits, b->digits) == 0;
}

/* One argument of \frac at *at: a digit or {...}; *at goes behind it. */
static bool read_part(integer *out, utf8_text s, size_t *at)
{
    size_t end;
    while (*at < s.n && s.s[*at] == ' ') ++*at;
    if (*at == s.n) return false;
    if (s.s[*at] != '{') return read_integer(out, (utf8_text){s.s + (*at)++, 1}, &end, false) && end == 1;
    const char *brace = memchr(s.s + *at, '}', s.n - *at);
    if (!brace) return false;
    utf8_text inner = {s.s + *at + 1, (size_t)(brace - s.s) - *at - 1};
    *at = (size_t)(brace - s.s) + 1;
    return read_integer(out, inner, &end, false) && end == inner.n;
}

/* a/b or \frac{a}{b} of whole numbers; the sign goes to the numerator. */
static bool is_fraction(integer *a, integer *b, utf8_text s)
{
    size_t at = 0, end;
    bool negative = begins(s, "-");
    if (negative) s = trimmed(rest_of(s, 1));
    if (begins(s, "\\frac")) {
        at = 5;
        if (!read_part(a, s, &at) || !read_part(b, s, &at) || at != s.n) return false;
    } else {
        if (!read_integer(a, s, &at, false) || at == s.n || s.s[at] != '/') return false;
        utf8_text below = rest_of(s, at + 1);
        if (!read_integer(b, below, &end, false) || end != below.n) return false;
    }
    a->negative = (a->negative != negative) && a->digits[0];
    return b->digits[0] && !b->negative;
}

/* Without brackets around the whole, unless they hold a list. */
static utf8_text bare(utf8_text s)
{
    while (s.n >= 2 && ((*s.s == '(' && s.s[s.n - 1] == ')') || (*s.s == '[' && s.s[s.n - 1] == ']'))) {
        int depth = 0;
        for (size_t i = 1; i + 1 < s.n; i++) {
            depth += deeper(s, i);
            if (depth < 0 || (depth == 0 && s.s[i] == ',')) return s;
        }
        s = trimmed((utf8_text){s.s + 1, s.n - 2});
    }
    return s;
}

static bool same_items(utf8_text a, utf8_text b)
{
    integer x, y, z, w;
    a = bare(a);
    b = bare(b);
    if (same_text(a, b)) return true;
    bool whole = is_integer(&x, a), other = is_integer(&y, b);
    if (whole && other) return equal_integers(&x, &y);
    if (is_fraction(&x, &z, a) && is_fraction(&y, &w, b)) return equal_integers(&x, &y) && equal_integers(&z, &w);
    return whole == other && same_values(a, b);
}

/* ---- the whole ---- */

static bool same_structures(utf8_text a, utf8_text b, int depth, bool *decided)
{
    parts x, y;
    size_t open[2], close[2];
    utf8_text m, o;
    *decided = true;
    split(&x, a, "\\cup");
    split(&y, b, "\\cup");
    if (x.n > 1 || y.n > 1) return same_parts(&x, &y, depth);
    if (is_matrix(&m, a) && is_matrix(&o, b)) return same_matrices(m, o, depth);
    bool list = is_list(&x, a, &open[0], &close[0]), other = is_list(&y, b, &open[1], &close[1]);
    if (list && other) return same_lists(a, &x, b, &y, open, close, depth);
    if (list && open[0] == 2) return same((utf8_text){a.s + 2, a.n - 2 - close[0]}, b, depth);
    if (other && open[1] == 2) return same(a, (utf8_text){b.s + 2, b.n - 2 - close[1]}, depth);
    split(&x, a, ",");
    split(&y, b, ",");
    if (x.n > 1 || y.n > 1) return same_parts(&x, &y, depth);
    split(&x, a, "=");
    split(&y, b, "=");
    if (x.n == 2 && y.n == 2) return same_equations(&x, &y);
    *decided = false;
    return false;
}

static bool same(utf8_text a, utf8_text b, int depth)
{
    bool decided;
    if (same_text(a, b)) return true;
    if (depth == MAX_DEPTH || a.n == 0 || b.n == 0) return false;
    bool equal = same_structures(a, b, depth + 1, &decided);
    return decided ? equal : same_items(a, b);
}

/* Whether they are the same once both are cleaned. */
static status same_cleaned(bool *equal, utf8_text a, utf8_text b, bool keep, err *e)
{
    str x = {0}, y = {0};
    str_set(&x, a.s, a.n);
    str_set(&y, b.s, b.n);
    math_clean(&x, keep);
    math_clean(&y, keep);
    status st = str_check(&x, e);
    if (st == ST_OK) st = str_check(&y, e);
    if (st == ST_OK && x.n > 0 && x.n <= MAX_ANSWER && y.n <= MAX_ANSWER)
        *equal = same((utf8_text){x.s, x.n}, (utf8_text){y.s, y.n}, 0);
    str_free(&x);
    str_free(&y);
    return st;
}

status math_same(bool *equal, utf8_text a, utf8_text b, err *e)
{
    TRY(math_same_hendrycks(equal, a, b, false, e));
    if (*equal || a.n > MAX_ANSWER || b.n > MAX_ANSWER) return ST_OK;
    TRY(same_cleaned(equal, a, b, true, e));
    return *equal ? ST_OK : same_cleaned(equal, a, b, false, e);
}
