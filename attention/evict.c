/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/evict.h"

#include <stddef.h>
#include <string.h>

#include "kernels/base/mem.h"

/* ---- rules and sizes ---- */

static const evict_kind *kind_of(const attn_spec *s)
{
    return s->method->kind;
}

static evict_rule rule_of(const attn_spec *s)
{
    gqa_mode gqa = attn_gqa(s);
    evict_rule r = {.gqa = gqa, .how = gqa == GQA_MAX_S ? COMBINE_MAX : gqa == GQA_SUM_S ? COMBINE_SUM : COMBINE_MEAN};
    r.low = demote_rule_of(s);
    kind_of(s)->rule(s, &r);
    return r;
}

/* Returns the entries that a list keeps of n tokens, including those that wait for a full group to be demoted. */
static int64_t budget_at(const attn_spec *s, int64_t n)
{
    int64_t keep = kind_of(s)->keeps ? kind_of(s)->keeps(s, n) : s->budget;
    return keep + max64(n - keep, 0) % demote_rule_of(s).group;
}

/* Returns the most entries of a list that are demoted of n tokens. */
static int64_t most_demoted(const attn_spec *s, int64_t n)
{
    return max64(n - budget_at(s, n), 0);
}

/* True if all heads of a layer share one list. */
static bool by_layer(const evict_rule *r)
{
    return r->gqa >= GQA_LAYER_MEAN;
}

static const char *evict_alone(const attn_spec *s)
{
    evict_rule r = rule_of(s);
    return r.sums && by_layer(&r) ? "gqa=layer_mean sums over the heads of all ranks; use gqa=mean_s" : NULL;
}

status evict_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    static const char *const why[GQA_COUNT] = {
        [GQA_MEAN_Q] = "gqa=mean_q: each query has its own weights; use mean_s",
        [GQA_VOTE] = "gqa=vote: attention weights are already a softmax; use sum_s",
        [GQA_LAYER_VOTE] = "gqa=layer_vote: attention weights are already a softmax; use layer_mean",
        [GQA_LAYER_CONCAT] = "gqa=layer_concat: weights belong to single heads; use layer_mean"};
    const char *bad = why[attn_gqa(s)];
    int64_t least = kind_of(s)->least;
    if (bad) return err_set(e, ST_USAGE, "%s: %s", s->text, bad);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least %lld", s->text, (long long)s->budget,
                       (long long)least);
    evict_rule r = rule_of(s);
    return demote_check(s, r.low, shape, e);
}

