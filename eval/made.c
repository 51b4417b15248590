/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/made.h"

#include <stdio.h>

#include "kernels/base/mem.h"

enum { MADE_SAMPLES = 5, DEFAULT_LENGTH = 4096 };

const char MADE_NOISE[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

rng made_rng(const made_place *at)
{
    rng r = {at->seed};
    r.state = rng_next(&r) ^ (uint64_t)at->dataset;
    r.state = rng_next(&r) ^ (uint64_t)at->length;
    r.state = rng_next(&r) ^ (uint64_t)at->number;
    return r;
}

void uuid_draw(char out[UUID_CHARS + 1], rng *r)
{
    uint64_t a = rng_next(r), b = rng_next(r);
    a = (a & ~(uint64_t)0xf000) | 0x4000;
    b = (b & ~((uint64_t)3 << 62)) | (uint64_t)1 << 63;
    snprintf(out, UUID_CHARS + 1, "%08llx-%04llx-%04llx-%04llx-%012llx", (unsigned long long)a >> 32,
             (unsigned long long)(a >> 16 & 0xffff), (unsigned long long)(a & 0xffff), (unsigned long long)(b >> 48),
             (unsigned long long)(b & 0xffffffffffff));
}

status made_read(evaluation *ev, const made_source *s, err *e)
{
    bool *of_files, any = false;
    TRY(MEM_NEW(&of_files, ev->names.n, e));
    for (size_t i = 0; i < ev->names.n; i++) any |= of_files[i] = s->wanted[i] && !s->made[i];
    const sample_reader r = {
        .names = &ev->names, .datasets = s->named, .wanted = of_files, .read = s->read, .own = s->own};
    status st = ST_OK;
    if (any) st = samples_read(&ev->samples, &r, &ev->source, e);
    else if (!(ev->samples.files = json_array())) st = err_set(e, ST_NOMEM, "out of memory");
    mem_free(of_files);
    return st;
}

status made_length(int64_t *length, const evaluation *ev, err *e)
{
    if (*length == 0) *length = ev->c->attn.ctx || ev->window < DEFAULT_LENGTH ? ev->window : DEFAULT_LENGTH;
    if (*length <= ev->window) return ST_OK;
    return err_set(e, ST_USAGE, "--length %lld: the window has %lld tokens (--ctx N)", (long long)*length,
                   (long long)ev->window);
}

static status make_one(evaluation *ev, const made_source *s, const made_place *at, int64_t index, err *e)
{
    sample_head *sample;
    if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    TRY(mem_alloc((void **)&sample, 1, ev->samples.size, "sample", e));
    status st = s->make(s->own, sample, at, e);
    if (st == ST_OK) {
        sample->index = index;
        st = samples_push(&ev->samples, sample, e);
    }
    mem_free(sample);
    return st;
}

status made_add(evaluation *ev, const made_source *s, const int64_t *length, size_t n, err *e)
{
    const int64_t count = ev->c->limit ? ev->c->limit : MADE_SAMPLES;
    int64_t total = 0, done = 0;
    status st = ST_OK;
    for (size_t t = 0; t < ev->names.n; t++) total += s->made[t] ? (int64_t)n * count : 0;
    if (total == 0) return ST_OK;
    progress *bar = progress_start("making samples");
    for (size_t t = 0; t < ev->names.n; t++)
        for (int64_t i = 0; s->made[t] && i < (int64_t)n * count && st == ST_OK; i++) {
            const made_place at = {t, ev->c->seed.value, length[i / count], i % count, count};
            st = make_one(ev, s, &at, i, e);
            progress_set(bar, ++done, total);
        }
    progress_end(bar);
    return st == ST_OK ? samples_keep(&ev->samples, &(sample_source){0}, e) : st;
}
