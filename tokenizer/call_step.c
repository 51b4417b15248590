/* SPDX-License-Identifier: MIT */
/* Steps within a call: names, identifiers, arguments as JSON, as tags or as keywords. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/call_state.h"

/* ---- events ---- */

status parser_flush(call_parser *p, err *e)
{
    if (!p->ready.n) return ST_OK;
    const size_t n = p->ready.n;
    p->ready.n = 0;
    return p->sink(p->ctx, p->what, p->n_calls - 1, p->ready.p, n, e);
}

status parser_put(call_parser *p, call_event what, const char *s, size_t n, err *e)
{
    if (!n) return ST_OK;
    if (p->what != what) TRY(parser_flush(p, e));
    p->what = what;
    if (what == CALL_TEXT) p->any_text = true;
    return call_text_add(&p->ready, s, n, e);
}

static status put_args(call_parser *p, const char *s, size_t n, err *e)
{
    p->n_args += n;
    return parser_put(p, CALL_ARGS, s, n, e);
}

/* Outputs the beginning of a call; false in *good if its name is not acceptable. */
static status begin_call(call_parser *p, const call_text *name, const call_text *id, bool *good, err *e)
{
    call_text both = {0};
    *good = name->n > 0 && name->n <= FIELD_MAX && p->n_calls < CALL_MOST &&
            (!p->must_know || call_function(p->r.tools, name->p));
    if (!*good) return ST_OK;
    TRY(parser_flush(p, e));
    TRY(call_text_add(&both, name->p, name->n + 1, e));
    status st = call_text_add(&both, id->p ? id->p : "", id->n, e);
    if (st == ST_OK) st = p->sink(p->ctx, CALL_BEGIN, p->n_calls++, both.p, both.n, e);
    mem_free(both.p);
    p->begun = p->taken = true;
    p->n_args = 0;
    p->held.n = 0;
    return st;
}

status parser_end_call(call_parser *p, err *e)
{
    if (!p->begun) return ST_OK;
    p->begun = false;
    TRY(parser_flush(p, e));
    return p->sink(p->ctx, CALL_END, p->n_calls - 1, "", 0, e);
}

/* ---- markers ---- */

bool symbol_is_white(const symbol *y)
{
    return !y->special && strchr(" \t\r\n", *y->s) && *y->s;
}

bool mark_is_special(const call_parser *p, const char *mark)
{
    for (const char *const *s = p->r.special; s && *s; s++)
        if (strcmp(*s, mark) == 0) return true;
    return false;
}

size_t mark_part(const call_parser *p, const char *text)
{
    size_t most = 0;
    for (const char *const *s = p->r.special; s && *s; s++) {
        const size_t n = strlen(*s);
        if (n > most && strncmp(*s, text, n) == 0) most = n;
    }
    return most;
}

bool mark_is_token(const call_parser *p, const char *mark, const symbol *y)
{
    return mark && y->special && mark_is_special(p, mark) && strlen(mark) == y->n && memcmp(mark, y->s, y->n) == 0;
}

/* Compares text with the beginning of a marker that is no special token. */
match mark_match(const call_parser *p, const char *mark, const char *s, size_t n)
{
    const size_t len = mark ? strlen(mark) : 0;
    if (!mark || mark_is_special(p, mark) || memcmp(s, mark, n < len ? n : len) != 0) return MATCH_NO;
    return n < len ? MATCH_PART : MATCH_FULL;
}

void parser_enter(call_parser *p, int step)
{
    p->step = step;
    p->at = 0;
    p->alive = 3;
    p->field.n = p->value.n = 0;
    p->scan = (json_scan){0};
    p->tagged = false;
    if (p->r.format->steps[step].op == OP_OBJECT) call_object_reset(&p->object);
}

/* ---- parameters as tags ---- */

/* Outputs `{"KEY": ` or `, "KEY": `. */
static status put_key(call_parser *p, err *e)
{
    call_text out = {0};
    status st = call_text_add(&out, p->any_key ? ", \"" : "{\"", p->any_key ? 3 : 2, e);
    if (st == ST_OK) st = call_text_escape(&out, p->key.p, p->key.n, e);
    if (st == ST_OK) st = call_text_add(&out, "\": ", 3, e);
    if (st == ST_OK) st = put_args(p, out.p, out.n, e);
    mem_free(out.p);
    p->any_key = true;
    return st;
}

