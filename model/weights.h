/* SPDX-License-Identifier: MIT */
/* Declarations shared by the files that load and list weights. Private to model/. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "kernels/base/sha256.h"
#include "kernels/ops_weights.h"
#include "model/model.h"
#include "model/source.h"

/* Memory of the weights: model.files. */
typedef struct {
    tensor_source *source; /* NULL: random weights, or those of another model */
    void **copies;         /* tensors that are not aligned to their type in the file */
    size_t n_copies;
    size_t copied_bytes; /* bytes of copied columns (a rank's part of rows) and of rows in another order */
    size_t random_bytes; /* bytes of weights that the backend allocated (model_open_shape); else 0 */
    void *converted;     /* matrices of model_convert, in memory or mapped; else NULL */
    size_t converted_bytes;
    bool noted;            /* model_convert has reported the types that the backend does not multiply */
    char *cache;           /* path of the cache file from which they are mapped; else NULL */
    size_t n_unused;       /* number of tensors in the opened files that the config does not use */
    const model *original; /* model_convert_copy: model that owns the weights not converted; else NULL */
} model_files;

enum { WEIGHT_NAME = 96 };

/* A tensor of a layer that files may have in place of one for each expert: [experts, parts * rows, columns]. */
typedef struct {
    const char *name; /* NULL: the end of a list */
    size_t part, parts;
} weight_stack;

/* A weight required by the config. */
struct weight_spec {
    char name[WEIGHT_NAME];
    size_t rows, cols; /* of this rank's part */
    size_t read_rows;  /* rows read per decoded token */
    int layer;         /* -1: not in a layer */
    bool vector;       /* shape [cols] in the file, otherwise [rows, cols] */
    bool norm;         /* weights of a norm */
    bool constant;     /* a vector in no file: its elements are `offset` */
    float offset;      /* added to the elements of the files, in f32; a vector of all ranks */
    bool chosen;       /* of an expert: a token reads n_chosen of n_experts of them */
    bool kept;         /* a matrix that keeps the type of the files */
    bool together;     /* a matrix multiplied in one call with the weight before it in the list */
    bool joined;       /* lies in the allocation of the weight before it */
    weight *slot;
    size_t all_rows, all_cols, first_row, first_col; /* shape in the file, and the start of this rank's part */
    char whole[WEIGHT_NAME];                         /* tensor that files may have instead; "": none */
    size_t whole_rows, whole_first;                  /* its rows, and the first of this weight; a bias: elements */
    const weight_stack *stacks;                      /* of an expert's matrix; else NULL */
    size_t expert;                                   /* its index */
    source_tensor from;                              /* in the files; from.data NULL: of no file */
};

/* Lists the weights of m->config in m->weights. */
status model_list_weights(model *m, size_t rank, size_t ranks, err *e);

/* True if the output matrix is the embedding and not a weight of its own. */
static inline bool head_is_shared(const model *m)
{
    if (!m->config.tied || !dtype_in_qblocks(m->lm_head.type)) return m->config.tied;
    return dtype_in_qblocks(m->embed.type) && backend_ranks(m->be) == 1;
}

/* Returns the end of m's own weights. The list also has a shared output matrix, as its last entry. */
static inline const weight_spec *weights_end(const model *m)
{
    return m->weights + m->n_weights - head_is_shared(m);
}

/* Returns the type in memory of an encoded matrix with a backend that multiplies `types` (bits of qblocks). */
dtype weight_converted(const source_tensor *from, unsigned types);

static inline size_t weight_size(const weight_spec *w, dtype t)
{
    return weight_bytes(t, w->rows, w->cols);
}

/* Returns the part of a weight's products that a token needs, on average over the experts. */
static inline double weight_share(const weight_spec *w, const model_config *c)
{
    return w->chosen ? (double)c->n_chosen / c->n_experts : 1;
}

/* Returns the bytes of a weight, rounded up to the alignment of weights in one allocation. */
static inline size_t weight_room(const weight_spec *w, dtype t)
{
    return (weight_size(w, t) + 63) / 64 * 64;
}

/* Returns the type that a weight gets in memory. */
typedef dtype weight_type_fn(const void *ctx, const weight_spec *w);
/* Returns the number of weights from w on, at least 1, that get one allocation: matrices of one call, of one shape and
 * type. Backends that copy weights can then multiply them at once, since each follows the previous one directly. */
size_t weights_joined(const model *m, const weight_spec *w, weight_type_fn *type, const void *ctx);
/* Allocates n such weights of type t. */
status weights_alloc(const model *m, weight_spec *w, size_t n, dtype t, err *e);
/* Frees a weight; one in the allocation of another is freed with it. The weights of an allocation must be released in
 * the order of the list. */
void weight_release(const model *m, weight_spec *w);

