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

static void find_thinking(call_support *s, const tokenizer *t)
{
    static const char *const marks[][2] = {{"<think>", "</think>"},
                                           {"[THINK]", "[/THINK]"},
                                           {"<seed:think>", "</seed:think>"},
                                           {"<|START_THINKING|>", "<|END_THINKING|>"},
                                           {"<|channel>thought\n", "<channel|>"}};
    const char *text = tokenizer_chat_text(t, true);
    for (size_t i = 0; text && i < sizeof marks / sizeof *marks && !s->think_close; i++) {
        if (!strstr(text, marks[i][1])) continue;
        s->think_open = marks[i][0];
        s->think_close = marks[i][1];
    }
}

bool call_support_thinks(const call_support *s, const tokenizer *t, const int32_t *ids, size_t n)
{
    enum { TAIL = 8 };
    char *text;
    size_t len;
    bool opens = false;
    err e = {0};
    if (!s->think_open) return false;
    if (n > TAIL) ids += n - TAIL, n = TAIL;
    if (tokenizer_decode(t, ids, n, true, &text, &len, &e) != ST_OK) return false;
    while (len && strchr(" \t\r\n", text[len - 1])) len--;
    const size_t k = strlen(s->think_open);
    opens = len >= k && memcmp(text + len - k, s->think_open, k) == 0;
    mem_free(text);
    return opens;
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
    note_special(s, t, s->think_open);
    note_special(s, t, s->think_close);
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
    *s = (call_support){0};
    find_thinking(s, t);
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
