/* SPDX-License-Identifier: MIT */
/* StreamingLLM: the first `sink` tokens and the last r = budget - sink. doc/methods.md section 2.
 *
 * Slots: [0, s) sinks | [s, s+r+1) ring of the newest tokens | from s+r+1 on: rows of the current prompt. Before the
 * first eviction slots are positions, and there is one segment as in full attention. Afterwards position p has the slot
 * s + (p - base) mod (r+1), so that appending overwrites the row that the last step evicted. All keys stay rotated at
 * their absolute positions. Re-indexing rotates the query a second time for the sinks, at its slot in the cache (the
 * equivalent form of point 5).
 *
 * A prompt after an eviction, or a banded prompt, is staged: its rows follow the ring until it ends.
 *
 * In a store by position slots are positions (c->fixed). The attended sets are the same, the ring is the range of the
 * newest tokens, the rows of a prompt follow it, and nothing is copied. The same holds for draft views, which never
 * stage a prompt.
 *
 * Tokens that leave the ring may be demoted (demote.h), in the order of positions. With demotion in groups of g the
 * ring has r + g slots and also holds the tokens that wait for a full group. */
#include "config.h"

#include <stddef.h>

#include "attention/demote.h"

enum { P_SINK, P_POS, P_PREFILL, P_DEMOTE, P_DEMOTE_G, P_RECALL };
enum { POS_REINDEX, POS_ABS };

enum { PREFILL_AUTO, PREFILL_FULL, PREFILL_BANDED };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens kept", 4, 0, 1 << 20},
    [P_POS] = {"pos", "reindex abs", "rotate at positions in the cache, or at absolute positions", POS_REINDEX, 0, 1},
    [P_PREFILL] = {"prefill", "auto full banded",
                   "prompt attention: full, or banded as in decoding; auto: full within the trained context",
                   PREFILL_AUTO, 0, 2},
    [P_DEMOTE] = {DEMOTE_PARAM},
    [P_DEMOTE_G] = {DEMOTE_G_PARAM},
    [P_RECALL] = {RECALL_PARAM},
    {.key = NULL},
};

typedef struct {
    int64_t s, r, slots;        /* sinks, newest tokens, slots of the ring */
    bool reindex;               /* queries use positions in the cache */
    int64_t prefill;            /* PREFILL_* */
    bool fixed;                 /* slots are positions */
    bool ring;                  /* tokens were evicted */
    bool banded;                /* the current prompt is banded */
    bool staging;               /* rows of the current prompt are after the ring */
    int64_t ring_base;          /* position of the ring's first slot */
    int64_t stage_pos, evicted; /* first staged position; tokens evicted before the current prompt */
    int64_t lo, hi;             /* positions in the ring before this prompt chunk */
    int64_t n_move, move_lo;    /* rows that layer_end moves into the ring; position of the first */
    int64_t move_from;          /* slot of the first */
    buf qpos, table;
    int64_t *host; /* [chunk] for uploads */
    demoted low;
    int32_t *leaving;  /* [low.cap] slots of the rows that this forward demotes */
    int64_t n_leaving; /* number of them */
} stream_ctx;

/* Returns how many of n tokens have left the ring, in whole groups. */
static inline int64_t stream_left(int64_t n, int64_t budget, int64_t group)
{
    return max64(n - budget, 0) / group * group;
}

static demote_rule low_rule(const attn_spec *s)
{
    demote_rule r = demote_rule_of(s);
    r.in_order = true;
    return r;
}

static status stream_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (s->budget < s->value[P_SINK] + 1)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + 1 = %lld", s->text,
                       (long long)s->budget, (long long)s->value[P_SINK] + 1);
    if (s->value[P_DEMOTE] != DEMOTE_NONE && s->value[P_PREFILL] == PREFILL_BANDED)
        return err_set(e, ST_USAGE, "%s: demote with prefill=banded is not supported; use prefill=full", s->text);
    TRY(attn_check_ropes(s, shape, e));
    return demote_check(s, low_rule(s), shape, e);
}

/* Returns the prompt attention. With demotion prompts are attended in full. */
static int64_t prefill_of(const attn_spec *s)
{
    return s->value[P_DEMOTE] != DEMOTE_NONE ? PREFILL_FULL : s->value[P_PREFILL];
}

/* ---- memory ---- */

