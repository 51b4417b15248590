/* SPDX-License-Identifier: MIT */
/* H2O, SnapKV and TOVA: bytes, rows in codes, failing allocations. test_sequences.c has what they keep. */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "tests/unit/attention_oracle.h"

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* ---- bytes ---- */

/* Bytes of rows, and of what goes with each entry of a list (U6). */
static void check_held(const rig *r, const attn_seq *seq, int lists, size_t entry)
{
    size_t kv = 0, index = 0;
    const char *text = attn_seq_spec(seq)->text;
    for (int l = 0; l < T_LAYERS; l++) {
        for (int h = 0; h < (lists == r->shape.n_heads ? lists : r->shape.n_kv_heads); h++)
            kv += (size_t)attn_seq_positions(seq, l, h, NULL) * 2 * T_DIM * sizeof(float);
        for (int k = 0; k < lists; k++) index += (size_t)attn_seq_positions(seq, l, k, NULL) * entry;
    }
    attn_bytes held = attn_seq_held(seq), peak = attn_seq_peak(seq), plan;
    err e = {0};
    attn_limits lim = {.n_tokens = T_MAX, .chunk = (int64_t)r->rows};
    is_int((long long)held.kv, (long long)kv, "%s: K/V bytes held (U6)", text);
    is_int((long long)held.index, (long long)index, "%s: bytes of lists and scores held", text);
    is_ok(attn_plan(&plan, attn_seq_spec(seq), &r->shape, &lim, &e), &e, "planned");
    ok(peak.kv >= held.kv && plan.kv >= peak.kv && plan.index >= peak.index && plan.scratch == held.scratch,
       "%s: held %zu + %zu + %zu <= peak %zu + %zu <= planned %zu + %zu + %zu", text, held.kv, held.index, held.scratch,
       peak.kv, peak.index, plan.kv, plan.index, plan.scratch);
}

/* After a prompt of 50 tokens, and after 10 steps. */
static void check_bytes(rig *r)
{
    static const struct {
        const char *text;
        int lists; /* 0: one a kv head, -1: one a head */
        size_t entry;
        int64_t prompt, steps; /* tokens stored */
    } t[] = {
        {"h2o:budget=20", 0, 12, 20, 20},
        {"h2o:budget=20:gqa=per_q", -1, 12, 20, 20},
        {"h2o:budget=20:prefill_evict=chunk", 0, 12, 20, 20},
        {"h2o:budget=150", 0, 12, 50, 60},
        {"snapkv:budget=20", 0, 8, 20, 30},
        {"snapkv:budget=20:gqa=per_q", -1, 8, 20, 30},
        {"tova:budget=20", 1, 8, 20, 20},
        {"tova:budget=20:gqa=mean_s", 0, 8, 20, 20},
        {"tova:budget=20:prefill_evict=chunk", 1, 8, 20, 20},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        err e = {0};
        attn_seq *seq;
        int lists = t[i].lists < 0 ? r->shape.n_heads : t[i].lists ? t[i].lists : r->shape.n_kv_heads;
        rig_seq(r, &seq, t[i].text, DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 50, 16, NULL);
        is_int(attn_seq_positions(seq, 1, 1, NULL), t[i].prompt, "%s: kept of the prompt", t[i].text);
        check_held(r, seq, lists, t[i].entry);
        for (int k = 0; k < 10; k++) rig_decode(r, &seq, 1, got);
        is_int(attn_seq_positions(seq, 1, 1, NULL), t[i].steps, "%s: kept after steps", t[i].text);
        check_held(r, seq, lists, t[i].entry);
        attn_seq_free(seq);
    }
}

/* ---- rows in codes ---- */

#define IN_CODES ":kv=kivi2/g=4/r=8"

static struct {
    const backend_ops *real;
    backend_ops ops;
    long n;
} downloads;

static void count_download(backend *be, void *dst, buf src, size_t bytes)
{
    downloads.n++;
    downloads.real->download(be, dst, src, bytes);
}

/* One decode step of a sequence; how often the host waited for bytes. */
static long decode_downloads(rig *r, attn_seq **seq, head_rows *out)
{
    downloads.real = r->be->ops;
    downloads.ops = *r->be->ops;
    downloads.ops.download = count_download;
    downloads.n = 0;
    r->be->ops = &downloads.ops;
    rig_decode(r, seq, 1, out);
    r->be->ops = downloads.real;
    return downloads.n;
}

/* Bounded, and the bytes of the rows that are left are those of their groups. */
static void check_coded(rig *r, const char *text, int64_t most_kept)
{
    err e = {0};
    attn_seq *seq, *all;
    bool bounded = true, peaks = true, finite = true;
    long waits = 0;
    if (!is_ok(rig_seq(r, &seq, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    rig_seq(r, &all, "full" IN_CODES, DT_F32, T_MAX, &e);
    rig_prompt(r, &all, 1, 50, 16, NULL);
    rig_prompt(r, &seq, 1, 50, 16, NULL);
    for (int i = 0; i < 20; i++) {
        long least = decode_downloads(r, &all, want), n = decode_downloads(r, &seq, got);
        waits += n - least;
        for (int h = 0; h < r->shape.n_kv_heads; h++) bounded &= attn_seq_positions(seq, 1, h, NULL) <= most_kept;
        peaks &= attn_seq_peak(seq).kv >= attn_seq_held(seq).kv;
    }
    is_int(waits, 0, "%s: decode steps download nothing to count bytes", text);
    size_t held = attn_seq_held(seq).kv, most = attn_seq_held(all).kv;
    if (strstr(text, "per_q")) most *= (size_t)(r->shape.n_heads / r->shape.n_kv_heads);
    ok(bounded && held < most && peaks, "%s: %zu bytes held, %zu without eviction", text, held, most);
    rig_prompt(r, &seq, 1, 30, 7, got);
    for (int i = 0; i < 30; i++)
        for (int c = 0; c < T_DIM; c++) finite &= isfinite(got[i][0][c]);
    ok(finite, "%s: a later prompt", text);
    attn_seq_free(seq);
    attn_seq_free(all);
}

static void check(rig *r)
{
    check_bytes(r);
    check_coded(r, "h2o:budget=20" IN_CODES, 20);
    check_coded(r, "h2o:budget=12:gqa=per_q" IN_CODES, 12);
    check_coded(r, "snapkv:budget=20" IN_CODES, 40);
    check_coded(r, "snapkv:budget=12:gqa=per_q" IN_CODES, 32);
    check_coded(r, "tova:budget=20" IN_CODES, 20);
    check_coded(r, "tova:budget=12:gqa=mean_s" IN_CODES, 12);
    rig_check_oom(r, "h2o:budget=20:skip=1", 5);
    rig_check_oom(r, "h2o:budget=20:gqa=per_q", 5);
    rig_check_oom(r, "snapkv:budget=20:skip=1", 5);
    rig_check_oom(r, "snapkv:budget=20:gqa=per_q", 5);
    rig_check_oom(r, "tova:budget=20:skip=1", 5);
}

int main(void)
{
    world_fill(&w, 11);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    return tap_done();
}
