/* SPDX-License-Identifier: MIT */
/* The composition around every method: dense layers, rotation, attention over segments, counts. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "attention/store.h"
#include "attention/tier.h"
#include "kernels/base/mem.h"

struct attn_seq {
    attn_spec spec;
    attn_shape shape;
    attn_limits lim;
    backend *be;
    bool *dense_layer, *method_layer; /* [n_layers], complementary */
    attn_ctx *dense;                  /* attn_full over the dense layers, NULL if there are none */
    attn_ctx *sparse;                 /* the method over the others, NULL if there are none */
    attn_tier tier;                   /* of the method's rows; t NULL: none */
    tier_counts before, in_prompts;   /* of the tier, at the start of a forward and by prompts */
    buf read;                         /* u64 [2][READ_KINDS]: counts of ops since the last prompt, */
    buf read_method;                  /* and of the method's layers: the second where the host holds its rows */
    buf moved;                        /* u64 [NEAR_KINDS] of these; p NULL: the host's memory is the device's */
    attn_stats stats;                 /* but for what ops counted */
    attn_bytes peak;
};

enum { READ_BYTES = READ_KINDS * sizeof(uint64_t), MOVED_BYTES = NEAR_KINDS * sizeof(uint64_t) };

struct attn_work {
    backend *be;
    attn_shape shape;
    size_t max_rows;
    /* Queries at the step's positions; then for segments with positions of their own. */
    buf q[ATTN_MAX_SEGS + 1];
    buf k;           /* keys rotated at the step's positions */
    buf parts, lses; /* [ATTN_MAX_SEGS][rows] partial results */
    buf lse;         /* [rows][n_heads] of the whole attention, for observers */
    void (*watch)(void *ctx, const attn_seen *seen); /* may be NULL */
    void *watch_ctx;
    attn_sel *sels;  /* [max_rows] one a sequence */
    attn_job *jobs;  /* [max_rows] */
};

bool attn_is_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    const attn_method *m = s->method;
    return (layer < ATTN_MAX_LAYERS && s->skip.has[layer]) || (m->dense && m->dense(s, shape, layer));
}