static call_type type_of(const call_parser *p, const call_step *s)
{
    if (s->types) return (call_type){.types = s->types};
    return call_type_of(call_function(p->r.tools, p->name.p), p->key.p);
}

/* True if a parameter was given before; remembers it. */
static status is_repeated(call_parser *p, bool *repeated, err *e)
{
    *repeated = p->keys.n && memmem(p->keys.p, p->keys.n, p->key.p, p->key.n + 1) != NULL;
    for (size_t at = 0; *repeated;) { /* only whole keys count */
        const char *hit = memmem(p->keys.p + at, p->keys.n - at, p->key.p, p->key.n + 1);
        if (!hit) *repeated = false;
        else if (hit == p->keys.p || hit[-1] == 0) return ST_OK;
        else at = (size_t)(hit - p->keys.p) + 1;
    }
    return call_text_add(&p->keys, p->key.p, p->key.n + 1, e);
}

/* Begins a call, if needed, and a parameter of it. An empty key stands for one to drop. */
static status begin_value(call_parser *p, const call_step *s, bool *good, err *e)
{
    bool repeated;
    *good = true;
    if (!p->begun) {
        TRY(begin_call(p, &p->name, &(call_text){0}, good, e));
        p->any_key = false;
        p->keys.n = 0;
    }
    if (!*good) return ST_OK;
    TRY(is_repeated(p, &repeated, e));
    if (repeated) p->key.n = 0;
    p->fresh = true;
    p->quoted = !repeated && call_type_is_text(type_of(p, s));
    if (!p->quoted) return ST_OK;
    TRY(put_key(p, e));
    return put_args(p, "\"", 1, e);
}

static status value_byte(call_parser *p, char c, err *e)
{
    if (p->quoted) {
        call_text out = {0};
        status st = call_text_escape(&out, &c, 1, e);
        if (st == ST_OK) st = put_args(p, out.p, out.n, e);
        mem_free(out.p);
        return st;
    }
    p->n_args++;
    return call_text_add(&p->value, &c, 1, e);
}

static status end_value(call_parser *p, const call_step *s, err *e)
{
    call_text out = {0};
    if (p->quoted) return put_args(p, "\"", 1, e);
    if (!p->key.n) return ST_OK;
    TRY(put_key(p, e));
    status st = call_value(&out, type_of(p, s), p->value.p ? p->value.p : "", p->value.n, e);
    if (st == ST_OK) st = put_args(p, out.p, out.n, e);
    mem_free(out.p);
    return st;
}

/* Compares the held end of a value with a newline, the closing tag, white space, and one of the markers that follow.
 * *closed: the closing tag is complete. */
static match match_end(const call_parser *p, const call_step *s, int *which, bool *closed)
{
    const char *t = p->field.p;
    size_t n = p->field.n, len = strlen(s->until), i = n && t[0] == '\n', white = 0;
    *closed = false;
    if (memcmp(t + i, s->until, n - i < len ? n - i : len) != 0) return MATCH_NO;
    if (n - i < len) return MATCH_PART;
    *closed = true;
    for (i += len; i < n && strchr(" \t\r\n", t[i]) && t[i]; i++)
        if (++white > AFTER_VALUE_MAX) return MATCH_NO;
    if (i == n) return MATCH_PART;
    match best = MATCH_NO;
    for (int k = 0; k < 2; k++) {
        const size_t all = s->mark[k] ? strlen(s->mark[k]) : 0, m = n - i < all ? n - i : all;
        if (!all || memcmp(t + i, s->mark[k], m) != 0) continue;
        best = m == all ? MATCH_FULL : best == MATCH_FULL ? best : MATCH_PART;
        if (m == all) *which = k;
    }
    return best;
}

/* ---- steps ---- */

