/* SPDX-License-Identifier: MIT */
/* What the first tokens of a prompt leave in a sequence may serve another prompt that begins with them: the rest is
 * then computed behind it, with the bits of a prompt that was computed as a whole. Which tokens, the strategy says. */
#ifndef ATTENTION_REUSE_H
#define ATTENTION_REUSE_H

#include "attention/spec.h"

typedef enum {
    ATTN_REUSE_NEVER, /* what is kept depends on tokens behind them, or on where the prompt ends */
    ATTN_REUSE_END,   /* all that is there, no less: later queries left their marks */
    ATTN_REUSE_ANY    /* any part of it: attn_seq_rewind leaves what the part alone would have left */
} attn_reuse;

/* In all cases up to a multiple of the chunk. */
attn_reuse attn_reuse_of(const attn_spec *s);

#endif
