/* SPDX-License-Identifier: MIT */
/* Text of a chat reply: tokens, then thinking and calls, then stop texts in the content. */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"
#include "serve/sched_impl.h"
#include "tokenizer/call_reply.h"

enum { ID = 9 };

status api_events_add(api_events *l, call_event what, int index, const char *text, size_t n, err *e)
{
    api_event *last = l->n ? &l->list[l->n - 1] : NULL;
    const bool joins = last && last->what == what && last->index == index && what != CALL_BEGIN;
    TRY(buffer_add(&l->text, text, n, e));
    if (joins) last->n += n;
    if (joins) return ST_OK;
    TRY(MEM_ROOM(&l->list, &l->cap, l->n + 1, e));
    l->list[l->n++] = (api_event){what, index, l->text.n - n, n};
    return ST_OK;
}

void api_events_free(api_events *l)
{
    mem_free(l->list);
    mem_free(l->text.p);
    *l = (api_events){0};
}

/* Writes the id of a call: equal requests give equal ids, later turns give others. */
static void make_id(char out[ID + 1], const gen *g, int index)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const uint64_t numbers[] = {g->j->seed, (uint64_t)g->index, (uint64_t)index};
    char hex[SHA256_HEX];
    sha256 sum;
    sha256_init(&sum);
    sha256_add(&sum, g->prompt->ids, g->prompt->n * sizeof *g->prompt->ids);
    sha256_add(&sum, numbers, sizeof numbers);
    sha256_hex(&sum, hex);
    for (int i = 0; i < ID; i++) {
        unsigned value = 0;
        for (int k = 0; k < 4; k++)
            value = value * 16 + (unsigned)(strchr("0123456789abcdef", hex[4 * i + k]) - "0123456789abcdef");
        out[i] = letters[value % 62];
    }
    out[ID] = 0;
}

/* True if an earlier call of the reply has this id. */
static bool has_id(const api_events *l, const char *id)
{
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->text.p + l->list[i].at;
        const size_t before = l->list[i].what == CALL_BEGIN ? strlen(name) + 1 : 0, n = l->list[i].n - before;
        if (before && strlen(id) == n && memcmp(name + before, id, n) == 0) return true;
    }
    return false;
}

static status write_content(void *ctx, const char *text, size_t n, err *e)
{
    gen *g = ctx;
    return n ? api_events_add(&g->events, CALL_TEXT, -1, text, n, e) : ST_OK;
}

/* Takes an event of the parser. Content passes the stop texts; other events end the search for one. */
static status take_event(void *ctx, call_event what, int index, const char *text, size_t n, err *e)
{
    gen *g = ctx;
    const char *rest;
    size_t k;
    char id[ID + 1];
    if (g->out.stopped) return ST_OK;
    if (what == CALL_TEXT) return text_out_add(&g->out, text, n, e);
    stop_text_rest(&g->out.stops, &rest, &k);
    TRY(write_content(g, rest, k, e));
    if (what != CALL_BEGIN || (strlen(text) + 1 < n && !has_id(&g->events, text + strlen(text) + 1)))
        return api_events_add(&g->events, what, what == CALL_REASONING ? -1 : index, text, n, e);
    make_id(id, g, index);
    TRY(api_events_add(&g->events, what, index, text, n, e));
    g->events.list[g->events.n - 1].n += ID;
    return buffer_add(&g->events.text, id, ID, e);
}

call_rules reply_rules(const scheduler *s, const api_request *r, const call_thinking *thinking)
{
    const call_support *c = s->o.calls;
    return (call_rules){.format = c && r->calls ? c->format : NULL,
                        .alone = r->format.json,
                        .tools = r->tools,
                        .think_open = thinking->open,
                        .think_close = thinking->close,
                        .thinking = thinking->inside,
                        .special = c ? c->special : NULL};
}

status reply_open(gen *g, scheduler *s, err *e)
{
    g->rules = reply_rules(s, &g->j->r, &g->j->thinking);
    token_stream_keep_special(g->out.stream);
    g->out.write = write_content;
    if (g->j->r.thinking_budget >= 0 && g->rules.think_close)
        TRY(sched_encode(s, g->rules.think_close, strlen(g->rules.think_close), false, &g->closing, e));
    return call_parser_open(&g->parser, &g->rules, take_event, g, e);
}

status reply_token(gen *g, const scheduler *s, int32_t id, err *e)
{
    g->n_thinking += call_parser_thinks(g->parser);
    return call_reply_token(g->parser, g->out.stream, s->o.tok, id, e);
}

bool reply_ended(const gen *g)
{
    return g->j->r.one_call && g->events.n && g->events.list[g->events.n - 1].what == CALL_END;
}

status reply_end(gen *g, err *e)
{
    TRY(call_reply_end(g->parser, g->out.stream, e));
    return text_out_end(&g->out, true, e);
}