/* Returns the number of rows after the ring: a whole prompt, or one chunk of a banded prompt. */
static int64_t stage_rows(const attn_decl *d)
{
    int64_t n = d->lim->n_tokens, mode = prefill_of(d->spec), dense = min64(n, d->shape->max_positions);
    if (mode == PREFILL_FULL) dense = n;
    if (mode == PREFILL_BANDED) dense = 0;
    return max64(dense, min64(d->lim->chunk, n));
}

/* Returns the rows of one layer: the ring and the rows after it. A dense prompt is staged only after the ring is full,
 * so only banded prompts need more rows than tokens. */
static int64_t layer_rows(const attn_decl *d)
{
    int64_t n = d->lim->n_tokens, mode = prefill_of(d->spec);
    int64_t most = d->spec->budget + low_rule(d->spec).group + stage_rows(d);
    bool all = kv_has_codes(&d->spec->kv) || n <= d->spec->budget;
    bool banded = mode == PREFILL_BANDED || (mode == PREFILL_AUTO && n > d->shape->max_positions);
    return all || (!banded && n < most) ? n : most;
}

#define AT(member) offsetof(stream_ctx, member)

static void stream_declare(attn_decl *d)
{
    size_t chunk = (size_t)d->lim->chunk;
    demote_rule low = low_rule(d->spec);
    int64_t most = stream_left(d->lim->n_tokens, d->spec->budget, low.group);
    d->slots = layer_rows(d);
    decl_bytes(d, MEM_SCRATCH, AT(qpos), "positions of queries", chunk * sizeof(int64_t));
    decl_bytes(d, MEM_SCRATCH, AT(table), "rope table", chunk * 2 * attn_pairs(d->shape) * sizeof(float));
    decl_bytes(d, MEM_HOST, AT(host), "streaming", chunk * sizeof(int64_t));
    if (low.how != DEMOTE_NONE) decl_bytes(d, MEM_HOST, AT(leaving), "demoted slots", (size_t)most * sizeof(int32_t));
    demote_declare(d, AT(low), low, most);
}

static void stream_reset(attn_view *v)
{
    stream_ctx *c = v->own;
    c->s = attn_get(v, P_SINK);
    c->reindex = attn_get(v, P_POS) == POS_REINDEX;
    c->prefill = prefill_of(v->spec);
    c->r = v->spec->budget - c->s;
    demote_rule low = low_rule(v->spec);
    c->slots = c->r + low.group;
    demote_reset(&c->low, v, low, 1, stream_left(v->lim->n_tokens, v->spec->budget, low.group));
    c->low.origin = c->s;
    c->fixed = v->draft_view || kv_store_by_position(v->store);
    c->ring = c->banded = c->staging = false;
    c->stage_pos = c->n_move = c->n_leaving = 0;
    c->ring_base = c->s;
}

/* ---- slots ---- */

/* Returns how many of n tokens were dropped: the first ones after the sinks. */
static int64_t stream_gone(const stream_ctx *c, int64_t n)
{
    return stream_left(n, c->s + c->r, c->low.rule.group);
}

/* Returns the first stored position after the sinks, with `length` tokens. */
static int64_t first_recent(const stream_ctx *c, int64_t length)
{
    return c->s + (c->ring ? stream_gone(c, c->staging ? c->stage_pos : length) : 0);
}

/* Returns the number of demoted rows, until the layers of a forward end. */
static int64_t n_demoted(const attn_view *v)
{
    const stream_ctx *c = v->own;
    return c->low.rule.how == DEMOTE_NONE ? 0 : first_recent(c, v->length) - c->s;
}

/* Sets view->stored, the number of stored rows after `length` tokens, and view->listed: true if tokens are missing, so
 * that ops need lists of rows. */
static void stream_count(attn_view *v, int64_t length)
{
    const stream_ctx *c = v->own;
    v->stored = min64(c->s, length) + max64(length - first_recent(c, length), 0);
    v->listed = v->stored < length;
}

static int64_t stream_kept(const attn_view *v, int layer, size_t list, int64_t *out)
{
    (void)layer;
    (void)list;
    const stream_ctx *c = v->own;
    int64_t n = 0;
    for (int64_t j = 0; j < c->s && j < v->length; j++, n++)
        if (out) out[n] = j;
    for (int64_t j = first_recent(c, v->length); j < v->length; j++, n++)
        if (out) out[n] = j;
    return n;
}

