/* SPDX-License-Identifier: MIT */
/* Mixture of experts: a router chooses feed-forward networks for each row, and their outputs are summed with its
 * weights. Source: Jiang et al. 2024 (Mixtral of Experts); transformers 5, modeling_{mixtral,qwen2_moe,qwen3_moe}.py.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "model/block.h"
#include "model/decoder.h"

/* Buffers of a block, f32. */
typedef struct {
    buf logits; /* [rows, experts] */
    buf open;   /* [rows]: gate of the shared expert, before its sigmoid */
    buf in;     /* [rows, hidden]: rows of one expert; afterwards the output of the shared one, and the sum */
    buf gate, up;
    buf out; /* [rows * chosen, hidden], in groups of one expert each */
} buffers;

/* Where the rows go. i = row * chosen + rank of the expert. */
typedef struct {
    float *logits; /* [rows, experts]: afterwards probabilities */
    float *open;   /* [rows] */
    float *factor; /* [rows * chosen] */
    float *row, *sum;
    int32_t *expert; /* [rows * chosen] */
    size_t *at;      /* [rows * chosen]: row of `out` */
    size_t *first;   /* [experts + 1]: first row of `out` of each expert */
} routing;

static size_t take(size_t *at, size_t bytes)
{
    size_t from = *at;
    *at += (bytes + 63) / 64 * 64;
    return from;
}

/* Lists the buffers from `at` on. Returns their bytes. */
static size_t list_buffers(buffers *r, buf at, const model_config *c, size_t rows)
{
    size_t n = 0, f = sizeof(float), h = (size_t)c->hidden;
    size_t width = (size_t)(c->expert_ffn > c->shared_ffn ? c->expert_ffn : c->shared_ffn);
    r->logits = buf_at(at, take(&n, rows * (size_t)c->n_experts * f));
    r->open = buf_at(at, take(&n, rows * f));
    r->in = buf_at(at, take(&n, rows * h * f));
    r->gate = buf_at(at, take(&n, rows * width * f));
    r->up = buf_at(at, take(&n, rows * width * f));
    r->out = buf_at(at, take(&n, rows * (size_t)c->n_chosen * h * f));
    return n;
}

static size_t scratch(const model_config *c, size_t rows)
{
    unsigned char none[1];
    buffers unused;
    return list_buffers(&unused, (buf){none}, c, rows);
}

static status list_expert(walk *k, const model_config *c, expert_weights *x, size_t i)
{
    static const weight_stack stacks[3][3] = {
        {{"mlp.experts.gate_proj", 0, 1}, {"mlp.experts.gate_up_proj", 0, 2}},
        {{"mlp.experts.up_proj", 0, 1}, {"mlp.experts.gate_up_proj", 1, 2}},
        {{"mlp.experts.down_proj", 0, 1}},
    };
    char name[WEIGHT_NAME];
    size_t h = (size_t)c->hidden, f = (size_t)c->expert_ffn, from = k->n;
    snprintf(name, sizeof name, "mlp.experts.%zu.gate_proj.weight", i);
    TRY(walk_rows(k, &x->gate, name, f, h));
    snprintf(name, sizeof name, "mlp.experts.%zu.up_proj.weight", i);
    TRY(walk_rows(k, &x->up, name, f, h));
    snprintf(name, sizeof name, "mlp.experts.%zu.down_proj.weight", i);
    TRY(walk_cols(k, &x->down, name, h, f));
    for (size_t n = 0; n < 3; n++) {
        weight_spec *w = &k->list[from + n];
        w->chosen = true;
        w->stacks = stacks[n];
        w->expert = i;
    }
    return ST_OK;
}

static status weights(walk *k, const model_config *c, void *w)
{
    moe_weights *m = w;
    size_t h = (size_t)c->hidden, s = (size_t)c->shared_ffn, n = (size_t)c->n_experts;
    TRY(walk_norm(k, &m->norm, "post_attention_layernorm.weight", h));
    TRY(walk_weight(k, (weight_spec){.rows = n, .cols = h, .slot = &m->router, .kept = true}, "mlp.gate.weight"));
    for (size_t i = 0; i < n; i++) TRY(list_expert(k, c, &m->expert[i], i));
    if (s == 0) return ST_OK;
    const weight_spec open = {.rows = 1, .cols = h, .slot = &m->open, .kept = true};
    TRY(walk_weight(k, open, "mlp.shared_expert_gate.weight"));
    TRY(walk_rows(k, &m->shared.gate, "mlp.shared_expert.gate_proj.weight", s, h));
    TRY(walk_rows(k, &m->shared.up, "mlp.shared_expert.up_proj.weight", s, h));
    return walk_cols(k, &m->shared.down, "mlp.shared_expert.down_proj.weight", h, s);
}

