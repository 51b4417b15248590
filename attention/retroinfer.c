/* SPDX-License-Identifier: MIT */
/* RetroInfer: all rows are kept, and old tokens are grouped into clusters of similar keys (its wave index). A step
 * attends the first tokens, the newest tokens and the tokens of the best clusters, and estimates the next clusters by
 * their means. Two numbers, the same in all layers, determine the clustered tokens. Slots are positions. doc/methods.md
 * 7c. */
#include "config.h"

#include <stddef.h>

#include "attention/method.h"
#include "kernels/base/mem.h"
#include "kernels/ops_cluster.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_quest.h"

enum { P_SINK, P_LOCAL, P_SIZE, P_SEGMENT, P_UPDATE, P_ITERS, P_EST };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 4, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 64, 1, 1 << 20},
    [P_SIZE] = {"size", NULL, "tokens per cluster, on average", 16, 2, 1024},
    [P_SEGMENT] = {"segment", NULL, "prompt tokens whose centroids are trained together", 8192, 16, 1 << 30},
    [P_UPDATE] =
        {"update", NULL,
         "tokens until they are clustered, a multiple of size; 0: half the budget after sink, local, max. 1024", 0, 0,
         1 << 20},
    [P_ITERS] = {"iters", NULL, "k-means iterations", 9, 0, 1000},
    [P_EST] = {"est", NULL, "percent of clusters estimated by their means", 23, 0, 100},
    {.key = NULL},
};

typedef struct {
    int64_t sink, local;   /* first and newest tokens, which are in no cluster */
    int64_t size, segment; /* average tokens per cluster; prompt tokens per training */
    int64_t update;        /* tokens clustered at a time after the prompt, a multiple of size */
    int64_t iters;
} wave_rule;

/* prompt: tokens at the end of the prompt that was clustered whole, sink + local without one. built: updates since. */
typedef struct {
    int64_t prompt, built;
} wave_progress;

typedef struct {
    wave_rule rule;
    wave_progress at;
    buf *mean_k, *mean_v, *start, *member; /* [n_layers] buffers of index */
    cluster_index *index;                  /* [n_layers] */
    buf less, centroid, code; /* k-means: f32 [n_kv_heads][head_dim] mean; f32 centroids; i32 codes by token */
    /* Scratch of selections, for the clusters of the token limit. */
    buf score, key, bits; /* f32 [n_heads][clusters], then [n_kv_heads]; cluster_choice has the rest */
    buf idx, ranges;      /* ranges [n_layers] */
    buf group, groups, bias;
} wave;

/* ---- numbers ---- */

static wave_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    int64_t half = min64((s->budget - v[P_SINK] - v[P_LOCAL]) / 2, 1024);
    int64_t update = v[P_UPDATE] ? v[P_UPDATE] : max64(half / v[P_SIZE], 1) * v[P_SIZE];
    return (wave_rule){v[P_SINK], v[P_LOCAL], v[P_SIZE], v[P_SEGMENT], update, v[P_ITERS]};
}

/* Returns the budget left for clusters in a step that attends the `newest` tokens. */
static int64_t room(const attn_spec *s, int64_t newest)
{
    return s->budget - s->value[P_SINK] - newest;
}

/* Returns the most tokens of a list, including sinks. */
static int64_t most_listed(const attn_spec *s)
{
    return s->value[P_SINK] + room(s, s->value[P_LOCAL]);
}

/* Returns how many of the clusters are estimated. */
static int64_t estimated(const attn_spec *s, int64_t clusters)
{
    return (clusters * s->value[P_EST] + 50) / 100;
}

static status retro_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    wave_rule r = rule_of(s);
    int64_t least = r.sink + r.local + r.update + 1;
    (void)shape;
    if (r.update % r.size)
        return err_set(e, ST_USAGE, "%s: update %lld, expected a multiple of size = %lld", s->text, (long long)r.update,
                       (long long)r.size);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + local + update + 1 = %lld", s->text,
                       (long long)s->budget, (long long)least);
    return ST_OK;
}

