/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_sentences.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "eval/metrics/regex.h"
#include "eval/metrics/text.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { MAX_FILE_BYTES = 1 << 24, MAX_TYPE = 256 };

/* Contexts and letter cases of a word in Punkt's training text: bits of its entry. */
enum { ORTHO_MIDDLE_UPPER = 4, ORTHO_UPPER = 14, ORTHO_BEGIN_LOWER = 16, ORTHO_LOWER = 112 };

enum { ABBREVIATIONS, STARTERS, COLLOCATIONS, ORTHO, TABLES };

#define CLOSING     "[)\";}\\]*:@'({[?!]" /* ends a word */
#define RUN         "--+|\\.\\.+"
#define NO_START    "[(\"`{[:;&#*@)}\\],-]" /* does not begin a word of several characters */
#define END_OF_WORD " |\\z|" CLOSING "|" RUN

enum { TOKEN, NUMBER, CANDIDATE, CLOSERS, PATTERNS };

static const char *const patterns[PATTERNS] = {
    [TOKEN] = RUN "|(?!" NO_START ")[^ ]+?(?=" END_OF_WORD "|,(?:" END_OF_WORD "))|[^ ]",
    [NUMBER] = "\\A-?[.,]?\\p{Nd}[\\p{Nd},.-]*\\z",
    [CANDIDATE] = "[.?!](?=(?| +([^ ]+)|(" CLOSING ")))", /* possible end of a sentence, and what follows it */
    [CLOSERS] = "\\A([\"')\\]}]+?)(?: +|--|\\z)"};

struct punkt {
    json_t *t[TABLES]; /* {word: number} */
    regex r[PATTERNS];
};

/* ---- parameters ---- */

static int lookup(const punkt *p, int table, const char *word)
{
    return (int)json_integer_value(json_object_get(p->t[table], word));
}

/* Reads lines with a word; in ORTHO, a tab and its number follow. Other words get the number 1. */
static status read_lines(json_t *t, int table, char *text, err *e)
{
    char *save;
    for (char *word = strtok_r(text, "\n", &save); word; word = strtok_r(NULL, "\n", &save)) {
        char *tab = table == ORTHO ? strchr(word, '\t') : NULL;
        if (tab) *tab++ = 0;
        if (json_object_set_new(t, word, json_integer(tab ? atoi(tab) : 1)) != 0)
            return err_set(e, ST_FORMAT, "a table of ruler/punkt: not UTF-8, or out of memory");
    }
    return ST_OK;
}

