/* SPDX-License-Identifier: MIT */
/* The lens: what strategies read while a text is generated, and what of exact attention they missed.
 *
 * `full` and the strategies run in one batch and are fed the same tokens, those that one of them (`drive`) finds most
 * likely. The last token of the prompt is fed as a decode step, so that the first new token too follows from what a
 * strategy read. Of each step, layer that is not dense and query head: the positions that were read, and how much of
 * full attention's softmax (of its own queries and keys) lies on the others. Records: doc/serve.md section 6. */
#ifndef LENS_LENS_H
#define LENS_LENS_H

#include "model/session.h"
#include "tokenizer/tokenizer.h"

enum {
    LENS_STRATEGIES = 3,
    LENS_BINS = 512,  /* at most so many bytes say what a step read */
    LENS_MISSED = 16, /* positions that a record names at most */
    LENS_TEXTS = 4096 /* tokens of a record of the prompt */
};

typedef struct lens lens;

typedef struct {
    decoder *dec; /* of batches of 1 + n sequences */
    const tokenizer *tok;
    const char *model, *id; /* names, for the records */
    const attn_spec *full;  /* what the strategies are compared with: everything is attended, over exact rows */
    const attn_spec *spec;  /* [n] the strategies, at most LENS_STRATEGIES */
    size_t n, drive;        /* drive: 0 full, i the strategy i - 1 */
    const int32_t *ids;     /* [n_ids] the prompt, at least two tokens; it lives as long as the lens */
    size_t n_ids, n_new;    /* n_new: most steps */
    bool ignore_eos;
    /* Takes a record: a line of JSON with its \n. */
    status (*line)(void *ctx, const char *text, size_t n, err *e);
    void *ctx;
} lens_options;

/* A strategy's means over the steps so far; zeros where all its layers are dense. */
typedef struct {
    double attended, missed;
} lens_means;

/* Bytes that a lens will hold beside the decoder. */
status lens_plan(size_t *bytes, const lens_options *o, const decoder_options *d, err *e);
/* Makes the sessions and gives the records of the prompt. ST_USAGE: a prompt of one token; errors of sessions. */
status lens_open(lens **out, const lens_options *o, err *e);
void lens_close(lens *l);
/* Does one chunk of the prompt, or one step and gives its records. *done: that was the last. */
status lens_advance(lens *l, bool *done, err *e);
/* Forwards behind and in all. */
void lens_progress(const lens *l, int64_t *done, int64_t *total);
/* Steps behind. */
size_t lens_steps(const lens *l);
lens_means lens_mean(const lens *l, size_t strategy);
/* What strategy i read in the last step by some head: a bit a position of each layer, lowest bit first; of dense layers
 * all. *row: bytes of a layer. */
const uint8_t *lens_bits(const lens *l, size_t strategy, size_t *row);
/* The strategy's name in records: its text with the budget. out[512]. */
void lens_name(char out[512], const attn_spec *s);

#endif
