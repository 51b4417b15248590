/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/evict.h"

#include <string.h>

#include "kernels/base/mem.h"

/* ---- sizes ---- */

static size_t lists_of(const evict_rule *r, const attn_shape *sh)
{
    if (r->lists == EVICT_LAYER) return 1;
    return (size_t)(r->lists == EVICT_GROUP ? sh->n_kv_heads : sh->n_heads);
}

static size_t regions_of(const evict_rule *r, const attn_shape *sh)
{
    return (size_t)(r->lists == EVICT_EACH ? sh->n_heads : sh->n_kv_heads);
}

static int64_t chunk_of(const attn_limits *lim)
{
    return lim->chunk < lim->n_tokens ? lim->chunk : lim->n_tokens;
}

/* Entries of a list at its peak: a whole prompt, or what is kept and one chunk. */
static int64_t most_entries(const attn_spec *s, const attn_limits *lim, const evict_rule *r)
{
    int64_t chunked =
        chunk_of(lim) < lim->n_tokens - s->budget ? s->budget + chunk_of(lim) : lim->n_tokens;
    return r->each_chunk && !r->once ? chunked : lim->n_tokens;
}

/* Bytes of position, slot and score. */
static size_t entry_bytes(const attn_spec *s, const evict_rule *r)
{
    return sizeof(int32_t) * (1 + (size_t)!kv_has_codes(&s->kv) + (size_t)r->sums);
}

static status scratch_bytes(size_t *out, const attn_spec *s, const attn_shape *sh,
                            const attn_limits *lim, const evict_rule *r, err *e)
{
    size_t lists = lists_of(r, sh), chunk = (size_t)chunk_of(lim), bytes;
    /* With the range and `seen` of each layer's lists. */
    TRY(size_mul(out, chunk + 3 * (size_t)sh->n_layers, lists * sizeof(int64_t), "slots", e));
    if (!r->sums) {
        TRY(size_mul(&bytes, (size_t)most_entries(s, lim, r), lists * sizeof(float), "scores", e));
        TRY(size_add(out, *out, bytes, "scores", e));
    }
    if (!r->once) {
        TRY(size_mul(&bytes, (size_t)most_entries(s, lim, r), (size_t)sh->n_heads * sizeof(float),
                     "logits", e));
        TRY(size_add(out, *out, bytes, "logits", e));
    }
    if (r->by_rank) {
        TRY(size_mul(&bytes, (size_t)most_entries(s, lim, r),
                     2 * lists * (size_t)sh->head_dim * sizeof(float), "rows by rank", e));
        TRY(size_add(out, *out, bytes, "rows by rank", e));
    }
    if (r->lists != EVICT_EACH) return ST_OK;
    TRY(size_mul(&bytes, chunk, 2 * (size_t)(sh->n_heads * sh->head_dim) * sizeof(float), "rows",
                 e));
    return size_add(out, *out, bytes, "rows", e);
}

status evict_create(attn_ctx **out, const attn_ctx *base, const evict_rule *rule, err *e)
{
    evict_ctx *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    status st = evict_init(c, base, rule, e);
    if (st != ST_OK) evict_free(&c->base);
    else *out = &c->base;
    return st;
}

