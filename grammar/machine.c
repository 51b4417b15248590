/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "grammar/machine.h"

#include <string.h>

#include "grammar/lexical.h"
#include "kernels/base/mem.h"

enum { BLANKS_MAX = 20 /* spaces and tabs after a newline */ };

/* States of configurations. */
enum {
    START, /* before the node */
    INSIDE,
    /* arrays and objects: before the first item, after an item, after a comma; text: blanks so far */
    OPEN,
    AFTER,
    COMMA,
    /* objects: in a listed key, in another key, before and after the colon; aux: the property, or their number for an
     * additional member */
    KEY,
    OTHER_KEY,
    COLON,
    VALUE
};

static const node *node_of(const machine *m, int32_t id)
{
    return &m->g->nodes[id];
}

static void emit(config_set *to, const config *c)
{
    for (size_t i = 0; i < to->n; i++)
        if (memcmp(&to->at[i], c, sizeof *c) == 0) return;
    if (to->n < SET_MAX) to->at[to->n++] = *c;
}

/* ---- frames ---- */

/* Returns a frame, an equal one of the newest if there is any, so that configurations on it are equal too. */
static uint32_t push(machine *m, const frame *f)
{
    for (size_t i = m->n_frames; i > 1 && i + 4 > m->n_frames; i--)
        if (memcmp(&m->frames[i - 1], f, sizeof *f) == 0) return (uint32_t)(i - 1);
    if (MEM_ROOM(&m->frames, &m->cap_frames, m->n_frames + 1, NULL) != ST_OK) {
        m->failed = true;
        return 0;
    }
    m->frames[m->n_frames] = *f;
    return (uint32_t)m->n_frames++;
}

static uint16_t depth_of(const machine *m, uint32_t up)
{
    return up ? m->frames[up].depth : 0;
}

/* True if a node's shortest text fits into the allowed nesting on top of `depth` open arrays and objects. */
static bool fits(const machine *m, int32_t id, uint32_t depth)
{
    return id >= 0 && node_of(m, id)->nesting <= NESTING_MAX - depth;
}

/* Returns the configuration before a part of a sequence. */
static config start_part(machine *m, int32_t sequence, uint16_t at, uint32_t up)
{
    const frame f = {.up = up, .node = sequence, .at = at, .depth = depth_of(m, up)};
    return (config){.node = m->g->refs[node_of(m, sequence)->list.first + at], .up = push(m, &f)};
}

/* Returns the configuration after a node on frame `up`. */
static config after(machine *m, uint32_t up)
{
    while (up) {
        const frame f = m->frames[up];
        const node *p = node_of(m, f.node);
        if (p->kind != NODE_SEQUENCE)
            return (config){.node = f.node, .up = f.up, .state = AFTER, .aux = f.at, .count = f.count};
        if (f.at + 1u < p->list.n) return start_part(m, f.node, (uint16_t)(f.at + 1), f.up);
        up = f.up;
    }
    return (config){.node = NO_NODE};
}

/* True if a node begins with free text. ends: with one in which the reply may end. */
static bool begins_free(const machine *m, int32_t id, bool ends)
{
    const node *p = node_of(m, id);
    bool any = p->kind == NODE_FREE && (p->free.ends || !ends);
    if (p->kind == NODE_REPEAT) return begins_free(m, p->repeat.of, ends);
    if (p->kind == NODE_SEQUENCE) return begins_free(m, m->g->refs[p->list.first], ends);
    for (uint32_t i = 0; p->kind == NODE_CHOICE && i < p->list.n && !any; i++)
        any = begins_free(m, m->g->refs[p->list.first + i], ends);
    return any;
}

/* Returns the frame of the next item of a repetition, or of a separator. */
static frame next_repeat(const machine *m, const config *c, bool separator)
{
    return (frame){
        .up = c->up, .node = c->node, .count = c->count + !separator, .at = separator, .depth = depth_of(m, c->up)};
}

/* Adds a configuration. Free text at the beginning of a node becomes one of its own, so that masks find it. A
 * repetition whose next item was added has text 1. */
static void settle(machine *m, config c, config_set *to)
{
    if (m->failed) return;
    const node *p = c.node < 0 ? NULL : node_of(m, c.node);
    const bool again = p && p->kind == NODE_REPEAT && c.state != START,
               separator = again && c.aux == 0 && p->repeat.separator >= 0;
    if (!p || p->kind == NODE_FREE || (c.state != START && !again) || separator || !begins_free(m, c.node, false)) {
        emit(to, &c);
    } else if (p->kind == NODE_SEQUENCE) {
        settle(m, start_part(m, c.node, 0, c.up), to);
    } else if (p->kind == NODE_CHOICE) {
        for (uint32_t i = 0; i < p->list.n; i++)
            settle(m, (config){.node = m->g->refs[p->list.first + i], .up = c.up}, to);
    } else {
        const frame f = next_repeat(m, &c, false);
        if (c.count < p->repeat.most) settle(m, (config){.node = p->repeat.of, .up = push(m, &f)}, to);
        c.text = 1;
        if (again && c.aux == 0) emit(to, &c);
    }
}

