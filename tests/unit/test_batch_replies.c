/* SPDX-License-Identifier: MIT */
/* Prompts answered together: neither a shared prefill nor prompts side by side change anything; stops, skipping,
 * interruption, failed allocations. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/passkey/passkey_prompt.h"
#include "generate/batch.h"
#include "kernels/base/mem.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"

enum { N_PROMPTS = 5, N_NEW = 9, MAX_RUNS = 6, VOCAB = 384 };

typedef struct {
    int32_t ids[MAX_RUNS][N_PROMPTS][N_NEW];
    size_t n[MAX_RUNS][N_PROMPTS];
    attn_stats stats[MAX_RUNS][N_PROMPTS];
    int order[MAX_RUNS * N_PROMPTS], n_done; /* run * 100 + prompt */
    double last;
    bool ordered, stopped;
    int calls, stop_at;         /* progress calls; the one that interrupts */
    unsigned skipped[MAX_RUNS]; /* bits: prompts */
} record;

static bool on_skip(void *ctx, size_t run, size_t prompt)
{
    return ((record *)ctx)->skipped[run] >> prompt & 1;
}

static status on_done(void *ctx, size_t run, size_t prompt, const batch_reply *x, err *e)
{
    record *r = ctx;
    (void)e;
    memcpy(r->ids[run][prompt], x->ids, x->n * sizeof *x->ids);
    r->n[run][prompt] = x->n;
    r->stats[run][prompt] = x->stats;
    r->stopped |= x->stopped;
    r->order[r->n_done++] = (int)(run * 100 + prompt);
    return ST_OK;
}

static bool on_progress(void *ctx, double part)
{
    record *r = ctx;
    r->ordered &= part >= r->last - 1e-9 && part <= 1 + 1e-9;
    r->last = part;
    return ++r->calls != r->stop_at;
}

typedef struct {
    backend *be;
    model *m;
    decoder *d;
    tokenizer *tok;
    prompt_tokens trials[N_PROMPTS];
    token_list stop;
    batch_prompt prompt[N_PROMPTS];
} fixture;

/* Passkey prompts, of different lengths and, with a tail, different tails. */
static status fixture_open(fixture *f, size_t tail, err *e)
{
    const char *dir = tap_path("tests/data/models/llama31-f32-tied");
    backend_options o = {.device = "cpu", .n_threads = 1};
    decoder_options d = {.chunk = 64, .max_batch = N_PROMPTS, .exact = true};
    *f = (fixture){0};
    TRY(backend_open(&f->be, &o, e));
    TRY(model_open(&f->m, dir, f->be, e));
    TRY(decoder_create(&f->d, f->m, &d, e));
    TRY(tokenizer_open(&f->tok, dir, e));
    TRY(tokenizer_eos_ids(f->tok, &f->stop, e));
    for (int64_t i = 0; i < N_PROMPTS; i++) {
        prompt_tokens *t = &f->trials[i];
        prompt_text text;
        TRY(passkey_text(&text, 384, passkey_before(384, i, N_PROMPTS), passkey_key(1, 1, i), false, e));
        status st = passkey_encode(t, f->tok, &text, tail, e);
        mem_free(text.s);
        TRY(st);
        size_t cut = t->tail.n > 0 ? 7 * (size_t)i : 0; /* tokens of the tail that are left out */
        f->prompt[i] = (batch_prompt){.head = t->head.ids,
                                      .n_head = t->head.n - i,
                                      .tail = t->tail.ids + cut,
                                      .n_tail = t->tail.n - cut,
                                      .stop = f->stop.ids,
                                      .n_stop = f->stop.n,
                                      .n_new = N_NEW - i % 3};
    }
    return ST_OK;
}

static void fixture_close(fixture *f)
{
    for (size_t i = 0; i < N_PROMPTS; i++) prompt_tokens_free(&f->trials[i]);
    token_list_free(&f->stop);
    tokenizer_free(f->tok);
    decoder_free(f->d);
    model_close(f->m);
    backend_close(f->be);
}

typedef struct {
    const char *text;
    dtype kv;
} run_spec;

/* Strategies that can share prefills, and some that cannot. */
static const run_spec sharing[MAX_RUNS] = {{"full", DT_F32},
                                           {"streaming:budget=24", DT_F32},
                                           {"streaming:budget=64:prefill=banded", DT_F32},
                                           {"streaming:budget=48:pos=abs", DT_F32},
                                           {"full", DT_F16},
                                           {"streaming:budget=24", DT_F16}};
