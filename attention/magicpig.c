/* SPDX-License-Identifier: MIT */
/* MagicPIG: samples tokens by hashes; tokens at a smaller angle to the query are more likely. Each query head has its
 * own sample, and logits are corrected by the sampling probabilities. doc/methods.md section 20. */
#include "config.h"

#include <stddef.h>

#include "attention/method.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_lsh.h"

enum { P_BITS, P_TABLES, P_SINK, P_LOCAL, P_SEED };

static const attn_param params[] = {
    [P_BITS] = {"K", NULL, "bits per hash", 10, 1, LSH_BITS_MAX},
    [P_TABLES] = {"L", NULL, "hash tables; tokens in the query's bucket of at least two tables are attended", 150, 2,
                  4096},
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 4, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "last tokens of the prompt, always attended, like all later tokens", 64, 0, 1 << 20},
    [P_SEED] = {"seed", NULL, "seed of the random planes", 42, 0, (int64_t)1 << 40},
    {.key = NULL},
};

typedef struct {
    buf plane, *mean, *norm, *start, *entry; /* buffers of lsh_index; lists are by layer */
    buf code;                                /* hashes of the current KV head */
    buf dots, hits, idx, bias, lists;
    int64_t end; /* end of the hashed tokens; 0: none */
    bool hashes; /* this forward hashes [sink, end) */
    bool *chooses;
} pig_memory;

/* ---- memory ---- */

#define AT(member) offsetof(pig_memory, member)

static void pig_declare(attn_decl *d)
{
    size_t heads = (size_t)d->shape->n_heads, kv = (size_t)d->shape->n_kv_heads;
    size_t row = (size_t)d->shape->head_dim * sizeof(float), i32 = sizeof(int32_t);
    const int64_t bits = d->spec->value[P_BITS], tables = d->spec->value[P_TABLES], n = d->lim->n_tokens;
    size_t lists = kv * (size_t)tables, borders = ((size_t)1 << bits) + 1;
    decl_layers(d, MEM_INDEX, AT(mean), "mean keys", kv * row);
    decl_regions(d, MEM_INDEX, AT(norm), "norms of keys", kv, sizeof(float), n, d->n);
    decl_layers(d, MEM_STATE, AT(start), "hash buckets", lists * borders * i32);
    decl_regions(d, MEM_STATE, AT(entry), "hash tables", lists, i32, n, d->n);
    decl_scratch(d, AT(plane), "hash planes", row, tables * bits);
    decl_scratch(d, AT(code), "hashes", (size_t)tables * sizeof(uint16_t), n);
    decl_scratch(d, AT(dots), "hashes", (size_t)(tables * bits) * sizeof(float), (int64_t)heads);
    decl_scratch(d, AT(hits), "hits", heads, (int64_t)lsh_hits((size_t)n));
    decl_scratch(d, AT(idx), "samples", heads * i32, n);
    decl_scratch(d, AT(bias), "samples", heads * sizeof(float), n);
    decl_scratch(d, AT(lists), "samples", heads * 2 * sizeof(int64_t), d->shape->n_layers);
    decl_bytes(d, MEM_HOST, AT(chooses), "samples", (size_t)d->shape->n_layers * sizeof(bool));
}

/* Returns an approximate N(0, 1) sample without libm: the sum of twelve uniform 16-bit numbers minus 6. Each output of
 * the generator gives four of them, lowest bits first. Source: methods.md 20.3. */
static float normal16(rng *r)
{
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t x = rng_next(r);
        for (int shift = 0; shift < 64; shift += 16) sum += (uint32_t)(x >> shift & 0xffff);
    }
    return (float)sum / 65536 - 6;
}

/* Computes the planes and clears the tables. */
static void pig_reset(attn_view *v)
{
    pig_memory *c = v->own;
    size_t dim = (size_t)v->shape->head_dim, row = dim * sizeof(float);
    float plane[PARIS_DIM_MAX];
    rng r = {(uint64_t)attn_get(v, P_SEED)};
    for (size_t p = 0; p < (size_t)(attn_get(v, P_BITS) * attn_get(v, P_TABLES)); p++) {
        for (size_t i = 0; i < dim; i++) plane[i] = normal16(&r);
        v->be->ops->upload(v->be, buf_at(c->plane, p * row), plane, row);
    }
    c->end = 0;
    c->hashes = false;
}

