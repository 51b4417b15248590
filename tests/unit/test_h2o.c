/* SPDX-License-Identifier: MIT */
/* Strategy `h2o` against a naive cache that adds up attention rows in double; methods.md 3.9. */
#include "config.h"

#include "tests/unit/evict_util.h"

static sim s;

static void add_row(sim *m, int layer, int64_t p, int64_t left)
{
    (void)p;
    (void)left;
    for (int k = 0; k < m->n_lists; k++)
        for (int64_t i = 0; i < m->list[layer][k].n; i++) m->list[layer][k].score[i] += combined(m, k, i);
}

/* A simulation of h2o:budget=B with its defaults. */
static sim *fresh(const rig *r, int64_t budget)
{
    memset(&s, 0, sizeof s);
    s.shape = &r->shape;
    s.n_lists = r->shape.n_kv_heads;
    s.budget = budget;
    s.recent = budget - budget / 2;
    s.how = MEAN;
    s.row = add_row;
    return &s;
}

static void check_prompts(rig *r)
{
    static const int64_t turns[][3] = {{50, 30, 10}, {10, 33, 1}, {0, 40, 5}, {20, 1, 1}, {21, 21, 2}, {64, 2, 30}};
    for (int i = 0; i < 6; i++)
        for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4)
            check_against(r, fresh(r, 20), "h2o:budget=20", turns[i], 3, 8, chunk);
    static const int64_t budgets[] = {2, 3, 5, 31};
    char text[40];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "h2o:budget=%d", (int)budgets[i]);
        check_against(r, fresh(r, budgets[i]), text, turns[0], 2, 20, 16);
    }
}

static void check_options(rig *r)
{
    static const int64_t turns[] = {50, 20};
    fresh(r, 20)->how = SUM;
    check_against(r, &s, "h2o:budget=20:gqa=sum_s", turns, 2, 10, 16);
    fresh(r, 20)->how = MAX;
    check_against(r, &s, "h2o:budget=20:gqa=max_s", turns, 2, 10, 16);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "h2o:budget=20:gqa=per_q", turns, 2, 10, 16);
    fresh(r, 20)->n_lists = 1;
    check_against(r, &s, "h2o:budget=20:gqa=layer_mean", turns, 2, 10, 16);
    fresh(r, 20)->by_count = true;
    check_against(r, &s, "h2o:budget=20:norm=count", turns, 2, 10, 16);
    fresh(r, 20)->recent = 3;
    check_against(r, &s, "h2o:budget=20:recent=3", turns, 2, 10, 16);
    fresh(r, 20)->recent = 0;
    check_against(r, &s, "h2o:hh=20:recent=0", turns, 2, 10, 16);
    fresh(r, 20)->recent = 20;
    check_against(r, &s, "h2o:budget=20:hh=0", turns, 2, 10, 16);
    fresh(r, 20)->once = true;
    check_against(r, &s, "h2o:budget=20:mode=oneshot", turns, 2, 20, 16);
    static const int64_t small[] = {15, 30};
    fresh(r, 20)->once = true;
    check_against(r, &s, "h2o:budget=20:mode=oneshot", small, 2, 20, 16);
    for (int64_t chunk = 1; chunk <= 30; chunk += 9) {
        fresh(r, 20)->chunk = chunk;
        check_against(r, &s, "h2o:budget=20:prefill_evict=chunk", turns, 2, 10, chunk);
        fresh(r, 20)->chunk = chunk;
        s.once = true;
        check_against(r, &s, "h2o:budget=20:prefill_evict=chunk:mode=oneshot", turns, 2, 10, chunk);
    }
}

