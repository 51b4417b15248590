/* SPDX-License-Identifier: MIT */
/* Cache files of quantized weights: a header, the weights, and the checksums of their blocks (base/sums.h). Header and
 * length follow from the model and the checksums, so nothing in the file is parsed. */
#ifndef MODEL_WEIGHTS_CACHE_H
#define MODEL_WEIGHTS_CACHE_H

#include "kernels/base/temp_file.h"
#include "kernels/base/sha256.h"
#include "kernels/ops.h"

/* Part of names and headers. Increment it when the format or the quantization rule changes. */
enum { WEIGHTS_CACHE_VERSION = 4, WEIGHTS_CACHE_HEADER = 4096 };

typedef struct {
    dtype type;
    const char *name;       /* of the type, part of the file's name */
    char model[SHA256_HEX]; /* hash of everything that determines the content */
    size_t bytes;           /* bytes of the weights */
} weights_key;

/* A mapped file. The weights follow the header. */
typedef struct {
    unsigned char *map; /* NULL: none */
    size_t map_bytes;
    char *path;
    temp_file temp; /* the cache file while it is written */
} weights_cache;

/* Maps the file of a key in a folder for reading and compares all checksums with n_threads threads. Without an error,
 * map stays NULL if the file is missing, damaged, or has another key; e->msg is set except if it is missing.
 * ST_NOMEM. */
status weights_cache_open(weights_cache *c, const char *dir, const weights_key *key, int n_threads, err *e);
/* Create a file, with disk space reserved for all of it; the folder is created if missing. weights_cache_write writes n
 * bytes of the weights, from any thread. weights_cache_commit maps the file, adds the checksums, and gives it its name.
 * It does not wait for the disk: after a power failure the checksums find what is missing. Errors: ST_IO, ST_NOMEM;
 * after one of weights_cache_commit, map may be set and has the weights. */
status weights_cache_create(weights_cache *c, const weights_key *key, const char *dir, err *e);
status weights_cache_write(weights_cache *c, size_t at, const void *p, size_t n, err *e);
status weights_cache_commit(weights_cache *c, const weights_key *key, int n_threads, err *e);
/* Unmaps the file, and removes it if it was not committed. */
void weights_cache_close(weights_cache *c);

#endif
