/* SPDX-License-Identifier: MIT */
/* Full attention and StreamingLLM: rounded rows, prefill=auto, refused rewinds. test_sequences.c has their outputs. */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

enum { ROW = T_HEADS * T_DIM };

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* Rows of two bytes, against those of four. */
static void check_rounded(rig *r, dtype kv, double nmse)
{
    err e = {0};
    attn_seq *s, *f;
    is_ok(rig_seq(r, &f, "full", DT_F32, 100, &e), &e, "f32");
    if (!is_ok(rig_seq(r, &s, "full", kv, 100, &e), &e, "%s", dtype_name(kv))) return;
    rig_prompt(r, &f, 1, 50, 16, want);
    rig_prompt(r, &s, 1, 50, 16, got);
    is_near(&got[0][0][0], &want[0][0][0], T_LAYERS * 50 * ROW, nmse, "full, %s, %s: prompt", r->be->name,
            dtype_name(kv));
    for (int i = 0; i < 10; i++) {
        rig_decode(r, &f, 1, want);
        rig_decode(r, &s, 1, got);
    }
    is_near(&got[0][0][0], &want[0][0][0], T_LAYERS * ROW, nmse, "full, %s, %s: decode", r->be->name, dtype_name(kv));
    is_int((long long)attn_seq_held(s).kv, (long long)(60 * T_LAYERS * T_KV * T_DIM * 2) * (long long)dtype_size(kv),
           "full: bytes held (U6)");
    attn_stats st = attn_seq_stats(s);
    ok(st.steps == 10 && st.attended == st.visible, "full: attends what is visible");
    attn_seq_free(s);
    attn_seq_free(f);
}

static void check_rewind(rig *r)
{
    err e = {0};
    attn_seq *s;
    rig_seq(r, &s, "streaming:budget=20", DT_F16, 90, &e);
    rig_prompt(r, &s, 1, 30, 16, NULL);
    is_err(attn_seq_rewind(s, 10, &e), &e, ST_UNSUPPORTED, "evicted", "streaming: no rewind after an eviction");
    attn_seq_free(s);
}

/* Outputs of 20 tokens' prompt, 60 decode steps and a second prompt of n tokens. */
static void two_prompts(rig *r, const char *text, int64_t n, head_rows *out)
{
    err e = {0};
    attn_seq *s;
    is_ok(rig_seq(r, &s, text, DT_F32, T_MAX, &e), &e, "%s", text);
    rig_prompt(r, &s, 1, 20, 7, NULL);
    for (int i = 0; i < 60; i++) rig_decode(r, &s, 1, NULL);
    rig_prompt(r, &s, 1, n, 7, out);
    attn_seq_free(s);
}

/* The model's context is 60: prompts are dense as long as no token is rotated further. */
static void check_prefill_auto(rig *r)
{
    static const struct {
        int64_t n;
        const char *pos, *as;
    } cases[] = {{40, "reindex", "full"}, {41, "reindex", "banded"}, {30, "abs", "banded"}};
    int64_t kept = r->shape.max_positions;
    r->shape.max_positions = 60;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[80];
        size_t n = (size_t)(T_LAYERS * cases[i].n);
        snprintf(text, sizeof text, "streaming:budget=20:pos=%s", cases[i].pos);
        two_prompts(r, text, cases[i].n, got);
        snprintf(text, sizeof text, "streaming:budget=20:pos=%s:prefill=%s", cases[i].pos, cases[i].as);
        two_prompts(r, text, cases[i].n, want);
        ok(memcmp(got, want, n * sizeof *got) == 0, "auto: a prompt of %d tokens (%s) is %s", (int)cases[i].n,
           cases[i].pos, cases[i].as);
    }
    r->shape.max_positions = kept;
}

static void check(rig *r)
{
    check_rounded(r, DT_F16, 1e-5);
    check_rounded(r, DT_BF16, 1e-3);
    check_rewind(r);
    check_prefill_auto(r);
    rig_check_oom(r, "streaming:budget=20:skip=1", 5);
    rig_check_oom(r, "kivi:skip=1", 20);
    rig_check_oom(r, "streaming:kv=logquant", 20);
}

int main(void)
{
    world_fill(&w, 7);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    return tap_done();
}
