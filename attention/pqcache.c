/* SPDX-License-Identifier: MIT */
/* PQCache: tokens by product-quantized keys. doc/methods.md 7b.
 *
 * At the end of the first prompt, before its rows are quantized, each of m sub-spaces of a layer's keys gets 2^bits
 * centroids. A key is then represented by m codes. New tokens get codes when they are appended; centroids do not
 * change. Before training everything is attended. */
#include "config.h"

#include <stddef.h>

#include "attention/retrieve.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_pq.h"

enum { P_M, P_BITS, P_ITERS, P_SINK, P_LOCAL, P_GQA, P_FRACTION, P_MIN, P_BETA, P_TAIL, P_SEED };

static const attn_param params[] = {
    [P_M] = {"m", NULL, "sub-spaces of a key, with one code each; must divide head_dim", 2, 1, PQ_PARTS},
    [P_BITS] = {"bits", NULL, "bits per code: 2^bits centroids per sub-space", 6, 1, PQ_BITS},
    [P_ITERS] = {"iters", NULL, "k-means iterations at the end of the first prompt", 10, 0, 1000},
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 32, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended; 0: half of the budget left after sink", 0, 0, 1 << 20},
    [P_GQA] = {RETRIEVE_GQA_PARAM},
    [P_FRACTION] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},
    [P_BETA] = {RETRIEVE_CALIBRATE_PARAM},
    [P_TAIL] = {RETRIEVE_TAIL_PARAM},
    [P_SEED] = {TAIL_SEED_PARAM},
    {.key = NULL},
};

typedef struct {
    retrieve r;
    buf *code, *centroid; /* [n_layers] */
    buf trained;          /* f32 centroids of a layer during training */
    buf work;             /* kmeans_job.work */
    pq_index *index;      /* [n_layers] */
} pqcache;

static int64_t local_of(const attn_spec *s)
{
    return s->value[P_LOCAL] > 0 ? s->value[P_LOCAL] : max64((s->budget - s->value[P_SINK]) / 2, 1);
}

static status pqcache_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    int64_t m = s->value[P_M], least = s->value[P_SINK] + max64(s->value[P_LOCAL], 1) + 1;
    if (shape->head_dim % m)
        return err_set(e, ST_USAGE, "%s: m %lld: must divide head_dim %d", s->text, (long long)m, shape->head_dim);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + local + 1 = %lld", s->text,
                       (long long)s->budget, (long long)least);
    return retrieve_check(s, e);
}

static void pqcache_regions(const attn_spec *s, attn_regions *r)
{
    r->newest = local_of(s);
}

static retrieve_range pqcache_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    return retrieve_items(o, first, n, max64(n - local_of(s), 0), s->budget);
}

static void pqcache_declare(attn_decl *d)
{
    size_t kv = (size_t)d->shape->n_kv_heads,
           numbers = kv * ((size_t)1 << d->spec->value[P_BITS]) * (size_t)d->shape->head_dim;
    decl_regions(d, MEM_INDEX, offsetof(pqcache, code), "codes of keys", kv, (size_t)d->spec->value[P_M],
                 d->lim->n_tokens, d->n);
    decl_layers(d, MEM_INDEX, offsetof(pqcache, centroid), "centroids", numbers * sizeof(uint16_t));
    decl_bytes(d, MEM_SCRATCH, offsetof(pqcache, trained), "centroids", numbers * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, offsetof(pqcache, work), "codes of training",
               kv * (size_t)d->spec->value[P_M] * (size_t)d->lim->n_tokens * sizeof(int32_t));
    decl_bytes(d, MEM_HOST, offsetof(pqcache, index), "codes of keys", (size_t)d->shape->n_layers * sizeof(pq_index));
}

static void pqcache_reset(attn_view *v)
{
    pqcache *c = v->own;
    retrieve_reset(v);
    for (int l = 0; l < v->shape->n_layers; l++)
        c->index[l] = (pq_index){.code = c->code[l],
                                 .centroid = c->centroid[l],
                                 .type = kv_number_type(&v->spec->kv),
                                 .n_kv_heads = (size_t)v->shape->n_kv_heads,
                                 .head_dim = (size_t)v->shape->head_dim,
                                 .cap = (size_t)v->lim->n_tokens,
                                 .parts = (size_t)attn_get(v, P_M),
                                 .bits = (size_t)attn_get(v, P_BITS)};
}

