/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/blocks.h"

#include "kernels/base/mem.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"

/* The state of a layer in ops memory, in i64 elements. The host writes all but the last. */
enum {
    S_BAND,               /* position and number of the band's rows, first new position (fold) */
    S_ROWS = S_BAND + 3,  /* the same rows in the scratch copy */
    S_FAR = S_ROWS + 2,   /* far_list.at */
    S_CAND = S_FAR + 4,   /* blocks, first and end of the candidates */
    S_FORM = S_CAND + 3,  /* first block, blocks to form, position of the first */
    S_FETCH = S_FORM + 3, /* the rows of these blocks */
    S_NONE = S_FETCH + 2, /* an empty choice */
    S_RANGE = S_NONE + 2, /* far_list.range */
    S_ALL = S_RANGE + 2
};

/* What `place` holds: position of the table's first row; how far queries of far segments are set
 * back. */
enum { PLACE_TABLE, PLACE_BACK, PLACE_ALL };

enum { N_SCRATCH = 12, N_INDEX = 2 };

/* ---- counts after n tokens ---- */

static int64_t at_least(int64_t x, int64_t least)
{
    return x > least ? x : least;
}

static int64_t at_most(int64_t x, int64_t most)
{
    return x < most ? x : most;
}

static int64_t sinks_after(const block_rule *r, int64_t n)
{
    return at_most(at_least(n - r->local, 0), r->sink);
}

static int64_t full_after(const block_rule *r, int64_t n)
{
    return at_least(n - r->local - r->sink, 0) / r->block;
}

int64_t blocks_after(const block_ctx *b, int64_t n)
{
    return full_after(&b->rule, n);
}

int64_t blocks_first(const block_ctx *b, const attn_part *p)
{
    return b->base.length + p->prompt_done - b->done;
}

/* ---- sizes ---- */

block_sizes blocks_sizes(const block_rule *r, const attn_shape *shape, const attn_limits *lim)
{
    int64_t chunk = at_most(lim->chunk, lim->n_tokens), rows = at_most(r->window, chunk),
            all = lim->n_tokens;
    int64_t blocks = full_after(r, all), most = at_most(r->most, blocks);
    return (block_sizes){
        .most = most,
        .blocks = (size_t)blocks,
        .rows = (size_t)rows,
        .windows = (size_t)((chunk + rows - 1) / rows),
        .band = (size_t)at_most(r->local + rows, all),
        .table = (size_t)at_most(r->local + chunk, all),
        .far = (size_t)at_most(r->sink + (most + 1) * r->block + rows, all),
        .form = blocks ? (size_t)((rows / r->block + 1) * r->block) : 0,
        .ring = (size_t)at_most(r->local + r->block + rows, all),
        .dim = (size_t)shape->n_heads * (size_t)shape->head_dim,
    };
}

status blocks_alloc(backend *be, const sized_buf *b, size_t n, const char *what, err *e)
{
    for (size_t i = 0; i < n; i++) TRY(be->ops->alloc(be, b[i].b, b[i].bytes, what, e));
    return ST_OK;
}

void blocks_dealloc(backend *be, const sized_buf *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b[i].b->p) be->ops->free(be, *b[i].b, b[i].bytes);
}

static void list_scratch(block_ctx *b, const block_sizes *n, const attn_shape *sh,
                         sized_buf out[N_SCRATCH])
{
    size_t d = (size_t)sh->head_dim, kv = (size_t)sh->n_kv_heads * d, heads = (size_t)sh->n_heads;
    size_t f = sizeof(float), pos = sizeof(int64_t);
    const sized_buf all[N_SCRATCH] = {
        {&b->state, (size_t)sh->n_layers * S_ALL * pos},
        {&b->place, PLACE_ALL * pos},
        {&b->at, n->table * pos},
        {&b->table, n->table * d * f},
        {&b->far_pos, n->rows * pos},
        {&b->far_table, n->rows * d * f},
        {&b->far_qpos, n->rows * pos},
        {&b->sums, heads * n->band * f},
        {&b->list, n->far * sizeof(int32_t)},
        {&b->band.k, n->band * kv * f},
        {&b->band.v, n->band * kv * f},
        {&b->keys.k, n->form * kv * f},
    };
    for (int i = 0; i < N_SCRATCH; i++) out[i] = all[i];
}