static const run_spec strategies[MAX_RUNS] = {{"full", DT_F32},
                                              {"streaming:budget=24", DT_F32},
                                              {"snapkv:budget=24", DT_F32},
                                              {"quest:budget=32", DT_F32},
                                              {"h2o:budget=24", DT_F32},
                                              {"tova:budget=24", DT_F32}};

static size_t make_runs(batch_run runs[MAX_RUNS], const run_spec *specs)
{
    for (size_t i = 0; i < MAX_RUNS; i++) {
        attn_options o = {.kv = kv_plain(specs[i].kv)};
        runs[i] = (batch_run){0};
        if (attn_spec_parse(&runs[i].spec, specs[i].text, &o, NULL) != ST_OK) abort();
    }
    return MAX_RUNS;
}

static batch_job make_job(const fixture *f, record *r, bool share, size_t together, size_t jobs)
{
    *r = (record){.ordered = true};
    return (batch_job){.d = f->d,
                       .prompts = f->prompt,
                       .n_prompts = N_PROMPTS,
                       .limit = batch_limit(f->prompt, N_PROMPTS),
                       .max_shared = together,
                       .jobs = jobs,
                       .share = share,
                       .skip = on_skip,
                       .done = on_done,
                       .progress = on_progress,
                       .ctx = r};
}

static bool same_answers(const record *a, const record *b)
{
    for (int i = 0; i < MAX_RUNS; i++)
        for (int t = 0; t < N_PROMPTS; t++)
            if (a->n[i][t] != b->n[i][t] || a->stats[i][t].steps != b->stats[i][t].steps ||
                memcmp(&a->stats[i][t].attended, &b->stats[i][t].attended, sizeof(double)) != 0 ||
                memcmp(a->ids[i][t], b->ids[i][t], a->n[i][t] * sizeof(int32_t)) != 0)
                return false;
    return true;
}

static bool same_counts(const batch_run *a, const batch_run *b)
{
    for (int i = 0; i < MAX_RUNS; i++)
        if (a[i].stats.steps != b[i].stats.steps || a[i].held.kv != b[i].held.kv || a[i].peak.kv != b[i].peak.kv ||
            fabs(a[i].stats.attended - b[i].stats.attended) > 1e-6)
            return false;
    return true;
}

static void test_sharing(const char *protocol, size_t tail)
{
    static record shared, other, one;
    batch_run r_shared[MAX_RUNS], r_other[MAX_RUNS];
    fixture f;
    err e = {0};
    if (is_ok(fixture_open(&f, tail, &e), &e, "%s: opens", protocol)) {
        batch_job job = make_job(&f, &shared, true, 64, 1);
        size_t n = make_runs(r_shared, sharing);
        is_ok(batch_execute(&job, r_shared, n, &e), &e, "%s: all strategies together", protocol);
        is_int(job.prefills, (int64_t)n * N_PROMPTS, "prompts");
        is_int(job.prefills_done, 3 * N_PROMPTS, "one prefill a row type, and one that is not exact");
        ok(shared.ordered && shared.last > 0.999, "progress grows to 1");
        is_int(r_shared[0].stats.steps > 0, 1, "steps are counted");
        job = make_job(&f, &other, false, 64, 1);
        make_runs(r_other, sharing);
        is_ok(batch_execute(&job, r_other, n, &e), &e, "%s: without sharing", protocol);
        is_int(job.prefills_done, (int64_t)n * N_PROMPTS, "no prefill is shared");
        ok(same_answers(&shared, &other) && same_counts(r_shared, r_other), "the same tokens and counts");
        job = make_job(&f, &other, true, 2, 1);
        make_runs(r_other, sharing);
        is_ok(batch_execute(&job, r_other, n, &e), &e, "%s: two at a time", protocol);
        is_int(job.prefills_done, 4 * N_PROMPTS, "their prefills");
        ok(same_answers(&shared, &other) && same_counts(r_shared, r_other), "the same tokens and counts");
        for (size_t jobs = 2; jobs <= N_PROMPTS; jobs += 3) {
            job = make_job(&f, &other, true, 64, jobs);
            make_runs(r_other, sharing);
            is_ok(batch_execute(&job, r_other, n, &e), &e, "%s: %zu prompts side by side", protocol, jobs);
            ok(same_answers(&shared, &other) && same_counts(r_shared, r_other), "the same tokens and counts");
            ok(other.order[1] == 1 && other.order[jobs] == 100, "in their order");
            ok(other.ordered && other.last > 0.999, "progress grows to 1");
        }
        other = (record){0};
        make_runs(r_other, sharing);
        for (size_t i = 0; i < n; i++) {
            job = make_job(&f, &one, true, 1, 1);
            is_ok(batch_execute(&job, &r_other[i], 1, &e), &e, "%s by itself", r_other[i].spec.text);
            memcpy(other.ids[i], one.ids[0], sizeof one.ids[0]);
            memcpy(other.n[i], one.n[0], sizeof one.n[0]);
            memcpy(other.stats[i], one.stats[0], sizeof one.stats[0]);
        }
        ok(same_answers(&shared, &other) && same_counts(r_shared, r_other), "one by one: the same tokens and counts");
    }
    fixture_close(&f);
}