/* Bytes of the dense layers and of the others, in memory and in the slower place. */
static status plan_both(attn_bytes *out, size_t *slow, const attn_spec *s, const attn_shape *shape,
                        const attn_limits *lim, err *e)
{
    bool *layers;
    *out = (attn_bytes){0};
    *slow = 0;
    TRY(MEM_NEW(&layers, (size_t)shape->n_layers, e));
    status st = ST_OK;
    for (int dense = 0; dense < 2 && st == ST_OK; dense++) {
        attn_bytes part = {0};
        int n = 0;
        const attn_method *m = dense ? &attn_full : s->method;
        for (int l = 0; l < shape->n_layers; l++)
            n += layers[l] = attn_is_dense(s, shape, l) == dense;
        if (n > 0) {
            st = m->plan(&part, s, shape, lim, layers, e);
            if (!dense && s->tier.place == KV_DISK) attn_tier_plan(&part, slow, s, shape, lim, n);
            if (!dense && s->tier.place == KV_HOST) attn_host_plan(&part, slow, s, shape, lim, layers);
            part.scratch += kv_map_bytes(&s->kv, lim->n_tokens, lim->chunk);
        }
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

static status create_part(attn_ctx **out, attn_seq *s, const attn_method *m, const bool *layers,
                          err *e)
{
    bool any = false;
    for (int l = 0; l < s->shape.n_layers; l++) any |= layers[l];
    if (!any) return ST_OK;
    attn_ctx base = {.spec = &s->spec, .shape = &s->shape, .lim = &s->lim, .layers = layers,
                     .be = s->be, .read = s->read};
    if (m == s->spec.method && layers == s->method_layer) {
        if (s->tier.t) base.tier = &s->tier;
        if (s->spec.tier.place == KV_HOST) base.host = s->be->ops->host;
        base.moved = s->moved;
        base.read = s->read_method;
    }
    return m->create(out, &base, e);
}

status attn_seq_create(attn_seq **out, const attn_spec *spec, const attn_shape *shape,
                       const attn_limits *lim, backend *be, err *e)
{
    attn_seq *s;
    *out = NULL;
    TRY(attn_spec_check(spec, shape, e));
    TRY(attn_backend_check(spec, be, e));
    TRY(MEM_NEW(&s, 1, e));
    *s = (attn_seq){.spec = *spec, .shape = *shape, .lim = *lim, .be = be};
    status st = MEM_NEW(&s->dense_layer, (size_t)shape->n_layers, e);
    if (st == ST_OK) st = MEM_NEW(&s->method_layer, (size_t)shape->n_layers, e);
    if (st == ST_OK) st = be->ops->alloc(be, &s->read, 2 * READ_BYTES, "counters", e);
    if (st == ST_OK && spec->tier.place == KV_HOST && be->ops->host->bring)
        st = be->ops->alloc(be, &s->moved, MOVED_BYTES, "counters", e);
    if (st != ST_OK) goto done;
    s->read_method = spec->tier.place == KV_HOST ? buf_at(s->read, READ_BYTES) : s->read;
    for (int l = 0; l < shape->n_layers; l++) {
        s->dense_layer[l] = attn_is_dense(spec, shape, l);
        s->method_layer[l] = !s->dense_layer[l];
    }
    if (spec->tier.place == KV_DISK) TRY_GOTO(attn_tier_open(&s->tier, spec, shape, be, e));
    TRY_GOTO(create_part(&s->dense, s, &attn_full, s->dense_layer, e));
    TRY_GOTO(create_part(&s->sparse, s, spec->method, s->method_layer, e));
    *out = s;
done:
    if (st != ST_OK) attn_seq_free(s);
    return st;
}

void attn_seq_free(attn_seq *s)
{
    if (!s) return;
    if (s->dense) attn_full.free(s->dense);
    if (s->sparse) s->spec.method->free(s->sparse);
    if (s->tier.t) s->be->ops->tier->close(s->be, s->tier.t);
    if (s->read.p) s->be->ops->free(s->be, s->read, 2 * READ_BYTES);
    if (s->moved.p) s->be->ops->free(s->be, s->moved, MOVED_BYTES);
    mem_free(s->dense_layer);
    mem_free(s->method_layer);
    mem_free(s);
}

/* The two parts with their methods, so that each hook is written once. */
typedef struct {
    const attn_method *m;
    attn_ctx *c;
} attn_use;

static int parts_of(const attn_seq *s, attn_use out[2])
{
    int n = 0;
    if (s->dense) out[n++] = (attn_use){&attn_full, s->dense};
    if (s->sparse) out[n++] = (attn_use){s->spec.method, s->sparse};
    return n;
}

static attn_use use_of(const attn_seq *s, int layer)
{
    return s->dense_layer[layer] ? (attn_use){&attn_full, s->dense}
                                 : (attn_use){s->spec.method, s->sparse};
}

const attn_spec *attn_seq_spec(const attn_seq *s)
{
    return &s->spec;
}

int64_t attn_seq_length(const attn_seq *s)
{
    return s->dense ? s->dense->length : s->sparse->length;
}

status attn_seq_rewind(attn_seq *s, int64_t n, err *e)
{
    attn_use u[2];
    if (n < 0 || n > attn_seq_length(s))
        return err_set(e, ST_USAGE, "rewind to %lld of %lld tokens", (long long)n,
                       (long long)attn_seq_length(s));
    int n_use = parts_of(s, u);
    /* The method first. What makes the dense part refuse, codes, makes every method refuse, but at 0. */
    for (int i = n_use - 1; i >= 0; i--) {
        if (n == 0) u[i].m->reset(u[i].c);
        const char *why = n == 0 ? NULL : u[i].m->rewind(u[i].c, n);
        if (why)
            return err_set(e, ST_UNSUPPORTED, "%s: cannot go back to %lld tokens: %s", s->spec.text,
                           (long long)n, why);
        u[i].c->length = n;
    }
    return ST_OK;
}

/* Counters that are only told, but must be numbers. */
static status state_of_counters(attn_seq *s, attn_state *v, err *e)
{
    TRY(STATE_HOST(v, "counts", &s->stats, e));
    TRY(STATE_HOST(v, "peak", &s->peak, e));
    TRY(v->mem(v, "bytes read", -1, s->read, READ_BYTES, e));
    const double x[] = {s->stats.attended, s->stats.visible, s->stats.kv_read, s->stats.k_read, s->stats.index_read,
                        s->stats.full_keys};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        if (!(x[i] >= 0 && x[i] < 1e300)) return state_bad("a count is not a number", e);
    return ST_OK;
}

status attn_seq_state(attn_seq *s, attn_state *v, err *e)
{
    attn_use u[2];
    int64_t length = attn_seq_length(s);
    TRY(STATE_HOST(v, "length", &length, e));
    TRY(state_within("length", length, 0, s->lim.n_tokens, e));
    TRY(state_of_counters(s, v, e));
    for (int i = 0, n = parts_of(s, u); i < n; i++) {
        u[i].c->length = length;
        TRY(u[i].m->state(u[i].c, v, e));
    }
    return ST_OK;
}

static tier_counts tier_of(const attn_seq *s)
{
    tier_counts c = {0};
    if (s->tier.t) s->be->ops->tier->counts(s->tier.t, &c);
    return c;
}

/* Bytes held while a forward of n_new tokens is not yet ended; most: or more, without a download. */
static attn_bytes bytes_with(const attn_seq *s, int64_t n_new, bool most)
{
    attn_use u[2];
    attn_bytes all = {0};
    tier_counts t = tier_of(s);
    for (int i = 0, n = parts_of(s, u); i < n; i++) {
        attn_bytes part = {0};
        (most && u[i].m->held_most ? u[i].m->held_most : u[i].m->held)(u[i].c, n_new, &part);
        part.scratch += kv_map_bytes(&s->spec.kv, s->lim.n_tokens, s->lim.chunk);
        all.kv += part.kv;
        all.index += part.index;
        all.scratch += part.scratch;
    }
    /* In a prompt a layer was here whole for a while. */
    size_t here = n_new > 0 ? t.most_here : t.here;
    all.kv -= here < t.in_file ? t.in_file - here : 0;
    return all;
}

static size_t sum_of(attn_bytes b)
{
    return b.kv + b.index + b.scratch;
}

/* What is held has to be counted where it may be a new peak alone: counting may wait for the device. */
static void keep_peak(attn_seq *s, int64_t n_new)
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
    const attn_method *m = s->spec.method;
    return s->sparse ? m->window(s->sparse) : s->lim.n_tokens;
}

int64_t attn_seq_positions(const attn_seq *s, int layer, int head, int64_t *out)
{
    attn_use u = use_of(s, layer);
    return u.m->positions(u.c, layer, head, out);
}

attn_stats attn_seq_stats(const attn_seq *s)
{
    attn_stats r = s->stats;
    uint64_t read[2][READ_KINDS];
    s->be->ops->download(s->be, read, s->read, sizeof read);
    for (int i = 0; i < 2; i++) {
        r.k_read += (double)read[i][READ_K];
        r.kv_read += (double)(read[i][READ_K] + read[i][READ_V]);
        r.index_read += (double)read[i][READ_INDEX];
        r.attended += (double)read[i][READ_ATTENDED];
    }
    return r;
}

host_counts attn_seq_host(const attn_seq *s)
{
    host_counts c = {0};
    attn_bytes held = {0};
    uint64_t read[READ_KINDS];
    if (s->spec.tier.place != KV_HOST || !s->sparse) return c;
    s->spec.method->held(s->sparse, 0, &held);
    s->be->ops->download(s->be, read, s->read_method, sizeof read);
    c.held = held.kv;
    c.read = (double)(read[READ_K] + read[READ_V]);
    if (!s->moved.p) return c;
    uint64_t moved[NEAR_KINDS];
    s->be->ops->download(s->be, moved, s->moved, sizeof moved);
    c.read = (double)moved[NEAR_LINK];
    c.asked = (double)moved[NEAR_ASKED];
    c.found = (double)moved[NEAR_FOUND];
    for (int l = 0; l < s->shape.n_layers; l++)
        if (s->method_layer[l]) c.written += (double)(s->stats.steps * (int64_t)kv_far_bytes(&s->spec.kv, &s->shape));
    return c;
}

tier_counts attn_seq_tier(const attn_seq *s)
{
    return tier_counts_since(tier_of(s), &s->in_prompts);
}

/* What moved since the forward began was moved by a prompt: all but that counted until now, before and in prompts. */
static void tier_prompt_end(attn_seq *s)
{
    tier_counts steps = tier_counts_since(s->before, &s->in_prompts);
    s->in_prompts = tier_counts_since(tier_of(s), &steps);
}

static void clear_read(attn_seq *s)
{
    uint64_t zero[2][READ_KINDS] = {{0}}, none[NEAR_KINDS] = {0};
    s->be->ops->upload(s->be, s->read, zero, sizeof zero);
    if (s->moved.p) s->be->ops->upload(s->be, s->moved, none, sizeof none);
}

void attn_seq_reset(attn_seq *s)
{
    attn_use u[2];
    for (int i = 0, n = parts_of(s, u); i < n; i++) {
        u[i].c->length = 0;
        u[i].m->reset(u[i].c);
    }
    s->stats = (attn_stats){0};
    s->in_prompts = tier_of(s);
    s->peak = (attn_bytes){0};
    clear_read(s);
}

/* ---- forwards ---- */

static size_t q_bytes(const attn_shape *sh)
{
    return (size_t)sh->n_heads * (size_t)sh->head_dim * sizeof(float);
}

static size_t kv_bytes(const attn_shape *sh)
{
    return (size_t)sh->n_kv_heads * (size_t)sh->head_dim * sizeof(float);
}

static size_t lse_bytes(const attn_shape *sh)
{
    return (size_t)sh->n_heads * sizeof(float);
}

static size_t table_bytes(const attn_shape *sh)
{
    return (size_t)sh->head_dim * sizeof(float);
}

size_t attn_work_bytes(const attn_shape *shape, size_t max_rows)
{
    return max_rows * ((2 * ATTN_MAX_SEGS + 1) * q_bytes(shape) + kv_bytes(shape) +
                       (ATTN_MAX_SEGS + 1) * lse_bytes(shape) + sizeof(attn_sel) + sizeof(attn_job));
}

status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be,
                        err *e)
{
    attn_work *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1, e));
    *w = (attn_work){.be = be, .shape = *shape, .max_rows = max_rows};
    const backend_ops *o = be->ops;
    size_t q = max_rows * q_bytes(shape), lse = max_rows * lse_bytes(shape);
    status st = ST_OK;
    for (int i = 0; i <= ATTN_MAX_SEGS && st == ST_OK; i++)
        st = o->alloc(be, &w->q[i], q, "queries", e);
    if (st == ST_OK) st = o->alloc(be, &w->k, max_rows * kv_bytes(shape), "keys", e);
    if (st == ST_OK) st = o->alloc(be, &w->parts, ATTN_MAX_SEGS * q, "partial attention", e);
    if (st == ST_OK) st = o->alloc(be, &w->lses, ATTN_MAX_SEGS * lse, "partial attention", e);
    if (st == ST_OK) st = o->alloc(be, &w->lse, lse, "log-sum-exp", e);
    if (st == ST_OK) st = MEM_NEW(&w->sels, max_rows, e);
    if (st == ST_OK) st = MEM_NEW(&w->jobs, max_rows, e);
    if (st != ST_OK) attn_work_free(w);
    else *out = w;
    return st;
}

