/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { MAX_STAGES = 8, MAX_PATTERN = 8192, MATCH_LIMIT = 10000000 };

typedef struct {
    pcre2_code *code; /* NULL: the prefix-space stage */
    pretok_keep keep;
} stage;

struct pretok {
    pcre2_general_context *general;
    stage stages[MAX_STAGES];
    int n_stages;
};

/* PCRE2 asks here for memory, so that tests which fail allocations reach it. */
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

/* Members of Unicode White_Space, for use inside a class: PCRE2's own \s has U+180E as well. */
#define SPACES                                                                                                         \
    "\\t-\\r "                                                                                                         \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* PCRE2's form of the escape \c of Oniguruma, NULL where there is none with the same meaning. */
static const char *escape(char c, bool in_class)
{
    switch (c) {
    case 's': return in_class ? SPACES : "[" SPACES "]";
    case 'S': return in_class ? "\\P{White_Space}" : "[^" SPACES "]";
    case 'd': return "\\p{Nd}";
    case 'D': return "\\P{Nd}";
    case 'r': return "\\r";
    case 'n': return "\\n";
    case 't': return "\\t";
    case 'f': return "\\f";
    case 'x': return "\\x";
    case 'p': return "\\p";
    case 'P': return "\\P";
    default: return NULL;
    }
}

/* Groups that both engines read alike; everything else behind "(?" or "(*" is refused, also because
 * PCRE2 has recursion, callouts and verbs there. */
static bool group_known(const char *s)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (s[1] != '?' && s[1] != '*') return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(s, known[i], strlen(known[i])) == 0) return true;
    return false;
}

/* Rewrites an Oniguruma pattern for PCRE2 into out[MAX_PATTERN]. */
static status translate(char *out, const char *pattern, const char *what, err *e)
{
    bool in_class = false;
    size_t n = 0;
    for (const char *s = pattern; *s; s++) {
        const char *put = NULL;
        char plain[3] = {*s, 0, 0};
        if (*s == '\\') {
            char c = *++s;
            plain[1] = c;
            bool punct = c > ' ' && c < 0x7f && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c);
            put = punct ? plain : escape(c, in_class);
            if (!put) return err_set(e, ST_UNSUPPORTED, "%s: escape \\%c in the pattern", what, c ? c : ' ');
        } else if (in_class && (*s == '[' || (*s == '&' && s[1] == '&'))) {
            return err_set(e, ST_UNSUPPORTED, "%s: set operations in a class of the pattern", what);
        } else if (!in_class && *s == '(' && !group_known(s)) {
            return err_set(e, ST_UNSUPPORTED, "%s: group %.4s in the pattern", what, s);
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
    if (p->n_stages == MAX_STAGES) return err_set(e, ST_UNSUPPORTED, "%s: more than %d steps", what, MAX_STAGES);
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
    /* Ruby's syntax, which the reference takes: ^ and $ are at line ends. */
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
    /* Where there is no JIT the interpreter runs it, slower. */
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
    p->n_stages++; /* its code stays NULL */
    return ST_OK;
}

typedef struct {
    const pretok *p;
    pretok_fn *fn;
    void *ctx;
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

/* Next match at or behind `from`; *start = n where there is none. */
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

static status run_stage(run *r, int k, const char *text, size_t n, err *e)
{
    if (n == 0) return ST_OK;
    if (k == r->p->n_stages) return r->fn(r->ctx, text, n, e);
    const stage *s = &r->p->stages[k];
    if (!s->code) return prefix_space(r, k, text, n, e);
    size_t done = 0, from = 0, start, end;
    while (from <= n) {
        TRY(find(r, k, text, n, from, &start, &end, e));
        if (start >= n) break;
        if (s->keep != PRETOK_MATCHES) TRY(run_stage(r, k + 1, text + done, start - done, e));
        if (s->keep != PRETOK_GAPS) TRY(run_stage(r, k + 1, text + start, end - start, e));
        done = from = end;
        if (end > start) continue;
        /* An empty match only cuts; the search goes on behind the next character. */
        for (from++; from < n && ((unsigned char)text[from] & 0xc0) == 0x80;) from++;
    }
    return s->keep == PRETOK_MATCHES ? ST_OK : run_stage(r, k + 1, text + done, n - done, e);
}

status pretok_run(const pretok *p, const char *text, size_t n, pretok_fn *fn, void *ctx, err *e)
{
    run r = {.p = p, .fn = fn, .ctx = ctx};
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
