/* SPDX-License-Identifier: MIT */
/* A SentencePiece model as a tokenizer: control pieces, and text with invalid UTF-8. */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tokenizer/impl.h"

status spm_model_load(tokenizer *t, const char *data, size_t n, const char *name, err *e)
{
    TRY(spm_open(&t->spm, data, n, name, e));
    t->bos = spm_bos(t->spm);
    t->adds_bos = t->bos >= 0;
    if (spm_eos(t->spm) >= 0) TRY(token_list_push(&t->eos, spm_eos(t->spm), e));
    const int32_t n_ids = spm_n_ids(t->spm);
    for (int32_t id = 0; id < n_ids; id++) {
        if (spm_kind_of(t->spm, id) != SPM_CONTROL) continue;
        added_token a = {.id = id, .special = true};
        a.text = (char *)(uintptr_t)spm_piece(t->spm, id, &a.n); /* copied by added_push */
        TRY(added_push(&t->added, &a, name, e));
    }
    return ST_OK;
}

static status encode_valid(const tokenizer *t, const char *text, size_t n, bool prefix, token_list *out, err *e)
{
    int32_t *ids;
    size_t k;
    if (n == 0) return ST_OK;
    status st = spm_encode(t->spm, text, n, prefix, &ids, &k, e);
    for (size_t i = 0; st == ST_OK && i < k; i++) st = token_list_push(out, ids[i], e);
    mem_free(ids);
    return st;
}

status spm_model_encode(const tokenizer *t, const char *text, size_t n, token_list *out, err *e)
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        const int k = utf8_valid_len((const unsigned char *)text + i, n - i);
        const int32_t byte = k ? 0 : spm_byte_id(t->spm, (unsigned char)text[i]);
        if (k || byte < 0) { /* without byte pieces, the library encodes U+FFFD */
            i += k ? (size_t)k : 1;
            continue;
        }
        /* Only text at the very start gets the dummy prefix, not text after a byte piece. */
        TRY(encode_valid(t, text + done, i - done, done == 0, out, e));
        TRY(token_list_push(out, byte, e));
        done = ++i;
    }
    return encode_valid(t, text + done, n - done, done == 0, out, e);
}
