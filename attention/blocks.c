/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/blocks.h"

#include <stddef.h>

#include "attention/gathered.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"

static const block_kind *kind_of(const attn_spec *s)
{
    return s->method->kind;
}

/* ---- rule ---- */

int64_t blocks_budget(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (s->budget - v[BLOCKS_SINK] - v[BLOCKS_LOCAL]) / v[BLOCKS_BLOCK];
}

static block_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (block_rule){.sink = v[BLOCKS_SINK],
                        .local = v[BLOCKS_LOCAL],
                        .window = v[BLOCKS_WINDOW],
                        .block = v[BLOCKS_BLOCK],
                        .reps = v[BLOCKS_REPS],
                        .most = (kind_of(s)->most ? kind_of(s)->most : blocks_budget)(s)};
}

status blocks_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    TRY(attn_check_ropes(s, shape, e));
    const int64_t *v = s->value;
    int64_t least = v[BLOCKS_SINK] + v[BLOCKS_LOCAL] + v[BLOCKS_BLOCK];
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + local + block = %lld", s->text,
                       (long long)s->budget, (long long)least);
    if (v[BLOCKS_REPS] > v[BLOCKS_BLOCK])
        return err_set(e, ST_USAGE, "%s: reps=%lld, expected at most block = %lld", s->text, (long long)v[BLOCKS_REPS],
                       (long long)v[BLOCKS_BLOCK]);
    return ST_OK;
}

void blocks_regions(const attn_spec *s, attn_regions *r)
{
    const int64_t *v = s->value;
    *r =
        (attn_regions){.first = v[BLOCKS_SINK], .newest = v[BLOCKS_LOCAL] + v[BLOCKS_BLOCK], .covers = v[BLOCKS_LOCAL]};
}

/* ---- counts after n tokens ---- */

static int64_t sinks_after(const block_rule *r, int64_t n)
{
    return min64(max64(n - r->local, 0), r->sink);
}

int64_t blocks_after(const block_rule *r, int64_t n)
{
    return max64(n - r->local - r->sink, 0) / r->block;
}

static int64_t band_from(const block_rule *r, int64_t query)
{
    return max64(query - r->local + 1, 0);
}

/* ---- memory ---- */

block_sizes blocks_sizes(const attn_spec *s, const attn_shape *shape, const attn_limits *lim)
{
    block_rule r = rule_of(s);
    int64_t all = lim->n_tokens, chunk = min64(lim->chunk, all), rows = min64(r.window, chunk);
    int64_t blocks = blocks_after(&r, all), most = min64(r.most, blocks), back = min64(r.local, all);
    return (block_sizes){
        .most = most,
        .back = back,
        .blocks = (size_t)blocks,
        .rows = (size_t)rows,
        .band = (size_t)min64(r.local + rows, all),
        .table = (size_t)min64(r.local + chunk, all),
        .far = (size_t)min64(r.sink + (most + 1) * r.block + rows, all),
        .form = blocks ? (size_t)((rows / r.block + 1) * r.block) : 0,
        .at = (size_t)(back + chunk),
        .ring = (size_t)min64(r.local + r.block + rows, all),
        .dim = (size_t)shape->n_heads * (size_t)shape->head_dim,
    };
}

#define AT(member) offsetof(block_memory, member)

