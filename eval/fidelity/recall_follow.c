/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/fidelity/recall_follow.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/half.h"

/* ---- results ---- */

void recall_runs_clear(recall_run *runs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        recall_run *r = &runs[i];
        attn_seq_free(r->seq);
        mem_free(r->dense);
        mem_free(r->sum[0]);
        mem_free(r->lengths);
        *r = (recall_run){.spec = r->spec};
    }
}

dtype recall_exact_type(const recall_run *runs, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (runs[i].spec.kv.type != runs[0].spec.kv.type) return DT_F32;
    return runs[0].spec.kv.type;
}

bool recall_knows(const recall_run *run, recall_sum sum)
{
    const attn_spec *s = &run->spec;
    bool plain = s->kv.kind == KV_PLAIN;
    switch (sum) {
    case SUM_ERROR:
    case SUM_ERROR_L1: return run->shape.has_v;
    case SUM_EVICTED:
    case SUM_EVICTED_L1: return run->shape.has_v && !plain;
    case SUM_WITH_TAIL: return run->has_tail;
    case SUM_DISTANCE: return plain || !attn_has_budget(s) || (attn_retrieves(s) && !attn_by_window(s));
    case SUM_DISTANCE_EVICTED: return !plain;
    default: return true;
    }
}

static bool counts_layer(const recall_run *run, int layer, int l)
{
    return layer < 0 ? !run->dense[l] : l == layer;
}

double recall_mean(const recall_run *run, recall_sum sum, int layer)
{
    double all = 0;
    int n = 0, heads = run->shape.n_heads;
    for (int i = 0; i < run->shape.n_layers * heads; i++)
        if (counts_layer(run, layer, i / heads)) all += run->sum[sum][i] / (double)run->n_queries, n++;
    return n && recall_knows(run, sum) ? all / n : (double)NAN;
}

/* Returns the number of selections with `tokens` tokens. */
static uint64_t selections(const recall_run *run, int layer, int64_t tokens)
{
    uint64_t n = 0;
    for (int l = 0; l < run->shape.n_layers; l++)
        if (counts_layer(run, layer, l)) n += run->lengths[l * (run->most_selected + 1) + tokens];
    return n;
}

int64_t recall_selected_at(const recall_run *run, int layer, double fraction)
{
    uint64_t all = 0, n = 0;
    for (int64_t k = 0; k <= run->most_selected; k++) all += selections(run, layer, k);
    for (int64_t k = 0; k <= run->most_selected && all > 0; k++) {
        n += selections(run, layer, k);
        if ((double)n >= fraction * (double)all) return k;
    }
    return -1;
}

bool recall_missed_mass(const recall_run *run, int layer, recall_missed *out)
{
    double mean = 0, var = 0, covers = 0, n = 0;
    for (int i = 0; i < run->shape.n_layers * run->shape.n_heads; i++) {
        if (!counts_layer(run, layer, i / run->shape.n_heads)) continue;
        mean += run->sum[SUM_MISSED][i];
        var += run->sum[SUM_MISSED_VAR][i];
        covers += run->sum[SUM_COVERS][i];
        n += run->sum[SUM_MEASURED][i];
    }
    if (n == 0) return false;
    double off = 1.96 * sqrt(var) / n;
    *out = (recall_missed){mean / n, fmax(mean / n - off, 0), fmin(mean / n + off, 1), covers / n};
    return true;
}

static status run_open(recall_run *r, follow *f, const attn_limits *lim, err *e)
{
    size_t layers = (size_t)f->shape->n_layers, n = layers * (size_t)f->shape->n_heads;
    recall_runs_clear(r, 1);
    r->shape = (recall_shape){f->shape->n_layers, f->shape->n_heads, f->has_v};
    r->most_selected = lim->n_tokens;
    TRY(MEM_NEW(&r->dense, layers, e));
    TRY(MEM_NEW(&r->sum[0], RECALL_SUMS * n, e));
    for (size_t i = 1; i < RECALL_SUMS; i++) r->sum[i] = r->sum[0] + i * n;
    TRY(MEM_NEW(&r->lengths, layers * (size_t)(lim->n_tokens + 1), e));
    for (int l = 0; l < f->shape->n_layers; l++) r->dense[l] = attn_is_dense(&r->spec, f->shape, l);
    return f->watched ? ST_OK : attn_seq_create(&r->seq, &r->spec, f->shape, lim, f->be, e);
}

