/* SPDX-License-Identifier: MIT */
/* Ops against the NumPy references of scripts/fixtures/reference, written apart from our code: the same positions, and
 * scores to 1e-5. */
#include "config.h"

#include "kernels/ops_block.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_pq.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"
#include "kernels/ref/ref.h"
#include "tests/unit/reference_select.h"

/* ---- scorers ---- */

static void quest_score(backend *be, float *score, size_t stride, const float *q, size_t n_heads, const quest_index *x,
                        const int64_t n[3], uint64_t *read)
{
    score_job j = score_of_items(x, score, stride, q, n_heads, n, read);
    be->ops->quest->score(be, &j, 1);
}

static void fier_score(backend *be, float *score, size_t stride, const float *q, size_t n_heads, const fier_index *x,
                       const int64_t n[3], uint64_t *read)
{
    score_job j = score_of_items(x, score, stride, q, n_heads, n, read);
    be->ops->fier->score(be, &j, 1);
}

/* score[h][i] = q_h . k_i in the order of ops_select.h, of rows in the host's memory. */
static void exact_scores(float *score, size_t stride, const float *q, size_t n_heads, const kv_rows *rows, size_t n)
{
    size_t per_kv = n_heads / rows->n_kv_heads, d = rows->head_dim;
    float k[256];
    for (size_t h = 0; h < n_heads; h++)
        for (size_t i = 0; i < n; i++) {
            ref_k_row(k, rows, h / per_kv, (int64_t)i);
            score[h * stride + i] = ref_dot16(q + h * d, k, d);
        }
}

/* ---- attention ---- */

static void attention_case(backend *be, group *g, const char *c)
{
    kv_rows rows = rows_of(tensor("%s.k", c), tensor("%s.v", c));
    size_t heads = tensor("%s.q", c)->shape[0];
    attn_job j = job_of(&rows, floats("%s.q", c), 1, heads);
    be->ops->attn_decode(be, &j, 1);
    group_note(g, near((float *)(void *)j.out.p, floats("%s.out", c), heads * rows.head_dim, TOL), "%s: out", c);
    group_note(g, near((float *)(void *)j.lse.p, floats("%s.lse", c), heads, TOL), "%s: lse", c);
}

static void attention_lists(backend *be, group *g, const char *c)
{
    kv_rows rows = rows_of(tensor("random.k"), tensor("random.v"));
    size_t heads = tensor("random.q")->shape[0], width = tensor("%s.idx", c)->shape[1];
    int32_t *idx = ints("%s.idx", c);
    int64_t *range = hold(16 * rows.n_kv_heads);
    attn_job j = job_of(&rows, floats("random.q"), 1, heads);
    for (size_t l = 0; l < rows.n_kv_heads; l++)
        for (size_t i = 0; i < width && idx[l * width + i] >= 0; i++) range[2 * l + 1]++;
    j.idx = at(idx), j.range = at(range), j.n_lists = rows.n_kv_heads, j.idx_stride = width, j.masked = false;
    be->ops->attn_decode(be, &j, 1);
    group_note(g, near((float *)(void *)j.out.p, floats("%s.out", c), heads * rows.head_dim, TOL), "%s: out", c);
    group_note(g, near((float *)(void *)j.lse.p, floats("%s.lse", c), heads, TOL), "%s: lse", c);
}

static void test_attention(backend *be, const char *level)
{
    static const char *const cases[] = {"random",      "constant", "dominant", "large", "one",
                                        "shared_mean", "group7",   "group1",   "wide"};
    group g = {0}, m = {0}, p = {0};
    fixture_open("attention");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) attention_case(be, &g, cases[i]);
    attention_lists(be, &g, "lists");
    attention_lists(be, &g, "lists_empty");
    group_end(&g, "attention and its log-sum-exp", level);

    const st_tensor *parts = tensor("merge.seg_out");
    size_t heads = parts->shape[1], dim = parts->shape[2];
    float *out = hold(4 * heads * dim), *lse = hold(4 * heads);
    be->ops->attn_merge(be, at(out), at(lse), at(floats_of(parts)), at(floats("merge.seg_lse")), parts->shape[0], heads,
                        dim);
    group_note(&m, near(out, floats("merge.out"), heads * dim, TOL) && near(lse, floats("merge.lse"), heads, TOL),
               "merge");
    group_end(&m, "merge of segments", level);

    kv_rows rows = rows_of(tensor("prefill.k"), tensor("prefill.v"));
    size_t n_tok = tensor("prefill.q")->shape[0];
    heads = tensor("prefill.q")->shape[1];
    for (int64_t band = 0; band <= 5; band += 5) {
        const char *c = band ? "prefill_window5" : "prefill";
        attn_job j = job_of(&rows, floats("prefill.q"), n_tok, heads);
        j.band = band;
        be->ops->attn_prefill(be, &j);
        group_note(&p, near((float *)(void *)j.out.p, floats("%s.out", c), n_tok * heads * rows.head_dim, TOL),
                   "%s: out", c);
        group_note(&p, near((float *)(void *)j.lse.p, floats("%s.lse", c), n_tok * heads, TOL), "%s: lse", c);
    }
    group_end(&p, "causal prompt, windowed prompt", level);
    fixture_close();
}

