/* SPDX-License-Identifier: MIT */
/* Any bytes as a line of InfiniteBench: with each set of prompts its prompt is filled, and its context scored. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static infinitebench_prompts sets[3];
static metrics *m;

static void use(const infinitebench_prompts *p, const infinitebench_sample *s)
{
    const infinitebench_task *t = &infinitebench_tasks[s->at.dataset];
    prompt_text text;
    double x = 0;
    err e = {0};
    if (infinitebench_fill(&text, p, s, NULL) != ST_OK || strlen(text.s) != text.n) abort();
    mem_free(text.s);
    if (!infinitebench_answers(s) || json_array_size(s->labels) == 0) abort();
    status st =
        labels_score(&x, m, metric_find(p->set == PROMPTS_INFLLM ? t->infllm : t->name), s->context, s->labels, &e);
    if (st == ST_OK ? !(x >= 0 && x <= 1) : !e.msg[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!m && metrics_open(&m, tap_path("eval"), NULL) != ST_OK) abort();
    for (int i = 0; i < 3; i++) {
        const sample_reader r = {.names = &infinitebench_names, .read = infinitebench_read, .own = &sets[i]};
        sample_list l = {.size = sizeof(infinitebench_sample), .drop = infinitebench_drop};
        err e = {0};
        if (!sets[i].prompts &&
            infinitebench_prompts_open(&sets[i], tap_path("eval"), (infinitebench_set)i, &e) != ST_OK)
            abort();
        status st = samples_add(&l, &r, "input", (const char *)data, n, &e);
        if ((st == ST_OK) == (e.msg[0] != 0)) abort();
        for (size_t k = 0; k < l.n; k++) use(&sets[i], samples_at(&l, k));
        samples_free(&l);
    }
    return 0;
}
