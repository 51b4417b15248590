/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tokenizer/impl.h"

typedef struct {
    const tokenizer *t;
    const char *begin;      /* the whole text */
    const char *normalized; /* its normalized beginning, NULL within it */
    bpe_scratch scratch;
    token_list *out;
} encoder;

typedef status span_fn(encoder *en, marked_text m, err *e);

static marked_text part(marked_text m, size_t from, size_t to)
{
    return (marked_text){m.text + from, to - from, m.input ? m.input + from : NULL, m.all_input};
}

/* Splits text at added tokens: appends their ids, and passes the text between them to fn. */
static status cut_added(encoder *en, marked_text m, bool normalized, span_fn *fn, err *e)
{
    size_t done = 0, start, end;
    const added_token *a;
    while ((a = added_find(&en->t->added, m, done, normalized, &start, &end))) {
        TRY(fn(en, part(m, done, start), e));
        TRY(token_list_push(en->out, a->id, e));
        done = end;
    }
    return fn(en, part(m, done, m.n), e);
}

static status on_piece(void *ctx, const char *piece, size_t n, err *e)
{
    encoder *en = ctx;
    return bpe_encode(en->t->bpe, piece, n, &en->scratch, en->out, e);
}

static status encode_normalized(encoder *en, marked_text m, err *e)
{
    return pretok_run(en->t->pre, m.text, m.n, m.text == en->normalized, on_piece, en, e);
}

/* Encodes valid UTF-8. */
static status encode_valid(encoder *en, marked_text m, err *e)
{
    char *changed;
    unsigned char *input;
    size_t n;
    if (m.n == 0) return ST_OK;
    const bool begins = m.text == en->begin;
    TRY(normalizer_run_marked(&en->t->normalizer, &changed, &n, &input, m.text, m.n, m.input, e));
    if (changed) m = (marked_text){changed, n, input, m.all_input};
    en->normalized = begins ? m.text : NULL;
    status st = cut_added(en, m, true, encode_normalized, e);
    mem_free(changed);
    mem_free(input);
    return st;
}

/* Encodes text without added tokens. Invalid bytes become byte tokens one by one; the text between them is encoded
 * separately. */
static status encode_span(encoder *en, marked_text m, err *e)
{
    if (en->t->spm) return spm_model_encode(en->t, m.text, m.n, en->out, e);
    size_t done = 0;
    for (size_t i = 0; i < m.n;) {
        int k = utf8_valid_len((const unsigned char *)m.text + i, m.n - i);
        if (k) {
            i += (size_t)k;
            continue;
        }
        TRY(encode_valid(en, part(m, done, i), e));
        TRY(bpe_encode_byte(en->t->bpe, (unsigned char)m.text[i], en->out, e));
        done = ++i;
    }
    return encode_valid(en, part(m, done, m.n), e);
}

static status encode(const tokenizer *t, marked_text m, token_list *out, err *e)
{
    encoder en = {.t = t, .begin = m.text, .out = out};
    if (m.n > INT32_MAX / 2)
        return err_set(e, ST_UNSUPPORTED, "text of %zu bytes: at most %d are supported", m.n, INT32_MAX / 2);
    status st = cut_added(&en, m, false, encode_span, e);
    bpe_scratch_free(&en.scratch);
    return st;
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out, err *e)
{
    const size_t before = out->n;
    status st = ST_OK;
    if (flags & TOKENIZE_BOS) {
        for (size_t i = 0; i < t->prefix.n && st == ST_OK; i++) st = token_list_push(out, t->prefix.ids[i], e);
        if (t->prefix.n == 0 && t->bos >= 0) st = token_list_push(out, t->bos, e);
    }
    if (st == ST_OK) st = encode(t, (marked_text){text, n, NULL, !(flags & TOKENIZE_SPECIAL)}, out, e);
    if (st != ST_OK) out->n = before; /* all or nothing */
    return st;
}

bool tokenizer_begins_with_bos(const tokenizer *t, const char *text, size_t n)
{
    size_t start, end;
    const marked_text m = {text, n, NULL, false};
    const added_token *first = added_find(&t->added, m, 0, false, &start, &end);
    return first && start == 0 && first->id == t->bos;
}

status tokenizer_encode_prompt(const tokenizer *t, const char *text, size_t n, bool bos, token_list *out, err *e)
{
    const bool has_bos = tokenizer_begins_with_bos(t, text, n);
    return tokenizer_encode(t, text, n, TOKENIZE_SPECIAL | (bos && t->adds_bos && !has_bos ? TOKENIZE_BOS : 0), out, e);
}

status tokenizer_encode_marked(const tokenizer *t, const char *text, size_t n, const unsigned char *input,
                               token_list *out, err *e)
{
    const size_t before = out->n;
    status st = encode(t, (marked_text){text, n, input, false}, out, e);
    if (st != ST_OK) out->n = before;
    return st;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    const added_token *a = added_by_id(&t->added, id);
    return a && a->special;
}

int32_t tokenizer_special_id(const tokenizer *t, const char *spelling)
{
    const added_token *a = added_by_text(&t->added, spelling, strlen(spelling));
    return a ? a->id : -1;
}
