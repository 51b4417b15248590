/* SPDX-License-Identifier: MIT */
/* ROUGE-L as the package `rouge` 1.0.1 computes it: over sets of distinct words, with the union of the longest common
 * subsequences of every pair of sentences. It is neither Google's rouge_score nor a plain LCS F1, and
 * which of several subsequences is taken matters: evals.md 2.3 and 2.4. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "eval/metrics/lcs.h"
#include "kernels/base/mem.h"

/* The sentences of a text: sentence i has the words end[i-1]..end[i]-1 of a list, the first from `begin`. */
typedef struct {
    size_t begin, *end, n, longest;
} sentences;

/* Splits at full stops. A piece of white space alone is a sentence of one empty word. */
static status split_sentences(sentences *out, span_list *words, span s, err *e)
{
    size_t dots = 0;
    *out = (sentences){.begin = words->n};
    for (size_t i = 0; i < s.n; i++) dots += s.c[i] == '.';
    TRY(MEM_NEW(&out->end, dots + 1, e));
    for (size_t i = 0, end; i < s.n; i = end + 1) {
        size_t first = words->n;
        for (end = i; end < s.n && s.c[end] != '.';) end++;
        if (end == i) continue;
        TRY(span_split(words, span_from(s, i, end), e));
        if (words->n == first) TRY(span_push(words, span_from(s, i, i), e));
        if (words->n - first > out->longest) out->longest = words->n - first;
        out->end[out->n++] = words->n;
    }
    return ST_OK;
}

typedef struct {
    sentences hyp, ref;
    size_t n_distinct;
    uint32_t *id; /* of every word */
    bool *seen;   /* by id */
    bool *common; /* by word of ref: in the union of subsequences */
    lcs align;
} aligner;

/* Distinct words of begin..end-1, of those that are in `in` (NULL: all). */
static size_t count_distinct(aligner *a, size_t begin, size_t end, const bool *in)
{
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (in && !in[i - begin]) continue;
        n += !a->seen[a->id[i]];
        a->seen[a->id[i]] = true;
    }
    for (size_t i = begin; i < end; i++) a->seen[a->id[i]] = false;
    return n;
}

static status prepare(aligner *a, const span_list *words, err *e)
{
    size_t n_ref = words->n - a->ref.begin, n_hyp = a->ref.begin;
    TRY(MEM_NEW(&a->id, words->n, e));
    TRY(span_number(a->id, &a->n_distinct, words, e));
    TRY(MEM_NEW(&a->seen, a->n_distinct, e));
    TRY(MEM_NEW(&a->common, n_ref, e));
    return lcs_create(&a->align, a->ref.longest, a->hyp.longest, n_ref, n_hyp, e);
}

static double f_score(aligner *a)
{
    size_t hyp_end = a->hyp.end[a->hyp.n - 1], ref_end = a->ref.end[a->ref.n - 1];
    size_t n = count_distinct(a, a->hyp.begin, hyp_end, NULL), m = count_distinct(a, a->ref.begin, ref_end, NULL);
    for (size_t i = 0, x = a->ref.begin; i < a->ref.n; x = a->ref.end[i++])
        for (size_t j = 0, y = a->hyp.begin; j < a->hyp.n; y = a->hyp.end[j++])
            lcs_mark(&a->align, a->id + x, a->ref.end[i] - x, a->id + y, a->hyp.end[j] - y, false,
                     a->common + (x - a->ref.begin));
    size_t common = count_distinct(a, a->ref.begin, ref_end, a->common);
    double r = (double)common / (double)m, p = (double)common / (double)n;
    return 2.0 * ((p * r) / (p + r + 1e-8));
}

static status rouge_l(span prediction, span answer, double *score, err *e)
{
    aligner a = {0};
    span_list words = {0};
    status st;
    *score = 0;
    TRY_GOTO(split_sentences(&a.hyp, &words, prediction, e));
    TRY_GOTO(split_sentences(&a.ref, &words, answer, e));
    if (a.hyp.n && a.ref.n) {
        TRY_GOTO(prepare(&a, &words, e));
        *score = f_score(&a);
    }
done:
    span_list_free(&words);
    mem_free(a.hyp.end);
    mem_free(a.ref.end);
    mem_free(a.id);
    mem_free(a.seen);
    mem_free(a.common);
    lcs_free(&a.align);
    return st;
}

status score_rouge(const metric_pair *p, double *score, err *e)
{
    return rouge_l(p->prediction, p->answer, score, e);
}

/* The words with single spaces between them. */
static status spaced(text *out, const segmenter *g, span s, err *e)
{
    span_list words = {0};
    size_t room;
    status st;
    TRY_GOTO(segmenter_cut(g, s, &words, e));
    TRY_GOTO(size_mul(&room, s.n, 2, "words", e));
    TRY_GOTO(MEM_NEW(&out->c, room, e));
    for (size_t i = 0; i < words.n; i++) {
        if (i) out->c[out->n++] = ' ';
        for (size_t j = 0; j < words.s[i].n; j++) out->c[out->n++] = words.s[i].c[j];
    }
done:
    span_list_free(&words);
    return st;
}

status score_rouge_zh(const metric_pair *p, double *score, err *e)
{
    const segmenter *g;
    text prediction = {0}, answer = {0};
    TRY(metrics_segmenter(p->m, &g, e));
    status st = spaced(&prediction, g, p->prediction, e);
    if (st == ST_OK) st = spaced(&answer, g, p->answer, e);
    if (st == ST_OK) st = rouge_l(text_span(&prediction), text_span(&answer), score, e);
    text_free(&prediction);
    text_free(&answer);
    return st;
}
