/* SPDX-License-Identifier: MIT */
/* A model in which some tokens have keys, values or logits out of range. */
#ifndef TESTS_UNIT_POISON_H
#define TESTS_UNIT_POISON_H

#include <string.h>

#include "model/model.h"
#include "tests/unit/session_util.h"
#include "tests/unit/model_blocks.h"

enum { P_HIDDEN = 64, P_FFN = 48, P_KV = 32, P_LAYERS = 2 };
#define POISON_MODEL "llama31-f32-tied"

typedef enum { POISON_KEYS, POISON_VALUES, POISON_LOGIT } poison_kind;

static float poison_embed[U_VOCAB * P_HIDDEN], poison_out[P_LAYERS][P_HIDDEN * P_HIDDEN],
    poison_down[P_LAYERS][P_HIDDEN * P_FFN], poison_in[P_KV * P_HIDDEN];

/* Makes w point to `copy`, and returns `copy`. */
static inline float *poison_copy(weight *w, float *copy)
{
    if (w->p.p != (unsigned char *)copy) memcpy(copy, w->p.p, w->rows * w->cols * sizeof *copy);
    w->p.p = (unsigned char *)copy;
    return copy;
}

/* Modifies POISON_MODEL: hidden channel 0 depends on the token fed last, 100 from first_bad on, else 0. It makes keys
 * or values of `layer` reach 1e5 and more, or the logit of token 0 exceed the range of float32. */
static inline void poison(model *m, poison_kind kind, int layer, int first_bad)
{
    float *embed = poison_copy(&m->embed, poison_embed);
    m->lm_head.p = m->embed.p;
    for (int i = 0; i < U_VOCAB; i++) embed[i * P_HIDDEN] = i >= first_bad ? 100 : 0;
    for (int l = 0; l < P_LAYERS; l++) {
        memset(poison_copy(&attention_at(m, l)->o, poison_out[l]), 0, P_HIDDEN * sizeof(float));
        memset(poison_copy(&swiglu_at(m, l)->down, poison_down[l]), 0, P_FFN * sizeof(float));
    }
    if (kind == POISON_LOGIT) {
        embed[0] = 3e38f;
        return;
    }
    float *in = poison_copy(kind == POISON_KEYS ? &attention_at(m, layer)->k : &attention_at(m, layer)->v, poison_in);
    for (int i = 0; i < P_KV; i++) in[i * P_HIDDEN] = 1e6f;
}

#endif