static void end_with(machine *m, uint32_t up, config_set *to)
{
    settle(m, after(m, up), to);
}

/* Ends a node before a symbol, which belongs to what follows. */
static void end_before(machine *m, uint32_t up, int32_t symbol, config_set *to)
{
    const config c = after(m, up);
    if (!m->failed) machine_step(m, &c, symbol, to);
}

static void start(machine *m, int32_t id, uint32_t up, int32_t symbol, config_set *to)
{
    const config c = {.node = id, .up = up};
    if (!m->failed) machine_step(m, &c, symbol, to);
}

/* ---- white space ---- */

/* True if a byte is white space that may follow the blanks so far: one space, or a newline and BLANKS_MAX blanks. */
static bool blank(const machine *m, config *c, int32_t symbol)
{
    if (m->g->compact && c->state != COMMA && c->state != VALUE) return false;
    if (c->text == 0 && symbol == ' ') c->text = 1;
    else if (c->text == 0 && symbol == '\n' && !m->g->compact) c->text = 2;
    else if (c->text >= 2 && c->text < 2 + BLANKS_MAX && (symbol == ' ' || symbol == '\t')) c->text++;
    else return false;
    return true;
}

/* Takes up to two newlines or spaces before a value. */
static void step_blank(machine *m, const config *c, int32_t symbol, config_set *to)
{
    config next = *c;
    next.state = INSIDE;
    if ((symbol == '\n' || symbol == ' ') && next.count++ < 2) emit(to, &next);
    else end_before(m, c->up, symbol, to);
}

/* ---- literals ---- */

/* Narrows a range of sorted literals, of which c->range.depth bytes match, to those whose next byte is b. */
static bool narrow(const literal *list, config *c, int32_t symbol)
{
    uint32_t low = c->range.low, high = c->range.high;
    const uint32_t at = c->range.depth;
    if (symbol >= SYMBOL_TOKEN) return false;
    for (uint32_t n = high - low; n > 0;) { /* the first one whose byte is at least b */
        const uint32_t half = n / 2, i = low + half;
        const bool less = list[i].n <= at || (unsigned char)list[i].text[at] < symbol;
        if (less) low = i + 1;
        n = less ? n - half - 1 : half;
    }
    uint32_t end = low;
    for (uint32_t n = high - low; n > 0;) {
        const uint32_t half = n / 2, i = end + half;
        const bool same = (unsigned char)list[i].text[at] == symbol;
        if (same) end = i + 1;
        n = same ? n - half - 1 : half;
    }
    c->range.low = (uint16_t)low;
    c->range.high = (uint16_t)end;
    c->range.depth++;
    return low < end;
}

static bool complete(const literal *list, const config *c)
{
    return c->range.depth == list[c->range.low].n;
}

static void step_literals(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    const literal *list = m->g->literals + p->list.first;
    config next = *c;
    if (c->state == START) {
        next.range.high = (uint16_t)p->list.n;
        next.state = INSIDE;
    } else if (complete(list, c)) {
        const int32_t then = list[c->range.low].then;
        if (then == NO_NODE) end_before(m, c->up, symbol, to);
        else start(m, then, c->up, symbol, to);
    }
    if (narrow(list, &next, symbol)) emit(to, &next);
}

/* ---- strings and numbers ---- */

static void step_string(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    config next = *c;
    if (symbol >= SYMBOL_TOKEN) return;
    if (c->state == START) {
        next.state = INSIDE;
        if (symbol == '"') emit(to, &next);
        return;
    }
    if (c->text == STRING_NEXT && symbol != '"' && c->count >= p->string.max) return;
    const string_effect effect = string_step(&next.text, &next.aux, (unsigned char)symbol);
    if (effect == STRING_CHARACTER) next.aux = 0;
    if (effect == STRING_CHARACTER && next.count < UNLIMITED && (p->string.min || p->string.max < UNLIMITED))
        next.count++;
    if (effect == STRING_GOES_ON || effect == STRING_CHARACTER) emit(to, &next);
    if (effect == STRING_CLOSED && c->count >= p->string.min) end_with(m, c->up, to);
}