void attn_work_free(attn_work *w)
{
    if (!w) return;
    const backend_ops *o = w->be->ops;
    size_t q = w->max_rows * q_bytes(&w->shape), lse = w->max_rows * lse_bytes(&w->shape);
    for (int i = 0; i <= ATTN_MAX_SEGS; i++)
        if (w->q[i].p) o->free(w->be, w->q[i], q);
    if (w->k.p) o->free(w->be, w->k, w->max_rows * kv_bytes(&w->shape));
    if (w->parts.p) o->free(w->be, w->parts, ATTN_MAX_SEGS * q);
    if (w->lses.p) o->free(w->be, w->lses, ATTN_MAX_SEGS * lse);
    if (w->lse.p) o->free(w->be, w->lse, lse);
    mem_free(w->sels);
    mem_free(w->jobs);
    mem_free(w);
}

/* First row of sequence i: all sequences of a shared prompt have the same rows. */
static size_t row_of(const attn_step *step, bool shared, size_t i)
{
    return shared ? 0 : i * step->n_tok;
}

/* Several sequences and a prompt: one block of rows is the prompt of all of them. */
static bool is_shared(const attn_step *step)
{
    return step->n_seq > 1 && (step->flags & ATTN_PROMPT);
}

static void show(const attn_work *w, const attn_seen *seen)
{
    if (w->watch) w->watch(w->watch_ctx, seen);
}

