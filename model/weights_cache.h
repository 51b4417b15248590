/* SPDX-License-Identifier: MIT */
/* Files of quantized weights: a header, the weights, the checksums of their blocks (base/sums.h). Header and length
 * follow from the model and from these checksums, so nothing in the file is parsed. */
#ifndef MODEL_WEIGHTS_CACHE_H
#define MODEL_WEIGHTS_CACHE_H

#include "kernels/base/draft.h"
#include "kernels/base/sha256.h"
#include "kernels/ops.h"

/* Part of names and headers: a change of the format or of the rule that chooses codes raises it. */
enum { WEIGHTS_CACHE_VERSION = 2, WEIGHTS_CACHE_HEADER = 4096 };

typedef struct {
    dtype type;
    char model[SHA256_HEX]; /* of all that decides the content */
    size_t bytes;           /* of the weights */
} weights_key;

/* A mapped file. `weights` lie `bytes` long behind the header. */
typedef struct {
    unsigned char *map; /* NULL: none */
    size_t map_bytes;
    char *path;
    file_draft draft; /* of a file in the making */
} weights_cache;

/* Maps the file of a key in a folder for reading, and compares all checksums with n_threads threads. map stays NULL,
 * without an error, where there is no such file, or (e->msg says why) a damaged one or one of another key. ST_NOMEM. */
status weights_cache_open(weights_cache *c, const char *dir, const weights_key *key, int n_threads, err *e);
/* A new file, mapped for writing, with room on the disk for all of it; the folder is made too. ST_IO.
 * Under its name it is there after weights_cache_commit, which adds the checksums and writes it out. */
status weights_cache_create(weights_cache *c, const weights_key *key, const char *dir, err *e);
status weights_cache_commit(weights_cache *c, const weights_key *key, err *e);
/* Unmaps, and removes a file that was not committed. */
void weights_cache_close(weights_cache *c);

#endif
