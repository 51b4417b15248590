/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/longbench/longbench.h"

#include <string.h>

#include "kernels/base/mem.h"

enum { QUESTION_CHARACTERS = 100 };

/* Byte of the last occurrence of the dataset's question, n: none. */
static size_t find_question(const longbench_dataset *d, const char *s, size_t n)
{
    size_t len = d->question ? strlen(d->question) : 0;
    for (size_t i = len && n >= len ? n - len + 1 : 0; i-- > 0;)
        if (memcmp(s + i, d->question, len) == 0) return i;
    return n;
}

/* max(len(prompt) - 100, position) of Quest, whose position is -1 where there is none: in a prompt of less than 100
 * characters -1 then means its last one. */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n)
{
    size_t chars = prompt_characters(s, n), found = find_question(d, s, n);
    if (chars < QUESTION_CHARACTERS) return found < n ? found : prompt_character_at(s, n, chars ? chars - 1 : 0);
    size_t last = prompt_character_at(s, n, chars - QUESTION_CHARACTERS);
    return found < n && found > last ? found : last;
}

status longbench_stops(token_list *out, const tokenizer *tok, const longbench_dataset *d, err *e)
{
    token_list newline = {0};
    TRY(tokenizer_eos_ids(tok, out, e));
    if (!d->newline_stops) return ST_OK;
    status st = tokenizer_encode(tok, "\n", 1, 0, &newline, e);
    if (st == ST_OK && newline.n) st = token_list_push(out, newline.ids[newline.n - 1], e);
    token_list_free(&newline);
    return st;
}

status longbench_max_length(size_t *out, int64_t window, err *e)
{
    if (window < 600)
        return err_set(e, ST_USAGE, "--max-length is needed: a window of %lld tokens is too short for a default",
                       (long long)window);
    *out = (size_t)(window < 2000 ? window : window / 1000 * 1000) - 500;
    return ST_OK;
}

static status wrap_and_encode(prompt_tokens *out, const prompter *p, const longbench_dataset *d, prompt_text *text,
                              err *e)
{
    TRY(prompter_wrap(out, p, d->chat, text, e));
    size_t cut = p->decode ? longbench_cut(d, text->s, text->n) : text->n;
    return prompter_encode(out, p, d->chat, text, cut, e);
}

status longbench_prompt_make(prompt_tokens *out, const prompter *p, const longbench_dataset *d, utf8_text context,
                             utf8_text input, err *e)
{
    const prompt_field fields[] = {{"{context}", context}, {"{input}", input}};
    prompt_text text;
    *out = (prompt_tokens){0};
    TRY(prompt_fill(&text, d->prompt, fields, 2, e));
    status st = wrap_and_encode(out, p, d, &text, e);
    mem_free(text.s);
    return st;
}
