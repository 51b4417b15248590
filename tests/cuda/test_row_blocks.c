/* SPDX-License-Identifier: MIT */
/* Strategies over K and V rows of 8 and 4 bits (ops_rows.h): a prompt and steps of a model give the same logits on CUDA
 * as on the CPU, also after a second prompt. */
/* Builds: shim device */
#include "config.h"

#include <stdlib.h>

#include "tests/unit/ops_util.h"
#include "tests/unit/session_util.h"

enum { PROMPT = 41, SECOND = 19, STEPS = 6, ROWS = 2 * (STEPS + 1) };

/* Each kind of strategy that supports block rows. */
static const char *const strategies[] = {
    "full",
    "streaming:budget=24",
    "streaming:budget=24:pos=abs",
    "h2o:budget=20",
    "snapkv:budget=20",
    "snapkv:budget=20:gqa=per_q:window=5",
    "quest:skip=0:budget=24:page=4",
    "quest:skip=0:budget=24:page=4:tail=sample:3",
    "quest:skip=0:budget=24:page=4:p=0.5:min=5:gqa=per_q",
    "fier:skip=0:budget=20:g=8",
    "fier:skip=0:budget=20:g=8:gqa=per_q",
    "fier:skip=0:budget=20:g=8:p=0.7:min=0:gqa=max_s",
    "codes:skip=0:budget=20",
    "pqcache:budget=20:sink=4:bits=3",
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
    "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31",
    "infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31",
    "tokenselect:sink=3:local=8:window=8:budget=12",
    "magicpig:K=3:L=12:sink=3:local=6:skip=0",
    "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
};
/* Differences due to the order of sums are 1e-13 until they flip a code or a selection. This also happens between
 * levels of the CPU, where q8 then differs by up to 4e-8. A q4 step is 18 times a q8 step, and its square counts. Here
 * a single code, of V in layer 0 under rot=kv, is 10 on one side and 11 on the other, which gives up to 2e-5. */
static const struct {
    const char *text;
    double most;
} stores[] = {{"q8:rot=kv", 1e-6}, {"q4:rot=kv", 1e-4}, {"q8:rot=k", 1e-6}, {"q4:rot=off", 1e-4}};

static status life(float *out, const engine_parts *p, const char *strategy, const char *store, err *e)
{
    session *s;
    TRY(session_new(&s, p, strategy, store, 128, e));
    status st = live(s, PROMPT, STEPS, out, e);
    if (st == ST_OK) st = live(s, SECOND, STEPS, out + (STEPS + 1) * U_VOCAB, e);
    session_free(s);
    return st;
}

static void compare(const engine_parts *cpu, const engine_parts *cuda, const char *strategy, int store)
{
    float *a = calloc(ROWS * U_VOCAB, sizeof *a), *b = calloc(ROWS * U_VOCAB, sizeof *b);
    err e = {0}, f = {0};
    status want = life(a, cpu, strategy, stores[store].text, &e);
    status got = life(b, cuda, strategy, stores[store].text, &f);
    is_ok(want, &e, "%s over %s on the CPU", strategy, stores[store].text);
    is_ok(got, &f, "%s over %s on CUDA", strategy, stores[store].text);
    is_near(b, a, ROWS * U_VOCAB, stores[store].most, "%s over %s", strategy, stores[store].text);
    free(a), free(b);
}

int main(void)
{
    engine_parts cpu, cuda;
    err e = {0};
    if (no_device()) return 0;
    setenv("KVASIR_CPU", "generic", 1);
    bool opened = is_ok(parts_open(&cpu, "qwen3-bf16", "cpu", &e), &e, "the CPU");
    unsetenv("KVASIR_CPU");
    if (opened && is_ok(parts_open(&cuda, "qwen3-bf16", "cuda", &e), &e, "CUDA"))
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
            for (int k = 0; k < 4; k++)
                if ((size_t)k / 2 == i % 2 && !tap_leaves_out(k % 2 != (int)(i / 2 % 2)))
                    compare(&cpu, &cuda, strategies[i], k);
    parts_close(&cuda);
    parts_close(&cpu);
    return tap_done();
}
