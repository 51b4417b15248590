/* SPDX-License-Identifier: MIT */
/* From scores to lists of slots: page bounds, one-bit keys, votes, choice. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#include "kernels/ref/ref.h"
#include "tests/unit/op_attn.h"
#include "tests/unit/op_scores.h"

enum { KV = 2 };
static const buf NONE;

static score_job score_of(const void *index, buf score, size_t stride, buf q, size_t heads, item_range items, buf read)
{
    return (score_job){
        .index = index, .q = q, .n_heads = heads, .score = score, .stride = stride, .items = items, .read = read};
}

/* Scores of a selection decide: they have the bits of ref, of NaN any. */
static buf scores_out(op_run *x, size_t n)
{
    return op_inout(x, NULL, 4 * n, UNIT, 0);
}

/* ---- scores and votes ---- */

static void mean_queries(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], heads = KV * (size_t)p[1];
    x->be->ops->select->mean_heads(x->be, op_out(x, 4 * 3 * KV * dim, UNIT, 1e-6), op_floats(x, 3 * heads * dim), 3,
                                   heads, KV, dim);
}

static void combine(op_run *x, const int64_t *p)
{
    gqa_mode mode = (gqa_mode)p[0];
    size_t lists = mode >= GQA_LAYER_MEAN ? 1 : KV, heads = lists * (size_t)p[1], n = (size_t)p[2], stride = n + 5;
    bool vote = (mode == GQA_VOTE || mode == GQA_LAYER_VOTE) && p[1] > 1;
    float *f = random_f32(&x->r, heads * stride), spread = (float)p[3]; /* 900: most votes underflow */
    for (size_t i = 0; i < heads * stride; i++) f[i] *= spread;
    x->one_bits = true;
    combine_job j = {.out = op_inout(x, NULL, 4 * lists * stride, UNIT, vote ? 1e-5 + 1e-6 * (double)spread : 0),
                     .in = op_in(x, f, 4 * heads * stride),
                     .stride = stride,
                     .n_heads = heads,
                     .n_lists = lists,
                     .lo = p[4] ? (int64_t)n / 4 : 0,
                     .hi = (int64_t)n,
                     .mode = mode,
                     .scale = 0.125f};
    x->be->ops->select->combine(x->be, &j, 1);
    free(f);
}

/* A head with a large norm may not silence another; without a finite score it has no vote; nothing ties by underflow.
 */
static void votes(op_run *x, const int64_t *p)
{
    enum { N = 40 };
    float in[2 * N], *out;
    for (int i = 0; i < N; i++) {
        if (p[0] == 0) in[i] = i == 7 ? 1000 : -1000, in[N + i] = i == 30 ? 3 : 0;
        if (p[0] == 1) in[i] = i % 2 ? NAN : -INFINITY, in[N + i] = i == 30 ? 3 : 0;
        if (p[0] == 2) in[i] = in[N + i] = NAN;
        if (p[0] == 3) in[i] = in[N + i] = i == 0 ? 0 : -200 - (float)i;
    }
    buf b = op_inout(x, NULL, 4 * N, UNIT, 1e-5);
    x->be->ops->select->combine(x->be, &(combine_job){b, op_in(x, in, sizeof in), N, 2, 1, 0, N, GQA_VOTE, 1}, 1);
    out = op_see(x, b, 4 * N);
    for (int i = 0; i < N; i++) {
        bool favourite = i == 7 || i == 30;
        if (p[0] == 0) op_note(x, (favourite || out[30] > out[i]) && out[7] > out[30], "item %d", i);
        if (p[0] == 1) op_note(x, fabsf(out[30] - 3 - out[0]) < 1e-5f, "one head votes");
        if (p[0] == 2) op_note(x, out[i] == -INFINITY, "nobody votes: item %d", i);
        if (p[0] == 3 && i) op_note(x, out[i] < out[i - 1], "items %d and %d", i - 1, i);
    }
    free(out);
}

/* A call with more jobs than a launch has, against one call per job. */
static void votes_of_many(op_run *x, const int64_t *p)
{
    enum { JOBS = 18, N = 300 };
    combine_job j[JOBS], one;
    float *f = random_f32(&x->r, 4 * N);
    for (size_t i = 0; i < JOBS; i++) {
        for (size_t k = 0; k < 4 * N; k++) f[k] *= 1.25f;
        j[i] = (combine_job){op_in(x, NULL, 8 * N), op_in(x, f, 16 * N), N, 4, 2, 0, (int64_t)(N - i), GQA_VOTE, 1};
    }
    x->be->ops->select->combine(x->be, j, JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        one = j[i], one.out = op_in(x, NULL, 8 * N);
        x->be->ops->select->combine(x->be, &one, 1);
        op_same(x, j[i].out, one.out, 8 * N, "votes of a list");
    }
    (void)p;
    free(f);
}

