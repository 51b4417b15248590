/* SPDX-License-Identifier: MIT */
/* The text of the measures of fidelity to full attention. */
#ifndef EVAL_FIDELITY_H
#define EVAL_FIDELITY_H

#include "cli/engine.h"
#include "kernels/base/sha256.h"

/* The text that pieces are taken from, and their lengths. */
typedef struct {
    token_list ids;
    char sha256[SHA256_HEX]; /* of its file */
    int64_t *ctx;            /* [n_ctx] of --ctx */
    size_t n_ctx;
} fidelity_text;

/* Reads and tokenizes the file at `path`, else the built-in book. Checks that it has the tokens of each length, and
 * warns of lengths that the model was not trained for. */
status fidelity_text_read(fidelity_text *t, const engine *g, const char *path, unsigned flags, err *e);
void fidelity_text_free(fidelity_text *t);
/* Appends n tokens to `out`: BOS where the tokenizer adds it, then a piece of the text. The offset of the piece depends
 * on n, seed, ctx (a length of the text) and trial alone. */
status fidelity_piece(token_list *out, const fidelity_text *t, const tokenizer *tok, size_t n, uint64_t seed,
                      int64_t ctx, int trial, err *e);

#endif
