/* SPDX-License-Identifier: MIT */
/* ParisKV: all rows are kept. A step attends the first `sink` tokens, the newest tokens, and the `budget` best of the
 * tokens between them (the indexed tokens), by an index of 6 bits per channel. doc/methods.md section 8.
 *
 * Regions: sink | indexed | local and update buffer. They follow in closed form (8.3) from the token count and the end
 * of the last prompt, so that no counter can differ between layers (8.7). Every token is encoded when it is appended,
 * since a store may quantize its row before it is indexed. Codes of tokens in the buffer exist but are not scored.
 * Rows, prompts, and steps that attend everything are as in `full`. */
#include "config.h"

#include <stddef.h>

#include "attention/method.h"
#include "kernels/base/rng.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_select.h"

enum { P_SINK, P_LOCAL, P_U, P_FULL_THR, P_RHO, P_BETA, P_CENTER, P_LEVELS, P_ALPHA, P_ROTATE };
enum { LEVELS_6, LEVELS_1 };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 64, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 256, 0, 1 << 20},
    [P_U] = {"u", NULL, "new tokens buffered before they are indexed; buffered tokens are attended", 512, 1, 1 << 20},
    [P_FULL_THR] = {"full_thr", NULL,
                    "attend everything if fewer tokens are visible than this or than sink + local + 2 budget", 2048, 0,
                    (int64_t)1 << 40},
    [P_RHO] = {"rho", NULL, "percent of keys that score in a subspace; 0: 50 to 20, by length (doc/methods.md 8.3)", 0,
               0, 100},
    [P_BETA] = {"beta", NULL, "percent of indexed tokens to rerank; 0: 50 to 10, by length (paper: 5 to 10)", 0, 0,
                100},
    [P_CENTER] = {"center", NULL, "1: subtract the mean key of the first prompt before encoding", 0, 0, 1},
    [P_LEVELS] = {"tiers", "6 1", "levels of the collision score", LEVELS_6, 0, 1},
    [P_ALPHA] = {"alpha", NULL, "0: omit the factor 1/alpha of the weights", 1, 0, 1},
    [P_ROTATE] = {"rotate", NULL, "0: omit the rotation", 1, 0, 1},
    {.key = NULL},
};

/* Plan of a forward in one layer. */
typedef struct {
    slot_range index;  /* indexed tokens that the layer sees */
    slot_range next;   /* the same after the end of a prompt or after a rewind */
    slot_range encode; /* tokens to encode */
    slot_range mean;   /* tokens of the mean key, if it is due */
    int64_t k;         /* tokens to select, at most index.n */
} paris_ranges;

/* Lists of buffers are those of paris_index, by layer; other buffers are scratch. */
typedef struct {
    paris_ranges *ranges; /* [n_layers] */
    bool *finds;          /* [n_layers] true if the current forward searches the layer */
    buf *id, *code, *count, *counted, *mean;
    buf sign;
    buf probe;          /* mean queries [n_kv_heads][head_dim] */
    buf y, norm;        /* rotated queries [n_kv_heads][dim], and their norms */
    buf bonus, score;   /* u8 [n_kv_heads][n_tokens] */
    buf cand;           /* i32, the same shape */
    buf final;          /* f32 [n_kv_heads][n_tokens] */
    buf idx, lists;     /* i32 [n_kv_heads][k] slots; their ranges, by layer */
    int64_t prompt_end; /* tokens at the end of the last prompt */
    int64_t *ends;      /* [n_tokens + 1] prompt_end at each length; within a prompt the length itself */
    int64_t encoded;    /* tokens with codes */
    int64_t to_encode;  /* tokens that this forward encodes */
} paris_memory;

/* Returns the fewest visible tokens of which a step attends only a selection. */
static int64_t covers(const attn_spec *s)
{
    const int64_t *v = s->value;
    return max64(v[P_FULL_THR], v[P_SINK] + v[P_LOCAL] + 2 * s->budget);
}

static void paris_regions(const attn_spec *s, attn_regions *r)
{
    const int64_t *v = s->value;
    *r = (attn_regions){.first = v[P_SINK], .newest = v[P_LOCAL] + v[P_U], .covers = covers(s) - 1};
}

static status paris_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d is too large, at most %d", s->text, shape->head_dim,
                       (int)PARIS_DIM_MAX);
    return ST_OK;
}

/* ---- memory ---- */