/* ---- choice ---- */

/* Parameters of a selection. */
typedef struct {
    int64_t items, lo, hi, head, tail, first, granule, slots;
} choice;

/* Slots of one list by a sort; returns their number. */
static int64_t naive_choose(const float *score, const choice *c, int64_t k, int32_t *out)
{
    int64_t m = 0, count = 0;
    ranked *list = xmalloc((size_t)(c->items + 1) * sizeof *list);
    bool *take = xmalloc((size_t)c->items + 1);
    for (int64_t i = 0; i < c->items; i++) {
        take[i] = i < c->head || i >= c->tail;
        if (!take[i] && i >= c->lo && i < c->hi) list[m++] = (ranked){isnan(score[i]) ? -INFINITY : score[i], i};
    }
    qsort(list, (size_t)m, sizeof *list, by_rank);
    for (int64_t i = 0; i < m && i < k; i++) take[list[i].i] = true;
    for (int64_t s = 0; s < c->slots; s++)
        if (take[s / c->granule] && s >= c->first) out[count++] = (int32_t)s;
    free(list), free(take);
    return count;
}

enum { WHOLE, LAST, HEAD_TAIL, WINDOW, ALL_FORCED, NO_CANDIDATE };

static choice choice_of(int64_t items, int64_t granule, int64_t form)
{
    choice c = {.items = items, .hi = items, .tail = items, .granule = granule};
    c.slots = items * granule - (granule > 1 ? items % granule : 0);
    c.items = (c.slots + granule - 1) / granule;
    if (form == LAST) c.hi = c.tail = items - 1;
    if (form == HEAD_TAIL) c.head = items / 25, c.tail = items - items / 10;
    if (form == WINDOW)
        c.lo = items / 3, c.head = 4, c.hi = c.tail = items - items / 20, c.first = c.lo * granule + granule / 2;
    if (form == ALL_FORCED) c.head = items * 3 / 5, c.tail = items / 2;
    if (form == NO_CANDIDATE) c.lo = c.hi = items / 5, c.tail = items - 1, c.first = c.lo * granule;
    return c;
}

/* Against a sort. ref takes a time that grows with the square of the items. */
static void choose(op_run *x, const int64_t *p)
{
    choice c = choice_of(p[0], p[3], p[4]);
    size_t lists = (size_t)p[5], n = (size_t)p[0] + 1, stride = (size_t)c.slots + 3;
    int64_t k = p[2] < 0 ? p[0] + p[2] + 1 : p[2], *range;
    if (p[0] > 2000 && strcmp(x->be->name, "ref") == 0) return;
    float *score = xmalloc(4 * lists * n);
    for (size_t i = 0; i < lists * n; i++) score[i] = some_score(x, p[1], (int64_t)(i % n));
    choose_job j = {.score = op_in(x, score, 4 * lists * n),
                    .items = candidates((size_t)c.slots, c.lo, c.hi),
                    .k = k,
                    .tail = c.tail,
                    .first = c.first,
                    .n_lists = lists,
                    .stride = n,
                    .granule = c.granule,
                    .head = c.head,
                    .most = c.items,
                    .idx_stride = (int64_t)stride,
                    .idx = op_in(x, NULL, 4 * lists * stride),
                    .range = op_in(x, NULL, 16 * lists)};
    if (p[1] % 2) j.budget = op_i64(x, k), j.k = k / 2 + 1; /* what an op computed wins */
    x->be->ops->select->choose(x->be, &j, 1);
    int32_t *idx = op_see(x, j.idx, 4 * lists * stride), *want = xmalloc(4 * stride);
    range = op_see(x, j.range, 16 * lists);
    for (size_t l = 0; l < lists; l++) {
        int64_t m = naive_choose(score + l * n, &c, k, want);
        op_note(x, range[2 * l] == 0 && range[2 * l + 1] == m && !memcmp(want, idx + l * stride, 4 * (size_t)m),
                "list %zu: %d of %d", l, (int)range[2 * l + 1], (int)m);
    }
    free(score), free(idx), free(want), free(range);
}

/* ---- choice among combined scores ---- */

/* Choices right after the combination that they read, for two sequences, against combinations that are fetched first
 * and a sort. Combined are the candidates, all items, or all but the last candidates, whose scores are in the buffer.
 * p[0]: the choices are in another order than the combinations, with the same numbers of items. */
