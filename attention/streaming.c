/* SPDX-License-Identifier: MIT */
/* StreamingLLM: the first `sink` tokens and the last r = budget - sink. doc/methods.md section 2.
 *
 * Here: its parameters, memory and state. Where rows lie, and a forward: stream_steps.c. */
#include "config.h"

#include <stddef.h>

#include "attention/stream_steps.h"

enum { P_SINK, P_POS, P_PREFILL, P_DEMOTE, P_DEMOTE_G, P_RECALL };
enum { POS_REINDEX, POS_ABS };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "tokens kept from the start", 4, 0, 1 << 20},
    [P_POS] = {"pos", "reindex abs", "positions inside the cache, or absolute ones", POS_REINDEX, 0, 1},
    [P_PREFILL] = {"prefill", "auto full banded",
                   "prompt attention: full, or what decoding would see; auto: full while the "
                   "prompt fits the trained context",
                   PREFILL_AUTO, 0, 2},
    [P_DEMOTE] = DEMOTE_PARAM,
    [P_DEMOTE_G] = DEMOTE_G_PARAM,
    [P_RECALL] = RECALL_PARAM,
    {.key = NULL},
};

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
        return err_set(e, ST_USAGE,
                       "%s: demote with prefill=banded: a prompt's tokens are demoted at its end, expected "
                       "prefill=full",
                       s->text);
    TRY(attn_check_ropes(s, shape, e));
    return demote_check(s, low_rule(s), shape, e);
}

/* Prompts are attended exactly up to their end if tokens are demoted. */
static int64_t prefill_of(const attn_spec *s)
{
    return s->value[P_DEMOTE] != DEMOTE_NONE ? PREFILL_FULL : s->value[P_PREFILL];
}

/* ---- memory ---- */

/* Returns the rows after the ring: a whole prompt, or one chunk of a banded one. */
static int64_t stage_rows(const attn_decl *d)
{
    int64_t n = d->lim->n_tokens, mode = prefill_of(d->spec), dense = min64(n, d->shape->max_positions);
    if (mode == PREFILL_FULL) dense = n;
    if (mode == PREFILL_BANDED) dense = 0;
    return max64(dense, min64(d->lim->chunk, n));
}

/* Returns the rows of one layer: the ring and what follows it. A dense prompt is put there only once the ring is full,
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

/* ---- between forwards ---- */

static status stream_state(attn_view *v, attn_state *s, err *e)
{
    stream_ctx *c = v->own;
    int64_t len = v->length, dropped = 0; /* of a parameter that was removed */
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
