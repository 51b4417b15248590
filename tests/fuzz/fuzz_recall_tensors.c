/* SPDX-License-Identifier: MIT */
/* Tensors from outside: whatever is taken must go through selectors with measures that make sense. */
#include "config.h"

#include <stdlib.h>

#include "eval/fidelity/recall_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const recall_run *r)
{
    for (int h = 0; h < r->shape.n_heads; h++) {
        double n = (double)r->n_queries;
        double recall = r->sum[SUM_RECALL][h], mass = r->sum[SUM_MASS][h];
        if (!(recall >= 0 && recall <= n)) abort();
        if (!(mass >= 0 && mass <= n * 1.001) || r->sum[SUM_SELECTED][h] < n) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"fier:g=4", "quest:page=2:min_pages=1", "pariskv:sink=1:local=1"};
    static backend *be;
    recall_run runs[3] = {{.seq = NULL}};
    const attn_options o = {.budget = 4, .kv = kv_plain(DT_F16)};
    const backend_options bo = {.device = "cpu", .n_threads = 1};
    err e = {0}; /* messages are built from the input too */
    if (!be && backend_open(&be, &bo, &e) != ST_OK) abort();
    for (int i = 0; i < 3; i++)
        if (attn_spec_parse(&runs[i].spec, names[i], &o, &e) != ST_OK) abort();
    recall_tensors job = {.be = be, .path = "fuzz", .data = data, .size = size};
    if (recall_on_tensors(&job, runs, 3, &e) == ST_OK)
        for (int i = 0; i < 3; i++) check(&runs[i]);
    recall_runs_clear(runs, 3);
    return 0;
}
