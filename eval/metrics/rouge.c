/* SPDX-License-Identifier: MIT */
/* Two variants of ROUGE-L over longest common subsequences of words, which differ in counting and in the choice among
 * equally long subsequences: evals.md 2.3, 2.4 and 6.2. The package `rouge` 1.0.1 counts distinct words of sentences.
 * rougeLsum of Google's rouge_score 0.1.2 (without stemming) counts words of lines, each at most once. */
#include "config.h"

#include "eval/metrics/impl.h"

#include <string.h>

#include "kernels/base/mem.h"

static const size_t MAX_CELLS = (size_t)1 << 32; /* takes some seconds and at most 512 MiB */

/* Sentences or lines of a text. Part i has the words end[i-1]..end[i]-1 of a list; the first part starts at `begin`. */
typedef struct {
    size_t begin, *end, n, longest;
} parts;

typedef struct {
    text_list words;
    parts hyp, ref;
    uint32_t *id, *count; /* id of each word; count by id */
    size_t n_distinct;
    bool *common;     /* per word of ref: in the union of subsequences */
    uint32_t *row[2]; /* subsequence lengths for the first i - 1 and i words of a part of ref */
    uint64_t *above;  /* a bit for each (i, j): backtracking goes to i - 1 */
} aligner;

/* ---- words ---- */

/* Appends the words of a sentence. A sentence of white space has one empty word. */
static status push_sentence(text_list *words, utf8_text s, err *e)
{
    size_t first = words->n;
    TRY(text_split(words, s, e));
    return words->n > first ? ST_OK : text_push(words, text_from(s, 0, 0), e);
}

static bool is_word(int32_t c)
{
    return (c >= 'a' && c <= 'z') || char_is_ascii_digit(c);
}

static status push_line(text_list *words, utf8_text s, err *e)
{
    return text_runs(words, s, is_word, e);
}

static status split(parts *out, text_list *words, utf8_text s, char separator,
                    status (*push)(text_list *words, utf8_text s, err *e), err *e)
{
    size_t n = 1;
    *out = (parts){.begin = words->n};
    for (size_t i = 0; i < s.n; i++) n += s.s[i] == separator;
    TRY(MEM_NEW(&out->end, n, e));
    for (size_t i = 0, end; i < s.n; i = end + 1) {
        size_t first = words->n;
        for (end = i; end < s.n && s.s[end] != separator;) end++;
        if (end == i) continue;
        TRY(push(words, text_from(s, i, end), e));
        if (words->n - first > out->longest) out->longest = words->n - first;
        out->end[out->n++] = words->n;
    }
    return ST_OK;
}

/* ---- alignment ---- */

/* Marks the words of x that are in one longest common subsequence of x and y. Backtracking takes equal words, and else
 * goes to the longer rest. ties_up: to i - 1 if both are equally long. */
static void mark(aligner *a, const uint32_t *x, size_t n_x, const uint32_t *y, size_t n_y, bool ties_up, bool *in)
{
    uint32_t *up = a->row[0], *cur = a->row[1];
    for (size_t j = 0; j <= n_y; j++) up[j] = 0;
    cur[0] = 0;
    for (size_t i = 0; i < n_x; i++) {
        for (size_t j = 0; j < n_y; j++) {
            size_t bit = i * n_y + j;
            uint64_t mask = (uint64_t)1 << (bit & 63);
            bool is_above = ties_up ? up[j + 1] >= cur[j] : up[j + 1] > cur[j];
            a->above[bit >> 6] = is_above ? a->above[bit >> 6] | mask : a->above[bit >> 6] & ~mask;
            cur[j + 1] = x[i] == y[j] ? up[j] + 1 : is_above ? up[j + 1] : cur[j];
        }
        uint32_t *t = up;
        up = cur;
        cur = t;
        cur[0] = 0;
    }
    for (size_t i = n_x, j = n_y; i && j;) {
        size_t bit = (i - 1) * n_y + j - 1;
        bool equal = x[i - 1] == y[j - 1], is_above = a->above[bit >> 6] >> (bit & 63) & 1;
        if (equal) in[i - 1] = true;
        if (equal || is_above) i--;
        if (equal || !is_above) j--;
    }
}

static status allocate(aligner *a, err *e)
{
    size_t n_hyp = a->ref.begin, n_ref = a->words.n - n_hyp, cells;
    TRY(size_mul(&cells, n_ref, n_hyp, "rouge", e));
    if (cells > MAX_CELLS)
        return err_set(e, ST_UNSUPPORTED, "rouge: texts of %zu and %zu words are too long to align", n_hyp, n_ref);
    TRY(MEM_NEW(&a->id, a->words.n, e));
    TRY(text_number(a->id, &a->n_distinct, &a->words, e));
    TRY(MEM_NEW(&a->count, a->n_distinct, e));
    TRY(MEM_NEW(&a->common, n_ref, e));
    TRY(MEM_NEW(&a->above, a->ref.longest * a->hyp.longest / 64 + 1, e));
    TRY(MEM_NEW(&a->row[0], a->hyp.longest + 1, e));
    return MEM_NEW(&a->row[1], a->hyp.longest + 1, e);
}

