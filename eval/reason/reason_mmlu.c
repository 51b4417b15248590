/* SPDX-License-Identifier: MIT */
/* Prompts of MMLU: the next token is compared among those that begin " A" to " D". */
#include "config.h"

#include "eval/reason/reason_run.h"

#include <string.h>

#include "kernels/base/mem.h"

static size_t common(const token_list *a, const token_list *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* Tokens of the text up to byte n, with `more` behind them. */
static status encode(token_list *out, const reason_run *r, const prompt_text *text, size_t n, const char *more, err *e)
{
    prompt_text t = {.n = n + strlen(more)};
    prompt_tokens tokens = {0};
    TRY(mem_alloc((void **)&t.s, t.n + 1, 1, "prompt", e));
    memcpy(t.s, text->s, n);
    memcpy(t.s + n, more, strlen(more));
    status st = prompter_encode(&tokens, &r->ev->prompter, true, &t, t.n, e);
    mem_free(t.s);
    *out = tokens.head;
    return st;
}

/* What the four continuations share goes into *head; each ends in one token more. */
static status encode_choices(token_list *head, int32_t *only, const reason_run *r, const prompt_text *text, err *e)
{
    static const char *const more[REASON_CHOICES] = {" A", " B", " C", " D"};
    token_list ids[REASON_CHOICES] = {0};
    status st = ST_OK;
    size_t same = SIZE_MAX;
    for (size_t i = 0; i < REASON_CHOICES && st == ST_OK; i++) {
        st = encode(&ids[i], r, text, text->n, more[i], e);
        size_t k = st == ST_OK ? common(&ids[0], &ids[i]) : 0;
        if (i > 0 && k < same) same = k;
    }
    for (size_t i = 0; i < REASON_CHOICES && st == ST_OK; i++) {
        if (ids[i].n != same + 1)
            st = err_set(e, ST_UNSUPPORTED, "the tokenizer does not end \" A\" to \" D\" in one token each");
        else only[i] = ids[i].ids[same];
    }
    if (st == ST_OK) {
        *head = ids[0];
        head->n = same;
        ids[0] = (token_list){0};
    }
    for (size_t i = 0; i < REASON_CHOICES; i++) token_list_free(&ids[i]);
    return st;
}

/* The question's tokens, from where it begins, go to the tail. */
static status cut(evaluation_item *out, const reason_run *r, const prompt_text *text, size_t begins, err *e)
{
    token_list before = {0}, *head = &out->tokens.head;
    status st = encode(&before, r, text, begins, "", e);
    size_t n = common(&before, head);
    token_list_free(&before);
    if (n == 0 && st == ST_OK) n = 1; /* something is prefilled */
    for (size_t i = n; i < head->n && st == ST_OK; i++) st = token_list_push(&out->tokens.tail, head->ids[i], e);
    if (st == ST_OK && n < head->n) head->n = n;
    return st;
}

status reason_mmlu_item(reason_run *r, size_t i, evaluation_item *out, err *e)
{
    const reason_problem *x = &r->data.s[i];
    const prompter *p = &r->ev->prompter;
    size_t begins, shots = (size_t)r->o->shots;
    prompt_text text = {0};
    status st;
    /* A prompt that is too long has fewer shots. */
    for (;; shots--) {
        TRY_GOTO(reason_fill_mmlu(&text, &begins, &r->protocol, &r->data, x, shots, e));
        TRY_GOTO(encode_choices(&out->tokens.head, r->only[i], r, &text, e));
        if (out->tokens.head.n <= p->max_length || shots == 0) break;
        token_list_free(&out->tokens.head);
        mem_free(text.s);
        text = (prompt_text){0};
    }
    r->fewer_shots += shots < (size_t)r->o->shots;
    out->only = r->only[i];
    out->n_only = REASON_CHOICES;
    if (p->decode) st = cut(out, r, &text, begins, e);
done:
    mem_free(text.s);
    return st;
}
