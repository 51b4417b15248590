/* SPDX-License-Identifier: MIT */
/* StreamingLLM: the first `sink` tokens and the last r = budget - sink. methods.md section 2.
 *
 * Slots: [0, s) sinks | [s, s+r+1) a ring of the newest | from s+r+1 on: rows of a prompt under way.
 * While nothing was evicted (LINEAR) slot = position - shift and there is one segment, as in full
 * attention. Afterwards (RING) position p has slot s + (p - base) mod (r+1), so that appending
 * overwrites exactly the row that was evicted after the step before. All keys stay rotated at their
 * absolute positions; re-indexing rotates the query once more for the sinks, at its slot in the
 * cache (the equivalent form of point 5).
 *
 * Over a store by position a slot is a position (c->fixed): the sets are the same, the ring is the range of the
 * newest, the rows of a prompt follow it, and nothing is copied. */
#include "config.h"

#include "attention/store.h"
#include "kernels/base/mem.h"

enum { P_SINK, P_POS, P_PREFILL, P_COMPAT };
enum { POS_REINDEX, POS_ABS };
enum { PREFILL_AUTO, PREFILL_FULL, PREFILL_BANDED };
enum { COMPAT_NONE, COMPAT_KVFACTORY };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "tokens kept from the start", 4, 0, 1 << 20},
    [P_POS] = {"pos", "reindex abs", "positions inside the cache, or absolute ones", POS_REINDEX, 0,
               1},
    [P_PREFILL] = {"prefill", "auto full banded",
                   "prompt attention: full, or what decoding would see; auto: full while the "
                   "prompt fits the trained context",
                   PREFILL_AUTO, 0, 2},
    [P_COMPAT] =
        {"compat", "none kvfactory",
         "kvfactory: evict once after the prompt, keep all that is generated (implies pos=abs)",
         COMPAT_NONE, 0, 1},
    {.key = NULL},
};

/* The state in ops memory, in i64 elements. */
enum {
    S_ZERO,
    S_LINEAR,              /* range of all rows, or of those behind the sinks (shift > 0) */
    S_SINK = S_LINEAR + 2, /* range of the sinks */
    S_RING = S_SINK + 2,   /* range of the ring */
    S_SHIFT = S_RING + 2,  /* position minus slot of LINEAR's rows */
    S_FIRST,               /* position of the first row of S_LINEAR */
    S_BASE,                /* position of the ring's first slot */
    S_OLD,                 /* a prompt's view of the ring: range and position of its older part, */
    S_OLD_POS = S_OLD + 2,
    S_NEW, /* and of the newer one */
    S_NEW_POS = S_NEW + 2,
    S_STAGE, /* range and position of the rows of the prompt under way */
    S_STAGE_POS = S_STAGE + 2,
    S_STAGE_BASE, /* pos_ring's base that sends positions to the staging slots */
    S_EVICTED,    /* E, tokens evicted before the prompt under way */
    S_COUNT
};

typedef struct {
    attn_ctx base;
    kv_store *store;
    int64_t s, r;
    bool fixed;   /* the store goes by position */
    bool ring;    /* evicted at least once */
    bool banded;  /* the prompt under way is banded */
    bool staging; /* a prompt is under way whose rows lie behind the ring */
    int64_t shift, ring_base, stage_pos;
    int64_t n_move; /* rows that layer_end copies */
    buf state, slots, qpos, table, move_src, move_dst;
    int64_t *host; /* [r] for uploads; [n_tokens] positions if fixed */
} stream_ctx;

static stream_ctx *ctx_of(attn_ctx *c)
{
    return (stream_ctx *)c;
}

static buf at(const stream_ctx *c, int i)
{
    return buf_at(c->state, (size_t)i * sizeof(int64_t));
}

static void put(stream_ctx *c, int i, int64_t x)
{
    c->base.be->ops->upload(c->base.be, at(c, i), &x, sizeof x);
}

static void put_range(stream_ctx *c, int i, int64_t first, int64_t n)
{
    put(c, i, first);
    put(c, i + 1, n);
}

static bool kvfactory(const stream_ctx *c)
{
    return attn_get(&c->base, P_COMPAT) == COMPAT_KVFACTORY;
}

static bool reindex(const stream_ctx *c)
{
    return attn_get(&c->base, P_POS) == POS_REINDEX && !kvfactory(c);
}

