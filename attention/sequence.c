/* SPDX-License-Identifier: MIT */
/* Sequences: creation, counts, rewinding, saving. */
#include "config.h"

#include "attention/certify.h"
#include "attention/demote.h"
#include "attention/sequence_impl.h"
#include "kernels/base/mem.h"
#include "kernels/ops_codes.h"

static const attn_method *method_of(const attn_spec *s, int group)
{
    return group == GROUP_DENSE ? &attn_full : s->method;
}

static bool serves(const attn_spec *s, const attn_limits *lim, const attn_shape *shape, int group, int layer)
{
    bool dense = attn_is_dense(s, shape, layer);
    if (group == GROUP_DRAFT) return lim->draft && !dense && !attn_is_dense(lim->draft, shape, layer);
    return dense == (group == GROUP_DENSE);
}

/* Declares a layer group for the token limit. A draft view has no rows of its own. */
static void declare_group(attn_decl *d, const attn_spec *s, const attn_limits *lim, const attn_shape *shape, int group)
{
    const attn_spec *of = group == GROUP_DRAFT ? lim->draft : s;
    group_declare(d, method_of(of, group), of, shape, lim, lim->n_tokens, lim->n_tokens);
    if (group == GROUP_DRAFT) d->slots = 0;
}

/* ---- plans ---- */

/* Computes the bytes of all layers in device memory and in the slower tier. */
static status plan_both(attn_bytes *out, size_t *slow, const attn_spec *s, const attn_shape *shape,
                        const attn_limits *lim, err *e)
{
    bool *layers;
    *out = (attn_bytes){0};
    *slow = 0;
    TRY(MEM_NEW(&layers, (size_t)shape->n_layers, e));
    status st = ST_OK;
    for (int i = 0; i < GROUPS && st == ST_OK; i++) {
        attn_bytes part = {0};
        attn_decl d;
        int n = 0;
        for (int l = 0; l < shape->n_layers; l++) n += layers[l] = serves(s, lim, shape, i, l);
        if (n == 0) continue;
        declare_group(&d, s, lim, shape, i);
        st = group_plan(&part, &d, n, e);
        if (i == GROUP_METHOD) row_tier_plan(&part, slow, s, shape, lim, layers);
        if (st == ST_OK) st = size_add(&out->kv, out->kv, part.kv, "KV plan", e);
        if (st == ST_OK) st = size_add(&out->index, out->index, part.index, "KV plan", e);
        if (st == ST_OK) st = size_add(&out->scratch, out->scratch, part.scratch, "KV plan", e);
    }
    mem_free(layers);
    return st;
}

status attn_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e)
{
    size_t slow;
    return plan_both(out, &slow, s, shape, lim, e);
}

status attn_plan_slow(size_t *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e)
{
    attn_bytes memory;
    return plan_both(&memory, out, s, shape, lim, e);
}

/* ---- creation and release ---- */

static status open_group(attn_seq *s, int i, err *e)
{
    layer_group *group;
    const bool draft = i == GROUP_DRAFT;
    const attn_spec *spec = draft ? &s->draft : &s->spec;
    bool any = false, apart = s->spec.tier.kind == KV_HOST && i == GROUP_METHOD;
    for (int l = 0; l < s->shape.n_layers; l++) any |= s->layers[i][l];
    if (!any) return ST_OK;
    TRY(MEM_NEW(&group, 1, e));
    s->group[i] = group;
    group->v = (attn_view){.method = method_of(spec, i),
                           .spec = spec,
                           .shape = &s->shape,
                           .lim = &s->lim,
                           .layers = s->layers[i],
                           .be = s->be,
                           .draft_view = draft,
                           .store = draft ? s->group[GROUP_METHOD]->v.store : NULL,
                           .read = buf_at(s->read, draft   ? 2 * READ_BYTES
                                                   : apart ? READ_BYTES
                                                           : 0),
                           .attended = s->attended};
    declare_group(&group->d, &s->spec, &s->lim, &s->shape, i);
    return group_open(group, i == GROUP_METHOD ? s->tier : NULL, e);
}

