/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"

/* ---- JSON ---- */

static bool is_white(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static scan_result ends_value(json_scan *s)
{
    s->state = s->depth ? SCAN_AFTER : SCAN_END;
    return s->depth ? SCAN_MORE : SCAN_DONE;
}

static scan_result opens(json_scan *s, bool array)
{
    if (s->depth == SCAN_DEPTH) return SCAN_BAD;
    s->is_array[s->depth++] = array;
    s->state = array ? SCAN_FIRST_VALUE : SCAN_FIRST_KEY;
    return SCAN_MORE;
}

static scan_result closes(json_scan *s, bool array)
{
    if (!s->depth || s->is_array[s->depth - 1] != array) return SCAN_BAD;
    s->depth--;
    return ends_value(s);
}

/* Positions in a number: after the sign, a leading 0, integer digits, the point, its digits, e, its sign, its digits.
 */
enum { NUM_SIGN, NUM_ZERO, NUM_WHOLE, NUM_POINT, NUM_PART, NUM_E, NUM_E_SIGN, NUM_E_DIGITS };

/* Returns the position after byte c of a number, -1 if the number cannot contain it there. */
static int number_next(int at, unsigned char c)
{
    const bool digit = is_digit(c), can_e = at == NUM_ZERO || at == NUM_WHOLE || at == NUM_PART;
    if (can_e && (c == 'e' || c == 'E')) return NUM_E;
    switch (at) {
    case NUM_SIGN: return c == '0' ? NUM_ZERO : digit ? NUM_WHOLE : -1;
    case NUM_ZERO: return c == '.' ? NUM_POINT : -1;
    case NUM_WHOLE: return digit ? NUM_WHOLE : c == '.' ? NUM_POINT : -1;
    case NUM_POINT:
    case NUM_PART: return digit ? NUM_PART : -1;
    case NUM_E: return c == '+' || c == '-' ? NUM_E_SIGN : digit ? NUM_E_DIGITS : -1;
    default: return digit ? NUM_E_DIGITS : -1;
    }
}

static scan_result begins_value(json_scan *s, unsigned char c)
{
    static const char *const words[] = {"true", "false", "null"};
    if (c == '{' || c == '[') return opens(s, c == '[');
    s->at = 1;
    s->is_key = false;
    for (int i = 0; i < 3; i++)
        if (c == (unsigned char)words[i][0]) s->word = words[i], s->state = SCAN_WORD;
    if (s->state == SCAN_WORD) return SCAN_MORE;
    if (c == '"') s->state = SCAN_STRING;
    else if (c == '-' || is_digit(c)) {
        s->state = SCAN_NUMBER;
        s->at = c == '-' ? NUM_SIGN : c == '0' ? NUM_ZERO : NUM_WHOLE;
    } else return SCAN_BAD;
    return SCAN_MORE;
}

static scan_result in_string(json_scan *s, unsigned char c)
{
    if (s->state == SCAN_ESCAPE) {
        s->at = 0;
        s->state = c == 'u' ? SCAN_HEX : SCAN_STRING;
        return c && strchr("\"\\/bfnrtu", c) ? SCAN_MORE : SCAN_BAD;
    }
    if (s->state == SCAN_HEX) {
        if (++s->at == 4) s->state = SCAN_STRING;
        return c && strchr("0123456789abcdefABCDEF", c) ? SCAN_MORE : SCAN_BAD;
    }
    if (c < 0x20) return SCAN_BAD;
    if (c == '\\') s->state = SCAN_ESCAPE;
    if (c != '"') return SCAN_MORE;
    if (!s->is_key) return ends_value(s);
    s->state = SCAN_COLON;
    return SCAN_MORE;
}

/* Takes a byte between values and keys. */
static scan_result between(json_scan *s, unsigned char c)
{
    if (is_white(c)) return SCAN_MORE;
    switch (s->state) {
    case SCAN_VALUE: return begins_value(s, c);
    case SCAN_FIRST_VALUE: return c == ']' ? closes(s, true) : begins_value(s, c);
    case SCAN_FIRST_KEY:
        if (c == '}') return closes(s, false);
        /* fall through */
    case SCAN_KEY:
        s->state = SCAN_STRING;
        s->is_key = true;
        return c == '"' ? SCAN_MORE : SCAN_BAD;
    case SCAN_COLON: s->state = SCAN_VALUE; return c == ':' ? SCAN_MORE : SCAN_BAD;
    case SCAN_AFTER:
        if (c != ',') return c == ']' || c == '}' ? closes(s, c == ']') : SCAN_BAD;
        s->state = s->is_array[s->depth - 1] ? SCAN_VALUE : SCAN_KEY;
        return SCAN_MORE;
    default: return SCAN_BAD;
    }
}

scan_result json_scan_byte(json_scan *s, unsigned char c)
{
    switch (s->state) {
    case SCAN_STRING:
    case SCAN_ESCAPE:
    case SCAN_HEX: return in_string(s, c);
    case SCAN_WORD:
        if (c != (unsigned char)s->word[s->at++]) return SCAN_BAD;
        return s->word[s->at] ? SCAN_MORE : ends_value(s);
    case SCAN_NUMBER: {
        const int next = number_next(s->at, c), at = s->at;
        if (next >= 0) s->at = next;
        if (next >= 0) return SCAN_MORE;
        if (at != NUM_ZERO && at != NUM_WHOLE && at != NUM_PART && at != NUM_E_DIGITS) return SCAN_BAD;
        (void)ends_value(s);
        return between(s, c);
    }
    default: return between(s, c);
    }
}

/* ---- texts ---- */

status call_text_add(call_text *t, const char *s, size_t n, err *e)
{
    TRY(MEM_ROOM(&t->p, &t->cap, t->n + n + 1, e));
    if (n) memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = 0;
    return ST_OK;
}

status call_text_escape(call_text *t, const char *s, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        static const char plain[] = "\"\\\b\f\n\r\t", coded[] = "\"\\bfnrt";
        const char *at = s[i] ? strchr(plain, s[i]) : NULL;
        char out[8] = {s[i]};
        if (at) snprintf(out, sizeof out, "\\%c", coded[at - plain]);
        else if ((unsigned char)s[i] < 0x20) snprintf(out, sizeof out, "\\u%04x", (unsigned char)s[i]);
        TRY(call_text_add(t, out, s[i] ? strlen(out) : 6, e));
    }
    return ST_OK;
}

