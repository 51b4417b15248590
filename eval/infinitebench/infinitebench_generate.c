/* SPDX-License-Identifier: MIT */
/* Samples of Retrieve.PassKey, Retrieve.Number and Retrieve.KV at any length, as OpenBMB/InfiniteBench makes them
 * (data/construct_synthetic_dataset.py, commit 89b7855; its pairs of UUIDs are those of lost-in-the-middle's
 * make_kv_retrieval_data.py). The official files have fixed numbers of units (5,220 sentences of noise, 2,500 pairs);
 * here the units are as many as fit. Its depths, too: noise stands before the hidden sentence in equal steps from none
 * of it to all of it, and the key that is asked for is number floor(i n / count) of the n pairs. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "eval/uuid.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { PASSKEY, NUMBER_STRING, KV_RETRIEVAL }; /* in the order of infinitebench_tasks */

static const char NOISE[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

/* The random numbers of a place: they do not depend on how many units there are. */
static rng rng_of(const infinitebench_place *at)
{
    rng r = {at->seed};
    r.state = rng_next(&r) ^ (uint64_t)at->task;
    r.state = rng_next(&r) ^ (uint64_t)at->length;
    r.state = rng_next(&r) ^ (uint64_t)at->number;
    return r;
}

static size_t put(char *out, size_t at, const char *s)
{
    size_t n = strlen(s);
    memcpy(out + at, s, n + 1);
    return at + n;
}

/* ---- a sentence among noise ---- */

enum { KEY_DIGITS = 5 };

/* Five digits. */
static void draw_digits(char key[KEY_DIGITS + 1], rng *r)
{
    for (int i = 0; i < KEY_DIGITS; i++) key[i] = (char)('0' + rng_below(r, 10));
    key[KEY_DIGITS] = 0;
}

/* Ten: five times one of those that are there is put in once more, beside itself. */
static void double_digits(char key[2 * KEY_DIGITS + 1], rng *r)
{
    for (size_t n = KEY_DIGITS; n < 2 * KEY_DIGITS; n++) {
        size_t i = (size_t)rng_below(r, n);
        memmove(key + i + 1, key + i, n + 1 - i);
    }
}

static status make_hidden(char **line, double *depth, const infinitebench_place *at, size_t units, err *e)
{
    bool number = at->task == NUMBER_STRING;
    rng r = rng_of(at);
    char key[2 * KEY_DIGITS + 1], hidden[128], *s;
    int64_t last = at->count - 1;
    size_t before = last > 0 ? (size_t)((double)units * (double)at->number / (double)last) : units / 2, room, n;
    draw_digits(key, &r);
    if (number) double_digits(key, &r);
    snprintf(hidden, sizeof hidden,
             number ? "The sequence of digits is %s. Remember it. %s is the sequence of digits.\n"
                    : "The pass key is %s. Remember it. %s is the pass key.\n",
             key, key);
    TRY(size_mul(&room, units, strlen(NOISE), "noise", e));
    TRY(mem_alloc((void **)&s, room + sizeof hidden, 1, "noise", e));
    n = 0;
    for (size_t i = 0; i < units; i++) {
        if (i == before) n = put(s, n, hidden);
        n = put(s, n, NOISE);
    }
    if (before == units) put(s, n, hidden);
    *depth = 100.0 * (double)before / (double)units;
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "dataset", infinitebench_tasks[at->task].name, "context", s, "input",
                          number ? "What is the sequence of digits?" : "What is the pass key?", "answer", key);
    mem_free(s);
    *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return *line ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

/* ---- pairs of keys and values ---- */

enum { PAIR_CHARS = 2 * (UUID_CHARS + 2) + 4 };

static status make_pairs(char **line, double *depth, const infinitebench_place *at, size_t units, err *e)
{
    static const char begin[] = "JSON data:\n{";
    rng r = rng_of(at);
    char key[UUID_CHARS + 1], value[UUID_CHARS + 1], pair[PAIR_CHARS + 1], question[160] = "",
                                                                           answer[UUID_CHARS + 1] = "", *s;
    size_t asked = (size_t)((double)units * (double)at->number / (double)at->count), room, n = strlen(begin);
    TRY(size_mul(&room, units, PAIR_CHARS, "pairs", e));
    TRY(mem_alloc((void **)&s, room + sizeof begin, 1, "pairs", e));
    put(s, 0, begin);
    for (size_t i = 0; i < units; i++) {
        uuid_draw(key, &r);
        uuid_draw(value, &r);
        snprintf(pair, sizeof pair, "\"%s\": \"%s\"%s", key, value, i + 1 < units ? ", " : "}");
        n = put(s, n, pair);
        if (i != asked) continue;
        snprintf(question, sizeof question, "\nKey: \"%s\"\nThe value associated with the specified key is: ", key);
        memcpy(answer, value, sizeof answer);
    }
    *depth = 100.0 * (double)asked / (double)units;
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "dataset", infinitebench_tasks[at->task].name, "context", s, "input",
                          question, "answer", answer);
    mem_free(s);
    *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return *line ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status infinitebench_generate(char **line, double *depth, const infinitebench_place *at, size_t units, err *e)
{
    return at->task == KV_RETRIEVAL ? make_pairs(line, depth, at, units, e) : make_hidden(line, depth, at, units, e);
}

/* ---- as many units as fit ---- */

/* A sample with so many units, and the tokens that it leaves (below 0: lacks). */
static status try_units(infinitebench_sample *s, int64_t *left, const infinitebench_prompts *p, const prompter *how,
                        const infinitebench_place *at, size_t units, err *e)
{
    line_reader r = {.name = "generated", .number = (size_t)at->number + 1};
    prompt_tokens t = {0};
    char *line = NULL;
    double depth;
    TRY(infinitebench_generate(&line, &depth, at, units, e));
    status st = infinitebench_sample_read(s, p, &r, line, strlen(line), at->task, e);
    free(line);
    if (st == ST_OK) st = infinitebench_prompt_make(&t, p, how, s, e);
    int64_t n = (int64_t)(t.head.n + t.tail.n) + p->n_new[at->task];
    *left = at->length - n;
    prompt_tokens_free(&t);
    s->index = at->number;
    s->length = at->length;
    s->depth = depth;
    if (st != ST_OK) infinitebench_sample_free(s);
    return st;
}

/* The number of units of the next try, from the last one and what a unit takes. */
static size_t next_units(size_t units, int64_t left, double unit, size_t low, size_t high)
{
    double guess = (double)units + (double)left / unit;
    if (guess < (double)(low + 1)) return low + 1;
    return guess >= (double)high ? high - 1 : (size_t)guess;
}

status infinitebench_sample_make(infinitebench_sample *s, const infinitebench_prompts *p, const prompter *how,
                                 const infinitebench_place *at, err *e)
{
    enum { STEP = 16, MOST = 1 << 28 };
    size_t low = 0, high = MOST, units = 1;
    int64_t left, first;
    TRY(try_units(s, &first, p, how, at, units, e));
    if (first < 0) {
        infinitebench_sample_free(s);
        return err_set(e, ST_USAGE, "--length (or --ctx) %lld: too short for %s, at least %lld tokens",
                       (long long)at->length, infinitebench_tasks[at->task].name, (long long)(at->length - first));
    }
    low = units;
    infinitebench_sample_free(s);
    units += STEP;
    TRY(try_units(s, &left, p, how, at, units, e));
    double unit = (double)(first - left) / STEP;
    if (unit < 1) unit = 1;
    for (;;) {
        if (left >= 0) low = units;
        else high = units;
        if (high == low + 1) break;
        infinitebench_sample_free(s);
        units = next_units(units, left, unit, low, high);
        TRY(try_units(s, &left, p, how, at, units, e));
    }
    if (units == low) return ST_OK;
    infinitebench_sample_free(s);
    return try_units(s, &left, p, how, at, low, e);
}
