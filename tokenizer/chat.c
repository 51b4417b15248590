/* SPDX-License-Identifier: MIT */
/* Renders conversations. Source: transformers, apply_chat_template and utils/chat_template_utils.py. */
#include "config.h"

#include "tokenizer/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tokenizer/chars.h"
#include "tokenizer/impl.h"

/* ---- selection ---- */

/* Lets a template read the spellings of special tokens. */
static status use_tokens(const tokenizer *t, const chat_template *c, err *e)
{
    return c->parsed ? jinja_set_constants(c->parsed, t->chat.tokens, e) : ST_OK;
}

/* Parses a built-in template; *t has no name if there is none of that name. */
static status parse_builtin(chat_template *t, const tokenizer *tok, const char *name, err *e)
{
    const char *needs, *text = chat_builtin(name, &needs);
    *t = (chat_template){0};
    if (!text) return ST_OK;
    if (needs && tokenizer_special_id(tok, needs) < 0)
        return err_set(e, ST_UNSUPPORTED, "chat template %s needs the token %s, which the tokenizer lacks", name,
                       needs);
    return chat_template_parse(t, name, name, text, strlen(text), e);
}

static status parse_file(chat_template *t, const char *path, err *e)
{
    char *text;
    size_t n;
    TRY(chat_template_read(&text, &n, path, e));
    status st = chat_template_parse(t, path, path, text, n, e);
    mem_free(text);
    return st;
}

