/* SPDX-License-Identifier: MIT */
/* Experts of a model that does not fit into memory: read in advance, counted, with the same logits. */
#include "config.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "model/decoder.h"
#include "tests/tap.h"

enum { VOCAB = 384, N = 12, SPARSE = 2, CHOSEN = 3, EXPERT = 3 * 24 * 32 * 4 /* bytes */ };

/* Computes the logits of two steps after a prompt, and what is counted after the prompt and after both steps. */
static status run(float logits[2][VOCAB], decoder *d, expert_reads reads[2], err *e)
{
    int32_t ids[N];
    attn_spec spec;
    session *s = NULL;
    const attn_options ao = {.kv = kv_plain(DT_F32)};
    const prefill_options o = {.which = LOGITS_LAST};
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + i * i % 7) % VOCAB;
    status st = attn_spec_parse(&spec, "full", &ao, e);
    if (st == ST_OK) st = session_create(&s, d, &spec, session_of(2 * N), e);
    if (st == ST_OK) st = session_prefill(&s, 1, ids, N, &o, e);
    reads[0] = decoder_expert_reads(d);
    for (int i = 0; i < 2 && st == ST_OK; i++) st = session_decode(&s, 1, &ids[i], logits[i], e);
    reads[1] = decoder_expert_reads(d);
    session_free(s);
    return st;
}

static void check_device(const char *device)
{
    static float want[2][VOCAB], got[2][VOCAB];
    expert_reads none[2], reads[2];
    backend *be = NULL;
    model *m = NULL;
    decoder *d = NULL;
    err e = {0};
    const backend_options bo = {.device = device, .n_threads = 1};
    const decoder_options opt = {.chunk = N, .max_batch = 1, .exact = true};
    status st = backend_open(&be, &bo, &e);
    if (st == ST_OK) st = model_open(&m, tap_path("tests/data/models/qwen3-moe-f32"), be, &e);
    if (st == ST_OK) st = decoder_create(&d, m, &opt, &e);
    if (st == ST_OK) ok(!d->paged, "%s: a small model fits", device);
    if (st == ST_OK) st = run(want, d, none, &e);
    if (st == ST_OK) d->paged = true;
    if (st == ST_OK) st = run(got, d, reads, &e);
    if (is_ok(st, &e, "%s: experts read in advance", device)) {
        ok(memcmp(want, got, sizeof want) == 0, "the same logits, bit for bit");
        ok(none[1].chosen == 0, "nothing is counted if the model fits");
        ok(reads[0].chosen >= SPARSE * CHOSEN * EXPERT && reads[0].chosen <= SPARSE * 8.0 * EXPERT,
           "a prompt counts each of its experts once");
        ok(reads[1].chosen - reads[0].chosen == 2 * SPARSE * CHOSEN * EXPERT, "a step counts the chosen ones");
        ok(reads[1].resident > 0 && reads[1].resident <= reads[1].chosen, "some were in memory");
    }
    decoder_free(d);
    model_close(m);
    backend_close(be);
}

/* Pages that were never touched are not in memory. */
static void check_prefetch(void)
{
    enum { PAGES = 8 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = PAGES * page;
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!ok(p != MAP_FAILED, "memory")) return;
    madvise(p, bytes, MADV_NOHUGEPAGE);
    p[2 * page] = p[3 * page] = 1;
    if (mem_prefetch(p, bytes) == bytes) tap_skip("this system does not tell which pages are in memory");
    else is_int((long long)mem_prefetch(p, bytes), (long long)(2 * page), "two pages of eight");
    is_int((long long)mem_prefetch(p + 2 * page + 5, page), (long long)page, "a part of two pages that are there");
    ok(mem_available() > 0, "the system tells the available memory");
    munmap(p, bytes);
}

int main(void)
{
    check_device("ref");
    check_device("cpu");
    check_prefetch();
    return tap_done();
}
