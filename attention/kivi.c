/* SPDX-License-Identifier: MIT */
/* KIVI: attends everything. Old tokens are quantized to 2 or 4 bits, keys by channel over groups of tokens, values by
 * token. doc/methods.md 10. */
#include "config.h"

#include "attention/format.h"

const attn_method attn_kivi = {
    .name = "kivi",
    .summary = "KIVI: all tokens, old ones in 2 or 4 bits (keys by channel, values by token)",
    .source = "Liu et al. 2024 (arXiv 2402.02750); KIVI quant/new_pack.py; doc/methods.md 10, deviations 10.7",
    .params = kv_kivi_params,
    .kind = &(const kv_kind){KV_KIVI},
    .parse = kv_format_own,
};
