/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/paris_index.h"

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_select.h"

/* Parts of the work space, which all layers share. */
enum {
    B_RANGES,
    B_SIGN,
    B_PROBE, /* mean queries [n_kv_heads][head_dim] */
    B_Y,     /* rotated queries [n_heads][dim], and their norms */
    B_NORM,
    B_BONUS,
    B_SCORE, /* u8 [n_kv_heads][n_tokens] */
    B_CAND,  /* i32, the same shape */
    B_EST,   /* f32 [n_heads][n_tokens] if heads vote */
    B_FINAL, /* f32 [n_kv_heads][n_tokens] */
    B_IDX,   /* i32 [n_kv_heads][k] */
    B_LISTS, /* their ranges */
    B_COUNT
};

struct paris_search {
    attn_ctx base;
    paris_options o;
    paris_index *index; /* [n_layers]; count.p NULL: a layer of someone else */
    paris_ranges *host; /* [n_layers] */
    buf work;
    size_t offset[B_COUNT + 1];
};

static buf part(const paris_search *s, int i)
{
    return buf_at(s->work, s->offset[i]);
}

#define AT(s, layer, member) paris_search_at(s, layer, offsetof(paris_ranges, member))

/* ---- memory ---- */

static size_t token_bytes(const attn_shape *sh)
{
    return (size_t)sh->n_kv_heads * paris_blocks((size_t)sh->head_dim) * (1 + PARIS_CODE);
}

/* Of a layer's index what does not grow: counts, their range, the mean. Ids and codes follow, in rows that start at
 * multiples of their width, 16 bytes at most. */
static size_t fixed_bytes(const paris_options *o, const attn_shape *sh)
{
    size_t heads = (size_t)sh->n_kv_heads, d = (size_t)sh->head_dim;
    size_t n = heads * paris_blocks(d) * PARIS_PATTERNS * sizeof(int32_t) + 2 * sizeof(int64_t);
    return n + (o->center ? (heads * d * sizeof(float) + 15) / 16 * 16 : 0);
}

static status layer_bytes(size_t *out, const paris_options *o, const attn_shape *sh,
                          const attn_limits *lim, err *e)
{
    TRY(size_mul(out, (size_t)lim->n_tokens, token_bytes(sh), "ParisKV's index", e));
    return size_add(out, *out, fixed_bytes(o, sh), "ParisKV's index", e);
}

static bool votes(const paris_options *o, const attn_shape *sh)
{
    return o->vote && sh->n_heads > sh->n_kv_heads;
}

static size_t list_stride(const paris_options *o, const attn_limits *lim)
{
    return (size_t)(o->k < lim->n_tokens ? o->k : lim->n_tokens);
}

/* Where the parts of the work space begin, and where the last one ends. */
static status work_layout(size_t offset[B_COUNT + 1], const paris_options *o, const attn_shape *sh,
                          const attn_limits *lim, err *e)
{
    size_t kv = (size_t)sh->n_kv_heads, heads = (size_t)sh->n_heads, d = (size_t)sh->head_dim;
    size_t dim = paris_dim(d), n = (size_t)lim->n_tokens, bound;
    TRY(size_mul(&bound, n, sizeof(float) * (heads + 4 * kv), "ParisKV's work space", e));
    const size_t bytes[B_COUNT] = {
        [B_RANGES] = (size_t)sh->n_layers * sizeof(paris_ranges),
        [B_SIGN] = o->rounds * dim * sizeof(float),
        [B_PROBE] = kv * d * sizeof(float),
        [B_Y] = heads * dim * sizeof(float),
        [B_NORM] = heads * sizeof(float),
        [B_BONUS] = kv * paris_blocks(d) * PARIS_PATTERNS,
        [B_SCORE] = kv * n,
        [B_CAND] = kv * n * sizeof(int32_t),
        [B_EST] = votes(o, sh) ? heads * n * sizeof(float) : 0,
        [B_FINAL] = kv * n * sizeof(float),
        [B_IDX] = kv * list_stride(o, lim) * sizeof(int32_t),
        [B_LISTS] = kv * 2 * sizeof(int64_t),
    };
    offset[0] = 0;
    for (int i = 0; i < B_COUNT; i++) offset[i + 1] = offset[i] + (bytes[i] + 63) / 64 * 64;
    return ST_OK;
}

