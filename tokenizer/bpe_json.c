/* SPDX-License-Identifier: MIT */
/* Vocabulary and merges of a BPE of bytes or characters: tokenizer.json, or vocab.json + merges.txt. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

enum { MAX_TOKEN_BYTES = 65536, NAME_MAX_BYTES = 200 };

/* Returns the byte for a character of GPT-2's byte alphabet, -1 for others. Printable bytes stand for themselves; the
 * 68 others are U+0100 and following. Source: openai/gpt-2 encoder.py, bytes_to_unicode. */
static int alphabet_byte(int32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return c;
    if (c < 256 || c >= 256 + 68) return -1;
    int k = c - 256;
    return k < 33 ? k : k < 67 ? 127 + k - 33 : 173;
}

/* Converts text[0..n) to bytes, at most n. False if a character is not in the byte alphabet, whose characters take one
 * or two bytes of UTF-8. */
static bool to_bytes(const char *text, size_t n, char *out, size_t *n_out)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t m = 0;
    for (size_t i = 0; i < n; m++) {
        int32_t c = s[i++];
        if (c >= 0x80) {
            if (c < 0xc2 || c > 0xc5 || i == n || (s[i] & 0xc0) != 0x80) return false;
            c = (c & 0x1f) << 6 | (s[i++] & 0x3f);
        }
        const int byte = alphabet_byte(c);
        if (byte < 0) return false;
        out[m] = (char)byte;
    }
    *n_out = m;
    return true;
}

/* State of loading: the vocabulary, and a buffer for the bytes of two tokens. */
typedef struct {
    bpe *b;
    const char *name;
    char *buf;
    int32_t last;    /* result of the previous merge */
    bool characters; /* tokens are spelled as they are, not in the byte alphabet */
} loader;

/* Converts the spelling of a token to its bytes, at most n. False if it is not in the byte alphabet. */
static bool token_bytes(const loader *l, const char *text, size_t n, char *out, size_t *n_out)
{
    if (!l->characters) return to_bytes(text, n, out, n_out);
    memcpy(out, text, n);
    *n_out = n;
    return true;
}

static status load_vocab(loader *l, const json_t *vocab, const char *field, err *e)
{
    char what[NAME_MAX_BYTES];
    const char *key;
    json_t *value;
    snprintf(what, sizeof what, "%s: %s", l->name, field);
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value)
    {
        size_t n = strlen(key), m;
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= BPE_MAX_IDS)
            return err_set(e, ST_FORMAT, "%s: the id of \"%.40s\" is not an integer in 0..%d", what, key,
                           BPE_MAX_IDS - 1);
        if (n > MAX_TOKEN_BYTES)
            return err_set(e, ST_FORMAT, "%s: a token of %zu bytes, at most %d allowed", what, n, MAX_TOKEN_BYTES);
        bool known = token_bytes(l, key, n, l->buf, &m);
        /* Other texts, mostly added tokens, decode to themselves, as in the reference. */
        TRY(bpe_add_token(l->b, (int32_t)id, known ? l->buf : key, known ? m : n, known, what, e));
    }
    return ST_OK;
}

/* Returns the id of a merged token. Tries the last id and the next first, because merges are mostly listed in the order
 * of their results. Hashing would miss the cache for each of several hundred thousand merges. */
static int32_t find_merged(loader *l, const char *bytes, size_t n)
{
    for (int k = 0; k < 2; k++)
        if (bpe_is(l->b, l->last + k, bytes, n)) return l->last += k;
    const int32_t id = bpe_find(l->b, bytes, n);
    if (id >= 0) l->last = id;
    return id;
}

