/* SPDX-License-Identifier: MIT */
/* Generates samples of Retrieve.PassKey, Retrieve.Number and Retrieve.KV of any length, as OpenBMB/InfiniteBench does
 * (data/construct_synthetic_dataset.py, commit 89b7855; its pairs of UUIDs are those of lost-in-the-middle's
 * make_kv_retrieval_data.py). The official files have fixed numbers of units (5,220 noise sentences, 2,500 pairs); here
 * as many units as fit. The depths are also the official ones. The noise before the hidden sentence grows in equal
 * steps from none to all. The requested key is number floor(i n / count) of the n pairs. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { PASSKEY, NUMBER_STRING, KV_RETRIEVAL }; /* in the order of infinitebench_tasks */

/* Closes the context and makes the record. */
static status make_record(json_t **root, FILE *context, char **text, const made_place *at, const char *input,
                          const char *answer, err *e)
{
    bool good = context && fclose(context) == 0;
    *root = good ? json_pack("{s:s, s:s, s:s, s:s}", "dataset", infinitebench_tasks[at->dataset].name, "context", *text,
                             "input", input, "answer", answer)
                 : NULL;
    free(*text);
    return *root ? ST_OK : err_set(e, ST_NOMEM, "out of memory for a sample");
}

/* ---- a sentence among noise ---- */

enum { KEY_DIGITS = 5 };

/* Draws five digits. */
static void draw_digits(char key[KEY_DIGITS + 1], rng *r)
{
    for (int i = 0; i < KEY_DIGITS; i++) key[i] = (char)('0' + rng_below(r, 10));
    key[KEY_DIGITS] = 0;
}

/* Extends the digits to ten: five times, a random digit is doubled in place. */
static void double_digits(char key[2 * KEY_DIGITS + 1], rng *r)
{
    for (size_t n = KEY_DIGITS; n < 2 * KEY_DIGITS; n++) {
        size_t i = (size_t)rng_below(r, n);
        memmove(key + i + 1, key + i, n + 1 - i);
    }
}

static status make_hidden(json_t **root, double *depth, const made_place *at, size_t units, err *e)
{
    bool number = at->dataset == NUMBER_STRING;
    rng r = made_rng(at);
    char key[2 * KEY_DIGITS + 1], hidden[128], *text = NULL;
    int64_t last = at->count - 1;
    size_t before = last > 0 ? (size_t)((double)units * (double)at->number / (double)last) : units / 2, n;
    FILE *context = open_memstream(&text, &n);
    draw_digits(key, &r);
    if (number) double_digits(key, &r);
    snprintf(hidden, sizeof hidden,
             number ? "The sequence of digits is %s. Remember it. %s is the sequence of digits.\n"
                    : "The pass key is %s. Remember it. %s is the pass key.\n",
             key, key);
    for (size_t i = 0; context && i <= units; i++) {
        if (i == before) fputs(hidden, context);
        if (i < units) fputs(MADE_NOISE, context);
    }
    *depth = 100.0 * (double)before / (double)units;
    return make_record(root, context, &text, at, number ? "What is the sequence of digits?" : "What is the pass key?",
                       key, e);
}

/* ---- pairs of keys and values ---- */

static status make_pairs(json_t **root, double *depth, const made_place *at, size_t units, err *e)
{
    rng r = made_rng(at);
    char key[UUID_CHARS + 1], value[UUID_CHARS + 1], question[160] = "", answer[UUID_CHARS + 1] = "", *text = NULL;
    size_t asked = (size_t)((double)units * (double)at->number / (double)at->count), n;
    FILE *context = open_memstream(&text, &n);
    if (context) fputs("JSON data:\n{", context);
    for (size_t i = 0; context && i < units; i++) {
        uuid_draw(key, &r);
        uuid_draw(value, &r);
        fprintf(context, "\"%s\": \"%s\"%s", key, value, i + 1 < units ? ", " : "}");
        if (i != asked) continue;
        snprintf(question, sizeof question, "\nKey: \"%s\"\nThe value associated with the specified key is: ", key);
        memcpy(answer, value, sizeof answer);
    }
    *depth = 100.0 * (double)asked / (double)units;
    return make_record(root, context, &text, at, question, answer, e);
}

status infinitebench_generate(json_t **root, double *depth, const made_place *at, size_t units, err *e)
{
    return (at->dataset == KV_RETRIEVAL ? make_pairs : make_hidden)(root, depth, at, units, e);
}
