/* SPDX-License-Identifier: MIT */
/* The lens: records which positions strategies read during generation, and how much of full attention they missed.
 *
 * `full` and the strategies run in one batch and are fed the same tokens: the most likely ones of one sequence,
 * `drive`. The last prompt token is fed as a decode step, so that the first new token also depends on what a strategy
 * read.
 *
 * A step records, for each query head of layers that are not dense, the positions read and the missed mass: full
 * attention's softmax (over its own queries and keys) on all other positions. Format of the records: doc/serve.md
 * section 6. */
#ifndef LENS_LENS_H
#define LENS_LENS_H

#include "model/session.h"
#include "tokenizer/tokenizer.h"

enum {
    LENS_STRATEGIES = 3,
    LENS_BINS = 512,  /* maximum number of bytes that show what a step read */
    LENS_MISSED = 16, /* maximum number of missed positions in a record */
    LENS_TEXTS = 4096 /* maximum number of tokens in a prompt record */
};

typedef struct lens lens;

typedef struct {
    decoder *dec; /* for batches of 1 + n sequences */
    const tokenizer *tok;
    const char *model, *id; /* names, for the records */
    const attn_spec *full;  /* reference strategy: attends everything, over unquantized rows */
    const attn_spec *spec;  /* [n] strategies, at most LENS_STRATEGIES */
    size_t n, drive;        /* drive: sequence that chooses the tokens, 0 full, i strategy i - 1 */
    const int32_t *ids;     /* [n_ids] prompt of at least two tokens, borrowed until lens_close */
    size_t n_ids, n_new;    /* n_new: maximum number of steps */
    bool ignore_eos;
    /* Receives a record: a line of JSON with its \n. */
    status (*line)(void *ctx, const char *text, size_t n, err *e);
    void *ctx;
} lens_options;

/* Means of a strategy over the steps so far; 0 if all its layers are dense. */
typedef struct {
    double attended, missed;
} lens_means;

/* Computes the bytes that a lens needs in addition to the decoder. */
status lens_plan(size_t *bytes, const lens_options *o, const decoder_options *d, err *e);
/* Creates the sessions and emits the prompt records. ST_USAGE: a wrong number of prompt tokens, steps or strategies. */
status lens_open(lens **out, const lens_options *o, err *e);
void lens_close(lens *l);
/* Runs one chunk of the prompt, or one step and emits its records. *done: no steps are left. */
status lens_advance(lens *l, bool *done, err *e);
/* Returns the forward passes done and in total. */
void lens_progress(const lens *l, int64_t *done, int64_t *total);
/* Returns the number of steps done. */
size_t lens_steps(const lens *l);
lens_means lens_mean(const lens *l, size_t strategy);
/* Returns a bitmap per layer of the positions that any head of the strategy read in the last step, lowest bit first.
 * Dense layers have all bits set. *row: bytes per layer. */
const uint8_t *lens_bits(const lens *l, size_t strategy, size_t *row);
/* Writes the strategy's name in records: its text with the budget. */
void lens_name(char out[512], const attn_spec *s);

#endif
