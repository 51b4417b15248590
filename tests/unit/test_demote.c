/* SPDX-License-Identifier: MIT */
/* Demotion and MiKV (doc/methods.md 14a, 14b): partitions, bytes, refusals, loading. test_sequences.c has the outputs.
 */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "attention/state.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

static world w;

enum { PROMPT = 50, STEPS = 12, SECOND = 20 };

static attn_seq *open_seq(rig *r, const char *text)
{
    err e = {0};
    attn_seq *s;
    is_ok(rig_seq(r, &s, text, DT_F32, T_MAX, &e), &e, "%s", text);
    return s;
}

/* True if the exact and the demoted tokens of each list are all tokens, each once. percent of them are exact, and half
 * of these the newest; negative: any number. */
static bool is_partition(const rig *r, const attn_seq *s, int percent)
{
    bool good = true;
    int64_t all = attn_seq_length(s), want = all * percent / 100;
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < r->shape.n_kv_heads; h++) {
            int seen[T_MAX] = {0};
            int64_t x[T_MAX], n = attn_seq_positions(s, l, h, x), m = attn_seq_demoted(s, l, h, x + n);
            good &= n + m == all && m > 0 && (percent < 0 || n == want);
            for (int64_t k = 0; k < n + m && good; k++) good &= x[k] >= 0 && x[k] < all && seen[x[k]]++ == 0;
            for (int64_t k = n - n / 2; k < n && percent >= 0; k++) good &= x[k] == all - n + k;
        }
    return good;
}

static void check_partition(rig *r, const char *text, int percent)
{
    attn_seq *s = open_seq(r, text);
    bool good = true;
    for (int turn = 0; turn < 2; turn++) {
        rig_prompt(r, &s, 1, turn ? SECOND : PROMPT, 16, NULL);
        good &= is_partition(r, s, percent);
        for (int i = 0; i < STEPS; i++) {
            rig_decode(r, &s, 1, NULL);
            good &= is_partition(r, s, percent);
        }
    }
    ok(good, "%s, %s: exact and demoted are all tokens", r->be->name, text);
    attn_seq_free(s);
}

static void check_bytes(rig *r, const char *text, size_t row)
{
    attn_seq *s = open_seq(r, text);
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    size_t regions = (size_t)(T_LAYERS * r->shape.n_kv_heads);
    size_t bytes = regions * (20 * 2 * T_DIM * sizeof(float) + (PROMPT - 20) * row);
    is_int((long long)attn_seq_held(s).kv, (long long)bytes, "%s, %s: bytes of both stores", r->be->name, text);
    attn_seq_free(s);
}

/* Stores and strategies without room for demoted rows are refused; the message names them. */
static void check_refused(rig *r)
{
    static const struct {
        const char *text, *why;
        int window; /* of layer 1 */
        status st;
    } bad[] = {
        {"h2o:budget=20:demote=token2:kv=kivi2/g=4/r=8", "demotion requires float rows, found --kv kivi2", 0, ST_USAGE},
        {"snapkv:budget=20:demote=f16:kv=logquant/g=4/r=12", "use f16, bf16 or f32", 0, ST_USAGE},
        {"streaming:budget=20:demote=token2:prefill=banded", "demote with prefill=banded", 0, ST_USAGE},
        {"streaming:budget=20:demote=token2", "layer 1 has a window of 40 tokens", 40, ST_UNSUPPORTED},
        {"tova:budget=20:demote=token4", "layer 1 has a window of 40 tokens", 40, ST_UNSUPPORTED},
        {"mikv:bits=3", "one of: 2 4 16", 0, ST_USAGE},
        {"mikv:ratio=101", "ratio", 0, ST_USAGE},
        {"mikv:gqa=per_q", "keys are balanced by KV head", 0, ST_USAGE},
        {"mikv:gqa=vote", "attention weights are already a softmax", 0, ST_USAGE},
        {"mikv:kv=kivi2/g=4/r=8", "demotion requires float rows, found --kv kivi2", 0, ST_USAGE},
        {"mikv", "layer 1 has a window of 12", 12, ST_UNSUPPORTED}};
    attn_seq *s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        r->window[1] = bad[i].window;
        status st = rig_seq(r, &s, bad[i].text, DT_F32, T_MAX, &e);
        is_err(st, &e, bad[i].st, bad[i].why, "%s, %s", r->be->name, bad[i].text);
    }
    err e = {0};
    r->window[1] = 12; /* the budget covers it */
    is_ok(rig_seq(r, &s, "tova:budget=20:demote=token4", DT_F32, T_MAX, &e), &e, "a layer that is dense");
    r->window[1] = 0;
    attn_seq_free(s);
    err odd = {0};
    r->shape.head_dim = T_DIM - 1;
    is_err(rig_seq(r, &s, "h2o:budget=20:demote=token4", DT_F32, T_MAX, &odd), &odd, ST_UNSUPPORTED,
           "head_dim 7: must be even", "half a row");
    r->shape.head_dim = T_DIM;
}