/* ---- selections as JSON lines ---- */

/* Returns the number of query heads that share a list. */
static int sharing(const follow *f, gqa_mode gqa)
{
    return f->shape->n_heads / (int)gqa_lists(gqa, (size_t)f->shape->n_heads, (size_t)f->shape->n_kv_heads);
}

/* Writes one line per list: of a query head, of a KV head, or of the layer (-1). */
static void dump_list(follow *f, const recall_run *r, int layer, int head, const exact_choice *c)
{
    bool per_q = c->gqa == GQA_PER_Q;
    int kv_head = c->gqa >= GQA_LAYER_MEAN ? -1 : head / sharing(f, c->gqa);
    char params[512], budget[24] = "null";
    if (!f->dump || head % sharing(f, c->gqa) != 0) return;
    attn_spec_params(&r->spec, params, sizeof params);
    if (attn_has_budget(&r->spec)) snprintf(budget, sizeof budget, "%lld", (long long)r->spec.budget);
    fprintf(f->dump,
            "{\"attn\": \"%s\", \"params\": \"%s\", \"budget\": %s, \"layer\": %d, "
            "\"query\": %lld, \"%s\": %d, \"positions\": [",
            r->spec.text, params, budget, layer, (long long)f->query_index, per_q ? "head" : "kv_head",
            per_q ? head : kv_head);
    for (int64_t i = 0; i < c->n; i++) fprintf(f->dump, "%s%lld", i ? ", " : "", (long long)c->pos[i]);
    fputs("]}\n", f->dump);
}

/* ---- one step of a strategy ---- */

static size_t follow_key_bytes(const follow *f)
{
    return (size_t)f->shape->n_kv_heads * (size_t)f->cap * (size_t)f->shape->head_dim * sizeof(float);
}

/* Marks the tokens with unquantized rows in a step whose token is at `current`. */
static void find_float(follow *f, size_t i, int64_t current)
{
    bool *is_float = f->is_float + i * (size_t)f->cap;
    if (f->st == ST_OK) f->st = kv_float_tokens(&f->runs[i].spec.kv, f->prompt, current, is_float, &f->e);
    is_float[current] = true;
}

/* Returns the tokens read by a head, ascending, in f->pos. In a prompt window, the list is cut at the query. */
static exact_choice find_selection(follow *f, size_t i, int layer, int head)
{
    const recall_run *r = &f->runs[i];
    exact_choice c = {.gqa = attn_gqa(&r->spec), .pos = f->pos, .tail = f->rows[layer].n - 1};
    int64_t current = c.tail, head_end, tail, n;
    bool chooses = attn_retrieves(&r->spec) && !r->dense[layer];
    if (f->in_window && !chooses) {
        for (int64_t p = f->query.first; p <= current; p++) f->pos[c.n++] = p;
        return c;
    }
    n = attn_last_selection(f->work, 0, head, f->selected, &head_end, &tail);
    for (int64_t k = 0; k < n && f->selected[k] <= current; k++)
        if (c.n == 0 || f->pos[c.n - 1] != f->selected[k]) f->pos[c.n++] = f->selected[k];
    if (!chooses) return c;
    c.head_end = head_end;
    c.tail = tail > current ? current + 1 : tail; /* whole pages may end after it */
    return c;
}

/* Outputs of all heads: complete, and of the attended tokens only. */
typedef struct {
    float *all, *tokens;
} follow_out;

