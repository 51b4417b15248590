/* SPDX-License-Identifier: MIT */
/* The worked example of attention/README.md: a strategy of one's own, complete and tested. */
#include "config.h"

#include "attention/by_count.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

/* ---- the strategy: "comb" attends every m-th token and, with the rest of the budget, the newest ---- */

enum { P_M };
static const attn_param params[] = {[P_M] = {"m", NULL, "distance of the teeth", 4, 1, 1 << 20}, {.key = NULL}};

/* The slots of a step that sees n tokens, ascending; the current token is the last. Returns their number. */
static int64_t comb_slots(const attn_view *v, int layer, int64_t n, int32_t *slot)
{
    (void)layer;
    int64_t m = attn_get(v, P_M), budget = v->spec->budget, count = 0;
    int64_t newest = n - budget + (n - 1) / m + 1; /* teeth that fall among the newest are not taken twice */
    for (int64_t i = 0; i < n && count < budget; i++)
        if (i % m == 0 || i >= newest) slot[count++] = (int32_t)i;
    slot[count - 1] = (int32_t)(n - 1);
    return count;
}

const attn_method attn_comb = {
    .name = "comb",
    .summary = "every m-th token and the newest",
    .source = "attention/README.md",
    .params = params,
    .family = &attn_by_count,
    .kind = &(const by_count_kind){comb_slots},
    .has_budget = true,
    .def_budget = 64,
    .reuse = ATTN_REUSE_ANY,
};

/* ---- its test ---- */

static world w;
static float got[T_LAYERS * T_MAX][T_HEADS][T_DIM], want[T_LAYERS * T_MAX][T_HEADS][T_DIM];

static status open_comb(rig *r, attn_seq **out, int64_t budget, int64_t m, err *e)
{
    attn_spec s = {.method = &attn_comb, .budget = budget, .value = {m}, .kv = kv_plain(DT_F32), .text = "comb"};
    attn_limits lim = {.n_tokens = T_MAX, .chunk = (int64_t)r->rows};
    return attn_seq_create(out, &s, &r->shape, &lim, r->be, e);
}

/* The positions, from the definition. */
static int64_t naive_positions(int64_t n, int64_t budget, int64_t m, int64_t *pos)
{
    int64_t count = 0, teeth = (n + m - 1) / m, left = budget - teeth;
    for (int64_t i = 0; i < n && count < budget; i++)
        if (n <= budget || i % m == 0 || i >= n - left) pos[count++] = i;
    pos[count - 1] = n - 1;
    return count;
}

static void check_steps(rig *r, int64_t budget, int64_t m, int64_t n_prompt)
{
    err e = {0};
    attn_seq *s;
    int64_t pos[T_MAX], n = n_prompt;
    bool good = true, within = true;
    if (!is_ok(open_comb(r, &s, budget, m, &e), &e, "comb: created")) return;
    rig_prompt(r, &s, 1, n_prompt, 16, NULL);
    for (int i = 0; i < 12; i++) {
        rig_decode(r, &s, 1, got);
        int64_t k = naive_positions(++n, budget, m, pos), head, tail;
        int32_t seen[T_MAX];
        for (int l = 0; l < T_LAYERS; l++) oracle_attend(&w, l, n - 1, n - 1, pos, pos, k, want[l]);
        for (int x = 0; x < T_LAYERS * T_HEADS * T_DIM; x++)
            good &= fabsf((&got[0][0][0])[x] - (&want[0][0][0])[x]) < 1e-5f;
        within &= attn_last_selection(r->work, 0, 1, seen, &head, &tail) == k && k <= (n <= budget ? n : budget);
        for (int64_t x = 0; x < k; x++) within &= seen[x] == pos[x];
    }
    ok(good, "comb, budget %d, m %d: 12 steps as the oracle gives them", (int)budget, (int)m);
    ok(within, "comb, budget %d, m %d: within the budget (U7), with the current token (U8)", (int)budget, (int)m);
    attn_seq_free(s);
}

/* U1: a budget that covers everything gives the bits of full attention. */
static void check_full(rig *r)
{
    err e = {0};
    attn_seq *a, *b;
    if (rig_seq(r, &a, "full", DT_F32, T_MAX, &e) || open_comb(r, &b, T_MAX, 3, &e)) {
        ok(false, "U1: %s", e.msg);
        return;
    }
    rig_prompt(r, &a, 1, 40, 16, NULL);
    rig_prompt(r, &b, 1, 40, 16, NULL);
    rig_decode(r, &a, 1, want);
    rig_decode(r, &b, 1, got);
    ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "comb: U1, the bits of full attention");
    attn_seq_free(a);
    attn_seq_free(b);
}

static void check(rig *r)
{
    check_steps(r, 30, 4, 50);
    check_steps(r, 40, 2, 30);
    check_steps(r, 41, 7, 40);
    check_full(r);
}

int main(void)
{
    world_fill(&w, 5);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    return tap_done();
}
