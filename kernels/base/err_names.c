/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/err_names.h"

#include <stdio.h>
#include <string.h>

/* Returns the field of the option s[0..n), or NULL. */
static const char *field_of(const char *s, size_t n, const err_name *names)
{
    for (; names->option; names++)
        if (strlen(names->option) == n && memcmp(names->option, s, n) == 0) return names->field;
    return NULL;
}

void err_rename(err *e, const err_name *names)
{
    const err before = *e;
    size_t n = 0;
    for (const char *s = before.msg; *s && n < sizeof e->msg - 1;) {
        const size_t len = strncmp(s, "--", 2) == 0 ? strspn(s, "abcdefghijklmnopqrstuvwxyz-") : 0;
        const char *field = len ? field_of(s, len, names) : NULL;
        const size_t most = sizeof e->msg - n;
        n += (size_t)snprintf(e->msg + n, most, "%.*s",
                              field ? (int)strlen(field)
                              : len ? (int)len
                                    : 1,
                              field ? field : s);
        s += len ? len : 1;
    }
}
