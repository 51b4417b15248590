/* SPDX-License-Identifier: MIT */
/* Text input of the fidelity measures. */
#ifndef EVAL_FIDELITY_H
#define EVAL_FIDELITY_H

#include "cli/engine.h"
#include "kernels/base/sha256.h"

/* The text from which pieces are taken, and the lengths of the pieces. */
typedef struct {
    token_list ids;
    char sha256[SHA256_HEX]; /* SHA-256 of its file */
    int64_t *ctx;            /* [n_ctx] lengths of --ctx */
    size_t n_ctx;
} fidelity_text;

/* Reads and tokenizes the file at `path`, or the built-in book if it is NULL. Checks that the text has enough tokens
 * for each length, and warns of lengths beyond the model's training length. */
status fidelity_text_read(fidelity_text *t, const engine *g, const char *path, unsigned flags, err *e);
void fidelity_text_free(fidelity_text *t);
/* Appends n tokens to `out`: BOS if the tokenizer adds it, then a piece of the text. The offset of the piece depends
 * only on n, seed, ctx (a length of the text) and trial. */
status fidelity_piece(token_list *out, const fidelity_text *t, const tokenizer *tok, size_t n, uint64_t seed,
                      int64_t ctx, int trial, err *e);
/* Returns the KL divergence, the sum of p log(p / q), of the distributions of two rows of logits. */
double fidelity_divergence(const float *p, const float *q, size_t vocab);

#endif
