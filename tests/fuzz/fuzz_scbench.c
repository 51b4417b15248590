/* SPDX-License-Identifier: MIT */
/* Any bytes as a line of SCBench: its parts are filled in both modes, its context scored. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static scbench_prompts prompts;
static metrics *m;

static void fill(const scbench_sample *s, bool requests)
{
    const prompter how = {.wrap = WRAP_RAW};
    const scbench_asking a = {&prompts, &how, requests, false, NULL};
    for (size_t i = 0; i < s->n_turns + requests; i++) {
        prompt_text t;
        err e = {0};
        status st = scbench_part_text(&t, &a, s, i, &e);
        if (st == ST_OK ? !t.s || t.s[t.n] : !e.msg[0]) abort();
        mem_free(t.s);
    }
}

static void score(const scbench_sample *s)
{
    for (size_t i = 0; i < s->n_turns; i++) {
        const json_t *one = json_array_get(s->turn[i].labels, 0);
        utf8_text label = {json_string_value(one), json_string_length(one)};
        metric_case c = {s->context, &label, 1, NULL, 0};
        double x = 0;
        err e = {0};
        if (!label.s || scbench_new_tokens(&prompts, s, i) < 1) abort();
        status st = metric_score(m, metric_find(scbench_tasks[s->turn[i].task].metric), &c, &x, &e);
        if (st == ST_OK ? !(x >= 0 && x <= 1) : !e.msg[0]) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const sample_reader r = {.names = &scbench_names, .read = scbench_read};
    sample_list l = {.size = sizeof(scbench_sample), .drop = scbench_drop};
    err e = {0};
    if (!m && metrics_open(&m, tap_path("eval"), NULL) != ST_OK) abort();
    if (!prompts.root && scbench_prompts_open(&prompts, tap_path("eval"), &e) != ST_OK) abort();
    status st = samples_add(&l, &r, "input", (const char *)data, n, &e);
    if ((st == ST_OK) == (e.msg[0] != 0) || (st == ST_OK && l.n == 0)) abort();
    for (size_t i = 0; i < l.n; i++) {
        const scbench_sample *s = samples_at(&l, i);
        if (s->n_turns == 0) abort();
        fill(s, false);
        fill(s, true);
        score(s);
    }
    samples_free(&l);
    return 0;
}
