/* SPDX-License-Identifier: MIT */
/* What weights.c, shapes.c and info.c share. Not for other folders. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "kernels/base/sha256.h"
#include "kernels/ops_weights.h"
#include "model/model.h"
#include "model/safetensors.h"

/* Memory behind the weights: model.files. */
typedef struct {
    st_file **shards; /* [n_shards], opened as tensors ask for them */
    size_t n_shards;
    void **copies; /* tensors whose place in the file is not aligned to their type */
    size_t n_copies;
    size_t column_bytes; /* of copies of columns: a rank's part of rows */
    size_t random_bytes; /* model_open_shape: weights that the backend allocated; else 0 */
    void *converted;     /* model_convert: converted matrices, in memory or mapped; else NULL */
    size_t converted_bytes;
    char *cache;         /* the file that they are mapped from; else NULL */
    size_t n_unused;     /* tensors of the opened files that the config does not ask for */
    const model *beside; /* model_convert_beside: whose weights are those that are not in blocks; else NULL */
} model_files;

enum { WEIGHT_NAME = 96 };

/* One weight that the config asks for. */
struct weight_spec {
    char name[WEIGHT_NAME];
    size_t rows, cols; /* of this rank */
    size_t read_rows;  /* rows that one decoded token reads */
    int layer;         /* -1: of no layer */
    bool vector;       /* shape [cols] in the file, else [rows, cols] */
    bool norm;         /* a normalisation's factors */
    weight *slot;
    size_t all_rows, all_cols, first_row, first_col; /* in the file, and where this rank's part begins there */
};

/* Lists the weights of m->config in m->weights. */
status model_list_weights(model *m, size_t rank, size_t ranks, err *e);

/* True if the output matrix is the embedding, and no weight of its own. */
static inline bool head_is_shared(const model *m)
{
    return m->config.tied && !dtype_in_qblocks(m->lm_head.type);
}

/* Returns the end of the weights that m has: the list has a shared output matrix too. */
static inline const weight_spec *weights_end(const model *m)
{
    return m->weights + m->n_weights - head_is_shared(m);
}

static inline size_t weight_size(const weight_spec *w, dtype t)
{
    return weight_bytes(t, w->rows, w->cols);
}

/* Bytes up to the next place where a weight may begin in memory of ours. */
static inline size_t weight_room(const weight_spec *w, dtype t)
{
    return (weight_size(w, t) + 63) / 64 * 64;
}

/* A row of the table of families: what config.json may say, and the blocks of a layer. */
struct model_family {
    const char *arch, *model_type;
    int64_t max_positions; /* where the key is absent */
    int head_dim;          /* where the key is absent; 0: hidden / heads */
    /* Layers that a sliding window binds: none; those of layer_types, else all; those of layer_types, else those from
     * max_window_layers on, if use_sliding_window is true. */
    enum { WINDOW_NEVER, WINDOW_ALL, WINDOW_BY_LAYER } window;
    bool qkv_bias;       /* always; else where attention_bias says so */
    bool attention_bias; /* the key counts, for q, k, v and o */
    bool mlp_bias;       /* the key counts */
    bool qk_norm;
    bool partial_rotary; /* partial_rotary_factor counts */
    bool window_rope;    /* layers with a window may have another rotary embedding */
    /* Kinds of the two blocks of a layer; a layer may lack the second (NULL). */
    const block_kind *(*mixer)(const model_config *c, int layer);
    const block_kind *(*ffn)(const model_config *c, int layer);
};

/* Makes *c, a copy of `from`, own what it points to; after an error it owns nothing. */
status config_copy(model_config *c, const model_config *from, err *e);
/* Fills in n_params, n_kv and kv_window, which need no model. */
status config_count(model_config *c, err *e);

enum { ROPE_TEXT = 512 };
/* Writes the parameters of a rotary embedding, without its width: equal ones have equal texts. */
void rope_text(char out[ROPE_TEXT], const rope_config *r);
/* Adds what of a config decides the numbers. */
void config_hash(sha256 *hash, const model_config *c);
/* Adds name, type, shape and pieces of a weight to a hash: enough to tell it from others without reading it all. */
void weight_hash(sha256 *hash, backend *be, const weight_spec *w);

/* Whether it holds some of the columns only, which are then a copy. */
static inline bool weight_in_columns(const weight_spec *w)
{
    return !w->vector && w->cols < w->all_cols;
}

/* Returns the rows of the output matrix that a rank holds. */
static inline size_t head_rows(const model_config *c, size_t ranks)
{
    return ((size_t)c->vocab + ranks - 1) / ranks;
}

/* Returns the first of them, as ops.h's gather_columns has it. */
static inline size_t head_first(const model_config *c, size_t rank, size_t ranks)
{
    size_t rows = head_rows(c, ranks), first = rows * rank, last = (size_t)c->vocab - rows;
    return first < last ? first : last;
}

#define EMBED_NAME "model.embed_tokens.weight"
#define HEAD_NAME  "lm_head.weight"

/* A model without weights: takes over c (frees it on failure too), which becomes this rank's share. Errors: ST_USAGE
 * where the ranks do not divide the KV heads or the feed-forward. */
status model_create(model **out, model_config *c, const char *name, backend *be, err *e);
/* A model with the weights of m, to be converted one by one (model_files.beside). */
status model_share(model **out, const model *m, err *e);
/* Fills in lm_head (tied: unless it lies in blocks), type and the byte counts once every slot is set. */
void model_finish(model *m);

#endif