/* Bytes of representatives and masses of a layer with that many blocks. */
static size_t rep_bytes(const block_sizes *n, const attn_spec *s, size_t blocks)
{
    return blocks * n->dim * dtype_size(s->kv.type);
}

static size_t mass_bytes(const block_sizes *n, const attn_shape *sh)
{
    return (size_t)sh->n_heads * n->ring * sizeof(float);
}

static void list_index(block_ctx *b, int layer, sized_buf out[N_INDEX])
{
    out[0] = (sized_buf){&b->index[layer].rep, rep_bytes(&b->n, b->base.spec, b->n.blocks)};
    out[1] = (sized_buf){&b->mass[layer], mass_bytes(&b->n, b->base.shape)};
}

static size_t scratch_bytes(const block_sizes *n, const attn_shape *sh)
{
    block_ctx unused;
    sized_buf list[N_SCRATCH];
    size_t sum = 0;
    list_scratch(&unused, n, sh, list);
    for (int i = 0; i < N_SCRATCH; i++) sum += list[i].bytes;
    return sum;
}

status blocks_check_chunk(const attn_spec *s, const block_rule *r, const attn_limits *lim, err *e)
{
    if (lim->n_tokens <= lim->chunk || lim->chunk % r->window == 0) return ST_OK;
    return err_set(e, ST_USAGE, "%s: --chunk %lld, expected a multiple of window = %lld", s->text,
                   (long long)lim->chunk, (long long)r->window);
}

