/* SPDX-License-Identifier: MIT */
/* What the files of this folder share; outside it only tests and fuzz targets read this. */
#ifndef TOKENIZER_IMPL_H
#define TOKENIZER_IMPL_H

#include <jansson.h>

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/spm.h"
#include "tokenizer/tokenizer.h"

enum {
    JSON_DEPTH = 32,
    TOKENIZER_MAX_FILE = 100 << 20, /* bytes of tokenizer.json and of models */
    CONFIG_MAX_FILE = 16 << 20,     /* bytes of the smaller files */
};

struct tokenizer {
    bpe *bpe; /* one of these two */
    spm *spm;
    pretok *pre; /* with bpe */
    bool nfc;
    added_set added;
    int32_t n_ids, bos;
    bool adds_bos, cleans_up;
    bool bos_from_template; /* tokenizer.json itself decided on it */
    bool guessed_added;     /* the added tokens are the family's usual ones, not from a file */
    token_list eos;
    const char *chat; /* template name or NULL */
    char describe[96];
};

/* bpe_json.c: an already parsed tokenizer.json into t. *byte_level false (and ST_OK, t untouched):
 * a valid tokenizer of another kind, to be read from tokenizer.model. */
status bpe_json_load(tokenizer *t, const json_t *root, const char *name, bool *byte_level, err *e);
/* vocab.json and merges.txt of Qwen2 (GPT-2's format). */
status bpe_files_load(tokenizer *t, const json_t *vocab, const char *merges, size_t n_merges, const char *vocab_name,
                      const char *merges_name, err *e);
/* json_parts.c: added tokens, normalizer, pre-tokenizer and BOS of tokenizer.json. */
status json_parts_load(tokenizer *t, const json_t *root, const char *name, err *e);
/* One entry of added_tokens or added_tokens_decoder. */
status json_added_token(tokenizer *t, const json_t *entry, int64_t id, const char *what, err *e);

/* tiktoken.c: base64 token and rank on each line; Llama-3's pattern and special tokens. */
bool tiktoken_looks_like(const char *text, size_t n);
status tiktoken_load(tokenizer *t, const char *text, size_t n, const char *name, err *e);

/* spm_model.c: a SentencePiece model and its control pieces. */
status spm_model_load(tokenizer *t, const char *data, size_t n, const char *name, err *e);
status spm_model_encode(const tokenizer *t, const char *text, size_t n, token_list *out, err *e);

/* settings.c: tokenizer_config.json, special_tokens_map.json, generation_config.json of dir. */
status settings_load(tokenizer *t, const char *dir, err *e);

/* tokenizer.c: checks and finishes a tokenizer whose vocabulary is there. */
status tokenizer_finish(tokenizer *t, const char *name, err *e);
/* A tokenizer from the text of a tokenizer.json alone: for tests and fuzz targets. */
status tokenizer_open_json(tokenizer **out, const char *text, size_t n, const char *name, err *e);

/* chat.c: name of the template that the Jinja text[0..n) is, NULL if unknown. */
const char *chat_detect(const tokenizer *t, const char *text, size_t n);

#endif