static attn_part part_of(const attn_work *w, const attn_step *step, size_t row)
{
    return (attn_part){.n_tok = step->n_tok,
                       .n_prompt = step->n_prompt,
                       .prompt_done = step->prompt_done,
                       .flags = step->flags,
                       .pos = buf_at(step->pos, row * sizeof(int64_t)),
                       .table = buf_at(step->table, row * table_bytes(&w->shape)),
                       .freq = step->freq,
                       .mscale = step->mscale};
}

bool attn_can_share(const attn_seq *a, const attn_seq *b, int64_t n_prompt)
{
    attn_use u[4];
    int n = parts_of(a, u);
    n += parts_of(b, u + n);
    for (int i = 0; i < n; i++)
        if (!u[i].m->exact_prompt(u[i].c, n_prompt)) return false;
    return a->spec.kv.type == b->spec.kv.type && attn_seq_length(a) == attn_seq_length(b);
}

void attn_begin(attn_work *w, const attn_step *step)
{
    attn_use u[2];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_seq *s = step->seq[i];
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        /* What a prompt reads is cleared at its end. */
        if (step->flags & ATTN_PROMPT) s->stats = attn_seq_stats(s);
        s->before = tier_of(s);
        for (int k = 0, n = parts_of(s, u); k < n; k++) u[k].m->step_begin(u[k].c, &p);
    }
    show(w, &(attn_seen){.step = step, .layer = -1});
}

