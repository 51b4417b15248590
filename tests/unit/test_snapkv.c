/* SPDX-License-Identifier: MIT */
/* Strategy `snapkv` against a naive vote; methods.md 4.9. */
#include "config.h"

#include "tests/unit/evict_util.h"

static sim s;

/* Rows of the last `window` queries, by head and position. */
static void vote_row(sim *m, int layer, int64_t p, int64_t left)
{
    (void)p;
    if (left < 0 || left >= m->window) return;
    for (int h = 0; h < m->shape->n_heads; h++) {
        const naive_list *l = &m->list[layer][list_of(m, h)];
        for (int64_t i = 0; i < l->n; i++) m->votes[layer][h][l->pos[i]] += m->w_row[h][i];
    }
}

static double vote_of(const sim *m, int layer, int k, int64_t pos)
{
    int heads = m->shape->n_heads / m->n_lists;
    double x = 0;
    for (int h = k * heads; h < (k + 1) * heads; h++) {
        double y = m->votes[layer][h][pos];
        x = m->how == MAX ? fmax(x, y) : x + y / heads;
    }
    return x;
}

static void pool_votes(sim *m, int layer, int64_t n_prompt)
{
    m->recent = n_prompt < m->window ? n_prompt : m->window;
    for (int k = 0; k < m->n_lists; k++) {
        naive_list *l = &m->list[layer][k];
        for (int64_t i = 0; i < l->n - m->recent; i++) {
            double sum = 0, top = 0;
            for (int64_t j = i - m->kernel / 2; j <= i + m->kernel / 2; j++) {
                if (j < 0 || j >= l->n - m->recent) continue;
                double x = vote_of(m, layer, k, l->pos[j]);
                sum += x;
                top = fmax(top, x);
            }
            l->score[i] = m->max_pool ? top : sum / (double)m->kernel;
        }
    }
}

static sim *fresh(const rig *r, int64_t budget)
{
    memset(&s, 0, sizeof s);
    s.shape = &r->shape;
    s.n_lists = r->shape.n_kv_heads;
    s.budget = budget;
    s.window = budget / 2 < 32 ? budget / 2 : 32;
    s.kernel = 7;
    s.max_pool = true;
    s.how = MEAN;
    s.once = true;
    s.row = vote_row;
    s.vote = pool_votes;
    return &s;
}

static void check_prompts(rig *r)
{
    static const int64_t turns[][3] = {{50, 30, 10}, {10, 33, 1}, {0, 40, 5}, {20, 1, 1}, {21, 21, 2}, {64, 2, 30}};
    for (int i = 0; i < 6; i++)
        for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4)
            check_against(r, fresh(r, 20), "snapkv:budget=20", turns[i], 3, 8, chunk);
    for (int i = 0; i < 6; i++)
        for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4) {
            fresh(r, 20)->each_turn = true;
            check_against(r, &s, "snapkv:budget=20:recompress_on_turn=1", turns[i], 3, 8, chunk);
        }
    static const int64_t budgets[] = {2, 3, 5, 48};
    char text[40];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "snapkv:budget=%d", (int)budgets[i]);
        check_against(r, fresh(r, budgets[i]), text, turns[0], 2, 10, 16);
    }
}

static void check_options(rig *r)
{
    static const int64_t turns[] = {50, 20};
    fresh(r, 20)->max_pool = false;
    check_against(r, &s, "snapkv:budget=20:pool=avg", turns, 2, 10, 16);
    fresh(r, 20)->kernel = 1;
    check_against(r, &s, "snapkv:budget=20:kernel=1", turns, 2, 10, 16);
    fresh(r, 20)->kernel = 101;
    s.max_pool = false;
    check_against(r, &s, "snapkv:budget=20:kernel=101:pool=avg", turns, 2, 10, 16);
    fresh(r, 20)->window = 1;
    check_against(r, &s, "snapkv:budget=20:window=1", turns, 2, 10, 16);
    fresh(r, 20)->window = 19;
    check_against(r, &s, "snapkv:budget=20:window=19:recompress_on_turn=0", turns, 2, 10, 16);
    fresh(r, 20)->how = MAX;
    check_against(r, &s, "snapkv:budget=20:gqa=max_s", turns, 2, 10, 16);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "snapkv:budget=20:gqa=per_q", turns, 2, 10, 16);
    fresh(r, 20)->how = SUM;
    check_against(r, &s, "snapkv:budget=20:gqa=sum_s", turns, 2, 10, 16);
    fresh(r, 20)->n_lists = 1;
    check_against(r, &s, "snapkv:budget=20:gqa=layer_mean", turns, 2, 10, 16);
    r->window[0] = 25;
    r->window[1] = 12;
    r->window[2] = 40;
    check_against(r, fresh(r, 20), "snapkv:budget=20", turns, 2, 30, 16);
    for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4) {
        fresh(r, 20)->each_turn = true;
        check_against(r, &s, "snapkv:budget=20:recompress_on_turn=1", turns, 2, 30, chunk);
    }
    fresh(r, 20)->n_lists = r->shape.n_heads;
    check_against(r, &s, "snapkv:budget=20:gqa=per_q", turns, 2, 30, 16);
    r->window[0] = r->window[1] = r->window[2] = 0;
}

