/* SPDX-License-Identifier: MIT */
/* FIER: the method against a naive one; points 9 and 0.3 of methods.md. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_fier.h"

#define T_HEADS 14
#define T_KV    2
#include "tests/unit/ops_util.h"
#include "tests/unit/retrieve_oracle.h"

static double rounded(float x, dtype t)
{
    return (double)(t == DT_F32 ? x : t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x)));
}

/* What stands for channel c of a token, from the formulas, in double; levels rounded to t as they are stored. size: the
 * magnitudes of what is added up to it, the lower level and the way from there to the upper one. */
static double naive_key(const float *k, size_t row, size_t c, size_t n, size_t token, const fier_index *x, double *size)
{
    size_t g = x->group, begin = token / g * g, to = begin + g < n ? begin + g : n, from = begin;
    bool open = to - begin < g;
    double lo = (double)INFINITY, hi = -(double)INFINITY, mean = 0, dev = 0, s[2] = {0}, count[2] = {0},
           own = rounded(k[token * row + c], x->type);
    *size = fabs(own);
    if (open && x->open == FIER_EXACT) return own;
    if (open && x->open == FIER_WINDOW) from = n > g ? n - g : 0;
    for (size_t i = from; i < to; i++) {
        double v = rounded(k[i * row + c], x->type);
        lo = fmin(lo, v);
        hi = fmax(hi, v);
        mean += v / (double)(to - from);
    }
    double z = x->how == FIER_MAD ? mean : 0.5 * (lo + hi);
    for (size_t i = from; i < to; i++) {
        double v = rounded(k[i * row + c], x->type);
        dev += fabs(v - mean) / (double)(to - from);
        s[v >= z] += v;
        count[v >= z]++;
    }
    if (x->how == FIER_MAD) lo = mean - dev, hi = mean + dev;
    if (x->how == FIER_TWO_MEAN) {
        lo = count[0] > 0 ? s[0] / count[0] : s[1] / count[1];
        hi = s[1] / count[1];
    }
    lo = rounded((float)lo, x->type);
    hi = rounded((float)hi, x->type);
    *size = fabs(lo) + fabs(hi - lo);
    return own >= z ? hi : lo;
}

static struct {
    int64_t g, sink, recent, budget;
    fier_open open;
    fier_levels how;
    bool extra;
} par;

/* Keys as the index holds them are the same for all queries of a step. */
static void token_scores(int layer, int64_t n, int kv, const double *q, double *out)
{
    static double key[T_LAYERS][T_KV][T_MAX][T_DIM];
    static int64_t made[T_LAYERS][T_KV];
    static fier_index x;
    if (x.group != (size_t)par.g || x.open != par.open || x.how != par.how) memset(made, 0, sizeof made);
    x = (fier_index){.group = (size_t)par.g, .open = par.open, .how = par.how};
    for (int64_t t = 0; t < n && made[layer][kv] != n; t++)
        for (int c = 0; c < T_DIM; c++) {
            double size;
            key[layer][kv][t][c] =
                naive_key(&rot_k[layer][0][kv][0], T_KV * T_DIM, (size_t)c, (size_t)n, (size_t)t, &x, &size);
        }
    made[layer][kv] = n;
    for (int64_t t = 0; t < n; t++) {
        out[t] = 0;
        for (int c = 0; c < T_DIM; c++) out[t] += q[c] * key[layer][kv][t][c];
    }
}

static void token_rule(int64_t first, int64_t n, naive_rule *r)
{
    r->granule = 1;
    r->k = par.budget;
    for (int64_t t = first; t < n; t++) {
        bool open = par.open == FIER_KEEP && t >= n / par.g * par.g;
        r->forced[t] = t == n - 1 || t >= n - par.recent || t < par.sink || open;
        r->candidate[t] = !r->forced[t];
        if (r->forced[t] && !par.extra) r->k--;
    }
}

static void check_one(rig *r, const char *device, const char *spec, gqa_mode gqa)
{
    naive_method m = {.spec = spec, .budget = par.budget, .gqa = gqa, .score = token_scores, .rule = token_rule};
    check_steps(r, device, &m);
}

static void check_methods(rig *r, const char *device)
{
    static const char *const names[] = {"per_q", "mean_q",     "mean_s",     "sum_s",       "max_s",
                                        "vote",  "layer_mean", "layer_vote", "layer_concat"};
    static const char *const opens[] = {"requant", "exact", "window", "keep"}, *const hows[] = {"range", "mad",
                                                                                                "two_mean"};
    char spec[96];
    for (int g = 0; g < GQA_COUNT; g++) {
        par.g = 8, par.budget = 20;
        snprintf(spec, sizeof spec, "fier:skip=1:g=8:budget=20:gqa=%s", names[g]);
        check_one(r, device, spec, (gqa_mode)g);
    }
    for (int o = 0; o < 4; o++) {
        par.g = 32, par.budget = 40, par.open = (fier_open)o, par.how = (fier_levels)(o % 3);
        snprintf(spec, sizeof spec, "fier:skip=1:budget=40:open=%s:levels=%s", opens[o], hows[o % 3]);
        check_one(r, device, spec, GQA_VOTE);
    }
    par.open = FIER_REQUANT, par.how = FIER_RANGE, par.g = 7, par.budget = 1;
    check_one(r, device, "fier:skip=1:g=7:budget=1", GQA_VOTE);
    par.sink = 3, par.recent = 5, par.budget = 12, par.extra = true;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5:budget_mode=extra", GQA_VOTE);
    par.extra = false;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5", GQA_VOTE);
    r->window[1] = 41;
    r->window[2] = 11;
    check_one(r, device, "fier:skip=1:g=7:budget=12:force_sink=3:force_recent=5", GQA_VOTE);
    r->window[1] = r->window[2] = 0;
    par.sink = par.recent = 0;
}