/* Packs a number into a configuration: part in text, sign in count, digits in aux. */
static number_state number_of(const config *c)
{
    return (number_state){.part = c->text,
                          .negative = c->count != 0,
                          .digits = (uint8_t)(c->aux & 0xff),
                          .fraction = (uint8_t)(c->aux >> 8),
                          .value = c->value};
}

static void step_number(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    number_state s = number_of(c);
    if (number_may_end(p, &s)) end_before(m, c->up, symbol, to);
    if (symbol >= SYMBOL_TOKEN || !number_step(p, &s, (unsigned char)symbol)) return;
    const config next = {.node = c->node,
                         .up = c->up,
                         .state = INSIDE,
                         .text = s.part,
                         .aux = (uint16_t)(s.digits | s.fraction << 8),
                         .count = s.negative,
                         .value = s.value};
    emit(to, &next);
}

/* ---- arrays ---- */

/* Begins a child of c's array or object. */
static void start_child(machine *m, const config *c, int32_t child, uint16_t at, uint32_t count, int32_t symbol,
                        config_set *to)
{
    const frame f = {
        .up = c->up, .node = c->node, .count = count, .at = at, .depth = (uint16_t)(depth_of(m, c->up) + 1)};
    start(m, child, push(m, &f), symbol, to);
}

/* Returns the node of the next item of an array, or NO_NODE. */
static int32_t next_item(const machine *m, const node *p, const config *c)
{
    if (c->count >= p->array.max) return NO_NODE;
    const int32_t id = c->count < p->array.prefix.n ? m->g->refs[p->array.prefix.first + c->count] : p->array.items;
    return fits(m, id, depth_of(m, c->up) + 1u) ? id : NO_NODE;
}

/* Counts up to where a further item changes anything, so that states of long arrays are equal. */
static uint32_t count_item(const node *p, uint32_t n)
{
    const bool counts = n < p->array.min || n < p->array.prefix.n || p->array.max < UNLIMITED;
    return counts ? n + 1 : n;
}

static void step_array(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    const int32_t item = next_item(m, p, c);
    config next = *c;
    if (c->state == START) {
        next.state = OPEN;
        if (symbol == '[') emit(to, &next);
    } else if (blank(m, &next, symbol)) {
        emit(to, &next);
    } else if (symbol == ']' && c->state != COMMA) {
        if (c->count >= p->array.min) end_with(m, c->up, to);
    } else if (c->state != AFTER) {
        if (item >= 0) start_child(m, c, item, 0, count_item(p, c->count), symbol, to);
    } else if (symbol == ',' && item >= 0) {
        next.state = COMMA;
        next.text = 0;
        emit(to, &next);
    }
}

/* ---- objects ---- */

static const property *property_of(const machine *m, const node *p, uint32_t at)
{
    return &m->g->properties[p->object.properties.first + at];
}

/* True if property i may be next after those before `at`, of which no required one may be left out. */
static bool may_follow(const machine *m, const node *p, const config *c, uint32_t i)
{
    return i >= c->aux && i <= property_of(m, p, c->aux)->last &&
           fits(m, property_of(m, p, i)->value, depth_of(m, c->up) + 1u);
}

/* True if a key in the range of c may be next. */
static bool any_key(const machine *m, const node *p, const config *c)
{
    const literal *list = m->g->literals + p->object.keys.first;
    for (uint32_t i = c->range.low; i < c->range.high; i++)
        if (may_follow(m, p, c, (uint32_t)list[i].then)) return true;
    return false;
}

/* True if no required property is left. */
static bool required_done(const machine *m, const node *p, const config *c)
{
    return property_of(m, p, c->aux)->last == p->object.properties.n;
}

static bool may_add(const machine *m, const node *p, const config *c)
{
    return required_done(m, p, c) && c->count < p->object.max && fits(m, p->object.additional, depth_of(m, c->up) + 1u);
}

/* Returns c before the keys of its object, in state `state`. */
static config before_key(const node *p, const config *c, uint8_t state)
{
    config k = {.node = c->node, .up = c->up, .state = state, .aux = c->aux, .count = c->count};
    k.range.high = (uint16_t)p->object.keys.n;
    return k;
}

/* Opens a key, a listed one or another one. */
static void open_key(machine *m, const config *c, config_set *to)
{
    const node *p = node_of(m, c->node);
    config k = before_key(p, c, KEY);
    if (any_key(m, p, &k) && narrow(m->g->literals + p->object.keys.first, &k, '"')) emit(to, &k);
    if (!may_add(m, p, c)) return;
    k = before_key(p, c, OTHER_KEY);
    narrow(m->g->literals + p->object.keys.first, &k, '"');
    if (k.range.low == k.range.high) k.value = 0;
    k.aux = 0;
    emit(to, &k);
}

