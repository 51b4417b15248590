/* SPDX-License-Identifier: MIT */
/* A naive attention layer to compare strategies with: raw keys, rotated in double at the slots given by an explicit
 * list of stored positions. */
#ifndef TESTS_UNIT_ATTENTION_ORACLE_H
#define TESTS_UNIT_ATTENTION_ORACLE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/sequence.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/ops.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"
#include "tests/unit/devices.h"

/* Largest number of heads and channels; rig_layout may use fewer. */
#ifndef T_HEADS
#define T_HEADS 4
#define T_KV    2
#endif
#ifndef T_DIM
#define T_DIM 8
#endif
enum { T_LAYERS = 3, T_MAX = 160, RIG_SEQS = 8 };

typedef float head_rows[T_HEADS][T_DIM]; /* outputs of all heads of a layer */

/* Random but fixed q, k, v for every layer and position. */
typedef struct {
    float q[T_LAYERS][T_MAX][T_HEADS][T_DIM];
    float k[T_LAYERS][T_MAX][T_KV][T_DIM];
    float v[T_LAYERS][T_MAX][T_KV][T_DIM];
    float freq[T_DIM / 2];
} world;

static inline void world_fill(world *w, uint64_t seed)
{
    rng r = {seed};
    float *p = &w->q[0][0][0][0];
    size_t n = offsetof(world, freq) / sizeof(float);
    for (size_t i = 0; i < n; i++) p[i] = 2 * rng_float(&r) - 1;
    for (int c = 0; c < T_DIM / 2; c++) w->freq[c] = (float)pow(100.0, -2.0 * c / T_DIM);
}

static inline double rotated_dot(const world *w, const float *q, int64_t qs, const float *k, int64_t ks)
{
    double s = 0;
    for (int c = 0; c < T_DIM / 2; c++) {
        double a = (double)(qs - ks) * (double)w->freq[c], x = (double)q[c], y = (double)q[c + T_DIM / 2];
        double kx = (double)k[c], ky = (double)k[c + T_DIM / 2];
        s += cos(a) * (x * kx + y * ky) + sin(a) * (x * ky - y * kx);
    }
    return s;
}

/* Computes the output of query position p at slot qs over n keys: pos[i] are their positions, slot[i] their slots. */
static inline void oracle_attend(const world *w, int layer, int64_t p, int64_t qs, const int64_t *pos,
                                 const int64_t *slot, int64_t n, float out[T_HEADS][T_DIM])
{
    for (int h = 0; h < T_HEADS; h++) {
        int kv = h / (T_HEADS / T_KV);
        double sum = 0, acc[T_DIM] = {0};
        for (int64_t i = 0; i < n; i++) {
            double e =
                exp(rotated_dot(w, w->q[layer][p][h], qs, w->k[layer][pos[i]][kv], slot[i]) / sqrt((double)T_DIM));
            sum += e;
            for (int c = 0; c < T_DIM; c++) acc[c] += e * (double)w->v[layer][pos[i]][kv][c];
        }
        for (int c = 0; c < T_DIM; c++) out[h][c] = n ? (float)(acc[c] / sum) : 0;
    }
}

/* ---- the strategy under test, driven as the decoder drives it ---- */

typedef struct {
    backend *be;
    attn_shape shape;
    attn_work *work;
    int window[T_LAYERS];
    size_t rows;
    float mscale;    /* factor of rotations */
    bool store_only; /* rows are stored and nothing is attended */
    attn_hint hint;  /* of prompts */
    buf pos, table, freq, q, k, v, out;
    const world *w;
} rig;

