/* SPDX-License-Identifier: MIT */
/* Part of libkvasir, which is initialized after libgomp: the host's environment is as it was. */
#include "config.h"

#include "api/wait/wait.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/base/spin.h"

__attribute__((constructor)) static void after_openmp(void)
{
    if (!kvasir_wait_bounded()) return;
#ifdef _OPENMP
    omp_get_max_threads(); /* libomp reads its environment at the first call */
#endif
    spin_unbound();
}
