/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/batch.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/sampler.h"
#include "model/session_copy.h"

/* A run's session where the next prompt will go on from it. */
typedef struct {
    session_copy *copy;
    size_t prompt, at; /* made by this prompt behind so many tokens of its head; 0: there is none */
} branch;

/* One answer under way. */
typedef struct {
    session *s;
    sampler *by;    /* NULL: the most likely tokens */
    drafter *draft; /* NULL: step by step */
    token_list all; /* with a draft: what was fed, and the token that is to be */
    const together_prompt *p;
    branch *branch;          /* of its run */
    size_t prompt, at, keep; /* tokens of the head that are fed; where the branch is made, 0: nowhere */
    size_t fed, n;           /* tokens of the tail; new ones */
    int32_t *ids;            /* [most new tokens] */
    int32_t next;
    bool wanted, stopped;
    int64_t time_ns;
    attn_stats before; /* of the answers that its prompt follows */
    reuse_known known; /* of its head's first prompt */
} seat;

/* Runs whose sessions exist at the same time. */
typedef struct {
    together_job *job;
    together_run *all;
    const size_t *run; /* [n] which of them */
    size_t n;
    seat *seats;      /* [n, jobs] */
    branch *branches; /* [n] */
    bool alone;       /* memory has no room for them: every prompt is fed from its start */
    /* For one prefill or decode step: */
    session **batch;           /* [n or jobs] */
    seat **of;                 /* their seats */
    int32_t *feed;             /* [jobs] */
    float *logits;             /* [jobs, vocab] */
    int32_t *ids;              /* of all seats */
    double done, unit, weight; /* progress: part done, of one answer, of what is under way */
    sampler **by;              /* [jobs] of the seats of a decode step */
    const seat *filling;       /* the first seat of the prefill under way */
    int32_t first;             /* the token after its prompt */
} group;

int64_t together_limit(const together_prompt *prompts, size_t n)
{
    size_t most = 0, need = 0;
    for (size_t i = 0; i < n; i++) {
        const together_prompt *p = &prompts[i];
        need = (p->follows ? need + 1 : 0) + p->n_head + p->n_tail + p->n_new;
        if (need > most) most = need;
    }
    return (int64_t)most;
}

double together_attended(const attn_stats *s, int n_layers)
{
    return s->steps > 0 ? s->attended / ((double)s->steps * n_layers) : -1;
}

static size_t vocab_of(const group *g)
{
    return (size_t)decoder_model(g->job->d)->config.vocab;
}

/* Half of an answer's time is counted for its prefill, half for its decode steps. */
static bool report(const group *g, double part)
{
    return g->job->progress(g->job->ctx, g->done + part * g->weight);
}

static bool is_stop(const together_prompt *p, int32_t id)
{
    for (size_t i = 0; i < p->n_stop; i++)
        if (p->stop[i] == id) return true;
    return false;
}

/* The best of those ids that the first token may be. */
static int32_t choose_only(const together_prompt *p, const float *logits)
{
    int32_t best = p->only[0];
    for (size_t i = 1; i < p->n_only; i++)
        if (logits[p->only[i]] > logits[best]) best = p->only[i];
    return best;
}

/* The next token; the first one of an answer may have to be no stop, or one of a few. */
static int32_t choose(const seat *t, float *logits, size_t vocab)
{
    const together_prompt *p = t->p;
    bool first = t->n == 0;
    if (first && p->n_only) return choose_only(p, logits);
    for (size_t i = 0; first && p->not_first && i < p->n_stop; i++)
        if (p->stop[i] >= 0 && (size_t)p->stop[i] < vocab) logits[p->stop[i]] = -INFINITY;
    return t->by ? sampler_next(t->by, logits, session_length(t->s)) : logits_argmax(logits, vocab);
}

/* ---- prefill ---- */

static bool on_chunk(void *ctx, int64_t done, int64_t total)
{
    return report(ctx, (double)done / (double)total);
}

static void on_logits(void *ctx, int64_t first, size_t n, const float *logits)
{
    group *g = ctx;
    (void)first;
    memcpy(g->logits, logits + (n - 1) * vocab_of(g), vocab_of(g) * sizeof *logits);
    g->first = choose(g->filling, g->logits, vocab_of(g));
}

/* The end of the prompt in the head that begins at `at`. */
static size_t prompt_end(const together_prompt *p, size_t at)
{
    for (size_t i = 0; i < p->n_breaks; i++)
        if (p->breaks[i] > at) return p->breaks[i];
    return p->n_head;
}