static void step_key(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    const literal *list = m->g->literals + p->object.keys.first;
    config k = *c;
    if (!narrow(list, &k, symbol)) return;
    if (complete(list, &k)) {
        const uint16_t at = (uint16_t)list[k.range.low].then;
        if (!may_follow(m, p, c, at)) return;
        k = (config){.node = c->node, .up = c->up, .state = COLON, .aux = at, .count = c->count};
        emit(to, &k);
    } else if (any_key(m, p, &k)) {
        emit(to, &k);
    }
}

/* Takes a byte of a key that is not listed. While it equals the beginning of a listed one, only escapes that are
 * spelled as in the list are allowed, so that no other spelling of a listed key passes. */
static void step_other_key(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    config k = *c;
    if (symbol >= SYMBOL_TOKEN) return;
    if (k.range.high && k.text == STRING_ESCAPE && (symbol == 'u' || symbol == '/')) return;
    const string_effect effect = string_step(&k.text, &k.aux, (unsigned char)symbol);
    if (effect == STRING_REFUSED) return;
    if (effect == STRING_CHARACTER) k.aux = 0;
    const bool listed = k.range.high && narrow(m->g->literals + p->object.keys.first, &k, symbol);
    if (!listed) k.value = 0;
    if (!listed && c->range.high && effect == STRING_GOES_ON && k.text == STRING_ESCAPE)
        k.range.low = k.range.high = 1; /* an empty range, after which \u and \/ are refused */
    if (effect != STRING_CLOSED) {
        emit(to, &k);
    } else if (!listed) {
        k = (config){.node = c->node, .up = c->up, .state = COLON, .count = c->count};
        k.aux = (uint16_t)p->object.properties.n;
        emit(to, &k);
    }
}

/* Begins the value of property c->aux, or of an additional member. */
static void start_member(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    const bool listed = c->aux < p->object.properties.n;
    const bool counts = !listed && (c->count < p->object.min || p->object.max < UNLIMITED);
    start_child(m, c, listed ? property_of(m, p, c->aux)->value : p->object.additional, (uint16_t)(c->aux + listed),
                c->count + counts, symbol, to);
}

static void step_object(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    config next = *c;
    next.text = 0;
    if (c->state == KEY) {
        step_key(m, c, symbol, to);
        return;
    }
    if (c->state == OTHER_KEY) {
        step_other_key(m, c, symbol, to);
        return;
    }
    if (c->state == START) {
        next.state = OPEN;
        if (symbol == '{') emit(to, &next);
        return;
    }
    config spaced = *c;
    if (blank(m, &spaced, symbol)) {
        emit(to, &spaced);
    } else if (c->state == VALUE) {
        start_member(m, c, symbol, to);
    } else if (c->state == COLON) {
        next.state = VALUE;
        if (symbol == ':') emit(to, &next);
    } else if (symbol == '}' && c->state != COMMA) {
        if (required_done(m, p, c) && c->count >= p->object.min) end_with(m, c->up, to);
    } else if (c->state != AFTER) {
        if (symbol == '"') open_key(m, c, to);
    } else if (symbol == ',') {
        config k = before_key(p, c, KEY);
        next.state = COMMA;
        if (any_key(m, p, &k) || may_add(m, p, c)) emit(to, &next);
    }
}

/* ---- other nodes ---- */

/* A repetition is after an item or, with aux 1, after a separator, as its frames' `at` says. */
static void step_repeat(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    const bool after_item = c->state == AFTER && c->aux == 0, separator = after_item && p->repeat.separator >= 0;
    const frame f = next_repeat(m, c, separator);
    if (after_item) end_before(m, c->up, symbol, to);
    if (c->count < p->repeat.most && c->text == 0)
        start(m, separator ? p->repeat.separator : p->repeat.of, push(m, &f), symbol, to);
}

static void step_free(machine *m, const config *c, int32_t symbol, config_set *to)
{
    const node *p = node_of(m, c->node);
    config next = *c;
    uint32_t k = c->count;
    next.state = INSIDE;
    if (symbol >= SYMBOL_TOKEN) {
        next.count = 0;
        if (symbol - SYMBOL_TOKEN == p->free.token) end_with(m, c->up, to);
        else if (p->free.special) emit(to, &next);
        return;
    }
    while (p->free.n && k > 0 && (unsigned char)p->free.marker[k] != symbol) k = p->free.match[k];
    if (p->free.n && (unsigned char)p->free.marker[k] == symbol) k++;
    next.count = k;
    if (p->free.n && k == p->free.n) end_with(m, c->up, to);
    else emit(to, &next);
}