static follow_out outputs(follow *f, size_t i, size_t row)
{
    size_t n = (size_t)f->shape->n_heads * (size_t)f->shape->head_dim;
    follow_out o = {f->q + n, f->q + n};
    if (!f->has_v) return o;
    f->be->ops->download(f->be, o.all, buf_at(f->out, row * n * sizeof(float)), n * sizeof(float));
    if (f->in_window || !attn_last_of_tokens(f->work, f->tokens)) return o;
    o.tokens += n;
    f->be->ops->download(f->be, o.tokens, f->tokens, n * sizeof(float));
    f->runs[i].has_tail = true;
    return o;
}

static void add_errors(follow *f, size_t i, int layer, int head, const exact_choice *c, follow_out out)
{
    recall_run *r = &f->runs[i];
    size_t at = (size_t)layer * (size_t)f->shape->n_heads + (size_t)head, from = (size_t)(head * f->shape->head_dim);
    exact_diff d = exact_error(&f->query, head, out.tokens + from);
    r->sum[SUM_ERROR][at] += d.l2;
    r->sum[SUM_ERROR_L1][at] += d.l1;
    r->sum[SUM_WITH_TAIL][at] += exact_error(&f->query, head, out.all + from).l2;
    if (r->spec.kv.kind == KV_PLAIN) return;
    d = exact_without(&f->query, head, c, f->is_float + i * (size_t)f->cap);
    r->sum[SUM_EVICTED][at] += d.l2;
    r->sum[SUM_EVICTED_L1][at] += d.l1;
}

/* Adds the estimate of the missed mass from a step's sample; mass [n_heads]: attention mass of the selection. */
static void add_missed(follow *f, size_t i, int layer, const double *mass)
{
    recall_run *r = &f->runs[i];
    int heads = f->shape->n_heads, group = sharing(f, attn_gqa(&r->spec));
    float *estimate = f->missed;
    int64_t n = f->in_window ? 0 : attn_last_missed(f->work, estimate);
    double off = 0;
    for (int h = 0; h < heads && n > 0; h++) {
        size_t at = (size_t)(layer * heads + h);
        double tau = (double)estimate[2 * h], sigma = (double)estimate[2 * h + 1], missed = fmax(1 - mass[h], 0);
        off = (h % group ? off : 0) + tau * (1 - tau) * sigma;
        if (h % group == group - 1) r->sum[SUM_MISSED_VAR][at] += off * off;
        r->sum[SUM_MISSED][at] += tau;
        r->sum[SUM_COVERS][at] += exact_covers(tau, sigma, n, missed);
        r->sum[SUM_MEASURED][at]++;
    }
}

/* Returns the dequantized keys of run i in a layer, in f->host_keys; NULL: they are exact or unavailable. */
static const float *dequantized_keys(follow *f, size_t i, int layer)
{
    const attn_spec *s = &f->runs[i].spec;
    if (s->kv.kind == KV_PLAIN || !recall_knows(&f->runs[i], SUM_DISTANCE)) return NULL;
    attn_seq_keys(f->runs[i].seq, layer, f->keys, f->cap, f->rows[layer].n);
    f->be->ops->download(f->be, f->host_keys, f->keys, follow_key_bytes(f));
    return f->host_keys;
}

static void add_distribution(follow *f, size_t i, size_t at, int head, const exact_choice *c, const float *keys)
{
    recall_run *r = &f->runs[i];
    const bool *kept = r->spec.kv.kind != KV_PLAIN ? f->is_float + i * (size_t)f->cap : NULL;
    int64_t n;
    double mass = exact_covered(&f->query, head, c, kept, &n);
    if (recall_knows(r, SUM_DISTANCE)) r->sum[SUM_DISTANCE][at] += exact_distance(&f->query, head, c, NULL, keys);
    r->sum[SUM_DISTANCE_EVICTED][at] += exact_distance(&f->query, head, c, kept, NULL);
    r->sum[SUM_COVERING][at] += (double)n;
    r->sum[SUM_COVERED][at] += mass;
    r->sum[SUM_COVERAGE][at] += n ? mass / (double)n : 0;
}