status evict_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                  const attn_limits *lim, const bool *layers, const evict_rule *rule, err *e)
{
    int64_t n = kv_has_codes(&s->kv) ? lim->n_tokens : most_entries(s, lim, rule);
    size_t row = lists_of(rule, shape) * entry_bytes(s, rule);
    for (int l = 0; l < shape->n_layers; l++) {
        size_t bytes;
        if (!layers[l]) continue;
        TRY(kv_plan_bytes(&bytes, &s->kv, shape, regions_of(rule, shape), n, e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
        TRY(size_mul(&bytes, (size_t)most_entries(s, lim, rule), row, "KV plan", e));
        TRY(size_add(&out->index, out->index, bytes, "KV plan", e));
    }
    return scratch_bytes(&out->scratch, s, shape, lim, rule, e);
}

/* ---- life ---- */

static size_t rows_bytes(const evict_ctx *c)
{
    const attn_shape *sh = c->base.shape;
    return (size_t)chunk_of(c->base.lim) * (size_t)(sh->n_heads * sh->head_dim) * sizeof(float);
}

static size_t list_bytes(const evict_ctx *c)
{
    return c->n_lists * c->stride * entry_bytes(c->base.spec, &c->rule);
}

static size_t range_bytes(const evict_ctx *c)
{
    return (size_t)c->base.shape->n_layers * c->n_lists * 2 * sizeof(int64_t);
}

static size_t score_bytes(const evict_ctx *c)
{
    return c->n_lists * c->stride * sizeof(float);
}

static size_t logits_bytes(const evict_ctx *c)
{
    return (size_t)c->base.shape->n_heads * c->stride * sizeof(float);
}

static size_t slots_bytes(const evict_ctx *c)
{
    return (size_t)chunk_of(c->base.lim) * c->n_lists * sizeof(int64_t);
}

/* Of K or V. */
static size_t ranked_bytes(const evict_ctx *c)
{
    return c->n_lists * c->stride * (size_t)c->base.shape->head_dim * sizeof(float);
}

void evict_free(attn_ctx *base)
{
    evict_ctx *c = evict_of(base);
    const backend_ops *o = base->be->ops;
    kv_store_free(c->store);
    for (int l = 0; c->kept && l < base->shape->n_layers; l++)
        if (c->kept[l].at.p) o->free(base->be, c->kept[l].at, list_bytes(c));
    if (c->range.p) o->free(base->be, c->range, range_bytes(c));
    if (c->seen.p) o->free(base->be, c->seen, range_bytes(c) / 2);
    if (c->score.p) o->free(base->be, c->score, score_bytes(c));
    if (c->logits.p) o->free(base->be, c->logits, logits_bytes(c));
    if (c->slots.p) o->free(base->be, c->slots, slots_bytes(c));
    if (c->ranked.k.p) o->free(base->be, c->ranked.k, ranked_bytes(c));
    if (c->ranked.v.p) o->free(base->be, c->ranked.v, ranked_bytes(c));
    if (c->k.p) o->free(base->be, c->k, rows_bytes(c));
    if (c->v.p) o->free(base->be, c->v, rows_bytes(c));
    mem_free(c->kept);
    mem_free(c->together);
    mem_free(c->host);
    mem_free(c);
}

/* Entries of all lists: the first n positions. */
static void set_counts(evict_ctx *c, int64_t n)
{
    for (size_t i = 0; i < range_bytes(c) / sizeof(int64_t); i++) c->host[i] = i % 2 ? n : 0;
    c->base.be->ops->upload(c->base.be, c->range, c->host, range_bytes(c));
    c->stored = n;
}

void evict_reset(attn_ctx *base)
{
    evict_ctx *c = evict_of(base);
    kv_store_reset(c->store);
    set_counts(c, 0);
    c->listed = c->due = false;
    c->attended = c->turns = 0;
}

static status create_store(evict_ctx *c, err *e)
{
    const attn_ctx *b = &c->base;
    int64_t *cap;
    TRY(MEM_NEW(&cap, (size_t)b->shape->n_layers, e));
    for (int l = 0; l < b->shape->n_layers; l++)
        cap[l] = !b->layers[l]                ? 0
                 : kv_has_codes(&b->spec->kv) ? b->lim->n_tokens
                                              : (int64_t)c->stride;
    status st = kv_store_create(&c->store, b, c->n_regions, cap, e);
    mem_free(cap);
    return st;
}

static status create_layer(evict_ctx *c, int l, err *e)
{
    const attn_ctx *b = &c->base;
    size_t lists = c->n_lists, column = lists * c->stride * sizeof(int32_t), n = 1;
    size_t first = (size_t)l * lists * sizeof(int64_t);
    kept_rows *k = &c->kept[l];
    *k = (kept_rows){.range = buf_at(c->range, 2 * first),
                     .seen = buf_at(c->seen, first),
                     .score = c->score,
                     .read = attn_index_read(b),
                     .n_lists = lists,
                     .stride = c->stride};
    TRY(b->be->ops->alloc(b->be, &k->at, list_bytes(c), "lists of kept tokens", e));
    if (!kv_has_codes(&b->spec->kv)) k->slot = buf_at(k->at, n++ * column);
    if (c->rule.sums) k->score = buf_at(k->at, n * column);
    return ST_OK;
}

static status create_buffers(evict_ctx *c, err *e)
{
    backend *be = c->base.be;
    const backend_ops *o = be->ops;
    size_t host = range_bytes(c) / sizeof(int64_t), n = (size_t)c->base.shape->n_layers;
    TRY(o->alloc(be, &c->range, range_bytes(c), "lists of kept tokens", e));
    TRY(o->alloc(be, &c->seen, range_bytes(c) / 2, "lists of kept tokens", e));
    TRY(o->alloc(be, &c->slots, slots_bytes(c), "slots", e));
    if (!c->rule.sums) TRY(o->alloc(be, &c->score, score_bytes(c), "scores", e));
    if (!c->rule.once) TRY(o->alloc(be, &c->logits, logits_bytes(c), "logits", e));
    c->ranked = (kv_rows){.type = DT_F32,
                          .n_kv_heads = c->n_lists,
                          .cap = c->stride,
                          .head_dim = (size_t)c->base.shape->head_dim};
    if (c->rule.by_rank) {
        TRY(o->alloc(be, &c->ranked.k, ranked_bytes(c), "K rows by rank", e));
        TRY(o->alloc(be, &c->ranked.v, ranked_bytes(c), "V rows by rank", e));
    }
    if (c->rule.lists == EVICT_EACH) {
        TRY(o->alloc(be, &c->k, rows_bytes(c), "K rows of all heads", e));
        TRY(o->alloc(be, &c->v, rows_bytes(c), "V rows of all heads", e));
    }
    TRY(MEM_NEW(&c->host, (host > c->stride ? host : c->stride) + 1, e));
    TRY(MEM_NEW(&c->kept, n, e));
    return MEM_NEW(&c->together, n, e);
}

status evict_init(evict_ctx *c, const attn_ctx *base, const evict_rule *rule, err *e)
{
    c->base = *base;
    c->rule = *rule;
    c->n_lists = lists_of(rule, base->shape);
    c->n_regions = regions_of(rule, base->shape);
    c->stride = (size_t)most_entries(base->spec, base->lim, rule);
    TRY(create_store(c, e));
    TRY(create_buffers(c, e));
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) TRY(create_layer(c, l, e));
    evict_reset(&c->base);
    return ST_OK;
}

/* ---- a forward ---- */

status evict_check_gqa(const attn_spec *s, gqa_mode mode, err *e)
{
    static const char *const why[GQA_COUNT] = {
        [GQA_MEAN_Q] = "gqa=mean_q: each query has its own weights",
        [GQA_VOTE] = "gqa=vote: attention weights are a softmax already, their sum is gqa=sum_s",
        [GQA_LAYER_VOTE] = "gqa=layer_vote: attention weights are a softmax already, use layer_mean",
        [GQA_LAYER_CONCAT] = "gqa=layer_concat: weights belong to single heads, use layer_mean"};
    return why[mode] ? err_set(e, ST_USAGE, "%s: %s", s->text, why[mode]) : ST_OK;
}

evict_lists evict_lists_of(gqa_mode mode)
{
    return mode == GQA_PER_Q ? EVICT_EACH : mode >= GQA_LAYER_MEAN ? EVICT_LAYER : EVICT_GROUP;
}

int evict_combine_of(gqa_mode mode)
{
    return mode == GQA_MAX_S ? COMBINE_MAX : mode == GQA_SUM_S ? COMBINE_SUM : COMBINE_MEAN;
}

bool evict_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    return shape->window[layer] > 0 && shape->window[layer] <= s->budget;
}

