/* SPDX-License-Identifier: MIT */
/* Rows in files: which blocks go there when, and which come back. */
#include "config.h"

#include "attention/store_impl.h"

/* Exact rows as blocks. */
static tier_area exact_area(const kv_rows *r, int64_t first)
{
    size_t row = kv_row_bytes(r->type, r->head_dim), block = TIER_PAGE * row;
    return (tier_area){.plane = {{r->k, block, r->cap * row}, {r->v, block, r->cap * row}},
                       .n_planes = 2,
                       .rows = TIER_PAGE,
                       .n_pages = (int64_t)r->cap / TIER_PAGE,
                       .stay = (first + TIER_PAGE - 1) / TIER_PAGE};
}

/* Codes: whole groups of K. */
static tier_area code_area(const kv_rows *r)
{
    const kv_codes *c = &r->codes;
    sized_buf all[N_CODE_BUFS];
    kv_rows work = *r;
    size_t rows = (TIER_PAGE + c->group - 1) / c->group * c->group;
    tier_area a = {.rows = (int64_t)rows, .n_pages = (int64_t)(c->cap / rows)};
    kv_code_bufs(&work, all);
    for (; a.n_planes < N_CODE_BUFS; a.n_planes++) {
        const sized_buf *b = &all[a.n_planes];
        size_t stride = b->bytes / r->n_kv_heads;
        a.plane[a.n_planes] = (tier_plane){*b->b, stride / (c->cap / c->group) * (rows / c->group), stride};
    }
    return a;
}

status disk_add(row_tier *p, kv_rows *r, int layer, const kv_format *f, err *e)
{
    kv_rows bits = *r;
    bits.codes.bits = f->bits;
    bool coded = kv_has_codes(f);
    const tier_area area[TIER_AREAS] = {exact_area(r, coded ? 0 : p->first),
                                        coded ? code_area(&bits) : (tier_area){.n_planes = 0}};
    return p->be->ops->tier->add(p->be, &r->tier, p->files, layer, area, e);
}

/* Blocks [0, end) of a layer's area go there. */
static void write_blocks(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->write(s->be, s->layer[layer].tier, area, end);
}

static void forget(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->forget(s->be, s->layer[layer].tier, area, end);
}

/* Brings back all exact rows of a layer and forgets that they are in the file. */
static void bring_back(kv_store *s, int layer)
{
    kv_rows rows = s->layer[layer];
    int64_t n = s->be->ops->tier->written(rows.tier, TIER_EXACT);
    if (n == 0) return;
    rows.codes.bits = 0; /* slots are then rows */
    s->be->ops->tier->span(s->be, &rows, 0, n * TIER_PAGE);
    forget(s, layer, TIER_EXACT, 0);
}

void disk_forget_all(kv_store *s)
{
    for (int l = 0; l < s->n_layers; l++)
        for (int a = 0; s->layer[l].tier && a < TIER_AREAS; a++) forget(s, l, a, 0);
}

/* Tokens of codes whose both halves are in them, now or, due: at the end of this forward. */
static int64_t coded_tokens(const kv_coded *c, bool due)
{
    int64_t k = c->n_coded[KV_K] + (due ? c->n_due[KV_K] : 0), v = c->n_coded[KV_V] + (due ? c->n_due[KV_V] : 0);
    return k < v ? k : v;
}

static int64_t code_block(const kv_store *s)
{
    int64_t group = kv_code_group(&s->f);
    return (TIER_PAGE + group - 1) / group * group;
}

/* The end of a prompt quantizes rows of which most are in the file. */
void disk_before_codes(kv_store *s, int layer)
{
    if (s->coded && (s->flags & ATTN_PROMPT_END)) bring_back(s, layer);
}

/* In prompts a layer leaves memory when it was attended; codes take the place of exact rows at the end. */
void disk_layer_end(kv_store *s, int layer)
{
    const row_tier *t = s->tier;
    if (s->flags & ATTN_PROMPT) {
        if (!s->coded) write_blocks(s, layer, TIER_EXACT, s->n > t->newest ? (s->n - t->newest) / TIER_PAGE : 0);
        else if (s->flags & ATTN_PROMPT_END)
            write_blocks(s, layer, TIER_CODES, coded_tokens(s->coded, true) / code_block(s));
        else write_blocks(s, layer, TIER_EXACT, s->coded->lowest / TIER_PAGE);
    }
    s->be->ops->tier->trim(s->be, s->layer[layer].tier);
}

/* Decode steps: all layers alike, when enough tokens have left the window. */
void disk_step_end(kv_store *s)
{
    int area = s->coded ? TIER_CODES : TIER_EXACT;
    int64_t rows = s->coded ? code_block(s) : TIER_PAGE,
            left = s->coded ? coded_tokens(s->coded, false) : s->n - s->tier->newest;
    if (s->flags & ATTN_PROMPT) return;
    for (int l = 0; l < s->n_layers; l++) {
        tier_layer *t = s->layer[l].tier;
        if (!t || left / rows * rows < s->be->ops->tier->written(t, area) * rows + s->tier->flush) continue;
        write_blocks(s, l, area, left / rows);
        s->be->ops->tier->trim(s->be, t);
    }
}

/* Rows behind token n are written anew: where the file holds them it forgets them, and what it holds of the block
 * before comes back. */
void disk_rewind(kv_store *s, int64_t n)
{
    for (int l = 0; l < s->n_layers; l++) {
        const kv_rows *r = &s->layer[l];
        if (!r->tier) continue;
        if (s->coded) {
            bring_back(s, l);
            continue;
        }
        s->be->ops->tier->span(s->be, r, n / TIER_PAGE * TIER_PAGE, n);
        forget(s, l, TIER_EXACT, n / TIER_PAGE);
    }
}

/* In a prompt one layer at a time is whole in memory, and what its chunk brings is in all of them. */
void disk_plan(attn_bytes *part, size_t *slow, const row_tier *t, const attn_spec *s, const attn_shape *shape,
               const attn_limits *lim, int n)
{
    const kv_format *f = &s->kv;
    size_t exact = kv_exact_bytes(f, (size_t)shape->n_kv_heads, (size_t)shape->head_dim, 1);
    size_t layer = part->kv / (size_t)n,
           blocks = 2 * ((size_t)lim->n_tokens / TIER_PAGE + 1) * (size_t)shape->n_kv_heads;
    int64_t rows = t->first + t->newest + t->flush + lim->chunk + 4 * TIER_PAGE;
    /* Codes go as soon as there are blocks of them; what is not yet coded stays. */
    if (f->kind != KV_EXACT) rows = 3 * f->residual + 4 * f->group + f->sink + t->flush + lim->chunk;
    size_t stays = (size_t)rows * exact < layer ? (size_t)rows * exact : layer;
    size_t all = part->kv, most = (size_t)n * stays + layer;
    *slow += all;
    part->kv = s->tier.cache < all && most < all - s->tier.cache ? most + s->tier.cache : all;
    part->scratch += (size_t)n * blocks * TIER_NOTE;
}