static inline status rig_open(rig *r, const char *device, const world *w, size_t rows, err *e)
{
    backend_options o = {.device = device, .n_threads = 2};
    memset(r, 0, sizeof *r);
    r->w = w;
    r->rows = rows;
    r->mscale = 1;
    r->shape = (attn_shape){.n_layers = T_LAYERS,
                            .n_heads = T_HEADS,
                            .n_kv_heads = T_KV,
                            .head_dim = T_DIM,
                            .scale = (float)(1 / sqrt((double)T_DIM)),
                            .window = r->window,
                            .max_positions = T_MAX};
    TRY(backend_open(&r->be, &o, e));
    TRY(attn_work_create(&r->work, &r->shape, rows, r->be, e));
    const backend_ops *op = r->be->ops;
    size_t q = rows * sizeof w->q[0][0], kv = rows * sizeof w->k[0][0];
    TRY(op->alloc(r->be, &r->pos, rows * sizeof(int64_t), "pos", e));
    TRY(op->alloc(r->be, &r->table, rows * T_DIM * sizeof(float), "table", e));
    TRY(op->alloc(r->be, &r->freq, RIG_SEQS * sizeof w->freq, "freq", e));
    TRY(op->alloc(r->be, &r->q, q, "q", e));
    TRY(op->alloc(r->be, &r->k, kv, "k", e));
    TRY(op->alloc(r->be, &r->v, kv, "v", e));
    TRY(op->alloc(r->be, &r->out, q, "out", e));
    op->upload(r->be, r->freq, w->freq, sizeof w->freq);
    return ST_OK;
}

/* Returns the bytes of one row of q and out, and of k and v. */
static inline size_t rig_q_row(const rig *r)
{
    return (size_t)(r->shape.n_heads * r->shape.head_dim) * sizeof(float);
}

static inline size_t rig_kv_row(const rig *r)
{
    return (size_t)(r->shape.n_kv_heads * r->shape.head_dim) * sizeof(float);
}

/* Sets the heads of the model from now on; with fewer than T_DIM channels it uses the first ones of the world. */
static inline status rig_layout(rig *r, int n_heads, int n_kv_heads, int dim, err *e)
{
    attn_work_free(r->work);
    r->shape.n_heads = n_heads;
    r->shape.n_kv_heads = n_kv_heads;
    r->shape.head_dim = dim;
    r->shape.scale = (float)(1 / sqrt((double)dim));
    return attn_work_create(&r->work, &r->shape, r->rows, r->be, e);
}

static inline void rig_close(rig *r)
{
    if (!r->be) return;
    const backend_ops *op = r->be->ops;
    size_t q = r->rows * sizeof r->w->q[0][0], kv = r->rows * sizeof r->w->k[0][0];
    attn_work_free(r->work);
    op->free(r->be, r->pos, r->rows * sizeof(int64_t));
    op->free(r->be, r->table, r->rows * T_DIM * sizeof(float));
    op->free(r->be, r->freq, RIG_SEQS * sizeof r->w->freq);
    op->free(r->be, r->q, q);
    op->free(r->be, r->k, kv);
    op->free(r->be, r->v, kv);
    op->free(r->be, r->out, q);
    backend_close(r->be);
}

/* Runs one forward pass of the given rows; row i is position pos[i]. out [T_LAYERS][n_rows] may be NULL. */
static inline void rig_forward(rig *r, attn_step *step, const int64_t *pos, size_t n_rows, float (*out)[T_HEADS][T_DIM])
{
    const backend_ops *op = r->be->ops;
    op->upload(r->be, r->pos, pos, n_rows * sizeof *pos);
    size_t freq_row = (size_t)r->shape.head_dim / 2 * sizeof(float);
    op->rope_table(r->be, r->table, r->pos, n_rows, r->freq, (size_t)r->shape.head_dim / 2, r->mscale);
    for (size_t i = 1; i < step->n_seq && !(step->flags & ATTN_PROMPT); i++)
        op->copy(r->be, buf_at(r->freq, i * freq_row), r->freq, freq_row);
    step->pos = r->pos;
    step->table = r->table;
    step->freq = r->freq;
    step->mscale = r->mscale;
    attn_begin(r->work, step);
    for (int l = 0; l < T_LAYERS; l++) {
        for (size_t i = 0; i < n_rows; i++) {
            op->upload(r->be, buf_at(r->q, i * rig_q_row(r)), r->w->q[l][pos[i]], rig_q_row(r));
            op->upload(r->be, buf_at(r->k, i * rig_kv_row(r)), r->w->k[l][pos[i]], rig_kv_row(r));
            op->upload(r->be, buf_at(r->v, i * rig_kv_row(r)), r->w->v[l][pos[i]], rig_kv_row(r));
        }
        if (r->store_only) attn_store(r->work, step, l, r->k, r->v);
        else attn_layer(r->work, step, l, r->q, r->k, r->v, r->out);
        for (size_t i = 0; out && i < n_rows; i++)
            op->download(r->be, out + (size_t)l * n_rows + i, buf_at(r->out, i * rig_q_row(r)), rig_q_row(r));
    }
    attn_end(r->work, step);
}

