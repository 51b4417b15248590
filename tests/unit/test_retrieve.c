/* SPDX-License-Identifier: MIT */
/* Oracle; Quest and FIER: rewind over quantized keys, bytes of the index. test_sequences.c has their outputs. */
/* Builds: shim race device */
#include "config.h"

#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

static world w;

/* Over codes: back to where the last page or group begins in exact rows, but not among its quantized keys. */
static void check_coded(rig *r, const char *spec, int64_t allowed)
{
    err e = {0}, none = {0};
    attn_seq *s;
    if (!is_ok(rig_seq(r, &s, spec, DT_F16, T_MAX, &e), &e, "%s: created", spec)) return;
    rig_prompt(r, &s, 1, 63, 16, NULL);
    is_err(attn_seq_rewind(s, allowed - 1, &e), &e, ST_UNSUPPORTED, "keys that the index needs again are quantized",
           "%s: no way back to %d", spec, (int)allowed - 1);
    is_ok(attn_seq_rewind(s, allowed, &none), &none, "%s: back to %d", spec, (int)allowed);
    attn_seq_free(s);
}

/* Bytes of the index of one layer with n tokens of an f16 store: bounds of runs of tokens; FIER's bits, levels and
 * newest keys. */
enum { ROW = T_KV * T_DIM * 2 };

static size_t bounds(int64_t n, int64_t run)
{
    return (size_t)((n + run - 1) / run) * 2 * ROW;
}

static size_t bits(int64_t n)
{
    size_t groups = (size_t)(n + 31) / 32;
    return groups * 32 * 4 * T_KV + groups * 2 * ROW + 32 * ROW;
}

static void check_bytes(rig *r)
{
    static const struct {
        const char *spec;
        int64_t page, span; /* page 0: FIER */
    } t[] = {{"quest:skip=1:budget=24:page=8", 8, 0},
             {"quest:skip=1:budget=24:page=8:coarse=32:coarse_keep=1", 8, 32},
             {"fier:skip=1:budget=24", 0, 0},
             {"fier:skip=1:budget=24:coarse=16:coarse_keep=1", 0, 16}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        err e = {0};
        attn_seq *s;
        size_t index = (t[i].page ? bounds(70, t[i].page) : bits(70)) + (t[i].span ? bounds(70, t[i].span) : 0);
        rig_seq(r, &s, t[i].spec, DT_F16, 100, &e);
        rig_prompt(r, &s, 1, 70, 32, NULL);
        attn_bytes held = attn_seq_held(s);
        is_int((long long)held.kv, 70LL * T_LAYERS * ROW * 2, "%s: bytes of rows (U6)", t[i].spec);
        is_int((long long)held.index, 2 * (long long)index, "%s: bytes of the index of two layers (U6)", t[i].spec);
        rig_steps(r, s, 30, NULL);
        rig_check_plan(r, s);
        attn_seq_free(s);
    }
}

/* Writes the positions before p of the `n` best exact scores of a head, ascending, followed by p. */
static void best_positions(int64_t *out, int64_t n, int layer, int64_t p, int head)
{
    double score[T_MAX];
    int64_t count = 0;
    for (int64_t i = 0; i < p; i++)
        score[i] = rotated_dot(&w, w.q[layer][p][head], p, w.k[layer][i][head / (T_HEADS / T_KV)], i);
    for (int64_t i = 0; i < p; i++) {
        int64_t rank = 0;
        for (int64_t j = 0; j < p; j++) rank += score[j] > score[i];
        if (rank < n) out[count++] = i;
    }
    out[count] = p;
}

/* Each head attends its best tokens; combined, they are what Quest chooses with pages of one token. */
static void check_oracle(rig *r)
{
    static head_rows got[T_LAYERS], same[T_LAYERS], want;
    enum { B = 9 };
    int64_t pos[B];
    err e = {0};
    attn_seq *each, *voted, *pages;
    bool best = true, voted_same = true;
    is_ok(rig_seq(r, &each, "oracle:skip=0:budget=9:gqa=per_q", DT_F32, T_MAX, &e), &e, "a choice for each head");
    is_ok(rig_seq(r, &voted, "oracle:skip=0:budget=9", DT_F16, T_MAX, &e), &e, "a vote");
    is_ok(rig_seq(r, &pages, "quest:skip=0:budget=9:page=1:min_pages=1", DT_F16, T_MAX, &e), &e, "pages of one");
    rig_prompt(r, &each, 1, 41, 16, NULL);
    rig_prompt(r, &voted, 1, 41, 16, NULL);
    rig_prompt(r, &pages, 1, 41, 16, NULL);
    for (int64_t p = 41; p < 53; p++) {
        rig_decode(r, &each, 1, got);
        for (int l = 0; l < T_LAYERS; l++)
            for (int h = 0; h < T_HEADS; h++) {
                best_positions(pos, B - 1, l, p, h);
                oracle_attend(&w, l, p, p, pos, pos, B, want);
                for (int c = 0; c < T_DIM; c++) best &= fabsf(want[h][c] - got[l][h][c]) < 1e-5f;
            }
        rig_decode(r, &voted, 1, got);
        rig_decode(r, &pages, 1, same);
        voted_same &= memcmp(got, same, sizeof got) == 0;
    }
    ok(best, "oracle: the best tokens of each head");
    ok(voted_same, "oracle: the bits of quest with pages of one token");
    is_int((long long)attn_seq_held(each).index, 0, "oracle: no index");
    attn_seq_free(each);
    attn_seq_free(voted);
    attn_seq_free(pages);
}

static void check(rig *r)
{
    static const char *const oom[] = {"quest:skip=1:budget=24:coarse=32",
                                      "quest:skip=1:budget=24:gqa=mean_q",
                                      "fier:skip=1:budget=24:coarse=16",
                                      "fier:skip=1:budget=24:gqa=mean_q",
                                      "retroinfer:budget=28:sink=4:local=6:size=4:update=8",
                                      "magicpig:K=3:L=12:sink=3:local=6:skip=1"};
    /* tokens are quantized when there are 56, 60 and 64 of them, and of the newest 8 none is */
    check_coded(r, "quest:skip=0:budget=16:page=12:kv=logquant/g=4/r=12", 60);
    check_oracle(r);
    check_coded(r, "fier:skip=0:budget=16:g=20:kv=logquant/g=4/r=12", 60);
    check_coded(r, "quest:skip=0:budget=16:page=4:coarse=60:kv=logquant/g=4/r=12", 60);
    check_bytes(r);
    for (size_t i = 0; i < sizeof oom / sizeof *oom; i++) rig_check_oom(r, oom[i], 8);
}

int main(void)
{
    if (no_device()) return 0;
    world_fill(&w, 5);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    check_races();
    return tap_done();
}
