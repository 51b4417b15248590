/* SPDX-License-Identifier: MIT */
/* MagicPIG: tokens sampled by hashes, the likelier the smaller their angle to the query; each query head has a sample
 * of its own, and the logits of its tokens are corrected by their chances. doc/methods.md section 20. */
#include "config.h"

#include <stddef.h>

#include "attention/lsh_tables.h"
#include "kernels/base/mem.h"

enum { P_BITS, P_TABLES, P_SINK, P_LOCAL, P_SEED };

static const attn_param params[] = {
    [P_BITS] = {"K", NULL, "bits of a hash", 10, 1, LSH_BITS_MAX},
    [P_TABLES] = {"L", NULL, "hash tables; tokens that share the query's bucket in two are attended", 150, 2, 4096},
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 4, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "last tokens of the prompt, always attended, as all new ones", 64, 0, 1 << 20},
    [P_SEED] = {"seed", NULL, "of the random planes", 42, 0, (int64_t)1 << 40},
    {.key = NULL},
};

typedef struct {
    lsh_tables tables;
    buf dots, hits, idx, bias, lists;
    int64_t end; /* of the hashed tokens; 0: none are */
    bool hashes; /* this forward hashes [sink, end) */
    bool *chooses;
} pig_memory;

static void pig_declare(attn_decl *d)
{
    size_t heads = (size_t)d->shape->n_heads;
    const int64_t *p = d->spec->value, n = d->lim->n_tokens;
#define AT(member) offsetof(pig_memory, member)
    lsh_declare(d, AT(tables), p[P_BITS], p[P_TABLES]);
    decl_scratch(d, AT(dots), "hashes", (size_t)(p[P_TABLES] * p[P_BITS]) * sizeof(float), (int64_t)heads);
    decl_scratch(d, AT(hits), "hits", heads, (int64_t)lsh_hits((size_t)n));
    decl_scratch(d, AT(idx), "samples", heads * sizeof(int32_t), n);
    decl_scratch(d, AT(bias), "samples", heads * sizeof(float), n);
    decl_scratch(d, AT(lists), "samples", heads * 2 * sizeof(int64_t), d->shape->n_layers);
    decl_bytes(d, MEM_HOST, AT(chooses), "samples", (size_t)d->shape->n_layers * sizeof(bool));
#undef AT
}

static void pig_reset(attn_view *v)
{
    pig_memory *c = v->own;
    lsh_open(v, &c->tables, attn_get(v, P_BITS), attn_get(v, P_TABLES), attn_get(v, P_SEED));
    c->end = 0;
    c->hashes = false;
}

static void pig_begin(attn_view *v, const attn_part *p)
{
    pig_memory *c = v->own;
    int64_t n = v->length + (int64_t)p->n_tok, last = n - attn_get(v, P_LOCAL), sink = attn_get(v, P_SINK);
    c->hashes = c->end == 0 && (p->flags & ATTN_PROMPT_END) && last > sink;
    if (c->hashes) c->end = last;
    for (int l = 0; l < v->shape->n_layers; l++) c->chooses[l] = v->layers[l] && !(p->flags & ATTN_PROMPT) && c->end;
}

static void pig_append(const attn_turn *t, size_t n, int layer)
{
    full_append(t, n, layer);
    for (; n > 0; n--, t++) {
        const pig_memory *c = t->v->own;
        int64_t sink = attn_get(t->v, P_SINK);
        if (c->hashes) lsh_hold(t->v, &c->tables, layer, sink, sink, c->end);
    }
}

/* The first tokens, the sample, and what is not hashed. */
static void select_sample(const attn_turn *t, int layer)
{
    const attn_view *v = t->v;
    const pig_memory *c = v->own;
    attn_sel *sel = t->sel;
    const kv_rows *rows = sel->seg[0].rows;
    const lsh_index x = lsh_index_of(v, &c->tables, layer);
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

static void pig_select(const attn_turn *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++)
        if (((const pig_memory *)t->v->own)->chooses[layer]) select_sample(t, layer);
}

static void pig_end(attn_view *v, const attn_part *p)
{
    const pig_memory *c = v->own;
    if (!(p->flags & ATTN_PROMPT))
        v->be->ops->count_lists(v->be, buf_at(v->read, READ_ATTENDED * sizeof(uint64_t)), c->lists,
                                (size_t)v->shape->n_layers, (size_t)v->shape->n_heads, c->chooses);
}

/* Tables of a part of the first prompt are not those of a shorter prompt: they go, until a prompt ends again. */
static const char *pig_rewind(attn_view *v, int64_t n)
{
    pig_memory *c = v->own;
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    if (n < c->end + attn_get(v, P_LOCAL)) c->end = 0;
    return NULL;
}

static status pig_state(attn_view *v, attn_state *s, err *e)
{
    pig_memory *c = v->own;
    int64_t sink = attn_get(v, P_SINK), most = v->length - attn_get(v, P_LOCAL);
    TRY(STATE_HOST(s, "hashed tokens", &c->end, e));
    if (c->end != 0) TRY(state_within("the end of the hashed tokens", c->end, sink + 1, most, e));
    TRY(lsh_walk(v, &c->tables, s, c->end ? sink : 0, c->end, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static status pig_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d, at most %d", s->text, shape->head_dim, (int)PARIS_DIM_MAX);
    return ST_OK;
}

/* A window of at most `local` tokens holds no hashed one. */
static void pig_regions(const attn_spec *s, attn_regions *r)
{
    const int64_t *v = s->value;
    *r = (attn_regions){.first = v[P_SINK], .newest = v[P_LOCAL] + 1, .covers = v[P_LOCAL]};
}

static const attn_family everything_is_kept = {.retrieves = true, .drafts = true};

const attn_method attn_magicpig = {
    .name = "magicpig",
    .summary = "MagicPIG: tokens sampled by hashes, their weights corrected by their chances",
    .source = "MagicPIG (Chen et al. 2024; Infini-AI-Lab/MagicPIG); doc/methods.md 20, deviations 20.7",
    .params = params,
    .family = &everything_is_kept,
    .size = sizeof(pig_memory),
    .uses = USES_KMEANS | USES_LSH,
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
