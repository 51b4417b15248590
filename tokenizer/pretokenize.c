/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

enum { MAX_STAGES = 8, MAX_PATTERN = 8192, MATCH_LIMIT = 10000000 };

typedef enum { STAGE_PATTERN, STAGE_PREFIX_SPACE, STAGE_SPACE_MARKS } stage_kind;

typedef struct {
    stage_kind kind;
    pcre2_code *code; /* of STAGE_PATTERN */
    pretok_keep keep;
    prepend_scheme prepend; /* of STAGE_SPACE_MARKS */
    bool split;
} stage;

struct pretok {
    pcre2_general_context *general;
    stage stages[MAX_STAGES];
    int n_stages;
};

/* PCRE2 allocates through mem_alloc, so that tests with failing allocations cover it. */
static void *take(PCRE2_SIZE n, void *ctx)
{
    void *p;
    (void)ctx;
    return mem_alloc(&p, n, 1, "pattern", NULL) == ST_OK ? p : NULL;
}

static void give(void *p, void *ctx)
{
    (void)ctx;
    mem_free(p);
}

status pretok_create(pretok **out, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->general = pcre2_general_context_create(take, give, NULL);
    if ((*out)->general) return ST_OK;
    mem_free(*out);
    *out = NULL;
    return err_set(e, ST_NOMEM, "pre-tokenizer: out of memory");
}

void pretok_free(pretok *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_stages; i++) pcre2_code_free(p->stages[i].code);
    pcre2_general_context_free(p->general);
    mem_free(p);
}

/* Members of Unicode White_Space for use in a class: PCRE2's \s also contains U+180E. */
#define SPACES                                                                                                         \
    "\\t-\\r "                                                                                                         \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Members of Oniguruma's \w. */
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* Returns PCRE2's form of Oniguruma's escape \c; NULL if there is no equivalent. */
static const char *escape(char c, bool in_class)
{
    switch (c) {
    case 's': return in_class ? SPACES : "[" SPACES "]";
    case 'S': return in_class ? "\\P{White_Space}" : "[^" SPACES "]";
    case 'w': return in_class ? WORDS : "[" WORDS "]";
    case 'W': return in_class ? NULL : "[^" WORDS "]";
    case 'd': return "\\p{Nd}";
    case 'D': return "\\P{Nd}";
    case 'r': return "\\r";
    case 'n': return "\\n";
    case 't': return "\\t";
    case 'f': return "\\f";
    case 'x': return "\\x";
    default: return NULL;
    }
}

/* True for groups with the same meaning in both engines. All others after "(?" or "(*" are rejected; in PCRE2 they
 * include recursion, callouts and verbs. */
static bool group_known(const char *s)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (s[1] != '?' && s[1] != '*') return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(s, known[i], strlen(known[i])) == 0) return true;
    return false;
}