static status load_merge(loader *l, const char *left, size_t n_left, const char *right, size_t n_right, size_t rank,
                         const char *field, err *e)
{
    size_t a = 0, b = 0;
    if (n_left == 0 || n_right == 0 || memchr(right, ' ', n_right))
        return err_set(e, ST_FORMAT, "%s: %s[%zu] is not two tokens", l->name, field, rank);
    int32_t id_left = -1, id_right = -1, merged = -1;
    if (n_left <= MAX_TOKEN_BYTES && n_right <= MAX_TOKEN_BYTES && token_bytes(l, left, n_left, l->buf, &a) &&
        token_bytes(l, right, n_right, l->buf + a, &b)) {
        id_left = bpe_find(l->b, l->buf, a);
        id_right = bpe_find(l->b, l->buf + a, b);
        merged = find_merged(l, l->buf, a + b);
    }
    if (id_left < 0 || id_right < 0 || merged < 0)
        return err_set(e, ST_FORMAT, "%s: %s[%zu] (\"%.*s\" and \"%.*s\"): %s is not in the vocabulary", l->name, field,
                       rank, n_left > 30 ? 30 : (int)n_left, left, n_right > 30 ? 30 : (int)n_right, right,
                       id_left < 0    ? "the first"
                       : id_right < 0 ? "the second"
                                      : "their union");
    return bpe_add_merge(l->b, id_left, id_right, (uint32_t)rank, merged, e);
}

static status load_merges(loader *l, const json_t *merges, err *e)
{
    const size_t n = json_array_size(merges);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        const char *left, *right;
        size_t n_left;
        if (json_is_string(m)) { /* "a b" */
            left = json_string_value(m);
            const char *space = strchr(left, ' ');
            if (!space) return err_set(e, ST_FORMAT, "%s: model.merges[%zu] is not two tokens", l->name, i);
            n_left = (size_t)(space - left);
            right = space + 1;
        } else { /* ["a", "b"] */
            left = json_string_value(json_array_get(m, 0));
            right = json_string_value(json_array_get(m, 1));
            if (!left || !right || json_array_size(m) != 2)
                return err_set(e, ST_FORMAT, "%s: model.merges[%zu] is not two tokens", l->name, i);
            n_left = strlen(left);
        }
        TRY(load_merge(l, left, n_left, right, strlen(right), i, "model.merges", e));
    }
    return ST_OK;
}

/* Rejects fields of `model` that would change the encoding. */
static status check_model(const json_t *model, const char *name, err *e)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        const char *s = json_string_value(v);
        if (v && !json_is_null(v) && !(s && !*s))
            return err_set(e, ST_UNSUPPORTED, "%s: model.%s is not supported", name, empty[i]);
    }
    static const char *const flags[] = {"ignore_merges", "byte_fallback", "fuse_unk"};
    for (int i = 0; i < 3; i++) {
        const json_t *v = json_object_get(model, flags[i]);
        if (v && !json_is_boolean(v) && !json_is_null(v))
            return err_set(e, ST_FORMAT, "%s: model.%s is not a boolean", name, flags[i]);
    }
    if (!json_is_object(json_object_get(model, "vocab")))
        return err_set(e, ST_FORMAT, "%s: model.vocab is missing or not an object", name);
    if (!json_is_array(json_object_get(model, "merges")))
        return err_set(e, ST_FORMAT, "%s: model.merges is missing or not a list", name);
    return ST_OK;
}

static bool names_byte_level(const json_t *part, int depth)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type && strcmp(type, "ByteLevel") == 0) return true;
    static const char *const lists[] = {"pretokenizers", "decoders"};
    for (int k = 0; k < 2 && depth < 4; k++) {
        const json_t *list = json_object_get(part, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (names_byte_level(json_array_get(list, i), depth + 1)) return true;
    }
    return false;
}

static status load_model(loader *l, const json_t *model, err *e)
{
    char *scratch;
    size_t m;
    TRY(load_vocab(l, json_object_get(model, "vocab"), "model.vocab", e));
    TRY(load_merges(l, json_object_get(model, "merges"), e));
    int32_t unk = -1;
    const char *unk_text = json_string_value(json_object_get(model, "unk_token"));
    if (unk_text && strlen(unk_text) <= MAX_TOKEN_BYTES) {
        scratch = l->buf;
        if (token_bytes(l, unk_text, strlen(unk_text), scratch, &m)) unk = bpe_find(l->b, scratch, m);
    }
    bpe_finish(l->b, unk);
    return ST_OK;
}

bool bpe_json_is_byte_level(const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type && strcmp(type, "BPE") != 0) return false;
    return !json_is_object(model) || names_byte_level(json_object_get(root, "pre_tokenizer"), 0) ||
           names_byte_level(json_object_get(root, "decoder"), 0);
}