/* Known replies are not generated again and do not affect the others. */
static void test_skip(void)
{
    static record all, some;
    batch_run runs[MAX_RUNS];
    fixture f;
    err e = {0};
    if (is_ok(fixture_open(&f, 400, &e), &e, "opens")) {
        batch_job job = make_job(&f, &all, true, 64, 1);
        make_runs(runs, sharing);
        is_ok(batch_execute(&job, runs, 3, &e), &e, "three strategies");
        job = make_job(&f, &some, true, 64, 2);
        some.skipped[0] = 0x1f; /* the first one at all, */
        some.skipped[1] = 0x0b; /* and prompts 0, 1 and 3 of the second */
        make_runs(runs, sharing);
        is_ok(batch_execute(&job, runs, 3, &e), &e, "some are skipped");
        is_int(some.n_done, 7, "the others are answered");
        ok(some.ordered && some.last > 0.999, "progress grows to 1");
        bool same = true;
        for (int i = 0; i < some.n_done; i++) {
            int run = some.order[i] / 100, p = some.order[i] % 100;
            same &= !(some.skipped[run] >> p & 1) && some.n[run][p] == all.n[run][p] &&
                    memcmp(some.ids[run][p], all.ids[run][p], some.n[run][p] * sizeof(int32_t)) == 0;
        }
        ok(same, "with the same tokens");
        is_int(runs[0].stats.steps, 0, "nothing of the one that is left out");
        job = make_job(&f, &some, true, 64, 1);
        for (int i = 0; i < MAX_RUNS; i++) some.skipped[i] = 0x1f;
        is_ok(batch_execute(&job, runs, 3, &e), &e, "nothing to do");
        is_int(some.n_done, 0, "nothing is done");
    }
    fixture_close(&f);
}

/* The first prompt alone. */
static void run_one(fixture *f, record *r, const char *name)
{
    batch_run runs[MAX_RUNS];
    err e = {0};
    batch_job job = make_job(f, r, true, 64, 1);
    job.n_prompts = 1;
    make_runs(runs, sharing);
    is_ok(batch_execute(&job, runs, 1, &e), &e, "%s", name);
}

/* Stops: by what the model says when nothing stops it. */
static void test_stops(void)
{
    static record plain, r;
    fixture f;
    err e = {0};
    for (int tail = 0; tail <= 400; tail += 400) {
        if (is_ok(fixture_open(&f, (size_t)tail, &e), &e, "opens")) {
            f.prompt[0].n_stop = 0;
            run_one(&f, &plain, "without stops");
            is_int((long long)plain.n[0][0], N_NEW, "all new tokens");
            ok(!plain.stopped, "not stopped");
            is_int(plain.stats[0][0].steps, (long long)f.prompt[0].n_tail + N_NEW - 1, "the last one is not fed");
            int32_t stop[2] = {-5, 0};
            size_t want = 0;
            stop[1] = plain.ids[0][0][3];
            while (plain.ids[0][0][want] != stop[1]) want++;
            f.prompt[0].stop = stop;
            f.prompt[0].n_stop = 2;
            run_one(&f, &r, "with one");
            ok(r.n[0][0] == want && r.stopped, "it ends the answer and is not in it");
            stop[1] = plain.ids[0][0][0];
            run_one(&f, &r, "the first token stops");
            is_int((long long)r.n[0][0], 0, "an empty answer");
            f.prompt[0].not_first = true;
            run_one(&f, &r, "unless it must not");
            ok(r.n[0][0] > 0 && r.ids[0][0][0] != stop[1], "then another one is the first");
            const int32_t only[2] = {(stop[1] + 1) % VOCAB, (stop[1] + 2) % VOCAB};
            f.prompt[0].not_first = false;
            f.prompt[0].only = only;
            f.prompt[0].n_only = 2;
            run_one(&f, &r, "or unless it is none of two");
            ok(r.ids[0][0][0] == only[0] || r.ids[0][0][0] == only[1], "then one of the two is the first");
        }
        fixture_close(&f);
    }
}

