/* SPDX-License-Identifier: MIT */
/* One forward of several sequences: rotation, attention over the selections of their methods, merging. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "attention/sequence_impl.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_tail.h"
#include "kernels/base/mem.h"

struct attn_work {
    backend *be;
    attn_shape shape;
    size_t max_rows;
    /* [0]: queries at the step's positions; [s + 1]: queries of segment s if it has its own positions. */
    buf q[ATTN_MAX_SEGS + 1];
    buf k;           /* keys rotated at the step's positions */
    buf held[2];     /* keys and values rounded to rows in blocks */
    buf parts, lses; /* [ATTN_MAX_SEGS][rows] partial results */
    buf lse;         /* [rows][n_heads] log-sum-exp of the whole attention, for observers */
    void (*watch)(void *ctx, const attn_seen *seen); /* may be NULL */
    void *watch_ctx;
    attn_sel *sels; /* [max_rows] one per sequence */
    attn_job *jobs; /* [max_rows] */
    buf pos;        /* i64 [rows] positions of the queries of the last decode step; p NULL: after a prompt */
};

/* ---- work space ---- */

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
    return 2 * attn_pairs(sh) * sizeof(float);
}

/* Rotates n rows of heads by the rows of a table. */
static void rotate(const attn_work *w, buf out, buf x, buf table, size_t n, int heads)
{
    w->be->ops->rope(w->be, out, x, table, n, (size_t)heads, (size_t)w->shape.head_dim, attn_pairs(&w->shape));
}

size_t attn_work_bytes(const attn_shape *shape, size_t max_rows)
{
    return max_rows * ((2 * ATTN_MAX_SEGS + 1) * q_bytes(shape) + 3 * kv_bytes(shape) +
                       (ATTN_MAX_SEGS + 1) * lse_bytes(shape) + sizeof(attn_sel) + sizeof(attn_job));
}

status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be, err *e)
{
    attn_work *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1, e));
    *w = (attn_work){.be = be, .shape = *shape, .max_rows = max_rows};
    const backend_ops *o = be->ops;
    size_t q = max_rows * q_bytes(shape), lse = max_rows * lse_bytes(shape);
    status st = ST_OK;
    for (int i = 0; i <= ATTN_MAX_SEGS && st == ST_OK; i++) st = o->alloc(be, &w->q[i], q, "queries", e);
    if (st == ST_OK) st = o->alloc(be, &w->k, max_rows * kv_bytes(shape), "keys", e);
    for (int i = 0; i < 2 && st == ST_OK; i++)
        st = o->alloc(be, &w->held[i], max_rows * kv_bytes(shape), "rounded keys and values", e);
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
    for (int i = 0; i < 2; i++)
        if (w->held[i].p) o->free(w->be, w->held[i], w->max_rows * kv_bytes(&w->shape));
    if (w->parts.p) o->free(w->be, w->parts, ATTN_MAX_SEGS * q);
    if (w->lses.p) o->free(w->be, w->lses, ATTN_MAX_SEGS * lse);
    if (w->lse.p) o->free(w->be, w->lse, lse);
    mem_free(w->sels);
    mem_free(w->jobs);
    mem_free(w);
}

/* Returns the first row of sequence i. All sequences of a shared prompt have the same rows. */
static size_t row_of(const attn_step *step, bool shared, size_t i)
{
    return shared ? 0 : i * step->n_tok;
}

/* True if the rows are the prompt of several sequences. */
static bool is_shared(const attn_step *step)
{
    return step->n_seq > 1 && (step->flags & ATTN_PROMPT);
}

static void show(const attn_work *w, const attn_seen *seen)
{
    if (w->watch) w->watch(w->watch_ctx, seen);
}

/* Returns the part of sequence i from row `row` of the step on, `done` tokens into the forward. */
static attn_part part_of(const attn_work *w, const attn_step *step, size_t i, size_t row, size_t done)
{
    const size_t freq_row = step->flags & ATTN_PROMPT ? 0 : row;
    const buf freq = step->freq; /* p NULL: no strategy of the step rotates rows */
    return (attn_part){.n_tok = step->n_tok,
                       .first = step->seq[i]->length + (int64_t)done,
                       .n_prompt = step->n_prompt,
                       .prompt_done = step->prompt_done,
                       .flags = step->flags,
                       .hint = step->hint,
                       .pos = buf_at(step->pos, row * sizeof(int64_t)),
                       .table = buf_at(step->table, row * table_bytes(&w->shape)),
                       .freq = freq.p ? buf_at(freq, freq_row * table_bytes(&w->shape) / 2) : freq,
                       .mscale = step->mscale};
}