/* One layer of a forward, or one window of it: what attn_layer was given, from row `row` on. */
typedef struct {
    const attn_step *step;
    int layer;
    size_t n_tok, n_sel; /* rows of each of n_sel selections */
    size_t row;          /* first row of the step */
    buf q, k, v, out;    /* from that row on */
} layer_run;

/* The part of sequence i in a run. */
static attn_part run_part(const attn_work *w, const layer_run *r, size_t i)
{
    size_t row = r->n_sel == 1 ? r->row : i * r->n_tok;
    attn_part p = part_of(w, r->step, row);
    p.n_tok = r->n_tok;
    p.prompt_done += (int64_t)r->row;
    return p;
}

/* q[s + 1]: the queries of segment s where it has positions of its own; sels[i] belongs to rows
 * [i * n_tok, (i + 1) * n_tok). */
static void rotate_for_segments(attn_work *w, const layer_run *r)
{
    const attn_shape *sh = &w->shape;
    for (size_t i = 0; i < r->n_sel; i++)
        for (int s = 0; s < w->sels[i].n_seg; s++) {
            size_t at = i * r->n_tok * q_bytes(sh);
            if (w->sels[i].seg[s].table.p)
                w->be->ops->rope(w->be, buf_at(w->q[s + 1], at), buf_at(r->q, at),
                                 w->sels[i].seg[s].table, r->n_tok, (size_t)sh->n_heads,
                                 (size_t)sh->head_dim / 2);
        }
}

