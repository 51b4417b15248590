/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/batch.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/sampler.h"
#include "model/session_file.h"

/* Copy of a run's session, from which the next prompt can continue. */
typedef struct {
    session_file *copy;
    size_t prompt, at; /* prompt that made the copy, and length of its head at that point; at 0: no copy */
} branch;

/* An answer in progress. */
typedef struct {
    sequence q; /* ids: earlier answers, head, tail and new tokens */
    const batch_prompt *p;
    branch *branch;      /* of its run */
    size_t prompt, keep; /* keep: tokens of the head after which to make the branch; 0: none */
    size_t n;            /* number of new tokens */
    int32_t *ids;        /* [most new tokens] */
    int32_t next;
    bool wanted, stopped;
    int64_t time_ns;
    attn_stats before; /* statistics before a prompt that follows other answers */
} seat;

/* Runs whose sessions exist at the same time. */
typedef struct {
    batch_job *job;
    batch_run *all;
    const size_t *run; /* [n]: indices into `all` */
    size_t n;
    seat *seats;      /* [n, jobs] */
    branch *branches; /* [n] */
    bool alone;       /* no memory for branches: every prompt is fed from its start */
    /* Buffers for one prefill or decode step. */
    stepper x;
    sequence **batch;          /* [n or jobs] */
    seat **of;                 /* seats of `batch`, in the same order */
    int32_t *ids;              /* new tokens of all seats */
    double done, unit, weight; /* progress: fraction done, fraction per answer, fraction in progress */
} group;

int64_t batch_limit(const batch_prompt *prompts, size_t n)
{
    size_t most = 0, need = 0;
    for (size_t i = 0; i < n; i++) {
        const batch_prompt *p = &prompts[i];
        need = (p->follows ? need + 1 : 0) + p->n_head + p->n_tail + p->n_new;
        if (need > most) most = need;
    }
    return (int64_t)most;
}

double batch_attended(const attn_stats *s, int n_kv)
{
    return s->steps > 0 ? s->attended / ((double)s->steps * n_kv) : -1;
}

/* Reports progress. Prefill and decode steps each count for half of an answer. */
static bool report(const group *g, double part)
{
    return g->job->progress(g->job->ctx, g->done + part * g->weight);
}

static bool is_stop(const batch_prompt *p, int32_t id)
{
    for (size_t i = 0; i < p->n_stop; i++)
        if (p->stop[i] == id) return true;
    return false;
}

/* Returns the most likely of the ids allowed as first token. */
static int32_t choose_only(const batch_prompt *p, const float *logits)
{
    int32_t best = p->only[0];
    for (size_t i = 1; i < p->n_only; i++)
        if (logits[p->only[i]] > logits[best]) best = p->only[i];
    return best;
}

/* Chooses the next token. The first token of an answer can be restricted to some ids or exclude stop tokens. */
static int32_t choose(seat *t, float *logits, size_t vocab)
{
    const batch_prompt *p = t->p;
    bool first = t->n == 0;
    if (first && p->n_only) return choose_only(p, logits);
    for (size_t i = 0; first && p->not_first && i < p->n_stop; i++)
        if (p->stop[i] >= 0 && (size_t)p->stop[i] < vocab) logits[p->stop[i]] = -INFINITY;
    return sequence_choose(&t->q, logits);
}

/* ---- prefill ---- */

static bool on_chunk(void *ctx, int64_t done, int64_t total)
{
    return report(ctx, (double)done / (double)total);
}

/* Returns the end of the part of the head that begins at `at`. */
static size_t prompt_end(const batch_prompt *p, size_t at)
{
    for (size_t i = 0; i < p->n_breaks; i++)
        if (p->breaks[i] > at) return p->breaks[i];
    return p->n_head;
}

/* Collects in g->of and g->batch seat i and those after it that can share its prompt up to `end`. Returns their
 * number. */
static size_t gather(group *g, seat *const *row, size_t i, size_t n, size_t end)
{
    size_t count = 0, at = row[i]->q.n_fed;
    for (size_t k = i; k < n && count < g->job->max_shared; k++) {
        sequence *q = &row[k]->q;
        bool joins = k == i || (g->job->share && q->n_fed == at && session_can_share(row[i]->q.s, q->s, end - at));
        if (!joins) continue;
        if (q->end != end) sequence_begin(q, end);
        g->of[count] = row[k];
        g->batch[count++] = q;
    }
    return count;
}

