/* SPDX-License-Identifier: MIT */
/* TokenSelect's ops: exact scores, votes that are used again, copies of rows. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_codes.h"
#include "kernels/ops_select.h"
#include "kernels/ops_token.h"
#include "tests/unit/op_attn.h"

/* Returns a selection state, fresh if p is 1; p 2: no state, which counts as fresh. */
static buf state_of(op_run *x, int64_t p, int64_t end, int64_t lo, int64_t hi)
{
    const int64_t s[TOKEN_STATE] = {p, 3, end, lo, p ? hi - lo : 0};
    return p == 2 ? (buf){NULL} : op_in(x, s, sizeof s);
}

static buf some(op_run *x, size_t n)
{
    float *f = random_f32(&x->r, n);
    buf b = op_inout(x, f, 4 * n, BITS, 0);
    free(f);
    return b;
}

static void score(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], kv = (size_t)p[1], heads = kv * (size_t)p[2], cap = (size_t)p[3];
    kv_rows rows = op_rows(x, kv, dim, cap, (dtype)p[4], (int)p[5], p[6]);
    int64_t lo = p[7] < (int64_t)cap ? p[7] : 0, hi = (int64_t)cap - (cap > 5 ? 2 : 0);
    token_score_job j = {.q = op_floats(x, heads * dim),
                         .n_heads = heads,
                         .rows = rows,
                         .lo = lo,
                         .hi = hi,
                         .score = some(x, heads * (cap + 1)),
                         .stride = cap + 1,
                         .state = state_of(x, p[8], 0, lo, hi),
                         .read = op_read(x)};
    x->be->ops->token->score(x->be, &j);
}

/* Those of combine over the scores, also where all but a few tokens' exp underflow. */
static void votes(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], kv = (size_t)p[1], heads = kv * (size_t)p[2], cap = (size_t)p[3];
    token_score_job j = {.q = op_floats(x, heads * dim),
                         .n_heads = heads,
                         .rows = op_rows(x, kv, dim, cap, (dtype)p[4], (int)p[5], 0),
                         .lo = p[6] < (int64_t)cap ? p[6] : 0,
                         .hi = (int64_t)cap,
                         .score = op_in(x, NULL, 4 * heads * cap),
                         .stride = cap,
                         .scale = p[7] ? 200 : 0.25f,
                         .read = op_read(x)};
    buf by_two = op_inout(x, NULL, 4 * cap, UNIT, p[7] ? 2e-3 : 2e-5),
        at_once = op_inout(x, NULL, 4 * cap, UNIT, p[7] ? 2e-3 : 2e-5);
    combine_job c;
    x->be->ops->token->score(x->be, &j);
    j.votes = by_two;
    c = token_votes(&j);
    x->be->ops->select->combine(x->be, &c, 1);
    j.votes = at_once;
    x->be->ops->token->score(x->be, &j);
    op_same(x, by_two, at_once, 4 * cap, "votes are scores and combine");
}

/* Queries on both sides of the cosine, and as often as a selection may be used. */
static void match(op_run *x, const int64_t *p)
{
    enum { MOST = 2 };
    size_t parts = (size_t)p[0], part = (size_t)p[1], n = parts * part;
    float *u = random_f32(&x->r, n), *away = random_f32(&x->r, n), *near = xmalloc(4 * n), *zero = xmalloc(4 * n);
    memset(zero, 0, 4 * n);
    const int64_t none[TOKEN_STATE] = {7, -1, 7, 7, 7};
    for (size_t i = 0; i < n; i++) near[i] = 3 * u[i] + 0.01f * away[i], away[i] = i % 2 ? away[i] : -5 * u[i];
    token_cache c = {.probe = op_inout(x, zero, 4 * n, BITS, 0),
                     .state = op_inout(x, none, sizeof none, BITS, 0),
                     .n_parts = parts,
                     .part = part,
                     .least = 0.9f,
                     .most = MOST};
    const struct {
        const float *u;
        int fresh, again, end;
    } steps[] = {{u, 1, 0, 20},    {near, 0, 1, 20}, {u, 0, 2, 20},    {u, 1, 0, 23},
                 {away, 1, 0, 24}, {away, 0, 1, 24}, {zero, 1, 0, 26}, {zero, 1, 0, 27}};
    for (int i = 0; i < 8; i++) {
        x->be->ops->token->match(x->be, &c, op_in(x, steps[i].u, 4 * n), 5 + i, 20 + i);
        int64_t *s = op_see(x, c.state, sizeof none);
        op_note(x, s[TOKEN_FRESH] == steps[i].fresh && s[TOKEN_AGAIN] == steps[i].again, "step %d: %d, used %d times",
                i, (int)s[TOKEN_FRESH], (int)s[TOKEN_AGAIN]);
        op_note(x,
                s[TOKEN_END] == steps[i].end && s[TOKEN_FIRST] == 5 + i && s[TOKEN_COUNT] == (steps[i].fresh ? 15 : 0),
                "step %d: up to %d, %d to score", i, (int)s[TOKEN_END], (int)s[TOKEN_COUNT]);
        free(s);
    }
    free(u), free(away), free(near), free(zero);
}