/* A group of sequences with equally many segments: sels [first, first + n). */
typedef struct {
    size_t first, n;
} sel_run;

/* The counters of the sequence whose rows selection i reads. */
static buf read_of(const layer_run *r, size_t i)
{
    return use_of(r->step->seq[i], r->layer).c->read;
}

/* Attention of a group over its segments with index s, into dst (rows of the group; lse likewise). */
static void attend_segment(attn_work *w, const layer_run *r, sel_run run, int s, buf dst, buf lse)
{
    const attn_shape *sh = &w->shape;
    for (size_t i = 0; i < run.n; i++) {
        const attn_seg *g = &w->sels[run.first + i].seg[s];
        size_t row = (run.first + i) * r->n_tok, to = i * r->n_tok;
        w->jobs[i] = (attn_job){
            .q = buf_at(g->table.p ? w->q[s + 1] : w->q[0], row * q_bytes(sh)),
            .out = buf_at(dst, to * q_bytes(sh)),
            .lse = lse.p ? buf_at(lse, to * lse_bytes(sh)) : lse,
            .n_tok = r->n_tok,
            .n_heads = (size_t)sh->n_heads,
            .rows = *g->rows,
            .range = g->range,
            .idx = g->idx,
            .n_lists = g->n_lists,
            .idx_stride = g->idx_stride,
            .n_max = g->n_max,
            .qpos = g->qpos.p ? g->qpos : buf_at(r->step->pos, (r->row + row) * sizeof(int64_t)),
            .kpos = g->kpos,
            .at = g->at,
            .band = g->band,
            .scale = sh->scale,
            .read = read_of(r, run.first + i),
            .copied = g->copied,
            .scores = g->scores,
            .score_stride = g->score_stride,
            .rounded = r->step->flags & ATTN_ROUNDED,
        };
    }
    for (size_t i = 0; i < run.n; i++)
        if (w->jobs[i].rows.tier) w->be->ops->tier->need(w->be, &w->jobs[i]);
    for (size_t i = 0; i < run.n && !(r->step->flags & ATTN_PROMPT); i++)
        if (w->jobs[i].rows.near) w->be->ops->host->bring(w->be, &w->jobs[i]);
    if (r->step->flags & ATTN_PROMPT) w->be->ops->attn_prefill(w->be, &w->jobs[0]);
    else w->be->ops->attn_decode(w->be, w->jobs, run.n);
}

/* lse: of the whole attention, rows of the group; p NULL: not wanted. */
static void attend_group(attn_work *w, const layer_run *r, sel_run run, buf lse)
{
    const attn_shape *sh = &w->shape;
    size_t rows = run.n * r->n_tok, heads = rows * (size_t)sh->n_heads;
    int n_seg = w->sels[run.first].n_seg;
    buf out = buf_at(r->out, run.first * r->n_tok * q_bytes(sh));
    if (lse.p) lse = buf_at(lse, run.first * r->n_tok * lse_bytes(sh));
    if (n_seg == 1) {
        attend_segment(w, r, run, 0, out, lse);
        return;
    }
    for (int s = 0; s < n_seg; s++)
        attend_segment(w, r, run, s, buf_at(w->parts, (size_t)s * rows * q_bytes(sh)),
                       buf_at(w->lses, (size_t)s * heads * sizeof(float)));
    w->be->ops->attn_merge(w->be, out, lse, w->parts, w->lses, (size_t)n_seg, heads,
                           (size_t)sh->head_dim);
}

static bool is_observed(const layer_run *r, const attn_part *p, size_t i)
{
    attn_use u = use_of(r->step->seq[i], r->layer);
    return u.m->observes && u.m->observes(u.c, p, r->layer);
}

