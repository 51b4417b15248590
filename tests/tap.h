/* SPDX-License-Identifier: MIT */
/* Test Anything Protocol output for C tests. A failed check prints what it saw and goes on. */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Each prints one "ok"/"not ok" line; `...` formats the check's name. They return whether it held. */
bool ok(bool cond, const char *name, ...) __attribute__((format(printf, 2, 3)));
bool is_int(long long got, long long want, const char *name, ...) __attribute__((format(printf, 3, 4)));
bool is_str(const char *got, const char *want, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* Status ST_OK expected; prints e->msg otherwise. */
bool is_ok(status st, const err *e, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* Status `want` expected and `part` in the message. */
bool is_err(status st, const err *e, status want, const char *part, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* sum (got-want)^2 / sum want^2 <= nmse; NaN fails; prints the worst index. */
bool is_near(const float *got, const float *want, size_t n, double nmse, const char *name, ...)
    __attribute__((format(printf, 5, 6)));

void tap_skip(const char *why, ...) __attribute__((format(printf, 1, 2)));    /* one skipped check */
int tap_skip_all(const char *why, ...) __attribute__((format(printf, 1, 2))); /* before any check; return its value */
/* A case that is left out where $THIN is set: true there. CI sets it under sanitizers, and runs all cases without
 * them. The plan is followed by their number. */
bool tap_leaves_out(bool extra);
int tap_done(void); /* prints the plan; the value main returns */

/* SRCDIR joined with rel (static buffer, four in rotation): where test data lies. */
const char *tap_path(const char *rel);
/* Folder of the optional real data ($KVASIR_DATA, else ../shared/data beside the sources) joined
 * with rel, or NULL if it is not there. */
const char *tap_data(const char *rel);

#endif
