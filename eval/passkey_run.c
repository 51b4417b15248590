/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/passkey_run.h"

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/sampler.h"

/* Strategies whose sessions exist at the same time. */
typedef struct {
    passkey_job *job;
    passkey_run *runs; /* of the group */
    session **all;     /* [n] */
    session **batch;   /* [n] those of one prefill */
    size_t *batch_run; /* [n] their runs */
    bool *filled;      /* [n] */
    int32_t *first;    /* [n] the token after the prompt, where the prefill gives it */
    size_t n;
    float *logits;     /* [vocab] */
    double done, unit; /* progress: part that is done, and part of one run of one trial */
    double weight;     /* of the prefill under way */
    int32_t token;     /* the most likely one after the prefill under way */
} group;

int64_t passkey_limit(const passkey_trial *trials, int64_t n_trials)
{
    size_t most = 0;
    for (int64_t t = 0; t < n_trials; t++)
        if (trials[t].head.n + trials[t].tail.n > most) most = trials[t].head.n + trials[t].tail.n;
    return (int64_t)most + PASSKEY_NEW;
}

static size_t vocab_of(const group *g)
{
    return (size_t)decoder_model(g->job->d)->config.vocab;
}

/* Half of a run's time is counted for its prefill, half for its decode steps. */
static bool report(const group *g, double part)
{
    return g->job->progress(g->job->ctx, g->done + part);
}

static bool on_chunk(void *ctx, int64_t done, int64_t total)
{
    group *g = ctx;
    return report(g, g->weight * (double)done / (double)total);
}

static void on_logits(void *ctx, int64_t first, size_t n, const float *logits)
{
    group *g = ctx;
    (void)first;
    g->token = logits_argmax(logits + (n - 1) * vocab_of(g), vocab_of(g));
}

/* ---- prefill ---- */

/* The batch of run i: it, and those behind it that can share its prompt. */
static size_t gather(group *g, size_t i, size_t n_ids)
{
    size_t n = 0;
    for (size_t k = i; k < g->n && n < g->job->max_together; k++) {
        bool joins = k == i || (g->job->share && !g->filled[k] &&
                                session_can_share(g->all[i], g->all[k], n_ids));
        if (!joins) continue;
        g->filled[k] = true;
        g->batch_run[n] = k;
        g->batch[n++] = g->all[k];
    }
    return n;
}

static status prefill_all(group *g, const passkey_trial *t, err *e)
{
    passkey_job *job = g->job;
    prefill_options o = {.which = LOGITS_LAST, .progress = on_chunk, .ctx = g};
    if (t->tail.n == 0) o.rows = on_logits;
    for (size_t i = 0; i < g->n; i++) g->filled[i] = t->head.n == 0;
    for (size_t i = 0; i < g->n; i++) {
        if (g->filled[i]) continue;
        size_t n = gather(g, i, t->head.n);
        g->weight = (double)n * g->unit / 2;
        int64_t t0 = clock_ns();
        TRY(session_prefill(g->batch, n, t->head.ids, t->head.n, &o, e));
        int64_t ns = clock_ns() - t0;
        for (size_t k = 0; k < n; k++) {
            g->runs[g->batch_run[k]].time_ns += ns / (int64_t)n;
            g->first[g->batch_run[k]] = g->token;
        }
        g->done += g->weight;
        job->prefills += (int64_t)n;
        job->prefills_done++;
        job->saved_ns += ns * (int64_t)(n - 1);
    }
    return ST_OK;
}

/* ---- decode ---- */

static status decode_one(group *g, session *s, int32_t id, int32_t *next, err *e)
{
    TRY(session_decode(&s, 1, &id, g->logits, e));
    *next = logits_argmax(g->logits, vocab_of(g));
    return ST_OK;
}