/* Adds the certificate of a head and its missed mass, if the bound is within the strategy's limit. */
static void add_certificate(recall_run *r, size_t at, double bound, double mass)
{
    double missed = fmax(0, 1 - mass);
    if (bound > attn_certify_eps(&r->spec)) return;
    r->sum[SUM_CERTIFIED][at]++;
    r->sum[SUM_BOUND][at] += bound;
    r->sum[SUM_SURE_MISSED][at] += missed;
    r->sum[MAX_BOUND][at] = fmax(r->sum[MAX_BOUND][at], bound);
    r->sum[MAX_MISSED][at] = fmax(r->sum[MAX_MISSED][at], missed);
}

void follow_judge(follow *f, size_t i, int layer, size_t row)
{
    recall_run *r = &f->runs[i];
    follow_out out = outputs(f, i, row);
    if (layer == 0 && !f->in_window) find_float(f, i, f->rows[layer].n - 1);
    const float *keys = f->distributions ? dequantized_keys(f, i, layer) : NULL;
    bool sure = attn_certify_eps(&r->spec) > 0 && !f->in_window && !r->dense[layer] &&
                attn_seq_bounds(r->seq, layer, f->bounds);
    for (int h = 0; h < f->shape->n_heads; h++) {
        size_t at = (size_t)layer * (size_t)f->shape->n_heads + (size_t)h;
        exact_choice c = find_selection(f, i, layer, h);
        r->sum[SUM_RECALL][at] += exact_recall(&f->query, h, &c, f->sorting);
        r->sum[SUM_MASS][at] += f->mass[h] = exact_mass(&f->query, h, &c);
        if (sure) add_certificate(r, at, (double)f->bounds[h], f->mass[h]);
        r->sum[SUM_SELECTED][at] += (double)c.n;
        r->lengths[layer * (r->most_selected + 1) + c.n]++;
        if (f->has_v) add_errors(f, i, layer, h, &c, out);
        if (f->distributions) add_distribution(f, i, at, h, &c, keys);
        dump_list(f, r, layer, h, &c);
    }
    add_missed(f, i, layer, f->mass);
}

/* ---- exact rows ---- */