/* ---- combinations and choices ---- */

static void score_exact(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads)
{
    const kv_rows *rows = ctx;
    (void)be;
    exact_scores(score, stride, q, n_heads, rows, rows->cap);
}

static void test_gqa(backend *be, const char *level)
{
    group g = {0}, h = {0};
    char c[16], mode[16];
    fixture_open("gqa");
    for (size_t i = 0; i < st_count(fixture); i++) {
        if (sscanf(st_at(fixture, i)->name, "%15[^.].%15[^.]", c, mode) != 2 || mode_of(mode) == GQA_COUNT) continue;
        if (strlen(c) + strlen(mode) + 1 != strlen(st_at(fixture, i)->name)) continue; /* the choice, below */
        kv_rows rows = rows_of(tensor("%s.k", c), tensor("%s.k", c));
        int32_t *par = ints("%s.par", c);
        int64_t n = par[2], end = par[4];
        scored s = score_items(be, mode_of(mode), floats("%s.q", c), (size_t)par[0], (size_t)par[1], (size_t)par[3], n,
                               0, end, (size_t)n, score_exact, &rows);
        group_note(&g, scores_are(&s, 0, st_at(fixture, i)), "%s %s", c, mode);
        float *raw = floats("%s.raw", c);
        for (int k = 0; mode_of(mode) == GQA_PER_Q && k < par[0]; k++)
            group_note(&g, near(s.raw + (size_t)k * s.stride, raw + k * n, (size_t)n, TOL), "%s: q.k of head %d", c, k);
        if (has("%s.%s.sel", c, mode))
            group_note(&h, choice_is(be, &s, n, 1, 0, end, n, par[5], tensor("%s.%s.sel", c, mode)), "%s %s", c, mode);
    }
    group_end(&g, "combinations of heads: scores", level);
    group_end(&h, "combinations of heads: choice", level);
    fixture_close();
}

/* ---- quest ---- */

typedef struct {
    quest_index x;
    int64_t n, n_pages;
} pages;

static void score_pages(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads)
{
    const pages *p = ctx;
    quest_score(be, score, stride, q, n_heads, &p->x, (int64_t[]){p->n, 0, p->n_pages}, NULL);
}

/* Bounds of the first n tokens, added by twos and threes. */
static pages pages_build(backend *be, const st_tensor *k, int64_t n, int64_t page)
{
    size_t heads = k->shape[0], dim = k->shape[2], cap = (size_t)((n + page - 1) / page);
    float *rows = by_token(k);
    pages p = {{at(hold(2 * heads * cap * dim * dtype_size(type_of(k)))),
                type_of(k),
                heads,
                dim,
                cap,
                (size_t)page,
                QUEST_SUM,
                {NULL}},
               n,
               (int64_t)cap};
    for (int64_t i = 0, step; i < n; i += step) {
        step = n - i < 2 + i % 2 ? n - i : 2 + i % 2;
        be->ops->quest->add(be, &(index_add_job){&p.x, i, at(rows + (size_t)i * heads * dim), (size_t)step}, 1);
    }
    return p;
}

static bool bounds_are(const pages *p, const st_tensor *max, const st_tensor *min)
{
    size_t row = p->x.head_dim * dtype_size(p->x.type);
    for (size_t i = 0; i < p->x.n_kv_heads * p->x.cap; i++)
        if (memcmp(p->x.bound.p + 2 * i * row, max->data + i * row, row) != 0 ||
            memcmp(p->x.bound.p + (2 * i + 1) * row, min->data + i * row, row) != 0)
            return false;
    return true;
}

