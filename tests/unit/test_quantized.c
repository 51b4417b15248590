/* SPDX-License-Identifier: MIT */
/* Methods `kivi` and `logquant`, and `streaming` over their stores, against attention over the rows that a plain
 * simulation of the stores holds. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/store_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

enum { ROW = T_HEADS * T_DIM };

static world w;
static float rotated[T_LAYERS][T_MAX][T_KV][T_DIM]; /* keys at their positions */
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

static void rotate_keys(void)
{
    for (int l = 0; l < T_LAYERS; l++)
        for (int p = 0; p < T_MAX; p++)
            for (int h = 0; h < T_KV; h++)
                for (int c = 0; c < T_DIM / 2; c++) {
                    double a = (double)p * (double)w.freq[c];
                    double x = (double)w.k[l][p][h][c], y = (double)w.k[l][p][h][c + T_DIM / 2];
                    rotated[l][p][h][c] = (float)(x * cos(a) - y * sin(a));
                    rotated[l][p][h][c + T_DIM / 2] = (float)(y * cos(a) + x * sin(a));
                }
}

/* q . k where k is rotated already and q is to be, at qs. */
static double rotated_query_dot(const float *q, int64_t qs, const float *k)
{
    double s = 0;
    for (int c = 0; c < T_DIM / 2; c++) {
        double a = (double)qs * (double)w.freq[c], x = (double)q[c], y = (double)q[c + T_DIM / 2];
        s += (x * cos(a) - y * sin(a)) * (double)k[c] + (y * cos(a) + x * sin(a)) * (double)k[c + T_DIM / 2];
    }
    return s;
}

/* What a query attends: positions, and the position that the query has for each. */
typedef struct {
    int64_t n, pos[T_MAX], qs[T_MAX];
} attended;

/* Output of position p over rows in state m; later rows are exact. */
static void attend(const naive *m, const kv_format *f, int layer, int64_t p, const attended *a, head_rows out)
{
    fed_rows rows = {{&rotated[0][0][0][0], &w.v[0][0][0][0]}, T_MAX, T_KV, T_DIM, T_DIM};
    for (size_t h = 0; h < T_HEADS; h++) {
        size_t kv = h / (T_HEADS / T_KV);
        double sum = 0, acc[T_DIM] = {0};
        for (int64_t i = 0; i < a->n; i++) {
            float k[T_DIM];
            for (size_t c = 0; c < T_DIM; c++) k[c] = naive_element(m, f, &rows, KV_K, layer, a->pos[i], kv, c);
            double e = exp(rotated_query_dot(w.q[layer][p][h], a->qs[i], k) / sqrt((double)T_DIM));
            sum += e;
            for (size_t c = 0; c < T_DIM; c++)
                acc[c] += e * (double)naive_element(m, f, &rows, KV_V, layer, a->pos[i], kv, c);
        }
        for (int c = 0; c < T_DIM; c++) out[h][c] = (float)(acc[c] / sum);
    }
}

static attended all_to(int64_t p)
{
    attended a = {.n = p + 1};
    for (int64_t j = 0; j <= p; j++) {
        a.pos[j] = j;
        a.qs[j] = p;
    }
    return a;
}

/* StreamingLLM in decode: sinks and the newest r + 1, re-indexed unless abs. */
static attended stream_to(int64_t p, int64_t s, int64_t r, bool abs)
{
    attended a = {0};
    bool cut = p > s + r - 1;
    for (int64_t j = 0; j <= p; j++) {
        if (j >= s && j < p - r) continue;
        a.pos[a.n] = j;
        a.qs[a.n++] = j < s && cut && !abs ? s + r : p;
    }
    return a;
}

/* Outputs of positions [p0, p0 + n) in state m, [layer][n]. */
static void expect(const naive *m, const kv_format *f, int64_t p0, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        attended a = all_to(p0 + i);
        for (int l = 0; l < T_LAYERS; l++) attend(m, f, l, p0 + i, &a, want[l * n + i]);
    }
}

/* Decode steps against the state of the step before. */
static bool steps_match(rig *r, attn_seq *s, int n)
{
    const kv_format *f = &attn_seq_spec(s)->kv;
    bool good = true;
    for (int i = 0; i < n; i++) {
        int64_t p = attn_seq_length(s);
        naive *m = naive_new(f, p);
        expect(m, f, p, 1);
        free(m);
        rig_decode(r, &s, 1, got);
        for (int k = 0; k < T_LAYERS * ROW; k++) good &= fabsf((&got[0][0][0])[k] - (&want[0][0][0])[k]) < 2e-4f;
    }
    return good;
}

