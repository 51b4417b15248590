/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/sequence.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

/* ---- sequences ---- */

status sequence_open(sequence *q, decoder *d, const sequence_options *o, err *e)
{
    session_size size = o->size;
    status st = ST_OK;
    *q = (sequence){.cache = o->cache, .most = SIZE_MAX};
    if (o->drafts) st = drafter_create(&q->draft, o->drafts, o->spec, e);
    size.draft = drafter_session(q->draft, 0).draft;
    if (st == ST_OK) st = session_create(&q->s, d, o->spec, prefix_cache_size(o->cache, size), e);
    if (st == ST_OK && o->sampling) st = sampler_create(&q->by, o->sampling, (size_t)decoder_model(d)->config.vocab, e);
    if (st != ST_OK) sequence_close(q);
    return st;
}

/* True if the reply's rows are those of the kernel that the strategy names, in which other sequences would compute
 * them. */
static bool same_kernel(const sequence *q)
{
    const attn_seq *s = session_attn(q->s);
    return attn_seq_by_tiles(s) == (attn_seq_spec(s)->decode == ATTN_DECODE_TILES);
}

void sequence_keep(sequence *q)
{
    if (q->s && q->cache && same_kernel(q)) prefix_cache_keep_fed(&q->hit, q->cache, q->s, q->ids.ids, q->n_fed);
}

void sequence_end(sequence *q)
{
    session_free(q->s);
    q->s = NULL;
    prefix_cache_release(&q->hit, q->cache);
}

static void free_restriction(restriction *x)
{
    if (x) grammar_run_free(x->run);
    mem_free(x);
}

void sequence_close(sequence *q)
{
    sequence_end(q);
    sampler_free(q->by);
    free_restriction(q->under);
    drafter_free(q->draft);
    token_list_free(&q->ids);
    *q = (sequence){0};
}

void sequence_restart(sequence *q)
{
    session_reset(q->s);
    prefix_cache_release(&q->hit, q->cache);
    q->hit = (prefix_hit){0};
    q->n_fed = q->start = q->end = 0;
}

status sequence_push(sequence *q, const int32_t *ids, size_t n, err *e)
{
    size_t before = q->ids.n;
    status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) st = token_list_push(&q->ids, ids[i], e);
    if (st != ST_OK) q->ids.n = before;
    else q->reply = q->ids.n;
    return st;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Counts tokens for the penalties. */
static void count_seen(sequence *q)
{
    if (!q->by) return;
    if (q->seen_reply != q->reply) {
        sampler_begin(q->by);
        q->n_seen = least(q->n_seen, q->reply);
        q->seen_reply = q->reply;
    }
    for (; q->n_seen < q->ids.n; q->n_seen++)
        (q->n_seen < q->reply ? sampler_accept : sampler_accept_new)(q->by, q->ids.ids[q->n_seen]);
}

static const uint64_t *allowed(void *ctx)
{
    restriction *x = ctx;
    const int64_t start = clock_ns();
    const uint64_t *mask = grammar_run_mask(x->run);
    x->mask_ns += clock_ns() - start;
    return mask;
}

static void accept(void *ctx, int32_t id)
{
    (void)grammar_run_accept(((restriction *)ctx)->run, id);
}

static void forget(void *ctx, size_t n)
{
    grammar_run_back(((restriction *)ctx)->run, n);
}

static size_t fitting(void *ctx, const int32_t *ids, size_t n)
{
    return grammar_run_allows(((restriction *)ctx)->run, ids, n);
}

status sequence_restrict(sequence *q, const grammar *g, const grammar_vocab *v, err *e)
{
    restriction *x = NULL;
    if (g) {
        TRY(MEM_NEW(&x, 1, e));
        const status st = grammar_run_create(&x->run, g, v, e);
        if (st != ST_OK) mem_free(x);
        if (st != ST_OK) return st;
    }
    free_restriction(q->under);
    q->under = x;
    const sampler_limit limit = {allowed, accept, forget, fitting, x};
    if (q->by) sampler_restrict(q->by, x ? &limit : NULL);
    return ST_OK;
}

int64_t sequence_mask_ns(sequence *q)
{
    const int64_t ns = q->under ? q->under->mask_ns : 0;
    if (ns) q->under->mask_ns = 0;
    return ns;
}

status sequence_accept(sequence *q, int32_t id, err *e)
{
    if (id < 0) return err_set(e, ST_FORMAT, "the grammar of the reply allows no token here");
    count_seen(q);
    TRY(token_list_push(&q->ids, id, e));
    count_seen(q);
    return ST_OK;
}

void sequence_truncate(sequence *q, size_t n)
{
    q->ids.n = n;
    q->n_seen = least(q->n_seen, n);
    q->reply = least(q->reply, n);
}

