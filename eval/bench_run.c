/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench_run.h"

#include "eval/stats.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "model/sampler.h"

/* A run's steps are chosen to end about then; a prompt that takes longer is not fed so often. */
static const int64_t RUN_NS = 2000000000, SLOW_NS = 10000000000;

static size_t vocab_of(const bench_case *c)
{
    return (size_t)decoder_model(c->d)->config.vocab;
}

/* One warm-up, the timed runs and the profiled one. */
static int64_t limit_of(const bench_case *c)
{
    return (int64_t)c->n_ids + (BENCH_RUNS + 2) * BENCH_STEPS;
}

/* Whether the sessions fit, before anything of their size is allocated. */
static status check_memory(const bench_case *c, err *e)
{
    memory_plan p;
    decoder_options o = {.chunk = c->chunk, .max_batch = c->max_batch};
    TRY(session_plan(&p, decoder_model(c->d), &o, &c->spec, limit_of(c), e));
    TRY(size_mul(&p.kv, p.kv, c->max_batch, "KV of the batch", e));
    TRY(size_mul(&p.index, p.index, c->max_batch, "index of the batch", e));
    TRY(size_add(&p.scratch, p.scratch, c->n_ids * sizeof *c->ids, "prompt", e));
    return memory_plan_check(&p, e);
}

status bench_open(bench_case *c, bool prefill, err *e)
{
    size_t n_logits = 0;
    c->n_ids = c->ctx > 0 ? (size_t)c->ctx : prefill ? c->chunk : 1;
    c->n_last = c->n_ids < c->chunk ? c->n_ids : c->chunk;
    c->n_fill = c->ctx > 0 ? (size_t)c->ctx : 1;
    TRY(check_memory(c, e));
    TRY(MEM_NEW(&c->s, c->max_batch, e));
    TRY(MEM_NEW(&c->ids, c->n_ids, e));
    TRY(MEM_NEW(&c->next, c->max_batch, e));
    TRY(size_mul(&n_logits, c->max_batch, vocab_of(c), "logits", e));
    TRY(MEM_NEW(&c->logits, n_logits, e));
    rng r = {1};
    for (size_t i = 0; i < c->n_ids; i++) c->ids[i] = (int32_t)rng_below(&r, vocab_of(c));
    for (size_t i = 0; i < c->max_batch; i++)
        TRY(session_create(&c->s[i], c->d, &c->spec, limit_of(c), e));
    return ST_OK;
}

void bench_close(bench_case *c)
{
    for (size_t i = 0; c->s && i < c->max_batch; i++) session_free(c->s[i]);
    mem_free(c->s);
    mem_free(c->ids);
    mem_free(c->next);
    mem_free(c->logits);
    c->s = NULL;
    c->ids = c->next = NULL;
    c->logits = NULL;
}

/* ---- prefill ---- */

/* The last chunk's time is that between the last two calls, logits included. */
static bool on_chunk(void *ctx, int64_t done, int64_t total)
{
    bench_case *c = ctx;
    int64_t now = clock_ns();
    c->chunk_ns = now - c->chunk_start;
    c->chunk_start = now;
    return !c->progress || c->progress(c->progress_ctx, (double)done / (double)total);
}

static void on_logits(void *ctx, int64_t first, size_t n, const float *logits)
{
    (void)ctx;
    (void)first;
    (void)n;
    (void)logits; /* computed, as for a real prompt */
}

static status feed(bench_case *c, session *const *s, size_t n, const int32_t *ids, size_t n_ids,
                   err *e)
{
    const prefill_options o = {
        .which = LOGITS_LAST, .rows = on_logits, .progress = on_chunk, .ctx = c};
    c->chunk_start = clock_ns();
    return session_prefill(s, n, ids, n_ids, &o, e);
}

static bool can_go_back(bench_case *c, size_t before)
{
    return session_length(c->s[0]) == (int64_t)c->n_ids &&
           session_rewind(c->s[0], (int64_t)before, NULL) == ST_OK;
}

/* The last chunk again where the strategy can go back, else the whole prompt. */
static status feed_last(bench_case *c, err *e)
{
    size_t before = c->n_ids - c->n_last;
    if (can_go_back(c, before)) return feed(c, c->s, 1, c->ids + before, c->n_last, e);
    session_reset(c->s[0]);
    return feed(c, c->s, 1, c->ids, c->n_ids, e);
}

/* Tokens that a token of the last chunk attends, mean over tokens and layers; a strategy whose
 * prompt is not exact sees its budget. */
static double prompt_attended(const bench_case *c)
{
    const attn_shape *sh = decoder_attn_shape(c->d);
    double sum = 0, mean = (double)c->n_ids - (double)(c->n_last - 1) / 2;
    bool exact = session_can_share(c->s[0], c->s[0], c->n_ids);
    for (int l = 0; l < sh->n_layers; l++) {
        double n = mean;
        if (!exact && (double)c->spec.budget < n) n = (double)c->spec.budget;
        if (sh->window[l] > 0 && sh->window[l] < n) n = sh->window[l];
        sum += n;
    }
    return sum / sh->n_layers;
}

