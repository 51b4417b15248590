/* SPDX-License-Identifier: MIT */
/* Lines of standard input. A terminal edits its lines, keeps their history (with libedit) and reads a pasted text with
 * newlines as one line. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <stdbool.h>

#include "kernels/base/err.h"

typedef struct lines lines;

/* Opens standard input. edit: shows a prompt and edits lines if standard input and standard error are a terminal. */
status lines_open(lines **out, bool edit, err *e);
/* True if lines are edited on a terminal. */
bool lines_edited(const lines *in);
/* Reads a line of any length, valid until the next call; NULL at the end of input. ST_INTERRUPTED without a message
 * after Ctrl-C, which drops the typed text. */
status lines_next(lines *in, const char **line, err *e);
void lines_close(lines *in);

#endif