/* Append, select, attend, observe. */
static void run_layer(attn_work *w, const layer_run *r)
{
    const attn_shape *sh = &w->shape;
    bool observed = false;
    w->be->ops->rope(w->be, w->q[0], r->q, buf_at(r->step->table, r->row * table_bytes(sh)),
                     r->n_sel * r->n_tok, (size_t)sh->n_heads, (size_t)sh->head_dim / 2);
    backend_mark(w->be, STAGE_NORM);
    for (size_t i = 0; i < r->step->n_seq; i++) {
        attn_use u = use_of(r->step->seq[i], r->layer);
        attn_part p = run_part(w, r, i);
        size_t row = r->n_sel == 1 ? 0 : i * r->n_tok, at = row * kv_bytes(sh);
        u.m->append(u.c, &p, r->layer, buf_at(r->k, at), buf_at(w->k, r->row * kv_bytes(sh) + at),
                    buf_at(r->v, at));
        backend_mark(w->be, STAGE_INDEX);
        if (i < r->n_sel) w->sels[i].head = w->sels[i].tail = 0;
        if (i < r->n_sel)
            u.m->select(u.c, &p, r->layer, buf_at(r->q, row * q_bytes(sh)),
                        buf_at(w->q[0], row * q_bytes(sh)), &w->sels[i]);
        backend_mark(w->be, STAGE_SCORE);
        observed |= is_observed(r, &p, i);
    }
    rotate_for_segments(w, r);
    for (size_t i = 0, n; i < r->n_sel; i += n) {
        for (n = 1; i + n < r->n_sel && w->sels[i + n].n_seg == w->sels[i].n_seg;) n++;
        attend_group(w, r, (sel_run){i, n}, observed ? w->lse : (buf){NULL});
    }
    backend_mark(w->be, STAGE_ATTENTION);
    for (size_t i = 0; i < r->step->n_seq && observed; i++) {
        attn_use u = use_of(r->step->seq[i], r->layer);
        attn_part p = run_part(w, r, i);
        size_t row = r->n_sel == 1 ? 0 : i * r->n_tok;
        if (is_observed(r, &p, i))
            u.m->observe(u.c, &p, r->layer, buf_at(w->q[0], row * q_bytes(sh)),
                         buf_at(w->lse, row * lse_bytes(sh)));
    }
}

static void end_layer(const attn_work *w, const attn_step *step, int layer)
{
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_use u = use_of(step->seq[i], layer);
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        if (u.m->layer_end) u.m->layer_end(u.c, &p, layer);
    }
}

/* Tokens of one window: only a sequence alone in its prompt has more than one. */
static size_t window_of(const attn_step *step, int layer)
{
    attn_use u = use_of(step->seq[0], layer);
    if (step->n_seq > 1 || !(step->flags & ATTN_PROMPT) || !u.m->window) return step->n_tok;
    size_t n = (size_t)u.m->window(u.c);
    return n > 0 && n < step->n_tok ? n : step->n_tok;
}

void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out)
{
    const attn_shape *sh = &w->shape;
    size_t n_sel = is_shared(step) ? 1 : step->n_seq, window = window_of(step, layer);
    w->be->ops->rope(w->be, w->k, k, step->table, n_sel * step->n_tok, (size_t)sh->n_kv_heads,
                     (size_t)sh->head_dim / 2);
    for (size_t row = 0; row < step->n_tok; row += window) {
        layer_run r = {.step = step, .layer = layer, .row = row, .n_sel = n_sel,
                       .n_tok = step->n_tok - row < window ? step->n_tok - row : window,
                       .q = buf_at(q, row * q_bytes(sh)), .k = buf_at(k, row * kv_bytes(sh)),
                       .v = buf_at(v, row * kv_bytes(sh)), .out = buf_at(out, row * q_bytes(sh))};
        run_layer(w, &r);
    }
    end_layer(w, step, layer);
    backend_mark(w->be, STAGE_INDEX);
    show(w, &(attn_seen){step, layer, q, k, w->q[0], w->k, v, out});
}