/* Makes the branch of a seat that has reached its `keep`. If that fails, the next prompt is fed from its start. */
static status keep_branch(seat *t, err *e)
{
    err why = {0};
    if (t->keep == 0 || t->q.n_fed != t->keep) return ST_OK;
    t->branch->at = 0;
    session_file_close(t->branch->copy);
    status st = session_keep(&t->branch->copy, t->q.s, &(session_notes){0}, &why);
    if (st == ST_DEVICE) return err_set(e, st, "%s", why.msg);
    if (st != ST_OK) return ST_OK;
    t->branch->prompt = t->prompt;
    t->branch->at = t->keep;
    return ST_OK;
}

/* Looks up the first part of a head in the prefix cache. */
static void find_cached(group *g, seat *t)
{
    batch_job *job = g->job;
    const batch_prompt *p = t->p;
    size_t n = p->n_head ? prompt_end(p, 0) : 0;
    if (!job->cache || n == 0 || attn_reuse_of(attn_seq_spec(session_attn(t->q.s))) == ATTN_REUSE_NEVER) return;
    sequence_begin_cached(&t->q, n, p->hint);
    job->prompt_tokens += (int64_t)n;
    job->cached_tokens += (int64_t)t->q.n_fed;
}

/* Prefills the next part of the head of seat i, or a piece of it, also for the seats that can share it. */
static status prefill_next(group *g, seat *const *row, size_t i, size_t n, err *e)
{
    batch_job *job = g->job;
    const batch_prompt *p = row[i]->p;
    size_t at = row[i]->q.n_fed, whole = prompt_end(p, at), count = gather(g, row, i, n, whole);
    size_t end = sequence_piece_end(g->batch, count, 0);
    bool last = end == p->n_head && p->n_tail == 0, keeps = false;
    const prompt_options o = {.logits = last, .progress = on_chunk, .ctx = g, .hint = p->hint};
    for (size_t k = 0; k < count; k++) keeps |= g->batch[k]->hit.keep == end;
    g->weight = (double)count * g->unit / 2 * (double)(end - at) / (double)p->n_head;
    int64_t t0 = clock_ns();
    TRY(sequence_prefill(&g->x, g->batch, count, &o, e));
    int32_t first = last ? choose(row[i], g->x.logits, g->x.vocab) : 0;
    int64_t ns = clock_ns() - t0;
    if (keeps) prefix_cache_settle(job->cache);
    for (size_t k = 0; k < count; k++) {
        seat *t = g->of[k];
        t->time_ns += ns / (int64_t)count;
        t->next = first;
        if (t != row[i] && t->q.by && last) sampler_uniform(t->q.by); /* every session draws the same */
        TRY(keep_branch(t, e));
    }
    g->done += g->weight;
    if (end == whole) job->prefills += (int64_t)count, job->prefills_done++;
    job->saved_ns += ns * (int64_t)(count - 1);
    return ST_OK;
}

/* Prefills the heads of n seats with the same prompt. */
static status prefill_all(group *g, seat *const *row, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        const batch_prompt *p = row[i]->p;
        g->done += g->unit / 2 * (p->n_head ? (double)row[i]->q.n_fed / (double)p->n_head : 1);
    }
    for (size_t i = 0; i < n; i++)
        while (row[i]->q.n_fed < row[i]->p->n_head) TRY(prefill_next(g, row, i, n, e));
    return ST_OK;
}

/* ---- decode ---- */

/* Ends an answer: forgets steps ahead of it, and its last token, which is not fed. */
static status forget_ahead(seat *t, err *e)
{
    TRY(sequence_settle(&t->q, e));
    sequence_truncate(&t->q, t->q.n_fed);
    return ST_OK;
}

/* Sets *feeds if a seat has a token to feed, which is then the next of its sequence. False once its answer is
 * complete. */
static status next_token(const batch_job *job, seat *t, bool *feeds, err *e)
{
    *feeds = false;
    if (!t->wanted || t->n == t->p->n_new || t->stopped) return ST_OK;
    if (t->q.n_fed < t->q.ids.n) { /* tokens of the tail */
        *feeds = true;
        return ST_OK;
    }
    TRY(sequence_accept(&t->q, t->next, e));
    t->stopped = is_stop(t->p, t->next);
    if (t->stopped) return ST_OK;
    t->ids[t->n++] = t->next;
    if (job->ends) TRY(job->ends(job->ctx, t->prompt, t->ids, t->n, &t->stopped, e));
    *feeds = !t->stopped && t->n < t->p->n_new; /* the last token is not fed */
    return ST_OK;
}

