/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/spin.h"

#include <stddef.h>
#include <stdlib.h>

/* Measured in doc/results.md. */
static const struct {
    const char *name, *value;
} bounds[] = {{"GOMP_SPINCOUNT", "4000"}, {"KMP_BLOCKTIME", "1"}};

enum { N_BOUNDS = sizeof bounds / sizeof bounds[0] };

bool spin_bound(void)
{
    if (getenv("OMP_WAIT_POLICY")) return false;
    for (size_t i = 0; i < N_BOUNDS; i++)
        if (getenv(bounds[i].name)) return false;
    bool set = true;
    for (size_t i = 0; i < N_BOUNDS; i++) set &= setenv(bounds[i].name, bounds[i].value, 1) == 0;
    return set;
}

void spin_unbound(void)
{
    for (size_t i = 0; i < N_BOUNDS; i++) unsetenv(bounds[i].name);
}
