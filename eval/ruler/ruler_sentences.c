/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_sentences.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "eval/metrics/text.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

enum { MAX_FILE_BYTES = 1 << 24, MAX_TYPE = 256 };

/* Where a word was seen in Punkt's training text: bits of its entry. */
enum { ORTHO_MIDDLE_UPPER = 4, ORTHO_UPPER = 14, ORTHO_BEGIN_LOWER = 16, ORTHO_LOWER = 112 };

static const char NUMBER[] = "##number##";

/* Lines of a file, sorted; a line may end in a tab and a number. */
typedef struct {
    const char *word;
    int value;
} entry;

typedef struct {
    char *text;
    entry *e;
    size_t n;
} table;

enum { ABBREVIATIONS, STARTERS, COLLOCATIONS, ORTHO, TABLES };

struct punkt {
    table t[TABLES];
};

/* ---- parameters ---- */

static int by_word(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->word, ((const entry *)b)->word);
}

static int lookup(const table *t, const char *word)
{
    const entry key = {.word = word}, *found = t->n ? bsearch(&key, t->e, t->n, sizeof key, by_word) : NULL;
    return found ? found->value : 0;
}

/* numbers: of each line a tab and a number from 1 on; else its value is 1. */
static status read_lines(table *t, const char *name, bool numbers, err *e)
{
    size_t lines = 0;
    for (const char *s = t->text; *s; s++) lines += *s == '\n';
    TRY(MEM_NEW(&t->e, lines, e));
    for (char *s = t->text, *end; (end = strchr(s, '\n')); s = end + 1) {
        char *tab = numbers ? strchr(s, '\t') : end;
        *end = 0;
        if (!tab || (numbers && tab > end)) return err_set(e, ST_FORMAT, "%s line %zu: no tab", name, t->n + 1);
        *tab = 0;
        t->e[t->n++] = (entry){s, numbers ? atoi(tab + 1) : 1};
    }
    qsort(t->e, t->n, sizeof *t->e, by_word);
    return ST_OK;
}

static status read_table(table *t, const char *data_dir, const char *name, bool numbers, err *e)
{
    char rel[64];
    size_t n;
    snprintf(rel, sizeof rel, "ruler/punkt/%s", name);
    char *path = path_join(data_dir, rel);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = file_read(&t->text, &n, path, MAX_FILE_BYTES, e);
    mem_free(path);
    return st == ST_OK ? read_lines(t, name, numbers, e) : st;
}

status punkt_read(punkt **out, const char *data_dir, err *e)
{
    static const char *const names[TABLES] = {"abbrev_types.txt", "sent_starters.txt", "collocations.tsv",
                                              "ortho_context.tsv"};
    punkt *p;
    *out = NULL;
    TRY(MEM_NEW(&p, 1, e));
    status st = ST_OK;
    for (int i = 0; i < TABLES && st == ST_OK; i++) st = read_table(&p->t[i], data_dir, names[i], i == ORTHO, e);
    if (st == ST_OK) *out = p;
    else punkt_free(p);
    return st;
}

void punkt_free(punkt *p)
{
    if (!p) return;
    for (int i = 0; i < TABLES; i++) {
        mem_free(p->t[i].text);
        mem_free(p->t[i].e);
    }
    mem_free(p);
}

/* ---- characters ---- */

static bool is_end(char c)
{
    return c == '.' || c == '?' || c == '!';
}

/* Punctuation that ends a word. */
static bool is_closing(char c)
{
    return c && strchr(")\";}]*:@'({[?!", c);
}

/* What no word begins with. */
static bool cannot_begin(char c)
{
    return c && strchr("(\"`{[:;&#*@)}]-,", c);
}

/* ---- tokens ---- */

typedef struct {
    const char *s;
    size_t n;
    bool ends, abbreviation, ellipsis; /* ends: a sentence, as far as is known */
    char type[MAX_TYPE];               /* lower case, or NUMBER; "" if it is too long for any table */
} token;

/* The length of a run of at least two hyphens or dots at s. */
static size_t run_of(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && (s[0] == '-' || s[0] == '.') && s[k] == s[0]) k++;
    return k > 1 ? k : 0;
}

static bool ends_word(const char *s, size_t n, bool comma)
{
    if (n == 0 || *s == ' ' || is_closing(*s) || run_of(s, n)) return true;
    return comma && *s == ',' && ends_word(s + 1, n - 1, false);
}

static size_t char_bytes(const char *s, size_t n)
{
    int32_t c;
    int k = char_at(s, n, &c);
    return k ? (size_t)k : 1;
}

