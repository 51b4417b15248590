/* SPDX-License-Identifier: MIT */
/* Checks of libkvasir's results, and options of small models. */
#ifndef TESTS_UNIT_LIBRARY_UTIL_H
#define TESTS_UNIT_LIBRARY_UTIL_H

#include <stdio.h>
#include <string.h>

#include "api/kvasir.h"
#include "tests/tap.h"
#include "tests/unit/session_util.h"

enum { MSG = 256 };

static char msg[MSG];

static inline bool good(kvasir_status st, const char *name)
{
    bool yes = st == KVASIR_OK && msg[0] == 0;
    ok(yes, "%s", name);
    if (!yes) printf("#   status %d: %s\n", (int)st, msg);
    return yes;
}

/* Expects an error with `part` in its message. */
static inline bool refused(kvasir_status st, kvasir_status want, const char *part, const char *name)
{
    bool yes = st == want && strstr(msg, part);
    ok(yes, "refused: %s", name);
    if (!yes) printf("#   status %d, want %d: \"%s\", want \"%s\"\n", (int)st, (int)want, msg, part);
    return yes;
}

/* Returns options of a model on one thread, whose sessions have at most ctx tokens. */
static inline kvasir_options small_options(int64_t ctx)
{
    return (kvasir_options){.struct_size = sizeof(kvasir_options),
                            .device = "cpu",
                            .gemm = "builtin",
                            .threads = 1,
                            .batch = 4,
                            .chunk = U_CHUNK,
                            .ctx = ctx};
}

#define MODEL "qwen3-bf16"

/* Returns the folder of a small model; valid until the next but one. */
static inline const char *model_dir(const char *name)
{
    static char rel[2][128];
    static int k;
    char *p = rel[k++ % 2];
    snprintf(p, sizeof rel[0], "tests/data/models/%s", name);
    return tap_path(p);
}

static inline kvasir_model *open_model(const char *name, const kvasir_options *o)
{
    kvasir_model *m;
    good(kvasir_model_load(&m, model_dir(name), o, msg, MSG), name);
    return m;
}

static inline kvasir_session *open_session(kvasir_model *m, const char *strategy, const char *store)
{
    kvasir_session *s;
    good(kvasir_session_create(&s, m, strategy, store, 0, msg, MSG), strategy);
    return s;
}

static inline bool same_logits(const kvasir_session *a, const kvasir_session *b)
{
    const float *x, *y;
    return kvasir_session_logits(a, &x, msg, MSG) == KVASIR_OK && kvasir_session_logits(b, &y, msg, MSG) == KVASIR_OK &&
           memcmp(x, y, U_VOCAB * sizeof *x) == 0;
}

#endif