status paris_search_plan(attn_bytes *out, const paris_options *o, const attn_shape *shape,
                         const attn_limits *lim, const bool *layers, err *e)
{
    size_t offset[B_COUNT + 1], bytes;
    TRY(work_layout(offset, o, shape, lim, e));
    TRY(layer_bytes(&bytes, o, shape, lim, e));
    TRY(size_add(&out->scratch, out->scratch, offset[B_COUNT], "ParisKV's work space", e));
    for (int l = 0; l < shape->n_layers; l++)
        if (layers[l]) TRY(size_add(&out->index, out->index, bytes, "ParisKV's index", e));
    return ST_OK;
}

void paris_search_held(const paris_search *s, int64_t n, attn_bytes *out)
{
    const attn_shape *sh = s->base.shape;
    out->scratch += s->offset[B_COUNT];
    for (int l = 0; l < sh->n_layers; l++)
        if (s->base.layers[l]) out->index += (size_t)n * token_bytes(sh) + fixed_bytes(&s->o, sh);
}

void paris_search_free(paris_search *s)
{
    if (!s) return;
    backend *be = s->base.be;
    size_t bytes;
    if (layer_bytes(&bytes, &s->o, s->base.shape, s->base.lim, NULL) == ST_OK)
        for (int l = 0; s->index && l < s->base.shape->n_layers; l++)
            if (s->index[l].count.p) be->ops->free(be, s->index[l].count, bytes);
    if (s->work.p) be->ops->free(be, s->work, s->offset[B_COUNT]);
    mem_free(s->index);
    mem_free(s->host);
    mem_free(s);
}

/* Bucket counts are told by a range of tokens, which `count` will subtract again. */
static status check_counts(paris_search *s, int layer, int64_t n, err *e)
{
    backend *be = s->base.be;
    const paris_index *x = &s->index[layer];
    int32_t count[PARIS_PATTERNS];
    int64_t range[2];
    size_t tables = x->n_kv_heads * paris_blocks(x->head_dim);
    be->ops->download(be, range, x->counted, sizeof range);
    if (range[0] < 0 || range[1] < 0 || range[0] > n || range[1] > n - range[0])
        return state_bad("the tokens that were counted", e);
    for (size_t i = 0; i < tables; i++) {
        int64_t sum = 0;
        be->ops->download(be, count, buf_at(x->count, i * sizeof count), sizeof count);
        for (size_t k = 0; k < PARIS_PATTERNS; k++) {
            if (count[k] < 0) return state_bad("a bucket count", e);
            sum += count[k];
        }
        if (sum != range[1]) return state_bad("the sum of bucket counts", e);
    }
    return ST_OK;
}

/* Nothing is counted. */
static void clear_counts(paris_search *s, int layer)
{
    backend *be = s->base.be;
    const paris_index *x = &s->index[layer];
    static const int32_t none[PARIS_PATTERNS];
    size_t tables = x->n_kv_heads * paris_blocks(x->head_dim);
    for (size_t i = 0; i < tables; i++) be->ops->upload(be, buf_at(x->count, i * sizeof none), none, sizeof none);
    be->ops->upload(be, x->counted, none, 2 * sizeof(int64_t));
}

static status walk_layers(paris_search *s, attn_state *v, int64_t n, err *e)
{
    const attn_shape *sh = s->base.shape;
    for (int l = 0; l < sh->n_layers; l++) {
        const paris_index *x = &s->index[l];
        size_t bytes, kv = x->n_kv_heads, id = paris_blocks(x->head_dim), code = PARIS_CODE * id;
        if (!x->count.p) continue;
        TRY(layer_bytes(&bytes, &s->o, sh, s->base.lim, e));
        const state_part part[] = {
            {(size_t)(x->id.p - x->count.p), kv, x->cap * id, (size_t)n * id},
            {(size_t)(x->code.p - x->count.p), kv, x->cap * code, (size_t)n * code}};
        TRY(v->rows(v, "ids and codes", l, x->count, bytes, part, 2, e));
        TRY(v->mem(v, "bucket counts", l, x->count, fixed_bytes(&s->o, sh), e));
        if (v->load) TRY(check_counts(s, l, n, e));
    }
    return ST_OK;
}

status paris_search_state(paris_search *s, attn_state *v, int64_t n, err *e)
{
    status st = walk_layers(s, v, n, e);
    /* What was damaged is not to be subtracted from. */
    for (int l = 0; l < s->base.shape->n_layers && v->load && st != ST_OK; l++)
        if (s->index[l].count.p) clear_counts(s, l);
    return st;
}

