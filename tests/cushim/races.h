/* SPDX-License-Identifier: MIT */
/* Events that the scheduler reports to the race check; in the plain build (no_races.cc) they do nothing. */
#ifndef TESTS_CUSHIM_RACES_H
#define TESTS_CUSHIM_RACES_H

#include "tests/cushim/shim.h"

extern shim_where shim_now;

/* Marks shared memory as not yet written. */
void races_fresh(const void *p, size_t bytes);
/* Marks memory as released. */
void races_forget(const void *p, size_t bytes);

#endif
