/* SPDX-License-Identifier: MIT */
/* What the scheduler tells the race check; in the plain build (no_races.cc) nothing happens. */
#ifndef TESTS_CUSHIM_RACES_H
#define TESTS_CUSHIM_RACES_H

#include "tests/cushim/shim.h"

extern shim_where shim_now;

/* Shared memory that nobody has written yet. */
void races_fresh(const void *p, size_t bytes);
/* Memory that is given back. */
void races_forget(const void *p, size_t bytes);

#endif
