/* SPDX-License-Identifier: MIT */
/* Any bytes as what `eval ruler` reads: a line of prompts, SQuAD's and HotpotQA's files, an essay. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static punkt *p;

static void read_records(const char *s, size_t n)
{
    sample_list l = {.size = sizeof(ruler_record), .drop = ruler_drop};
    err e = {0};
    status st = samples_add(&l, &ruler_reader, "input", s, n, &e);
    if ((st == ST_OK) == (e.msg[0] != 0) || (st == ST_OK && l.n == 0)) abort();
    for (size_t i = 0; i < l.n; i++) {
        const ruler_record *x = samples_at(&l, i);
        if (x->at.dataset >= RULER_TASKS || json_array_size(x->answers) == 0 || x->n_new < 0) abort();
    }
    samples_free(&l);
}

static void read_questions(ruler_file format, const char *s, size_t n)
{
    ruler_qa qa;
    err e = {0};
    status st = ruler_qa_parse(&qa, format, "input", s, n, &e);
    if ((st == ST_OK) == (e.msg[0] != 0)) abort();
    for (size_t i = 0; st == ST_OK && i < qa.n_questions; i++) {
        const ruler_question *q = &qa.question[i];
        if (q->n_own == 0 || q->own + q->n_own > qa.n_indices || q->near + q->n_near > qa.n_indices) abort();
    }
    for (size_t i = 0; st == ST_OK && i < qa.n_indices; i++)
        if (qa.index[i] >= qa.n_documents) abort();
    ruler_qa_close(&qa);
}

/* Sentences are in order, are not empty, and have everything but spaces. */
static void split(const char *s, size_t n)
{
    prompt_text t = {0};
    sentence_list l = {0};
    size_t at = 0;
    if (ruler_squeeze(&t, s, n, true, NULL) == ST_OK && !memchr(s, 0, n)) {
        if (punkt_split(p, &l, t.s, t.n, NULL) != ST_OK) abort();
        for (size_t i = 0; i < l.n; i++) {
            while (at < l.s[i].begin && t.s[at] == ' ') at++;
            if (at != l.s[i].begin || l.s[i].end <= at || l.s[i].end > t.n) abort();
            at = l.s[i].end;
        }
        if (at != t.n) abort();
    }
    sentence_list_free(&l);
    mem_free(t.s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *s = n ? (const char *)data : "";
    if (!p && punkt_read(&p, tap_path("eval"), NULL) != ST_OK) abort();
    read_records(s, n);
    read_questions(RULER_SQUAD, s, n);
    read_questions(RULER_HOTPOTQA, s, n);
    split(s, n);
    return 0;
}
