/* SPDX-License-Identifier: MIT */
/* Splits text into pre-tokens by the regular expressions of a tokenizer.json, with PCRE2. */
#ifndef TOKENIZER_PRETOKENIZE_H
#define TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Published patterns. */
#define PRETOK_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PRETOK_LLAMA3                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                                         \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PRETOK_QWEN2                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                              \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct pretok pretok;

/* Pieces that a stage produces: matches and the gaps between them, only gaps, or each match with the gap before it,
 * with the gap after it, or with neighbouring matches. PRETOK_INVERTED is added to one of them: gaps count as matches.
 */
typedef enum {
    PRETOK_ISOLATED,
    PRETOK_GAPS,
    PRETOK_PREVIOUS,
    PRETOK_NEXT,
    PRETOK_CONTIGUOUS,
    PRETOK_INVERTED = 8,
    PRETOK_MATCHES = PRETOK_GAPS | PRETOK_INVERTED,
} pretok_keep;

status pretok_create(pretok **out, err *e);
void pretok_free(pretok *p);
/* Adds a stage, which splits the pieces of the previous one. pattern has the syntax of the reference (Oniguruma);
 * constructs that PCRE2 interprets differently are rejected. `what` names file and field. Errors: ST_FORMAT for an
 * invalid pattern, ST_UNSUPPORTED. */
status pretok_add_regex(pretok *p, const char *pattern, pretok_keep keep, const char *what, err *e);
/* Adds a stage that splits at a literal string. */
status pretok_add_string(pretok *p, const char *text, pretok_keep keep, const char *what, err *e);
/* Adds a stage of SentencePiece: spaces become U+2581, one is inserted before pieces that do not start with it, and
 * `split` cuts before each. */
typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme; /* first: at the start of the text only */
status pretok_add_space_marks(pretok *p, prepend_scheme prepend, bool split, const char *what, err *e);
/* Adds a stage that inserts a space before pieces that do not start with one. */
status pretok_add_prefix_space(pretok *p, const char *what, err *e);

/* Receives each piece, in order. The text is valid during the call. */
typedef status pretok_fn(void *ctx, const char *piece, size_t n, err *e);
/* Splits valid UTF-8. at_start: the text is the start of what is tokenized. Errors: those of fn; ST_UNSUPPORTED if a
 * pattern needs too many steps. */
status pretok_run(const pretok *p, const char *text, size_t n, bool at_start, pretok_fn *fn, void *ctx, err *e);

#endif