/* ---- the object of a call ---- */

enum { KEY_MAX = 64, NAME_MAX = 1024 };

static call_member member_of(const char *key)
{
    static const struct {
        const char *key;
        call_member member;
    } members[] = {{"name", MEMBER_NAME},      {"function", MEMBER_NAME},   {"tool_name", MEMBER_NAME},
                   {"arguments", MEMBER_ARGS}, {"parameters", MEMBER_ARGS}, {"id", MEMBER_ID},
                   {"tool_call_id", MEMBER_ID}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (strcmp(key, members[i].key) == 0) return members[i].member;
    return MEMBER_OTHER;
}

/* Replaces the text of a JSON string by its value. *good: it is a string without U+0000. */
static status take_string(call_text *out, const call_text *raw, bool *good, err *e)
{
    json_t *j = json_loadb(raw->p ? raw->p : "", raw->n, JSON_DECODE_ANY, NULL);
    *good = json_is_string(j) && json_string_length(j) > 0;
    out->n = 0;
    status st = *good ? call_text_add(out, json_string_value(j), json_string_length(j), e) : ST_OK;
    json_decref(j);
    return st;
}

/* True if a text is one JSON object. */
static bool is_object(const call_text *t)
{
    json_scan s = {0};
    scan_result r = SCAN_MORE;
    size_t i = 0;
    while (i < t->n && is_white((unsigned char)t->p[i])) i++;
    if (i == t->n || t->p[i] != '{') return false;
    for (; i < t->n && r == SCAN_MORE; i++) r = json_scan_byte(&s, (unsigned char)t->p[i]);
    while (i < t->n && is_white((unsigned char)t->p[i])) i++;
    return r == SCAN_DONE && i == t->n;
}

/* Takes a complete member that did not stream. */
static status take_member(call_object *o, bool *good, err *e)
{
    *good = true;
    if (o->member == MEMBER_NAME) return take_string(&o->name, &o->value, good, e);
    if (o->member == MEMBER_ID) {
        bool any;
        return take_string(&o->id, &o->value, &any, e);
    }
    if (o->member != MEMBER_ARGS) return ST_OK;
    if (o->value.p[0] == '"') TRY(take_string(&o->early, &o->value, good, e));
    else TRY(call_text_add(&o->early, "{}", strcmp(o->value.p, "null") == 0 ? 2 : 0, e));
    *good = is_object(&o->early);
    o->has_args = true;
    return ST_OK;
}

/* True if a key may begin the object of a whole reply. */
static bool may_begin(const char *key)
{
    return strcmp(key, "name") == 0 || strcmp(key, "type") == 0 || strcmp(key, "function") == 0;
}

/* Takes a byte of a key. False: the object is no call. */
static status key_byte(call_object *o, char c, bool whole, bool *good, err *e)
{
    *good = o->key.n < KEY_MAX;
    if (o->scan.state != SCAN_COLON) return call_text_add(&o->key, &c, 1, e);
    TRY(call_text_add(&o->key, "", 0, e));
    o->in_key = false;
    o->member = member_of(o->key.p);
    if (o->member == MEMBER_ARGS && o->has_args) o->member = MEMBER_OTHER;
    if (whole && !o->any) *good = may_begin(o->key.p);
    o->any = true;
    return ST_OK;
}

/* Takes a byte of a member's value. */
static status value_byte(call_object *o, char c, object_result *what, err *e)
{
    bool good = true;
    const bool ended = o->scan.depth == 0 || (o->scan.depth == 1 && o->scan.state == SCAN_AFTER);
    const bool own = !(o->scan.depth == 1 && o->scan.state == SCAN_KEY) && o->scan.depth > 0; /* not the next comma */
    if (o->streams) {
        *what = OBJECT_ARGS;
        if (ended) o->in_value = o->streams = false;
        return ST_OK;
    }
    if (own && o->member != MEMBER_OTHER) TRY(call_text_add(&o->value, &c, 1, e));
    if (own && !ended) {
        if (o->value.n > NAME_MAX && o->member != MEMBER_ARGS) *what = OBJECT_BAD;
        return ST_OK;
    }
    o->in_value = false;
    if (o->member != MEMBER_OTHER) TRY(call_text_add(&o->value, "", 0, e));
    TRY(take_member(o, &good, e));
    if (!good) *what = OBJECT_BAD;
    return ST_OK;
}

status call_object_byte(call_object *o, char c, bool whole, object_result *what, err *e)
{
    const json_scan before = o->scan;
    const bool white = is_white((unsigned char)c);
    const scan_result r = json_scan_byte(&o->scan, (unsigned char)c);
    bool good = true;
    *what = OBJECT_BAD;
    if (r == SCAN_BAD || (before.depth == 0 && c != '{')) return ST_OK;
    *what = OBJECT_MORE;
    if (o->in_key) TRY(key_byte(o, c, whole, &good, e));
    else if (before.depth == 1 && (before.state == SCAN_FIRST_KEY || before.state == SCAN_KEY) && c == '"') {
        o->in_key = true;
        o->key.n = 0;
    } else if (before.depth == 1 && before.state == SCAN_VALUE && !white) {
        o->in_value = true;
        o->value.n = 0;
        o->streams = o->member == MEMBER_ARGS && c == '{';
        o->has_args |= o->streams;
    }
    if (o->in_value) TRY(value_byte(o, c, what, e));
    if (!good) *what = OBJECT_BAD;
    if (r == SCAN_DONE && *what != OBJECT_BAD) *what = o->name.n ? OBJECT_DONE : OBJECT_BAD;
    return ST_OK;
}

void call_object_reset(call_object *o)
{
    call_object clean = {.key = o->key, .name = o->name, .id = o->id, .value = o->value, .early = o->early};
    clean.key.n = clean.name.n = clean.id.n = clean.value.n = clean.early.n = 0;
    *o = clean;
}

void call_object_free(call_object *o)
{
    mem_free(o->key.p);
    mem_free(o->name.p);
    mem_free(o->id.p);
    mem_free(o->value.p);
    mem_free(o->early.p);
}