static size_t tables(const attn_shape *sh)
{
    return (size_t)sh->n_kv_heads * paris_subspaces((size_t)sh->head_dim);
}

#define AT(member) offsetof(paris_memory, member)

static void paris_declare(attn_decl *d)
{
    const attn_shape *sh = d->shape;
    size_t kv = (size_t)sh->n_kv_heads, head = (size_t)sh->head_dim, f = sizeof(float);
    size_t dim = paris_dim(head), nb = paris_subspaces(head), layers = (size_t)sh->n_layers;
    int64_t n = d->lim->n_tokens;
    const struct {
        size_t at, item;
        int64_t n;
    } work[] = {
        {AT(sign), dim * f, d->spec->value[P_ROTATE]},
        {AT(probe), head * f, sh->n_kv_heads},
        {AT(y), dim * f, sh->n_kv_heads},
        {AT(norm), f, sh->n_kv_heads},
        {AT(bonus), PARIS_PATTERNS, (int64_t)tables(sh)},
        {AT(score), kv, n},
        {AT(cand), kv * sizeof(int32_t), n},
        {AT(final), kv * f, n},
        {AT(idx), kv * sizeof(int32_t), min64(d->spec->budget, n)},
        {AT(lists), kv * 2 * sizeof(int64_t), sh->n_layers},
    };
    decl_regions(d, MEM_INDEX, AT(id), "ids", kv, nb, n, d->n);
    decl_regions(d, MEM_INDEX, AT(code), "codes", kv, nb * PARIS_CODE, n, d->n);
    decl_layers(d, MEM_STATE, AT(count), "bucket counts", tables(sh) * PARIS_PATTERNS * sizeof(int32_t));
    decl_layers(d, MEM_STATE, AT(counted), "tokens counted", 2 * sizeof(int64_t));
    if (d->spec->value[P_CENTER]) decl_layers(d, MEM_STATE, AT(mean), "mean of keys", kv * head * f);
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        decl_scratch(d, work[i].at, "ParisKV's work space", work[i].item, work[i].n);
    decl_bytes(d, MEM_HOST, AT(ranges), "ParisKV's work space", layers * sizeof(paris_ranges));
    decl_bytes(d, MEM_HOST, AT(finds), "ParisKV's work space", layers * sizeof(bool));
    decl_bytes(d, MEM_HOST, AT(ends), "ends of prompts", (size_t)(n + 1) * sizeof(int64_t));
    d->choose_lists = kv;
    d->choose_items = n;
}

static paris_index index_of(const attn_view *v, int layer)
{
    const paris_memory *s = v->own;
    return (paris_index){.id = s->id[layer],
                         .code = s->code[layer],
                         .count = s->count[layer],
                         .counted = s->counted[layer],
                         .sign = s->sign,
                         .mean = s->mean ? s->mean[layer] : (buf){NULL},
                         .n_kv_heads = (size_t)v->shape->n_kv_heads,
                         .head_dim = (size_t)v->shape->head_dim,
                         .cap = (size_t)v->lim->n_tokens,
                         .rounds = (size_t)attn_get(v, P_ROTATE),
                         .alpha = attn_get(v, P_ALPHA)};
}

/* ---- regions ---- */

/* First token and count of each region. */
typedef struct {
    slot_range sink, index, rest;
} regions;

/* Returns the regions of a layer for the query of token n - 1, after a prompt that ended with prompt_end tokens. Tokens
 * before the layer's window are in no region (0.2.11). Source: doc/methods.md 8.3. */
static regions regions_of(const attn_view *v, int layer, int64_t prompt_end, int64_t n)
{
    int64_t local = attn_get(v, P_LOCAL), u = attn_get(v, P_U), window = v->shape->window[layer],
            from = window > 0 ? max64(0, n - window) : 0;
    int64_t sink = min64(attn_get(v, P_SINK), n), n0 = max64(prompt_end, sink + local);
    int64_t flushes = n > n0 ? (n - n0 - 1) / u : 0;
    int64_t end = sink + max64(0, prompt_end - sink - local) + u * flushes;
    int64_t index = max64(sink, from), rest = max64(end, from);
    return (regions){
        .sink = {from, max64(0, sink - from)}, .index = {index, max64(0, end - index)}, .rest = {rest, n - rest}};
}

