/* SPDX-License-Identifier: MIT */
/* Normalization of text before it is tokenized. */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include <stddef.h>

#include "kernels/base/err.h"

typedef enum {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_PREPEND, /* inserts a text before one that is not empty */
    NORMALIZE_REPLACE, /* replaces a text everywhere */
} normalize_kind;

enum { NORMALIZE_MAX_STEPS = 8 };

typedef struct {
    normalize_kind kind;
    char *from, *to; /* of NORMALIZE_REPLACE; to: also of NORMALIZE_PREPEND */
} normalize_step;

/* Steps that run one after another. Start from {0}. */
typedef struct {
    normalize_step steps[NORMALIZE_MAX_STEPS];
    int n;
} normalizer;

/* Adds a step; from and to are copied and may be NULL where the kind has no use for them. `what` names file and field.
 * Errors: ST_FORMAT for an empty from, ST_UNSUPPORTED for too many steps. */
status normalizer_add(normalizer *z, normalize_kind kind, const char *from, const char *to, const char *what, err *e);
void normalizer_free(normalizer *z);

/* Normalizes valid UTF-8. *out stays NULL if the text does not change; otherwise it is the new text, to be freed with
 * mem_free. Source of the Unicode forms: Unicode Annex 15, through utf8proc. */
status normalizer_run(const normalizer *z, char **out, size_t *n_out, const char *text, size_t n, err *e);
/* Returns also the marks (0 or 1) of the bytes of *out, for text with marks from[0..n); NULL without *out or from.
 * Bytes that normalization does not change keep their marks. A changed run is marked if any of its bytes was. */
status normalizer_run_marked(const normalizer *z, char **out, size_t *n_out, unsigned char **marks, const char *text,
                             size_t n, const unsigned char *from, err *e);

#endif
