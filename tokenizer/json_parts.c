/* SPDX-License-Identifier: MIT */
/* Loads the parts of tokenizer.json other than its model. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tokenizer/chars.h"
#include "tokenizer/impl.h"

enum { WHAT_MAX = 220 };

static status flag(bool *out, const json_t *obj, const char *key, bool preset, const char *what, err *e)
{
    const json_t *v = json_object_get(obj, key);
    *out = preset;
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_boolean(v)) return err_set(e, ST_FORMAT, "%s: %s is not a boolean", what, key);
    *out = json_is_true(v);
    return ST_OK;
}

status json_added_token(tokenizer *t, const json_t *entry, int64_t id, const char *what, err *e)
{
    const char *text = json_string_value(json_object_get(entry, "content"));
    if (!text) return err_set(e, ST_FORMAT, "%s: content is missing or not a string", what);
    if (id < 0 || id >= BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "%s: id %lld is outside 0..%d", what, (long long)id, BPE_MAX_IDS - 1);
    added_token a = {.n = strlen(text), .id = (int32_t)id};
    a.text = (char *)(uintptr_t)text; /* copied by added_push */
    TRY(flag(&a.special, entry, "special", false, what, e));
    TRY(flag(&a.normalized, entry, "normalized", !a.special, what, e));
    TRY(flag(&a.lstrip, entry, "lstrip", false, what, e));
    TRY(flag(&a.rstrip, entry, "rstrip", false, what, e));
    TRY(flag(&a.single_word, entry, "single_word", false, what, e));
    if (t->spm) a.normalized = false; /* with SentencePiece all are matched in the original text */
    return added_push(&t->added, &a, what, e);
}

static status load_added(tokenizer *t, const json_t *list, const char *name, err *e)
{
    char what[WHAT_MAX];
    if (!list || json_is_null(list)) return ST_OK;
    if (!json_is_array(list)) return err_set(e, ST_FORMAT, "%s: added_tokens is not a list", name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        snprintf(what, sizeof what, "%.180s: added_tokens[%zu]", name, i);
        if (!json_is_integer(id)) return err_set(e, ST_FORMAT, "%s: id is missing or not an integer", what);
        TRY(json_added_token(t, entry, json_integer_value(id), what, e));
    }
    return ST_OK;
}

static status load_prepend(tokenizer *t, const json_t *n, const char *what, err *e)
{
    const char *text = json_string_value(json_object_get(n, "prepend"));
    if (!text) return err_set(e, ST_FORMAT, "%s: Prepend without prepend", what);
    return normalizer_add(&t->normalizer, NORMALIZE_PREPEND, NULL, text, what, e);
}

static status load_replace(tokenizer *t, const json_t *n, const char *what, err *e)
{
    const char *from = json_string_value(json_object_get(json_object_get(n, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(n, "content"));
    if (!from || !to) return err_set(e, ST_UNSUPPORTED, "%s: Replace needs pattern.String and content", what);
    return normalizer_add(&t->normalizer, NORMALIZE_REPLACE, from, to, what, e);
}

static status load_normalizer(tokenizer *t, const json_t *n, const char *what, int depth, err *e)
{
    if (!n || json_is_null(n)) return ST_OK;
    const char *type = json_string_value(json_object_get(n, "type"));
    if (!type) return err_set(e, ST_FORMAT, "%s: type is missing or not a string", what);
    static const char *const forms[] = {
        [NORMALIZE_NFC] = "NFC", [NORMALIZE_NFD] = "NFD", [NORMALIZE_NFKC] = "NFKC", [NORMALIZE_NFKD] = "NFKD"};
    for (int i = 0; i < 4; i++)
        if (strcmp(type, forms[i]) == 0) return normalizer_add(&t->normalizer, (normalize_kind)i, NULL, NULL, what, e);
    if (strcmp(type, "Prepend") == 0) return load_prepend(t, n, what, e);
    if (strcmp(type, "Replace") == 0) return load_replace(t, n, what, e);
    const json_t *list = json_object_get(n, "normalizers");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: unsupported type \"%.40s\"; supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence",
                       what, type);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(load_normalizer(t, json_array_get(list, i), what, depth + 1, e));
    return ST_OK;
}

static status read_behavior(pretok_keep *keep, const char *how, const char *what, err *e)
{
    static const char *const names[] = {[PRETOK_ISOLATED] = "Isolated",
                                        [PRETOK_GAPS] = "Removed",
                                        [PRETOK_PREVIOUS] = "MergedWithPrevious",
                                        [PRETOK_NEXT] = "MergedWithNext",
                                        [PRETOK_CONTIGUOUS] = "Contiguous"};
    for (int i = 0; how && i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(how, names[i]) != 0) continue;
        *keep = (pretok_keep)i;
        return ST_OK;
    }
    return err_set(e, ST_FORMAT,
                   "%s: behavior \"%.40s\" is not one of: Isolated, Removed, MergedWithPrevious, "
                   "MergedWithNext, Contiguous",
                   what, how ? how : "");
}