static bool is_exact(const attn_view *v, int64_t n_prompt)
{
    return kv_store_plain(v->store) && (!HOOK(v, exact_prompt) || HOOK(v, exact_prompt)(v, n_prompt));
}

bool attn_can_share(const attn_seq *a, const attn_seq *b, int64_t n_prompt)
{
    layer_group *groups[2 * GROUPS];
    int n = own_groups_of(a, groups);
    n += own_groups_of(b, groups + n);
    for (int i = 0; i < n; i++)
        if (!is_exact(&groups[i]->v, n_prompt)) return false;
    return kv_same_rows(&a->spec.kv, &b->spec.kv) && a->length == b->length;
}

static attn_view *attending_view(const attn_step *step, const attn_seq *s, int layer)
{
    return step->flags & ATTN_DRAFT ? storing_view(s, layer) : view_of(s, layer);
}

/* A draft view sees every step except its own as a prompt chunk: it stores the rows and selects nothing. */
static attn_part part_for(const attn_view *v, attn_part p)
{
    if (v->draft_view && !(p.flags & ATTN_DRAFT)) p.flags |= ATTN_PROMPT;
    return p;
}

void attn_begin(attn_work *w, const attn_step *step)
{
    layer_group *groups[GROUPS];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_seq *s = step->seq[i];
        attn_part p = part_of(w, step, i, row_of(step, is_shared(step), i), 0);
        if (step->flags & ATTN_PROMPT) seq_prompt_begin(s);
        s->before = row_tier_counts(s->tier);
        for (int k = 0, n = groups_of(s, groups); k < n; k++) {
            attn_view *v = &groups[k]->v;
            attn_part own = part_for(v, p);
            if (!v->draft_view) kv_store_begin(v->store, s->length, (int64_t)p.n_tok, p.flags);
            if (HOOK(v, begin)) HOOK(v, begin)(v, &own);
        }
    }
    show(w, &(attn_seen){.step = step, .layer = -1});
}

/* One layer of a forward, or one prompt window of it: the arguments of attn_layer from row `row` on. */
typedef struct {
    const attn_step *step;
    int layer;
    size_t n_tok, n_sel; /* rows per selection, number of selections */
    size_t row;          /* first row within the step */
    buf q, k, v, out;    /* at that row */
} layer_run;

/* Returns the sequence of selection i. With ATTN_VERIFY all selections belong to one sequence. */
static size_t seq_at(const layer_run *r, size_t i)
{
    return r->step->flags & ATTN_VERIFY ? 0 : i;
}

static attn_part run_part(const attn_work *w, const layer_run *r, size_t i)
{
    size_t row = r->n_sel == 1 ? r->row : i * r->n_tok, done = r->step->flags & ATTN_VERIFY ? i : r->row;
    attn_part p = part_of(w, r->step, seq_at(r, i), row, done);
    p.n_tok = r->n_tok;
    p.prompt_done += (int64_t)r->row;
    return p;
}

static bool own_queries(const attn_seg *g)
{
    return g->table.p || g->factor.p;
}

/* Fills w->q[s + 1] for segments s with their own queries. sels[i] has the rows [i * n_tok, (i + 1) * n_tok). */
static void make_own_queries(attn_work *w, const layer_run *r)
{
    const backend_ops *o = w->be->ops;
    size_t heads = (size_t)w->shape.n_heads, dim = (size_t)w->shape.head_dim;
    for (size_t i = 0; i < r->n_sel; i++)
        for (int s = 0; s < w->sels[i].n_seg; s++) {
            const attn_seg *g = &w->sels[i].seg[s];
            size_t at = i * r->n_tok * q_bytes(&w->shape);
            buf q = buf_at(w->q[s + 1], at);
            if (g->table.p) rotate(w, q, buf_at(r->q, at), g->table, r->n_tok, w->shape.n_heads);
            if (g->factor.p)
                o->codes->divide_channels(w->be, q, buf_at(w->q[0], at), g->factor, r->n_tok, heads,
                                          g->rows->n_kv_heads, dim);
        }
}

/* Run of selections with the same number of segments: sels[first .. first + n). */
typedef struct {
    size_t first, n;
} sel_run;

