/* SPDX-License-Identifier: MIT */
/* tail=sample: what samples measure, of what they are drawn, and what has none. */
/* Builds: shim race */
#include "config.h"

#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

enum { PROMPT = 61, STEPS = 20 };
static world w;

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

/* Cases that attend the same with and without a sample: n tokens, windows of layers. */
static void check_none(rig *r, int window, int64_t budget, const char *what)
{
    static head_rows with[STEPS][T_LAYERS], without[STEPS][T_LAYERS];
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = window;
    for (int tail = 0; tail < 2; tail++) {
        char spec[64];
        err e = {0};
        attn_seq *s;
        snprintf(spec, sizeof spec, "fier:skip=0:g=8:budget=%d:tail=%s", (int)budget, tail ? "sample:9" : "off");
        if (!is_ok(rig_seq(r, &s, spec, DT_F16, T_MAX, &e), &e, "%s: created", spec)) return;
        rig_prompt(r, &s, 1, PROMPT, 16, NULL);
        for (int t = 0; t < STEPS; t++) rig_decode(r, &s, 1, tail ? with[t] : without[t]);
        attn_seq_free(s);
    }
    ok(memcmp(with, without, sizeof with) == 0, "%s: %s has no tail", r->be->name, what);
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = 0;
}

static void check(rig *r)
{
    check_none(r, 0, T_MAX, "a budget that covers everything");
    check_none(r, 40, 16, "a layer with a window");
    check_sample(r);
    rig_check_oom(r, "fier:skip=1:budget=24:tail=sample:9", 12);
}

int main(void)
{
    if (no_device()) return 0;
    world_fill(&w, 41);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    check_races();
    return tap_done();
}
