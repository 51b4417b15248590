/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_run.h"

#include "eval/bench/bench_fill.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

/* Target time of a sample, and maximum time of the warm-up. */
static const int64_t SAMPLE_NS = 20000000, WARM_NS = 1000000000;

static size_t vocab_of(const bench_case *c)
{
    return (size_t)c->base->g.m->config.vocab;
}

/* Maximum number of tokens of a decode measurement: warm-up, samples and the profiled run. */
enum { ROOM = (SAMPLES_MOST + 2) * BENCH_STEPS };

static int64_t limit_of(const bench_case *c)
{
    return (int64_t)c->n_ids + ROOM;
}

static session_size size_of(const bench_case *c)
{
    return (session_size){.n_tokens = limit_of(c), .longest_prompt = c->longest_prompt, .draft = c->draft};
}

/* Checks that the sessions fit in memory before anything of their size is allocated. */
static status check_memory(const bench_case *c, err *e)
{
    memory_plan p;
    decoder_options o = {.chunk = c->chunk, .max_batch = c->max_batch};
    TRY(session_plan(&p, c->base->g.m, &o, &c->spec, size_of(c), e));
    TRY(size_mul(&p.kv, p.kv, c->max_batch, "KV of the batch", e));
    TRY(size_mul(&p.index, p.index, c->max_batch, "index of the batch", e));
    TRY(size_mul(&p.disk, p.disk, c->max_batch, "files of the batch", e));
    TRY(size_mul(&p.host, p.host, c->max_batch, "host memory of the batch", e));
    TRY(size_add(&p.scratch, p.scratch, c->n_ids * sizeof *c->ids, "prompt", e));
    return memory_plan_check(&p, c->base->g.be, e);
}

/* Reads the type of random weights, which may be one that only files have. */
static status parse_random_type(dtype *out, const char *text, err *e)
{
    *out = dtype_named(text);
    return *out < DT_COUNT ? ST_OK : cli_parse_weights(out, text, e);
}

static status open_shape(engine *g, const char *shape, const char *weights, uint64_t seed, size_t max_batch, err *e)
{
    dtype type = DT_BF16;
    if (weights) TRY(parse_random_type(&type, weights, e));
    TRY(cli_open_backend(&g->be, &g->o.device, e));
    TRY(model_open_shape(&g->m, shape, type, seed, g->be, e));
    if (g->o.draft_weights) {
        TRY(cli_draft_type(&type, g->m->type, g->o.draft_weights, e));
        TRY(model_open_shape(&g->draft, shape, type, seed, g->be, e));
    }
    return engine_open_decoder(g, max_batch, e);
}

status bench_open_model(bench_base *b, const char *shape, const char *weights, size_t max_batch, err *e)
{
    engine_options o = b->o->run.engine;
    o.model.weights = weights;
    bench_close_model(b); /* two models may not fit in memory */
    b->g.o = o;
    if (shape) TRY(open_shape(&b->g, shape, weights, b->o->run.seed.value, max_batch, e));
    else TRY(engine_open(&b->g, &o, max_batch, false, e));
    return meter_create(&b->meter, b->g.be, e);
}

void bench_close_model(bench_base *b)
{
    meter_free(b->meter);
    b->meter = NULL;
    engine_close(&b->g);
}

bench_case bench_case_of(bench_base *b, const attn_spec *spec, int64_t ctx)
{
    const device_options *device = &b->o->run.engine.device;
    return (bench_case){.base = b,
                        .spec = *spec,
                        .ctx = ctx,
                        .chunk = backend_chunk(b->g.be, (size_t)device->chunk),
                        .max_batch = 1,
                        .timing = {.meter = b->meter,
                                   .n_threads = b->g.be->n_threads,
                                   .wanted = (size_t)b->o->samples,
                                   .ranks = device->ranks}};
}