static size_t lists_of(const evict_rule *r, const attn_shape *sh)
{
    return gqa_lists(r->gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
}

static int64_t chunk_of(const attn_limits *lim)
{
    return min64(lim->chunk, lim->n_tokens);
}

/* Returns the peak entries of a list: a whole prompt, or the kept entries and one chunk. */
static int64_t most_entries(const attn_spec *s, const attn_limits *lim, const evict_rule *r)
{
    int64_t most = s->budget + r->low.group - 1;
    int64_t chunked = chunk_of(lim) < lim->n_tokens - most ? most + chunk_of(lim) : lim->n_tokens;
    return r->each_chunk && !r->once ? chunked : lim->n_tokens;
}

/* True if tokens were evicted from a sequence of n tokens, between forwards. */
static bool evicted(int64_t entries, int64_t n)
{
    return entries < n;
}

/* ---- memory ---- */

#define AT(member) offsetof(evict_ctx, member)

/* Declares a column of the lists of each layer. */
static void decl_column(attn_decl *d, size_t at, const char *name, int64_t cap)
{
    decl_regions(d, MEM_STATE, at, name, d->lists, sizeof(int32_t), cap, min64(d->entries, cap));
}

static void evict_declare(attn_decl *d)
{
    const attn_shape *sh = d->shape;
    evict_rule r = rule_of(d->spec);
    bool each = r.gqa == GQA_PER_Q, coded = kv_has_codes(&d->spec->kv);
    size_t n = (size_t)sh->n_layers, lists = lists_of(&r, sh), f32 = sizeof(float), i64 = sizeof(int64_t);
    size_t heads = (size_t)sh->n_heads, dim = (size_t)sh->head_dim;
    int64_t stride = most_entries(d->spec, d->lim, &r), chunk = chunk_of(d->lim);
    d->lists = lists;
    if (each) d->heads = heads;
    if (!coded) d->slots = stride;
    decl_bytes(d, MEM_COUNTS, AT(range), "lengths", n * lists * 2 * i64);
    decl_bytes(d, MEM_SCRATCH, AT(seen), "lists of kept tokens", n * lists * i64);
    decl_bytes(d, MEM_HOST, AT(counts), "lists of kept tokens", n * lists * 2 * i64);
    decl_bytes(d, MEM_HOST, AT(kept), "lists of kept tokens", n * sizeof(kept_rows));
    decl_column(d, AT(at), "positions", stride);
    if (!coded) decl_column(d, AT(slot), "slots", stride);
    if (!coded)
        d->buffers.mem[d->buffers.n_mem - 1].whole =
            evicted(d->entries, d->n); /* after evictions a permutation of all slots */
    if (r.sums) decl_column(d, AT(sum), "sums", stride);
    if (!r.sums) decl_scratch(d, AT(score), "scores", lists * f32, stride);
    if (!r.once) decl_scratch(d, AT(logits), "logits", heads * f32, stride);
    decl_scratch(d, AT(slots), "new slots", lists * i64, chunk);
    if (each) decl_scratch(d, AT(k), "K rows of all heads", heads * dim * f32, chunk);
    if (each) decl_scratch(d, AT(v), "V rows of all heads", heads * dim * f32, chunk);
    demote_declare(d, AT(low), r.low, most_demoted(d->spec, d->lim->n_tokens));
}

/* Sets all lists to the first n positions. */
static void set_counts(attn_view *v, int64_t n)
{
    evict_ctx *c = v->own;
    size_t numbers = 2 * (size_t)v->shape->n_layers * c->n_lists;
    for (size_t i = 0; i < numbers; i++) c->counts[i] = i % 2 ? n : 0;
    v->be->ops->upload(v->be, c->range, c->counts, numbers * sizeof *c->counts);
    v->stored = n;
}

static kept_rows kept_of(const attn_view *v, int layer)
{
    const evict_ctx *c = v->own;
    size_t first = (size_t)layer * c->n_lists * sizeof(int64_t);
    return (kept_rows){.at = c->at[layer],
                       .slot = c->slot ? c->slot[layer] : (buf){NULL},
                       .score = c->sum ? c->sum[layer] : c->score,
                       .range = buf_at(c->range, 2 * first),
                       .seen = buf_at(c->seen, first),
                       .read = attn_index_read(v),
                       .n_lists = c->n_lists,
                       .stride = c->stride};
}

void evict_reset(attn_view *v)
{
    evict_ctx *c = v->own;
    c->rule = rule_of(v->spec);
    c->n_lists = lists_of(&c->rule, v->shape);
    c->stride = (size_t)most_entries(v->spec, v->lim, &c->rule);
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l]) c->kept[l] = kept_of(v, l);
    demote_reset(&c->low, v, c->rule.low, c->n_lists, most_demoted(v->spec, v->lim->n_tokens));
    c->scored = c->due = false;
    c->attended = c->prompts = 0;
    set_counts(v, 0);
}

/* ---- a forward ---- */

bool evict_prunes(const attn_view *v, int64_t n)
{
    const evict_ctx *c = v->own;
    bool open = !c->rule.once || c->rule.each_prompt || c->prompts == 0;
    return open && v->stored + n > budget_at(v->spec, v->length + n);
}

static bool evict_exact_prompt(const attn_view *v, int64_t n)
{
    const evict_ctx *c = v->own;
    return !v->listed && (!c->rule.each_chunk || !evict_prunes(v, n));
}

static void open_lists(const attn_view *v, int layer)
{
    const evict_ctx *c = v->own;
    if (!kv_store_by_position(v->store)) v->be->ops->evict->open(v->be, &c->kept[layer]);
}

/* True if this forward must observe. Sums are updated as long as a later pruning may use them. */
static bool observes(const attn_view *v, bool prompt)
{
    const evict_ctx *c = v->own;
    if (!c->rule.sums) return c->due;
    return v->lim->n_tokens > budget_at(v->spec, v->lim->n_tokens) && (!c->rule.once || (prompt && c->prompts == 0));
}

void evict_begin(attn_view *v, const attn_part *p)
{
    evict_ctx *c = v->own;
    bool prompt = p->flags & ATTN_PROMPT;
    c->attended = v->stored + (int64_t)p->n_tok;
    c->scored = c->logits.p && !prompt;
    if (prompt) c->due = (p->flags & ATTN_PROMPT_END || c->rule.each_chunk) && evict_prunes(v, (int64_t)p->n_tok);
    else c->due = !c->rule.once && c->attended > budget_at(v->spec, v->length + 1);
    v->observes = observes(v, prompt);
    if (prompt || !c->due || v->listed) return;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l]) open_lists(v, l);
    v->listed = true;
}