/* Trains on the keys after the sinks, then assigns codes to all keys by the stored f16 centroids. */
static void pqcache_layer_end(attn_view *v, const attn_part *p, int layer)
{
    pqcache *c = v->own;
    pq_index *x = &c->index[layer];
    const kmeans_ops *o = v->be->ops->kmeans;
    int64_t n = v->length + (int64_t)p->n_tok, from = attn_get(v, P_SINK), words = (int64_t)pq_words(x);
    if (!(p->flags & ATTN_PROMPT_END) || x->trained > 0 || n - from <= words) return;
    kmeans_job j = {.rows = kv_store_rows(v->store, layer),
                    .first = from,
                    .n = (size_t)(n - from),
                    .parts = x->parts,
                    .count = (size_t)words,
                    .cap = (size_t)words,
                    .metric = KMEANS_L2,
                    .centroid = c->trained,
                    .start = {.base = from, .n = (size_t)(n - from), .count = (size_t)words},
                    .iters = (int)attn_get(v, P_ITERS),
                    .work = c->work};
    kv_need(v->be, j.rows, 0, n);
    o->train(v->be, &j, 1);
    v->be->ops->convert(v->be, x->centroid, DT_F16, c->trained, DT_F32, (size_t)words * x->n_kv_heads * x->head_dim);
    j.centroid = x->centroid;
    j.type = DT_F16;
    j.first = 0;
    j.n = (size_t)n;
    j.code = x->code;
    j.code_cap = x->cap;
    o->assign(v->be, &j, 1);
    x->trained = n;
}

static void set_trained(attn_view *v, int64_t trained)
{
    pqcache *c = v->own;
    for (int l = 0; l < v->shape->n_layers; l++) c->index[l].trained = trained;
}

/* Returns the number of tokens at the end of training, which is the same in all layers of the method; 0: untrained. */
static int64_t trained_of(const attn_view *v)
{
    const pqcache *c = v->own;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l]) return c->index[l].trained;
    return 0;
}

static bool pqcache_ready(const attn_view *v)
{
    return trained_of(v) > 0;
}

static const char *pqcache_rewind(attn_view *v, int64_t n)
{
    const char *why = retrieve_rewind(v, n);
    if (!why && n < trained_of(v)) set_trained(v, 0);
    return why;
}

static status pqcache_state(attn_view *v, attn_state *s, err *e)
{
    int64_t trained = trained_of(v), first = trained; /* earlier versions could train again */
    TRY(STATE_HOST(s, "end of the training", &trained, e));
    TRY(state_within("end of the training", trained, 0, v->length, e));
    TRY(STATE_HOST(s, "first training", &first, e));
    TRY(state_within("end of the first training", first, trained, trained, e));
    set_trained(v, trained);
    return retrieve_state(v, s, e);
}

const attn_method attn_pqcache = {
    .name = "pqcache",
    .summary = "PQCache: tokens by product-quantized keys",
    .source = "Zhang et al. 2024 (arXiv 2407.12820); HugoZHL/PQCache pq_search.py; doc/methods.md 7b, deviations 7b.7",
    .params = params,
    .family = &attn_retrieve,
    .kind = &(const retrieve_kind){.range = pqcache_range,
                                   .ready = pqcache_ready,
                                   .ops = offsetof(backend_ops, pq),
                                   .index = offsetof(pqcache, index),
                                   .index_size = sizeof(pq_index)},
    .size = sizeof(pqcache),
    .uses = USES(kmeans) | USES(pq),
    .has_budget = true,
    .def_budget = 256,
    .reuse = ATTN_REUSE_ANY,
    .check = pqcache_check,
    .regions = pqcache_regions,
    .hooks = {.declare = pqcache_declare,
              .reset = pqcache_reset,
              .layer_end = pqcache_layer_end,
              .rewind = pqcache_rewind,
              .state = pqcache_state},
};
