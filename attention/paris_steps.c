/* SPDX-License-Identifier: MIT */
/* Regions of ParisKV: sink | indexed | local and update buffer. They follow in closed form (8.3) from the token count
 * and the end of the last prompt, so that no counter can differ between layers (8.7). Every token is encoded when it is
 * appended, since a store may quantize its row before it is indexed: the codes of tokens in the buffer exist but are
 * not scored. Rows, prompts, and steps that attend everything are those of `full`. */
#include "config.h"

#include "attention/paris_steps.h"

/* ---- regions ---- */

static const paris_sizes *sizes_of(const attn_view *v)
{
    const paris_memory *c = v->own;
    return &c->sizes;
}

int64_t paris_covers(const paris_sizes *s)
{
    return max64(s->full_thr, s->sink + s->local + 2 * s->budget);
}

/* First token and count of each. */
typedef struct {
    slot_range sink, index, rest;
} regions;

/* Of a layer, as the query sees them that is token n - 1, after a prompt that ended with prompt_end tokens.
 * Source: doc/methods.md 8.3; tokens before the layer's window are in none (0.2.11). */
static regions regions_of(const attn_view *v, int layer, int64_t prompt_end, int64_t n)
{
    const paris_sizes *s = sizes_of(v);
    int64_t window = v->shape->window[layer], from = window > 0 ? max64(0, n - window) : 0;
    int64_t sink = min64(s->sink, n), n0 = max64(prompt_end, sink + s->local);
    int64_t flushes = n > n0 ? (n - n0 - 1) / s->u : 0;
    int64_t end = sink + max64(0, prompt_end - sink - s->local) + s->u * flushes;
    int64_t index = max64(sink, from), rest = max64(end, from);
    return (regions){
        .sink = {from, max64(0, sink - from)}, .index = {index, max64(0, end - index)}, .rest = {rest, n - rest}};
}

static bool is_sparse(const attn_view *v, const regions *r)
{
    bool short_of = !v->spec->forced && r->sink.n + r->index.n + r->rest.n < paris_covers(sizes_of(v));
    return !short_of && r->index.n > 0;
}

/* Indexed tokens to find beside the other regions. */
static int64_t wanted(const paris_sizes *s, const regions *r)
{
    return min64(s->budget, r->index.n);
}

/* ---- a forward ---- */

static void set_ranges(attn_view *v, int layer, bool prompt, int64_t n)
{
    paris_memory *c = v->own;
    regions now = regions_of(v, layer, c->prompt_end, n), next = regions_of(v, layer, n, n + 1); /* if a prompt ends */
    paris_ranges s = {
        .index = now.index, .next = next.index, .encode = {c->encoded, c->to_encode}, .k = wanted(&c->sizes, &now)};
    /* center: the first prompt gives the mean; one that indexes nothing that of all its keys */
    if (prompt) s.mean = next.index.n > 0 ? next.index : (slot_range){0, n};
    c->search.ranges[layer] = s;
    c->search.finds[layer] = !prompt && is_sparse(v, &now);
}

void paris_begin(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    int64_t n = v->length + (int64_t)p->n_tok;
    bool prompt = p->flags & ATTN_PROMPT, open = prompt && !(p->flags & ATTN_PROMPT_END);
    /* Before the mean is known nothing can be encoded: the whole prompt is at its end, when all of its rows
     * are still exact. */
    c->to_encode = c->search.o.center && c->encoded == 0 && open ? 0 : n - c->encoded;
    for (int l = 0; l < v->shape->n_layers; l++) {
        c->search.finds[l] = false;
        if (v->layers[l]) set_ranges(v, l, prompt, n);
    }
}

void paris_append(const attn_turn *t, size_t n, int layer)
{
    full_append(t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        const kv_rows *rows = kv_store_rows(t->v->store, layer);
        if (c->to_encode == 0) continue;
        kv_need(t->v->be, rows, c->encoded, c->encoded + c->to_encode);
        paris_encode(t->v, &c->search, layer, rows, c->encoded == 0);
    }
}

static void select_sparse(const attn_turn *t, int layer, const regions *r)
{
    paris_memory *c = t->v->own;
    attn_sel *sel = t->sel;
    const kv_rows *rows = sel->seg[0].rows;
    sel->n_seg = 0;
    if (c->sizes.sink > 0)
        sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->sink.first, .n_max = r->sink.n};
    sel->seg[sel->n_seg++] = paris_find(t->v, &c->search, layer, rows, t->q);
    sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->rest.first, .n_max = r->rest.n};
    sel->head = r->index.first;
    sel->tail = r->rest.first;
    sel->attended = r->sink.n + r->rest.n + wanted(&c->sizes, r);
}

void paris_select(const attn_turn *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        regions r = regions_of(t->v, layer, c->prompt_end, t->p.first + (int64_t)t->p.n_tok);
        if (!(t->p.flags & ATTN_PROMPT) && is_sparse(t->v, &r)) select_sparse(t, layer, &r);
    }
}

/* The counts of a prompt's tokens are taken with the prompt, not with the first step after it. */
void paris_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const paris_memory *c = v->own;
    if (p->flags & ATTN_PROMPT_END) paris_count(v, &c->search, layer);
}

void paris_end(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    c->encoded += c->to_encode;
    int64_t end = v->length + (int64_t)p->n_tok;
    if (p->flags & ATTN_PROMPT_END) c->prompt_end = end;
    for (int64_t n = v->length + 1; n <= end; n++) c->ends[n] = p->n_prompt > 0 ? n : c->prompt_end;
}

void paris_forget(attn_view *v, int64_t n)
{
    paris_memory *c = v->own;
    c->prompt_end = c->ends[n];
    c->encoded = min64(c->encoded, n);
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l]) continue;
        c->search.ranges[l].next = regions_of(v, l, c->prompt_end, n).index;
        paris_count(v, &c->search, l);
    }
}