static status mark_step(call_parser *p, const call_step *s, const symbol *y, step_result *what)
{
    *what = STEP_MORE;
    for (int k = 0; k < 2; k++) {
        const char *m = s->mark[k];
        if (mark_is_token(p, m, y)) {
            parser_enter(p, s->next[k]);
            return ST_OK;
        }
        if (!(p->alive & 1u << k)) continue;
        if (!m || y->special || mark_is_special(p, m) || m[p->at] != *y->s) p->alive &= ~(1u << k);
        else if (!m[p->at + 1]) {
            parser_enter(p, s->next[k]);
            return ST_OK;
        }
    }
    if (p->alive) p->at++;
    else *what = STEP_BAD;
    return ST_OK;
}

/* Copies the field without white space around it. */
static status keep_field(call_parser *p, call_text *to, err *e)
{
    const char *s = p->field.p ? p->field.p : "";
    size_t n = p->field.n;
    while (n && strchr(" \t\r\n", *s)) s++, n--;
    while (n && strchr(" \t\r\n", s[n - 1])) n--;
    to->n = 0;
    return call_text_add(to, s, n, e);
}

/* Copies the name of a function out of the id `functions.NAME:NUMBER`. */
static status take_path(call_parser *p, err *e)
{
    static const char before[] = "functions.";
    const char *s = p->id.p, *end = strrchr(s, ':');
    if (strncmp(s, before, sizeof before - 1) == 0) s += sizeof before - 1;
    p->name.n = 0;
    return call_text_add(&p->name, s, end ? (size_t)(end - s) : strlen(s), e);
}

/* Takes a byte of a name, an id or a key, up to one of the step's markers. */
static status field_step(call_parser *p, const call_step *s, const symbol *y, step_result *what, err *e)
{
    int hit = -1;
    bool good = true;
    *what = STEP_MORE;
    if (!y->special && *y->s) TRY(call_text_add(&p->field, y->s, 1, e));
    for (int k = 0; k < 2 && hit < 0; k++) {
        const size_t len = s->mark[k] ? strlen(s->mark[k]) : 0;
        if (mark_is_token(p, s->mark[k], y)) hit = k;
        else if (len && !y->special && !mark_is_special(p, s->mark[k]) && p->field.n >= len &&
                 memcmp(p->field.p + p->field.n - len, s->mark[k], len) == 0) {
            hit = k;
            p->field.n -= len;
        }
    }
    if (hit < 0) {
        if (p->field.n > FIELD_MAX || y->special) *what = STEP_BAD;
        return ST_OK;
    }
    TRY(keep_field(p, s->op == OP_NAME ? &p->name : s->op == OP_KEY ? &p->key : &p->id, e));
    if (s->op == OP_NAME) p->id.n = 0;
    if (s->op == OP_PATH) TRY(take_path(p, e));
    if ((s->op != OP_KEY && !p->name.n) || (s->op == OP_KEY && !p->key.n)) *what = STEP_BAD;
    else if (s->op == OP_KEY) TRY(begin_value(p, &p->r.format->steps[s->next[hit]], &good, e));
    if (!good) *what = STEP_BAD;
    parser_enter(p, s->next[hit]);
    return ST_OK;
}

/* Gives the arguments that were read before the name to the sink. */
static status put_early(call_parser *p, bool *good, err *e)
{
    TRY(begin_call(p, &p->object.name, &p->object.id, good, e));
    if (!*good) return ST_OK;
    TRY(put_args(p, p->object.early.p ? p->object.early.p : "", p->object.early.n, e));
    p->object.early.n = 0;
    return ST_OK;
}

static status object_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    object_result r;
    call_object *o = &p->object;
    bool good = true;
    *what = STEP_BAD;
    if (y->special) return ST_OK;
    if (p->r.format->whole && !o->name.n && p->held.n > FIELD_MAX) return ST_OK;
    TRY(call_object_byte(o, *y->s, p->r.format->whole, &r, e));
    if (r == OBJECT_BAD) return ST_OK;
    const bool waits = p->r.format->id_last || !o->name.n;
    if (r == OBJECT_ARGS && (waits || !p->begun)) TRY(call_text_add(&o->early, y->s, 1, e));
    if (o->has_args && o->name.n && !p->begun && !waits) TRY(put_early(p, &good, e));
    else if (r == OBJECT_ARGS && p->begun) TRY(put_args(p, y->s, 1, e));
    if (r == OBJECT_DONE) {
        if (!p->begun && !o->has_args) TRY(call_text_add(&o->early, "{}", 2, e));
        if (!p->begun) TRY(put_early(p, &good, e));
        TRY(parser_end_call(p, e));
        parser_enter(p, p->step + 1);
    }
    if (good) *what = STEP_MORE;
    return ST_OK;
}