static void choose_combined(op_run *x, const int64_t *p)
{
    enum { JOBS = 2, TAIL = 9 };
    const size_t heads = KV * (size_t)p[1], stride = (size_t)p[2] + TAIL;
    const backend_ops *o = x->be->ops;
    combine_job combine[JOBS], apart[JOBS];
    choose_job best[JOBS], swapped[JOBS];
    choice c[JOBS];
    if (strcmp(x->be->name, "ref") == 0) return;
    float *score = xmalloc(4 * heads * stride);
    for (int i = 0; i < JOBS; i++) {
        int64_t n = i && !p[0] ? p[2] - p[2] / 3 : p[2];
        for (size_t k = 0; k < heads * stride; k++) score[k] = (i ? 8 : 1) * some_score(x, p[3], (int64_t)(k % stride));
        c[i] = choice_of(n, 1, p[4]);
        combine[i] = (combine_job){.out = op_in(x, score, 4 * KV * stride),
                                   .in = op_in(x, score, 4 * heads * stride),
                                   .stride = stride,
                                   .n_heads = heads,
                                   .n_lists = KV,
                                   .lo = p[6] == 1 ? 0 : c[i].lo,
                                   .hi = p[6] == 1 ? n : c[i].hi - (p[6] == 2 ? p[2] / 4 : 0),
                                   .mode = (gqa_mode)p[7],
                                   .scale = 0.25f};
        apart[i] = combine[i], apart[i].out = op_in(x, score, 4 * KV * stride);
        best[i] = (choose_job){.score = combine[i].out,
                               .n_lists = KV,
                               .stride = stride,
                               .items = candidates((size_t)n, c[i].lo, c[i].hi),
                               .head = c[i].head,
                               .tail = c[i].tail,
                               .first = c[i].first,
                               .k = p[5],
                               .granule = 1,
                               .most = p[2],
                               .idx_stride = (int64_t)stride,
                               .idx = op_in(x, NULL, 4 * KV * stride),
                               .range = op_in(x, NULL, 16 * KV)};
        swapped[JOBS - 1 - i] = best[i];
    }
    o->select->combine(x->be, combine, JOBS);
    o->select->choose(x->be, p[0] ? swapped : best, JOBS);
    o->select->combine(x->be, apart, JOBS);
    int32_t *want = xmalloc(4 * stride);
    for (int i = 0; i < JOBS; i++) {
        float *by = op_see(x, apart[i].out, 4 * KV * stride);
        int32_t *idx = op_see(x, best[i].idx, 4 * KV * stride);
        int64_t *range = op_see(x, best[i].range, 16 * KV);
        for (size_t l = 0; l < KV; l++) {
            int64_t m = naive_choose(by + l * stride, &c[i], p[5], want);
            op_note(x, range[2 * l + 1] == m && !memcmp(want, idx + l * stride, 4 * (size_t)m),
                    "job %d list %zu: %d of %d", i, l, (int)range[2 * l + 1], (int)m);
        }
        op_same(x, combine[i].out, apart[i].out, 4 * KV * stride, "combinations stored by the choice");
        free(by), free(idx), free(range);
    }
    free(score), free(want);
}

/* ---- page bounds ---- */

static quest_index pages_of(op_run *x, size_t n, size_t dim, size_t page, dtype t)
{
    quest_index q = {.type = t, .n_kv_heads = KV, .head_dim = dim, .page = page, .cap = (n + page - 1) / page + 1};
    q.bound = op_inout(x, NULL, KV * q.cap * 2 * dim * dtype_size(t), BITS, 0);
    q.sum = op_inout(x, NULL, KV * dim * sizeof(float), BITS, 0);
    return q;
}

static size_t bound_bytes(const quest_index *q)
{
    return KV * q->cap * (q->how == QUEST_MEAN ? 1 : 2) * q->head_dim * dtype_size(q->type);
}

/* Rows of the keys k [n][KV][dim], rounded to t. */
static kv_rows rows_of(op_run *x, buf k, size_t n, size_t dim, dtype t)
{
    int64_t *slot = xmalloc(8 * n);
    kv_rows r = {.type = t, .n_kv_heads = KV, .head_dim = dim, .cap = n};
    for (size_t i = 0; i < n; i++) slot[i] = (int64_t)i;
    r.k = op_in(x, NULL, KV * n * dim * dtype_size(t)), r.v = op_in(x, NULL, KV * n * dim * dtype_size(t));
    x->be->ops->kv_write(x->be, &(kv_write_job){&r, 0, op_in(x, slot, 8 * n), 1, k, k, n}, 1);
    free(slot);
    return r;
}