static status unknown_template(const tokenizer *t, const char *name, err *e)
{
    char list[160] = "";
    size_t n = 0;
    for (const char *const *p = chat_template_names(); *p && n < sizeof list; p++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", *p);
    for (size_t i = 0; i < t->chat.n && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, ", %s", t->chat.items[i].name);
    return err_set(e, ST_USAGE, "--template %.40s: no such file or template; templates: %s", name, list);
}

/* Finds a template of the model: *of_model, or else reads another one to *own. */
static status find_template(const tokenizer *t, const char *name, const chat_template **of_model, chat_template *own,
                            err *e)
{
    const bool is_text = strstr(name, "{{") || strstr(name, "{%"), is_path = strchr(name, '/');
    *own = (chat_template){0};
    *of_model = is_text || is_path ? NULL : chat_set_find(&t->chat, name);
    if (*of_model) return ST_OK;
    if (is_text) TRY(chat_template_parse(own, "", "--template", name, strlen(name), e));
    else if (!is_path) TRY(parse_builtin(own, t, name, e));
    const bool is_file = strcmp(name, "-") == 0 || (access(name, F_OK) == 0 && !dir_exists(name));
    if (!own->name && !is_file) return unknown_template(t, name, e);
    if (!own->name) TRY(parse_file(own, name, e));
    const status st = use_tokens(t, own, e);
    if (st != ST_OK) chat_template_free(own);
    return st;
}

status tokenizer_set_template(tokenizer *t, const char *name, err *e)
{
    chat_set *s = &t->chat;
    const chat_template *of_model;
    chat_template own;
    if (!name) s->selected = NULL;
    if (!name) return ST_OK;
    TRY(find_template(t, name, &of_model, &own, e));
    chat_template_free(&s->own);
    s->own = own;
    s->selected = of_model ? of_model : &s->own;
    return s->selected->parsed ? ST_OK : err_set(e, ST_FORMAT, "%s", s->selected->why);
}

status tokenizer_set_template_args(tokenizer *t, const json_t *args, err *e)
{
    json_t *copy = args ? json_deep_copy(args) : NULL;
    if (args && !copy) return err_set(e, ST_NOMEM, "out of memory");
    json_decref(t->chat.args);
    t->chat.args = copy;
    return ST_OK;
}

const char *tokenizer_chat_template(const tokenizer *t)
{
    const chat_template *c = chat_set_choose(&t->chat, false);
    return c ? c->from : NULL;
}

status chat_name_token(tokenizer *t, const char *key, int32_t id, err *e)
{
    char *text = NULL;
    size_t n;
    if (!t->chat.tokens && !(t->chat.tokens = json_object())) return err_set(e, ST_NOMEM, "out of memory");
    if (json_object_get(t->chat.tokens, key)) return ST_OK;
    if (id >= 0) TRY(tokenizer_bytes(t, id, &text, &n, e));
    json_t *v = json_string(text ? text : "");
    mem_free(text);
    if (!v) return ST_OK; /* no spelling in UTF-8 */
    return json_object_set_new(t->chat.tokens, key, v) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

const char *tokenizer_chat_text(const tokenizer *t, bool tools)
{
    const chat_template *c = chat_set_choose(&t->chat, tools);
    return c ? c->text : NULL;
}

status chat_name_tokens(tokenizer *t, err *e)
{
    TRY(chat_name_token(t, "bos_token", t->bos, e));
    TRY(chat_name_token(t, "eos_token", t->eos.n ? t->eos.ids[0] : -1, e));
    for (size_t i = 0; i < t->chat.n; i++) TRY(use_tokens(t, &t->chat.items[i], e));
    return ST_OK;
}

/* ---- messages ---- */

/* Returns a text with U+FFFD for each invalid sequence of bytes; NULL: out of memory. */
static json_t *text_json(const char *s)
{
    char *valid;
    size_t left = strlen(s), n = 0;
    json_t *j = json_string(s);
    if (j || mem_alloc((void **)&valid, left, 3, "a message", NULL) != ST_OK) return j;
    while (left > 0) {
        size_t k = (size_t)utf8_valid_len((const unsigned char *)s, left);
        memcpy(valid + n, k ? s : "\xef\xbf\xbd", k ? k : 3);
        n += k ? k : 3;
        if (!k) k = broken_len(s, left);
        s += k;
        left -= k;
    }
    j = json_stringn(valid, n);
    mem_free(valid);
    return j;
}

status chat_messages(json_t **out, const chat_message *m, size_t n, err *e)
{
    json_t *list = json_array();
    bool good = list;
    for (size_t i = 0; i < n && good; i++)
        good = json_array_append_new(list, json_pack("{s:o, s:o}", "role", text_json(m[i].role), "content",
                                                     text_json(m[i].content))) == 0;
    *out = good ? list : NULL;
    if (good) return ST_OK;
    json_decref(list);
    return err_set(e, ST_NOMEM, "out of memory");
}

status chat_parse(json_t **out, const char *text, size_t n, const char *name, err *e)
{
    enum { DEPTH = 128 };
    TRY(json_parse_any(out, text, n, name, DEPTH, e));
    if (json_is_object(*out)) return ST_OK;
    if (!json_is_array(*out)) {
        json_decref(*out);
        *out = NULL;
        return err_set(e, ST_FORMAT, "%s: expected an array of messages, or an object", name);
    }
    *out = json_pack("{s:o}", "messages", *out);
    return *out ? ST_OK : err_set(e, ST_NOMEM, "%s: out of memory", name);
}

chat_input chat_input_of(const json_t *object)
{
    return (chat_input){
        .messages = json_object_get(object, "messages"), .tools = json_object_get(object, "tools"), .args = object};
}

static status check_messages(const json_t *list, err *e)
{
    if (json_array_size(list) == 0) return err_set(e, ST_USAGE, "chat: no messages");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_object_get(json_array_get(list, i), "role")))
            return err_set(e, ST_USAGE, "chat: message %zu is not an object with a role", i + 1);
    return ST_OK;
}

static bool lacks_content(const json_t *m)
{
    const json_t *v = json_object_get(m, "content");
    return !v || json_is_null(v);
}