status bench_open(bench_case *c, bool prefill, err *e)
{
    c->n_ids = c->ctx > 0 ? (size_t)c->ctx : prefill ? c->chunk : 1;
    c->synthetic = c->base->o->fill || c->n_ids > BENCH_REAL;
    c->n_timed = c->synthetic ? (c->n_ids - 1) % c->chunk + 1 : c->n_ids; /* chunks are counted from the start */
    c->n_fill = c->ctx > 0 ? (size_t)c->ctx : 1;
    if (c->base->o->fill && !prefill && c->spec.kv.kind != KV_PLAIN)
        c->longest_prompt = BENCH_PIECE_CHUNKS * (int64_t)c->chunk;
    TRY(check_memory(c, e));
    TRY(MEM_NEW(&c->s, c->max_batch, e));
    TRY(MEM_NEW(&c->ids, c->n_ids, e));
    TRY(MEM_NEW(&c->next, c->max_batch, e));
    rng r = {c->base->o->run.seed.value};
    for (size_t i = 0; i < c->n_ids; i++) c->ids[i] = (int32_t)rng_below(&r, vocab_of(c));
    for (size_t i = 0; i < c->max_batch; i++) TRY(session_create(&c->s[i], c->base->g.dec, &c->spec, size_of(c), e));
    return ST_OK;
}

void bench_close(bench_case *c)
{
    for (size_t i = 0; c->s && i < c->max_batch; i++) session_free(c->s[i]);
    mem_free(c->s);
    mem_free(c->ids);
    mem_free(c->next);
    c->s = NULL;
    c->ids = c->next = NULL;
}

/* ---- the context ---- */

static bool on_part(void *ctx, int64_t done, int64_t total)
{
    const bench_case *c = ctx;
    if (done < total) progress_set(c->base->bar, done, total);
    return !cli_interrupted();
}

static void on_logits(void *ctx, int64_t first, size_t n, const float *logits)
{
    (void)ctx;
    (void)first;
    (void)n;
    (void)logits; /* logits are computed, as for a real prompt */
}

/* Feeds tokens [before, before + n) of a prompt of n_prompt tokens. */
static status feed(bench_case *c, session *const *s, size_t n_sessions, size_t before, size_t n, size_t n_prompt,
                   err *e)
{
    const prefill_options o = {.which = LOGITS_LAST,
                               .rows = on_logits,
                               .progress = on_part,
                               .ctx = c,
                               .before = before,
                               .after = n_prompt - before - n};
    return session_prefill(s, n_sessions, c->ids + before, n, &o, e);
}

/* Stores random rows in session i; after: number of prompt tokens that follow. */
static status fill(bench_case *c, size_t i, size_t n, size_t after, err *e)
{
    const fill_options o = {.n_tokens = (int64_t)n,
                            .after = (int64_t)after,
                            .piece = after ? 0 : c->longest_prompt,
                            .seed = c->base->o->run.seed.value + i,
                            .progress = on_part,
                            .ctx = c};
    return fill_sessions(&c->s[i], 1, &o, e);
}

static bool has_context(const bench_case *c)
{
    return c->max_batch == 1 && session_length(c->s[0]) == (int64_t)c->n_fill && (c->base->o->fill || !c->synthetic);
}

static status fill_all(bench_case *c, err *e)
{
    if (has_context(c)) return ST_OK;
    for (size_t i = 0; i < c->max_batch; i++) session_reset(c->s[i]);
    c->synthetic = c->base->o->fill;
    if (!c->base->o->fill && session_can_share(c->s[0], c->s[0], c->n_fill))
        return feed(c, c->s, c->max_batch, 0, c->n_fill, c->n_fill, e);
    for (size_t i = 0; i < c->max_batch; i++) {
        if (c->base->o->fill) TRY(fill(c, i, c->n_fill, 0, e));
        else TRY(feed(c, &c->s[i], 1, 0, c->n_fill, c->n_fill, e));
    }
    return ST_OK;
}

status bench_fill(bench_case *c, size_t batch, bench_result *r, err *e)
{
    (void)batch;
    *r = (bench_result){0};
    return fill_all(c, e);
}