static kv_write_job append_one(const attn_task *t, int layer)
{
    attn_view *v = t->v;
    const attn_part *p = &t->p;
    evict_ctx *c = v->own;
    const evict_ops *o = v->be->ops->evict;
    size_t dim = (size_t)v->shape->head_dim, kv = (size_t)v->shape->n_kv_heads;
    bool deal = v->listed && !kv_store_by_position(v->store), each = c->rule.gqa == GQA_PER_Q;
    kv_target to = {.pos = p->first, .first = p->first, .n_lists = 1};
    if (each) {
        o->repeat_heads(v->be, c->k, t->k, p->n_tok, kv, c->n_lists / kv, dim);
        o->repeat_heads(v->be, c->v, t->val, p->n_tok, kv, c->n_lists / kv, dim);
    }
    if (deal) {
        to.slots = c->slots;
        to.n_lists = c->n_lists;
    }
    o->append(v->be, &c->kept[layer], p->first, p->n_tok, to.slots);
    return kv_store_job(v->store, layer, to, each ? c->k : t->k, each ? c->v : t->val, p->n_tok);
}

void evict_append(const attn_task *t, size_t n, int layer)
{
    kv_write_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) jobs[i] = append_one(&t[i], layer);
    t->v->be->ops->kv_write(t->v->be, jobs, n);
}

/* Returns a segment of all rows that a layer keeps. listed: read through the lists. */
static attn_seg kept_seg(const attn_view *v, int layer, bool listed, bool mask)
{
    evict_ctx *c = v->own;
    const kept_rows *l = &c->kept[layer];
    attn_seg s = {.n_lists = 1,
                  .n_max = c->attended,
                  .band = v->shape->window[layer],
                  .scores = c->scored ? c->logits : (buf){NULL},
                  .score_stride = c->stride};
    if (!listed) {
        c->by_kv_head = kv_rows_by_kv_head(kv_store_rows(v->store, layer), (size_t)v->shape->n_kv_heads);
        s.rows = &c->by_kv_head;
        s.masked = mask;
        return s;
    }
    s.range = l->range;
    s.n_lists = l->n_lists;
    s.idx_stride = l->stride;
    s.rows = kv_store_rows(v->store, layer);
    s.idx = l->slot.p ? l->slot : l->at;
    if (mask) s.at = l->at;
    s.pos = l->at;
    s.pos_lists = l->n_lists;
    s.pos_stride = l->stride;
    return s;
}

static int64_t newest(const attn_part *p)
{
    return p->first + (int64_t)p->n_tok - 1;
}

/* Returns the number of demoted rows of each list, until the layers of a forward end. */
static int64_t n_demoted(const attn_view *v)
{
    const evict_ctx *c = v->own;
    return c->rule.low.how == DEMOTE_NONE ? 0 : v->length - v->stored;
}

static void evict_select(const attn_task *t, size_t n, int layer)
{
    for (; n > 0; n--, t++) {
        attn_view *v = t->v;
        evict_ctx *c = v->own;
        t->sel->n_seg = 1;
        t->sel->seg[0] = kept_seg(v, layer, v->listed, attn_masked(v, &t->p, layer));
        t->sel->attended = attn_visible(v->shape, layer, c->attended); /* with lists and windows: set in end */
        demote_select(&c->low, t, layer, n_demoted(v));
    }
}

attn_job evict_job(const attn_view *v, int layer, bool listed, size_t n_tok, buf q, buf lse, buf qpos)
{
    attn_seg s = kept_seg(v, layer, listed, true);
    attn_job j = attn_seg_job(v, &s);
    j.q = q;
    j.lse = lse;
    j.n_tok = n_tok;
    j.qpos = qpos;
    return j;
}

void evict_add_weights(attn_view *v, const attn_part *p, int layer, buf q, buf lse)
{
    const evict_ctx *c = v->own;
    attn_job j = evict_job(v, layer, v->listed, p->n_tok, q, lse, p->pos);
    v->be->ops->evict->colsum(v->be, &j, c->n_lists, c->rule.how, true, c->sum[layer], c->stride);
}

void evict_add_ranks(const attn_view *v, buf score)
{
    const evict_ctx *c = v->own;
    if (by_layer(&c->rule)) v->be->ops->all_reduce(v->be, score, (size_t)c->attended);
}

