/* SPDX-License-Identifier: MIT */
/* Templates that the user brings in place of a benchmark's own: a JSON object, data set -> template. Members that name
 * other data sets are left alone, so that one file may serve several benchmarks. The file is not trusted. */
#ifndef EVAL_PROMPT_FILE_H
#define EVAL_PROMPT_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "kernels/base/err.h"
#include "kernels/base/sha256.h"

typedef struct {
    const char *name;     /* the last part of its path; NULL: no file */
    char sum[SHA256_HEX]; /* of its bytes */
    json_t *texts;
} prompt_file;

/* Reads a table of a benchmark, DIR/NAME of the folder of evaluation data: a JSON object. */
status prompt_table_read(json_t **out, const char *data_dir, const char *name, err *e);
/* Returns the member that an option names; NULL: ST_USAGE with the names of all members and the nearest one. */
json_t *prompt_table_find(const json_t *table, const char *name, const char *option, err *e);

/* prompt_file_close also after an error; name is borrowed. */
status prompt_file_read(prompt_file *f, const char *path, err *e);
status prompt_file_parse(prompt_file *f, const char *text, size_t n, const char *name, err *e);
void prompt_file_close(prompt_file *f);

/* The template of a data set, which has {context} and no other fields than these: "{context} {input}". Other braces are
 * text. ST_FORMAT names file and data set. */
status prompt_file_template(const char **out, const prompt_file *f, const char *dataset, const char *fields, err *e);

/* Adds the members of a file to a run's configuration and returns it: "prompts", its name, and "prompts_sha256". Takes
 * config; NULL: out of memory. */
json_t *prompt_file_config(const prompt_file *f, json_t *config);

#endif
