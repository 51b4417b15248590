/* SPDX-License-Identifier: MIT */
/* Scores by words and labels: overlap of words (evals.md 2.1, 2.2, 6.2), and equality of labels and numbers (2.5, 2.6).
 */
#include "config.h"

#include "eval/metrics/impl.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

/* ---- F1 of two lists of tokens ---- */

/* `tokens` holds those of the prediction, n, then the answer's. */
static status token_f1(const span_list *tokens, size_t n, double *score, err *e)
{
    size_t n_distinct, common = 0;
    uint32_t *id = NULL, *left = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&id, tokens->n, e));
    TRY_GOTO(span_number(id, &n_distinct, tokens, e));
    TRY_GOTO(MEM_NEW(&left, n_distinct, e));
    for (size_t i = 0; i < n; i++) left[id[i]]++;
    for (size_t i = n; i < tokens->n; i++)
        if (left[id[i]]) {
            left[id[i]]--;
            common++;
        }
    double precision = (double)common / (double)n, recall = (double)common / (double)(tokens->n - n);
    *score = common ? (2 * precision * recall) / (precision + recall) : 0;
done:
    mem_free(id);
    mem_free(left);
    return st;
}

/* Appends the tokens of a text, which lie in *store. */
typedef status (*tokenize)(metrics *m, text *store, span_list *tokens, span s, err *e);

static status score_f1(const metric_pair *p, tokenize tokens_of, double *score, err *e)
{
    text store[2] = {{0}, {0}};
    span_list tokens = {0};
    status st = tokens_of(p->m, &store[0], &tokens, p->prediction, e);
    size_t n = tokens.n;
    if (st == ST_OK) st = tokens_of(p->m, &store[1], &tokens, p->answer, e);
    if (st == ST_OK) st = token_f1(&tokens, n, score, e);
    span_list_free(&tokens);
    text_free(&store[0]);
    text_free(&store[1]);
    return st;
}

/* Appends the lower case of s without the characters that are dropped. */
static status add_lower(text *store, span s, bool (*is_dropped)(int32_t), err *e)
{
    text low;
    TRY(text_lower(&low, s, e));
    for (size_t i = 0; i < low.n; i++)
        if (!is_dropped(low.c[i])) store->c[store->n++] = low.c[i];
    text_free(&low);
    return ST_OK;
}

/* Makes room for the lower case of n characters. */
static status make_room(text *store, size_t n, err *e)
{
    size_t room;
    TRY(size_mul(&room, n, 2, "words", e));
    return MEM_NEW(&store->c, room, e);
}

static bool is_article(const int32_t *c, size_t n)
{
    return (n == 1 && c[0] == 'a') || (n == 2 && c[0] == 'a' && c[1] == 'n') ||
           (n == 3 && c[0] == 't' && c[1] == 'h' && c[2] == 'e');
}

/* normalize_answer(s).split(): each a, an, the that is a whole run of word characters becomes spaces. */
static status english_tokens(metrics *m, text *store, span_list *tokens, span s, err *e)
{
    (void)m;
    TRY(make_room(store, s.n, e));
    TRY(add_lower(store, s, char_is_punct, e));
    for (size_t i = 0, end; i < store->n; i = end) {
        end = i + 1;
        if (!char_is_word(store->c[i])) continue;
        while (end < store->n && char_is_word(store->c[end])) end++;
        if (is_article(store->c + i, end - i))
            for (size_t k = i; k < end; k++) store->c[k] = ' ';
    }
    return span_split(tokens, text_span(store), e);
}

static bool is_dropped_zh(int32_t c)
{
    return char_is_punct_zh(c) || is_python_space(c);
}

/* Words of the raw text, each normalized by itself; the empty ones are left out. */
static status chinese_tokens(metrics *m, text *store, span_list *tokens, span s, err *e)
{
    span_list words = {0};
    const segmenter *g;
    status st;
    TRY(metrics_segmenter(m, &g, e));
    TRY_GOTO(segmenter_cut(g, s, &words, e));
    TRY_GOTO(make_room(store, s.n, e));
    for (size_t i = 0; i < words.n; i++) {
        size_t first = store->n;
        TRY_GOTO(add_lower(store, words.s[i], is_dropped_zh, e));
        if (store->n > first) TRY_GOTO(span_push(tokens, span_from(text_span(store), first, store->n), e));
    }
done:
    span_list_free(&words);
    return st;
}

/* What is left of the text, each character a token. */
static status character_tokens(metrics *m, text *store, span_list *tokens, span s, err *e)
{
    (void)m;
    TRY(make_room(store, s.n, e));
    TRY(add_lower(store, s, is_dropped_zh, e));
    for (size_t i = 0; i < store->n; i++) TRY(span_push(tokens, span_from(text_span(store), i, i + 1), e));
    return ST_OK;
}

status score_qa_f1(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, english_tokens, score, e);
}

status score_qa_f1_zh(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, chinese_tokens, score, e);
}

status score_char_f1_zh(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, character_tokens, score, e);
}

/* ---- labels ---- */

/* Takes the first span that equals s out of the list. */
static void remove_first(span_list *l, span s)
{
    size_t i = 0;
    while (!span_equal(l->s[i], s)) i++;
    for (l->n--; i < l->n; i++) l->s[i] = l->s[i + 1];
}