/* Ctrl-C anywhere, and no memory anywhere: an error each time, nothing lost (valgrind, ASan). */
static void test_failures(void)
{
    static record r;
    batch_run runs[MAX_RUNS];
    fixture f;
    err e = {0};
    if (is_ok(fixture_open(&f, 400, &e), &e, "opens")) {
        batch_job job = make_job(&f, &r, true, 64, 2);
        make_runs(runs, sharing);
        is_ok(batch_execute(&job, runs, 2, &e), &e, "two strategies");
        int calls = r.calls, bad = 0;
        for (int i = 1; i < calls; i += calls / 9) {
            job = make_job(&f, &r, true, 64, 2);
            r.stop_at = i;
            e = (err){0};
            bad +=
                batch_execute(&job, runs, 2, &e) != ST_INTERRUPTED || strcmp(e.msg, "interrupted") != 0 || r.calls != i;
        }
        is_int(bad, 0, "an interruption ends the run");
        oom_run o = {0};
        while (oom_next(&o)) {
            mem_test_fail_at(0);
            job = make_job(&f, &r, true, 64, 2);
            job.n_prompts = 1;
            mem_test_fail_at(o.n);
            oom_saw(&o, batch_execute(&job, runs, 2, &o.e), NULL);
        }
        oom_ok(&o, 3, "a run");
    }
    fixture_close(&f);
}

/* Turns of a conversation, each of which is a prompt that extends the previous ones; then a request after the first
 * alone. */
static void make_turns(fixture *f, const size_t ends[N_PROMPTS], int32_t *request)
{
    const token_list *l = &f->trials[0].head;
    for (size_t i = 0; i < N_PROMPTS; i++) {
        f->prompt[i].head = l->ids;
        f->prompt[i].n_head = ends[i];
        f->prompt[i].breaks = ends;
        f->prompt[i].n_breaks = i;
        f->prompt[i].n_tail = 0;
    }
    memcpy(request, l->ids, ends[0] * sizeof *request);
    for (size_t i = ends[0]; i < ends[1]; i++) request[i] = l->ids[i + 1];
    f->prompt[N_PROMPTS - 1] = f->prompt[1];
    f->prompt[N_PROMPTS - 1].head = request;
}

/* Questions that are fed token by token after one head; the last two have another head. */
static void make_questions(fixture *f, int32_t *other)
{
    const token_list *l = &f->trials[0].head;
    enum { HEAD = 100 };
    memcpy(other, l->ids, HEAD * sizeof *other);
    other[HEAD / 2]++;
    for (size_t i = 0; i < N_PROMPTS; i++) {
        f->prompt[i].head = i + 2 < N_PROMPTS ? l->ids : other;
        f->prompt[i].n_head = HEAD;
        f->prompt[i].tail = l->ids + HEAD + i;
        f->prompt[i].n_tail = 5 + i;
    }
}

/* Each prompt by itself, then all together, `prefills` times a prefill for each strategy. */
static void check_branches(fixture *f, batch_run *runs, int64_t prefills)
{
    static record all, one, alone;
    err e = {0};
    batch_job job = make_job(f, &one, true, 64, 1);
    const batch_prompt *prompts = job.prompts;
    alone = (record){0};
    for (size_t i = 0; i < N_PROMPTS; i++) {
        one = (record){.ordered = true};
        job.prompts = prompts + i;
        job.n_prompts = 1;
        is_ok(batch_execute(&job, runs, MAX_RUNS, &e), &e, "prompt %zu by itself", i + 1);
        ok(one.ordered && one.last > 0.999, "progress grows to 1");
        for (size_t k = 0; k < MAX_RUNS; k++) {
            memcpy(alone.ids[k][i], one.ids[k][0], sizeof one.ids[k][0]);
            alone.n[k][i] = one.n[k][0];
            alone.stats[k][i] = one.stats[k][0];
        }
    }
    for (size_t jobs = 1; jobs <= N_PROMPTS; jobs += 2) {
        job = make_job(f, &all, true, 64, jobs);
        is_ok(batch_execute(&job, runs, MAX_RUNS, &e), &e, "all, %zu side by side", jobs);
        ok(same_answers(&all, &alone), "as by themselves");
        ok(all.ordered && all.last > 0.999, "progress grows to 1");
        is_int(job.prefills, MAX_RUNS * prefills, "%lld prefills for each strategy", (long long)prefills);
    }
    job = make_job(f, &all, true, 64, 1);
    for (size_t k = 0; k < MAX_RUNS; k++) all.skipped[k] = 1u << (N_PROMPTS - 2);
    is_ok(batch_execute(&job, runs, MAX_RUNS, &e), &e, "all but the last but one");
    bool same = true;
    for (size_t k = 0; k < MAX_RUNS; k++)
        same &= memcmp(all.ids[k][N_PROMPTS - 1], alone.ids[k][N_PROMPTS - 1], sizeof alone.ids[k][0]) == 0;
    ok(same, "the last as by itself");
}

