/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tokenizer/impl.h"
#include "tokenizer/normalize.h"

typedef struct {
    const tokenizer *t;
    bool special;
    bpe_scratch scratch;
    token_list *out;
} encoder;

typedef status span_fn(encoder *en, const char *text, size_t n, err *e);

/* Cuts added tokens out of the text: their ids go to the list, what is between them to fn. */
static status cut_added(encoder *en, const char *text, size_t n, bool normalized, span_fn *fn, err *e)
{
    size_t done = 0, start, end;
    const added_token *a;
    while ((a = added_find(&en->t->added, text, n, done, normalized, en->special, &start, &end))) {
        TRY(fn(en, text + done, start - done, e));
        TRY(token_list_push(en->out, a->id, e));
        done = end;
    }
    return fn(en, text + done, n - done, e);
}

static status on_piece(void *ctx, const char *piece, size_t n, err *e)
{
    encoder *en = ctx;
    return bpe_encode(en->t->bpe, piece, n, &en->scratch, en->out, e);
}

static status encode_normalized(encoder *en, const char *text, size_t n, err *e)
{
    return pretok_run(en->t->pre, text, n, on_piece, en, e);
}

/* A run of valid UTF-8. */
static status encode_valid(encoder *en, const char *text, size_t n, err *e)
{
    char *nfc = NULL;
    size_t n_nfc = 0;
    if (n == 0) return ST_OK;
    if (en->t->nfc) TRY(normalize_nfc(&nfc, &n_nfc, text, n, e));
    status st = cut_added(en, nfc ? nfc : text, nfc ? n_nfc : n, true, encode_normalized, e);
    mem_free(nfc);
    return st;
}

/* Invalid bytes become byte tokens one by one, and what is between them is encoded by itself. */
static status encode_span(encoder *en, const char *text, size_t n, err *e)
{
    if (en->t->spm) return spm_model_encode(en->t, text, n, en->out, e);
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        int k = utf8_valid_len((const unsigned char *)text + i, n - i);
        if (k) {
            i += (size_t)k;
            continue;
        }
        TRY(encode_valid(en, text + done, i - done, e));
        TRY(bpe_encode_byte(en->t->bpe, (unsigned char)text[i], en->out, e));
        done = ++i;
    }
    return encode_valid(en, text + done, n - done, e);
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out, err *e)
{
    encoder en = {.t = t, .special = (flags & TOKENIZE_SPECIAL) != 0, .out = out};
    const size_t before = out->n;
    status st = ST_OK;
    if (n > INT32_MAX / 2)
        return err_set(e, ST_UNSUPPORTED, "text of %zu bytes: at most %d are encoded at once", n, INT32_MAX / 2);
    if ((flags & TOKENIZE_BOS) && t->bos >= 0) st = token_list_push(out, t->bos, e);
    if (st == ST_OK) st = cut_added(&en, text, n, false, encode_span, e);
    bpe_scratch_free(&en.scratch);
    if (st != ST_OK) out->n = before; /* all or nothing */
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
