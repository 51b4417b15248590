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

/* Options of a model on one thread, whose sessions have at most ctx tokens. */
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

#endif