static status read_table(punkt *p, int table, const char *data_dir, err *e)
{
    static const char *const names[TABLES] = {"ruler/punkt/abbrev_types.txt", "ruler/punkt/sent_starters.txt",
                                              "ruler/punkt/collocations.tsv", "ruler/punkt/ortho_context.tsv"};
    char *text, *path = path_join(data_dir, names[table]);
    size_t n;
    if (!path || !(p->t[table] = json_object())) {
        mem_free(path);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    status st = file_read(&text, &n, path, MAX_FILE_BYTES, e);
    mem_free(path);
    if (st != ST_OK) return st;
    st = read_lines(p->t[table], table, text, e);
    mem_free(text);
    return st;
}

status punkt_read(punkt **out, const char *data_dir, err *e)
{
    punkt *p;
    *out = NULL;
    TRY(MEM_NEW(&p, 1, e));
    status st = ST_OK;
    for (int i = 0; i < TABLES && st == ST_OK; i++) st = read_table(p, i, data_dir, e);
    for (int i = 0; i < PATTERNS && st == ST_OK; i++) st = regex_open(&p->r[i], patterns[i], (utf8_text){0}, e);
    if (st == ST_OK) *out = p;
    else punkt_free(p);
    return st;
}

void punkt_free(punkt *p)
{
    if (!p) return;
    for (int i = 0; i < TABLES; i++) json_decref(p->t[i]);
    for (int i = 0; i < PATTERNS; i++) regex_close(&p->r[i]);
    mem_free(p);
}

/* ---- tokens ---- */

typedef struct {
    utf8_text s;
    bool ends, abbreviation, ellipsis, number; /* ends: this token ends a sentence; later passes may change it */
    char type[MAX_TYPE];                       /* lower case, or "##number##"; "" if longer than any table entry */
} token;

static status set_type(punkt *p, token *t, err *e)
{
    str low = {0};
    regex_restart(&p->r[NUMBER], t->s);
    TRY(regex_next(&p->r[NUMBER], &t->number, e));
    if (t->number) str_set(&low, "##number##", strlen("##number##"));
    else if (t->s.n <= MAX_TYPE / 4) str_add_lower(&low, t->s);
    status st = str_check(&low, e);
    snprintf(t->type, sizeof t->type, "%s", str_text(&low).s);
    str_free(&low);
    return st;
}

/* Copies a type without its final dot. */
static void without_dot(char out[MAX_TYPE], const char *type)
{
    size_t n = strlen(type);
    if (n > 1 && type[n - 1] == '.') n--;
    memcpy(out, type, n);
    out[n] = 0;
}

static int32_t first_of(const token *t)
{
    int32_t c = 0;
    char_at(t->s.s, t->s.n, &c);
    return c;
}

static bool begins_upper(const token *t)
{
    return utf8proc_category(first_of(t)) == UTF8PROC_CATEGORY_LU;
}

static bool begins_lower(const token *t)
{
    return utf8proc_category(first_of(t)) == UTF8PROC_CATEGORY_LL;
}

/* True if the token is one letter and a dot. */
static bool is_initial(const token *t)
{
    size_t n = text_first(t->s, 1).n;
    return t->s.n == n + 1 && t->s.s[n] == '.' && char_is_word(first_of(t)) && !char_is_digit(first_of(t));
}

/* ---- ends of sentences ---- */

/* Decides from the token alone whether it ends a sentence. */
static void judge_token(const punkt *p, token *t)
{
    char type[MAX_TYPE];
    const utf8_text s = t->s;
    bool dot = s.s[s.n - 1] == '.', two_dots = dot && s.n > 1 && s.s[s.n - 2] == '.';
    t->ends = s.n == 1 && strchr(".?!", s.s[0]);
    t->ellipsis = s.n > 1 && strspn(s.s, ".") >= s.n;
    t->abbreviation = false;
    if (t->ends || !dot || two_dots) return;
    without_dot(type, t->type);
    const char *hyphen = strrchr(type, '-');
    t->abbreviation = lookup(p, ABBREVIATIONS, type) || (hyphen && lookup(p, ABBREVIATIONS, hyphen + 1));
    t->ends = !t->abbreviation;
}

typedef enum { STARTS_NO, STARTS_YES, STARTS_UNKNOWN } starts;

/* Decides from its spelling whether a token begins a sentence. */
static starts begins_sentence(const token *t, int flags)
{
    if (t->s.n == 1 && strchr(";:,.!?", t->s.s[0])) return STARTS_NO;
    if (begins_upper(t) && (flags & ORTHO_LOWER) && !(flags & ORTHO_MIDDLE_UPPER)) return STARTS_YES;
    if (begins_lower(t) && ((flags & ORTHO_UPPER) || !(flags & ORTHO_BEGIN_LOWER))) return STARTS_NO;
    return STARTS_UNKNOWN;
}

/* Revises the decision for token a, given the next token b. */
static void judge_pair(const punkt *p, token *a, const token *b)
{
    char type[MAX_TYPE], next[MAX_TYPE], pair[2 * MAX_TYPE + 1];
    if (a->s.s[a->s.n - 1] != '.') return;
    without_dot(type, a->type);
    if (b->ends) without_dot(next, b->type);
    else memcpy(next, b->type, MAX_TYPE);
    snprintf(pair, sizeof pair, "%s\t%s", type, next);
    if (lookup(p, COLLOCATIONS, pair)) {
        a->ends = false;
        return;
    }
    int flags = lookup(p, ORTHO, next);
    starts s = begins_sentence(b, flags);
    bool initial = is_initial(a);
    if ((a->abbreviation || a->ellipsis) && !initial) {
        if (s == STARTS_YES || (begins_upper(b) && lookup(p, STARTERS, next))) a->ends = true;
    } else if (initial || a->number) {
        bool unknown = s == STARTS_UNKNOWN && initial && begins_upper(b) && !(flags & ORTHO_LOWER);
        if (s == STARTS_NO || unknown) a->ends = false;
    }
}

/* Sets *out to true if a token of the context other than the last one ends a sentence. */
static status has_end(punkt *p, utf8_text context, bool *out, err *e)
{
    token a = {0}, b = {0};
    bool more;
    *out = false;
    regex_restart(&p->r[TOKEN], context);
    for (;; a = b) {
        TRY(regex_next(&p->r[TOKEN], &more, e));
        if (!more) return ST_OK;
        b.s = p->r[TOKEN].group;
        TRY(set_type(p, &b, e));
        judge_token(p, &b);
        if (a.s.n == 0) continue;
        judge_pair(p, &a, &b);
        if ((*out = a.ends)) return ST_OK;
    }
}

/* ---- sentences ---- */

static status push(sentence_list *l, size_t begin, size_t end, err *e)
{
    TRY(MEM_ROOM(&l->s, &l->cap, l->n + 1, e));
    l->s[l->n++] = (sentence){begin, end};
    return ST_OK;
}

/* Possible end of a sentence, with the text that decides. */
typedef struct {
    size_t run, at; /* start of the run of non-spaces that contains it; offset of its character */
    size_t next;    /* start of the next sentence */
    size_t end;     /* end of the context */
} candidate;

static status next_candidate(candidate *out, bool *found, regex *r, err *e)
{
    TRY(regex_next(r, found, e));
    if (!*found) return ST_OK;
    const char *space = memrchr(r->s.s, ' ', r->begin);
    size_t next = (size_t)(r->group.s - r->s.s), end = next + r->group.n;
    *out = (candidate){space ? (size_t)(space - r->s.s) + 1 : 0, r->begin, next, end};
    return ST_OK;
}

/* Cuts the text after the candidates that end a sentence. Within a run only the last candidate counts. */
static status cut(punkt *p, sentence_list *out, utf8_text s, err *e)
{
    size_t begin = 0;
    candidate c, next = {0};
    bool ends, more;
    regex_restart(&p->r[CANDIDATE], s);
    TRY(next_candidate(&c, &more, &p->r[CANDIDATE], e));
    for (; more; c = next) {
        TRY(next_candidate(&next, &more, &p->r[CANDIDATE], e));
        if (more && next.run == c.run && c.at > c.run) continue;
        TRY(has_end(p, text_from(s, c.run, c.end), &ends, e));
        if (!ends) continue;
        TRY(push(out, begin, c.at + 1, e));
        begin = c.next;
    }
    return push(out, begin, s.n, e);
}

/* Moves closing quotes and brackets from the start of a sentence to the end of the previous one. Drops empty
 * sentences. */
static status realign(punkt *p, sentence_list *l, utf8_text s, err *e)
{
    regex *closers = &p->r[CLOSERS];
    size_t n = 0, skip = 0;
    for (size_t i = 0; i < l->n; i++) {
        sentence x = {l->s[i].begin + skip, l->s[i].end};
        bool found = false;
        skip = 0;
        if (i + 1 < l->n) {
            regex_restart(closers, text_from(s, l->s[i + 1].begin, l->s[i + 1].end));
            TRY(regex_next(closers, &found, e));
        }
        if (found) {
            skip = x.end = l->s[i + 1].begin + closers->group.n;
            while (skip < l->s[i + 1].end && s.s[skip] == ' ') skip++;
            skip -= l->s[i + 1].begin;
        }
        if (x.begin < x.end) l->s[n++] = x;
    }
    l->n = n;
    return ST_OK;
}

status punkt_split(punkt *p, sentence_list *out, const char *s, size_t n, err *e)
{
    out->n = 0;
    TRY(cut(p, out, (utf8_text){s, n}, e));
    return realign(p, out, (utf8_text){s, n}, e);
}

void sentence_list_free(sentence_list *l)
{
    mem_free(l->s);
    *l = (sentence_list){0};
}
