/* SPDX-License-Identifier: MIT */
/* Folded text. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/fold.h"
#include "tests/tap.h"

/* Returns what fold_print prints after `at` characters; valid until the next call. */
static const char *folded(const char *text, int at, int indent)
{
    static char *out;
    size_t n;
    free(out);
    FILE *f = open_memstream(&out, &n);
    if (!f) return "no memory";
    fprintf(f, "%.*s", at,
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890");
    fold_print(f, text, at, indent);
    fclose(f);
    return out;
}

int main(void)
{
    const char *digits = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890";
    char want[256];
    ok(strcmp(folded("", 0, 2), "\n") == 0, "no text is an empty line");
    ok(strcmp(folded("one two", 3, 2), "012one two\n") == 0, "short text stays on its line");
    snprintf(want, sizeof want, "%.73sone two\n", digits);
    ok(strcmp(folded("one two", 73, 2), want) == 0, "80 columns fit");
    snprintf(want, sizeof want, "%.74sone\n  two\n", digits);
    ok(strcmp(folded("one two", 74, 2), want) == 0, "81 columns do not");
    snprintf(want, sizeof want, "a\n    %s\n    b\n", digits);
    char text[128];
    snprintf(text, sizeof text, "a %s b", digits);
    ok(strcmp(folded(text, 0, 4), want) == 0, "a long word has a line of its own");
    return tap_done();
}