static int64_t stream_demoted(const attn_view *v, int layer, size_t list, int64_t *out)
{
    (void)layer;
    (void)list;
    const stream_ctx *c = v->own;
    int64_t n = n_demoted(v);
    for (int64_t i = 0; out && i < n; i++) out[i] = c->s + i;
    return n;
}

/* Returns the slot of position p after an eviction, without staging. */
static int64_t ring_slot(const stream_ctx *c, int64_t p)
{
    int64_t m = (p - c->ring_base) % c->slots;
    if (c->fixed || p < c->s) return p;
    return c->s + (m < 0 ? m + c->slots : m);
}

/* Returns the slot of a stored token. */
static int64_t slot_of(const stream_ctx *c, int64_t p)
{
    if (c->fixed || !c->ring) return p;
    return c->staging && p >= c->stage_pos ? c->s + c->slots + p - c->stage_pos : ring_slot(c, p);
}

/* ---- a forward ---- */

/* Starts staging: rows of a prompt after an eviction, or of a banded prompt, go after the ring. */
static void stage_begin(attn_view *v)
{
    stream_ctx *c = v->own;
    int64_t len = v->length, s = c->s;
    if (c->staging && !c->banded) return;
    c->stage_pos = max64(len, s);
    c->evicted = stream_gone(c, len);
    c->lo = min64(s + c->evicted, len);
    c->hi = len;
    c->staging = true;
}

/* Plans the demotions at the end of this forward. */
static void plan_leaving(attn_view *v, int64_t end)
{
    stream_ctx *c = v->own;
    int64_t first = n_demoted(v);
    if (c->low.rule.how == DEMOTE_NONE) return;
    c->n_leaving = stream_gone(c, end) - first;
    for (int64_t i = 0; i < c->n_leaving; i++) c->leaving[i] = (int32_t)slot_of(c, c->s + first + i);
    if (c->n_leaving > 0) v->be->ops->upload(v->be, c->low.slot, c->leaving, (size_t)c->n_leaving * sizeof *c->leaving);
}

/* Plans the moves of the newest rows into the ring at the end of this forward. */
static void plan_moves(attn_view *v, int64_t end)
{
    stream_ctx *c = v->own;
    int64_t lo = max64(c->s + stream_gone(c, end), c->staging ? c->stage_pos : c->s);
    if (!c->staging) c->ring_base = lo;
    c->n_move = max64(end - lo, 0);
    c->move_lo = lo;
    c->move_from = lo + (c->staging ? c->s + c->slots - c->stage_pos : 0);
}

/* True if a prompt of n tokens, which begins now, is attended in bands. auto: if it would need a position beyond the
 * trained context. */
static bool is_banded(const attn_view *v, int64_t n)
{
    const stream_ctx *c = v->own;
    int64_t mode = c->prefill, end = v->length + n, all = c->s + c->r;
    int64_t last = c->ring && c->reindex ? all + n : end;
    return end > all && (mode == PREFILL_BANDED || (mode == PREFILL_AUTO && last > v->shape->max_positions));
}

static bool stream_exact_prompt(const attn_view *v, int64_t n)
{
    const stream_ctx *c = v->own;
    return !c->ring && !is_banded(v, n);
}

static void prompt_begin(attn_view *v, const attn_part *p)
{
    stream_ctx *c = v->own;
    int64_t end = v->length + (int64_t)p->n_tok;
    if (p->prompt_done == 0) {
        c->banded = is_banded(v, p->n_prompt);
        c->ring = c->ring || c->banded;
    }
    if (c->ring) stage_begin(v);
    bool last = p->flags & ATTN_PROMPT_END;
    bool moves = c->ring ? c->banded || last : last && stream_gone(c, end) > 0;
    if (!moves) return;
    plan_leaving(v, end);
    plan_moves(v, end);
}

/* Computes the queries' positions in the cache. A dense later prompt evicts no tokens until it ends. */
static void place_queries(attn_view *v, const attn_part *p)
{
    stream_ctx *c = v->own;
    bool dense = c->staging && !c->banded;
    for (int64_t i = 0; i < (int64_t)p->n_tok; i++)
        c->host[i] = p->first + i - (dense ? c->evicted : stream_gone(c, p->first + i));
    v->be->ops->upload(v->be, c->qpos, c->host, p->n_tok * sizeof(int64_t));
    v->be->ops->rope_table(v->be, c->table, c->qpos, p->n_tok, p->freq, attn_pairs(v->shape), p->mscale);
}