/* Bounds or means of pages: all at once; and back to the half, then one by one. */
static void quest(op_run *x, const int64_t *p)
{
    const index_ops *o = x->be->ops->quest;
    size_t dim = (size_t)p[0], heads = KV * (size_t)p[1], page = (size_t)p[2], n = (size_t)p[3], row = 4 * KV * dim;
    dtype t = (dtype)p[4];
    quest_index a = pages_of(x, n, dim, page, t), b = pages_of(x, n, dim, page, t),
                wide = pages_of(x, n, dim, 8 * page, t);
    a.how = b.how = wide.how = (quest_how)p[5];
    buf k = op_floats(x, n * KV * dim), q = op_floats(x, heads * dim);
    size_t n_pages = (n + page - 1) / page, half = n / 2, stride = n_pages + 2;
    kv_rows rows = rows_of(x, k, n, dim, t);
    o->add(x->be, &(index_add_job){&a, 0, k, n}, 1);
    o->add(x->be, &(index_add_job){&wide, 0, k, n}, 1);
    o->add(x->be, &(index_add_job){&b, 0, k, n}, 1);
    o->redo(x->be, &b, &rows, (int64_t)half);
    for (size_t i = half; i < n; i++) o->add(x->be, &(index_add_job){&b, (int64_t)i, buf_at(k, i * row), 1}, 1);
    op_same(x, a.bound, b.bound, bound_bytes(&a), "pages after a rewind");
    quest_index largest = a;
    if (a.how == QUEST_SUM) largest.how = QUEST_MAXCH;
    buf score = scores_out(x, heads * stride), above = scores_out(x, heads * stride);
    score_job of_pages = score_of(&a, score, stride, q, heads, candidates(n, 0, (int64_t)n_pages), op_read(x)),
              of_some = score_of(&largest, scores_out(x, heads * stride), stride, q, heads,
                                 candidates(n, (int64_t)n_pages / 3, (int64_t)n_pages), op_read(x)),
              of_wide = score_of(&wide, above, stride, q, heads, candidates(n, 0, (int64_t)(n_pages + 7) / 8), NONE);
    o->score(x->be, &of_pages, 1);
    o->score(x->be, &of_some, 1);
    o->score(x->be, &of_wide, 1);
    if (a.how != QUEST_MEAN || page != 1) return;
    float *s = op_see(x, score, 4 * heads * stride), *query = op_see(x, q, 4 * heads * dim), key[256];
    rows.k = (buf){op_see(x, rows.k, KV * n * dim * dtype_size(t))};
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++) {
            ref_k_row(key, &rows, h / (size_t)p[1], (int64_t)i);
            op_note(x, s[h * stride + i] == ref_dot16(query + h * dim, key, dim), "a page of one token: its score");
        }
    free(s), free(query), free(rows.k.p);
}

/* Scores of tokens become those of their pages. */
static void page_reduce(op_run *x, const int64_t *p)
{
    size_t heads = (size_t)p[0], n = (size_t)p[2], granule = (size_t)p[1], items = (n + granule - 1) / granule;
    page_reduce_job j[2] = {{.out = scores_out(x, heads * (items + 2)),
                             .stride = items + 2,
                             .in_stride = n + 1,
                             .n_heads = heads,
                             .items = candidates(n, (int64_t)items / 4, (int64_t)items),
                             .granule = (int64_t)granule}};
    float *in = random_f32(&x->r, heads * (n + 1));
    if (p[3]) in[n / 2] = NAN, in[n - 1] = -INFINITY, in[n / 3] = INFINITY;
    j->in = op_in(x, in, 4 * heads * (n + 1));
    j[1] = j[0];
    j[1].items.hi = j->items.lo; /* nothing to do */
    x->be->ops->select->page_reduce(x->be, j, 2);
    free(in);
}

/* ---- one-bit keys ---- */

static fier_index bits_of(op_run *x, size_t n, size_t dim, const int64_t *p, dtype t)
{
    fier_index f = {
        .type = t, .n_kv_heads = KV, .head_dim = dim, .cap = n, .group = (size_t)p[0], .products = (fier_products)p[1]};
    f.bits = op_inout(x, NULL, KV * ((n + 31) / 32) * fier_words(dim) * 128, BITS, 0);
    f.levels = op_inout(x, NULL, KV * ((n + f.group - 1) / f.group) * 2 * dim * dtype_size(t), BITS, 0);
    f.ring = op_inout(x, NULL, KV * f.group * dim * dtype_size(t), BITS, 0);
    return f;
}

/* odd: numbers that are tiny, large, or all the same; queries that are not finite. */
static buf keys_of(op_run *x, size_t n, size_t dim, bool odd)
{
    static const float some[] = {0, 1e-42f, 1e4f, -1e4f, 1e-30f, -0.0f, 7};
    float *k = random_f32(&x->r, n * KV * dim);
    for (size_t i = 0; i < n * KV; i++) k[i * dim + dim / 2] *= 9; /* an outlier channel */
    for (size_t v = 0; v < 7 && odd; v++) k[dim * (v % (n * KV)) + v % dim] = some[v];
    for (size_t i = 0; i < dim && odd; i++) k[(n * KV - 1) * dim + i] = 0.5f;
    buf b = op_in(x, k, 4 * n * KV * dim);
    free(k);
    return b;
}

/* The keys [from, n) of k, one by one. */
static void fier_add_rest(op_run *x, const fier_index *f, buf k, size_t from, size_t n)
{
    for (size_t i = from; i < n; i++)
        x->be->ops->fier->add(x->be, &(index_add_job){f, (int64_t)i, buf_at(k, i * 4 * KV * f->head_dim), 1}, 1);
}