static status args_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    bool good = true;
    *what = STEP_BAD;
    if (y->special || (!p->begun && *y->s != '{')) return ST_OK;
    const scan_result r = json_scan_byte(&p->scan, (unsigned char)*y->s);
    if (r == SCAN_BAD) return ST_OK;
    if (!p->begun) TRY(begin_call(p, &p->name, &p->id, &good, e));
    if (!good) return ST_OK;
    TRY(put_args(p, y->s, 1, e));
    *what = STEP_MORE;
    if (r != SCAN_DONE) return ST_OK;
    TRY(parser_end_call(p, e));
    parser_enter(p, p->step + 1);
    return ST_OK;
}

static status value_step(call_parser *p, const call_step *s, const symbol *y, step_result *what, err *e)
{
    int which = 0;
    bool closed;
    *what = STEP_MORE;
    if (p->fresh && !y->special && *y->s == '\n') {
        p->fresh = false;
        return ST_OK;
    }
    p->fresh = false;
    TRY(call_text_add(&p->field, y->s, y->n, e));
    while (p->field.n) {
        const match m = match_end(p, s, &which, &closed);
        if (m == MATCH_PART) return ST_OK;
        if (m == MATCH_FULL) {
            TRY(end_value(p, s, e));
            parser_enter(p, s->next[which]);
            return ST_OK;
        }
        TRY(value_byte(p, p->field.p[0], e));
        memmove(p->field.p, p->field.p + 1, --p->field.n);
    }
    return ST_OK;
}

/* Ends the parameters of a call. */
status parser_close_call(call_parser *p, bool *good, err *e)
{
    *good = true;
    if (!p->begun) {
        p->any_key = false;
        TRY(begin_call(p, &p->name, &(call_text){0}, good, e));
    }
    if (!*good) return ST_OK;
    TRY(put_args(p, p->any_key ? "}" : "{}", p->any_key ? 1 : 2, e));
    return parser_end_call(p, e);
}

/* Outputs text of the arguments that a step made, if it continues JSON; the last byte ends the call. */
static status put_checked(call_parser *p, const char *text, size_t n, step_result *what, err *e)
{
    scan_result r = SCAN_MORE;
    bool good = true;
    *what = STEP_BAD;
    for (size_t i = 0; i < n && r == SCAN_MORE; i++) r = json_scan_byte(&p->scan, (unsigned char)text[i]);
    if (r == SCAN_BAD) return ST_OK;
    if (!p->begun) TRY(begin_call(p, &p->name, &p->id, &good, e));
    if (!good) return ST_OK;
    TRY(put_args(p, text, n, e));
    *what = STEP_MORE;
    if (r != SCAN_DONE) return ST_OK;
    TRY(parser_end_call(p, e));
    parser_enter(p, p->step + 1);
    return ST_OK;
}

/* Takes a byte of `a="v", b="w")`, which is checked as the JSON object {"a": "v", "b": "w"}. */
static status python_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    const char *out = y->s;
    *what = STEP_BAD;
    if (y->special) return ST_OK;
    const scan_state state = p->scan.state;
    const bool between = state == SCAN_VALUE && !p->scan.depth, string = state == SCAN_STRING || state == SCAN_ESCAPE;
    char add[4];
    if (between && *y->s == ')' && !p->begun) out = "{}";
    else if (string && p->scan.is_key && *y->s == '=') out = "\": ";
    else if (string && p->scan.is_key && !strchr("_", *y->s) && !((*y->s | 32) >= 'a' && (*y->s | 32) <= 'z') &&
             !(*y->s >= '0' && *y->s <= '9'))
        return ST_OK;
    else if (!string && *y->s == ')') out = "}";
    else if (!string && !symbol_is_white(y) && *y->s != ',' && (between || state == SCAN_KEY)) {
        snprintf(add, sizeof add, "%s\"%c", between ? "{" : "", *y->s);
        out = add;
    } else if (state == SCAN_VALUE && p->scan.depth && *y->s != '"') return ST_OK;
    return put_checked(p, out, out == y->s ? 1 : strlen(out), what, e);
}

