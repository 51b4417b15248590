/* SPDX-License-Identifier: MIT */
/* Quest: page bounds at every SIMD level, and the method against a naive one; points 9 and 0.3 of methods.md. */
#include "config.h"

#include "kernels/ops_quest.h"
#define T_HEADS 6
#define T_KV    2
#include "tests/unit/ops_util.h"
#include "tests/unit/retrieve_oracle.h"

/* ---- ops ---- */

static backend *ref;

typedef struct {
    quest_index x;
    float *k; /* [n][n_kv_heads][head_dim] */
    size_t n, bytes;
} pages;

static pages pages_make(rng *r, size_t n, size_t kv, size_t dim, size_t page, dtype t)
{
    pages p = {.n = n, .k = random_f32(r, n * kv * dim)};
    p.x = (quest_index){.type = t, .n_kv_heads = kv, .head_dim = dim, .page = page, .cap = (n + page - 1) / page + 1};
    p.bytes = kv * p.x.cap * 2 * dim * dtype_size(t);
    p.x.bound = at(xmalloc(p.bytes));
    memset(p.x.bound.p, 0xff, p.bytes);
    return p;
}

static void pages_free(pages *p)
{
    free(p->k), free(p->x.bound.p);
}

static void add(backend *be, const pages *p, size_t from, size_t to)
{
    int64_t pos = (int64_t)from;
    be->ops->quest->add(be, &p->x, at(&pos), at(p->k + from * p->x.n_kv_heads * p->x.head_dim), to - from);
}

static float rounded(float x, dtype t)
{
    return t == DT_F32 ? x : t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

static void test_ops(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 16, 18, 32, 64, 80, 96, 128, 256}, sizes[] = {1, 2, 7, 16, 32};
    rng r = {41};
    group bits = {0}, bound = {0}, one = {0}, inc = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < 11; d++)
            for (size_t g = 0; g < 5; g++) {
                if (left_out(2, 8)) continue;
                size_t per = 1 + (t + d + g) % 8, dim = dims[d], kv = 2, heads = kv * per, page = sizes[(d + g) % 5],
                       n = 1 + (d * 31 + g * 17) % 70;
                size_t n_pages = (n + page - 1) / page, stride = n_pages + 2, m = n / 2;
                pages a = pages_make(&r, n, kv, dim, page, ALL_TYPES[t]), b = a;
                b.x.bound = at(xmalloc(b.bytes));
                memset(b.x.bound.p, 0xff, b.bytes);
                float *q = random_f32(&r, heads * dim), *s1 = xmalloc(4 * heads * stride),
                      *s2 = xmalloc(4 * heads * stride);
                float *exact = xmalloc(4 * heads * n), *was = xmalloc(4 * heads * stride);
                int64_t nn[3] = {(int64_t)n, 0, (int64_t)n_pages}, all[3] = {(int64_t)n, 0, (int64_t)n};
                uint64_t read = 1;
                add(ref, &a, 0, n);
                add(be, &b, 0, m);
                int64_t before[3] = {(int64_t)m, 0, (int64_t)((m + page - 1) / page)};
                be->ops->quest->score(be, at(was), stride, at(q), heads, &b.x, at(before), before[2], false,
                                      (buf){NULL});
                for (size_t i = m; i < n; i++) add(be, &b, i, i + 1);
                group_note(&inc, memcmp(a.x.bound.p, b.x.bound.p, a.bytes) == 0, "dim %zu page %zu n %zu", dim, page,
                           n);
                for (int maxch = 0; maxch < 2; maxch++) {
                    ref->ops->quest->score(ref, at(s1), stride, at(q), heads, &a.x, at(nn), nn[2], maxch, (buf){NULL});
                    be->ops->quest->score(be, at(s2), stride, at(q), heads, &b.x, at(nn), nn[2], maxch, at(&read));
                    for (size_t h = 0; h < heads; h++)
                        group_note(&bits, memcmp(s1 + h * stride, s2 + h * stride, 4 * n_pages) == 0,
                                   "dim %zu group %zu page %zu maxch %d", dim, per, page, maxch);
                    if (maxch) break;
                    bool grows = true;
                    for (size_t h = 0; h < heads; h++)
                        for (int64_t p = 0; p < before[2]; p++)
                            grows &= s2[h * stride + (size_t)p] >= was[h * stride + (size_t)p];
                    group_note(&inc, grows, "a token lowers a score: dim %zu page %zu", dim, page);
                    kv_rows rows = {at(xmalloc(kv * n * dim * 4)), {NULL}, DT_F32, kv, dim, n, {0}, NULL, NULL};
                    for (size_t i = 0; i < n * kv * dim; i++)
                        ((float *)(void *)rows.k.p)[(i / dim % kv * n + i / dim / kv) * dim + i % dim] =
                            rounded(a.k[i], ALL_TYPES[t]);
                    be->ops->select->exact(be, at(exact), n, at(q), heads, &rows, at(all), (int64_t)n, (buf){NULL});
                    for (size_t h = 0; h < heads; h++)
                        for (size_t i = 0; i < n; i++) {
                            group_note(&bound, s2[h * stride + i / page] >= exact[h * n + i],
                                       "dim %zu page %zu head %zu token %zu", dim, page, h, i);
                            if (page == 1)
                                group_note(&one, s2[h * stride + i] == exact[h * n + i], "dim %zu head %zu token %zu",
                                           dim, h, i);
                        }
                    free(rows.k.p);
                }
                group_note(&bits, read == 1 + 2 * (uint64_t)(n_pages * kv * 2 * dim * dtype_size(ALL_TYPES[t])),
                           "bytes read");
                free(q), free(s1), free(s2), free(exact), free(was), free(b.x.bound.p);
                pages_free(&a);
            }
    group_end(&bits, "page scores: the bits of ref, bytes counted", level);
    group_end(&bound, "no key scores more than its page, without tolerance", level);
    group_end(&one, "pages of one token are exact", level);
    group_end(&inc, "incremental = bulk; a token never lowers a score", level);
}