status blocks_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, const bool *layers, const block_rule *r, err *e)
{
    block_sizes n = blocks_sizes(r, shape, lim);
    TRY(blocks_check_chunk(s, r, lim, e));
    for (int l = 0; l < shape->n_layers; l++) {
        size_t bytes;
        if (!layers[l]) continue;
        TRY(kv_plan_bytes(&bytes, &s->kv, shape, (size_t)shape->n_kv_heads, lim->n_tokens, e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
        bytes = rep_bytes(&n, s, n.blocks) + mass_bytes(&n, shape);
        TRY(size_add(&out->index, out->index, bytes, "KV plan", e));
    }
    return size_add(&out->scratch, out->scratch, scratch_bytes(&n, shape), "KV plan", e);
}

/* ---- life ---- */

static status create_layers(block_ctx *b, err *e)
{
    const attn_shape *sh = b->base.shape;
    sized_buf list[N_INDEX];
    for (int l = 0; l < sh->n_layers; l++) {
        if (!b->base.layers[l]) continue;
        b->index[l] = (block_index){.type = b->base.spec->kv.type,
                                    .n_heads = (size_t)sh->n_heads,
                                    .n_kv_heads = (size_t)sh->n_kv_heads,
                                    .head_dim = (size_t)sh->head_dim,
                                    .cap = b->n.blocks,
                                    .size = (size_t)b->rule.block,
                                    .reps = (size_t)b->rule.reps};
        list_index(b, l, list);
        TRY(blocks_alloc(b->base.be, list, N_INDEX, "block index", e));
    }
    return ST_OK;
}

/* Scratch buffers with what never changes in them. */
static status create_scratch(block_ctx *b, err *e)
{
    backend *be = b->base.be;
    const attn_shape *sh = b->base.shape;
    sized_buf list[N_SCRATCH];
    b->band = (kv_rows){.type = DT_F32,
                        .n_kv_heads = (size_t)sh->n_kv_heads,
                        .head_dim = (size_t)sh->head_dim,
                        .cap = b->n.band};
    b->keys = b->band;
    b->keys.cap = b->n.form;
    list_scratch(b, &b->n, sh, list);
    TRY(blocks_alloc(be, list, N_SCRATCH, "blocks: scratch", e));
    const int64_t back = b->rule.local, distance = b->rule.local - 1;
    be->ops->upload(be, buf_at(b->place, PLACE_BACK * sizeof back), &back, sizeof back);
    for (size_t i = 0; i < b->n.rows; i++)
        be->ops->upload(be, buf_at(b->far_pos, i * sizeof distance), &distance, sizeof distance);
    return ST_OK;
}

status blocks_init(block_ctx *b, const attn_ctx *base, const block_rule *r, err *e)
{
    size_t layers = (size_t)base->shape->n_layers;
    int64_t *cap;
    b->base = *base;
    b->rule = *r;
    b->n = blocks_sizes(r, base->shape, base->lim);
    TRY(blocks_check_chunk(base->spec, r, base->lim, e));
    TRY(MEM_NEW(&b->index, layers, e));
    TRY(MEM_NEW(&b->mass, layers, e));
    TRY(MEM_NEW(&b->host, layers * S_ALL, e));
    TRY(create_layers(b, e));
    TRY(create_scratch(b, e));
    TRY(MEM_NEW(&cap, layers, e));
    for (size_t l = 0; l < layers; l++) cap[l] = base->layers[l] ? base->lim->n_tokens : 0;
    status st = kv_store_create(&b->store, base, (size_t)base->shape->n_kv_heads, cap, e);
    mem_free(cap);
    return st;
}

void blocks_release(block_ctx *b)
{
    sized_buf list[N_SCRATCH];
    list_scratch(b, &b->n, b->base.shape, list);
    blocks_dealloc(b->base.be, list, N_SCRATCH);
    for (int l = 0; b->index && b->mass && l < b->base.shape->n_layers; l++) {
        list_index(b, l, list);
        blocks_dealloc(b->base.be, list, N_INDEX);
    }
    kv_store_free(b->store);
    mem_free(b->index);
    mem_free(b->mass);
    mem_free(b->host);
}

void blocks_reset(attn_ctx *c)
{
    block_ctx *b = blocks_of(c);
    kv_store_reset(b->store);
    b->observed = false;
}

/* ---- the state of a window ---- */

static buf at(const block_ctx *b, int layer, int i)
{
    return buf_at(b->state, ((size_t)layer * S_ALL + (size_t)i) * sizeof(int64_t));
}

static const int64_t *host_at(const block_ctx *b, int layer, int i)
{
    return b->host + (size_t)layer * S_ALL + i;
}

/* Blocks [first, first + n), which are to be formed. */
static void set_form(const block_ctx *b, int64_t *s, int64_t first, int64_t n)
{
    s[S_FORM] = first;
    s[S_FORM + 1] = n;
    s[S_FORM + 2] = s[S_FETCH] = b->rule.sink + first * b->rule.block;
    s[S_FETCH + 1] = n * b->rule.block;
}

/* Queries [first, end) of a layer. */
static void set_state(block_ctx *b, int layer, int64_t first, int64_t end)
{
    const block_rule *r = &b->rule;
    int64_t *s = b->host + (size_t)layer * S_ALL, window = b->base.shape->window[layer];
    int64_t blocks = full_after(r, first), sinks = sinks_after(r, first),
            pending = sinks + blocks * r->block;
    s[S_BAND] = at_least(first - r->local + 1, 0);
    s[S_BAND + 1] = s[S_ROWS + 1] = end - s[S_BAND];
    s[S_BAND + 2] = first;
    s[S_FAR] = window > 0 ? at_least(first - window + 1, 0) : 0;
    s[S_FAR + 1] = sinks;
    s[S_FAR + 2] = pending;
    s[S_FAR + 3] = at_least(end - r->local, pending);
    s[S_CAND] = s[S_CAND + 2] = blocks;
    s[S_CAND + 1] = at_most(at_least(s[S_FAR] - sinks, 0) / r->block, blocks);
    set_form(b, s, blocks, full_after(r, end) - blocks);
}

static void upload_state(block_ctx *b, int layer)
{
    b->base.be->ops->upload(b->base.be, at(b, layer, 0), host_at(b, layer, 0),
                            S_RANGE * sizeof(int64_t));
}

/* The table rotates keys of the band at their positions, the far table queries at the fixed
 * distance. A raw key has no factor mscale of its own, so the query there carries both. */
void blocks_step_begin(attn_ctx *c, const attn_part *p)
{
    block_ctx *b = blocks_of(c);
    backend *be = c->be;
    const backend_ops *o = be->ops;
    int64_t end = c->length + (int64_t)p->n_tok, first = at_least(c->length - b->rule.local + 1, 0);
    size_t half = (size_t)c->shape->head_dim / 2,
           rows = p->n_tok < b->n.rows ? p->n_tok : b->n.rows;
    b->done = p->prompt_done;
    kv_store_begin(b->store, c, p);
    o->upload(be, b->place, &first, sizeof first);
    o->pos_iota(be, b->at, b->place, (size_t)(end - first));
    o->rope_table(be, b->table, b->at, (size_t)(end - first), p->freq, half, p->mscale);
    o->rope_table(be, b->far_table, b->far_pos, rows, p->freq, half, p->mscale * p->mscale);
    if (p->flags & ATTN_PROMPT) return;
    for (int l = 0; l < c->shape->n_layers; l++)
        if (c->layers[l]) set_state(b, l, c->length, end);
    for (int l = 0; l < c->shape->n_layers; l++)
        if (c->layers[l]) upload_state(b, l);
}

void blocks_begin(block_ctx *b, const attn_part *p, int layer)
{
    if (!(p->flags & ATTN_PROMPT)) return;
    int64_t first = blocks_first(b, p);
    set_state(b, layer, first, first + (int64_t)p->n_tok);
    upload_state(b, layer);
}

void blocks_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    (void)k;
    kv_store_put(blocks_of(c)->store, p, layer, p->pos, 1, k_raw, v);
}

/* ---- segments ---- */

void blocks_far_queries(block_ctx *b, const attn_part *p, buf out, buf q_raw)
{
    const attn_shape *sh = b->base.shape;
    b->base.be->ops->rope(b->base.be, out, q_raw, b->far_table, p->n_tok, (size_t)sh->n_heads,
                          (size_t)sh->head_dim / 2);
}

buf blocks_candidates(const block_ctx *b, int layer)
{
    return at(b, layer, S_CAND);
}

/* Of equal length for all queries of a decode step, so that its rows need no mask. */
void blocks_band(block_ctx *b, const attn_part *p, int layer, attn_seg *seg)
{
    backend *be = b->base.be;
    const backend_ops *o = be->ops;
    size_t d = b->band.head_dim, n = (size_t)host_at(b, layer, S_BAND)[1];
    int64_t skip = host_at(b, layer, S_BAND)[0] - at_least(b->base.length - b->rule.local + 1, 0);
    buf table = buf_at(b->table, (size_t)skip * d * sizeof(float));
    kv_need(be, kv_store_rows(b->store, layer), host_at(b, layer, S_BAND)[0], host_at(b, layer, S_BAND)[0] + (int64_t)n);
    o->codes->fetch(be, &b->band, kv_store_rows(b->store, layer), at(b, layer, S_BAND), (buf){NULL},
                    1, 0, (int64_t)n, b->base.read);
    for (size_t h = 0; h < b->band.n_kv_heads; h++) {
        buf rows = buf_at(b->band.k, h * b->band.cap * d * sizeof(float));
        o->rope(be, rows, rows, table, n, 1, d / 2);
    }
    *seg = (attn_seg){.rows = &b->band,
                      .copied = true,
                      .range = at(b, layer, S_ROWS),
                      .n_lists = 1,
                      .n_max = (int64_t)n,
                      .origin = host_at(b, layer, S_BAND)[0] - host_at(b, layer, S_ROWS)[0],
                      .kpos = p->flags & ATTN_PROMPT ? at(b, layer, S_BAND) : (buf){NULL},
                      .band = b->rule.local,
                      .scores = p->flags & ATTN_PROMPT ? (buf){NULL} : b->sums,
                      .score_stride = b->n.band};
}

/* In a prompt window the tokens that leave the band inside it are far for some queries only: a
 * query sees what lies `local` behind it. */
void blocks_far(block_ctx *b, const attn_part *p, int layer, buf block, buf chosen, attn_seg *seg)
{
    const backend_ops *o = b->base.be->ops;
    bool prompt = p->flags & ATTN_PROMPT;
    int64_t window = b->base.shape->window[layer];
    const int64_t *s = host_at(b, layer, S_FAR);
    far_list list = {.at = at(b, layer, S_FAR),
                     .block = block,
                     .chosen = chosen.p ? chosen : at(b, layer, S_NONE),
                     .size = b->rule.block,
                     .idx = b->list,
                     .range = at(b, layer, S_RANGE),
                     .count = prompt ? (buf){NULL} : buf_at(b->base.read, READ_ATTENDED * sizeof(uint64_t))};
    o->block->list(b->base.be, &list);
    if (prompt)
        o->pos_shift(b->base.be, b->far_qpos, p->pos, p->n_tok, INT64_MAX,
                     buf_at(b->place, PLACE_BACK * sizeof(int64_t)));
    *seg = (attn_seg){.rows = kv_store_rows(b->store, layer),
                      .range = list.range,
                      .idx = b->list,
                      .n_lists = 1,
                      .idx_stride = b->n.far,
                      .n_max = s[1] + (chosen.p ? b->n.most * b->rule.block : 0) + s[3] - s[2],
                      .at = prompt ? b->list : (buf){NULL},
                      .band = prompt && window > 0 ? window - b->rule.local : 0,
                      .table = b->far_table,
                      .qpos = prompt ? b->far_qpos : (buf){NULL}};
}

/* ---- forming blocks ---- */

/* The blocks of the layer's state, at most `rows` tokens. m NULL: their tokens were never
 * attended. */
static void form(block_ctx *b, int layer, const band_mass *m, int64_t rows)
{
    const backend_ops *o = b->base.be->ops;
    const int64_t *fetch = host_at(b, layer, S_FETCH);
    if (b->n.blocks == 0) return;
    kv_need(b->base.be, kv_store_rows(b->store, layer), fetch[0], fetch[0] + fetch[1]);
    o->codes->fetch(b->base.be, &b->keys, kv_store_rows(b->store, layer), at(b, layer, S_FETCH),
                    (buf){NULL}, 1, 0, rows, b->base.read);
    o->block->form(b->base.be, &b->index[layer], &b->keys, m, at(b, layer, S_FORM),
                   rows / b->rule.block);
}

static band_mass mass_of(const block_ctx *b, int layer)
{
    return (band_mass){.mass = b->mass[layer],
                       .n_heads = (size_t)b->base.shape->n_heads,
                       .ring = b->n.ring,
                       .read = attn_index_read(&b->base)};
}

bool blocks_observes(const attn_ctx *c, const attn_part *p, int layer)
{
    (void)c;
    (void)p;
    (void)layer;
    return true;
}

/* The attention that band rows received, by the lse of the joint softmax; then the blocks that
 * are full. */
void blocks_observe(attn_ctx *c, const attn_part *p, int layer, buf q, buf lse)
{
    block_ctx *b = blocks_of(c);
    const backend_ops *o = c->be->ops;
    band_mass m = mass_of(b, layer);
    bool prompt = p->flags & ATTN_PROMPT;
    attn_job job = {.q = q,
                    .lse = lse,
                    .n_tok = p->n_tok,
                    .n_heads = m.n_heads,
                    .rows = b->band,
                    .range = at(b, layer, S_ROWS),
                    .n_lists = 1,
                    .n_max = host_at(b, layer, S_BAND)[1],
                    .qpos = p->pos,
                    .kpos = prompt ? at(b, layer, S_BAND) : (buf){NULL},
                    .band = b->rule.local,
                    .scale = c->shape->scale,
                    .scores = prompt ? (buf){NULL} : b->sums,
                    .score_stride = b->n.band};
    o->evict->colsum(c->be, &job, m.n_heads, COMBINE_SUM, false, b->sums, b->n.band);
    o->block->fold(c->be, &m, b->sums, b->n.band, at(b, layer, S_BAND), job.n_max);
    form(b, layer, &m, prompt ? (int64_t)b->n.form : b->rule.block);
    b->observed = true;
}

/* Rows that were stored and never attended (synthetic contexts): no token has any mass. */
static void form_unattended(block_ctx *b, int layer, int64_t first, int64_t end)
{
    band_mass m = mass_of(b, layer);
    int64_t *s = b->host + (size_t)layer * S_ALL, most = (int64_t)b->n.form / b->rule.block;
    set_state(b, layer, end, end);
    s[S_BAND] = s[S_BAND + 2] = at_least(end - (int64_t)b->n.ring, 0);
    s[S_BAND + 1] = end - s[S_BAND];
    upload_state(b, layer);
    b->base.be->ops->block->fold(b->base.be, &m, (buf){NULL}, 0, at(b, layer, S_BAND),
                                 (int64_t)b->n.ring);
    int64_t blocks = full_after(&b->rule, end);
    for (int64_t from = full_after(&b->rule, first); from < blocks; from += most) {
        set_form(b, s, from, at_most(most, blocks - from));
        upload_state(b, layer);
        form(b, layer, NULL, (int64_t)b->n.form);
    }
}

void blocks_layer_end(attn_ctx *c, const attn_part *p, int layer)
{
    block_ctx *b = blocks_of(c);
    if (!b->observed) form_unattended(b, layer, c->length, c->length + (int64_t)p->n_tok);
    b->observed = false;
    kv_store_layer_end(b->store, layer);
}

/* ---- counts ---- */

void blocks_step_end(attn_ctx *c, const attn_part *p)
{
    (void)p;
    kv_store_end(blocks_of(c)->store);
}

/* What queries left in masses and statistics cannot be taken back. */
const char *blocks_rewind(attn_ctx *c, int64_t n)
{
    return n == c->length ? NULL : "masses and statistics hold later queries";
}

status blocks_state(attn_ctx *c, attn_state *v, err *e)
{
    block_ctx *b = blocks_of(c);
    sized_buf list[N_INDEX];
    size_t used = rep_bytes(&b->n, c->spec, (size_t)blocks_after(b, c->length));
    TRY(kv_store_state(b->store, v, c->length, c->length, e));
    for (int l = 0; l < c->shape->n_layers; l++) {
        if (!c->layers[l]) continue;
        list_index(b, l, list);
        const state_part rep = {0, 1, list[0].bytes, used}, mass = {0, 1, list[1].bytes, list[1].bytes};
        TRY(v->rows(v, "representatives", l, *list[0].b, list[0].bytes, &rep, 1, e));
        TRY(v->rows(v, "masses", l, *list[1].b, list[1].bytes, &mass, 1, e));
    }
    return ST_OK;
}

void blocks_held(const attn_ctx *c, int64_t n_new, attn_bytes *out)
{
    const block_ctx *b = (const block_ctx *)c;
    int64_t n = c->length + n_new;
    for (int l = 0; l < c->shape->n_layers; l++) {
        if (!c->layers[l]) continue;
        out->kv += kv_store_bytes(b->store, n);
        out->index +=
            rep_bytes(&b->n, c->spec, (size_t)blocks_after(b, n)) + mass_bytes(&b->n, c->shape);
    }
    out->scratch += scratch_bytes(&b->n, c->shape);
}

/* The band; how many are far only ops know. */
int64_t blocks_attended(const attn_ctx *c, int layer)
{
    const block_ctx *b = (const block_ctx *)c;
    (void)layer;
    return at_most(c->length, b->rule.local);
}

int64_t blocks_positions(const attn_ctx *c, int layer, int head, int64_t *out)
{
    (void)head;
    int64_t n = c->layers[layer] ? c->length : 0;
    for (int64_t i = 0; out && i < n; i++) out[i] = i;
    return n;
}
