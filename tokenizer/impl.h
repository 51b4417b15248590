/* SPDX-License-Identifier: MIT */
/* Declarations shared by the files of this folder. Private to tokenizer/, its tests and fuzz targets. */
#ifndef TOKENIZER_IMPL_H
#define TOKENIZER_IMPL_H

#include <jansson.h>

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/chat_set.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/spm.h"
#include "tokenizer/tokenizer.h"

enum {
    JSON_DEPTH = 32,
    TOKENIZER_MAX_FILE = 100 << 20, /* bytes of tokenizer.json and of models */
    CONFIG_MAX_FILE = 16 << 20,     /* bytes of the smaller files */
};

/* Decoding of a BPE whose tokens are pieces of SentencePiece: characters, with U+2581 for spaces. */
typedef struct {
    bool on;
    bool bytes;      /* <0xE2> is a byte */
    bool first_all;  /* the first token loses all its space marks, not the text its first one */
    spm_strip strip; /* of the first space mark */
} piece_rules;

struct tokenizer {
    bpe *bpe; /* either bpe or spm is set */
    spm *spm;
    pretok *pre; /* with bpe, as the normalizer */
    normalizer normalizer;
    piece_rules pieces;
    added_set added;
    int32_t n_ids, bos;
    bool adds_bos, cleans_up;
    bool has_template;  /* tokenizer.json decides which tokens precede a text */
    token_list prefix;  /* these tokens, BOS the first */
    bool guessed_added; /* the added tokens are the family's defaults, not from a file */
    token_list eos;
    const char *usual_chat; /* built-in template of folders without one; NULL: none */
    chat_set chat;
    char describe[96], warning[256]; /* "": none */
};

/* bpe_json.c: loads a parsed tokenizer.json into t. */
status bpe_json_load(tokenizer *t, const json_t *root, const char *name, err *e);
/* True for a byte-level BPE. A folder with another kind may also have a tokenizer.model. */
bool bpe_json_is_byte_level(const json_t *root);
/* Loads vocab.json and merges.txt, of Qwen2 (its expression and NFC) or GPT-2. */
status bpe_files_load(tokenizer *t, const json_t *vocab, const char *merges, size_t n_merges, bool qwen2,
                      const char *vocab_name, const char *merges_name, err *e);
/* json_parts.c: loads added tokens, normalizer, pre-tokenizer, decoder and BOS of tokenizer.json. */
status json_parts_load(tokenizer *t, const json_t *root, const char *name, err *e);
/* Loads one entry of added_tokens or added_tokens_decoder. */
status json_added_token(tokenizer *t, const json_t *entry, int64_t id, const char *what, err *e);

/* tiktoken.c: detects and loads lines of base64 token and rank, with Llama-3's pattern and special tokens. */
bool tiktoken_looks_like(const char *text, size_t n);
status tiktoken_load(tokenizer *t, const char *text, size_t n, const char *name, err *e);
/* Detects and loads a parsed tekken.json: ids are ranks after the special tokens. Source: mistral-common, tekken.py. */
bool tekken_looks_like(const json_t *root);
status tekken_load(tokenizer *t, const json_t *root, const char *name, err *e);

/* spm_model.c: loads a SentencePiece model with its control pieces, and encodes with it. */
status spm_model_load(tokenizer *t, const char *data, size_t n, const char *name, err *e);
status spm_model_encode(const tokenizer *t, const char *text, size_t n, token_list *out, err *e);

/* settings.c: reads tokenizer_class of dir. *qwen2: the class of Qwen2, or none is named; false: the class of GPT-2.
 * ST_UNSUPPORTED for others. */
status settings_read_class(bool *qwen2, const char *dir, err *e);
/* Loads tokenizer_config.json, special_tokens_map.json and generation_config.json of dir. */
status settings_load(tokenizer *t, const char *dir, err *e);
/* Loads the ids that end generation: of generation_config.json, else (config) of config.json. */
status settings_load_stops(tokenizer *t, const char *dir, bool config, err *e);

/* tokenizer.c: checks and finishes a tokenizer whose vocabulary is loaded. */
status tokenizer_finish(tokenizer *t, const char *name, err *e);
/* Opens a tokenizer from the text of a tokenizer.json or tekken.json alone, for tests and fuzz targets. */
status tokenizer_open_json(tokenizer **out, const char *text, size_t n, const char *name, err *e);

/* chat.c: sets a variable of the templates, such as "bos_token", to the spelling of a token, "" for -1, unless it is
 * set. */
status chat_name_token(tokenizer *t, const char *key, int32_t id, err *e);
/* Lets the templates read the tokens' spellings, once BOS and EOS are known. */
status chat_name_tokens(tokenizer *t, err *e);

#endif