/* True if a step of the first n seats of g->of must return logits: before a restricted first token, and for a tail that
 * precedes drafts. */
static bool needs_logits(const group *g, size_t n)
{
    bool needs = false;
    for (size_t k = 0; k < n; k++) {
        const seat *t = g->of[k];
        bool first = t->n == 0 && t->q.n_fed + 1 == t->q.ids.n;
        needs |= (first && (t->p->not_first || t->p->n_only)) || (t->n == 0 && t->q.draft);
    }
    return needs;
}

/* Runs a step of the first n seats of g->of and sets the next token of each. */
static status feed_seats(group *g, size_t n, err *e)
{
    bool look = needs_logits(g, n);
    for (size_t k = 0; k < n; k++) g->batch[k]->most = g->of[k]->p->n_new - g->of[k]->n;
    TRY(look ? sequence_decode(&g->x, g->batch, n, e) : sequence_next(&g->x, g->batch, n, e));
    for (size_t k = 0; k < n; k++) {
        seat *t = g->of[k];
        if (t->q.n_fed < t->q.ids.n) { /* in the tail, discard the choice */
            if (t->q.by) sampler_set_random(t->q.by, t->p->random);
            continue;
        }
        t->next = look ? choose(t, stepper_row(&g->x, k), g->x.vocab) : t->q.next;
    }
    return ST_OK;
}

/* Runs one step of the seats that are not complete; *n is their number. */
static status decode_step(group *g, seat *seats, size_t *n, err *e)
{
    *n = 0;
    for (size_t k = 0; k < g->job->jobs; k++) {
        bool feeds;
        TRY(next_token(g->job, &seats[k], &feeds, e));
        if (!feeds) continue;
        g->of[*n] = &seats[k];
        g->batch[(*n)++] = &seats[k].q;
    }
    if (*n == 0) return ST_OK;
    int64_t t0 = clock_ns();
    TRY(feed_seats(g, *n, e));
    int64_t ns = clock_ns() - t0;
    for (size_t k = 0; k < *n; k++) g->of[k]->time_ns += ns / (int64_t)*n;
    return ST_OK;
}

static void take_larger(size_t *a, size_t b)
{
    if (b > *a) *a = b;
}

static void take_larger_bytes(attn_bytes *a, const attn_bytes *b)
{
    take_larger(&a->kv, b->kv);
    take_larger(&a->index, b->index);
    take_larger(&a->scratch, b->scratch);
}

void batch_add(batch_run *r, const batch_reply *x)
{
    r->stats.steps += x->stats.steps;
    r->stats.attended += x->stats.attended;
    r->stats.visible += x->stats.visible;
    r->stats.kv_read += x->stats.kv_read;
    r->stats.k_read += x->stats.k_read;
    r->stats.index_read += x->stats.index_read;
    r->stats.full_keys += x->stats.full_keys;
    take_larger_bytes(&r->held, &x->held);
    take_larger_bytes(&r->peak, &x->peak);
    r->time_ns += x->time_ns;
}

static bool is_wanted(const batch_job *job, size_t run, size_t prompt)
{
    return prompt < job->n_prompts && !(job->skip && job->skip(job->ctx, run, prompt));
}

static bool is_followed(const batch_job *job, size_t prompt)
{
    return prompt + 1 < job->n_prompts && job->prompts[prompt + 1].follows;
}

/* True if an answer is wanted, or one that follows it. */
static bool is_needed(const batch_job *job, size_t run, size_t prompt)
{
    for (; !is_wanted(job, run, prompt); prompt++)
        if (!is_followed(job, prompt)) return false;
    return true;
}

static attn_stats stats_since(attn_stats now, const attn_stats *from)
{
    now.steps -= from->steps;
    now.attended -= from->attended;
    now.visible -= from->visible;
    now.kv_read -= from->kv_read;
    now.k_read -= from->k_read;
    now.index_read -= from->index_read;
    now.full_keys -= from->full_keys;
    return now;
}

static status report_answer(group *g, size_t i, seat *t, err *e)
{
    const attn_seq *a = session_attn(t->q.s);
    TRY(forget_ahead(t, e));
    if (!is_wanted(g->job, g->run[i], t->prompt)) return ST_OK;
    batch_reply r = {.ids = t->ids,
                     .n = t->n,
                     .stopped = t->stopped,
                     .stats = stats_since(attn_seq_stats(a), &t->before),
                     .held = attn_seq_held(a),
                     .peak = attn_seq_peak(a),
                     .time_ns = t->time_ns,
                     .draft = t->q.draft};
    batch_add(&g->all[g->run[i]], &r);
    return g->job->done(g->job->ctx, g->run[i], t->prompt, &r, e);
}