/* A session whose rows are on disk cannot be copied: each prompt is fed from its start. */
static void check_tier(fixture *f)
{
    static record got[2];
    const char *const tiers[2] = {"device", "disk:window=8:cache=0"};
    err e = {0};
    for (int i = 0; i < 2; i++) {
        kv_tier t;
        attn_options o = {.kv = kv_plain(DT_F32), .tier = &t};
        batch_run run = {0};
        batch_job job = make_job(f, &got[i], true, 64, 1);
        if (kv_tier_parse(&t, tiers[i], &e) != ST_OK ||
            attn_spec_parse(&run.spec, "quest:budget=32:skip=0", &o, &e) != ST_OK)
            abort();
        is_ok(batch_execute(&job, &run, 1, &e), &e, "questions over %s", tiers[i]);
    }
    ok(memcmp(got[0].ids[0], got[1].ids[0], sizeof got[0].ids[0]) == 0, "the same answers");
}

/* A prompt that continues from a copy of the previous one's session gives the same replies as one fed from its
 * start. */
static void test_branches(void)
{
    static const size_t ends[N_PROMPTS] = {70, 90, 120, 125, 125};
    static int32_t request[128];
    batch_run runs[MAX_RUNS];
    fixture f;
    err e = {0};
    make_runs(runs, strategies);
    if (is_ok(fixture_open(&f, 0, &e), &e, "turns") && ok(f.trials[0].head.n > 126, "a prompt is long enough")) {
        make_turns(&f, ends, request);
        check_branches(&f, runs, N_PROMPTS + 1); /* one for each turn, and one for the context again */
        make_questions(&f, request);
        for (size_t i = 0; i < N_PROMPTS; i++) f.prompt[i].n_breaks = 0;
        check_branches(&f, runs, 2); /* one for each head */
        check_tier(&f);
    }
    fixture_close(&f);
}

static void keep_row(void *ctx, int64_t first, size_t n, const float *logits)
{
    (void)first;
    memcpy(ctx, logits + (n - 1) * VOCAB, VOCAB * sizeof *logits);
}

/* The answer to a prompt in a session, step by step: its tokens, of which the last is not fed. */
static status answer_by_hand(session *s, const batch_prompt *p, const int32_t *ids, size_t n_ids, int32_t *out,
                             size_t *n, bool *cut, err *e)
{
    static float logits[VOCAB];
    int32_t id;
    TRY(session_prefill(&s, 1, ids, n_ids, &(prefill_options){.which = LOGITS_LAST, .rows = keep_row, .ctx = logits},
                        e));
    *cut = true;
    for (*n = 0; *n < p->n_new;) {
        id = logits_argmax(logits, VOCAB);
        for (size_t i = 0; i < p->n_stop; i++) *cut &= id != p->stop[i];
        if (!*cut) break;
        out[(*n)++] = id;
        if (*n < p->n_new) TRY(session_decode(&s, 1, &id, logits, e));
    }
    return ST_OK;
}

/* Conversations of three and two turns with the model's own answers between them, in one session each. */
static void make_talks(fixture *f)
{
    const token_list *l = &f->trials[0].head;
    for (size_t i = 0; i < N_PROMPTS; i++) {
        f->prompt[i].follows = i != 0 && i != 3;
        f->prompt[i].head = l->ids + 3 * i;
        f->prompt[i].n_head = f->prompt[i].follows ? 11 + i : 80 + i;
        f->prompt[i].n_tail = 0;
        f->prompt[i].ends = i == 2 ? -1 : f->stop.ids[0];
    }
}

