/* SPDX-License-Identifier: MIT */
/* Tier of rows in files. */
#include "config.h"

#include "attention/store_impl.h"

/* Returns the area of float or block rows, in pages. */
static tier_area row_area(const kv_rows *r, int64_t first)
{
    size_t row = kv_row_bytes(r->type, r->head_dim), block = TIER_PAGE * row;
    return (tier_area){.plane = {{r->k, block, r->cap * row}, {r->v, block, r->cap * row}},
                       .n_planes = 2,
                       .rows = TIER_PAGE,
                       .n_pages = (int64_t)r->cap / TIER_PAGE,
                       .stay = (first + TIER_PAGE - 1) / TIER_PAGE};
}

/* Returns the area of quantized rows; a page has whole groups of K. */
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

/* Alignment of heads to memory pages, so that each block can be released. */
enum { DISK_ALIGN = 64 };

static status disk_open(row_tier *t, err *e)
{
    const kv_tier *o = &t->spec->tier;
    const tier_options options = {kv_tier_dir(o), o->cache / (size_t)t->n, (size_t)t->shape->n_kv_heads};
    return t->be->ops->tier->open(t->be, &t->files, &options, e);
}

static void disk_close(row_tier *t)
{
    if (t->files) t->be->ops->tier->close(t->be, t->files);
}

static status disk_add(row_tier *t, kv_rows *r, int layer, err *e)
{
    const kv_format *f = &t->spec->kv;
    kv_rows bits = *r;
    bits.codes.bits = f->bits;
    bool coded = kv_has_codes(f);
    const tier_area area[TIER_AREAS] = {row_area(r, coded ? 0 : t->first),
                                        coded ? code_area(&bits) : (tier_area){.n_planes = 0}};
    return t->be->ops->tier->add(t->be, &r->tier, t->files, layer, area, e);
}

/* Writes the blocks [0, end) of a layer's area. */
static void write_blocks(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->write(s->be, s->layer[layer].tier, area, end);
}

/* Drops the blocks from `end` on of a layer's area. */
static void forget(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->forget(s->be, s->layer[layer].tier, area, end);
}

/* Reads all float rows of a layer into memory and drops them from the file. */
static void bring_back(kv_store *s, int layer)
{
    kv_rows rows = s->layer[layer];
    int64_t n = s->be->ops->tier->written(rows.tier, TIER_EXACT);
    if (n == 0) return;
    rows.codes.bits = 0; /* addresses rows by number */
    s->be->ops->tier->span(s->be, &rows, 0, n * TIER_PAGE);
    forget(s, layer, TIER_EXACT, 0);
}

static void disk_reset(kv_store *s)
{
    for (int l = 0; l < s->n_layers; l++)
        for (int a = 0; s->layer[l].tier && a < TIER_AREAS; a++) forget(s, l, a, 0);
}

/* Returns the number of tokens with both halves quantized, now or (due) at the end of this forward. */
static int64_t coded_tokens(const kv_quantized *c, bool due)
{
    int64_t k = c->n_coded[KV_K] + (due ? c->n_due[KV_K] : 0), v = c->n_coded[KV_V] + (due ? c->n_due[KV_V] : 0);
    return k < v ? k : v;
}

static int64_t code_block(const kv_store *s)
{
    int64_t group = kv_code_group(&s->f);
    return (TIER_PAGE + group - 1) / group * group;
}

/* Reads the float rows that the end of a prompt quantizes; most are in the file. */
static void disk_before_codes(kv_store *s, int layer)
{
    if (s->coded && (s->flags & ATTN_PROMPT_END)) bring_back(s, layer);
}

/* Prompts: writes a layer's blocks after its attention. Quantized stores write float rows, and at the end of the prompt
 * quantized rows instead. */
static void disk_layer_end(kv_store *s, int layer)
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

/* Decode steps: writes blocks of all layers once enough tokens have left the window. */
static void disk_step_end(kv_store *s)
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

/* Drops the blocks from token n on from the file and reads the remaining rows of the first of them into memory. */
static void disk_rewind(kv_store *s, int64_t n)
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

/* Plans memory for prompts: one whole layer, and in all layers the rows that stay and those of a chunk. */
static void disk_plan(const row_tier *t, attn_bytes *part, size_t *slow)
{
    const kv_format *f = &t->spec->kv;
    const size_t n = (size_t)t->n, heads = (size_t)t->shape->n_kv_heads, cache = t->spec->tier.cache;
    size_t row = kv_plain_bytes(f, heads, (size_t)t->shape->head_dim, 1), all = part->kv;
    size_t layer = all / n, blocks = 2 * ((size_t)t->lim->n_tokens / TIER_PAGE + 1) * heads;
    int64_t rows = t->first + t->newest + t->flush + t->lim->chunk + 4 * TIER_PAGE;
    /* Full blocks of quantized rows are written at once; unquantized tokens stay in memory. */
    if (kv_has_codes(f)) rows = 3 * f->residual + 4 * f->group + f->sink + t->flush + t->lim->chunk;
    size_t stays = (size_t)rows * row < layer ? (size_t)rows * row : layer, most = n * stays + layer;
    *slow += all;
    part->kv = cache < all && most < all - cache ? most + cache : all;
    part->scratch += n * blocks * TIER_NOTE;
}

const row_tier_kind row_tier_disk = {
    .align = DISK_ALIGN,
    .open = disk_open,
    .close = disk_close,
    .plan = disk_plan,
    .add = disk_add,
    .before_codes = disk_before_codes,
    .layer_end = disk_layer_end,
    .step_end = disk_step_end,
    .rewind = disk_rewind,
    .reset = disk_reset,
};