/* Copies the thoughts of a message to the two keys that templates read. */
static bool alias_thoughts(json_t *m)
{
    static const char *const keys[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *v = NULL;
    for (int i = 0; i < 3 && (!v || json_is_null(v)); i++) v = json_object_get(m, keys[i]);
    if (!v || json_is_null(v)) return true;
    json_incref(v);
    bool good = json_object_get(m, "thinking") || json_object_set(m, "thinking", v) == 0;
    return json_object_set_new(m, "reasoning_content", v) == 0 && good;
}

/* Returns the messages as templates read them. empty: missing contents become empty texts. NULL: out of memory. */
static json_t *copy_messages(const json_t *list, bool empty)
{
    json_t *out = json_deep_copy(list);
    bool good = out;
    for (size_t i = 0; good && i < json_array_size(out); i++) {
        json_t *m = json_array_get(out, i);
        good = alias_thoughts(m);
        if (empty && lacks_content(m)) good = good && json_object_set_new(m, "content", json_string("")) == 0;
    }
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- continued messages ---- */

/* Marks the end of a text that the prompt continues; the last byte tells whether the template trims. */
static const char TAG[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* Returns the object and key of the last message's text if it is from the assistant; NULL otherwise. */
static json_t *final_text(json_t *messages, const char **key)
{
    json_t *m = json_array_get(messages, json_array_size(messages) - 1), *content = json_object_get(m, "content");
    if (strcmp(json_string_value(json_object_get(m, "role")), "assistant") != 0) return NULL;
    *key = "content";
    if (json_is_string(content)) return m;
    *key = "text";
    for (size_t i = json_array_size(content); i-- > 0;)
        if (json_is_string(json_object_get(json_array_get(content, i), "text"))) return json_array_get(content, i);
    return NULL;
}

/* Appends TAG to the text at key. */
static status add_tag(json_t *at, const char *key, err *e)
{
    const json_t *v = json_object_get(at, key);
    json_t *tagged = json_sprintf("%s%s", json_string_value(v), TAG);
    return tagged && json_object_set_new(at, key, tagged) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

static char *find_last(const char *text, size_t n, const char *word, size_t k)
{
    for (size_t i = n >= k ? n - k + 1 : 0; i-- > 0;)
        if (memcmp(text + i, word, k) == 0) return (char *)(uintptr_t)text + i;
    return NULL;
}

/* Cuts the rendered text where the tagged text of the last message ends. */
static status cut_at_tag(jinja_text *t, const char *tagged, err *e)
{
    const size_t tag = sizeof TAG - 1;
    const char *s = tagged;
    size_t n = strlen(tagged) - tag;
    trim_python(&s, &n);
    const char *at = find_last(t->text, t->n, TAG, tag - 1);
    if (!at || !memmem(t->text, t->n, s, n))
        return err_set(e, ST_USAGE, "chat: the template drops the last message, which cannot be continued");
    const bool trims = t->n - (size_t)(at - t->text) < tag || at[tag - 1] != ' ';
    t->n = (size_t)(at - t->text);
    s = t->text;
    n = t->n;
    trim_python(&s, &n);
    if (trims) t->n = n ? (size_t)(s + n - t->text) : 0;
    t->text[t->n] = 0;
    return ST_OK;
}

/* ---- rendering ---- */

int64_t chat_clock(void)
{
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    return fixed && *fixed ? strtoll(fixed, NULL, 10) : (int64_t)time(NULL);
}

/* Returns the variables of a rendering; takes ownership of messages. NULL: out of memory. */
static json_t *variables(const tokenizer *t, const chat_input *in, json_t *messages, bool begins)
{
    const bool tools = json_array_size(in->tools) > 0;
    json_t *v = json_pack("{s:n, s:b}", "documents", "add_generation_prompt", 1);
    const json_t *const more[] = {t->chat.args, in->args};
    bool good = v;
    for (int i = 0; i < 2; i++)
        if (good && more[i]) good = json_object_update(v, (json_t *)(uintptr_t)more[i]) == 0;
    json_t *given = tools ? json_incref((json_t *)(uintptr_t)in->tools) : json_null();
    if (good && !begins) good = json_object_set_new(v, "add_generation_prompt", json_false()) == 0;
    if (json_object_set_new(v, "tools", given) != 0) good = false;
    if (json_object_set_new(v, "messages", messages) != 0) good = false;
    if (good) return v;
    json_decref(v);
    return NULL;
}

/* Renders the conversation once. empty: see copy_messages. */
static status render_once(const tokenizer *t, const chat_template *c, const chat_input *in, bool empty, jinja_text *out,
                          err *e)
{
    const char *key = NULL;
    json_t *messages = copy_messages(in->messages, empty);
    if (!messages) return err_set(e, ST_NOMEM, "out of memory");
    json_t *last = in->end == CHAT_CONTINUES ? final_text(messages, &key) : NULL, *v = NULL;
    status st = last ? add_tag(last, key, e) : ST_OK;
    if (st != ST_OK) json_decref(messages);
    else if (!(v = variables(t, in, messages, !last && in->end != CHAT_ENDS)))
        st = err_set(e, ST_NOMEM, "out of memory");
    err why = {0};
    if (st == ST_OK) {
        st = jinja_render(c->parsed, v, in->now ? in->now : chat_clock(), out, &why);
        if (st == ST_OK && last) st = cut_at_tag(out, json_string_value(json_object_get(last, key)), &why);
        if (st != ST_OK) jinja_text_free(out);
        if (st != ST_OK) err_set(e, st, st == ST_USAGE ? "chat template: %s" : "%s", why.msg);
    }
    json_decref(v);
    return st;
}

static status render_with(const tokenizer *t, const chat_template *c, const chat_input *in, jinja_text *out, err *e)
{
    err first = {0};
    bool lacks = false;
    if (!c->parsed) return err_set(e, ST_FORMAT, "%s", c->why);
    status st = render_once(t, c, in, false, out, &first);
    for (size_t i = 0; i < json_array_size(in->messages); i++) lacks |= lacks_content(json_array_get(in->messages, i));
    if ((st == ST_USAGE || st == ST_FORMAT) && lacks && render_once(t, c, in, true, out, NULL) == ST_OK) return ST_OK;
    return st == ST_OK ? ST_OK : err_set(e, st, "%s", first.msg);
}

static status render(const tokenizer *t, const chat_input *in, jinja_text *out, err *e)
{
    const bool tools = json_array_size(in->tools) > 0;
    chat_template own = {0};
    *out = (jinja_text){0};
    TRY(check_messages(in->messages, e));
    const chat_template *c = in->name ? NULL : chat_set_choose(&t->chat, tools);
    if (!c && !in->name) return chat_set_none(&t->chat, e);
    if (in->name) TRY(find_template(t, in->name, &c, &own, e));
    status st = render_with(t, c ? c : &own, in, out, e);
    chat_template_free(&own);
    return st;
}

void chat_text_free(chat_text *t)
{
    jinja_text own = {t->text, t->n, t->input};
    jinja_text_free(&own);
    *t = (chat_text){0};
}

status chat_render_marked(const tokenizer *t, const chat_input *in, chat_text *out, err *e)
{
    jinja_text text;
    status st = render(t, in, &text, e);
    *out = (chat_text){text.text, text.n, text.input};
    if (st != ST_OK) chat_text_free(out);
    return st;
}

status chat_encode(const tokenizer *t, const chat_input *in, token_list *out, err *e)
{
    chat_text text;
    TRY(chat_render_marked(t, in, &text, e));
    status st = tokenizer_encode_marked(t, text.text, text.n, text.input, out, e);
    chat_text_free(&text);
    return st;
}

status chat_render(const tokenizer *t, const chat_input *in, char **out, size_t *len, err *e)
{
    jinja_text text;
    *out = NULL;
    status st = render(t, in, &text, e);
    if (st == ST_OK) st = mem_alloc((void **)out, text.n + 1, 1, "a conversation", e);
    if (st == ST_OK) {
        memcpy(*out, text.text, text.n);
        *len = text.n;
    }
    jinja_text_free(&text);
    return st;
}
