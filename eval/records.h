/* SPDX-License-Identifier: MIT */
/* Records of data files: JSON lines, one JSON array of objects, or CSV. Files are not trusted. */
#ifndef EVAL_RECORDS_H
#define EVAL_RECORDS_H

#include <jansson.h>
#include <stddef.h>

#include "kernels/base/err.h"

typedef struct {
    /* Gets each record, an object that it takes, and where it stands: "x.csv line 3", "x.json record 2". Values of CSV
     * are texts. */
    status (*take)(void *own, json_t *record, const char *where, err *e);
    void *own;
    /* Names of the columns of a CSV file without a line of names, NULL-terminated; NULL: its first line has them. */
    const char *const *columns;
} record_reader;

/* The records of n bytes; a name that ends in ".csv" is CSV (RFC 4180: quotes, quotes within quotes doubled, line ends
 * within quotes). Errors: ST_FORMAT naming file and line or record; those of `take`. */
status records_read(const record_reader *r, const char *name, const char *text, size_t n, err *e);

#endif