static void blocks_declare(attn_decl *d)
{
    const block_rule r = rule_of(d->spec);
    const block_sizes n = blocks_sizes(d->spec, d->shape, d->lim);
    size_t head = (size_t)d->shape->head_dim, heads = (size_t)d->shape->n_heads, f = sizeof(float);
    size_t kv = (size_t)d->shape->n_kv_heads * head * f, pos = sizeof(int64_t);
    decl_regions(d, MEM_INDEX, AT(rep), "representatives", 1, n.dim * dtype_size(kv_number_type(&d->spec->kv)),
                 (int64_t)n.blocks, blocks_after(&r, d->n));
    decl_layers(d, MEM_INDEX, AT(mass), "masses", heads * n.ring * f);
    const struct {
        size_t at, bytes;
    } scratch[] = {
        {AT(at), n.at * pos},
        {AT(table), n.table * 2 * attn_pairs(d->shape) * f},
        {AT(far_pos), n.rows * pos},
        {AT(far_table), n.rows * 2 * attn_pairs(d->shape) * f},
        {AT(sums), heads * n.band * f},
        {AT(list), 2 * pos + n.far * sizeof(int32_t)},
        {AT(band.k), n.band * kv},
        {AT(band.v), n.band * kv},
        {AT(keys.k), n.form * kv},
        {AT(queries), n.rows * n.dim * f},
        {AT(chosen), 2 * pos + (size_t)n.most * sizeof(int32_t)},
        {AT(weights), n.rows * f},
        {AT(probe), n.dim * f},
        {AT(score), n.blocks * f},
    };
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        decl_bytes(d, MEM_SCRATCH, scratch[i].at, "memory blocks: scratch", scratch[i].bytes);
    decl_bytes(d, MEM_HOST, AT(pos), "memory blocks: scratch", n.at * pos);
    d->window = r.window;
    d->choose_lists = 1;
    d->choose_items = (int64_t)n.blocks;
}

void blocks_reset(attn_view *v)
{
    block_memory *b = v->own;
    b->rule = rule_of(v->spec);
    b->n = blocks_sizes(v->spec, v->shape, v->lim);
    b->observed = false;
    b->table_from = b->table_to = 0;
    b->band.type = b->keys.type = DT_F32;
    b->band.n_kv_heads = b->keys.n_kv_heads = (size_t)v->shape->n_kv_heads;
    b->band.head_dim = b->keys.head_dim = (size_t)v->shape->head_dim;
    b->band.cap = b->n.band;
    b->keys.cap = b->n.form;
    for (size_t i = 0; i < b->n.rows; i++) b->pos[i] = b->rule.local - 1;
    v->be->ops->upload(v->be, b->far_pos, b->pos, b->n.rows * sizeof *b->pos);
}

block_index blocks_index(const attn_view *v, int layer)
{
    const block_memory *b = v->own;
    return (block_index){.rep = b->rep[layer],
                         .type = kv_number_type(&v->spec->kv),
                         .n_heads = (size_t)v->shape->n_heads,
                         .n_kv_heads = (size_t)v->shape->n_kv_heads,
                         .head_dim = (size_t)v->shape->head_dim,
                         .cap = b->n.blocks,
                         .size = (size_t)b->rule.block,
                         .reps = (size_t)b->rule.reps};
}

static band_mass mass_of(const attn_view *v, int layer)
{
    const block_memory *b = v->own;
    return (band_mass){
        .mass = b->mass[layer], .n_heads = (size_t)v->shape->n_heads, .ring = b->n.ring, .read = attn_index_read(v)};
}

/* ---- the counts of a window ---- */

/* Returns the first position that a query of a layer sees. */
static int64_t seen_from(const attn_view *v, int layer, int64_t query)
{
    return query + 1 - attn_visible(v->shape, layer, query + 1);
}

item_range blocks_candidates(const attn_view *v, int layer, int64_t query)
{
    const block_rule *r = &((const block_memory *)v->own)->rule;
    int64_t n = blocks_after(r, query), hidden = max64(seen_from(v, layer, query) - sinks_after(r, query), 0);
    return (item_range){n, min64(hidden / r->block, n), n};
}

/* Reads no scores if all candidates are taken. */
void blocks_choose(const attn_view *v, item_range items, int64_t k, buf budget)
{
    const block_memory *b = v->own;
    attn_choose(v,
                &(choose_job){.score = b->score,
                              .items = items,
                              .head = budget.p || items.hi - items.lo > k ? 0 : items.n_slots,
                              .tail = items.n_slots,
                              .first = items.lo,
                              .k = min64(k, items.n_slots),
                              .budget = budget,
                              .n_lists = 1,
                              .stride = b->n.blocks,
                              .granule = 1,
                              .most = items.n_slots,
                              .idx_stride = b->n.most,
                              .idx = buf_at(b->chosen, 2 * sizeof(int64_t)),
                              .range = b->chosen},
                1);
}

