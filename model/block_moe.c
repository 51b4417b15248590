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

/* Buffers of a block, f32 or 32-bit integers. A row of `rows` is a row of one expert, in groups of one expert each;
 * those of the shared expert are the last. They are the experts' input, then their output. */
typedef struct {
    buf logits; /* [n, experts] */
    buf open;   /* [n]: gate of the shared expert, before its sigmoid */
    buf places; /* [n * chosen + 2 * n * terms]: `row`, `at` and `by` of the routing */
    buf rows;   /* [n * terms, hidden] */
    buf gate, up;
} buffers;

/* Routes of n rows. A row has `terms` outputs: those of its chosen experts in descending order of probability, and the
 * shared expert's. */
typedef struct {
    size_t terms;
    float *logits;   /* [n, experts]: afterwards probabilities */
    float *open;     /* [n] */
    int32_t *row;    /* [n * chosen]: the row of d->xn that each of `rows` has as its input */
    int32_t *at;     /* [n, terms]: which of `rows` each output is */
    float *by;       /* [n, terms]: its factor */
    int32_t *expert; /* [n, chosen] */
    size_t *first;   /* [experts + 1]: first of `rows` of each expert */
    projection *list;
    linear_job *jobs; /* of each projection: gate, up, down */
} routing;

static size_t take(size_t *at, size_t bytes)
{
    size_t from = *at;
    *at += (bytes + 63) / 64 * 64;
    return from;
}

static size_t terms_of(const model_config *c)
{
    return (size_t)c->n_chosen + (c->shared_ffn > 0);
}

/* Lists the buffers for n rows from `at` on. Returns their bytes. */
static size_t list_buffers(buffers *r, buf at, const model_config *c, size_t n)
{
    size_t bytes = 0, f = sizeof(float), k = (size_t)c->n_chosen, terms = terms_of(c);
    size_t inner = k * (size_t)c->expert_ffn + (size_t)c->shared_ffn;
    r->logits = buf_at(at, take(&bytes, n * (size_t)c->n_experts * f));
    r->open = buf_at(at, take(&bytes, n * f));
    r->places = buf_at(at, take(&bytes, n * (k + 2 * terms) * f));
    r->rows = buf_at(at, take(&bytes, n * terms * (size_t)c->hidden * f));
    r->gate = buf_at(at, take(&bytes, n * inner * f));
    r->up = buf_at(at, take(&bytes, n * inner * f));
    return bytes;
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
    TRY(walk_more_rows(k, &x->up, name, f, h));
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
    TRY(walk_more_rows(k, &m->shared.up, "mlp.shared_expert.up_proj.weight", s, h));
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
    for (size_t i = 0; i < n * k; i++) {
        size_t to = r->first[r->expert[i]]++;
        r->row[to] = (int32_t)(i / k);
        r->at[i / k * r->terms + i % k] = (int32_t)to;
    }
    for (size_t e = experts; e > 0; e--) r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}

static status open_routing(routing *r, size_t n, const model_config *c, err *e)
{
    size_t k = (size_t)c->n_chosen, experts = (size_t)c->n_experts;
    *r = (routing){.terms = terms_of(c)};
    TRY(MEM_NEW(&r->logits, n * experts + n, e));
    r->open = r->logits + n * experts;
    TRY(MEM_NEW(&r->row, n * (2 * k + 2 * r->terms), e));
    r->at = r->row + n * k;
    r->by = (float *)(void *)(r->at + n * r->terms);
    r->expert = r->at + 2 * n * r->terms;
    TRY(MEM_NEW(&r->first, experts + 1, e));
    TRY(MEM_NEW(&r->list, experts + 1, e));
    return MEM_NEW(&r->jobs, 3 * (experts + 1), e);
}

static void close_routing(routing *r)
{
    mem_free(r->logits);
    mem_free(r->row);
    mem_free(r->first);
    mem_free(r->list);
    mem_free(r->jobs);
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
        choose(r->logits + i * experts, experts, k, c->normalize, r->expert + i * k, r->by + i * r->terms);
        if (!c->shared_ffn) continue;
        r->at[i * r->terms + k] = (int32_t)(n * k + i);
        r->by[i * r->terms + k] = 1 / (1 + expf(-r->open[i]));
    }
    group(r, n, c);
    o->upload(d->be, b->places, r->row, n * (k + 2 * r->terms) * sizeof(float));
}

/* ---- the experts ---- */

