/* SPDX-License-Identifier: MIT */
/* A model: config.json as data, weights mapped from safetensors (or random, for benchmarks). */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/ops.h"

typedef enum { ROPE_NONE, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN } rope_kind;

/* Parameters of the rotary embedding; unused ones are 0. Source: transformers, modeling_rope_utils. */
typedef struct {
    rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn; mscale 0: not given */
    double attention_factor;                             /* yarn; 0: derived from factor */
    bool truncate;                                       /* yarn: round the correction range */
    int64_t original_max;                                /* trained length before scaling */
    int head_dim;                                        /* channels that are rotated */
} rope_config;

/* The frequencies for a sequence of seq_len tokens (dynamic scaling depends on it): freq
 * [head_dim/2], and the factor on cos and sin. As transformers computes them, rounded to float32. */
void rope_frequencies(const rope_config *r, int64_t seq_len, float *freq, float *mscale);

typedef struct model_family model_family;
typedef struct block_kind block_kind;
typedef struct block block;
typedef struct weight_spec weight_spec;

/* In a model of several ranks (comm.h) heads and feed-forward are those of this rank. */
typedef struct {
    char arch[48]; /* e.g. "LlamaForCausalLM" */
    int n_layers, n_heads, n_kv_heads, head_dim;
    int hidden, ffn, vocab;
    float rms_eps;
    bool tied; /* the output matrix is the embedding; model_find clears it if the files hold two different ones */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    int64_t max_positions; /* max_position_embeddings; yarn, dynamic: at least trained length x factor */
    int *window;           /* [n_layers]: sliding window of each layer, 0 for none */
    int n_kv, *kv_window;  /* number of layers with keys and values; [n_kv]: their windows */
    int rotary, n_ropes; /* channels of a head that are rotated; 1, or 2: window_rope is that of layers with a window */
    rope_config rope, window_rope;
    const model_family *family;
    int64_t n_params;
} model_config;

/* Returns the index of a layer's rotary embedding: 0: rope, 1: window_rope. */
static inline int config_rope_of(const model_config *c, int layer)
{
    return c->n_ropes > 1 && c->window[layer] > 0;
}

/* True if frequencies depend on the length of the sequence. */
static inline bool config_is_dynamic(const model_config *c)
{
    return c->rope.kind == ROPE_DYNAMIC || (c->n_ropes > 1 && c->window_rope.kind == ROPE_DYNAMIC);
}

/* Returns the longest sequence whose frequencies do not depend on its length. */
static inline int64_t config_static_length(const model_config *c)
{
    int64_t n = c->rope.kind == ROPE_DYNAMIC ? c->rope.original_max : INT64_MAX;
    bool second = c->n_ropes > 1 && c->window_rope.kind == ROPE_DYNAMIC;
    return second && c->window_rope.original_max < n ? c->window_rope.original_max : n;
}

/* Reads and checks DIR/config.json (all families and key spellings of doc/usage.md's table).
 * Errors: ST_IO, ST_FORMAT (wrong type or value: names the key, what was found, what is expected),
 * ST_UNSUPPORTED (architecture, rope kind, activation). family: one that the table lacks; NULL: the one that the file
 * names. */
status model_config_read(model_config *c, const char *dir, const model_family *family, err *e);
/* The same from memory (fuzzing); name stands for the file in messages. */
status model_config_parse(model_config *c, const char *text, size_t n, const char *name, const model_family *family,
                          err *e);
void model_config_free(model_config *c);

typedef struct model model;

struct model {
    model_config config;
    backend *be;                 /* borrowed */
    weight embed, norm, lm_head; /* tied: lm_head equals embed, or is embed in blocks; a rank has some rows of it */
    block *blocks;               /* [n_blocks] in the order of the computation, with their weights (block.h) */
    size_t n_blocks;
    weight_spec *weights; /* [n_weights] in the order of the computation, the output matrix last (weights.h) */
    size_t n_weights;
    dtype type;          /* of the large matrices */
    size_t weight_bytes; /* all weights, counted once; of model_convert_beside: its own */
    size_t memory_bytes; /* of these, in memory that no file backs */
    size_t decode_bytes; /* weights that one decoded token reads: all but embedding rows not looked up */
    char *name;          /* folder or shape, for reports */
    void *files;         /* mappings or memory behind the weights */
    void *source;        /* where model_load finds them; NULL: they are there */
};

/* Opens a Hugging Face folder: config.json and model.safetensors, or the shards of
 * model.safetensors.index.json; mapped, checked against the config, read only where touched. Of several ranks each maps
 * its rows and copies its columns (of `o` and `down`); all have the embedding. Errors name file and tensor; ST_USAGE:
 * ranks do not divide the model, or have different ones. */
status model_open(model **out, const char *dir, backend *be, err *e);
/* The same in two steps. What model_find gives has config, types, shapes and byte counts, for plans, and no numbers:
 * nothing is read or copied before model_load, which does nothing for a model that is whole, and after which an error
 * leaves one that can only be closed. family: as of model_config_read. */
status model_find(model **out, const char *dir, const model_family *family, backend *be, err *e);
status model_load(model *m, err *e);
/* How matrices are to be held, if not as they lie in the files. */
typedef struct {
    dtype type;
    const char *option; /* that asked for it, for messages; NULL: --weights */
    bool plan;          /* only the sizes: the model cannot run then */
    /* DT_Q8, DT_Q4: folder of files that hold quantized weights. They are mapped from there; a file that
     * is not there or not of this model is made first, whole or not at all. NULL: memory. */
    const char *cache_dir;
    /* One line, without its end, about the file and what was wrong with it; NULL: not wanted. */
    void (*say)(void *ctx, const char *line);
    void *ctx;
} weights_options;

/* Converts the matrices of a model that was opened from files. Norms and biases stay as they are, and
 * with DT_Q8 and DT_Q4 so does the embedding, whose rows are only looked up; a tied output matrix is
 * quantized. A cache that cannot be used costs a line, not the model.
 * Errors: ST_NOMEM, with the numbers. The model is as it was, or can only be closed. */
status model_convert(model *m, const weights_options *o, err *e);
/* The same model with matrices of DT_Q8 or DT_Q4 made of m's, which are float, beside m: what is not converted is
 * m's, which outlives it. Its weight_bytes and memory_bytes are those of the converted matrices alone. With plan, m may
 * be one that model_find gave, in any type. Errors: as model_convert; m stays as it was. */
status model_convert_beside(model **out, const model *m, const weights_options *o, err *e);
/* A random model of a known shape ("llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", ...) for benchmarks. */
status model_open_shape(model **out, const char *shape, dtype type, uint64_t seed, backend *be, err *e);
/* The config alone, for plans. ST_USAGE: unknown shape. */
status model_shape_config(model_config *c, const char *shape, err *e);
void model_close(model *m);
/* Returns the multiplications of one token with the matrices of all blocks. */
double model_products(const model *m);

/* Scans all weights and names the first tensor that is not finite. Opening a model does not: sessions scan once logits
 * are not finite. ST_OK and an empty name when all are finite, else ST_FORMAT; ST_NOMEM. */
status model_find_nonfinite(const model *m, char *name, size_t size);

/* Prints what `info` shows: config, tensors, dtype, files, sizes. */
void model_print_info(const model *m, FILE *f);

#endif