/* Random signs of the rotation, methods.md 0.2.9. */
static status upload_signs(paris_search *s, err *e)
{
    float *sign;
    size_t n = s->o.rounds * paris_dim((size_t)s->base.shape->head_dim);
    rng r = {42};
    TRY(MEM_NEW(&sign, n, e));
    for (size_t i = 0; i < n; i++) sign[i] = rng_next(&r) >> 63 ? -1 : 1;
    s->base.be->ops->upload(s->base.be, part(s, B_SIGN), sign, n * sizeof *sign);
    mem_free(sign);
    return ST_OK;
}

/* One allocation: counts, their range, mean, ids, codes. */
static status create_layer(paris_search *s, int layer, err *e)
{
    const attn_shape *sh = s->base.shape;
    size_t kv = (size_t)sh->n_kv_heads, d = (size_t)sh->head_dim, nb = paris_blocks(d), bytes;
    paris_index *x = &s->index[layer];
    *x = (paris_index){.sign = part(s, B_SIGN),
                       .n_kv_heads = kv,
                       .head_dim = d,
                       .cap = (size_t)s->base.lim->n_tokens,
                       .rounds = s->o.rounds,
                       .alpha = s->o.alpha};
    TRY(layer_bytes(&bytes, &s->o, sh, s->base.lim, e));
    TRY(s->base.be->ops->alloc(s->base.be, &x->count, bytes, "ParisKV's index", e));
    x->counted = buf_at(x->count, kv * nb * PARIS_PATTERNS * sizeof(int32_t));
    if (s->o.center) x->mean = buf_at(x->counted, 2 * sizeof(int64_t));
    x->id = buf_at(x->count, fixed_bytes(&s->o, sh));
    x->code = buf_at(x->id, kv * x->cap * nb);
    return ST_OK;
}

status paris_search_create(paris_search **out, const attn_ctx *c, const paris_options *o, err *e)
{
    paris_search *s;
    size_t n_layers = (size_t)c->shape->n_layers;
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    s->base = *c;
    s->o = *o;
    status st = work_layout(s->offset, o, c->shape, c->lim, e);
    if (st == ST_OK)
        st = c->be->ops->alloc(c->be, &s->work, s->offset[B_COUNT], "ParisKV's work space", e);
    if (st == ST_OK) st = MEM_NEW(&s->index, n_layers, e);
    if (st == ST_OK) st = MEM_NEW(&s->host, n_layers, e);
    if (st == ST_OK) st = upload_signs(s, e);
    if (st == ST_OK) st = attn_choose_reserve(c, (size_t)c->shape->n_kv_heads, c->lim->n_tokens, e);
    for (int l = 0; l < c->shape->n_layers && st == ST_OK; l++)
        if (c->layers[l]) st = create_layer(s, l, e);
    if (st != ST_OK) paris_search_free(s);
    else *out = s;
    return st;
}

/* ---- a forward ---- */

paris_ranges *paris_search_ranges(const paris_search *s, int layer)
{
    return &s->host[layer];
}

buf paris_search_at(const paris_search *s, int layer, size_t offset)
{
    return buf_at(part(s, B_RANGES), (size_t)layer * sizeof(paris_ranges) + offset);
}

/* Row of the tables of rho and beta (methods.md 8.3). */
static int table_row(int64_t n)
{
    return n < 5000 ? 0 : n < 10000 ? 1 : n < 30000 ? 2 : 3;
}

/* Tokens to rerank of n indexed ones, to find k. */
static int64_t candidates(const paris_search *s, int64_t n, int64_t k)
{
    static const int64_t table[] = {50, 25, 20, 10};
    int64_t beta = s->o.beta ? s->o.beta : table[table_row(n)], m = (n * beta + 99) / 100;
    if (m < k) m = k;
    return m < n ? m : n;
}

void paris_search_upload(paris_search *s)
{
    static const int64_t table[] = {50, 30, 25, 20}, tau[PARIS_TIERS] = {5, 15, 30, 50, 75, 100};
    size_t n_layers = (size_t)s->base.shape->n_layers;
    for (size_t l = 0; l < n_layers; l++) {
        paris_ranges *r = &s->host[l];
        int64_t n = r->index[1], rho = s->o.rho ? s->o.rho : table[table_row(n)];
        /* one tier is the widest */
        for (size_t i = 0; i < s->o.n_tiers; i++)
            r->limit[i] = (n * rho * tau[PARIS_TIERS - s->o.n_tiers + i] + 9999) / 10000;
        r->cand[0] = r->cand[2] = candidates(s, n, r->k);
    }
    s->base.be->ops->upload(s->base.be, part(s, B_RANGES), s->host, n_layers * sizeof *s->host);
}