static void stream_begin(attn_view *v, const attn_part *p)
{
    stream_ctx *c = v->own;
    c->n_move = c->n_leaving = 0;
    if (v->draft_view) c->ring = v->length > c->s + c->r;
    else if (p->flags & ATTN_PROMPT) prompt_begin(v, p);
    else plan_leaving(v, v->length + 1);
    if (c->ring && c->reindex) place_queries(v, p);
    stream_count(v, v->length);
}

/* Writes the jobs of one work item; returns their number. Only the first rows of a staged prompt can be sinks. */
static size_t append_one(const attn_task *t, int layer, kv_write_job jobs[2])
{
    const attn_view *v = t->v;
    const attn_part *p = &t->p;
    const stream_ctx *c = v->own;
    size_t row = (size_t)(v->shape->n_kv_heads * v->shape->head_dim) * sizeof(float), count = 0;
    size_t sinks = (size_t)min64(max64(c->staging ? c->s - p->first : 0, 0), (int64_t)p->n_tok);
    for (size_t from = 0, n; from < p->n_tok; from += n) {
        int64_t pos = p->first + (int64_t)from;
        n = from < sinks ? sinks : p->n_tok - from;
        jobs[count++] = kv_store_job(v->store, layer, (kv_target){.pos = pos, .first = slot_of(c, pos), .n_lists = 1},
                                     buf_at(t->k, from * row), buf_at(t->val, from * row), n);
    }
    return count;
}

static void stream_append(const attn_task *t, size_t n, int layer)
{
    kv_write_job jobs[2 * ATTN_MAX_TASKS];
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += append_one(&t[i], layer, jobs + count);
    t->v->be->ops->kv_write(t->v->be, jobs, count);
}

/* Returns a segment of the slots [first, first + n), the first of which has position pos. */
static attn_seg seg_of(const attn_view *v, int layer, bool masked, int64_t first, int64_t n, int64_t pos)
{
    return (attn_seg){.rows = kv_store_rows(v->store, layer),
                      .n_lists = 1,
                      .first = first,
                      .n_max = n,
                      .origin = pos - first,
                      .masked = masked,
                      .kpos = pos,
                      .band = v->shape->window[layer]};
}

/* Selects the sinks, the ring in up to two runs (a full ring is one run in any order), and a prompt's own rows. A
 * sliding window of the layer is wider than the budget, so it can only hide sinks at absolute positions. With demoted
 * rows, which need a segment, there are no bands or windows: a run at the end of the ring is then joined with the
 * prompt's rows. */
static void select_ring(const attn_view *v, const attn_part *p, int layer, attn_sel *sel)
{
    const stream_ctx *c = v->own;
    bool shifted = c->reindex, mask = c->staging || (!shifted && v->shape->window[layer] > 0);
    int64_t n = p->first + (int64_t)p->n_tok, lo = c->staging ? c->lo : first_recent(c, v->length);
    int64_t held = max64((c->staging ? c->hi : n) - lo, 0);
    sel->n_seg = 0;
    if (c->s > 0) {
        attn_seg *sink = &sel->seg[sel->n_seg++];
        *sink = seg_of(v, layer, mask, 0, c->s, 0);
        if (shifted) {
            sink->table = c->table;
            sink->qpos = c->qpos;
        }
    }
    bool full = !c->fixed && !c->staging && held == c->slots;
    int64_t first = held && !full ? ring_slot(c, lo) : c->s, room = c->fixed ? held : c->s + c->slots - first;
    int64_t old = min64(held, room), stage = c->fixed ? c->stage_pos : c->s + c->slots;
    bool low = n_demoted(v) > 0 && c->low.rule.recall != 0;
    int64_t joined = c->staging && low && old < held ? old : 0;
    attn_seg run[] = {seg_of(v, layer, c->staging, first, old - joined, lo),
                      seg_of(v, layer, c->staging, c->s, held - old, lo + old),
                      seg_of(v, layer, true, stage - joined, 0, c->stage_pos - joined)};
    if (c->staging) run[2].n_max = max64(n - c->stage_pos, 0) + joined;
    for (int i = 0; i < 3; i++) {
        if (run[i].n_max == 0) continue;
        sel->seg[sel->n_seg] = run[i];
        if (c->banded) sel->seg[sel->n_seg].band = c->r + 1;
        sel->n_seg++;
    }
}

