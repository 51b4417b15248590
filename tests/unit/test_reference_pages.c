/* SPDX-License-Identifier: MIT */
/* Quest's pages by mean keys and by FIER's estimates, against scripts/fixtures/reference/pages.py. */
#include "config.h"

#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#include "tests/unit/reference_select.h"

/* An index of the first n keys of k, added by ones and sixes. */
static quest_index means_of(backend *be, const st_tensor *k, size_t page)
{
    size_t heads = k->shape[0], n = k->shape[1], dim = k->shape[2], cap = (n + page - 1) / page;
    float *rows = by_token(k);
    quest_index x = {.type = type_of(k),
                     .n_kv_heads = heads,
                     .head_dim = dim,
                     .cap = cap,
                     .page = page,
                     .how = QUEST_MEAN,
                     .bound = at(hold(heads * cap * dim * dtype_size(type_of(k)))),
                     .sum = at(hold(4 * heads * dim))};
    for (size_t i = 0, step; i < n; i += step) {
        step = i % 2 ? 6 : 1;
        if (step > n - i) step = n - i;
        be->ops->quest->add(be, &(index_add_job){&x, (int64_t)i, at(rows + i * heads * dim), step}, 1);
    }
    return x;
}

static fier_index bits_of(backend *be, const st_tensor *k, size_t g)
{
    size_t heads = k->shape[0], n = k->shape[1], dim = k->shape[2], row = dim * dtype_size(type_of(k));
    fier_index x = {.type = type_of(k), .n_kv_heads = heads, .head_dim = dim, .cap = n, .group = g};
    x.bits = at(hold(4 * heads * ((n + 31) / 32) * fier_words(dim) * 32));
    x.levels = at(hold(2 * heads * ((n + g - 1) / g) * row));
    x.ring = at(hold(heads * g * row));
    be->ops->fier->add(be, &(index_add_job){&x, 0, at(by_token(k)), n}, 1);
    return x;
}

/* What scores pages: an index of means, or one of tokens and a reduction. */
typedef struct {
    quest_index means;
    fier_index bits;
    int64_t page, n, end; /* pages [0, end) are scored */
} source;

static void score_pages(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads)
{
    const source *s = ctx;
    const int64_t pages[] = {s->n, 0, s->end}, tokens[] = {s->n, 0, s->end * s->page};
    if (s->means.page) {
        score_job j = score_of_items(&s->means, score, stride, q, n_heads, pages, NULL);
        be->ops->quest->score(be, &j, 1);
        return;
    }
    size_t n = (size_t)s->n;
    float *est = hold(4 * n_heads * n);
    score_job j = score_of_items(&s->bits, est, n, q, n_heads, tokens, NULL);
    be->ops->fier->score(be, &j, 1);
    be->ops->select->page_reduce(be,
                                 &(page_reduce_job){.out = at(score),
                                                    .stride = stride,
                                                    .in = at(est),
                                                    .in_stride = n,
                                                    .n_heads = n_heads,
                                                    .items = items(pages),
                                                    .granule = s->page},
                                 1);
}

/* One mode of one source: scores and lists of the tensors `pre`. */
static void check_mode(backend *be, const source *s, const char *c, const char *pre, const char *mode, group *g)
{
    int32_t *par = ints("%s.par", c);
    const st_tensor *sel = tensor("%s.%s.b48", pre, mode);
    int64_t take = 48 / s->page > 3 ? 48 / s->page : 3;
    scored t = score_items(be, mode_of(mode), floats("%s.q", c), (size_t)par[0], (size_t)par[1], (size_t)par[3], s->n,
                           0, s->end, (size_t)s->end + 1, score_pages, s);
    group_note(g, scores_are(&t, 0, tensor("%s.%s.s", pre, mode)), "%s %s: scores", pre, mode);
    group_note(g, choice_is(be, &t, s->n, s->page, 0, s->end, s->end, take - 1, sel), "%s %s: pages", pre, mode);
}

