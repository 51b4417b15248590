/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "serve/api_stream.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/call_json.h"

static status no_memory(err *e)
{
    return err_set(e, ST_NOMEM, "out of memory for an answer");
}

status api_stream_open(api_stream *s, const api_form *form, const api_head *head, buffer *out, err *e)
{
    *s = (api_stream){.form = form, .head = head, .out = out, .items = json_array()};
    return s->items ? ST_OK : no_memory(e);
}

void api_stream_free(api_stream *s)
{
    json_decref(s->items);
    json_decref(s->item);
    mem_free(s->text.p);
    *s = (api_stream){0};
}

status api_stream_event(api_stream *s, json_t *data, err *e)
{
    const char *type = json_string_value(json_object_get(data, "type"));
    char *text = data && s->out ? json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    status st = data && (text || !s->out) ? ST_OK : no_memory(e);
    const char *const parts[] = {"event: ", type, "\ndata: ", text, "\n\n"};
    for (int i = 0; i < 5 && text && st == ST_OK; i++) st = buffer_add(s->out, parts[i], strlen(parts[i]), e);
    s->n_events++;
    free(text);
    json_decref(data);
    return st;
}

status api_stream_begin(api_stream *s, const api_usage *usage, err *e)
{
    if (s->begun) return ST_OK;
    s->begun = true;
    return s->form->begin(s, usage, e);
}

static status close_item(api_stream *s, err *e)
{
    if (!s->item) return ST_OK;
    TRY(buffer_add(&s->text, "", 1, e));
    s->text.n--;
    TRY(s->form->close(s, e));
    if (json_array_append(s->items, s->item) != 0) return no_memory(e);
    json_decref(s->item);
    s->item = NULL;
    return ST_OK;
}

/* Opens an item. text [n]: name and id of a call, with a NUL between. */
static status open_item(api_stream *s, const char *text, size_t n, err *e)
{
    const size_t name = strlen(text), used = n ? name + 1 : 0;
    char *id = strndup(text + used, n - used);
    s->text.n = s->text.at = 0;
    status st = id ? s->form->open(s, text, id, e) : no_memory(e);
    free(id);
    return st == ST_OK && !s->item ? no_memory(e) : st;
}

status api_stream_add(api_stream *s, const api_events *l, err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        const api_event *v = &l->list[i];
        const char *text = l->text.p + v->at;
        const call_event kind = v->what == CALL_BEGIN || v->what == CALL_END ? CALL_ARGS : v->what;
        if (v->what == CALL_BEGIN || kind != s->kind || v->what == CALL_END) TRY(close_item(s, e));
        if (v->what == CALL_END) continue;
        s->kind = kind;
        if (!s->item) TRY(open_item(s, v->what == CALL_BEGIN ? text : "", v->what == CALL_BEGIN ? v->n : 0, e));
        if (v->what == CALL_BEGIN) continue;
        TRY(buffer_add(&s->text, text, v->n, e));
        TRY(s->form->add(s, text, v->n, e));
    }
    return ST_OK;
}

status api_stream_end(api_stream *s, json_t **answer, const char *finish, const char *stop, const api_usage *usage,
                      json_t *kvasir, err *e)
{
    *answer = NULL;
    s->cut = strcmp(finish, "length") == 0;
    status st = close_item(s, e);
    if (st != ST_OK) json_decref(kvasir);
    TRY(st);
    *answer = s->form->answer(s, finish, stop, usage, kvasir);
    return *answer ? s->form->end(s, *answer, e) : no_memory(e);
}

json_t *api_arguments(const char *text, size_t n)
{
    json_scan scan = {0};
    size_t whole = 0;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    if (json_is_object(j)) return j;
    json_decref(j);
    for (size_t i = 0; i < n && json_scan_byte(&scan, (unsigned char)text[i]) != SCAN_BAD; i++)
        if (scan.depth == 1 && scan.state == SCAN_AFTER) whole = i + 1;
    char *copy = whole ? malloc(whole + 1) : NULL;
    if (copy) {
        memcpy(copy, text, whole);
        copy[whole] = '}';
    }
    j = copy ? json_loadb(copy, whole + 1, JSON_ALLOW_NUL, NULL) : NULL;
    free(copy);
    return j ? j : json_object();
}
