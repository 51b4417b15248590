/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "api/wait/wait.h"

#include "kernels/base/spin.h"

static bool bounded;

__attribute__((constructor)) static void before_openmp(void)
{
    bounded = spin_bound();
}

bool kvasir_wait_bounded(void)
{
    return bounded;
}
