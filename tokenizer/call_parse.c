/* SPDX-License-Identifier: MIT */
/* The parser takes one byte or special token at a time, so that cuts of the text cannot matter. */
#include "config.h"

#include "tokenizer/call_parse.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/call_tags.h"

enum { FIELD_MAX = 256, AFTER_VALUE_MAX = 256 };

/* One byte, or the spelling of a special token. */
typedef struct {
    const char *s;
    size_t n;
    bool special;
} symbol;

typedef enum { IN_START, IN_THINKING, IN_THOUGHT, IN_TEXT, IN_CALL, IN_FAULT } parser_state;

struct call_parser {
    call_rules r;
    call_sink *sink;
    void *ctx;
    parser_state state;
    call_event what; /* kind of `ready` */
    call_text ready; /* text of one kind that the next flush gives to the sink */
    call_text held;  /* white space and a possible marker, or all text of a call that has not begun */
    size_t n_white;  /* leading white space in `held` */
    bool fresh;      /* IN_THINKING: nothing was read yet */
    bool any_text;   /* content was output */
    int n_calls, n_bad;
    /* a call */
    int step;
    size_t at;      /* matched bytes of the step's markers */
    unsigned alive; /* markers that still match */
    bool must_know; /* the name must be that of a tool */
    bool begun;     /* CALL_BEGIN was output, CALL_END not yet */
    bool taken;     /* the marker's first call has begun: nothing is taken back */
    bool any_key;   /* a parameter was output */
    bool quoted;    /* the value is a string that streams */
    size_t n_args;
    call_text field, name, id, key, value, keys;
    call_object object;
    json_scan scan;
};

/* ---- events ---- */

static status flush(call_parser *p, err *e)
{
    if (!p->ready.n) return ST_OK;
    const size_t n = p->ready.n;
    p->ready.n = 0;
    return p->sink(p->ctx, p->what, p->n_calls - 1, p->ready.p, n, e);
}

static status put(call_parser *p, call_event what, const char *s, size_t n, err *e)
{
    if (!n) return ST_OK;
    if (p->what != what) TRY(flush(p, e));
    p->what = what;
    if (what == CALL_TEXT) p->any_text = true;
    return call_text_add(&p->ready, s, n, e);
}

static status put_args(call_parser *p, const char *s, size_t n, err *e)
{
    p->n_args += n;
    return put(p, CALL_ARGS, s, n, e);
}

/* Outputs the beginning of a call; false in *good if its name is not acceptable. */
static status begin_call(call_parser *p, const call_text *name, const call_text *id, bool *good, err *e)
{
    call_text both = {0};
    *good = name->n > 0 && name->n <= FIELD_MAX && p->n_calls < CALL_MOST &&
            (!p->must_know || call_function(p->r.tools, name->p));
    if (!*good) return ST_OK;
    TRY(flush(p, e));
    TRY(call_text_add(&both, name->p, name->n + 1, e));
    status st = call_text_add(&both, id->p ? id->p : "", id->n, e);
    if (st == ST_OK) st = p->sink(p->ctx, CALL_BEGIN, p->n_calls++, both.p, both.n, e);
    mem_free(both.p);
    p->begun = p->taken = true;
    p->n_args = 0;
    p->held.n = 0;
    return st;
}

static status end_call(call_parser *p, err *e)
{
    if (!p->begun) return ST_OK;
    p->begun = false;
    TRY(flush(p, e));
    return p->sink(p->ctx, CALL_END, p->n_calls - 1, "", 0, e);
}

/* ---- markers ---- */

static bool is_white(const symbol *y)
{
    return !y->special && strchr(" \t\r\n", *y->s) && *y->s;
}

static bool is_special(const call_parser *p, const char *mark)
{
    for (const char *const *s = p->r.special; s && *s; s++)
        if (strcmp(*s, mark) == 0) return true;
    return false;
}

static bool is_token(const call_parser *p, const char *mark, const symbol *y)
{
    return mark && y->special && is_special(p, mark) && strlen(mark) == y->n && memcmp(mark, y->s, y->n) == 0;
}

typedef enum { MATCH_NO, MATCH_PART, MATCH_FULL } match;

/* Compares text with the beginning of a marker that is no special token. */
static match match_text(const call_parser *p, const char *mark, const char *s, size_t n)
{
    const size_t len = mark ? strlen(mark) : 0;
    if (!mark || is_special(p, mark) || memcmp(s, mark, n < len ? n : len) != 0) return MATCH_NO;
    return n < len ? MATCH_PART : MATCH_FULL;
}

