/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/segment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- the dictionary: a sorted list of words ---- */

enum { MAX_FREQ = 1000000000 };

typedef struct {
    utf8_text s; /* word, within the file */
    uint32_t freq;
} entry;

typedef struct {
    file_map file;
    entry *word;
    size_t n, cap;
    double total; /* sum of the frequencies, an exact integer */
} dictionary;

/* Words lo to hi - 1. */
typedef struct {
    size_t lo, hi;
} range;

/* Orders words; equal words keep the order of the file. */
static int by_word(const void *a, const void *b)
{
    const utf8_text *x = &((const entry *)a)->s, *y = &((const entry *)b)->s;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (d == 0 && x->n != y->n) d = x->n < y->n ? -1 : 1;
    return d ? d : x->s < y->s ? -1 : 1;
}

/* Returns the first word of the range that is not less than the prefix. after: the first word that is greater than all
 * words with the prefix. */
static size_t bound(const dictionary *d, range r, utf8_text prefix, bool after)
{
    while (r.lo < r.hi) {
        size_t mid = r.lo + (r.hi - r.lo) / 2;
        const utf8_text w = d->word[mid].s;
        int order = memcmp(w.s, prefix.s, w.n < prefix.n ? w.n : prefix.n);
        if (order < 0 || (order == 0 && (after || w.n < prefix.n))) r.lo = mid + 1;
        else r.hi = mid;
    }
    return r.lo;
}

/* Narrows the range to the words that begin with the prefix; false: none. */
static bool narrow(const dictionary *d, range *r, utf8_text prefix)
{
    r->lo = bound(d, *r, prefix, false);
    r->hi = bound(d, *r, prefix, true);
    return r->lo < r->hi;
}

/* Returns the frequency of the word that equals the prefix of a range, from its last line; 0: not a word. */
static uint32_t freq_of(const dictionary *d, range r, size_t prefix)
{
    uint32_t freq = 0;
    for (; r.lo < r.hi && d->word[r.lo].s.n == prefix; r.lo++) freq = d->word[r.lo].freq;
    return freq;
}

/* Parses one line: a word, a space, a decimal number, and optionally more after another space. */
static status add_line(dictionary *d, utf8_text s, const char *path, size_t line, err *e)
{
    size_t space = text_find(s, 0, utf8_of(" ")), end = space < s.n ? space : s.n, i = end + 1;
    const utf8_text word = {s.s, end};
    uint64_t freq = 0;
    if (text_check(word, NULL) != ST_OK || memchr(word.s, 0, word.n))
        return err_set(e, ST_FORMAT, "%s line %zu: not UTF-8", path_tail(path), line);
    for (; i < s.n && char_is_ascii_digit(s.s[i]) && freq <= MAX_FREQ; i++) freq = freq * 10 + (uint64_t)(s.s[i] - '0');
    if (word.n == 0 || i <= end + 1 || freq > MAX_FREQ || (i < s.n && s.s[i] != ' ' && s.s[i] != '\r'))
        return err_set(e, ST_FORMAT, "%s line %zu: expected 'word frequency tag'", path_tail(path), line);
    TRY(MEM_ROOM(&d->word, &d->cap, d->n + 1, e));
    d->word[d->n++] = (entry){word, (uint32_t)freq};
    d->total += (double)freq;
    return ST_OK;
}

/* Reads "word frequency tag" lines. */
static status dictionary_read(dictionary *d, const char *path, err *e)
{
    size_t line = 0;
    TRY(file_map_open(&d->file, path, e));
    for (size_t i = 0; i < d->file.size;) {
        const char *s = (const char *)d->file.data + i, *end = memchr(s, '\n', d->file.size - i);
        size_t n = end ? (size_t)(end - s) : d->file.size - i;
        TRY(add_line(d, (utf8_text){s, n}, path, ++line, e));
        i += n + 1;
    }
    if (d->total < 1) return err_set(e, ST_FORMAT, "%s: no word with a frequency", path_tail(path));
    qsort(d->word, d->n, sizeof *d->word, by_word);
    return ST_OK;
}

