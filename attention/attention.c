/* SPDX-License-Identifier: MIT */
/* The composition around every method: dense layers, rotation, attention over segments, counts. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "attention/method.h"
#include "kernels/base/mem.h"

struct attn_seq {
    attn_spec spec;
    attn_shape shape;
    attn_limits lim;
    backend *be;
    bool *dense_layer, *method_layer; /* [n_layers], complementary */
    attn_ctx *dense;                  /* attn_full over the dense layers, NULL if there are none */
    attn_ctx *sparse;                 /* the method over the others, NULL if there are none */
    attn_stats stats;
    attn_bytes peak;
};

struct attn_work {
    backend *be;
    attn_shape shape;
    size_t max_rows;
    buf q[ATTN_MAX_SEGS +
          1];        /* queries at the step's positions; then for segments with their own */
    buf k;           /* keys rotated at the step's positions */
    buf parts, lses; /* [ATTN_MAX_SEGS][rows] partial results */
    attn_sel *sels;  /* [max_rows] one a sequence */
    attn_job *jobs;  /* [max_rows] */
};

static bool layer_is_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    const attn_method *m = s->method;
    return (layer < 64 && (s->skip >> layer & 1)) || (m->dense && m->dense(s, shape, layer));
}

status attn_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                 const attn_limits *lim, err *e)
{
    size_t row = kv_row_bytes((size_t)shape->n_kv_heads, (size_t)shape->head_dim, s->kv), bytes;
    *out = (attn_bytes){0};
    for (int l = 0; l < shape->n_layers; l++) {
        const attn_method *m = layer_is_dense(s, shape, l) ? &attn_full : s->method;
        TRY(size_mul(&bytes, (size_t)m->plan_rows(s, shape, lim, l), row, "KV plan", e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
    }
    return ST_OK;
}

static status create_part(attn_ctx **out, attn_seq *s, const attn_method *m, const bool *layers,
                          err *e)
{
    bool any = false;
    for (int l = 0; l < s->shape.n_layers; l++) any |= layers[l];
    if (!any) return ST_OK;
    attn_ctx base = {
        .spec = &s->spec, .shape = &s->shape, .lim = &s->lim, .layers = layers, .be = s->be};
    return m->create(out, &base, e);
}

status attn_seq_create(attn_seq **out, const attn_spec *spec, const attn_shape *shape,
                       const attn_limits *lim, backend *be, err *e)
{
    attn_seq *s;
    *out = NULL;
    TRY(attn_spec_check(spec, shape, e));
    TRY(MEM_NEW(&s, 1, e));
    *s = (attn_seq){.spec = *spec, .shape = *shape, .lim = *lim, .be = be};
    status st = MEM_NEW(&s->dense_layer, (size_t)shape->n_layers, e);
    if (st == ST_OK) st = MEM_NEW(&s->method_layer, (size_t)shape->n_layers, e);
    if (st != ST_OK) goto done;
    for (int l = 0; l < shape->n_layers; l++) {
        s->dense_layer[l] = layer_is_dense(spec, shape, l);
        s->method_layer[l] = !s->dense_layer[l];
    }
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

void attn_seq_reset(attn_seq *s)
{
    attn_use u[2];
    for (int i = 0, n = parts_of(s, u); i < n; i++) {
        u[i].c->length = 0;
        u[i].m->reset(u[i].c);
    }
    s->stats = (attn_stats){0};
    s->peak = (attn_bytes){0};
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
    /* The method first: it may refuse, the dense part cannot. */
    for (int i = n_use - 1; i >= 0; i--) {
        if (!u[i].m->rewind(u[i].c, n))
            return err_set(e, ST_UNSUPPORTED, "%s: tokens were evicted, cannot go back to %lld",
                           s->spec.text, (long long)n);
        u[i].c->length = n;
    }
    return ST_OK;
}

/* Bytes of the stored rows and of `extra` more in each layer. */
static attn_bytes bytes_with(const attn_seq *s, int64_t extra)
{
    size_t row = kv_row_bytes((size_t)s->shape.n_kv_heads, (size_t)s->shape.head_dim, s->spec.kv);
    attn_bytes b = {0};
    for (int l = 0; l < s->shape.n_layers; l++) {
        attn_use u = use_of(s, l);
        b.kv += (size_t)(u.m->rows_held(u.c, l) + extra) * row;
    }
    return b;
}

attn_bytes attn_seq_held(const attn_seq *s)
{
    return bytes_with(s, 0);
}

attn_bytes attn_seq_peak(const attn_seq *s)
{
    return s->peak;
}

int64_t attn_seq_positions(const attn_seq *s, int layer, int kv_head, int64_t *out)
{
    attn_use u = use_of(s, layer);
    return u.m->positions(u.c, layer, kv_head, out);
}

attn_stats attn_seq_stats(const attn_seq *s)
{
    return s->stats;
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

static size_t table_bytes(const attn_shape *sh)
{
    return (size_t)sh->head_dim * sizeof(float);
}

size_t attn_work_bytes(const attn_shape *shape, size_t max_rows)
{
    return max_rows * ((2 * ATTN_MAX_SEGS + 1) * q_bytes(shape) + kv_bytes(shape) +
                       ATTN_MAX_SEGS * (size_t)shape->n_heads * sizeof(float) + sizeof(attn_sel) +
                       sizeof(attn_job));
}

status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be,
                        err *e)
{
    attn_work *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1, e));
    *w = (attn_work){.be = be, .shape = *shape, .max_rows = max_rows};
    const backend_ops *o = be->ops;
    size_t q = max_rows * q_bytes(shape), lse = max_rows * (size_t)shape->n_heads * sizeof(float);
    status st = ST_OK;
    for (int i = 0; i <= ATTN_MAX_SEGS && st == ST_OK; i++)
        st = o->alloc(be, &w->q[i], q, "queries", e);
    if (st == ST_OK) st = o->alloc(be, &w->k, max_rows * kv_bytes(shape), "keys", e);
    if (st == ST_OK) st = o->alloc(be, &w->parts, ATTN_MAX_SEGS * q, "partial attention", e);
    if (st == ST_OK) st = o->alloc(be, &w->lses, ATTN_MAX_SEGS * lse, "partial attention", e);
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
    size_t q = w->max_rows * q_bytes(&w->shape),
           lse = w->max_rows * (size_t)w->shape.n_heads * sizeof(float);
    for (int i = 0; i <= ATTN_MAX_SEGS; i++)
        if (w->q[i].p) o->free(w->be, w->q[i], q);
    if (w->k.p) o->free(w->be, w->k, w->max_rows * kv_bytes(&w->shape));
    if (w->parts.p) o->free(w->be, w->parts, ATTN_MAX_SEGS * q);
    if (w->lses.p) o->free(w->be, w->lses, ATTN_MAX_SEGS * lse);
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
    return a->spec.kv == b->spec.kv && attn_seq_length(a) == attn_seq_length(b);
}

void attn_begin(attn_work *w, const attn_step *step)
{
    attn_use u[2];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        for (int k = 0, n = parts_of(step->seq[i], u); k < n; k++) u[k].m->step_begin(u[k].c, &p);
    }
}