/* Tokens in another order inside their page, and the last page again from the rows. */
static void test_pages(backend *be, const char *level)
{
    enum { KV = 2, D = 10, PAGE = 8, N = 29 };
    rng r = {42};
    for (size_t t = 0; t < 3; t++) {
        pages a = pages_make(&r, N, KV, D, PAGE, ALL_TYPES[t]), b = a;
        b.k = xmalloc(4 * N * KV * D);
        b.x.bound = at(xmalloc(a.bytes));
        memset(b.x.bound.p, 0xff, a.bytes);
        for (size_t i = 0; i < N; i++) {
            size_t first = i / PAGE * PAGE, len = first + PAGE < N ? PAGE : N - first;
            memcpy(b.k + i * KV * D, a.k + (first + (i - first + 3) % len) * KV * D, 4 * KV * D);
        }
        add(be, &a, 0, N);
        add(be, &b, 0, N);
        ok(memcmp(a.x.bound.p, b.x.bound.p, a.bytes) == 0, "%s, %s: the order inside a page does not matter", level,
           dtype_name(ALL_TYPES[t]));
        kv_rows rows = {at(xmalloc(KV * N * D * 4)), at(xmalloc(KV * N * D * 4)), ALL_TYPES[t], KV, D, N, {0}, NULL, NULL};
        int64_t slots[N];
        for (int i = 0; i < N; i++) slots[i] = i;
        be->ops->kv_write(be, &rows, at(slots), 1, at(a.k), at(a.k), N);
        memset(b.x.bound.p, 0xff, a.bytes);
        memset(a.x.bound.p, 0xff, a.bytes);
        add(be, &a, 0, 27);
        add(be, &b, 0, 16);
        free(b.k);
        b.k = a.k;
        memcpy(b.x.bound.p, a.x.bound.p, a.bytes);
        add(be, &b, 27, N);
        be->ops->quest->redo(be, &b.x, &rows, 27);
        ok(memcmp(a.x.bound.p, b.x.bound.p, a.bytes) == 0, "%s, %s: the last page again after a rewind", level,
           dtype_name(ALL_TYPES[t]));
        free(rows.k.p), free(rows.v.p), free(b.x.bound.p);
        pages_free(&a);
    }
}