/* Marks the common words of all pairs of parts. */
static void mark_all(aligner *a, bool ties_up)
{
    for (size_t i = 0, x = a->ref.begin; i < a->ref.n; x = a->ref.end[i++])
        for (size_t j = 0, y = 0; j < a->hyp.n; y = a->hyp.end[j++])
            mark(a, a->id + x, a->ref.end[i] - x, a->id + y, a->hyp.end[j] - y, ties_up, a->common + x - a->ref.begin);
}

static void aligner_free(aligner *a)
{
    text_list_free(&a->words);
    mem_free(a->hyp.end);
    mem_free(a->ref.end);
    mem_free(a->id);
    mem_free(a->count);
    mem_free(a->common);
    mem_free(a->above);
    mem_free(a->row[0]);
    mem_free(a->row[1]);
}

/* ---- the package `rouge` ---- */

/* Returns the number of distinct words of begin..end-1 that are in `in` (NULL: all). */
static size_t count_distinct(aligner *a, size_t begin, size_t end, const bool *in)
{
    size_t n = 0;
    memset(a->count, 0, a->n_distinct * sizeof *a->count);
    for (size_t i = begin; i < end; i++)
        if (!in || in[i - begin]) n += a->count[a->id[i]]++ == 0;
    return n;
}

static status rouge_l(utf8_text prediction, utf8_text answer, double *score, err *e)
{
    aligner a = {0};
    status st;
    *score = 0;
    TRY_GOTO(split(&a.hyp, &a.words, prediction, '.', push_sentence, e));
    TRY_GOTO(split(&a.ref, &a.words, answer, '.', push_sentence, e));
    if (a.hyp.n && a.ref.n) {
        TRY_GOTO(allocate(&a, e));
        mark_all(&a, false);
        double common = (double)count_distinct(&a, a.ref.begin, a.words.n, a.common);
        double r = common / (double)count_distinct(&a, a.ref.begin, a.words.n, NULL);
        double p = common / (double)count_distinct(&a, 0, a.ref.begin, NULL);
        *score = 2.0 * ((p * r) / (p + r + 1e-8));
    }
done:
    aligner_free(&a);
    return st;
}

status score_rouge(const metric_pair *p, double *score, err *e)
{
    return rouge_l(p->prediction, p->answer, score, e);
}

/* Appends the words with single spaces between them. */
static status add_spaced(str *out, const segmenter *g, utf8_text s, err *e)
{
    text_list words = {0};
    status st = segmenter_cut(g, s, &words, e);
    for (size_t i = 0; i < words.n; i++) {
        if (i) str_add(out, " ", 1);
        str_add(out, words.s[i].s, words.s[i].n);
    }
    text_list_free(&words);
    return st == ST_OK ? str_check(out, e) : st;
}

status score_rouge_zh(const metric_pair *p, double *score, err *e)
{
    const segmenter *g;
    str prediction = {0}, answer = {0};
    TRY(metrics_segmenter(p->m, &g, e));
    status st = add_spaced(&prediction, g, p->prediction, e);
    if (st == ST_OK) st = add_spaced(&answer, g, p->answer, e);
    if (st == ST_OK) st = rouge_l(str_text(&prediction), str_text(&answer), score, e);
    str_free(&prediction);
    str_free(&answer);
    return st;
}

/* ---- rouge_score ---- */

/* Counts the common words of the reference, each matched with an unused word of the prediction. */
static size_t count_hits(aligner *a)
{
    size_t hits = 0, n_hyp = a->ref.begin;
    for (size_t i = 0; i < n_hyp; i++) a->count[a->id[i]]++;
    for (size_t i = n_hyp; i < a->words.n; i++) {
        if (!a->common[i - n_hyp] || !a->count[a->id[i]]) continue;
        a->count[a->id[i]]--;
        hits++;
    }
    return hits;
}

/* Converts the whole texts to lower case. This equals a conversion line by line, because words do not contain line
 * ends. */
status score_rouge_lsum(const metric_pair *p, double *score, err *e)
{
    str low[2] = {{0}, {0}};
    aligner a = {0};
    status st;
    str_add_lower(&low[0], p->prediction);
    str_add_lower(&low[1], p->answer);
    TRY_GOTO(str_check(&low[0], e));
    TRY_GOTO(str_check(&low[1], e));
    TRY_GOTO(split(&a.hyp, &a.words, str_text(&low[0]), '\n', push_line, e));
    TRY_GOTO(split(&a.ref, &a.words, str_text(&low[1]), '\n', push_line, e));
    if (a.ref.begin > 0 && a.words.n > a.ref.begin) {
        TRY_GOTO(allocate(&a, e));
        mark_all(&a, true);
        size_t hits = count_hits(&a);
        double precision = (double)hits / (double)a.ref.begin,
               recall = (double)hits / (double)(a.words.n - a.ref.begin);
        *score = hits ? 2 * precision * recall / (precision + recall) : 0;
    }
done:
    str_free(&low[0]);
    str_free(&low[1]);
    aligner_free(&a);
    return st;
}
