/* SPDX-License-Identifier: MIT */
/* Test Anything Protocol output for C tests. A failed check prints the values and the test continues. */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Each prints one "ok"/"not ok" line; `...` formats the check's name. They return true if the check passed. */
bool ok(bool cond, const char *name, ...) __attribute__((format(printf, 2, 3)));
bool is_int(long long got, long long want, const char *name, ...) __attribute__((format(printf, 3, 4)));
bool is_str(const char *got, const char *want, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* Expects status ST_OK; prints e->msg otherwise. */
bool is_ok(status st, const err *e, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* Expects status `want` and `part` in the message. */
bool is_err(status st, const err *e, status want, const char *part, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Expects sum (got-want)^2 / sum want^2 <= nmse; NaN fails. Prints the worst index. */
bool is_near(const float *got, const float *want, size_t n, double nmse, const char *name, ...)
    __attribute__((format(printf, 5, 6)));

void tap_skip(const char *why, ...) __attribute__((format(printf, 1, 2)));    /* one skipped check */
int tap_skip_all(const char *why, ...) __attribute__((format(printf, 1, 2))); /* before any check; return its value */
/* True if a case marked `extra` is skipped, which is so if $THIN is set. CI sets it under sanitizers, and runs all
 * cases without them. The number of skipped cases is printed after the plan. */
bool tap_leaves_out(bool extra);
int tap_done(void); /* prints the plan; returns the exit status for main */

/* Returns SRCDIR joined with rel, the location of test data (static buffer, four in rotation). */
const char *tap_path(const char *rel);
/* Returns the path of rel in the folder of the optional real data ($KVASIR_DATA, else ../shared/data next to the
 * sources), or NULL if it does not exist. */
const char *tap_data(const char *rel);

#endif