static void check_groups(rig *r)
{
    static const int heads[][2] = {{1, 1}, {2, 1}, {3, 1}, {6, 2}, {8, 2}, {14, 2}, {8, 1}, {16, 4}, {4, 4}, {4, 2}};
    static const int64_t turns[] = {40, 20};
    err e = {0};
    for (int i = 0; i < 10; i++) {
        if (!is_ok(rig_layout(r, heads[i][0], heads[i][1], T_DIM, &e), &e, "layout")) return;
        check_against(r, fresh(r, 12), "snapkv:budget=12", turns, 2, 10, 16);
        fresh(r, 12)->how = MAX;
        check_against(r, &s, "snapkv:budget=12:gqa=max_s", turns, 2, 10, 16);
        fresh(r, 12)->n_lists = heads[i][0];
        check_against(r, &s, "snapkv:budget=12:gqa=per_q", turns, 2, 10, 16);
    }
}

static void check_bytes(rig *r)
{
    static const char *const specs[] = {"snapkv:budget=20", "snapkv:budget=20:gqa=per_q"};
    for (int i = 0; i < 2; i++) {
        err e = {0};
        attn_seq *seq;
        fresh(r, 20);
        if (i == 1) s.n_lists = r->shape.n_heads;
        rig_seq(r, &seq, specs[i], DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 50, 16, NULL);
        is_int(attn_seq_positions(seq, 1, 1, NULL), 20, "%s: the budget is what is kept of the prompt", specs[i]);
        check_held(r, &s, seq, 8);
        for (int k = 0; k < 10; k++) rig_decode(r, &seq, 1, got);
        is_int(attn_seq_positions(seq, 1, 1, NULL), 30, "%s: what is generated is added", specs[i]);
        check_held(r, &s, seq, 8);
        attn_stats st = attn_seq_stats(seq);
        ok(st.attended == T_LAYERS * (10 * 20 + 55), "%s: %g attended", specs[i], st.attended);
        attn_seq_free(seq);
    }
}

/* What the window looks at is kept with its neighbours; a window's own tokens do not vote for themselves. */
static void check_planted(rig *r)
{
    err e = {0};
    attn_seq *seq;
    int64_t pos[T_MAX];
    world_flat(r);
    world_plant(23);
    rig_seq(r, &seq, "snapkv:budget=16:window=8", DT_F32, T_MAX, &e);
    rig_prompt(r, &seq, 1, 60, 16, NULL);
    int64_t n = attn_seq_positions(seq, 2, 1, pos);
    bool good = n == 16 && pos[0] == 0;
    for (int64_t i = 1; good && i < n; i++) good = pos[i] == (i < 8 ? 19 + i : 44 + i);
    ok(good, "%s, snapkv: a planted token, its neighbours, the first of the rest, the window", r->be->name);
    attn_seq_free(seq);
    world_back(r);
}

/* Slots are positions: nothing is moved or used again. */
static void check_stores(rig *r)
{
    static const int64_t turns[] = {50, 20};
    check_against(r, fresh(r, 20), "snapkv:budget=20" BY_POSITION, turns, 2, 20, 16);
    fresh(r, 20)->n_lists = r->shape.n_heads;
    s.each_turn = true;
    check_against(r, &s, "snapkv:budget=20:gqa=per_q:recompress_on_turn=1" BY_POSITION, turns, 2, 20, 16);
    check_coded(r, "snapkv:budget=20" IN_CODES, 40);
    check_coded(r, "snapkv:budget=12:gqa=per_q" IN_CODES, 32);
}

static void check_specs(void)
{
    attn_options o = {.kv = kv_exact(DT_F16)};
    attn_spec spec;
    char text[160];
    err e = {0};
    check_refused("snapkv:budget=1", "budget 1 is too small, at least 2");
    check_refused("snapkv:budget=8:window=8", "budget 8 is too small, at least window + 1 = 9");
    check_refused("snapkv:kernel=4", "kernel=4, expected an odd number");
    check_refused("snapkv:window=0", "window=0, at least 1");
    check_refused("snapkv:gqa=vote", "their sum is gqa=sum_s");
    is_ok(attn_spec_parse(&spec, "snapkv:budget=9", &o, &e), &e, "a spec");
    attn_spec_params(&spec, text, sizeof text);
    is_str(text, "budget=9 window=4 kernel=7 pool=max gqa=mean_s recompress_on_turn=0 skip=0 kv=f16", "its parameters");
}

int main(void)
{
    err e = {0};
    world_fill(&w, 13);
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
        check_rewind(&r, "snapkv:budget=20:recompress_on_turn=1", true);
        rig_check_oom(&r, "snapkv:budget=20:skip=1", 5);
        rig_check_oom(&r, "snapkv:budget=20:gqa=per_q", 5);
        rig_close(&r);
    }
    return tap_done();
}
