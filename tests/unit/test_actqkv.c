/* SPDX-License-Identifier: MIT */
/* ActQKV: bytes, factors of rotations, chunks, choose=. test_sequences.c has its outputs. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

enum { ROW = T_HEADS * T_DIM, CAT = T_HEADS * T_DIM, ROWS = 64 };

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

#define NUMBERS "actqkv:sink=3:local=16:window=8:block=4:reps=2"
#define BASE    NUMBERS ":budget=31"
enum { SINK = 3, LOCAL = 16, WINDOW = 8, BLOCK = 4, BUDGET = 31 };

static bool close_rows(const head_rows *a, const head_rows *b, int64_t n)
{
    double num = 0, den = 0;
    for (int64_t i = 0; i < n * ROW; i++) {
        double x = (double)(&a[0][0][0])[i], y = (double)(&b[0][0][0])[i];
        num += (x - y) * (x - y);
        den += y * y;
    }
    return num <= 1e-10 * den;
}

static void check_no_way_back(rig *g)
{
    err e = {0};
    attn_seq *s;
    if (!is_ok(rig_seq(g, &s, BASE, DT_BF16, 120, &e), &e, "created")) return;
    ok(!attn_can_share(s, s, 1), "prompts are not shared");
    rig_prompt(g, &s, 1, 50, 64, NULL);
    is_err(attn_seq_rewind(s, 40, &e), &e, ST_UNSUPPORTED, "cannot go back", "no way back");
    err none = {0};
    is_ok(attn_seq_rewind(s, attn_seq_length(s), &none), &none, "but to where it is");
    attn_seq_free(s);
}

/* U6: bytes follow the formula, and the plan is what is held in the end. */
static void check_bytes(rig *g, dtype type)
{
    err e = {0};
    attn_seq *s;
    enum { LONGEST = 100 };
    if (!is_ok(rig_seq(g, &s, BASE, type, LONGEST, &e), &e, "U6: created")) return;
    long long rep = CAT * (long long)dtype_size(type), fixed = 0;
    bool good = true;
    for (int64_t n = 0; n <= LONGEST; n++) {
        long long left = n - LOCAL - SINK, blocks = left > 0 ? left / BLOCK : 0;
        const attn_bytes held = attn_seq_held(s);
        if (n == 0) fixed = (long long)held.index;
        good &= (long long)held.kv == n * T_LAYERS * 2 * T_KV * T_DIM * (long long)dtype_size(type);
        good &= (long long)held.index == fixed + T_LAYERS * blocks * rep;
        if (n == 0) n = 63, rig_prompt(g, &s, 1, 64, 64, NULL);
        else if (n < LONGEST) rig_decode(g, &s, 1, NULL);
    }
    ok(good, "U6: %s, bytes of rows and representatives", dtype_name(type));
    long long masses = T_HEADS * (long long)(LOCAL + BLOCK + WINDOW) * 4, stats = 2 * CAT * 4;
    ok(fixed >= T_LAYERS * (masses + stats) && fixed < T_LAYERS * (masses + stats) + 600, "U6: masses and statistics");
    rig_check_plan(g, s);
    attn_seq_free(s);
}

/* Rotations with a factor scale every product by its square, those with raw keys too. */
static void check_mscale(rig *g)
{
    static head_rows out[2][T_LAYERS * ROWS];
    err e = {0};
    const float scale = g->shape.scale;
    attn_work *plain = g->work;
    for (int i = 0; i < 2; i++) {
        attn_seq *s;
        g->shape.scale = scale * (i ? 1 : 1.5625f);
        g->mscale = i ? 1.25f : 1;
        is_ok(attn_work_create(&g->work, &g->shape, ROWS, g->be, &e), &e, "scale %g", (double)g->shape.scale);
        is_ok(rig_seq(g, &s, BASE, DT_F32, 150, &e), &e, "factor %g", (double)g->mscale);
        rig_prompt(g, &s, 1, ROWS, ROWS, out[i]);
        for (int t = 0; t < 5; t++) rig_decode(g, &s, 1, i ? got : want);
        attn_seq_free(s);
        attn_work_free(g->work);
    }
    g->work = plain, g->shape.scale = scale, g->mscale = 1;
    ok(close_rows(out[1], out[0], T_LAYERS * ROWS) && close_rows(got, want, T_LAYERS),
       "a factor of the rotations counts in all segments");
}

/* Chunks that are no whole windows. */
static void check_chunk(rig *g)
{
    static const char text[] = "actqkv:window=48:sink=0:local=8:block=8:budget=64";
    err e = {0}, none = {0};
    attn_seq *s = NULL;
    is_err(rig_seq(g, &s, text, DT_F16, 150, &e), &e, ST_USAGE, "--chunk 64, expected a multiple of window = 48", "%s",
           text);
    is_ok(rig_seq(g, &s, text, DT_F16, 64, &none), &none, "any chunk that holds every prompt will do");
    attn_seq_free(s);
}

/* A prompt and steps by a spec; got has the last step. */
static bool play(rig *g, const char *text, int64_t chunk, head_rows *out, int32_t *pos, int64_t *n_pos)
{
    err e = {0};
    attn_seq *s;
    int64_t head, tail;
    if (!is_ok(rig_seq(g, &s, text, DT_F32, 150, &e), &e, "%s", text)) return false;
    rig_prompt(g, &s, 1, 100, chunk, NULL);
    for (int t = 0; t < 9; t++) rig_decode(g, &s, 1, out + t * T_LAYERS);
    *n_pos = attn_last_selection(g->work, 0, 0, pos, &head, &tail);
    attn_seq_free(s);
    return true;
}

/* choose=: what looks at no score. */
static void check_controls(rig *g)
{
    static head_rows a[9 * T_LAYERS], b[9 * T_LAYERS];
    int32_t pos[T_MAX], again[T_MAX];
    int64_t n, m;
    if (!play(g, NUMBERS ":budget=179:pool=fixed", 64, a, pos, &n)) return;
    if (!play(g, BASE ":choose=all", 64, b, again, &m)) return;
    ok(memcmp(a, b, sizeof a) == 0 && n == m && n == 109, "all blocks: the bits of a budget that covers them");
    if (!play(g, BASE ":choose=newest", 64, a, pos, &n)) return;
    bool newest = n >= BUDGET && n <= BUDGET + BLOCK;
    for (int64_t i = 0; newest && i < n; i++) newest &= pos[i] == (i < SINK ? i : 109 - n + i);
    ok(newest, "the newest blocks: %d sinks, and the last of %d tokens", SINK, (int)n);
    if (!play(g, BASE ":choose=random", 64, a, pos, &n) || !play(g, BASE ":choose=random", 8, b, again, &m)) return;
    ok(memcmp(a, b, sizeof a) == 0 && n == m && memcmp(pos, again, (size_t)n * sizeof *pos) == 0,
       "blocks drawn by a seed: the same for any chunk");
    ok(n >= BUDGET && n <= BUDGET + BLOCK, "blocks drawn by a seed: as many as the budget has room for");
}

static void check(rig *g)
{
    if (!g->be->ops->codes || !g->be->ops->evict) {
        tap_skip("no codes or sums of attention on %s", g->be->name);
        return;
    }
    check_no_way_back(g);
    check_bytes(g, DT_F32);
    check_bytes(g, DT_F16);
    check_mscale(g);
    check_chunk(g);
    check_controls(g);
    rig_check_oom(g, BASE ":skip=1", strncmp(g->be->name, "cuda", 4) == 0 ? 12 : 30); /* of the host */
}

int main(void)
{
    world_fill(&w, 11);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, ROWS, check);
    check_races();
    return tap_done();
}