static void talk_by_hand(fixture *f, batch_run *run, size_t k, record *r)
{
    session *s = NULL;
    err e = {0};
    bool cut = false, good = true;
    for (size_t i = 0; i < N_PROMPTS && good; i++) {
        const batch_prompt *p = &f->prompt[i];
        int32_t ids[128];
        size_t ends = p->follows && cut && p->ends >= 0;
        if (!p->follows) {
            session_free(s);
            s = NULL;
            good = session_create(&s, f->d, &run->spec, session_of(512), &e) == ST_OK;
        }
        ids[0] = p->ends;
        memcpy(ids + ends, p->head, p->n_head * sizeof *ids);
        if (good) good = answer_by_hand(s, p, ids, ends + p->n_head, r->ids[k][i], &r->n[k][i], &cut, &e) == ST_OK;
    }
    is_ok(e.code, &e, "strategy %zu, turns by hand", k);
    session_free(s);
}

/* Prompts that follow answers: as in a session by hand; alone, side by side, and where some answers are known. */
static void test_following(void)
{
    static record all, some, hand;
    batch_run runs[MAX_RUNS];
    fixture f;
    err e = {0};
    make_runs(runs, strategies);
    hand = (record){0};
    if (is_ok(fixture_open(&f, 0, &e), &e, "talks")) {
        static int32_t third;
        make_talks(&f);
        is_int(batch_limit(f.prompt, N_PROMPTS), 80 + 9 + 1 + 12 + 8 + 1 + 13 + 7, "tokens of the longest talk");
        is_int(decoder_model(f.d)->config.vocab, VOCAB, "the model's vocabulary");
        talk_by_hand(&f, &runs[0], 0, &hand);
        third = hand.ids[0][0][2]; /* one answer ends by itself */
        f.prompt[0].stop = &third;
        f.prompt[0].n_stop = 1;
        memset(&hand, 0, sizeof hand);
        for (size_t k = 0; k < MAX_RUNS; k++) talk_by_hand(&f, &runs[k], k, &hand);
        ok(hand.n[0][0] < 3 && hand.n[0][1] > 3, "answers that end and that are cut");
        for (size_t jobs = 1; jobs <= 3; jobs++) {
            batch_job job = make_job(&f, &all, true, 64, jobs);
            is_ok(batch_execute(&job, runs, MAX_RUNS, &e), &e, "talks, %zu side by side", jobs);
            ok(memcmp(all.ids, hand.ids, sizeof all.ids) == 0 && memcmp(all.n, hand.n, sizeof all.n) == 0,
               "the answers of a session by hand");
            ok(all.ordered && all.last > 0.999, "progress grows to 1");
            is_int(all.n_done, MAX_RUNS * N_PROMPTS, "an answer to each");
            ok(all.stats[0][1].steps < N_NEW && all.stats[0][1].attended > 80,
               "the steps of one answer, over all before it");
        }
        batch_job job = make_job(&f, &some, true, 64, 1);
        for (size_t k = 0; k < MAX_RUNS; k++) some.skipped[k] = 1u << 0 | 1u << 2 | 1u << 3 | 1u << 4;
        is_ok(batch_execute(&job, runs, MAX_RUNS, &e), &e, "one answer is wanted");
        is_int(some.n_done, MAX_RUNS, "and given");
        ok(memcmp(some.ids[2][1], hand.ids[2][1], sizeof hand.ids[2][1]) == 0, "the same as before");
        ok(some.ordered && some.last > 0.999, "progress grows to 1");
    }
    fixture_close(&f);
}

static void test_fitting(void)
{
    fixture f;
    err e = {0};
    batch_run runs[MAX_RUNS];
    size_t n = make_runs(runs, sharing), fit = 0;
    const size_t order[MAX_RUNS] = {0, 1, 2, 3, 4, 5};
    if (is_ok(fixture_open(&f, 0, &e), &e, "a model for what fits")) {
        batch_fitting x = {.d = f.d, .options = {.chunk = 64, .max_batch = 1}, .limit = 1024, .sessions = 1};
        is_ok(batch_fit(&fit, &x, runs, order, n, &e), &e, "one session of each");
        is_int((int64_t)fit, (int64_t)n, "all of them fit");
        x.sessions = (size_t)1 << 32;
        status st = batch_fit(&fit, &x, runs, order, n, &e);
        is_err(st, &e, ST_NOMEM, "a smaller --jobs", "more prompts side by side than memory holds");
    }
    fixture_close(&f);
}

int main(void)
{
    test_sharing("decode", 400);
    test_sharing("prefill", 0);
    test_skip();
    test_stops();
    test_failures();
    test_branches();
    test_following();
    test_fitting();
    return tap_done();
}