status score_classification(const metric_pair *p, double *score, err *e)
{
    span_list found = {0};
    bool right = false;
    status st = ST_OK;
    if (!p->classes) return err_set(e, ST_FORMAT, "classification: the list of classes (all_classes) is missing");
    for (size_t i = 0; i < p->n_classes && st == ST_OK; i++)
        if (span_contains(p->prediction, p->classes[i])) st = span_push(&found, p->classes[i], e);
    /* The original removes from the list that it walks, so the label after a removed one is not looked at. */
    for (size_t i = 0; i < found.n; i++) {
        span label = found.s[i];
        if (span_contains(p->answer, label) && !span_equal(label, p->answer)) remove_first(&found, label);
    }
    for (size_t i = 0; i < found.n; i++) right |= span_equal(found.s[i], p->answer);
    *score = right ? 1.0 / (double)found.n : 0;
    span_list_free(&found);
    return st;
}

/* The share of the prediction's numbers that are written exactly as `target`. */
static status share_of_numbers(span prediction, span target, double *score, err *e)
{
    span_list numbers = {0};
    size_t right = 0;
    status st = span_runs(&numbers, prediction, char_is_digit, e);
    for (size_t i = 0; i < numbers.n; i++) right += span_equal(numbers.s[i], target);
    *score = numbers.n ? (double)right / (double)numbers.n : 0;
    span_list_free(&numbers);
    return st;
}

status score_count(const metric_pair *p, double *score, err *e)
{
    return share_of_numbers(p->prediction, p->answer, score, e);
}

/* The digits after the first `word` of the answer that has some. */
static status retrieval(const metric_pair *p, span word, double *score, err *e)
{
    for (size_t at = 0; (at = span_find(p->answer, at, word)) <= p->answer.n; at++) {
        size_t begin = at + word.n, end = begin;
        while (end < p->answer.n && char_is_digit(p->answer.c[end])) end++;
        if (end > begin) return share_of_numbers(p->prediction, span_from(p->answer, begin, end), score, e);
    }
    return err_set(e, ST_FORMAT, "retrieval: the answer names no paragraph number");
}

status score_retrieval(const metric_pair *p, double *score, err *e)
{
    static const int32_t word[] = {'P', 'a', 'r', 'a', 'g', 'r', 'a', 'p', 'h', ' '};
    return retrieval(p, (span){word, sizeof word / sizeof *word}, score, e);
}

status score_retrieval_zh(const metric_pair *p, double *score, err *e)
{
    static const int32_t word[] = {0x6bb5, 0x843d}; /* "paragraph" */
    return retrieval(p, (span){word, sizeof word / sizeof *word}, score, e);
}

/* ---- labels that a prediction contains ---- */

/* True if s contains `part` after a change of case. */
static status contains_cased(bool *out, span s, span part, status (*change)(text *, span, err *), err *e)
{
    text a = {0}, b = {0};
    status st = change(&a, s, e);
    if (st == ST_OK) st = change(&b, part, e);
    if (st == ST_OK) *out = span_contains(text_span(&a), text_span(&b));
    text_free(&a);
    text_free(&b);
    return st;
}

/* The share of the labels that the lower-cased prediction contains. */
static status share_found(const metric_pair *p, double *score, err *e)
{
    size_t found = 0;
    for (size_t i = 0; i < p->n_answers; i++) {
        bool one = false;
        TRY(contains_cased(&one, p->prediction, p->answers[i], text_lower, e));
        found += one;
    }
    *score = (double)found / (double)p->n_answers;
    return ST_OK;
}

/* SCBench (doc/evals.md 16; microsoft/MInference scbench/compute_scores.py). */
status score_contains(const metric_pair *p, double *score, err *e)
{
    (void)e;
    *score = span_contains(p->prediction, p->answer);
    return ST_OK;
}

status score_contains_upper(const metric_pair *p, double *score, err *e)
{
    bool found = false;
    TRY(contains_cased(&found, span_strip(p->prediction), p->answer, text_upper, e));
    *score = found;
    return ST_OK;
}

status score_share_found(const metric_pair *p, double *score, err *e)
{
    TRY(share_found(p, score, e));
    *score = round_decimals(*score, 2);
    return ST_OK;
}

/* RULER (evals.md 15.5; NVIDIA/RULER scripts/eval/): nothing white is at the ends of the prediction, and control
 * characters become newlines. */
static status ruler(const metric_pair *p, const span *answers, size_t n, double *score, err *e)
{
    text low;
    metric_pair cleaned = *p;
    TRY(text_lower(&low, span_strip(p->prediction), e));
    for (size_t i = 0; i < low.n; i++)
        if (low.c[i] < 0x20) low.c[i] = '\n';
    cleaned.prediction = span_strip(text_span(&low));
    cleaned.answers = answers;
    cleaned.n_answers = n;
    status st = share_found(&cleaned, score, e);
    text_free(&low);
    return st;
}

status score_ruler_all(const metric_pair *p, double *score, err *e)
{
    return ruler(p, p->answers, p->n_answers, score, e);
}

status score_ruler_part(const metric_pair *p, double *score, err *e)
{
    return ruler(p, &p->answer, 1, score, e);
}
