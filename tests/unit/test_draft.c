/* SPDX-License-Identifier: MIT */
/* Drafts by strategies over the rows of a session that attends everything. Verified tokens have the bits of single
 * steps whatever the drafts are, and drafts leave no trace. */
/* Builds: shim */
#include "config.h"

#include <stdlib.h>

#include "kernels/base/rng.h"
#include "kernels/ops_weights.h"
#include "model/sampler.h"
#include "tests/unit/devices.h"
#include "tests/unit/session_util.h"

#ifdef ON_CUDA /* the shim's time */
enum { TOKENS = 12, APART = 3 };
#else
enum { TOKENS = 40, APART = 1 };
#endif
enum { LIMIT = 128, PROMPT = 45, MOST = SESSION_VERIFY_ROWS - 1 };

/* Budgets that the prompt exceeds, and borders of pages, groups and rings among the tokens after it. */
static const char *const drafts[] = {
    "fier:budget=16:g=8:skip=0",
    "fier:budget=16:g=8:skip=1",
    "fier:budget=16:g=8:skip=0:coarse=8:coarse_keep=1",
    "quest:budget=16:page=4:skip=0",
    "quest:budget=16:page=8:skip=1:gqa=per_q",
    "quest:budget=16:page=4:skip=0:score=est:g=8",
    "quest:budget=16:page=4:skip=0:p=0.8:min=4",
    "oracle:budget=8:skip=0",
    "fier:budget=16:g=8:skip=0:p=0.7:min=2:calibrate=9",
    "pqcache:budget=16:sink=4:bits=3",
    "pariskv:budget=16:sink=4:local=8:u=5:full_thr=0",
    "magicpig:K=3:L=12:sink=3:local=6:skip=0",
    "streaming:budget=16",
    "streaming:budget=16:pos=abs:sink=2",
    "oracle:budget=16:skip=0:tail=sample:4",
    "fier:budget=16:g=8:skip=0:tail=sample:6",
};
enum { N_DRAFTS = sizeof drafts / sizeof *drafts };

static const sampler_options sampling[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0.9, .top_p = 0.95, .repeat_penalty = 1, .seed = 3},
    {.temp = 1.1, .top_p = 1, .repeat_penalty = 1.2, .seed = 4},
    {.temp = 1, .top_p = 1, .repeat_penalty = 1, .presence_penalty = 0.5, .frequency_penalty = 1.5, .seed = 5},
};
enum { N_SAMPLING = sizeof sampling / sizeof *sampling };

static const char *verifier = "full";

/* The text of single steps, and its logits. */
static int32_t text[N_SAMPLING][TOKENS + 1];
static float want[N_SAMPLING][TOKENS][U_VOCAB], row[U_VOCAB];

static status single_steps(const engine_parts *p, int k, err *e)
{
    session *s;
    sampler *by;
    TRY(session_new(&s, p, verifier, "f16", LIMIT, e));
    TRY(sampler_create(&by, &sampling[k], U_VOCAB, e));
    status st = live(s, PROMPT, 0, row, e);
    for (int i = 0; i <= TOKENS && st == ST_OK; i++) {
        text[k][i] = sampler_next(by, row, session_length(s));
        sampler_accept_new(by, text[k][i]);
        if (i == TOKENS) break;
        st = session_decode(&s, 1, &text[k][i], row, e);
        memcpy(want[k][i], row, sizeof row);
    }
    sampler_free(by);
    session_free(s);
    return st;
}

typedef struct {
    int wrong; /* logits or tokens that are not those of single steps */
    int other; /* drafts that are not those of a session which went there by single steps, and drafted nothing before */
    int drafted, right;
} outcome;

/* Verifies g drafts after token *i of the text; *i becomes the first unverified token. */
static status verify(session *s, sampler *by, int k, const int32_t *ids, size_t n, int *i, outcome *o, err *e)
{
    TRY(session_verify(s, ids, n, e));
    for (size_t r = 0; r < n; r++) {
        int32_t id;
        TRY(session_verified_logits(s, r, row, e));
        o->wrong += memcmp(row, want[k][*i], sizeof row) != 0;
        TRY(session_verified(s, r, by, &id, e));
        sampler_accept_new(by, id);
        o->wrong += id != text[k][++*i];
        if (r + 1 == n || ids[r + 1] != id) break;
        o->right++;
    }
    return session_rewind(s, PROMPT + *i, e);
}

