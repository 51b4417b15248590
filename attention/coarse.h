/* SPDX-License-Identifier: MIT */
/* A second level over an index: a decode step first scores spans of tokens by the bounds of their keys (Quest's page
 * bounds, ops_quest.h), and the index itself only inside the best spans. Of three and more spans the first tokens' and
 * the newest are always two: they hold much attention, and nearly all of what would be lost. For retrieval methods
 * (retrieve.h), whose struct holds it. */
#ifndef ATTENTION_COARSE_H
#define ATTENTION_COARSE_H

#include "attention/bounds.h"
#include "attention/selection.h"

#define COARSE_PARAM                                                                                                   \
    "coarse", NULL, "tokens of a span whose bounds are scored first (64 to 256); 0: the whole index is scored", 0, 0,  \
        1 << 20
#define COARSE_KEEP_PARAM                                                                                              \
    "coarse_keep", NULL, "spans whose index is scored then hold this many times the budget", 8, 1, 1024

/* What a strategy asks for. */
typedef struct {
    int64_t tokens, keep; /* of a span, 0: there is no second level; spans */
    int64_t granule;      /* tokens of an item of the index */
} coarse_rule;

typedef struct {
    coarse_rule rule;
    gqa_mode gqa;
    page_bounds bounds;
    int64_t per, cap; /* items of a span; spans at most */
    size_t n_lists;
    buf score; /* f32 [n_heads][cap], and combined ones [n_lists][cap] behind them */
    buf idx, range;
    item_spans spans; /* of the layer at work */
} coarse;

/* From the parameters `coarse` and `coarse_keep` of a strategy. */
coarse_rule coarse_rule_of(const attn_spec *s, int64_t granule);
/* Places (ops_select.h) of a list: how many scores the index has at most. */
int64_t coarse_places(const coarse_rule *rule, int64_t n_tokens);

void coarse_declare(attn_decl *d, size_t at, const coarse_rule *rule, gqa_mode gqa);
void coarse_reset(coarse *c, const attn_view *v, const coarse_rule *rule, gqa_mode gqa);
/* The best spans of the candidates of n selections, each with a second level of its own: sets list.spans, which stay
 * until the next call, and columns to their places. */
void coarse_choose(coarse *const *c, selection *s, size_t n);

#endif
