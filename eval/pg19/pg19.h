/* SPDX-License-Identifier: MIT */
/* `eval pg19`: perplexity against length on books. Source: evals.md 5. */
#ifndef EVAL_PG19_H
#define EVAL_PG19_H

#include "eval/measure.h"
#include "kernels/base/sha256.h"

typedef struct {
    char *name, *title; /* "28988.txt" or "test.jsonl:3"; title: as in the data, else the name without its suffix */
    char *text;         /* NULL after tokenization */
    size_t n;
    char sha256[SHA256_HEX]; /* of text */
    token_list ids;
} pg19_book;

typedef struct {
    pg19_book *book;
    size_t n, cap;
} pg19_books;

/* Reads the first `limit` books of comma-separated files and folders, in order of name within a folder. A file is one
 * text; a .jsonl file has lines {"text": ...} with an optional "short_book_title". Texts are used unchanged and must be
 * UTF-8. Errors: ST_IO, ST_USAGE, ST_FORMAT naming file and line. Call pg19_books_free also after an error. */
status pg19_read(pg19_books *out, const char *data, size_t limit, err *e);
void pg19_books_free(pg19_books *b);

/* Largest root mean square, over tokens, of the difference between the log-likelihoods of the decode path and a chunked
 * pass. It follows from what is rounded after float32 sums in another order, and not from the number of tokens, as the
 * difference of perplexities does. Each limit is at least three times the largest value of SmolLM2-135M (30 layers). */
#define PG19_LIMIT_F32   1e-4 /* nothing is rounded: 4e-6 */
#define PG19_LIMIT_F16   4e-3 /* keys and values to f16: 8e-4 */
#define PG19_LIMIT_BF16  0.1  /* keys and values to bf16 or q8, or operands of prompts to bf16: 3e-2 */
#define PG19_LIMIT_BYTES 0.5  /* activations to 8 bits in one path or both: 0.14 */

typedef enum { PG19_DECODE, PG19_WINDOW, PG19_TRUNCATE } pg19_protocol;
extern const char *const pg19_protocols[]; /* protocol names */

typedef struct {
    run_options run;
    const char *data, *protocol, *max_length, *stride, *tokens, *prompt;
    int limit;
} pg19_options;

typedef struct {
    measure m;
    const pg19_options *o;
    pg19_books books;
    pg19_protocol protocol;
    int64_t *length; /* decode: one entry, the tokens fed; else window lengths */
    size_t n_lengths;
    int64_t stride, tokens; /* stride of windows; maximum tokens of a book, 0: all */
    int64_t prompt;         /* decode: tokens of an unscored prompt, fed in one pass */
    int64_t done, total;    /* tokens of the current book, for the progress bar */
} pg19_run;

/* Returns the result of a row for a book at a length, or NULL. */
const json_t *pg19_result(const pg19_run *r, size_t row, size_t book, int64_t length);

/* Computes and records the missing results of a book. run: a pg19_run. */
status pg19_run_book(void *run, size_t book, err *e);

#endif