/* Makes the same drafts one by one, each after the previous one. */
static status draft_one_by_one(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e)
{
    int64_t length = session_length(s);
    const sampler_counts counted = sampler_counted(by);
    for (size_t i = 0; i < n; i++) TRY(session_draft_on(s, i ? ids[i - 1] : first, 1, by, &ids[i], e));
    sampler_forget(by, counted, ids);
    return session_rewind(s, length, e);
}

/* twin: fed by single steps. */
static status run(session *s, session *twin, sampler *by, int k, outcome *o, err *e)
{
    rng r = {5};
    sampler_accept_new(by, text[k][0]);
    for (int i = 0, round = 0; i < TOKENS; round++) {
        int32_t ids[SESSION_VERIFY_ROWS] = {text[k][i]}, again[MOST];
        size_t g = 1 + (size_t)round % MOST;
        if (g > (size_t)(TOKENS - i - 1)) g = (size_t)(TOKENS - i - 1);
        while (session_length(twin) < PROMPT + i)
            TRY(session_decode(&twin, 1, &text[k][session_length(twin) - PROMPT], row, e));
        TRY(session_draft(s, ids[0], g, by, ids + 1, e));
        TRY(draft_one_by_one(twin, ids[0], g, by, again, e));
        o->other += memcmp(ids + 1, again, g * sizeof *again) != 0;
        o->drafted += (int)g;
        for (size_t d = 0; d < g && round % 4 == 3; d++) ids[1 + d] = (int32_t)rng_below(&r, 300); /* any others */
        TRY(verify(s, by, k, ids, g + 1, &i, o, e));
    }
    return ST_OK;
}

static void check_draft(const engine_parts *p, const char *device, const char *draft, int k)
{
    session *s = NULL, *twin = NULL;
    sampler *by = NULL;
    outcome o = {0};
    err e = {0};
    attn_spec full, spec;
    const attn_options of = {.kv = kv_plain(DT_F16)};
    status st = attn_spec_parse(&full, verifier, &of, &e);
    if (st == ST_OK) st = attn_spec_parse(&spec, draft, &of, &e);
    const session_size size = {.n_tokens = LIMIT, .draft = &spec};
    if (st == ST_OK) st = session_create(&s, p->dec, &full, size, &e);
    if (st == ST_OK) st = session_create(&twin, p->dec, &full, size, &e);
    if (st == ST_OK) st = live(twin, PROMPT, 0, row, &e);
    if (st == ST_OK) st = sampler_create(&by, &sampling[k], U_VOCAB, &e);
    if (st == ST_OK) st = live(s, PROMPT, 0, row, &e);
    attn_stats before = s ? attn_seq_stats(session_attn(s)) : (attn_stats){0};
    if (st == ST_OK) st = run(s, twin, by, k, &o, &e);
    if (is_ok(st, &e, "%s, %s, sampling %d", device, draft, k)) {
        attn_stats after = attn_seq_stats(session_attn(s));
        is_int(o.wrong, 0, "%s, %s, sampling %d: text and logits of single steps", device, draft, k);
        is_int(o.other, 0, "%s, %s, sampling %d: drafts leave no trace in the next (%d of %d were right)", device,
               draft, k, o.right, o.drafted);
        ok(session_length(s) == PROMPT + TOKENS && before.steps == 0 && after.attended == after.visible &&
               after.index_read == 0,
           "and counts nothing");
    }
    sampler_free(by);
    session_free(s);
    session_free(twin);
}

