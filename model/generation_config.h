/* SPDX-License-Identifier: MIT */
/* Sampling options that a model asks for in its generation_config.json. */
#ifndef MODEL_GENERATION_CONFIG_H
#define MODEL_GENERATION_CONFIG_H

#include <stdbool.h>

#include "model/sampler.h"

enum { GENERATION_TEXT = 160 };

/* Replaces the values of *o that the generation_config.json of a model names. model: its folder, or a file in it.
 * `do_sample` false: temp becomes 0. text[GENERATION_TEXT] describes what the file names, "temp 0.6, top-k 20"; it is
 * empty without a file or keys. Errors: ST_FORMAT names file and key; ST_IO. */
status generation_config_read(sampler_options *o, char *text, const char *model, err *e);

#endif