static bool is_sparse(const attn_view *v, const regions *r)
{
    bool short_of = !v->spec->forced && r->sink.n + r->index.n + r->rest.n < covers(v->spec);
    return !short_of && r->index.n > 0;
}

/* Returns the number of indexed tokens to select. */
static int64_t wanted(const attn_view *v, const regions *r)
{
    return min64(v->spec->budget, r->index.n);
}

/* ---- the index ---- */

/* Returns the row of the tables of rho and beta (doc/methods.md 8.3). */
static int table_row(int64_t n)
{
    return n < 5000 ? 0 : n < 10000 ? 1 : n < 30000 ? 2 : 3;
}

/* Returns the tokens to rerank of n indexed tokens, to select k. */
static int64_t candidates(const attn_view *v, int64_t n, int64_t k)
{
    static const int64_t table[] = {50, 25, 20, 10};
    int64_t beta = attn_get(v, P_BETA);
    if (beta == 0) beta = table[table_row(n)];
    return min64(max64((n * beta + 99) / 100, k), n);
}

/* Sets the limits of the levels of a search. A single level is the widest. */
static void set_limits(const attn_view *v, paris_job *j)
{
    static const int64_t table[] = {50, 30, 25, 20}, tau[PARIS_LEVELS] = {5, 15, 30, 50, 75, 100};
    int64_t n = j->range.n, rho = attn_get(v, P_RHO);
    if (rho == 0) rho = table[table_row(n)];
    j->n_levels = attn_get(v, P_LEVELS) == LEVELS_1 ? 1 : PARIS_LEVELS;
    for (size_t i = 0; i < j->n_levels; i++)
        j->limit[i] = (n * rho * tau[PARIS_LEVELS - j->n_levels + i] + 9999) / 10000;
}

/* Updates the bucket counts to ranges.next. Must run before counted codes change. */
static void count_next(const attn_view *v, int layer)
{
    const paris_memory *s = v->own;
    const paris_index x = index_of(v, layer);
    v->be->ops->paris->count(v->be, &x, s->ranges[layer].next, attn_index_read(v));
}

/* Selects the ranges.k best tokens of ranges.index for rotated queries q [n_heads][head_dim], one list per KV head. */
static attn_seg find(const attn_view *v, int layer, const kv_rows *rows, buf q)
{
    const paris_memory *s = v->own;
    const attn_shape *sh = v->shape;
    const paris_ops *o = v->be->ops->paris;
    const paris_index x = index_of(v, layer);
    const paris_ranges *r = &s->ranges[layer];
    size_t kv = x.n_kv_heads, stride = (size_t)min64(v->spec->budget, v->lim->n_tokens);
    int64_t m = candidates(v, r->index.n, r->k);
    buf probe = q, read = attn_index_read(v), lists = buf_at(s->lists, (size_t)layer * kv * 2 * sizeof(int64_t));
    if ((size_t)sh->n_heads > kv) {
        probe = s->probe;
        v->be->ops->select->mean_heads(v->be, probe, q, 1, (size_t)sh->n_heads, kv, x.head_dim);
    }
    o->query(v->be, s->y, s->norm, probe, kv, &x);
    o->count(v->be, &x, r->index, read);
    paris_job j = {.x = &x,
                   .y = s->y,
                   .norm = s->norm,
                   .range = r->index,
                   .m = m,
                   .bonus = s->bonus,
                   .score = s->score,
                   .cand = s->cand,
                   .est = s->final,
                   .read = read};
    set_limits(v, &j);
    o->search(v->be, &j);
    attn_choose(v,
                &(choose_job){.score = s->final,
                              .items = {m, 0, m},
                              .tail = m,
                              .k = r->k,
                              .n_lists = kv,
                              .stride = x.cap,
                              .granule = 1,
                              .most = m,
                              .idx_stride = (int64_t)stride,
                              .idx = s->idx,
                              .range = lists},
                1);
    o->resolve(v->be, s->idx, stride, lists, kv, s->cand, x.cap);
    return (attn_seg){.rows = rows, .range = lists, .idx = s->idx, .n_lists = kv, .idx_stride = stride, .n_max = r->k};
}

/* ---- a forward ---- */

