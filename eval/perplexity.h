/* SPDX-License-Identifier: MIT */
/* How well strategies predict a text: -log p of each token, through the decode path or in chunked passes, and the
 * windows in which YaRN's evaluation cuts a text. Source: evals.md 5. */
#ifndef EVAL_PERPLEXITY_H
#define EVAL_PERPLEXITY_H

#include "model/session.h"

typedef struct {
    /* Gets the value of ids[at] for session i, for each of them, in the order of the text. */
    void (*take)(void *ctx, size_t i, size_t at, double nll);
    /* Tokens fed so far; false: ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, size_t fed);
    void *ctx;
} perplexity_sink;

/* Feeds ids[from..n-1) token by token to sessions side by side, which were fed ids[0..from), and takes the values of
 * ids[from+1..n). logits: room for [n_sessions, vocab]. Errors: those of session_decode. */
status perplexity_decode(session *const *s, size_t n_sessions, const int32_t *ids, size_t from, size_t n, float *logits,
                         const perplexity_sink *sink, err *e);

/* Feeds ids[0..n_fed) as a prompt to empty sessions, once for those whose strategies leave it exact, and takes the
 * values of ids[from..to), from 1 on; to is n_fed + 1 at most. progress is called with at most n_fed for
 * each pass. */
status perplexity_pass(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_fed, size_t from, size_t to,
                       const perplexity_sink *sink, err *e);

/* Tokens [begin, end) of a text, of which [from, end) are scored. Start from {0}. */
typedef struct {
    size_t begin, end, from;
} perplexity_window;
/* The next window of at most `room` tokens of a text of n: they begin every `stride` tokens, and tokens of
 * earlier windows are not scored again. False: the last window reached the end. */
bool perplexity_next(perplexity_window *w, size_t n, size_t room, size_t stride);

/* Lengths at which a curve over n tokens has its points: powers of two from 128, about every 128 tokens (at most
 * some 260 points), and n; ascending. Returns their number; out may be NULL. */
size_t perplexity_lengths(size_t n, int64_t *out);

#endif
