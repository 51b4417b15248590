/* SPDX-License-Identifier: MIT */
/* Renders conversations, and again with changed messages if a template refuses them. */
#include "config.h"

#include <stdlib.h>

#include "serve/api_impl.h"
#include "serve/sched_impl.h"

static const char *text_at(const json_t *m, const char *key)
{
    const char *s = json_string_value(json_object_get(m, key));
    return s ? s : "";
}

static bool has_role(const json_t *m, const char *role)
{
    return strcmp(text_at(m, "role"), role) == 0;
}

/* Each step returns the number of changes. */

/* Missing contents become empty texts. */
static int null_content(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i), *content = json_object_get(m, "content");
        if (!content || json_is_null(content)) n += json_object_set_new(m, "content", json_string("")) == 0;
    }
    return n;
}

/* System messages after the first other one become user turns. */
static int late_system(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 1; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i);
        if (!has_role(m, "system")) continue;
        json_object_set_new(m, "content", json_sprintf("<system>\n%s\n</system>", text_at(m, "content")));
        n += json_object_set_new(m, "role", json_string("user")) == 0;
    }
    return n;
}

/* Neighbours of one role are joined with a blank line. */
static int merge_roles(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 1; i < json_array_size(list);) {
        json_t *a = json_array_get(list, i - 1), *b = json_array_get(list, i);
        const bool same = has_role(a, text_at(b, "role")) && !has_role(b, "tool") && !json_object_get(a, "tool_calls");
        if (!same) {
            i++;
            continue;
        }
        json_object_set_new(a, "content", json_sprintf("%s\n\n%s", text_at(a, "content"), text_at(b, "content")));
        if (json_object_get(b, "tool_calls")) json_object_set(a, "tool_calls", json_object_get(b, "tool_calls"));
        n += json_array_remove(list, i) == 0;
    }
    return n;
}

/* Arguments become text of JSON again. */
static int string_arguments(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *calls = json_object_get(json_array_get(list, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *f = json_object_get(json_array_get(calls, k), "function");
            char *text = json_dumps(json_object_get(f, "arguments"), 0);
            n += text && json_object_set_new(f, "arguments", json_string(text)) == 0;
            free(text);
        }
    }
    return n;
}

static int no_reasoning(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i);
        n += json_object_del(m, "reasoning_content") == 0;
        n += json_object_del(m, "reasoning") == 0;
    }
    return n;
}

/* Drops the variables that reasoning_effort set. */
static int drop_effort(api_request *r, json_t *list)
{
    const char *key;
    json_t *v;
    int n = 0;
    (void)list;
    json_object_foreach(r->effort, key, v) n += json_object_del((json_t *)(uintptr_t)r->talk.args, key) == 0;
    return n;
}

/* Splits a message with several calls into pairs of a call and its result. */
static int split_calls(api_request *r, json_t *list)
{
    int n = 0;
    (void)r;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i), *calls = json_object_get(m, "tool_calls");
        const size_t k = json_array_size(calls);
        for (size_t c = 1; c < k; c++) { /* result c follows the calls and c results before it */
            json_t *one = json_pack("{s:s, s:s, s:[O]}", "role", "assistant", "content", "", "tool_calls",
                                    json_array_get(calls, c));
            size_t at = i + 2 * c;
            if (at > json_array_size(list)) at = json_array_size(list);
            n += json_array_insert_new(list, at, one) == 0;
        }
        while (json_array_size(calls) > 1) json_array_remove(calls, 1);
    }
    return n;
}

static const struct {
    const char *name;
    int (*change)(api_request *r, json_t *messages);
} steps[] = {{"null_content", null_content}, {"late_system", late_system},
             {"merge_roles", merge_roles},   {"string_arguments", string_arguments},
             {"no_reasoning", no_reasoning}, {"drop_effort", drop_effort},
             {"split_calls", split_calls}};

/* ---- silent faults ---- */

static size_t count(const chat_text *t, const char *word)
{
    size_t n = 0;
    for (const char *at = t->text; (at = strstr(at, word)); at++) n++;
    return n;
}

/* Renders other messages. */
static bool render_other(scheduler *s, const api_request *r, json_t *list, chat_text *out)
{
    chat_input in = r->talk;
    in.messages = list;
    return sched_render_chat(s, &in, out, NULL) == ST_OK;
}

/* True if the template prints missing contents as None: with empty ones the text has fewer of these words. */
static bool prints_null(scheduler *s, api_request *r, const chat_text *t)
{
    if (!count(t, "None")) return false;
    json_t *list = json_deep_copy(r->talk.messages);
    chat_text with = {0};
    const bool fewer =
        null_content(r, list) && render_other(s, r, list, &with) && count(&with, "None") < count(t, "None");
    chat_text_free(&with);
    json_decref(list);
    return fewer;
}

/* True if the template drops the system messages after the first other one: without them the text is the same. */
static bool drops_system(scheduler *s, api_request *r, const chat_text *t)
{
    json_t *list = json_copy((json_t *)(uintptr_t)r->talk.messages);
    const size_t n = json_array_size(list);
    chat_text without = {0};
    for (size_t i = n; i-- > 1;)
        if (has_role(json_array_get(list, i), "system")) json_array_remove(list, i);
    const bool same = json_array_size(list) < n && render_other(s, r, list, &without) && without.n == t->n &&
                      memcmp(without.text, t->text, t->n) == 0;
    chat_text_free(&without);
    json_decref(list);
    return same;
}

/* Changes the messages of which the template silently drops or distorts a part, and renders again. */
static status repair(scheduler *s, api_request *r, chat_text *out, err *e)
{
    json_t *list = (json_t *)(uintptr_t)r->talk.messages;
    for (int k = 0; k < 2; k++) {
        if (!(k ? drops_system(s, r, out) : prints_null(s, r, out)) || !steps[k].change(r, list)) continue;
        if (!api_note(r->changes, steps[k].name)) return err_set(e, ST_NOMEM, "out of memory for a request");
        chat_text_free(out);
        TRY(sched_render_chat(s, &r->talk, out, e));
    }
    return ST_OK;
}

status api_render_chat(scheduler *s, api_request *r, chat_text *out, err *e)
{
    err first = {0};
    status st = sched_render_chat(s, &r->talk, out, &first);
    for (size_t i = 0; i < sizeof steps / sizeof *steps && (st == ST_USAGE || st == ST_FORMAT); i++) {
        if (!steps[i].change(r, (json_t *)(uintptr_t)r->talk.messages)) continue;
        if (!api_note(r->changes, steps[i].name)) return err_set(e, ST_NOMEM, "out of memory for a request");
        st = sched_render_chat(s, &r->talk, out, NULL);
    }
    return st == ST_OK ? repair(s, r, out, e) : err_set(e, st, "%s", first.msg);
}
