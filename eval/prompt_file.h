/* SPDX-License-Identifier: MIT */
/* Templates of the user that replace those of a benchmark: a JSON object, data set -> template. Members for other data
 * sets are ignored, so one file may serve several benchmarks. The file is untrusted input. */
#ifndef EVAL_PROMPT_FILE_H
#define EVAL_PROMPT_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "kernels/base/err.h"
#include "kernels/base/sha256.h"

typedef struct {
    const char *name;     /* last component of its path; NULL: no file */
    char sum[SHA256_HEX]; /* SHA-256 of its bytes */
    json_t *texts;
} prompt_file;

/* Reads a table of a benchmark, DIR/NAME in the folder of evaluation data: a JSON object. */
status prompt_table_read(json_t **out, const char *data_dir, const char *name, err *e);
/* Returns the member that an option names. NULL: not found; ST_USAGE lists the members and the nearest name. */
json_t *prompt_table_find(const json_t *table, const char *name, const char *option, err *e);

/* Require prompt_file_close, also after an error; name is borrowed. */
status prompt_file_read(prompt_file *f, const char *path, err *e);
status prompt_file_parse(prompt_file *f, const char *text, size_t n, const char *name, err *e);
void prompt_file_close(prompt_file *f);

/* Returns the template of a data set. It must contain {context} and no fields except `fields`: "{context} {input}".
 * Other braces are text. ST_FORMAT names file and data set. */
status prompt_file_template(const char **out, const prompt_file *f, const char *dataset, const char *fields, err *e);

/* Adds "prompts" (the file's name) and "prompts_sha256" to a run's configuration, and returns it. Takes ownership of
 * config; NULL: out of memory. */
json_t *prompt_file_config(const prompt_file *f, json_t *config);

#endif