static status stream_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    if (s->budget < s->value[P_SINK] + 1)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + 1 = %lld",
                       s->text, (long long)s->budget, (long long)s->value[P_SINK] + 1);
    return ST_OK;
}

/* A budget that covers the window leaves nothing to evict. */
static bool stream_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    return shape->window[layer] > 0 && shape->window[layer] <= s->budget;
}

/* Rows behind the ring: a whole prompt, or one chunk of it where it is banded. */
static int64_t stage_rows(const attn_spec *s, const attn_shape *shape, const attn_limits *lim)
{
    int64_t dense = lim->n_tokens < shape->max_positions ? lim->n_tokens : shape->max_positions;
    if (s->value[P_PREFILL] == PREFILL_FULL) dense = lim->n_tokens;
    if (s->value[P_PREFILL] == PREFILL_BANDED) dense = 0;
    int64_t chunk = lim->chunk < lim->n_tokens ? lim->chunk : lim->n_tokens;
    return dense > chunk ? dense : chunk;
}

/* Rows of one layer: the ring and what lies behind it. A dense prompt comes to lie there only after budget + 1
 * tokens, so that more rows than tokens are needed for banded ones alone. */
static int64_t layer_rows(const attn_spec *s, const attn_shape *shape, const attn_limits *lim)
{
    int64_t most = s->budget + 1 + stage_rows(s, shape, lim), mode = s->value[P_PREFILL];
    bool all = kv_has_codes(&s->kv) || s->value[P_COMPAT] == COMPAT_KVFACTORY || lim->n_tokens <= s->budget;
    bool banded = mode == PREFILL_BANDED || (mode == PREFILL_AUTO && lim->n_tokens > shape->max_positions);
    return all || (!banded && lim->n_tokens < most) ? lim->n_tokens : most;
}

/* Bytes of the buffers of a sequence. */
typedef struct {
    size_t state, slots, qpos, table, moves;
} sizes;

static sizes sizes_of(const attn_spec *s, const attn_shape *shape, const attn_limits *lim)
{
    size_t chunk = (size_t)lim->chunk, r = (size_t)(s->budget - s->value[P_SINK]), pos = sizeof(int64_t);
    return (sizes){.state = S_COUNT * pos,
                   .slots = chunk * pos,
                   .qpos = chunk * pos,
                   .table = chunk * (size_t)shape->head_dim * sizeof(float),
                   .moves = r * pos};
}

static size_t scratch_bytes(const sizes *z)
{
    return z->state + z->slots + z->qpos + z->table + 2 * z->moves;
}

