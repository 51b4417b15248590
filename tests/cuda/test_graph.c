/* SPDX-License-Identifier: MIT */
/* Decode steps as graphs: the same tokens as launch by launch, one graph launch per step, and no waits or allocations
 * within a step. The shim defers work until something waits for it, which reveals accesses that are too early. */
/* Builds: shim */
#include "config.h"

#include "kernels/base/mem.h"
#include "model/sampler.h"
#include "tests/cushim/shim.h"
#include "tests/unit/session_util.h"

enum { N_PROMPT = 40, N_STEPS = 24, LIMIT = 128 };

static const char *const strategies[] = {
    "full",
    "streaming:budget=24",
    "streaming:budget=24:pos=abs",
    "quest:budget=16:page=4:skip=0",
    "fier:budget=16:g=8:skip=1",
    "codes:budget=16:skip=0:kv=kivi4/g=4/r=8",
    "pqcache:budget=16:sink=4:bits=3",
};

/* Cost of a session's lifetime after its first `warm` steps. */
typedef struct {
    long waits, allocs, single, graphs, made, stalls;
} costs;

static costs now(void)
{
    return (costs){shim_count(SHIM_WAITS),  shim_count(SHIM_ALLOCS), shim_count(SHIM_SINGLE),
                   shim_count(SHIM_GRAPHS), shim_count(SHIM_MADE),   shim_count(SHIM_STALLS)};
}

/* Greedy ids after a prompt, through logits on the host. */
static status by_logits(const engine_parts *p, const char *strategy, int32_t *out, err *e)
{
    float logits[U_VOCAB];
    session *s;
    TRY(session_new(&s, p, strategy, "f16", LIMIT, e));
    status st = live(s, N_PROMPT, 0, logits, e);
    for (int i = 0; i < N_STEPS && st == ST_OK; i++) {
        out[i] = logits_argmax(logits, U_VOCAB);
        st = session_decode(&s, 1, &out[i], logits, e);
    }
    session_free(s);
    return st;
}

/* The same with selection on the device, queued one step ahead. Counts the cost of queueing after the first `WARM`
 * steps. */
enum { WARM = 4 };

static status by_queue(const engine_parts *p, const char *strategy, sampler *by, int32_t *out, costs *cost, err *e)
{
    float logits[U_VOCAB];
    session *s;
    TRY(session_new(&s, p, strategy, "f16", LIMIT, e));
    status st = live(s, N_PROMPT, 0, logits, e);
    if (st == ST_OK) out[0] = by ? sampler_next(by, logits, session_length(s)) : logits_argmax(logits, U_VOCAB);
    for (int queued = 0, got = 1; got < N_STEPS && st == ST_OK;) {
        while (queued < N_STEPS && queued < got + decoder_ahead(p->dec) && st == ST_OK) {
            costs from = now();
            st = session_queue(&s, 1, queued ? NULL : out, by ? &by : NULL, e);
            costs to = now();
            if (queued++ < WARM) continue;
            cost->waits += to.waits - from.waits;
            cost->allocs += to.allocs - from.allocs;
            cost->single += to.single - from.single;
            cost->graphs += to.graphs - from.graphs;
            cost->stalls += to.stalls - from.stalls;
        }
        if (st == ST_OK) st = session_take(p->dec, 1, &out[got++], e);
    }
    int32_t last;
    if (st == ST_OK) st = session_take(p->dec, 1, &last, e);
    session_free(s);
    return st;
}

static void test_queue(const engine_parts *p, const char *strategy, const int32_t *want)
{
    int32_t got[N_STEPS];
    err e = {0};
    costs c = {0};
    is_ok(by_queue(p, strategy, NULL, got, &c, &e), &e, "%s, queued", strategy);
    ok(memcmp(want, got, sizeof got) == 0, "%s, queued, the same tokens", strategy);
    is_int(c.graphs, N_STEPS - WARM, "%s, queued, a graph a step", strategy);
    is_int(c.waits, 0, "%s, queueing waits for nothing", strategy);
    is_int(c.allocs, 0, "%s, and takes no memory", strategy);
    is_int(c.stalls, 0, "%s, and updates no graph that still runs", strategy);
    is_int(c.single, 0, "%s, and nothing is queued outside the graph", strategy);
}

/* Random tokens: those of the host for the same seed. */
static status by_sampler(const engine_parts *p, sampler *by, int32_t *out, err *e)
{
    float logits[U_VOCAB];
    session *s;
    TRY(session_new(&s, p, "full", "f16", LIMIT, e));
    status st = live(s, N_PROMPT, 0, logits, e);
    for (int i = 0; i < N_STEPS && st == ST_OK; i++) {
        out[i] = sampler_next(by, logits, session_length(s));
        st = session_decode(&s, 1, &out[i], logits, e);
    }
    session_free(s);
    return st;
}

static void test_sampled(const engine_parts *p)
{
    static const sampler_options options[] = {
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5},
        {.temp = 0.8, .top_p = 0.9, .top_k = 50, .min_p = 0.01, .repeat_penalty = 1, .seed = 6},
        {.temp = 0.8, .top_p = 0.9, .top_k = 50, .min_p = 0.01, .repeat_penalty = 1, .seed = 6, .draw = DRAW_RANK},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        int32_t host[N_STEPS], device[N_STEPS];
        sampler *a, *b;
        costs c = {0};
        err e = {0};
        is_ok(sampler_create(&a, &options[i], U_VOCAB, &e), &e, "a sampler");
        is_ok(sampler_create(&b, &options[i], U_VOCAB, &e), &e, "a sampler");
        is_ok(by_sampler(p, a, host, &e), &e, "drawn on the host");
        is_ok(by_queue(p, "full", b, device, &c, &e), &e, "drawn on the device");
        ok(memcmp(host, device, sizeof host) == 0, "options %zu: the same random tokens", i);
        sampler_free(a);
        sampler_free(b);
    }
}

