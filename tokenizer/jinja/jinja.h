/* SPDX-License-Identifier: MIT */
/* Interpreter of the Jinja subset that chat templates use, in the environment of transformers: jinja2's immutable
 * sandbox with trim_blocks, lstrip_blocks, loop controls, `generation` blocks, tojson, raise_exception, strftime_now.
 * A template reads nothing but its variables and the time. Source: jinja2 3.1 and transformers'
 * utils/chat_template_utils.py, whose output is the reference.
 *
 * Limits: 1 MiB of template, expressions and blocks nested 100 deep, 4,096 names, evaluation nested 1,000 deep (a macro
 * call takes about 6 levels), 10 million evaluated nodes, 100,000 items of a range, 64 MiB of text, 512 MiB of memory
 * per rendering. A template that exceeds a limit is an ST_FORMAT error. Integers have 64 bits; an overflow is an error.
 * Left out: imports, inheritance, recursive loops, filters and methods that no chat template uses.
 * Differences: a name that a block reads before a later `set` of the enclosing block is the variable, not undefined; an
 * unknown filter or test is an error when it is reached, not before. */
#ifndef TOKENIZER_JINJA_H
#define TOKENIZER_JINJA_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct jinja jinja; /* a parsed template: immutable, so several threads may render it */

/* Parses a copy of text[0..n). name is the template's name in messages.
 * Errors: ST_FORMAT as "NAME:LINE: ...", ST_NOMEM; *out is then NULL. */
status jinja_parse(jinja **out, const char *text, size_t n, const char *name, err *e);
void jinja_free(jinja *j);
/* Defines constants: strings of an object that the template reads like variables and that count as its own text.
 * Variables of the same names win. Call it before other threads render the template. */
status jinja_set_constants(jinja *j, const json_t *strings, err *e);

/* Rendered text with the origin of each byte. */
typedef struct {
    char *text; /* UTF-8, followed by a NUL */
    size_t n;
    unsigned char *input; /* [n] 1: the byte is from the variables, 0: from the template */
} jinja_text;

void jinja_text_free(jinja_text *t);

/* Renders the template. variables is a JSON object, whose order of keys counts. now is the time of strftime_now in
 * seconds since the epoch, shown as local time. Strings, numbers and keys of the variables are input, and so is all of
 * tojson's output for a value that is from the variables.
 * Errors: ST_USAGE after raise_exception: out->text is then the whole message of the template, and e has its beginning.
 * ST_FORMAT as "NAME:LINE: ..." for other errors of the template, and ST_NOMEM; *out is then empty. */
status jinja_render(const jinja *j, const json_t *variables, int64_t now, jinja_text *out, err *e);

#endif
