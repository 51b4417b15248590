/* SPDX-License-Identifier: MIT */
/* Scores and choice by groups of items against those of all items: quest's pages, fier's tokens; and the bounds of a
 * group against those of its pages. */
#include "config.h"

#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#include "tests/unit/ops_util.h"

enum { KV = 2, N_MOST = 250, MOST = N_MOST + 2 * 40, LISTS = 8 }; /* places: groups that stick out on both sides */

static backend *ref;

/* Either index, over the same keys. */
typedef struct {
    bool is_fier, max_channel;
    quest_index pages;
    fier_index ones;
    int64_t n, items; /* tokens, items */
} any_index;

static size_t bytes_of(const any_index *x, int64_t a, int64_t b)
{
    const int64_t n[3] = {x->n, a, b};
    if (x->is_fier) return fier_head_bytes(&x->ones, n);
    return (size_t)(b - a) * 2 * x->pages.head_dim * dtype_size(x->pages.type);
}

static void make_index(any_index *x, rng *r, dtype t, size_t dim, size_t page, int kind)
{
    size_t cap = (size_t)x->n + 3, words = (cap + 31) / 32 * 32 * fier_words(dim);
    float *k = random_f32(r, (size_t)x->n * KV * dim);
    int64_t zero = 0;
    x->is_fier = kind > 0;
    x->pages = (quest_index){.type = t, .n_kv_heads = KV, .head_dim = dim, .page = page, .cap = cap};
    x->ones = (fier_index){.type = t, .n_kv_heads = KV, .head_dim = dim, .group = page, .cap = cap,
                           .open = (fier_open)(kind % 3), .products = (fier_products)(kind % 2)};
    x->items = x->is_fier ? x->n : (x->n + (int64_t)page - 1) / (int64_t)page;
    x->pages.bound = at(calloc(KV * cap * 2 * dim, 4));
    x->ones.bits = at(calloc(KV * words, 4));
    x->ones.levels = at(calloc(KV * cap * 2 * dim, 4));
    x->ones.ring = at(calloc(KV * page * dim, 4));
    ref->ops->quest->add(ref, &x->pages, at(&zero), at(k), (size_t)x->n);
    ref->ops->fier->add(ref, &x->ones, at(&zero), at(k), (size_t)x->n);
    free(k);
}

static void free_index(any_index *x)
{
    free(x->pages.bound.p), free(x->ones.bits.p), free(x->ones.levels.p), free(x->ones.ring.p);
}

static void score_all(backend *be, const any_index *x, float *out, const float *q, size_t heads, int64_t *n)
{
    if (x->is_fier) be->ops->fier->score(be, at(out), MOST, at(q), heads, &x->ones, at(n), n[2], (buf){NULL});
    else
        be->ops->quest->score(be, at(out), MOST, at(q), heads, &x->pages, at(n), n[2], x->max_channel, (buf){NULL});
}

static void score_groups(backend *be, const any_index *x, float *out, const float *q, size_t heads, int64_t *n,
                         const item_groups *g, uint64_t *read)
{
    if (x->is_fier) be->ops->fier->score_groups(be, at(out), MOST, at(q), heads, &x->ones, at(n), g, at(read));
    else be->ops->quest->score_groups(be, at(out), MOST, at(q), heads, &x->pages, at(n), g, x->max_channel, at(read));
}

/* Lists of groups, the same number in each, that overlap [lo, hi). */
typedef struct {
    int32_t group[LISTS][MOST];
    int64_t range[LISTS][2];
    item_groups g;
} some_groups;

static void draw_groups(some_groups *s, rng *r, size_t lists, int64_t per, int64_t lo, int64_t hi, bool all)
{
    int64_t first = lo / per, n = (hi - 1) / per + 1 - first,
            keep = all ? n : 1 + (int64_t)(rng_next(r) % (uint64_t)n);
    s->g = (item_groups){at(s->group), at(s->range), lists, MOST, per, n};
    for (size_t l = 0; l < lists; l++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) /* each subset of that size is as likely */
            if ((int64_t)(rng_next(r) % (uint64_t)(n - i)) < keep - count) s->group[l][count++] = (int32_t)(first + i);
        s->range[l][0] = 0;
        s->range[l][1] = count;
    }
}

