/* SPDX-License-Identifier: MIT */
/* The scores of InfiniteBench's tasks: what counts as an answer in a text that a model wrote. evals.md 6.2 and 6.3;
 * OpenBMB/InfiniteBench compute_scores.py (88b3daa) and thunlp/InfLLM infinitebench_eval.py. Its number scores are in
 * infinitebench_math.c, its summary's in rouge_sum.c. */
#include "config.h"

#include <string.h>

#include "eval/metrics/impl.h"
#include "kernels/base/mem.h"

/* ---- text ---- */

/* A copy with a space for each of the characters. */
static status blank(text *out, span in, const char *chars, err *e)
{
    *out = (text){0};
    TRY(MEM_NEW(&out->c, in.n, e));
    for (size_t i = 0; i < in.n; i++) {
        int32_t c = in.c[i];
        out->c[out->n++] = c > 0 && c < 0x80 && strchr(chars, (int)c) ? ' ' : c;
    }
    return ST_OK;
}

static bool begins_with_word(span s, const char *word)
{
    size_t i = 0;
    while (word[i] && i < s.n && s.c[i] == (unsigned char)word[i]) i++;
    return word[i] == 0;
}

/* One space for each "Option" and "option". */
static void blank_options(text *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        span rest = span_from(text_span(t), i, t->n);
        if (begins_with_word(rest, "Option") || begins_with_word(rest, "option")) {
            t->c[kept++] = ' ';
            i += strlen("option") - 1;
        } else {
            t->c[kept++] = t->c[i];
        }
    }
    t->n = kept;
}

/* One space for each run of them. */
static void collapse_spaces(text *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->c[i] != ' ' || kept == 0 || t->c[kept - 1] != ' ') t->c[kept++] = t->c[i];
    t->n = kept;
}

static bool begins_with(span s, span part)
{
    return part.n <= s.n && span_equal(span_from(s, 0, part.n), part);
}

typedef enum { PREFIX_NONE, PREFIX_AT_END, PREFIX_SKIPPED } prefix_found;

/* Takes everything up to the first occurrence of a prefix and one character more off *s: of the first prefix in the
 * list that occurs at all. At the very end of the text there is no such character, and *s stays. */
static prefix_found skip_prefix(span *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++) {
        size_t n = strlen(*prefixes);
        for (size_t i = 0; i + n <= s->n; i++) {
            if (!begins_with_word(span_from(*s, i, s->n), *prefixes)) continue;
            if (s->n < i + n + 1) return PREFIX_AT_END;
            *s = span_from(*s, i + n + 1, s->n);
            return PREFIX_SKIPPED;
        }
    }
    return PREFIX_NONE;
}

/* word in "ABCD", as a substring. */
static bool is_in_abcd(span word)
{
    for (size_t i = 0; i < word.n; i++)
        if (word.c[i] < 'A' || word.c[i] > 'D' || word.c[i] != word.c[0] + (int32_t)i) return false;
    return word.n > 0;
}

/* ---- retrieval, dialogue ---- */

static const char RETRIEVAL_MARKS[] = "\n:\"'.,?!{}";

status score_first_number(const metric_pair *p, double *score, err *e)
{
    span s = p->prediction;
    size_t begin = 0, end;
    (void)e;
    while (begin < s.n && !(s.c[begin] >= '0' && s.c[begin] <= '9')) begin++;
    for (end = begin; end < s.n && s.c[end] >= '0' && s.c[end] <= '9';) end++;
    *score = span_equal(span_from(s, begin, end), p->answer);
    return ST_OK;
}

static status score_words(span words_of, span label, double *score, err *e)
{
    span_list words = {0};
    status st = span_split(&words, words_of, e);
    *score = 0;
    for (size_t i = 0; i < words.n; i++)
        if (span_equal(words.s[i], label)) *score = 1;
    span_list_free(&words);
    return st;
}

status score_kv_retrieval(const metric_pair *p, double *score, err *e)
{
    text t;
    TRY(blank(&t, p->prediction, RETRIEVAL_MARKS, e));
    status st = score_words(text_span(&t), p->answer, score, e);
    text_free(&t);
    return st;
}

/* The first of the names alone counts. */
status score_longdialogue(const metric_pair *p, double *score, err *e)
{
    text t, up = {0};
    TRY(blank(&t, p->prediction, RETRIEVAL_MARKS, e));
    status st = text_upper(&up, text_span(&t), e);
    if (st == ST_OK) st = score_words(text_span(&up), p->answers[0], score, e);
    text_free(&t);
    text_free(&up);
    return st;
}

/* ---- choices ---- */

/* Labels are the text of the right option and its letter. */
static status check_choice(const metric_pair *p, const char *task, err *e)
{
    if (p->n_answers == 2 && p->answers[1].n == 1 && is_in_abcd(p->answers[1])) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: expected two answers, an option and its letter (A to D)", task);
}

