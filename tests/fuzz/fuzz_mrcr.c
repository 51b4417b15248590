/* SPDX-License-Identifier: MIT */
/* Any bytes as a file of MRCR: of JSON lines, and of CSV where they begin with a column of that. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/mrcr/mrcr.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void add(const char *name, const uint8_t *data, size_t n)
{
    sample_list d = {.size = sizeof(mrcr_sample), .drop = mrcr_drop};
    err e = {0};
    status st = samples_add(&d, &mrcr_reader, name, (const char *)data, n, &e);
    if ((st == ST_OK) == (e.msg[0] != 0) || (st == ST_OK && d.n == 0)) abort();
    for (size_t i = 0; i < d.n; i++) {
        const mrcr_sample *s = samples_at(&d, i);
        const prompter plain = {.wrap = WRAP_RAW};
        prompt_text t;
        if (mrcr_text(&t, s, &plain, &e) != ST_OK || t.s[t.n] || strlen(t.s) != t.n) abort();
        if (s->answer.n == 0 || s->needles < 0) abort();
        mem_free(t.s);
    }
    samples_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    add("input.jsonl", data, n);
    add("8needle.csv", data, n);
    return 0;
}
