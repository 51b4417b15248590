/* SPDX-License-Identifier: MIT */
/* Strategies `full` and `streaming` against naive oracles. */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

enum { ROW = T_HEADS * T_DIM };

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* A StreamingLLM cache as a plain list of positions. */
typedef struct {
    int64_t pos[T_MAX], n, s, r;
    bool reindex;
} naive_cache;

/* Output of the token at position p over the cache and itself (already appended), in all layers;
 * out has stride rows between layers. */
static void naive_attend(const naive_cache *c, int64_t p, const int64_t *pos, int64_t n, head_rows *out, int64_t stride)
{
    int64_t slot[T_MAX];
    for (int64_t i = 0; i < n; i++) slot[i] = c->reindex ? i : pos[i];
    for (int l = 0; l < T_LAYERS; l++) oracle_attend(&w, l, p, c->reindex ? n - 1 : p, pos, slot, n, out[l * stride]);
}

static void naive_evict(naive_cache *c)
{
    while (c->n > c->s + c->r) {
        memmove(c->pos + c->s, c->pos + c->s + 1, (size_t)(c->n - c->s - 1) * sizeof *c->pos);
        c->n--;
    }
}

static void naive_decode(naive_cache *c, int64_t p, head_rows *out, int64_t stride)
{
    c->pos[c->n++] = p;
    naive_attend(c, p, c->pos, c->n, out, stride);
    naive_evict(c);
}

static void naive_prompt(naive_cache *c, int64_t p0, int64_t n, head_rows *out)
{
    for (int64_t i = 0; i < n; i++) {
        c->pos[c->n++] = p0 + i;
        naive_attend(c, p0 + i, c->pos, c->n, out + i, n);
    }
    naive_evict(c);
}

static bool same_positions(const attn_seq *s, const naive_cache *c)
{
    int64_t pos[T_MAX];
    for (int l = 0; l < T_LAYERS; l++) {
        int64_t n = attn_seq_positions(s, l, 0, pos);
        if (n != c->n || memcmp(pos, c->pos, (size_t)n * sizeof *pos) != 0) return false;
    }
    return true;
}

/* Full attention: prompt in chunks, then decode, then a second prompt. */
static void check_full(rig *r, const char *device, dtype kv, double nmse, int64_t chunk)
{
    err e = {0};
    attn_seq *s;
    naive_cache c = {.r = T_MAX, .reindex = false};
    if (!is_ok(rig_seq(r, &s, "full", kv, 100, &e), &e, "full: created")) return;
    rig_prompt(r, &s, 1, 50, chunk, got);
    naive_prompt(&c, 0, 50, want);
    is_near(&got[0][0][0], &want[0][0][0], T_LAYERS * 50 * ROW, nmse, "full, %s, %s, chunk %d: prompt", device,
            dtype_name(kv), (int)chunk);
    for (int i = 0; i < 10; i++) {
        rig_decode(r, &s, 1, got);
        naive_decode(&c, 50 + i, want, 1);
    }
    is_near(&got[0][0][0], &want[0][0][0], T_LAYERS * ROW, nmse, "full, %s, %s: decode", device, dtype_name(kv));
    rig_prompt(r, &s, 1, 20, chunk, got);
    naive_prompt(&c, 60, 20, want);
    is_near(&got[0][0][0], &want[0][0][0], T_LAYERS * 20 * ROW, nmse, "full, %s, %s: second prompt", device,
            dtype_name(kv));
    ok(same_positions(s, &c), "full: keeps everything");
    is_int((long long)attn_seq_held(s).kv, (long long)(80 * T_LAYERS * T_KV * T_DIM * 2) * (long long)dtype_size(kv),
           "full: bytes held (U6)");
    attn_stats st = attn_seq_stats(s);
    ok(st.steps == 10 && st.attended == st.visible, "full: attends what is visible");
    attn_seq_free(s);
}