static void fier(op_run *x, const int64_t *p)
{
    const index_ops *o = x->be->ops->fier;
    size_t dim = (size_t)p[0], heads = KV * (size_t)p[1], n = (size_t)p[2], half = n - (n < 120 ? n / 4 : 30),
           stride = n + 3;
    dtype t = (dtype)p[3];
    fier_index a = bits_of(x, n, dim, p + 4, t), b = bits_of(x, n, dim, p + 4, t);
    buf k = keys_of(x, n, dim, p[6]), q = op_floats(x, heads * dim);
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e-42f, 3e38f, 0};
    for (size_t i = 0; i < 6 && p[6]; i++) x->be->ops->upload(x->be, buf_at(q, i % heads * dim * 4), &odd[i], 4);
    kv_rows rows = rows_of(x, k, n, dim, t);
    o->add(x->be, &(index_add_job){&a, 0, k, n}, 1);
    o->add(x->be, &(index_add_job){&b, 0, k, half}, 1);
    fier_add_rest(x, &b, k, half, n);
    size_t levels = KV * ((n + a.group - 1) / a.group) * 2 * dim * dtype_size(t),
           bits = KV * ((n + 31) / 32) * fier_words(dim) * 128;
    op_equal(x, a.levels, b.levels, levels, "levels, one by one");
    op_equal(x, a.bits, b.bits, bits, "bits, one by one");
    item_range to = candidates(n, p[7] ? (int64_t)n / 3 : 0, (int64_t)n), back = candidates(half, 0, (int64_t)half);
    score_job j = score_of(&a, scores_out(x, heads * stride), stride, q, heads, to, op_read(x));
    o->score(x->be, &j, 1);
    o->redo(x->be, &b, &rows, (int64_t)half);
    j = score_of(&b, scores_out(x, heads * stride), stride, q, heads, back, NONE);
    o->score(x->be, &j, 1);
    fier_add_rest(x, &b, k, half, n);
    op_same(x, a.levels, b.levels, levels, "levels after a rewind");
    op_same(x, a.bits, b.bits, bits, "bits after a rewind");
    if (heads == KV) return;
    buf score = op_in(x, NULL, 4 * heads * stride), by_two = op_inout(x, NULL, 4 * KV * stride, UNIT, 1e-4),
        vote = op_inout(x, NULL, 4 * KV * stride, UNIT, 1e-4);
    j = score_of(&a, score, stride, q, heads, to, NONE);
    o->score(x->be, &j, 1);
    x->be->ops->select->combine(x->be, &(combine_job){by_two, score, stride, heads, KV, to.lo, to.hi, GQA_VOTE, 0.25f},
                                1);
    j.votes = vote, j.scale = 0.25f, j.read = op_read(x);
    o->score(x->be, &j, 1);
    if (!p[6]) op_same(x, by_two, vote, 4 * KV * stride, "vote is score and combine");
}

/* Whole numbers that 8 and 7 bits hold, also where all are as large as can be: products are exact. */
static void fier_whole(op_run *x, const int64_t *p)
{
    enum { D = 256, N = 64, H = KV * 5 };
    static float k[N * KV * D], q[H * D];
    const int64_t form[] = {32, FIER_INT8};
    fier_index f = bits_of(x, N, D, form, DT_F32);
    for (size_t c = 0; c < KV * D; c++) {
        float span = p[0] || c % D == 3 ? 127 : (float)op_int(x, 0, 127), base = (float)op_int(x, -4, 4);
        for (size_t t = 0; t < N; t++)
            k[t * KV * D + c] = base + ((t % 32 ? t % 32 == 31 || op_int(x, 0, 1) : 0) ? span : 0);
    }
    for (size_t i = 0; i < H * D; i++) q[i] = p[0] ? (i / D % 2 ? 127 : -127) : (float)op_int(x, -127, 127);
    for (size_t h = 0; h < H; h++) q[h * D + h] = h % 2 ? 127 : -127;
    buf score = scores_out(x, H * N);
    score_job j = score_of(&f, score, N, op_in(x, q, sizeof q), H, candidates(N, 0, N), NONE);
    x->be->ops->fier->add(x->be, &(index_add_job){&f, 0, op_in(x, k, sizeof k), N}, 1);
    x->be->ops->fier->score(x->be, &j, 1);
    float *s = op_see(x, score, 4 * H * N);
    for (size_t h = 0; h < H; h++)
        for (size_t t = 0; t < N; t++) {
            double want = 0;
            for (size_t c = 0; c < D; c++) want += (double)q[h * D + c] * (double)k[(t * KV + h / 5) * D + c];
            op_note(x, (double)s[h * N + t] == want, "head %zu token %zu: %g, not %g", h, t, (double)s[h * N + t],
                    want);
        }
    free(s);
}

