/* SPDX-License-Identifier: MIT */
/* Results as JSON. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>

#include "cli/engine.h"
#include "cli/output.h"

/* Result options of every command; NULL if not given. */
typedef struct {
    const char *command;    /* name of the command */
    const char *json, *csv; /* files of --json and --csv */
    const char *output;     /* file of -o */
    bool quiet, wide;
} result_options;

/* Checks that the files of --json and --csv can be written, before a long run. */
status report_check(const result_options *o, err *e);
/* Writes --json FILE: {"command","version","model","weights","device","threads","options","results":[...]}. Takes
 * options, results and extra, whose keys are added at the top level; options and extra may be NULL. Without a model
 * weights is null; without a backend device and threads are null. */
status report_write(const result_options *o, const engine *g, json_t *options, json_t *results, json_t *extra, err *e);

/* Returns st. After a signal *e also names a --json FILE that was therefore not written. */
status report_check_end(const result_options *o, status st, err *e);

/* Returns the name of a model in results: "built-in", a shape, or the name of its folder without the path. */
json_t *report_model(const char *path);
/* Return the traffic of `steps` decode steps of a sequence between memory and files, and between host and device. */
json_t *tier_json(const tier_counts *c, int64_t steps);
json_t *host_json(const host_counts *c, int64_t steps);
json_t *report_sizes(const int64_t *x, size_t n); /* a list; NULL if out of memory */

#endif
