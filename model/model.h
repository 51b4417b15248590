/* SPDX-License-Identifier: MIT */
/* A model: config.json as data, and weights mapped from safetensors (or random, for benchmarks). */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/gguf.h"
#include "kernels/ops.h"

/* ROPE_NONE: no scaling. ROPE_OFF: no rotation, all frequencies are 0. */
typedef enum { ROPE_NONE, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_OFF } rope_kind;

/* Parameters of the rotary embedding; unused ones are 0. Source: transformers, modeling_rope_utils. */
typedef struct {
    rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn; mscale 0: absent */
    double attention_factor;                             /* yarn, longrope; 0: derived from factor */
    bool truncate;                                       /* yarn: round the correction range */
    int64_t original_max;                                /* trained length, before scaling */
    int head_dim;                                        /* rotated channels */
    const float *divisors;                               /* [head_dim/2]: divide the frequencies; NULL: none */
    double query_beta;                                   /* factor of queries (rope_query_scale); 0: none */
    const float *long_divisors; /* longrope: in place of `divisors` in sequences longer than original_max */
} rope_config;

/* Computes freq [head_dim/2] and the factor on cos and sin for a sequence of seq_len tokens. Only dynamic scaling and
 * longrope depend on seq_len. Values are those of transformers, rounded to float32. */
void rope_frequencies(const rope_config *r, int64_t seq_len, float *freq, float *mscale);

/* Returns the factor of a query at a position: 1 + query_beta ln(1 + floor(pos / original_max)). Source: transformers
 * 5, modeling_ministral3.py, get_llama_4_attn_scale. */
float rope_query_scale(const rope_config *r, int64_t pos);

typedef struct model_family model_family;
typedef struct block_kind block_kind;
typedef struct block block;
typedef struct weight_spec weight_spec;

/* Contents of config.json. With several ranks (comm.h), the heads and the widths of feed-forwards are this
 * rank's. */
typedef struct {
    char arch[48]; /* e.g. "LlamaForCausalLM" */
    int n_layers, n_heads, n_kv_heads, head_dim;
    int hidden, ffn, vocab;
    float rms_eps;
    bool tied; /* the output matrix is the embedding; model_find clears it if the files hold two different matrices */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    float query_gain; /* gain of the norm of queries; that of keys is then 1. 0: q/k norms have weights */
    float post_eps;   /* of the norms of a block's output, before it is added; 0: none */
    /* Logits are logit_cap * tanh(logit * logit_factor / logit_cap); logit_cap 0: they are as the matrix gives them. */
    float logit_factor, logit_cap;
    int n_experts, n_chosen;    /* experts of a layer that has them, and those that a token runs; 0: none */
    int expert_ffn, shared_ffn; /* width of an expert, and of the one that all tokens run; 0: none */
    bool normalize;             /* the factors of the chosen experts add up to 1 */
    int *sparse;                /* [n_layers]: 1 for layers with experts */
    int64_t max_positions;      /* max_position_embeddings; yarn, dynamic: at least trained length x factor */
    int *window;                /* [n_layers]: sliding window of each layer, 0: none */
    int n_kv, *kv_window;       /* number of layers with keys and values, and their windows [n_kv] */
    int rotary, n_ropes; /* rotated channels of a head; number of rotary embeddings: 1, or 2 (window_rope in layers with
                            a window) */
    rope_config rope, window_rope;
    float *divisors; /* rope.divisors, then rope.long_divisors if it has them */
    const model_family *family;
    int64_t n_params, n_active; /* all, and those used for one token (with the whole embedding) */
} model_config;

/* Returns the index of a layer's rotary embedding. 0: rope, 1: window_rope. */
static inline int config_rope_of(const model_config *c, int layer)
{
    return c->n_ropes > 1 && c->window[layer] > 0;
}

/* True if frequencies depend on the length of the sequence. */
static inline bool config_is_dynamic(const model_config *c)
{
    return c->rope.kind == ROPE_DYNAMIC || (c->n_ropes > 1 && c->window_rope.kind == ROPE_DYNAMIC);
}

/* Returns the length by which the frequencies of a sequence of seq_len tokens are chosen, out of at most `limit`.
 * longrope: the limit, so that all rows of a sequence have the same rotation. */
static inline int64_t config_rope_length(const model_config *c, int64_t seq_len, int64_t limit)
{
    return c->rope.kind == ROPE_LONGROPE ? limit : seq_len;
}

/* True if sequences of at most a and b tokens have rows with the same rotation. */
static inline bool config_same_rotation(const model_config *c, int64_t a, int64_t b)
{
    return c->rope.kind != ROPE_LONGROPE || (a > c->rope.original_max) == (b > c->rope.original_max);
}

/* Returns the longest sequence whose frequencies do not depend on its length. */
static inline int64_t config_static_length(const model_config *c)
{
    int64_t n = c->rope.kind == ROPE_DYNAMIC ? c->rope.original_max : INT64_MAX;
    bool second = c->n_ropes > 1 && c->window_rope.kind == ROPE_DYNAMIC;
    return second && c->window_rope.original_max < n ? c->window_rope.original_max : n;
}