static void test_quest(backend *be, const char *level)
{
    group b = {0}, s = {0}, sel = {0};
    char c[16], form[8], mode[16];
    int page, budget, least, used;
    fixture_open("quest");
    for (size_t i = 0; i < st_count(fixture); i++) {
        const char *name = st_at(fixture, i)->name;
        if (sscanf(name, "%15[^.].p%d.n%d.max", c, &page, &used) == 3 && strstr(name, ".max")) {
            pages p = pages_build(be, tensor("%s.k", c), used, page);
            group_note(&b, bounds_are(&p, st_at(fixture, i), tensor("%s.p%d.n%d.min", c, page, used)), "%s", name);
        }
        if (sscanf(name, "%15[^.].p%d.%7[^.].%15[^.].b%d.m%d", c, &page, form, mode, &budget, &least) != 6) continue;
        int32_t *par = ints("%s.par", c);
        pages p = pages_build(be, tensor("%s.k", c), par[2], page);
        int64_t end = p.n_pages - 1, take = budget / page > least ? budget / page : least;
        if (has("%s.p%d.max", c, page))
            group_note(&b, bounds_are(&p, tensor("%s.p%d.max", c, page), tensor("%s.p%d.min", c, page)), "%s", name);
        p.x.how = strcmp(form, "maxch") == 0 ? QUEST_MAXCH : QUEST_SUM;
        scored t = score_items(be, mode_of(mode), floats("%s.q", c), (size_t)par[0], (size_t)par[1], (size_t)par[3],
                               p.n, 0, end, (size_t)p.n_pages, score_pages, &p);
        if (mode_of(mode) != GQA_MEAN_Q && has("%s.p%d.%s", c, page, form)) {
            float *want = floats("%s.p%d.%s", c, page, form);
            for (int h = 0; h < par[0]; h++)
                group_note(&s, near(t.raw + (size_t)h * t.stride, want + h * p.n_pages, (size_t)p.n_pages, TOL),
                           "%s raw", name);
        }
        if (has("%s.p%d.%s.%s", c, page, form, mode))
            group_note(&s, scores_are(&t, 0, tensor("%s.p%d.%s.%s", c, page, form, mode)), "%s", name);
        if (end > 0) /* a single page is no choice: the one list of the fixture stands for all */
            group_note(&sel, choice_is(be, &t, p.n, page, 0, end, end, take - 1, st_at(fixture, i)), "%s", name);
    }
    group_end(&b, "quest: bounds of pages", level);
    group_end(&s, "quest: scores of pages", level);
    group_end(&sel, "quest: pages chosen", level);
    fixture_close();
}

/* ---- fier ---- */

static void score_fier(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads)
{
    const fier_index *x = ctx;
    int64_t n = (int64_t)x->cap;
    fier_score(be, score, stride, q, n_heads, x, (int64_t[]){n, 0, n}, NULL);
}

/* Index of the first n tokens, added by ones and fives. */
static fier_index fier_build(backend *be, const st_tensor *k, size_t n, size_t g, fier_levels how, fier_open open)
{
    size_t heads = k->shape[0], dim = k->shape[2], row = dim * dtype_size(type_of(k));
    float *rows = by_token(k);
    fier_index x = {
        .type = type_of(k), .n_kv_heads = heads, .head_dim = dim, .cap = n, .group = g, .how = how, .open = open};
    x.bits = at(hold(4 * heads * ((n + 31) / 32) * fier_words(dim) * 32));
    x.levels = at(hold(2 * heads * ((n + g - 1) / g) * row));
    x.ring = at(hold(heads * g * row));
    for (size_t i = 0, step; i < n; i += step) {
        step = i % 2 ? 5 : 1;
        if (step > n - i) step = n - i;
        be->ops->fier->add(be, &(index_add_job){&x, (int64_t)i, at(rows + i * heads * dim), step}, 1);
    }
    return x;
}

/* Levels to a rounding, bits exactly. bits NULL: levels only. */
static bool fier_is(const fier_index *x, const st_tensor *lo, const st_tensor *hi, const st_tensor *bits)
{
    size_t row = x->head_dim, groups = x->n_kv_heads * lo->shape[1];
    float *want[2] = {floats_of(lo), floats_of(hi)}, *got = hold(4 * row);
    bool good = true;
    for (size_t i = 0; i < 2 * groups; i++) {
        for (size_t c = 0; c < row; c++)
            if (x->type == DT_F32) memcpy(got + c, x->levels.p + 4 * (i * row + c), 4);
            else got[c] = f16_to_f32(((uint16_t *)(void *)x->levels.p)[i * row + c]);
        good &= near(got, want[i % 2] + i / 2 * row, row, x->how == FIER_RANGE ? 0 : 1e-6);
    }
    size_t chunks = (x->cap + 31) / 32, bytes = (row + 7) / 8;
    for (size_t h = 0; bits && h < x->n_kv_heads; h++)
        for (size_t t = 0; t < x->cap; t++)
            for (size_t c = 0; c < row; c++) {
                const uint32_t *w = (const uint32_t *)(const void *)x->bits.p;
                uint32_t word = w[((h * chunks + t / 32) * fier_words(row) + c / 32) * 32 + t % 32];
                good &= (word >> c % 32 & 1) == (uint32_t)(bits->data[(h * x->cap + t) * bytes + c / 8] >> c % 8 & 1);
            }
    return good;
}

