/* SPDX-License-Identifier: MIT */
/* Any bytes as a file of a reasoning benchmark: the first one says of which and whether it is CSV. Prompts are filled,
 * choices ordered, answers found in the questions. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/reason/reason.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void open_protocol(reason_protocol *p, reason_task t)
{
    err e = {0};
    if (p->source) return;
    if (reason_protocol_open(p, t, NULL, tap_path("eval"), &e) != ST_OK) abort();
}

static void fill_mmlu(const reason_protocol *p, const reason_data *d, const reason_problem *x)
{
    prompt_text t;
    size_t begins;
    if (reason_fill_mmlu(&t, &begins, p, d, x, 2, NULL) != ST_OK) abort();
    if (begins > t.n || strlen(t.s) != t.n || strchr("ABCD", x->answer.s[0]) == NULL) abort();
    mem_free(t.s);
}

static void use(const reason_protocol *p, const reason_problem *x)
{
    uint8_t order[REASON_CHOICES];
    prompt_text t;
    err e = {0};
    char *answer;
    size_t n;
    status st = reason_order_of(order, p->order, x, (size_t)x->at.index % 5, &e);
    if ((st == ST_OK) == (e.msg[0] != 0)) abort();
    if (st != ST_OK) return;
    if (p->order != REASON_ORDER_NONE && reason_letter(x, order) == 0) abort();
    if (reason_fill(&t, p, x, order, NULL, NULL, NULL) != ST_OK || strlen(t.s) != t.n) abort();
    mem_free(t.s);
    for (size_t k = 0; p->metric[k]; k++) {
        if (metric_answer(&answer, &n, p->metric[k], x->question, &e) != ST_OK) abort();
        if (answer && answer[n] != 0) abort();
        mem_free(answer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static reason_protocol protocols[REASON_TASKS];
    if (n == 0) return 0;
    reason_task task = (reason_task)(data[0] % REASON_TASKS);
    sample_list problems = {0};
    reason_data d;
    err e = {0};
    open_protocol(&protocols[task], task);
    reason_data_start(&d, task, &problems);
    status st = reason_data_add(&d, data[0] & 0x80 ? "a_test.csv" : "input", (const char *)data + 1, n - 1, &e);
    if ((st == ST_OK) == (e.msg[0] != 0) || (st == ST_OK && problems.n + d.shots.n == 0)) abort();
    for (size_t i = 0; i < problems.n; i++) {
        if (task == REASON_MMLU) fill_mmlu(&protocols[task], &d, reason_at(&problems, i));
        else use(&protocols[task], reason_at(&problems, i));
    }
    reason_data_free(&d);
    samples_free(&problems);
    return 0;
}
