/* SPDX-License-Identifier: MIT */
/* Part of libkvasir, initialized after libgomp: restores the host's environment. */
#include "config.h"

#include "api/wait/wait.h"

#include "kernels/base/spin.h"
#include "kernels/cpu/threads.h"

__attribute__((constructor)) static void after_openmp(void)
{
    if (!kvasir_wait_bounded()) return;
    thread_loan loan;
    threads_lend(&loan, 1); /* some runtimes read their environment at the first call */
    threads_return(&loan);
    spin_unbound();
}