status bench_prefill(bench_case *c, bench_result *r, err *e)
{
    double speed[BENCH_RUNS];
    *r = (bench_result){.batch = 1, .n_runs = BENCH_RUNS, .attended = prompt_attended(c)};
    int64_t t0 = clock_ns();
    TRY(feed_last(c, e));
    int64_t whole = clock_ns() - t0;
    bool back = can_go_back(c, c->n_ids - c->n_last);
    if (back) {
        TRY(feed(c, c->s, 1, c->ids + c->n_ids - c->n_last, c->n_last, e));
    } else {
        /* Chunks are cut from the start: the last one may be short. */
        if (c->n_ids % c->chunk) c->n_last = c->n_ids % c->chunk;
        if (whole > SLOW_NS) r->n_runs = SLOW_RUNS;
    }
    r->tokens = (int64_t)c->n_last;
    for (size_t i = 0; i < r->n_runs; i++) {
        TRY(feed_last(c, e));
        speed[i] = (double)c->n_last / ((double)c->chunk_ns * 1e-9);
    }
    r->tokens_per_s = stats_median(speed, r->n_runs);
    r->spread = stats_spread(speed, r->n_runs);
    decoder_profile(c->d, true);
    TRY(feed_last(c, e));
    decoder_stages(c->d, r->stage_ns);
    decoder_profile(c->d, false);
    r->stage_tokens = back ? (int64_t)c->n_last : (int64_t)c->n_ids;
    return ST_OK;
}

status bench_fill(bench_case *c, err *e)
{
    if (c->max_batch == 1 && session_length(c->s[0]) == (int64_t)c->n_fill) return ST_OK;
    for (size_t i = 0; i < c->max_batch; i++) session_reset(c->s[i]);
    if (c->fill) {
        for (size_t i = 0; i < c->max_batch; i++)
            TRY(session_fill(&c->s[i], 1, (int64_t)c->n_fill, i, e));
        return ST_OK;
    }
    if (session_can_share(c->s[0], c->s[0], c->n_fill))
        return feed(c, c->s, c->max_batch, c->ids, c->n_fill, e);
    for (size_t i = 0; i < c->max_batch; i++) TRY(feed(c, &c->s[i], 1, c->ids, c->n_fill, e));
    return ST_OK;
}

/* ---- decode ---- */

/* n greedy tokens of each sequence, or as many as end within RUN_NS; the number done in *done. */
static status steps(bench_case *c, size_t batch, int64_t n, int64_t *done, int64_t *ns, err *e)
{
    size_t vocab = vocab_of(c);
    int64_t t0 = clock_ns();
    for (*done = 0, *ns = 0; *done < n && (*done < 2 || *ns < RUN_NS); ++*done) {
        TRY(session_decode(c->s, batch, c->next, c->logits, e));
        for (size_t i = 0; i < batch; i++) c->next[i] = logits_argmax(c->logits + i * vocab, vocab);
        *ns = clock_ns() - t0;
        if (c->progress && !c->progress(c->progress_ctx, 1))
            return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* Back to the context where the strategy allows it; one that evicts costs the same later on. */
static void go_back(bench_case *c, size_t batch)
{
    for (size_t i = 0; i < batch; i++) {
        c->next[i] = (int32_t)(i % vocab_of(c));
        (void)session_rewind(c->s[i], (int64_t)c->n_fill, NULL);
    }
}

static status run_steps(bench_case *c, size_t batch, int64_t n, int64_t *ns, err *e)
{
    int64_t done;
    go_back(c, batch);
    TRY(steps(c, batch, n, &done, ns, e));
    /* A run cut short by the clock counts as if it had gone on at its speed. */
    *ns = *ns * n / done;
    return ST_OK;
}

/* A strategy that cannot go back uses up the room that was planned: then it starts again. */
static status make_room(bench_case *c, size_t batch, err *e)
{
    for (size_t i = 0; i < batch; i++)
        if (session_limit(c->s[i]) - session_length(c->s[i]) < (BENCH_RUNS + 2) * BENCH_STEPS &&
            session_rewind(c->s[i], (int64_t)c->n_fill, NULL) != ST_OK) {
            for (size_t k = 0; k < c->max_batch; k++) session_reset(c->s[k]);
            return bench_fill(c, e);
        }
    return ST_OK;
}

/* What the steps between two states of the counters attended and read. */
static void take_counts(const bench_case *c, bench_result *r, const attn_stats *from,
                        const attn_stats *to)
{
    double n = (double)(to->steps - from->steps);
    attn_stats part = {.kv_read = to->kv_read - from->kv_read,
                       .k_read = to->k_read - from->k_read,
                       .index_read = to->index_read - from->index_read,
                       .full_keys = to->full_keys - from->full_keys};
    r->held = attn_seq_held(session_attn(c->s[0]));
    if (n <= 0) return;
    r->attended = (to->attended - from->attended) / n / decoder_attn_shape(c->d)->n_layers;
    r->kv_read = part.kv_read / n;
    r->index_read = part.index_read / n;
    r->key_access = attn_key_access(&part);
}

status bench_decode(bench_case *c, size_t batch, bench_result *r, err *e)
{
    double speed[BENCH_RUNS];
    int64_t n, ns;
    *r = (bench_result){.decode = true, .batch = batch, .n_runs = BENCH_RUNS};
    TRY(make_room(c, batch, e));
    go_back(c, batch);
    TRY(steps(c, batch, BENCH_STEPS, &n, &ns, e));
    attn_stats from = attn_seq_stats(session_attn(c->s[0]));
    r->tokens = n * (int64_t)batch;
    for (size_t i = 0; i < BENCH_RUNS; i++) {
        TRY(run_steps(c, batch, n, &ns, e));
        speed[i] = (double)r->tokens / ((double)ns * 1e-9);
    }
    r->tokens_per_s = stats_median(speed, BENCH_RUNS);
    r->spread = stats_spread(speed, BENCH_RUNS);
    attn_stats to = attn_seq_stats(session_attn(c->s[0]));
    take_counts(c, r, &from, &to);
    decoder_profile(c->d, true);
    TRY(run_steps(c, batch, n, &ns, e));
    decoder_stages(c->d, r->stage_ns);
    decoder_profile(c->d, false);
    r->stage_tokens = r->tokens;
    return ST_OK;
}
