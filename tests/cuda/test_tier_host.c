/* SPDX-License-Identifier: MIT */
/* --kv-tier host: rows in pinned memory give the same tokens as rows on the device, without a wait or an allocation in
 * a step. Pinned memory is planned, its failure is reported, and all of it is freed. The shim does deferred work when
 * something waits for it. */
/* Builds: shim */
#include "config.h"

#include "model/sampler.h"
#include "tests/cushim/shim.h"
#include "tests/unit/session_util.h"

/* COUNTERS: bytes outside of the memory plan, for counters of three layer groups, of the tier, and in states. */
enum { N_PROMPT = 40, N_STEPS = 10, WARM = 4, LIMIT = 128, COUNTERS = 3 * READ_KINDS * 8 + 128 };

static const struct {
    const char *strategy, *store, *tier;
    int64_t longest; /* longest prompt of a quantized store; 0: any */
} cases[] = {
    {"full", "f16", "host:window=8:cache=4k", 0},
    {"quest:budget=16:page=4:skip=0", "f16", "host:window=0:cache=0", 0},
    {"quest:budget=16:page=4:skip=1:gqa=per_q", "f32", "host:window=2:cache=3k", 0},
    {"quest:budget=16:page=4:skip=1", "kivi4:g=4:r=8", "host:window=0:cache=0", 0},
    {"fier:budget=16:g=8:skip=0", "bf16", "host:window=4:cache=4k", 0},
    {"fier:budget=16:g=8:skip=1", "logquant4:r=24", "host", N_PROMPT},
    {"codes:budget=16:skip=0", "kivi4:g=4:r=8", "host:window=0:cache=0", 0},
    {"codes:budget=16:skip=1:gqa=per_q", "logquant4:r=24", "host", N_PROMPT},
    {"pqcache:budget=16:sink=4:bits=3", "f16", "host:window=4:cache=4k", 0},
    {"pqcache:budget=16:sink=4:bits=3", "kivi4:g=4:r=8", "host", N_PROMPT},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8", "f16", "host:window=4:cache=4k", 0},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8", "kivi4:g=4:r=8", "host", N_PROMPT},
    {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", "f32", "host:window=0:cache=2k", 0},
    {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", "kivi2:g=4:r=8", "host", N_PROMPT},
    {"actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31", "f16", "host:window=4:cache=3k", 0},
    {"infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31", "f16", "host:window=4:cache=3k", 0},
    {"tokenselect:sink=3:local=8:window=8:budget=12", "f16", "host:window=4:cache=3k", 0},
    {"kivi:g=8:r=16", "f16", "host", 0},
};

static status new_in(session **s, const engine_parts *p, const char *strategy, const char *store, const char *place,
                     int64_t longest, err *e)
{
    attn_spec spec;
    kv_tier where;
    attn_options o = {.tier = &where};
    *s = NULL;
    TRY(kv_tier_parse(&where, place, e));
    TRY(kv_format_parse(&o.kv, store, "--kv", e));
    TRY(attn_spec_parse(&spec, strategy, &o, e));
    return session_create(s, p->dec, &spec, (session_size){.n_tokens = LIMIT, .longest_prompt = longest}, e);
}

/* Cost of queueing the steps after the first `WARM`, and the bytes a session reads. */
typedef struct {
    long waits, allocs;
    host_counts moved;
    size_t pinned, held; /* by the session, on the host and on the device */
    memory_plan plan;
} costs;

static status queue_steps(const engine_parts *p, session *s, int32_t *out, costs *cost, err *e)
{
    float logits[U_VOCAB];
    status st = live(s, N_PROMPT, 0, logits, e);
    if (st == ST_OK) out[0] = logits_argmax(logits, U_VOCAB);
    for (int i = 0; i + 1 < N_STEPS && st == ST_OK; i++) {
        long waits = shim_count(SHIM_WAITS), allocs = shim_count(SHIM_ALLOCS);
        st = session_queue(&s, 1, i ? NULL : out, NULL, e);
        if (i >= WARM) {
            cost->waits += shim_count(SHIM_WAITS) - waits;
            cost->allocs += shim_count(SHIM_ALLOCS) - allocs;
        }
        if (st == ST_OK) st = session_take(p->dec, 1, &out[i + 1], e);
    }
    cost->moved = attn_seq_host(session_attn(s));
    return st;
}

static status tokens(const engine_parts *p, int c, const char *place, int32_t *out, costs *cost, err *e)
{
    session *s;
    size_t before = shim_pinned_held(), held = shim_held();
    *cost = (costs){0};
    TRY(new_in(&s, p, cases[c].strategy, cases[c].store, place, cases[c].longest, e));
    cost->pinned = shim_pinned_held() - before;
    cost->held = shim_held() - held;
    const decoder_options o = {.chunk = U_CHUNK, .max_batch = U_BATCH};
    status planned = session_plan(&cost->plan, p->m, &o, attn_seq_spec(session_attn(s)),
                                  (session_size){.n_tokens = LIMIT, .longest_prompt = cases[c].longest}, e);
    if (planned != ST_OK) cost->pinned = 0;
    status st = queue_steps(p, s, out, cost, e);
    session_free(s);
    return st;
}

static void test_case(const engine_parts *p, int c)
{
    int32_t device[N_STEPS] = {0}, host[N_STEPS] = {1};
    costs d, h;
    err e = {0};
    char name[160];
    size_t pinned = shim_pinned_held();
    snprintf(name, sizeof name, "%s, %s, %s", cases[c].strategy, cases[c].store, cases[c].tier);
    is_ok(tokens(p, c, "device", device, &d, &e), &e, "%s, on the device", name);
    is_ok(tokens(p, c, cases[c].tier, host, &h, &e), &e, "%s, in the host's memory", name);
    ok(memcmp(device, host, sizeof host) == 0, "%s, the same tokens", name);
    ok(d.pinned == 0 && h.pinned > 0 && h.pinned == h.plan.host, "%s, %zu bytes pinned, %zu planned", name, h.pinned,
       h.plan.host);
    ok(h.held <= h.plan.kv + h.plan.index + COUNTERS, "%s, %zu bytes on the device, %zu planned", name, h.held,
       h.plan.kv + h.plan.index);
    is_int(h.waits, d.waits, "%s, steps wait as often as without", name);
    is_int(h.allocs, 0, "%s, and take no memory", name);
    const host_counts *m = &h.moved;
    ok(d.moved.read == 0 && m->read > 0 && m->written > 0 && m->found <= m->asked,
       "%s, %.0f bytes read in the host's memory, %.0f written, %.0f of %.0f rows on the device", name, m->read,
       m->written, m->found, m->asked);
    is_int((long long)(shim_pinned_held() - pinned), 0, "%s, nothing stays pinned", name);
}

static void test_memory(const engine_parts *p)
{
    session *s;
    err e = {0};
    size_t pinned = shim_pinned_held(), held = shim_held();
    long before = shim_calls();
    shim_pinned(pinned + 1000);
    is_err(new_in(&s, p, "quest:skip=0", "f16", "host", 0, &e), &e, ST_NOMEM,
           "out of pinned host memory: K rows needs 0.0 MB", "memory that cannot be pinned");
    shim_pinned(SIZE_MAX);
    is_int((long long)(shim_pinned_held() - pinned), 0, "nothing stays pinned");
    is_int((long long)shim_held(), (long long)held, "nor on the device");
    e = (err){0};
    is_ok(new_in(&s, p, "quest:skip=0", "f16", "host", 0, &e), &e, "and a new session works");
    session_free(s);
    ok(shim_calls() > before, "calls were made");
}

static void test_refusals(const engine_parts *p)
{
    session *s;
    err e = {0};
    is_err(new_in(&s, p, "h2o", "f16", "host", 0, &e), &e, ST_UNSUPPORTED,
           "h2o: --kv-tier host is not supported: it drops tokens, and each step reads all others", "h2o");
    e = (err){0};
    if (!is_ok(new_in(&s, p, "quest:skip=0", "f16", "host", 0, &e), &e, "a session")) return;
    is_err(save_plain(s, "never-written.kv", &e), &e, ST_UNSUPPORTED, "--kv-tier host cannot be saved", "saving");
    session_free(s);
}

/* Each runtime call during the creation of a session fails once. */
static void test_faults(void)
{
    int silent = 0, kept = 0;
    long n = 1;
    for (long i = 1; i <= n; i++) {
        engine_parts p;
        session *s;
        err e = {0};
        if (!is_ok(parts_open(&p, "qwen2-f16", "cuda", &e), &e, "a model")) return;
        size_t before = shim_pinned_held();
        long calls = shim_calls();
        shim_fail_at(i == 1 ? 0 : i - 1);
        status st = new_in(&s, &p, "quest:skip=0", "f16", "host", 0, &e);
        if (i == 1) n = shim_calls() - calls + 1;
        shim_fail_at(0);
        silent += i > 1 && st == ST_OK && p.be->fault.code == ST_OK;
        session_free(s);
        kept += shim_pinned_held() != before;
        parts_close(&p);
    }
    ok(n > 10, "%ld calls", n - 1);
    is_int(silent, 0, "each that fails is seen");
    is_int(kept, 0, "nothing stays pinned");
}

int main(void)
{
    engine_parts p;
    err e = {0};
    shim_lazy(true);
    if (is_ok(parts_open(&p, "qwen2-f16", "cuda", &e), &e, "a model")) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!tap_leaves_out(i % 3 != 0)) test_case(&p, (int)i);
        test_memory(&p);
        test_refusals(&p);
        parts_close(&p);
    }
    shim_lazy(false);
    test_faults();
    is_int((long long)shim_held(), 0, "nothing is held");
    is_int((long long)shim_pinned_held(), 0, "nothing is pinned");
    return tap_done();
}