static bool is_label(const metric_pair *p, span s)
{
    return span_equal(s, p->answers[0]) || span_equal(s, p->answers[1]);
}

static bool begins_with_label(const metric_pair *p, span s)
{
    return begins_with(s, p->answers[0]) || begins_with(s, p->answers[1]);
}

static status choice_text(text *out, span in, err *e)
{
    TRY(blank(out, in, "\n\"'.,?!{}", e));
    collapse_spaces(out);
    return ST_OK;
}

static const char *const choice_prefixes[] = {"answer is:", "answer:", "answer is", "option is", NULL};

/* The first word that is a part of "ABCD"; empty: there is none. */
static status find_letter(span *out, span s, err *e)
{
    span_list words = {0};
    status st = span_split(&words, s, e);
    *out = (span){0};
    for (size_t i = 0; i < words.n && out->n == 0; i++)
        if (is_in_abcd(words.s[i])) *out = words.s[i];
    span_list_free(&words);
    return st;
}

status score_choice(const metric_pair *p, double *score, err *e)
{
    span s = span_strip(p->prediction), letter;
    text t;
    TRY(check_choice(p, "longbook_choice_eng", e));
    if (s.n == 0) return ST_OK;
    if (is_in_abcd(span_from(s, 0, 1))) {
        *score = is_label(p, span_from(s, 0, 1));
        return ST_OK;
    }
    if (is_label(p, s)) {
        *score = 1;
        return ST_OK;
    }
    TRY(choice_text(&t, s, e));
    status st = ST_OK;
    s = text_span(&t);
    prefix_found found = skip_prefix(&s, choice_prefixes);
    if (found == PREFIX_SKIPPED) {
        *score = begins_with_label(p, s);
    } else if (found == PREFIX_NONE) {
        st = find_letter(&letter, s, e);
        *score = letter.n && is_label(p, letter);
    }
    text_free(&t);
    return st;
}

/* After a prefix any character of the label does, whether letter or option: "Tango" for the label "Tom". */
status score_choice_infllm(const metric_pair *p, double *score, err *e)
{
    span s = p->prediction, letter;
    text t;
    if (s.n == 0) return ST_OK;
    if (is_in_abcd(span_from(s, 0, 1))) {
        *score = span_equal(span_from(s, 0, 1), p->answer);
        return ST_OK;
    }
    TRY(choice_text(&t, s, e));
    status st = ST_OK;
    s = text_span(&t);
    prefix_found found = skip_prefix(&s, choice_prefixes);
    if (found == PREFIX_SKIPPED) {
        for (size_t i = 0; i < p->answer.n; i++)
            if (s.n && s.c[0] == p->answer.c[i]) *score = 1;
    } else if (found == PREFIX_NONE) {
        st = find_letter(&letter, s, e);
        *score = letter.n && span_equal(letter, p->answer);
    }
    text_free(&t);
    return st;
}

static bool begins_with_letter(const metric_pair *p, span s)
{
    return s.n >= 2 && s.c[0] == p->answers[1].c[0] && (s.c[1] == '.' || s.c[1] == ':');
}

static status debug_text(text *out, span in, err *e)
{
    TRY(blank(out, span_strip(in), "\n`'\"-*", e));
    blank_options(out);
    collapse_spaces(out);
    return ST_OK;
}

status score_code_debug(const metric_pair *p, double *score, err *e)
{
    static const char *const prefixes[] = {"answer is:", "is:", "answer:", "correct option is:", NULL};
    span s = span_strip(p->prediction);
    text t;
    TRY(check_choice(p, "code_debug", e));
    if (begins_with_letter(p, s)) {
        *score = 1;
        return ST_OK;
    }
    TRY(debug_text(&t, s, e));
    s = text_span(&t);
    *score = skip_prefix(&s, prefixes) == PREFIX_SKIPPED && begins_with_label(p, s);
    text_free(&t);
    return ST_OK;
}

/* Two stages, the second on what the first one left. Where neither finds a prefix the original draws a letter by a
 * generator that it seeds with the function's name; here that is a 0 which says so. */
status score_code_debug_infllm(const metric_pair *p, double *score, err *e)
{
    static const char *const stage[2][4] = {{"answer is:", "is:", "answer:", NULL},
                                            {"answer is", "error is", NULL, NULL}};
    bool any = false, right = false;
    text t;
    TRY(check_choice(p, "code_debug", e));
    if (begins_with_letter(p, p->prediction)) {
        *score = 1;
        return ST_OK;
    }
    TRY(debug_text(&t, p->prediction, e));
    span s = text_span(&t);
    for (int i = 0; i < 2; i++) {
        prefix_found found = skip_prefix(&s, stage[i]);
        any |= found != PREFIX_NONE;
        right |= found == PREFIX_SKIPPED && begins_with_label(p, s);
    }
    *score = right;
    metrics_set_undecided(p->m, !any);
    text_free(&t);
    return ST_OK;
}