/* Where it begins. */
static size_t prompt_start(const together_prompt *p, size_t at)
{
    size_t start = 0;
    for (size_t i = 0; i < p->n_breaks && p->breaks[i] <= at; i++) start = p->breaks[i];
    return start;
}

/* The batch of seat i of n: it, and those behind it that can share its prompt up to `end`. */
static size_t gather(group *g, seat *const *row, size_t i, size_t n, size_t end)
{
    size_t count = 0, at = row[i]->at;
    for (size_t k = i; k < n && count < g->job->max_together; k++) {
        bool joins = k == i || (g->job->share && row[k]->at == at && session_can_share(row[i]->s, row[k]->s, end - at));
        if (!joins) continue;
        g->of[count] = row[k];
        g->batch[count++] = row[k]->s;
    }
    return count;
}

/* Makes the branch of a seat that has come to its place. Without one the next prompt is fed from its start. */
static status keep_branch(const seat *t, err *e)
{
    err why = {0};
    if (t->keep == 0 || t->at != t->keep) return ST_OK;
    t->branch->at = 0;
    status st = session_copy_take(&t->branch->copy, t->s, &why);
    if (st == ST_UNSUPPORTED) return ST_OK;
    if (st != ST_OK) return err_set(e, st, "%s", why.msg);
    t->branch->prompt = t->prompt;
    t->branch->at = t->at;
    return ST_OK;
}

/* What the store has of the first prompt of a head. */
static void find_known(group *g, seat *t)
{
    together_job *job = g->job;
    const together_prompt *p = t->p;
    size_t n = p->n_head ? prompt_end(p, 0) : 0;
    if (!job->reuse || n == 0 || attn_reuse_of(attn_seq_spec(session_attn(t->s))) == ATTN_REUSE_NEVER) return;
    reuse_find(&t->known, job->reuse, t->s, &(reuse_prompt){.ids = p->head, .n = n, .before = "", .hint = p->hint});
    t->at = t->known.known;
    job->prompt_tokens += (int64_t)n;
    job->known_tokens += (int64_t)t->at;
}

/* How far the batch of `count` goes in one prefill: to `end`, or to where a prompt is kept. */
static size_t piece_end(const group *g, size_t count, size_t end)
{
    for (size_t k = 0; k < count; k++) {
        size_t keep = g->of[k]->known.keep;
        if (keep > g->of[k]->at && keep < end) end = keep;
    }
    return end;
}

static void keep_known(const group *g, seat *t)
{
    if (t->known.keep == 0 || t->at != t->known.keep) return;
    reuse_keep(&t->known, g->job->reuse, t->s);
    reuse_settle(g->job->reuse);
}

/* The next prompt, or a piece of it, in the head of seat i of n, and of those that share it. */
static status prefill_next(group *g, seat *const *row, size_t i, size_t n, err *e)
{
    together_job *job = g->job;
    const together_prompt *p = row[i]->p;
    prefill_options o = {.which = LOGITS_LAST, .progress = on_chunk, .ctx = g, .hint = p->hint};
    size_t at = row[i]->at, whole = prompt_end(p, at), count = gather(g, row, i, n, whole);
    size_t end = piece_end(g, count, whole);
    o.before = at - prompt_start(p, at);
    o.after = whole - end;
    if (end == p->n_head && p->n_tail == 0) o.rows = on_logits;
    g->filling = row[i];
    g->weight = (double)count * g->unit / 2 * (double)(end - at) / (double)p->n_head;
    int64_t t0 = clock_ns();
    TRY(session_prefill(g->batch, count, p->head + at, end - at, &o, e));
    int64_t ns = clock_ns() - t0;
    for (size_t k = 0; k < count; k++) {
        seat *t = g->of[k];
        t->time_ns += ns / (int64_t)count;
        t->next = g->first;
        if (t != row[i] && t->by && o.rows) sampler_share(t->by); /* it drew the same */
        t->at = end;
        keep_known(g, t);
        TRY(keep_branch(t, e));
    }
    g->done += g->weight;
    if (end == whole) job->prefills += (int64_t)count, job->prefills_done++;
    job->saved_ns += ns * (int64_t)(count - 1);
    return ST_OK;
}

/* The heads of n seats, which have the same prompt. */
static status prefill_all(group *g, seat *const *row, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        const together_prompt *p = row[i]->p;
        g->done += g->unit / 2 * (p->n_head ? (double)row[i]->at / (double)p->n_head : 1);
    }
    for (size_t i = 0; i < n; i++)
        while (row[i]->at < row[i]->p->n_head) TRY(prefill_next(g, row, i, n, e));
    return ST_OK;
}

/* ---- decode ---- */

