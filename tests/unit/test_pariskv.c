/* SPDX-License-Identifier: MIT */
/* ParisKV beside what test_sequences.c replays: bytes, ways back, stores. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

typedef float head_rows[T_HEADS][T_DIM];

enum { MANY = 48 };

static world w, other;
static head_rows got[T_LAYERS * T_MAX];

/* Prompt of n in chunks, then steps; all outputs of the steps to out. */
static void play(rig *r, attn_seq *s, int64_t n, int64_t chunk, int steps, head_rows *out)
{
    if (n > 0) rig_prompt(r, &s, 1, n, chunk, NULL);
    for (int i = 0; i < steps; i++) rig_decode(r, &s, 1, out + i * T_LAYERS);
}

static const char *const variants[] = {
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
    "pariskv:budget=4:sink=0:local=8:u=16:full_thr=50:center=1",
    "pariskv:budget=9:sink=3:local=1:u=3:full_thr=0:tiers=1:skip=1",
};
enum { N_VARIANTS = 3 };

static bool same(const head_rows *a, const head_rows *b, int steps)
{
    return memcmp(a, b, (size_t)(steps * T_LAYERS) * sizeof *a) == 0;
}

/* U6: planned at the most tokens = held then; less what grows, by its formula. */
static void check_bytes(rig *r)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        err e = {0};
        attn_seq *s;
        attn_bytes plan;
        attn_limits lim = {.n_tokens = 90, .chunk = (int64_t)r->rows};
        if (!is_ok(rig_seq(r, &s, variants[i], DT_F16, 90, &e), &e, "%s", variants[i])) return;
        size_t layers = i == 2 ? 2 : 3, fixed = layers * (T_KV * 256 * 4 + 16 + (i == 1 ? T_KV * T_DIM * 4 : 0));
        play(r, s, 40, 16, 10, got);
        is_int((long long)attn_seq_held(s).index, (long long)(fixed + layers * 50 * T_KV * 6),
               "U6: %s: index of 50 tokens", variants[i]);
        play(r, s, 40, 16, 0, got);
        is_ok(attn_plan(&plan, attn_seq_spec(s), &r->shape, &lim, &e), &e, "%s: planned", variants[i]);
        attn_bytes held = attn_seq_held(s);
        ok(plan.index == held.index && plan.kv == held.kv && plan.scratch == held.scratch, "U6: %s: planned = held",
           variants[i]);
        attn_seq_free(s);
    }
}

/* Back into the buffer, behind a flush, into the prompt, to the start: as if the rest had never been. */
static void check_rewind(rig *r)
{
    static const int64_t to[] = {58, 51, 50, 33, 2, 0};
    static head_rows a[MANY * T_LAYERS], b[MANY * T_LAYERS];
    for (int i = 0; i < N_VARIANTS; i++)
        for (int k = 0; k < 6; k++) {
            err e = {0};
            attn_seq *s, *direct;
            if (left_out(7, 20)) continue;
            bool mean = strstr(variants[i], "center") && to[k] > 0 && to[k] < 50;
            rig_seq(r, &s, variants[i], DT_F16, 120, &e);
            if (!is_ok(rig_seq(r, &direct, variants[i], DT_F16, 120, &e), &e, "%s", variants[i])) return;
            play(r, s, 50, 16, to[k] > 50 ? (int)to[k] - 50 : 0, got);
            play(r, direct, to[k] < 50 ? to[k] : 50, 64, to[k] > 50 ? (int)to[k] - 50 : 0, got);
            r->w = &other;
            play(r, s, 0, 0, 25, got);
            r->w = &w;
            status st = attn_seq_rewind(s, to[k], &e);
            if (mean) {
                is_err(st, &e, ST_UNSUPPORTED, "the mean key", "%s: no rewind to %d", variants[i], (int)to[k]);
            } else if (is_ok(st, &e, "%s: rewind to %d", variants[i], (int)to[k])) {
                play(r, s, 20, 64, 20, a);
                play(r, direct, 20, 64, 20, b);
                ok(same(a, b, 20), "%s: after a rewind to %d", variants[i], (int)to[k]);
            }
            attn_seq_free(s);
            attn_seq_free(direct);
        }
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

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    world_fill(&other, 12);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        const char *device = METHOD_DEVICES[d];
        if (!is_ok(rig_open(&r, device, &w, 64, &e), &e, "%s backend", device)) return tap_done();
        check_bytes(&r);
        check_rewind(&r);
        if (r.be->ops->codes) check_stores(&r);
        else tap_skip("no codes on %s", r.be->name);
        rig_check_oom(&r, variants[2], 8);
        is_ok(backend_fault(r.be, &e), &e, "%s, no fault", device);
        rig_close(&r);
    }
    check_races();
    return tap_done();
}
