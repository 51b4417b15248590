/* SPDX-License-Identifier: MIT */
/* The small JSON files beside a vocabulary: special tokens, BOS and EOS, the chat template. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

enum { WHAT_MAX = 220, MAX_EOS = 256 };

/* *out stays NULL where dir has no such file. */
static status read_optional(json_t **out, const char *dir, const char *file, err *e)
{
    *out = NULL;
    char *path = path_join(dir, file);
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", file);
    status st = file_exists(path) ? json_read_object(out, path, CONFIG_MAX_FILE, JSON_DEPTH, e) : ST_OK;
    mem_free(path);
    return st;
}

/* added_tokens_decoder: {"id": {"content": ...}}. */
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

/* Id of a token given as "text" or {"content": "text"}, -1 if it is not given or unknown. */
static int32_t named_token(const tokenizer *t, const json_t *v)
{
    const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    if (!s) return -1;
    const added_token *a = added_by_text(&t->added, s, strlen(s));
    if (a) return a->id;
    return t->bpe ? bpe_find(t->bpe, s, strlen(s)) : -1;
}

static status load_names(tokenizer *t, const json_t *cfg, err *e)
{
    const int32_t bos = named_token(t, json_object_get(cfg, "bos_token"));
    const int32_t eos = named_token(t, json_object_get(cfg, "eos_token"));
    const json_t *add = json_object_get(cfg, "add_bos_token");
    if (bos >= 0 && t->bos < 0) t->bos = bos;
    if (json_is_boolean(add) && !t->bos_from_template) t->adds_bos = json_is_true(add) && t->bos >= 0;
    return eos >= 0 ? token_list_push(&t->eos, eos, e) : ST_OK;
}

/* eos_token_id: an integer or a list of them. *found: whether the key says anything. */
static status load_eos_ids(tokenizer *t, const json_t *cfg, const char *dir, const char *file, bool *found, err *e)
{
    const json_t *v = json_object_get(cfg, "eos_token_id");
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

static status load_generation(tokenizer *t, const char *dir, err *e)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) { /* the second only where the first says nothing */
        json_t *cfg;
        TRY(read_optional(&cfg, dir, files[i], e));
        status st = load_eos_ids(t, cfg, dir, files[i], &found, e);
        json_decref(cfg);
        TRY(st);
    }
    return ST_OK;
}

/* chat_template: text, or a list of named texts of which "default" counts. */
static void detect_in(tokenizer *t, const json_t *cfg)
{
    const json_t *v = json_object_get(cfg, "chat_template");
    const char *s = json_string_value(v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *text = json_string_value(json_object_get(item, "template"));
        if (text && (!s || (name && strcmp(name, "default") == 0))) s = text;
    }
    if (s && !t->chat) t->chat = chat_detect(t, s, strlen(s));
}

/* Newer folders keep the template in a file of its own, which goes before tokenizer_config.json. */
static status detect_files(tokenizer *t, const char *dir, err *e)
{
    char *path = path_join(dir, "chat_template.jinja"), *text = NULL;
    size_t n;
    json_t *j = NULL;
    if (!path) return err_set(e, ST_NOMEM, "chat_template.jinja: out of memory");
    status st = ST_OK;
    if (file_exists(path)) TRY_GOTO(file_read(&text, &n, path, CONFIG_MAX_FILE, e));
    if (text) TRY_GOTO(file_check_pointer(text, n, path, e));
    if (text) t->chat = chat_detect(t, text, n);
    TRY_GOTO(read_optional(&j, dir, "chat_template.json", e));
    detect_in(t, j);
done:
    json_decref(j);
    mem_free(text);
    mem_free(path);
    return st;
}

status settings_load(tokenizer *t, const char *dir, err *e)
{
    json_t *cfg = NULL, *map = NULL;
    status st;
    TRY_GOTO(read_optional(&cfg, dir, "tokenizer_config.json", e));
    TRY_GOTO(read_optional(&map, dir, "special_tokens_map.json", e));
    TRY_GOTO(load_decoder(t, cfg, dir, e));
    TRY_GOTO(added_sort(&t->added, dir, e));
    TRY_GOTO(load_names(t, cfg, e));
    TRY_GOTO(load_names(t, map, e));
    TRY_GOTO(load_generation(t, dir, e));
    t->cleans_up = json_is_true(json_object_get(cfg, "clean_up_tokenization_spaces"));
    TRY_GOTO(detect_files(t, dir, e));
    detect_in(t, cfg);
done:
    json_decref(cfg);
    json_decref(map);
    return st;
}
