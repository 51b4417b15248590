/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/segment.h"

#include <math.h>

#include "eval/metrics/dictionary.h"
#include "eval/metrics/hmm.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

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
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_ascii_digit(int32_t c)
{
    return c >= '0' && c <= '9';
}

/* What the dictionary is asked about: jieba's re_han_default. */
static bool is_block_char(int32_t c)
{
    return is_han(c) || is_alnum(c) || c == '+' || c == '#' || c == '&' || c == '.' || c == '_' || c == '%' || c == '-';
}

/* Length of [a-zA-Z0-9]+(\.\d+)?%? at the beginning of s, 0 where it does not match. */
static size_t number_or_name(span s)
{
    size_t i = 0;
    while (i < s.n && is_alnum(s.c[i])) i++;
    if (i == 0) return 0;
    if (i + 1 < s.n && s.c[i] == '.' && is_ascii_digit(s.c[i + 1])) {
        i++;
        while (i < s.n && is_ascii_digit(s.c[i])) i++;
    }
    return i < s.n && s.c[i] == '%' ? i + 1 : i;
}

/* Letters, digits and signs without Chinese characters: names and numbers, and what is between them. */
static status cut_ascii(span s, span_list *words, err *e)
{
    for (size_t i = 0, end; i < s.n; i = end) {
        end = i + number_or_name(span_from(s, i, s.n));
        if (end == i)
            for (end = i + 1; end < s.n && !is_alnum(s.c[end]);) end++;
        TRY(span_push(words, span_from(s, i, end), e));
    }
    return ST_OK;
}

/* finalseg.cut: what the dictionary leaves in single characters. */
static status cut_unknown(const segmenter *g, span s, span_list *words, err *e)
{
    for (size_t i = 0, end; i < s.n; i = end) {
        for (end = i + 1; end < s.n && is_han(s.c[end]) == is_han(s.c[i]);) end++;
        span part = span_from(s, i, end);
        TRY(is_han(s.c[i]) ? hmm_cut(&g->model, part, words, e) : cut_ascii(part, words, e));
    }
    return ST_OK;
}

static bool is_word(const segmenter *g, span s)
{
    uint32_t node = DICTIONARY_ROOT;
    for (size_t i = 0; i < s.n; i++)
        if (!(node = dictionary_step(&g->words, node, s.c[i]))) return false;
    return g->words.freq[node] > 0;
}

/* Characters that the path left single. A dictionary word among them falls apart too: jieba does so. */
static status cut_singles(const segmenter *g, span s, span_list *words, err *e)
{
    if (s.n > 1 && !is_word(g, s)) return cut_unknown(g, s, words, e);
    for (size_t i = 0; i < s.n; i++) TRY(span_push(words, span_from(s, i, i + 1), e));
    return ST_OK;
}

/* ---- the graph of words ---- */

typedef struct {
    double score; /* of the best path from here to the block's end */
    size_t end;   /* of its first word */
} step;

/* Best first word from every place, from right to left; of equal ones the longer. step[s.n].score = 0. */
static void find_path(const segmenter *g, span s, step *path)
{
    for (size_t i = s.n; i-- > 0;) {
        uint32_t node = DICTIONARY_ROOT;
        path[i].end = 0;
        for (size_t j = i; j < s.n && (node = dictionary_step(&g->words, node, s.c[j])); j++) {
            uint32_t freq = g->words.freq[node];
            if (!freq) continue;
            double score = log((double)freq) - g->log_total + path[j + 1].score;
            if (path[i].end == 0 || score >= path[i].score) path[i] = (step){score, j + 1};
        }
        if (path[i].end == 0) path[i] = (step){log(1) - g->log_total + path[i + 1].score, i + 1};
    }
}

static status cut_block(const segmenter *g, span s, span_list *words, err *e)
{
    step *path;
    size_t single = 0; /* where the single characters begin that are not yet given out */
    status st;
    TRY(MEM_NEW(&path, s.n + 1, e));
    find_path(g, s, path);
    for (size_t i = 0; i < s.n; i = path[i].end) {
        if (path[i].end == i + 1) continue;
        TRY_GOTO(cut_singles(g, span_from(s, single, i), words, e));
        TRY_GOTO(span_push(words, span_from(s, i, path[i].end), e));
        single = path[i].end;
    }
    st = cut_singles(g, span_from(s, single, s.n), words, e);
done:
    mem_free(path);
    return st;
}

status segmenter_cut(const segmenter *g, span s, span_list *words, err *e)
{
    for (size_t i = 0, end; i < s.n; i = end) {
        end = i + 1;
        if (is_block_char(s.c[i])) {
            while (end < s.n && is_block_char(s.c[end])) end++;
            TRY(cut_block(g, span_from(s, i, end), words, e));
        } else {
            if (s.c[i] == '\r' && end < s.n && s.c[end] == '\n') end++;
            TRY(span_push(words, span_from(s, i, end), e));
        }
    }
    return ST_OK;
}
