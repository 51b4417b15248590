/* SPDX-License-Identifier: MIT */
/* The family of methods that keep everything and select tokens by counts alone (attn_by_count). Prompts, and steps with
 * at most `budget` tokens, are attended as by `full`. */
#ifndef ATTENTION_BY_COUNT_H
#define ATTENTION_BY_COUNT_H

#include "attention/method.h"

/* attn_method.kind. */
typedef struct {
    /* Writes the slots that a step with n visible tokens attends, ascending, the current token last. Returns their
     * number, at most the budget. */
    int64_t (*slots)(const attn_view *v, int layer, int64_t n, int32_t *slot);
} by_count_kind;

extern const attn_family attn_by_count;

#endif
