/* SPDX-License-Identifier: MIT */
/* ParisKV, in addition to the replays of test_sequences.c: bytes, rewinding, stores. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

static world w;
static head_rows got[T_LAYERS * T_MAX];

static const char *const variants[] = {
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
    "pariskv:budget=4:sink=0:local=8:u=16:full_thr=50:center=1",
    "pariskv:budget=9:sink=3:local=1:u=3:full_thr=0:tiers=1:skip=1",
};
enum { N_VARIANTS = 3 };

/* U6: planned at the most tokens = held then; less what grows, by its formula. */
static void check_bytes(rig *r)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        err e = {0};
        attn_seq *s;
        if (!is_ok(rig_seq(r, &s, variants[i], DT_F16, 90, &e), &e, "%s", variants[i])) return;
        size_t layers = i == 2 ? 2 : 3, fixed = layers * (T_KV * 256 * 4 + 16 + (i == 1 ? T_KV * T_DIM * 4 : 0));
        rig_prompt(r, &s, 1, 40, 16, NULL);
        rig_steps(r, s, 10, NULL);
        is_int((long long)attn_seq_held(s).index, (long long)(fixed + layers * 50 * T_KV * 6),
               "U6: %s: index of 50 tokens", variants[i]);
        rig_prompt(r, &s, 1, 40, 16, NULL);
        rig_check_plan(r, s);
        attn_seq_free(s);
    }
}

/* The mean key is that of the first prompt, into which there is no way back. */
static void check_mean(rig *r)
{
    err e = {0};
    attn_seq *s;
    if (!is_ok(rig_seq(r, &s, variants[1], DT_F16, 120, &e), &e, "%s", variants[1])) return;
    rig_prompt(r, &s, 1, 50, 16, NULL);
    is_err(attn_seq_rewind(s, 33, &e), &e, ST_UNSUPPORTED, "the mean key", "%s: no rewind to 33", variants[1]);
    attn_seq_free(s);
}

/* The slots that the last layer of the last step found for a kv head. */
static int64_t found(const rig *r, size_t kv, int32_t *out)
{
    return attn_last_list(r->work, 0, 1, kv, out);
}

/* 0.2.12: the index comes from keys as they were appended, so a store that quantizes changes no choice. */
static void check_stores(rig *r)
{
    static const char *const stores[] = {"kivi4/r=8/g=4", "kivi2/r=8/g=4", "logquant/r=12/g=4"};
    for (int i = 0; i < 3 * N_VARIANTS; i++) {
        char text[160];
        const char *spec = variants[i % N_VARIANTS];
        err e = {0};
        attn_seq *exact, *coded;
        bool good = true;
        int64_t chosen = 0;
        if (i % N_VARIANTS == 1) continue;                                       /* no sink: another segment */
        if (N_METHOD_DEVICES == 1 && i / N_VARIANTS != i % N_VARIANTS) continue; /* on a device in turn */
        snprintf(text, sizeof text, "%s:kv=%s", spec, stores[i / N_VARIANTS]);
        if (!is_ok(rig_seq(r, &coded, text, DT_F16, 120, &e), &e, "%s", text)) continue;
        rig_seq(r, &exact, spec, DT_F16, 120, &e);
        for (int turn = 0; turn < 2; turn++) {
            rig_prompt(r, &exact, 1, 30, 16, NULL);
            rig_prompt(r, &coded, 1, 30, 16, NULL);
            for (int t = 0; t < 20; t++) {
                int32_t a[T_KV][T_MAX], b[T_MAX];
                int64_t n[T_KV], m;
                rig_decode(r, &exact, 1, got);
                for (size_t kv = 0; kv < T_KV; kv++) n[kv] = found(r, kv, a[kv]);
                rig_decode(r, &coded, 1, got);
                for (size_t kv = 0; kv < T_KV; kv++) {
                    m = found(r, kv, b);
                    good &= m == n[kv] && (m <= 0 || memcmp(a[kv], b, (size_t)m * sizeof *b) == 0);
                    chosen += m > 0;
                }
            }
        }
        ok(good && chosen > 20, "%s chooses what it chooses over exact rows", text);
        attn_seq_free(exact);
        attn_seq_free(coded);
    }
}

static void check(rig *r)
{
    check_bytes(r);
    check_mean(r);
    if (r->be->ops->codes) check_stores(r);
    else tap_skip("no codes on %s", r->be->name);
    rig_check_oom(r, variants[2], 8);
}

int main(void)
{
    world_fill(&w, 11);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    check_races();
    return tap_done();
}
