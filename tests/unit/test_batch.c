/* SPDX-License-Identifier: MIT */
/* Decode of 1 to 16 sequences of different lengths, of many strategies or of one, in one step: each gets what it gets
 * alone. */
/* Builds: shim race */
#include "config.h"

#include "model/sampler.h"
#include "model/session_file.h"
#include "tests/unit/devices.h"
#include "tests/unit/ops_util.h"
#include "tests/unit/session_util.h"

#ifdef CUDA_RACE /* time; the ops of each strategy have race builds of their own */
enum { STEPS = 2, LIMIT = 96, MOST = 4, EACH = 4, TOGETHER = 5, SIZES = 1, APART = 4 };
#elif defined(CUDA_SHIM) /* time */
enum { STEPS = 4, LIMIT = 96, MOST = U_BATCH, EACH = 8, TOGETHER = 9, SIZES = 5, APART = 2 };
#else
enum { STEPS = 6, LIMIT = 96, MOST = U_BATCH, EACH = 8, TOGETHER = 9, SIZES = 5, APART = 1 };
#endif

static const char *const strategies[] = {
    "full",
    "streaming:budget=24",
    "oracle:budget=16:skip=0",
    "quest:budget=16:page=4:skip=0",
    "fier:budget=16:g=8:skip=1",
    "codes:budget=16:skip=0:kv=kivi4/g=4/r=8",
    "h2o:budget=24:skip=0",
    "snapkv:budget=24:window=8:skip=0",
    "h2o:budget=24:skip=0:demote=token2",
    "mikv:skip=0",
    "pariskv:budget=16:sink=4:local=8:u=5:full_thr=0",
    "pqcache:budget=20:sink=4:bits=3",
    "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
    "actqkv:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
    "infllm:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
    "tokenselect:sink=4:local=16:window=16:budget=12",
    "magicpig:K=3:L=12:sink=3:local=6:skip=0",
    "kivi",
    "logquant",
    "streaming:budget=24:pos=abs:sink=2",
};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies };

/* Strategies: sequence i has number i, starting over after the last. */
typedef struct {
    const char *const *spec;
    size_t n;
} spec_list;

static size_t prompt_of(size_t i)
{
    return 7 + (11 * i) % 48;
}

static float alone[U_BATCH][STEPS + 1][U_VOCAB], batch[U_BATCH * U_VOCAB];
static session_file *prompts[U_BATCH]; /* the sequences before their first step */

/* One sequence: its prompt, which is kept, and its steps. */
static status live_alone(session *s, size_t i, err *e)
{
    TRY(live(s, prompt_of(i), 0, alone[i][0], e));
    TRY(session_keep(&prompts[i], s, &(session_notes){0}, e));
    for (int t = 1; t <= STEPS; t++) {
        int32_t id = some_id(session_length(s));
        TRY(session_decode(&s, 1, &id, alone[i][t], e));
    }
    return ST_OK;
}

static void run_alone(const engine_parts *p, const spec_list *k, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        session *s = NULL;
        err e = {0};
        session_file_close(prompts[i]);
        prompts[i] = NULL;
        if (session_new(&s, p, k->spec[i % k->n], "f16", LIMIT, &e) != ST_OK || live_alone(s, i, &e) != ST_OK)
            printf("Bail out! %s\n", e.msg);
        session_free(s);
    }
}

static session *open_one(const engine_parts *p, const spec_list *k, size_t i)
{
    session *s = NULL;
    session_notes none = {0};
    err e = {0};
    if (session_new(&s, p, k->spec[i % k->n], "f16", LIMIT, &e) != ST_OK ||
        session_load(s, prompts[i], &none, &e) != ST_OK)
        printf("Bail out! %s\n", e.msg);
    return s;
}

/* n sequences together; every other step without logits. The tolerance is for devices whose kernels differ with the
 * rows. */
static void check_batch(const engine_parts *p, const spec_list *k, size_t n, const char *device)
{
    session *s[U_BATCH];
    int32_t ids[U_BATCH], got[U_BATCH];
    double worst = 0;
    int wrong = 0;
    err e = {0};
    for (size_t i = 0; i < n; i++) s[i] = open_one(p, k, i);
    for (int t = 0; t < STEPS; t++) {
        status st;
        for (size_t i = 0; i < n; i++) ids[i] = some_id(session_length(s[i]));
        if (t % 2) {
            st = session_queue(s, n, ids, NULL, &e);
            if (st == ST_OK) st = session_take(p->dec, n, got, &e);
        } else {
            st = session_decode(s, n, ids, batch, &e);
        }
        if (!is_ok(st, &e, "%s, %zu sequences, step %d", device, n, t)) break;
        for (size_t i = 0; i < n; i++) {
            const float *want = alone[i][t + 1], *row = batch + i * U_VOCAB;
            if (t % 2 == 0) worst = fmax(worst, nmse(row, want, U_VOCAB));
            if (t % 2 == 0) wrong += strcmp(device, "cuda") != 0 && memcmp(row, want, sizeof alone[i][t]) != 0;
            else wrong += got[i] != logits_argmax(want, U_VOCAB);
        }
    }
    is_int(wrong, 0, "%s, %zu sequences of %zu strategies: each as alone", device, n, k->n);
    ok(worst <= 1e-10, "%s, %zu sequences: logits differ by %.1e at most", device, n, worst);
    for (size_t i = 0; i < n; i++) session_free(s[i]);
}