static bool estimates_are(backend *be, const fier_index *x, const char *c, const char *prefix)
{
    const st_tensor *est = tensor("%s.est", prefix);
    size_t heads = est->shape[0], n = est->shape[1];
    float *got = hold(4 * heads * n), *want = floats_of(est);
    bool good = n == x->cap;
    score_fier(be, x, got, n, floats("%s.q", c), heads);
    for (size_t h = 0; h < heads; h++) good &= near(got + h * n, want + h * n, n, TOL);
    return good;
}

static void fier_one(backend *be, const char *name, group *e, group *s, group *sel)
{
    char c[16], levels[16], mode[16], prefix[64];
    int g, n, k, sink = 0, recent = 1, used = 0;
    if (sscanf(name, "%15[^.].g%d.n%d.est%n", c, &g, &n, &used) == 3 && used) { /* state of a prefix */
        fier_index x = fier_build(be, tensor("%s.k", c), (size_t)n, (size_t)g, FIER_RANGE, FIER_REQUANT);
        snprintf(prefix, sizeof prefix, "%s.g%d.n%d", c, g, n);
        group_note(
            e, estimates_are(be, &x, c, prefix) && fier_is(&x, tensor("%s.lo", prefix), tensor("%s.hi", prefix), NULL),
            "%s", prefix);
        return;
    }
    if (sscanf(name, "%15[^.].g%d.%15[^.].%n", c, &g, levels, &used) != 3 || levels[0] == 'n') return;
    const char *rest = name + used;
    int32_t *par = ints("%s.par", c);
    fier_open open = strstr(levels, "_exact") ? FIER_EXACT : strstr(levels, "_window") ? FIER_WINDOW : FIER_REQUANT;
    fier_levels how = strcmp(levels, "mad") == 0        ? FIER_MAD
                      : strcmp(levels, "two_mean") == 0 ? FIER_TWO_MEAN
                                                        : FIER_RANGE;
    fier_index x = fier_build(be, tensor("%s.k", c), (size_t)par[2], (size_t)g, how, open);
    snprintf(prefix, sizeof prefix, "%s.g%d.%s", c, g, levels);
    if (strcmp(rest, "est") == 0) group_note(e, estimates_are(be, &x, c, prefix), "%s", name);
    if (strcmp(rest, "lo") == 0)
        group_note(e, fier_is(&x, tensor("%s.lo", prefix), tensor("%s.hi", prefix), tensor("%s.bits", prefix)),
                   "%s levels and bits", prefix);
    if (sscanf(rest, "%15[^.].k%d.sink%d.recent%d", mode, &k, &sink, &recent) < 2) return;
    int64_t end = par[2] - recent;
    scored t = score_items(be, mode_of(mode), floats("%s.q", c), (size_t)par[0], (size_t)par[1], (size_t)par[3], par[2],
                           sink, end, (size_t)par[2], score_fier, &x);
    if (sink == 0) group_note(s, scores_are(&t, 0, tensor("%s.%s", prefix, mode)), "%s", name);
    group_note(sel, choice_is(be, &t, par[2], 1, sink, end, end, k - sink - recent, tensor("%s", name)), "%s", name);
}

static void test_fier(backend *be, const char *level)
{
    group e = {0}, s = {0}, sel = {0};
    fixture_open("fier");
    for (size_t i = 0; i < st_count(fixture); i++) fier_one(be, st_at(fixture, i)->name, &e, &s, &sel);
    group_end(&e, "fier: levels, bits, estimates", level);
    group_end(&s, "fier: combined estimates", level);
    group_end(&sel, "fier: tokens chosen", level);
    fixture_close();
}

/* ---- pqcache ---- */

static void score_pq(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads)
{
    const pq_index *x = ctx;
    int64_t n = (int64_t)x->cap;
    score_job j = score_of_items(x, score, stride, q, n_heads, (int64_t[]){n, 0, n}, NULL);
    be->ops->pq->score(be, &j, 1);
}

/* Codes of all keys, added by ones and fives. */
static pq_index pq_build(backend *be, const char *c, const int32_t *par)
{
    size_t heads = (size_t)par[1], n = (size_t)par[2], dim = (size_t)par[3];
    float *rows = by_token(tensor("%s.k", c));
    pq_index x = {.centroid = at(copy_of(tensor("%s.centroid", c))),
                  .type = DT_F16,
                  .n_kv_heads = heads,
                  .head_dim = dim,
                  .cap = n,
                  .parts = (size_t)par[4],
                  .bits = (size_t)par[5],
                  .trained = (int64_t)n};
    x.code = at(hold(heads * n * x.parts));
    for (size_t i = 0, step; i < n; i += step) {
        step = i % 2 ? 5 : 1;
        if (step > n - i) step = n - i;
        be->ops->pq->add(be, &(index_add_job){&x, (int64_t)i, at(rows + i * heads * dim), step}, 1);
    }
    return x;
}