status attn_seq_create(attn_seq **out, const attn_spec *spec, const attn_shape *shape, const attn_limits *lim,
                       backend *be, err *e)
{
    attn_seq *s;
    size_t n = (size_t)shape->n_layers;
    *out = NULL;
    TRY(attn_spec_check(spec, shape, e));
    TRY(attn_backend_check(spec, be, e));
    if (lim->draft) TRY(attn_draft_check(lim->draft, spec, shape, e));
    if (lim->draft) TRY(attn_backend_check(lim->draft, be, e));
    TRY(MEM_NEW(&s, 1, e));
    *s = (attn_seq){.spec = *spec, .shape = *shape, .lim = *lim, .be = be};
    s->tiles = spec->decode == ATTN_DECODE_TILES;
    if (lim->draft) {
        s->draft = *lim->draft;
        s->lim.draft = &s->draft;
    }
    status st = MEM_NEW(&s->attended, n, e);
    for (int i = 0; i < GROUPS && st == ST_OK; i++) st = MEM_NEW(&s->layers[i], n, e);
    if (st == ST_OK) st = be->ops->alloc(be, &s->read, GROUPS * READ_BYTES, "counters", e);
    if (st != ST_OK) goto done;
    for (int i = 0; i < GROUPS; i++)
        for (int l = 0; l < shape->n_layers; l++) s->layers[i][l] = serves(spec, &s->lim, shape, i, l);
    TRY_GOTO(row_tier_open(&s->tier, &s->spec, &s->shape, &s->lim, s->layers[GROUP_METHOD], be, e));
    for (int i = 0; i < GROUPS; i++) TRY_GOTO(open_group(s, i, e));
    *out = s;
done:
    if (st != ST_OK) attn_seq_free(s);
    return st;
}

void attn_seq_free(attn_seq *s)
{
    if (!s) return;
    for (int i = 0; i < GROUPS; i++) group_free(s->group[i]);
    row_tier_close(s->tier);
    if (s->read.p) s->be->ops->free(s->be, s->read, GROUPS * READ_BYTES);
    for (int i = 0; i < GROUPS; i++) mem_free(s->layers[i]);
    mem_free(s->attended);
    mem_free(s);
}

/* Apart from the rows, nothing may depend on earlier steps. */
status attn_verify_check(const attn_spec *s, err *e)
{
    const attn_method *m = s->method;
    const attn_hooks *family = m->family ? &m->family->hooks : NULL;
    char store[64];
    if (kv_has_codes(&s->kv)) {
        kv_format_text(&s->kv, store, sizeof store);
        return err_set(e, ST_UNSUPPORTED, "%s: store %s is quantized as tokens arrive; use f32, f16, bf16, q8 or q4",
                       s->text, store);
    }
    if (m->hooks.select || (family && family->select))
        return err_set(e, ST_UNSUPPORTED,
                       "%s: selects tokens in each step; use a strategy that attends everything (full)", s->text);
    return ST_OK;
}

bool attn_reuse_steps(const attn_spec *s)
{
    return attn_reuse_of(s) == ATTN_REUSE_ANY && !kv_in_blocks(&s->kv) && attn_verify_check(s, NULL) == ST_OK;
}

status attn_draft_check(const attn_spec *draft, const attn_spec *verifier, const attn_shape *shape, err *e)
{
    const attn_method *m = draft->method;
    TRY(attn_verify_check(verifier, e));
    TRY(attn_spec_check(draft, shape, e));
    if (!m->family || !m->family->drafts)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: cannot draft: its rows differ from the verifier's, or its steps cannot be rewound",
                       draft->text);
    if (attn_value(draft, "demote", DEMOTE_NONE) != DEMOTE_NONE)
        return err_set(e, ST_UNSUPPORTED, "%s: cannot draft with demote: demoted rows cannot be restored", draft->text);
    if (draft->kv.kind != verifier->kv.kind || !kv_same_rows(&draft->kv, &verifier->kv))
        return err_set(e, ST_USAGE, "%s: a draft uses the verifier's rows; remove kv", draft->text);
    if (draft->decode != ATTN_DECODE_AUTO)
        return err_set(e, ST_USAGE, "%s: a draft uses the verifier's kernel; set decode in --attn", draft->text);
    return ST_OK;
}

