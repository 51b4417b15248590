/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/wave.h"

#include <stddef.h>

#include "kernels/base/mem.h"
#include "kernels/ops_kmeans.h"

/* ---- numbers ---- */

/* Tokens [first, first + n) become the clusters [from, from + count), trained in `parts` parts. */
typedef struct {
    int64_t first, n, from, count, parts;
} batch;

static int64_t unclustered(const wave_rule *r)
{
    return r->sink + r->local;
}

/* a / b, halves to the even number, as the code has it. */
static int64_t rounded(int64_t a, int64_t b)
{
    int64_t q = a / b, twice = 2 * (a % b);
    return q + (twice > b || (twice == b && q % 2));
}

/* Of a prompt of n tokens: a sixteenth of them as clusters, to the nearest multiple of the parts and of 8, the lower
 * one of two. */
static batch of_prompt(const wave_rule *r, int64_t n)
{
    int64_t parts = max64(rounded(n, r->segment), 1), unit = parts * 8 / min64(parts & -parts, 8);
    int64_t count = max64((rounded(n, r->size) + unit / 2 - 1) / unit, 1) * unit, tokens = n - unclustered(r);
    if (count > tokens) return (batch){r->sink, tokens, 0, max64(tokens / r->size, 1), 1};
    return (batch){r->sink, tokens, 0, count, parts};
}

int64_t wave_clusters(const wave_rule *r, wave_progress p)
{
    int64_t first = p.prompt > unclustered(r) ? of_prompt(r, p.prompt).count : 0;
    return first + p.built * (r->update / r->size);
}

int64_t wave_end(const wave_rule *r, wave_progress p)
{
    return p.prompt - r->local + p.built * r->update;
}

int64_t wave_most(const wave_rule *r, int64_t n)
{
    return n < unclustered(r) + r->update ? 0 : n / r->size + 8 * max64(rounded(n, r->segment), 1) + 1;
}

/* ---- memory ---- */

#define AT(member) (at + offsetof(wave, member))

void wave_declare(attn_decl *d, size_t at, const wave_rule *r)
{
    const attn_shape *sh = d->shape;
    size_t kv = (size_t)sh->n_kv_heads, dim = (size_t)sh->head_dim,
           row = dim * dtype_size(kv_number_type(&d->spec->kv));
    int64_t n = d->lim->n_tokens, cap = wave_most(r, n), used = wave_most(r, d->n);
    decl_regions(d, MEM_INDEX, AT(mean_k), "mean keys of clusters", kv, row, cap, used);
    decl_regions(d, MEM_INDEX, AT(mean_v), "mean values of clusters", kv, row, cap, used);
    decl_regions(d, MEM_STATE, AT(start), "starts of clusters", kv, sizeof(int32_t), cap + 1, used + 1);
    decl_regions(d, MEM_STATE, AT(member), "members of clusters", kv, sizeof(int32_t), n,
                 max64(d->n - unclustered(r), 0));
    decl_scratch(d, AT(less), "k-means", kv * dim * sizeof(float), 1);
    decl_scratch(d, AT(centroid), "k-means", kv * dim * sizeof(float), cap);
    decl_scratch(d, AT(code), "k-means", kv * sizeof(int32_t), n);
    decl_bytes(d, MEM_HOST, AT(index), "clusters", (size_t)sh->n_layers * sizeof(cluster_index));
}

void wave_open(const attn_view *v, wave *w, const wave_rule *r)
{
    const attn_shape *sh = v->shape;
    size_t cap = (size_t)wave_most(r, v->lim->n_tokens);
    w->rule = *r;
    wave_cut(w, 0);
    for (int l = 0; l < sh->n_layers && cap > 0; l++)
        w->index[l] = (cluster_index){w->start[l],
                                      w->member[l],
                                      (size_t)v->lim->n_tokens,
                                      {.k = w->mean_k[l],
                                       .v = w->mean_v[l],
                                       .type = kv_number_type(&v->spec->kv),
                                       .n_kv_heads = (size_t)sh->n_kv_heads,
                                       .head_dim = (size_t)sh->head_dim,
                                       .cap = cap}};
}

/* ---- growing ---- */

enum { TRAIN_TOGETHER = 16 };

/* `less` and `centroid` become those of a batch. */
static void train(const attn_view *v, const wave *w, const kv_rows *rows, const batch *b)
{
    const kmeans_ops *o = v->be->ops->kmeans;
    int64_t tokens = b->n / b->parts, each = b->count / b->parts;
    kmeans_job jobs[TRAIN_TOGETHER];
    size_t m = 0;
    o->mean(v->be, w->less, rows, b->first, (size_t)b->n);
    for (int64_t i = 0; i < b->parts; i++) {
        jobs[m++] = (kmeans_job){.rows = rows,
                                 .first = b->first + i * tokens,
                                 .n = (size_t)(i + 1 < b->parts ? tokens : b->n - i * tokens),
                                 .parts = 1,
                                 .count = (size_t)each,
                                 .cap = (size_t)b->count,
                                 .metric = KMEANS_DOT,
                                 .less = w->less,
                                 .centroid = buf_at(w->centroid, (size_t)(i * each) * rows->head_dim * sizeof(float)),
                                 .start = {b->first, (size_t)(i * each), (size_t)b->n, (size_t)b->count, true},
                                 .iters = (int)w->rule.iters,
                                 .work = buf_at(w->code, rows->n_kv_heads * (size_t)(i * tokens) * sizeof(int32_t))};
        if (m < TRAIN_TOGETHER && i + 1 < b->parts) continue;
        o->train(v->be, jobs, m);
        m = 0;
    }
}