static lsh_index index_of(const attn_view *v, int layer)
{
    const pig_memory *c = v->own;
    return (lsh_index){.plane = c->plane,
                       .mean = c->mean[layer],
                       .norm = c->norm[layer],
                       .start = c->start[layer],
                       .entry = c->entry[layer],
                       .n_kv_heads = (size_t)v->shape->n_kv_heads,
                       .head_dim = (size_t)v->shape->head_dim,
                       .cap = (size_t)v->lim->n_tokens,
                       .bits = (size_t)attn_get(v, P_BITS),
                       .tables = (size_t)attn_get(v, P_TABLES)};
}

/* ---- a forward ---- */

/* Builds the tables of a layer for the tokens [first, end). */
static void hash_tokens(const attn_view *v, int layer, int64_t first, int64_t end)
{
    const pig_memory *c = v->own;
    const backend_ops *o = v->be->ops;
    const lsh_index x = index_of(v, layer);
    const kv_rows *rows = kv_store_rows(v->store, layer);
    const slot_range all = {first, end - first};
    kv_need(v->be, rows, first, end);
    o->kmeans->mean(v->be, x.mean, rows, first, (size_t)all.n);
    o->lsh->build(v->be, &x, rows, all, c->code);
}

static void pig_begin(attn_view *v, const attn_part *p)
{
    pig_memory *c = v->own;
    int64_t n = v->length + (int64_t)p->n_tok, last = n - attn_get(v, P_LOCAL), sink = attn_get(v, P_SINK);
    c->hashes = c->end == 0 && (p->flags & ATTN_PROMPT_END) && last > sink;
    if (c->hashes) c->end = last;
    for (int l = 0; l < v->shape->n_layers; l++) c->chooses[l] = v->layers[l] && !(p->flags & ATTN_PROMPT) && c->end;
}

static void pig_append(const attn_task *t, size_t n, int layer)
{
    full_append(t, n, layer);
    for (; n > 0; n--, t++) {
        const pig_memory *c = t->v->own;
        if (c->hashes) hash_tokens(t->v, layer, attn_get(t->v, P_SINK), c->end);
    }
}

/* Selects the first tokens, the sample, and the tokens after the hashed ones. */
static void select_sample(const attn_task *t, int layer)
{
    const attn_view *v = t->v;
    const pig_memory *c = v->own;
    attn_sel *sel = t->sel;
    const kv_rows *rows = sel->seg[0].rows;
    const lsh_index x = index_of(v, layer);
    size_t heads = (size_t)v->shape->n_heads;
    int64_t n = t->p.first + (int64_t)t->p.n_tok, from = n - attn_visible(v->shape, layer, n);
    int64_t first = attn_get(v, P_SINK), lo = max64(first, from), rest = max64(c->end, from);
    buf list = buf_at(c->lists, (size_t)layer * heads * 2 * sizeof(int64_t));
    lsh_job j = {.x = &x,
                 .rows = rows,
                 .q = t->q,
                 .n_heads = heads,
                 .range = {lo, max64(c->end - lo, 0)},
                 .idx = c->idx,
                 .bias = c->bias,
                 .list = list,
                 .dots = c->dots,
                 .hits = c->hits,
                 .read = v->read};
    kv_need(v->be, rows, lo, c->end);
    v->be->ops->lsh->collide(v->be, &j);
    backend_mark(v->be, STAGE_SCORE);
    sel->seg[0] = (attn_seg){.rows = rows, .n_lists = 1, .first = from, .n_max = max64(first - from, 0)};
    sel->seg[1] = (attn_seg){.rows = rows,
                             .range = list,
                             .idx = c->idx,
                             .n_lists = heads,
                             .idx_stride = x.cap,
                             .n_max = j.range.n,
                             .bias = c->bias,
                             .bias_stride = x.cap};
    sel->seg[2] = (attn_seg){.rows = rows, .n_lists = 1, .first = rest, .n_max = n - rest};
    sel->n_seg = 3;
    sel->head = lo;
    sel->tail = rest;
    sel->attended = max64(first - from, 0) + n - rest;
}