/* Attends segment s of each selection of a run. dst and lse start at the first row of the run. */
static void attend_segment(attn_work *w, const layer_run *r, sel_run run, int s, buf dst, buf lse)
{
    const attn_shape *sh = &w->shape;
    for (size_t i = 0; i < run.n; i++) {
        const attn_seg *g = &w->sels[run.first + i].seg[s];
        size_t row = (run.first + i) * r->n_tok, to = i * r->n_tok;
        attn_job *j = &w->jobs[i];
        const attn_view *v = attending_view(r->step, r->step->seq[seq_at(r, run.first + i)], r->layer);
        *j = attn_seg_job(v, g);
        if (r->step->flags & ATTN_DRAFT && !v->draft_view) j->read.p = NULL;
        j->q = buf_at(own_queries(g) ? w->q[s + 1] : w->q[0], row * q_bytes(sh));
        j->out = buf_at(dst, to * q_bytes(sh));
        j->lse = lse.p ? buf_at(lse, to * lse_bytes(sh)) : lse;
        j->n_tok = r->n_tok;
        j->rounded = r->step->flags & ATTN_ROUNDED;
        j->tiles = r->step->seq[seq_at(r, run.first + i)]->tiles;
        if (!j->qpos.p) j->qpos = buf_at(r->step->pos, (r->row + row) * sizeof(int64_t));
    }
    row_tier_before_read(w->be, w->jobs, run.n, !(r->step->flags & ATTN_PROMPT));
    if (r->step->flags & ATTN_PROMPT) w->be->ops->attn_prefill(w->be, &w->jobs[0]);
    else w->be->ops->attn_decode(w->be, w->jobs, run.n);
}

/* Measures the missed attention of a run from its samples, the last segment, which w->jobs attended. */
static void measure_samples(const attn_work *w, sel_run run, int n_seg)
{
    tail_missed_job jobs[ATTN_MAX_TASKS];
    size_t heads = run.n * (size_t)w->shape.n_heads, n = 0;
    for (size_t i = 0; i < run.n; i++) {
        const attn_seg *g = &w->sels[run.first + i].seg[n_seg - 1];
        if (g->missed.p)
            jobs[n++] = (tail_missed_job){.of = w->jobs[i],
                                          .left = g->left,
                                          .parts = buf_at(w->lses, i * lse_bytes(&w->shape)),
                                          .n_parts = (size_t)n_seg,
                                          .stride = heads,
                                          .out = g->missed};
        if (n == ATTN_MAX_TASKS || (i + 1 == run.n && n > 0)) w->be->ops->tail->missed(w->be, jobs, n), n = 0;
    }
}

/* Attends all segments of a run and merges them. lse: of the whole attention; p NULL: not needed. */
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
    w->be->ops->attn_merge(w->be, out, lse, w->parts, w->lses, (size_t)n_seg, heads, (size_t)sh->head_dim);
    if (!(r->step->flags & ATTN_PROMPT)) measure_samples(w, run, n_seg);
}

static attn_task task_of(attn_work *w, const layer_run *r, size_t i)
{
    const attn_shape *sh = &w->shape;
    size_t row = r->n_sel == 1 ? 0 : i * r->n_tok, at = row * kv_bytes(sh);
    return (attn_task){.v = attending_view(r->step, r->step->seq[seq_at(r, i)], r->layer),
                       .p = run_part(w, r, i),
                       .k_raw = buf_at(r->k, at),
                       .k = buf_at(w->k, r->row * kv_bytes(sh) + at),
                       .val = buf_at(r->v, at),
                       .q_raw = buf_at(r->q, row * q_bytes(sh)),
                       .q = buf_at(w->q[0], row * q_bytes(sh)),
                       .sel = &w->sels[i]};
}

/* True if two formats have the same layout of rows and indexes. */
static bool alike_stores(const kv_format *a, const kv_format *b)
{
    return a->kind == b->kind && kv_same_rows(a, b) && a->bits == b->bits && a->group == b->group && a->hf == b->hf;
}

/* True if two views can be in one call of append and select. */
static bool alike(const attn_view *a, const attn_view *b)
{
    const attn_spec *s = a->spec, *t = b->spec;
    return a->method == b->method && a->lim->n_tokens == b->lim->n_tokens && s->budget == t->budget &&
           alike_stores(&s->kv, &t->kv) && memcmp(s->value, t->value, sizeof s->value) == 0;
}