/* The length of the token at s, which is no space. */
static size_t token_bytes(const char *s, size_t n)
{
    size_t k = run_of(s, n);
    if (k) return k;
    k = char_bytes(s, n);
    if (cannot_begin(*s)) return k;
    while (!ends_word(s + k, n - k, true)) k += char_bytes(s + k, n - k);
    return k;
}

/* -?[.,]?\d[\d,.-]* */
static bool is_number(const char *s, size_t n)
{
    size_t i = 0;
    int32_t c;
    if (i < n && s[i] == '-') i++;
    if (i < n && (s[i] == '.' || s[i] == ',')) i++;
    int k = char_at(s + i, n - i, &c);
    if (k == 0 || !char_is_digit(c)) return false;
    for (i += (size_t)k; i < n; i += (size_t)k) {
        k = char_at(s + i, n - i, &c);
        if (k == 0 || !(char_is_digit(c) || strchr(",.-", s[i]))) return false;
    }
    return true;
}

static status set_type(token *t, err *e)
{
    str low = {0};
    t->type[0] = 0;
    if (is_number(t->s, t->n)) {
        memcpy(t->type, NUMBER, sizeof NUMBER);
        return ST_OK;
    }
    if (t->n > MAX_TYPE / 4) return ST_OK;
    str_add_lower(&low, (utf8_text){t->s, t->n});
    status st = str_check(&low, e);
    snprintf(t->type, sizeof t->type, "%s", low.s ? low.s : "");
    str_free(&low);
    return st;
}

/* A type without its final dot. */
static void without_dot(char out[MAX_TYPE], const char *type)
{
    size_t n = strlen(type);
    if (n > 1 && type[n - 1] == '.') n--;
    memcpy(out, type, n);
    out[n] = 0;
}

static bool begins_upper(const token *t)
{
    int32_t c;
    return char_at(t->s, t->n, &c) && utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
}

static bool begins_lower(const token *t)
{
    int32_t c;
    return char_at(t->s, t->n, &c) && utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
}

/* One letter and a dot. */
static bool is_initial(const token *t)
{
    int32_t c;
    int k = char_at(t->s, t->n, &c);
    return k && t->n == (size_t)k + 1 && t->s[k] == '.' && char_is_word(c) && !char_is_digit(c);
}

/* ---- which token ends a sentence ---- */

/* By the token alone. */
static void judge_token(const punkt *p, token *t)
{
    char type[MAX_TYPE];
    bool dot = t->s[t->n - 1] == '.', dots = run_of(t->s, t->n) == t->n && dot;
    t->ends = t->n == 1 && is_end(t->s[0]);
    t->ellipsis = dots;
    t->abbreviation = false;
    if (t->ends || dots || !dot || t->s[t->n - 2] == '.') return;
    without_dot(type, t->type);
    const char *hyphen = strrchr(type, '-');
    t->abbreviation = lookup(&p->t[ABBREVIATIONS], type) || (hyphen && lookup(&p->t[ABBREVIATIONS], hyphen + 1));
    t->ends = !t->abbreviation;
}

typedef enum { STARTS_NO, STARTS_YES, STARTS_UNKNOWN } starts;

/* Whether the spelling of a token says that a sentence begins with it. */
static starts begins_sentence(const token *t, int flags)
{
    if (t->n == 1 && strchr(";:,.!?", t->s[0])) return STARTS_NO;
    if (begins_upper(t) && (flags & ORTHO_LOWER) && !(flags & ORTHO_MIDDLE_UPPER)) return STARTS_YES;
    if (begins_lower(t) && ((flags & ORTHO_UPPER) || !(flags & ORTHO_BEGIN_LOWER))) return STARTS_NO;
    return STARTS_UNKNOWN;
}

/* By the token that follows. */
static void judge_pair(const punkt *p, token *a, const token *b)
{
    char type[MAX_TYPE], next[MAX_TYPE], pair[2 * MAX_TYPE + 1];
    if (a->s[a->n - 1] != '.') return;
    without_dot(type, a->type);
    if (b->ends) without_dot(next, b->type);
    else memcpy(next, b->type, MAX_TYPE);
    snprintf(pair, sizeof pair, "%s\t%s", type, next);
    if (lookup(&p->t[COLLOCATIONS], pair)) {
        a->ends = false;
        return;
    }
    int flags = lookup(&p->t[ORTHO], next);
    starts s = begins_sentence(b, flags);
    bool initial = is_initial(a);
    if ((a->abbreviation || a->ellipsis) && !initial) {
        if (s == STARTS_YES || (begins_upper(b) && lookup(&p->t[STARTERS], next))) a->ends = true;
    } else if (initial || strcmp(type, NUMBER) == 0) {
        bool unknown = s == STARTS_UNKNOWN && initial && begins_upper(b) && !(flags & ORTHO_LOWER);
        if (s == STARTS_NO || unknown) a->ends = false;
    }
}