static void prune(const attn_view *v, const attn_part *p, int layer, int64_t budget)
{
    const evict_ctx *c = v->own;
    keep_rule r = {.band = v->shape->window[layer],
                   .budget = budget,
                   .recent = kind_of(v->spec)->keeps ? budget / 2 : c->rule.recent};
    if (budget < INT64_MAX) demote_listen(&c->low, layer, n_demoted(v), &r);
    v->be->ops->evict->prune(v->be, &c->kept[layer], newest(p), &r);
    if (budget < INT64_MAX) demote_take(&c->low, v, layer, n_demoted(v), c->attended - budget);
}

/* Drops entries outside the layer's window, then prunes to the budget if due. */
void evict_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const evict_ctx *c = v->own;
    const evict_kind *kind = kind_of(v->spec);
    int64_t budget = budget_at(v->spec, newest(p) + 1);
    if (c->due && !v->listed) open_lists(v, layer);
    if ((v->listed || c->due) && v->shape->window[layer] > 0) prune(v, p, layer, INT64_MAX);
    if (!c->due) return;
    if (kind->vote) kind->vote(v, p, layer);
    prune(v, p, layer, budget);
    if ((p->flags & ATTN_PROMPT) && !kv_store_by_position(v->store)) {
        v->be->ops->evict->compact(v->be, kv_store_rows(v->store, layer), &c->kept[layer], budget + 1);
        kv_store_discard(v->store, layer, budget + 1);
    }
}

/* Returns the entries that a step attended, averaged over lists, which can differ in layers with a window. */
static int64_t mean_seen(const attn_view *v, int layer)
{
    const evict_ctx *c = v->own;
    int64_t sum = 0, n = (int64_t)c->n_lists;
    v->be->ops->download(v->be, c->counts, c->kept[layer].seen, c->n_lists * sizeof *c->counts);
    for (size_t i = 0; i < c->n_lists; i++) sum += c->counts[i];
    return (sum + n / 2) / n;
}

static void evict_end(attn_view *v, const attn_part *p)
{
    evict_ctx *c = v->own;
    v->stored = c->due ? budget_at(v->spec, newest(p) + 1) : c->attended;
    v->listed |= c->due;
    if (p->flags & ATTN_PROMPT_END) c->prompts++;
    if (!v->listed || (p->flags & ATTN_PROMPT)) return;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l] && v->shape->window[l] > 0) v->attended[l] = mean_seen(v, l);
}

/* Fails after evictions, and if sums include weights of dropped queries. */
static const char *evict_rewind(attn_view *v, int64_t n)
{
    const evict_ctx *c = v->own;
    if (n == v->length) return NULL;
    if (v->listed) return "tokens were evicted";
    if (c->rule.sums && observes(v, false)) return "the sums include the weights of later queries";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    set_counts(v, n);
    return NULL;
}

/* ---- lists on the host: kept positions, saving and loading ---- */

static int64_t count_of(const attn_view *v, int layer, size_t list)
{
    const evict_ctx *c = v->own;
    int64_t range[2];
    v->be->ops->download(v->be, range, buf_at(c->kept[layer].range, list * sizeof range), sizeof range);
    return range[0] == 0 ? range[1] : -1;
}

static int64_t evict_kept(const attn_view *v, int layer, size_t list, int64_t *out)
{
    const evict_ctx *c = v->own;
    int64_t n = count_of(v, layer, list);
    if (out) demote_download(v, buf_at(c->at[layer], list * c->stride * sizeof(int32_t)), n, out);
    return n;
}

static int64_t evict_demoted(const attn_view *v, int layer, size_t list, int64_t *out)
{
    const evict_ctx *c = v->own;
    int64_t n = n_demoted(v);
    if (out && n > 0) demote_download(v, buf_at(c->low.at[layer], list * (size_t)c->low.cap * sizeof(int32_t)), n, out);
    return n;
}

/* Validates a list: ascending positions, which before any eviction are all positions. Raises *rows to the number of
 * leading slots in use. work: i32 [2][stride]. */
