/* SPDX-License-Identifier: MIT */
/* Scores based on words and labels: word overlap (evals.md 2.1, 2.2, 6.2), and equality of labels and numbers (2.5,
 * 2.6). */
#include "config.h"

#include "eval/metrics/impl.h"
#include "eval/metrics/regex.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* ---- F1 of two lists of tokens ---- */

/* Computes F1. `tokens` holds the n tokens of the prediction, then those of the answer. */
static status token_f1(const text_list *tokens, size_t n, double *score, err *e)
{
    size_t n_distinct, common = 0;
    uint32_t *id = NULL, *left = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&id, tokens->n, e));
    TRY_GOTO(text_number(id, &n_distinct, tokens, e));
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

/* Appends the tokens of a text, separated by white space. */
typedef status (*tokenize)(str *out, metrics *m, utf8_text s, err *e);

static status score_f1(const metric_pair *p, tokenize add_tokens, double *score, err *e)
{
    str said = {0}, answer = {0};
    text_list tokens = {0};
    status st;
    TRY_GOTO(add_tokens(&said, p->m, p->prediction, e));
    TRY_GOTO(add_tokens(&answer, p->m, p->answer, e));
    TRY_GOTO(str_check(&said, e));
    TRY_GOTO(str_check(&answer, e));
    TRY_GOTO(text_split(&tokens, str_text(&said), e));
    size_t n = tokens.n;
    TRY_GOTO(text_split(&tokens, str_text(&answer), e));
    st = token_f1(&tokens, n, score, e);
done:
    text_list_free(&tokens);
    str_free(&said);
    str_free(&answer);
    return st;
}

/* Appends the lower case of s without the dropped characters. */
static void add_lower(str *out, utf8_text s, bool (*is_dropped)(int32_t))
{
    str low = {0};
    str_add_lower(&low, s);
    utf8_text rest = str_text(&low);
    for (int32_t c; text_next(&rest, &c);)
        if (!is_dropped(c)) str_add_char(out, c);
    out->failed |= low.failed;
    str_free(&low);
}

static bool is_article(utf8_text s)
{
    return text_equal(s, utf8_of("a")) || text_equal(s, utf8_of("an")) || text_equal(s, utf8_of("the"));
}

/* normalize_answer(s): replaces a, an, the by spaces if they are whole runs of word characters. */
static status add_english(str *out, metrics *m, utf8_text s, err *e)
{
    text_list runs = {0};
    (void)m;
    add_lower(out, s, char_is_punct);
    status st = text_runs(&runs, str_text(out), char_is_word, e);
    for (size_t i = 0; i < runs.n; i++)
        if (is_article(runs.s[i])) memset(out->s + (runs.s[i].s - out->s), ' ', runs.s[i].n);
    text_list_free(&runs);
    return st;
}

static bool is_dropped_zh(int32_t c)
{
    return char_is_punct_zh(c) || is_python_space(c);
}

/* Appends the words of the raw text, each normalized by itself. */
static status add_chinese(str *out, metrics *m, utf8_text s, err *e)
{
    text_list words = {0};
    const segmenter *g;
    TRY(metrics_segmenter(m, &g, e));
    status st = segmenter_cut(g, s, &words, e);
    for (size_t i = 0; i < words.n; i++) {
        add_lower(out, words.s[i], is_dropped_zh);
        str_add(out, " ", 1);
    }
    text_list_free(&words);
    return st;
}

/* Appends each remaining character of the text as a token. */
static status add_characters(str *out, metrics *m, utf8_text s, err *e)
{
    str kept = {0};
    (void)m;
    add_lower(&kept, s, is_dropped_zh);
    utf8_text rest = str_text(&kept);
    for (int32_t c; text_next(&rest, &c); str_add(out, " ", 1)) str_add_char(out, c);
    status st = str_check(&kept, e);
    str_free(&kept);
    return st;
}

status score_qa_f1(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, add_english, score, e);
}

status score_qa_f1_zh(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, add_chinese, score, e);
}

status score_char_f1_zh(const metric_pair *p, double *score, err *e)
{
    return score_f1(p, add_characters, score, e);
}

/* ---- labels ---- */

/* Removes the first element that equals s from the list. */
static void remove_first(text_list *l, utf8_text s)
{
    size_t i = 0;
    while (!text_equal(l->s[i], s)) i++;
    for (l->n--; i < l->n; i++) l->s[i] = l->s[i + 1];
}

