/* SPDX-License-Identifier: MIT */
/* rougeLsum of Google's rouge_score 0.1.2 without stemming, over lines of lower-case ASCII words: evals.md 6.2. It has
 * little in common with the ROUGE-L of rouge.c: positions instead of distinct words, counts that are used up, the other
 * way back. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "eval/metrics/lcs.h"
#include "kernels/base/mem.h"

/* The lines of a text that are not empty: line i has the words end[i-1]..end[i]-1 of a list, the first from `begin`. */
typedef struct {
    size_t begin, *end, n, longest;
} text_lines;

static bool is_word(int32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* s is lower case, which is the same line by line: no line's end is part of a word. */
static status split_lines(text_lines *out, span_list *words, span s, err *e)
{
    size_t n = 1;
    *out = (text_lines){.begin = words->n};
    for (size_t i = 0; i < s.n; i++) n += s.c[i] == '\n';
    TRY(MEM_NEW(&out->end, n, e));
    for (size_t i = 0, end; i < s.n; i = end + 1) {
        size_t first = words->n;
        for (end = i; end < s.n && s.c[end] != '\n';) {
            size_t from = end;
            while (end < s.n && is_word(s.c[end])) end++;
            if (end > from) TRY(span_push(words, span_from(s, from, end), e));
            else end++;
        }
        if (words->n - first > out->longest) out->longest = words->n - first;
        out->end[out->n++] = words->n;
    }
    return ST_OK;
}

/* How often a word of the reference that is in the union of its line's subsequences meets one that is left. */
static size_t count_hits(const uint32_t *id, const bool *in, size_t n_hyp, size_t n_ref, uint32_t *left_hyp,
                         uint32_t *left_ref)
{
    size_t hits = 0;
    for (size_t i = 0; i < n_hyp; i++) left_hyp[id[i]]++;
    for (size_t i = 0; i < n_ref; i++) left_ref[id[n_hyp + i]]++;
    for (size_t i = 0; i < n_ref; i++) {
        uint32_t w = id[n_hyp + i];
        if (!in[i] || !left_hyp[w] || !left_ref[w]) continue;
        left_hyp[w]--;
        left_ref[w]--;
        hits++;
    }
    return hits;
}

static status f_score(const span_list *words, const text_lines *hyp, const text_lines *ref, double *score, err *e)
{
    size_t n = ref->begin, m = words->n - n, n_distinct;
    uint32_t *id = NULL, *left = NULL;
    bool *in = NULL;
    lcs align = {0};
    status st;
    TRY_GOTO(MEM_NEW(&id, words->n, e));
    TRY_GOTO(span_number(id, &n_distinct, words, e));
    TRY_GOTO(MEM_NEW(&left, 2 * n_distinct, e));
    TRY_GOTO(MEM_NEW(&in, m, e));
    TRY_GOTO(lcs_create(&align, ref->longest, hyp->longest, m, n, e));
    for (size_t i = 0, x = n; i < ref->n; x = ref->end[i++])
        for (size_t j = 0, y = 0; j < hyp->n; y = hyp->end[j++])
            lcs_mark(&align, id + x, ref->end[i] - x, id + y, hyp->end[j] - y, true, in + (x - n));
    size_t hits = count_hits(id, in, n, m, left, left + n_distinct);
    double p = (double)hits / (double)n, r = (double)hits / (double)m;
    *score = hits ? 2 * p * r / (p + r) : 0;
done:
    mem_free(id);
    mem_free(left);
    mem_free(in);
    lcs_free(&align);
    return st;
}

status score_rouge_lsum(const metric_pair *p, double *score, err *e)
{
    text low[2] = {{0}, {0}};
    span_list words = {0};
    text_lines hyp = {0}, ref = {0};
    status st;
    TRY_GOTO(text_lower(&low[0], p->prediction, e));
    TRY_GOTO(text_lower(&low[1], p->answer, e));
    TRY_GOTO(split_lines(&hyp, &words, text_span(&low[0]), e));
    TRY_GOTO(split_lines(&ref, &words, text_span(&low[1]), e));
    if (ref.begin > 0 && words.n > ref.begin) TRY_GOTO(f_score(&words, &hyp, &ref, score, e));
done:
    text_free(&low[0]);
    text_free(&low[1]);
    span_list_free(&words);
    mem_free(hyp.end);
    mem_free(ref.end);
    return st;
}