static status check_list(const attn_view *v, int layer, size_t list, int32_t *work, int64_t *rows, err *e)
{
    const evict_ctx *c = v->own;
    const kept_rows *l = &c->kept[layer];
    size_t column = list * c->stride * sizeof *work;
    int32_t *at = work, *slot = work + c->stride;
    int64_t n = count_of(v, layer, list);
    if (n < 0 || n > v->stored || (!v->listed && n != v->stored)) return state_bad("the length of a list", e);
    v->be->ops->download(v->be, at, buf_at(l->at, column), (size_t)n * sizeof *at);
    for (int64_t i = 0; i < n; i++)
        if (at[i] < (i > 0 ? at[i - 1] + 1 : 0) || at[i] >= v->length || (!v->listed && at[i] != i))
            return state_bad("positions in a list", e);
    if (!v->listed || !l->slot.p) return ST_OK;
    /* Each slot must occur once. `at` is reused for marks. */
    v->be->ops->download(v->be, slot, buf_at(l->slot, column), c->stride * sizeof *slot);
    memset(at, 0, c->stride * sizeof *at);
    for (size_t i = 0; i < c->stride; i++) {
        if (slot[i] < 0 || (size_t)slot[i] >= c->stride || at[slot[i]]++) return state_bad("slots in a list", e);
        if ((int64_t)i < n && slot[i] >= *rows) *rows = slot[i] + 1;
    }
    return ST_OK;
}

static status check_lists(const attn_view *v, int64_t *rows, err *e)
{
    const evict_ctx *c = v->own;
    int32_t *work;
    status st = ST_OK;
    TRY(MEM_NEW(&work, 2 * c->stride, e));
    for (int l = 0; l < v->shape->n_layers; l++)
        for (size_t i = 0; i < c->n_lists && v->layers[l] && st == ST_OK; i++) st = check_list(v, l, i, work, rows, e);
    mem_free(work);
    return st;
}

/* True if kept and demoted entries of a list are all tokens, each once. pos, seen: scratch [length]. */
static bool is_partition(const attn_view *v, int layer, size_t list, int64_t *pos, bool *seen)
{
    int64_t n = evict_kept(v, layer, list, pos);
    if (n != v->stored) return false;
    memset(seen, 0, (size_t)v->length * sizeof *seen);
    evict_demoted(v, layer, list, pos + n);
    for (int64_t i = 0; i < v->length; i++) {
        if (pos[i] < 0 || pos[i] >= v->length || seen[pos[i]]) return false;
        seen[pos[i]] = true;
    }
    return true;
}

static status check_demoted(const attn_view *v, err *e)
{
    const evict_ctx *c = v->own;
    int64_t *pos;
    bool *seen, good = true;
    if (n_demoted(v) == 0) return ST_OK;
    TRY(MEM_NEW(&pos, (size_t)v->length, e));
    status st = MEM_NEW(&seen, (size_t)v->length, e);
    for (int l = 0; l < v->shape->n_layers && st == ST_OK; l++)
        for (size_t i = 0; i < c->n_lists && v->layers[l]; i++) good &= is_partition(v, l, i, pos, seen);
    mem_free(pos);
    if (st != ST_OK) return st;
    mem_free(seen);
    return good ? ST_OK : state_bad("positions of demoted rows", e);
}

/* Validates the counts of entries, since ops use them as bounds. */
static status evict_state(attn_view *v, attn_state *s, err *e)
{
    evict_ctx *c = v->own;
    int64_t rows = 0, len = v->length;
    TRY(STATE_HOST(s, "entries", &v->stored, e));
    TRY(STATE_HOST(s, "prompts", &c->prompts, e));
    TRY(state_within("entries of a list", v->stored, 0, c->rule.once ? len : min64(len, budget_at(v->spec, len)), e));
    TRY(state_within("prompts", c->prompts, 0, len, e));
    TRY(state_within("demoted rows", n_demoted(v), 0, c->low.cap, e));
    if (n_demoted(v) % c->rule.low.group) return state_bad("the number of demoted rows", e);
    v->listed = evicted(v->stored, len);
    TRY(attn_walk(v, s, e));
    TRY(check_lists(v, &rows, e));
    TRY(check_demoted(v, e));
    return kv_store_state(v->store, s, len, v->listed ? rows : len, e);
}

const attn_family attn_evict = {
    .hooks = {.declare = evict_declare,
              .reset = evict_reset,
              .begin = evict_begin,
              .append = evict_append,
              .select = evict_select,
              .layer_end = evict_layer_end,
              .end = evict_end,
              .rewind = evict_rewind,
              .state = evict_state,
              .exact_prompt = evict_exact_prompt,
              .kept = evict_kept,
              .demoted = evict_demoted},
    .size = sizeof(evict_ctx),
    .uses = USES(evict),
    .drops = true,
    .alone = evict_alone,
};