void attn_watch(attn_work *w, void (*fn)(void *ctx, const attn_seen *seen), void *ctx)
{
    w->watch = fn;
    w->watch_ctx = ctx;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int64_t attn_last_list(const attn_work *w, size_t i, int seg, size_t list, int32_t *out)
{
    const attn_sel *sel = &w->sels[i];
    int64_t range[2];
    if (seg >= sel->n_seg) return -1;
    const attn_seg *g = &sel->seg[seg];
    if (g->n_lists == 1) list = 0;
    w->be->ops->download(w->be, range, buf_at(g->range, list * sizeof range), sizeof range);
    if (out && g->idx.p)
        w->be->ops->download(
            w->be, out, buf_at(g->idx, (list * g->idx_stride + (size_t)range[0]) * sizeof *out),
            (size_t)range[1] * sizeof *out);
    for (int64_t k = 0; out && !g->idx.p && k < range[1]; k++) out[k] = (int32_t)(range[0] + k);
    return range[1];
}

int64_t attn_last_selection(const attn_work *w, size_t i, int head, int32_t *out, int64_t *head_end,
                            int64_t *tail)
{
    const attn_sel *sel = &w->sels[i];
    size_t heads = (size_t)w->shape.n_heads, kv = (size_t)head / (heads / (size_t)w->shape.n_kv_heads);
    int64_t n = 0;
    for (int s = 0; s < sel->n_seg; s++) {
        size_t list = sel->seg[s].n_lists == heads ? (size_t)head : kv;
        int64_t from = n;
        n += attn_last_list(w, i, s, list, out ? out + n : NULL);
        for (int64_t k = from; out && k < n; k++) out[k] += (int32_t)sel->seg[s].origin;
    }
    if (out) qsort(out, (size_t)n, sizeof *out, by_value);
    *head_end = sel->head;
    *tail = sel->tail;
    return n;
}

void attn_store(attn_work *w, const attn_step *step, int layer, buf k, buf v)
{
    const attn_shape *sh = &w->shape;
    w->be->ops->rope(w->be, w->k, k, step->table, step->n_tok, (size_t)sh->n_kv_heads,
                     (size_t)sh->head_dim / 2);
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_use u = use_of(step->seq[i], layer);
        attn_part p = part_of(w, step, 0);
        u.m->append(u.c, &p, layer, k, w->k, v);
    }
    end_layer(w, step, layer);
}

static void count_step(attn_seq *s)
{
    size_t keys = (size_t)s->shape.n_kv_heads * (size_t)s->shape.head_dim * dtype_size(s->spec.kv.type);
    s->stats.steps++;
    for (int l = 0; l < s->shape.n_layers; l++) {
        attn_use u = use_of(s, l);
        s->stats.attended += (double)u.m->attended(u.c, l);
        s->stats.visible += (double)attn_full.attended(u.c, l);
        s->stats.full_keys += (double)attn_full.attended(u.c, l) * (double)keys;
    }
}

void attn_end(attn_work *w, const attn_step *step)
{
    attn_use u[2];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_seq *s = step->seq[i];
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        /* Eviction comes after attention: what this forward added was there too. */
        keep_peak(s, (int64_t)step->n_tok);
        for (int k = 0, n = parts_of(s, u); k < n; k++) {
            if (u[k].m->step_end) u[k].m->step_end(u[k].c, &p);
            u[k].c->length += (int64_t)step->n_tok;
        }
        /* Codes of small groups take more than the rows that they stand for. */
        if (kv_has_codes(&s->spec.kv)) keep_peak(s, 0);
        if (step->flags & ATTN_PROMPT) {
            clear_read(s);
            tier_prompt_end(s);
        } else {
            count_step(s);
        }
    }
    show(w, &(attn_seen){.step = step, .layer = w->shape.n_layers});
}
