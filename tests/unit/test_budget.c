/* SPDX-License-Identifier: MIT */
/* Budgets that travel across layers (attention/budget.h) against the formulas of methods.md 9.3 and 9.7. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "attention/budget.h"
#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tests/tap.h"

enum { LAYERS = 6, ITEMS = 300, WINDOWS = 3, NOMINAL = 46 };

/* Layer 2 is dense and takes no part. */
static const bool layers[LAYERS] = {true, true, false, true, true, true};
enum { SHARING = 5 };

typedef struct {
    backend *be;
    attn_shape shape;
    attn_limits lim;
    attn_view v;
    attn_decl d;
    buf score;
    item_scores s;
} rig;

static bool rig_open(rig *r, const char *device)
{
    backend_options o = {.device = device, .n_threads = 2};
    err e = {0};
    *r = (rig){.shape = {.n_layers = LAYERS}};
    status st = backend_open(&r->be, &o, &e);
    if (st == ST_OK) st = r->be->ops->alloc(r->be, &r->score, ITEMS * sizeof(float), "scores", &e);
    if (!is_ok(st, &e, "%s backend", device)) return false;
    r->v = (attn_view){.shape = &r->shape, .layers = layers, .be = r->be};
    r->s = (item_scores){r->score, 1, ITEMS, {ITEMS, 0, ITEMS}};
    return true;
}

static void rig_close(rig *r)
{
    r->be->ops->free(r->be, r->score, ITEMS * sizeof(float));
    backend_close(r->be);
}

/* Scores of one layer: the larger `sharp`, the smaller their entropy, which is returned. */
static double set_scores(rig *r, rng *x, float sharp)
{
    float s[ITEMS];
    double z = 0, sum = 0;
    for (int i = 0; i < ITEMS; i++) s[i] = sharp * rng_float(x);
    r->be->ops->upload(r->be, r->score, s, sizeof s);
    for (int i = 0; i < ITEMS; i++) z += exp((double)s[i]);
    for (int i = 0; i < ITEMS; i++) sum -= exp((double)s[i]) / z * log(exp((double)s[i]) / z);
    return sum;
}

/* A budget with the buffers that it declares. */
static void budget_make(rig *r, attn_budget *b, int64_t pool)
{
    err e = {0};
    *b = (attn_budget){0};
    r->d = (attn_decl){.shape = &r->shape, .lim = &r->lim};
    budget_declare(&r->d, 0, MEM_STATE, WINDOWS);
    for (int i = 0; i < r->d.n_mem; i++) {
        const mem_decl *m = &r->d.mem[i];
        void *to = (char *)b + m->at;
        status st = m->kind == MEM_HOST ? mem_alloc(to, m->item, 1, m->name, &e)
                                        : r->be->ops->alloc(r->be, to, m->item, m->name, &e);
        if (!is_ok(st, &e, "%s", m->name)) abort();
    }
    budget_reset(b, &r->v, pool);
}

static void budget_drop(rig *r, attn_budget *b)
{
    for (int i = 0; i < r->d.n_mem; i++) {
        const mem_decl *m = &r->d.mem[i];
        void *at = (char *)b + m->at;
        if (m->kind == MEM_HOST) mem_free(*(void **)at);
        else r->be->ops->free(r->be, *(buf *)at, m->item);
    }
}

static int64_t take(rig *r, attn_budget *b, int layer, size_t window)
{
    int64_t k;
    r->be->ops->download(r->be, &k, budget_take(b, layer, window, &r->s, 1), sizeof k);
    return k;
}

typedef struct {
    double sum[LAYERS];
    int64_t count, pool[WINDOWS];
} naive;

