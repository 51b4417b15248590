/* SPDX-License-Identifier: MIT */
/* A second level over an index: a decode step first scores groups of tokens by the bounds of their keys (Quest's page
 * bounds, ops_quest.h), and the index itself only inside the best groups. Of three and more groups the first tokens' and
 * the newest are always two: they hold much attention, and nearly all of what would be lost. For retrieval methods
 * (retrieve.h). */
#ifndef ATTENTION_COARSE_H
#define ATTENTION_COARSE_H

#include "attention/method.h"
#include "kernels/ops_select.h"

#define COARSE_PARAM                                                                                                  \
    {                                                                                                                 \
        "coarse", NULL, "tokens of a group whose bounds are scored first (64 to 256); 0: the whole index is scored", \
            0, 0, 1 << 20                                                                                             \
    }
#define COARSE_KEEP_PARAM                                                                                     \
    {                                                                                                         \
        "coarse_keep", NULL, "groups whose index is scored then hold this many times the budget", 8, 1, 1024 \
    }

typedef struct coarse coarse;

/* What a strategy asks for. */
typedef struct {
    int64_t tokens, keep; /* of a group, 0: there is no second level; groups */
    int64_t granule;      /* tokens of an item of the index */
    bool max_channel;     /* of quest_ops.score */
} coarse_rule;

/* From the values of its parameters. */
coarse_rule coarse_rule_of(int64_t tokens, int64_t keep, int64_t budget, int64_t granule);

/* Places (ops_select.h) of a list: how many scores the index has at most. */
int64_t coarse_places(const coarse_rule *rule, int64_t n_tokens);
/* Bytes beside the bounds (bounds.h). */
size_t coarse_scratch(const coarse_rule *rule, const attn_shape *shape, int64_t n_tokens, gqa_mode gqa);

status coarse_create(coarse **out, const attn_ctx *base, const coarse_rule *rule, gqa_mode gqa, err *e);
void coarse_free(coarse *c);
/* Candidates of a layer in the coming step: items [lo, hi). After all layers: coarse_upload. */
void coarse_begin(coarse *c, int layer, int64_t lo, int64_t hi);
void coarse_upload(coarse *c);
void coarse_add(coarse *c, int layer, buf pos, buf k, size_t n);
/* The best groups for n_heads queries q: those of the model, or the means of gqa=mean_q. They stay until the next
 * call. */
const item_groups *coarse_choose(coarse *c, int layer, buf q, size_t n_heads);
/* The places of the layer's groups, as the n of select_ops.combine. */
buf coarse_range(const coarse *c, int layer);
void coarse_redo(coarse *c, int layer, const kv_rows *rows, int64_t n);
status coarse_state(const coarse *c, const attn_ctx *base, attn_state *v, int layer, err *e);

#endif