void paris_search_encode(paris_search *s, int layer, const kv_rows *rows, bool mean)
{
    backend *be = s->base.be;
    const paris_index *x = &s->index[layer];
    const paris_ranges *r = &s->host[layer];
    if (mean && x->mean.p) be->ops->paris->mean(be, x, rows, AT(s, layer, mean), r->mean[1]);
    if (r->encode[1] > 0) be->ops->paris->encode(be, x, rows, AT(s, layer, encode), r->encode[1]);
}

void paris_search_count(paris_search *s, int layer)
{
    s->base.be->ops->paris->count(s->base.be, &s->index[layer], AT(s, layer, next),
                                  s->host[layer].next[1], attn_index_read(&s->base));
}

/* B_FINAL: the candidates' scores by the votes of all query heads. */
static void rerank(paris_search *s, int layer, buf q)
{
    backend *be = s->base.be;
    const attn_shape *sh = s->base.shape;
    const paris_ops *o = be->ops->paris;
    const paris_index *x = &s->index[layer];
    size_t kv = x->n_kv_heads, heads = (size_t)sh->n_heads;
    buf y = part(s, B_Y), norm = part(s, B_NORM), m = AT(s, layer, cand);
    int64_t m_max = s->host[layer].cand[0];
    o->query(be, y, norm, q, heads, x);
    o->estimate(be, part(s, B_EST), x, y, norm, heads, part(s, B_CAND), x->cap, m, m_max,
                attn_index_read(&s->base));
    be->ops->select->combine(be, part(s, B_FINAL), part(s, B_EST), x->cap, heads, kv, m, m_max,
                             GQA_VOTE, sh->scale);
}

void paris_search_run(paris_search *s, int layer, buf q, attn_seg *seg)
{
    backend *be = s->base.be;
    const attn_shape *sh = s->base.shape;
    const paris_ops *o = be->ops->paris;
    const paris_index *x = &s->index[layer];
    const paris_ranges *r = &s->host[layer];
    size_t kv = x->n_kv_heads, stride = list_stride(&s->o, s->base.lim);
    buf y = part(s, B_Y), norm = part(s, B_NORM), probe = q;
    buf range = AT(s, layer, index), m = AT(s, layer, cand), read = attn_index_read(&s->base);
    bool vote = votes(&s->o, sh);
    if ((size_t)sh->n_heads > kv) {
        probe = part(s, B_PROBE);
        be->ops->select->mean_heads(be, probe, q, 1, (size_t)sh->n_heads, kv, x->head_dim);
    }
    o->query(be, y, norm, probe, kv, x);
    o->count(be, x, range, r->index[1], read);
    o->search(be, &(paris_job){.x = x,
                               .y = y,
                               .norm = norm,
                               .limit = AT(s, layer, limit),
                               .n_tiers = s->o.n_tiers,
                               .range = range,
                               .n_max = r->index[1],
                               .m = m,
                               .m_max = r->cand[0],
                               .bonus = part(s, B_BONUS),
                               .score = part(s, B_SCORE),
                               .cand = part(s, B_CAND),
                               .est = vote ? (buf){NULL} : part(s, B_FINAL),
                               .read = read});
    if (vote) rerank(s, layer, q);
    *seg = (attn_seg){.range = part(s, B_LISTS),
                      .idx = part(s, B_IDX),
                      .n_lists = kv,
                      .idx_stride = stride,
                      .n_max = r->k};
    attn_choose(&s->base, &(choose_job){.score = part(s, B_FINAL),
                                        .n = m,
                                        .k = AT(s, layer, k),
                                        .tail = m,
                                        .n_lists = kv,
                                        .stride = x->cap,
                                        .n_k = 1,
                                        .granule = 1,
                                        .n_items_max = r->cand[0],
                                        .idx_stride = (int64_t)stride,
                                        .idx = seg->idx,
                                        .range = seg->range});
    o->resolve(be, seg->idx, stride, seg->range, kv, part(s, B_CAND), x->cap);
}