bool evict_prunes(const evict_ctx *c, int64_t n)
{
    bool open = !c->rule.once || c->rule.each_turn || c->turns == 0;
    return open && c->stored + n > c->base.spec->budget;
}

bool evict_exact_prompt(const attn_ctx *base, int64_t n)
{
    const evict_ctx *c = (const evict_ctx *)base;
    return kv_store_exact(c->store) && !c->listed && (!c->rule.each_chunk || !evict_prunes(c, n));
}

static void open_lists(evict_ctx *c, int layer)
{
    if (!kv_store_by_position(c->store)) c->base.be->ops->evict->open(c->base.be, &c->kept[layer]);
}

/* The rows of a layer as one region a kv head: while all tokens are kept, the regions of a group hold
 * the same, and reading the first of them is what `full` does. */
static kv_rows rows_together(const evict_ctx *c, int layer)
{
    kv_rows r = *kv_store_rows(c->store, layer);
    size_t copies = c->n_regions / (size_t)c->base.shape->n_kv_heads;
    r.n_kv_heads /= copies;
    r.cap *= copies;
    r.codes.cap *= copies;
    return r;
}

void evict_step_begin(attn_ctx *base, const attn_part *p)
{
    evict_ctx *c = evict_of(base);
    kv_store_begin(c->store, base, p);
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) c->together[l] = rows_together(c, l);
    c->attended = c->stored + (int64_t)p->n_tok;
    c->scored = c->logits.p && !(p->flags & ATTN_PROMPT);
    if (p->flags & ATTN_PROMPT) {
        c->due = (p->flags & ATTN_PROMPT_END || c->rule.each_chunk) &&
                 evict_prunes(c, (int64_t)p->n_tok);
        return;
    }
    c->due = !c->rule.once && c->attended > base->spec->budget;
    if (!c->due || c->listed) return;
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) open_lists(c, l);
    c->listed = true;
}