static void set_ranges(attn_view *v, int layer, bool prompt, int64_t n)
{
    paris_memory *c = v->own;
    regions now = regions_of(v, layer, c->prompt_end, n),
            next = regions_of(v, layer, n, n + 1); /* after the end of a prompt */
    paris_ranges s = {
        .index = now.index, .next = next.index, .encode = {c->encoded, c->to_encode}, .k = wanted(v, &now)};
    /* center: the mean is over the indexed keys of the first prompt, or over all its keys if none is indexed. */
    if (prompt) s.mean = next.index.n > 0 ? next.index : (slot_range){0, n};
    c->ranges[layer] = s;
    c->finds[layer] = !prompt && is_sparse(v, &now);
}

static void paris_begin(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    int64_t n = v->length + (int64_t)p->n_tok;
    bool prompt = p->flags & ATTN_PROMPT, open = prompt && !(p->flags & ATTN_PROMPT_END);
    /* Encoding requires the mean: the first prompt is encoded as a whole at its end, before its rows are quantized. */
    c->to_encode = attn_get(v, P_CENTER) && c->encoded == 0 && open ? 0 : n - c->encoded;
    for (int l = 0; l < v->shape->n_layers; l++) {
        c->finds[l] = false;
        if (v->layers[l]) set_ranges(v, l, prompt, n);
    }
}

/* Encodes ranges.encode from rows that are not yet quantized. Before the first tokens it computes the mean. */
static void encode(const attn_view *v, int layer, const kv_rows *rows)
{
    const paris_memory *c = v->own;
    const paris_index x = index_of(v, layer);
    const paris_ranges *r = &c->ranges[layer];
    if (c->encoded == 0 && x.mean.p) v->be->ops->paris->mean(v->be, &x, rows, r->mean);
    if (r->encode.n > 0) v->be->ops->paris->encode(v->be, &x, rows, r->encode);
}

static void paris_append(const attn_task *t, size_t n, int layer)
{
    full_append(t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        const kv_rows *rows = kv_store_rows(t->v->store, layer);
        if (c->to_encode == 0) continue;
        kv_need(t->v->be, rows, c->encoded, c->encoded + c->to_encode);
        encode(t->v, layer, rows);
    }
}

static void select_sparse(const attn_task *t, int layer, const regions *r)
{
    attn_sel *sel = t->sel;
    const kv_rows *rows = sel->seg[0].rows;
    sel->n_seg = 0;
    if (attn_get(t->v, P_SINK) > 0)
        sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->sink.first, .n_max = r->sink.n};
    sel->seg[sel->n_seg++] = find(t->v, layer, rows, t->q);
    sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->rest.first, .n_max = r->rest.n};
    sel->head = r->index.first;
    sel->tail = r->rest.first;
    sel->attended = r->sink.n + r->rest.n + wanted(t->v, r);
}

static void paris_select(const attn_task *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        regions r = regions_of(t->v, layer, c->prompt_end, t->p.first + (int64_t)t->p.n_tok);
        if (!(t->p.flags & ATTN_PROMPT) && is_sparse(t->v, &r)) select_sparse(t, layer, &r);
    }
}

/* Counts a prompt's tokens at its end, not in the first step after it. */
static void paris_layer_end(attn_view *v, const attn_part *p, int layer)
{
    if (p->flags & ATTN_PROMPT_END) count_next(v, layer);
}

static void paris_end(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    c->encoded += c->to_encode;
    int64_t end = v->length + (int64_t)p->n_tok;
    if (p->flags & ATTN_PROMPT_END) c->prompt_end = end;
    for (int64_t n = v->length + 1; n <= end; n++) c->ends[n] = p->n_prompt > 0 ? n : c->prompt_end;
}

/* Returns to n tokens. Updates the bucket counts now, while the dropped codes still exist. */
static void forget(attn_view *v, int64_t n)
{
    paris_memory *c = v->own;
    c->prompt_end = c->ends[n];
    c->encoded = min64(c->encoded, n);
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l]) continue;
        c->ranges[l].next = regions_of(v, l, c->prompt_end, n).index;
        count_next(v, l);
    }
}

/* ---- between forwards ---- */

/* Uploads the random signs of the rotation (doc/methods.md 0.2.9) and clears the state. */
static void paris_reset(attn_view *v)
{
    paris_memory *c = v->own;
    float sign[2 * PARIS_DIM_MAX];
    size_t n = (size_t)attn_get(v, P_ROTATE) * paris_dim((size_t)v->shape->head_dim);
    rng r = {42};
    for (size_t i = 0; i < n; i++) sign[i] = rng_next(&r) >> 63 ? -1 : 1;
    if (n > 0) v->be->ops->upload(v->be, c->sign, sign, n * sizeof *sign);
    c->ends[0] = 0;
    forget(v, 0);
}