/* Whether a token of the context, other than its last one, ends a sentence. */
static status has_end(const punkt *p, const char *s, size_t n, bool *out, err *e)
{
    token a = {0}, b;
    *out = false;
    for (size_t i = 0; i < n; i += b.n) {
        while (i < n && s[i] == ' ') i++;
        if (i == n) break;
        b = (token){.s = s + i, .n = token_bytes(s + i, n - i)};
        TRY(set_type(&b, e));
        judge_token(p, &b);
        if (a.s) judge_pair(p, &a, &b);
        if ((*out = a.s && a.ends)) break;
        a = b;
    }
    return ST_OK;
}

/* ---- sentences ---- */

static status push(sentence_list *l, size_t begin, size_t end, err *e)
{
    TRY(MEM_ROOM(&l->s, &l->cap, l->n + 1, e));
    l->s[l->n++] = (sentence){begin, end};
    return ST_OK;
}

/* A place where a sentence may end, with the text around it that decides. */
typedef struct {
    size_t run, at; /* where the run of letters begins that it is in; its character */
    size_t next;    /* where the next sentence would begin */
    size_t end;     /* of the context */
} candidate;

/* The first candidate from `at` on; run: where the run begins that holds s[at]. */
static bool next_candidate(candidate *out, const char *s, size_t n, size_t at, size_t run)
{
    for (; at + 1 < n; at++) {
        if (s[at] == ' ') run = at + 1;
        if (!is_end(s[at])) continue;
        size_t next = at + 1, end;
        while (next < n && s[next] == ' ') next++;
        if (next == at + 1 && !is_closing(s[next])) continue;
        for (end = next + 1; next > at + 1 && end < n && s[end] != ' ';) end++;
        *out = (candidate){run, at, next, end};
        return true;
    }
    return false;
}

/* Cuts behind the candidates at which a sentence ends. Of several in a run the last one decides. */
static status cut(const punkt *p, sentence_list *out, const char *s, size_t n, err *e)
{
    size_t begin = 0;
    candidate c, next;
    bool ends, more = next_candidate(&c, s, n, 0, 0);
    for (; more; c = next) {
        more = next_candidate(&next, s, n, c.at + 1, c.run);
        if (more && next.run == c.run && c.at > c.run) continue;
        TRY(has_end(p, s + c.run, c.end - c.run, &ends, e));
        if (!ends) continue;
        TRY(push(out, begin, c.at + 1, e));
        begin = c.next;
    }
    return push(out, begin, n, e);
}

/* The bytes of closing quotes and brackets at the beginning of a sentence that belong to the one before; *skip: with
 * the spaces behind them. */
static size_t closers(const char *s, size_t n, size_t *skip)
{
    size_t k = 0;
    *skip = 0;
    while (k < n && strchr("\"')]}", s[k])) {
        k++;
        bool dashes = k + 1 < n && s[k] == '-' && s[k + 1] == '-';
        if (k < n && s[k] != ' ' && !dashes) continue;
        *skip = k;
        while (*skip < n && s[*skip] == ' ') ++*skip;
        return k;
    }
    return 0;
}

/* Gives closing quotes and brackets to the sentence before them, and drops empty sentences. */
static void realign(sentence_list *l, const char *s)
{
    size_t n = 0, skip = 0;
    for (size_t i = 0; i < l->n; i++) {
        sentence x = {l->s[i].begin + skip, l->s[i].end};
        size_t closing = 0;
        skip = 0;
        if (i + 1 < l->n) closing = closers(s + l->s[i + 1].begin, l->s[i + 1].end - l->s[i + 1].begin, &skip);
        if (closing) x.end = l->s[i + 1].begin + closing;
        if (x.begin < x.end) l->s[n++] = x;
    }
    l->n = n;
}

status punkt_split(const punkt *p, sentence_list *out, const char *s, size_t n, err *e)
{
    out->n = 0;
    TRY(cut(p, out, s, n, e));
    realign(out, s);
    return ST_OK;
}

void sentence_list_free(sentence_list *l)
{
    mem_free(l->s);
    *l = (sentence_list){0};
}