/* ---- sequences of one strategy: their work goes to the backend as lists of jobs ---- */

static const char *const alikes[] = {
    "streaming:budget=24",
    "oracle:budget=16:skip=0",
    "quest:budget=16:page=4:skip=0",
    "quest:budget=16:page=4:skip=1:gqa=per_q:coarse=8:coarse_keep=1",
    "fier:budget=16:g=8:skip=0:gqa=mean_q:coarse=4:coarse_keep=1",
    "quest:budget=16:page=4:skip=0:score=est:g=8",
    "oracle:budget=16:skip=0:p=0.8:min=4",
    "fier:budget=16:g=8:skip=0:p=0.7:min=2:calibrate=9",
    "quest:budget=16:page=4:skip=0:gqa=per_q:tail=sample:5",
    "pqcache:budget=16:sink=4:bits=2:tail=sample:3",
#ifndef ON_CUDA /* time */
    "quest:budget=16:page=4:skip=1:score=mean",
    "fier:budget=16:g=8:skip=0",
    "codes:budget=16:skip=0:kv=kivi2/g=4/r=8",
    "codes:budget=20:skip=1:gqa=per_q:kv=logquant4/g=4/r=12",
    "codes:certify=0.2:min=1:skip=0:kv=kivi4/g=4/r=8",
    "full",
    "h2o:budget=24:skip=0",
    "tova:budget=8:skip=0:demote=token4",
    "h2o:budget=8:skip=0:demote=kivi2:demote_g=4",
    "tova:budget=8:skip=0:demote=token2:recall=3",
    "streaming:budget=8:demote=kivi4:demote_g=3:recall=3",
    "pariskv:budget=16:sink=4:local=8:u=5:full_thr=0",
    "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
    "actqkv:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
    "infllm:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
    "tokenselect:sink=4:local=16:window=16:budget=12",
    "magicpig:K=3:L=12:sink=3:local=6:skip=0",
    "logquant",
#endif
};
enum { N_ALIKE = sizeof alikes / sizeof *alikes };

static const index_ops *real_quest;
static size_t calls, most_jobs;

static void count_score(backend *be, const score_job *jobs, size_t n)
{
    calls++;
    most_jobs = n > most_jobs ? n : most_jobs;
    real_quest->score(be, jobs, n);
}

/* Prompts are 7 to 51 tokens long; all but the first exceed the budget before the steps. */
static void check_calls(engine_parts *p, const spec_list *k, const char *device)
{
    backend_ops ops = *p->be->ops;
    const backend_ops *real = p->be->ops;
    index_ops quest = *ops.quest;
    real_quest = real->quest;
    quest.score = count_score;
    ops.quest = &quest;
    p->be->ops = &ops;
    calls = most_jobs = 0;
    check_batch(p, k, TOGETHER, device);
    is_int((long long)calls, STEPS * p->m->config.n_layers, "%s: one call of score a layer", device);
    is_int((long long)most_jobs, TOGETHER - 1, "%s: of all sequences that choose", device);
    p->be->ops = real;
}

static void check_alike(engine_parts *p, const char *device)
{
    for (size_t i = 0; i < N_ALIKE; i++) {
        spec_list k = {&alikes[i], 1};
        if (i != 1 && i % APART) continue;
        run_alone(p, &k, TOGETHER);
        if (i == 1) check_calls(p, &k, device);
        else check_batch(p, &k, TOGETHER, device);
    }
}

static void check_device(const char *device)
{
    static const size_t sizes[] = {EACH, 1, 3, 9, 16};
    engine_parts p;
    err e = {0};
    if (!is_ok(parts_open(&p, "qwen2-f16", device, &e), &e, "%s", device)) return;
    for (size_t from = 0; from < N_STRATEGIES; from += MOST) {
        bool last = N_STRATEGIES - from <= MOST;
        spec_list k = {strategies + from, last ? N_STRATEGIES - from : MOST};
        run_alone(&p, &k, from == 0 ? MOST : EACH);
        for (size_t i = 0; i < (from == 0 ? SIZES : 1); i++) check_batch(&p, &k, sizes[i], device);
    }
    check_alike(&p, device);
    parts_close(&p);
}

int main(void)
{
    for (size_t i = 0; i < N_METHOD_DEVICES; i++) check_device(METHOD_DEVICES[i]);
    for (size_t i = 0; i < U_BATCH; i++) session_file_close(prompts[i]);
    return tap_done();
}