/* True if token n is inside the first prompt, whose mean key includes later keys. */
static bool in_first_prompt(const paris_memory *c, int64_t n, int64_t length)
{
    for (int64_t i = 1; i <= n; i++)
        if (c->ends[i] < i) return false;
    return n < length && c->ends[n + 1] > n;
}

static const char *paris_rewind(attn_view *v, int64_t n)
{
    const paris_memory *c = v->own;
    if (attn_get(v, P_CENTER) && in_first_prompt(c, n, v->length)) return "the mean key covers the whole prompt";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    forget(v, n);
    return NULL;
}

/* Validates the range of counted tokens, which the op `count` later subtracts, and the bucket counts. An empty range
 * may start anywhere: after a prompt of fewer tokens than `sink` it starts after the next token. */
static status check_counts(const attn_view *v, int layer, err *e)
{
    const paris_memory *s = v->own;
    const backend_ops *o = v->be->ops;
    int32_t count[PARIS_PATTERNS];
    int64_t range[2];
    o->download(v->be, range, s->counted[layer], sizeof range);
    if (range[1] < 0 || (range[1] > 0 && (range[0] < 0 || range[0] > v->length - range[1])))
        return state_bad("the tokens that were counted", e);
    for (size_t i = 0; i < tables(v->shape); i++) {
        int64_t sum = 0;
        o->download(v->be, count, buf_at(s->count[layer], i * sizeof count), sizeof count);
        for (size_t k = 0; k < PARIS_PATTERNS; k++) {
            if (count[k] < 0) return state_bad("a bucket count", e);
            sum += count[k];
        }
        if (sum != range[1]) return state_bad("the sum of bucket counts", e);
    }
    return ST_OK;
}

static void clear_counts(const attn_view *v, int layer)
{
    static const int32_t none[PARIS_PATTERNS];
    const paris_memory *s = v->own;
    for (size_t i = 0; i < tables(v->shape); i++)
        v->be->ops->upload(v->be, buf_at(s->count[layer], i * sizeof none), none, sizeof none);
    v->be->ops->upload(v->be, s->counted[layer], none, 2 * sizeof(int64_t));
}

static status walk_counts(attn_view *v, attn_state *state, err *e)
{
    status st = attn_walk(v, state, e);
    for (int l = 0; l < v->shape->n_layers && state->load && st == ST_OK; l++)
        if (v->layers[l]) st = check_counts(v, l, e);
    /* Damaged counts must not be updated further. */
    for (int l = 0; l < v->shape->n_layers && state->load && st != ST_OK; l++)
        if (v->layers[l]) clear_counts(v, l);
    return st;
}

static status paris_state(attn_view *v, attn_state *s, err *e)
{
    paris_memory *c = v->own;
    TRY(s->host(s, "ends of prompts", -1, c->ends, (size_t)(v->length + 1) * sizeof *c->ends, e));
    for (int64_t n = 0; n <= v->length; n++)
        TRY(state_within("end of the prompt", c->ends[n], n ? c->ends[n - 1] : 0, n, e));
    c->prompt_end = c->ends[v->length];
    c->encoded = v->length;
    TRY(walk_counts(v, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

const attn_method attn_pariskv = {
    .name = "pariskv",
    .summary = "ParisKV: first and newest tokens, and the best others by sign collisions and 4-bit codes",
    .source = "ParisKV (paper, whose budget is 100; cache_hub/polar_cache.py); doc/methods.md 8, deviations 8.7",
    .params = params,
    .family = &attn_keeping,
    .size = sizeof(paris_memory),
    .uses = USES(select) | USES(paris),
    .counts = "+forced",
    .gqa = "mean_q",
    .has_budget = true,
    .def_budget = 512,
    .reuse = ATTN_REUSE_ANY,
    .reuse_unless = "center",
    .check = paris_check,
    .regions = paris_regions,
    .hooks = {.declare = paris_declare,
              .reset = paris_reset,
              .begin = paris_begin,
              .append = paris_append,
              .select = paris_select,
              .layer_end = paris_layer_end,
              .end = paris_end,
              .rewind = paris_rewind,
              .state = paris_state},
};
