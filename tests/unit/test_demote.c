/* SPDX-License-Identifier: MIT */
/* Demotion: what evictors drop is kept in a cheaper store. doc/methods.md section 14a. */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "attention/state.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

typedef float head_rows[T_HEADS][T_DIM];

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

enum { PROMPT = 50, STEPS = 12, SECOND = 20 };

static attn_seq *open_seq(rig *r, const char *text)
{
    err e = {0};
    attn_seq *s;
    is_ok(rig_seq(r, &s, text, DT_F32, T_MAX, &e), &e, "%s", text);
    return s;
}

/* The largest difference of n rows, over the largest number. */
static double apart(const rig *r, size_t n)
{
    double most = 0, top = 0;
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < r->shape.n_heads * T_DIM; c++) {
            double x = (double)(&got[i][0][0])[c], y = (double)(&want[i][0][0])[c];
            most = fmax(most, fabs(x - y));
            top = fmax(top, fabs(y));
        }
    return most / top;
}

/* Two prompts with steps behind each, beside another strategy: the largest distance. */
static double distance(rig *r, const char *text, const char *other, bool *same_lists)
{
    attn_seq *a = open_seq(r, text), *b = open_seq(r, other);
    double most = 0;
    *same_lists = true;
    for (int turn = 0; turn < 2; turn++) {
        size_t n = turn ? SECOND : PROMPT;
        rig_prompt(r, &a, 1, (int64_t)n, 16, got);
        rig_prompt(r, &b, 1, (int64_t)n, 16, want);
        most = fmax(most, apart(r, T_LAYERS * n));
        for (int i = 0; i < STEPS; i++) {
            rig_decode(r, &a, 1, got);
            rig_decode(r, &b, 1, want);
            most = fmax(most, apart(r, T_LAYERS));
            for (int h = 0; h < r->shape.n_kv_heads; h++) {
                int64_t x[T_MAX], y[T_MAX], nx = attn_seq_positions(a, 1, h, x), ny = attn_seq_positions(b, 1, h, y);
                *same_lists &= nx == ny && memcmp(x, y, (size_t)nx * sizeof *x) == 0;
            }
        }
    }
    attn_seq_free(a);
    attn_seq_free(b);
    return most;
}

