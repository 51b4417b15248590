/* SPDX-License-Identifier: MIT */
/* A results file from which an interrupted run resumes: JSON lines, first the whole configuration of the run, then one
 * object per result. Each line is synced to disk before the next answer is computed. A run with the same configuration
 * resumes at the end of the file; another configuration is an error.
 *
 *     {"kvasir": "eval longbench", "config": {...}, "started": {...}}
 *     {"dataset": "qasper", ...} */
#ifndef EVAL_RESULTS_H
#define EVAL_RESULTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/comm.h"

typedef struct results results;

typedef struct {
    const char *path;            /* NULL: results are only kept in memory */
    const char *command;         /* command that writes the file */
    const json_t *config;        /* an object: everything that results depend on, and nothing else */
    const json_t *started;       /* an object: members that may differ in a resumed run (time, threads, ...) */
    const char *const *identity; /* NULL-terminated keys that identify a result */
    comm *ranks;                 /* the first rank has the file and broadcasts its results; NULL: one process */
} results_options;

/* Opens or creates the file, reads its results, and truncates an incomplete last line. The file is locked against a
 * second run. Errors: ST_USAGE for another configuration (naming the first different key and both values), for another
 * command, and for a file without results, which is left unchanged; ST_FORMAT with the line; ST_IO. */
status results_open(results **out, const results_options *o, err *e);
void results_close(results *r);

/* Returns the number of results. Of lines with the same identity, the first counts. */
size_t results_count(const results *r);
/* Return all results in their order, a new list, and the configuration. NULL: out of memory. */
json_t *results_list(const results *r);
json_t *results_config(const results *r);
/* Returns the result with the identity of `like`, an object with at least the identity's members; NULL: missing, or
 * `like` is NULL. Takes ownership of `like`. */
const json_t *results_find(const results *r, json_t *like);

/* Takes ownership of the line and syncs it to disk. On an error (disk full, for example) the file ends with the last
 * complete line. ST_USAGE: a line with this identity exists. */
status results_add(results *r, json_t *line, err *e);

/* Returns a member as a number; NAN: not a number. results_real is the inverse: a number that JSON cannot represent is
 * null. */
double results_number(const json_t *line, const char *key);
json_t *results_real(double x);
/* Appends x to the list and returns the list. Takes ownership of both; NULL if one is NULL, or out of memory. */
json_t *results_append(json_t *list, json_t *x);
/* Returns a list of numbers; NULL: out of memory. */
json_t *results_reals(const double *x, size_t n);
/* Adds the members of `more` to o and returns o. Takes ownership of both; NULL if one is NULL, or out of memory. */
json_t *results_merge(json_t *o, json_t *more);

/* Finds the first difference between two values: its path ("runs[1].budget") and both sides as text. False: equal. */
bool results_difference(const json_t *a, const json_t *b, char path[96], char left[48], char right[48]);

#endif
