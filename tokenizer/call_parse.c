/* SPDX-License-Identifier: MIT */
/* The parser takes one byte or special token at a time, so that cuts of the text cannot matter. */
#include "config.h"

#include "tokenizer/call_parse.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/call_state.h"

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
        TRY(parser_put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e));
        to_text(p);
        return take(p, y, e);
    }
    const call_step *s = &p->r.format->steps[p->step];
    const bool partial = s->op == OP_MARK && p->at > 0; /* of a closing marker, or of the opening one */
    p->n_bad += p->begun;
    TRY(parser_end_call(p, e));
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
        TRY(parser_step(p, y, &what, e));
    }
    if (what == STEP_BAD) return refuse(p, y, e);
    if (!p->taken) TRY(call_text_add(&p->held, y->s, y->n, e));
    if (p->r.format->steps[p->step].op == OP_CLOSE) {
        TRY(parser_close_call(p, &good, e));
        if (!good) return refuse(p, &(symbol){"", 0, true}, e);
        parser_enter(p, p->step + 1);
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
    parser_enter(p, step);
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
    const match open = mark_match(p, f->open, s, n);
    const match short_open = f->bare && at_line(p) ? mark_match(p, f->bare, s, n) : MATCH_NO;
    *bare = open != MATCH_FULL && short_open == MATCH_FULL;
    return open > short_open ? open : short_open;
}

static status release(call_parser *p, size_t n, err *e)
{
    TRY(parser_put(p, CALL_TEXT, p->held.p, n, e));
    p->held.n -= n;
    if (p->held.n) memmove(p->held.p, p->held.p + n, p->held.n);
    for (p->n_white = 0; p->n_white < p->held.n && strchr(" \t\r\n", p->held.p[p->n_white]);) p->n_white++;
    return ST_OK;
}

static status in_text(call_parser *p, const symbol *y, err *e)
{
    const call_format *f = p->r.alone && p->any_text ? NULL : p->r.format;
    bool bare = false;
    if (y->special && !(f && mark_is_token(p, f->open, y))) return ST_OK;
    if (!f) return parser_put(p, CALL_TEXT, y->s, y->n, e);
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
    if (symbol_is_white(y) && p->n_white == p->held.n - 1) {
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
    return len && !mark_is_special(p, mark) && p->held.n >= len && memcmp(p->held.p + p->held.n - len, mark, len) == 0;
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
    const bool again = mark_is_token(p, f->open, y) || ends_with(p, f->open);
    if (!again && !mark_is_token(p, f->close, y) && !ends_with(p, f->close)) return ST_OK;
    to_text(p);
    if (again) open_call(p, f->after_open, f->whole);
    if (again) return call_text_add(&p->held, f->open, strlen(f->open), e);
    return ST_OK;
}

/* Reads what was held at the beginning of a reply again, as content: white space and a part of the opening marker. */
static status no_thinking(call_parser *p, err *e)
{
    const size_t n = p->at;
    call_text again = p->held;
    p->held = (call_text){0};
    to_text(p);
    status st = ST_OK;
    for (size_t i = 0; i < again.n && st == ST_OK; i++) st = take(p, &(symbol){again.p + i, 1, false}, e);
    mem_free(again.p);
    for (size_t i = 0, k; i < n && st == ST_OK; i += k) {
        const char *s = p->r.think_open + i;
        k = mark_part(p, s);
        st = take(p, &(symbol){s, k ? k : 1, k > 0}, e);
        if (!k) k = 1;
    }
    return st;
}

/* Takes a symbol at the beginning of a reply, which may be thinking. p->at: matched bytes of the opening marker. */
static status in_start(call_parser *p, const symbol *y, err *e)
{
    const char *next = p->r.think_open + p->at;
    const size_t part = mark_part(p, next);
    if (p->at == 0 && symbol_is_white(y) && p->held.n < FIELD_MAX) return call_text_add(&p->held, y->s, 1, e);
    if (y->special ? part != y->n || memcmp(next, y->s, part) != 0 : part || *next != *y->s) {
        TRY(no_thinking(p, e));
        return take(p, y, e);
    }
    p->at += y->n;
    if (p->r.think_open[p->at]) return ST_OK;
    to_text(p);
    p->state = IN_THINKING;
    p->fresh = true;
    return ST_OK;
}

static status in_thinking(call_parser *p, const symbol *y, err *e)
{
    const char *close = p->r.think_close;
    const bool skip = p->fresh && !y->special && *y->s == '\n';
    p->fresh = false;
    if (skip || (y->special && !mark_is_token(p, close, y))) return ST_OK;
    if (!y->special) TRY(call_text_add(&p->held, y->s, 1, e));
    bool hit = y->special;
    while (p->held.n && !hit) {
        const size_t line = p->held.p[0] == '\n';
        const match m = p->held.n == line ? MATCH_PART : mark_match(p, close, p->held.p + line, p->held.n - line);
        if (m == MATCH_PART) return ST_OK;
        hit = m == MATCH_FULL;
        if (hit) break;
        TRY(parser_put(p, CALL_REASONING, p->held.p, 1, e));
        memmove(p->held.p, p->held.p + 1, --p->held.n);
    }
    if (!hit) return ST_OK;
    if (y->special && p->held.n && p->held.p[p->held.n - 1] == '\n') p->held.n--;
    if (y->special) TRY(parser_put(p, CALL_REASONING, p->held.p ? p->held.p : "", p->held.n, e));
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
    return parser_flush(p, e);
}

status call_parser_end(call_parser *p, err *e)
{
    if (p->state == IN_START) TRY(no_thinking(p, e));
    const bool blank = p->n_calls && p->held.n == p->n_white;
    if (p->state == IN_CALL) TRY(parser_cut_call(p, e));
    else if (p->state == IN_THINKING) TRY(parser_put(p, CALL_REASONING, p->held.p ? p->held.p : "", p->held.n, e));
    else if (p->state != IN_FAULT && !blank) TRY(parser_put(p, CALL_TEXT, p->held.p ? p->held.p : "", p->held.n, e));
    to_text(p);
    return parser_flush(p, e);
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
