/* SPDX-License-Identifier: MIT */
/* Messages for interfaces that have fields instead of the program's options. */
#ifndef BASE_ERR_NAMES_H
#define BASE_ERR_NAMES_H

#include "kernels/base/err.h"

/* An option of the program and its name in another interface. */
typedef struct {
    const char *option, *field;
} err_name;
/* Replaces the options in a message by their fields. names ends with {0}. */
void err_rename(err *e, const err_name *names);

#endif
