/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/fold.h"

#include <string.h>

void fold_print(FILE *f, const char *text, int at, int indent)
{
    int column = at;
    for (const char *word = text; *word;) {
        int n = (int)strcspn(word, " ");
        if (word > text && column + 1 + n > FOLD_COLUMNS) fprintf(f, "\n%*s", column = indent, "");
        else if (word > text) fputc(' ', f), column++;
        fwrite(word, 1, (size_t)n, f);
        column += n;
        word += n + (word[n] == ' ');
    }
    fputc('\n', f);
}
