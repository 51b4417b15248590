/* SPDX-License-Identifier: MIT */
/* The parts of tokenizer.json around its model. */
#include "config.h"

#include <stdio.h>
#include <string.h>

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
    if (t->spm) a.normalized = false; /* there, all are looked for in the text as given */
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

static status load_normalizer(tokenizer *t, const json_t *n, const char *what, int depth, err *e)
{
    if (!n || json_is_null(n)) return ST_OK;
    const char *type = json_string_value(json_object_get(n, "type"));
    if (!type) return err_set(e, ST_FORMAT, "%s: type is missing or not a string", what);
    if (strcmp(type, "NFC") == 0) {
        t->nfc = true;
        return ST_OK;
    }
    const json_t *list = json_object_get(n, "normalizers");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return err_set(e, ST_UNSUPPORTED, "%s: type \"%.40s\"; NFC and a Sequence of it are supported", what, type);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(load_normalizer(t, json_array_get(list, i), what, depth + 1, e));
    return ST_OK;
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
    if (!how || (!regex && !plain)) return err_set(e, ST_FORMAT, "%s: Split without pattern or behavior", what);
    if (strcmp(how, "Removed") == 0) keep = invert ? PRETOK_MATCHES : PRETOK_GAPS;
    else if (strcmp(how, "Isolated") != 0)
        return err_set(e, ST_UNSUPPORTED, "%s: behavior \"%.40s\"; Isolated and Removed are supported", what, how);
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

/* *bytes: whether the ByteLevel step, which must be the last, was there. */
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
    if (*bytes) return err_set(e, ST_UNSUPPORTED, "%s: \"%.40s\" behind ByteLevel", what, type);
    if (strcmp(type, "Split") == 0) return load_split(t, p, what, e);
    if (strcmp(type, "Digits") == 0) {
        bool each;
        TRY(flag(&each, p, "individual_digits", false, what, e));
        return pretok_add_regex(t->pre, each ? "\\p{N}" : "\\p{N}+", PRETOK_ISOLATED, what, e);
    }
    if (strcmp(type, "ByteLevel") != 0)
        return err_set(e, ST_UNSUPPORTED, "%s: type \"%.40s\"; Split, Digits and ByteLevel are supported", what, type);
    *bytes = true;
    return load_byte_level(t, p, what, e);
}

/* BOS: the special token in front of the text in the template for one text. */
static status load_template(tokenizer *t, const json_t *p, const char *what, err *e)
{
    const json_t *first = json_array_get(json_object_get(p, "single"), 0);
    const char *key = json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
    t->bos_from_template = true;
    if (!key) return ST_OK;
    const json_t *tok = json_object_get(json_object_get(p, "special_tokens"), key);
    const json_t *id = json_array_get(json_object_get(tok, "ids"), 0);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "%s: special_tokens has no id for \"%.40s\"", what, key);
    t->bos = (int32_t)json_integer_value(id);
    t->adds_bos = true;
    return ST_OK;
}

static status load_post_processor(tokenizer *t, const json_t *p, const char *what, int depth, err *e)
{
    const char *type = json_string_value(json_object_get(p, "type"));
    if (!type) return ST_OK;
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, p, what, e);
    const json_t *list = json_object_get(p, "processors");
    for (size_t i = 0; i < json_array_size(list) && depth < 4; i++)
        TRY(load_post_processor(t, json_array_get(list, i), what, depth + 1, e));
    return ST_OK;
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
    if (!bytes) return err_set(e, ST_UNSUPPORTED, "%s: no ByteLevel step", what);
    snprintf(what, sizeof what, "%.180s: post_processor", name);
    return load_post_processor(t, json_object_get(root, "post_processor"), what, 0, e);
}
