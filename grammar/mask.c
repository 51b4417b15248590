/* SPDX-License-Identifier: MIT */
/* Runs: the state after the tokens so far, and the set of tokens that may be next. */
#include "config.h"

#include <string.h>

#include "grammar/machine.h"
#include "grammar/vocab.h"
#include "kernels/base/mem.h"

enum { STATES = GRAMMAR_BACK + 1, COMPACT_AT = 4096 /* frames */ };

struct grammar_run {
    const grammar *g;
    const grammar_vocab *v;
    machine m;
    config configs[STATES][SET_MAX];
    config_set states[STATES]; /* ring; the current one is at `now` */
    size_t now;
    uint64_t *mask;
    /* Configurations after each byte of a path of a trie: [first[d], first[d + 1]) after d bytes. */
    config *stack;
    size_t cap_stack, first[TOKEN_BYTES_MAX + 2], frames[TOKEN_BYTES_MAX + 1];
    size_t compact_at;
    /* Text tokens that contain the marker of free text. */
    int32_t *marked;
    size_t n_marked, cap_marked;
    const node *marked_of; /* NULL: not listed yet */
};

static config_set *state(grammar_run *r)
{
    return &r->states[r->now];
}

status grammar_run_create(grammar_run **out, const grammar *g, const grammar_vocab *v, err *e)
{
    grammar_run *r;
    *out = NULL;
    TRY(MEM_NEW(&r, 1, e));
    r->g = r->m.g = g;
    r->v = v;
    r->compact_at = COMPACT_AT;
    status st = MEM_NEW(&r->mask, v->n_words, e);
    if (st == ST_OK) st = MEM_ROOM(&r->m.frames, &r->m.cap_frames, 2, e);
    if (st != ST_OK) {
        grammar_run_free(r);
        return st;
    }
    r->m.n_frames = 1;
    for (size_t i = 0; i < STATES; i++) r->states[i].at = r->configs[i];
    machine_start(&r->m, &r->states[0]);
    *out = r;
    return ST_OK;
}

void grammar_run_free(grammar_run *r)
{
    if (!r) return;
    mem_free(r->m.frames);
    mem_free(r->mask);
    mem_free(r->stack);
    mem_free(r->marked);
    mem_free(r);
}

bool grammar_run_may_end(const grammar_run *r)
{
    const config_set *s = &r->states[r->now];
    bool ends = false;
    for (size_t i = 0; i < s->n && !ends; i++) ends = machine_may_end(&r->m, &s->at[i]);
    return ends;
}

/* ---- tokens ---- */

static bool is_eos(const grammar_vocab *v, int32_t id)
{
    bool is = false;
    for (size_t i = 0; i < v->eos.n; i++) is |= v->eos.ids[i] == id;
    return is;
}

/* Writes the configurations after a token to `to`, which has room for SET_MAX and is not `from`. */
static void step_token(grammar_run *r, const config_set *from, int32_t id, config_set *to)
{
    config other[SET_MAX];
    config_set sets[2] = {*to, {.at = other}};
    const vocab_token *t = &r->v->tokens[id];
    const bool special = set_has(r->v->special, id);
    const size_t n = special ? 1 : t->n;
    const config_set *at = from;
    to->n = 0;
    for (size_t i = 0; i < n; i++) { /* alternates so that the last set is `to` */
        config_set *next = &sets[(n - 1 - i) % 2];
        next->n = 0;
        for (size_t k = 0; k < at->n; k++)
            machine_step(&r->m, &at->at[k], special ? SYMBOL_TOKEN + id : (unsigned char)t->bytes[i], next);
        at = next;
    }
    to->n = n && !r->m.failed ? at->n : 0;
}

/* True if a token is allowed, leaving the state as it is. */
static bool allows(grammar_run *r, int32_t id)
{
    config room[SET_MAX];
    config_set to = {.at = room};
    const size_t frames = r->m.n_frames;
    step_token(r, state(r), id, &to);
    r->m.n_frames = frames;
    return to.n > 0;
}

bool grammar_run_accept(grammar_run *r, int32_t id)
{
    config_set *from = state(r);
    const bool ends = grammar_run_may_end(r);
    r->now = (r->now + 1) % STATES;
    config_set *to = state(r);
    to->n = 0;
    if (id < 0 || (size_t)id >= r->v->vocab) return false;
    if (is_eos(r->v, id)) { /* only EOS may follow */
        to->at[0] = (config){.node = NO_NODE};
        to->n = ends;
        return ends;
    }
    step_token(r, from, id, to);
    if (r->m.n_frames > r->compact_at) {
        machine_compact(&r->m, r->states, STATES);
        r->compact_at = 2 * r->m.n_frames + COMPACT_AT;
    }
    return to->n > 0;
}

void grammar_run_back(grammar_run *r, size_t n)
{
    r->now = (r->now + STATES - n % STATES) % STATES;
}

size_t grammar_run_allows(grammar_run *r, const int32_t *ids, size_t n)
{
    size_t k = 0;
    while (k < n && k < GRAMMAR_BACK && grammar_run_accept(r, ids[k])) k++;
    grammar_run_back(r, k < n && k < GRAMMAR_BACK ? k + 1 : k);
    return k;
}

/* ---- walks ---- */

