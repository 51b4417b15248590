/* SPDX-License-Identifier: MIT */
/* Runs in which allocation 1, 2, ... fails in turn, until one goes through:
 *     oom_run o = {0};
 *     while (oom_next(&o)) oom_saw(&o, try_it(&x, &o.e), &x);
 *     oom_ok(&o, 5, "trying it"); */
#ifndef TESTS_UNIT_OOM_H
#define TESTS_UNIT_OOM_H

#include <string.h>

#include "kernels/base/mem.h"
#include "tests/tap.h"

typedef struct {
    long n;
    bool done, bad;
    err e;
} oom_run;

static inline bool oom_next(oom_run *o)
{
    if (o->done || o->n == 20000) return false;
    o->e = (err){0};
    mem_test_fail_at(++o->n);
    return true;
}

/* Records one run. left: address of a pointer that must be NULL after a failure; NULL: none. */
static inline void oom_saw(oom_run *o, status st, const void *left)
{
    const void *p = NULL;
    mem_test_fail_at(0);
    if (left) memcpy(&p, left, sizeof p);
    o->done = st == ST_OK;
    o->bad |= st != ST_OK && (st != ST_NOMEM || o->e.code != st || !o->e.msg[0] || p);
}

/* Checks the runs. least: there must be more allocations than that. */
static inline bool oom_ok(const oom_run *o, long least, const char *what)
{
    return ok(o->done && !o->bad && o->n - 1 > least, "%s: each of %ld failing allocations is ST_NOMEM", what,
              o->n - 1);
}

#endif