/* A row of the table of families: defaults and accepted keys of config.json, and the blocks of a layer. */
struct model_family {
    const char *arch, *model_type;
    int64_t max_positions; /* default if the key is absent */
    int head_dim;          /* default if the key is absent; 0: hidden / heads */
    /* Layers with a sliding window. WINDOW_ALL: those of layer_types; without it, all. WINDOW_BY_LAYER, if
     * use_sliding_window is true: those of layer_types; without it, those from max_window_layers on. WINDOW_OF_FOUR:
     * those of layer_types; without it, those that config_ends_four does not name. */
    enum { WINDOW_NEVER, WINDOW_ALL, WINDOW_BY_LAYER, WINDOW_OF_FOUR } window;
    int64_t window_default; /* sliding_window if the key is absent; 0: none */
    double rms_eps;         /* default if the key is absent; 0: 1e-6 */
    bool qkv_bias;          /* always; otherwise decided by attention_bias */
    bool attention_bias;    /* reads this key, for q, k, v and o */
    bool mlp_bias;          /* reads this key */
    bool fused;             /* files have q, k and v as one tensor, and gate and up as another */
    bool qk_norm;
    bool partial_rotary; /* reads partial_rotary_factor */
    bool query_scale;    /* reads llama_4_scaling_beta, and requires rope_parameters */
    bool longrope;       /* rope kinds "su" and "yarn" are longrope */
    bool window_rope;    /* layers with a window may have another rotary embedding */
    bool still_full;     /* layers without a window have no rotation */
    bool centered;       /* norms of blocks have the gain 1 + weight */
    bool embed_norm;     /* rows of the embedding are normalized, with the gain 1 */
    bool output_gate;    /* attention's output is multiplied by sigmoid(gate_proj(x)) */
    double query_gain, post_eps, logit_factor, logit_cap; /* defaults of these keys; 0: does not read them */
    double theta;                                         /* default of rope_theta; 0: 10000 */
    /* Layers with experts. EXPERTS_ALL: every one; experts are as wide as intermediate_size, and the factors of the
     * chosen ones are normalized. EXPERTS_BY_LAYER: by decoder_sparse_step and mlp_only_layers. */
    enum { EXPERTS_NONE, EXPERTS_ALL, EXPERTS_BY_LAYER } experts;
    int n_experts, n_chosen, expert_ffn, shared_ffn; /* defaults if the keys are absent */
    bool normalized; /* EXPERTS_BY_LAYER: the factors are normalized; does not read norm_topk_prob */
    /* Kinds of the two blocks of a layer; a layer may lack one (NULL). */
    const block_kind *(*mixer)(const model_config *c, int layer);
    const block_kind *(*ffn)(const model_config *c, int layer);
};

/* True for every fourth layer, counted from the last. */
static inline bool config_ends_four(const model_config *c, int layer)
{
    return (c->n_layers - 1 - layer) % 4 == 0;
}

/* Copies a config, including the arrays it owns. After an error *c owns nothing. */
status config_copy(model_config *c, const model_config *from, err *e);
/* Fills in n_params, n_kv and kv_window; needs no model. */
status config_count(model_config *c, err *e);

enum { ROPE_TEXT = 512 };
/* Writes the parameters of a rotary embedding as text, without its width. Equal parameters give equal texts. */
void rope_text(char out[ROPE_TEXT], const rope_config *r);
/* Hashes the fields of a config that determine the model's output. */
void config_hash(sha256 *hash, const model_config *c);
/* Hashes the name, type, shape and pieces of a weight: enough to identify it without reading all of it. */
void weight_hash(sha256 *hash, backend *be, const weight_spec *w);

/* True if this rank has only some of the columns, which are then a copy. */
static inline bool weight_in_columns(const weight_spec *w)
{
    return !w->vector && w->cols < w->all_cols;
}

/* True if a weight is a vector of f32 that differs from the files'. */
static inline bool weight_is_derived(const weight_spec *w)
{
    return w->constant || w->offset != 0;
}

/* True if a weight from files is copied: columns, rows in another order than Hugging Face's, or a transposed matrix. */
static inline bool weight_is_copied(const weight_spec *w)
{
    return weight_in_columns(w) || w->from.head_dim || w->from.across;
}

/* Returns the number of rows of the output matrix per rank. */
static inline size_t head_rows(const model_config *c, size_t ranks)
{
    return ((size_t)c->vocab + ranks - 1) / ranks;
}

/* Returns the first row of the output matrix of a rank, in the layout of ops.h's gather_columns. */
static inline size_t head_first(const model_config *c, size_t rank, size_t ranks)
{
    size_t rows = head_rows(c, ranks), first = rows * rank, last = (size_t)c->vocab - rows;
    return first < last ? first : last;
}

#define EMBED_NAME "model.embed_tokens.weight"
#define HEAD_NAME  "lm_head.weight"

/* Creates a model without weights. Takes ownership of c, also on error; the config becomes this rank's part. Errors:
 * ST_USAGE if the number of ranks does not divide the KV heads or the feed-forward. */
status model_create(model **out, model_config *c, const char *name, backend *be, err *e);
/* Creates a model that shares the weights of m, to be converted one by one. */
status model_share(model **out, const model *m, err *e);
/* Fills in lm_head (if tied and not quantized), type and the byte counts, once every slot is set. */
void model_finish(model *m);

#endif