size_t attn_seq_tile_rows(const attn_seq *s)
{
    enum { QUERIES = 16 };
    int group = s->shape.n_heads / s->shape.n_kv_heads;
    if (!s->be->tiles || !attn_takes_tiles(&s->spec)) return 0;
    return group < QUERIES ? (size_t)(QUERIES / group) : 1;
}

void attn_seq_decode_by(attn_seq *s, bool tiles)
{
    s->tiles = tiles;
}

bool attn_seq_by_tiles(const attn_seq *s)
{
    return s->tiles;
}

const attn_spec *attn_seq_spec(const attn_seq *s)
{
    return &s->spec;
}

int64_t attn_seq_length(const attn_seq *s)
{
    return s->length;
}

static void set_length(attn_seq *s, int64_t n)
{
    s->length = n;
    for (int i = 0; i < GROUPS; i++)
        if (s->group[i]) s->group[i]->v.length = n;
}

static void reset_group(layer_group *group)
{
    attn_view *v = &group->v;
    v->length = v->stored = 0;
    v->observes = v->listed = false;
    kv_store_reset(v->store);
    if (HOOK(v, reset)) HOOK(v, reset)(v);
}

static const char *rewind_group(layer_group *group, int64_t n)
{
    attn_view *v = &group->v;
    if (HOOK(v, rewind)) return HOOK(v, rewind)(v, n);
    return kv_store_rewind(v->store, n) ? NULL : KV_NO_REWIND;
}

status attn_seq_rewind(attn_seq *s, int64_t n, err *e)
{
    layer_group *groups[GROUPS];
    if (n < 0 || n > s->length)
        return err_set(e, ST_USAGE, "cannot rewind to %lld of %lld tokens", (long long)n, (long long)s->length);
    /* Rewind the method first: once it succeeds, the dense layers cannot fail. At 0, reset instead. */
    for (int i = groups_of(s, groups) - 1; i >= 0; i--) {
        if (n == 0) reset_group(groups[i]);
        const char *why = n == 0 ? NULL : rewind_group(groups[i], n);
        if (why)
            return err_set(e, ST_UNSUPPORTED, "%s: cannot go back to %lld tokens: %s", s->spec.text, (long long)n, why);
        groups[i]->v.length = n;
    }
    s->length = n;
    return ST_OK;
}

/* ---- saving and loading ---- */

/* Walks over counters. They are only reported, but must be finite. */
static status state_of_counters(attn_seq *s, attn_state *v, err *e)
{
    TRY(STATE_HOST(v, "counts", &s->stats, e));
    TRY(STATE_HOST(v, "peak", &s->peak, e));
    TRY(v->mem(v, "bytes read", -1, s->read, READ_BYTES, e));
    const double x[] = {s->stats.attended, s->stats.visible,    s->stats.kv_read,
                        s->stats.k_read,   s->stats.index_read, s->stats.full_keys,
                        s->stats.missed,   s->stats.missed_var, s->stats.measured};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        if (!(x[i] >= 0 && x[i] < 1e300)) return state_bad("a count is not a number", e);
    return ST_OK;
}

status attn_seq_state(attn_seq *s, attn_state *v, err *e)
{
    layer_group *groups[GROUPS];
    int64_t length = s->length;
    if (v->load && s->lim.draft)
        return err_set(e, ST_UNSUPPORTED, "%s: cannot draft over a loaded session: its index is built as tokens arrive",
                       s->draft.text);
    TRY(STATE_HOST(v, "length", &length, e));
    TRY(state_within("length", length, 0, s->lim.n_tokens, e));
    set_length(s, length);
    TRY(state_of_counters(s, v, e));
    for (int i = 0, n = own_groups_of(s, groups); i < n; i++) TRY(group_state(groups[i], v, e));
    return ST_OK;
}

