/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_support.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/call_json.h"
#include "tokenizer/call_reply.h"
#include "tokenizer/chat.h"

/* ---- thinking ---- */

/* Markers of thinking, and a special token that may be a part of the opening one. */
static const struct {
    const char *open, *close, *part;
} thinking[] = {{"<think>", "</think>", NULL},
                {"[THINK]", "[/THINK]", NULL},
                {"<seed:think>", "</seed:think>", NULL},
                {"<mm:think>", "</mm:think>", NULL},
                {"<|START_THINKING|>", "<|END_THINKING|>", NULL},
                {"<|channel>thought", "<channel|>", "<|channel>"}};

/* Returns the markers that the selected template has. */
static call_thinking find_thinking(const tokenizer *t)
{
    const char *text = tokenizer_chat_text(t, true);
    for (size_t i = 0; text && i < sizeof thinking / sizeof *thinking; i++)
        if (strstr(text, thinking[i].close)) return (call_thinking){thinking[i].open, thinking[i].close, false};
    return (call_thinking){0};
}

/* Returns the place after the last spelling of a marker in text[from, n) that the template wrote, or that lies in the
 * content from `own` on; 0: there is none. */
static size_t find_mark(const chat_text *t, size_t from, size_t own, const char *mark)
{
    const size_t k = strlen(mark);
    size_t last = 0;
    for (const char *at; from < t->n && (at = memmem(t->text + from, t->n - from, mark, k));) {
        const size_t i = (size_t)(at - t->text);
        if (i >= own || !memchr(t->input + i, 1, k)) last = i + k;
        from = i + 1;
    }
    return last;
}

call_thinking call_thinking_of(const tokenizer *t, const chat_text *prompt, bool continues)
{
    call_thinking s = find_thinking(t);
    size_t own = prompt->n, from = prompt->n;
    if (!s.close) return s;
    while (own > 0 && continues && prompt->input[own - 1]) own--;
    while (from > 0 && !prompt->input[from - 1]) from--;
    if (continues) from = 0;
    const size_t opened = find_mark(prompt, from, own, s.open), closed = find_mark(prompt, from, own, s.close);
    if (closed > opened) return (call_thinking){0};
    s.inside = opened > 0;
    return s;
}

/* ---- special tokens ---- */

static void note_special(call_support *s, const tokenizer *t, const char *mark)
{
    const int32_t id = mark ? tokenizer_special_id(t, mark) : -1;
    size_t n = 0;
    while (n < CALL_SPECIALS && s->special[n]) {
        if (mark && strcmp(s->special[n], mark) == 0) return;
        n++;
    }
    if (id >= 0 && tokenizer_is_special(t, id) && n < CALL_SPECIALS) s->special[n] = mark;
}

/* Lists the markers of the format and of thinking that are special tokens. */
static void find_special(call_support *s, const tokenizer *t)
{
    memset(s->special, 0, sizeof s->special);
    for (size_t i = 0; i < sizeof thinking / sizeof *thinking; i++) {
        if (!s->think_close || strcmp(s->think_close, thinking[i].close) != 0) continue;
        note_special(s, t, thinking[i].open);
        note_special(s, t, thinking[i].close);
        note_special(s, t, thinking[i].part);
    }
    if (!s->format) return;
    note_special(s, t, s->format->open);
    note_special(s, t, s->format->close);
    for (int i = 0; i < CALL_STEPS; i++)
        for (int k = 0; k < 2; k++) note_special(s, t, s->format->steps[i].mark[k]);
}

/* ---- probes ---- */

static const char TOOL[] = "{\"type\":\"function\",\"function\":{\"name\":\"kvasir_probe\",\"description\":\"probe\","
                           "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},"
                           "\"n\":{\"type\":\"integer\"}}}}}";
static const char CALL[] = "{\"id\":\"kvasir123\",\"type\":\"function\",\"function\":{\"name\":\"kvasir_probe\","
                           "\"arguments\":{\"a\":\"b\",\"n\":1}}}";

/* Returns a conversation: a user's message and, with n > 0, an assistant's with n calls. */
static json_t *talk(int n, bool text)
{
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "kvasir question"), *calls = json_array();
    for (int i = 0; i < n; i++) {
        json_t *call = json_loads(CALL, 0, NULL);
        char id[24];
        snprintf(id, sizeof id, "kvasir12%d", i);
        json_object_set_new(call, "id", json_string(id));
        json_array_append_new(calls, call);
    }
    if (n)
        json_array_append_new(list, json_pack("{s:s, s:s, s:O}", "role", "assistant", "content",
                                              text ? "kvasir text" : "", "tool_calls", calls));
    json_decref(calls);
    return list;
}

/* Events of a probe. */
typedef struct {
    int n, ended;
    bool good;
    call_text args;
} probe;

static bool is_probe(const call_text *args)
{
    json_t *got = json_loadb(args->p ? args->p : "", args->n, 0, NULL);
    json_t *want = json_pack("{s:s, s:i}", "a", "b", "n", 1);
    const bool same = got && json_equal(got, want);
    json_decref(got);
    json_decref(want);
    return same;
}