static void pq_case(backend *be, const char *c, group *s, group *sel)
{
    static const char *const modes[] = {"vote", "per_q", "mean_q", "max_s", "sum_s"};
    const int32_t *par = ints("%s.par", c);
    size_t heads = (size_t)par[0], n = (size_t)par[2];
    pq_index x = pq_build(be, c, par);
    const st_tensor *code = tensor("%s.code", c);
    float *est = hold(4 * heads * n), *want = floats("%s.est", c);
    score_pq(be, &x, est, n, floats("%s.q", c), heads);
    group_note(s, memcmp(x.code.p, code->data, code->bytes) == 0, "%s: codes", c);
    for (size_t h = 0; h < heads; h++) group_note(s, near(est + h * n, want + h * n, n, TOL), "%s, head %zu", c, h);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        if (!has("%s.%s", c, modes[m])) continue;
        int64_t lo = par[6], hi = par[2] - par[7];
        scored t = score_items(be, mode_of(modes[m]), floats("%s.q", c), heads, x.n_kv_heads, x.head_dim, par[2], lo,
                               hi, n, score_pq, &x);
        group_note(s, scores_are(&t, lo, tensor("%s.%s", c, modes[m])), "%s, %s", c, modes[m]);
        group_note(sel, choice_is(be, &t, par[2], 1, lo, hi, hi, par[8], tensor("%s.%s.sel", c, modes[m])), "%s, %s", c,
                   modes[m]);
    }
}

static void test_pq(backend *be, const char *level)
{
    static const char *const cases[] = {"random.m4.b4", "random.m2.b2", "dominant.m1.b5"};
    group s = {0}, sel = {0};
    fixture_open("pq");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) pq_case(be, cases[i], &s, &sel);
    group_end(&s, "pqcache: codes and scores", level);
    group_end(&sel, "pqcache: tokens chosen", level);
    fixture_close();
}

/* ---- paris ---- */

static const int64_t TAUS[] = {5, 15, 30, 50, 75, 100};

/* Best `take` of the estimates of the candidates, ascending. */
static void best_of(const float *est, const int32_t *cand, size_t n, size_t take, int32_t *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        size_t before = 0;
        for (size_t j = 0; j < n; j++) before += est[j] > est[i] || (est[j] == est[i] && j < i);
        if (before < take) out[m++] = cand[i];
    }
}

static bool codes_are(const paris_index *x, const char *c)
{
    const st_tensor *w = tensor("%s.w", c), *codes = tensor("%s.codes", c);
    size_t nb = paris_subspaces(x->head_dim);
    bool good = memcmp(x->id.p, tensor("%s.ids", c)->data, tensor("%s.ids", c)->bytes) == 0;
    for (size_t row = 0; row < x->n_kv_heads * x->cap; row++) {
        const unsigned char *code = x->code.p + row * nb * PARIS_CODE;
        good &= memcmp(code, w->data + 2 * row * nb, 2 * nb) == 0;
        for (size_t e = 0; e < 8 * nb; e++) { /* 3 bits of magnitude; the sign is in the id */
            const unsigned char *b = code + 2 * nb + 3 * (e / 8);
            unsigned bins = b[0] | (unsigned)b[1] << 8 | (unsigned)b[2] << 16;
            unsigned want = codes->data[(row * 8 * nb + e) / 2] >> (e % 2 * 4) & 15;
            good &= (bins >> 3 * (e % 8) & 7) == (want & 7) && (x->id.p[row * nb + e / 8] >> e % 8 & 1) == want >> 3;
        }
    }
    return good;
}

/* Reranking by all query heads: votes among the candidates. */
static void paris_votes(backend *be, const char *c, const paris_index *x, float *q, size_t heads, const int32_t *cand,
                        size_t m, group *g)
{
    size_t dp = paris_dim(x->head_dim), lists = x->n_kv_heads, take = tensor("%s.sel_vote", c)->shape[1];
    float *y = hold(4 * heads * dp), *norm = hold(4 * heads), *est = hold(4 * heads * m), *votes = hold(4 * lists * m);
    float *all = has("%s.est_head", c) ? floats("%s.est_head", c) : NULL, *w = hold(4 * m);
    int32_t *sel = hold(4 * take), *chosen = ints("%s.sel_vote", c);
    be->ops->paris->query(be, at(y), at(norm), at(q), heads, x);
    be->ops->paris->estimate(be, at(est), x, at(y), at(norm), heads, at(cand), m, (int64_t)m, (buf){NULL});
    for (size_t h = 0; all && h < heads; h++) {
        for (size_t i = 0; i < m; i++) w[i] = all[h * x->cap + (size_t)cand[h / (heads / lists) * m + i]];
        group_note(g, near(est + h * m, w, m, TOL), "%s: estimates of head %zu", c, h);
    }
    combine(be, votes, est, m, heads, lists, (int64_t[]){(int64_t)m, 0, (int64_t)m}, GQA_VOTE,
            (float)(1 / sqrt((double)x->head_dim)));
    for (size_t h = 0; h < lists; h++) {
        best_of(votes + h * m, cand + h * m, m, take, sel);
        group_note(g, memcmp(sel, chosen + h * take, 4 * take) == 0, "%s: tokens chosen by vote", c);
    }
}

