/* SPDX-License-Identifier: MIT */
/* Settings in JSON files other than the vocabulary: special tokens, BOS and EOS, the chat template. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

enum { WHAT_MAX = 220, MAX_EOS = 256 };

/* Reads a JSON file; *out stays NULL if dir, or the folder of a file, has no such file. */
static status read_optional(json_t **out, const char *dir, const char *file, err *e)
{
    *out = NULL;
    char *path = path_in_model(dir, file);
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", file);
    status st = file_exists(path) ? json_read_object(out, path, CONFIG_MAX_FILE, JSON_DEPTH, e) : ST_OK;
    mem_free(path);
    return st;
}

status settings_read_class(bool *qwen2, const char *dir, err *e)
{
    json_t *cfg;
    TRY(read_optional(&cfg, dir, "tokenizer_config.json", e));
    const char *name = json_string_value(json_object_get(cfg, "tokenizer_class"));
    status st = ST_OK;
    *qwen2 = !name || strncmp(name, "Qwen2Tokenizer", 14) == 0;
    if (!*qwen2 && strncmp(name, "GPT2Tokenizer", 13) != 0)
        st = err_set(e, ST_UNSUPPORTED,
                     "%.120s/tokenizer_config.json: tokenizer_class \"%.40s\" is not supported without tokenizer.json; "
                     "supported: Qwen2Tokenizer, GPT2Tokenizer",
                     dir, name);
    json_decref(cfg);
    return st;
}

/* Loads added_tokens_decoder: {"id": {"content": ...}}. */
static status load_decoder(tokenizer *t, const json_t *cfg, const char *dir, err *e)
{
    char what[WHAT_MAX];
    const char *key;
    json_t *entry, *list = json_object_get(cfg, "added_tokens_decoder");
    if (!list || json_is_null(list)) return ST_OK;
    if (!json_is_object(list))
        return err_set(e, ST_FORMAT, "%.150s/tokenizer_config.json: added_tokens_decoder is not an object", dir);
    if (t->guessed_added && json_object_size(list)) added_free(&t->added);
    json_object_foreach(list, key, entry)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        snprintf(what, sizeof what, "%.120s/tokenizer_config.json: added_tokens_decoder[\"%.12s\"]", dir, key);
        if (*key < '0' || *key > '9' || *end) return err_set(e, ST_FORMAT, "%s: the key is not an id", what);
        TRY(json_added_token(t, entry, id, what, e));
    }
    return ST_OK;
}

/* Returns the id of a token given as "text" or {"content": "text"}, -1 if missing or unknown. */
static int32_t named_token(const tokenizer *t, const json_t *v)
{
    const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    if (!s) return -1;
    const added_token *a = added_by_text(&t->added, s, strlen(s));
    if (a) return a->id;
    return t->bpe ? bpe_find(t->bpe, s, strlen(s)) : -1;
}

/* Loads bos_token, eos_token and add_bos_token. The last one has no effect on a tokenizer.json, as in the reference. */
static status load_names(tokenizer *t, const json_t *cfg, err *e)
{
    const int32_t bos = named_token(t, json_object_get(cfg, "bos_token"));
    const int32_t eos = named_token(t, json_object_get(cfg, "eos_token"));
    const json_t *add = json_object_get(cfg, "add_bos_token");
    if (bos >= 0 && t->bos < 0) t->bos = bos;
    if (json_is_boolean(add) && !t->has_template) t->adds_bos = json_is_true(add) && t->bos >= 0;
    return eos >= 0 ? token_list_push(&t->eos, eos, e) : ST_OK;
}

/* ---- added tokens of other files ---- */

/* Lists of special tokens, or objects as {"image_token": "<image>"}. Other special tokens have keys of their own that
 * end in "_token". A token is a text or an object with the text. */
static const char *const special_lists[] = {"additional_special_tokens", "extra_special_tokens"};

