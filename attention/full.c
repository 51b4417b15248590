/* SPDX-License-Identifier: MIT */
/* Full attention: keep and read everything. Also serves the dense layers of other methods. */
#include "config.h"

#include "attention/method.h"

const attn_method attn_full = {
    .name = "full",
    .summary = "keep and read everything (the reference)",
    .source = "Vaswani et al. 2017; doc/methods.md 1, deviations 1.7",
    .reuse = ATTN_REUSE_ANY,
};