/* ---- what is loaded ---- */

/* Demoted position that is changed during a walk over a sequence's own state, which continues as if it was loaded. */
typedef struct {
    attn_state s;
    backend *be;
    int32_t to;
} damage;

static status keep_host(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e)
{
    (void)s, (void)name, (void)layer, (void)p, (void)bytes, (void)e;
    return ST_OK;
}

static status change_mem(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e)
{
    const damage *d = (const damage *)s;
    (void)bytes, (void)e;
    if (layer == 1 && strcmp(name, "demoted positions") == 0) d->be->ops->upload(d->be, b, &d->to, sizeof d->to);
    return ST_OK;
}

static status keep_rows(attn_state *s, const char *name, int layer, buf b, size_t bytes, state_part part, err *e)
{
    (void)s, (void)name, (void)layer, (void)b, (void)bytes, (void)part, (void)e;
    return ST_OK;
}

/* The first demoted position of a list: as it was, no token's, an exact row's, another demoted one's. */
static void check_loaded(rig *r)
{
    attn_seq *s = open_seq(r, "h2o:budget=20:demote=token2");
    int64_t exact[T_MAX], low[T_MAX];
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    attn_seq_positions(s, 1, 0, exact);
    attn_seq_demoted(s, 1, 0, low);
    const int64_t bad[] = {-1, PROMPT, INT32_MAX, exact[19], low[1]};
    damage d = {.s = {.load = true, .host = keep_host, .mem = change_mem, .rows = keep_rows}, .be = r->be};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        d.to = (int32_t)bad[i];
        is_err(attn_seq_state(s, &d.s, &e), &e, ST_FORMAT, "positions of demoted rows", "position %lld for %lld",
               (long long)bad[i], (long long)low[0]);
    }
    err e = {0};
    d.to = (int32_t)low[0];
    is_ok(attn_seq_state(s, &d.s, &e), &e, "the position itself");
    attn_seq_free(s);
}

static void check(rig *r)
{
    static const char *const evictors[] = {"h2o:budget=20",
                                           "h2o:budget=20:gqa=per_q",
                                           "tova:budget=20",
                                           "tova:budget=20:gqa=mean_s",
                                           "snapkv:budget=20",
                                           "snapkv:budget=20:recompress_on_turn=1",
                                           "streaming:budget=20:pos=abs"};
    static const char *const how[] = {"f16", "f16:recall=12", "token4", "kivi4:demote_g=7"};
    static const int percents[] = {0, 7, 20, 50, 99};
    char text[96];
    check_refused(r);
    check_loaded(r);
    for (size_t i = 0; i < sizeof evictors / sizeof *evictors; i++)
        for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
            snprintf(text, sizeof text, "%s:demote=%s", evictors[i], how[k]);
            check_partition(r, text, -1);
        }
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        snprintf(text, sizeof text, "mikv:ratio=%d", percents[i]);
        check_partition(r, text, percents[i]);
    }
    check_bytes(r, "h2o:budget=20:demote=f16", 2 * T_DIM * 2);
    check_bytes(r, "h2o:budget=20:demote=token2", 2 * (T_DIM / 4 + 2 * 4));
    check_bytes(r, "h2o:budget=20:demote=token4", 2 * (T_DIM / 2 + 2 * 4));
    rig_check_oom(r, "mikv", 5);
}

int main(void)
{
    world_fill(&w, 5);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, 64, check);
    return tap_done();
}
