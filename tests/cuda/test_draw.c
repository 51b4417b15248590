/* SPDX-License-Identifier: MIT */
/* Selection of the next token on the device: the host's result for the same share or noise. */
/* Builds: shim race device */
#include "config.h"

#include "tests/cuda/cuda_util.h"
#include "tests/unit/draw_rows.h"

enum { ROWS = 2 * N_RULES };

/* True if a slightly different share gives the item: then rounding decides, since the device sums in another order. */
static bool is_beside(const draw_rule *r, const float *x, size_t n, float share, int32_t got)
{
    float *copy = xmalloc(n * sizeof *copy);
    bool near = false;
    for (int k = -1; k <= 1; k += 2) {
        float other = nextafterf(share, k < 0 ? 0.0f : 1.0f);
        memcpy(copy, x, n * sizeof *copy);
        near |= (int32_t)draw_by_rule(r, copy, n, other) == got;
    }
    free(copy);
    return near;
}

static void check_rows(backend *be, group *g, size_t n, int kind, rng *r, int *n_near)
{
    device d = {.be = be};
    draw *work;
    err e = {0};
    draw_rule rule[ROWS];
    float share[ROWS], *x = xmalloc(ROWS * n * sizeof *x), *copy = xmalloc(n * sizeof *x);
    int32_t got[2 * ROWS], again[2 * ROWS];
    if (draw_create(&work, n, &e) != ST_OK) printf("Bail out! %s\n", e.msg);
    for (size_t i = 0; i < ROWS; i++) {
        make_row(x + i * n, n, kind, r);
        rule[i] = rules[i % N_RULES];
        rule[i].work = work;
        rule[i].seed = i;
        rule[i].pos = (int64_t)n + (int64_t)i;
        share[i] = i / N_RULES ? rng_float(r) : i % 4 ? 0.99999994f : 0;
    }
    buf in = put(&d, x, ROWS * n * sizeof *x), shares = put(&d, share, sizeof share), ids = put(&d, got, sizeof got);
    for (int o = 0; o < n_orders(); o++) {
        set_order(o);
        be->ops->draw(be, ids, in, ROWS, n, rule, shares);
        be->ops->download(be, o ? again : got, ids, sizeof got);
    }
    group_note(g, n_orders() == 1 || memcmp(got, again, sizeof got) == 0, "%zu ids, kind %d: in any order", n, kind);
    for (size_t i = 0; i < ROWS; i++) {
        memcpy(copy, x + i * n, n * sizeof *x);
        int32_t want = (int32_t)draw_by_rule(&rule[i], copy, n, share[i]);
        bool near = got[i] != want && rule[i].how == DRAW_RANK && is_beside(&rule[i], x + i * n, n, share[i], got[i]);
        *n_near += near;
        group_note(g, got[ROWS + i] == draw_finite(x + i * n, n), "%zu ids, kind %d: finite or not", n, kind);
        group_note(g, got[i] == want || near, "%zu ids, kind %d, rule %zu, share %.8f: %d, the host's is %d", n, kind,
                   i % N_RULES, (double)share[i], got[i], want);
    }
    draw_free(work);
    drop(&d);
    free(x), free(copy);
}

int main(void)
{
    static const size_t sizes[] = {1, 5, 130, 1500, 5000};
    backend *be = open_cuda();
    rng r = {7};
    int n_near = 0;
    if (!be) return 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        group g = {0};
        for (int kind = 0; kind < KINDS; kind++) check_rows(be, &g, sizes[i], kind, &r, &n_near);
        group_end(&g, "the next token", where());
    }
    ok(n_near <= 2, "%s, %d choices are the host's for a share next to theirs", where(), n_near);
    check_end(be);
    return tap_done();
}
