/* SPDX-License-Identifier: MIT */
/* Quest: the method against a naive one; points 9 and 0.3 of methods.md. */
/* Builds: shim race device */
#include "config.h"

#define T_HEADS 6
#define T_KV    2
#include "tests/unit/ops_util.h"
#include "tests/unit/retrieve_oracle.h"

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
        naive_method m = {.spec = t[i].spec,
                          .budget = t[i].budget,
                          .gqa = t[i].gqa,
                          .score = page_scores,
                          .rule = page_rule,
                          .pooled = true};
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
    world_rotate(5);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s opened", METHOD_DEVICES[d])) continue;
        check_methods(&r, METHOD_DEVICES[d]);
        check_coarse(&r, METHOD_DEVICES[d]);
        check_rewind(&r, "quest:skip=1:budget=16:page=4:coarse=16:coarse_keep=2", DT_F16);
        check_bytes(&r, "quest:skip=1:budget=24:page=8:coarse=32:coarse_keep=1", two_levels);
        rig_check_oom(&r, "quest:skip=1:budget=24:coarse=32", 12);
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
