/* SPDX-License-Identifier: MIT */
/* LogQuant: attends everything. A log-spaced list of recent tokens keeps float rows; the others are quantized to 2 or 4
 * bits. doc/methods.md 11. */
#include "config.h"

#include "attention/format.h"

const attn_method attn_logquant = {
    .name = "logquant",
    .summary = "LogQuant: all tokens; recent ones at log-spaced ages stay unquantized, others have 2 or 4 bits",
    .source =
        "Chen et al. 2025 (arXiv 2503.19950), Algorithm 1; Concyclics/LogQuantKV; doc/methods.md 11, deviations 11.7",
    .params = kv_logquant_params,
    .kind = &(const kv_kind){KV_LOGQUANT},
    .parse = kv_format_own,
};
