/* SPDX-License-Identifier: MIT */
/* CSV files from outside (RFC 4180): fields with commas, quotes and line ends in quotes; the first record names the
 * columns. */
#ifndef EVAL_CSV_H
#define EVAL_CSV_H

#include <jansson.h>
#include <stddef.h>

#include "kernels/base/err.h"

typedef struct {
    const char *name; /* for messages */
    const char *s;
    size_t size, at;
    size_t number;   /* of the record last given, from 1, without the columns' names */
    json_t *columns; /* their names, once they were read */
    char *room;      /* for a field */
} csv_reader;

/* The next record, of a reader with name, s and size, as an object {column: text}, a new reference; *row NULL: there is
 * none. ST_FORMAT names file, record and column: a quote without its end, another number of fields than columns, two
 * columns of one name, no UTF-8. */
status csv_next(csv_reader *r, json_t **row, err *e);
void csv_close(csv_reader *r);

#endif
