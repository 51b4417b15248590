/* SPDX-License-Identifier: MIT */
/* Any bytes as a file of LongBench v2: its prompts are filled, its documents judged as outputs. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/longbench2/longbench2.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static longbench2_templates templates;

static void use(const longbench2_sample *s)
{
    char letter = longbench2_choice(s->context);
    if (letter != 0 && (letter < 'A' || letter > 'D')) abort();
    if (s->answer < 'A' || s->answer > 'D') abort();
    for (int p = 0; p < LONGBENCH2_PROMPTS; p++) {
        prompt_text t;
        if (longbench2_fill(&t, &templates, (longbench2_prompt)p, s, s->question, NULL) != ST_OK) abort();
        if (strlen(t.s) != t.n) abort();
        mem_free(t.s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sample_list d = {.size = sizeof(longbench2_sample)};
    err e = {0};
    if (!templates.text[0].s && longbench2_templates_read(&templates, tap_path("eval"), &e) != ST_OK) abort();
    status st = samples_add(&d, &longbench2_reader, "input", (const char *)data, n, &e);
    if ((st == ST_OK) == (e.msg[0] != 0) || (st == ST_OK && d.n == 0)) abort();
    for (size_t i = 0; i < d.n; i++) use(samples_at(&d, i));
    samples_free(&d);
    return 0;
}
