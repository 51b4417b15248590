/* SPDX-License-Identifier: MIT */
/* Strategies `full` and `streaming` beside what test_sequences.c replays; how strategies are written down. */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

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
    rig_seq(r, &s, "full", DT_F16, 90, &e);
    rig_prompt(r, &s, 1, 30, 16, NULL);
    rig_decode(r, &s, 1, want);
    rig_decode(r, &s, 1, got);
    is_ok(attn_seq_rewind(s, 30, &e), &e, "full: rewind");
    rig_decode(r, &s, 1, got);
    ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "full: the same bits after rewind");
    attn_seq_free(s);
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

static void check_specs(void)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"nothing", "unknown strategy 'nothing'; known: full"},
        {"qest:page=8", "unknown strategy 'qest' (did you mean 'quest'?); known"},
        {"full:budget=3", "no parameter 'budget'"},
        {"quest:pgae=16", "quest has no parameter 'pgae' (did you mean 'page'?), see"},
        {"quest:buget=16", "(did you mean 'budget'?)"},
        {"quest:gqa=votes", "layer_concat (did you mean 'vote'?)"},
        {"quest:kv=kivi22", "unknown store 'kivi22' (did you mean 'kivi2'?)"},
        {"quest:kv=kivi2/sink_pf=4", "(did you mean 'sink_fp'?)"},
        {"streaming:sink", "not key=value"},
        {"streaming:sink=x", "expected a number"},
        {"streaming:pos=up", "one of: reindex abs"},
        {"streaming:skip=1+", "skip='1+', expected a number of leading layers"},
        {"streaming:skip=+", "skip='+', expected"},
        {"streaming:skip=1++2", "skip='1++2', expected"},
        {"streaming:skip=0+256", "skip='0+256', expected"},
        {"streaming:skip=257", "skip='257', expected"},
        {"streaming:skip=-1", "skip='-1', expected"},
        {"streaming:skip=", "skip='', expected"},
        {"streaming:skip=18446744073709551617", "expected"},
        {"streaming:budget=99999999999999999999", "expected a number"},
        {"", "unknown strategy"},
    };
    attn_options o = {.budget = 128, .skip = "1", .kv = kv_exact(DT_F16)};
    attn_spec s;
    char text[320];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        is_err(attn_spec_parse(&s, bad[i].text, &o, &e), &e, ST_USAGE, bad[i].part, "spec '%s'", bad[i].text);
    }
    err e = {0};
    is_ok(attn_spec_parse(&s, "streaming:pos=abs:sink=8:skip=0+2", &o, &e), &e, "a full spec");
    attn_spec_params(&s, text, sizeof text);
    is_str(text, "budget=128 sink=8 pos=abs prefill=auto compat=none skip=0+2 kv=f16", "its parameters");
    attn_shape shape = {.n_layers = 1};
    attn_spec_parse(&s, "streaming:budget=4", &o, &e);
    is_err(attn_spec_check(&s, &shape, &e), &e, ST_USAGE, "at least sink + 1 = 5", "budget below its least value");
    for (size_t i = 0; attn_methods()[i]; i++) {
        attn_options zero = {.has_budget = true, .kv = kv_exact(DT_F16)};
        const char *name = attn_method_name(attn_methods()[i]);
        err none = {0};
        is_ok(attn_spec_parse(&s, name, &zero, &none), &none, "%s", name);
        status st = attn_spec_check(&s, &shape, &none);
        ok(attn_has_budget(&s) ? st == ST_USAGE && strstr(none.msg, "at least") : st == ST_OK,
           "%s: a budget of 0 is refused with the least one (%s)", name, none.msg);
    }
    static const struct {
        const char *text;
        gqa_mode gqa;
    } shares[] = {
        {"full", GQA_LAYER_VOTE},
        {"streaming", GQA_LAYER_VOTE},
        {"kivi", GQA_LAYER_VOTE},
        {"logquant", GQA_LAYER_VOTE},
        {"h2o", GQA_MEAN_S},
        {"h2o:gqa=per_q", GQA_PER_Q},
        {"snapkv:gqa=max_s", GQA_MAX_S},
        {"tova", GQA_LAYER_MEAN},
        {"tova:gqa=mean_s", GQA_MEAN_S},
        {"quest", GQA_VOTE},
        {"fier:gqa=mean_q", GQA_MEAN_Q},
        {"pariskv", GQA_MEAN_Q},
        {"actqkv", GQA_LAYER_CONCAT},
        {"actqkv:gqa=layer_mean", GQA_LAYER_MEAN},
    };
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        err bad_spec = {0};
        is_ok(attn_spec_parse(&s, shares[i].text, &o, &bad_spec), &bad_spec, "%s", shares[i].text);
        is_int(attn_gqa(&s), shares[i].gqa, "%s: how heads share", shares[i].text);
    }
    err none = {0};
    attn_options o2 = {.skip = "x", .kv = kv_exact(DT_F16)};
    is_err(attn_spec_parse(&s, "quest", &o2, &none), &none, ST_USAGE, "--skip: 'x', expected",
           "--skip is what was written");
    is_ok(attn_spec_parse(&s, "quest:skip=0+16+32+48+64", &o, &none), &none, "layers beyond 63");
    attn_spec_params(&s, text, sizeof text);
    ok(strstr(text, "skip=0+16+32+48+64 ") && s.skip.has[64] && !s.skip.has[63], "come back: %s", text);
    is_err(attn_spec_parse(&s, "quest:skip=0+256", &o, &none), &none, ST_USAGE, "list of layers", "layer 256");
}

int main(void)
{
    static const char *const devices[] = {"ref", "cpu"};
    err e = {0};
    world_fill(&w, 7);
    check_specs();
    for (int d = 0; d < 2; d++) {
        rig r;
        if (!is_ok(rig_open(&r, devices[d], &w, 64, &e), &e, "%s backend", devices[d])) return tap_done();
        check_rounded(&r, DT_F16, 1e-5);
        check_rounded(&r, DT_BF16, 1e-3);
        check_rewind(&r);
        check_prefill_auto(&r);
        rig_check_oom(&r, "streaming:budget=20:skip=1", 5);
        rig_close(&r);
    }
    return tap_done();
}