static void pig_select(const attn_task *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++)
        if (((const pig_memory *)t->v->own)->chooses[layer]) select_sample(t, layer);
}

static void pig_end(attn_view *v, const attn_part *p)
{
    const pig_memory *c = v->own;
    if (!(p->flags & ATTN_PROMPT)) attn_count_lists(v, c->lists, (size_t)v->shape->n_heads, c->chooses);
}

/* ---- between forwards ---- */

/* Drops the tables if tokens of the first prompt are dropped. They are built again at the next end of a prompt. */
static const char *pig_rewind(attn_view *v, int64_t n)
{
    pig_memory *c = v->own;
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    if (n < c->end + attn_get(v, P_LOCAL)) c->end = 0;
    return NULL;
}

/* Validates a loaded table: tokens in [first, end), ascending in each bucket. */
static status check_table(const int32_t *start, size_t borders, const int32_t *entry, int64_t first, int64_t end,
                          err *e)
{
    if (start[0] != 0 || start[borders - 1] != end - first) return state_bad("the size of a hash table", e);
    for (size_t b = 1; b < borders; b++) {
        if (start[b] < start[b - 1] || start[b] > end - first) return state_bad("the border of a hash bucket", e);
        for (int32_t i = start[b - 1]; i < start[b]; i++)
            if (entry[i] < first || entry[i] >= end || (i > start[b - 1] && entry[i] <= entry[i - 1]))
                return state_bad("a token in a hash bucket", e);
    }
    return ST_OK;
}

static status check_layer(const attn_view *v, int layer, int64_t first, int64_t end, err *e)
{
    const lsh_index x = index_of(v, layer);
    size_t borders = lsh_buckets(&x), n = (size_t)(end - first);
    int32_t *host;
    status st = ST_OK;
    TRY(MEM_NEW(&host, borders + n, e));
    for (size_t i = 0; i < x.n_kv_heads * x.tables && st == ST_OK; i++) {
        v->be->ops->download(v->be, host, buf_at(x.start, i * borders * sizeof *host), borders * sizeof *host);
        v->be->ops->download(v->be, host + borders, buf_at(x.entry, i * x.cap * sizeof *host), n * sizeof *host);
        st = check_table(host, borders, host + borders, first, end, e);
    }
    mem_free(host);
    return st;
}

static status pig_state(attn_view *v, attn_state *s, err *e)
{
    pig_memory *c = v->own;
    int64_t sink = attn_get(v, P_SINK), most = v->length - attn_get(v, P_LOCAL);
    TRY(STATE_HOST(s, "hashed tokens", &c->end, e));
    if (c->end != 0) TRY(state_within("the end of the hashed tokens", c->end, sink + 1, most, e));
    TRY(attn_walk(v, s, e));
    for (int l = 0; l < v->shape->n_layers && s->load && c->end; l++)
        if (v->layers[l]) TRY(check_layer(v, l, sink, c->end, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static status pig_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d is too large, at most %d", s->text, shape->head_dim,
                       (int)PARIS_DIM_MAX);
    return ST_OK;
}

/* A sliding window of at most `local` tokens contains no hashed token. */
static void pig_regions(const attn_spec *s, attn_regions *r)
{
    const int64_t *v = s->value;
    *r = (attn_regions){.first = v[P_SINK], .newest = v[P_LOCAL] + 1, .covers = v[P_LOCAL]};
}

const attn_method attn_magicpig = {
    .name = "magicpig",
    .summary = "MagicPIG: tokens sampled by hashes, weights corrected by sampling probability",
    .source = "MagicPIG (Chen et al. 2024; Infini-AI-Lab/MagicPIG); doc/methods.md 20, deviations 20.7",
    .params = params,
    .family = &attn_keeping,
    .size = sizeof(pig_memory),
    .uses = USES(kmeans) | USES(lsh),
    .skip = "0+16+32+48+64",
    .gqa = "per_q",
    .reuse = ATTN_REUSE_ANY,
    .check = pig_check,
    .regions = pig_regions,
    .hooks = {.declare = pig_declare,
              .reset = pig_reset,
              .begin = pig_begin,
              .append = pig_append,
              .select = pig_select,
              .end = pig_end,
              .rewind = pig_rewind,
              .state = pig_state},
};
