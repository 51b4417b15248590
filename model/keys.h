/* SPDX-License-Identifier: MIT */
/* Typed reads of config.json. Errors name the file, the key, the value found and the value expected. */
#ifndef MODEL_KEYS_H
#define MODEL_KEYS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "model/model.h"

/* An object in the file. prefix ("rope_scaling." or "") precedes its keys in messages. */
typedef struct {
    json_t *obj;
    const char *file, *prefix;
    err *e;
} keys;

/* Read a value into *out, which keeps the caller's default if the key is absent or null. */
status keys_int(const keys *k, const char *key, int64_t lo, int64_t hi, int64_t *out);
status keys_real(const keys *k, const char *key, double lo, double hi, double *out);
status keys_bool(const keys *k, const char *key, bool *out);
status keys_string(const keys *k, const char *key, const char **out);
/* Reads a dimension of the model, 1..hi. Fails if the key is absent and *out is 0. */
status keys_dim(const keys *k, const char *key, int64_t hi, int *out);
/* Return an array or object in *out, or NULL if the key is absent or null. */
status keys_array(const keys *k, const char *key, json_t **out);
status keys_object(const keys *k, const char *key, json_t **out);
/* Return ST_FORMAT for a value that is not as expected, and for a missing key. */
status keys_wrong(const keys *k, const char *key, const json_t *found, const char *expected);
status keys_missing(const keys *k, const char *key);

/* Reads rope_parameters, rope_scaling and rope_theta. c->head_dim and c->max_positions must be set; the latter grows if
 * scaling extends it. */
status config_read_rope(model_config *c, const keys *root);

/* Reads all keys into *c. family: as of model_config_read. After an error the caller frees *c. */
status config_read_all(model_config *c, const model_family *family, const keys *root);

#endif