/* Runs a prompt of n tokens in chunks, for n_seq sequences that share it; out [T_LAYERS][n], complete. */
static inline void rig_prompt(rig *r, attn_seq **seq, size_t n_seq, int64_t n, int64_t chunk,
                              float (*out)[T_HEADS][T_DIM])
{
    int64_t start = attn_seq_length(seq[0]), pos[T_MAX];
    static float part[T_LAYERS * T_MAX][T_HEADS][T_DIM];
    for (int64_t done = 0; done < n;) {
        int64_t k = n - done < chunk ? n - done : chunk;
        attn_step step = {.seq = seq,
                          .n_seq = n_seq,
                          .n_tok = (size_t)k,
                          .n_prompt = n,
                          .prompt_done = done,
                          .flags = ATTN_PROMPT | (done + k == n ? ATTN_PROMPT_END : 0),
                          .hint = r->hint};
        for (int64_t i = 0; i < k; i++) pos[i] = start + done + i;
        rig_forward(r, &step, pos, (size_t)k, part);
        for (int l = 0; out && l < T_LAYERS; l++) memcpy(out + l * n + done, part + l * k, (size_t)k * sizeof *part);
        done += k;
    }
}

/* Runs one decode step of n_seq sequences; out [T_LAYERS][n_seq]. */
static inline void rig_decode(rig *r, attn_seq **seq, size_t n_seq, float (*out)[T_HEADS][T_DIM])
{
    int64_t pos[RIG_SEQS];
    attn_step step = {.seq = seq, .n_seq = n_seq, .n_tok = 1};
    for (size_t i = 0; i < n_seq; i++) pos[i] = attn_seq_length(seq[i]);
    rig_forward(r, &step, pos, n_seq, out);
}

static inline status rig_seq(rig *r, attn_seq **out, const char *text, dtype kv, int64_t n_tokens, err *e)
{
    static attn_spec spec;
    attn_options o = {.kv = kv_plain(kv)};
    attn_limits lim = {.n_tokens = n_tokens, .chunk = (int64_t)r->rows};
    TRY(attn_spec_parse(&spec, text, &o, e));
    return attn_seq_create(out, &spec, &r->shape, &lim, r->be, e);
}

/* Runs n decode steps; out [n][T_LAYERS] may be NULL. */
static inline void rig_steps(rig *r, attn_seq *s, int n, head_rows *out)
{
    for (int i = 0; i < n; i++) rig_decode(r, &s, 1, out ? out + i * T_LAYERS : NULL);
}

/* U6: a full sequence of n_tokens uses the planned memory. */
static inline void rig_check_plan(const rig *r, const attn_seq *s)
{
    err e = {0};
    attn_bytes plan, held = attn_seq_held(s);
    const attn_limits lim = {.n_tokens = attn_seq_length(s), .chunk = (int64_t)r->rows};
    const char *text = attn_seq_spec(s)->text;
    is_ok(attn_plan(&plan, attn_seq_spec(s), &r->shape, &lim, &e), &e, "%s: planned", text);
    ok(plan.kv == held.kv && plan.index == held.index && plan.scratch == held.scratch,
       "%s: the plan is what a full sequence holds (U6)", text);
}

/* Runs the checks on each device with a new rig; no op may leave a fault. */
static inline void rig_each(const char *const *devices, int n, const world *w, size_t rows, void (*check)(rig *r))
{
    for (int d = 0; d < n; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, devices[d], w, rows, &e), &e, "%s opened", devices[d])) return;
        check(&r);
        is_ok(backend_fault(r.be, &e), &e, "%s: no fault", devices[d]);
        rig_close(&r);
    }
}

/* Creates a sequence where each allocation fails in turn: always an error, and nothing leaks (checked by sanitizers).
 * There are at least `least` allocations. */
static inline void rig_check_oom(rig *r, const char *text, long least)
{
    oom_run o = {0};
    attn_seq *s;
    while (oom_next(&o)) {
        oom_saw(&o, rig_seq(r, &s, text, DT_F16, 90, &o.e), &s);
        attn_seq_free(s);
    }
    oom_ok(&o, least, text);
}

#endif