/* Exact and demoted tokens of each list are all tokens, each once. */
static void check_partition(rig *r, const char *text)
{
    attn_seq *s = open_seq(r, text);
    bool good = true;
    for (int turn = 0; turn < 2; turn++) {
        rig_prompt(r, &s, 1, turn ? SECOND : PROMPT, 16, NULL);
        for (int i = 0; i < STEPS; i++) {
            rig_decode(r, &s, 1, NULL);
            for (int l = 0; l < T_LAYERS; l++)
                for (int h = 0; h < r->shape.n_kv_heads; h++) {
                    int seen[T_MAX] = {0};
                    int64_t x[T_MAX], n = attn_seq_positions(s, l, h, x), m = attn_seq_demoted(s, l, h, x + n);
                    good &= n + m == attn_seq_length(s) && m > 0;
                    for (int64_t k = 0; k < n + m; k++) seen[x[k]]++;
                    for (int64_t k = 0; k < n + m; k++) good &= seen[k] == 1;
                }
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

/* Codes of groups: a list's exact tokens are the budget and what does not fill a group. */
static void check_groups(rig *r, const char *evictor)
{
    enum { G = 7, BUDGET = 20 };
    char text[96];
    bool same, full = true;
    snprintf(text, sizeof text, "%s:demote=kivi4:demote_g=%d", evictor, G);
    double four = distance(r, text, "full", &same);
    check_partition(r, text);
    attn_seq *s = open_seq(r, text);
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < r->shape.n_kv_heads; h++)
            full &= attn_seq_demoted(s, l, h, NULL) == (PROMPT - BUDGET) / G * G;
    ok(full && 0 < four && four < 0.5, "%s, %s: whole groups, off by %g", r->be->name, text, four);
    attn_seq_free(s);
}

/* As many rows as there are: all, to the bit. Fewer: what is attended tells, and the more the nearer to all. */
static void check_recall(rig *r, const char *evictor)
{
    enum { SOME = 12 };
    char text[128], all[96];
    bool same;
    snprintf(all, sizeof all, "%s:demote=kivi2:demote_g=4", evictor);
    snprintf(text, sizeof text, "%s:recall=%d", all, T_MAX);
    double off = distance(r, text, all, &same);
    ok(off == 0 && same, "%s, %s: all, to the bit", r->be->name, text);
    snprintf(all, sizeof all, "%s:demote=f16", evictor);
    snprintf(text, sizeof text, "%s:recall=%d", all, SOME);
    check_partition(r, text);
    attn_seq *s = open_seq(r, text);
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    bool right = true;
    for (int i = 0; i < STEPS; i++) {
        double exact = (double)attn_seq_positions(s, 0, 0, NULL) + 1, before = attn_seq_stats(s).attended;
        rig_decode(r, &s, 1, NULL);
        right &= attn_seq_stats(s).attended - before == T_LAYERS * (exact + SOME);
    }
    ok(right, "%s, %s: exact tokens and %d others are attended", r->be->name, text, SOME);
    attn_seq_free(s);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%s:recall=%d", all, i ? 1 : SOME);
        double more = distance(r, text, all, &same);
        ok(i == 0 ? more > 0 : more > off, "%s, %s: off by %g, with %d by %g", r->be->name, text, more, SOME, off);
        off = more;
    }
}

/* A token that the query behind the prompt asks for, when it has long been dropped. */
static void check_needle(rig *r, const char *evictor)
{
    enum { AT = 5, HALF = T_DIM / 2, VALUE = 3 };
    static world needle;
    needle = w;
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < r->shape.n_heads; h++) {
            int kv = h / (r->shape.n_heads / r->shape.n_kv_heads);
            for (int c = 0; c < HALF; c++) {
                double a = (AT - PROMPT) * (double)w.freq[c], x = (double)w.k[l][AT][kv][c],
                       y = (double)w.k[l][AT][kv][c + HALF];
                needle.q[l][PROMPT][h][c] = (float)(20 * (x * cos(a) - y * sin(a)));
                needle.q[l][PROMPT][h][c + HALF] = (float)(20 * (y * cos(a) + x * sin(a)));
            }
            for (int c = 0; c < T_DIM; c++) {
                needle.k[l][AT][kv][c] = 3 * w.k[l][AT][kv][c];
                needle.v[l][AT][kv][c] = VALUE;
            }
        }
    r->w = &needle;
    for (int recall = 0; recall < 2; recall++) {
        char text[96];
        bool right = true;
        snprintf(text, sizeof text, "%s:demote=token4:recall=%d", evictor, recall);
        attn_seq *s = open_seq(r, text);
        rig_prompt(r, &s, 1, PROMPT, 16, NULL);
        rig_decode(r, &s, 1, got);
        for (int l = 0; l < T_LAYERS; l++)
            for (int i = 0; i < r->shape.n_heads * T_DIM; i++)
                right &= recall ? (&got[l][0][0])[i] > 0.9f * VALUE : (&got[l][0][0])[i] < 1;
        ok(right, "%s, %s: a dropped token that is asked for", r->be->name, text);
        attn_seq_free(s);
    }
    r->w = &w;
}