static void make_clusters(const attn_view *v, const wave *w, int layer, const batch *b)
{
    const kv_rows *rows = kv_store_rows(v->store, layer);
    const kmeans_job j = {.rows = rows,
                          .first = b->first,
                          .n = (size_t)b->n,
                          .parts = 1,
                          .count = (size_t)b->count,
                          .cap = (size_t)b->count,
                          .metric = KMEANS_DOT,
                          .less = w->less,
                          .centroid = w->centroid,
                          .type = DT_F32,
                          .code = w->code,
                          .code_cap = (size_t)b->n,
                          .wide = true};
    kv_need(v->be, rows, b->first, b->first + b->n);
    train(v, w, rows, b);
    v->be->ops->kmeans->assign(v->be, &j, 1);
    v->be->ops->cluster->fill(v->be, &w->index[layer],
                              &(cluster_fill){rows, b->first, j.n, w->code, j.n, (size_t)b->from, j.count});
}

wave_progress wave_after(const attn_view *v, const wave *w, const attn_part *p)
{
    const wave_rule *r = &w->rule;
    int64_t n = v->length + (int64_t)p->n_tok, behind = n - w->at.prompt;
    if ((p->flags & ATTN_PROMPT) && !(p->flags & ATTN_PROMPT_END)) return w->at;
    if ((p->flags & ATTN_PROMPT) && wave_clusters(r, w->at) == 0 && n - unclustered(r) >= r->update)
        return (wave_progress){n, 0};
    return (wave_progress){w->at.prompt, max64(w->at.built, behind / r->update)};
}

void wave_grow(const attn_view *v, const wave *w, int layer, wave_progress next)
{
    const wave_rule *r = &w->rule;
    wave_progress now = w->at;
    if (next.prompt != now.prompt) {
        const batch b = of_prompt(r, next.prompt);
        make_clusters(v, w, layer, &b);
        return;
    }
    for (; now.built < next.built; now.built++) {
        const batch b = {wave_end(r, now), r->update, wave_clusters(r, now), r->update / r->size, 1};
        make_clusters(v, w, layer, &b);
    }
}

void wave_cut(wave *w, int64_t n)
{
    if (n < w->at.prompt || n == 0) w->at = (wave_progress){unclustered(&w->rule), 0};
    w->at.built = min64(w->at.built, max64(n - w->at.prompt, 0) / w->rule.update);
}

/* ---- saving and loading ---- */

/* Lists of one head as loaded: at [clusters + 1 + tokens] has room for them. */
static status check_head(const attn_view *v, const wave *w, int layer, size_t head, int32_t *at, err *e)
{
    const cluster_index *x = &w->index[layer];
    int64_t n = wave_clusters(&w->rule, w->at), end = wave_end(&w->rule, w->at), tokens = end - w->rule.sink;
    int32_t *member = at + n + 1;
    v->be->ops->download(v->be, at, buf_at(x->start, head * (x->mean.cap + 1) * sizeof *at),
                         (size_t)(n + 1) * sizeof *at);
    v->be->ops->download(v->be, member, buf_at(x->member, head * x->tokens * sizeof *at), (size_t)tokens * sizeof *at);
    bool good = at[0] == 0 && at[n] == tokens;
    for (int64_t c = 0; c < n; c++) good &= at[c] <= at[c + 1];
    for (int64_t i = 0; i < tokens; i++) good &= member[i] >= w->rule.sink && member[i] < end;
    return good ? ST_OK : state_bad("lists of clusters", e);
}

static status check_lists(const attn_view *v, const wave *w, err *e)
{
    int32_t *at;
    status st = ST_OK;
    TRY(MEM_NEW(&at, (size_t)(wave_clusters(&w->rule, w->at) + 1 + v->length), e));
    for (int l = 0; l < v->shape->n_layers && st == ST_OK; l++)
        for (int h = 0; h < v->shape->n_kv_heads && st == ST_OK && v->layers[l]; h++)
            st = check_head(v, w, l, (size_t)h, at, e);
    mem_free(at);
    return st;
}

static status walk(attn_view *v, wave *w, attn_state *s, err *e)
{
    const wave_rule *r = &w->rule;
    int64_t none = unclustered(r);
    TRY(STATE_HOST(s, "end of the prompt", &w->at.prompt, e));
    TRY(STATE_HOST(s, "updates of clusters", &w->at.built, e));
    if (w->at.prompt != none) TRY(state_within("end of the prompt", w->at.prompt, none + r->update, v->length, e));
    int64_t behind = max64(v->length - w->at.prompt, 0);
    TRY(state_within("updates of clusters", w->at.built, 0, behind / r->update, e));
    TRY(attn_walk(v, s, e));
    return s->load && wave_clusters(r, w->at) > 0 ? check_lists(v, w, e) : ST_OK;
}

status wave_walk(attn_view *v, wave *w, attn_state *s, err *e)
{
    status st = walk(v, w, s, e);
    if (st != ST_OK) wave_cut(w, 0); /* what was damaged is not to be used */
    return st;
}
