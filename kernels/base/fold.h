/* SPDX-License-Identifier: MIT */
#ifndef BASE_FOLD_H
#define BASE_FOLD_H

#include <stdio.h>

enum { FOLD_COLUMNS = 80 }; /* width of help and tables */

/* Prints text and a newline. The text starts at column `at`, which the caller has reached. Longer lines are folded at
 * spaces; the next ones start at column `indent`. A word that is longer than a line is not divided. */
void fold_print(FILE *f, const char *text, int at, int indent);

#endif
