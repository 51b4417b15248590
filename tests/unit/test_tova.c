/* SPDX-License-Identifier: MIT */
/* Strategy `tova` against a naive cache that drops the minimum of the last row; methods.md 5.9. */
#include "config.h"

#include "tests/unit/evict_util.h"

static sim s;

static void last_row(sim *m, int layer, int64_t p, int64_t left)
{
    (void)p;
    (void)left;
    for (int k = 0; k < m->n_lists; k++)
        for (int64_t i = 0; i < m->list[layer][k].n; i++) m->list[layer][k].score[i] = combined(m, k, i);
}

static sim *fresh(const rig *r, int64_t budget)
{
    memset(&s, 0, sizeof s);
    s.shape = &r->shape;
    s.n_lists = 1;
    s.budget = budget;
    s.how = MEAN;
    s.row = last_row;
    return &s;
}

static sim *per_head(const rig *r, int64_t budget)
{
    fresh(r, budget)->n_lists = r->shape.n_kv_heads;
    return &s;
}

static void check_prompts(rig *r)
{
    static const int64_t turns[][3] = {{50, 30, 10}, {10, 33, 1}, {0, 40, 5}, {20, 1, 1}, {21, 21, 2}, {64, 2, 30}};
    for (int i = 0; i < 6; i++)
        for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4)
            check_against(r, fresh(r, 20), "tova:budget=20", turns[i], 3, 8, chunk);
    static const int64_t budgets[] = {1, 2, 5, 31};
    char text[40];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "tova:budget=%d", (int)budgets[i]);
        check_against(r, fresh(r, budgets[i]), text, turns[0], 2, 20, 16);
    }
}

static void check_options(rig *r)
{
    static const int64_t turns[] = {50, 20};
    check_against(r, per_head(r, 20), "tova:budget=20:gqa=mean_s", turns, 2, 20, 16);
    per_head(r, 20)->how = SUM;
    check_against(r, &s, "tova:budget=20:gqa=sum_s", turns, 2, 20, 16);
    per_head(r, 20)->how = MAX;
    check_against(r, &s, "tova:budget=20:gqa=max_s", turns, 2, 20, 16);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "tova:budget=20:gqa=per_q", turns, 2, 20, 16);
    fresh(r, 20)->recent = 1;
    check_against(r, &s, "tova:budget=20:protect_last=1", turns, 2, 20, 16);
    fresh(r, 1)->recent = 1;
    check_against(r, &s, "tova:budget=1:protect_last=1", turns, 2, 20, 16);
    for (int64_t chunk = 1; chunk <= 30; chunk += 9) {
        fresh(r, 20)->chunk = chunk;
        check_against(r, &s, "tova:budget=20:prefill_evict=chunk", turns, 2, 10, chunk);
    }
    r->window[0] = 25;
    r->window[1] = 12;
    r->window[2] = 40;
    check_against(r, fresh(r, 20), "tova:budget=20", turns, 2, 30, 16);
    check_against(r, per_head(r, 20), "tova:budget=20:gqa=mean_s", turns, 2, 30, 7);
    fresh(r, 20)->chunk = 6;
    check_against(r, &s, "tova:budget=20:prefill_evict=chunk", turns, 2, 30, 6);
    r->window[0] = r->window[1] = r->window[2] = 0;
}

static void check_groups(rig *r)
{
    static const int heads[][2] = {{1, 1}, {2, 1}, {3, 1}, {6, 2}, {8, 2}, {14, 2}, {8, 1}, {16, 4}, {4, 4}, {4, 2}};
    static const int64_t turns[] = {40, 20};
    err e = {0};
    for (int i = 0; i < 10; i++) {
        if (!is_ok(rig_layout(r, heads[i][0], heads[i][1], T_DIM, &e), &e, "layout")) return;
        check_against(r, fresh(r, 12), "tova:budget=12", turns, 2, 10, 16);
        check_against(r, per_head(r, 12), "tova:budget=12:gqa=mean_s", turns, 2, 10, 16);
    }
}

