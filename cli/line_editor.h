/* SPDX-License-Identifier: MIT */
/* Editor of a terminal's lines: libedit with a history, or a plain one with the keys of a terminal. */
#ifndef CLI_LINE_EDITOR_H
#define CLI_LINE_EDITOR_H

#include "cli/typed.h"

typedef struct line_editor line_editor;

status line_editor_open(line_editor **out, typed_input *in, err *e);
/* Reads a line after a prompt, in the modes of lines.c. *end: the end of input. */
status line_editor_read(line_editor *ed, typed_text *line, bool *end, err *e);
/* Adds a line to the history and its file. */
void line_editor_add(line_editor *ed, const char *line);
void line_editor_close(line_editor *ed);

#endif