static void enter(call_parser *p, int step)
{
    p->step = step;
    p->at = 0;
    p->alive = 3;
    p->field.n = p->value.n = 0;
    p->scan = (json_scan){0};
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

static call_type type_of(const call_parser *p)
{
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
static status begin_value(call_parser *p, bool *good, err *e)
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
    p->quoted = !repeated && call_type_is_text(type_of(p));
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

static status end_value(call_parser *p, err *e)
{
    call_text out = {0};
    if (p->quoted) return put_args(p, "\"", 1, e);
    if (!p->key.n) return ST_OK;
    TRY(put_key(p, e));
    status st = call_value(&out, type_of(p), p->value.p ? p->value.p : "", p->value.n, e);
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

typedef enum { STEP_BAD, STEP_MORE, STEP_AGAIN } step_result; /* STEP_AGAIN: the next step takes the symbol */

static status mark_step(call_parser *p, const call_step *s, const symbol *y, step_result *what)
{
    *what = STEP_MORE;
    for (int k = 0; k < 2; k++) {
        const char *m = s->mark[k];
        if (is_token(p, m, y)) {
            enter(p, s->next[k]);
            return ST_OK;
        }
        if (!(p->alive & 1u << k)) continue;
        if (!m || y->special || is_special(p, m) || m[p->at] != *y->s) p->alive &= ~(1u << k);
        else if (!m[p->at + 1]) {
            enter(p, s->next[k]);
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

/* Takes a byte of a name, an id or a key, up to one of the step's markers. */
static status field_step(call_parser *p, const call_step *s, const symbol *y, step_result *what, err *e)
{
    int hit = -1;
    bool good = true;
    *what = STEP_MORE;
    if (!y->special && *y->s) TRY(call_text_add(&p->field, y->s, 1, e));
    for (int k = 0; k < 2 && hit < 0; k++) {
        const size_t len = s->mark[k] ? strlen(s->mark[k]) : 0;
        if (is_token(p, s->mark[k], y)) hit = k;
        else if (len && !y->special && !is_special(p, s->mark[k]) && p->field.n >= len &&
                 memcmp(p->field.p + p->field.n - len, s->mark[k], len) == 0) {
            hit = k;
            p->field.n -= len;
        }
    }
    if (hit < 0) {
        if (p->field.n > FIELD_MAX || y->special) *what = STEP_BAD;
        return ST_OK;
    }
    TRY(keep_field(p, s->op == OP_NAME ? &p->name : s->op == OP_ID ? &p->id : &p->key, e));
    if (s->op == OP_NAME) p->id.n = 0;
    if ((s->op == OP_NAME && !p->name.n) || (s->op == OP_KEY && !p->key.n)) *what = STEP_BAD;
    else if (s->op == OP_KEY) TRY(begin_value(p, &good, e));
    if (!good) *what = STEP_BAD;
    enter(p, s->next[hit]);
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
        TRY(end_call(p, e));
        enter(p, p->step + 1);
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
    TRY(end_call(p, e));
    enter(p, p->step + 1);
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
            TRY(end_value(p, e));
            enter(p, s->next[which]);
            return ST_OK;
        }
        TRY(value_byte(p, p->field.p[0], e));
        memmove(p->field.p, p->field.p + 1, --p->field.n);
    }
    return ST_OK;
}

/* Ends the parameters of a call. */
static status close_step(call_parser *p, bool *good, err *e)
{
    *good = true;
    if (!p->begun) {
        p->any_key = false;
        TRY(begin_call(p, &p->name, &(call_text){0}, good, e));
    }
    if (!*good) return ST_OK;
    TRY(put_args(p, p->any_key ? "}" : "{}", p->any_key ? 1 : 2, e));
    return end_call(p, e);
}

/* Takes a byte of `a="v", b="w")`, which is checked as the JSON object {"a": "v", "b": "w"}. */
static status python_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    const char *out = y->s;
    *what = STEP_BAD;
    if (y->special) return ST_OK;
    const scan_state state = p->scan.state;
    const bool between = state == SCAN_VALUE && !p->scan.depth, string = state == SCAN_STRING || state == SCAN_ESCAPE;
    bool good = true;
    char add[4];
    if (between && *y->s == ')' && !p->begun) out = "{}";
    else if (string && p->scan.is_key && *y->s == '=') out = "\": ";
    else if (string && p->scan.is_key && !strchr("_", *y->s) && !((*y->s | 32) >= 'a' && (*y->s | 32) <= 'z') &&
             !(*y->s >= '0' && *y->s <= '9'))
        return ST_OK;
    else if (!string && *y->s == ')') out = "}";
    else if (!string && !is_white(y) && *y->s != ',' && (between || state == SCAN_KEY)) {
        snprintf(add, sizeof add, "%s\"%c", between ? "{" : "", *y->s);
        out = add;
    } else if (state == SCAN_VALUE && p->scan.depth && *y->s != '"') return ST_OK;
    scan_result r = SCAN_MORE;
    const size_t n = out == y->s ? 1 : strlen(out);
    for (size_t i = 0; i < n && r == SCAN_MORE; i++) r = json_scan_byte(&p->scan, (unsigned char)out[i]);
    if (r == SCAN_BAD) return ST_OK;
    if (!p->begun) TRY(begin_call(p, &p->name, &p->id, &good, e));
    if (!good) return ST_OK;
    TRY(put_args(p, out, n, e));
    *what = STEP_MORE;
    if (r != SCAN_DONE) return ST_OK;
    TRY(end_call(p, e));
    enter(p, p->step + 1);
    return ST_OK;
}

/* Gives a symbol to the current step. */
static status take_step(call_parser *p, const symbol *y, step_result *what, err *e)
{
    const call_step *s = &p->r.format->steps[p->step];
    switch (s->op) {
    case OP_WHITE:
        *what = is_white(y) ? STEP_MORE : STEP_AGAIN;
        if (!is_white(y)) enter(p, p->step + 1);
        return ST_OK;
    case OP_FORK:
        *what = STEP_AGAIN;
        enter(p, s->next[y->special || *y->s != '{']);
        return ST_OK;
    case OP_MARK: return mark_step(p, s, y, what);
    case OP_OBJECT: return object_step(p, y, what, e);
    case OP_ARGS: return args_step(p, y, what, e);
    case OP_VALUE: return value_step(p, s, y, what, e);
    case OP_PYTHON: return python_step(p, y, what, e);
    default: return field_step(p, s, y, what, e);
    }
}

/* ---- states ---- */

static status take(call_parser *p, const symbol *y, err *e);

static void to_text(call_parser *p)
{
    p->state = IN_TEXT;
    p->held.n = p->n_white = 0;
}

/* Takes a symbol that does not fit the call: what was read becomes text if no call has begun. */
static status refuse(call_parser *p, const symbol *y, err *e)
{
    if (!p->taken) {
        TRY(put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e));
        to_text(p);
        return take(p, y, e);
    }
    const call_step *s = &p->r.format->steps[p->step];
    const bool partial = s->op == OP_MARK && p->at > 0; /* of a closing marker, or of the opening one */
    p->n_bad += p->begun;
    TRY(end_call(p, e));
    p->state = IN_FAULT;
    p->held.n = 0;
    if (partial) TRY(call_text_add(&p->held, s->mark[0], p->at, e));
    return take(p, y, e);
}

static status in_call(call_parser *p, const symbol *y, err *e)
{
    step_result what = STEP_AGAIN;
    bool good = true;
    if (!y->special && !*y->s) return refuse(p, y, e); /* U+0000 */
    if (p->held.n > CALL_HELD || p->n_args > CALL_ARGS_MOST) return refuse(p, y, e);
    while (what == STEP_AGAIN) {
        if (p->r.format->steps[p->step].op == OP_END) {
            to_text(p);
            return take(p, y, e);
        }
        TRY(take_step(p, y, &what, e));
    }
    if (what == STEP_BAD) return refuse(p, y, e);
    if (!p->taken) TRY(call_text_add(&p->held, y->s, y->n, e));
    if (p->r.format->steps[p->step].op == OP_CLOSE) {
        TRY(close_step(p, &good, e));
        if (!good) return refuse(p, &(symbol){"", 0, true}, e);
        enter(p, p->step + 1);
    }
    if (p->r.format->steps[p->step].op == OP_END) to_text(p);
    return ST_OK;
}

/* Begins to read a call at a step; `held` is the text since the white space before its marker. */
static void open_call(call_parser *p, int step, bool must_know)
{
    p->state = IN_CALL;
    p->must_know = must_know;
    p->taken = p->begun = false;
    enter(p, step);
}

/* True if a call may begin without its opening marker: at the start of a line. */
static bool at_line(const call_parser *p)
{
    return (!p->any_text && p->n_calls == 0) || memchr(p->held.p, '\n', p->n_white);
}

/* Compares held text with the markers that begin a call. */
static match match_open(const call_parser *p, bool *bare)
{
    const call_format *f = p->r.format;
    const char *s = p->held.p + p->n_white;
    const size_t n = p->held.n - p->n_white;
    const match open = match_text(p, f->open, s, n);
    const match short_open = f->bare && at_line(p) ? match_text(p, f->bare, s, n) : MATCH_NO;
    *bare = open != MATCH_FULL && short_open == MATCH_FULL;
    return open > short_open ? open : short_open;
}

static status release(call_parser *p, size_t n, err *e)
{
    TRY(put(p, CALL_TEXT, p->held.p, n, e));
    p->held.n -= n;
    if (p->held.n) memmove(p->held.p, p->held.p + n, p->held.n);
    for (p->n_white = 0; p->n_white < p->held.n && strchr(" \t\r\n", p->held.p[p->n_white]);) p->n_white++;
    return ST_OK;
}

static status in_text(call_parser *p, const symbol *y, err *e)
{
    const call_format *f = p->r.format;
    bool bare = false;
    if (y->special && !(f && is_token(p, f->open, y))) return ST_OK;
    if (!f) return put(p, CALL_TEXT, y->s, y->n, e);
    const bool first = f->whole && !p->any_text && p->held.n == p->n_white && !y->special;
    if (first && p->n_calls && *y->s == ';') return ST_OK; /* between calls */
    if (!y->special) TRY(call_text_add(&p->held, y->s, 1, e));
    if (first && *y->s == '{') {
        p->held.n--;
        open_call(p, 0, true);
        return in_call(p, y, e);
    }
    if (y->special) {
        if (p->held.n > p->n_white) TRY(release(p, p->held.n, e));
        TRY(call_text_add(&p->held, y->s, y->n, e));
        open_call(p, f->after_open, f->whole);
        return ST_OK;
    }
    if (is_white(y) && p->n_white == p->held.n - 1) {
        if (++p->n_white > CALL_HELD) return release(p, p->held.n, e);
        return ST_OK;
    }
    while (p->held.n > p->n_white) {
        const match m = match_open(p, &bare);
        if (m == MATCH_PART) return ST_OK;
        if (m == MATCH_FULL) {
            open_call(p, bare ? f->after_bare : f->after_open, f->whole || bare);
            return ST_OK;
        }
        TRY(release(p, p->n_white + 1, e));
    }
    return ST_OK;
}

/* True if the held text ends with a marker that is no special token. */
static bool ends_with(const call_parser *p, const char *mark)
{
    const size_t len = mark ? strlen(mark) : 0;
    return len && !is_special(p, mark) && p->held.n >= len && memcmp(p->held.p + p->held.n - len, mark, len) == 0;
}

/* Skips the rest of a faulty call up to its closing marker or to the next call. */
static status in_fault(call_parser *p, const symbol *y, err *e)
{
    const call_format *f = p->r.format;
    enum { KEEP = 64 }; /* at least the length of a marker */
    if (!y->special) TRY(call_text_add(&p->held, y->s, 1, e));
    if (p->held.n > 2 * KEEP) {
        memmove(p->held.p, p->held.p + p->held.n - KEEP, KEEP);
        p->held.n = KEEP;
    }
    const bool again = is_token(p, f->open, y) || ends_with(p, f->open);
    if (!again && !is_token(p, f->close, y) && !ends_with(p, f->close)) return ST_OK;
    to_text(p);
    if (again) open_call(p, f->after_open, f->whole);
    if (again) return call_text_add(&p->held, f->open, strlen(f->open), e);
    return ST_OK;
}

/* Takes a symbol at the beginning of a reply, which may be thinking. */
static status in_start(call_parser *p, const symbol *y, err *e)
{
    const char *open = p->r.think_open;
    bool hit = is_token(p, open, y);
    if (!y->special) {
        TRY(call_text_add(&p->held, y->s, 1, e));
        if (is_white(y) && p->n_white == p->held.n - 1) {
            if (++p->n_white <= FIELD_MAX) return ST_OK;
        }
        const match m =
            p->held.n == p->n_white ? MATCH_NO : match_text(p, open, p->held.p + p->n_white, p->held.n - p->n_white);
        if (m == MATCH_PART) return ST_OK;
        hit = m == MATCH_FULL;
    }
    if (hit) {
        to_text(p);
        p->state = IN_THINKING;
        p->fresh = true;
        return ST_OK;
    }
    call_text again = p->held; /* no thinking: everything read so far is read again */
    p->held = (call_text){0};
    to_text(p);
    status st = ST_OK;
    for (size_t i = 0; i < again.n && st == ST_OK; i++) st = take(p, &(symbol){again.p + i, 1, false}, e);
    mem_free(again.p);
    TRY(st);
    return y->special ? take(p, y, e) : ST_OK;
}

static status in_thinking(call_parser *p, const symbol *y, err *e)
{
    const char *close = p->r.think_close;
    const bool skip = p->fresh && !y->special && *y->s == '\n';
    p->fresh = false;
    if (skip || (y->special && !is_token(p, close, y))) return ST_OK;
    if (!y->special) TRY(call_text_add(&p->held, y->s, 1, e));
    bool hit = y->special;
    while (p->held.n && !hit) {
        const size_t line = p->held.p[0] == '\n';
        const match m = p->held.n == line ? MATCH_PART : match_text(p, close, p->held.p + line, p->held.n - line);
        if (m == MATCH_PART) return ST_OK;
        hit = m == MATCH_FULL;
        if (hit) break;
        TRY(put(p, CALL_REASONING, p->held.p, 1, e));
        memmove(p->held.p, p->held.p + 1, --p->held.n);
    }
    if (!hit) return ST_OK;
    if (y->special && p->held.n && p->held.p[p->held.n - 1] == '\n') p->held.n--;
    if (y->special) TRY(put(p, CALL_REASONING, p->held.p ? p->held.p : "", p->held.n, e));
    to_text(p);
    p->state = IN_THOUGHT;
    return ST_OK;
}

static status take(call_parser *p, const symbol *y, err *e)
{
    switch (p->state) {
    case IN_START: return in_start(p, y, e);
    case IN_THINKING: return in_thinking(p, y, e);
    case IN_THOUGHT:
        if (!y->special && *y->s == '\n') return ST_OK;
        p->state = IN_TEXT;
        return in_text(p, y, e);
    case IN_TEXT: return in_text(p, y, e);
    case IN_CALL: return in_call(p, y, e);
    default: return in_fault(p, y, e);
    }
}

/* ---- interface ---- */

status call_parser_open(call_parser **out, const call_rules *rules, call_sink *sink, void *ctx, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    call_parser *p = *out;
    p->r = *rules;
    p->sink = sink;
    p->ctx = ctx;
    p->state = !rules->think_close ? IN_TEXT : rules->thinking ? IN_THINKING : IN_START;
    p->fresh = true;
    return ST_OK;
}

void call_parser_free(call_parser *p)
{
    if (!p) return;
    call_text *const texts[] = {&p->ready, &p->held, &p->field, &p->name, &p->id, &p->key, &p->value, &p->keys};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) mem_free(texts[i]->p);
    call_object_free(&p->object);
    mem_free(p);
}

status call_parser_add(call_parser *p, const char *text, size_t n, bool special, err *e)
{
    if (special) TRY(take(p, &(symbol){text, n, true}, e));
    for (size_t i = 0; i < n && !special; i++) TRY(take(p, &(symbol){text + i, 1, false}, e));
    return flush(p, e);
}

/* Ends a call that the end of the reply interrupts. */
static status cut_call(call_parser *p, err *e)
{
    const call_step *s = &p->r.format->steps[p->step];
    int which;
    bool closed = false, good = true;
    if (p->begun && s->op == OP_VALUE) {
        const match m = p->field.n ? match_end(p, s, &which, &closed) : MATCH_NO;
        for (size_t i = 0; i < p->field.n && !(m != MATCH_NO && closed); i++) TRY(value_byte(p, p->field.p[i], e));
        if (closed) TRY(end_value(p, e));
        if (closed) TRY(put_args(p, p->any_key ? "}" : "{}", p->any_key ? 1 : 2, e));
    }
    if (!p->begun && s->op == OP_OBJECT && p->object.name.n && p->object.early.n) TRY(put_early(p, &good, e));
    if (!p->taken) return put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e);
    return end_call(p, e);
}

status call_parser_end(call_parser *p, err *e)
{
    const bool blank = p->n_calls && p->held.n == p->n_white;
    if (p->state == IN_CALL) TRY(cut_call(p, e));
    else if (p->state == IN_THINKING) TRY(put(p, CALL_REASONING, p->held.p ? p->held.p : "", p->held.n, e));
    else if (p->state != IN_FAULT && !blank) TRY(put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e));
    to_text(p);
    return flush(p, e);
}

bool call_parser_thinks(const call_parser *p)
{
    return p->state == IN_THINKING;
}

int call_parser_calls(const call_parser *p)
{
    return p->n_calls;
}

int call_parser_bad(const call_parser *p)
{
    return p->n_bad;
}
