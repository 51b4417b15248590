/* SPDX-License-Identifier: MIT */
/* State of the first tokens of a prompt, reused for another prompt that begins with them. The rest is computed after
 * it, with the bits of a whole prompt. The strategy decides which tokens. */
#ifndef ATTENTION_REUSE_H
#define ATTENTION_REUSE_H

#include "attention/spec.h"

typedef enum {
    ATTN_REUSE_NEVER, /* what is kept depends on later tokens, or on the end of the prompt */
    ATTN_REUSE_END,   /* all that is there, no less: later queries left their marks */
    ATTN_REUSE_ANY    /* any part of it: attn_seq_rewind leaves what the part alone would have left */
} attn_reuse;

/* In all cases up to a multiple of the chunk. */
attn_reuse attn_reuse_of(const attn_spec *s);

#endif
