/* SPDX-License-Identifier: MIT */
/* Reuse of a prompt's first tokens for another prompt. The logits of all its other rows and of later steps have the
 * bits of a prompt computed as a whole, and the counts are the same. Rows are mapped if they are long enough. */
#include "config.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attention/reuse.h"
#include "tests/unit/session_util.h"

enum { N = 61, OTHER = 77, KNOWN = 48, PART = 32, STEPS = 5, CTX = 20000 };

static const struct {
    const char *spec;
    attn_reuse reuse;
} cases[] = {
    {"full", ATTN_REUSE_ANY},
    {"oracle:skip=1:budget=24", ATTN_REUSE_ANY},
    {"quest:skip=0:budget=24:page=4", ATTN_REUSE_ANY},
    {"quest:skip=1:budget=21:page=7", ATTN_REUSE_ANY},
    {"quest:skip=0:budget=24:page=4:score=mean", ATTN_REUSE_ANY},
    {"quest:skip=1:budget=24:page=4:score=est:g=8", ATTN_REUSE_ANY},
    {"quest:skip=0:budget=12:page=4:coarse=8:coarse_keep=1", ATTN_REUSE_ANY},
    {"fier:skip=0:budget=20:g=8", ATTN_REUSE_ANY},
    {"fier:skip=1:budget=20:g=12:score=int8", ATTN_REUSE_ANY},
    {"fier:skip=0:budget=20:g=8:tail=sample:6", ATTN_REUSE_ANY},
    {"fier:skip=0:budget=12:g=8:coarse=8:coarse_keep=1", ATTN_REUSE_ANY},
    {"pqcache:budget=20:sink=4:bits=3:p=0.7:min=1", ATTN_REUSE_ANY},
    {"pqcache:budget=20:sink=4:bits=2:m=4:skip=1", ATTN_REUSE_ANY},
    {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", ATTN_REUSE_ANY},
    {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:center=1:skip=1", ATTN_REUSE_NEVER},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8", ATTN_REUSE_ANY},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8:est=60:skip=1", ATTN_REUSE_ANY},
    {"magicpig:K=3:L=12:sink=3:local=6:skip=0", ATTN_REUSE_ANY},
    {"magicpig:K=5:L=30:sink=0:local=0:skip=1", ATTN_REUSE_ANY},
    {"tokenselect:sink=3:local=8:window=8:budget=12", ATTN_REUSE_ANY},
    {"tokenselect:sink=3:local=8:window=8:budget=12:reuse=50", ATTN_REUSE_NEVER},
    {"actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31", ATTN_REUSE_END},
    {"actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:choose=random", ATTN_REUSE_END},
    {"infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31", ATTN_REUSE_END},
    {"streaming:budget=24", ATTN_REUSE_NEVER},
    {"h2o:budget=24", ATTN_REUSE_NEVER},
    {"snapkv:budget=24", ATTN_REUSE_NEVER},
    {"tova:budget=24", ATTN_REUSE_NEVER},
    {"mikv:budget=24", ATTN_REUSE_NEVER},
    {"codes:budget=24:skip=1:kv=kivi4/r=16/g=8", ATTN_REUSE_NEVER},
    {"kivi:bits=2:r=16:g=8", ATTN_REUSE_NEVER},
    {"logquant:bits=4:r=12:g=4", ATTN_REUSE_NEVER},
    {"full:kv=kivi4/r=16/g=8", ATTN_REUSE_NEVER},
    {"full:kv=f32", ATTN_REUSE_ANY},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Two prompts that are the same up to a token. */
static int32_t id_at(int64_t position, int64_t same)
{
    return (some_id(position) + (position < same ? 0 : 29)) % 300;
}

typedef struct {
    float logits[N + STEPS][U_VOCAB];
    attn_stats stats;
    attn_bytes held;
} outcome;

static void keep_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    outcome *out = ctx;
    memcpy(out->logits[first], logits, n * sizeof *out->logits);
}

/* The tokens [from, to) of a prompt of n tokens. */
static status feed(session *s, const int32_t *ids, size_t from, size_t to, size_t n, outcome *out, err *e)
{
    for (size_t done = from, k; done < to; done += k) {
        k = to - done < U_CHUNK ? to - done : U_CHUNK;
        const prefill_options o = {.which = out ? LOGITS_ALL : LOGITS_LAST,
                                   .rows = keep_rows,
                                   .ctx = out,
                                   .before = done,
                                   .after = n - done - k};
        TRY(session_prefill(&s, 1, ids + done, k, &o, e));
    }
    return ST_OK;
}

static status run(session *s, const int32_t *ids, size_t from, outcome *out, err *e)
{
    memset(out, 0, sizeof *out);
    TRY(feed(s, ids, from, N, N, out, e));
    memset(out->logits, 0, from * sizeof *out->logits);
    for (int i = 0; i < STEPS; i++) {
        int32_t id = some_id(session_length(s));
        TRY(session_decode(&s, 1, &id, out->logits[N + i], e));
    }
    out->stats = attn_seq_stats(session_attn(s));
    out->held = attn_seq_held(session_attn(s));
    return ST_OK;
}

/* The first `known` tokens of a longer prompt, as a file. */
static status keep(session_file **f, const engine_parts *p, const char *spec, err *e)
{
    session *s;
    int32_t ids[OTHER];
    for (int64_t i = 0; i < OTHER; i++) ids[i] = id_at(i, OTHER);
    *f = NULL;
    TRY(session_new(&s, p, spec, "f16", CTX, e));
    status st = feed(s, ids, 0, KNOWN, OTHER, NULL, e);
    const session_notes n = {.ids = ids, .n_ids = KNOWN + 1};
    if (st == ST_OK) st = session_keep(f, s, &n, e);
    session_free(s);
    return st;
}

/* Runs a prompt that is the same up to `same`, as a whole and after its cached prefix. */
static bool serves(const engine_parts *p, const char *spec, session_file *f, size_t same, err *e)
{
    static outcome cold, warm;
    session *a = NULL, *b = NULL;
    session_notes n;
    int32_t ids[N];
    for (int64_t i = 0; i < N; i++) ids[i] = id_at(i, (int64_t)same);
    status st = session_new(&a, p, spec, "f16", CTX, e);
    if (st == ST_OK) st = session_new(&b, p, spec, "f16", CTX, e);
    if (st == ST_OK) st = run(a, ids, 0, &cold, e);
    if (st == ST_OK) st = session_load(b, f, &n, e);
    if (st == ST_OK && same < KNOWN) st = session_rewind(b, (int64_t)same, e);
    if (st == ST_OK) st = run(b, ids, same, &warm, e);
    memset(cold.logits, 0, same * sizeof *cold.logits);
    if (same < KNOWN) cold.stats = warm.stats; /* going back may read the index */
    session_free(a);
    session_free(b);
    return st == ST_OK && memcmp(&cold, &warm, sizeof cold) == 0;
}

static void check_case(const engine_parts *p, const char *name, size_t i)
{
    const char *spec = cases[i].spec;
    attn_spec s;
    err e = {0};
    session_file *f;
    if (!is_ok(attn_spec_parse(&s, spec, &(attn_options){.kv = kv_plain(DT_F16)}, &e), &e, "%s", spec)) return;
    is_int((long long)attn_reuse_of(&s), (long long)cases[i].reuse, "%s: what of it serves another prompt", spec);
    ok(attn_reuse_steps(&s) == (strncmp(spec, "full", 4) == 0 && cases[i].reuse == ATTN_REUSE_ANY),
       "%s: rows of steps serve only if steps attend everything", spec);
    status st = keep(&f, p, spec, &e);
    if (cases[i].reuse == ATTN_REUSE_NEVER) {
        is_int((long long)st, (long long)ST_UNSUPPORTED, "%s: is refused", spec);
        return;
    }
    is_ok(st, &e, "%s, %s: kept", name, spec);
    if (st != ST_OK) return;
    size_t n;
    const int32_t *ids = session_file_ids(f, &n);
    ok(n == KNOWN + 1 && ids[KNOWN] == some_id(KNOWN), "with its ids");
    ok(serves(p, spec, f, KNOWN, &e), "%s, %s: all of it serves: the same bits %s", name, spec, e.msg);
    if (cases[i].reuse == ATTN_REUSE_ANY) {
        e = (err){0};
        ok(serves(p, spec, f, PART, &e), "%s, %s: a part of it too %s", name, spec, e.msg);
    }
    session_file_close(f);
}

/* Writes a strategy with twice its budget. False: it has none. */
static bool double_budget(char out[128], const char *spec)
{
    const char *at = strstr(spec, "budget=");
    char *end;
    if (!at) return false;
    at += strlen("budget=");
    long budget = strtol(at, &end, 10);
    snprintf(out, 128, "%.*s%ld%s", (int)(at - spec), spec, 2 * budget, end);
    return true;
}

/* A prompt that was kept under one budget serves another if the method says so, and is refused otherwise. */
static void check_budget(const engine_parts *p, const char *from, const char *to)
{
    attn_spec a, b;
    err e = {0};
    const attn_options o = {.kv = kv_plain(DT_F16)};
    session_file *f;
    if (attn_spec_parse(&a, from, &o, &e) != ST_OK || attn_spec_parse(&b, to, &o, &e) != ST_OK) return;
    const bool any = attn_reuse_spec(&a).budget == attn_reuse_spec(&b).budget;
    if (attn_reuse_of(&a) != ATTN_REUSE_ANY || !is_ok(keep(&f, p, from, &e), &e, "%s: kept", from)) return;
    ok(!serves(p, to, f, KNOWN, &e), "%s: a session is one of its own budget", from);
    e = (err){0};
    session_file_is_prompt(f);
    ok(serves(p, to, f, KNOWN, &e) == any, "%s for %s: %s %s", from, to, any ? "the same bits" : "refused", e.msg);
    if (any) ok(serves(p, to, f, PART, &e), "a part of it too %s", e.msg);
    session_file_close(f);
}

static void check_budgets(const engine_parts *p)
{
    char other[128];
    for (size_t i = 0; i < N_CASES; i++) {
        if (!double_budget(other, cases[i].spec)) continue;
        check_budget(p, cases[i].spec, other);
        check_budget(p, other, cases[i].spec);
    }
}

static void check_rows(void)
{
    for (const attn_method *const *m = attn_methods(); *m; m++) {
        size_t k = strlen(attn_method_name(*m)), found = 0;
        for (size_t i = 0; i < N_CASES; i++)
            found += strncmp(cases[i].spec, attn_method_name(*m), k) == 0 && strchr(":", cases[i].spec[k]) != NULL;
        ok(found > 0, "%s is tested", attn_method_name(*m));
    }
}

static void check_steps_in_blocks(void)
{
    attn_spec s;
    err e = {0};
    is_ok(attn_spec_parse(&s, "full", &(attn_options){.kv = kv_plain(DT_Q8)}, &e), &e, "full over q8");
    ok(!attn_reuse_steps(&s), "rows of steps in blocks do not serve a prompt");
}

int main(void)
{
    static const char *const models[] = {"llama31-f32-tied", "mistral-swa-bf16"};
    check_rows();
    check_steps_in_blocks();
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        engine_parts p;
        err e = {0};
        if (!is_ok(parts_open(&p, models[k], "cpu", &e), &e, "%s opens", models[k])) continue;
        for (size_t i = 0; i < N_CASES; i++) check_case(&p, models[k], i);
        check_budgets(&p);
        parts_close(&p);
    }
    return tap_done();
}