/* Starts to read the weights of the chosen ones of the experts [from, to) from the files that they are mapped from. */
static void prefetch(decoder *d, const moe_weights *w, const routing *r, int32_t from, int32_t to)
{
    for (int32_t e = from; e < to; e++) {
        const weight all[] = {w->expert[e].gate, w->expert[e].up, w->expert[e].down};
        for (size_t i = 0; i < sizeof all / sizeof *all && r->first[e + 1] > r->first[e]; i++) {
            const size_t bytes = weight_bytes(all[i].type, all[i].rows, all[i].cols);
            d->reads.chosen += (double)bytes;
            d->reads.resident += (double)mem_prefetch(all[i].p.p, bytes);
        }
    }
}

/* Lists the projections of an expert with n rows, of which `first` of b->rows is the first. Returns their number. */
static size_t list_projections(projection *p, linear_job *jobs, const decoder *d, const expert_weights *x,
                               const buffers *b, buf in, size_t first, size_t n)
{
    const size_t f = sizeof(float), inner = first * (size_t)d->m->config.expert_ffn * f;
    if (n == 0) return 0;
    jobs[0] = (linear_job){buf_at(b->gate, inner), x->gate, {.p = {NULL}}};
    jobs[1] = (linear_job){buf_at(b->up, inner), x->up, {.p = {NULL}}};
    jobs[2] = (linear_job){buf_at(b->rows, first * (size_t)d->m->config.hidden * f), x->down, {.p = {NULL}}};
    *p = (projection){.jobs = jobs, .n_jobs = 2, .x = in, .n = n, .exact = d->opt.exact, .gated = true};
    return 1;
}

/* Runs the chosen ones of the experts [from, to), and after the last one the shared expert on n rows. */
static void run_some(decoder *d, const moe_weights *w, const buffers *b, const routing *r, size_t n, int32_t from,
                     int32_t to)
{
    const model_config *c = &d->m->config;
    size_t some = 0, row = (size_t)c->hidden * sizeof(float), chosen = n * (size_t)c->n_chosen;
    for (int32_t e = from; e < to; e++) {
        size_t first = r->first[e], rows = r->first[e + 1] - first;
        some += list_projections(&r->list[some], &r->jobs[3 * some], d, &w->expert[e], b, buf_at(b->rows, first * row),
                                 first, rows);
    }
    if (c->shared_ffn && to == c->n_experts)
        some += list_projections(&r->list[some], &r->jobs[3 * some], d, &w->shared, b, d->xn, chosen, n);
    d->be->ops->project_each(d->be, r->list, some);
    for (projection *p = r->list; p < r->list + some; p++)
        *p = (projection){.jobs = p->jobs + 2, .n_jobs = 1, .x = p->jobs->out, .n = p->n, .exact = p->exact};
    d->be->ops->project_each(d->be, r->list, some);
}

/* Returns the end of the experts from `from` on, of which at most `most` were chosen. */
static int32_t end_of(const routing *r, const model_config *c, int32_t from, int32_t most)
{
    for (; from < c->n_experts && most > 0; from++) most -= r->first[from + 1] > r->first[from];
    return from;
}

/* Runs the chosen experts, each on all of its rows, so that the weights of the others are not read. If weights exceed
 * the memory, as many experts as a token chooses run together, and those of the next ones are read meanwhile. */
static void run_experts(decoder *d, const moe_weights *w, const buffers *b, const routing *r, size_t n)
{
    const model_config *c = &d->m->config;
    const int32_t most = d->paged ? c->n_chosen : c->n_experts;
    const weight x = {d->xn, DT_F32, n, (size_t)c->hidden, {NULL}};
    d->be->ops->embed(d->be, b->rows, x, b->places, n * (size_t)c->n_chosen);
    if (d->paged) prefetch(d, w, r, 0, end_of(r, c, 0, most));
    for (int32_t from = 0, to; from < c->n_experts; from = to) {
        to = end_of(r, c, from, most);
        if (d->paged) prefetch(d, w, r, to, end_of(r, c, to, most));
        run_some(d, w, b, r, n, from, to);
    }
}

static void run(decoder *d, const attn_step *step, const block *b, size_t n)
{
    const backend_ops *o = d->be->ops;
    const moe_weights *w = b->w;
    const model_config *c = &d->m->config;
    const size_t h = (size_t)c->hidden, row = sizeof(int32_t);
    buffers r;
    routing to = {0};
    (void)step;
    list_buffers(&r, decoder_scratch(d, b), c, d->max_rows);
    if (open_routing(&to, n, c, &d->be->fault) == ST_OK) {
        const buf at = buf_at(r.places, n * (size_t)c->n_chosen * row), by = buf_at(at, n * to.terms * row);
        o->rmsnorm(d->be, d->xn, d->x, w->norm, n, c->rms_eps);
        route(d, w, &r, &to, n);
        run_experts(d, w, &r, &to, n);
        o->sum_rows(d->be, d->xn, r.rows, at, by, n, to.terms, h);
        o->all_reduce(d->be, d->xn, n * h);
        o->add(d->be, d->x, d->xn, n * h);
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