/* What has no place for demoted rows is refused by name. */
static void check_refused(rig *r)
{
    static const struct {
        const char *text, *why;
        int window; /* of layer 1 */
        status st;
    } bad[] = {
        {"h2o:budget=20:demote=token2:kv=kivi2/g=4/r=8", "demotion needs exact rows, found --kv kivi2", 0, ST_USAGE},
        {"snapkv:budget=20:demote=f16:kv=logquant/g=4/r=12", "expected f16, bf16 or f32", 0, ST_USAGE},
        {"h2o:budget=20:demote=token2:pos=rank", "demote with pos=rank", 0, ST_USAGE},
        {"streaming:budget=20:demote=token2:prefill=banded", "demote with prefill=banded", 0, ST_USAGE},
        {"streaming:budget=20:demote=token2", "layer 1 has a window of 40 tokens", 40, ST_UNSUPPORTED},
        {"tova:budget=20:demote=token4", "layer 1 has a window of 40 tokens", 40, ST_UNSUPPORTED}};
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
           "head_dim 7, expected an even one", "half a row");
    r->shape.head_dim = T_DIM;
}

/* ---- what is loaded ---- */

/* Which demoted position is changed while a walk over a sequence's own state goes on as if it was loaded. */
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

static status keep_rows(attn_state *s, const char *name, int layer, buf b, size_t bytes, const state_part *part,
                        size_t n_parts, err *e)
{
    (void)s, (void)name, (void)layer, (void)b, (void)bytes, (void)part, (void)n_parts, (void)e;
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

int main(void)
{
    static const char *const evictors[] = {"h2o:budget=20",
                                           "h2o:budget=20:gqa=per_q",
                                           "h2o:budget=20:mode=oneshot",
                                           "tova:budget=20",
                                           "tova:budget=20:gqa=mean_s",
                                           "snapkv:budget=20",
                                           "snapkv:budget=20:recompress_on_turn=1",
                                           "streaming:budget=20:pos=abs",
                                           "streaming:budget=20:compat=kvfactory"};
    static const char *const devices[] = {"ref", "cpu"};
    world_fill(&w, 5);
    for (int d = 0; d < 2; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, devices[d], &w, 64, &e), &e, "%s", devices[d])) return tap_done();
        check_refused(&r);
        check_loaded(&r);
        check_needle(&r, "streaming:budget=20");
        check_needle(&r, "h2o:budget=20:hh=0");
        for (size_t i = 0; i < sizeof evictors / sizeof *evictors; i++) {
            char text[96];
            bool same;
            snprintf(text, sizeof text, "%s:demote=f16:kv=f16", evictors[i]);
            double off = distance(&r, text, "full:kv=f16", &same);
            ok(off < 1e-5, "%s, %s: full (%g apart)", r.be->name, text, off);
            check_partition(&r, text);
            for (int bits = 2; bits <= 4; bits += 2) {
                snprintf(text, sizeof text, "%s:demote=token%d:recall=0", evictors[i], bits);
                off = distance(&r, text, evictors[i], &same);
                ok(off == 0 && same, "%s, %s: the evictor, to the bit", r.be->name, text);
            }
            check_recall(&r, evictors[i]);
            snprintf(text, sizeof text, "%s:demote=kivi2:demote_g=1:recall=0", evictors[i]);
            off = distance(&r, text, evictors[i], &same);
            ok(off == 0 && same, "%s, %s: the evictor, to the bit", r.be->name, text);
            check_groups(&r, evictors[i]);
            snprintf(text, sizeof text, "%s:demote=token4", evictors[i]);
            double four = distance(&r, text, "full", &same);
            snprintf(text, sizeof text, "%s:demote=token2", evictors[i]);
            double two = distance(&r, text, "full", &same);
            double plain = distance(&r, evictors[i], "full", &same);
            ok(0 < four && four < two && two < plain, "%s, %s: off by %g, with 4 bits %g, without %g", r.be->name, text,
               two, four, plain);
            check_partition(&r, text);
        }
        check_bytes(&r, "h2o:budget=20:demote=f16", 2 * T_DIM * 2);
        check_bytes(&r, "h2o:budget=20:demote=token2", 2 * (T_DIM / 4 + 2 * 4));
        check_bytes(&r, "h2o:budget=20:demote=token4", 2 * (T_DIM / 2 + 2 * 4));
        is_ok(backend_fault(r.be, &e), &e, "%s: no fault", r.be->name);
        rig_close(&r);
    }
    return tap_done();
}
