/* SPDX-License-Identifier: MIT */
/* What drafts would gain if a given share of them were right: of random rows and weights none is. */
#ifndef EVAL_BENCH_DRAFT_H
#define EVAL_BENCH_DRAFT_H

#include "cli/cli.h"

/* `bench --draft SPEC --accept P`: single steps against drafted ones, at each context. */
status bench_drafts(const cli *c, err *e);

#endif