/* Returns the entry of `at` for a position. */
static size_t entry_of(const attn_view *v, int64_t pos)
{
    const block_memory *b = v->own;
    return (size_t)(pos - (v->length - b->n.back));
}

/* Computes the rotation table for the band's positions [first, end). A decode step only adds its own row, unless its
 * frequencies differ from those of the step before. */
static void make_band_table(attn_view *v, const attn_part *p, int64_t first, int64_t end)
{
    block_memory *b = v->own;
    size_t row = 2 * attn_pairs(v->shape) * sizeof(float);
    bool held = !(p->flags & (ATTN_PROMPT | ATTN_FREQ_MOVES)) && b->table_from <= first && first < b->table_to &&
                end - b->table_from <= (int64_t)b->n.table;
    if (!held) b->table_from = b->table_to = first;
    if (b->table_to < end)
        v->be->ops->rope_table(v->be, buf_at(b->table, (size_t)(b->table_to - b->table_from) * row),
                               buf_at(b->at, entry_of(v, b->table_to) * sizeof(int64_t)), (size_t)(end - b->table_to),
                               p->freq, attn_pairs(v->shape), p->mscale);
    b->table_to = max64(b->table_to, end);
}

static buf rope_at(const attn_view *v, int64_t pos)
{
    const block_memory *b = v->own;
    return buf_at(b->table, (size_t)(pos - b->table_from) * 2 * attn_pairs(v->shape) * sizeof(float));
}

/* Uploads positions and computes the tables. The far table rotates queries at the fixed distance. Raw keys are not
 * scaled by mscale, so the queries are scaled by its square. */
void blocks_begin(attn_view *v, const attn_part *p)
{
    block_memory *b = v->own;
    const backend_ops *o = v->be->ops;
    int64_t end = v->length + (int64_t)p->n_tok, first = band_from(&b->rule, v->length);
    size_t half = attn_pairs(v->shape), rows = p->n_tok < b->n.rows ? p->n_tok : b->n.rows;
    size_t n = entry_of(v, end);
    for (size_t i = 0; i < n; i++) b->pos[i] = end - (int64_t)(n - i);
    o->upload(v->be, b->at, b->pos, n * sizeof *b->pos);
    make_band_table(v, p, first, end);
    o->rope_table(v->be, b->far_table, b->far_pos, rows, p->freq, half, p->mscale * p->mscale);
    v->observes = true;
}

/* ---- segments ---- */

/* Returns the band of a decode step. Its query sees all rows of it. */
static attn_seg band_of_step(const attn_view *v, const attn_part *p, int layer)
{
    const block_memory *b = v->own;
    int64_t first = band_from(&b->rule, p->first);
    return (attn_seg){.rows = kv_store_rows(v->store, layer),
                      .n_lists = 1,
                      .first = first,
                      .n_max = p->first + 1 - first,
                      .rope = rope_at(v, first),
                      .scores = b->sums,
                      .score_stride = b->n.band};
}

/* Returns the band of a prompt window, a scratch copy with rotated keys. */
static attn_seg band_of_window(const attn_view *v, const attn_part *p, int layer)
{
    const block_memory *b = v->own;
    const backend_ops *o = v->be->ops;
    const kv_rows *rows = kv_store_rows(v->store, layer);
    int64_t first = band_from(&b->rule, p->first), n = p->first + (int64_t)p->n_tok - first;
    size_t d = b->band.head_dim;
    kv_need(v->be, rows, first, first + n);
    o->codes->fetch(v->be, &b->band, rows, first, n, v->read);
    for (size_t h = 0; h < b->band.n_kv_heads; h++) {
        buf k = buf_at(b->band.k, h * b->band.cap * d * sizeof(float));
        o->rope(v->be, k, k, rope_at(v, first), (size_t)n, 1, d, attn_pairs(v->shape));
    }
    return (attn_seg){.rows = &b->band,
                      .copied = true,
                      .n_lists = 1,
                      .n_max = n,
                      .origin = first,
                      .masked = true,
                      .kpos = first,
                      .band = b->rule.local};
}