static void keep(op_run *x, const int64_t *p)
{
    enum { N = 300 };
    int64_t lo = p[0], hi = p[1];
    float *in = random_f32(&x->r, N);
    for (size_t i = 0; i < N && p[3]; i++) in[i] = i % 3 ? NAN : i % 7 ? in[i] : -INFINITY;
    x->be->ops->token->keep(x->be, some(x, N), op_in(x, in, 4 * N), lo, hi, state_of(x, p[2], hi - 9, lo, hi));
    free(in);
}

static void gather(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], kv = (size_t)p[1], cap = (size_t)p[2], n = cap / 2 + 1;
    kv_rows rows = op_rows(x, kv, dim, cap, (dtype)p[3], (int)p[4], p[5]), out = {.type = DT_F32, .n_kv_heads = kv};
    int32_t *idx = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) idx[i] = (int32_t)(2 * i < cap ? 2 * i : cap - 1);
    out.head_dim = dim, out.cap = n + 3;
    out.k = op_out(x, 4 * kv * out.cap * dim, BITS, 0);
    out.v = op_out(x, 4 * kv * out.cap * dim, BITS, 0);
    x->be->ops->token->gather(x->be, &out, &rows, op_in(x, idx, 4 * n), (int64_t)n, op_read(x));
    free(idx);
}

/* The example of doc/methods.md 12.4: two heads over four keys, three to choose; with the model's factor and without.
 */
static void example(op_run *x, const int64_t *p)
{
    static const float products[2][4] = {{8, 6, 0, 0}, {0, 0, 4, 3}};
    static const float votes[2][4] = {{.679f, .469f, .470f, .382f}, {.893f, .132f, .712f, .262f}};
    static const int32_t best[2][3] = {{0, 1, 2}, {0, 2, 3}};
    buf out = op_out(x, sizeof votes[0], UNIT, 1e-5), idx = op_out(x, sizeof best[0], BITS, 0);
    const combine_job j = {.out = out,
                           .in = op_in(x, products, sizeof products),
                           .stride = 4,
                           .n_heads = 2,
                           .n_lists = 1,
                           .hi = 4,
                           .mode = GQA_LAYER_VOTE,
                           .scale = p[0] ? 1 : 0.25f};
    const choose_job c = {.score = out,
                          .n_lists = 1,
                          .stride = 4,
                          .items = {4, 0, 4},
                          .tail = 4,
                          .k = 3,
                          .granule = 1,
                          .most = 4,
                          .idx_stride = 3,
                          .idx = idx,
                          .range = op_range(x, 0, 0)};
    x->be->ops->select->combine(x->be, &j, 1);
    x->be->ops->select->choose(x->be, &c, 1);
    float *v = op_see(x, out, sizeof votes[0]);
    for (int i = 0; i < 4; i++)
        op_note(x, fabsf(expf(v[i]) - votes[p[0]][i]) < 6e-4f, "vote %d: %g", i, (double)expf(v[i]));
    op_same(x, idx, op_in(x, best[p[0]], sizeof best[0]), sizeof best[0], "tokens");
    free(v);
}

#define NONE OP_P(0)
#define DIMS OP_P(2, 6, 16, 18, 64, 80, 128, 256)

static const op_test tests[] = {
    {"token: scores",
     score,
     160,
     11,
     37,
     {DIMS, OP_P(1, 2, 3), OP_P(1, 2, 4, 7), OP_P(1, 7, 40, 301, 700), OP_TYPES, OP_P(0, 0, 2, 4), OP_BOOL,
      OP_P(0, 3, 250), OP_P(0, 1, 2)}},
    {"token: scores of a wide group",
     score,
     3,
     1,
     0,
     {OP_P(256), OP_P(1), OP_P(60), OP_P(40), OP_TYPES, NONE, NONE, NONE, NONE}},
    {"token: votes",
     votes,
     90,
     9,
     23,
     {DIMS, OP_P(1, 2, 3), OP_P(1, 2, 4, 7), OP_P(1, 40, 2049, 4500), OP_TYPES, OP_P(0, 0, 4), OP_P(0, 3, 250),
      OP_BOOL}},
    {"token: selections used again", match, 30, 4, 7, {OP_P(1, 2, 7, 32), OP_P(2, 16, 30, 64, 128)}},
    {"token: votes that are held", keep, 36, 1, 0, {OP_P(0, 3, 40), OP_P(40, 60, 300), OP_P(0, 1), OP_BOOL}},
    {"token: copies of rows",
     gather,
     60,
     7,
     17,
     {DIMS, OP_P(1, 2, 3), OP_P(1, 7, 40, 601), OP_TYPES, OP_P(0, 0, 2, 4), OP_BOOL}},
    {"token: the worked example", example, 2, 1, 1, {OP_BOOL}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
