/* SPDX-License-Identifier: MIT */
/* Records of data files: JSON lines, one JSON array of objects, or CSV. The files are untrusted input. */
#ifndef EVAL_RECORDS_H
#define EVAL_RECORDS_H

#include <jansson.h>
#include <stddef.h>

#include "kernels/base/err.h"

typedef struct {
    /* Takes ownership of a record, an object. where: its location, "x.csv line 3" or "x.json record 2". CSV values are
     * texts. */
    status (*take)(void *own, json_t *record, const char *where, err *e);
    void *own;
    /* Column names of a CSV file without a header line, NULL-terminated; NULL: the first line is the header. */
    const char *const *columns;
} record_reader;

/* Reads the records of n bytes. A name that ends in ".csv" is CSV (RFC 4180: fields in quotes may contain doubled
 * quotes and line ends). Errors: ST_FORMAT with file and line or record; those of `take`. */
status records_read(const record_reader *r, const char *name, const char *text, size_t n, err *e);

#endif
