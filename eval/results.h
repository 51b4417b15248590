/* SPDX-License-Identifier: MIT */
/* A file of results from which a run that was ended goes on: JSON lines, first the whole configuration of the run, then
 * one object for each result. Each line is on the disk before work on the next begins. A run with the same
 * configuration goes on where the file ends; one with another configuration is refused.
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
    const char *path;            /* NULL: the results are kept in memory alone */
    const char *command;         /* whose file it is */
    const json_t *config;        /* an object; everything that results depend on, and nothing else */
    const json_t *started;       /* an object: what may differ when the run goes on (time, threads, ...) */
    const char *const *identity; /* NULL-terminated: the members that tell results apart */
    comm *ranks;                 /* the first rank has the file, all know its results; NULL: one process only */
} results_options;

/* Opens or creates the file, reads the results in it and cuts an incomplete last line off. The file is locked
 * against a second run. Errors: ST_USAGE for another configuration or command (naming the key that differs, and both
 * values) and for a file that is none of ours, which stays as it is; ST_FORMAT naming the line; ST_IO. */
status results_open(results **out, const results_options *o, err *e);
void results_close(results *r);

/* Of several results with one identity in the file the first counts. */
size_t results_count(const results *r);
/* Returns the result with the identity of `like`, an object with at least these members, which it takes; NULL: missing,
 * or like is NULL. */
const json_t *results_find(const results *r, json_t *like);

/* Takes the line. When this returns ST_OK it is on the disk. On an error (a full disk, say) the file ends with the
 * last whole line. A line whose identity is there already is ST_USAGE. */
status results_add(results *r, json_t *line, err *e);

/* A member as a number; NAN: it is none. And the other way round: a number that JSON cannot hold is null. */
double results_number(const json_t *line, const char *key);
json_t *results_real(double x);
/* Adds x to the list and returns it. Takes both; NULL if one is NULL, or out of memory. */
json_t *results_append(json_t *list, json_t *x);
/* A list of numbers; NULL: out of memory. */
json_t *results_reals(const double *x, size_t n);
/* Adds the members of `more` to o and returns it. Takes both; NULL if one is NULL, or out of memory. */
json_t *results_merge(json_t *o, json_t *more);

/* The path of the first difference between two values ("runs[1].budget") and both sides as text; false: equal. */
bool results_difference(const json_t *a, const json_t *b, char path[96], char left[48], char right[48]);

#endif