static void retro_regions(const attn_spec *s, attn_regions *r)
{
    wave_rule w = rule_of(s);
    *r = (attn_regions){.first = w.sink, .newest = w.local + w.update, .covers = INT64_MAX};
}

/* Batch: tokens [first, first + n) that become the clusters [from, from + count), trained in `parts` parts. */
typedef struct {
    int64_t first, n, from, count, parts;
} batch;

static int64_t unclustered(const wave_rule *r)
{
    return r->sink + r->local;
}

/* Returns a / b, rounded half to even as in the reference code. */
static int64_t rounded(int64_t a, int64_t b)
{
    int64_t q = a / b, twice = 2 * (a % b);
    return q + (twice > b || (twice == b && q % 2));
}

/* Returns the batch of a prompt of n tokens: n / size clusters, rounded to the nearest multiple of the parts and of 8,
 * half down. */
static batch of_prompt(const wave_rule *r, int64_t n)
{
    int64_t parts = max64(rounded(n, r->segment), 1), unit = parts * 8 / min64(parts & -parts, 8);
    int64_t count = max64((rounded(n, r->size) + unit / 2 - 1) / unit, 1) * unit, tokens = n - unclustered(r);
    if (count > tokens) return (batch){r->sink, tokens, 0, max64(tokens / r->size, 1), 1};
    return (batch){r->sink, tokens, 0, count, parts};
}

static int64_t clusters_at(const wave_rule *r, wave_progress p)
{
    int64_t first = p.prompt > unclustered(r) ? of_prompt(r, p.prompt).count : 0;
    return first + p.built * (r->update / r->size);
}

/* Returns the first token after the clustered tokens. */
static int64_t end_at(const wave_rule *r, wave_progress p)
{
    return p.prompt - r->local + p.built * r->update;
}

/* Returns the most clusters of n tokens, for any ends of prompts. */
static int64_t most_clusters(const wave_rule *r, int64_t n)
{
    return n < unclustered(r) + r->update ? 0 : n / r->size + 8 * max64(rounded(n, r->segment), 1) + 1;
}

/* ---- memory ---- */

#define AT(member) offsetof(wave, member)

static void retro_declare(attn_decl *d)
{
    const wave_rule rule = rule_of(d->spec), *r = &rule;
    const attn_shape *sh = d->shape;
    size_t kv = (size_t)sh->n_kv_heads, heads = (size_t)sh->n_heads, num = sizeof(float), dim = (size_t)sh->head_dim,
           row = dim * dtype_size(kv_number_type(&d->spec->kv));
    int64_t n = d->lim->n_tokens, cap = most_clusters(r, n), used = most_clusters(r, d->n),
            est = estimated(d->spec, cap);
    const struct {
        size_t at, item;
        int64_t n;
    } work[] = {
        {AT(score), (heads + kv) * num, cap},
        {AT(key), kv * sizeof(uint32_t), cap},
        {AT(bits), kv * sizeof(uint32_t), (int64_t)cluster_words(n)},
        {AT(idx), kv * sizeof(int32_t), min64(most_listed(d->spec), n)},
        {AT(ranges), kv * 2 * sizeof(int64_t), sh->n_layers},
        {AT(group), kv * sizeof(int32_t), est},
        {AT(groups), kv * 2 * sizeof(int64_t), 1},
        {AT(bias), heads * num, est},
    };
    decl_regions(d, MEM_INDEX, AT(mean_k), "mean keys of clusters", kv, row, cap, used);
    decl_regions(d, MEM_INDEX, AT(mean_v), "mean values of clusters", kv, row, cap, used);
    decl_regions(d, MEM_STATE, AT(start), "starts of clusters", kv, sizeof(int32_t), cap + 1, used + 1);
    decl_regions(d, MEM_STATE, AT(member), "members of clusters", kv, sizeof(int32_t), n,
                 max64(d->n - unclustered(r), 0));
    decl_scratch(d, AT(less), "k-means", kv * dim * sizeof(float), 1);
    decl_scratch(d, AT(centroid), "k-means", kv * dim * sizeof(float), cap);
    decl_scratch(d, AT(code), "k-means", kv * sizeof(int32_t), n);
    decl_bytes(d, MEM_HOST, AT(index), "clusters", (size_t)sh->n_layers * sizeof(cluster_index));
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        decl_scratch(d, work[i].at, "selected clusters", work[i].item, work[i].n);
}