static void check_case(backend *be, const char *c, int page, int g, group *means, group *est)
{
    static const char *const modes[] = {"vote", "per_q", "mean_q"};
    const st_tensor *k = tensor("%s.k", c), *mean = tensor("%s.p%d.mean", c, page);
    int64_t n = (int64_t)k->shape[1], end = (n + page - 1) / page - 1;
    source s = {.means = means_of(be, k, (size_t)page), .page = page, .n = n, .end = end};
    char pre[64];
    snprintf(pre, sizeof pre, "%s.p%d.mean", c, page);
    group_note(means, memcmp(s.means.bound.p, mean->data, mean->bytes) == 0, "%s: mean keys", pre);
    for (size_t m = 0; m < 3; m++) check_mode(be, &s, c, pre, modes[m], means);
    s.means.page = 0;
    s.bits = bits_of(be, k, (size_t)g);
    snprintf(pre, sizeof pre, "%s.p%d.g%d.mean", c, page, g);
    for (size_t m = 0; m < 3; m++) check_mode(be, &s, c, pre, modes[m], est);
}

static void test_pages(backend *be, const char *level)
{
    static const struct {
        const char *c;
        int page, g;
    } cases[] = {{"random", 16, 32}, {"random", 16, 4}, {"random", 4, 8}, {"wide", 8, 8}, {"wide", 3, 6}};
    group means = {0}, est = {0};
    fixture_open("pages");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(be, cases[i].c, cases[i].page, cases[i].g, &means, &est);
    group_end(&means, "pages by their mean key: keys, scores, lists", level);
    group_end(&est, "pages by estimates of their tokens: scores, lists", level);
    fixture_close();
}

/* methods.md 6.11: keys 1 3 | -2 2, a group of four, pages of two; a second channel that the query does not see. */
static void test_worked(backend *be, const char *level)
{
    float keys[] = {1, 0, 3, 0, -2, 0, 2, 0}, q[] = {1, 0}, est[4] = {0}, page[2] = {0}, bound[2] = {0};
    uint32_t bits[32] = {0};
    float levels[4] = {0}, ring[8] = {0}, pages[8] = {0};
    fier_index x = {.bits = at(bits),
                    .levels = at(levels),
                    .ring = at(ring),
                    .type = DT_F32,
                    .n_kv_heads = 1,
                    .head_dim = 2,
                    .cap = 4,
                    .group = 4};
    quest_index b = {.bound = at(pages), .type = DT_F32, .n_kv_heads = 1, .head_dim = 2, .cap = 2, .page = 2};
    const int64_t of_tokens[] = {4, 0, 4}, of_pages[] = {4, 0, 2};
    score_job tokens = score_of_items(&x, est, 4, q, 1, of_tokens, NULL),
              bounds = score_of_items(&b, bound, 2, q, 1, of_pages, NULL);
    be->ops->fier->add(be, &(index_add_job){&x, 0, at(keys), 4}, 1);
    be->ops->fier->score(be, &tokens, 1);
    page_reduce_job mean = {
        .out = at(page), .stride = 2, .in = at(est), .in_stride = 4, .n_heads = 1, .items = {4, 0, 2}, .granule = 2};
    be->ops->select->page_reduce(be, &mean, 1);
    be->ops->quest->add(be, &(index_add_job){&b, 0, at(keys), 4}, 1);
    be->ops->quest->score(be, &bounds, 1);
    ok(levels[0] == -2 && levels[2] == 3 && page[0] == 3 && page[1] == .5f && bound[0] == 3 && bound[1] == 2,
       "%s: the worked example: pages score %g and %g, their bounds are %g and %g", level, (double)page[0],
       (double)page[1], (double)bound[0], (double)bound[1]);
}

int main(void)
{
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        if (!be) continue;
        test_pages(be, level);
        test_worked(be, level);
        if (i) backend_close(be);
    }
    return tap_done();
}
