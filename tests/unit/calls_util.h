/* SPDX-License-Identifier: MIT */
/* Replies as text, in which `{{X}}` is the special token X, and their events as text. */
#ifndef TESTS_UNIT_CALLS_UTIL_H
#define TESTS_UNIT_CALLS_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/call_json.h"
#include "tokenizer/call_parse.h"

enum { EVENTS = 1 << 14 };

typedef struct {
    char text[EVENTS];
    size_t n;
    int what, index; /* of the last event, whose pieces are joined */
    json_scan scan;  /* arguments of the open call */
    bool valid, open;
} event_log;

/* Collects events: `T:text R:thinking C:name#id(arguments)`. */
static inline status log_event(void *ctx, call_event what, int index, const char *text, size_t n, err *e)
{
    event_log *l = ctx;
    const char *before[] = {"T:", "R:", "C:", "(", ")"}, *gap = l->n ? "|" : "";
    (void)e;
    if (l->open != (what == CALL_ARGS || what == CALL_END)) l->valid = false;
    if (what == CALL_BEGIN) l->scan = (json_scan){0}, l->open = true;
    if (what == CALL_END) l->open = false;
    for (size_t i = 0; what == CALL_ARGS && i < n; i++)
        if (json_scan_byte(&l->scan, (unsigned char)text[i]) == SCAN_BAD) l->valid = false;
    if (what >= CALL_ARGS) gap = "";
    if (l->what == (int)what && (what != CALL_BEGIN)) before[what] = gap = "";
    if (l->n + n + 8 > EVENTS) return ST_OK;
    l->n += (size_t)sprintf(l->text + l->n, "%s%s", gap, before[what]);
    for (size_t i = 0; i < n; i++) l->text[l->n++] = text[i] || what != CALL_BEGIN ? text[i] : '#';
    l->text[l->n] = 0;
    l->what = (int)what;
    l->index = index;
    return ST_OK;
}

/* Parses a reply whose text is cut where `cut` says so: after i bytes if cut[i] is odd; NULL: one piece. */
static inline status parse_reply(event_log *l, const call_rules *r, const char *reply, size_t n,
                                 const unsigned char *cut, err *e)
{
    call_parser *p;
    *l = (event_log){.what = -1, .valid = true};
    TRY(call_parser_open(&p, r, log_event, l, e));
    status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK;) {
        const char *open = memmem(reply + i, n - i, "{{", 2);
        const char *close = open ? memmem(open, (size_t)(reply + n - open), "}}", 2) : NULL;
        size_t k = close ? (size_t)(open - reply) : n;
        if (close && k == i) {
            st = call_parser_add(p, open + 2, (size_t)(close - open) - 2, true, e);
            i = (size_t)(close - reply) + 2;
            continue;
        }
        size_t to = i + 1;
        while (to < k && !(cut && cut[to] & 1)) to++;
        st = call_parser_add(p, reply + i, to - i, false, e);
        i = to;
    }
    if (st == ST_OK) st = call_parser_end(p, e);
    call_parser_free(p);
    return st;
}

/* Markers that are special tokens in these tests. */
static const char *const special_marks[] = {"[TOOL_CALLS]", "[ARGS]",     "[CALL_ID]", "<|python_tag|>",
                                            "<|channel>",   "<channel|>", NULL};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"w\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"on\":{\"type\":\"boolean\"},"
    "\"tags\":{\"type\":\"array\"},\"when\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"unit\":{\"enum\":[\"C\",1]},\"deg\":{\"$ref\":\"#/$defs/deg\"}},"
    "\"$defs\":{\"deg\":{\"type\":\"number\"}}}}}]";

#endif
