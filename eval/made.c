/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/made.h"

#include <stdio.h>
#include <string.h>

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

/* ---- samples read from data ---- */

status made_lengths(made_source *s, const char *lengths, size_t most, err *e)
{
    bool any = false;
    if (!lengths) return ST_OK;
    for (size_t i = 0; i < MADE_DATASETS; i++) any |= s->made[i];
    if (!any) return err_set(e, ST_USAGE, "--length: none of the selected tasks is generated");
    TRY(cli_parse_sizes(&s->length, &s->n_length, lengths, "", "--length", e));
    return s->n_length <= most ? ST_OK : err_set(e, ST_USAGE, "--length %s: expected one length", lengths);
}

status made_read(evaluation *ev, const made_source *s, err *e)
{
    bool of_files[MADE_DATASETS], any = false, any_made = false;
    for (size_t i = 0; i < ev->names.n; i++) {
        any |= of_files[i] = s->wanted[i] && !s->made[i];
        any_made |= s->made[i];
    }
    const sample_reader r = {
        .names = &ev->names, .datasets = s->named, .wanted = of_files, .read = s->read, .own = s->own};
    if (!any) return (ev->samples.files = json_array()) ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    TRY(samples_read(&ev->samples, &r, &ev->source, e));
    if (ev->samples.n > 0 || (any_made && !ev->o->data)) return ST_OK;
    return err_set(e, ST_USAGE, "%s: no samples of the selected tasks", ev->o->data ? "--data" : "--dataset");
}

/* ---- as many units as fit ---- */

typedef struct {
    const made_source *s;
    const sample_list *l;
    const made_place *at;
    sample_head *sample;
    bool made;    /* the sample holds the result of the last attempt */
    int64_t left; /* unused tokens of the length; negative if it is exceeded */
} fitting;

static void undo(fitting *f)
{
    if (f->made) sample_drop(f->l, f->sample);
    f->made = false;
}

static status attempt(fitting *f, size_t units, err *e)
{
    int64_t tokens = 0;
    undo(f);
    memset(f->sample, 0, f->l->size);
    f->sample->dataset = f->at->dataset;
    f->sample->index = f->at->number;
    f->made = true;
    status st = f->s->make(f->sample, f->at, units, e);
    if (st == ST_OK) st = f->s->read(f->s->own, f->sample, "", "generated", e);
    if (st == ST_OK) st = f->s->count(f->s->own, f->sample, &tokens, e);
    f->left = f->at->length - tokens;
    if (st != ST_OK) undo(f);
    return st;
}

/* Returns the number of units of the next attempt, between low and high, from the last attempt and the tokens of a
 * unit. */
static size_t next_units(const fitting *f, size_t units, double unit, size_t low, size_t high)
{
    double guess = (double)units + (double)f->left / unit;
    if (guess < (double)(low + 1)) return low + 1;
    return guess >= (double)high ? high - 1 : (size_t)guess;
}

/* Searches the largest number of units that fits. `low` units fit; `units` were tried last. */
static status fit_exactly(fitting *f, size_t low, size_t units, double unit, err *e)
{
    size_t high = 1 << 28;
    for (;;) {
        if (f->left >= 0) low = units;
        else high = units;
        if (high == low + 1) return units == low ? ST_OK : attempt(f, low, e);
        units = next_units(f, units, unit, low, high);
        TRY(attempt(f, units, e));
    }
}

static status fit_roughly(fitting *f, size_t low, size_t units, err *e)
{
    for (;; units -= units / 50 + 1) {
        if (units < low) units = low;
        TRY(attempt(f, units, e));
        if (f->left >= 0 || units == low) return ST_OK;
    }
}

status made_fit(void *sample, const made_source *s, const sample_list *l, const dataset_names *names,
                const made_place *at, err *e)
{
    const size_t low = s->exact ? 1 : 8, step = s->exact ? 16 : 64;
    fitting f = {s, l, at, sample, false, 0};
    TRY(attempt(&f, low, e));
    const int64_t left = f.left;
    if (left < 0) {
        undo(&f);
        return err_set(e, ST_USAGE, "--length (or --ctx) %lld: too short for %s, which needs at least %lld tokens",
                       (long long)at->length, dataset_name(names, at->dataset), (long long)(at->length - left));
    }
    TRY(attempt(&f, low + step, e));
    double unit = (double)(left - f.left) / (double)step;
    if (unit < 1) unit = 1;
    return s->exact ? fit_exactly(&f, low, low + step, unit, e)
                    : fit_roughly(&f, low, low + (size_t)((double)left / unit), e);
}

/* ---- generated samples ---- */

static status set_length(int64_t *length, const evaluation *ev, err *e)
{
    if (*length == 0) *length = ev->o->run.attn.ctx || ev->window < DEFAULT_LENGTH ? ev->window : DEFAULT_LENGTH;
    if (*length <= ev->window) return ST_OK;
    return err_set(e, ST_USAGE, "--length %lld: exceeds the window of %lld tokens; use --ctx N", (long long)*length,
                   (long long)ev->window);
}

static status set_lengths(made_source *s, const evaluation *ev, err *e)
{
    for (size_t i = 0; i < s->n_length; i++) {
        TRY(set_length(&s->length[i], ev, e));
        for (size_t k = 0; k < i; k++)
            if (s->length[k] == s->length[i])
                return err_set(e, ST_USAGE, "--length: duplicate length %lld", (long long)s->length[i]);
    }
    return ST_OK;
}

static status make_one(evaluation *ev, const made_source *s, const made_place *at, int64_t index, err *e)
{
    sample_head *sample;
    if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    TRY(mem_alloc((void **)&sample, 1, ev->samples.size, "sample", e));
    status st = made_fit(sample, s, &ev->samples, &ev->names, at, e);
    if (st == ST_OK) {
        sample->index = index;
        st = samples_push(&ev->samples, sample, e);
    }
    mem_free(sample);
    return st;
}

status made_add(evaluation *ev, made_source *s, err *e)
{
    const int64_t count = ev->o->limit ? ev->o->limit : MADE_SAMPLES;
    int64_t total = 0, done = 0;
    status st = ST_OK;
    for (size_t t = 0; t < ev->names.n; t++) total += s->made[t];
    if (total > 0 && !s->length) TRY(MEM_NEW(&s->length, s->n_length = 1, e));
    TRY(set_lengths(s, ev, e));
    const int64_t n = (int64_t)s->n_length * count;
    if (total == 0) return ST_OK;
    progress *bar = progress_start("generating samples");
    for (size_t t = 0; t < ev->names.n; t++)
        for (int64_t i = 0; s->made[t] && i < n && st == ST_OK; i++) {
            const made_place at = {t, ev->o->run.seed.value, s->length[i / count], i % count, count};
            st = make_one(ev, s, &at, i, e);
            progress_set(bar, ++done, total * n);
        }
    progress_end(bar);
    samples_keep(&ev->samples, &(sample_source){0});
    return st;
}

void made_close(made_source *s)
{
    mem_free(s->length);
}