static status load_split(tokenizer *t, const json_t *p, const char *what, err *e)
{
    const char *how = json_string_value(json_object_get(p, "behavior"));
    const json_t *pattern = json_object_get(p, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *plain = json_string_value(json_object_get(pattern, "String"));
    bool invert;
    pretok_keep keep = PRETOK_ISOLATED;
    TRY(flag(&invert, p, "invert", false, what, e));
    if (!regex && !plain) return err_set(e, ST_FORMAT, "%s: Split without pattern", what);
    TRY(read_behavior(&keep, how, what, e));
    if (invert) keep |= PRETOK_INVERTED;
    return regex ? pretok_add_regex(t->pre, regex, keep, what, e) : pretok_add_string(t->pre, plain, keep, what, e);
}

static status load_byte_level(tokenizer *t, const json_t *p, const char *what, err *e)
{
    bool prefix, regex;
    TRY(flag(&prefix, p, "add_prefix_space", true, what, e));
    TRY(flag(&regex, p, "use_regex", true, what, e));
    if (prefix) TRY(pretok_add_prefix_space(t->pre, what, e));
    return regex ? pretok_add_regex(t->pre, PRETOK_GPT2, PRETOK_ISOLATED, what, e) : ST_OK;
}

/* Reads prepend_scheme of Metaspace, or add_prefix_space of older files. */
static status read_prepend(prepend_scheme *out, const json_t *p, const char *what, err *e)
{
    static const char *const names[] = {
        [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always"};
    const char *mark = json_string_value(json_object_get(p, "replacement"));
    const char *name = json_string_value(json_object_get(p, "prepend_scheme"));
    bool prefix;
    if (mark && strcmp(mark, SPACE_MARK) != 0)
        return err_set(e, ST_UNSUPPORTED, "%s: Metaspace with the replacement \"%.10s\"; supported: U+2581", what,
                       mark);
    TRY(flag(&prefix, p, "add_prefix_space", true, what, e));
    *out = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (prepend_scheme)i;
        return ST_OK;
    }
    return name ? err_set(e, ST_FORMAT, "%s: prepend_scheme \"%.20s\"; expected never, first or always", what, name)
                : ST_OK;
}

static status load_metaspace(tokenizer *t, const json_t *p, const char *what, err *e)
{
    prepend_scheme prepend;
    bool split;
    TRY(read_prepend(&prepend, p, what, e));
    TRY(flag(&split, p, "split", true, what, e));
    return pretok_add_space_marks(t->pre, prepend, split, what, e);
}

/* Loads a pre-tokenizer that is an expression. *done false: it is another one. The word characters of Rust, in which
 * Whitespace is written, also have U+200C and U+200D. */
static status load_simple(tokenizer *t, const json_t *p, const char *type, const char *what, bool *done, err *e)
{
    bool each;
    *done = true;
    if (strcmp(type, "Digits") == 0) {
        TRY(flag(&each, p, "individual_digits", false, what, e));
        return pretok_add_regex(t->pre, each ? "\\p{N}" : "\\p{N}+", PRETOK_ISOLATED, what, e);
    }
    if (strcmp(type, "Whitespace") == 0)
        return pretok_add_regex(t->pre, "[\\w\u200c\u200d]+|[^\\w\u200c\u200d\\s]+", PRETOK_MATCHES, what, e);
    if (strcmp(type, "WhitespaceSplit") == 0) return pretok_add_regex(t->pre, "\\s", PRETOK_GAPS, what, e);
    if (strcmp(type, "Punctuation") == 0) {
        pretok_keep keep = PRETOK_ISOLATED;
        const json_t *how = json_object_get(p, "behavior");
        if (how) TRY(read_behavior(&keep, json_string_value(how), what, e));
        return pretok_add_regex(t->pre, "[!-/:-@\\[-`{-~\\p{P}]", keep, what, e);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const char *c = json_string_value(json_object_get(p, "delimiter"));
        if (!c) return err_set(e, ST_FORMAT, "%s: CharDelimiterSplit without delimiter", what);
        return pretok_add_string(t->pre, c, PRETOK_GAPS, what, e);
    }
    *done = false;
    return ST_OK;
}

/* Loads a pre-tokenizer. *bytes: set at the ByteLevel step, which must be the last. */
static status load_pretokenizer(tokenizer *t, const json_t *p, const char *what, int depth, bool *bytes, err *e)
{
    if (!p || json_is_null(p)) return ST_OK;
    const char *type = json_string_value(json_object_get(p, "type"));
    if (!type) return err_set(e, ST_FORMAT, "%s: type is missing or not a string", what);
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(p, "pretokenizers");
        if (!json_is_array(list)) return err_set(e, ST_FORMAT, "%s: pretokenizers is not a list", what);
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_pretokenizer(t, json_array_get(list, i), what, depth + 1, bytes, e));
        return ST_OK;
    }
    if (*bytes) return err_set(e, ST_UNSUPPORTED, "%s: \"%.40s\" after ByteLevel is not supported", what, type);
    if (strcmp(type, "Split") == 0) return load_split(t, p, what, e);
    bool done;
    TRY(load_simple(t, p, type, what, &done, e));
    if (done) return ST_OK;
    if (strcmp(type, "Metaspace") == 0 && t->pieces.on) return load_metaspace(t, p, what, e);
    if (strcmp(type, "ByteLevel") != 0)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: unsupported type \"%.40s\"; supported: Split, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, CharDelimiterSplit, ByteLevel, %s",
                       what, type, t->pieces.on ? "Metaspace" : "Metaspace without ByteLevel");
    *bytes = true;
    return load_byte_level(t, p, what, e);
}

