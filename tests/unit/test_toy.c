/* SPDX-License-Identifier: MIT */
/* The worked example of attention/README.md: a strategy of one's own, complete and tested. */
#include "config.h"

#include "attention/method.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

/* ---- the strategy: "comb" attends every m-th token and, with the rest of the budget, the newest ---- */

enum { P_M };
static const attn_param params[] = {[P_M] = {"m", NULL, "distance of the teeth", 4, 1, 1 << 20},
                                    {.key = NULL}};

typedef struct {
    attn_ctx base;
    attn_ctx *all;  /* rows, prompts, and short contexts are those of `full` */
    buf list;       /* i64 {0, count}, then the slots i32 [n_tokens] */
    int64_t n, *host; /* slots of this step; what is uploaded */
} comb;

static size_t list_bytes(const attn_limits *lim)
{
    return 2 * sizeof(int64_t) + (size_t)lim->n_tokens * sizeof(int32_t);
}

/* The composition counts tokens in our state; the borrowed one follows. */
static attn_ctx *all_of(const attn_ctx *c)
{
    attn_ctx *all = ((const comb *)c)->all;
    all->length = c->length;
    return all;
}

static void comb_free(attn_ctx *base)
{
    comb *c = (comb *)base;
    if (c->all) attn_full.free(c->all);
    if (c->list.p) base->be->ops->free(base->be, c->list, list_bytes(base->lim));
    mem_free(c->host);
    mem_free(c);
}

static status comb_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    comb *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    c->base = *base;
    status st = attn_full.create(&c->all, base, e);
    if (st == ST_OK) st = base->be->ops->alloc(base->be, &c->list, list_bytes(base->lim), "comb: list", e);
    if (st == ST_OK) st = mem_alloc((void **)&c->host, list_bytes(base->lim), 1, "comb: list", e);
    if (st != ST_OK) comb_free(&c->base);
    else *out = &c->base;
    return st;
}

/* What follows from the count of tokens is made here, once for all layers: uploads are allowed. */
static void comb_step_begin(attn_ctx *base, const attn_part *p)
{
    comb *c = (comb *)base;
    int64_t n = base->length + (int64_t)p->n_tok, m = attn_get(base, P_M), budget = base->spec->budget;
    int32_t *slot = (int32_t *)(void *)(c->host + 2);
    attn_full.step_begin(all_of(base), p);
    c->n = 0;
    if ((p->flags & ATTN_PROMPT) || n <= budget) return;
    int64_t newest = n - budget + (n - 1) / m + 1; /* teeth that fall among the newest are not taken twice */
    for (int64_t i = 0; i < n && c->n < budget; i++)
        if (i % m == 0 || i >= newest) slot[c->n++] = (int32_t)i;
    if (slot[c->n - 1] != n - 1) slot[c->n - 1] = (int32_t)(n - 1); /* U8: the current token */
    c->host[0] = 0;
    c->host[1] = c->n;
    base->be->ops->upload(base->be, c->list, c->host, list_bytes(base->lim));
}

static void comb_append(attn_ctx *base, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    attn_full.append(((comb *)base)->all, p, layer, k_raw, k, v);
}

static void comb_select(attn_ctx *base, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    comb *c = (comb *)base;
    attn_full.select(c->all, p, layer, q_raw, q, sel); /* one segment: everything */
    if (c->n == 0) return;
    sel->seg[0].range = c->list;
    sel->seg[0].idx = buf_at(c->list, 2 * sizeof(int64_t));
    sel->seg[0].n_max = base->spec->budget;
    sel->tail = base->length; /* the current token is attended whatever its score */
}

static void comb_layer_end(attn_ctx *base, const attn_part *p, int layer)
{
    attn_full.layer_end(((comb *)base)->all, p, layer);
}

static void comb_step_end(attn_ctx *base, const attn_part *p)
{
    attn_full.step_end(((comb *)base)->all, p);
}

static void comb_reset(attn_ctx *base)
{
    attn_full.reset(all_of(base));
}

static const char *comb_rewind(attn_ctx *base, int64_t n)
{
    return attn_full.rewind(all_of(base), n);
}

static bool comb_exact_prompt(const attn_ctx *c, int64_t n)
{
    return attn_full.exact_prompt(all_of(c), n);
}

static status comb_state(attn_ctx *base, attn_state *s, err *e)
{
    return attn_full.state(all_of(base), s, e); /* the list is made anew in each step */
}

static void comb_held(const attn_ctx *c, int64_t n_new, attn_bytes *out)
{
    attn_full.held(all_of(c), n_new, out);
    out->scratch += list_bytes(c->lim);
}

static int64_t comb_attended(const attn_ctx *c, int layer)
{
    return ((const comb *)c)->n ? ((const comb *)c)->n : attn_full.attended(all_of(c), layer);
}

static int64_t comb_positions(const attn_ctx *c, int layer, int head, int64_t *out)
{
    return attn_full.positions(all_of(c), layer, head, out);
}

static status comb_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                        const bool *layers, err *e)
{
    out->scratch += list_bytes(lim);
    return attn_full.plan(out, s, shape, lim, layers, e);
}

static const attn_method comb_method = {
    .name = "comb", .summary = "every m-th token and the newest", .source = "attention/README.md",
    .params = params, .retrieves = true, .has_budget = true, .def_budget = 64, .plan = comb_plan,
    .create = comb_create, .free = comb_free, .reset = comb_reset, .exact_prompt = comb_exact_prompt,
    .step_begin = comb_step_begin, .append = comb_append, .select = comb_select,
    .layer_end = comb_layer_end, .step_end = comb_step_end, .rewind = comb_rewind, .state = comb_state,
    .held = comb_held, .attended = comb_attended, .positions = comb_positions,
};

/* ---- its test ---- */

static world w;
static float got[T_LAYERS * T_MAX][T_HEADS][T_DIM], want[T_LAYERS * T_MAX][T_HEADS][T_DIM];

static status open_comb(rig *r, attn_seq **out, int64_t budget, int64_t m, err *e)
{
    attn_spec s = {.method = &comb_method, .budget = budget, .value = {m}, .kv = kv_exact(DT_F32),
                   .text = "comb"};
    attn_limits lim = {T_MAX, (int64_t)r->rows};
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

int main(void)
{
    static const char *const devices[] = {"ref", "cpu"};
    world_fill(&w, 5);
    for (int d = 0; d < 2; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, devices[d], &w, 64, &e), &e, "%s backend", devices[d])) return tap_done();
        check_steps(&r, 30, 4, 50);
        check_steps(&r, 40, 2, 30);
        check_steps(&r, 41, 7, 40);
        check_full(&r);
        rig_close(&r);
    }
    return tap_done();
}