static bool listed(const some_groups *s, size_t list, int64_t item)
{
    for (int64_t i = 0; i < s->range[list][1]; i++)
        if (s->group[list][i] == item / s->g.per) return true;
    return false;
}

/* What one case found. */
typedef struct {
    group scores, blanks, bytes, choice, every;
} findings;

static void check_scores(findings *f, backend *be, const any_index *x, const some_groups *s, const float *q, size_t heads,
                         int64_t *n, float *dense, float *places)
{
    size_t per_list = heads / s->g.n_lists, per_kv = heads / KV;
    uint64_t read = 5, want = 5;
    bool good = true, blank = true;
    score_all(ref, x, dense, q, heads, n);
    for (size_t i = 0; i < heads * MOST; i++) places[i] = 7;
    score_groups(be, x, places, q, heads, n, &s->g, &read);
    for (size_t h = 0; h < heads; h++) {
        size_t l = h / per_list;
        for (int64_t p = 0; p < s->range[l][1] * s->g.per; p++) {
            int64_t item = s->group[l][p / s->g.per] * s->g.per + p % s->g.per;
            float got = places[h * MOST + (size_t)p];
            if (item < n[1] || item >= n[2]) blank &= isinf(got) && got < 0;
            else good &= memcmp(&got, &dense[h * MOST + (size_t)item], sizeof got) == 0;
        }
        if (h % (per_list < per_kv ? per_list : per_kv) == 0)
            for (int64_t i = 0; i < s->range[l][1]; i++) {
                int64_t a = s->group[l][i] * s->g.per, b = a + s->g.per;
                want += bytes_of(x, a > n[1] ? a : n[1], b < n[2] ? b : n[2]);
            }
    }
    group_note(&f->scores, good, "fier %d, %zu heads, %zu lists, per %d", x->is_fier, heads, s->g.n_lists, (int)s->g.per);
    group_note(&f->blanks, blank, "fier %d, %zu heads, %zu lists, per %d", x->is_fier, heads, s->g.n_lists, (int)s->g.per);
    group_note(&f->bytes, read == want, "fier %d, %zu heads, %zu lists: %d, expected %d", x->is_fier, heads, s->g.n_lists,
               (int)read, (int)want);
}

/* score: by items or places, of the first heads as if they were combined. */
static void choose(backend *be, const any_index *x, const some_groups *s, const float *score, int64_t *n, int64_t k,
                   bool by_groups, int32_t *idx, int64_t *range)
{
    int64_t page = x->is_fier ? 1 : (int64_t)x->pages.page, tail = n[2], first = n[1] * page + 1;
    int64_t slots[3] = {x->n, n[1], n[2]};
    choose_job j = {.score = at(score), .n = at(slots), .k = at(&k), .tail = at(&tail), .first = at(&first),
                    .n_lists = s->g.n_lists, .stride = MOST, .n_k = 1, .granule = page, .head = n[1] ? 1 : 0,
                    .n_items_max = x->items, .idx_stride = MOST, .idx = at(idx), .range = at(range)};
    if (by_groups) be->ops->select->choose_groups(be, &j, &s->g);
    else be->ops->select->choose(be, &j);
}

/* Against `choose` among all items, where what is in no group has no score. */
static void check_choice(findings *f, backend *be, const any_index *x, const some_groups *s, int64_t *n, rng *r,
                         float *dense, const float *places, bool all)
{
    static int32_t want[LISTS * MOST], got[LISTS * MOST];
    int64_t r1[2 * LISTS], r2[2 * LISTS], least = MOST;
    for (size_t l = 0; l < s->g.n_lists; l++) {
        int64_t count = 0;
        for (int64_t i = n[1]; i < n[2]; i++) {
            count += listed(s, l, i);
            if (!listed(s, l, i)) dense[l * MOST + (size_t)i] = -INFINITY;
        }
        if (count < least) least = count;
    }
    int64_t k = (int64_t)(rng_next(r) % (uint64_t)(least + 1)) + (all ? 2 : 0);
    choose(ref, x, s, dense, n, k, false, want, r1);
    choose(be, x, s, places, n, k, true, got, r2);
    bool same = memcmp(r1, r2, s->g.n_lists * 2 * sizeof *r1) == 0;
    for (size_t l = 0; l < s->g.n_lists && same; l++)
        same = memcmp(want + l * MOST, got + l * MOST, (size_t)r1[2 * l + 1] * sizeof *want) == 0;
    group_note(all ? &f->every : &f->choice, same, "fier %d, %zu lists, per %d, k %d", x->is_fier, s->g.n_lists,
               (int)s->g.per, (int)k);
}