/* ---- buffers ---- */

status stepper_open(stepper *x, decoder *d, size_t room, err *e)
{
    *x = (stepper){.d = d, .room = room, .vocab = (size_t)decoder_model(d)->config.vocab};
    status st = MEM_NEW(&x->s, room, e);
    if (st == ST_OK) st = MEM_NEW(&x->ids, room, e);
    if (st == ST_OK) st = MEM_NEW(&x->by, room, e);
    if (st == ST_OK) st = mem_alloc((void **)&x->logits, room * x->vocab, sizeof *x->logits, "logits", e);
    if (st != ST_OK) stepper_close(x);
    return st;
}

void stepper_close(stepper *x)
{
    mem_free(x->s);
    mem_free(x->ids);
    mem_free(x->by);
    mem_free(x->logits);
    *x = (stepper){0};
}

float *stepper_row(const stepper *x, size_t i)
{
    return x->logits + i * x->vocab;
}

/* ---- prompts ---- */

void sequence_begin(sequence *q, size_t end)
{
    q->start = q->n_fed;
    q->end = end;
    prefix_cache_release(&q->hit, q->cache);
    q->hit = (prefix_hit){0};
    if (q->n_fed == 0) q->before[0] = 0;
}

void sequence_begin_found(sequence *q, size_t end, const prefix_hit *found)
{
    sequence_begin(q, end);
    q->hit = *found;
    prefix_cache_load(&q->hit, q->cache, q->s);
    q->n_fed = q->hit.n_cached;
    if (q->n_fed < q->start) q->start = 0, q->before[0] = 0;
}

void sequence_begin_cached(sequence *q, size_t end, attn_hint hint)
{
    prefix_hit found;
    if (q->n_fed == 0) q->before[0] = 0;
    const prefix_lookup p = {.spec = attn_seq_spec(session_attn(q->s)),
                             .limit = session_limit(q->s),
                             .ids = q->ids.ids,
                             .from = q->n_fed,
                             .n = end,
                             .before = q->before,
                             .hint = hint};
    prefix_cache_find(&found, q->cache, &p);
    sequence_begin_found(q, end, &found);
}

/* Extends the hash of how the tokens were fed. Rows after a prompt depend on where it began and ended. */
static void note_prompt(sequence *q)
{
    sha256 sum;
    char text[64];
    snprintf(text, sizeof text, "%zu-%zu ", q->start, q->end);
    sha256_init(&sum);
    sha256_add(&sum, q->before, strlen(q->before));
    sha256_add(&sum, text, strlen(text));
    sha256_hex(&sum, q->before);
}

/* Context of the callbacks of a prefill. */
typedef struct {
    stepper *x;
    const prompt_options *o;
    size_t n; /* tokens of the whole prompt */
} prefill_calls;

static void on_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    const prefill_calls *p = ctx;
    size_t vocab = p->x->vocab;
    for (size_t i = 0; i < n; i++) {
        size_t at = (size_t)first + i + 1;
        const float *row = logits + i * vocab;
        if (at == p->n) memcpy(p->x->logits, row, vocab * sizeof *row);
        else if (p->o->row) p->o->row(p->o->ctx, at, row);
    }
}

static bool on_progress(void *ctx, int64_t done, int64_t total)
{
    const prefill_calls *p = ctx;
    return !p->o->progress || p->o->progress(p->o->ctx, done, total);
}

size_t sequence_piece_end(sequence *const *q, size_t n, size_t most)
{
    size_t at = q[0]->n_fed, end = q[0]->end;
    if (most && end - at > most) end = at + most;
    for (size_t i = 0; i < n; i++) {
        size_t keep = q[i]->hit.keep;
        if (keep > at && keep < end) end = keep;
    }
    return end;
}

status sequence_prefill(stepper *x, sequence *const *q, size_t n, const prompt_options *o, err *e)
{
    prefill_calls calls = {x, o, q[0]->end - q[0]->start};
    size_t at = q[0]->n_fed, end = sequence_piece_end(q, n, o->most);
    const prefill_options p = {.which = o->row ? LOGITS_ALL : LOGITS_LAST,
                               .rows = o->logits || o->row ? on_rows : NULL,
                               .progress = on_progress,
                               .ctx = &calls,
                               .before = at - q[0]->start,
                               .after = q[0]->end - end,
                               .hint = o->hint};
    for (size_t i = 0; i < n; i++) x->s[i] = q[i]->s;
    TRY(session_prefill(x->s, n, q[0]->ids.ids + at, end - at, &p, e));
    for (size_t i = 0; i < n; i++) {
        q[i]->n_fed = end;
        if (end == q[i]->hit.keep) prefix_cache_keep(&q[i]->hit, q[i]->cache, q[i]->s);
        if (end == q[i]->end && q[i]->cache) note_prompt(q[i]);
    }
    return ST_OK;
}