void evict_append(attn_ctx *base, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    (void)k_raw;
    evict_ctx *c = evict_of(base);
    const attn_shape *sh = base->shape;
    const evict_ops *o = base->be->ops->evict;
    size_t dim = (size_t)sh->head_dim, kv = (size_t)sh->n_kv_heads;
    buf none = {NULL};
    if (c->rule.lists == EVICT_EACH) {
        o->repeat_heads(base->be, c->k, k, p->n_tok, kv, c->n_regions / kv, dim);
        o->repeat_heads(base->be, c->v, v, p->n_tok, kv, c->n_regions / kv, dim);
        k = c->k;
        v = c->v;
    }
    bool deal = c->listed && !kv_store_by_position(c->store);
    o->append(base->be, &c->kept[layer], p->pos, p->n_tok, deal ? c->slots : none);
    if (kv_store_by_position(c->store)) kv_store_put(c->store, p, layer, none, 1, k, v);
    else kv_store_put(c->store, p, layer, deal ? c->slots : p->pos, deal ? c->n_lists : 1, k, v);
}

/* All that a layer keeps; listed: through its lists. */
static attn_seg kept_seg(const evict_ctx *c, int layer, bool listed, bool mask)
{
    const kept_rows *l = &c->kept[layer];
    buf none = {NULL};
    attn_seg s = {.range = l->range,
                  .n_max = c->attended,
                  .band = c->base.shape->window[layer],
                  .scores = c->scored ? c->logits : none,
                  .score_stride = c->stride};
    if (!listed) { /* the first entry of a range is 0, which is the position of slot 0 as well */
        s.rows = &c->together[layer];
        s.n_lists = 1;
        s.kpos = mask ? l->range : none;
        return s;
    }
    s.n_lists = l->n_lists;
    s.rows = c->rule.by_rank ? &c->ranked : kv_store_rows(c->store, layer);
    s.copied = c->rule.by_rank;
    if (!c->rule.by_rank) s.idx = l->slot.p ? l->slot : l->at;
    s.idx_stride = l->stride;
    s.at = mask ? l->at : none;
    return s;
}

