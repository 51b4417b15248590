/* SPDX-License-Identifier: MIT */
/* Typed reads of config.json: each names the file, the key, what was found and what is expected. */
#ifndef MODEL_KEYS_H
#define MODEL_KEYS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "model/model.h"

/* An object of the file; prefix ("rope_scaling." or "") goes before its keys in messages. */
typedef struct {
    json_t *obj;
    const char *file, *prefix;
    err *e;
} keys;

/* Each leaves *out alone when the key is absent or null, so that the caller's default stays. */
status keys_int(const keys *k, const char *key, int64_t lo, int64_t hi, int64_t *out);
status keys_real(const keys *k, const char *key, double lo, double hi, double *out);
status keys_bool(const keys *k, const char *key, bool *out);
status keys_string(const keys *k, const char *key, const char **out);
/* The same for a dimension of the model, 1..hi; absent and *out 0: an error. */
status keys_dim(const keys *k, const char *key, int64_t hi, int *out);
/* An array or object, or NULL. */
status keys_array(const keys *k, const char *key, json_t **out);
status keys_object(const keys *k, const char *key, json_t **out);
/* The error of a value that is not what is expected. */
status keys_wrong(const keys *k, const char *key, const json_t *found, const char *expected);
status keys_missing(const keys *k, const char *key);

/* Reads rope_parameters, rope_scaling and rope_theta; c->head_dim and c->max_positions are set, the
 * latter grows where the scaling extends it. */
status config_read_rope(model_config *c, const keys *root);

#endif