/* ---- the method ---- */

static int64_t page_size = 8, page_count, in_all;
static bool max_channel, force_last = true;

static void page_scores(int layer, int64_t n, int kv, const double *q, double *out)
{
    for (int64_t p = 0; p * page_size < n; p++)
        out[p] = naive_bound(layer, p * page_size, p * page_size + page_size < n ? p * page_size + page_size : n, kv, q,
                             max_channel);
}

static void page_rule(int64_t first, int64_t n, naive_rule *r)
{
    int64_t last = (n - 1) / page_size;
    r->granule = page_size;
    r->k = page_count - (force_last ? 1 : 0) + in_all;
    for (int64_t p = first / page_size; p <= last; p++) r->candidate[p] = !force_last || p < last;
    r->forced[last] = force_last;
}

static void check_methods(rig *r, const char *device)
{
    static const char *const names[] = {"per_q", "mean_q",     "mean_s",     "sum_s",       "max_s",
                                        "vote",  "layer_mean", "layer_vote", "layer_concat"};
    char spec[96];
    naive_method m = {.spec = spec, .score = page_scores, .rule = page_rule};
    for (int g = 0; g < GQA_COUNT; g++) {
        page_size = 8, page_count = 4, m.gqa = (gqa_mode)g, m.budget = 39;
        snprintf(spec, sizeof spec, "quest:skip=1:page=8:budget=39:gqa=%s", names[g]);
        check_steps(r, device, &m);
    }
    m.gqa = GQA_VOTE;
    page_size = 5, page_count = 3, m.budget = 5;
    snprintf(spec, sizeof spec, "quest:skip=1:page=5:budget=5");
    check_steps(r, device, &m);
    page_size = 16, page_count = 2, m.budget = 47, in_all = 1;
    snprintf(spec, sizeof spec, "quest:skip=1:budget=47:min_pages=1:budget_mode=extra");
    check_steps(r, device, &m);
    page_size = 1, page_count = 12, m.budget = 12, in_all = 0, max_channel = true;
    snprintf(spec, sizeof spec, "quest:skip=1:budget=12:page=1:score=maxch:gqa=vote");
    check_steps(r, device, &m);
    page_size = 4, page_count = 6, m.budget = 24, max_channel = false, force_last = false;
    snprintf(spec, sizeof spec, "quest:skip=1:budget=24:page=4:force=none");
    check_steps(r, device, &m);
    force_last = true;
    r->window[1] = 41;
    r->window[2] = 30;
    page_size = 8, page_count = 4, m.budget = 32;
    snprintf(spec, sizeof spec, "quest:skip=1:budget=32:page=8");
    check_steps(r, device, &m);
    r->window[1] = r->window[2] = 0;
}

