/* SPDX-License-Identifier: MIT */
/* Any JSON as a schema, then random bytes under it. A document that is complete is valid. */
#include "config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/machine.h"
#include "grammar/schema.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 4096, STEPS = 200 };

/* Chooses a byte that is allowed in the state `from`, and writes the next state. False: none is. */
static bool step(machine *m, const config_set *from, config_set *to, rng *random, char *byte)
{
    const int first = (int)(rng_float(random) * 256);
    for (int i = 0; i < 256; i++) {
        to->n = 0;
        *byte = (char)(first + i);
        for (size_t k = 0; k < from->n; k++) machine_step(m, &from->at[k], (unsigned char)*byte, to);
        if (to->n) return true;
    }
    return false;
}

static bool may_end(const machine *m, const config_set *s)
{
    bool ends = false;
    for (size_t i = 0; i < s->n; i++) ends |= machine_may_end(m, &s->at[i]);
    return ends;
}

/* Every state goes on or ends, and a complete text is a valid value. */
static void use(const grammar *g, const document *d, const json_t *schema)
{
    config room[2][SET_MAX];
    config_set sets[2] = {{room[0], 0}, {room[1], 0}};
    machine m = {.g = g};
    rng random = {1};
    char text[STEPS];
    if (MEM_ROOM(&m.frames, &m.cap_frames, 2, NULL) != ST_OK) return;
    m.n_frames = 1;
    machine_start(&m, &sets[0]);
    for (size_t i = 0; i < STEPS; i++) {
        config_set *from = &sets[i % 2];
        if (may_end(&m, from)) {
            json_t *v = json_loadb(text, i, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            if (!v || !schema_valid(d, schema, v)) abort();
            json_decref(v);
        }
        if (step(&m, from, &sets[(i + 1) % 2], &random, &text[i])) continue;
        if (!may_end(&m, from)) abort();
        break;
    }
    mem_free(m.frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const schema_options strict = {.root = "$"}, lenient = {.root = "$", .lenient = true};
    if (n > MOST) return 0;
    json_t *schema = json_loadb((const char *)data, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!schema) return 0;
    for (int k = 0; k < 2; k++) {
        grammar *g;
        document d;
        err e = {0};
        const status st = grammar_compile(&g, schema, k, NULL, k ? &lenient : &strict, &e);
        if ((st == ST_OK) != (g != NULL) || (st != ST_OK && (e.code != st || !e.msg[0]))) abort();
        if (!g) continue;
        if (k == 0 && document_check(&d, schema, &strict, NULL) == ST_OK) {
            use(g, &d, schema);
            document_close(&d);
        }
        grammar_drop(g);
    }
    json_decref(schema);
    return 0;
}