/* ---- counts ---- */

static attn_bytes bytes_with(const attn_seq *s, int64_t n_new, bool most)
{
    layer_group *groups[GROUPS];
    attn_bytes all = {0};
    tier_counts t = row_tier_counts(s->tier);
    for (int i = 0, n = groups_of(s, groups); i < n; i++) {
        attn_bytes part = group_held(groups[i], n_new, most);
        all.kv += part.kv;
        all.index += part.index;
        all.scratch += part.scratch;
    }
    /* During prefill each layer is fully resident for a moment. */
    size_t here = n_new > 0 ? t.most_here : t.here;
    all.kv -= here < t.in_file ? t.in_file - here : 0;
    return all;
}

static size_t sum_of(attn_bytes b)
{
    return b.kv + b.index + b.scratch;
}

/* Counts exactly only if the upper bound exceeds the peak, since exact counts may wait for the device. */
void seq_keep_peak(attn_seq *s, int64_t n_new)
{
    if (sum_of(bytes_with(s, n_new, true)) <= sum_of(s->peak)) return;
    attn_bytes now = bytes_with(s, n_new, false);
    if (sum_of(now) > sum_of(s->peak)) s->peak = now;
}

attn_bytes attn_seq_held(const attn_seq *s)
{
    return bytes_with(s, 0, false);
}

attn_bytes attn_seq_peak(const attn_seq *s)
{
    return s->peak;
}

int64_t attn_seq_window(const attn_seq *s)
{
    const layer_group *group = s->group[GROUP_METHOD];
    return group && group->v.window ? group->v.window : s->lim.n_tokens;
}

int64_t attn_seq_positions(const attn_seq *s, int layer, int head, int64_t *out)
{
    const attn_view *v = view_of(s, layer);
    if (HOOK(v, kept)) {
        return HOOK(v, kept)(v, layer, s->group[GROUP_METHOD]->d.lists == 1 ? 0 : (size_t)head, out);
    }
    for (int64_t i = 0; out && i < s->length; i++) out[i] = i;
    return s->length;
}

void attn_seq_keys(const attn_seq *s, int layer, buf out, int64_t cap, int64_t n)
{
    const kv_rows *rows = kv_store_rows(view_of(s, layer)->store, layer);
    kv_rows to = {
        .k = out, .type = DT_F32, .n_kv_heads = rows->n_kv_heads, .head_dim = rows->head_dim, .cap = (size_t)cap};
    kv_need(s->be, rows, 0, n);
    s->be->ops->codes->fetch(s->be, &to, rows, 0, n, (buf){NULL});
}

int64_t attn_seq_demoted(const attn_seq *s, int layer, int head, int64_t *out)
{
    const attn_view *v = view_of(s, layer);
    if (!HOOK(v, demoted)) return 0;
    return HOOK(v, demoted)(v, layer, s->group[GROUP_METHOD]->d.lists == 1 ? 0 : (size_t)head, out);
}

attn_stats attn_seq_stats(const attn_seq *s)
{
    attn_stats r = s->stats;
    uint64_t read[GROUPS][READ_KINDS];
    s->be->ops->download(s->be, read, s->read, sizeof read);
    for (int i = 0; i < GROUP_DRAFT; i++) {
        r.k_read += (double)read[i][READ_K];
        r.kv_read += (double)(read[i][READ_K] + read[i][READ_V]);
        r.index_read += (double)read[i][READ_INDEX];
        r.attended += (double)read[i][READ_ATTENDED];
        r.missed += (double)read[i][READ_MISSED] / READ_ONE;
        r.missed_var += (double)read[i][READ_MISSED_VAR] / READ_ONE;
        r.measured += (double)read[i][READ_MEASURED];
    }
    return r;
}

