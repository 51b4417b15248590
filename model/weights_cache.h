/* SPDX-License-Identifier: MIT */
/* Files of quantized weights: one header of known content, then the weights. What such a file must
 * begin with and how long it must be follows from the model, so nothing in it is parsed. */
#ifndef MODEL_WEIGHTS_CACHE_H
#define MODEL_WEIGHTS_CACHE_H

#include "kernels/base/draft.h"
#include "kernels/base/sha256.h"
#include "kernels/ops.h"

/* Part of names and headers: a change of the format or of the rule that chooses codes raises it. */
enum { WEIGHTS_CACHE_VERSION = 1, WEIGHTS_CACHE_HEADER = 4096 };

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

/* The file of a key in a folder, mapped for reading. map stays NULL, without an error, where there is
 * no such file, or (e->msg says why) one that is not of this key. ST_NOMEM. */
status weights_cache_open(weights_cache *c, const char *dir, const weights_key *key, err *e);
/* A new file, mapped for writing, with room on the disk for all of it; the folder is made too. ST_IO.
 * Under its name it is there after weights_cache_commit, which writes it out first. */
status weights_cache_create(weights_cache *c, const weights_key *key, const char *dir, err *e);
status weights_cache_commit(weights_cache *c, err *e);
/* Unmaps, and removes a file that was not committed. */
void weights_cache_close(weights_cache *c);

#endif