/* Replaces keys and values of a work item by their values as rows in blocks, so that an index is built from the stored
 * rows. Storing them again does not change them, unless a scale is a subnormal f16 number. */
static void round_task(attn_work *w, attn_task *t, int layer, size_t row)
{
    kv_rows rows = *kv_store_rows(t->v->store, layer);
    const codes_ops *o = w->be->ops->codes;
    size_t at = row * kv_bytes(&w->shape);
    if (!dtype_in_qblocks(rows.type) || !HOOK(t->v, append)) return;
    rows.n_kv_heads = (size_t)w->shape.n_kv_heads; /* a store may have a region for each query head */
    buf k = buf_at(w->held[0], at), val = buf_at(w->held[1], at);
    o->round(w->be, k, t->k, &rows, false, t->p.n_tok);
    o->round(w->be, val, t->val, &rows, true, t->p.n_tok);
    t->k = k;
    t->val = val;
}

/* Appends the rows of n work items, whose selections start at `first`. */
static void append_tasks(attn_work *w, const layer_run *r, size_t first, const attn_task *t, size_t n)
{
    attn_task a[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        a[i] = t[i];
        a[i].v = storing_view(r->step->seq[seq_at(r, first + i)], r->layer);
        round_task(w, &a[i], r->layer, r->n_sel == 1 ? 0 : (first + i) * r->n_tok);
    }
    (HOOK(a->v, append) ? HOOK(a->v, append) : full_append)(a, n, r->layer);
    backend_mark(a->v->be, STAGE_INDEX);
}

static void select_tasks(const attn_task *t, size_t n, int layer)
{
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) t[i].sel->head = t[i].sel->tail = 0;
    (HOOK(t->v, select) ? HOOK(t->v, select) : full_select)(t, n, layer);
    for (size_t i = 0; i < n; i++) t[i].v->attended[layer] += t[i].sel->attended;
    backend_mark(t->v->be, STAGE_SCORE);
}

/* Appends all rows of one sequence, then selects for each. A row sees only the rows up to itself. */
static void verify_rows(attn_work *w, const layer_run *r)
{
    attn_task t[ATTN_MAX_TASKS], all = task_of(w, r, 0);
    all.p.n_tok = r->n_sel;
    append_tasks(w, r, 0, &all, 1);
    for (size_t i = 0, n; i < r->n_sel; i += n) {
        for (n = 0; n < ATTN_MAX_TASKS && i + n < r->n_sel; n++) t[n] = task_of(w, r, i + n);
        select_tasks(t, n, r->layer);
    }
}

/* Appends and selects for all sequences. Returns true if any of them observes. */
static bool append_and_select(attn_work *w, const layer_run *r)
{
    attn_task t[ATTN_MAX_TASKS];
    bool observed = false;
    for (size_t i = 0; i < r->step->n_seq; i++) r->step->seq[i]->attended[r->layer] = 0;
    if (r->step->flags & ATTN_VERIFY) {
        verify_rows(w, r);
        return false;
    }
    for (size_t i = 0, n; i < r->step->n_seq; i += n) {
        for (n = 0; n < ATTN_MAX_TASKS && i + n < r->step->n_seq; n++) {
            t[n] = task_of(w, r, i + n);
            if (!alike(t[0].v, t[n].v) ||
                !alike(storing_view(r->step->seq[i], r->layer), storing_view(r->step->seq[i + n], r->layer)))
                break;
            observed |= t[n].v->observes;
        }
        append_tasks(w, r, i, t, n);
        select_tasks(t, r->n_sel > i ? (r->n_sel - i < n ? r->n_sel - i : n) : 0, r->layer);
    }
    return observed;
}

static void run_layer(attn_work *w, const layer_run *r)
{
    const attn_shape *sh = &w->shape;
    rotate(w, w->q[0], r->q, buf_at(r->step->table, r->row * table_bytes(sh)), r->n_sel * r->n_tok, sh->n_heads);
    backend_mark(w->be, STAGE_NORM);
    bool observed = append_and_select(w, r);
    make_own_queries(w, r);
    for (size_t i = 0, n; i < r->n_sel; i += n) {
        for (n = 1; i + n < r->n_sel && w->sels[i + n].n_seg == w->sels[i].n_seg;) n++;
        attend_group(w, r, (sel_run){i, n}, observed ? w->lse : (buf){NULL});
    }
    backend_mark(w->be, STAGE_ATTENTION);
    for (size_t i = 0; i < r->step->n_seq && observed; i++) {
        attn_task t = task_of(w, r, i);
        size_t row = r->n_sel == 1 ? 0 : i * r->n_tok;
        if (t.v->observes) HOOK(t.v, observe)(t.v, &t.p, r->layer, t.q, buf_at(w->lse, row * lse_bytes(sh)));
    }
}