/* True if a script has this name. */
static bool is_script(const char *name)
{
    char pattern[64];
    int code;
    PCRE2_SIZE at;
    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* Translates a property, \p{NAME} or \pL at s, into put[64]. Returns the bytes read, 0 for an unknown one. PCRE2 takes
 * the name of a script for its extensions too, Oniguruma for the script alone. */
static size_t property(char *put, const char *s)
{
    static const char *const categories[][2] = {{"Letter", "L"},
                                                {"Uppercase_Letter", "Lu"},
                                                {"Lowercase_Letter", "Ll"},
                                                {"Titlecase_Letter", "Lt"},
                                                {"Mark", "M"},
                                                {"Modifier_Letter", "Lm"},
                                                {"Other_Letter", "Lo"},
                                                {"Decimal_Number", "Nd"},
                                                {"Number", "N"},
                                                {"Letter_Number", "Nl"},
                                                {"Other_Number", "No"},
                                                {"Punctuation", "P"},
                                                {"Symbol", "S"},
                                                {"Separator", "Z"},
                                                {"Math_Symbol", "Sm"},
                                                {"Currency_Symbol", "Sc"},
                                                {"Other", "C"},
                                                {"Control", "Cc"},
                                                {"Space_Separator", "Zs"},
                                                {"Nonspacing_Mark", "Mn"},
                                                {"Alpha", "Alphabetic"},
                                                {"Space", "White_Space"},
                                                {"Digit", "Nd"},
                                                {"Upper", "Uppercase"},
                                                {"Lower", "Lowercase"}};
    char name[40];
    size_t n = 0, k = 2;
    const bool braces = s[2] == '{', negated = braces && s[3] == '^';
    if (!braces) return snprintf(put, 64, "\\%c%c", s[1], s[2]), s[2] ? 3 : 0;
    for (k = 3 + negated; s[k] && s[k] != '}' && n + 1 < sizeof name; k++) name[n++] = s[k];
    name[n] = 0;
    if (s[k] != '}' || n == 0 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_& ") != n) return 0;
    const char *use = name;
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (strcmp(name, categories[i][0]) == 0) use = categories[i][1];
    const bool script = use == name && n > 2 && is_script(name);
    snprintf(put, 64, "\\%c{%s%s}", negated == (s[1] == 'p') ? 'P' : 'p', script ? "sc:" : "", use);
    return k + 1;
}

/* Translates an Oniguruma pattern for PCRE2 into out[MAX_PATTERN]. */
static status translate(char *out, const char *pattern, const char *what, err *e)
{
    bool in_class = false;
    size_t n = 0;
    for (const char *s = pattern; *s; s++) {
        const char *put = NULL;
        char plain[64] = {*s};
        if (*s == '\\' && (s[1] == 'p' || s[1] == 'P')) {
            const size_t k = property(plain, s);
            if (!k) return err_set(e, ST_UNSUPPORTED, "%s: unsupported property %.40s in the pattern", what, s);
            s += k - 1;
        } else if (*s == '\\') {
            char c = *++s;
            plain[1] = c;
            plain[2] = 0;
            bool punct = c > ' ' && c < 0x7f && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c);
            put = punct ? plain : escape(c, in_class);
            if (!put)
                return err_set(e, ST_UNSUPPORTED, "%s: unsupported escape \\%c in the pattern", what, c ? c : ' ');
        } else if (in_class && (*s == '[' || (*s == '&' && s[1] == '&'))) {
            return err_set(e, ST_UNSUPPORTED, "%s: unsupported set operation in the pattern", what);
        } else if (!in_class && *s == '(' && !group_known(s)) {
            return err_set(e, ST_UNSUPPORTED, "%s: unsupported group %.4s in the pattern", what, s);
        } else if (*s == '[') {
            in_class = true;
        } else if (*s == ']') {
            in_class = false;
        }
        if (!put) put = plain;
        size_t k = strlen(put);
        if (n + k >= MAX_PATTERN) return err_set(e, ST_UNSUPPORTED, "%s: pattern is too long", what);
        memcpy(out + n, put, k + 1);
        n += k;
    }
    out[n] = 0;
    return ST_OK;
}

static status next_stage(stage **out, pretok *p, const char *what, err *e)
{
    if (p->n_stages == MAX_STAGES)
        return err_set(e, ST_UNSUPPORTED, "%s: at most %d steps are supported", what, MAX_STAGES);
    *out = &p->stages[p->n_stages];
    return ST_OK;
}

static status compile(pretok *p, const char *pattern, pretok_keep keep, const char *what, err *e)
{
    stage *s = NULL;
    int code = 0;
    PCRE2_SIZE at = 0;
    TRY(next_stage(&s, p, what, e));
    pcre2_compile_context *cc = pcre2_compile_context_create(p->general);
    if (!cc) return err_set(e, ST_NOMEM, "%s: out of memory", what);
    pcre2_set_parens_nest_limit(cc, 50);
    /* Ruby syntax, as in the reference: ^ and $ match at line ends. */
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!s->code) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(e, code == PCRE2_ERROR_HEAP_FAILED ? ST_NOMEM : ST_FORMAT, "%s: bad pattern: %s", what,
                       (char *)why);
    }
    s->keep = keep;
    p->n_stages++;
    /* Without JIT the interpreter is used. */
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    return ST_OK;
}