static void check_ranks(rig *r)
{
    static const struct {
        const char *text;
        int how, n_lists; /* 0: a list a kv head */
        bool once;
        int64_t chunk, window;
    } t[] = {
        {"h2o:budget=20:pos=rank", MEAN, 0, false, 0, 0},
        {"h2o:budget=20:pos=rank:gqa=per_q", MEAN, 1, false, 0, 0},
        {"h2o:budget=20:pos=rank:gqa=max_s", MAX, 0, false, 0, 25},
        {"h2o:budget=20:pos=rank:mode=oneshot", MEAN, 0, true, 0, 0},
        {"h2o:budget=20:pos=rank:prefill_evict=chunk", MEAN, 0, false, 7, 0},
        {"h2o:budget=20:pos=rank" BY_POSITION, MEAN, 0, false, 0, 0},
    };
    static const int64_t turns[] = {50, 20}, small[] = {10, 3};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fresh(r, 20)->by_rank = true;
        s.how = t[i].how;
        s.once = t[i].once;
        s.chunk = t[i].chunk;
        if (t[i].n_lists) s.n_lists = r->shape.n_heads;
        r->window[0] = (int)t[i].window;
        check_against(r, &s, t[i].text, turns, 2, 20, t[i].chunk ? t[i].chunk : 16);
    }
    r->window[0] = 0;
    fresh(r, 20)->by_rank = true;
    check_against(r, &s, t[0].text, small, 2, 40, 3);
    err e = {0};
    attn_seq *seq;
    fresh(r, 20);
    rig_seq(r, &seq, t[0].text, DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 50, 16, NULL);
    check_held(r, &s, seq, 12);
    attn_seq_free(seq);
    rig_check_oom(r, "h2o:budget=20:pos=rank", 5);
}

/* Windows above the budget: entries leave behind them; below it: the layer is dense. */
static void check_windows(rig *r)
{
    static const int64_t turns[] = {50, 20}, small[] = {10, 3};
    r->window[0] = 25;
    r->window[1] = 12;
    r->window[2] = 40;
    check_against(r, fresh(r, 20), "h2o:budget=20", turns, 2, 30, 16);
    check_against(r, fresh(r, 20), "h2o:budget=20", small, 2, 40, 16);
    check_against(r, fresh(r, 24), "h2o:budget=24", turns, 2, 30, 7);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "h2o:budget=20:gqa=per_q", turns, 2, 30, 16);
    fresh(r, 20)->once = true;
    check_against(r, &s, "h2o:budget=20:mode=oneshot", turns, 2, 30, 16);
    fresh(r, 20)->chunk = 6;
    check_against(r, &s, "h2o:budget=20:prefill_evict=chunk", turns, 2, 30, 6);
    err e = {0};
    attn_seq *seq;
    fresh(r, 20);
    rig_seq(r, &seq, "h2o:budget=20:skip=0", DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 50, 16, NULL);
    for (int i = 0; i < 20; i++) rig_decode(r, &seq, 1, got);
    attn_stats st = attn_seq_stats(seq);
    ok(st.attended <= 20 * (21 + 12 + 21) && st.visible == 20 * (25 + 12 + 40),
       "h2o: windows: %g attended of %g visible", st.attended, st.visible);
    attn_seq_free(seq);
    r->window[0] = r->window[1] = r->window[2] = 0;
}

static void check_groups(rig *r)
{
    static const int heads[][2] = {{1, 1}, {2, 1}, {3, 1}, {6, 2}, {8, 2}, {14, 2}, {8, 1}, {16, 4}, {4, 4}, {4, 2}};
    static const int64_t turns[] = {40, 20};
    err e = {0};
    for (int i = 0; i < 10; i++) {
        if (!is_ok(rig_layout(r, heads[i][0], heads[i][1], T_DIM, &e), &e, "layout")) return;
        check_against(r, fresh(r, 12), "h2o:budget=12", turns, 2, 10, 16);
        fresh(r, 12)->how = MAX;
        check_against(r, &s, "h2o:budget=12:gqa=max_s", turns, 2, 10, 16);
        fresh(r, 12)->n_lists = heads[i][0];
        check_against(r, &s, "h2o:budget=12:gqa=per_q", turns, 2, 10, 16);
    }
}

static void check_bytes(rig *r)
{
    static const char *const specs[] = {"h2o:budget=20", "h2o:budget=20:gqa=per_q", "h2o:budget=20:prefill_evict=chunk",
                                        "h2o:budget=150"};
    for (int i = 0; i < 4; i++) {
        err e = {0};
        attn_seq *seq;
        fresh(r, i == 3 ? 150 : 20);
        if (i == 1) s.n_lists = r->shape.n_heads;
        rig_seq(r, &seq, specs[i], DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 50, 16, NULL);
        check_held(r, &s, seq, 12);
        attn_stats before = attn_seq_stats(seq), after;
        for (int k = 0; k < 10; k++) rig_decode(r, &seq, 1, got);
        check_held(r, &s, seq, 12);
        after = attn_seq_stats(seq);
        double rows = i == 3 ? 10 * 55.5 : 10 * 21, regions = i == 1 ? r->shape.n_heads : r->shape.n_kv_heads;
        double bytes = rows * T_LAYERS * regions * T_DIM * 4 * 2;
        ok(after.kv_read - before.kv_read == bytes, "%s: %g bytes of rows read, expected %g", specs[i], after.kv_read,
           bytes);
        attn_seq_free(seq);
    }
}