/* Adds the tokens of a trie after the n configurations at the beginning of the stack. */
static void walk(grammar_run *r, const trie *t, size_t n)
{
    r->first[0] = 0;
    r->first[1] = n;
    r->frames[0] = r->m.n_frames;
    for (size_t i = 0; i < t->n && n > 0 && !r->m.failed;) {
        const trie_node *p = &t->nodes[i];
        const size_t d = p->depth, from = r->first[d - 1], end = r->first[d];
        if (MEM_ROOM(&r->stack, &r->cap_stack, end + SET_MAX, NULL) != ST_OK) {
            r->m.failed = true;
            break;
        }
        config_set to = {.at = r->stack + end};
        r->m.n_frames = r->frames[d - 1];
        for (size_t k = from; k < end; k++) machine_step(&r->m, &r->stack[k], p->byte, &to);
        r->first[d + 1] = end + to.n;
        r->frames[d] = r->m.n_frames;
        for (int32_t id = p->token == NO_TOKEN ? -1 : (int32_t)p->token; id >= 0 && to.n > 0;
             id = r->v->tokens[id].same)
            set_add(r->mask, id);
        i += to.n > 0 ? 1 : p->size;
    }
    r->m.n_frames = r->frames[0];
}

/* Copies the current configurations to the stack, without those in free text, and without those within a string if
 * `outside`. Returns their number. */
static size_t load(grammar_run *r, bool outside)
{
    const config_set *s = state(r);
    uint32_t unused;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const config *c = &s->at[i];
        if (machine_in_free(&r->m, c, &unused) || (outside && machine_in_string(&r->m, c, &unused))) continue;
        r->stack[n++] = *c;
    }
    return n;
}

static void add_set(grammar_run *r, const uint64_t *set)
{
    for (size_t i = 0; i < r->v->n_words; i++) r->mask[i] |= set[i];
}

/* Adds the whole tokens that fit into the longest string of the current configurations. */
static void add_strings(grammar_run *r)
{
    const config_set *s = state(r);
    uint32_t most = 0, room;
    for (size_t i = 0; i < s->n; i++)
        if (machine_in_string(&r->m, &s->at[i], &room) && room > most) most = room;
    if (most == UNLIMITED) add_set(r, r->v->room + ROOM_SETS * r->v->n_words);
    else if (most > 0) add_set(r, vocab_room(r->v, most));
    for (size_t i = 0; i < r->v->n_longest && most > ROOM_SETS && most < UNLIMITED; i++)
        if (r->v->tokens[r->v->longest[i]].characters <= most) set_add(r->mask, r->v->longest[i]);
}

/* ---- free text ---- */

/* Lists the text tokens that contain the marker. */
static void list_marked(grammar_run *r, const node *p)
{
    r->n_marked = 0;
    r->marked_of = p;
    for (size_t id = 0; id < r->v->vocab && p->free.n; id++) {
        const vocab_token *t = &r->v->tokens[id];
        if (t->n < p->free.n || !memmem(t->bytes, t->n, p->free.marker, p->free.n)) continue;
        if (MEM_ROOM(&r->marked, &r->cap_marked, r->n_marked + 1, NULL) == ST_OK)
            r->marked[r->n_marked++] = (int32_t)id;
        else r->m.failed = true;
    }
}

/* Removes the tokens of a trie that begin with text[0, n) and are not allowed. */
static void check_prefix(grammar_run *r, const trie *t, const char *text, size_t n)
{
    size_t at = 0, end = t->n;
    for (size_t k = 0; k < n; k++) {
        while (at < end && t->nodes[at].byte != (unsigned char)text[k]) at += t->nodes[at].size;
        if (at >= end) return;
        end = at + t->nodes[at].size;
        if (k + 1 < n) at++;
    }
    for (; at < end; at++)
        for (int32_t id = t->nodes[at].token == NO_TOKEN ? -1 : (int32_t)t->nodes[at].token; id >= 0;
             id = r->v->tokens[id].same)
            if (!allows(r, id)) set_remove(r->mask, id);
}

/* Adds the tokens of free text: all except those that complete the marker and continue in a way that is not allowed. */
static void add_free(grammar_run *r, const node *p, uint32_t matched)
{
    add_set(r, r->v->text);
    if (p->free.special) add_set(r, r->v->special);
    else if (p->free.token >= 0) set_add(r->mask, p->free.token);
    if (r->marked_of != p) list_marked(r, p);
    for (size_t i = 0; i < r->n_marked; i++)
        if (!allows(r, r->marked[i])) set_remove(r->mask, r->marked[i]);
    for (uint32_t k = matched; k > 0; k = p->free.match[k]) {
        check_prefix(r, &r->v->whole, p->free.marker + k, p->free.n - k);
        check_prefix(r, &r->v->rest, p->free.marker + k, p->free.n - k);
    }
}

/* ---- masks ---- */

/* Adds the special tokens of the grammar that are allowed. */
static void add_special(grammar_run *r)
{
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const node *p = &r->g->nodes[i];
        if (p->kind != NODE_TOKEN || p->token < 0 || (size_t)p->token >= r->v->vocab) continue;
        if (set_has(r->v->special, p->token) && allows(r, p->token)) set_add(r->mask, p->token);
    }
}

const uint64_t *grammar_run_mask(grammar_run *r)
{
    const config_set *s = state(r);
    memset(r->mask, 0, r->v->n_words * sizeof *r->mask);
    if (MEM_ROOM(&r->stack, &r->cap_stack, 2 * SET_MAX, NULL) != ST_OK) return r->mask;
    for (size_t i = 0; i < s->n; i++) {
        uint32_t matched;
        const node *p = machine_in_free(&r->m, &s->at[i], &matched);
        if (p) add_free(r, p, matched);
    }
    add_strings(r);
    walk(r, &r->v->whole, load(r, true));
    walk(r, &r->v->rest, load(r, false));
    add_special(r);
    if (grammar_run_may_end(r))
        for (size_t i = 0; i < r->v->eos.n; i++) set_add(r->mask, r->v->eos.ids[i]);
    if (r->m.failed) memset(r->mask, 0, r->v->n_words * sizeof *r->mask);
    return r->mask;
}