static void dictionary_free(dictionary *d)
{
    mem_free(d->word);
    file_map_close(&d->file);
}

/* ---- the hidden Markov model: each Chinese character begins, continues or ends a word, or is one ---- */

enum { HAN_FIRST = 0x4e00, HAN_LAST = 0x9fd5, N_HAN = HAN_LAST - HAN_FIRST + 1, MAX_MODEL_BYTES = 1 << 26 };
enum { B, E, M, S, STATES }; /* alphabetical order, which decides ties */
static const double IMPOSSIBLE = -3.14e100;

/* Natural logarithms. */
typedef struct {
    double start[STATES], trans[STATES][STATES], emit[STATES][N_HAN];
} hmm;

static bool is_han(int32_t c)
{
    return c >= HAN_FIRST && c <= HAN_LAST;
}

static void clear(hmm *h)
{
    for (int s = 0; s < STATES; s++) {
        h->start[s] = IMPOSSIBLE;
        for (int to = 0; to < STATES; to++) h->trans[s][to] = IMPOSSIBLE;
        for (int c = 0; c < N_HAN; c++) h->emit[s][c] = IMPOSSIBLE;
    }
}

/* Returns the state of a letter, or -1. */
static int state_of(char letter)
{
    int s = STATES - 1;
    while (s >= 0 && "BEMS"[s] != letter) s--;
    return s;
}

static bool read_row(hmm *h, const char *line)
{
    double unused, *out = &unused;
    unsigned long c = 0;
    int at = 0, end = 0;
    char letter, next = 'B';
    bool start = sscanf(line, "start\t%c\t%n", &letter, &at) == 1,
         trans = !start && sscanf(line, "trans\t%c\t%c\t%n", &letter, &next, &at) == 2,
         emit = !start && !trans && sscanf(line, "emit\t%c\tU+%lx\t%n", &letter, &c, &at) == 2;
    if (!start && !trans && !emit) return false;
    int from = state_of(letter), to = state_of(next);
    if (from < 0 || to < 0) return false;
    if (start) out = &h->start[from];
    if (trans) out = &h->trans[from][to];
    if (c >= HAN_FIRST && c <= HAN_LAST) out = &h->emit[from][c - HAN_FIRST]; /* others are never used */
    return sscanf(line + at, "%lf%n", out, &end) == 1 && !line[at + end] && *out <= 0 && *out >= IMPOSSIBLE;
}

/* Reads tab-separated lines "start S lp", "trans S S2 lp", "emit S U+XXXX lp". */
static status hmm_read(hmm *h, const char *path, err *e)
{
    char *file, *next;
    size_t size, line = 0;
    status st = ST_OK;
    TRY(file_read(&file, &size, path, MAX_MODEL_BYTES, e));
    clear(h);
    for (char *p = file; p && *p && st == ST_OK; p = next) {
        if ((next = strchr(p, '\n'))) *next++ = 0;
        line++;
        if (!read_row(h, p)) st = err_set(e, ST_FORMAT, "%s line %zu: not a row of the model", path_tail(path), line);
    }
    if (st == ST_OK && line == 0) st = err_set(e, ST_FORMAT, "%s: empty", path_tail(path));
    mem_free(file);
    return st;
}

/* The two possible predecessors of each state. The greater letter is first and wins ties. */
static const uint8_t before[STATES][2] = {[B] = {S, E}, [E] = {M, B}, [M] = {M, B}, [S] = {S, E}};

/* Number of bytes of every is_han character. */
enum { HAN_BYTES = 3 };

/* Returns the index of the i-th character, relative to HAN_FIRST. */
static size_t han_at(utf8_text s, size_t i)
{
    int32_t c = HAN_FIRST;
    char_at(s.s + HAN_BYTES * i, HAN_BYTES, &c);
    return (size_t)c - HAN_FIRST;
}