/* A second level: each mode, groups cut by forced tokens and by a window, and all groups kept. */
static void check_coarse(rig *r, const char *device)
{
    static const struct {
        const char *spec;
        gqa_mode gqa;
    } t[] = {{":gqa=per_q", GQA_PER_Q},
             {":gqa=mean_q", GQA_MEAN_Q},
             {":gqa=max_s", GQA_MAX_S},
             {":gqa=sum_s", GQA_SUM_S},
             {"", GQA_VOTE},
             {":gqa=layer_mean", GQA_LAYER_MEAN},
             {":gqa=layer_vote", GQA_LAYER_VOTE},
             {":gqa=layer_concat", GQA_LAYER_CONCAT}};
    char spec[160];
    naive_method m = {.spec = spec, .score = token_scores, .rule = token_rule};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        par.g = 8, par.budget = 12, m.budget = 12, m.gqa = t[i].gqa, m.coarse = 6, m.groups = 4;
        snprintf(spec, sizeof spec, "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=2%s", t[i].spec);
        check_steps(r, device, &m);
    }
    par.open = FIER_EXACT, par.sink = 3, par.recent = 5, m.gqa = GQA_MAX_S;
    r->window[1] = 41, r->window[2] = 31;
    snprintf(spec, sizeof spec,
             "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=2:open=exact:force_sink=3:force_recent=5:gqa=max_s");
    check_steps(r, device, &m);
    r->window[1] = r->window[2] = 0;
    m.coarse = 0; /* all groups: the rule without them */
    snprintf(spec, sizeof spec,
             "fier:skip=1:g=8:budget=12:coarse=6:coarse_keep=99:open=exact:force_sink=3:force_recent=5:gqa=max_s");
    check_steps(r, device, &m);
    par.open = FIER_REQUANT, par.sink = par.recent = 0;
}

/* pool=entropy, with sharp queries in the last layer. */
static void check_pools(rig *r, const char *device)
{
    static const struct {
        const char *spec;
        gqa_mode gqa;
    } t[] = {
        {"fier:skip=1:g=8:budget=20:pool=entropy", GQA_VOTE},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=per_q", GQA_PER_Q},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=max_s", GQA_MAX_S},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=layer_vote", GQA_LAYER_VOTE},
        {"fier:skip=1:g=8:budget=20:pool=entropy:gqa=mean_q", GQA_MEAN_Q},
    };
    par.g = 8, par.budget = 20;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        naive_method m = {.spec = t[i].spec,
                          .budget = 20,
                          .gqa = t[i].gqa,
                          .score = token_scores,
                          .rule = token_rule,
                          .pooled = true};
        if (check_steps(r, device, &m)) check_pool(r, device, t[i].spec);
    }
    /* A window cuts the candidates of a layer; forced tokens and those beyond it. */
    par.sink = 3, par.recent = 5, par.budget = 14;
    r->window[1] = 31;
    naive_method m = {.spec = "fier:skip=1:g=8:budget=14:force_sink=3:force_recent=5:pool=entropy",
                      .budget = 14,
                      .gqa = GQA_VOTE,
                      .score = token_scores,
                      .rule = token_rule,
                      .pooled = true};
    check_steps(r, device, &m);
    ok(pool.spent <= pool.allowed, "%s, %s: within the budget of all layers (U7)", device, m.spec);
    r->window[1] = 0;
    par.sink = par.recent = 0;
}

static size_t index_bytes(int64_t n)
{
    size_t row = T_KV * T_DIM * 2, groups = (size_t)(n + 31) / 32;
    return groups * 32 * 4 * T_KV + groups * 2 * row + 32 * row;
}

static size_t two_levels(int64_t n)
{
    return index_bytes(n) + (size_t)(n + 15) / 16 * 2 * T_KV * T_DIM * 2;
}

int main(void)
{
    if (no_device()) return 0;
    world_rotate(6);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s opened", METHOD_DEVICES[d])) continue;
        check_methods(&r, METHOD_DEVICES[d]);
        check_coarse(&r, METHOD_DEVICES[d]);
        check_rewind(&r, "fier:skip=1:budget=16:g=8:coarse=12:coarse_keep=1", DT_F16);
        check_bytes(&r, "fier:skip=1:budget=24:coarse=16:coarse_keep=1", two_levels);
        rig_check_oom(&r, "fier:skip=1:budget=24:coarse=16", 12);
        check_rewind(&r, "fier:skip=1:budget=32:g=8", DT_F16);
        check_rewind(&r, "fier:skip=2:budget=16:open=window", DT_BF16);
        check_rewind(&r, "fier:skip=0:budget=16:open=exact:g=16", DT_F32);
        check_bytes(&r, "fier:skip=1:budget=24", index_bytes);
        rig_check_oom(&r, "fier:skip=1:budget=24:gqa=mean_q", 12);
        rig_close(&r);
    }
    world_sharpen(6);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!rig_open_pools(&r, METHOD_DEVICES[d], &w, 64)) continue;
        check_pools(&r, METHOD_DEVICES[d]);
        check_bytes(&r, "fier:skip=1:budget=24:pool=entropy", index_bytes);
        rig_check_oom(&r, "fier:skip=1:budget=24:pool=entropy", 12);
        rig_close(&r);
    }
    check_budget("fier:budget=31:open=keep", "at least 32");
    check_budget("fier:budget=8:force_sink=4:force_recent=5", "at least 9");
    check_races();
    return tap_done();
}
