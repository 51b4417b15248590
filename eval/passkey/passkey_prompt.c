/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/passkey/passkey_prompt.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

static const char intro[] =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n";
/* One period of the garbage, with the space before the next one. */
static const char garbage[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
static const char question[] = "\n" PASSKEY_QUESTION " The pass key is";
static const char asked_first[] = PASSKEY_QUESTION "\n"; /* after the intro */

int64_t passkey_key(uint64_t seed, int64_t ctx, int64_t t)
{
    rng r = {seed};
    r.state = rng_next(&r) ^ (uint64_t)ctx;
    r.state = rng_next(&r) ^ (uint64_t)t;
    return 1 + (int64_t)rng_below(&r, PASSKEY_KEYS);
}

int64_t passkey_before(int64_t n, int64_t t, int64_t trials)
{
    return (int64_t)((__int128)n * (t + 1) / trials);
}

/* Appends the first n characters of the repeated garbage. The reference stops after 10,000 sentences; up to there the
 * texts agree. */
static status add_garbage(prompt_text *out, int64_t n, err *e)
{
    const int64_t period = sizeof garbage - 1;
    for (; n > 0; n -= period) TRY(prompt_add(out, garbage, (size_t)(n < period ? n : period), e));
    return ST_OK;
}

status passkey_text(prompt_text *out, int64_t n, int64_t before, int64_t key, bool ask_first, err *e)
{
    char needle[96];
    *out = (prompt_text){0};
    snprintf(needle, sizeof needle, "\nThe pass key is %lld. Remember it. %lld is the pass key.\n", (long long)key,
             (long long)key);
    TRY(prompt_puts(out, intro, e));
    if (ask_first) TRY(prompt_puts(out, asked_first, e));
    TRY(add_garbage(out, before, e));
    TRY(prompt_puts(out, needle, e));
    TRY(add_garbage(out, n - before, e));
    return prompt_puts(out, question, e);
}

status passkey_encode(prompt_tokens *out, const tokenizer *tok, const prompt_text *text, size_t tail_chars, err *e)
{
    size_t head = text->n - (tail_chars < text->n ? tail_chars : text->n);
    TRY(tokenizer_encode(tok, text->s, head, tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0, &out->head, e));
    return head < text->n ? tokenizer_encode(tok, text->s + head, text->n - head, 0, &out->tail, e) : ST_OK;
}

static status count_tokens(int64_t *out, const tokenizer *tok, int64_t n, bool ask_first, err *e)
{
    prompt_text text;
    prompt_tokens t = {0};
    status st = passkey_text(&text, n, n / 2, PASSKEY_KEYS, ask_first, e);
    if (st == ST_OK) st = passkey_encode(&t, tok, &text, 0, e);
    *out = (int64_t)t.head.n;
    prompt_tokens_free(&t);
    mem_free(text.s);
    return st;
}

/* The token count is almost linear in n: one measurement gives a guess, which is then corrected. */
status passkey_fit(int64_t *n, const tokenizer *tok, int64_t ctx, bool ask_first, err *e)
{
    const int64_t sample = 100 * PASSKEY_GRAIN;
    int64_t room = ctx - PASSKEY_NEW - PASSKEY_SPARE, least, many, count;
    TRY(count_tokens(&least, tok, 0, ask_first, e));
    if (least > room)
        return err_set(e, ST_USAGE,
                       "--ctx %lld: too short for a passkey prompt, which takes at least %lld "
                       "tokens with this vocabulary",
                       (long long)ctx, (long long)(least + PASSKEY_NEW + PASSKEY_SPARE));
    TRY(count_tokens(&many, tok, sample, ask_first, e));
    double rate = many > least ? (double)sample / (double)(many - least) : 1;
    int64_t best = (int64_t)((double)(room - least) * rate) / PASSKEY_GRAIN * PASSKEY_GRAIN;
    for (count = INT64_MAX; best > 0; best -= PASSKEY_GRAIN) {
        TRY(count_tokens(&count, tok, best, ask_first, e));
        if (count <= room) break;
    }
    for (;; best += PASSKEY_GRAIN) {
        TRY(count_tokens(&count, tok, best + PASSKEY_GRAIN, ask_first, e));
        if (count > room) break;
    }
    *n = best;
    return ST_OK;
}

int64_t passkey_answer(const char *text, size_t len)
{
    size_t i = 0;
    int64_t value = 0;
    while (i < len && (text[i] < '0' || text[i] > '9')) i++;
    if (i == len) return -1;
    for (; i < len && text[i] >= '0' && text[i] <= '9'; i++)
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(text[i] - '0'), &value))
            return INT64_MAX;
    return value;
}
