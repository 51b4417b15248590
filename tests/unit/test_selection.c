/* SPDX-License-Identifier: MIT */
/* The selection that a step reports is the set of rows that it reads: the value of position p is the unit vector of
 * channel p, so that the output of a head is positive in the channels of the positions that it read, and 0 elsewhere.
 */
#include "config.h"

#define T_HEADS 4
#define T_KV    2
#define T_DIM   64

#include "tests/unit/attention_oracle.h"

enum { PROMPT = 29, STEPS = 20, WIDE = 34 };

static world w;

/* Reports of the current step, and if all of them were right. */
static struct {
    rig *r;
    bool on, read;
    double listed; /* means over the heads of each layer, summed */
    double uneven; /* layers whose heads read different numbers of tokens */
    int64_t most;  /* most positions of a head since it was set to 0 */
} seen;

static void see(void *ctx, const attn_seen *s)
{
    (void)ctx;
    const rig *r = seen.r;
    float out[T_HEADS][T_DIM];
    int32_t pos[2 * T_MAX];
    int64_t head_end, tail, first = 0;
    bool even = true;
    if (!seen.on || s->layer < 0 || s->layer >= T_LAYERS) return;
    r->be->ops->download(r->be, out, s->out, sizeof out);
    for (int h = 0; h < T_HEADS; h++) {
        bool listed[T_DIM] = {false};
        int64_t n = attn_last_selection(r->work, 0, h, pos, &head_end, &tail);
        for (int64_t i = 0; i < n; i++) {
            seen.read &= pos[i] >= 0 && (i == 0 || pos[i] > pos[i - 1]);
            listed[pos[i] % T_DIM] = true;
        }
        for (int c = 0; c < T_DIM; c++) seen.read &= listed[c] == (out[h][c] > 1e-5f); /* weights are near 1 / n */
        if (h == 0) first = n;
        if (n > seen.most) seen.most = n;
        even &= n == first;
        seen.listed += (double)n / T_HEADS;
    }
    seen.uneven += !even;
}

static void check(rig *r, const char *spec, const char *store, int window)
{
    attn_seq *s;
    attn_spec a;
    attn_options o = {0};
    err e = {0};
    attn_limits lim = {.n_tokens = PROMPT + STEPS, .chunk = 64};
    bool counted = true;
    r->window[1] = window;
    r->window[2] = window / 3;
    kv_format_parse(&o.kv, store, "--kv", &e);
    status st = attn_spec_parse(&a, spec, &o, &e);
    if (st == ST_OK) st = attn_seq_create(&s, &a, &r->shape, &lim, r->be, &e);
    if (!is_ok(st, &e, "%s over %s", spec, store)) return;
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    seen.read = seen.on = true;
    for (int i = 0; i < STEPS; i++) {
        double before = attn_seq_stats(s).attended;
        seen.listed = seen.uneven = 0;
        rig_decode(r, &s, 1, NULL);
        counted &= fabs(attn_seq_stats(s).attended - before - seen.listed) <= seen.uneven + 1e-9;
    }
    seen.on = false;
    ok(seen.read, "%s over %s, windows of %d: the rows that are listed are those that were read", spec, store, window);
    ok(counted, "%s over %s, windows of %d: as many as `attended` counts", spec, store, window);
    attn_seq_free(s);
}

/* Strategies of every kind of list; window: they run in layers with sliding windows too. */
static const struct {
    const char *spec, *store;
    bool window;
} cases[] = {
    {"full", "f32", true},
    {"full", "kivi2:g=8:r=16", true},
    {"logquant:g=8:r=24", "f32", true},
    {"streaming:budget=20", "f32", true},
    {"streaming:budget=20:pos=abs", "f16", true},
    {"streaming:budget=20:prefill=banded:pos=abs", "f32", true},
    {"streaming:budget=20", "kivi4:g=8:r=16", true},
    {"streaming:budget=20:demote=token4", "f32", false},
    {"streaming:budget=20:demote=kivi4:demote_g=4:recall=3", "f32", false},
    {"h2o:budget=16", "f32", true},
    {"h2o:budget=16:gqa=per_q", "f32", true},
    {"h2o:budget=16", "kivi4:g=8:r=16", true},
    {"h2o:budget=16:demote=token4:recall=0", "f32", false},
    {"h2o:budget=16:demote=token4:recall=4", "f32", false},
    {"h2o:budget=16:gqa=per_q:demote=f16:recall=5", "f32", false},
    {"tova:budget=16", "f32", true},
    {"tova:budget=16:gqa=mean_s", "q8:rot=off", true},
    {"tova:budget=16:demote=kivi4:demote_g=4", "f32", false},
    {"snapkv:budget=12:gqa=mean_s", "f32", true},
    {"mikv", "f32", false},
    {"oracle:budget=16:skip=0", "f32", true},
    {"quest:budget=16:page=4:skip=0", "f32", true},
    {"fier:budget=16:g=8:skip=0:gqa=per_q", "f32", true},
    {"codes:budget=16:skip=0", "q8:rot=off", true},
    {"pqcache:budget=16:sink=3:bits=2", "f32", true},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8:est=0", "f32", false},
    {"pariskv:budget=6:sink=4:local=6:u=5:full_thr=0", "f32", true},
    {"magicpig:K=3:L=12:sink=3:local=6:skip=0", "f32", true},
    {"actqkv:sink=3:local=12:window=8:block=4:reps=2:budget=23", "f32", true},
    {"infllm:sink=3:local=12:window=8:block=4:reps=2:budget=23", "f32", true},
    {"tokenselect:sink=3:local=8:window=8:budget=8", "f32", true},
    {"tokenselect:sink=3:local=8:window=8:budget=8", "f32", true},
};

