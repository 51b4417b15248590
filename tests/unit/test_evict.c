/* SPDX-License-Identifier: MIT */
/* H2O, SnapKV and TOVA beside what test_sequences.c replays: bytes, planted tokens, rows in codes, ways back. */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "tests/unit/attention_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

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

/* After a prompt of 50 tokens, and after 10 steps: rows a step attends, on average. */
static void check_bytes(rig *r)
{
    static const struct {
        const char *text;
        int lists; /* 0: one a kv head, -1: one a head */
        size_t entry;
        int64_t prompt, steps; /* tokens stored */
        double attended;
    } t[] = {
        {"h2o:budget=20", 0, 12, 20, 20, 21},
        {"h2o:budget=20:gqa=per_q", -1, 12, 20, 20, 21},
        {"h2o:budget=20:prefill_evict=chunk", 0, 12, 20, 20, 21},
        {"h2o:budget=150", 0, 12, 50, 60, 55.5},
        {"h2o:budget=20:pos=rank", 0, 12, 20, 20, 21},
        {"snapkv:budget=20", 0, 8, 20, 30, 25.5},
        {"snapkv:budget=20:gqa=per_q", -1, 8, 20, 30, 25.5},
        {"tova:budget=20", 1, 8, 20, 20, 21},
        {"tova:budget=20:gqa=mean_s", 0, 8, 20, 20, 21},
        {"tova:budget=20:prefill_evict=chunk", 1, 8, 20, 20, 21},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        err e = {0};
        attn_seq *seq;
        int lists = t[i].lists < 0 ? r->shape.n_heads : t[i].lists ? t[i].lists : r->shape.n_kv_heads;
        rig_seq(r, &seq, t[i].text, DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, 50, 16, NULL);
        is_int(attn_seq_positions(seq, 1, 1, NULL), t[i].prompt, "%s: kept of the prompt", t[i].text);
        check_held(r, seq, lists, t[i].entry);
        attn_stats before = attn_seq_stats(seq), after;
        for (int k = 0; k < 10; k++) rig_decode(r, &seq, 1, got);
        is_int(attn_seq_positions(seq, 1, 1, NULL), t[i].steps, "%s: kept after steps", t[i].text);
        check_held(r, seq, lists, t[i].entry);
        after = attn_seq_stats(seq);
        double regions = lists > r->shape.n_kv_heads ? lists : r->shape.n_kv_heads;
        double bytes = 10 * t[i].attended * T_LAYERS * regions * T_DIM * 4 * 2, read = after.kv_read - before.kv_read;
        bool once = strstr(t[i].text, "rank"); /* rotated copies: read as rows, too */
        ok(once || read == bytes, "%s: %g bytes of rows read, expected %g", t[i].text, read, bytes);
        ok(after.attended == 10 * t[i].attended * T_LAYERS, "%s: %g attended", t[i].text, after.attended);
        attn_seq_free(seq);
    }
}

/* ---- planted tokens ---- */

static world flat;

/* Keys that are all the same and are not rotated; queries and key `at` of every layer look at each other, -1: none. */
static void world_flat(rig *r, int64_t at)
{
    flat = w;
    memset(flat.freq, 0, sizeof flat.freq);
    for (int l = 0; l < T_LAYERS; l++)
        for (int p = 0; p < T_MAX; p++) {
            for (int h = 0; h < T_KV; h++)
                for (int c = 0; c < T_DIM; c++) flat.k[l][p][h][c] = 0.25f;
            for (int h = 0; h < T_HEADS && at >= 0; h++) flat.q[l][p][h][0] = 2;
            for (int h = 0; h < T_KV && at >= 0; h++) flat.k[l][p][h][0] = p == at ? 8 : -1;
        }
    r->w = &flat;
    r->be->ops->upload(r->be, r->freq, flat.freq, sizeof flat.freq);
}

enum { PROMPT = 40 };

/* Of equal weights H2O's sums keep the oldest, TOVA drops the last. */
static bool h2o_flat(const int64_t *pos, int64_t n, int step)
{
    bool good = n == 9;
    for (int64_t k = 0; k < n; k++) good &= pos[k] == (k < 4 ? k : PROMPT + step - 9 + k);
    return good;
}

static bool tova_flat(const int64_t *pos, int64_t n, int step)
{
    bool good = n == 9;
    (void)step;
    for (int64_t k = 0; k < n; k++) good &= pos[k] == k;
    return good;
}

static bool tova_protected(const int64_t *pos, int64_t n, int step)
{
    bool good = n == 9;
    for (int64_t k = 0; k < n; k++) good &= pos[k] == (k < 8 ? k : PROMPT - 1 + step);
    return good;
}