/* Sets path[i] to the state of character i of n (Viterbi). from [n, STATES] is scratch. */
static void best_path(const hmm *h, utf8_text s, size_t n, uint8_t *path, uint8_t *from)
{
    double v[STATES], w[STATES];
    for (int y = 0; y < STATES; y++) v[y] = h->start[y] + h->emit[y][han_at(s, 0)];
    for (size_t i = 1; i < n; i++) {
        for (int y = 0; y < STATES; y++) {
            const uint8_t a = before[y][0], b = before[y][1];
            double emit = h->emit[y][han_at(s, i)];
            double via_a = v[a] + h->trans[a][y] + emit, via_b = v[b] + h->trans[b][y] + emit;
            from[i * STATES + (size_t)y] = via_b > via_a ? b : a;
            w[y] = via_b > via_a ? via_b : via_a;
        }
        memcpy(v, w, sizeof v);
    }
    uint8_t y = v[E] > v[S] ? E : S;
    for (size_t i = n; i-- > 0; y = from[i * STATES + y]) path[i] = y;
}

/* Appends the words of s, which consists of at least one is_han character. */
static status hmm_cut(const hmm *h, utf8_text s, text_list *words, err *e)
{
    uint8_t *path;
    size_t begin = 0, n = s.n / HAN_BYTES, room;
    status st = ST_OK;
    TRY(size_mul(&room, n, 1 + STATES, "hidden states", e));
    TRY(MEM_NEW(&path, room, e));
    best_path(h, s, n, path, path + n);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        if (path[i] == E || path[i] == S) {
            st = text_push(words, text_from(s, HAN_BYTES * begin, HAN_BYTES * (i + 1)), e);
            begin = i + 1;
        }
    mem_free(path);
    return st; /* the last state is E or S, so no character is left */
}

/* ---- the segmenter ---- */

struct segmenter {
    dictionary words;
    double log_total;
    hmm model;
};

static status read_tables(segmenter *g, const char *dir, err *e)
{
    char *dict = path_join(dir, "dict.txt"), *model = path_join(dir, "hmm.tsv");
    status st = dict && model ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = dictionary_read(&g->words, dict, e);
    if (st == ST_OK) st = hmm_read(&g->model, model, e);
    mem_free(dict);
    mem_free(model);
    return st;
}

status segmenter_create(segmenter **out, const char *dir, err *e)
{
    segmenter *g;
    *out = NULL;
    TRY(MEM_NEW(&g, 1, e));
    status st = read_tables(g, dir, e);
    if (st != ST_OK) {
        segmenter_destroy(g);
        return st;
    }
    g->log_total = log(g->words.total);
    *out = g;
    return ST_OK;
}

void segmenter_destroy(segmenter *g)
{
    if (!g) return;
    dictionary_free(&g->words);
    mem_free(g);
}

/* ---- blocks of one kind ---- */

static bool is_alnum(int32_t c)
{
    return char_is_ascii_digit(c) || char_is_ascii_letter(c);
}

/* True for characters of blocks that are looked up in the dictionary: jieba's re_han_default. */
static bool is_block_char(int32_t c)
{
    return is_han(c) || is_alnum(c) || (c > 0 && c < 0x80 && strchr("+#&._%-", c));
}

/* Removes the longest run of characters with the same value of `in` from s, which is not empty. Returns this value. */
static bool take_run(utf8_text *run, utf8_text *s, bool (*in)(int32_t))
{
    utf8_text rest = *s;
    int32_t c;
    text_next(&rest, &c);
    const bool first = in(c);
    do *run = text_from(*s, 0, s->n - rest.n);
    while (text_next(&rest, &c) && in(c) == first);
    *s = text_from(*s, run->n, s->n);
    return first;
}

/* Returns the length of [a-zA-Z0-9]+(\.\d+)?%? at the beginning of s; 0: no match. */
static size_t number_or_name(utf8_text s)
{
    size_t i = 0;
    while (i < s.n && is_alnum(s.s[i])) i++;
    if (i == 0) return 0;
    if (i + 1 < s.n && s.s[i] == '.' && char_is_ascii_digit(s.s[i + 1])) {
        i++;
        while (i < s.n && char_is_ascii_digit(s.s[i])) i++;
    }
    return i < s.n && s.s[i] == '%' ? i + 1 : i;
}

