/* SPDX-License-Identifier: MIT */
/* The value of an expression in LaTeX: sums, products with and without signs, mixed numbers, fractions, roots, powers,
 * factorials, absolute values, elementary functions. Variables get fixed values, so that two expressions which agree
 * in several rounds are the same but for coincidence. Source: evals.md 17.3. */
#include "config.h"

#include <complex.h>
#include <math.h>
#include <string.h>

#include "eval/metrics/answer.h"
#include "kernels/base/rng.h"

enum { MAX_DEPTH = 48, MAX_FACTORIAL = 170 };

typedef double complex value;

typedef struct {
    const char *s;
    size_t n, at;
    int round, depth;
    int bars;  /* that are open */
    bool fail; /* whatever comes out is no value */
} parser;

static value sum(parser *p);
static value power(parser *p);

/* ---- characters ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static value fail(parser *p)
{
    p->fail = true;
    p->at = p->n; /* nothing more is read */
    return 0;
}

static char peek(parser *p)
{
    while (p->at < p->n && p->s[p->at] == ' ') p->at++;
    return p->at < p->n ? p->s[p->at] : 0;
}

static bool take(parser *p, char c)
{
    if (peek(p) != c) return false;
    p->at++;
    return true;
}

/* Letters from `at` on. */
static size_t letters(const parser *p, size_t at)
{
    size_t end = at;
    while (end < p->n && is_letter(p->s[end])) end++;
    return end - at;
}