/* ---- steps ---- */

/* Returns the most sequences per forward. On a CPU, products with more rows round differently. */
static size_t most_alike(const stepper *x, size_t n)
{
    return decoder_model(x->d)->be->ops->at_once ? n : LINEAR_ALIKE;
}

status sequence_decode(stepper *x, sequence *const *q, size_t n, err *e)
{
    size_t most = most_alike(x, n), parts = (n + most - 1) / most;
    status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        x->s[i] = q[i]->s;
        x->ids[i] = q[i]->ids.ids[q[i]->n_fed];
    }
    for (size_t i = 0; i < parts && (st == ST_OK || st == ST_FORMAT); i++) {
        size_t at = i * n / parts, end = (i + 1) * n / parts;
        status part = session_decode(x->s + at, end - at, x->ids + at, stepper_row(x, at), e);
        for (size_t k = at; k < end && (part == ST_OK || part == ST_FORMAT); k++) q[k]->n_fed++;
        if (part != ST_OK) st = part;
    }
    return st;
}

int32_t sequence_choose(sequence *q, float *logits)
{
    count_seen(q);
    if (q->by) return sampler_next(q->by, logits, (int64_t)q->n_fed);
    return logits_argmax(logits, (size_t)decoder_model(session_decoder(q->s))->config.vocab);
}

/* Queues steps of one sequence as far ahead as the device allows, then takes the oldest. */
static status next_ahead(sequence *q, err *e)
{
    decoder *d = session_decoder(q->s);
    int ahead = q->ahead ? decoder_ahead(d) : 0;
    while (q->queued <= ahead && (size_t)q->queued < q->most &&
           (q->queued == 0 || session_length(q->s) < session_limit(q->s))) {
        TRY(session_queue(&q->s, 1, q->queued ? NULL : &q->ids.ids[q->n_fed], q->by ? &q->by : NULL, e));
        q->queued++;
    }
    status st = session_take(d, 1, &q->next, e);
    q->queued--;
    q->n_fed += st == ST_OK || st == ST_FORMAT;
    return st;
}

/* Runs one step whose tokens the device chooses. */
static status next_queued(stepper *x, sequence *const *q, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        x->s[i] = q[i]->s;
        x->ids[i] = q[i]->ids.ids[q[i]->n_fed];
        x->by[i] = q[i]->by;
    }
    TRY(session_queue(x->s, n, x->ids, x->by, e));
    status st = session_take(x->d, n, x->ids, e);
    for (size_t i = 0; i < n && (st == ST_OK || st == ST_FORMAT); i++) {
        q[i]->next = x->ids[i];
        q[i]->n_fed++;
    }
    return st;
}

/* True if the samplers choose by themselves from n rows of logits at once. */
static bool can_queue(const stepper *x, sequence *const *q, size_t n)
{
    bool can = n <= SESSION_QUEUE_ROWS && n <= most_alike(x, n);
    for (size_t i = 0; i < n; i++) can &= !q[i]->by || sampler_is_plain(q[i]->by);
    return can;
}

bool sequence_on_device(const stepper *x, sequence *const *q, size_t n)
{
    return decoder_model(x->d)->be->ops->queues && can_queue(x, q, n);
}

status sequence_next(stepper *x, sequence *const *q, size_t n, err *e)
{
    if (n == 1 && q[0]->draft) {
        count_seen(q[0]);
        TRY(drafter_next(q[0]->draft, q[0]->s, q[0]->by, &q[0]->ids, q[0]->most, &q[0]->next, e));
        q[0]->n_fed++;
        return ST_OK;
    }
    if (can_queue(x, q, n)) return n == 1 ? next_ahead(q[0], e) : next_queued(x, q, n, e);
    TRY(sequence_decode(x, q, n, e));
    for (size_t i = 0; i < n; i++) q[i]->next = sequence_choose(q[i], stepper_row(x, i));
    return ST_OK;
}

status sequence_settle(sequence *q, err *e)
{
    int32_t unused;
    bool queued = q->queued > 0;
    for (; q->queued > 0; q->queued--) TRY(session_take(session_decoder(q->s), 1, &unused, e));
    if (q->draft) drafter_forget(q->draft);
    if (session_length(q->s) <= (int64_t)q->n_fed) return ST_OK;
    status st = session_rewind(q->s, (int64_t)q->n_fed, queued ? NULL : e);
    return queued ? ST_OK : st;
}