/* Drops clusters with tokens from n on. */
static void cut(wave *w, int64_t n)
{
    if (n < w->at.prompt || n == 0) w->at = (wave_progress){unclustered(&w->rule), 0};
    w->at.built = min64(w->at.built, max64(n - w->at.prompt, 0) / w->rule.update);
}

static void retro_reset(attn_view *v)
{
    wave *w = v->own;
    const wave_rule r = rule_of(v->spec);
    const attn_shape *sh = v->shape;
    size_t cap = (size_t)most_clusters(&r, v->lim->n_tokens);
    w->rule = r;
    cut(w, 0);
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

/* ---- clustering ---- */

enum { TRAIN_JOBS = 16 };

/* Computes `less` and `centroid` of a batch. */
static void train(const attn_view *v, const wave *w, const kv_rows *rows, const batch *b)
{
    const kmeans_ops *o = v->be->ops->kmeans;
    int64_t tokens = b->n / b->parts, each = b->count / b->parts;
    kmeans_job jobs[TRAIN_JOBS];
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
        if (m < TRAIN_JOBS && i + 1 < b->parts) continue;
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

/* Returns the progress after a forward. A prompt is clustered at its end, whole if no cluster exists and it is long
 * enough. */
static wave_progress after(const attn_view *v, const attn_part *p)
{
    const wave *w = v->own;
    const wave_rule *r = &w->rule;
    int64_t n = v->length + (int64_t)p->n_tok, since = n - w->at.prompt;
    if ((p->flags & ATTN_PROMPT) && !(p->flags & ATTN_PROMPT_END)) return w->at;
    if ((p->flags & ATTN_PROMPT) && clusters_at(r, w->at) == 0 && n - unclustered(r) >= r->update)
        return (wave_progress){n, 0};
    return (wave_progress){w->at.prompt, max64(w->at.built, since / r->update)};
}

/* Builds the missing clusters of a layer from the stored rows. */
static void retro_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const wave *w = v->own;
    const wave_rule *r = &w->rule;
    wave_progress now = w->at, next = after(v, p);
    if (next.prompt != now.prompt) {
        const batch b = of_prompt(r, next.prompt);
        make_clusters(v, w, layer, &b);
        return;
    }
    for (; now.built < next.built; now.built++) {
        const batch b = {end_at(r, now), r->update, clusters_at(r, now), r->update / r->size, 1};
        make_clusters(v, w, layer, &b);
    }
}

/* ---- a choice ---- */

static cluster_choice choice_of(const attn_task *t, int layer)
{
    const attn_view *v = t->v;
    const wave *w = v->own;
    const cluster_index *x = &w->index[layer];
    size_t heads = (size_t)v->shape->n_heads, kv = x->mean.n_kv_heads;
    int64_t clusters = clusters_at(&w->rule, w->at), n = t->p.first + (int64_t)t->p.n_tok;
    return (cluster_choice){.x = x,
                            .score = buf_at(w->score, heads * x->mean.cap * sizeof(float)),
                            .stride = x->mean.cap,
                            .n = clusters,
                            .n_slots = n,
                            .k = room(v->spec, n - end_at(&w->rule, w->at)),
                            .most = estimated(v->spec, clusters),
                            .head = w->rule.sink,
                            .idx = w->idx,
                            .range = buf_at(w->ranges, (size_t)layer * kv * 2 * sizeof(int64_t)),
                            .idx_stride = (size_t)min64(most_listed(v->spec), v->lim->n_tokens),
                            .group = w->group,
                            .groups = w->groups,
                            .bias = w->bias,
                            .group_stride = (size_t)estimated(v->spec, (int64_t)x->mean.cap),
                            .n_heads = heads,
                            .key = w->key,
                            .bits = w->bits,
                            .read = attn_index_read(v)};
}

static void set_segments(const attn_task *t, int layer, const cluster_choice *c)
{
    const wave *w = t->v->own;
    const kv_rows *rows = kv_store_rows(t->v->store, layer);
    attn_sel *sel = t->sel;
    sel->head = c->head;
    sel->tail = end_at(&w->rule, w->at);
    sel->attended = c->n_slots - sel->tail; /* ops count the others */
    sel->n_seg = c->most > 0 ? 3 : 2;
    sel->seg[0] = (attn_seg){.rows = rows,
                             .range = c->range,
                             .idx = c->idx,
                             .n_lists = rows->n_kv_heads,
                             .idx_stride = c->idx_stride,
                             .n_max = (int64_t)c->idx_stride};
    sel->seg[1] = (attn_seg){.rows = rows, .n_lists = 1, .first = sel->tail, .n_max = sel->attended};
    sel->seg[2] = (attn_seg){.rows = &c->x->mean,
                             .range = c->groups,
                             .idx = c->group,
                             .n_lists = rows->n_kv_heads,
                             .idx_stride = c->group_stride,
                             .n_max = c->most,
                             .bias = c->bias,
                             .bias_stride = c->group_stride,
                             .pseudo = true};
}

static quest_index means_of(const kv_rows *m)
{
    return (quest_index){.bound = m->k,
                         .type = m->type,
                         .n_kv_heads = m->n_kv_heads,
                         .head_dim = m->head_dim,
                         .cap = m->cap,
                         .page = 1,
                         .how = QUEST_MEAN};
}

/* Selects the best clusters and estimated clusters of n sequences. */
static void select_best(const attn_task *const *t, size_t n, int layer)
{
    const attn_view *v = t[0]->v;
    quest_index means[ATTN_MAX_TASKS];
    score_job score[ATTN_MAX_TASKS];
    combine_job combine[ATTN_MAX_TASKS];
    cluster_choice choice[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const cluster_choice *c = &choice[i];
        buf raw = ((const wave *)t[i]->v->own)->score;
        choice[i] = choice_of(t[i], layer);
        means[i] = means_of(&c->x->mean);
        score[i] = (score_job){.index = &means[i],
                               .q = t[i]->q,
                               .n_heads = c->n_heads,
                               .score = raw,
                               .stride = c->stride,
                               .items = {c->n, 0, c->n},
                               .read = c->read};
        combine[i] = (combine_job){c->score, raw,  c->stride, c->n_heads,     c->x->mean.n_kv_heads,
                                   0,        c->n, GQA_VOTE,  v->shape->scale};
    }
    v->be->ops->quest->score(v->be, score, n);
    v->be->ops->select->combine(v->be, combine, n);
    backend_mark(v->be, STAGE_SCORE);
    v->be->ops->cluster->choose(v->be, choice, n);
    backend_mark(v->be, STAGE_TOPK);
    for (size_t i = 0; i < n; i++) set_segments(t[i], layer, &choice[i]);
}

/* ---- a forward ---- */

static bool chooses(const attn_view *v, const attn_part *p)
{
    const wave *w = v->own;
    bool all = v->length + (int64_t)p->n_tok <= v->spec->budget && !v->spec->forced;
    return !(p->flags & ATTN_PROMPT) && !all && clusters_at(&w->rule, w->at) > 0;
}

static void retro_select(const attn_task *t, size_t n, int layer)
{
    const attn_task *best[ATTN_MAX_TASKS];
    size_t n_best = 0;
    full_select(t, n, layer);
    for (; n > 0; n--, t++)
        if (chooses(t->v, &t->p)) best[n_best++] = t;
    if (n_best > 0) select_best(best, n_best, layer);
}

static void retro_end(attn_view *v, const attn_part *p)
{
    wave *w = v->own;
    if (chooses(v, p)) attn_count_lists(v, w->ranges, (size_t)v->shape->n_kv_heads, v->layers);
    w->at = after(v, p);
}

/* ---- between forwards ---- */

static const char *retro_rewind(attn_view *v, int64_t n)
{
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    cut(v->own, n);
    return NULL;
}

/* Validates the loaded lists of one head. at: scratch [clusters + 1 + tokens]. */
static status check_head(const attn_view *v, int layer, size_t head, int32_t *at, err *e)
{
    const wave *w = v->own;
    const cluster_index *x = &w->index[layer];
    int64_t n = clusters_at(&w->rule, w->at), end = end_at(&w->rule, w->at), tokens = end - w->rule.sink;
    int32_t *member = at + n + 1;
    v->be->ops->download(v->be, at, buf_at(x->start, head * (x->mean.cap + 1) * sizeof *at),
                         (size_t)(n + 1) * sizeof *at);
    v->be->ops->download(v->be, member, buf_at(x->member, head * x->tokens * sizeof *at), (size_t)tokens * sizeof *at);
    bool good = at[0] == 0 && at[n] == tokens;
    for (int64_t c = 0; c < n; c++) good &= at[c] <= at[c + 1];
    for (int64_t i = 0; i < tokens; i++) good &= member[i] >= w->rule.sink && member[i] < end;
    return good ? ST_OK : state_bad("lists of clusters", e);
}

static status check_lists(const attn_view *v, err *e)
{
    const wave *w = v->own;
    int32_t *at;
    status st = ST_OK;
    TRY(MEM_NEW(&at, (size_t)(clusters_at(&w->rule, w->at) + 1 + v->length), e));
    for (int l = 0; l < v->shape->n_layers && st == ST_OK; l++)
        for (int h = 0; h < v->shape->n_kv_heads && st == ST_OK && v->layers[l]; h++)
            st = check_head(v, l, (size_t)h, at, e);
    mem_free(at);
    return st;
}

static status walk(attn_view *v, attn_state *s, err *e)
{
    wave *w = v->own;
    const wave_rule *r = &w->rule;
    int64_t none = unclustered(r);
    TRY(STATE_HOST(s, "end of the prompt", &w->at.prompt, e));
    TRY(STATE_HOST(s, "updates of clusters", &w->at.built, e));
    if (w->at.prompt != none) TRY(state_within("end of the prompt", w->at.prompt, none + r->update, v->length, e));
    int64_t since = max64(v->length - w->at.prompt, 0);
    TRY(state_within("updates of clusters", w->at.built, 0, since / r->update, e));
    TRY(attn_walk(v, s, e));
    return s->load && clusters_at(r, w->at) > 0 ? check_lists(v, e) : ST_OK;
}

static status retro_state(attn_view *v, attn_state *s, err *e)
{
    status st = walk(v, s, e);
    if (st != ST_OK) cut(v->own, 0); /* damaged clusters must not be used */
    return st == ST_OK ? kv_store_state(v->store, s, v->length, v->length, e) : st;
}

static const attn_family everything_is_kept = {.retrieves = true};

const attn_method attn_retroinfer = {
    .name = "retroinfer",
    .summary = "RetroInfer: the best clusters of tokens, and the means of the next-best clusters",
    .source = "RetroInfer (arXiv 2505.02922); RetrievalAttention, cache_hub/retroinfer_cache.py; doc/methods.md 7c, "
              "deviations 7c.7",
    .params = params,
    .family = &everything_is_kept,
    .size = sizeof(wave),
    .uses = USES(select) | USES(quest) | USES(kmeans) | USES(cluster),
    .gqa = "vote",
    .has_budget = true,
    .def_budget = 512,
    .reuse = ATTN_REUSE_ANY,
    .check = retro_check,
    .regions = retro_regions,
    .hooks = {.declare = retro_declare,
              .reset = retro_reset,
              .select = retro_select,
              .layer_end = retro_layer_end,
              .end = retro_end,
              .rewind = retro_rewind,
              .state = retro_state},
};