/* With keys that are all the same, sums grow with age: sinks and recent tokens stay. A key that all
 * queries look at stays for ever. */
static void check_planted(rig *r)
{
    err e = {0};
    attn_seq *seq;
    int64_t pos[T_MAX];
    bool good = true;
    world_flat(r);
    rig_seq(r, &seq, "h2o:budget=9", DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 40, 16, NULL);
    for (int i = 0; i < 20; i++) {
        int64_t n = attn_seq_positions(seq, 1, 0, pos);
        for (int k = 0; k < n; k++) good &= pos[k] == (k < 4 ? k : 40 + i - 9 + k);
        rig_decode(r, &seq, 1, got);
    }
    ok(good, "%s, h2o: of equal keys the oldest and the recent ones stay", r->be->name);
    attn_seq_free(seq);
    world_plant(23);
    rig_seq(r, &seq, "h2o:budget=4", DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 40, 16, NULL);
    good = true;
    for (int i = 0; i < 40; i++) {
        attn_seq_positions(seq, 2, 1, pos);
        good &= pos[0] == 23 || pos[1] == 23;
        rig_decode(r, &seq, 1, got);
    }
    ok(good, "%s, h2o: a heavy hitter stays", r->be->name);
    attn_seq_free(seq);
    world_back(r);
}

/* Slots are positions: nothing is moved or used again. */
static void check_stores(rig *r)
{
    static const int64_t turns[] = {50, 20};
    check_against(r, fresh(r, 20), "h2o:budget=20" BY_POSITION, turns, 2, 20, 16);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "h2o:budget=20:gqa=per_q" BY_POSITION, turns, 2, 20, 16);
    fresh(r, 20)->chunk = 7;
    check_against(r, &s, "h2o:budget=20:prefill_evict=chunk" BY_POSITION, turns, 2, 20, 7);
    r->window[0] = 25;
    check_against(r, fresh(r, 20), "h2o:budget=20" BY_POSITION, turns, 2, 20, 16);
    r->window[0] = 0;
    check_coded(r, "h2o:budget=20" IN_CODES, 20);
    check_coded(r, "h2o:budget=12:gqa=per_q" IN_CODES, 12);
}

static void check_specs(void)
{
    attn_options o = {.kv = kv_exact(DT_F16)};
    attn_spec spec;
    char text[160];
    err e = {0};
    check_refused("h2o:budget=1", "budget 1 is too small, at least 2");
    check_refused("h2o:budget=8:hh=9", "hh=9, at most the budget of 8");
    check_refused("h2o:budget=8:recent=9", "recent=9, at most the budget of 8");
    check_refused("h2o:gqa=vote", "their sum is gqa=sum_s");
    check_refused("h2o:gqa=mean_q", "each query has its own weights");
    check_refused("h2o:gqa=layer_concat", "use layer_mean");
    check_refused("h2o:mode=oracle", "one of: decode oneshot");
    is_ok(attn_spec_parse(&spec, "h2o:budget=9", &o, &e), &e, "a spec");
    attn_spec_params(&spec, text, sizeof text);
    is_str(text, "budget=9 hh=4 recent=5 gqa=mean_s norm=none mode=decode pos=abs prefill_evict=end skip=0 kv=f16",
           "its parameters");
    is_ok(attn_spec_parse(&spec, "h2o:hh=4:recent=10", &o, &e), &e, "both parts");
    is_int(spec.budget, 14, "the parts make up the budget");
}

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    check_specs();
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s backend", METHOD_DEVICES[d])) return tap_done();
        check_groups(&r);
        check_prompts(&r);
        check_options(&r);
        check_ranks(&r);
        check_windows(&r);
        check_bytes(&r);
        check_stores(&r);
        check_planted(&r);
        check_rewind(&r, "h2o:budget=20", false);
        rig_check_oom(&r, "h2o:budget=20:skip=1", 5);
        rig_check_oom(&r, "h2o:budget=20:gqa=per_q", 5);
        rig_close(&r);
    }
    return tap_done();
}