/* Streaming: a prompt (dense or banded), decode steps, a second prompt, more steps. */
static void check_streaming(rig *r, const char *device, const char *options, int64_t s, int64_t rr, int64_t chunk,
                            int64_t n1, int64_t n2)
{
    char text[96];
    err e = {0};
    attn_seq *seq;
    bool banded = strstr(options, "banded"), bounded = true;
    naive_cache c = {.s = s, .r = rr, .reindex = !strstr(options, "abs")};
    snprintf(text, sizeof text, "streaming:sink=%d:budget=%d%s", (int)s, (int)(s + rr), options);
    if (!is_ok(rig_seq(r, &seq, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    int64_t p = 0, prompts[2] = {n1, n2};
    for (int turn = 0; turn < 2; turn++) {
        int64_t n = prompts[turn];
        if (n > 0) rig_prompt(r, &seq, 1, n, chunk, got);
        if (banded)
            for (int64_t i = 0; i < n; i++) naive_decode(&c, p + i, want + i, n);
        else naive_prompt(&c, p, n, want);
        p += n;
        is_near(&got[0][0][0], &want[0][0][0], (size_t)(T_LAYERS * n) * ROW, 1e-10,
                "%s, %s, chunk %d: prompt %d of %d tokens", text, device, (int)chunk, turn + 1, (int)n);
        ok(same_positions(seq, &c), "%s: stored after the prompt", text);
        bool good = true;
        for (int i = 0; i < 12; i++, p++) {
            rig_decode(r, &seq, 1, got);
            naive_decode(&c, p, want, 1);
            for (int k = 0; k < T_LAYERS * ROW; k++) good &= fabsf((&got[0][0][0])[k] - (&want[0][0][0])[k]) < 1e-4f;
            good &= same_positions(seq, &c);
            bounded &= attn_seq_positions(seq, 0, 0, NULL) <= s + rr;
        }
        ok(good, "%s, %s: 12 decode steps", text, device);
    }
    attn_stats st = attn_seq_stats(seq);
    ok(bounded && st.attended <= (double)(st.steps * T_LAYERS * (s + rr + 1)),
       "%s: at most B stored, B + 1 attended (U7)", text);
    is_int((long long)attn_seq_held(seq).kv, (long long)(c.n * T_LAYERS * T_KV * T_DIM * 2 * 4), "%s: bytes held (U6)",
           text);
    attn_seq_free(seq);
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

/* A window narrower than the budget makes a layer dense (within its window); a wider one leaves reindexed
 * sinks alone. */
static void check_window(rig *r)
{
    err e = {0};
    attn_seq *s;
    int64_t pos[T_MAX], slot[T_MAX], n = 0;
    r->window[1] = 12;
    rig_seq(r, &s, "streaming:budget=20", DT_F32, 90, &e);
    rig_prompt(r, &s, 1, 40, 16, NULL);
    rig_decode(r, &s, 1, got);
    for (int64_t j = 40 - 11; j <= 40; j++, n++) pos[n] = slot[n] = j;
    oracle_attend(&w, 1, 40, 40, pos, slot, n, want[0]);
    is_near(&got[1][0][0], &want[0][0][0], ROW, 1e-10,
            "streaming: a layer whose window is below the budget sees its window");
    is_int(attn_seq_positions(s, 0, 0, NULL), 20, "streaming: other layers evict");
    r->window[1] = 0;
    attn_seq_free(s);
}

static void check_kvfactory(rig *r)
{
    err e = {0};
    attn_seq *s;
    int64_t pos[T_MAX];
    rig_seq(r, &s, "streaming:budget=20:compat=kvfactory", DT_F32, 90, &e);
    rig_prompt(r, &s, 1, 40, 16, NULL);
    for (int i = 0; i < 8; i++) rig_decode(r, &s, 1, got);
    int64_t n = attn_seq_positions(s, 0, 0, pos);
    is_int(n, 28, "kvfactory: what is generated stays");
    ok(pos[3] == 3 && pos[4] == 24 && pos[27] == 47, "kvfactory: sinks, the end of the prompt, the generated tokens");
    oracle_attend(&w, 2, 47, 47, pos, pos, n, want[0]);
    is_near(&got[2][0][0], &want[0][0][0], ROW, 1e-10, "kvfactory: absolute positions");
    rig_prompt(r, &s, 1, 12, 5, NULL);
    n = attn_seq_positions(s, 0, 0, pos);
    ok(n == 40 && pos[3] == 3 && pos[4] == 24 && pos[39] == 59, "kvfactory: a second prompt evicts nothing");
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
        for (int64_t chunk = 1; chunk <= 64; chunk = 3 * chunk + 4) check_full(&r, devices[d], DT_F32, 1e-10, chunk);
        check_full(&r, devices[d], DT_F16, 1e-5, 16);
        check_full(&r, devices[d], DT_BF16, 1e-3, 16);
        static const char *const options[] = {"", ":pos=abs", ":prefill=banded", ":prefill=banded:pos=abs",
                                              ":prefill=full",
                                              /* stores by position: the same with nothing quantized */
                                              ":kv=kivi2/r=160/rows=f32", ":prefill=banded:kv=logquant/r=600/rows=f32"};
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            check_streaming(&r, devices[d], options[i], 4, 16, 16, 50, 30);
            check_streaming(&r, devices[d], options[i], 4, 16, 7, 10, 33);
            check_streaming(&r, devices[d], options[i], 0, 5, 64, 40, 3);
            check_streaming(&r, devices[d], options[i], 2, 30, 5, 20, 5);
            check_streaming(&r, devices[d], options[i], 1, 1, 1, 9, 4);
            check_streaming(&r, devices[d], options[i], 4, 16, 16, 20, 21);
            check_streaming(&r, devices[d], options[i], 4, 16, 16, 21, 2);
            check_streaming(&r, devices[d], options[i], 4, 16, 3, 0, 40);
        }
        check_rewind(&r);
        check_window(&r);
        check_kvfactory(&r);
        check_prefill_auto(&r);
        rig_check_oom(&r, "streaming:budget=20:skip=1", 5);
        rig_close(&r);
    }
    return tap_done();
}
