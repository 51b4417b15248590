/* SPDX-License-Identifier: MIT */
/* Methods `kivi` and `logquant` beside what test_sequences.c replays: bits, bytes, refusals. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/store_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

static world w;

/* U1: bits of full attention while nothing is quantized, and in the whole first prompt. */
static void check_bits(rig *r, const char *text, int64_t n_exact)
{
    err e = {0};
    attn_seq *a, *b;
    static head_rows out[2][T_LAYERS * T_MAX];
    bool same = true, differs = false;
    if (rig_seq(r, &a, "full", DT_F16, T_MAX, &e) || rig_seq(r, &b, text, DT_F16, T_MAX, &e)) {
        ok(false, "U1: %s", e.msg);
        return;
    }
    rig_prompt(r, &a, 1, 3, 3, NULL);
    rig_prompt(r, &b, 1, 3, 3, NULL);
    for (int64_t n = 4; n <= n_exact; n++) { /* the step that sees n tokens */
        rig_decode(r, &a, 1, out[0]);
        rig_decode(r, &b, 1, out[1]);
        same &= memcmp(out[0], out[1], T_LAYERS * sizeof(head_rows)) == 0;
    }
    rig_decode(r, &a, 1, out[0]);
    rig_decode(r, &b, 1, out[1]);
    differs = memcmp(out[0], out[1], T_LAYERS * sizeof(head_rows)) != 0;
    ok(same && differs, "U1: %s has the bits of full up to %d tokens", text, (int)n_exact);
    attn_seq_reset(a);
    attn_seq_reset(b);
    rig_prompt(r, &a, 1, 70, 16, out[0]);
    rig_prompt(r, &b, 1, 70, 7, out[1]);
    ok(memcmp(out[0], out[1], T_LAYERS * 70 * sizeof(head_rows)) == 0,
       "%s: a first prompt has the bits of full, in any chunks (U2)", text);
    attn_seq_free(a);
    attn_seq_free(b);
}

/* U6: planned at the peak, held by the formula. */
static void check_bytes(rig *r, const char *text)
{
    err e = {0};
    attn_seq *s;
    attn_bytes plan;
    attn_limits lim = {.n_tokens = 100, .chunk = (int64_t)r->rows};
    if (!is_ok(rig_seq(r, &s, text, DT_F16, 100, &e), &e, "%s: created", text)) return;
    const attn_spec *spec = attn_seq_spec(s);
    is_ok(attn_plan(&plan, spec, &r->shape, &lim, &e), &e, "%s: planned", text);
    rig_prompt(r, &s, 1, 100, 16, NULL);
    is_int((long long)attn_seq_peak(s).kv, (long long)plan.kv,
           "%s: the peak of a prompt that fills the limit is the plan (U6)", text);
    is_int((long long)attn_seq_held(s).scratch, (long long)plan.scratch, "%s: maps", text);
    naive *m = naive_new(&spec->kv, 100);
    size_t bytes = 0, code = (T_DIM * (size_t)spec->kv.bits + 7) / 8;
    for (int half = 0; half < KV_HALVES; half++) {
        for (int j = 0; j < 100; j++) bytes += m->group[half][j] < 0 ? T_DIM * 2 : code;
        bytes += (size_t)m->n_groups[half] * (half == KV_K ? 4 * T_DIM : 4 * (T_DIM / 4));
    }
    free(m);
    is_int((long long)attn_seq_held(s).kv, (long long)(bytes * T_KV * T_LAYERS), "%s: held (U6)", text);
    attn_seq_free(s);
}

static void check_rewind(rig *r)
{
    attn_seq *s;
    err e = {0};
    if (!is_ok(rig_seq(r, &s, "kivi:g=4:r=8", DT_F16, 90, &e), &e, "rewind: created")) return;
    rig_prompt(r, &s, 1, 60, 16, NULL);
    is_err(attn_seq_rewind(s, 20, &e), &e, ST_UNSUPPORTED, "kivi", "no rewind behind quantized rows");
    attn_seq_free(s);
}

static void check_specs(rig *r)
{
    static const struct {
        const char *text, *kv, *part;
    } bad[] = {
        {"kivi:bits=3", "f16", "bits='3', expected one of: 2 4"},
        {"kivi:r=40", "f16", "r=40 is not a multiple of g=32"},
        {"full:kv=kivi2/r=40", "f16", "kv: r=40 is not a multiple of g=32"},
        {"full:kv=kivi5", "f16", "unknown store 'kivi5'"},
        {"kivi:budget=3", "f16", "no parameter 'budget'"},
    };
    attn_spec s;
    char text[160];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        attn_options o = {0};
        kv_format_parse(&o.kv, bad[i].kv, "--kv", &e);
        is_err(attn_spec_parse(&s, bad[i].text, &o, &e), &e, ST_USAGE, bad[i].part, "spec '%s'", bad[i].text);
    }
    static const struct {
        const char *text, *kv, *part;
    } two[] = {
        {"kivi", "kivi4", "kivi: brings its own store, --kv kivi4 beside it"},
        {"logquant:kv=kivi2/r=64", "f16", "brings its own store, --kv kivi2"},
    };
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        err e = {0};
        attn_options o = {0};
        kv_format_parse(&o.kv, two[i].kv, "--kv", &e);
        is_ok(attn_spec_parse(&s, two[i].text, &o, &e), &e, "'%s' is well formed", two[i].text);
        is_err(attn_spec_check(&s, &r->shape, &e), &e, ST_USAGE, two[i].part, "'%s' cannot run", two[i].text);
    }
    err e = {0};
    attn_options o = {.kv = kv_exact(DT_BF16)};
    is_ok(attn_spec_parse(&s, "kivi:bits=4:r=64", &o, &e), &e, "kivi:bits=4:r=64");
    attn_spec_params(&s, text, sizeof text);
    is_str(text,
           "bits=4 g=32 r=64 key_residual=block sink_fp=0 skip=0 "
           "kv=kivi4/g=32/r=64/key_residual=block/sink_fp=0/rows=bf16",
           "its parameters");
    is_ok(attn_spec_parse(&s, "logquant:quant=hf_axis0_g64", &o, &e), &e, "logquant, hf");
    is_err(attn_spec_check(&s, &r->shape, &e), &e, ST_UNSUPPORTED, "multiple of 64",
           "head_dim 8 with quant=hf_axis0_g64");
}

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s backend", METHOD_DEVICES[d])) return tap_done();
        check_specs(&r);
        check_bits(&r, "kivi:g=4:r=8", 8);
        check_bits(&r, "kivi:g=4:r=8:key_residual=slide", 9);
        check_bits(&r, "kivi:g=4:r=8:sink_fp=5", 13);
        check_bits(&r, "logquant:g=2:r=12", 12);
        check_bytes(&r, "kivi:g=4:r=8");
        check_bytes(&r, "logquant:g=4:r=12");
        check_rewind(&r);
        rig_check_oom(&r, "kivi:skip=1", 20);
        rig_check_oom(&r, "streaming:kv=logquant", 20);
        rig_close(&r);
    }
    return tap_done();
}