status score_classification(const metric_pair *p, double *score, err *e)
{
    text_list found = {0};
    status st = ST_OK;
    if (!p->classes) return err_set(e, ST_FORMAT, "classification: the list of classes (all_classes) is missing");
    for (size_t i = 0; i < p->n_classes && st == ST_OK; i++)
        if (text_contains(p->prediction, p->classes[i])) st = text_push(&found, p->classes[i], e);
    /* The original removes elements from the list while iterating over it, so it skips the label after a removed
     * one. */
    for (size_t i = 0; i < found.n; i++) {
        utf8_text label = found.s[i];
        if (text_contains(p->answer, label) && !text_equal(label, p->answer)) remove_first(&found, label);
    }
    *score = text_is_listed(&found, p->answer) ? 1.0 / (double)found.n : 0;
    text_list_free(&found);
    return st;
}

/* Scores the fraction of the prediction's numbers that are spelled exactly as `target`. */
static status fraction_of_numbers(utf8_text prediction, utf8_text target, double *score, err *e)
{
    text_list numbers = {0};
    size_t right = 0;
    status st = text_runs(&numbers, prediction, char_is_digit, e);
    for (size_t i = 0; i < numbers.n; i++) right += text_equal(numbers.s[i], target);
    *score = numbers.n ? (double)right / (double)numbers.n : 0;
    text_list_free(&numbers);
    return st;
}

status score_count(const metric_pair *p, double *score, err *e)
{
    return fraction_of_numbers(p->prediction, p->answer, score, e);
}

/* number: pattern of the paragraph number in the answer. */
static status retrieval(const metric_pair *p, const char *number, double *score, err *e)
{
    utf8_text target;
    bool found;
    TRY(regex_find(&target, &found, number, false, p->answer, e));
    if (!found) return err_set(e, ST_FORMAT, "retrieval: the answer has no paragraph number");
    return fraction_of_numbers(p->prediction, target, score, e);
}

status score_retrieval(const metric_pair *p, double *score, err *e)
{
    return retrieval(p, "Paragraph (\\p{Nd}+)", score, e);
}

status score_retrieval_zh(const metric_pair *p, double *score, err *e)
{
    return retrieval(p, "\\x{6bb5}\\x{843d}(\\p{Nd}+)", score, e);
}

/* ---- labels that a prediction contains ---- */

/* Scores the fraction of the labels that the lower-cased prediction contains. */
static status fraction_found(const metric_pair *p, double *score, err *e)
{
    size_t found = 0;
    for (size_t i = 0; i < p->n_answers; i++) {
        bool one = false;
        TRY(text_contains_cased(&one, p->prediction, p->answers[i], str_add_lower, e));
        found += one;
    }
    *score = (double)found / (double)p->n_answers;
    return ST_OK;
}

/* Scores of SCBench (doc/evals.md 16; microsoft/MInference scbench/compute_scores.py). */
status score_contains(const metric_pair *p, double *score, err *e)
{
    (void)e;
    *score = text_contains(p->prediction, p->answer);
    return ST_OK;
}

status score_contains_upper(const metric_pair *p, double *score, err *e)
{
    bool found = false;
    TRY(text_contains_cased(&found, text_strip(p->prediction), p->answer, str_add_upper, e));
    *score = found;
    return ST_OK;
}

status score_fraction_found(const metric_pair *p, double *score, err *e)
{
    TRY(fraction_found(p, score, e));
    *score = round_decimals(*score, 2);
    return ST_OK;
}

/* Scores RULER (evals.md 15.5; NVIDIA/RULER scripts/eval/): the prediction is stripped, and control characters become
 * newlines. */
static status ruler(const metric_pair *p, const utf8_text *answers, size_t n, double *score, err *e)
{
    str low = {0};
    metric_pair cleaned = *p;
    str_add_lower(&low, text_strip(p->prediction));
    for (size_t i = 0; i < low.n; i++)
        if (low.s[i] >= 0 && low.s[i] < 0x20) low.s[i] = '\n';
    cleaned.prediction = text_strip(str_text(&low));
    cleaned.answers = answers;
    cleaned.n_answers = n;
    status st = str_check(&low, e);
    if (st == ST_OK) st = fraction_found(&cleaned, score, e);
    str_free(&low);
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