/* ---- spans of items ---- */

enum { MOST = 330, LISTS = 6 };

/* The same number of spans in each list, all that overlap [lo, hi) or some of them. */
static item_spans some_spans(op_run *x, size_t lists, int64_t per, int64_t lo, int64_t hi, bool all)
{
    static int32_t listed[LISTS][MOST];
    int64_t first = lo / per, n = (hi - 1) / per + 1 - first, keep = all ? n : op_int(x, 1, n), range[LISTS][2];
    for (size_t l = 0; l < lists; l++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) /* each subset of that size is as likely */
            if (op_int(x, 0, n - i - 1) < keep - count) listed[l][count++] = (int32_t)(first + i);
        range[l][0] = 0, range[l][1] = count;
    }
    return (item_spans){op_in(x, listed, sizeof listed), op_in(x, range, sizeof range), lists, MOST, per, n};
}

/* Scores by spans against those of all items, and the choice among places against that among items, where what is in
 * no span has no score. */
static void spans(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], page = (size_t)p[1], n = (size_t)p[2], lists = (size_t)p[3], heads = p[3] == KV ? KV : 6;
    int64_t items = p[5] ? (int64_t)n : (int64_t)((n + page - 1) / page), a = op_int(x, 0, items - 1),
            b = op_int(x, 0, items - 1);
    int64_t lo = a < b ? a : b, hi = (a < b ? b : a) + 1, granule = p[5] ? 1 : (int64_t)page;
    const int64_t form[] = {p[1], p[6], p[6] % 2};
    item_spans g = some_spans(x, lists, op_int(x, 1, 40), lo, hi, p[7]);
    buf k = op_floats(x, n * KV * dim), q = op_floats(x, heads * dim);
    item_range to = candidates(n, lo, hi);
    buf dense = op_in(x, NULL, 4 * LISTS * MOST), places = op_inout(x, NULL, 4 * LISTS * MOST, UNIT, 0);
    fier_index bits = {.cap = 0};
    quest_index bounds = {.cap = 0};
    if (p[5]) bits = bits_of(x, n, dim, form, (dtype)p[4]);
    else bounds = pages_of(x, n, dim, page, (dtype)p[4]);
    bounds.how = p[6] == 0 ? QUEST_MAXCH : p[6] == 1 ? QUEST_MEAN : QUEST_SUM;
    const void *index = p[5] ? (const void *)&bits : &bounds;
    score_job of_all = score_of(index, dense, MOST, q, heads, to, NONE), of_some = of_all;
    of_some.score = places, of_some.spans = &g, of_some.read = op_read(x);
    const index_ops *pages = x->be->ops->quest;
    const index_ops *ones = x->be->ops->fier;
    (p[5] ? ones->add : pages->add)(x->be, &(index_add_job){index, 0, k, n}, 1);
    (p[5] ? ones->score : pages->score)(x->be, &of_all, 1);
    (p[5] ? ones->score : pages->score)(x->be, &of_some, 1);
    int64_t(*range)[2] = op_see(x, g.range, 16 * LISTS), least = MOST;
    int32_t(*listed)[MOST] = op_see(x, g.span, 4 * LISTS * MOST);
    float *all = op_see(x, dense, 4 * LISTS * MOST), *some = op_see(x, places, 4 * LISTS * MOST), chosen[LISTS * MOST];
    for (size_t h = 0; h < heads; h++) {
        size_t l = h / (heads / lists);
        int64_t count = 0;
        for (size_t i = 0; i < MOST; i++) chosen[h * MOST + i] = -INFINITY;
        for (int64_t at = 0; at < range[l][1] * g.per; at++) {
            int64_t item = listed[l][at / g.per] * g.per + at % g.per;
            bool is = item >= lo && item < hi;
            float got = some[h * MOST + (size_t)at], want = is ? all[h * MOST + (size_t)item] : -INFINITY;
            op_note(x, memcmp(&got, &want, 4) == 0, "head %zu item %d: %g, not %g", h, (int)item, (double)got,
                    (double)want);
            if (is) chosen[h * MOST + (size_t)item] = want, count++;
        }
        if (count < least) least = count;
    }
    if (heads == lists) {
        choose_job j = {.score = places,
                        .items = to,
                        .k = op_int(x, 0, least) + (p[7] ? 2 : 0),
                        .tail = hi,
                        .first = lo * granule + 1,
                        .n_lists = lists,
                        .stride = MOST,
                        .granule = granule,
                        .head = lo ? 1 : 0,
                        .most = items,
                        .idx_stride = MOST,
                        .idx = op_inout(x, NULL, 4 * LISTS * MOST, IN, 0),
                        .range = op_inout(x, NULL, 16 * LISTS, BITS, 0)};
        choose_job by_item = j;
        by_item.score = op_in(x, chosen, 4 * lists * MOST);
        by_item.idx = op_inout(x, NULL, 4 * LISTS * MOST, IN, 0),
        by_item.range = op_inout(x, NULL, 16 * LISTS, BITS, 0);
        j.spans = &g;
        x->be->ops->select->choose(x->be, &j, 1);
        x->be->ops->select->choose(x->be, &by_item, 1);
        op_same(x, j.range, by_item.range, 16 * lists, "counts of the choice by spans");
        int64_t(*taken)[2] = op_see(x, by_item.range, 16 * LISTS);
        for (size_t l = 0; l < lists; l++)
            op_same(x, buf_at(j.idx, 4 * l * MOST), buf_at(by_item.idx, 4 * l * MOST), 4 * (size_t)taken[l][1],
                    "choice by spans");
        free(taken);
    }
    free(range), free(listed), free(all), free(some);
}