static void paris_case(backend *be, const char *c, const char *input, group *g)
{
    const paris_ops *p = be->ops->paris;
    int32_t *par = ints("%s.par", c);
    size_t heads = (size_t)par[0], kv_heads = (size_t)par[1], n = (size_t)par[2], dim = (size_t)par[3];
    size_t dp = paris_dim(dim), nb = dp / 8, m = tensor("%s.cand", c)->shape[1], per = heads / kv_heads;
    float *q = floats("%s.q", input), *sign = hold(4 * 2 * dp), *mean = hold(4 * kv_heads * dim);
    int32_t *signs = ints("signs");
    for (size_t i = 0; i < 2 * dp; i++) sign[i] = (float)signs[i];
    kv_rows rows = rows_of(tensor("%s.k", input), tensor("%s.k", input));
    paris_index x = {.n_kv_heads = kv_heads, .head_dim = dim, .cap = n, .rounds = (size_t)par[7], .alpha = true};
    x.id = at(hold(kv_heads * n * nb)), x.code = at(hold(kv_heads * n * nb * PARIS_CODE)), x.sign = at(sign);
    x.count = at(hold(4 * kv_heads * nb * PARIS_PATTERNS)), x.counted = I64(0, 0);
    slot_range range = {0, (int64_t)n};
    if (par[8]) x.mean = at(mean), p->mean(be, &x, &rows, range);
    p->encode(be, &x, &rows, range);
    group_note(g, codes_are(&x, c), "%s: codes", c);

    const st_tensor *turned = tensor("%s.x", c); /* [kv_heads][some][dp]: keys rotated as queries are */
    for (size_t h = 0, some = turned->shape[1]; !par[8] && h < kv_heads; h++) {
        float *x_got = hold(4 * some * dp), *lengths = hold(4 * some);
        p->query(be, at(x_got), at(lengths), at(floats("%s.k", input) + h * n * dim), some, &x);
        group_note(g, near(x_got, floats_of(turned) + h * some * dp, some * dp, TOL), "%s: rotation", c);
    }

    float *probe = hold(4 * kv_heads * dim), *y = hold(4 * kv_heads * dp), *norm = hold(4 * kv_heads),
          *est = hold(4 * kv_heads * m);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < dim; i++) probe[h / per * dim + i] += q[h * dim + i] / (float)per;
    p->query(be, at(y), at(norm), at(probe), kv_heads, &x);
    group_note(g, near(y, floats("%s.y", c), kv_heads * dp, TOL), "%s: probe", c);
    p->count(be, &x, range, (buf){NULL});
    int64_t limit[PARIS_LEVELS];
    for (int i = 0; i < PARIS_LEVELS; i++) limit[i] = ((int64_t)n * par[4] * TAUS[i] + 9999) / 10000;
    unsigned char *bonus = hold(kv_heads * nb * PARIS_PATTERNS), *score = hold(kv_heads * n);
    p->bonus(be, at(bonus), &x, at(y), limit, PARIS_LEVELS, (buf){NULL});
    if (has("%s.bonus", c))
        group_note(g, memcmp(bonus, tensor("%s.bonus", c)->data, kv_heads * nb * PARIS_PATTERNS) == 0, "%s: bonus", c);
    p->collide(be, at(score), n, &x, at(bonus), range, (buf){NULL});
    int32_t *want = ints("%s.score", c), *cand = hold(4 * kv_heads * m);
    bool good = true;
    for (size_t i = 0; i < kv_heads * n; i++) good &= score[i] == want[i];
    group_note(g, good, "%s: collisions", c);
    p->candidates(be, at(cand), m, at(score), n, kv_heads, range, (int64_t)m);
    group_note(g, memcmp(cand, tensor("%s.cand", c)->data, 4 * kv_heads * m) == 0, "%s: candidates", c);

    p->estimate(be, at(est), &x, at(y), at(norm), kv_heads, at(cand), m, (int64_t)m, (buf){NULL});
    float *all = floats("%s.est", c), *w = hold(4 * m);
    size_t take = tensor("%s.sel", c)->shape[1];
    int32_t *sel = hold(4 * take), *chosen = ints("%s.sel", c);
    for (size_t h = 0; h < kv_heads; h++) {
        for (size_t i = 0; i < m; i++) w[i] = all[h * n + (size_t)cand[h * m + i]];
        group_note(g, near(est + h * m, w, m, TOL), "%s: estimates", c);
        best_of(est + h * m, cand + h * m, m, take, sel);
        group_note(g, memcmp(sel, chosen + h * take, 4 * take) == 0, "%s: tokens chosen", c);
    }
    if (be->ops->select) paris_votes(be, c, &x, q, heads, cand, m, g);
}