/* Lists like those of gqa modes: one a query head, one a kv head, one of mean queries, one for all. */
static void check_case(findings *f, backend *be, any_index *x, rng *r, size_t dim, float *dense, float *places)
{
    static some_groups s;
    const size_t heads[] = {6, 6, KV, 6}, lists[] = {6, KV, KV, 1};
    for (size_t m = 0; m < 4; m++)
        for (int all = 0; all < 2; all++) {
            int64_t a = (int64_t)(rng_next(r) % (uint64_t)x->items), b = (int64_t)(rng_next(r) % (uint64_t)x->items);
            int64_t n[3] = {x->n, a < b ? a : b, (a < b ? b : a) + 1};
            float *q = random_f32(r, heads[m] * dim);
            draw_groups(&s, r, lists[m], 1 + (int64_t)(rng_next(r) % 40), n[1], n[2], all);
            check_scores(f, be, x, &s, q, heads[m], n, dense, places);
            if (heads[m] == lists[m]) check_choice(f, be, x, &s, n, r, dense, places, all);
            free(q);
        }
}

static void test_groups(backend *be, const char *level)
{
    static const size_t dims[] = {2, 16, 18, 64, 96, 128}, pages[] = {1, 4, 7, 16, 32};
    rng r = {77};
    findings f = {0};
    float *dense = xmalloc(LISTS * MOST * 4), *places = xmalloc(LISTS * MOST * 4);
    for (size_t i = 0; i < 6 * 3 * 7; i++) {
        any_index x = {.n = 1 + (int64_t)(rng_next(&r) % N_MOST), .max_channel = i % 5 == 0};
        make_index(&x, &r, ALL_TYPES[i % 3], dims[i / 3 % 6], pages[i % 5], (int)(i % 7));
        check_case(&f, be, &x, &r, dims[i / 3 % 6], dense, places);
        free_index(&x);
    }
    free(dense), free(places);
    group_end(&f.scores, "scores by groups: the bits of ref's scores of all", level);
    group_end(&f.blanks, "what is no candidate has no score", level);
    group_end(&f.bytes, "bytes read", level);
    group_end(&f.choice, "the choice in groups is that of all items with scores there", level);
    group_end(&f.every, "in all groups it is that of all items", level);
}

/* Pages of 64 tokens as groups over pages of 8. A page that is left out with its group is therefore worth no more than
 * the weakest group that was kept. */
static void test_bounds(backend *be, const char *level)
{
    enum { N = 250, DIM = 32, HEADS = 6 };
    rng r = {78};
    group over = {0};
    for (int t = 0; t < 30; t++) {
        any_index fine = {.n = N}, coarse = {.n = N};
        rng again = r;
        make_index(&fine, &r, ALL_TYPES[t % 3], DIM, 8, 0);
        make_index(&coarse, &again, ALL_TYPES[t % 3], DIM, 64, 0);
        float *q = random_f32(&r, HEADS * DIM), page[HEADS * MOST], top[HEADS * MOST];
        int64_t n1[3] = {N, 0, fine.items}, n2[3] = {N, 0, coarse.items};
        score_all(be, &fine, page, q, HEADS, n1);
        score_all(be, &coarse, top, q, HEADS, n2);
        for (size_t h = 0; h < HEADS; h++) {
            for (size_t p = 0; p < (size_t)fine.items; p++)
                group_note(&over, top[h * MOST + p / 8] >= page[h * MOST + p], "head %zu page %zu", h, p);
        }
        free(q);
        free_index(&fine);
        free_index(&coarse);
    }
    group_end(&over, "no page scores more than its group, without tolerance", level);
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    test_groups(ref, "ref");
    for (size_t i = 0; i < N_ALL_LEVELS; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        if (!be) continue;
        test_groups(be, ALL_LEVELS[i]);
        test_bounds(be, ALL_LEVELS[i]);
        backend_close(be);
    }
    return tap_done();
}