static const attn_certify *certifies(const attn_view *v)
{
    return HOOK(v, certifies) ? HOOK(v, certifies)(v) : NULL;
}

bool attn_seq_certified(const attn_seq *s, attn_certified *out)
{
    const layer_group *group = s->group[GROUP_METHOD];
    const attn_certify *c = group ? certifies(&group->v) : NULL;
    if (c) *out = certify_counted(c, s->be);
    return c != NULL;
}

bool attn_seq_bounds(const attn_seq *s, int layer, float *bound)
{
    size_t bytes = (size_t)s->shape.n_heads * sizeof *bound;
    const attn_certify *c = certifies(view_of(s, layer));
    if (c) s->be->ops->download(s->be, bound, buf_at(c->bound, (size_t)layer * bytes), bytes);
    return c != NULL;
}

host_counts attn_seq_host(const attn_seq *s)
{
    host_counts c = {0};
    uint64_t read[READ_KINDS], moved[NEAR_KINDS];
    const layer_group *group = s->group[GROUP_METHOD];
    if (s->spec.tier.kind != KV_HOST || !group) return c;
    s->be->ops->download(s->be, read, group->v.read, sizeof read);
    c.held = group_held(group, 0, false).kv;
    c.read = (double)(read[READ_K] + read[READ_V]);
    if (!row_tier_moved(s->tier).p) return c;
    s->be->ops->download(s->be, moved, row_tier_moved(s->tier), sizeof moved);
    c.read = (double)moved[NEAR_LINK];
    c.asked = (double)moved[NEAR_ASKED];
    c.found = (double)moved[NEAR_FOUND];
    size_t far = row_tier_far_bytes(&s->spec.kv, &s->shape, &s->lim);
    for (int l = 0; l < s->shape.n_layers; l++)
        if (s->layers[GROUP_METHOD][l]) c.written += (double)(s->stats.steps * (int64_t)far);
    return c;
}

tier_counts attn_seq_tier(const attn_seq *s)
{
    return tier_counts_since(row_tier_counts(s->tier), &s->in_prompts);
}

static void clear_read(attn_seq *s)
{
    uint64_t zero[GROUPS][READ_KINDS] = {{0}}, none[NEAR_KINDS] = {0};
    buf moved = row_tier_moved(s->tier);
    s->be->ops->upload(s->be, s->read, zero, sizeof zero);
    if (moved.p) s->be->ops->upload(s->be, moved, none, sizeof none);
}

/* Saves the counts of reads, which the end of the prompt clears. */
void seq_prompt_begin(attn_seq *s)
{
    s->stats = attn_seq_stats(s);
}

/* Attributes the traffic since the start of the forward to the prompt. */
void seq_prompt_end(attn_seq *s)
{
    tier_counts steps = tier_counts_since(s->before, &s->in_prompts);
    clear_read(s);
    s->in_prompts = tier_counts_since(row_tier_counts(s->tier), &steps);
}

void seq_count_steps(attn_seq *s, int64_t n)
{
    size_t keys = (size_t)s->shape.n_kv_heads * kv_row_bytes(s->spec.kv.type, (size_t)s->shape.head_dim);
    s->stats.steps += n;
    for (int l = 0; l < s->shape.n_layers; l++) {
        double visible = 0;
        for (int64_t i = 0; i < n; i++) visible += (double)attn_visible(&s->shape, l, s->length - i);
        s->stats.attended += (double)s->attended[l];
        s->stats.visible += visible;
        s->stats.full_keys += visible * (double)keys;
    }
}

void attn_seq_reset(attn_seq *s)
{
    layer_group *groups[GROUPS];
    for (int i = 0, n = groups_of(s, groups); i < n; i++) reset_group(groups[i]);
    s->length = 0;
    s->stats = (attn_stats){0};
    s->in_prompts = row_tier_counts(s->tier);
    s->peak = (attn_bytes){0};
    clear_read(s);
}