status pretok_add_regex(pretok *p, const char *pattern, pretok_keep keep, const char *what, err *e)
{
    char *text = NULL;
    TRY(mem_alloc((void **)&text, MAX_PATTERN, 1, "pattern", e));
    status st = translate(text, pattern, what, e);
    if (st == ST_OK) st = compile(p, text, keep, what, e);
    mem_free(text);
    return st;
}

status pretok_add_string(pretok *p, const char *text, pretok_keep keep, const char *what, err *e)
{
    char quoted[512];
    size_t n = 0;
    if (!*text) return err_set(e, ST_FORMAT, "%s: empty pattern", what);
    for (; *text; text++) {
        if (n + 3 > sizeof quoted) return err_set(e, ST_UNSUPPORTED, "%s: pattern is too long", what);
        if (strchr("\\^$.[]|()?*+{}#", *text)) quoted[n++] = '\\';
        quoted[n++] = *text;
    }
    quoted[n] = 0;
    return compile(p, quoted, keep, what, e);
}

status pretok_add_prefix_space(pretok *p, const char *what, err *e)
{
    stage *s = NULL;
    TRY(next_stage(&s, p, what, e));
    s->kind = STAGE_PREFIX_SPACE;
    p->n_stages++;
    return ST_OK;
}

status pretok_add_space_marks(pretok *p, prepend_scheme prepend, bool split, const char *what, err *e)
{
    stage *s = NULL;
    TRY(next_stage(&s, p, what, e));
    *s = (stage){.kind = STAGE_SPACE_MARKS, .prepend = prepend, .split = split};
    p->n_stages++;
    return ST_OK;
}

typedef struct {
    const pretok *p;
    pretok_fn *fn;
    void *ctx;
    const char *start; /* the text that may be preceded by a space mark; NULL: none */
    pcre2_match_context *mc;
    pcre2_match_data *data[MAX_STAGES];
} run;

static status run_stage(run *r, int k, const char *text, size_t n, err *e);

static status prefix_space(run *r, int k, const char *text, size_t n, err *e)
{
    if (n && text[0] == ' ') return run_stage(r, k + 1, text, n, e);
    char *copy;
    TRY(mem_alloc((void **)&copy, n + 1, 1, "text", e));
    copy[0] = ' ';
    memcpy(copy + 1, text, n);
    status st = run_stage(r, k + 1, copy, n + 1, e);
    mem_free(copy);
    return st;
}

/* Passes the pieces of marked text, cut before each mark, to the next stage. */
static status cut_at_marks(run *r, int k, const char *text, size_t n, err *e)
{
    const size_t m = sizeof SPACE_MARK - 1;
    for (size_t done = 0; done < n;) {
        const char *next = n - done > m ? memmem(text + done + m, n - done - m, SPACE_MARK, m) : NULL;
        const size_t end = next ? (size_t)(next - text) : n;
        TRY(run_stage(r, k + 1, text + done, end - done, e));
        done = end;
    }
    return ST_OK;
}

static status space_marks(run *r, int k, const char *text, size_t n, err *e)
{
    const stage *s = &r->p->stages[k];
    const size_t m = sizeof SPACE_MARK - 1;
    const bool marked = text[0] == ' ' || (n >= m && memcmp(text, SPACE_MARK, m) == 0);
    const bool insert = !marked && (s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && text == r->start));
    size_t room, len = 0;
    char *copy;
    TRY(size_mul(&room, n + 1, m, "text", e));
    TRY(mem_alloc((void **)&copy, room, 1, "text", e));
    if (insert) memcpy(copy, SPACE_MARK, len = m);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            memcpy(copy + len, SPACE_MARK, m);
            len += m;
        } else {
            copy[len++] = text[i];
        }
    }
    status st = s->split ? cut_at_marks(r, k, copy, len, e) : run_stage(r, k + 1, copy, len, e);
    mem_free(copy);
    return st;
}