/* Returns the tokens that the last of `len` tokens attends: the stored tokens and itself. At absolute positions a
 * window hides tokens, the sinks first. */
static int64_t attended(const attn_view *v, int layer, int64_t len)
{
    const stream_ctx *c = v->own;
    int64_t recent = len - first_recent(c, v->length), sinks = c->s, window = v->shape->window[layer];
    if (len <= c->s + c->r) return len;
    if (window > 0 && !(c->ring && c->reindex)) {
        sinks = max64(sinks - max64(len - window, 0), 0);
        recent = min64(recent, window);
    }
    return sinks + recent;
}

static void stream_select(const attn_task *t, size_t n, int layer)
{
    for (; n > 0; n--, t++) {
        stream_ctx *c = t->v->own;
        if (c->ring) select_ring(t->v, &t->p, layer, t->sel);
        else full_select(t, 1, layer);
        t->sel->attended = attended(t->v, layer, t->p.first + (int64_t)t->p.n_tok);
        demote_select(&c->low, t, layer, n_demoted(t->v));
    }
}

static void stream_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const stream_ctx *c = v->own;
    const kv_rows *rows = kv_store_rows(v->store, layer);
    int64_t to = ring_slot(c, c->move_lo),
            n = min64(c->n_move, c->s + c->slots - to); /* the rest goes to the ring's first slots */
    demote_take(&c->low, v, layer, n_demoted(v), c->n_leaving);
    if (c->n_move > 0 && !c->fixed) {
        v->be->ops->kv_move(v->be, rows, to, c->move_from, (size_t)n);
        v->be->ops->kv_move(v->be, rows, c->s, c->move_from + n, (size_t)(c->n_move - n));
    }
    if (c->n_move > 0 && (p->flags & ATTN_PROMPT_END)) kv_store_discard(v->store, layer, c->s + c->slots);
}

static void stream_end(attn_view *v, const attn_part *p)
{
    stream_ctx *c = v->own;
    int64_t end = v->length + (int64_t)p->n_tok;
    if (p->flags & ATTN_PROMPT_END) c->staging = c->banded = false;
    if (stream_gone(c, end) > 0 && (!(p->flags & ATTN_PROMPT) || c->n_move > 0)) c->ring = true;
    stream_count(v, end);
}

/* ---- between forwards ---- */

static status stream_state(attn_view *v, attn_state *s, err *e)
{
    stream_ctx *c = v->own;
    int64_t len = v->length, dropped = 0; /* saved by earlier versions; always 0 */
    TRY(STATE_HOST(s, "position of the ring", &c->ring_base, e));
    TRY(STATE_HOST(s, "dropped tokens", &dropped, e));
    TRY(state_within("position of the ring", c->ring_base, 0, max64(c->s, len), e));
    TRY(state_within("dropped tokens", dropped, 0, 0, e));
    if (s->load) c->ring = stream_gone(c, len) > 0;
    stream_count(v, len);
    TRY(attn_walk(v, s, e));
    return kv_store_state(v->store, s, len, c->ring ? c->s + c->slots : len, e);
}

static const char *stream_rewind(attn_view *v, int64_t n)
{
    const stream_ctx *c = v->own;
    if (!v->draft_view && c->ring) return n == v->length ? NULL : "tokens were evicted";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    stream_count(v, n);
    return NULL;
}

static const attn_family windowed = {.drops = true, .drafts = true};

const attn_method attn_streaming = {
    .name = "streaming",
    .summary = "StreamingLLM: attention sinks and the most recent tokens",
    .source = "Xiao et al. 2024 (arXiv 2309.17453); streaming-llm kv_cache.py; doc/methods.md 2, deviations 2.7",
    .params = params,
    .family = &windowed,
    .size = sizeof(stream_ctx),
    .has_budget = true,
    .def_budget = 256,
    .check = stream_check,
    .hooks = {.declare = stream_declare,
              .reset = stream_reset,
              .begin = stream_begin,
              .append = stream_append,
              .select = stream_select,
              .layer_end = stream_layer_end,
              .end = stream_end,
              .rewind = stream_rewind,
              .state = stream_state,
              .exact_prompt = stream_exact_prompt,
              .kept = stream_kept,
              .demoted = stream_demoted},
};
