/* SPDX-License-Identifier: MIT */
/* The weights of dense models, whose layers consist of an attention and a SwiGLU block. */
#ifndef TESTS_MODEL_BLOCKS_H
#define TESTS_MODEL_BLOCKS_H

#include "model/block.h"

static inline attention_weights *attention_at(const model *m, int layer)
{
    return (attention_weights *)m->blocks[2 * layer].w;
}

static inline swiglu_weights *swiglu_at(const model *m, int layer)
{
    return (swiglu_weights *)m->blocks[2 * layer + 1].w;
}

#endif