static int64_t naive_take(naive *x, int layer, size_t window, double theta)
{
    double later = 0, share;
    int64_t left = 1, lo = NOMINAL * 7 / 10, hi = 2 * NOMINAL;
    for (int j = layer + 1; j < LAYERS; j++) {
        if (!layers[j]) continue;
        left++;
        if (x->count) later += x->sum[j] / (double)x->count;
    }
    share = x->count ? theta / (theta + later) : 1 / (double)left;
    int64_t b = (int64_t)floor(share * (double)x->pool[window] + 0.5);
    b = b < lo ? lo : b > hi ? hi : b;
    if (b > x->pool[window] - lo * (left - 1)) b = x->pool[window] - lo * (left - 1);
    x->pool[window] -= b;
    return b;
}

/* Forwards of several windows, layer by layer as attention runs them; the sums take part from the next one on. */
static void check_forwards(rig *r, const char *device)
{
    attn_budget b;
    naive x = {0};
    rng g = {5};
    bool same = true, uniform = true, within = true;
    budget_make(r, &b, POOL_ENTROPY);
    for (int step = 0; step < 8; step++) {
        size_t windows = step % 2 ? 1 : WINDOWS;
        double theta[WINDOWS][LAYERS];
        int64_t total[WINDOWS] = {0};
        budget_open(&b, NOMINAL, windows);
        for (size_t w = 0; w < windows; w++) x.pool[w] = SHARING * NOMINAL;
        for (int l = 0; l < LAYERS; l++)
            for (size_t w = 0; w < windows && layers[l]; w++) {
                theta[w][l] = set_scores(r, &g, (float)(l * step) * 3 * rng_float(&g));
                int64_t k = take(r, &b, l, w), want = naive_take(&x, l, w, theta[w][l]);
                same &= k == want;
                uniform &= step > 0 || k == NOMINAL;
                total[w] += k;
                within &= total[w] <= SHARING * NOMINAL;
            }
        budget_close(&b);
        for (int l = 0; l < LAYERS; l++)
            for (size_t w = 0; w < windows && layers[l]; w++) x.sum[l] += theta[w][l];
        x.count += (int64_t)windows;
    }
    ok(same, "%s: shares by entropy over the layers that take part", device);
    ok(uniform, "%s: uniform until a full step exists", device);
    ok(within, "%s: no pool is overdrawn", device);
    budget_reset(&b, &r->v, POOL_ENTROPY);
    budget_open(&b, NOMINAL, 1);
    bool again = true;
    for (int l = 0; l < LAYERS; l++) {
        if (!layers[l]) continue;
        set_scores(r, &g, (float)(10 * l));
        again &= take(r, &b, l, 0) == NOMINAL;
    }
    ok(again, "%s: uniform again after reset", device);
    budget_close(&b);
    budget_open(&b, 7, 0);
    is_int(take(r, &b, 3, 0), 7, "%s: a forward without pools has the nominal number", device);
    budget_close(&b);
    budget_open(&b, 9, 1);
    is_int(take(r, &b, 0, 1), 9, "%s: so has a window without one", device);
    budget_drop(r, &b);
}

static void check_fixed(rig *r, const char *device)
{
    attn_budget b;
    rng g = {6};
    bool same = true;
    budget_make(r, &b, POOL_FIXED);
    for (int64_t nominal = 3; nominal < 6; nominal++) {
        budget_open(&b, nominal, 1);
        for (int l = 0; l < LAYERS; l++) {
            set_scores(r, &g, (float)l);
            same &= take(r, &b, l, 0) == nominal;
        }
        budget_close(&b);
    }
    ok(same && budget_most(POOL_FIXED, 5) == 5 && budget_most(POOL_ENTROPY, 5) == 10,
       "%s: fixed budgets are what was asked for", device);
    budget_drop(r, &b);
}

int main(void)
{
    static const char *const devices[] = {"ref", "cpu"};
    for (int d = 0; d < 2; d++) {
        rig r;
        if (!rig_open(&r, devices[d])) return tap_done();
        check_forwards(&r, devices[d]);
        check_fixed(&r, devices[d]);
        rig_close(&r);
    }
    return tap_done();
}