/* What a seat's session is fed, for its drafts. */
static status note(seat *t, const int32_t *ids, size_t n, err *e)
{
    for (size_t i = 0; t->draft && i < n; i++) TRY(token_list_push(&t->all, ids[i], e));
    return ST_OK;
}

/* The end of an answer: what was verified ahead of it goes. Its last token is not fed. */
static status forget_ahead(seat *t, err *e)
{
    if (!t->draft || t->all.n == 0) return ST_OK;
    TRY(drafter_drop(t->draft, t->s, &t->all, e));
    t->all.n--;
    return ST_OK;
}

/* The token that a seat feeds next; none when its answer is complete. */
static status next_token(const together_job *job, seat *t, int32_t *id, bool *feeds, err *e)
{
    *feeds = false;
    if (!t->wanted) return ST_OK;
    if (t->fed < t->p->n_tail) {
        *id = t->p->tail[t->fed++];
        *feeds = true;
        return note(t, id, 1, e);
    }
    if (t->n == t->p->n_new || t->stopped) return ST_OK;
    TRY(note(t, &t->next, 1, e));
    t->stopped = is_stop(t->p, t->next);
    if (t->stopped) return ST_OK;
    *id = t->ids[t->n++] = t->next;
    if (job->ends) TRY(job->ends(job->ctx, t->prompt, t->ids, t->n, &t->stopped, e));
    *feeds = !t->stopped && t->n < t->p->n_new; /* the last one is not fed */
    return ST_OK;
}

/* Whether the choice behind a step of the first n seats of g->of needs logits: a first token that may not be any. */
static bool needs_logits(const group *g, size_t n)
{
    bool needs = n > SESSION_QUEUE_ROWS;
    for (size_t k = 0; k < n; k++) {
        const seat *t = g->of[k];
        needs |= t->fed == t->p->n_tail && t->n == 0 && (t->p->not_first || t->p->n_only);
    }
    return needs;
}

/* A step of the first n seats of g->of; what each is to feed next. */
static status feed_seats(group *g, size_t n, err *e)
{
    bool look = needs_logits(g, n);
    seat *one = g->of[0];
    if (one->draft && one->n > 0)
        return drafter_next(one->draft, one->s, one->by, &one->all, one->p->n_new - one->n, &one->next, e);
    if (look) {
        TRY(session_decode(g->batch, n, g->feed, g->logits, e));
    } else {
        for (size_t k = 0; k < n; k++) g->by[k] = g->of[k]->by;
        TRY(session_queue(g->batch, n, g->feed, g->job->sampling ? g->by : NULL, e));
        TRY(session_take(session_decoder(g->batch[0]), n, g->feed, e));
    }
    for (size_t k = 0; k < n; k++) {
        seat *t = g->of[k];
        if (t->fed < t->p->n_tail) {
            if (t->by) sampler_set_random(t->by, t->p->random); /* nothing was chosen yet */
            continue;
        }
        t->next = look ? choose(t, g->logits + k * vocab_of(g), vocab_of(g)) : g->feed[k];
    }
    return ST_OK;
}