/* ---- the router ---- */

/* Replaces logits [n] by their softmax, or all of them by NaN if one is not finite. Sums in the experts' order. */
static void softmax(float *x, size_t n)
{
    float top = x[0];
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) top = NAN;
        else if (x[i] > top) top = x[i];
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - top);
        sum += (double)x[i];
    }
    for (size_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sum);
}

/* Chooses the k largest of n probabilities, in descending order; the lowest index wins ties. If they are NaN, all are:
 * the first k are chosen, and the output is NaN. */
static void choose(const float *p, size_t n, size_t k, bool normalize, int32_t *expert, float *factor)
{
    double sum = 0;
    for (size_t s = 0; s < k; s++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++) {
            bool left = s == 0 || p[i] < factor[s - 1] || (p[i] == factor[s - 1] && (int32_t)i > expert[s - 1]);
            if (left && (best == n ? p[i] >= 0 : p[i] > p[best])) best = i;
        }
        expert[s] = (int32_t)(best < n ? best : s);
        factor[s] = p[expert[s]];
        sum += (double)factor[s];
    }
    for (size_t s = 0; s < k && normalize; s++) factor[s] = (float)((double)factor[s] / sum);
}

/* Groups the rows by their experts. */
static void group(const routing *r, size_t n, const model_config *c)
{
    size_t k = (size_t)c->n_chosen, experts = (size_t)c->n_experts;
    for (size_t e = 0; e <= experts; e++) r->first[e] = 0;
    for (size_t i = 0; i < n * k; i++) r->first[r->expert[i] + 1]++;
    for (size_t e = 0; e < experts; e++) r->first[e + 1] += r->first[e];
    for (size_t i = 0; i < n * k; i++) r->at[i] = r->first[r->expert[i]]++;
    for (size_t e = experts; e > 0; e--) r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}

static status open_routing(routing *r, size_t n, const model_config *c, err *e)
{
    size_t k = n * (size_t)c->n_chosen, experts = (size_t)c->n_experts, h = (size_t)c->hidden;
    float *f;
    TRY(MEM_NEW(&f, n * experts + n + k + 2 * h, e));
    *r = (routing){.logits = f, .open = f + n * experts};
    r->factor = r->open + n;
    r->row = r->factor + k;
    r->sum = r->row + h;
    TRY(MEM_NEW(&r->at, k + experts + 1, e));
    r->first = r->at + k;
    return MEM_NEW(&r->expert, k, e);
}

static void close_routing(routing *r)
{
    mem_free(r->logits);
    mem_free(r->at);
    mem_free(r->expert);
}

/* Routes n rows d->xn. */
static void route(decoder *d, const moe_weights *w, const buffers *b, routing *r, size_t n)
{
    const backend_ops *o = d->be->ops;
    const model_config *c = &d->m->config;
    size_t experts = (size_t)c->n_experts, k = (size_t)c->n_chosen;
    const linear_job jobs[] = {{b->logits, w->router, {.p = {NULL}}}, {b->open, w->open, {.p = {NULL}}}};
    o->linear(d->be, jobs, c->shared_ffn ? 2 : 1, d->xn, n, true);
    o->download(d->be, r->logits, b->logits, n * experts * sizeof(float));
    if (c->shared_ffn) o->download(d->be, r->open, b->open, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        softmax(r->logits + i * experts, experts);
        choose(r->logits + i * experts, experts, k, c->normalize, r->expert + i * k, r->factor + i * k);
    }
    group(r, n, c);
}

/* ---- the experts ---- */

/* Computes the output [n, hidden] of an expert. */
static void run_expert(const decoder *d, const expert_weights *x, const buffers *b, buf in, size_t n, buf out)
{
    const linear_job gate_up[] = {{b->gate, x->gate, {.p = {NULL}}}, {b->up, x->up, {.p = {NULL}}}};
    const linear_job down = {out, x->down, {.p = {NULL}}};
    const weight no_norm = {.p = {NULL}};
    decoder_project(d, in, n, no_norm, gate_up, 2, true);
    decoder_project(d, b->gate, n, no_norm, &down, 1, false);
}

