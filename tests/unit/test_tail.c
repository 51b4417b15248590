/* SPDX-License-Identifier: MIT */
/* tail: a step attends what its lists hold and the mean of the rest, against sums in double; what has no tail. */
/* Builds: shim race */
#include "config.h"

#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

enum { PROMPT = 61, STEPS = 20 };
typedef float head_rows[T_HEADS][T_DIM];

static world w;

/* Adds e^x times v to a sum [T_DIM + 1], the last one the weights'. */
static void take(double *sum, double x, const double *v)
{
    for (int c = 0; c < T_DIM; c++) sum[c] += exp(x) * v[c];
    sum[T_DIM] += exp(x);
}

/* Head h of position n - 1 in a layer over the positions pos [k] and, of each group of `size` tokens, the mean of the
 * others. */
static void attend(int layer, int h, int64_t n, const int32_t *pos, int64_t k, int64_t size, double out[T_DIM])
{
    int kv = h / (T_HEADS / T_KV);
    double scale = 1 / sqrt((double)T_DIM), sum[T_DIM + 1] = {0};
    for (int64_t first = 0, i = 0, t = 0; first < n; first += size) {
        double mean[T_DIM] = {0}, logit = 0, m = 0;
        for (; t < n && t < first + size; t++) {
            double v[T_DIM], x = scale * rotated_dot(&w, w.q[layer][n - 1][h], n - 1, w.k[layer][t][kv], t);
            bool listed = i < k && pos[i] == t;
            for (int c = 0; c < T_DIM; c++) v[c] = (double)w.v[layer][t][kv][c];
            if (listed) take(sum, x, v);
            for (int c = 0; c < T_DIM && !listed; c++) mean[c] += v[c];
            logit += listed ? 0 : x;
            m += !listed;
            i += listed;
        }
        for (int c = 0; c < T_DIM && m > 0; c++) mean[c] /= m;
        if (m > 0) take(sum, logit / m + log(m), mean);
    }
    for (int c = 0; c < T_DIM; c++) out[c] = sum[c] / sum[T_DIM];
}

/* The last layer, whose selection can be asked for. */
static double worst_of(rig *r, attn_seq *s, int64_t size, bool *whole)
{
    static head_rows got[T_LAYERS];
    int32_t pos[T_MAX];
    int64_t head_end, from;
    double worst = 0, want[T_DIM];
    rig_decode(r, &s, 1, got);
    int64_t n = attn_seq_length(s);
    for (int h = 0; h < T_HEADS; h++) {
        int64_t k = attn_last_selection(r->work, 0, h, pos, &head_end, &from);
        *whole |= k == n;
        attend(T_LAYERS - 1, h, n, pos, k, size, want);
        for (int c = 0; c < T_DIM; c++) worst = fmax(worst, fabs(want[c] - (double)got[T_LAYERS - 1][h][c]));
    }
    return worst;
}

static void check_spec(rig *r, const char *spec)
{
    err e = {0};
    attn_seq *s;
    double worst = 0;
    bool whole = false;
    const int64_t groups = atoll(strstr(spec, ":tail=") + strlen(":tail=")), size = groups ? groups : T_MAX;
    if (left_out(2, 6) || !is_ok(rig_seq(r, &s, spec, DT_F32, T_MAX, &e), &e, "%s: created", spec)) return;
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    for (int t = 0; t < STEPS; t++) worst = fmax(worst, worst_of(r, s, size, &whole));
    is_ok(attn_seq_rewind(s, PROMPT + 3, &e), &e, "%s: back", spec);
    for (int t = 0; t < 3; t++) worst = fmax(worst, worst_of(r, s, size, &whole));
    ok(worst < 1e-5 && !whole, "%s, %s: the lists and the mean of the rest, off by %.1e", r->be->name, spec, worst);
    attn_seq_free(s);
}

/* A sample of all that is left is full attention; one of a few depends on its seed, not on the chunk; what it says was
 * missed is counted once a layer, head and step. */
static void check_sample(rig *r)
{
    static head_rows row[4][STEPS][T_LAYERS];
    static const char *const specs[] = {"full", "fier:skip=0:g=8:budget=16:tail=sample:200",
                                        "fier:skip=0:g=8:budget=16:tail=sample:5",
                                        "fier:skip=0:g=8:budget=16:tail=sample:5:tail_seed=1"};
    static head_rows again[T_LAYERS];
    double off = 0, exact = 0;
    for (int i = 0; i < 4; i++) {
        err e = {0};
        attn_seq *s;
        if (!is_ok(rig_seq(r, &s, specs[i], DT_F32, T_MAX, &e), &e, "%s: created", specs[i])) return;
        rig_prompt(r, &s, 1, PROMPT, 16, NULL);
        for (int t = 0; t < STEPS; t++) rig_decode(r, &s, 1, row[i][t]);
        attn_stats a = attn_seq_stats(s);
        is_int((long long)a.measured, i ? STEPS * T_LAYERS * T_HEADS : 0, "%s: shares that were measured", specs[i]);
        ok(i == 0 || (a.missed > 0 && a.missed < a.measured && (i == 1) == (a.missed_var == 0)),
           "%s: %.4f of the attention is missed, variance %.1e", specs[i], a.missed / fmax(a.measured, 1),
           a.missed_var);
        if (i == 1) exact = a.missed;
        attn_seq_free(s);
        if (i != 2) continue;
        ok(fabs(a.missed - exact) < 0.1 * exact, "%s: about what is missed: %.3f, %.3f", r->be->name, a.missed, exact);
        rig_seq(r, &s, specs[i], DT_F32, T_MAX, &e);
        rig_prompt(r, &s, 1, PROMPT, 64, NULL);
        bool same = true;
        for (int t = 0; t < STEPS; t++) {
            rig_decode(r, &s, 1, again);
            same &= memcmp(again, row[i][t], sizeof again) == 0;
        }
        is_ok(attn_seq_rewind(s, PROMPT + 3, &e), &e, "%s: back", specs[i]);
        rig_decode(r, &s, 1, again);
        ok(same && memcmp(again, row[i][3], sizeof again) == 0,
           "%s: the same draws at other chunks, and after a rewind", r->be->name);
        attn_seq_free(s);
    }
    for (size_t i = 0; i < sizeof row[0] / sizeof(float); i++)
        off = fmax(off, fabs((double)((float *)row[0])[i] - (double)((float *)row[1])[i]));
    ok(off < 1e-5, "%s: a sample of all that is left: full attention to %.1e", r->be->name, off);
    ok(memcmp(row[2], row[3], sizeof row[2]) != 0, "%s: another seed, another sample", r->be->name);
}

