/* SPDX-License-Identifier: MIT */
/* Values of options. Errors name the option. */
#ifndef CLI_VALUES_H
#define CLI_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* Number with a computed default, unless it was given. */
typedef struct {
    uint64_t value;
    bool given;
} seed_option;

/* Strings of a repeatable option. */
typedef struct {
    const char *text[8];
    int n;
} text_options;

/* Parses a size such as "4k" (4096), "1M" (1048576) or "300". */
status cli_parse_size(int64_t *out, const char *text, const char *option, err *e);
/* Parses a comma-separated list of sizes into *out (mem_free). text NULL: the default def. */
status cli_parse_sizes(int64_t **out, size_t *n, const char *text, const char *def, const char *option, err *e);
/* Splits text at commas into strings that live in *store (mem_free both). */
status cli_split(char ***out, size_t *n, char **store, const char *text, err *e);
/* Sets *out to the index of a word in `words`, which end with NULL; text NULL: 0. ST_USAGE names the option. */
status cli_choose(int *out, const char *text, const char *const *words, const char *option, err *e);
/* Calls `take` for each word of a comma-separated list until the first error. */
status cli_each(const char *list, status (*take)(void *ctx, const char *word, err *e), void *ctx, err *e);

#endif
