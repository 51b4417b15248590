/* SPDX-License-Identifier: MIT */
/* Overlap of words between a prediction and an answer: evals.md 2.1, 2.2 and 6.2. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

status token_f1(const span_list *tokens, size_t n_prediction, double *score, err *e)
{
    size_t n_distinct, n_answer = tokens->n - n_prediction, common = 0;
    uint32_t *id = NULL, *left = NULL;
    status st;
    *score = 0;
    TRY_GOTO(MEM_NEW(&id, tokens->n, e));
    TRY_GOTO(span_number(id, &n_distinct, tokens, e));
    TRY_GOTO(MEM_NEW(&left, n_distinct, e));
    for (size_t i = 0; i < n_prediction; i++) left[id[i]]++;
    for (size_t i = n_prediction; i < tokens->n; i++)
        if (left[id[i]]) {
            left[id[i]]--;
            common++;
        }
    if (common) {
        double precision = 1.0 * (double)common / (double)n_prediction;
        double recall = 1.0 * (double)common / (double)n_answer;
        *score = (2 * precision * recall) / (precision + recall);
    }
done:
    mem_free(id);
    mem_free(left);
    return st;
}

static size_t drop_punctuation(int32_t *c, size_t n, bool (*is_punct)(int32_t))
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_punct(c[i])) c[kept++] = c[i];
    return kept;
}

static bool is_article(const int32_t *c, size_t n)
{
    return (n == 1 && c[0] == 'a') || (n == 2 && c[0] == 'a' && c[1] == 'n') ||
           (n == 3 && c[0] == 't' && c[1] == 'h' && c[2] == 'e');
}

/* Each a, an, the that is a whole run of word characters becomes spaces: \b(a|an|the)\b. */
static void blank_articles(int32_t *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!char_is_word(c[i])) continue;
        while (end < n && char_is_word(c[end])) end++;
        if (is_article(c + i, end - i))
            for (size_t j = i; j < end; j++) c[j] = ' ';
    }
}

/* normalize_answer(s).split(); the tokens lie in *store. */
static status qa_tokens(text *store, span_list *tokens, span s, err *e)
{
    TRY(text_lower(store, s, e));
    store->n = drop_punctuation(store->c, store->n, char_is_punct);
    blank_articles(store->c, store->n);
    return span_split(tokens, text_span(store), e);
}

status score_qa_f1(const metric_pair *p, double *score, err *e)
{
    text store[2] = {{0}, {0}};
    span_list tokens = {0};
    status st = qa_tokens(&store[0], &tokens, p->prediction, e);
    size_t n = tokens.n;
    if (st == ST_OK) st = qa_tokens(&store[1], &tokens, p->answer, e);
    if (st == ST_OK) st = token_f1(&tokens, n, score, e);
    span_list_free(&tokens);
    text_free(&store[0]);
    text_free(&store[1]);
    return st;
}

static bool is_dropped_zh(int32_t c)
{
    return char_is_punct_zh(c) || is_python_space(c);
}

/* Words of the raw text, each normalized by itself; the empty ones are left out. A token of *tokens lies in
 * *store, one buffer for all of them: the lower-case form of n characters has at most 2n. */
static status zh_tokens(const segmenter *g, text *store, span_list *tokens, span s, err *e)
{
    span_list words = {0};
    size_t room;
    status st;
    TRY_GOTO(segmenter_cut(g, s, &words, e));
    TRY_GOTO(size_mul(&room, s.n, 2, "words", e));
    TRY_GOTO(MEM_NEW(&store->c, room, e));
    for (size_t i = 0; i < words.n; i++) {
        text low;
        TRY_GOTO(text_lower(&low, words.s[i], e));
        size_t n = drop_punctuation(low.c, low.n, is_dropped_zh);
        for (size_t j = 0; j < n; j++) store->c[store->n + j] = low.c[j];
        text_free(&low);
        if (n) TRY_GOTO(span_push(tokens, (span){store->c + store->n, n}, e));
        store->n += n;
    }
done:
    span_list_free(&words);
    return st;
}

status score_qa_f1_zh(const metric_pair *p, double *score, err *e)
{
    const segmenter *g;
    text store[2] = {{0}, {0}};
    span_list tokens = {0};
    TRY(metrics_segmenter(p->m, &g, e));
    status st = zh_tokens(g, &store[0], &tokens, p->prediction, e);
    size_t n = tokens.n;
    if (st == ST_OK) st = zh_tokens(g, &store[1], &tokens, p->answer, e);
    if (st == ST_OK) st = token_f1(&tokens, n, score, e);
    span_list_free(&tokens);
    text_free(&store[0]);
    text_free(&store[1]);
    return st;
}

/* What is left of the text after lower-casing and dropping, each character a token. */
static status character_tokens(text *store, span_list *tokens, span s, err *e)
{
    TRY(text_lower(store, s, e));
    store->n = drop_punctuation(store->c, store->n, is_dropped_zh);
    for (size_t i = 0; i < store->n; i++) TRY(span_push(tokens, span_from(text_span(store), i, i + 1), e));
    return ST_OK;
}

status score_char_f1_zh(const metric_pair *p, double *score, err *e)
{
    text store[2] = {{0}, {0}};
    span_list tokens = {0};
    status st = character_tokens(&store[0], &tokens, p->prediction, e);
    size_t n = tokens.n;
    if (st == ST_OK) st = character_tokens(&store[1], &tokens, p->answer, e);
    if (st == ST_OK) st = token_f1(&tokens, n, score, e);
    span_list_free(&tokens);
    text_free(&store[0]);
    text_free(&store[1]);
    return st;
}