static bool has_planted(const int64_t *pos, int64_t n, int step)
{
    (void)step;
    return (n == 2 || n == 4) && (pos[0] == 23 || pos[1] == 23);
}

/* What the window looks at, its neighbours, the first of the rest, the window; a window's own tokens do not vote. */
static bool snap_planted(const int64_t *pos, int64_t n, int step)
{
    bool good = n == 16 + step && pos[0] == 0;
    for (int64_t i = 1; i < n; i++) good &= pos[i] == (i < 8 ? 19 + i : PROMPT - 16 + i);
    return good;
}

static void check_planted(rig *r)
{
    static const struct {
        const char *text;
        int64_t at;
        bool (*good)(const int64_t *pos, int64_t n, int step);
    } t[] = {
        {"h2o:budget=9", -1, h2o_flat},
        {"tova:budget=9", -1, tova_flat},
        {"tova:budget=9:protect_last=1", -1, tova_protected},
        {"h2o:budget=4", 23, has_planted},
        {"tova:budget=2", 23, has_planted},
        {"snapkv:budget=16:window=8", 23, snap_planted},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        err e = {0};
        attn_seq *seq;
        int64_t pos[T_MAX];
        bool good = true;
        world_flat(r, t[i].at);
        rig_seq(r, &seq, t[i].text, DT_F32, T_MAX, &e);
        rig_prompt(r, &seq, 1, PROMPT, 16, NULL);
        for (int step = 0; step < 40; step++) {
            good &= t[i].good(pos, attn_seq_positions(seq, 1, 0, pos), step);
            good &= t[i].good(pos, attn_seq_positions(seq, 2, 1, pos), step);
            rig_decode(r, &seq, 1, got);
        }
        ok(good, "%s, %s: %s", r->be->name, t[i].text, t[i].at < 0 ? "equal keys" : "a token that all look at");
        attn_seq_free(seq);
    }
    r->w = &w;
    r->be->ops->upload(r->be, r->freq, w.freq, sizeof w.freq);
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

/* before: sums that hold later queries' weights do not let it go back even while nothing was evicted. */
static void check_rewind(rig *r, const char *text, bool before)
{
    err e = {0}, none = {0};
    attn_seq *s;
    rig_seq(r, &s, text, DT_F16, 90, &e);
    rig_prompt(r, &s, 1, 10, 16, NULL);
    rig_decode(r, &s, 1, want);
    if (before) {
        is_ok(attn_seq_rewind(s, 10, &e), &e, "%s: rewind while nothing was evicted", text);
        rig_decode(r, &s, 1, got);
        ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "%s: the same bits after rewind", text);
    }
    rig_prompt(r, &s, 1, 60, 16, NULL);
    is_err(attn_seq_rewind(s, 20, &e), &e, ST_UNSUPPORTED, "evicted", "%s: no rewind after an eviction", text);
    is_ok(attn_seq_rewind(s, 0, &none), &none, "%s: rewind to nothing", text);
    rig_prompt(r, &s, 1, 10, 16, NULL);
    rig_decode(r, &s, 1, got);
    ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "%s: the same bits from there", text);
    attn_seq_free(s);
}

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s backend", METHOD_DEVICES[d])) return tap_done();
        check_bytes(&r);
        check_planted(&r);
        check_coded(&r, "h2o:budget=20" IN_CODES, 20);
        check_coded(&r, "h2o:budget=12:gqa=per_q" IN_CODES, 12);
        check_coded(&r, "snapkv:budget=20" IN_CODES, 40);
        check_coded(&r, "snapkv:budget=12:gqa=per_q" IN_CODES, 32);
        check_coded(&r, "tova:budget=20" IN_CODES, 20);
        check_coded(&r, "tova:budget=12:gqa=mean_s" IN_CODES, 12);
        check_rewind(&r, "h2o:budget=20", false);
        check_rewind(&r, "snapkv:budget=20:recompress_on_turn=1", true);
        check_rewind(&r, "tova:budget=20", true);
        rig_check_oom(&r, "h2o:budget=20:skip=1", 5);
        rig_check_oom(&r, "h2o:budget=20:gqa=per_q", 5);
        rig_check_oom(&r, "h2o:budget=20:pos=rank", 5);
        rig_check_oom(&r, "snapkv:budget=20:skip=1", 5);
        rig_check_oom(&r, "snapkv:budget=20:gqa=per_q", 5);
        rig_check_oom(&r, "tova:budget=20:skip=1", 5);
        rig_close(&r);
    }
    return tap_done();
}
