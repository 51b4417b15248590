/* SPDX-License-Identifier: MIT */
/* Negative log-likelihood of each token of a text, through the decode path or in chunked passes, and the sliding
 * windows of YaRN's evaluation. Source: evals.md 5. */
#ifndef EVAL_PERPLEXITY_H
#define EVAL_PERPLEXITY_H

#include "model/session.h"

typedef struct {
    /* Receives -log p of ids[at] for each session i, in the order of the text. */
    void (*take)(void *ctx, size_t i, size_t at, double nll);
    /* Reports the number of tokens fed so far; false: ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, size_t fed);
    void *ctx;
} perplexity_sink;

/* Feeds ids[from..n-1) token by token to a batch of sessions that already hold ids[0..from). Passes the values of
 * ids[from+1..n) to the sink. logits: room for [n_sessions, vocab]. Errors: those of session_decode. */
status perplexity_decode(session *const *s, size_t n_sessions, const int32_t *ids, size_t from, size_t n, float *logits,
                         const perplexity_sink *sink, err *e);

/* Feeds ids[0..n_fed) as a prompt to empty sessions. Sessions that can share the prompt are computed once. Passes the
 * values of ids[from..to) to the sink; 1 <= from, to <= n_fed + 1. Each pass counts progress from 0 to n_fed. */
status perplexity_pass(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_fed, size_t from, size_t to,
                       const perplexity_sink *sink, err *e);

/* Tokens [begin, end) of a text, of which [from, end) are scored. Initialize to {0}. */
typedef struct {
    size_t begin, end, from;
} perplexity_window;
/* Moves to the next window of at most `room` tokens of a text of n. Windows begin `stride` tokens apart; tokens of
 * earlier windows are not scored again. False: the last window reached the end. */
bool perplexity_next(perplexity_window *w, size_t n, size_t room, size_t stride);

/* Writes the lengths of the points of a curve over n tokens, ascending: powers of two from 128 up to the step, then
 * multiples of the step, then n. The step is at least 128 tokens; there are about 260 points at most. Returns their
 * number; out may be NULL. */
size_t perplexity_lengths(size_t n, int64_t *out);

#endif