/* Bounds of doc/methods.md 0.2.3, 9.6 and 14a on what a decode step attends, here without snapkv, which grows. */
static const struct {
    const char *spec;
    int64_t most;
    bool reached;
} bounds[] = {
    {"streaming:budget=20", 20 + 1, true},
    {"streaming:budget=20:demote=token4:recall=3", 20 + 1 + 3, true},
    {"h2o:budget=16", 16 + 1, true},
    {"h2o:budget=16:demote=kivi4:demote_g=4:recall=0", 16 + 3 + 1, true},
    {"tova:budget=16", 16 + 1, true},
    {"oracle:budget=16:skip=0", 16, true},
    {"quest:budget=26:page=4:skip=0", 24, true},
    {"quest:budget=8:page=8:skip=0", 3 * 8, true},
    {"quest:budget=24:page=4:skip=0:force_sink=5:force_recent=6", 24, true},
    {"fier:budget=20:g=8:skip=0", 20, true},
    {"pqcache:budget=16:sink=3:bits=2", 16, true},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8", 24, false},
    {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", 4 + 6 + 8 + 5, true},
    {"tokenselect:sink=3:local=8:window=8:budget=8", 3 + 8 + 8, true},
    {"infllm:sink=3:local=12:window=8:block=4:reps=2:budget=23", 23 + 4, true},
    {"actqkv:sink=3:local=12:window=8:block=4:reps=2:budget=23:pool=fixed", 23 + 4, true},
    {"actqkv:sink=3:local=12:window=8:block=4:reps=2:budget=23", 3 + 12 + 2 * 8 + 4, false},
};

static void check_bound(rig *r, const char *spec, int64_t most, bool reached)
{
    enum { MANY = 60 };
    attn_seq *s;
    err e = {0};
    r->window[1] = r->window[2] = 0;
    if (!is_ok(rig_seq(r, &s, spec, DT_F32, PROMPT + MANY, &e), &e, "%s", spec)) return;
    rig_prompt(r, &s, 1, PROMPT, 16, NULL);
    seen.most = 0;
    seen.on = true;
    for (int i = 0; i < MANY; i++) rig_decode(r, &s, 1, NULL);
    seen.on = false;
    ok(reached ? seen.most == most : seen.most <= most, "%s: a step attends at most %d tokens (%d)", spec, (int)most,
       (int)seen.most);
    attn_seq_free(s);
}

int main(void)
{
    rig r;
    err e = {0};
    world_fill(&w, 7);
    for (size_t i = 0; i < sizeof w.q / sizeof(float); i++) (&w.q[0][0][0][0])[i] /= 4; /* no weight rounds to 0 */
    memset(w.v, 0, sizeof w.v);
    for (int l = 0; l < T_LAYERS; l++)
        for (int p = 0; p < T_DIM; p++)
            for (int h = 0; h < T_KV; h++) w.v[l][p][h][p] = 1;
    if (!is_ok(rig_open(&r, "cpu", &w, 64, &e), &e, "opened")) return tap_done();
    seen.r = &r;
    attn_watch(r.work, see, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check(&r, cases[i].spec, cases[i].store, 0);
        if (cases[i].window) check(&r, cases[i].spec, cases[i].store, WIDE);
    }
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        check_bound(&r, bounds[i].spec, bounds[i].most, bounds[i].reached);
    rig_close(&r);
    return tap_done();
}