/* Drafts of the verifier's own steps with the weights that the decoder has for them. */
static void check_weights(const char *device, dtype t, int k)
{
    const weights_options w = {.type = t};
    decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = SESSION_VERIFY_ROWS};
    engine_parts p;
    session *s = NULL, *twin = NULL;
    sampler *by = NULL;
    model *small = NULL;
    outcome o = {0};
    err e = {0};
    if (!is_ok(parts_open_with(&p, "qwen2-f16", (backend_options){.device = device, .n_threads = 2}, opt, &e), &e, "%s",
               device))
        return;
    decoder_free(p.dec);
    p.dec = NULL;
    status st = model_convert_copy(&small, p.m, &w, &e);
    opt.draft = small;
    opt.exact = true; /* as parts_open_with */
    if (st == ST_OK) st = decoder_create(&p.dec, p.m, &opt, &e);
    if (st == ST_OK) st = session_new(&s, &p, "full", "f16", LIMIT, &e);
    if (st == ST_OK) st = session_new(&twin, &p, "full", "f16", LIMIT, &e);
    if (st == ST_OK) st = sampler_create(&by, &sampling[k], U_VOCAB, &e);
    if (st == ST_OK) st = live(twin, PROMPT, 0, row, &e);
    if (st == ST_OK) st = live(s, PROMPT, 0, row, &e);
    if (st == ST_OK) st = run(s, twin, by, k, &o, &e);
    if (is_ok(st, &e, "%s, drafts in %s, sampling %d", device, dtype_name(t), k)) {
        attn_stats after = attn_seq_stats(session_attn(s));
        is_int(o.wrong, 0, "%s, drafts in %s, sampling %d: text and logits of single steps", device, dtype_name(t), k);
        is_int(o.other, 0, "and they leave no trace (%d of %d were right)", o.right, o.drafted);
        ok(small->type == t && small->weight_bytes < p.m->weight_bytes && after.attended == after.visible,
           "their weights are smaller, and their steps are not counted");
    }
    sampler_free(by);
    session_free(s);
    session_free(twin);
    decoder_free(p.dec);
    p.dec = NULL;
    model_close(small);
    parts_close(&p);
}

static void check_device(const char *device)
{
    static const decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = SESSION_VERIFY_ROWS};
    engine_parts p;
    err e = {0};
    if (!is_ok(parts_open_with(&p, "qwen2-f16", (backend_options){.device = device, .n_threads = 2}, opt, &e), &e, "%s",
               device))
        return;
    for (int k = 0; k < N_SAMPLING; k++) is_ok(single_steps(&p, k, &e), &e, "%s, sampling %d", device, k);
    for (int i = 0; i < N_DRAFTS; i += APART)
        if (!tap_leaves_out(APART > 1 && i / APART % 3 != 0)) check_draft(&p, device, drafts[i], i % N_SAMPLING);
    for (int k = 1; k < N_SAMPLING; k += APART) check_draft(&p, device, drafts[0], k);
    parts_close(&p);
    check_weights(device, DT_Q4, 1);
    check_weights(device, DT_Q8, 2);
}

#ifndef ON_CUDA
/* Returns attn_seq_tile_rows of a session; -1 after an error. */
static int tile_rows(const engine_parts *p, const char *store)
{
    session *s = NULL;
    status st = session_new(&s, p, "full", store, LIMIT, NULL);
    int rows = st == ST_OK ? (int)attn_seq_tile_rows(session_attn(s)) : -1;
    session_free(s);
    return rows;
}

/* Attention of single steps and of verifications by tiles. */
static void check_tiles(void)
{
    static const decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = SESSION_VERIFY_ROWS};
    static float rows[TOKENS][U_VOCAB];
    engine_parts p;
    err e = {0};
    setenv("KVASIR_CPU", "amx-emulated", 1);
    status st = parts_open_with(&p, "qwen2-f16", (backend_options){.device = "cpu", .n_threads = 2}, opt, &e);
    unsetenv("KVASIR_CPU");
    if (!is_ok(st, &e, "tiles")) return;
    is_ok(single_steps(&p, 1, &e), &e, "tiles, steps by rows");
    memcpy(rows, want[1], sizeof rows);
    verifier = "full:decode=tiles";
    is_int(tile_rows(&p, "f16"), 2, "7 heads of a group: two rows share a tile");
    is_int(tile_rows(&p, "f32"), 0, "rows that tiles do not take");
    is_ok(single_steps(&p, 1, &e), &e, "tiles, steps by tiles");
    ok(memcmp(rows, want[1], sizeof rows) != 0, "steps by tiles have other bits");
    check_draft(&p, "tiles", drafts[3], 1);
    verifier = "full";
    parts_close(&p);
}
#endif

int main(void)
{
#ifndef ON_CUDA
    check_tiles();
#endif
    for (size_t d = 0; d < N_METHOD_DEVICES; d++) check_device(METHOD_DEVICES[d]);
    return tap_done();
}