/* ---- prefill ---- */

/* Rewinds to the start of the timed part of the prompt, or recreates the rows before it. */
static status prepare_prompt(void *ctx, err *e)
{
    bench_case *c = ctx;
    size_t before = c->n_ids - c->n_timed;
    if (session_length(c->s[0]) == (int64_t)c->n_ids && session_rewind(c->s[0], (int64_t)before, NULL) == ST_OK)
        return ST_OK;
    session_reset(c->s[0]);
    return before ? fill(c, 0, before, c->n_timed, e) : ST_OK;
}

static status run_prompt(void *ctx, int64_t *ns, err *e)
{
    bench_case *c = ctx;
    int64_t t0 = clock_ns();
    TRY(feed(c, c->s, 1, c->n_ids - c->n_timed, c->n_timed, c->n_ids, e));
    *ns = clock_ns() - t0;
    return ST_OK;
}

/* Returns the mean number of tokens seen by the last n_timed of n tokens, if each sees at most `most`. */
static double mean_seen(double n, double n_timed, double most)
{
    double before = n - n_timed;
    if (most >= n) return (before + 1 + n) / 2;
    if (most <= before) return most;
    return ((most - before) * (before + 1 + most) / 2 + (n - most) * most) / n_timed;
}

/* Returns the tokens attended by a timed token, mean over tokens and layers. A strategy with an inexact prompt sees its
 * budget. */
static double prompt_attended(const bench_case *c)
{
    const attn_shape *sh = decoder_attn_shape(c->base->g.dec);
    double sum = 0, n = (double)c->n_ids;
    bool exact = session_can_share(c->s[0], c->s[0], c->n_ids);
    for (int l = 0; l < sh->n_layers; l++) {
        double most = exact ? n : (double)c->spec.budget;
        if (sh->window[l] > 0 && sh->window[l] < most) most = sh->window[l];
        sum += mean_seen(n, (double)c->n_timed, most);
    }
    return sum / sh->n_layers;
}

/* Runs a warm-up, the samples, and a profiled run. */
static status measure(bench_case *c, bench_result *r, bool warm, err *e)
{
    const bench_timing *t = &c->timing;
    int64_t ns;
    if (warm) {
        TRY(t->prepare(c, e));
        TRY(t->run(c, &ns, e));
    }
    TRY(bench_sample(&r->samples, t, e));
    TRY(t->prepare(c, e));
    decoder_profile(c->base->g.dec, true);
    status st = t->run(c, &r->profiled_ns, e);
    decoder_stages(c->base->g.dec, r->stage_ns);
    decoder_profile(c->base->g.dec, false);
    r->filled = c->synthetic;
    return st;
}

status bench_prefill(bench_case *c, size_t batch, bench_result *r, err *e)
{
    (void)batch;
    *r = (bench_result){.batch = 1, .attended = prompt_attended(c), .tokens = (int64_t)c->n_timed};
    c->timing.prepare = prepare_prompt;
    c->timing.run = run_prompt;
    c->timing.waited = NULL;
    c->timing.ctx = c;
    c->timing.product = true;
    return measure(c, r, true, e);
}

/* ---- decode ---- */

