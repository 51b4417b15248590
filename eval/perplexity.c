/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/perplexity.h"

#include "kernels/base/mem.h"

enum { FIRST_LENGTH = 128, MAX_STEPS = 256 };

static size_t vocab_of(const session *s)
{
    return (size_t)decoder_model(session_decoder(s))->config.vocab;
}

status perplexity_decode(session *const *s, size_t n_sessions, const int32_t *ids, size_t from, size_t n, float *logits,
                         const perplexity_sink *sink, err *e)
{
    size_t vocab = vocab_of(s[0]);
    int32_t *feed;
    TRY(MEM_NEW(&feed, n_sessions, e));
    status st = ST_OK;
    for (size_t t = from; t + 1 < n && st == ST_OK; t++) {
        for (size_t k = 0; k < n_sessions; k++) feed[k] = ids[t];
        st = session_decode(s, n_sessions, feed, logits, e);
        for (size_t k = 0; k < n_sessions && st == ST_OK; k++)
            sink->take(sink->ctx, k, t + 1, logits_nll(logits + k * vocab, vocab, ids[t + 1]));
        if (st == ST_OK && sink->progress && !sink->progress(sink->ctx, t + 1))
            st = err_set(e, ST_INTERRUPTED, "interrupted");
    }
    mem_free(feed);
    return st;
}

/* ---- chunked passes ---- */

typedef struct {
    const perplexity_sink *sink;
    const int32_t *ids;
    size_t to, vocab;
    session **batch;      /* sessions of the current pass, */
    size_t *index, count; /* their indices, and their number */
} pass;

static void on_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    pass *p = ctx;
    for (size_t i = 0; i < n; i++) {
        size_t at = (size_t)first + i + 1;
        if (at >= p->to) return;
        double nll = logits_nll(logits + i * p->vocab, p->vocab, p->ids[at]);
        for (size_t k = 0; k < p->count; k++) p->sink->take(p->sink->ctx, p->index[k], at, nll);
    }
}

static bool on_chunk(void *ctx, int64_t done, int64_t total)
{
    const pass *p = ctx;
    (void)total;
    return !p->sink->progress || p->sink->progress(p->sink->ctx, (size_t)done);
}

/* Collects session i and all later ones that can share its prompt, and marks them in `fed`. */
static void gather(pass *p, session *const *s, size_t i, size_t n, size_t n_fed, bool *fed)
{
    p->count = 0;
    for (size_t k = i; k < n; k++) {
        if (fed[k] || (k != i && !session_can_share(s[i], s[k], n_fed))) continue;
        fed[k] = true;
        p->index[p->count] = k;
        p->batch[p->count++] = s[k];
    }
}

status perplexity_pass(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_fed, size_t from, size_t to,
                       const perplexity_sink *sink, err *e)
{
    pass p = {.sink = sink, .ids = ids, .to = to, .vocab = vocab_of(s[0])};
    prefill_options o = {.which = LOGITS_ALL, .from = from - 1, .rows = on_rows, .progress = on_chunk, .ctx = &p};
    bool *fed = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&p.batch, n_sessions, e));
    TRY_GOTO(MEM_NEW(&p.index, n_sessions, e));
    TRY_GOTO(MEM_NEW(&fed, n_sessions, e));
    for (size_t i = 0; i < n_sessions; i++) {
        if (fed[i]) continue;
        gather(&p, s, i, n_sessions, n_fed, fed);
        TRY_GOTO(session_prefill(p.batch, p.count, ids, n_fed, &o, e));
    }
done:
    mem_free(p.batch);
    mem_free(p.index);
    mem_free(fed);
    return st;
}

/* ---- cutting ---- */

bool perplexity_next(perplexity_window *w, size_t n, size_t room, size_t stride)
{
    if (w->end >= n) return false;
    bool first = w->end == 0;
    w->begin = first ? 0 : w->begin + stride;
    w->from = w->end;
    w->end = n - w->begin < room ? n : w->begin + room;
    return true;
}

size_t perplexity_lengths(size_t n, int64_t *out)
{
    size_t step = FIRST_LENGTH, count = 0;
    while (n / step > MAX_STEPS) step *= 2;
    for (size_t at = FIRST_LENGTH; at < n; at += at < step ? at : step, count++)
        if (out) out[count] = (int64_t)at;
    if (out) out[count] = (int64_t)n;
    return count + 1;
}