static unsigned model_flags(const json_t *model, bool characters)
{
    unsigned flags = json_is_true(json_object_get(model, "ignore_merges")) ? BPE_WHOLE_WORDS : 0;
    if (!characters) return flags;
    if (json_is_true(json_object_get(model, "byte_fallback"))) flags |= BPE_BYTE_FALLBACK;
    if (json_is_true(json_object_get(model, "fuse_unk"))) flags |= BPE_FUSE_UNKNOWN;
    return flags | BPE_CHARACTERS;
}

/* Checks the type of the model, which older files lack. Only a Unigram's vocabulary is a list. */
static status check_type(const json_t *model, const char *name, err *e)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!type && json_is_array(json_object_get(model, "vocab"))) type = "Unigram";
    if (!type || strcmp(type, "BPE") == 0) return ST_OK;
    if (strcmp(type, "Unigram") == 0)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: model.type \"Unigram\" is not supported; add the model's SentencePiece file, "
                       "tokenizer.model, which is then read",
                       name);
    return err_set(e, ST_UNSUPPORTED, "%s: model.type \"%.40s\" is not supported; supported: BPE", name, type);
}

status bpe_json_load(tokenizer *t, const json_t *root, const char *name, err *e)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) return err_set(e, ST_FORMAT, "%s: model is missing or not an object", name);
    TRY(check_type(model, name, e));
    TRY(check_model(model, name, e));
    loader l = {.name = name, .characters = !bpe_json_is_byte_level(root)};
    status st;
    const size_t n_vocab = json_object_size(json_object_get(model, "vocab"));
    const size_t n_merges = json_array_size(json_object_get(model, "merges"));
    TRY_GOTO(mem_alloc((void **)&l.buf, 2 * MAX_TOKEN_BYTES, 1, "token", e));
    TRY_GOTO(bpe_create(&l.b, n_vocab, n_merges, model_flags(model, l.characters), e));
    TRY_GOTO(load_model(&l, model, e));
    t->bpe = l.b;
    t->pieces.on = l.characters;
    l.b = NULL;
    st = json_parts_load(t, root, name, e);
done:
    mem_free(l.buf);
    bpe_free(l.b);
    return st;
}

static size_t count_lines(const char *s, size_t n)
{
    size_t k = 1;
    for (size_t i = 0; i < n; i++) k += s[i] == '\n';
    return k;
}

/* Loads merges.txt: an optional "#version" line, then lines "a b". */
static status load_merge_lines(loader *l, const char *text, size_t n, err *e)
{
    size_t rank = 0;
    for (size_t i = 0; i < n;) {
        const char *line = text + i, *nl = memchr(line, '\n', n - i);
        size_t len = nl ? (size_t)(nl - line) : n - i;
        i += len + 1;
        if (len && line[len - 1] == '\r') len--;
        if (len == 0 || (rank == 0 && len >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        const char *space = memchr(line, ' ', len);
        if (!space) return err_set(e, ST_FORMAT, "%s: merge %zu is not two tokens", l->name, rank);
        size_t n_left = (size_t)(space - line);
        TRY(load_merge(l, line, n_left, space + 1, len - n_left - 1, rank, "merge", e));
        rank++;
    }
    return ST_OK;
}

status bpe_files_load(tokenizer *t, const json_t *vocab, const char *merges, size_t n_merges, bool qwen2,
                      const char *vocab_name, const char *merges_name, err *e)
{
    loader l = {.name = vocab_name};
    status st;
    TRY_GOTO(mem_alloc((void **)&l.buf, 2 * MAX_TOKEN_BYTES, 1, "token", e));
    TRY_GOTO(bpe_create(&l.b, json_object_size(vocab), count_lines(merges, n_merges), 0, e));
    TRY_GOTO(load_vocab(&l, vocab, "vocabulary", e));
    l.name = merges_name;
    TRY_GOTO(load_merge_lines(&l, merges, n_merges, e));
    bpe_finish(l.b, -1);
    TRY_GOTO(pretok_create(&t->pre, e));
    TRY_GOTO(pretok_add_regex(t->pre, qwen2 ? PRETOK_QWEN2 : PRETOK_GPT2, PRETOK_ISOLATED, vocab_name, e));
    if (qwen2) TRY_GOTO(normalizer_add(&t->normalizer, NORMALIZE_NFC, NULL, NULL, vocab_name, e));
    t->bpe = l.b;
    l.b = NULL;
done:
    mem_free(l.buf);
    bpe_free(l.b);
    return st;
}
