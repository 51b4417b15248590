/* SPDX-License-Identifier: MIT */
/* Tokenizers of GGUF files: byte-level BPE, whose lists become a tokenizer.json, and SentencePiece, whose lists become
 * a serialized model. Source: llama.cpp, src/llama-vocab.cpp. */
#include "config.h"

#include "tokenizer/gguf_tokens.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE, TEMPLATE_MAX = 16 << 20, WORD_MAX = 64 };

/* The lists of a vocabulary, and where reading them stands. */
typedef struct {
    const gguf *g;
    const char *name; /* of the file, for messages */
    gguf_array tokens, types, scores;
    size_t n;
} lists;

static status open_lists(lists *l, const gguf *g, err *e)
{
    *l = (lists){.g = g, .name = path_tail(gguf_path(g))};
    TRY(gguf_strings(g, "tokenizer.ggml.tokens", &l->tokens, e));
    TRY(gguf_ints(g, "tokenizer.ggml.token_type", &l->types, e));
    TRY(gguf_reals(g, "tokenizer.ggml.scores", &l->scores, e));
    l->n = l->tokens.n;
    if (!gguf_has(g, "tokenizer.ggml.tokens"))
        return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.tokens is missing: the file has no tokenizer", l->name);
    if (l->n == 0 || l->n > BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.tokens has %zu elements, expected 1 to %d", l->name, l->n,
                       BPE_MAX_IDS);
    const gguf_array *const same[] = {&l->types, &l->scores};
    for (int i = 0; i < 2; i++)
        if (same[i]->n && same[i]->n != l->n)
            return err_set(e, ST_FORMAT, "%s: %s has %zu elements, tokenizer.ggml.tokens has %zu", l->name,
                           same[i]->key, same[i]->n, l->n);
    gguf_array types = l->types;
    for (size_t i = 0; i < types.n; i++) {
        int64_t type = gguf_next_int(&types);
        if (type < NORMAL || type > BYTE)
            return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.token_type[%zu] is %lld, expected 1 to 6", l->name, i,
                           (long long)type);
    }
    return ST_OK;
}

/* Reads the next token and its type. */
static const char *next_token(lists *l, size_t *n, int *type)
{
    *type = l->types.n ? (int)gguf_next_int(&l->types) : NORMAL;
    return gguf_next_string(&l->tokens, n);
}

/* ---- stops ---- */

