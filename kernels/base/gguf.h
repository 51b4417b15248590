/* SPDX-License-Identifier: MIT */
/* GGUF files: metadata, a table of tensors, and their data, memory-mapped. Versions 2 and 3, little-endian.
 * Source: ggml, docs/gguf.md. */
#ifndef BASE_GGUF_H
#define BASE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

enum { GGUF_MAX_RANK = 4, GGUF_NAME = 64 };

/* Encodings of tensors that this program decodes; the numbers are ggml's. */
typedef enum {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q5_0 = 6,
    GGUF_Q5_1 = 7,
    GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10,
    GGUF_Q3_K = 11,
    GGUF_Q4_K = 12,
    GGUF_Q5_K = 13,
    GGUF_Q6_K = 14,
    GGUF_IQ4_NL = 20,
    GGUF_IQ4_XS = 23,
    GGUF_BF16 = 30,
    GGUF_MXFP4 = 39,
    GGUF_NVFP4 = 40
} gguf_type;

typedef struct {
    gguf_type type;
    const char *name;         /* as ggml spells it */
    unsigned elements, bytes; /* of a block */
} gguf_encoding;

typedef struct {
    char name[GGUF_NAME];
    const gguf_encoding *encoding;
    size_t rank, shape[GGUF_MAX_RANK]; /* slowest first, as in Hugging Face's files: [out, in] */
    const uint8_t *data;               /* inside the mapping */
    size_t bytes;
} gguf_tensor;

typedef struct gguf gguf;

/* Maps a file and checks its header, its metadata, and the table of tensors: counts, strings and arrays against the
 * size of the file; types, shapes, alignment, range and overlap of the tensors. The data are not read. The mapping
 * lives until gguf_close. Errors: ST_IO; ST_FORMAT and ST_UNSUPPORTED name the file and the key or tensor; ST_NOMEM. */
status gguf_open(gguf **out, const char *path, err *e);
/* The same for memory of the caller (tests, fuzzing); name is used in messages. */
status gguf_open_memory(gguf **out, const uint8_t *data, size_t size, const char *name, err *e);
void gguf_close(gguf *g);

/* True if the file begins with the magic bytes of GGUF; false if it cannot be read. */
bool gguf_is_file(const char *path);

const char *gguf_path(const gguf *g);
size_t gguf_size(const gguf *g); /* of the file, in bytes */

/* ---- tensors, in file order ---- */

size_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name); /* NULL: missing */

/* ---- metadata ---- */

/* These leave *v unchanged if the key is missing. ST_FORMAT names the key: another kind of value, or out of range.
 * Integers and reals of any width are accepted. */
status gguf_int(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, err *e);
/* Reads an integer, or an array of equal integers, one for each layer. ST_UNSUPPORTED: they differ. */
status gguf_equal_ints(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, err *e);
status gguf_real(const gguf *g, const char *key, double lo, double hi, double *v, err *e);
status gguf_bool(const gguf *g, const char *key, bool *v, err *e);
/* *v points into the mapping and is not terminated. */
status gguf_string(const gguf *g, const char *key, const char **v, size_t *n, err *e);
/* *v is a copy, freed with mem_free. ST_FORMAT also for a text that contains U+0000 or more than max bytes. */
status gguf_text(const gguf *g, const char *key, size_t max, char **v, err *e);
bool gguf_has(const gguf *g, const char *key);
bool gguf_is_array(const gguf *g, const char *key);

/* An array, read from its beginning. */
typedef struct {
    const char *key;
    uint32_t kind;
    size_t n; /* number of elements; 0 also for a missing key */
    const uint8_t *at;
} gguf_array;

/* Finds an array of integers, of reals, or of strings. */
status gguf_ints(const gguf *g, const char *key, gguf_array *a, err *e);
status gguf_reals(const gguf *g, const char *key, gguf_array *a, err *e);
status gguf_strings(const gguf *g, const char *key, gguf_array *a, err *e);
/* Return the next element; at most a->n calls. Unsigned integers above INT64_MAX become INT64_MAX. */
int64_t gguf_next_int(gguf_array *a);
double gguf_next_real(gguf_array *a);
const char *gguf_next_string(gguf_array *a, size_t *n);

#endif