void evict_select(attn_ctx *base, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    (void)q_raw;
    (void)q;
    evict_ctx *c = evict_of(base);
    bool mask = (p->flags & ATTN_PROMPT) || base->shape->window[layer] > 0;
    if (c->listed && c->rule.by_rank)
        base->be->ops->evict->by_rank(
            base->be, &c->ranked, kv_store_rows(c->store, layer), &c->kept[layer],
            buf_at(p->pos, (p->n_tok - 1) * sizeof(int64_t)), p->freq, base->read);
    sel->n_seg = 1;
    sel->seg[0] = kept_seg(c, layer, c->listed, mask);
}

attn_job evict_job(const evict_ctx *c, int layer, bool listed, size_t n_tok, buf q, buf lse,
                   buf qpos)
{
    attn_seg s = kept_seg(c, layer, listed, true);
    return (attn_job){.q = q,
                      .lse = lse,
                      .n_tok = n_tok,
                      .n_heads = (size_t)c->base.shape->n_heads,
                      .rows = *s.rows,
                      .range = s.range,
                      .idx = s.idx,
                      .n_lists = s.n_lists,
                      .idx_stride = s.idx_stride,
                      .n_max = s.n_max,
                      .qpos = qpos,
                      .kpos = s.kpos,
                      .at = s.at,
                      .band = s.band,
                      .scale = c->base.shape->scale,
                      .read = c->base.read,
                      .copied = s.copied,
                      .scores = s.scores,
                      .score_stride = s.score_stride};
}

void evict_add_ranks(const evict_ctx *c, buf score)
{
    if (c->rule.lists == EVICT_LAYER) c->base.be->ops->all_reduce(c->base.be, score, (size_t)c->attended);
}

static void prune(evict_ctx *c, const attn_part *p, int layer, int64_t budget)
{
    keep_rule r = {.band = c->base.shape->window[layer],
                   .budget = budget,
                   .recent = c->rule.recent,
                   .by_count = c->rule.by_count};
    c->base.be->ops->evict->prune(c->base.be, &c->kept[layer],
                                  buf_at(p->pos, (p->n_tok - 1) * sizeof(int64_t)), &r);
}

/* Entries behind a window go with or without a budget that asks for it. */
void evict_layer_end(attn_ctx *base, const attn_part *p, int layer)
{
    evict_ctx *c = evict_of(base);
    int64_t budget = base->spec->budget;
    if (c->due && !c->listed) open_lists(c, layer);
    if ((c->listed || c->due) && base->shape->window[layer] > 0) prune(c, p, layer, INT64_MAX);
    if (c->due && c->rule.vote) c->rule.vote(c, p, layer);
    if (c->due) {
        prune(c, p, layer, budget);
        if ((p->flags & ATTN_PROMPT) && !kv_store_by_position(c->store)) {
            base->be->ops->evict->compact(base->be, kv_store_rows(c->store, layer), &c->kept[layer],
                                          budget + 1);
            kv_store_discard(c->store, layer, budget + 1);
        }
    }
    kv_store_layer_end(c->store, layer);
}

void evict_step_end(attn_ctx *base, const attn_part *p)
{
    evict_ctx *c = evict_of(base);
    kv_store_end(c->store);
    c->stored = c->due ? base->spec->budget : c->attended;
    c->listed |= c->due;
    if (p->flags & ATTN_PROMPT_END) c->turns++;
}

/* Sums hold what later queries gave, which cannot be taken back. */
const char *evict_rewind(attn_ctx *base, int64_t n)
{
    evict_ctx *c = evict_of(base);
    if (n == base->length) return NULL;
    if (c->listed) return "tokens were evicted";
    if (c->rule.sums) return "the sums hold the weights of later queries";
    if (!kv_store_rewind(c->store, n)) return KV_NO_REWIND;
    set_counts(c, n);
    return NULL;
}

/* ---- saving and loading ---- */

/* Whether a list of n entries can be: ascending positions, all of them while nothing was evicted. *rows: the slots that
 * hold a row. work i32 [2][stride]. */