void attn_layer_end(const attn_work *w, const attn_step *step, int layer)
{
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_view *v = view_of(step->seq[i], layer), *storing = storing_view(step->seq[i], layer);
        attn_part p = part_of(w, step, i, row_of(step, is_shared(step), i), 0), own = part_for(storing, p);
        if (HOOK(v, layer_end)) HOOK(v, layer_end)(v, &p, layer);
        if (storing != v && HOOK(storing, layer_end)) HOOK(storing, layer_end)(storing, &own, layer);
        kv_store_layer_end(v->store, layer);
    }
    backend_mark(w->be, STAGE_INDEX);
}

/* Returns the tokens of a prompt window. Only the prompt of a single sequence has several windows. */
static size_t window_of(const attn_step *step, int layer)
{
    size_t n = (size_t)view_of(step->seq[0], layer)->window;
    bool whole = step->n_seq > 1 || !(step->flags & ATTN_PROMPT);
    return !whole && n > 0 && n < step->n_tok ? n : step->n_tok;
}

void attn_attend(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out)
{
    const attn_shape *sh = &w->shape;
    w->pos = step->flags & ATTN_PROMPT ? (buf){NULL} : step->pos;
    const bool verify = step->flags & ATTN_VERIFY;
    size_t n_sel = verify ? step->n_tok : is_shared(step) ? 1 : step->n_seq, n_tok = verify ? 1 : step->n_tok;
    size_t window = verify ? 1 : window_of(step, layer);
    rotate(w, w->k, k, step->table, n_sel * n_tok, sh->n_kv_heads);
    for (size_t row = 0; row < n_tok; row += window) {
        layer_run r = {.step = step,
                       .layer = layer,
                       .row = row,
                       .n_sel = n_sel,
                       .n_tok = n_tok - row < window ? n_tok - row : window,
                       .q = buf_at(q, row * q_bytes(sh)),
                       .k = buf_at(k, row * kv_bytes(sh)),
                       .v = buf_at(v, row * kv_bytes(sh)),
                       .out = buf_at(out, row * q_bytes(sh))};
        run_layer(w, &r);
    }
    show(w, &(attn_seen){step, layer, q, k, w->q[0], w->k, v, out});
}

void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out)
{
    attn_attend(w, step, layer, q, k, v, out);
    attn_layer_end(w, step, layer);
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
    if (g->range.p) w->be->ops->download(w->be, range, buf_at(g->range, list * sizeof range), sizeof range);
    else range[0] = g->first, range[1] = g->n_max;
    /* Copied rows are in the order of their list; `at` has their positions. */
    buf idx = g->copied && g->at.p ? g->at : g->idx;
    if (out && idx.p)
        w->be->ops->download(w->be, out, buf_at(idx, (list * g->idx_stride + (size_t)range[0]) * sizeof *out),
                             (size_t)range[1] * sizeof *out);
    for (int64_t k = 0; out && !idx.p && k < range[1]; k++) out[k] = (int32_t)(range[0] + k);
    return range[1];
}

/* True if the segment's list is of tokens: not pseudo tokens, not a sample of unselected ones. */
static bool of_tokens(const attn_seg *g)
{
    return !g->pseudo && !g->missed.p;
}

/* Returns the list of a query head among the n_lists lists of a layer. */
static size_t list_of(const attn_shape *sh, size_t n_lists, int head)
{
    size_t heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    return n_lists == heads ? (size_t)head : n_lists == 1 ? 0 : (size_t)head / (heads / kv);
}

/* Keeps the positions that are visible to a query at p; returns their number. */
static int64_t visible_to(const attn_seg *g, int64_t p, int32_t *pos, int64_t n)
{
    int64_t kept = 0;
    if (!g->masked && !g->at.p) return n;
    for (int64_t k = 0; k < n; k++)
        if (pos[k] <= p && (g->band <= 0 || p - pos[k] < g->band)) pos[kept++] = pos[k];
    return kept;
}

