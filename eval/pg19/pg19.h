/* SPDX-License-Identifier: MIT */
/* `eval pg19`: perplexity against length on books. Source: evals.md 5. */
#ifndef EVAL_PG19_H
#define EVAL_PG19_H

#include "eval/measure.h"
#include "kernels/base/sha256.h"

typedef struct {
    char *name, *title; /* "28988.txt" or "test.jsonl:3"; title: the name without its ending unless the data says one */
    char *text;         /* NULL once it is in tokens */
    size_t n;
    char sha256[SHA256_HEX]; /* of the text */
    token_list ids;
} pg19_book;

typedef struct {
    pg19_book *book;
    size_t n, cap;
} pg19_books;

/* The first `limit` books of files and folders, separated by commas: a file is a text, or where its name ends in
 * .jsonl lines {"text": ...} with maybe "short_book_title"; a folder's files come in the order of their names as
 * strings. Texts are taken as they are and must be UTF-8. Errors: ST_IO, ST_USAGE, ST_FORMAT naming file and line.
 * pg19_books_free also after an error. */
status pg19_read(pg19_books *out, const char *data, size_t limit, err *e);
void pg19_books_free(pg19_books *b);

/* How far they may be apart: float32 sums in another order; a vendor's GEMM rounds activations to bf16. */
#define PG19_LIMIT_BUILTIN 1e-4
#define PG19_LIMIT         1e-3

typedef enum { PG19_DECODE, PG19_WINDOW, PG19_TRUNCATE } pg19_protocol;
extern const char *const pg19_protocols[]; /* their names */

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
    int64_t *length; /* decode: one, tokens fed; else the windows' lengths */
    size_t n_lengths;
    int64_t stride, tokens; /* of windows; most tokens of a book, 0: all */
    int64_t prompt;         /* decode: tokens fed in one prompt, whose values do not count */
    double tolerance;       /* most relative difference of the perplexities of decode path and chunked pass */
    int64_t done, total;    /* tokens of a book, for the bar */
} pg19_run;

/* The result of a row for a book at a length; NULL: there is none. */
const json_t *pg19_result(const pg19_run *r, size_t row, size_t book, int64_t length);

/* Computes what is missing for a book and adds it to the results. run: a pg19_run. */
status pg19_run_book(void *run, size_t book, err *e);

#endif
