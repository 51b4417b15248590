/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"

status cli_parse_size(int64_t *out, const char *text, const char *option, err *e)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end != text && (*end == 'k' || *end == 'K')) v *= 1024, end++;
    else if (end != text && (*end == 'm' || *end == 'M')) v *= 1024 * 1024, end++;
    if (end == text || *end || errno || !(v >= 0 && v <= 1e12) || v != (double)(int64_t)v)
        return err_set(e, ST_USAGE, "%s: '%s' is not a size such as 300, 4k or 1M", option, text);
    *out = (int64_t)v;
    return ST_OK;
}

status cli_split(char ***out, size_t *n, char **store, const char *text, err *e)
{
    *out = NULL;
    *n = 0;
    if (!(*store = mem_strdup(text))) return err_set(e, ST_NOMEM, "out of memory");
    size_t commas = 0;
    for (const char *p = text; *p; p++) commas += *p == ',';
    status st = MEM_NEW(out, commas + 1, e);
    if (st != ST_OK) return st;
    for (char *p = *store; p;) {
        char *comma = strchr(p, ',');
        if (comma) *comma++ = 0;
        (*out)[(*n)++] = p;
        p = comma;
    }
    return ST_OK;
}

status cli_choose(int *out, const char *text, const char *const *words, const char *option, err *e)
{
    char list[160] = "";
    for (*out = 0; text && words[*out] && strcmp(words[*out], text) != 0; ++*out)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", words[*out]);
    return !text || words[*out] ? ST_OK : err_set(e, ST_USAGE, "%s: '%.40s' is not one of:%s", option, text, list);
}

status cli_each(const char *list, status (*take)(void *ctx, const char *word, err *e), void *ctx, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n = 0;
    status st = cli_split(&word, &n, &store, list, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = take(ctx, word[i], e);
    mem_free(word);
    mem_free(store);
    return st;
}

status cli_parse_sizes(int64_t **out, size_t *n, const char *text, const char *def, const char *option, err *e)
{
    char **word = NULL, *store = NULL;
    *out = NULL;
    status st = cli_split(&word, n, &store, text ? text : def, e);
    if (st == ST_OK) st = MEM_NEW(out, *n, e);
    for (size_t i = 0; st == ST_OK && i < *n; i++) st = cli_parse_size(&(*out)[i], word[i], option, e);
    mem_free(word);
    mem_free(store);
    if (st != ST_OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}
