/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/err.h"

#include <stdarg.h>
#include <stdio.h>

#include "kernels/base/utf8.h"

/* Replaces whatever could break a terminal line: messages may quote file contents. */
static void clean_line(char *s)
{
    unsigned char *p = (unsigned char *)s;
    while (*p) {
        int n = utf8_valid_len(p, 4);
        if (n == 0 || *p < 0x20 || *p == 0x7f) {
            *p++ = '?';
        } else if (n == 2 && p[0] == 0xc2 && p[1] < 0xa0) { /* C1 controls */
            *p++ = '?';
            *p++ = '?';
        } else {
            p += n;
        }
    }
}

status err_set(err *e, status code, const char *fmt, ...)
{
    if (e && e->code == ST_OK) {
        va_list ap;
        e->code = code;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        clean_line(e->msg);
    }
    return code;
}