static status check_list(const evict_ctx *c, int layer, size_t list, int64_t n, int32_t *work, int64_t *rows, err *e)
{
    backend *be = c->base.be;
    const kept_rows *l = &c->kept[layer];
    size_t column = list * c->stride * sizeof *work;
    int32_t *at = work, *slot = work + c->stride;
    be->ops->download(be, at, buf_at(l->at, column), (size_t)n * sizeof *at);
    for (int64_t i = 0; i < n; i++)
        if (at[i] < (i > 0 ? at[i - 1] + 1 : 0) || at[i] >= c->base.length || (!c->listed && at[i] != i))
            return state_bad("positions in a list", e);
    if (!c->listed || !l->slot.p) return ST_OK;
    /* All slots, each once: the marks take the place of the positions. */
    be->ops->download(be, slot, buf_at(l->slot, column), c->stride * sizeof *slot);
    memset(at, 0, c->stride * sizeof *at);
    for (size_t i = 0; i < c->stride; i++) {
        if (slot[i] < 0 || (size_t)slot[i] >= c->stride || at[slot[i]]++) return state_bad("slots in a list", e);
        if ((int64_t)i < n && slot[i] >= *rows) *rows = slot[i] + 1;
    }
    return ST_OK;
}

/* The lists of a layer; *rows as of check_list. */
static status state_of_lists(evict_ctx *c, attn_state *v, int layer, int32_t *work, int64_t *rows, err *e)
{
    const kept_rows *l = &c->kept[layer];
    for (size_t i = 0; i < c->n_lists; i++) {
        int64_t range[2];
        size_t column = i * c->stride * sizeof(int32_t);
        c->base.be->ops->download(c->base.be, range, buf_at(l->range, i * sizeof range), sizeof range);
        if (range[0] != 0 || range[1] < 0 || range[1] > c->stored || (!c->listed && range[1] != c->stored))
            return state_bad("the length of a list", e);
        size_t bytes = (size_t)range[1] * sizeof(int32_t);
        TRY(v->mem(v, "positions", layer, buf_at(l->at, column), bytes, e));
        if (c->listed && l->slot.p)
            TRY(v->mem(v, "slots", layer, buf_at(l->slot, column), c->stride * sizeof(int32_t), e));
        if (c->rule.sums) TRY(v->mem(v, "sums", layer, buf_at(l->score, column), bytes, e));
        TRY(check_list(c, layer, i, range[1], work, rows, e));
    }
    return ST_OK;
}

/* Counts of entries: bounds of what ops will look at. */
static status check_counts(const evict_ctx *c, err *e)
{
    int64_t len = c->base.length, budget = c->base.spec->budget;
    TRY(state_within("entries of a list", c->stored, 0, c->rule.once || len < budget ? len : budget, e));
    TRY(state_within("prompts", c->turns, 0, len, e));
    return c->listed || c->stored == len ? ST_OK : state_bad("tokens are missing", e);
}

status evict_state(attn_ctx *base, attn_state *v, err *e)
{
    evict_ctx *c = evict_of(base);
    uint8_t listed = c->listed;
    int64_t rows = 0;
    int32_t *work;
    TRY(STATE_HOST(v, "evicted", &listed, e));
    TRY(STATE_HOST(v, "entries", &c->stored, e));
    TRY(STATE_HOST(v, "prompts", &c->turns, e));
    c->listed = listed != 0;
    TRY(check_counts(c, e));
    TRY(v->mem(v, "lengths", -1, c->range, range_bytes(c), e));
    TRY(MEM_NEW(&work, 2 * c->stride, e));
    status st = ST_OK;
    for (int l = 0; l < base->shape->n_layers && st == ST_OK; l++)
        if (base->layers[l]) st = state_of_lists(c, v, l, work, &rows, e);
    mem_free(work);
    TRY(st);
    return kv_store_state(c->store, v, base->length, c->listed ? rows : base->length, e);
}

/* ---- counts ---- */

