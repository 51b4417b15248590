/* SPDX-License-Identifier: MIT */
/* Common words and frequent words. Source: NVIDIA/RULER scripts/data/synthetic/common_words_extraction.py,
 * freq_words_extraction.py. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

/* ---- common words ---- */

/* Occurrences of a common word and of another word in a list; words in the example's list. */
typedef struct {
    size_t common, other, example;
} often;

enum { COMMON = 10, SHORT_LENGTH = 4096 };

static const often usual = {30, 3, 40}, of_short = {6, 1, 20}, of_example = {10, 3, 0}, of_short_example = {3, 1, 0};

status ruler_cwe_start(ruler_maker *m, err *e)
{
    size_t n = ruler_common_words(m->in->words);
    TRY(MEM_NEW(&m->order, n, e));
    python_shuffled(m->order, n, m->seed);
    return ST_OK;
}

static status put_numbered(prompt_text *out, size_t number, const char *word, err *e)
{
    char text[32];
    snprintf(text, sizeof text, "%s%zu. ", number > 1 ? " " : "", number);
    TRY(prompt_puts(out, text, e));
    return prompt_puts(out, word, e);
}

/* Appends "1. w 2. w ...": each common word o->common times, each other word o->other times. */
static status put_list(ruler_maker *m, const uint32_t *word, size_t n, const often *o, err *e)
{
    size_t common = n < COMMON ? n : COMMON, first = common * o->common, all = first + (n - common) * o->other;
    uint32_t *order;
    status st = MEM_NEW(&order, all, e);
    if (st == ST_OK) python_shuffled(order, all, m->seed);
    for (size_t i = 0; i < all && st == ST_OK; i++) {
        size_t k = order[i] < first ? order[i] % common : common + (order[i] - first) % (n - common);
        st = put_numbered(&m->context, i + 1, ruler_common_word(m->in->words, m->order[word[k]]), e);
    }
    mem_free(order);
    return st;
}

/* Appends the prompt with a list of n words, which ends in the answer prefix. */
static status put_prompt(ruler_maker *m, const uint32_t *word, size_t n, const often *o, err *e)
{
    m->context.n = 0;
    TRY(put_list(m, word, n, o, e));
    const prompt_field f[] = {{"{context}", {m->context.s, m->context.n}}};
    return ruler_builder_fill(m, f, 1, e);
}

static status put_example(ruler_maker *m, uint32_t *word, size_t n, const often *o, err *e)
{
    prompt_text *out = &m->builder.text;
    TRY(python_sample(&m->python, word, ruler_common_words(m->in->words), n, e));
    TRY(put_prompt(m, word, n, o, e));
    if (!m->in->old) TRY(prompt_add(out, " ", 1, e));
    for (size_t i = 0; i < COMMON; i++)
        TRY(put_numbered(out, i + 1, ruler_common_word(m->in->words, m->order[word[i]]), e));
    return prompt_add(out, "\n", 1, e);
}

static status put_both(ruler_maker *m, uint32_t *word, size_t n, err *e)
{
    bool small = m->length < SHORT_LENGTH;
    const often *o = small ? &of_short : &usual;
    TRY(put_example(m, word, o->example, small ? &of_short_example : &of_example, e));
    TRY(python_sample(&m->python, word, ruler_common_words(m->in->words), n, e));
    TRY(put_prompt(m, word, n, o, e));
    for (size_t i = 0; i < n && i < COMMON; i++)
        TRY(ruler_builder_answer(m, utf8_of(ruler_common_word(m->in->words, m->order[word[i]])), e));
    return ST_OK;
}

status ruler_cwe(ruler_maker *m, int64_t n, err *e)
{
    uint32_t *word;
    size_t most = ruler_common_words(m->in->words);
    TRY(ruler_builder_start(m, e));
    if ((size_t)n > most) {
        m->builder.failed = "more words than the list has";
        m->too_few_words = true;
        return ST_OK;
    }
    TRY(MEM_NEW(&word, most, e));
    status st = put_both(m, word, (size_t)n, e);
    mem_free(word);
    return st;
}

/* ---- frequent words ---- */

enum { LETTERS = 6, LEAST_WORDS = 4, TOKENS_A_WORD = 50, GUESS = 6, STEPS = 32 };

typedef struct {
    char (*word)[LETTERS + 1]; /* sorted, distinct */
    uint32_t *rank;            /* [rank] index of the word; rank 0 is written as dots */
    size_t n;
} vocabulary;

static int by_word(const void *a, const void *b)
{
    return strcmp(a, b);
}

static size_t distinct(char (*word)[LETTERS + 1], size_t n)
{
    size_t k = 0;
    qsort(word, n, sizeof *word, by_word);
    for (size_t i = 0; i < n; i++)
        if (k == 0 || strcmp(word[k - 1], word[i]) != 0) memmove(word[k++], word[i], sizeof *word);
    return k;
}