/* Reads and checks DIR/config.json. Supports all families and key spellings in the table of doc/usage.md. family: for a
 * family outside that table; NULL: the one named in the file. Errors: ST_IO; ST_FORMAT for a wrong type or value (names
 * the key, the value found and the value expected); ST_UNSUPPORTED for the architecture, rope kind or activation. */
status model_config_read(model_config *c, const char *dir, const model_family *family, err *e);
/* Parses a config from memory, for fuzzing. name: file name in messages. */
status model_config_parse(model_config *c, const char *text, size_t n, const char *name, const model_family *family,
                          err *e);
/* The same from a GGUF file of n parts: the metadata are in the first, tensors in any. */
status model_config_from_gguf(model_config *c, gguf *const *files, size_t n, err *e);
void model_config_free(model_config *c);

typedef struct model model;

struct model {
    model_config config;
    backend *be;                 /* borrowed */
    weight embed_norm;           /* p is NULL if absent */
    weight embed, norm, lm_head; /* tied: lm_head is this rank's rows of embed, maybe quantized */
    block *blocks;               /* [n_blocks] in execution order, with their weights (block.h) */
    size_t n_blocks;
    weight_spec *weights; /* [n_weights] in execution order, the output matrix last (weights.h) */
    size_t n_weights;
    dtype type;          /* type of the large matrices */
    size_t weight_bytes; /* all weights, each counted once; model_convert_copy: only the converted ones */
    size_t memory_bytes; /* part of weight_bytes in memory that no file backs */
    size_t decode_bytes; /* bytes of weights read per decoded token; of the embedding only the row looked up */
    char *name;          /* folder or shape, for reports */
    void *files;         /* mappings or memory of the weights (model_files) */
    bool to_load;        /* model_load has not run */
};

/* Opens a Hugging Face folder: config.json and model.safetensors, or the shards of model.safetensors.index.json. Files
 * are mapped, checked against the config, and read only where touched. With several ranks, each rank maps its rows and
 * copies its columns (of `o` and `down`); every rank has the embedding. Errors name file and tensor. ST_USAGE: the
 * number of ranks does not divide the model, or the ranks have different models. */
status model_open(model **out, const char *dir, backend *be, err *e);
/* Open a folder in two steps. model_find sets the config, types, shapes and byte counts, for plans; it reads and copies
 * no numbers. model_load then loads the weights, and does nothing for a loaded model. After an error of model_load the
 * model can only be closed. family: see model_config_read. */
status model_find(model **out, const char *dir, const model_family *family, backend *be, err *e);
status model_load(model *m, err *e);
/* Type into which matrices are converted at load. */
typedef struct {
    dtype type;         /* DT_COUNT: as in the files; encodings without a kernel as encoding_converted */
    const char *option; /* option that requested it, for messages; NULL: --weights */
    bool plan;          /* compute only the sizes; the model cannot run */
    /* DT_Q8, DT_Q4, and encodings: folder of the cache of quantized weights, which are mapped from there. A missing or
     * foreign file is written first, atomically. NULL: weights are kept in memory. */
    const char *cache_dir;
    /* Takes one line, without newline, about the cache file and its problems. NULL: none. */
    void (*report)(void *ctx, const char *line);
    /* Takes the converted bytes and those of all matrices, on the calling thread; false ends the conversion with
     * ST_INTERRUPTED. NULL: none. */
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} weights_options;

/* Converts the matrices of a model opened from files, once: ST_USAGE if matrices are converted already, which
 * model_open does to encoded ones. Norms and biases keep their type. With DT_Q8 and DT_Q4 so does
 * the embedding, whose rows are only looked up; a tied output matrix is quantized. An unusable cache file costs a
 * warning, not the model. Errors: ST_NOMEM, with the sizes. After an error the model is unchanged or can only be
 * closed. */
status model_convert(model *m, const weights_options *o, err *e);
/* Creates a model with the matrices of m, which are float, converted to DT_Q8 or DT_Q4. It shares all other weights
 * with m, which must outlive it. Its weight_bytes and memory_bytes count only the converted matrices. With plan, m may
 * come from model_find and have any type. Errors: see model_convert; m is unchanged. */
status model_convert_copy(model **out, const model *m, const weights_options *o, err *e);
/* Creates a random model of a known shape ("llama-3.2-1b", "qwen3-30b-a3b", ...) for benchmarks; "NAME:layers=N" has
 * N layers. */
status model_open_shape(model **out, const char *shape, dtype type, uint64_t seed, backend *be, err *e);
/* Returns the config of a known shape, for plans. ST_USAGE: unknown shape or number of layers. */
status model_shape_config(model_config *c, const char *shape, err *e);
void model_close(model *m);
/* Returns the number of multiplications of one token with the matrices of all blocks. */
double model_products(const model *m);

/* Scans all weights and writes the name of the first tensor that is not finite. Opening a model does not scan; sessions
 * scan when logits are not finite. Returns ST_OK and an empty name if all are finite, else ST_FORMAT; ST_NOMEM. */
status model_find_nonfinite(const model *m, char *name, size_t size);

/* Returns the path of the i-th opened file with weights; NULL after the last. */
const char *model_file(const model *m, size_t i);
/* Prints the output of `info`: config, tensors, dtype, files, sizes. */
void model_print_info(const model *m, FILE *f);

#endif