/* Prompt, steps, a second prompt, steps. */
static void check_turns(rig *r, const char *device, const char *text, int64_t n1, int64_t n2, int64_t chunk)
{
    err e = {0};
    attn_seq *s;
    if (!is_ok(rig_seq(r, &s, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    const kv_format *f = &attn_seq_spec(s)->kv;
    int64_t turn[2] = {n1, n2};
    for (int t = 0; t < 2; t++) {
        int64_t p = attn_seq_length(s);
        naive *m = naive_new(f, p);
        expect(m, f, p, turn[t]);
        free(m);
        rig_prompt(r, &s, 1, turn[t], chunk, got);
        is_near(&got[0][0][0], &want[0][0][0], (size_t)(T_LAYERS * turn[t]) * ROW, 1e-9,
                "%s, %s, chunk %d: prompt %d of %d tokens", text, device, (int)chunk, t + 1, (int)turn[t]);
        ok(steps_match(r, s, 20), "%s, %s: 20 steps", text, device);
    }
    int64_t n = attn_seq_length(s);
    attn_stats st = attn_seq_stats(s);
    ok(attn_seq_positions(s, 1, 0, NULL) == n && st.attended == st.visible, "%s: keeps and attends all", text);
    attn_seq_free(s);
}

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

/* Streaming over quantized rows: its sets, the store's values. */
static void check_streaming(rig *r, const char *device, const char *options, const char *kv, int64_t n)
{
    char text[96];
    err e = {0};
    attn_seq *s;
    enum { SINK = 3, RECENT = 17 };
    bool abs = strstr(options, "abs"), banded = strstr(options, "banded"), sets = true, good = true;
    snprintf(text, sizeof text, "streaming:sink=%d:budget=%d%s:kv=%s", SINK, SINK + RECENT, options, kv);
    if (!is_ok(rig_seq(r, &s, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    const kv_format *f = &attn_seq_spec(s)->kv;
    for (int turn = 0; turn < 2; turn++) {
        int64_t p0 = attn_seq_length(s);
        naive *m = naive_new(f, p0);
        rig_prompt(r, &s, 1, n, 9, got);
        for (int64_t i = 0; i < n; i++) {
            attended a = banded ? stream_to(p0 + i, SINK, RECENT, abs) : all_to(p0 + i);
            int64_t kept = 0;
            for (int64_t k = 0; k < a.n && !banded && turn; k++) { /* what was stored before, and itself */
                if (a.pos[k] >= SINK && a.pos[k] < p0 - RECENT) continue;
                a.pos[kept] = a.pos[k];
                a.qs[kept++] = a.pos[k] < SINK && !abs ? p0 + i - (p0 - SINK - RECENT) : p0 + i;
            }
            if (!banded && turn) a.n = kept;
            for (int l = 0; l < T_LAYERS; l++) attend(m, f, l, p0 + i, &a, want[l * n + i]);
        }
        free(m);
        is_near(&got[0][0][0], &want[0][0][0], (size_t)(T_LAYERS * n) * ROW, 1e-9, "%s, %s: prompt %d", text, device,
                turn + 1);
        for (int i = 0; i < 15; i++) {
            int64_t p = attn_seq_length(s), pos[T_MAX];
            attended a = stream_to(p, SINK, RECENT, abs), left = stream_to(p, SINK, RECENT - 1, abs);
            m = naive_new(f, p);
            for (int l = 0; l < T_LAYERS; l++) attend(m, f, l, p, &a, want[l]);
            free(m);
            rig_decode(r, &s, 1, got);
            for (int k = 0; k < T_LAYERS * ROW; k++) good &= fabsf((&got[0][0][0])[k] - (&want[0][0][0])[k]) < 2e-4f;
            sets &=
                attn_seq_positions(s, 0, 0, pos) == left.n && memcmp(pos, left.pos, (size_t)left.n * sizeof *pos) == 0;
        }
    }
    ok(good && sets, "%s, %s: steps", text, device);
    attn_bytes held = attn_seq_held(s), peak = attn_seq_peak(s);
    ok(held.kv > 0 && held.kv < (SINK + RECENT) * T_LAYERS * T_KV * T_DIM * 2 * sizeof(float) && held.kv < peak.kv,
       "%s: holds less than exact rows would", text);
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
    static const char *const specs[] = {"kivi:g=4:r=8", "kivi:bits=4:g=4:r=12:key_residual=slide",
                                        "kivi:g=2:r=6:sink_fp=3", "logquant:g=4:r=12", "logquant:bits=4:g=8:r=30"};
    err e = {0};
    world_fill(&w, 11);
    rotate_keys();
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s backend", METHOD_DEVICES[d])) return tap_done();
        check_specs(&r);
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
            check_turns(&r, METHOD_DEVICES[d], specs[i], 40, 30, 16);
            check_turns(&r, METHOD_DEVICES[d], specs[i], 3, 5, 1);
            check_turns(&r, METHOD_DEVICES[d], specs[i], 60, 1, 64);
        }
        check_bits(&r, "kivi:g=4:r=8", 8);
        check_bits(&r, "kivi:g=4:r=8:key_residual=slide", 9);
        check_bits(&r, "kivi:g=4:r=8:sink_fp=5", 13);
        check_bits(&r, "logquant:g=2:r=12", 12);
        check_bytes(&r, "kivi:g=4:r=8");
        check_bytes(&r, "logquant:g=4:r=12");
        check_rewind(&r);
        static const char *const options[] = {"", ":pos=abs", ":prefill=banded"};
        for (int i = 0; i < 3; i++) {
            check_streaming(&r, METHOD_DEVICES[d], options[i], "kivi2/g=4/r=8/rows=f32", 40);
            check_streaming(&r, METHOD_DEVICES[d], options[i], "kivi4/g=4/r=24/rows=f32", 33);
            check_streaming(&r, METHOD_DEVICES[d], options[i], "logquant/g=4/r=12/rows=f32", 30);
        }
        rig_check_oom(&r, "kivi:skip=1", 20);
        rig_check_oom(&r, "streaming:kv=logquant", 20);
        rig_close(&r);
    }
    return tap_done();
}
