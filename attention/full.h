/* SPDX-License-Identifier: MIT */
/* The selector `all`: every row of the store is attended. Rows of the table that differ from `full` in their store
 * alone take its hooks. */
#ifndef ATTENTION_FULL_H
#define ATTENTION_FULL_H

#include "attention/method.h"

status full_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                 const attn_limits *lim, const bool *layers, err *e);
status full_create(attn_ctx **out, const attn_ctx *base, err *e);
void full_free(attn_ctx *c);
void full_reset(attn_ctx *c);
bool full_exact_prompt(const attn_ctx *c, int64_t n);
void full_step_begin(attn_ctx *c, const attn_part *p);
void full_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v);
void full_select(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel);
void full_layer_end(attn_ctx *c, const attn_part *p, int layer);
void full_step_end(attn_ctx *c, const attn_part *p);
const char *full_rewind(attn_ctx *c, int64_t n);
status full_state(attn_ctx *c, attn_state *s, err *e);
void full_held(const attn_ctx *c, int64_t n_new, attn_bytes *out);
int64_t full_attended(const attn_ctx *c, int layer);
int64_t full_positions(const attn_ctx *c, int layer, int kv_head, int64_t *out);

#define FULL_HOOKS                                                                                 \
    .pages = true,                                                                                 \
    .plan = full_plan, .create = full_create, .free = full_free, .reset = full_reset,              \
    .exact_prompt = full_exact_prompt, .step_begin = full_step_begin, .append = full_append,       \
    .select = full_select, .layer_end = full_layer_end, .step_end = full_step_end,                 \
    .rewind = full_rewind, .state = full_state, .held = full_held, .attended = full_attended,                           \
    .positions = full_positions

#endif