static void test_paris(backend *be, const char *level)
{
    static const char *const cases[][2] = {
        {"d64", "d64"},           {"d80", "d80"},          {"d128", "d128"},         {"constant", "constant"},
        {"dominant", "dominant"}, {"large", "large"},      {"one", "one"},           {"shared_mean", "shared_mean"},
        {"one_hot", "one_hot"},   {"rounds2", "dominant"}, {"center", "shared_mean"}};
    group g = {0};
    fixture_open("paris");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) paris_case(be, cases[i][0], cases[i][1], &g);
    group_end(&g, "paris: codes, collisions, candidates, estimates, tokens chosen", level);
    fixture_close();
}

/* ---- actqkv ---- */

static void stats_case(backend *be, const char *c, group *g)
{
    const st_tensor *t = tensor("stats.%s.q", c);
    size_t dim = t->shape[1] * t->shape[2], windows = tensor("stats.%s.sizes", c)->shape[0], n = 0;
    float *q = floats_of(t), *mean = hold(4 * dim), *m2 = hold(4 * dim), *w = hold(4 * t->shape[0]),
          *probe = hold(4 * dim);
    float *means = floats("stats.%s.mean", c), *vars = floats("stats.%s.var", c), *probes = floats("stats.%s.probe", c);
    float *want = floats("stats.%s.w", c);
    int32_t *sizes = ints("stats.%s.sizes", c);
    for (size_t i = 0; i < windows; i++) {
        size_t m = (size_t)sizes[i];
        be->ops->block->moments(be, at(mean), at(m2), n, at(q + n * dim), m, dim);
        n += m;
        be->ops->block->probe(be, at(probe), at(w), at(q + (n - m) * dim), m, dim, at(mean), at(m2), n);
        group_note(g, near(mean, means + i * dim, dim, TOL), "%s window %zu: mean", c, i);
        for (size_t k = 0; k < dim; k++) vars[i * dim + k] *= (float)(n - 1);
        group_note(g, near(m2, vars + i * dim, dim, TOL), "%s window %zu: variance", c, i);
        group_note(g, near(w, want + n - m, m, TOL), "%s window %zu: weights", c, i);
        group_note(g, near(probe, probes + i * dim, dim, TOL), "%s window %zu: probe", c, i);
    }
}

static void blocks_case(backend *be, const char *c, group *g)
{
    int32_t *par = ints("blocks.%s.par", c), *sel[2] = {ints("blocks.%s.sel", c), ints("blocks.%s.sel_head", c)};
    size_t heads = (size_t)par[0], n = (size_t)par[2], size = (size_t)par[3], dim = (size_t)par[4],
           take = (size_t)par[5];
    kv_rows rows = rows_of(tensor("blocks.%s.k", c), tensor("blocks.%s.k", c));
    float *keys = floats("blocks.%s.k", c), *rep = hold(4 * n * heads * dim), *score = hold(4 * n);
    rows.k = at(keys), rows.type = DT_F32;
    block_index x = {at(rep), DT_F32, heads, rows.n_kv_heads, dim, n, size, size < 4 ? size : 4, false};
    band_mass mass = {.mass = at(floats("blocks.%s.mass", c)), .n_heads = heads, .ring = n * size};
    be->ops->block->form(be, &x, &rows, &mass, 0, (int64_t)n, 0);
    group_note(g, near(rep, floats("blocks.%s.reps", c), n * heads * dim, TOL), "%s: representatives", c);
    int32_t *each = hold(4 * n), *got = hold(4 * n);
    for (size_t i = 0; i < n; i++) each[i] = (int32_t)i;
    for (int k = 0; k < 2; k++) {
        be->ops->block->score(be, at(score), at(floats("blocks.%s.probe", c)), &x, k ? heads : 1,
                              (item_range){(int64_t)n, 0, (int64_t)n}, (buf){(unsigned char *)hold(8)});
        group_note(g, near(score, k ? floats("blocks.%s.cos_head", c) : floats("blocks.%s.cos", c), n, TOL),
                   "%s: cosines", c);
        best_of(score, each, n, take, got);
        group_note(g, memcmp(got, sel[k], 4 * take) == 0, "%s: blocks chosen", c);
    }
}