static void check_bytes(rig *r)
{
    static const char *const specs[] = {"tova:budget=20", "tova:budget=20:gqa=mean_s",
                                        "tova:budget=20:prefill_evict=chunk"};
    for (int i = 0; i < 3; i++) {
        err e = {0};
        attn_seq *seq;
        if (i == 1) per_head(r, 20);
        else fresh(r, 20);
        rig_seq(r, &seq, specs[i], DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 50, 16, NULL);
        check_held(r, &s, seq, 8);
        for (int k = 0; k < 10; k++) rig_decode(r, &seq, 1, got);
        check_held(r, &s, seq, 8);
        attn_seq_free(seq);
    }
}

/* Of equal weights the last one goes: nothing protects the new token. A token that all look at stays. */
static void check_planted(rig *r)
{
    err e = {0};
    attn_seq *seq;
    int64_t pos[T_MAX];
    bool first = true, last = true, planted = true;
    world_flat(r);
    for (int protect = 0; protect < 2; protect++) {
        rig_seq(r, &seq, protect ? "tova:budget=9:protect_last=1" : "tova:budget=9", DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 40, 16, NULL);
        for (int i = 0; i < 20; i++) {
            int64_t n = attn_seq_positions(seq, 1, 0, pos);
            for (int k = 0; k < n && !protect; k++) first &= pos[k] == k;
            for (int k = 0; k < n && protect; k++) last &= pos[k] == (k < 8 ? k : 39 + i);
            rig_decode(r, &seq, 1, got);
        }
        attn_seq_free(seq);
    }
    ok(first, "%s, tova: of equal weights the newest goes", r->be->name);
    ok(last, "%s, tova: protect_last keeps it", r->be->name);
    world_plant(23);
    rig_seq(r, &seq, "tova:budget=2", DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 40, 16, NULL);
    for (int i = 0; i < 40; i++) {
        int64_t n = attn_seq_positions(seq, 2, 1, pos);
        planted &= n == 2 && (pos[0] == 23 || pos[1] == 23);
        rig_decode(r, &seq, 1, got);
    }
    ok(planted, "%s, tova: what every query looks at stays", r->be->name);
    attn_seq_free(seq);
    world_back(r);
}

/* Slots are positions: nothing is moved or used again. */
static void check_stores(rig *r)
{
    static const int64_t turns[] = {50, 20};
    check_against(r, fresh(r, 20), "tova:budget=20" BY_POSITION, turns, 2, 20, 16);
    check_against(r, per_head(r, 20), "tova:budget=20:gqa=mean_s" BY_POSITION, turns, 2, 20, 16);
    check_coded(r, "tova:budget=20" IN_CODES, 20);
    check_coded(r, "tova:budget=12:gqa=mean_s" IN_CODES, 12);
}

static void check_specs(void)
{
    attn_options o = {.kv = kv_exact(DT_F16)};
    attn_spec spec;
    char text[160];
    err e = {0};
    check_refused("tova:budget=0", "budget 0 is too small, at least 1");
    check_refused("tova:gqa=layer_vote", "use layer_mean");
    check_refused("tova:protect_last=2", "expected a number from 0 to 1");
    is_ok(attn_spec_parse(&spec, "tova:budget=9", &o, &e), &e, "a spec");
    attn_spec_params(&spec, text, sizeof text);
    is_str(text, "budget=9 gqa=layer_mean protect_last=0 prefill_evict=end skip=0 kv=f16", "its parameters");
}

int main(void)
{
    err e = {0};
    world_fill(&w, 12);
    check_specs();
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s backend", METHOD_DEVICES[d])) return tap_done();
        check_groups(&r);
        check_prompts(&r);
        check_options(&r);
        check_bytes(&r);
        check_stores(&r);
        check_planted(&r);
        check_rewind(&r, "tova:budget=20", true);
        rig_check_oom(&r, "tova:budget=20:skip=1", 5);
        rig_close(&r);
    }
    return tap_done();
}
