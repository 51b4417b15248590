/* SPDX-License-Identifier: MIT */
/* Sources of tensors: the files of a checkpoint, mapped, with one way to look up a weight. */
#ifndef MODEL_SOURCE_H
#define MODEL_SOURCE_H

#include <stdbool.h>

#include "kernels/ops.h"
#include "model/encoding/encoding.h"
#include "model/encoding/packed.h"
#include "model/model.h"
#include "model/safetensors.h"

/* A tensor where its file is mapped. */
typedef struct {
    const char *name; /* in the file */
    const char *file; /* last components of its path */
    const char *type; /* as spelled in the file: "BF16", "Q4_K" */
    size_t rank, shape[ST_MAX_RANK];
    const uint8_t *data; /* NULL: no tensor */
    size_t bytes;
    dtype element;                 /* of a tensor without encoding; DT_COUNT: of no supported type */
    const gguf_encoding *encoding; /* NULL: not in GGUF's blocks */
    const packed_matrix *packed;   /* NULL: not in codes with scales of their own */
    size_t head_dim; /* rows of heads of this size are interleaved (llama.cpp's order of q and k); 0: not */
    size_t before;   /* rows of the tensor in the file before these; 0: these are its first or all */
    size_t across;   /* elements from one of a row to the next in a transposed matrix; 0: not transposed */
} source_tensor;

/* True if a matrix is not of plain elements, so that model_convert decodes it. */
static inline bool tensor_is_encoded(const source_tensor *t)
{
    return t->encoding || t->packed;
}

/* Returns row r of a matrix, in Hugging Face's order, and the bytes of a row. */
const uint8_t *tensor_row(const source_tensor *t, size_t r, size_t *bytes);

/* Copies n elements of row r of a matrix without encoding, from `first` on. */
void tensor_copy(const source_tensor *t, size_t r, size_t first, size_t n, void *out);

/* A file of a source. */
typedef struct {
    const char *path;
    size_t bytes, n_tensors;
} source_file;

typedef struct tensor_source tensor_source;

/* A kind of source. */
typedef struct {
    const char *config; /* where the config is, for messages */
    const char *format; /* name of the files' format */
    /* Finds the tensor of a weight by its name in Hugging Face's folders. t->data stays NULL if it is missing. */
    status (*find)(tensor_source *s, const char *name, source_tensor *t, err *e);
    /* Returns the size of the heads whose rows are interleaved in a weight; 0: no heads are. NULL: in no weight. */
    size_t (*interleaved)(const tensor_source *s, const char *name);
    /* Records the error for a weight that is missing. */
    status (*missing)(const tensor_source *s, const char *name, err *e);
    /* Refuses a source with tensors that `find` was not asked for; NULL: they are allowed. */
    status (*check_unused)(const tensor_source *s, err *e);
    source_file (*file)(const tensor_source *s, size_t i);
    void (*close)(tensor_source *s);
} source_kind;

struct tensor_source {
    const source_kind *kind;
    size_t n_files; /* opened so far */
};

/* Opens model.safetensors of a folder, or the shards of model.safetensors.index.json as they are needed.
 * Errors: ST_IO, ST_FORMAT, ST_NOMEM. */
status source_open_folder(tensor_source **out, const char *dir, err *e);
/* Takes over an open GGUF file, also after an error, opens the other files of a split one, and reads the config. */
status source_open_gguf(tensor_source **out, model_config *c, gguf *g, err *e);
/* Reads the quantization config of a folder: in config.json or a file of its own. q->method stays NULL without one.
 * Errors: ST_FORMAT; ST_UNSUPPORTED, with the name of the format; ST_NOMEM. */
status packed_read_claims(packed_claims *q, const char *dir, err *e);
/* Reads that of the text of a config.json. *found: it has one. */
status packed_parse_claims(packed_claims *q, const char *text, size_t n, bool *found, err *e);
/* Returns the number of tensors in the opened files. */
size_t source_n_tensors(const tensor_source *s);
/* Closes the files; s may be NULL. */
void source_close(tensor_source *s);

#endif
