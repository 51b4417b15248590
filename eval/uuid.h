/* SPDX-License-Identifier: MIT */
#ifndef EVAL_UUID_H
#define EVAL_UUID_H

#include "kernels/base/rng.h"

enum { UUID_CHARS = 36 };

/* A random UUID (version 4, RFC 4122) in hexadecimal digits. */
void uuid_draw(char out[UUID_CHARS + 1], rng *r);

#endif
