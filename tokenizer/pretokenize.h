/* SPDX-License-Identifier: MIT */
/* Cutting text into pre-tokens by the regular expressions of a tokenizer.json, through PCRE2. */
#ifndef TOKENIZER_PRETOKENIZE_H
#define TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* The published patterns. */
#define PRETOK_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PRETOK_LLAMA3                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                                         \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PRETOK_QWEN2                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                              \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct pretok pretok;

/* What becomes a piece: matches and the gaps between them, or only one of these. */
typedef enum { PRETOK_ISOLATED, PRETOK_GAPS, PRETOK_MATCHES } pretok_keep;

status pretok_create(pretok **out, err *e);
void pretok_free(pretok *p);
/* Adds a stage; each cuts the pieces of the one before. pattern is in the syntax of the reference
 * (Oniguruma); constructs that PCRE2 would read differently are refused. `what` names file and
 * field. Errors: ST_FORMAT for a bad pattern, ST_UNSUPPORTED. */
status pretok_add_regex(pretok *p, const char *pattern, pretok_keep keep, const char *what, err *e);
/* Adds a stage that cuts at a plain string. */
status pretok_add_string(pretok *p, const char *text, pretok_keep keep, const char *what, err *e);
/* Adds a stage that puts a space in front of pieces that do not start with one. */
status pretok_add_prefix_space(pretok *p, const char *what, err *e);

/* Called with each piece, in order; the text lives until it returns. */
typedef status pretok_fn(void *ctx, const char *piece, size_t n, err *e);
/* Cuts valid UTF-8. Errors: those of fn; ST_UNSUPPORTED where a pattern needs too many steps. */
status pretok_run(const pretok *p, const char *text, size_t n, pretok_fn *fn, void *ctx, err *e);

#endif
