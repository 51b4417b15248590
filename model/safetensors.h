/* SPDX-License-Identifier: MIT */
/* The safetensors format (huggingface/safetensors, format.md): a JSON header, then raw tensors. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

enum { ST_MAX_RANK = 8 };

typedef struct {
    const char *name;
    char type[8]; /* as in the file: "F32", "F16", "BF16", "I32", ... */
    size_t rank, shape[ST_MAX_RANK];
    const uint8_t *data; /* inside the mapping */
    size_t bytes;
} st_tensor;

typedef struct st_file st_file;

/* Maps a file and checks its whole header: length (at most 100 MB), JSON, depth, dtypes, shapes, offsets. Tensors must
 * be within the file, without overlaps, gaps or trailing bytes, and their sizes must match. Only the header's pages are
 * read. The mapping and the names of tensors live until st_close. Errors: ST_IO, ST_FORMAT (with file and tensor),
 * ST_NOMEM. */
status st_open(st_file **out, const char *path, err *e);
/* Opens memory owned by the caller, for fuzzing. */
status st_open_memory(st_file **out, const uint8_t *data, size_t size, const char *name, err *e);
void st_close(st_file *f);

size_t st_count(const st_file *f);
const st_tensor *st_at(const st_file *f, size_t i);           /* in file order */
const st_tensor *st_find(const st_file *f, const char *name); /* NULL: no such tensor */
const char *st_path(const st_file *f);
size_t st_size(const st_file *f); /* bytes of the whole file */

#endif