/* Loads the ids of a special token of TemplateProcessing. */
static status load_prefix(tokenizer *t, const json_t *p, const char *key, const char *what, err *e)
{
    const json_t *ids = json_object_get(json_object_get(json_object_get(p, "special_tokens"), key), "ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= BPE_MAX_IDS)
            return err_set(e, ST_FORMAT, "%s: special_tokens[\"%.40s\"] has an id outside 0..%d", what, key,
                           BPE_MAX_IDS - 1);
        TRY(token_list_push(&t->prefix, (int32_t)json_integer_value(id), e));
    }
    if (json_array_size(ids)) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: special_tokens has no id for \"%.40s\"", what, key);
}

/* Loads the special tokens before the text in the template for a single text. Tokens after it, such as EOS, are never
 * added: the model continues the text. */
static status load_template(tokenizer *t, const json_t *p, const char *what, err *e)
{
    const json_t *single = json_object_get(p, "single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_object_get(json_array_get(single, i), "SpecialToken");
        const char *key = json_string_value(json_object_get(part, "id"));
        if (!key) break;
        TRY(load_prefix(t, p, key, what, e));
    }
    return ST_OK;
}

/* Loads the token before the text of BertProcessing and RobertaProcessing: ["[CLS]", 101]. */
static status load_cls(tokenizer *t, const json_t *p, const char *what, err *e)
{
    const json_t *id = json_array_get(json_object_get(p, "cls"), 1);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "%s: cls is not a token and its id", what);
    return token_list_push(&t->prefix, (int32_t)json_integer_value(id), e);
}