/* Returns the band of a step. Its keys are rotated as they are read, or in a copy if the model rotates only a part of
 * them. */
static attn_seg band_of(const attn_view *v, const attn_part *p, int layer)
{
    const block_memory *b = v->own;
    const bool prompt = p->flags & ATTN_PROMPT;
    if (!prompt && !attn_rotates_part(v->shape)) return band_of_step(v, p, layer);
    attn_seg seg = band_of_window(v, p, layer);
    if (prompt) return seg;
    seg.masked = false;
    seg.scores = b->sums;
    seg.score_stride = b->n.band;
    return seg;
}

/* Returns the segment of sinks, selected blocks and pending tokens. Tokens that leave the band within a prompt window
 * are far for some of its queries only: a query sees those at least `local` tokens before it. */
static attn_seg far_segment(const attn_view *v, const attn_part *p, int layer, bool chosen)
{
    const block_memory *b = v->own;
    const block_rule *r = &b->rule;
    bool prompt = p->flags & ATTN_PROMPT;
    int64_t window = v->shape->window[layer], end = p->first + (int64_t)p->n_tok;
    int64_t sinks = sinks_after(r, p->first), pending = sinks + blocks_after(r, p->first) * r->block;
    far_list list = {.from = seen_from(v, layer, p->first),
                     .sinks = sinks,
                     .pending = pending,
                     .end = max64(end - r->local, pending),
                     .size = r->block,
                     .block = buf_at(b->chosen, 2 * sizeof(int64_t)),
                     .chosen = chosen ? b->chosen : (buf){NULL},
                     .idx = buf_at(b->list, 2 * sizeof(int64_t)),
                     .range = b->list,
                     .count = prompt ? (buf){NULL} : buf_at(v->read, READ_ATTENDED * sizeof(uint64_t))};
    v->be->ops->block->list(v->be, &list);
    return (attn_seg){.rows = kv_store_rows(v->store, layer),
                      .range = list.range,
                      .idx = list.idx,
                      .n_lists = 1,
                      .idx_stride = b->n.far,
                      .n_max = sinks + (chosen ? b->n.most * r->block : 0) + list.end - pending,
                      .at = prompt ? list.idx : (buf){NULL},
                      .band = prompt && window > 0 ? window - r->local : 0,
                      .table = b->far_table,
                      .qpos = prompt ? buf_at(b->at, entry_of(v, p->first - r->local) * sizeof(int64_t)) : (buf){NULL}};
}

static void select_one(const attn_task *t, int layer)
{
    attn_view *v = t->v;
    const attn_part *p = &t->p;
    block_memory *b = v->own;
    const attn_shape *sh = v->shape;
    attn_sel *sel = t->sel;
    int64_t end = p->first + (int64_t)p->n_tok, n = blocks_after(&b->rule, p->first);
    bool prompt = p->flags & ATTN_PROMPT;
    if (prompt || n > 0)
        v->be->ops->rope(v->be, b->queries, t->q_raw, b->far_table, p->n_tok, (size_t)sh->n_heads, (size_t)sh->head_dim,
                         attn_pairs(sh));
    kind_of(v->spec)->choose(v, p, layer, n);
    sel->n_seg = 0;
    if (end > b->rule.local) sel->seg[sel->n_seg++] = far_segment(v, p, layer, n > 0);
    sel->seg[sel->n_seg++] = band_of(v, p, layer);
    sel->head = b->rule.sink;
    sel->tail = b->rule.sink + b->rule.block * n;
    sel->attended = min64(end, b->rule.local); /* ops count far tokens */
}

static void blocks_select(const attn_task *t, size_t n, int layer)
{
    for (size_t i = 0; i < n; i++) select_one(&t[i], layer);
}

/* ---- forming blocks ---- */