/* Starts to read the weights of an expert from the files that they are mapped from. */
static void prefetch(decoder *d, const expert_weights *x)
{
    const weight all[] = {x->gate, x->up, x->down};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t bytes = weight_bytes(all[i].type, all[i].rows, all[i].cols);
        d->reads.chosen += (double)bytes;
        d->reads.resident += (double)mem_prefetch(all[i].p.p, bytes);
    }
}

/* Runs the chosen experts, each on all of its rows, so that the weights of the others are not read. If weights exceed
 * the memory, those of the next experts, as many as a token chooses, are read meanwhile. */
static void run_experts(decoder *d, const moe_weights *w, const buffers *b, const routing *r, size_t n)
{
    const model_config *c = &d->m->config;
    size_t row = (size_t)c->hidden * sizeof(float), k = (size_t)c->n_chosen;
    int32_t next = 0, ahead = 0; /* the next expert to read, and the number of those that wait to run */
    for (int32_t e = 0; e < c->n_experts; e++) {
        size_t first = r->first[e], rows = r->first[e + 1] - first;
        if (rows == 0) continue;
        for (; d->paged && next < c->n_experts && ahead < c->n_chosen; next++) {
            if (r->first[next + 1] == r->first[next]) continue;
            prefetch(d, &w->expert[next]);
            ahead++;
        }
        ahead--;
        for (size_t i = 0; i < n * k; i++)
            if (r->expert[i] == e)
                d->be->ops->copy(d->be, buf_at(b->in, (r->at[i] - first) * row), buf_at(d->xn, i / k * row), row);
        run_expert(d, &w->expert[e], b, b->in, rows, buf_at(b->out, first * row));
    }
    if (c->shared_ffn) run_expert(d, &w->shared, b, d->xn, n, b->in);
}

/* Adds `by` times row i of x to r->sum. */
static void add_row(const decoder *d, const routing *r, buf x, size_t i, float by)
{
    size_t h = (size_t)d->m->config.hidden;
    d->be->ops->download(d->be, r->row, buf_at(x, i * h * sizeof(float)), h * sizeof(float));
    for (size_t c = 0; c < h; c++) r->sum[c] += by * r->row[c];
}

/* Sums the outputs of each row in the order of its experts' probabilities, whatever the other rows, then the shared
 * expert's. */
static void sum_experts(const decoder *d, const buffers *b, const routing *r, size_t n)
{
    const model_config *c = &d->m->config;
    size_t h = (size_t)c->hidden, k = (size_t)c->n_chosen;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < h; j++) r->sum[j] = 0;
        for (size_t s = 0; s < k; s++) add_row(d, r, b->out, r->at[i * k + s], r->factor[i * k + s]);
        if (c->shared_ffn) add_row(d, r, b->in, i, 1 / (1 + expf(-r->open[i])));
        d->be->ops->upload(d->be, buf_at(b->in, i * h * sizeof(float)), r->sum, h * sizeof(float));
    }
}

static void run(decoder *d, const attn_step *step, const block *b, size_t n)
{
    const backend_ops *o = d->be->ops;
    const moe_weights *w = b->w;
    const model_config *c = &d->m->config;
    size_t all = n * (size_t)c->hidden;
    buffers r;
    routing to = {0};
    (void)step;
    list_buffers(&r, decoder_scratch(d, b), c, d->max_rows);
    if (open_routing(&to, n, c, &d->be->fault) == ST_OK) {
        o->rmsnorm(d->be, d->xn, d->x, w->norm, n, c->rms_eps);
        route(d, w, &r, &to, n);
        run_experts(d, w, &r, &to, n);
        sum_experts(d, &r, &to, n);
        o->all_reduce(d->be, r.in, all);
        o->add(d->be, d->x, r.in, all);
    }
    close_routing(&to);
    backend_mark(d->be, STAGE_FFN);
}

const block_kind block_moe = {.name = "moe",
                              .size = sizeof(moe_weights),
                              .expert_size = sizeof(expert_weights),
                              .weights = weights,
                              .scratch = scratch,
                              .run = run};