static status take_event(void *ctx, call_event what, int index, const char *text, size_t n, err *e)
{
    probe *p = ctx;
    (void)index;
    if (what == CALL_BEGIN) {
        p->n++;
        p->good &= strcmp(text, "kvasir_probe") == 0;
        p->args.n = 0;
    }
    if (what == CALL_ARGS) return call_text_add(&p->args, text, n, e);
    if (what == CALL_END) p->ended += is_probe(&p->args);
    return ST_OK;
}

/* Reads the tokens of a turn; true if they are n calls. */
static bool reads(const call_support *s, const tokenizer *t, const json_t *tools, const int32_t *ids, size_t n_ids,
                  int n)
{
    const call_rules rules = {.format = s->format, .tools = tools, .special = s->special};
    probe got = {.good = true};
    call_parser *p = NULL;
    token_stream *stream = NULL;
    err e = {0};
    status st = call_parser_open(&p, &rules, take_event, &got, &e);
    if (st == ST_OK) st = token_stream_create(&stream, t, &e);
    if (st == ST_OK) token_stream_keep_special(stream);
    for (size_t i = 0; i < n_ids && st == ST_OK && !tokenizer_is_eos(t, ids[i]); i++)
        st = call_reply_token(p, stream, t, ids[i], &e);
    if (st == ST_OK) st = call_reply_end(p, stream, &e);
    call_parser_free(p);
    token_stream_free(stream);
    mem_free(got.args.p);
    return st == ST_OK && got.good && got.n == n && got.ended == n;
}

/* Finds the format of which the tokens of a turn are n calls; false: none. The template's text names the candidates. */
static bool find_format(call_support *s, const tokenizer *t, const json_t *tools, const token_list *before,
                        const token_list *after, int n)
{
    const char *source = tokenizer_chat_text(t, true);
    size_t k = 0;
    while (k < before->n && k < after->n && before->ids[k] == after->ids[k]) k++;
    for (s->format = call_formats; source && s->format->name; s->format++) {
        find_special(s, t);
        if (call_format_marked(s->format, source) && reads(s, t, tools, after->ids + k, after->n - k, n)) return true;
    }
    s->format = NULL;
    return false;
}

/* Renders a turn with n calls and finds its format. False: the template raises or no format fits. The turn begins where
 * it leaves the prompt, or at its header if the end of the prompt shares a part of a marker with it. */
static bool probe_calls(call_support *s, const tokenizer *t, const json_t *tools, int n, bool text)
{
    json_t *before = talk(0, false), *after = talk(n, text);
    token_list prompt = {0}, turn = {0};
    bool found = false;
    err e = {0};
    chat_input in = {.messages = after, .tools = tools, .end = CHAT_ENDS};
    const bool good = chat_encode(t, &in, &turn, &e) == ST_OK;
    in.messages = before;
    for (int header = 0; header < 2 && good && !found; header++) {
        prompt.n = 0;
        in.end = header ? CHAT_ENDS : CHAT_REPLIES;
        if (chat_encode(t, &in, &prompt, &e) == ST_OK) found = find_format(s, t, tools, &prompt, &turn, n);
    }
    token_list_free(&prompt);
    token_list_free(&turn);
    json_decref(before);
    json_decref(after);
    return found;
}

/* True if the template prints the name of a tool. */
static bool prints_tools(const tokenizer *t, const json_t *tools)
{
    json_t *messages = talk(0, false);
    const chat_input in = {.messages = messages, .tools = tools, .end = CHAT_REPLIES};
    char *text = NULL;
    size_t n;
    err e = {0};
    const bool prints = chat_render(t, &in, &text, &n, &e) == ST_OK && strstr(text, "kvasir_probe");
    mem_free(text);
    json_decref(messages);
    return prints;
}

status call_support_find(call_support *s, const tokenizer *t, const char *name, err *e)
{
    char list[240] = "";
    const call_thinking marks = find_thinking(t);
    *s = (call_support){.think_open = marks.open, .think_close = marks.close};
    json_t *tool = json_loads(TOOL, 0, NULL), *tools = json_pack("[o]", tool);
    if (!tools) return err_set(e, ST_NOMEM, "out of memory for a probe of the chat template");
    s->prints_tools = prints_tools(t, tools);
    if (name) s->format = call_format_named(name);
    else if (s->prints_tools && !probe_calls(s, t, tools, 2, true) && !probe_calls(s, t, tools, 1, true))
        (void)probe_calls(s, t, tools, 1, false);
    json_decref(tools);
    find_special(s, t);
    s->described = name && !s->prints_tools;
    if (s->described && s->format && strcmp(name, "hermes") != 0)
        return err_set(e, ST_USAGE, "--tools %.40s: the chat template prints no tools; only hermes works without",
                       name);
    if (!name || s->format) return ST_OK;
    for (const call_format *f = call_formats; f->name; f++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", f->name);
    return err_set(e, ST_USAGE, "--tools %.40s: unknown format; expected one of %s", name, list);
}