/* Decodes n greedy tokens per sequence, or as many as end within `most` ns (at least two). *done: their number. */
static status steps(bench_case *c, size_t n, int64_t most, size_t *done, int64_t *ns, err *e)
{
    size_t queued = 0, ahead = (size_t)decoder_ahead(c->base->g.dec);
    int64_t t0 = clock_ns();
    for (*done = 0, *ns = 0; *done < queued || (*done < n && (*done < 2 || *ns < most)); ++*done) {
        bool more = *done < 2 || *ns < most;
        for (; more && queued < n && queued <= *done + ahead; queued++)
            TRY(session_queue(c->s, c->batch, queued ? NULL : c->next, NULL, e));
        TRY(session_take(c->base->g.dec, c->batch, c->next, e));
        *ns = clock_ns() - t0;
        TRY(comm_broadcast(c->timing.ranks, ns, sizeof *ns, 0, e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* Rewinds to the context if the strategy can; the steps of one that evicts cost the same without it. Does not rewind
 * with tiers, because the rows of repeated steps would already be in the faster tier. */
static status go_back(void *ctx, err *e)
{
    bench_case *c = ctx;
    (void)e;
    for (size_t i = 0; i < c->batch; i++) {
        c->next[i] = (int32_t)(i % vocab_of(c));
        if (c->spec.tier.kind == KV_DEVICE) (void)session_rewind(c->s[i], (int64_t)c->n_fill, NULL);
    }
    return ST_OK;
}

static status run_steps(void *ctx, int64_t *ns, err *e)
{
    bench_case *c = ctx;
    size_t done;
    return steps(c, c->n_steps, INT64_MAX, &done, ns, e);
}

static int64_t waited_for_files(void *ctx)
{
    const bench_case *c = ctx;
    int64_t ns = 0;
    for (size_t i = 0; i < c->batch; i++) ns += attn_seq_tier(session_attn(c->s[i])).stall_ns;
    return ns;
}

/* Refills the context if a strategy that cannot rewind has used up the planned room. */
static status make_room(bench_case *c, err *e)
{
    for (size_t i = 0; i < c->batch; i++)
        if (session_limit(c->s[i]) - session_length(c->s[i]) < ROOM &&
            session_rewind(c->s[i], (int64_t)c->n_fill, NULL) != ST_OK) {
            for (size_t k = 0; k < c->max_batch; k++) session_reset(c->s[k]);
            return fill_all(c, e);
        }
    return ST_OK;
}

/* Sets the counts of the steps between two states of the counters. */
static void take_counts(const bench_case *c, bench_result *r, const attn_stats *from, const attn_stats *to)
{
    double n = (double)(to->steps - from->steps);
    attn_stats part = {.kv_read = to->kv_read - from->kv_read,
                       .k_read = to->k_read - from->k_read,
                       .index_read = to->index_read - from->index_read,
                       .full_keys = to->full_keys - from->full_keys};
    r->held = attn_seq_held(session_attn(c->s[0]));
    r->peak = attn_seq_peak(session_attn(c->s[0]));
    r->steps = to->steps - from->steps;
    if (n <= 0) return;
    r->attended = (to->attended - from->attended) / n / decoder_attn_shape(c->base->g.dec)->n_layers;
    r->kv_read = part.kv_read / n;
    r->index_read = part.index_read / n;
    r->key_access = attn_key_access(&part);
}

status bench_decode(bench_case *c, size_t batch, bench_result *r, err *e)
{
    int64_t ns;
    *r = (bench_result){.decode = true, .batch = batch};
    c->batch = batch;
    c->timing.prepare = go_back;
    c->timing.run = run_steps;
    c->timing.waited = waited_for_files;
    c->timing.ctx = c;
    c->timing.product = false;
    TRY(make_room(c, e));
    TRY(go_back(c, e));
    TRY(steps(c, BENCH_STEPS, WARM_NS, &c->n_steps, &ns, e));
    int64_t n = SAMPLE_NS * (int64_t)c->n_steps / (ns > 0 ? ns : 1);
    c->n_steps = n < 1 ? 1 : n > BENCH_STEPS ? BENCH_STEPS : (size_t)n;
    r->tokens = (int64_t)(c->n_steps * batch);
    attn_stats from = attn_seq_stats(session_attn(c->s[0]));
    tier_counts moved = attn_seq_tier(session_attn(c->s[0]));
    host_counts host = attn_seq_host(session_attn(c->s[0]));
    TRY(measure(c, r, false, e));
    attn_stats to = attn_seq_stats(session_attn(c->s[0]));
    take_counts(c, r, &from, &to);
    r->moved = tier_counts_since(attn_seq_tier(session_attn(c->s[0])), &moved);
    r->host = host_counts_since(attn_seq_host(session_attn(c->s[0])), &host);
    return ST_OK;
}