/* One step of those seats that are not complete; how many there were. */
static status decode_step(group *g, seat *seats, size_t *n, err *e)
{
    *n = 0;
    for (size_t k = 0; k < g->job->jobs; k++) {
        bool feeds;
        TRY(next_token(g->job, &seats[k], &g->feed[*n], &feeds, e));
        if (!feeds) continue;
        g->of[*n] = &seats[k];
        g->batch[(*n)++] = seats[k].s;
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

void together_add(together_run *r, const together_reply *x)
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

static bool is_wanted(const together_job *job, size_t run, size_t prompt)
{
    return prompt < job->n_prompts && !(job->skip && job->skip(job->ctx, run, prompt));
}

static bool is_followed(const together_job *job, size_t prompt)
{
    return prompt + 1 < job->n_prompts && job->prompts[prompt + 1].follows;
}

/* Wanted by itself, or for one that follows. */
static bool is_needed(const together_job *job, size_t run, size_t prompt)
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

static status hand_over(group *g, size_t i, seat *t, err *e)
{
    const attn_seq *a = session_attn(t->s);
    TRY(forget_ahead(t, e));
    if (!is_wanted(g->job, g->run[i], t->prompt)) return ST_OK;
    together_reply r = {.ids = t->ids,
                        .n = t->n,
                        .stopped = t->stopped,
                        .stats = stats_since(attn_seq_stats(a), &t->before),
                        .held = attn_seq_held(a),
                        .peak = attn_seq_peak(a),
                        .time_ns = t->time_ns,
                        .draft = t->draft};
    together_add(&g->all[g->run[i]], &r);
    return g->job->done(g->job->ctx, g->run[i], t->prompt, &r, e);
}

/* Feeds the prompt that follows the answer of a seat of run i of the group; there may be none that is needed. */
static status follow(group *g, size_t i, seat *t, err *e)
{
    const together_job *job = g->job;
    const bool next = t->wanted && is_followed(job, t->prompt) && is_needed(job, g->run[i], t->prompt + 1);
    const bool cut = !t->stopped;
    int32_t *ids;
    if (!next) {
        t->wanted = false;
        return ST_OK;
    }
    const together_prompt *p = t->p = &job->prompts[++t->prompt];
    size_t ends = cut && p->ends >= 0;
    prefill_options o = {.which = LOGITS_LAST, .progress = on_chunk, .ctx = g};
    t->fed = t->n = 0;
    t->stopped = false;
    t->before = attn_seq_stats(session_attn(t->s));
    if (t->by) sampler_set_random(t->by, p->random);
    if (p->n_tail == 0) o.rows = on_logits;
    g->filling = t;
    g->weight = g->unit / 2;
    TRY(MEM_NEW(&ids, ends + p->n_head, e));
    if (ends) ids[0] = p->ends;
    memcpy(ids + ends, p->head, p->n_head * sizeof *ids);
    if (t->draft) drafter_begin(t->draft);
    int64_t t0 = clock_ns();
    status st = note(t, ids, ends + p->n_head, e);
    if (st == ST_OK) st = session_prefill(&t->s, 1, ids, ends + p->n_head, &o, e);
    mem_free(ids);
    t->time_ns = clock_ns() - t0;
    t->next = g->first;
    g->done += g->weight;
    g->job->prefills++;
    g->job->prefills_done++;
    return st;
}

/* Run i of the group over the prompts that are side by side. */
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
        if (seats[k].wanted) TRY(hand_over(g, i, &seats[k], e));
    return report(g, 0) ? ST_OK : err_set(e, ST_INTERRUPTED, "interrupted");
}

/* And over those that follow their answers. */
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

/* Whether both have the same head, with the same breaks. */
static bool same_head(const together_prompt *a, const together_prompt *b)
{
    return a->n_head == b->n_head && a->n_breaks == b->n_breaks &&
           (a->n_breaks == 0 || memcmp(a->breaks, b->breaks, a->n_breaks * sizeof *a->breaks) == 0) &&
           (a->n_head == 0 || memcmp(a->head, b->head, a->n_head * sizeof *a->head) == 0);
}

/* Tokens that the heads of two prompts have in common, up to a break of the second which the first has too, or ends
 * at; with the same breaks before. All of a head that they share, if the second has a tail to go on with. */
static size_t common_head(const together_prompt *a, const together_prompt *b)
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

/* Where the next prompt goes on from this one's session. */
static size_t keep_of(const together_job *job, size_t run, size_t prompt)
{
    bool next = !is_followed(job, prompt) && is_needed(job, run, prompt + 1);
    return next ? common_head(&job->prompts[prompt], &job->prompts[prompt + 1]) : 0;
}

/* A seat for a prompt of run i of the group: empty, or where the prompt before it was. */
static status take_seat(group *g, size_t i, seat *t, size_t prompt, err *e)
{
    const together_job *job = g->job;
    branch *f = &g->branches[i];
    reuse_let_go(&t->known, job->reuse);
    *t = (seat){.s = t->s, .by = t->by, .draft = t->draft, .all = t->all, .ids = t->ids, .branch = f, .prompt = prompt};
    t->all.n = 0;
    t->wanted = prompt < job->n_prompts && is_needed(job, g->run[i], prompt);
    if (!t->wanted) return ST_OK;
    t->p = &job->prompts[prompt];
    if (t->by) sampler_set_random(t->by, t->p->random);
    if (t->draft) drafter_begin(t->draft);
    TRY(note(t, t->p->head, t->p->n_head, e));
    if (!g->alone) t->keep = keep_of(job, g->run[i], prompt);
    bool goes_on = f->at > 0 && f->prompt + 1 == prompt && f->at == common_head(&job->prompts[prompt - 1], t->p);
    if (!goes_on) {
        session_reset(t->s);
        find_known(g, t);
        return ST_OK;
    }
    t->at = f->at;
    if (t->keep == t->at) f->prompt = prompt;
    return session_copy_give(t->s, f->copy, e);
}

/* The next prompt that follows none. */
static size_t next_first(const together_job *job, size_t prompt)
{
    while (prompt < job->n_prompts && job->prompts[prompt].follows) prompt++;
    return prompt;
}

/* Prompts from *from on, as many as go side by side, and those that follow them; *from: the next one. */
static status run_set(group *g, size_t *from, err *e)
{
    const together_job *job = g->job;
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

status together_fit(size_t *fit, const together_fitting *f, const together_run *all, const size_t *run, size_t n,
                    err *e)
{
    /* Memory is touched as sessions grow: what is available must be divided now. */
    backend *be = decoder_model(f->d)->be;
    size_t have = be->ops->available(be), used = 0;
    const session_size size = {.n_tokens = f->limit, .draft = f->draft};
    TRY(comm_broadcast(be->ranks, &have, sizeof have, 0, e)); /* all must come to the same */
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
                           "out of memory: %zu prompts side by side take %.1f MB, %.1f MB are "
                           "available: a smaller --jobs",
                           f->sessions, (double)used / 1e6, (double)have / 1e6);
    }
    return ST_OK;
}

