/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/nearest.h"

#include <stdio.h>
#include <string.h>

void nearest_start(nearest *n, const char *text)
{
    *n = (nearest){.text = text, .best = (size_t)-1};
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t nearest_distance(const char *a, size_t m, const char *b, size_t n)
{
    size_t d[NEAREST_MAX + 1][NEAREST_MAX + 1];
    for (size_t i = 0; i <= m; i++)
        for (size_t j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = least(change, least(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[m][n];
}

void nearest_try(nearest *n, const char *name, size_t len)
{
    size_t m = strlen(n->text), longer = m > len ? m : len, limit = longer < 6 ? 1 : longer / 3;
    if (m == 0 || longer > NEAREST_MAX) return;
    size_t d = nearest_distance(n->text, m, name, len);
    /* A single letter would match every other one. */
    if (d > limit || d >= longer || d >= n->best) return;
    n->best = d;
    memcpy(n->name, name, len);
    n->name[len] = 0;
}

void nearest_try_words(nearest *n, const char *words)
{
    for (size_t len; *words; words += len + (words[len] == ' ')) {
        len = strcspn(words, " ");
        nearest_try(n, words, len);
    }
}

const char *nearest_hint(nearest *n)
{
    n->hint[0] = 0;
    if (n->name[0]) snprintf(n->hint, sizeof n->hint, " (did you mean '%s'?)", n->name);
    return n->hint;
}
