/* SPDX-License-Identifier: MIT */
/* Launches per layer in a decode step stay within the limits below, which scripts/dev/cuda_counts reads. */
/* Builds: shim */
#include "config.h"

#include <stdlib.h>

#include "tests/cushim/shim.h"
#include "tests/unit/session_util.h"

/* Context so long that several thread blocks select among its tokens. */
enum { N_PROMPT = 40, ROOM = 20000 };

typedef struct {
    const char *model, *strategy;
    size_t n; /* sequences */
    long most;
    dtype held; /* weights: of the file, or in blocks */
} step_case;

static const step_case cases[] = {
    {"qwen2-f16", "full", 1, 6, DT_F16},
    {"qwen3-bf16", "full", 1, 6, DT_BF16},
    {"qwen2-f16", "quest:budget=16:page=4:skip=0:gqa=vote", 1, 11, DT_F16},
    {"qwen2-f16", "fier:budget=16:g=8:skip=0:gqa=vote", 1, 10, DT_F16},
    {"qwen2-f16", "quest:budget=16:page=1:skip=0:gqa=vote", 1, 11, DT_F16}, /* votes of more than 16,384 pages */
    {"qwen2-f16", "fier:budget=16:g=8:skip=0:gqa=vote:p=0.9:min=4", 1, 12, DT_F16},
    {"qwen2-f16", "full", 8, 6, DT_F16},
    {"qwen3-bf16", "full", 8, 6, DT_BF16},
    {"qwen2-f16", "quest:budget=16:page=4:skip=0:gqa=vote", 8, 11, DT_F16},
    {"qwen2-f16", "fier:budget=16:g=8:skip=0:gqa=vote", 8, 10, DT_F16},
    {"qwen2-f16", "pariskv:budget=8:sink=1:local=4:u=4:full_thr=0:skip=0", 1, 22, DT_F16},
    {"qwen3-bf16", "full", 1, 6, DT_Q8},
    {"qwen3-bf16", "full", 1, 6, DT_Q4},
    {"qwen3-bf16", "full", 16, 11, DT_Q8}, /* x is quantized before each call; attention has 8 sequences per launch */
};

static status open_as(engine_parts *p, const step_case *c, err *e)
{
    const backend_options bo = {.device = "cuda", .n_threads = 1};
    const decoder_options opt = {.chunk = N_PROMPT, .max_batch = U_BATCH};
    const weights_options w = {.type = c->held};
    char rel[128];
    snprintf(rel, sizeof rel, "tests/data/models/%s", c->model);
    *p = (engine_parts){0};
    TRY(backend_open(&p->be, &bo, e));
    TRY(model_open(&p->m, tap_path(rel), p->be, e));
    if (dtype_in_qblocks(c->held)) TRY(model_convert(p->m, &w, e));
    return decoder_create(&p->dec, p->m, &opt, e);
}

typedef struct {
    long queued, waiting; /* waiting: launches that start after the previous one has ended */
} counts;

/* Records the number of launches by the end of attention in the first two layers. */
static void note(void *ctx, const attn_seen *seen)
{
    if (seen->layer >= 0 && seen->layer < 2)
        ((counts *)ctx)[seen->layer] =
            (counts){shim_count(SHIM_QUEUED), shim_count(SHIM_LAUNCHES) - shim_count(SHIM_DEPENDENT)};
}

static status step_of(const engine_parts *p, const step_case *c, session **s, counts at[2], err *e)
{
    static float logits[(U_BATCH + 1) * U_VOCAB];
    int32_t ids[U_BATCH];
    for (size_t i = 0; i < c->n; i++) {
        TRY(session_new(&s[i], p, c->strategy, "f16", ROOM, e));
        TRY(live(s[i], N_PROMPT, 1, logits, e));
        ids[i] = (int32_t)i + 1;
    }
    attn_watch(decoder_attn_work(p->dec), note, at);
    status st = session_decode(s, c->n, ids, logits, e);
    attn_watch(decoder_attn_work(p->dec), NULL, NULL);
    return st;
}

/* early: launches may start before the previous one ends. */
static void count(const step_case *c, bool early)
{
    engine_parts p;
    session *s[U_BATCH] = {NULL};
    counts at[2] = {{0}};
    err e = {0};
    const char *held = dtype_name(c->held);
    if (is_ok(open_as(&p, c, &e), &e, "%s in %s", c->model, held)) {
        is_ok(step_of(&p, c, s, at, &e), &e, "a step of %zu, %s", c->n, c->strategy);
        printf("# launches: %s in %s, %s, batch %zu: %ld\n", c->model, held, c->strategy, c->n,
               at[1].queued - at[0].queued);
        ok(at[1].queued - at[0].queued > 0 && at[1].queued - at[0].queued <= c->most,
           "%s in %s, %s, batch %zu: %ld launches a layer, at most %ld", c->model, held, c->strategy, c->n,
           at[1].queued - at[0].queued, c->most);
        is_int(at[1].waiting - at[0].waiting, early ? 0 : at[1].queued - at[0].queued,
               early ? "each may start before the previous one ends" : "each waits until the previous one ends");
        for (size_t i = 0; i < c->n; i++) session_free(s[i]);
    }
    parts_close(&p);
}

/* Counts the launches of a layer in a chunk of a prompt. The library adds a product to what is there. */
static void count_prompt(const char *name, dtype held, long most)
{
    static float logits[U_VOCAB];
    const step_case c = {name, "full", 1, most, held};
    engine_parts p;
    session *s = NULL;
    counts at[2] = {{0}};
    err e = {0};
    if (is_ok(open_as(&p, &c, &e), &e, "%s in %s", name, dtype_name(held))) {
        status st = session_new(&s, &p, c.strategy, "f16", N_PROMPT, &e);
        attn_watch(decoder_attn_work(p.dec), note, at);
        if (st == ST_OK) st = live(s, N_PROMPT, 0, logits, &e);
        attn_watch(decoder_attn_work(p.dec), NULL, NULL);
        is_ok(st, &e, "a prompt of %d tokens", N_PROMPT);
        printf("# launches: %s in %s, prompt: %ld\n", name, dtype_name(held), at[1].queued - at[0].queued);
        ok(at[1].queued - at[0].queued > 0 && at[1].queued - at[0].queued <= most,
           "%s, prompt: %ld launches a layer, at most %ld", name, at[1].queued - at[0].queued, most);
        session_free(s);
    }
    parts_close(&p);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) count(&cases[i], true);
    setenv("KVASIR_NO_DEPENDENT", "1", 1);
    count(&cases[0], false);
    unsetenv("KVASIR_NO_DEPENDENT");
    count_prompt("qwen3-bf16", DT_BF16, 12);
    count_prompt("qwen3-bf16", DT_Q8, 13);
    count_prompt("qwen2-f16", DT_F16, 15);
    count_prompt("llama31-bf16-untied-sharded", DT_BF16, 12);
    return tap_done();
}