static size_t most_new(const together_job *job)
{
    size_t most = 0;
    for (size_t i = 0; i < job->n_prompts; i++) take_larger(&most, job->prompts[i].n_new);
    return most;
}

static status seat_open(const group *g, seat *t, const attn_spec *spec, err *e)
{
    const together_job *job = g->job;
    if (job->drafts) TRY(drafter_create(&t->draft, job->drafts, spec, e));
    TRY(session_create(&t->s, job->d, spec, reuse_size(job->reuse, drafter_session(t->draft, job->limit)), e));
    return job->sampling ? sampler_create(&t->by, job->sampling, vocab_of(g), e) : ST_OK;
}

static status group_open(group *g, err *e)
{
    size_t jobs = g->job->jobs, n_seats = g->n * jobs, widest = g->n > jobs ? g->n : jobs, n_new = most_new(g->job);
    TRY(MEM_NEW(&g->seats, n_seats, e));
    TRY(MEM_NEW(&g->branches, g->n, e));
    TRY(MEM_NEW(&g->batch, widest, e));
    TRY(MEM_NEW(&g->of, widest + g->n, e));
    TRY(MEM_NEW(&g->feed, jobs, e));
    TRY(MEM_NEW(&g->by, jobs, e));
    TRY(MEM_NEW(&g->logits, jobs * vocab_of(g), e));
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
        session_free(g->seats[i].s);
        reuse_let_go(&g->seats[i].known, g->job->reuse);
        sampler_free(g->seats[i].by);
        drafter_free(g->seats[i].draft);
        token_list_free(&g->seats[i].all);
    }
    for (size_t i = 0; g->branches && i < g->n; i++) session_copy_free(g->branches[i].copy);
    mem_free(g->seats);
    mem_free(g->branches);
    mem_free(g->batch);
    mem_free(g->of);
    mem_free(g->feed);
    mem_free(g->by);
    mem_free(g->logits);
    mem_free(g->ids);
}

/* Whether a prompt goes on where the one before it was: then each run has a copy of a session too. */
static bool has_branches(const together_job *job)
{
    bool any = false;
    for (size_t i = 1; i < job->n_prompts && !any; i++) any = common_head(&job->prompts[i - 1], &job->prompts[i]) > 0;
    return any;
}

/* How many of n runs exist at the same time; with their branches, where there is memory for those. */
static status fit_group(group *g, size_t n, err *e)
{
    const together_job *job = g->job;
    drafter *draft = NULL; /* of the first run, as large as those of others */
    if (job->drafts) TRY(drafter_create(&draft, job->drafts, &g->all[g->run[0]].spec, e));
    together_fitting f = {.d = job->d,
                          .options = {.chunk = job->max_together, .max_batch = job->jobs},
                          .limit = job->limit,
                          .sessions = job->jobs + 1,
                          .draft = drafter_session(draft, 0).draft};
    err why = {0};
    if (draft) f.options.verify = SESSION_VERIFY_ROWS;
    /* A copy of a session has no index of drafts. */
    g->alone = draft || !has_branches(job) || together_fit(&g->n, &f, g->all, g->run, n, &why) != ST_OK;
    f.sessions = job->jobs;
    status st = g->alone ? together_fit(&g->n, &f, g->all, g->run, n, e) : ST_OK;
    drafter_free(draft);
    return st;
}

/* Runs with an answer that is wanted, into `run`; and the number of such answers. */
static size_t list_wanted(const together_job *job, size_t n_runs, size_t *run, size_t *answers)
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

status together_execute(together_job *job, together_run *runs, size_t n_runs, err *e)
{
    size_t *run, answers;
    double done = 0;
    job->prefills = job->prefills_done = job->saved_ns = job->prompt_tokens = job->known_tokens = 0;
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