static status load_post_processor(tokenizer *t, const json_t *p, const char *what, int depth, err *e)
{
    const char *type = json_string_value(json_object_get(p, "type"));
    if (!type) return ST_OK;
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, p, what, e);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) return load_cls(t, p, what, e);
    const json_t *list = json_object_get(p, "processors");
    for (size_t i = 0; i < json_array_size(list) && depth < 4; i++)
        TRY(load_post_processor(t, json_array_get(list, i), what, depth + 1, e));
    return ST_OK;
}

/* Loads a decoder of pieces: Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip. */
static status load_decoder(tokenizer *t, const json_t *d, const char *what, int depth, err *e)
{
    if (!d || json_is_null(d)) return ST_OK;
    const char *type = json_string_value(json_object_get(d, "type"));
    if (!type) return err_set(e, ST_FORMAT, "%s: type is missing or not a string", what);
    const char *content = json_string_value(json_object_get(d, "content"));
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(d, "decoders");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_decoder(t, json_array_get(list, i), what, depth + 1, e));
        return ST_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        prepend_scheme prepend;
        TRY(read_prepend(&prepend, d, what, e));
        t->pieces.first_all = prepend != PREPEND_NEVER;
        if (t->pieces.first_all) t->pieces.strip = SPM_STRIP_ONE;
        return ST_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) return t->pieces.bytes = true, ST_OK;
    if (strcmp(type, "Fuse") == 0) return ST_OK;
    if (strcmp(type, "Strip") == 0 && content && strcmp(content, " ") == 0) {
        const json_int_t start = json_integer_value(json_object_get(d, "start"));
        if (start == 1) t->pieces.strip = SPM_STRIP_ONE;
        if (start <= 1) return ST_OK;
    }
    const char *from = json_string_value(json_object_get(json_object_get(d, "pattern"), "String"));
    if (strcmp(type, "Replace") == 0 && from && content && strcmp(from, SPACE_MARK) == 0 && strcmp(content, " ") == 0)
        return ST_OK;
    return err_set(e, ST_UNSUPPORTED,
                   "%s: unsupported \"%.40s\"; supported: Metaspace, Replace of U+2581 by a space, ByteFallback, Fuse, "
                   "Strip of one space",
                   what, type);
}

status json_parts_load(tokenizer *t, const json_t *root, const char *name, err *e)
{
    char what[WHAT_MAX];
    bool bytes = false;
    TRY(load_added(t, json_object_get(root, "added_tokens"), name, e));
    snprintf(what, sizeof what, "%.180s: normalizer", name);
    TRY(load_normalizer(t, json_object_get(root, "normalizer"), what, 0, e));
    snprintf(what, sizeof what, "%.180s: pre_tokenizer", name);
    TRY(pretok_create(&t->pre, e));
    TRY(load_pretokenizer(t, json_object_get(root, "pre_tokenizer"), what, 0, &bytes, e));
    if (!bytes && !t->pieces.on) return err_set(e, ST_UNSUPPORTED, "%s: no ByteLevel step", what);
    snprintf(what, sizeof what, "%.180s: decoder", name);
    if (t->pieces.on) TRY(load_decoder(t, json_object_get(root, "decoder"), what, 0, e));
    snprintf(what, sizeof what, "%.180s: post_processor", name);
    TRY(load_post_processor(t, json_object_get(root, "post_processor"), what, 0, e));
    t->has_template = true;
    t->adds_bos = t->prefix.n > 0;
    if (t->adds_bos) t->bos = t->prefix.ids[0];
    return ST_OK;
}