/* ---- lists of jobs ---- */

/* A call with three jobs, of lengths apart, against three calls. */
static void jobs(op_run *x, const int64_t *p)
{
    enum { JOBS = 3, D = 16, N = 3000, PAGE = 4 };
    const int64_t length[JOBS] = {p[0], p[1], p[2]}, form[] = {8, FIER_FLOAT};
    size_t heads = KV * 3;
    fier_index bits[2 * JOBS];
    quest_index bounds[2 * JOBS];
    index_add_job add[2][2 * JOBS];
    score_job score[2][2 * JOBS];
    combine_job mean[2 * JOBS];
    choose_job best[2 * JOBS];
    const backend_ops *o = x->be->ops;
    for (size_t i = 0; i < 2 * JOBS; i++) { /* the second three are those of the single calls */
        size_t n = (size_t)length[i % JOBS], stride = N;
        int64_t pages = (int64_t)(n + PAGE - 1) / PAGE, last = (int64_t)n;
        bits[i] = bits_of(x, n, D, form, DT_F16), bounds[i] = pages_of(x, n, D, PAGE, DT_F16);
        buf k = i < JOBS ? op_floats(x, n * KV * D) : add[0][i - JOBS].k,
            q = i < JOBS ? op_floats(x, heads * D) : score[0][i - JOBS].q;
        add[0][i] = (index_add_job){&bits[i], 0, k, n};
        add[1][i] = (index_add_job){&bounds[i], 0, k, n};
        score[0][i] = score_of(&bits[i], op_in(x, NULL, 4 * heads * stride), stride, q, heads,
                               candidates(n, last / 5, last), op_read(x));
        score[0][i].votes = op_inout(x, NULL, 4 * KV * stride, UNIT, 1e-4), score[0][i].scale = 0.25f;
        score[1][i] =
            score_of(&bounds[i], scores_out(x, heads * stride), stride, q, heads, candidates(n, 0, pages), op_read(x));
        mean[i] =
            (combine_job){scores_out(x, KV * stride), score[1][i].score, stride, heads, KV, 0, pages, GQA_MEAN_S, 1};
        best[i] = (choose_job){.score = mean[i].out,
                               .n_lists = KV,
                               .stride = stride,
                               .items = candidates(n, 0, pages - 1),
                               .tail = pages - 1,
                               .k = p[3],
                               .granule = PAGE,
                               .most = N,
                               .idx_stride = N,
                               .idx = op_inout(x, NULL, 4 * KV * N, BITS, 0),
                               .range = op_inout(x, NULL, 16 * KV, BITS, 0)};
    }
    for (size_t i = 0; i < JOBS + 1; i++) {
        size_t at = i ? JOBS + i - 1 : 0, n = i ? 1 : JOBS;
        o->fier->add(x->be, &add[0][at], n);
        o->quest->add(x->be, &add[1][at], n);
        o->fier->score(x->be, &score[0][at], n);
        o->quest->score(x->be, &score[1][at], n);
        o->select->combine(x->be, &mean[at], n);
        o->select->choose(x->be, &best[at], n);
    }
    for (size_t i = 0; i < JOBS; i++) {
        op_same(x, bounds[i].bound, bounds[i + JOBS].bound, bound_bytes(&bounds[i]), "bounds of a list");
        op_same(x, score[0][i].votes, score[0][i + JOBS].votes, 4 * KV * N, "votes of a list");
        op_same(x, score[0][i].read, score[0][i + JOBS].read, 8, "bytes read by a list");
        op_same(x, mean[i].out, mean[i + JOBS].out, 4 * KV * N, "combinations of a list");
        op_same(x, best[i].idx, best[i + JOBS].idx, 4 * KV * N, "choices of a list");
    }
}

#define DIMS    OP_P(2, 6, 8, 16, 18, 32, 34, 64, 80, 96, 128, 250, 256)
#define GROUPS  OP_P(1, 2, 3, 4, 5, 6, 7, 8, 17)
#define LENGTHS OP_P(1, 2, 7, 16, 33, 40, 75, 130)

