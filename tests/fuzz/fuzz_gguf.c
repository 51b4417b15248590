/* SPDX-License-Identifier: MIT */
/* A GGUF file from outside: whatever opens must have all its tensors inside the input. Its metadata become a config
 * and a tokenizer, which encodes and decodes. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/gguf.h"
#include "kernels/base/mem.h"
#include "model/encoding/encoding.h"
#include "model/model.h"
#include "tokenizer/gguf_tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Decodes the first block of each tensor and its last one. */
static void read_tensors(const gguf *g, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        float x[256], sum = 0;
        if (gguf_find_tensor(g, t->name) != t) abort();
        if (t->data < data || t->data > data + size || t->bytes > (size_t)(data + size - t->data)) abort();
        decode_fn *decode = encoding_decoder(t->encoding->type);
        decode(t->data, 1, x);
        sum += x[0];
        decode(t->data + t->bytes - t->encoding->bytes, 1, x);
        volatile float keep = sum + x[0]; /* the reads must happen */
        (void)keep;
    }
}

static void read_config(gguf *g)
{
    model_config c;
    err e = {0};
    float freq[128], mscale;
    if (model_config_from_gguf(&c, &g, 1, &e) != ST_OK) {
        if (e.code == ST_OK || !e.msg[0]) abort();
        return;
    }
    if (c.n_layers < 1 || c.head_dim < 2 || c.head_dim > 256 || c.head_dim % 2) abort();
    if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads || c.hidden < 1 || c.n_params < 1) abort();
    rope_frequencies(&c.rope, c.max_positions, freq, &mscale);
    if (!isfinite(mscale)) abort();
    for (int i = 0; i < c.rope.head_dim / 2; i++)
        if (!isfinite(freq[i])) abort();
    model_config_free(&c);
}

static void use_tokenizer(const tokenizer *t, const char *text, unsigned flags)
{
    token_list l = {0};
    char *s = NULL;
    size_t n;
    if (tokenizer_encode(t, text, strlen(text), flags, &l, NULL) == ST_OK) {
        for (size_t i = 0; i < l.n; i++)
            if (l.ids[i] < 0 || l.ids[i] >= tokenizer_n_ids(t)) abort();
        if (tokenizer_decode(t, l.ids, l.n, true, &s, &n, NULL) != ST_OK) abort();
    }
    mem_free(s);
    token_list_free(&l);
}

static void read_tokenizer(const gguf *g)
{
    tokenizer *t;
    err e = {0};
    status st = tokenizer_open_gguf(&t, g, &e);
    if ((st == ST_OK) != (t != NULL) || (st != ST_OK && (e.code != st || !e.msg[0]))) abort();
    if (!t) return;
    use_tokenizer(t, "Hello world, it's 1234!\n\n  x", 0);
    use_tokenizer(t, "a<s>b</s> <|im_end|> na\xc3\xafve \xf0\x9f\x98\x80 \xff", TOKENIZE_BOS | TOKENIZE_SPECIAL);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf *g;
    err e = {0};
    status st = gguf_open_memory(&g, data, size, "fuzz", &e);
    if ((st == ST_OK) != (g != NULL) || (st != ST_OK && (e.code != st || !e.msg[0]))) abort();
    if (!g) return 0;
    read_tensors(g, data, size);
    read_config(g);
    read_tokenizer(g);
    gguf_close(g);
    return 0;
}