/* Replaces the n slots that a query head reads in a segment by positions. */
static void to_positions(const attn_work *w, const attn_seg *g, int head, int32_t *out, int64_t n)
{
    for (int64_t k = 0; k < n && !g->pos.p; k++) out[k] += (int32_t)g->origin;
    if (!g->pos.p) return;
    buf pos = buf_at(g->pos, list_of(&w->shape, g->pos_lists, head) * g->pos_stride * sizeof *out);
    if (!g->by_row || !g->idx.p) {
        w->be->ops->download(w->be, out, buf_at(pos, (size_t)g->first * sizeof *out), (size_t)n * sizeof *out);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        w->be->ops->download(w->be, &out[k], buf_at(pos, (size_t)out[k] * sizeof *out), sizeof *out);
}

int64_t attn_last_selection(const attn_work *w, size_t i, int head, int32_t *out, int64_t *head_end, int64_t *tail)
{
    const attn_sel *sel = &w->sels[i];
    int64_t n = 0, p = 0;
    if (w->pos.p) w->be->ops->download(w->be, &p, buf_at(w->pos, i * sizeof p), sizeof p);
    for (int s = 0; s < sel->n_seg; s++) {
        const attn_seg *g = &sel->seg[s];
        if (!of_tokens(g)) continue;
        int64_t count = attn_last_list(w, i, s, list_of(&w->shape, g->n_lists, head), out ? out + n : NULL);
        if (out) to_positions(w, g, head, out + n, count);
        if (out && w->pos.p) count = visible_to(g, p, out + n, count);
        n += count;
    }
    if (out) qsort(out, (size_t)n, sizeof *out, by_value);
    *head_end = sel->head;
    *tail = sel->tail;
    return n;
}

bool attn_last_of_tokens(const attn_work *w, buf out)
{
    const attn_sel *sel = &w->sels[0];
    size_t n = 0, heads = (size_t)w->shape.n_heads;
    while (n < (size_t)sel->n_seg && of_tokens(&sel->seg[n])) n++;
    if (n == (size_t)sel->n_seg) return false;
    w->be->ops->attn_merge(w->be, out, (buf){NULL}, w->parts, w->lses, n, heads, (size_t)w->shape.head_dim);
    return true;
}

int64_t attn_last_missed(const attn_work *w, float *out)
{
    const attn_sel *sel = &w->sels[0];
    const attn_seg *g = sel->n_seg > 0 ? &sel->seg[sel->n_seg - 1] : NULL;
    if (!g || !g->missed.p) return 0;
    w->be->ops->download(w->be, out, g->missed, 2 * lse_bytes(&w->shape));
    return g->n_max;
}

void attn_store(attn_work *w, const attn_step *step, int layer, buf k, buf v)
{
    rotate(w, w->k, k, step->table, step->n_tok, w->shape.n_kv_heads);
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_view *to = storing_view(step->seq[i], layer);
        attn_task t = {.v = to, .p = part_of(w, step, i, 0, 0), .k_raw = k, .k = w->k, .val = v};
        round_task(w, &t, layer, 0);
        (HOOK(to, append) ? HOOK(to, append) : full_append)(&t, 1, layer);
    }
    attn_layer_end(w, step, layer);
}

void attn_end(attn_work *w, const attn_step *step)
{
    layer_group *groups[GROUPS];
    for (size_t i = 0; i < step->n_seq; i++) {
        attn_seq *s = step->seq[i];
        attn_part p = part_of(w, step, i, row_of(step, is_shared(step), i), 0);
        bool coded = kv_has_codes(&s->spec.kv);
        /* Eviction runs after attention, so the rows of this forward count towards the peak. */
        seq_keep_peak(s, (int64_t)step->n_tok);
        for (int k = 0, n = groups_of(s, groups); k < n; k++) {
            attn_view *v = &groups[k]->v;
            attn_part own = part_for(v, p);
            if (HOOK(v, end)) HOOK(v, end)(v, &own);
            coded |= HOOK(v, demoted) != NULL;
            if (!v->draft_view) kv_store_end(v->store);
            v->length += (int64_t)step->n_tok;
        }
        s->length += (int64_t)step->n_tok;
        /* Quantized rows in small groups can take more bytes than float rows. */
        if (coded) seq_keep_peak(s, 0);
        if (step->flags & ATTN_PROMPT) seq_prompt_end(s);
        else if (!(step->flags & ATTN_DRAFT)) seq_count_steps(s, (int64_t)step->n_tok);
    }
    show(w, &(attn_seen){.step = step, .layer = w->shape.n_layers});
}
