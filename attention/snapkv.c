/* SPDX-License-Identifier: MIT */
/* SnapKV: at the end of the first prompt its last queries vote on the tokens to keep. doc/methods.md section 4.
 *
 * The votes of the last `window` queries are summed per query head, combined over the group, and pooled along
 * positions. The window and the best budget - window other positions stay. Generated tokens are added and never
 * evicted. A ring collects the queries over the prompt's chunks. */
#include "config.h"

#include <stddef.h>

#include "attention/evict.h"

enum { P_WINDOW, P_KERNEL, P_POOL, P_GQA, P_TURNS, P_DEMOTE, P_DEMOTE_G, P_RECALL };

static const attn_param params[] = {
    [P_WINDOW] = {"window", NULL, "last tokens of the prompt, which vote and stay; -1: min(32, budget / 2)", -1, -1,
                  4096},
    [P_KERNEL] = {"kernel", NULL, "odd length of the pooling over positions", 7, 1, 4095},
    [P_POOL] = {"pool", "max avg", "pooling of votes", 0, 0, 1},
    [P_GQA] = {EVICT_GQA_PARAM(GQA_MEAN_S)},
    [P_TURNS] = {"recompress_on_turn", NULL, "1: also evict at the end of later prompts", 0, 0, 1},
    [P_DEMOTE] = {DEMOTE_PARAM},
    [P_DEMOTE_G] = {DEMOTE_G_PARAM},
    [P_RECALL] = {RECALL_PARAM},
    {.key = NULL},
};

typedef struct {
    evict_ctx e;
    size_t window, voters; /* rows of the rings; voting queries of the current prompt */
    buf *q, *lse;          /* [n_layers] rings: f32 queries [window][n_heads][head_dim]; f32 lse [window][n_heads] */
    buf qpos;              /* i64 [window] positions of the rings' rows */
    int64_t *host;         /* host copy of qpos */
    buf heads;             /* f32 [n_heads][stride] votes */
    buf votes;             /* f32 [n_lists][stride] */
} snap_ctx;

static status snap_parse(attn_spec *s, err *e)
{
    int64_t *w = &s->value[P_WINDOW];
    if (s->value[P_KERNEL] % 2 == 0)
        return err_set(e, ST_USAGE, "--attn %s: kernel=%lld, expected an odd number", s->text,
                       (long long)s->value[P_KERNEL]);
    if (*w == 0) return err_set(e, ST_USAGE, "--attn %s: window=0, at least 1", s->text);
    if (*w < 0) *w = s->budget / 2 < 32 ? s->budget / 2 : 32;
    return ST_OK;
}

static status snap_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    TRY(evict_check(s, shape, e));
    if (s->value[P_WINDOW] < s->budget) return ST_OK;
    return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least window + 1 = %lld", s->text,
                   (long long)s->budget, (long long)s->value[P_WINDOW] + 1);
}

static void snap_rule(const attn_spec *s, evict_rule *r)
{
    r->recent = s->value[P_WINDOW];
    r->once = true;
    r->each_prompt = s->value[P_TURNS] == 1;
}

#define AT(member) offsetof(snap_ctx, member)

static void snap_declare(attn_decl *d)
{
    size_t window = (size_t)d->spec->value[P_WINDOW], heads = (size_t)d->shape->n_heads, f32 = sizeof(float);
    decl_layers(d, MEM_SCRATCH, AT(q), "last queries", window * heads * (size_t)d->shape->head_dim * f32);
    decl_layers(d, MEM_SCRATCH, AT(lse), "last queries", window * heads * f32);
    decl_bytes(d, MEM_SCRATCH, AT(qpos), "last queries", window * sizeof(int64_t));
    decl_bytes(d, MEM_HOST, AT(host), "last queries", window * sizeof(int64_t));
    decl_scratch(d, AT(heads), "votes", heads * f32, d->lim->n_tokens);
    decl_scratch(d, AT(votes), "votes", d->lists * f32, d->lim->n_tokens);
}