static float as_stored(float x, dtype t)
{
    return t == DT_F32 ? x : t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

/* Downloads n rows [n][n_kv_heads][head_dim] to the positions from r->n on of `to`. */
static void keep_rows(follow *f, float *to, const exact_rows *r, buf from, size_t n)
{
    size_t d = (size_t)f->shape->head_dim, heads = (size_t)f->shape->n_kv_heads;
    f->be->ops->download(f->be, f->host, from, n * heads * d * sizeof(float));
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            for (size_t c = 0; c < d; c++)
                to[(h * (size_t)r->cap + (size_t)r->n + i) * d + c] =
                    as_stored(f->host[(i * heads + h) * d + c], f->type);
}

void follow_append(follow *f, int layer, buf k, buf v, size_t n)
{
    exact_rows *r = &f->rows[layer];
    keep_rows(f, r->k, r, k, n);
    if (f->has_v) keep_rows(f, r->v, r, v, n);
    r->n += (int64_t)n;
}

status follow_open(follow *f, const attn_limits *lim, bool has_v, err *e)
{
    const attn_shape *sh = f->shape;
    size_t heads = (size_t)sh->n_heads, d = (size_t)sh->head_dim, row = (size_t)sh->n_kv_heads * d, n;
    f->cap = lim->n_tokens;
    f->has_v = has_v;
    f->host_rows = (size_t)lim->chunk;
    f->type = recall_exact_type(f->runs, f->n_runs);
    if (!f->watched) {
        TRY(attn_work_create(&f->work, sh, f->host_rows, f->be, e));
        TRY(f->be->ops->alloc(f->be, &f->out, f->host_rows * heads * d * sizeof(float), "outputs", e));
        TRY(f->be->ops->alloc(f->be, &f->tokens, heads * d * sizeof(float), "outputs", e));
    }
    TRY(MEM_NEW(&f->seqs, f->n_runs, e));
    TRY(MEM_NEW(&f->joins, f->n_runs, e));
    TRY(MEM_NEW(&f->rows, (size_t)sh->n_layers, e));
    TRY(MEM_NEW(&f->q, 3 * heads * d, e));
    TRY(MEM_NEW(&f->host, f->host_rows * row, e));
    TRY(size_mul(&n, (size_t)f->cap, row, "exact rows", e));
    for (int l = 0; l < sh->n_layers; l++) {
        f->rows[l] = (exact_rows){.shape = sh, .cap = f->cap};
        TRY(MEM_NEW(&f->rows[l].k, n, e));
        if (has_v) TRY(MEM_NEW(&f->rows[l].v, n, e));
    }
    for (size_t i = 0; i < f->n_runs && f->distributions && !f->host_keys; i++) {
        if (f->runs[i].spec.kv.kind == KV_PLAIN) continue;
        TRY(f->be->ops->alloc(f->be, &f->keys, follow_key_bytes(f), "keys", e));
        TRY(MEM_NEW(&f->host_keys, n, e));
    }
    TRY(MEM_NEW(&f->query.score, heads * (size_t)f->cap, e));
    TRY(MEM_NEW(&f->query.share, heads * (size_t)f->cap, e));
    TRY(MEM_NEW(&f->sorting, 2 * (size_t)f->cap, e));
    TRY(MEM_NEW(&f->pos, (size_t)f->cap, e));
    TRY(MEM_NEW(&f->mass, heads, e));
    TRY(MEM_NEW(&f->missed, 2 * heads, e));
    TRY(MEM_NEW(&f->bounds, heads, e));
    /* a position may occur twice in a prompt window */
    TRY(MEM_NEW(&f->selected, 2 * (size_t)f->cap, e));
    TRY(MEM_NEW(&f->is_float, f->n_runs * (size_t)f->cap, e));
    for (size_t i = 0; i < f->n_runs; i++) TRY(run_open(&f->runs[i], f, lim, e));
    return ST_OK;
}

void follow_close(follow *f)
{
    size_t heads = (size_t)f->shape->n_heads, row = heads * (size_t)f->shape->head_dim * sizeof(float);
    if (!f->watched) attn_work_free(f->work);
    if (f->out.p) f->be->ops->free(f->be, f->out, f->host_rows * row);
    if (f->tokens.p) f->be->ops->free(f->be, f->tokens, row);
    if (f->keys.p) f->be->ops->free(f->be, f->keys, follow_key_bytes(f));
    mem_free(f->host_keys);
    for (int l = 0; f->rows && l < f->shape->n_layers; l++) {
        mem_free(f->rows[l].k);
        mem_free(f->rows[l].v);
    }
    mem_free(f->rows);
    mem_free(f->seqs);
    mem_free(f->joins);
    mem_free(f->q);
    mem_free(f->host);
    mem_free(f->query.score);
    mem_free(f->query.share);
    mem_free(f->sorting);
    mem_free(f->mass);
    mem_free(f->missed);
    mem_free(f->pos);
    mem_free(f->bounds);
    mem_free(f->selected);
    mem_free(f->is_float);
}

void follow_query(follow *f, int layer, buf q)
{
    exact_rows *r = &f->rows[layer];
    int64_t window = f->shape->window[layer];
    size_t all = (size_t)f->shape->n_heads * (size_t)f->shape->head_dim;
    f->be->ops->download(f->be, f->q, q, all * sizeof(float));
    f->query.rows = r;
    f->query.q = f->q;
    f->query.first = window > 0 && window < r->n ? r->n - window : 0;
    exact_fill(&f->query);
}
