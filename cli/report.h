/* SPDX-License-Identifier: MIT */
/* Results as JSON. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>

#include "cli/engine.h"
#include "cli/output.h"

/* Options of every command; NULL where not given. */
typedef struct {
    const char *command;    /* its name */
    const char *json, *csv; /* files of --json and --csv */
    const char *output;     /* file of -o */
    bool quiet;
} result_options;

/* Checks that --json FILE and --csv FILE can be written, before anything runs for hours. */
status report_check(const result_options *o, err *e);
/* --json FILE: {"command","version","model","weights","device","threads","options","results":[...]}; takes
 * options, results and extra, whose keys are added at the top level (options and extra may be NULL;
 * without a model weights is null, without a backend device and threads are). */
status report_write(const result_options *o, const engine *g, json_t *options, json_t *results, json_t *extra, err *e);

/* The name of a model in results: "built-in", a shape, or its folder's name without the path. */
json_t *report_model(const char *path);
/* Traffic between memory and files in `steps` decode steps of a sequence; between host and device. */
json_t *tier_json(const tier_counts *c, int64_t steps);
json_t *host_json(const host_counts *c, int64_t steps);
json_t *report_sizes(const int64_t *x, size_t n); /* a list; NULL when out of memory */

#endif