/* q[0]: queries at the step's positions; q[s + 1]: those of segment s where it has positions of its
 * own. sels[i] belongs to rows [i * n_tok, (i + 1) * n_tok). */
static void rotate_queries(attn_work *w, const attn_step *step, size_t n_sel, buf q)
{
    const attn_shape *sh = &w->shape;
    size_t half = (size_t)sh->head_dim / 2, heads = (size_t)sh->n_heads;
    const backend_ops *o = w->be->ops;
    o->rope(w->be, w->q[0], q, step->table, n_sel * step->n_tok, heads, half);
    for (size_t i = 0; i < n_sel; i++)
        for (int s = 0; s < w->sels[i].n_seg; s++) {
            size_t at = i * step->n_tok * q_bytes(sh);
            if (w->sels[i].seg[s].table.p)
                o->rope(w->be, buf_at(w->q[s + 1], at), buf_at(q, at), w->sels[i].seg[s].table,
                        step->n_tok, heads, half);
        }
}

/* A run of sequences with equally many segments: sels [first, first + n). */
typedef struct {
    size_t first, n;
} sel_run;

/* Attention of a run over its segments with index s, into dst (rows of the run; lse likewise). */
static void attend_segment(attn_work *w, const attn_step *step, sel_run run, int s, buf dst,
                           buf lse)
{
    const attn_shape *sh = &w->shape;
    for (size_t i = 0; i < run.n; i++) {
        const attn_seg *g = &w->sels[run.first + i].seg[s];
        size_t row = (run.first + i) * step->n_tok, to = i * step->n_tok;
        w->jobs[i] = (attn_job){
            .q = buf_at(g->table.p ? w->q[s + 1] : w->q[0], row * q_bytes(sh)),
            .out = buf_at(dst, to * q_bytes(sh)),
            .lse = lse.p ? buf_at(lse, to * (size_t)sh->n_heads * sizeof(float)) : lse,
            .n_tok = step->n_tok,
            .n_heads = (size_t)sh->n_heads,
            .rows = *g->rows,
            .range = g->range,
            .idx = g->idx,
            .n_lists = g->n_lists,
            .idx_stride = g->idx_stride,
            .n_max = g->n_max,
            .qpos = g->qpos.p ? g->qpos : buf_at(step->pos, row * sizeof(int64_t)),
            .kpos = g->kpos,
            .band = g->band,
            .scale = sh->scale,
        };
    }
    if (step->flags & ATTN_PROMPT) w->be->ops->attn_prefill(w->be, &w->jobs[0]);
    else w->be->ops->attn_decode(w->be, w->jobs, run.n);
}

