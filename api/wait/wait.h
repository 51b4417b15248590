/* SPDX-License-Identifier: MIT */
/* libkvasir-wait, a separate library. libkvasir names it last among its dependencies, so the dynamic linker initializes
 * it before libgomp. libgomp reads the environment only during its own initialization. */
#ifndef API_WAIT_H
#define API_WAIT_H

#include <stdbool.h>

/* True if libkvasir-wait bounded the spin of idle threads in the environment. libkvasir then restores the
 * environment. */
__attribute__((visibility("default"))) bool kvasir_wait_bounded(void);

#endif