/* Forms n blocks from `block` on. m NULL: their tokens were never attended. */
static void form(const attn_view *v, int layer, const band_mass *m, int64_t block, int64_t n)
{
    const block_memory *b = v->own;
    const backend_ops *o = v->be->ops;
    const kv_rows *from = kv_store_rows(v->store, layer);
    int64_t pos = b->rule.sink + block * b->rule.block, rows = n * b->rule.block;
    if (b->n.blocks == 0) return;
    const block_index x = blocks_index(v, layer);
    kv_need(v->be, from, pos, pos + rows);
    o->codes->fetch(v->be, &b->keys, from, pos, rows, v->read);
    o->block->form(v->be, &x, &b->keys, m, block, n, pos);
}

/* Adds the attention that band rows received, by the lse of the joint softmax, then forms the blocks that are full. */
static void blocks_observe(attn_view *v, const attn_part *p, int layer, buf q, buf lse)
{
    block_memory *b = v->own;
    const backend_ops *o = v->be->ops;
    band_mass m = mass_of(v, layer);
    bool prompt = p->flags & ATTN_PROMPT;
    int64_t end = p->first + (int64_t)p->n_tok, first = band_from(&b->rule, p->first);
    int64_t blocks = blocks_after(&b->rule, p->first);
    attn_job job = {.q = q,
                    .lse = lse,
                    .n_tok = p->n_tok,
                    .n_heads = m.n_heads,
                    .rows = b->band,
                    .n_lists = 1,
                    .n_max = end - first,
                    .qpos = p->pos,
                    .masked = prompt,
                    .kpos = first,
                    .band = b->rule.local,
                    .scale = v->shape->scale,
                    .scores = prompt ? (buf){NULL} : b->sums,
                    .score_stride = b->n.band};
    o->evict->colsum(v->be, &job, m.n_heads, COMBINE_SUM, false, b->sums, b->n.band);
    o->block->fold(v->be, &m, b->sums, b->n.band, first, end - first, p->first);
    form(v, layer, &m, blocks, blocks_after(&b->rule, end) - blocks);
    b->observed = true;
}

/* Forms blocks of rows that were stored without attention (synthetic contexts). No token has any mass. */
static void form_unattended(const attn_view *v, int layer, int64_t first, int64_t end)
{
    const block_memory *b = v->own;
    band_mass m = mass_of(v, layer);
    int64_t ring = max64(end - (int64_t)b->n.ring, 0), most = (int64_t)b->n.form / b->rule.block;
    int64_t blocks = blocks_after(&b->rule, end);
    v->be->ops->block->fold(v->be, &m, (buf){NULL}, 0, ring, end - ring, ring);
    for (int64_t from = blocks_after(&b->rule, first); from < blocks; from += most)
        form(v, layer, NULL, from, min64(most, blocks - from));
}

static void blocks_layer_end(attn_view *v, const attn_part *p, int layer)
{
    block_memory *b = v->own;
    if (!b->observed) form_unattended(v, layer, v->length, v->length + (int64_t)p->n_tok);
    b->observed = false;
}

/* Fails: updates of masses and statistics by queries cannot be reverted. */
static const char *blocks_rewind(attn_view *v, int64_t n)
{
    return n == v->length ? NULL : "masses and statistics include later queries";
}

/* Attention is full while everything fits into the band, but masses and statistics need the queries of every window. A
 * sequence that shares a prompt does not receive them. */
static bool blocks_exact_prompt(const attn_view *v, int64_t n)
{
    (void)v;
    (void)n;
    return false;
}

const attn_family attn_blocks = {
    .size = sizeof(block_memory),
    .uses = USES(codes) | USES(evict) | USES(select) | USES(block),
    .retrieves = true,
    .windows = true,
    .hooks = {.declare = blocks_declare,
              .reset = blocks_reset,
              .begin = blocks_begin,
              .append = gathered_append,
              .select = blocks_select,
              .observe = blocks_observe,
              .layer_end = blocks_layer_end,
              .rewind = blocks_rewind,
              .exact_prompt = blocks_exact_prompt},
};