/* Finds the next match at or after `from`; *start = n if there is none. */
static status find(const run *r, int k, const char *text, size_t n, size_t from, size_t *start, size_t *end, err *e)
{
    int rc = pcre2_match(r->p->stages[k].code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, r->data[k], r->mc);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->p->stages[k].code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->data[k],
                         r->mc);
    *start = *end = n;
    if (rc == PCRE2_ERROR_NOMATCH) return ST_OK;
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return err_set(e, rc == PCRE2_ERROR_NOMEMORY ? ST_NOMEM : ST_UNSUPPORTED, "pre-tokenizer: step %d: %s", k,
                       (char *)why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->data[k]);
    *start = o[0];
    *end = o[1];
    return ST_OK;
}

/* The part of a text that a stage has not passed on yet. */
typedef struct {
    size_t from, to;
    bool is_match, any;
} pending_piece;

/* Takes the next match or gap of a stage. Source: tokenizers, tokenizer/normalizer.rs, split. */
static status add_piece(run *r, int k, pending_piece *p, const char *text, size_t from, size_t to, bool is_match,
                        err *e)
{
    const pretok_keep keep = r->p->stages[k].keep;
    if (from == to) return ST_OK;
    if (keep & PRETOK_INVERTED) is_match = !is_match;
    bool joins = false;
    switch (keep & ~PRETOK_INVERTED) {
    case PRETOK_GAPS:
        if (is_match) return ST_OK;
        break;
    case PRETOK_PREVIOUS: joins = is_match && !p->is_match; break;
    case PRETOK_NEXT: joins = !is_match && p->is_match; break;
    case PRETOK_CONTIGUOUS: joins = is_match == p->is_match; break;
    default: break;
    }
    joins &= p->any;
    if (p->any && !joins) TRY(run_stage(r, k + 1, text + p->from, p->to - p->from, e));
    *p = (pending_piece){joins ? p->from : from, to, is_match, true};
    return ST_OK;
}

static status run_stage(run *r, int k, const char *text, size_t n, err *e)
{
    if (n == 0) return ST_OK;
    if (k == r->p->n_stages) return r->fn(r->ctx, text, n, e);
    const stage *s = &r->p->stages[k];
    if (s->kind == STAGE_PREFIX_SPACE) return prefix_space(r, k, text, n, e);
    if (s->kind == STAGE_SPACE_MARKS) return space_marks(r, k, text, n, e);
    size_t done = 0, from = 0, start, end;
    pending_piece p = {0};
    while (from <= n) {
        TRY(find(r, k, text, n, from, &start, &end, e));
        if (start >= n) break;
        TRY(add_piece(r, k, &p, text, done, start, false, e));
        TRY(add_piece(r, k, &p, text, start, end, true, e));
        done = from = end;
        if (end > start) continue;
        /* An empty match only splits. Continue after the next character. */
        for (from++; from < n && ((unsigned char)text[from] & 0xc0) == 0x80;) from++;
    }
    TRY(add_piece(r, k, &p, text, done, n, false, e));
    return p.any ? run_stage(r, k + 1, text + p.from, p.to - p.from, e) : ST_OK;
}

status pretok_run(const pretok *p, const char *text, size_t n, bool at_start, pretok_fn *fn, void *ctx, err *e)
{
    run r = {.p = p, .fn = fn, .ctx = ctx, .start = at_start ? text : NULL};
    status st = ST_OK;
    r.mc = pcre2_match_context_create(p->general);
    bool made = r.mc;
    if (made) pcre2_set_match_limit(r.mc, MATCH_LIMIT);
    for (int i = 0; i < p->n_stages && made; i++)
        if (p->stages[i].code) made = (r.data[i] = pcre2_match_data_create(1, p->general));
    st = made ? run_stage(&r, 0, text, n, e) : err_set(e, ST_NOMEM, "pre-tokenizer: out of memory");
    for (int i = 0; i < p->n_stages; i++) pcre2_match_data_free(r.data[i]);
    pcre2_match_context_free(r.mc);
    return st;
}