static status stream_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                          const bool *layers, err *e)
{
    for (int l = 0; l < shape->n_layers; l++) {
        size_t bytes;
        if (!layers[l]) continue;
        TRY(kv_plan_bytes(&bytes, &s->kv, shape, (size_t)shape->n_kv_heads, layer_rows(s, shape, lim), e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
    }
    sizes z = sizes_of(s, shape, lim);
    return size_add(&out->scratch, out->scratch, scratch_bytes(&z), "KV plan", e);
}

static void stream_free(attn_ctx *base)
{
    stream_ctx *c = ctx_of(base);
    const backend_ops *o = base->be->ops;
    sizes z = sizes_of(base->spec, base->shape, base->lim);
    kv_store_free(c->store);
    if (c->state.p) o->free(base->be, c->state, z.state);
    if (c->slots.p) o->free(base->be, c->slots, z.slots);
    if (c->qpos.p) o->free(base->be, c->qpos, z.qpos);
    if (c->table.p) o->free(base->be, c->table, z.table);
    if (c->move_src.p) o->free(base->be, c->move_src, z.moves);
    if (c->move_dst.p) o->free(base->be, c->move_dst, z.moves);
    mem_free(c->host);
    mem_free(c);
}

static void stream_reset(attn_ctx *base)
{
    stream_ctx *c = ctx_of(base);
    kv_store_reset(c->store);
    c->ring = c->banded = c->staging = false;
    c->shift = c->stage_pos = c->n_move = 0;
    c->ring_base = c->s;
    put(c, S_ZERO, 0);
    put_range(c, S_LINEAR, 0, 0);
    put_range(c, S_SINK, 0, c->s);
    put_range(c, S_RING, c->s, c->r + 1);
    put(c, S_SHIFT, 0);
    put(c, S_FIRST, 0);
    put(c, S_BASE, c->ring_base);
}

static status stream_buffers(stream_ctx *c, err *e)
{
    backend *be = c->base.be;
    const backend_ops *o = be->ops;
    sizes z = sizes_of(c->base.spec, c->base.shape, c->base.lim);
    TRY(o->alloc(be, &c->state, z.state, "streaming: state", e));
    TRY(o->alloc(be, &c->slots, z.slots, "streaming: slots", e));
    TRY(o->alloc(be, &c->qpos, z.qpos, "streaming: positions", e));
    TRY(o->alloc(be, &c->table, z.table, "streaming: rope table", e));
    TRY(o->alloc(be, &c->move_src, z.moves, "streaming: moves", e));
    TRY(o->alloc(be, &c->move_dst, z.moves, "streaming: moves", e));
    return MEM_NEW(&c->host, c->fixed ? (size_t)c->base.lim->n_tokens : (size_t)c->r, e);
}

static status stream_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    stream_ctx *c;
    int64_t *cap = NULL;
    const attn_shape *sh = base->shape;
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    c->base = *base;
    c->s = attn_get(base, P_SINK);
    c->r = base->spec->budget - c->s;
    status st = MEM_NEW(&cap, (size_t)sh->n_layers, e);
    if (st != ST_OK) goto done;
    int64_t rows = layer_rows(base->spec, sh, base->lim);
    for (int l = 0; l < sh->n_layers; l++) cap[l] = base->layers[l] ? rows : 0;
    TRY_GOTO(kv_store_create(&c->store, base, (size_t)sh->n_kv_heads, cap, e));
    c->fixed = kv_store_by_position(c->store);
    TRY_GOTO(stream_buffers(c, e));
    stream_reset(&c->base);
    *out = &c->base;
done:
    mem_free(cap);
    if (st != ST_OK) stream_free(&c->base);
    return st;
}

/* Slot of position p in RING. */
static int64_t ring_slot(const stream_ctx *c, int64_t p)
{
    if (c->fixed) return p;
    int64_t m = (p - c->ring_base) % (c->r + 1);
    return p < c->s ? p : c->s + (m < 0 ? m + c->r + 1 : m);
}

/* The rows that the ring holds before this prompt chunk, positions [lo, hi), as at most two runs of
 * slots: the mask needs them in the order of positions. */
static void view_ring(stream_ctx *c, int64_t lo, int64_t hi)
{
    int64_t n = hi > lo ? hi - lo : 0, first = n ? ring_slot(c, lo) : c->s;
    int64_t room = c->fixed ? n : c->s + c->r + 1 - first, n_old = n < room ? n : room;
    put_range(c, S_OLD, first, n_old);
    put(c, S_OLD_POS, lo);
    put_range(c, S_NEW, c->s, n - n_old);
    put(c, S_NEW_POS, lo + n_old);
}

/* A prompt after an eviction, or a banded one: its rows go behind the ring. */
static void stage_begin(stream_ctx *c, const attn_part *p)
{
    int64_t len = c->base.length, s = c->s;
    if (!c->staging || c->banded) {
        c->stage_pos = len > s ? len : s;
        put(c, S_EVICTED, len > s + c->r ? len - s - c->r : 0);
        put(c, S_STAGE_POS, c->stage_pos);
        put(c, S_STAGE_BASE, s + c->stage_pos - (s + c->r + 1));
        int64_t kept = len < s + c->r ? len : s + c->r; /* rows stored before */
        view_ring(c, kept > s ? len - (kept - s) : len, len);
        put_range(c, S_SINK, 0,
                  s); /* rows of sinks that are still to come are masked by position */
    }
    int64_t n = len + (int64_t)p->n_tok - c->stage_pos;
    put_range(c, S_STAGE, c->fixed ? c->stage_pos : s + c->r + 1, n > 0 ? n : 0);
    c->staging = true;
}

/* Plans the copies at the end of this forward: the last r rows move into the ring. */
static void plan_moves(stream_ctx *c, int64_t end)
{
    int64_t from = c->staging ? c->stage_pos : c->s;
    int64_t lo = end - c->r > from ? end - c->r : from;
    if (!c->staging) c->ring_base = lo; /* dst < src in ascending order: safe in place */
    c->n_move = end > lo ? end - lo : 0;
    if (c->fixed) return; /* what matters is that there are some */
    for (int64_t i = 0; i < c->n_move; i++)
        c->host[i] = c->staging ? c->s + c->r + 1 + lo + i - c->stage_pos : lo + i - c->shift;
    c->base.be->ops->upload(c->base.be, c->move_src, c->host, (size_t)c->n_move * sizeof(int64_t));
    for (int64_t i = 0; i < c->n_move; i++) c->host[i] = ring_slot(c, lo + i);
    c->base.be->ops->upload(c->base.be, c->move_dst, c->host, (size_t)c->n_move * sizeof(int64_t));
}

/* Whether a prompt of n tokens that is about to begin is attended in bands. auto: where some token would be
 * rotated further than the model was trained for. */
static bool is_banded(const stream_ctx *c, int64_t n)
{
    int64_t mode = attn_get(&c->base, P_PREFILL), end = c->base.length + n,
            last = c->ring && reindex(c) ? c->s + c->r + n : end;
    return end > c->s + c->r && !kvfactory(c) &&
           (mode == PREFILL_BANDED || (mode == PREFILL_AUTO && last > c->base.shape->max_positions));
}

static bool stream_exact_prompt(const attn_ctx *base, int64_t n)
{
    const stream_ctx *c = (const stream_ctx *)base;
    return !c->ring && c->shift == 0 && kv_store_exact(c->store) && !is_banded(c, n);
}

static void prompt_begin(stream_ctx *c, const attn_part *p)
{
    int64_t len = c->base.length, end = len + (int64_t)p->n_tok;
    if (p->prompt_done == 0) {
        c->banded = is_banded(c, p->n_prompt);
        c->ring = c->ring || c->banded;
    }
    if (c->ring) stage_begin(c, p);
    bool once = kvfactory(c) && len == p->prompt_done; /* the first prompt alone */
    bool last = p->flags & ATTN_PROMPT_END;
    if (c->ring ? c->banded || last : last && end > c->s + c->r && (!kvfactory(c) || once))
        plan_moves(c, end);
}

/* Slots of this forward's rows, and the range of the newest that a decode step attends. */
static void place_rows(stream_ctx *c, const attn_part *p)
{
    backend *be = c->base.be;
    const backend_ops *o = be->ops;
    if (!c->ring) {
        o->i64_add(be, at(c, S_LINEAR + 1), 1, (int64_t)p->n_tok);
        o->pos_shift(be, c->slots, p->pos, p->n_tok, INT64_MAX, at(c, S_SHIFT));
    } else if (c->fixed) {
        put_range(c, S_RING, c->base.length - c->r, c->r + 1);
    } else if (c->staging) {
        o->pos_ring(be, c->slots, p->pos, p->n_tok, c->s, INT64_MAX, at(c, S_STAGE_BASE));
    } else {
        o->pos_ring(be, c->slots, p->pos, p->n_tok, c->s, c->r + 1, at(c, S_BASE));
    }
}

static void stream_step_begin(attn_ctx *base, const attn_part *p)
{
    stream_ctx *c = ctx_of(base);
    backend *be = base->be;
    const backend_ops *o = be->ops;
    c->n_move = 0;
    kv_store_begin(c->store, base, p);
    if (p->flags & ATTN_PROMPT) prompt_begin(c, p);
    place_rows(c, p);
    if (!c->ring || !reindex(c)) return;
    /* The query's own slot in the cache; in a dense later prompt E stays what it was before it. */
    if (c->staging && !c->banded)
        o->pos_shift(be, c->qpos, p->pos, p->n_tok, INT64_MAX, at(c, S_EVICTED));
    else o->pos_shift(be, c->qpos, p->pos, p->n_tok, c->s + c->r, (buf){NULL});
    o->rope_table(be, c->table, c->qpos, p->n_tok, p->freq, (size_t)base->shape->head_dim / 2,
                  p->mscale);
}

static void stream_append(attn_ctx *base, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    (void)k_raw;
    stream_ctx *c = ctx_of(base);
    kv_store_put(c->store, p, layer, c->slots, 1, k, v);
}

static attn_seg sink_seg(const stream_ctx *c, int layer, bool mask)
{
    return (attn_seg){.rows = kv_store_rows(c->store, layer),
                      .range = at(c, S_SINK),
                      .n_lists = 1,
                      .n_max = c->s,
                      .kpos = mask ? at(c, S_ZERO) : (buf){NULL},
                      .band = c->base.shape->window[layer]};
}

/* Everything, or (kvfactory, after its eviction) the sinks and all that follows the dropped tokens. */
static void select_linear(stream_ctx *c, const attn_part *p, int layer, attn_sel *sel)
{
    int64_t window = c->base.shape->window[layer];
    bool mask = (p->flags & ATTN_PROMPT) || window > 0;
    sel->n_seg = 0;
    if (c->shift > 0 && c->s > 0) sel->seg[sel->n_seg++] = sink_seg(c, layer, mask);
    sel->seg[sel->n_seg++] = (attn_seg){.rows = kv_store_rows(c->store, layer),
                                        .range = at(c, S_LINEAR),
                                        .n_lists = 1,
                                        .n_max = c->base.length + (int64_t)p->n_tok - c->shift,
                                        .kpos = mask ? at(c, S_FIRST) : (buf){NULL},
                                        .band = window};
}

/* Sinks first, then the ring (in a prompt: its two runs and the prompt's own rows). The layer's window,
 * if any, is wider than the budget: it can only cut sinks at absolute positions. */
static void stream_select(attn_ctx *base, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    (void)q_raw;
    (void)q;
    stream_ctx *c = ctx_of(base);
    if (!c->ring) {
        select_linear(c, p, layer, sel);
        return;
    }
    const kv_rows *rows = kv_store_rows(c->store, layer);
    int64_t window = base->shape->window[layer];
    bool shifted = reindex(c), mask = c->staging || (!shifted && window > 0);
    sel->n_seg = 0;
    if (c->s > 0) {
        attn_seg *sink = &sel->seg[sel->n_seg++];
        *sink = sink_seg(c, layer, mask);
        if (shifted) {
            sink->table = c->table;
            sink->qpos = c->qpos;
        }
    }
    attn_seg seg = {.rows = rows, .n_lists = 1, .n_max = c->r + 1, .range = at(c, S_RING)};
    if (!c->staging) {
        sel->seg[sel->n_seg++] = seg;
        return;
    }
    const int range[] = {S_OLD, S_NEW, S_STAGE}, pos[] = {S_OLD_POS, S_NEW_POS, S_STAGE_POS};
    for (int i = 0; i < 3; i++) {
        seg.range = at(c, range[i]);
        seg.kpos = at(c, pos[i]);
        seg.band = c->banded ? c->r + 1 : window;
        if (i == 2) seg.n_max = base->length + (int64_t)p->n_tok - c->stage_pos;
        sel->seg[sel->n_seg++] = seg;
    }
}

static void stream_layer_end(attn_ctx *base, const attn_part *p, int layer)
{
    stream_ctx *c = ctx_of(base);
    const kv_rows *rows = kv_store_rows(c->store, layer);
    kv_store_layer_end(c->store, layer);
    if (c->n_move > 0 && !c->fixed)
        base->be->ops->kv_copy(base->be, rows, c->move_dst, rows, c->move_src, (size_t)c->n_move);
    if (c->n_move > 0 && (p->flags & ATTN_PROMPT_END) && !kvfactory(c))
        kv_store_discard(c->store, layer, c->s + c->r + 1);
}

static void stream_step_end(attn_ctx *base, const attn_part *p)
{
    stream_ctx *c = ctx_of(base);
    int64_t end = base->length + (int64_t)p->n_tok;
    kv_store_end(c->store);
    if (p->flags & ATTN_PROMPT_END) c->staging = c->banded = false;
    if (kvfactory(c)) {
        if (c->n_move == 0) return;
        c->shift = end - c->s - c->r;
        put_range(c, S_LINEAR, c->fixed ? end - c->r : c->s, c->r);
        put(c, S_SHIFT, c->shift);
        put(c, S_FIRST, end - c->r);
    } else if (!c->ring && end > c->s + c->r && (!(p->flags & ATTN_PROMPT) || c->n_move > 0)) {
        c->ring = true;
        put(c, S_BASE, c->ring_base);
    }
}

/* The state in ops memory between two forwards, which follows from the host's. */
static void upload_state(stream_ctx *c)
{
    int64_t len = c->base.length, first = c->shift + c->s;
    put_range(c, S_LINEAR, 0, len);
    if (c->shift > 0) put_range(c, S_LINEAR, c->fixed ? first : c->s, len - first);
    put(c, S_SHIFT, c->shift);
    put(c, S_FIRST, c->shift > 0 ? first : 0);
    put(c, S_BASE, c->ring_base);
}

static status stream_state(attn_ctx *base, attn_state *v, err *e)
{
    stream_ctx *c = ctx_of(base);
    int64_t len = base->length, all = c->s + c->r;
    TRY(STATE_HOST(v, "position of the ring", &c->ring_base, e));
    TRY(STATE_HOST(v, "dropped tokens", &c->shift, e));
    TRY(state_within("position of the ring", c->ring_base, 0, c->s > len ? c->s : len, e));
    TRY(state_within("dropped tokens", c->shift, 0, kvfactory(c) && len > all ? len - all : 0, e));
    if (v->load) {
        c->ring = !kvfactory(c) && len > all;
        upload_state(c);
    }
    return kv_store_state(c->store, v, len, c->ring ? all + 1 : len - c->shift, e);
}

static const char *stream_rewind(attn_ctx *base, int64_t n)
{
    stream_ctx *c = ctx_of(base);
    if (c->ring || c->shift > 0) return n == base->length ? NULL : "tokens were evicted";
    if (!kv_store_rewind(c->store, n)) return KV_NO_REWIND;
    put_range(c, S_LINEAR, 0, n);
    return NULL;
}

/* First position behind the sinks that is stored. */
static int64_t first_recent(const stream_ctx *c)
{
    int64_t end = c->staging ? c->stage_pos : c->base.length;
    if (!c->ring) return c->s + c->shift;
    return end - c->r > c->s ? end - c->r : c->s;
}

static int64_t stream_positions(const attn_ctx *base, int layer, int kv_head, int64_t *out)
{
    (void)kv_head;
    const stream_ctx *c = (const stream_ctx *)base;
    int64_t n = 0, len = base->length;
    if (!base->layers[layer]) return 0;
    for (int64_t j = 0; j < c->s && j < len; j++, n++)
        if (out) out[n] = j;
    for (int64_t j = first_recent(c); j < len; j++, n++)
        if (out) out[n] = j;
    return n;
}

static void stream_held(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    const stream_ctx *c = (const stream_ctx *)base;
    sizes z = sizes_of(base->spec, base->shape, base->lim);
    out->scratch += scratch_bytes(&z);
    for (int l = 0; l < base->shape->n_layers; l++) {
        if (!base->layers[l]) continue;
        int64_t n = stream_positions(base, l, 0, c->fixed ? c->host : NULL);
        for (int64_t i = 0; c->fixed && i < n_new; i++) c->host[n + i] = base->length + i;
        out->kv += c->fixed ? (size_t)base->shape->n_kv_heads *
                                  kv_store_bytes_of(c->store, c->host, n + n_new)
                            : kv_store_bytes(c->store, n + n_new);
    }
}

/* Called after the step: the new token was attended on top of what is stored now, unless nothing was
 * evicted yet. At absolute positions a window hides tokens, the sinks first. */
static int64_t stream_attended(const attn_ctx *base, int layer)
{
    const stream_ctx *c = (const stream_ctx *)base;
    int64_t len = base->length, recent = c->ring ? c->r + 1 : len - c->shift - c->s, sinks = c->s;
    int64_t window = base->shape->window[layer];
    if (len <= c->s + c->r && !c->shift) return len;
    if (window > 0 && !(c->ring && reindex(c))) {
        int64_t hidden = len > window ? len - window : 0;
        sinks = hidden < sinks ? sinks - hidden : 0;
        recent = recent < window ? recent : window;
    }
    return sinks + recent;
}

const attn_method attn_streaming = {
    .name = "streaming",
    .summary = "StreamingLLM: attention sinks and the most recent tokens",
    .source =
        "Xiao et al. 2024 (arXiv 2309.17453); streaming-llm kv_cache.py; methods.md section 2",
    .params = params,
    .has_budget = true,
    .def_budget = 256,
    .check = stream_check,
    .dense = stream_dense,
    .plan = stream_plan,
    .create = stream_create,
    .free = stream_free,
    .reset = stream_reset,
    .exact_prompt = stream_exact_prompt,
    .step_begin = stream_step_begin,
    .append = stream_append,
    .select = stream_select,
    .layer_end = stream_layer_end,
    .step_end = stream_step_end,
    .rewind = stream_rewind,
    .state = stream_state,
    .held = stream_held,
    .attended = stream_attended,
    .positions = stream_positions,
};