static status draw_vocabulary(ruler_maker *m, vocabulary *v, size_t n, err *e)
{
    *v = (vocabulary){.n = n};
    TRY(MEM_NEW(&v->word, n, e));
    TRY(MEM_NEW(&v->rank, n, e));
    for (size_t k = 0; k < n; k = distinct(v->word, n)) {
        for (; k < n; k++) python_letters(&m->python, v->word[k], LETTERS, 'a', 26);
    }
    python_shuffled(v->rank, n, m->seed);
    return ST_OK;
}

static void free_vocabulary(vocabulary *v)
{
    mem_free(v->word);
    mem_free(v->rank);
}

static const char *spelled(const vocabulary *v, size_t rank)
{
    return rank == 0 ? "..." : v->word[v->rank[rank]];
}

/* Returns how often the word of a rank occurs in about n words: a zeta distribution with exponent 2. */
static size_t count_of(int64_t n, size_t rank)
{
    const double zeta2 = 1.6449340668482264;
    return (size_t)((double)n * pow((double)(rank + 1), -2.0) / zeta2);
}

static status put_words(ruler_maker *m, const vocabulary *v, int64_t n, err *e)
{
    prompt_text *out = &m->context;
    size_t all = 0, k = 0;
    uint32_t *order = NULL, *rank = NULL;
    status st;
    for (size_t i = 0; i < v->n; i++) all += count_of(n, i);
    TRY_GOTO(MEM_NEW(&order, all, e));
    TRY_GOTO(MEM_NEW(&rank, all, e));
    for (size_t i = 0; i < v->n; i++)
        for (size_t c = count_of(n, i); c > 0; c--) rank[k++] = (uint32_t)i;
    python_shuffled(order, all, m->seed);
    for (size_t i = 0; i < all; i++) {
        if (i > 0) TRY_GOTO(prompt_add(out, " ", 1, e));
        TRY_GOTO(prompt_puts(out, spelled(v, rank[order[i]]), e));
    }
done:
    mem_free(order);
    mem_free(rank);
    return st;
}

/* Builds a sample with about n words and counts its tokens. */
static status try_words(ruler_maker *m, const vocabulary *v, int64_t n, int64_t *tokens, err *e)
{
    TRY(ruler_builder_start(m, e));
    TRY(put_words(m, v, n, e));
    const prompt_field f[] = {{"{context}", {m->context.s, m->context.n}}};
    TRY(ruler_builder_fill(m, f, 1, e));
    for (size_t i = 1; i < LEAST_WORDS; i++) TRY(ruler_builder_answer(m, utf8_of(v->word[v->rank[i]]), e));
    return ruler_count(&m->in->counter, m->builder.text.s, m->builder.text.n, tokens, e);
}

/* Returns the maximum number of prompt tokens. RULER of 2024 left no room for new tokens. */
static int64_t most_tokens(const ruler_maker *m)
{
    return m->length - (m->in->old ? 0 : m->in->templates.n_new[RULER_FWE]);
}

status ruler_fwe_start(ruler_maker *m, err *e)
{
    int64_t most = most_tokens(m), tokens;
    vocabulary v;
    if (most < LEAST_WORDS * TOKENS_A_WORD)
        return err_set(e, ST_USAGE, "--length %lld: too short for fwe; at least %lld tokens are needed",
                       (long long)m->length, (long long)(m->length - most + LEAST_WORDS * TOKENS_A_WORD));
    m->step = most / STEPS;
    m->size = most / GUESS;
    status st = draw_vocabulary(m, &v, (size_t)(most / TOKENS_A_WORD), e);
    if (st == ST_OK) st = try_words(m, &v, m->size, &tokens, e);
    while (st == ST_OK && tokens < most) {
        m->size += m->step;
        st = try_words(m, &v, m->size, &tokens, e);
    }
    m->size -= m->step;
    free_vocabulary(&v);
    return st;
}

status ruler_fwe(ruler_maker *m, int64_t *tokens, err *e)
{
    int64_t most = most_tokens(m), n = m->size;
    vocabulary v;
    status st = draw_vocabulary(m, &v, (size_t)(most / TOKENS_A_WORD), e);
    if (st == ST_OK) st = try_words(m, &v, n, tokens, e);
    while (st == ST_OK && *tokens > most) {
        m->least = *tokens + m->in->templates.n_new[RULER_FWE];
        n -= m->step;
        st = n < 0 ? ruler_too_short(m, e) : try_words(m, &v, n, tokens, e);
    }
    *tokens += m->in->templates.n_new[RULER_FWE];
    free_vocabulary(&v);
    return st;
}