/* Whether n bytes are the word. */
static bool is_word(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

static bool at_command(parser *p, const char *name)
{
    return peek(p) == '\\' && is_word(p->s + p->at + 1, letters(p, p->at + 1), name);
}

static bool take_command(parser *p, const char *name)
{
    if (!at_command(p, name)) return false;
    p->at += 1 + strlen(name);
    return true;
}

/* ---- functions ---- */

static value cot(value x)
{
    return 1 / ctan(x);
}

static value sec(value x)
{
    return 1 / ccos(x);
}

static value csc(value x)
{
    return 1 / csin(x);
}

/* Of real numbers without the sign that an imaginary zero may have: it would choose the side of the cut. */
static value root(value x)
{
    if (cimag(x) != 0) return csqrt(x);
    return creal(x) >= 0 ? sqrt(creal(x)) : (value)I * sqrt(-creal(x));
}

static value logarithm(value x)
{
    if (cimag(x) != 0) return clog(x);
    return creal(x) > 0 ? log(creal(x)) : log(-creal(x)) + (value)I * M_PI;
}

static const struct {
    const char *name;
    value (*f)(value);
} functions[] = {{"sin", csin},   {"cos", ccos},     {"tan", ctan},      {"cot", cot},      {"sec", sec},
                 {"csc", csc},    {"arcsin", casin}, {"arccos", cacos},  {"arctan", catan}, {"sinh", csinh},
                 {"cosh", ccosh}, {"tanh", ctanh},   {"log", logarithm}, {"ln", logarithm}, {"exp", cexp}};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

/* The function whose name stands here, as a command or a bare word; N_FUNCTIONS: none. *n: bytes of the name. */
static size_t function_here(parser *p, size_t *n)
{
    bool is_command = peek(p) == '\\';
    size_t from = p->at + is_command, i = 0;
    *n = letters(p, from);
    while (i < N_FUNCTIONS && !is_word(p->s + from, *n, functions[i].name)) i++;
    *n += from - p->at;
    return i;
}

static const char *const symbols[] = {"alpha", "beta",     "gamma", "delta",  "epsilon", "varepsilon", "zeta",  "eta",
                                      "theta", "vartheta", "iota",  "kappa",  "lambda",  "mu",         "nu",    "xi",
                                      "rho",   "sigma",    "tau",   "phi",    "varphi",  "chi",        "psi",   "omega",
                                      "Gamma", "Delta",    "Theta", "Lambda", "Xi",      "Pi",         "Sigma", "Phi",
                                      "Psi",   "Omega",    "infty", "ell"};

/* Bytes of the name of a symbol that stands here; 0: there is none. */
static size_t symbol_here(parser *p)
{
    if (peek(p) != '\\') return 0;
    size_t n = letters(p, p->at + 1);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (is_word(p->s + p->at + 1, n, symbols[i])) return n + 1;
    return 0;
}

static bool starts_factor(parser *p)
{
    size_t n;
    char c = peek(p);
    if (is_digit(c) || is_letter(c) || (c && strchr(".([{", c))) return true;
    if (c == '|') return p->bars == 0;
    return c == '\\' && (at_command(p, "frac") || at_command(p, "sqrt") || at_command(p, "pi") || symbol_here(p) ||
                         function_here(p, &n) < N_FUNCTIONS);
}

/* ---- parts ---- */

static double whole(parser *p)
{
    double x = 0;
    while (p->at < p->n && is_digit(p->s[p->at])) x = 10 * x + (p->s[p->at++] - '0');
    return x;
}

/* {12} or a digit: a part of a mixed number. */
static bool plain_part(parser *p, double *x)
{
    bool braces = take(p, '{');
    char c = peek(p);
    if (!is_digit(c)) return false;
    if (braces) *x = whole(p);
    else *x = p->s[p->at++] - '0';
    return !braces || take(p, '}');
}

/* The fraction of 2\frac{1}{3}, whose first part was read; 0: it is no such number. */
static double mixed_part(parser *p)
{
    size_t at = p->at;
    double a, b;
    if (take_command(p, "frac") && plain_part(p, &a) && plain_part(p, &b) && b > 0) return a / b;
    p->at = at;
    return 0;
}

static value number(parser *p)
{
    size_t first = p->at;
    double x = whole(p), below = 0;
    if (!(p->at < p->n && p->s[p->at] == '.')) return x + mixed_part(p);
    size_t dot = p->at++;
    while (p->at < p->n && is_digit(p->s[p->at])) p->at++;
    if (dot == first && p->at == dot + 1) return fail(p);
    for (size_t i = p->at; i-- > dot + 1;) below = (below + (p->s[i] - '0')) / 10;
    return x + below;
}

/* The value of a name in this round, within (0.3, 2). */
static value variable(const parser *p, const char *name, size_t n)
{
    rng r = {0xcbf29ce484222325u};
    for (size_t i = 0; i < n; i++)
        if (!strchr(" {}", name[i])) r.state = (r.state ^ (unsigned char)name[i]) * 0x100000001b3u;
    r.state += (uint64_t)p->round;
    return 0.3 + 1.7 * ((double)(rng_next(&r) >> 11) * 0x1p-53);
}

/* Behind "_1" or "_{12}" at `at`; `at`: there is none. */
static size_t subscript_end(parser *p, size_t at)
{
    if (at >= p->n || p->s[at] != '_') return at;
    if (at + 1 < p->n && p->s[at + 1] != '{') return at + 2;
    const char *end = at + 1 < p->n ? memchr(p->s + at, '}', p->n - at) : NULL;
    if (!end) fail(p);
    return end ? (size_t)(end - p->s) + 1 : p->n;
}

/* A name of n bytes with its subscript. */
static value named(parser *p, size_t n)
{
    size_t from = p->at, end = subscript_end(p, from + n);
    if (p->fail) return 0;
    p->at = end;
    return variable(p, p->s + from, end - from);
}

static value closed(parser *p, value x, char end)
{
    return take(p, end) ? x : fail(p);
}

/* {...}, or one digit, letter or command: what \frac and \sqrt take. */
static value argument(parser *p)
{
    char c = peek(p);
    if (c == '{') {
        p->at++;
        return closed(p, sum(p), '}');
    }
    if (is_digit(c)) return p->s[p->at++] - '0';
    if (is_letter(c)) {
        p->at++;
        if (c == 'i') return (value)I;
        return c == 'e' ? M_E : variable(p, p->s + p->at - 1, 1);
    }
    return c == '\\' ? power(p) : fail(p);
}

static value raised(value x, value y)
{
    if (cimag(x) == 0 && cimag(y) == 0 && (creal(x) >= 0 || creal(y) == rint(creal(y)))) return pow(creal(x), creal(y));
    return cimag(x) == 0 ? cexp(y * logarithm(x)) : cpow(x, y);
}

/* {...}, or a number, name or group, with a sign. */
static value exponent(parser *p)
{
    bool negative = take(p, '-');
    char c = peek(p);
    value x;
    if (c == '{') {
        p->at++;
        x = closed(p, sum(p), '}');
    } else if (is_digit(c)) {
        x = whole(p);
    } else {
        x = starts_factor(p) ? power(p) : fail(p);
    }
    return negative ? -x : x;
}

static value square_root(parser *p)
{
    if (!take(p, '[')) return root(argument(p));
    value degree = closed(p, sum(p), ']');
    return raised(argument(p), 1 / degree);
}

/* What follows a function's name: a group, or factors up to a sign, a slash or another function. */
static value function_argument(parser *p)
{
    size_t n;
    char c = peek(p);
    if (c == '(' || c == '{' || c == '[' || !starts_factor(p)) return starts_factor(p) ? power(p) : fail(p);
    value x = power(p);
    while (!p->fail && starts_factor(p) && function_here(p, &n) == N_FUNCTIONS && peek(p) != '(') x *= power(p);
    return x;
}

static value function(parser *p, size_t which, size_t n)
{
    value base = 0, times = 1;
    p->at += n;
    if (peek(p) == '_' && functions[which].f == logarithm) {
        p->at++;
        base = logarithm(argument(p));
    }
    if (take(p, '^')) times = exponent(p);
    value x = functions[which].f(function_argument(p));
    return raised(base != 0 ? x / base : x, times);
}

static value word(parser *p)
{
    size_t n = letters(p, p->at), of;
    const char *s = p->s + p->at;
    if (is_word(s, n, "sqrt")) {
        p->at += n;
        return peek(p) == '(' ? root(power(p)) : square_root(p);
    }
    if (is_word(s, n, "pi")) return p->at += n, M_PI;
    size_t which = function_here(p, &of);
    if (which < N_FUNCTIONS) return function(p, which, of);
    if (subscript_end(p, p->at + 1) > p->at + 1) return p->fail ? 0 : named(p, 1);
    if (*s == 'e') return p->at++, M_E;
    if (*s == 'i') return p->at++, (value)I;
    return named(p, 1);
}

static value command(parser *p)
{
    size_t n, which;
    if (take_command(p, "frac")) {
        value a = argument(p);
        return a / argument(p);
    }
    if (take_command(p, "sqrt")) return square_root(p);
    if (take_command(p, "pi")) return M_PI;
    if ((n = symbol_here(p)) > 0) return named(p, n);
    which = function_here(p, &n);
    return which < N_FUNCTIONS ? function(p, which, n) : fail(p);
}

static value bars(parser *p)
{
    p->at++;
    p->bars++;
    value x = sum(p);
    p->bars--;
    return cabs(closed(p, x, '|'));
}

/* A group has its own bars. */
static value group(parser *p, char end)
{
    int open = p->bars;
    p->at++;
    p->bars = 0;
    value x = sum(p);
    p->bars = open;
    return closed(p, x, end);
}

static value primary(parser *p)
{
    char c = peek(p);
    if (is_digit(c) || c == '.') return number(p);
    if (is_letter(c)) return word(p);
    if (c == '(') return group(p, ')');
    if (c == '[') return group(p, ']');
    if (c == '{') return group(p, '}');
    if (c == '|') return bars(p);
    return c == '\\' ? command(p) : fail(p);
}

static value factorial(parser *p, value x)
{
    double n = creal(x);
    return cimag(x) == 0 && n >= 0 && n <= MAX_FACTORIAL ? tgamma(n + 1) : fail(p);
}

static value power(parser *p)
{
    if (++p->depth > MAX_DEPTH) return fail(p);
    value x = primary(p);
    while (!p->fail) {
        if (take(p, '^')) x = raised(x, exponent(p));
        else if (take(p, '!')) x = factorial(p, x);
        else break;
    }
    p->depth--;
    return x;
}

/* Signs in front; -1 or 1. */
static int signs(parser *p)
{
    int sign = 1;
    for (;;) {
        if (take(p, '-')) sign = -sign;
        else if (!take(p, '+')) return sign;
    }
}

static value product(parser *p)
{
    value x = power(p);
    while (!p->fail) {
        if (take(p, '*') || take_command(p, "cdot") || take_command(p, "times") || take_command(p, "ast")) {
            int sign = signs(p);
            x *= sign * power(p);
        } else if (take(p, '/') || take_command(p, "div")) {
            int sign = signs(p);
            x /= sign * power(p);
        } else if (starts_factor(p)) {
            x *= power(p);
        } else {
            break;
        }
    }
    return x;
}

static value sum(parser *p)
{
    if (++p->depth > MAX_DEPTH) return fail(p);
    int sign = signs(p);
    value x = sign * product(p);
    for (char c; !p->fail && ((c = peek(p)) == '+' || c == '-');) {
        sign = signs(p);
        x += sign * product(p);
    }
    p->depth--;
    return x;
}

bool math_value(double out[2], const char *s, size_t n, int round)
{
    parser p = {.s = s, .n = n, .round = round};
    value x = sum(&p);
    if (p.fail || peek(&p)) return false;
    out[0] = creal(x);
    out[1] = cimag(x);
    return isfinite(out[0]) && isfinite(out[1]);
}