static void attend_run(attn_work *w, const attn_step *step, sel_run run, buf out)
{
    const attn_shape *sh = &w->shape;
    size_t rows = run.n * step->n_tok, heads = rows * (size_t)sh->n_heads;
    int n_seg = w->sels[run.first].n_seg;
    out = buf_at(out, run.first * step->n_tok * q_bytes(sh));
    if (n_seg == 1) {
        attend_segment(w, step, run, 0, out, (buf){NULL});
        return;
    }
    for (int s = 0; s < n_seg; s++)
        attend_segment(w, step, run, s, buf_at(w->parts, (size_t)s * rows * q_bytes(sh)),
                       buf_at(w->lses, (size_t)s * heads * sizeof(float)));
    w->be->ops->attn_merge(w->be, out, (buf){NULL}, w->parts, w->lses, (size_t)n_seg, heads,
                           (size_t)sh->head_dim);
}

static void end_layer(const attn_work *w, const attn_step *step, int layer)
{
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_use u = use_of(step->seq[i], layer);
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        if (u.m->layer_end) u.m->layer_end(u.c, &p, layer);
    }
}

void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out)
{
    const attn_shape *sh = &w->shape;
    bool shared = is_shared(step);
    size_t n_sel = shared ? 1 : step->n_seq, half = (size_t)sh->head_dim / 2;
    w->be->ops->rope(w->be, w->k, k, step->table, n_sel * step->n_tok, (size_t)sh->n_kv_heads,
                     half);
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_use u = use_of(step->seq[i], layer);
        size_t row = row_of(step, shared, i), at = row * kv_bytes(sh);
        attn_part p = part_of(w, step, row);
        u.m->append(u.c, &p, layer, buf_at(k, at), buf_at(w->k, at), buf_at(v, at));
        if (i < n_sel) u.m->select(u.c, &p, layer, buf_at(q, row * q_bytes(sh)), &w->sels[i]);
    }
    rotate_queries(w, step, n_sel, q);
    for (size_t i = 0, n; i < n_sel; i += n) {
        for (n = 1; i + n < n_sel && w->sels[i + n].n_seg == w->sels[i].n_seg;) n++;
        attend_run(w, step, (sel_run){i, n}, out);
    }
    end_layer(w, step, layer);
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
    s->stats.steps++;
    for (int l = 0; l < s->shape.n_layers; l++) {
        attn_use u = use_of(s, l);
        s->stats.attended += (double)u.m->attended(u.c, l);
        s->stats.visible += (double)attn_full.attended(u.c, l);
    }
}

void attn_end(attn_work *w, const attn_step *step)
{
    attn_use u[2];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_seq *s = step->seq[i];
        attn_part p = part_of(w, step, row_of(step, is_shared(step), i));
        /* Eviction comes after attention: what this forward added was there too. */
        attn_bytes most = bytes_with(s, (int64_t)step->n_tok);
        if (most.kv > s->peak.kv) s->peak = most;
        for (int k = 0, n = parts_of(s, u); k < n; k++) {
            if (u[k].m->step_end) u[k].m->step_end(u[k].c, &p);
            u[k].c->length += (int64_t)step->n_tok;
        }
        if (!(step->flags & ATTN_PROMPT)) count_step(s);
    }
}