/* What six queries give the keys of their band, alone and beside far keys. */
static void mass_case(backend *be, group *g)
{
    kv_rows rows = rows_of(tensor("mass.k"), tensor("mass.k")),
            beyond = rows_of(tensor("mass.k_far"), tensor("mass.k_far"));
    size_t n_tok = tensor("mass.q")->shape[0], heads = tensor("mass.q")->shape[1], n = rows.cap;
    attn_job j = job_of(&rows, floats("mass.q"), n_tok, heads), f = job_of(&beyond, floats("mass.q_far"), n_tok, heads);
    j.band = ints("mass.band")[0], f.qpos.p = NULL, f.masked = false;
    be->ops->attn_prefill(be, &j);
    be->ops->attn_prefill(be, &f);
    size_t rows_n = n_tok * heads, bytes = 4 * rows_n * rows.head_dim;
    float *parts = hold(2 * bytes), *lses = hold(8 * rows_n), *out = hold(bytes), *lse = hold(4 * rows_n);
    memcpy(parts, j.out.p, bytes), memcpy((char *)parts + bytes, f.out.p, bytes);
    memcpy(lses, j.lse.p, 4 * rows_n), memcpy(lses + rows_n, f.lse.p, 4 * rows_n);
    be->ops->attn_merge(be, at(out), at(lse), at(parts), at(lses), 2, rows_n, rows.head_dim);
    float *sum = hold(4 * heads * n);
    be->ops->evict->colsum(be, &j, heads, COMBINE_MEAN, false, at(sum), n);
    group_note(g, near(sum, floats("mass.near"), heads * n, TOL), "band mass, band alone");
    j.lse = at(lse);
    be->ops->evict->colsum(be, &j, heads, COMBINE_MEAN, false, at(sum), n);
    group_note(g, near(sum, floats("mass.joint"), heads * n, TOL), "band mass beside far keys");
}

static void pool_case(backend *be, const char *c, group *g)
{
    const st_tensor *t = tensor("pool.%s.score", c);
    size_t steps = t->shape[0], layers = t->shape[1], n = t->shape[2];
    int64_t nominal = ints("pool.%s.nominal", c)[0], *pool = hold(8), *k = hold(8);
    int32_t *want = ints("pool.%s.blocks", c);
    float *score = floats_of(t), *theta = hold(4 * layers), *entropy = floats("pool.%s.theta", c);
    entropy_pool p = {at(theta), at(hold(8 * layers)), at(hold(8)), at(pool), 7 * nominal / 10, 2 * nominal, layers};
    for (size_t s = 0; s < steps; s++) {
        *pool = nominal * (int64_t)layers;
        for (size_t l = 0; l < layers; l++) {
            item_scores scores = {at(score + (s * layers + l) * n), 1, n, {(int64_t)n, 0, (int64_t)n}};
            be->ops->block->take(be, &p, 0, l, &scores, 1, at(k));
            group_note(g, *k == want[s * layers + l], "%s step %zu layer %zu: %d blocks, not %d", c, s, l, (int)*k,
                       want[s * layers + l]);
        }
        group_note(g, near(theta, entropy + s * layers, layers, TOL), "%s step %zu: entropies", c, s);
        be->ops->block->close_pools(be, &p, 1);
    }
}

static void test_actqkv(backend *be, const char *level)
{
    static const char *const stats[] = {"random", "offset", "dominant", "equal", "one", "gqa7"};
    static const char *const pools[] = {"random", "tenfold", "few", "one", "flat"};
    static const char *const blocks[] = {"random", "tie", "small", "zero", "dominant", "same"};
    group s = {0}, b = {0}, m = {0}, p = {0};
    fixture_open("actqkv");
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) stats_case(be, stats[i], &s);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) blocks_case(be, blocks[i], &b);
    group_end(&s, "actqkv: statistics, weights, probes", level);
    group_end(&b, "actqkv: representatives, cosines, blocks chosen", level);
    if (be->ops->evict) mass_case(be, &m), group_end(&m, "actqkv: mass of the band", level);
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) pool_case(be, pools[i], &p);
    group_end(&p, "actqkv: entropies and budgets", level);
    fixture_close();
}

int main(void)
{
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        if (!be) continue;
        const backend_ops *o = be->ops;
        test_attention(be, level);
        if (o->select) test_gqa(be, level);
        else tap_skip("%s has no ops of selection", level);
        if (o->select && o->quest) test_quest(be, level);
        else tap_skip("%s has no ops of quest", level);
        if (o->select && o->fier) test_fier(be, level);
        else tap_skip("%s has no ops of fier", level);
        if (o->select && o->pq) test_pq(be, level);
        else tap_skip("%s has no ops of pqcache", level);
        if (o->paris) test_paris(be, level);
        else tap_skip("%s has no ops of pariskv", level);
        if (o->block) test_actqkv(be, level);
        else tap_skip("%s has no ops of actqkv", level);
        if (i) backend_close(be);
    }
    return tap_done();
}