void machine_step(machine *m, const config *c, int32_t symbol, config_set *to)
{
    if (c->node < 0) return;
    const node *p = node_of(m, c->node);
    if (c->state == START && !fits(m, c->node, depth_of(m, c->up))) return;
    switch (p->kind) {
    case NODE_LITERALS: step_literals(m, c, symbol, to); break;
    case NODE_STRING: step_string(m, c, symbol, to); break;
    case NODE_NUMBER: step_number(m, c, symbol, to); break;
    case NODE_ARRAY: step_array(m, c, symbol, to); break;
    case NODE_OBJECT: step_object(m, c, symbol, to); break;
    case NODE_REPEAT: step_repeat(m, c, symbol, to); break;
    case NODE_BLANK: step_blank(m, c, symbol, to); break;
    case NODE_FREE: step_free(m, c, symbol, to); break;
    case NODE_CHOICE:
        for (uint32_t i = 0; i < p->list.n; i++) start(m, m->g->refs[p->list.first + i], c->up, symbol, to);
        break;
    case NODE_SEQUENCE: {
        const config first = start_part(m, c->node, 0, c->up);
        if (!m->failed) machine_step(m, &first, symbol, to);
        break;
    }
    case NODE_TOKEN:
        if (symbol == SYMBOL_TOKEN + p->token) end_with(m, c->up, to);
        break;
    default: break;
    }
}

void machine_start(machine *m, config_set *to)
{
    settle(m, (config){.node = m->g->root}, to);
}

/* ---- ends ---- */

/* True if nothing must follow a node on frame `up`. */
static bool may_end_after(const machine *m, uint32_t up)
{
    for (; up; up = m->frames[up].up) {
        const frame *f = &m->frames[up];
        const node *p = node_of(m, f->node);
        if (p->kind == NODE_SEQUENCE ? f->at + 1u < p->list.n : p->kind != NODE_REPEAT || f->at == 1) return false;
    }
    return true;
}

bool machine_may_end(const machine *m, const config *c)
{
    if (c->node < 0) return true;
    const node *p = node_of(m, c->node);
    const number_state s = number_of(c);
    if (c->state == START ? begins_free(m, c->node, true) : p->kind == NODE_FREE && p->free.ends) return true;
    if (p->kind == NODE_NUMBER ? !number_may_end(p, &s)
        : p->kind == NODE_REPEAT
            ? c->state != AFTER || c->aux == 1
            : p->kind != NODE_LITERALS || c->state == START || !complete(m->g->literals + p->list.first, c) ||
                  m->g->literals[p->list.first + c->range.low].then != NO_NODE)
        return false;
    return may_end_after(m, c->up);
}

/* ---- positions ---- */

bool machine_in_string(const machine *m, const config *c, uint32_t *room)
{
    if (c->node < 0 || c->text != STRING_NEXT) return false;
    const node *p = node_of(m, c->node);
    *room = UNLIMITED;
    if (p->kind == NODE_STRING && c->state == INSIDE && p->string.max < UNLIMITED) *room = p->string.max - c->count;
    return p->kind == NODE_STRING ? c->state == INSIDE : p->kind == NODE_OBJECT && c->state == OTHER_KEY;
}

const node *machine_in_free(const machine *m, const config *c, uint32_t *matched)
{
    if (c->node < 0 || node_of(m, c->node)->kind != NODE_FREE) return NULL;
    *matched = c->count;
    return node_of(m, c->node);
}

/* ---- memory ---- */

void machine_compact(machine *m, config_set *sets, size_t n_sets)
{
    uint32_t *to;
    size_t n = 1;
    if (MEM_NEW(&to, m->n_frames, NULL) != ST_OK) return;
    for (size_t i = 0; i < n_sets; i++)
        for (size_t k = 0; k < sets[i].n; k++)
            for (uint32_t up = sets[i].at[k].up; up && !to[up]; up = m->frames[up].up) to[up] = 1;
    for (size_t i = 1; i < m->n_frames; i++) {
        if (!to[i]) continue;
        m->frames[n] = m->frames[i];
        m->frames[n].up = to[m->frames[i].up];
        to[i] = (uint32_t)n++;
    }
    for (size_t i = 0; i < n_sets; i++)
        for (size_t k = 0; k < sets[i].n; k++) sets[i].at[k].up = to[sets[i].at[k].up];
    m->n_frames = n;
    mem_free(to);
}
