/* SPDX-License-Identifier: MIT */
/* Bytes and characters of standard input. */
#ifndef CLI_TYPED_H
#define CLI_TYPED_H

#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

#include "kernels/base/err.h"

/* Standard input with the bytes read beyond the last character or line. */
typedef struct {
    char *text;
    size_t at, n, cap; /* at: offset of the next byte */
    bool ended;
} typed_input;

typedef struct {
    wchar_t *c; /* code points */
    size_t n, cap;
} typed_text;

/* Waits for more bytes, after which there is room for one more. ST_INTERRUPTED without a message after Ctrl-C, which
 * drops the bytes. */
status typed_input_more(typed_input *in, err *e);
/* Reads a character; an invalid byte is U+FFFD, and -1 the end of input. Errors as above. */
status typed_read_char(typed_input *in, wchar_t *c, err *e);
/* Appends a pasted text, whose start mark was read, up to its end mark. Its line ends become newlines. */
status typed_read_paste(typed_input *in, typed_text *out, err *e);
status typed_text_add(typed_text *t, wchar_t c, err *e);

#endif
