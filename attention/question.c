/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/question.h"

#include <stddef.h>

enum { BEST = 4 }; /* tokens of the question that z is made of */

/* Tokens of a question that are kept, the last ones: at most a window. */
static size_t cap_of(const block_sizes *n)
{
    return n->rows;
}

void question_declare(attn_decl *d, size_t at, int64_t by)
{
    if (by == 0) return;
    const block_sizes n = blocks_sizes(d->spec, d->shape, d->lim);
    size_t f = sizeof(float);
    decl_layers(d, MEM_INDEX, at + offsetof(block_question, queries), "question's queries", cap_of(&n) * n.dim * f);
    decl_layers(d, MEM_INDEX, at + offsetof(block_question, z), "question's probe", n.dim * f);
    decl_bytes(d, MEM_SCRATCH, at + offsetof(block_question, score), "question: scratch", n.blocks * f);
}

void question_reset(block_question *q, int64_t by)
{
    q->weight = by;
    q->made = INT64_MAX;
}

void question_begin(block_question *q, const attn_part *p)
{
    if (p->prompt_done == 0) q->made = INT64_MAX;
}

/* What is kept of the question in the prompt at hand. */
static attn_span span_of(const attn_view *v, const attn_part *p)
{
    const block_memory *b = v->own;
    int64_t start = p->first - p->prompt_done, end = min64(p->hint.question.end, start + p->n_prompt);
    return (attn_span){max64(max64(p->hint.question.first, start), end - (int64_t)cap_of(&b->n)), end};
}

static kv_rows rows_of(const block_question *q, const attn_view *v, int layer)
{
    const block_memory *b = v->own;
    return (kv_rows){.k = q->queries[layer],
                     .type = DT_F32,
                     .n_kv_heads = (size_t)v->shape->n_heads,
                     .head_dim = (size_t)v->shape->head_dim,
                     .cap = cap_of(&b->n)};
}

static void keep(const block_question *q, const attn_view *v, const attn_part *p, int layer, attn_span span)
{
    const block_memory *b = v->own;
    const kv_rows rows = rows_of(q, v, layer);
    int64_t from = max64(span.first, p->first), end = min64(span.end, p->first + (int64_t)p->n_tok);
    kv_write_job job = {.rows = &rows, .first = from - span.first, .n_lists = 1, .n = (size_t)(end - from)};
    if (end <= from) return;
    job.k = buf_at(b->queries, (size_t)(from - p->first) * b->n.dim * sizeof(float));
    v->be->ops->kv_write(v->be, &job, 1);
}

/* A block of the question's tokens, whose representative is z: queries stand for keys. */
static void make(const block_question *q, const attn_view *v, const attn_part *p, int layer, attn_span span)
{
    const block_memory *b = v->own;
    kv_rows rows = rows_of(q, v, layer);
    int64_t from = max64(span.first, p->first - (int64_t)b->n.ring), n = span.end - from;
    band_mass m = {.mass = b->mass[layer], .n_heads = rows.n_kv_heads, .ring = b->n.ring, .read = attn_index_read(v)};
    block_index x = {.rep = q->z[layer],
                     .type = DT_F32,
                     .n_heads = rows.n_kv_heads,
                     .n_kv_heads = rows.n_kv_heads,
                     .head_dim = rows.head_dim,
                     .cap = 1,
                     .size = (size_t)n,
                     .reps = (size_t)min64(n, BEST)};
    rows.k = buf_at(rows.k, (size_t)(from - span.first) * rows.head_dim * sizeof(float));
    v->be->ops->block->form(v->be, &x, &rows, &m, 0, 1, from);
}

void question_window(block_question *q, const attn_view *v, const attn_part *p, int layer)
{
    const block_memory *b = v->own;
    attn_span span = span_of(v, p);
    if (q->weight == 0 || !(p->flags & ATTN_PROMPT) || span.end <= span.first) return;
    if (p->first < max64(span.end, b->rule.local + 1)) {
        keep(q, v, p, layer, span);
        return;
    }
    if (q->made == INT64_MAX) q->made = p->first;
    if (q->made == p->first) make(q, v, p, layer, span);
}

void question_weigh(const block_question *q, const attn_view *v, const attn_part *p, int layer, item_range n,
                    size_t parts)
{
    const block_memory *b = v->own;
    const block_ops *o = v->be->ops->block;
    const block_index x = blocks_index(v, layer);
    if (q->weight == 0 || !(p->flags & ATTN_PROMPT) || p->first < q->made) return;
    o->score(v->be, q->score, q->z[layer], &x, parts, n, attn_index_read(v));
    o->weigh(v->be, b->score, q->score, n, (float)q->weight);
}