/* Splits a text without Chinese characters into names, numbers, and the runs between them. */
static status cut_ascii(utf8_text s, text_list *words, err *e)
{
    while (s.n) {
        utf8_text word = text_from(s, 0, number_or_name(s));
        if (word.n) s = text_from(s, word.n, s.n);
        else take_run(&word, &s, is_alnum);
        TRY(text_push(words, word, e));
    }
    return ST_OK;
}

/* finalseg.cut: splits text that the dictionary leaves in single characters. */
static status cut_unknown(const segmenter *g, utf8_text s, text_list *words, err *e)
{
    for (utf8_text run; s.n;)
        TRY(take_run(&run, &s, is_han) ? hmm_cut(&g->model, run, words, e) : cut_ascii(run, words, e));
    return ST_OK;
}

static bool is_word(const segmenter *g, utf8_text s)
{
    range r = {0, g->words.n};
    return narrow(&g->words, &r, s) && freq_of(&g->words, r, s.n) > 0;
}

static status push_characters(text_list *words, utf8_text s, err *e)
{
    for (utf8_text one; (one = text_first(s, 1)).n; s = text_from(s, one.n, s.n)) {
        if (text_starts(s, utf8_of("\r\n"))) one.n = 2;
        TRY(text_push(words, one, e));
    }
    return ST_OK;
}

/* Splits characters that the path left single. A dictionary word among them is also split, as in jieba. */
static status cut_singles(const segmenter *g, utf8_text s, text_list *words, err *e)
{
    bool unknown = s.n > text_first(s, 1).n && !is_word(g, s);
    return unknown ? cut_unknown(g, s, words, e) : push_characters(words, s, e);
}

/* ---- the graph of words ---- */

typedef struct {
    double score; /* score of the best path from here to the block's end */
    size_t end;   /* end of its first word */
    bool single;  /* the first word has one character */
} step;

/* Finds the best first word at every character, from right to left; of equal ones the longer. path[s.n].score = 0. */
static void find_path(const segmenter *g, utf8_text s, step *path)
{
    int32_t c;
    for (size_t i = s.n; i > 0;) {
        i -= (size_t)char_before(s.s, i, &c);
        utf8_text rest = text_from(s, i, s.n);
        const size_t first = i + text_first(rest, 1).n;
        range r = {0, g->words.n};
        path[i] = (step){log(1) - g->log_total + path[first].score, first, true};
        bool any = false;
        while (text_next(&rest, &c) && narrow(&g->words, &r, text_from(s, i, s.n - rest.n))) {
            const size_t end = s.n - rest.n;
            uint32_t freq = freq_of(&g->words, r, end - i);
            if (!freq) continue;
            double score = log((double)freq) - g->log_total + path[end].score;
            if (!any || score >= path[i].score) path[i] = (step){score, end, end == first};
            any = true;
        }
    }
}

static status cut_block(const segmenter *g, utf8_text s, text_list *words, err *e)
{
    step *path;
    size_t single = 0; /* start of the pending single characters */
    status st;
    TRY(MEM_NEW(&path, s.n + 1, e));
    find_path(g, s, path);
    for (size_t i = 0; i < s.n; i = path[i].end) {
        if (path[i].single) continue;
        TRY_GOTO(cut_singles(g, text_from(s, single, i), words, e));
        TRY_GOTO(text_push(words, text_from(s, i, path[i].end), e));
        single = path[i].end;
    }
    st = cut_singles(g, text_from(s, single, s.n), words, e);
done:
    mem_free(path);
    return st;
}

status segmenter_cut(const segmenter *g, utf8_text s, text_list *words, err *e)
{
    for (utf8_text run; s.n;)
        TRY(take_run(&run, &s, is_block_char) ? cut_block(g, run, words, e) : push_characters(words, run, e));
    return ST_OK;
}
