/* SPDX-License-Identifier: MIT */
/* Finds the chat templates of a model. Source of the order: transformers, tokenization_utils_base.py. */
#include "config.h"

#include "tokenizer/chat_set.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { TEMPLATE_MAX = 1 << 20 }; /* bytes of a file, the limit of jinja_parse */

void chat_template_free(chat_template *t)
{
    mem_free(t->name);
    mem_free(t->from);
    mem_free(t->why);
    mem_free(t->text);
    jinja_free(t->parsed);
    *t = (chat_template){0};
}

void chat_set_free(chat_set *s)
{
    for (size_t i = 0; i < s->n; i++) chat_template_free(&s->items[i]);
    chat_template_free(&s->own);
    mem_free(s->items);
    json_decref(s->tokens);
    json_decref(s->args);
    *s = (chat_set){0};
}

status chat_template_parse(chat_template *t, const char *name, const char *from, const char *text, size_t n, err *e)
{
    err why = {0};
    *t = (chat_template){.name = mem_strdup(name), .from = mem_strdup(from)};
    if (mem_alloc((void **)&t->text, n + 1, 1, from, NULL) == ST_OK) memcpy(t->text, text, n);
    status st = t->name && t->from && t->text ? jinja_parse(&t->parsed, text, n, from, &why) : ST_NOMEM;
    if (st == ST_OK) return ST_OK;
    if (st != ST_NOMEM && (t->why = mem_strdup(why.msg))) return ST_OK;
    chat_template_free(t);
    return err_set(e, ST_NOMEM, "%s: out of memory", from);
}

/* ---- the set ---- */

static chat_template *find(const chat_set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].name, name) == 0) return &s->items[i];
    return NULL;
}

const chat_template *chat_set_find(const chat_set *s, const char *name)
{
    return find(s, name);
}

status chat_set_add(chat_set *s, const char *name, const char *from, const char *text, size_t n, err *e)
{
    chat_template *t = find(s, name);
    if (!t && s->n == CHAT_TEMPLATES_MAX)
        return err_set(e, ST_FORMAT, "%s: more than %d chat templates", from, CHAT_TEMPLATES_MAX);
    TRY(MEM_ROOM(&s->items, &s->cap, s->n + 1, e));
    t = find(s, name);
    if (t) chat_template_free(t);
    else t = &s->items[s->n];
    TRY(chat_template_parse(t, name, from, text, n, e));
    if (t == &s->items[s->n]) s->n++;
    return ST_OK;
}

status chat_set_add_json(chat_set *s, const json_t *cfg, const char *file, err *e)
{
    const json_t *v = json_object_get(cfg, "chat_template");
    if (json_is_string(v)) return chat_set_add(s, "default", file, json_string_value(v), json_string_length(v), e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char from[200];
        const json_t *item = json_array_get(v, i), *text = json_object_get(item, "template");
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || !json_is_string(text)) continue;
        snprintf(from, sizeof from, "%.100s (%.60s)", file, name);
        TRY(chat_set_add(s, name, from, json_string_value(text), json_string_length(text), e));
    }
    return ST_OK;
}

status chat_template_read(char **text, size_t *n, const char *path, err *e)
{
    return file_read_text(text, n, path, TEMPLATE_MAX, e);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Adds a file as the template `name`. */
static status add_file(chat_set *s, const char *name, const char *path, err *e)
{
    char *text;
    size_t n;
    TRY(file_read(&text, &n, path, TEMPLATE_MAX, e));
    status st = file_check_pointer(text, n, path, e);
    if (st == ST_OK) st = chat_set_add(s, name, base_name(path), text, n, e);
    mem_free(text);
    return st;
}

static bool is_template(const char *name)
{
    const size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, ".jinja") == 0;
}

/* Adds a file of additional_chat_templates as the template of its name. */
static status add_named(void *set, const char *path, err *e)
{
    char *name = mem_strdup(base_name(path));
    if (!name) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(path));
    name[strlen(name) - 6] = 0;
    status st = add_file(set, name, path, e);
    mem_free(name);
    return st;
}

status chat_set_add_files(chat_set *s, const char *dir, err *e)
{
    char *file = path_join(dir, "chat_template.jinja"), *more = path_join(dir, "additional_chat_templates");
    size_t n;
    status st = file && more ? ST_OK : err_set(e, ST_NOMEM, "%s: out of memory", path_tail(dir));
    if (st == ST_OK && file_exists(file)) st = add_file(s, "default", file, e);
    if (st == ST_OK && dir_exists(more)) st = file_each(more, is_template, add_named, s, path_tail(more), &n, e);
    mem_free(file);
    mem_free(more);
    return st;
}

const chat_template *chat_set_choose(const chat_set *s, bool tools)
{
    const chat_template *t = s->selected;
    if (!t && tools) t = find(s, "tool_use");
    return t ? t : find(s, "default");
}

status chat_set_none(const chat_set *s, err *e)
{
    char list[160] = "";
    size_t n = 0;
    if (s->n == 0)
        return err_set(e, ST_UNSUPPORTED,
                       "the model has no chat template; name one with --template FILE|NAME, such as chatml");
    for (size_t i = 0; i < s->n && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", s->items[i].name);
    return err_set(e, ST_UNSUPPORTED, "the model has no default chat template; name one with --template: %s", list);
}