/* Adds a special token to out. */
static status list_special(json_t *out, const json_t *token, err *e)
{
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    if (!text || json_object_get(out, text)) return ST_OK;
    return json_object_set(out, text, (json_t *)(uintptr_t)token) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* Adds the special tokens of a file to out: {text: token as the file has it}. */
static status find_special(json_t *out, const json_t *cfg, err *e)
{
    const char *key;
    json_t *item;
    for (size_t i = 0; i < sizeof special_lists / sizeof *special_lists; i++) {
        json_t *v = json_object_get(cfg, special_lists[i]);
        for (size_t k = 0; k < json_array_size(v); k++) TRY(list_special(out, json_array_get(v, k), e));
        json_object_foreach(v, key, item) TRY(list_special(out, item, e));
    }
    json_object_foreach((json_t *)(uintptr_t)cfg, key, item)
    {
        const size_t n = strlen(key);
        if (n > 6 && strcmp(key + n - 6, "_token") == 0) TRY(list_special(out, item, e));
    }
    return ST_OK;
}

/* Adds the special tokens that have ids in the vocabulary only. */
static status add_special(tokenizer *t, json_t *special, err *e)
{
    const char *text;
    json_t *token;
    json_object_foreach(special, text, token)
    {
        const size_t n = strlen(text);
        const int32_t id = t->bpe ? bpe_find(t->bpe, text, n) : -1;
        if (id < 0 || added_by_text(&t->added, text, n)) continue;
        json_t *entry = json_is_object(token) ? json_copy(token) : json_object();
        status st = json_object_set_new(entry, "content", json_string(text)) == 0 &&
                            json_object_set_new(entry, "special", json_true()) == 0
                        ? json_added_token(t, entry, id, "special tokens", e)
                        : err_set(e, ST_NOMEM, "out of memory");
        json_decref(entry);
        TRY(st);
    }
    return ST_OK;
}

/* Loads added_tokens.json of older folders: {"text": id}. */
static status load_added_file(tokenizer *t, const char *dir, const json_t *special, err *e)
{
    json_t *list, *id;
    const char *text;
    char what[WHAT_MAX];
    TRY(read_optional(&list, dir, "added_tokens.json", e));
    status st = ST_OK;
    if (t->guessed_added && json_object_size(list)) added_free(&t->added);
    snprintf(what, sizeof what, "%.150s/added_tokens.json", dir);
    json_object_foreach(list, text, id)
    {
        json_t *entry = json_pack("{s:s, s:b}", "content", text, "special", json_object_get(special, text) != NULL);
        if (!json_is_integer(id)) st = err_set(e, ST_FORMAT, "%s: the id of \"%.40s\" is not an integer", what, text);
        else st = json_added_token(t, entry, json_integer_value(id), what, e);
        json_decref(entry);
        if (st != ST_OK) break;
    }
    json_decref(list);
    return st;
}

/* Loads eos_token_id, an integer or a list; the config of a model with a vision part may have it only in its text part.
 * *found: the key has ids. */
static status load_eos_ids(tokenizer *t, const json_t *cfg, const char *dir, const char *file, bool *found, err *e)
{
    const json_t *v = json_object_get(cfg, "eos_token_id");
    if (!v) v = json_object_get(json_object_get(cfg, "text_config"), "eos_token_id");
    *found = false;
    if (!v || json_is_null(v)) return ST_OK;
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > MAX_EOS)
        return err_set(e, ST_FORMAT, "%.150s/%s: eos_token_id has %zu ids, at most %d allowed", dir, file, n, MAX_EOS);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        const json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < -1 || x > INT32_MAX)
            return err_set(e, ST_FORMAT, "%.150s/%s: eos_token_id is not a token id or a list of ids", dir, file);
        if (x >= 0) TRY(token_list_push(&t->eos, (int32_t)x, e));
    }
    *found = n > 0;
    return ST_OK;
}

