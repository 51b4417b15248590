/* SPDX-License-Identifier: MIT */
/* libkvasir-wait, a library of its own that libkvasir names last among those that it needs: the dynamic linker then
 * initializes it before libgomp, which reads its environment at that moment and never again. */
#ifndef API_WAIT_H
#define API_WAIT_H

#include <stdbool.h>

/* True if libkvasir-wait bounded the spin of idle threads in the environment, which libkvasir takes back. */
__attribute__((visibility("default"))) bool kvasir_wait_bounded(void);

#endif
