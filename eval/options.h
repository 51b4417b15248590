/* SPDX-License-Identifier: MIT */
/* Commands and options that nobody knows, with the nearest name. */
#ifndef EVAL_OPTIONS_H
#define EVAL_OPTIONS_H

#include <argp.h>

#include "kernels/base/err.h"

/* Unknown long options of argv[1..], which argp would report without a hint and in two lines: ST_USAGE. Options may be
 * shortened, as getopt_long has it; what else is wrong is left to argp. */
status options_check(const struct argp_option *options, int argc, char **argv, err *e);
/* To stderr; names ends with NULL. */
void options_unknown_command(const char *found, const char *const *names);

#endif