/* queue: also steps queued before they are requested. */
static void test_decode(const engine_parts *p, const char *strategy, bool queue)
{
    int32_t plain[N_STEPS], graph[N_STEPS];
    err e = {0};
    decoder_profile(p->dec, true); /* steps are not captured while profiling */
    long before = shim_count(SHIM_GRAPHS);
    is_ok(by_logits(p, strategy, plain, &e), &e, "%s, launch by launch", strategy);
    is_int(shim_count(SHIM_GRAPHS) - before, 0, "%s, without a graph", strategy);
    decoder_profile(p->dec, false);
    costs from = now();
    is_ok(by_logits(p, strategy, graph, &e), &e, "%s, in graphs", strategy);
    is_int(shim_count(SHIM_GRAPHS) - from.graphs, N_STEPS, "%s, a graph a step", strategy);
    ok(shim_count(SHIM_MADE) - from.made <= 8, "%s, most of them updated: %ld made", strategy,
       shim_count(SHIM_MADE) - from.made);
    ok(memcmp(plain, graph, sizeof plain) == 0, "%s, the same tokens", strategy);
    if (queue) test_queue(p, strategy, plain);
}

/* A session's first step on a device that has only run its prompt: all memory was allocated with the session. The
 * context is so long that several blocks select among its tokens. */
static void test_first(const char *strategy)
{
    enum { ROOM = 20000 };
    engine_parts p;
    session *s = NULL;
    float logits[U_VOCAB];
    int32_t id = 1;
    err e = {0};
    if (!is_ok(parts_open(&p, "qwen2-f16", "cuda", &e), &e, "a model")) return;
    status st = session_new(&s, &p, strategy, "f16", ROOM, &e);
    if (st == ST_OK) st = live(s, N_PROMPT, 0, logits, &e);
    costs from = now();
    if (st == ST_OK) st = session_queue(&s, 1, &id, NULL, &e);
    costs to = now();
    if (st == ST_OK) st = session_take(p.dec, 1, &id, &e);
    is_ok(st, &e, "%s, a step", strategy);
    is_int(to.allocs - from.allocs, 0, "%s, the first step takes no memory", strategy);
    is_int(to.graphs - from.graphs, 1, "%s, and is a graph", strategy);
    session_free(s);
    parts_close(&p);
}

/* In addition to those above: second levels, pools, quantized rows, other families. */
static const char *const planned[] = {
    "fier:budget=16:g=8:skip=0:coarse=16:coarse_keep=2:p=0.8:min=4",
    "oracle:budget=16:skip=0:p=0.9:min=4:tail=sample:5",
    "pariskv:budget=8:sink=1:local=4:u=4:full_thr=0:skip=0",
    "quest:budget=16:page=1:skip=0:coarse=1",
    "fier:budget=16:g=8:skip=0:tail=sample:4",
    "fier:budget=40:g=8:skip=0:kv=kivi4/g=4/r=8",
    "pariskv:budget=4:sink=1:local=4:u=4:full_thr=0:skip=0",
    "retroinfer:budget=16:sink=1:local=4:size=2:update=4:skip=0",
    "actqkv:budget=18:sink=2:local=8:window=4:block=1:reps=1",
    "infllm:budget=18:sink=2:local=8:window=4:block=1:reps=1",
    "tokenselect:budget=8:sink=2:local=8:window=4",
    "tokenselect:budget=8:sink=2:local=8:window=4:reuse=50:kv=kivi2/g=4/r=8",
    "h2o:budget=16:skip=0",
    "h2o:budget=16:skip=0:kv=kivi2/g=4/r=8",
    "snapkv:budget=12:window=4:skip=0:gqa=per_q:kv=kivi2/g=4/r=8",
    "tova:budget=16:skip=0",
    "h2o:budget=16:skip=0:demote=token2",
    "mikv:ratio=40:skip=0",
    "h2o:budget=16:skip=0:demote=kivi2:demote_g=4",
    "tova:budget=12:skip=0:demote=kivi4:demote_g=2:recall=3",
    "streaming:budget=12:demote=kivi2:demote_g=4:recall=3",
    "tova:budget=16:skip=0:demote=f16:gqa=per_q",
    "magicpig:K=3:L=12:sink=2:local=4:skip=0",
    "magicpig:K=3:L=12:sink=2:local=4:skip=0",
};

int main(void)
{
    engine_parts p;
    err e = {0};
    shim_lazy(true);
    for (size_t i = 0; i < sizeof planned / sizeof *planned; i++)
        if (!tap_leaves_out(i % 6 != 0)) test_first(planned[i]);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        if (!tap_leaves_out(i % 12 != 0)) test_first(strategies[i]);
    if (is_ok(parts_open(&p, "qwen2-f16", "cuda", &e), &e, "a model")) {
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
            if (!tap_leaves_out(i % 12 != 6)) test_decode(&p, strategies[i], true);
        for (size_t i = 0; i < sizeof planned / sizeof *planned; i++)
            if (!tap_leaves_out(i % 6 != 1)) test_decode(&p, planned[i], false);
        test_sampled(&p);
        parts_close(&p);
    }
    is_int((long long)shim_held(), 0, "nothing is held");
    is_int(shim_count(SHIM_LATE), 0, "graphs are given back before the library whose kernels they may hold");
    return tap_done();
}