static const op_test tests[] = {
    {"mean queries", mean_queries, 39, 7, 41, {DIMS, GROUPS}},
    {"lists of jobs", jobs, 20, 5, 19, {OP_P(1, 7, 40, 700), OP_P(33, 2500), OP_P(2, 64, 1111), OP_P(0, 5, 60)}},
    {"heads combined",
     combine,
     189,
     7,
     41,
     {OP_P(GQA_MEAN_S, GQA_SUM_S, GQA_MAX_S, GQA_VOTE, GQA_LAYER_MEAN, GQA_LAYER_VOTE, GQA_LAYER_CONCAT), GROUPS,
      OP_P(1, 2, 7, 16, 33, 130, 257, 600, 2049), OP_P(1, 40, 900), OP_BOOL}},
    {"votes", votes, 4, 1, 3, {OP_P(0, 1, 2, 3)}},
    {"votes of 18 sequences", votes_of_many, 1, 1, 1, {OP_P(0)}},
    {"choose",
     choose,
     900,
     23,
     131,
     {OP_P(1, 2, 3, 15, 16, 17, 64, 100, 255, 300), KINDS, OP_P(0, 1, 2, 5, 33, -2, -1, 305, -400), OP_P(1, 1, 3, 16),
      OP_P(WHOLE, WHOLE, LAST, HEAD_TAIL, WINDOW, ALL_FORCED, NO_CANDIDATE), OP_P(1, 2, 3, 8)}},
    {"choose few of many",
     choose,
     40,
     5,
     0,
     {OP_P(900, 1500), KINDS, OP_P(1, 6, 31, 156), OP_P(1), OP_P(WHOLE, HEAD_TAIL, WINDOW), OP_P(1)}},
    {"choose of very many",
     choose,
     36,
     5,
     35,
     {OP_P(16384, 16385, 17408, 24577), KINDS, OP_P(1, 100, 2048, 16000, -1, 0), OP_P(1, 1, 5),
      OP_P(WHOLE, LAST, HEAD_TAIL, WINDOW, ALL_FORCED), OP_P(1, 2, 3)}},
    {"choose 2,048 of a million",
     choose,
     2,
     2,
     0,
     {OP_P(1000000), OP_P(0, 1), OP_P(2048), OP_P(1), OP_P(HEAD_TAIL), OP_P(1)}},
    {"choose among combined scores",
     choose_combined,
     36,
     3,
     9,
     {OP_BOOL, OP_P(1, 2, 3, 5), OP_P(16384, 16385, 16385, 24577), KINDS,
      OP_P(WHOLE, LAST, HEAD_TAIL, WINDOW, ALL_FORCED, NO_CANDIDATE), OP_P(0, 1, 100, 2048, 2048, 30000), OP_P(0, 1, 2),
      OP_P(GQA_VOTE, GQA_MEAN_S, GQA_VOTE, GQA_SUM_S, GQA_MAX_S)}},
    {"quest: bounds and means",
     quest,
     312,
     13,
     71,
     {DIMS, OP_P(1, 2, 3, 4, 8), OP_P(1, 2, 7, 16, 32), LENGTHS, OP_TYPES, OP_P(QUEST_SUM, QUEST_MEAN)}},
    {"scores of tokens become those of pages",
     page_reduce,
     90,
     7,
     41,
     {OP_P(1, 2, 5, 8), OP_P(1, 2, 7, 16, 40, 600), OP_P(1, 5, 16, 33, 130, 2049), OP_BOOL}},
    {"fier: one-bit keys",
     fier,
     260,
     13,
     89,
     {DIMS, GROUPS, OP_P(1, 7, 33, 60, 80), OP_TYPES, OP_P(1, 2, 7, 16, 32, 33, 64), OP_P(FIER_FLOAT), OP_P(0),
      OP_BOOL}},
    {"fier: products of 8 bits",
     fier,
     130,
     13,
     89,
     {DIMS, GROUPS, OP_P(1, 33, 60, 97), OP_TYPES, OP_P(1, 7, 16, 32, 33, 64), OP_P(FIER_INT8), OP_BOOL, OP_BOOL}},
    {"fier: votes in chunks",
     fier,
     9,
     4,
     0,
     {OP_P(16), OP_P(2, 3, 17), OP_P(4300), OP_TYPES, OP_P(32, 7, 2000), OP_BOOL, OP_P(0), OP_BOOL}},
    {"fier: whole numbers", fier_whole, 2, 1, 0, {OP_BOOL}},
    {"spans of items",
     spans,
     400,
     13,
     61,
     {OP_P(2, 16, 18, 64, 96, 128), OP_P(1, 4, 7, 16, 32), OP_P(1, 9, 60, 170, 250), OP_P(6, KV, 1), OP_TYPES, OP_BOOL,
      OP_P(0, 1, 2), OP_BOOL}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
