/* SPDX-License-Identifier: MIT */
/* Prefix reuse: state of the first tokens of a prompt serves another prompt with the same beginning. The rest of that
 * prompt is computed after it, and the result equals that of the whole prompt to the bit. */
#ifndef ATTENTION_REUSE_H
#define ATTENTION_REUSE_H

#include "attention/spec.h"

typedef enum {
    ATTN_REUSE_NEVER, /* kept rows depend on later tokens or on the end of the prompt */
    ATTN_REUSE_END,   /* only all stored tokens: later queries have changed the state of earlier ones */
    ATTN_REUSE_ANY    /* any number of first tokens: attn_seq_rewind restores their state */
} attn_reuse;

/* Returns the tokens that a strategy can reuse, in all cases up to a multiple of the chunk. */
attn_reuse attn_reuse_of(const attn_spec *s);

/* Returns a strategy without what does not affect the state of a prompt: two strategies that give equal results can use
 * each other's prompts. */
attn_spec attn_reuse_spec(const attn_spec *s);

/* True if rows stored by decode steps can also serve another prompt. The steps attend everything, over float rows, so
 * that the rows equal those of a prompt except for rounding. */
bool attn_reuse_steps(const attn_spec *s);

#endif