/* Feeds the prompt that follows a seat's answer in run i of the group. Clears t->wanted if no such prompt is needed. */
static status follow(group *g, size_t i, seat *t, err *e)
{
    const batch_job *job = g->job;
    const bool next = t->wanted && is_followed(job, t->prompt) && is_needed(job, g->run[i], t->prompt + 1);
    const bool cut = !t->stopped;
    sequence *q = &t->q;
    if (!next) {
        t->wanted = false;
        return ST_OK;
    }
    const batch_prompt *p = t->p = &job->prompts[++t->prompt];
    const prompt_options o = {.logits = p->n_tail == 0, .progress = on_chunk, .ctx = g};
    t->n = 0;
    t->stopped = false;
    t->before = attn_seq_stats(session_attn(q->s));
    if (q->by) sampler_set_random(q->by, p->random);
    if (q->draft) drafter_begin(q->draft);
    g->weight = g->unit / 2;
    int64_t t0 = clock_ns();
    if (cut && p->ends >= 0) TRY(sequence_push(q, &p->ends, 1, e));
    TRY(sequence_push(q, p->head, p->n_head, e));
    sequence_begin(q, q->ids.n);
    TRY(sequence_push(q, p->tail, p->n_tail, e));
    TRY(sequence_prefill(&g->x, &q, 1, &o, e));
    if (o.logits) t->next = choose(t, g->x.logits, g->x.vocab);
    t->time_ns = clock_ns() - t0;
    g->done += g->weight;
    g->job->prefills++;
    g->job->prefills_done++;
    return ST_OK;
}