static int64_t count_of(const evict_ctx *c, int layer, size_t list)
{
    int64_t range[2];
    backend *be = c->base.be;
    be->ops->download(be, range, buf_at(c->kept[layer].range, list * sizeof range), sizeof range);
    return range[1];
}

/* Positions of a list into c->host; their number. */
static int64_t read_list(const evict_ctx *c, int layer, size_t list)
{
    int64_t n = count_of(c, layer, list);
    backend *be = c->base.be;
    int32_t at;
    be->ops->download(be, c->host, buf_at(c->kept[layer].at, list * c->stride * sizeof at),
                      (size_t)n * sizeof at);
    for (int64_t i = n - 1; i >= 0; i--) { /* widened in place */
        memcpy(&at, (char *)c->host + (size_t)i * sizeof at, sizeof at);
        c->host[i] = at;
    }
    return n;
}

/* Bytes of a layer whose lists differ: with a window, or with codes, whose groups stay while one of
 * their tokens does. During a forward its own tokens count in full. */
static size_t listed_bytes(const evict_ctx *c, int layer, int64_t n_new, int64_t *entries)
{
    size_t bytes = 0, regions = c->n_regions / c->n_lists;
    *entries = 0;
    for (size_t i = 0; i < c->n_lists; i++) {
        int64_t n = read_list(c, layer, i), len = c->base.length;
        while (n_new > 0 && n > 0 && c->host[n - 1] >= len) n--;
        for (int64_t k = 0; k < n_new && n < (int64_t)c->stride; k++) c->host[n++] = len + k;
        bytes += regions * kv_store_bytes_of(c->store, c->host, n);
        *entries += n;
    }
    return bytes;
}

static void count_held(const attn_ctx *base, int64_t n_new, bool most, attn_bytes *out)
{
    const evict_ctx *c = (const evict_ctx *)base;
    for (int l = 0; l < base->shape->n_layers; l++) {
        int64_t entries = (int64_t)c->n_lists * (c->stored + n_new);
        if (!base->layers[l]) continue;
        bool differ = c->listed && (kv_store_by_position(c->store) || base->shape->window[l] > 0);
        if (differ && most)
            out->kv += c->n_regions * kv_store_bytes_most(c->store, base->length + n_new, c->stored + n_new);
        else if (differ) out->kv += listed_bytes(c, l, n_new, &entries);
        else out->kv += kv_store_bytes(c->store, c->stored + n_new);
        out->index += (size_t)entries * entry_bytes(base->spec, &c->rule);
    }
    out->scratch += slots_bytes(c) + range_bytes(c) + range_bytes(c) / 2 +
                    (c->score.p ? score_bytes(c) : 0) + (c->logits.p ? logits_bytes(c) : 0) +
                    (c->k.p ? 2 * rows_bytes(c) : 0) + (c->ranked.k.p ? 2 * ranked_bytes(c) : 0);
}

void evict_held(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    count_held(base, n_new, false, out);
}

void evict_held_most(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    count_held(base, n_new, true, out);
}

/* On average over the lists, where windows make them differ. */
int64_t evict_attended(const attn_ctx *base, int layer)
{
    const evict_ctx *c = (const evict_ctx *)base;
    int64_t window = base->shape->window[layer], sum = 0;
    if (window == 0) return c->attended;
    if (!c->listed) return c->attended < window ? c->attended : window;
    base->be->ops->download(base->be, c->host, c->kept[layer].seen, c->n_lists * sizeof *c->host);
    for (size_t i = 0; i < c->n_lists; i++) sum += c->host[i];
    return (sum + (int64_t)c->n_lists / 2) / (int64_t)c->n_lists;
}

int64_t evict_positions(const attn_ctx *base, int layer, int head, int64_t *out)
{
    const evict_ctx *c = (const evict_ctx *)base;
    if (!base->layers[layer]) return 0;
    int64_t n = read_list(c, layer, c->n_lists == 1 ? 0 : (size_t)head);
    for (int64_t i = 0; out && i < n; i++) out[i] = c->host[i];
    return n;
}