/* Outputs a byte of JSON with bare keys outside of strings. */
static status bare_byte(call_parser *p, char c, step_result *what, err *e)
{
    const scan_state state = p->scan.state;
    const bool in_key = state == SCAN_STRING && p->scan.is_key;
    char add[8] = {c};
    if (state == SCAN_KEY || state == SCAN_FIRST_KEY) p->bare = !strchr("} \t\r\n\"", c);
    if (in_key && p->bare && c == ':') snprintf(add, sizeof add, "\":");
    else if ((state == SCAN_KEY || state == SCAN_FIRST_KEY) && p->bare) snprintf(add, sizeof add, "\"%c", c);
    return put_checked(p, add, strlen(add), what, e);
}

/* Takes a symbol of `k:<|"|>text<|"|>,n:3}`, which is checked as the JSON object {"k":"text","n":3}. */
static status bare_step(call_parser *p, const call_step *s, const symbol *y, step_result *what, err *e)
{
    const char *quote = s->mark[0];
    *what = STEP_BAD;
    if (!p->begun) TRY(put_checked(p, "{", 1, what, e));
    if (!p->begun) return ST_OK;
    *what = STEP_MORE;
    if (!y->special) TRY(call_text_add(&p->field, y->s, 1, e));
    bool token = mark_is_token(p, quote, y);
    while ((p->field.n || token) && *what == STEP_MORE) {
        const match m = p->field.n ? mark_match(p, quote, p->field.p, p->field.n) : MATCH_FULL;
        if (m == MATCH_PART && !token) return ST_OK;
        if (m == MATCH_FULL) {
            p->tagged = !p->tagged;
            p->field.n = 0;
            token = false;
            TRY(put_checked(p, "\"", 1, what, e));
            continue;
        }
        const char c = p->field.p[0];
        memmove(p->field.p, p->field.p + 1, --p->field.n);
        if (!p->tagged) {
            TRY(bare_byte(p, c, what, e));
            continue;
        }
        call_text out = {0};
        status st = call_text_escape(&out, &c, 1, e);
        if (st == ST_OK) st = put_checked(p, out.p, out.n, what, e);
        mem_free(out.p);
        TRY(st);
    }
    return ST_OK;
}

/* Gives a symbol to the current step. */
status parser_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    const call_step *s = &p->r.format->steps[p->step];
    switch (s->op) {
    case OP_WHITE:
        *what = symbol_is_white(y) ? STEP_MORE : STEP_AGAIN;
        if (!symbol_is_white(y)) parser_enter(p, p->step + 1);
        return ST_OK;
    case OP_FORK:
        *what = STEP_AGAIN;
        parser_enter(p, s->next[y->special || *y->s != '{']);
        return ST_OK;
    case OP_MARK: return mark_step(p, s, y, what);
    case OP_OBJECT: return object_step(p, y, what, e);
    case OP_ARGS: return args_step(p, y, what, e);
    case OP_VALUE: return value_step(p, s, y, what, e);
    case OP_BARE: return bare_step(p, s, y, what, e);
    case OP_PYTHON: return python_step(p, y, what, e);
    default: return field_step(p, s, y, what, e);
    }
}

/* Ends a call that the end of the reply interrupts. */
status parser_cut_call(call_parser *p, err *e)
{
    const call_step *s = &p->r.format->steps[p->step];
    int which;
    bool closed = false, good = true;
    if (p->begun && s->op == OP_VALUE) {
        const match m = p->field.n ? match_end(p, s, &which, &closed) : MATCH_NO;
        for (size_t i = 0; i < p->field.n && !(m != MATCH_NO && closed); i++) TRY(value_byte(p, p->field.p[i], e));
        if (closed) TRY(end_value(p, s, e));
        if (closed) TRY(put_args(p, p->any_key ? "}" : "{}", p->any_key ? 1 : 2, e));
    }
    if (!p->begun && s->op == OP_OBJECT && p->object.name.n && p->object.early.n) TRY(put_early(p, &good, e));
    if (!p->taken) return parser_put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e);
    return parser_end_call(p, e);
}