/* Decodes the current prompts of run i of the group and reports their answers. */
static status decode_seats(group *g, size_t i, err *e)
{
    seat *seats = &g->seats[i * g->job->jobs];
    size_t n = 0, wanted = 0, most = 1, step = 0;
    for (size_t k = 0; k < g->job->jobs; k++) {
        wanted += seats[k].wanted;
        if (seats[k].wanted) take_larger(&most, seats[k].p->n_tail + seats[k].p->n_new);
    }
    g->weight = (double)wanted * g->unit / 2;
    if (wanted == 0) return ST_OK;
    for (;;) {
        TRY(decode_step(g, seats, &n, e));
        if (n == 0) break;
        if (!report(g, (double)++step / (double)most)) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    g->done += g->weight;
    for (size_t k = 0; k < g->job->jobs; k++)
        if (seats[k].wanted) TRY(report_answer(g, i, &seats[k], e));
    return report(g, 0) ? ST_OK : err_set(e, ST_INTERRUPTED, "interrupted");
}

/* Decodes the current prompts of run i and all that follow their answers. */
static status decode_run(group *g, size_t i, err *e)
{
    seat *seats = &g->seats[i * g->job->jobs];
    for (bool more = true; more;) {
        TRY(decode_seats(g, i, e));
        more = false;
        for (size_t k = 0; k < g->job->jobs; k++) {
            TRY(follow(g, i, &seats[k], e));
            more |= seats[k].wanted;
        }
    }
    return ST_OK;
}

/* ---- sets of prompts ---- */

/* True if both prompts have the same head with the same breaks. */
static bool same_head(const batch_prompt *a, const batch_prompt *b)
{
    return a->n_head == b->n_head && a->n_breaks == b->n_breaks &&
           (a->n_breaks == 0 || memcmp(a->breaks, b->breaks, a->n_breaks * sizeof *a->breaks) == 0) &&
           (a->n_head == 0 || memcmp(a->head, b->head, a->n_head * sizeof *a->head) == 0);
}

/* Returns the number of leading tokens shared by two heads: up to a break of the second that is also a break or the end
 * of the first, with equal breaks before it. If the heads are equal and the second has a tail, returns the whole
 * head. */
static size_t common_head(const batch_prompt *a, const batch_prompt *b)
{
    size_t common = 0;
    if (b->n_tail > 0 && same_head(a, b)) return b->n_head;
    for (size_t i = 0; i < b->n_breaks && i <= a->n_breaks; i++) {
        size_t end = i < a->n_breaks ? a->breaks[i] : a->n_head;
        if (end != b->breaks[i] || end >= b->n_head) break;
        if (memcmp(a->head + common, b->head + common, (end - common) * sizeof *a->head) != 0) break;
        common = end;
    }
    return common;
}

/* Returns the length of the head after which the next prompt branches off; 0: none. */
static size_t keep_of(const batch_job *job, size_t run, size_t prompt)
{
    bool next = !is_followed(job, prompt) && is_needed(job, run, prompt + 1);
    return next ? common_head(&job->prompts[prompt], &job->prompts[prompt + 1]) : 0;
}

/* Prepares a seat for a prompt of run i of the group: an empty session, a branch of the previous prompt, or a cached
 * prefix. */
static status take_seat(group *g, size_t i, seat *t, size_t prompt, err *e)
{
    const batch_job *job = g->job;
    branch *f = &g->branches[i];
    *t = (seat){.q = t->q, .ids = t->ids, .branch = f, .prompt = prompt};
    sequence_restart(&t->q);
    sequence_truncate(&t->q, 0);
    t->wanted = prompt < job->n_prompts && is_needed(job, g->run[i], prompt);
    if (!t->wanted) return ST_OK;
    t->p = &job->prompts[prompt];
    if (t->q.by) sampler_set_random(t->q.by, t->p->random);
    if (t->q.draft) drafter_begin(t->q.draft);
    TRY(sequence_push(&t->q, t->p->head, t->p->n_head, e));
    TRY(sequence_push(&t->q, t->p->tail, t->p->n_tail, e));
    if (!g->alone) t->keep = keep_of(job, g->run[i], prompt);
    bool continues = f->at > 0 && f->prompt + 1 == prompt && f->at == common_head(&job->prompts[prompt - 1], t->p);
    if (!continues) {
        find_cached(g, t);
        return ST_OK;
    }
    if (t->keep == f->at) f->prompt = prompt;
    TRY(session_load(t->q.s, f->copy, &(session_notes){0}, e));
    t->q.n_fed = f->at;
    return ST_OK;
}

/* Returns the index of the next prompt that does not follow another. */
static size_t next_first(const batch_job *job, size_t prompt)
{
    while (prompt < job->n_prompts && job->prompts[prompt].follows) prompt++;
    return prompt;
}

/* Answers the next `jobs` prompts from *from on, and those that follow them. Advances *from. */
static status run_set(group *g, size_t *from, err *e)
{
    const batch_job *job = g->job;
    seat **row = g->of + (g->n > job->jobs ? g->n : job->jobs);
    size_t any = 0;
    for (size_t k = 0; k < job->jobs; k++) {
        size_t n = 0;
        for (size_t i = 0; i < g->n; i++) {
            seat *t = &g->seats[i * job->jobs + k];
            TRY(take_seat(g, i, t, *from, e));
            if (t->wanted) row[n++] = t;
        }
        *from = next_first(job, *from + 1);
        TRY(prefill_all(g, row, n, e));
        any += n;
    }
    for (size_t i = 0; i < g->n && any > 0; i++) TRY(decode_run(g, i, e));
    return ST_OK;
}

/* ---- groups ---- */

status batch_fit(size_t *fit, const batch_fitting *f, const batch_run *all, const size_t *run, size_t n, err *e)
{
    /* Sessions take memory as they grow, so the available memory is divided in advance. */
    backend *be = decoder_model(f->d)->be;
    size_t have = be->ops->available(be), used = 0;
    const session_size size = {.n_tokens = f->limit, .draft = f->draft};
    TRY(comm_broadcast(be->ranks, &have, sizeof have, 0, e)); /* all ranks must decide alike */
    have -= have / 10;
    for (*fit = 0; *fit < n; ++*fit) {
        memory_plan p;
        TRY(session_plan(&p, decoder_model(f->d), &f->options, &all[run[*fit]].spec, size, e));
        used += (p.kv + p.index) * f->sessions;
        if (*fit == 0) used += p.scratch;
        if (have == 0 || used <= have) continue;
        if (*fit > 0) break;
        if (f->sessions > 1)
            return err_set(e, ST_NOMEM,
                           "out of memory: %zu parallel prompts need %.1f MB, %.1f MB are "
                           "available; use a smaller --jobs",
                           f->sessions, (double)used / 1e6, (double)have / 1e6);
    }
    return ST_OK;
}

static size_t most_new(const batch_job *job)
{
    size_t most = 0;
    for (size_t i = 0; i < job->n_prompts; i++) take_larger(&most, job->prompts[i].n_new);
    return most;
}

static status seat_open(const group *g, seat *t, const attn_spec *spec, err *e)
{
    const batch_job *job = g->job;
    const sequence_options o = {.spec = spec,
                                .size = session_of(job->limit),
                                .sampling = job->sampling,
                                .drafts = job->drafts,
                                .cache = job->cache};
    return sequence_open(&t->q, job->d, &o, e);
}

static status group_open(group *g, err *e)
{
    size_t jobs = g->job->jobs, n_seats = g->n * jobs, widest = g->n > jobs ? g->n : jobs, n_new = most_new(g->job);
    TRY(MEM_NEW(&g->seats, n_seats, e));
    TRY(MEM_NEW(&g->branches, g->n, e));
    TRY(MEM_NEW(&g->batch, widest, e));
    TRY(MEM_NEW(&g->of, widest + g->n, e));
    TRY(stepper_open(&g->x, g->job->d, widest, e));
    TRY(MEM_NEW(&g->ids, n_seats * n_new, e));
    for (size_t i = 0; i < n_seats; i++) {
        g->seats[i].ids = g->ids + i * n_new;
        TRY(seat_open(g, &g->seats[i], &g->all[g->run[i / jobs]].spec, e));
    }
    return ST_OK;
}

static void group_close(group *g)
{
    for (size_t i = 0; g->seats && i < g->n * g->job->jobs; i++) {
        sequence_close(&g->seats[i].q);
    }
    for (size_t i = 0; g->branches && i < g->n; i++) session_file_close(g->branches[i].copy);
    mem_free(g->seats);
    mem_free(g->branches);
    mem_free(g->batch);
    mem_free(g->of);
    stepper_close(&g->x);
    mem_free(g->ids);
}

/* True if any prompt can continue from the previous one. Each run then needs a copy of a session. */
static bool has_branches(const batch_job *job)
{
    bool any = false;
    for (size_t i = 1; i < job->n_prompts && !any; i++) any = common_head(&job->prompts[i - 1], &job->prompts[i]) > 0;
    return any;
}

/* Sets g->n to the number of runs, of n, that fit in memory together, including branches if there is room for them. */
static status fit_group(group *g, size_t n, err *e)
{
    const batch_job *job = g->job;
    drafter *draft = NULL; /* of the first run; those of other runs have the same size */
    if (job->drafts) TRY(drafter_create(&draft, job->drafts, &g->all[g->run[0]].spec, e));
    batch_fitting f = {.d = job->d,
                       .options = {.chunk = job->max_shared, .max_batch = job->jobs},
                       .limit = job->limit,
                       .sessions = job->jobs + 1,
                       .draft = drafter_session(draft, 0).draft};
    err why = {0};
    if (draft) f.options.verify = SESSION_VERIFY_ROWS;
    /* A copy of a session contains no index of drafts. */
    g->alone = draft || !has_branches(job) || batch_fit(&g->n, &f, g->all, g->run, n, &why) != ST_OK;
    f.sessions = job->jobs;
    status st = g->alone ? batch_fit(&g->n, &f, g->all, g->run, n, e) : ST_OK;
    drafter_free(draft);
    return st;
}

/* Lists in `run` the runs with answers that are wanted, and returns their number; *answers: total of such answers. */
static size_t list_wanted(const batch_job *job, size_t n_runs, size_t *run, size_t *answers)
{
    size_t n = 0;
    *answers = 0;
    for (size_t i = 0; i < n_runs; i++) {
        size_t before = *answers;
        for (size_t p = 0; p < job->n_prompts; p++) *answers += is_needed(job, i, p);
        if (*answers > before) run[n++] = i;
    }
    return n;
}

status batch_execute(batch_job *job, batch_run *runs, size_t n_runs, err *e)
{
    size_t *run, answers;
    double done = 0;
    job->prefills = job->prefills_done = job->saved_ns = job->prompt_tokens = job->cached_tokens = 0;
    if (job->jobs > job->n_prompts && job->n_prompts > 0) job->jobs = job->n_prompts;
    TRY(MEM_NEW(&run, n_runs, e));
    size_t n = list_wanted(job, n_runs, run, &answers);
    status st = ST_OK;
    for (size_t from = 0; from < n && st == ST_OK;) {
        group g = {.job = job, .all = runs, .run = run + from, .done = done};
        g.unit = 1 / (double)answers;
        st = fit_group(&g, n - from, e);
        if (st == ST_OK) st = group_open(&g, e);
        for (size_t p = 0; p < job->n_prompts && st == ST_OK;) st = run_set(&g, &p, e);
        group_close(&g);
        done = g.done;
        from += g.n;
    }
    mem_free(run);
    return st;
}