/* Uploads the positions of the voting queries. Token i of a prompt has row i mod window of the rings. */
static void snap_begin(attn_view *v, const attn_part *p)
{
    snap_ctx *c = v->own;
    int64_t end = p->first + (int64_t)p->n_tok;
    size_t n = c->voters = (size_t)min64(p->n_prompt, attn_get(v, P_WINDOW));
    size_t window = c->window = (size_t)attn_get(v, P_WINDOW);
    evict_begin(v, p);
    v->observes = (p->flags & ATTN_PROMPT) && evict_prunes(v, p->n_prompt - p->prompt_done) &&
                  p->prompt_done + (int64_t)p->n_tok > p->n_prompt - (int64_t)n;
    if (!c->e.due) return;
    for (size_t i = 0; i < n; i++) c->host[((size_t)p->n_prompt - n + i) % window] = end - (int64_t)(n - i);
    v->be->ops->upload(v->be, c->qpos, c->host, window * sizeof *c->host);
}

/* Keeps the voting queries of this chunk. */
static void snap_observe(attn_view *v, const attn_part *p, int layer, buf q, buf lse)
{
    const snap_ctx *c = v->own;
    const backend_ops *o = v->be->ops;
    size_t done = (size_t)p->prompt_done, first = (size_t)p->n_prompt - c->voters;
    size_t heads = (size_t)v->shape->n_heads * sizeof(float), row = heads * (size_t)v->shape->head_dim;
    for (size_t i = first > done ? first : done, n; i < done + p->n_tok; i += n) {
        size_t at = i % c->window, left = done + p->n_tok - i;
        n = left < c->window - at ? left : c->window - at;
        o->copy(v->be, buf_at(c->q[layer], at * row), buf_at(q, (i - done) * row), n * row);
        o->copy(v->be, buf_at(c->lse[layer], at * heads), buf_at(lse, (i - done) * heads), n * heads);
    }
}

static void snap_vote(attn_view *v, const attn_part *p, int layer)
{
    snap_ctx *c = v->own;
    evict_ctx *k = &c->e;
    const evict_ops *o = v->be->ops->evict;
    size_t n = c->voters, n_heads = (size_t)v->shape->n_heads;
    size_t heads = n_heads * sizeof(float), row = heads * (size_t)v->shape->head_dim;
    for (size_t done = 0, run; done < n; done += run) {
        size_t at = ((size_t)p->n_prompt - n + done) % c->window;
        run = n - done < c->window - at ? n - done : c->window - at;
        attn_job j = evict_job(v, layer, true, run, buf_at(c->q[layer], at * row), buf_at(c->lse[layer], at * heads),
                               buf_at(c->qpos, at * sizeof(int64_t)));
        o->colsum(v->be, &j, n_heads, COMBINE_SUM, done > 0, c->heads, k->stride);
    }
    k->rule.recent = (int64_t)n;
    o->combine(v->be, c->votes, c->heads, k->stride, n_heads, k->n_lists, (size_t)k->attended, k->rule.how);
    evict_add_ranks(v, c->votes);
    o->pool(v->be, &k->kept[layer], c->votes, (int64_t)n, attn_get(v, P_KERNEL), attn_get(v, P_POOL) == 0);
}

static const evict_kind snap_kind = {.least = 2, .rule = snap_rule, .vote = snap_vote};

const attn_method attn_snapkv = {
    .name = "snapkv",
    .summary = "SnapKV: the prompt's last queries vote once on the tokens to keep",
    .counts = "prompt",
    .source = "Li et al. 2024 (arXiv 2404.14469); SnapKV snapkv_utils.py; doc/methods.md 4, deviations 4.7",
    .params = params,
    .family = &attn_evict,
    .kind = &snap_kind,
    .size = sizeof(snap_ctx),
    .has_budget = true,
    .def_budget = 256,
    .parse = snap_parse,
    .check = snap_check,
    .hooks = {.declare = snap_declare, .begin = snap_begin, .observe = snap_observe},
};
