/* SPDX-License-Identifier: MIT */
/* InfLLM: selects a fixed number of memory blocks by the inner product of their representatives with the mean query of
 * a prompt window. doc/methods.md section 12.1. */
#include "config.h"

#include "attention/blocks.h"

static const attn_param params[] = {
    BLOCKS_PARAMS(128, 4096, 512, 128, 4),
    {.key = NULL},
};

/* Chooses blocks. In decode steps the query is the probe. If all candidates fit they are not scored. */
static void infllm_choose(attn_view *v, const attn_part *p, int layer, int64_t n)
{
    const block_memory *b = v->own;
    const block_ops *o = v->be->ops->block;
    int64_t k = blocks_budget(v->spec);
    if (n == 0) return;
    block_index x = blocks_index(v, layer);
    item_range items = blocks_candidates(v, layer, p->first);
    bool prompt = p->flags & ATTN_PROMPT, some = items.hi - items.lo > k;
    x.product = true;
    if (some && prompt)
        o->probe(v->be, b->probe, b->weights, b->queries, p->n_tok, b->n.dim, (buf){NULL}, (buf){NULL}, 0);
    if (some) o->score(v->be, b->score, prompt ? b->probe : b->queries, &x, 0, items, attn_index_read(v));
    blocks_choose(v, items, k, (buf){NULL});
}

static const block_kind kind = {.choose = infllm_choose};

const attn_method attn_infllm = {
    .name = "infllm",
    .summary = "InfLLM: memory blocks by their representatives, windowed prompts",
    .source = "Xiao et al. 2024 (arXiv 2402.04617); code thunlp/InfLLM; doc/methods.md 12.1, deviations 12.1",
    .params = params,
    .family = &attn_blocks,
    .kind = &kind,
    .has_budget = true,
    .def_budget = 6272,
    .reuse = ATTN_REUSE_END,
    .check = blocks_check,
    .regions = blocks_regions,
};