status settings_load_stops(tokenizer *t, const char *dir, bool config, err *e)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    bool found = false;
    for (int i = 0; i < 1 + config && !found; i++) { /* the second file only if the first has no ids */
        json_t *cfg;
        TRY(read_optional(&cfg, dir, files[i], e));
        status st = load_eos_ids(t, cfg, dir, files[i], &found, e);
        json_decref(cfg);
        TRY(st);
    }
    return ST_OK;
}

/* Adds the variables that templates read, such as bos_token: all keys of cfg that end so. */
static status load_token_names(tokenizer *t, const json_t *cfg, err *e)
{
    const char *key;
    json_t *v;
    if (!t->chat.tokens && !(t->chat.tokens = json_object())) return err_set(e, ST_NOMEM, "out of memory");
    json_object_foreach((json_t *)(uintptr_t)cfg, key, v)
    {
        const size_t n = strlen(key);
        json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
        if (n < 6 || strcmp(key + n - 6, "_token") != 0 || !json_is_string(text)) continue;
        if (json_object_get(t->chat.tokens, key)) continue;
        if (json_object_set(t->chat.tokens, key, text) != 0) return err_set(e, ST_NOMEM, "out of memory");
    }
    return ST_OK;
}

/* Adds the built-in template that belongs to the vocabulary. */
static status add_usual(tokenizer *t, err *e)
{
    char from[64];
    const char *needs, *text = chat_builtin(t->usual_chat, &needs);
    snprintf(from, sizeof from, "built-in %s", t->usual_chat);
    return chat_set_add(&t->chat, "default", from, text, strlen(text), e);
}

/* Loads the templates: files of newer folders take precedence over tokenizer_config.json, and that over
 * chat_template.json of older processors. */
static status load_templates(tokenizer *t, const json_t *cfg, const char *dir, err *e)
{
    json_t *old = NULL;
    TRY(read_optional(&old, dir, "chat_template.json", e));
    status st;
    TRY_GOTO(chat_set_add_files(&t->chat, dir, e));
    if (t->chat.n == 0) TRY_GOTO(chat_set_add_json(&t->chat, cfg, "tokenizer_config.json", e));
    if (t->chat.n == 0) TRY_GOTO(chat_set_add_json(&t->chat, old, "chat_template.json", e));
    if (t->chat.n == 0 && t->usual_chat) TRY_GOTO(add_usual(t, e));
done:
    json_decref(old);
    return st;
}

status settings_load(tokenizer *t, const char *dir, err *e)
{
    json_t *cfg = NULL, *map = NULL, *special = json_object();
    status st;
    TRY_GOTO(read_optional(&cfg, dir, "tokenizer_config.json", e));
    TRY_GOTO(read_optional(&map, dir, "special_tokens_map.json", e));
    TRY_GOTO(find_special(special, map, e));
    TRY_GOTO(find_special(special, cfg, e));
    TRY_GOTO(load_decoder(t, cfg, dir, e));
    if (!json_object_get(cfg, "added_tokens_decoder")) TRY_GOTO(load_added_file(t, dir, special, e));
    TRY_GOTO(added_sort(&t->added, &t->normalizer, dir, e));
    TRY_GOTO(add_special(t, special, e));
    TRY_GOTO(added_sort(&t->added, &t->normalizer, dir, e));
    TRY_GOTO(load_names(t, cfg, e));
    TRY_GOTO(load_names(t, map, e));
    TRY_GOTO(settings_load_stops(t, dir, true, e));
    t->cleans_up = json_is_true(json_object_get(cfg, "clean_up_tokenization_spaces"));
    TRY_GOTO(load_token_names(t, cfg, e));
    TRY_GOTO(load_token_names(t, map, e));
    TRY_GOTO(load_templates(t, cfg, dir, e));
done:
    json_decref(cfg);
    json_decref(map);
    json_decref(special);
    return st;
}