/* Feeds the tail, then continues greedily; ids [PASSKEY_NEW] without the end token. */
static status answer(group *g, size_t i, const passkey_trial *t, int32_t *ids, size_t *n, err *e)
{
    session *s = g->all[i];
    double steps = (double)(t->tail.n + PASSKEY_NEW - 1), step = 0;
    int32_t next = g->first[i];
    for (size_t k = 0; k < t->tail.n; k++) {
        TRY(decode_one(g, s, t->tail.ids[k], &next, e));
        if (!report(g, g->unit / 2 * (++step / steps)))
            return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    for (*n = 0; !g->job->is_eos(g->job->ctx, next);) {
        ids[(*n)++] = next;
        if (*n == PASSKEY_NEW) break;
        TRY(decode_one(g, s, next, &next, e));
        if (!report(g, g->unit / 2 * (++step / steps)))
            return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

static void take_larger(size_t *a, size_t b)
{
    if (b > *a) *a = b;
}

static void add_counts(passkey_run *r, const attn_seq *a)
{
    attn_stats s = attn_seq_stats(a);
    attn_bytes held = attn_seq_held(a), peak = attn_seq_peak(a);
    r->stats.steps += s.steps;
    r->stats.attended += s.attended;
    r->stats.visible += s.visible;
    r->stats.kv_read += s.kv_read;
    r->stats.k_read += s.k_read;
    r->stats.index_read += s.index_read;
    r->stats.full_keys += s.full_keys;
    take_larger(&r->held.kv, held.kv);
    take_larger(&r->held.index, held.index);
    take_larger(&r->held.scratch, held.scratch);
    take_larger(&r->peak.kv, peak.kv);
    take_larger(&r->peak.index, peak.index);
    take_larger(&r->peak.scratch, peak.scratch);
}

static status run_trial(group *g, size_t first_run, int64_t trial, err *e)
{
    const passkey_trial *t = &g->job->trials[trial];
    int32_t ids[PASSKEY_NEW];
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) session_reset(g->all[i]);
    TRY(prefill_all(g, t, e));
    for (size_t i = 0; i < g->n; i++) {
        passkey_run *r = &g->runs[i];
        bool correct = false;
        int64_t t0 = clock_ns();
        TRY(answer(g, i, t, ids, &n, e));
        r->time_ns += clock_ns() - t0;
        g->done += g->unit / 2;
        TRY(g->job->score(g->job->ctx, &correct, first_run + i, trial, ids, n, e));
        r->correct += correct;
        add_counts(r, session_attn(g->all[i]));
    }
    return ST_OK;
}

/* ---- groups ---- */

/* How many of the runs fit in memory together; at least one, which session_create then judges. */
static status group_size(const passkey_job *job, const passkey_run *runs, size_t n_runs, size_t *n,
                         err *e)
{
    /* Memory is touched as sessions grow: what is available must be divided now. */
    size_t have = mem_available(), used = 0;
    decoder_options one = {.chunk = job->max_together};
    have -= have / 10;
    for (*n = 0; *n < n_runs; ++*n) {
        memory_plan p;
        TRY(session_plan(&p, decoder_model(job->d), &one, &runs[*n].spec, job->limit, e));
        used += p.kv + p.index;
        if (*n == 0) used += p.scratch;
        if (*n > 0 && have > 0 && used > have) break;
    }
    return ST_OK;
}

static status group_open(group *g, err *e)
{
    TRY(MEM_NEW(&g->all, g->n, e));
    TRY(MEM_NEW(&g->batch, g->n, e));
    TRY(MEM_NEW(&g->batch_run, g->n, e));
    TRY(MEM_NEW(&g->filled, g->n, e));
    TRY(MEM_NEW(&g->first, g->n, e));
    TRY(MEM_NEW(&g->logits, vocab_of(g), e));
    for (size_t i = 0; i < g->n; i++)
        TRY(session_create(&g->all[i], g->job->d, &g->runs[i].spec, g->job->limit, e));
    return ST_OK;
}

static void group_close(group *g)
{
    for (size_t i = 0; g->all && i < g->n; i++) session_free(g->all[i]);
    mem_free(g->all);
    mem_free(g->batch);
    mem_free(g->batch_run);
    mem_free(g->filled);
    mem_free(g->first);
    mem_free(g->logits);
}

status passkey_execute(passkey_job *job, passkey_run *runs, size_t n_runs, err *e)
{
    status st = ST_OK;
    job->prefills = job->prefills_done = job->saved_ns = 0;
    for (size_t from = 0; from < n_runs && st == ST_OK;) {
        group g = {.job = job, .runs = runs + from};
        g.unit = 1 / ((double)n_runs * (double)job->n_trials);
        g.done = (double)from / (double)n_runs;
        TRY(group_size(job, runs + from, n_runs - from, &g.n, e));
        st = group_open(&g, e);
        for (int64_t t = 0; t < job->n_trials && st == ST_OK; t++) st = run_trial(&g, from, t, e);
        group_close(&g);
        from += g.n;
    }
    return st;
}