/* Spellings that end a turn or a text, whatever the ids in the file. */
static const char *const stops[] = {"<|eot_id|>",
                                    "<|im_end|>",
                                    "<|end|>",
                                    "<|return|>",
                                    "<|call|>",
                                    "<|flush|>",
                                    "<|calls|>",
                                    "<end_of_turn>",
                                    "<|endoftext|>",
                                    "</s>",
                                    "<|eom_id|>",
                                    "<EOT>",
                                    "_<EOT>",
                                    "[EOT]",
                                    "[EOS]",
                                    "<|end_of_text|>",
                                    "<end_of_utterance>",
                                    "<eos>",
                                    "<turn|>",
                                    "<|tool_response>",
                                    "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                    "[e~["};

/* Tokens of code models for filling in the middle of a text. A key names the token, or else its spelling. */
enum { FIM_KINDS = 6, FIM_SPELLINGS = 8 };
static const struct {
    const char *keys[2]; /* the second one is of older files */
    bool stops;
    const char *spellings[FIM_SPELLINGS + 1];
} fim[FIM_KINDS] = {
    {{"fim_pre", "prefix"},
     false,
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>",
      "<|code_prefix|>", "<|prefix|>"}},
    {{"fim_suf", "suffix"},
     false,
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>",
      "<|code_suffix|>", "<|suffix|>"}},
    {{"fim_mid", "middle"},
     false,
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>",
      "<|code_middle|>", "<|middle|>"}},
    {{"fim_pad"}, true, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {{"fim_rep"}, true, {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {{"fim_sep"}, true, {"<|file_sep|>"}},
};

/* Spellings that are shown although files mark them as control tokens. */
static const char *const shown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

static bool among(const char *const *list, size_t n_list, const char *s, size_t n)
{
    for (size_t i = 0; i < n_list; i++)
        if (strlen(list[i]) == n && memcmp(list[i], s, n) == 0) return true;
    return false;
}

static bool in_vocabulary(lists l, const char *text)
{
    for (size_t i = 0, n; i < l.n; i++) {
        const char *s = gguf_next_string(&l.tokens, &n);
        if (among(&text, 1, s, n)) return true;
    }
    return false;
}

/* The stop spellings that do not end a turn in this vocabulary. */
typedef struct {
    bool end, eos; /* <|end|> and </s> */
} exceptions;

static exceptions find_exceptions(const lists *l)
{
    exceptions x = {0};
    x.end = (in_vocabulary(*l, "<|return|>") && in_vocabulary(*l, "<|call|>")) ||
            (in_vocabulary(*l, "<|calls|>") && in_vocabulary(*l, "<|flush|>"));
    x.eos = in_vocabulary(*l, "<|tool_response>") || in_vocabulary(*l, "<|plamo:eos|>");
    return x;
}

static bool is_stop(exceptions x, const char *s, size_t n)
{
    if ((x.end && among(&(const char *){"<|end|>"}, 1, s, n)) || (x.eos && among(&(const char *){"</s>"}, 1, s, n)))
        return false;
    return among(stops, sizeof stops / sizeof *stops, s, n);
}

/* Returns the kind of a spelling for filling in the middle, -1 for others. */
static int fim_kind(const char *s, size_t n)
{
    for (int k = 0; k < FIM_KINDS; k++)
        for (int i = 0; fim[k].spellings[i]; i++)
            if (among(&fim[k].spellings[i], 1, s, n)) return k;
    return -1;
}

/* ---- ids in the metadata ---- */

/* Ids of tokens, -1: none, and the kinds of `fim` that keys name. */
typedef struct {
    int32_t eos, unknown, padding, separator, mask;
    bool fim[FIM_KINDS];
} named_ids;

/* Reads the id that a key names. One outside the vocabulary is ignored with a warning. A default outside it becomes
 * -1. */
static status read_id(tokenizer *t, const lists *l, const char *name, int32_t *id, err *e)
{
    char key[64];
    int64_t v = *id;
    if (*id >= (int64_t)l->n) *id = -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    TRY(gguf_int(l->g, key, INT64_MIN, INT64_MAX, &v, e));
    if (v >= 0 && v < (int64_t)l->n) *id = (int32_t)v;
    else if (gguf_has(l->g, key) && !t->warning[0])
        snprintf(t->warning, sizeof t->warning, "%.120s: %s is %lld, ignored: the file has %zu tokens", l->name, key,
                 (long long)v, l->n);
    return ST_OK;
}

/* Reads an id that ends generation. */
static status read_stop(tokenizer *t, const lists *l, const char *name, int32_t *id, err *e)
{
    TRY(read_id(t, l, name, id, e));
    return *id >= 0 ? token_list_push(&t->eos, *id, e) : ST_OK;
}

static status read_fim(tokenizer *t, const lists *l, named_ids *ids, err *e)
{
    for (int k = 0; k < FIM_KINDS; k++)
        for (int i = 0; i < 2 && fim[k].keys[i]; i++) {
            int32_t id = -1;
            TRY((fim[k].stops ? read_stop : read_id)(t, l, fim[k].keys[i], &id, e));
            ids->fim[k] |= id >= 0;
        }
    return ST_OK;
}

static status read_ids(tokenizer *t, const lists *l, named_ids *ids, err *e)
{
    int32_t eot = -1, eom = -1;
    *ids = (named_ids){t->spm ? 2 : -1, t->spm ? 0 : -1, -1, -1, -1, {false}};
    t->bos = t->spm ? 1 : -1;
    TRY(read_id(t, l, "bos", &t->bos, e));
    TRY(read_stop(t, l, "eos", &ids->eos, e));
    TRY(read_stop(t, l, "eot", &eot, e));
    TRY(read_stop(t, l, "eom", &eom, e));
    TRY(read_id(t, l, "unknown", &ids->unknown, e));
    TRY(read_id(t, l, "padding", &ids->padding, e));
    TRY(read_id(t, l, "seperator", &ids->separator, e)); /* spelt so in files */
    TRY(read_id(t, l, "mask", &ids->mask, e));
    TRY(read_fim(t, l, ids, e));
    TRY(gguf_bool(l->g, "tokenizer.ggml.add_bos_token", &t->adds_bos, e));
    t->adds_bos &= t->bos >= 0;
    return ST_OK;
}

/* Lets templates read the spellings of tokens: of BOS and EOS an empty one if the file has none. */
static status name_tokens(tokenizer *t, const named_ids *ids, err *e)
{
    TRY(chat_name_token(t, "bos_token", t->bos, e));
    TRY(chat_name_token(t, "eos_token", ids->eos, e));
    if (ids->unknown >= 0) TRY(chat_name_token(t, "unk_token", ids->unknown, e));
    if (ids->padding >= 0) TRY(chat_name_token(t, "pad_token", ids->padding, e));
    if (ids->separator >= 0) TRY(chat_name_token(t, "sep_token", ids->separator, e));
    return ids->mask >= 0 ? chat_name_token(t, "mask_token", ids->mask, e) : ST_OK;
}

/* ---- added tokens ---- */

/* True for Phi-3, whose special tokens absorb the white space after them. The file does not say so. */
static bool is_phi3(const gguf *g)
{
    const char *s = NULL;
    size_t n = 0;
    if (gguf_string(g, "general.name", &s, &n, NULL) != ST_OK) return false;
    for (size_t i = 0; i + 4 <= n; i++)
        if (strncasecmp(s + i, "phi3", 4) == 0 || (i + 5 <= n && strncasecmp(s + i, "phi-3", 5) == 0)) return true;
    return false;
}

/* Adds the tokens that are searched in a text before it is cut: control, unknown and user-defined ones, and stops. */
static status add_tokens(tokenizer *t, lists l, const named_ids *ids, err *e)
{
    static const char *const keep_space[] = {"<unk>", "<s>", "<|endoftext|>"};
    const exceptions x = find_exceptions(&l);
    const bool phi3 = is_phi3(l.g);
    for (size_t i = 0; i < l.n; i++) {
        size_t n;
        int type;
        const char *s = next_token(&l, &n, &type);
        if (type == CONTROL && among(shown, sizeof shown / sizeof *shown, s, n)) type = USER_DEFINED;
        const int kind = fim_kind(s, n);
        const bool is_fim = kind >= 0 && !ids->fim[kind], stop = is_stop(x, s, n) || (is_fim && fim[kind].stops);
        const bool special = stop || is_fim || type == CONTROL || type == UNKNOWN;
        if (stop) TRY(token_list_push(&t->eos, (int32_t)i, e));
        if (!special && type != USER_DEFINED) continue;
        added_token a = {.text = (char *)(uintptr_t)s, .n = n, .id = (int32_t)i, .special = special};
        a.rstrip = phi3 && special && !among(keep_space, sizeof keep_space / sizeof *keep_space, s, n);
        TRY(added_push(&t->added, &a, l.name, e));
    }
    return ST_OK;
}

/* ---- byte-level BPE ---- */

static json_t *stages_json(const gguf_pre *pre)
{
    json_t *list = json_array();
    for (int i = 0; i < GGUF_STAGES && pre->stages[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern", "Regex",
                                              pre->stages[i], "behavior", "Isolated"));
    json_array_append_new(list,
                          json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

/* True for texts that are spelled alike in plain text and in the byte alphabet. */
static bool is_graphic(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] >= 0x7f) return false;
    return n > 0;
}

/* Makes an object of the tokens that merges build. User-defined ones may be among them. */
static status vocab_json(json_t *vocab, lists l, err *e)
{
    size_t listed = 0;
    for (size_t i = 0; i < l.n; i++) {
        size_t n;
        int type;
        char key[1024];
        const char *s = next_token(&l, &n, &type);
        if (type != NORMAL && !(type == USER_DEFINED && is_graphic(s, n))) continue;
        if (n >= sizeof key || memchr(s, 0, n))
            return err_set(e, ST_FORMAT,
                           "%s: tokenizer.ggml.tokens[%zu] has %zu bytes; at most %zu without U+0000 are "
                           "allowed",
                           l.name, i, n, sizeof key - 1);
        memcpy(key, s, n);
        key[n] = 0;
        if (json_object_set_new(vocab, key, json_integer((json_int_t)i)) != 0)
            return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.tokens[%zu] is not valid UTF-8", l.name, i);
        if (json_object_size(vocab) != ++listed)
            return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.tokens[%zu], \"%.40s\", is a duplicate", l.name, i, key);
    }
    return ST_OK;
}

static status merges_json(json_t *merges, const lists *l, err *e)
{
    gguf_array a;
    if (!gguf_has(l->g, "tokenizer.ggml.merges"))
        return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.merges is missing", l->name);
    TRY(gguf_strings(l->g, "tokenizer.ggml.merges", &a, e));
    for (size_t i = 0; i < a.n; i++) {
        size_t n;
        const char *s = gguf_next_string(&a, &n);
        if (json_array_append_new(merges, json_stringn(s, n)) != 0)
            return err_set(e, ST_FORMAT, "%s: tokenizer.ggml.merges[%zu] is not valid UTF-8", l->name, i);
    }
    return ST_OK;
}

static status find_pre(const gguf_pre **out, const lists *l, err *e)
{
    char *name = NULL;
    TRY(gguf_text(l->g, "tokenizer.ggml.pre", WORD_MAX, &name, e));
    *out = name ? gguf_pre_find(name) : NULL;
    status st = ST_OK;
    if (!name)
        st = err_set(e, ST_UNSUPPORTED, "%s: tokenizer.ggml.pre is missing: made before May 2024; use a newer file",
                     l->name);
    else if (!*out)
        st = err_set(e, ST_UNSUPPORTED,
                     "%s: tokenizer.ggml.pre \"%s\" is not supported; supported: %s and others of doc/usage.md",
                     l->name, name, "smollm, llama-bpe, qwen2, tekken, gpt-2");
    mem_free(name);
    return st;
}

static status load_bpe(tokenizer *t, const lists *l, err *e)
{
    const gguf_pre *pre;
    TRY(find_pre(&pre, l, e));
    json_t *vocab = json_object(), *merges = json_array();
    json_t *root = json_pack("{s:{s:s, s:o, s:o, s:b}, s:o, s:{s:s}}", "model", "type", "BPE", "vocab", vocab, "merges",
                             merges, "ignore_merges", (pre->flags & PRE_WHOLE) != 0, "pre_tokenizer", stages_json(pre),
                             "decoder", "type", "ByteLevel");
    status st = root ? vocab_json(vocab, *l, e) : err_set(e, ST_NOMEM, "%s: out of memory", l->name);
    if (st == ST_OK) st = merges_json(merges, l, e);
    if (st == ST_OK) st = bpe_json_load(t, root, l->name, e);
    json_decref(root);
    if (st == ST_OK && pre->flags & PRE_NFC) st = normalizer_add(&t->normalizer, NORMALIZE_NFC, NULL, NULL, l->name, e);
    t->adds_bos = pre->flags & PRE_BOS;
    snprintf(t->describe, sizeof t->describe, "byte-level BPE (GGUF)");
    return st;
}

/* ---- SentencePiece ---- */

typedef struct {
    unsigned char *p;
    size_t n, cap;
    err *e;
} proto;

static status put_bytes(proto *m, const void *p, size_t n)
{
    TRY(MEM_ROOM(&m->p, &m->cap, m->n + n, m->e));
    memcpy(m->p + m->n, p, n);
    m->n += n;
    return ST_OK;
}

static status put_varint(proto *m, uint64_t v)
{
    unsigned char b[10];
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) b[n++] = (unsigned char)(v | 0x80);
    b[n++] = (unsigned char)v;
    return put_bytes(m, b, n);
}

/* Appends a field that is a number. */
static status put_number(proto *m, unsigned field, uint64_t v)
{
    TRY(put_varint(m, field << 3));
    return put_varint(m, v);
}

/* Appends a field of n bytes. */
static status put_field(proto *m, unsigned field, const void *p, size_t n)
{
    TRY(put_varint(m, field << 3 | 2));
    TRY(put_varint(m, n));
    return put_bytes(m, p, n);
}

/* Appends a piece: text, score, type. Source: sentencepiece_model.proto. */
static status put_piece(proto *m, const char *s, size_t n, float score, int type)
{
    proto piece = {.e = m->e};
    unsigned char bits[4];
    uint32_t u;
    memcpy(&u, &score, 4);
    for (int i = 0; i < 4; i++) bits[i] = (unsigned char)(u >> 8 * i);
    status st = put_field(&piece, 1, s, n);
    if (st == ST_OK) st = put_varint(&piece, 2 << 3 | 5);
    if (st == ST_OK) st = put_bytes(&piece, bits, 4);
    if (st == ST_OK) st = put_number(&piece, 3, (uint64_t)type);
    if (st == ST_OK) st = put_field(m, 1, piece.p, piece.n);
    mem_free(piece.p);
    return st;
}

/* Appends the trainer's and the normalizer's settings. */
static status put_specs(proto *m, size_t n, bool bytes, bool prefix)
{
    proto spec = {.e = m->e};
    status st = put_number(&spec, 3, 2); /* BPE */
    if (st == ST_OK) st = put_number(&spec, 4, n);
    if (st == ST_OK) st = put_number(&spec, 35, bytes);
    if (st == ST_OK) st = put_field(m, 2, spec.p, spec.n);
    spec.n = 0;
    if (st == ST_OK) st = put_field(&spec, 1, "identity", 8);
    if (st == ST_OK) st = put_number(&spec, 3, prefix);
    if (st == ST_OK) st = put_number(&spec, 4, 0); /* extra white space stays */
    if (st == ST_OK) st = put_number(&spec, 5, 1); /* spaces become U+2581 */
    if (st == ST_OK) st = put_field(m, 3, spec.p, spec.n);
    mem_free(spec.p);
    return st;
}

static status put_pieces(proto *m, lists l, bool *bytes, bool *scored)
{
    int n_bytes = 0;
    *scored = false;
    for (size_t i = 0; i < l.n; i++) {
        size_t n;
        int type;
        const char *s = next_token(&l, &n, &type);
        float score = l.scores.n ? (float)gguf_next_real(&l.scores) : -1000;
        if (!isfinite(score))
            return err_set(m->e, ST_FORMAT, "%s: tokenizer.ggml.scores[%zu] is not finite", l.name, i);
        *scored |= type == NORMAL && score > -1000;
        n_bytes += type == BYTE;
        /* Texts are cut at user-defined tokens first: the library never sees one. */
        TRY(put_piece(m, s, n, score, type == USER_DEFINED ? CONTROL : type));
    }
    *bytes = n_bytes > 0;
    if (n_bytes == 0 || n_bytes == 256) return ST_OK;
    return err_set(m->e, ST_FORMAT, "%s: tokenizer.ggml.tokens has %d tokens of single bytes, expected 256", l.name,
                   n_bytes);
}

static status load_spm(tokenizer *t, const lists *l, err *e)
{
    proto m = {.e = e};
    bool bytes = false, scored, prefix = true;
    status st;
    TRY_GOTO(gguf_bool(l->g, "tokenizer.ggml.add_space_prefix", &prefix, e));
    TRY_GOTO(put_pieces(&m, *l, &bytes, &scored));
    if (!scored) {
        st =
            err_set(e, ST_UNSUPPORTED,
                    "%s: all tokenizer.ggml.scores are -1000: the order of merges was lost when the file was converted "
                    "from tokenizer.json",
                    l->name);
        goto done;
    }
    TRY_GOTO(put_specs(&m, l->n, bytes, prefix));
    TRY_GOTO(spm_open(&t->spm, (const char *)m.p, m.n, l->name, e));
    t->adds_bos = true;
    snprintf(t->describe, sizeof t->describe, "SentencePiece (GGUF)");
done:
    mem_free(m.p);
    return st;
}

/* ---- chat templates ---- */

/* Adds the template at a key, if there is one. */
static status read_template(tokenizer *t, const lists *l, const char *name, const char *key, err *e)
{
    char *text = NULL;
    TRY(gguf_text(l->g, key, TEMPLATE_MAX, &text, e));
    status st = text ? chat_set_add(&t->chat, name, key, text, strlen(text), e) : ST_OK;
    mem_free(text);
    return st;
}

/* Reads the default template and the named ones. */
static status read_chat(tokenizer *t, const lists *l, err *e)
{
    gguf_array names;
    TRY(read_template(t, l, "default", "tokenizer.chat_template", e));
    TRY(gguf_strings(l->g, "tokenizer.chat_templates", &names, e));
    if (names.n > CHAT_TEMPLATES_MAX)
        return err_set(e, ST_FORMAT, "%s: tokenizer.chat_templates has %zu elements, at most %d expected", l->name,
                       names.n, CHAT_TEMPLATES_MAX);
    for (size_t i = names.n; i > 0; i--) {
        char name[WORD_MAX + 1], key[WORD_MAX + 40];
        size_t n;
        const char *s = gguf_next_string(&names, &n);
        if (n == 0 || n > WORD_MAX || memchr(s, 0, n))
            return err_set(e, ST_FORMAT, "%s: tokenizer.chat_templates: a name has %zu bytes, 1 to %d expected",
                           l->name, n, WORD_MAX);
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
        TRY(read_template(t, l, name, key, e));
    }
    return ST_OK;
}

status gguf_tokenizer_load(tokenizer *t, const gguf *g, err *e)
{
    char *model = NULL;
    lists l;
    named_ids ids;
    TRY(open_lists(&l, g, e));
    TRY(gguf_text(g, "tokenizer.ggml.model", WORD_MAX, &model, e));
    status st;
    if (model && strcmp(model, "gpt2") == 0) st = load_bpe(t, &l, e);
    else if (model && strcmp(model, "llama") == 0) st = load_spm(t, &l, e);
    else
        st = err_set(e, ST_UNSUPPORTED, "%s: tokenizer.ggml.model \"%s\" is not supported; supported: gpt2, llama",
                     l.name, model ? model : "");
    mem_free(model);
    if (st == ST_OK) st = read_ids(t, &l, &ids, e);
    if (st == ST_OK) st = add_tokens(t, l, &ids, e);
    if (st == ST_OK) st = added_sort(&t->added, &t->normalizer, l.name, e);
    if (st == ST_OK) st = name_tokens(t, &ids, e);
    if (st == ST_OK) st = settings_load_stops(t, gguf_path(g), false, e);
    return st == ST_OK ? read_chat(t, &l, e) : st;
}