/* A second level: each mode, groups that are cut by the last page and by a window, and all groups kept. */
static void check_coarse(rig *r, const char *device)
{
    static const char *const names[] = {"per_q", "mean_q",     "mean_s",     "sum_s",       "max_s",
                                        "vote",  "layer_mean", "layer_vote", "layer_concat"};
    char spec[128];
    naive_method m = {.spec = spec, .score = page_scores, .rule = page_rule, .coarse = 8, .groups = 5};
    for (int g = 0; g < GQA_COUNT; g++) {
        page_size = 4, page_count = 5, m.gqa = (gqa_mode)g, m.budget = 20;
        snprintf(spec, sizeof spec, "quest:skip=1:page=4:budget=20:coarse=8:coarse_keep=2:gqa=%s", names[g]);
        check_steps(r, device, &m);
    }
    m.gqa = GQA_MAX_S;
    max_channel = m.max_channel = true;
    snprintf(spec, sizeof spec, "quest:skip=1:page=4:budget=20:coarse=8:coarse_keep=2:gqa=max_s:score=maxch");
    check_steps(r, device, &m);
    max_channel = m.max_channel = false;
    page_size = 3, page_count = 4, m.budget = 12, m.coarse = 15, m.groups = 2;
    r->window[1] = 41, r->window[2] = 30;
    snprintf(spec, sizeof spec, "quest:skip=1:page=3:budget=12:coarse=15:coarse_keep=2:gqa=per_q");
    m.gqa = GQA_PER_Q;
    check_steps(r, device, &m);
    r->window[1] = r->window[2] = 0;
    m.coarse = 0, m.gqa = GQA_VOTE; /* all groups: the rule without them */
    snprintf(spec, sizeof spec, "quest:skip=1:page=3:budget=12:coarse=15:coarse_keep=99");
    check_steps(r, device, &m);
}

/* pool=entropy, with sharp queries in the last layer. */
static void check_pools(rig *r, const char *device)
{
    static const struct {
        const char *spec;
        gqa_mode gqa;
        int64_t page, budget;
    } t[] = {
        {"quest:skip=1:page=2:budget=24:pool=entropy", GQA_VOTE, 2, 24},
        {"quest:skip=1:page=4:budget=40:pool=entropy:gqa=per_q", GQA_PER_Q, 4, 40},
        {"quest:skip=1:page=2:budget=25:pool=entropy:gqa=mean_s", GQA_MEAN_S, 2, 25},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        naive_method m = {.spec = t[i].spec, .budget = t[i].budget, .gqa = t[i].gqa, .score = page_scores,
                          .rule = page_rule, .pooled = true};
        page_size = t[i].page, page_count = t[i].budget / page_size;
        if (check_steps(r, device, &m)) check_pool(r, device, t[i].spec);
    }
}

static size_t index_bytes(int64_t n)
{
    return (size_t)(n + 7) / 8 * 2 * T_KV * T_DIM * 2;
}

static size_t two_levels(int64_t n)
{
    return index_bytes(n) + (size_t)(n + 31) / 32 * 2 * T_KV * T_DIM * 2;
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        if (!be) continue;
        test_ops(be, ALL_LEVELS[i]);
        test_pages(be, ALL_LEVELS[i]);
        backend_close(be);
    }
    world_rotate(5);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s opened", METHOD_DEVICES[d])) continue;
        check_methods(&r, METHOD_DEVICES[d]);
        if (r.be->ops->select->choose_groups) {
            check_coarse(&r, METHOD_DEVICES[d]);
            check_rewind(&r, "quest:skip=1:budget=16:page=4:coarse=16:coarse_keep=2", DT_F16);
            check_bytes(&r, "quest:skip=1:budget=24:page=8:coarse=32:coarse_keep=1", two_levels);
            rig_check_oom(&r, "quest:skip=1:budget=24:coarse=32", 12);
        }
        check_rewind(&r, "quest:skip=1:budget=32:page=8", DT_F16);
        check_rewind(&r, "quest:skip=2:budget=16:page=16:min_pages=1", DT_BF16);
        check_bytes(&r, "quest:skip=1:budget=24:page=8", index_bytes);
        rig_check_oom(&r, "quest:skip=1:budget=24:gqa=mean_q", 12);
        rig_close(&r);
    }
    world_sharpen(6);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!rig_open_pools(&r, METHOD_DEVICES[d], &w, 64)) continue;
        check_pools(&r, METHOD_DEVICES[d]);
        check_bytes(&r, "quest:skip=1:budget=24:page=8:pool=entropy", index_bytes);
        rig_check_oom(&r, "quest:skip=1:budget=24:pool=entropy", 12);
        rig_close(&r);
    }
    check_budget("quest:budget=15", "at least one page = 16");
    check_budget("quest:coarse=40", "coarse 40, expected whole pages of 16 tokens");
    check_races();
    return tap_done();
}