/* What attends the same with and without: n tokens, windows of layers. */
static void check_none(rig *r, int window, int64_t budget, const char *what)
{
    static head_rows with[STEPS][T_LAYERS], without[STEPS][T_LAYERS];
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = window;
    for (int tail = 0; tail < 2; tail++) {
        char spec[64];
        err e = {0};
        attn_seq *s;
        snprintf(spec, sizeof spec, "fier:skip=0:g=8:budget=%d:tail=%s", (int)budget, tail ? "all" : "off");
        if (!is_ok(rig_seq(r, &s, spec, DT_F16, T_MAX, &e), &e, "%s: created", spec)) return;
        rig_prompt(r, &s, 1, PROMPT, 16, NULL);
        for (int t = 0; t < STEPS; t++) rig_decode(r, &s, 1, tail ? with[t] : without[t]);
        attn_seq_free(s);
    }
    ok(memcmp(with, without, sizeof with) == 0, "%s: %s has no tail", r->be->name, what);
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = 0;
}

/* What a step attends counts tokens alone; the sums are held once a layer. */
static void check_counts(rig *r)
{
    attn_stats with = {0}, without = {0};
    attn_bytes held[2];
    for (int tail = 0; tail < 2; tail++) {
        err e = {0};
        attn_seq *s;
        rig_seq(r, &s, tail ? "fier:skip=1:budget=16:tail=all" : "fier:skip=1:budget=16", DT_F16, T_MAX, &e);
        rig_prompt(r, &s, 1, PROMPT, 16, NULL);
        for (int t = 0; t < STEPS; t++) rig_decode(r, &s, 1, NULL);
        *(tail ? &with : &without) = attn_seq_stats(s);
        held[tail] = attn_seq_held(s);
        attn_seq_free(s);
    }
    ok(with.attended == without.attended, "%s: mean rows are not attended tokens: %g, %g", r->be->name, with.attended,
       without.attended);
    is_int((long long)(held[1].index - held[0].index), (T_LAYERS - 1) * 2 * T_KV * T_DIM * 4, "bytes of the sums");
}

static void check_device(const char *device)
{
    static const char *const specs[] = {"oracle:skip=0:budget=16:tail=all",
                                        "oracle:skip=2:budget=16:gqa=per_q:p=0.6:min=2:tail=all",
                                        "quest:skip=1:budget=16:page=4:tail=all",
                                        "quest:skip=1:budget=16:page=4:gqa=per_q:tail=all",
                                        "quest:skip=0:budget=16:page=4:gqa=layer_mean:tail=all",
                                        "quest:skip=0:budget=16:page=4:force=none:score=est:g=8:tail=all",
                                        "fier:skip=0:budget=16:g=8:coarse=8:coarse_keep=2:tail=all",
                                        "fier:skip=0:budget=16:g=8:gqa=mean_q:budget_mode=extra:tail=all",
                                        "pqcache:budget=16:sink=4:bits=3:tail=all",
                                        "oracle:skip=1:budget=16:tail=9",
                                        "quest:skip=0:budget=16:page=4:gqa=per_q:tail=2",
                                        "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:tail=all",
                                        "pariskv:budget=6:sink=0:local=8:u=5:full_thr=0:gqa=vote:tail=all"};
    rig r;
    err e = {0};
    if (!is_ok(rig_open(&r, device, &w, 64, &e), &e, "%s opened", device)) return;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) check_spec(&r, specs[i]);
    check_none(&r, 0, T_MAX, "a budget that covers everything");
    check_none(&r, 40, 16, "a layer with a window");
    check_counts(&r);
    check_sample(&r);
    rig_check_oom(&r, "fier:skip=1:budget=24:tail=sample:9", 12);
    rig_check_oom(&r, "fier:skip=1:budget=24:tail=all", 12);
    is_ok(backend_fault(r.be, &e), &e, "%s, no fault", device);
    rig_close(&r);
}

int main(void)
{
    if (no_device()) return 0;
    world_fill(&w, 41);
    for (int d = 0; d < N_METHOD_DEVICES; d++) check_device(METHOD_DEVICES[d]);
    check_races();
    return tap_done();
}
