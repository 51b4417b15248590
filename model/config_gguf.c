/* SPDX-License-Identifier: MIT */
/* The config of a GGUF file: its metadata become the keys of a config.json, which config.c reads.
 * Source: llama.cpp, gguf-py/gguf/constants.py (keys) and src/llama-model.cpp (meanings and defaults). */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/encoding/encoding.h"
#include "model/keys.h"

enum { ARCH_BYTES = 40, KEY_BYTES = 128 };

#define LONG_FACTORS  "rope_factors_long.weight"
#define SHORT_FACTORS "rope_factors_short.weight"

/* Architectures by the value of general.architecture, and the "model_type" of the same model in a config.json. */
typedef struct {
    const char *arch;
    const char *model_type, *sparse; /* without and with experts; NULL: not supported */
    const char *allowed;             /* key of `refused` that it may have; NULL: none */
    bool partial_rotary;
    bool normalize; /* the factors of the chosen experts */
} gguf_arch;

static const gguf_arch archs[] = {
    {"llama", .model_type = "llama", .sparse = "mixtral", .normalize = true},
    {"qwen2", .model_type = "qwen2"},
    {"qwen2moe", .sparse = "qwen2_moe"},
    {"qwen3", .model_type = "qwen3"},
    {"qwen3moe", .sparse = "qwen3_moe", .normalize = true},
    {"qwen3vl", .model_type = "qwen3"}, /* positions of text are equal on the three axes: plain rotary embeddings */
    {"qwen3vlmoe", .sparse = "qwen3_moe", .normalize = true},
    {"mistral3", .model_type = "ministral3", .allowed = "attention.temperature_scale"},
    {"phi3", .model_type = "phi3", .allowed = "attention.sliding_window", .partial_rotary = true},
};

static const char SUPPORTED[] = "llama, mistral3, phi3, qwen2, qwen2moe, qwen3, qwen3moe, qwen3vl, qwen3vlmoe";

/* Keys of features that architectures do not have here. */
static const char *const refused[] = {"logit_scale",
                                      "embedding_scale",
                                      "residual_scale",
                                      "attention.scale",
                                      "attention.clamp_kqv",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "expert_gating_func",
                                      "expert_weights_norm",
                                      "expert_weights_scale",
                                      "rope.scaling.alpha",
                                      "rope.freq_base_swa",
                                      "attention.sliding_window",
                                      "attention.sliding_window_pattern",
                                      "attention.key_length_mla",
                                      "attention.key_length_swa",
                                      "attention.temperature_scale"};

/* State of a translation. */
typedef struct {
    const gguf *g;
    gguf *const *files; /* [n_files]: with g first */
    size_t n_files;
    const char *arch;
    const gguf_arch *row; /* of arch */
    json_t *out;
    int64_t rotary;  /* rotated channels of a head */
    int64_t experts; /* 0: none */
    err *e;
    char key[KEY_BYTES];
} gguf_keys;

static const char *label(const gguf_keys *k)
{
    return path_tail(gguf_path(k->g));
}

static const char *full(gguf_keys *k, const char *name)
{
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

static status put(const gguf_keys *k, json_t *to, const char *name, json_t *value)
{
    return json_object_set_new(to, name, value) == 0 ? ST_OK : err_set(k->e, ST_NOMEM, "%s: out of memory", label(k));
}

/* Translates a count. 0 as the default: the key is required. */
static status put_count(gguf_keys *k, const char *name, const char *to, int64_t absent, int64_t *v)
{
    *v = absent;
    TRY(gguf_equal_ints(k->g, full(k, name), 1, INT32_MAX, v, k->e));
    if (*v == 0) return err_set(k->e, ST_FORMAT, "%s: %s is missing", label(k), k->key);
    return put(k, k->out, to, json_integer(*v));
}

static status put_rotary(gguf_keys *k, int64_t head_dim)
{
    k->rotary = head_dim;
    TRY(gguf_int(k->g, full(k, "rope.dimension_count"), 1, INT32_MAX, &k->rotary, k->e));
    if (k->rotary == head_dim) return ST_OK;
    if (!k->row->partial_rotary || k->rotary > head_dim)
        return err_set(k->e, ST_UNSUPPORTED, "%s: %s is %lld, only the size of a head, %lld, is supported", label(k),
                       k->key, (long long)k->rotary, (long long)head_dim);
    /* Half a channel more, which the reader drops, protects against rounding. */
    return put(k, k->out, "partial_rotary_factor", json_real(((double)k->rotary + 0.5) / (double)head_dim));
}

static status put_sizes(gguf_keys *k)
{
    int64_t heads, hidden, n, key_length = 0, value_length = 0;
    double eps = 0;
    TRY(put_count(k, "block_count", "num_hidden_layers", 0, &n));
    TRY(put_count(k, "embedding_length", "hidden_size", 0, &hidden));
    TRY(put_count(k, "feed_forward_length", "intermediate_size", 0, &n));
    TRY(put_count(k, "context_length", "max_position_embeddings", 0, &n));
    TRY(put_count(k, "attention.head_count", "num_attention_heads", 0, &heads));
    TRY(put_count(k, "attention.head_count_kv", "num_key_value_heads", heads, &n));
    TRY(gguf_int(k->g, full(k, "attention.value_length"), 1, INT32_MAX, &value_length, k->e));
    TRY(gguf_int(k->g, full(k, "attention.key_length"), 1, INT32_MAX, &key_length, k->e));
    if (value_length && value_length != (key_length ? key_length : hidden / heads))
        return err_set(k->e, ST_UNSUPPORTED, "%s: %s differs from value_length, which is not supported", label(k),
                       k->key);
    if (!key_length && hidden % heads)
        return err_set(k->e, ST_FORMAT, "%s: %s is missing, and %lld heads do not divide embedding_length %lld",
                       label(k), k->key, (long long)heads, (long long)hidden);
    if (!key_length) key_length = hidden / heads;
    TRY(put(k, k->out, "head_dim", json_integer(key_length)));
    TRY(put_rotary(k, key_length));
    TRY(gguf_real(k->g, full(k, "attention.layer_norm_rms_epsilon"), 1e-30, 1, &eps, k->e));
    if (eps == 0) return err_set(k->e, ST_FORMAT, "%s: %s is missing", label(k), k->key);
    return put(k, k->out, "rms_norm_eps", json_real(eps));
}

/* Copies a real number to a config's key if the file has it. */
static status put_real(gguf_keys *k, json_t *to, const char *name, const char *key)
{
    double v = -1;
    TRY(gguf_real(k->g, full(k, name), 0, 1e9, &v, k->e));
    return v >= 0 ? put(k, to, key, json_real(v)) : ST_OK;
}

/* Refuses a factor other than 1. */
static status check_one(gguf_keys *k, const char *name)
{
    double v = 1;
    TRY(gguf_real(k->g, full(k, name), -1e9, 1e9, &v, k->e));
    if (v == 1) return ST_OK;
    return err_set(k->e, ST_UNSUPPORTED, "%s: %s is %g, only 1 is supported", label(k), k->key, v);
}

static status put_yarn(gguf_keys *k, json_t *rope)
{
    double multiplier = 0;
    TRY(check_one(k, "rope.scaling.yarn_ext_factor"));
    TRY(put_real(k, rope, "rope.scaling.yarn_beta_fast", "beta_fast"));
    TRY(put_real(k, rope, "rope.scaling.yarn_beta_slow", "beta_slow"));
    TRY(put_real(k, rope, "rope.scaling.yarn_attn_factor", "attention_factor"));
    TRY(gguf_real(k->g, full(k, "rope.scaling.yarn_log_multiplier"), 0, 1000, &multiplier, k->e));
    if (multiplier == 0) return ST_OK;
    TRY(put(k, rope, "mscale", json_real(1)));
    return put(k, rope, "mscale_all_dim", json_real(multiplier));
}

static const gguf_tensor *find_tensor(const gguf_keys *k, const char *name)
{
    const gguf_tensor *t = NULL;
    for (size_t i = 0; i < k->n_files && !t; i++) t = gguf_find_tensor(k->files[i], name);
    return t;
}

/* Reads a tensor of divisors of the rotary frequencies, to be freed by the caller. NULL: the files lack it. */
static status divisors_of(const gguf_keys *k, const char *name, float **out)
{
    const gguf_tensor *t = find_tensor(k, name);
    const size_t n = (size_t)k->rotary / 2;
    *out = NULL;
    if (!t) return ST_OK;
    if (t->encoding->type != GGUF_F32 || t->rank != 1 || t->shape[0] != n)
        return err_set(k->e, ST_FORMAT, "%s: tensor %s, expected %zu elements of F32", label(k), t->name, n);
    TRY(MEM_NEW(out, n, k->e));
    decode_f32(t->data, n, *out);
    for (size_t i = 0; i < n; i++)
        if (!((*out)[i] >= 1e-6f && (*out)[i] <= 1e9f))
            return err_set(k->e, ST_FORMAT, "%s: tensor %s: a divisor of %g, expected 1e-6 to 1e9", label(k), t->name,
                           (double)(*out)[i]);
    return ST_OK;
}

static status put_factors(const gguf_keys *k, json_t *rope, const char *tensor, const char *key)
{
    float *x;
    json_t *list = json_array();
    TRY(put(k, rope, key, list)); /* takes it, also after an error */
    status st = divisors_of(k, tensor, &x);
    for (int64_t i = 0; x && st == ST_OK && i < k->rotary / 2; i++)
        if (json_array_append_new(list, json_real((double)x[i])) != 0)
            st = err_set(k->e, ST_NOMEM, "%s: out of memory", label(k));
    if (st == ST_OK && !x) st = err_set(k->e, ST_FORMAT, "%s: tensor %s is missing", label(k), tensor);
    mem_free(x);
    return st;
}

/* Translates longrope, whose presence only its tensors show. */
static status put_longrope(gguf_keys *k, json_t *rope)
{
    TRY(put_factors(k, rope, LONG_FACTORS, "long_factor"));
    TRY(put_factors(k, rope, SHORT_FACTORS, "short_factor"));
    return put_real(k, rope, "rope.scaling.attn_factor", "attention_factor");
}

static status put_rope(gguf_keys *k)
{
    double theta = 10000, factor = 0;
    int64_t original = 0;
    char *type = NULL;
    json_t *rope = json_object();
    TRY(put(k, k->out, "rope_parameters", rope)); /* takes it, also after an error */
    TRY(gguf_real(k->g, full(k, "rope.freq_base"), 1.000001, 1e18, &theta, k->e));
    TRY(gguf_real(k->g, full(k, "rope.scale_linear"), 1e-6, 1e6, &factor, k->e));
    TRY(gguf_real(k->g, full(k, "rope.scaling.factor"), 0, 1e6, &factor, k->e));
    TRY(gguf_int(k->g, full(k, "rope.scaling.original_context_length"), 1, INT32_MAX, &original, k->e));
    TRY(gguf_text(k->g, full(k, "rope.scaling.type"), 64, &type, k->e));
    const char *kind = find_tensor(k, LONG_FACTORS) ? "longrope" : type ? type : factor > 0 ? "linear" : "none";
    bool none = strcmp(kind, "none") == 0, yarn = strcmp(kind, "yarn") == 0, longrope = strcmp(kind, "longrope") == 0;
    status st = ST_OK;
    if (!none && !yarn && !longrope && strcmp(kind, "linear") != 0)
        st = err_set(k->e, ST_UNSUPPORTED, "%s: %s is \"%.40s\"; supported: none, linear, yarn, longrope", label(k),
                     k->key, kind);
    if (st == ST_OK) st = put(k, rope, "rope_type", json_string(none ? "default" : kind));
    mem_free(type);
    TRY(st);
    TRY(put(k, rope, "rope_theta", json_real(theta)));
    if (original) TRY(put(k, rope, "original_max_position_embeddings", json_integer(original)));
    TRY(put_real(k, rope, "attention.temperature_scale", "llama_4_scaling_beta"));
    if (longrope) return put_longrope(k, rope);
    TRY(check_one(k, "rope.scaling.attn_factor"));
    if (none) return ST_OK;
    TRY(put(k, rope, "factor", json_real(factor)));
    return yarn ? put_yarn(k, rope) : ST_OK;
}

/* Translates the experts, which are in every layer. As in llama.cpp, the widths have defaults. */
static status put_experts(gguf_keys *k)
{
    int64_t chosen, ffn, n;
    if (k->experts == 0) return ST_OK;
    TRY(put(k, k->out, "num_local_experts", json_integer(k->experts)));
    TRY(put_count(k, "expert_used_count", "num_experts_per_tok", 0, &chosen));
    TRY(put_count(k, "feed_forward_length", "intermediate_size", 0, &ffn));
    const int64_t width = ffn / chosen > 0 ? ffn / chosen : 1;
    TRY(put_count(k, "expert_feed_forward_length", "moe_intermediate_size", width, &n));
    TRY(put_count(k, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", ffn, &n));
    return put(k, k->out, "norm_topk_prob", json_boolean(k->row->normalize));
}

/* Translates the window of architectures that may have one; 0: none. */
static status put_window(gguf_keys *k)
{
    int64_t window = 0;
    if (!gguf_has(k->g, full(k, "attention.sliding_window"))) return ST_OK;
    TRY(gguf_int(k->g, k->key, 0, INT32_MAX, &window, k->e));
    return put(k, k->out, "sliding_window", window ? json_integer(window) : json_null());
}

/* Checks that the vocabulary, if the file has one, has a token for each row of the embedding. */
static status check_tokens(const gguf_keys *k, size_t rows)
{
    gguf_array tokens;
    TRY(gguf_strings(k->g, "tokenizer.ggml.tokens", &tokens, k->e));
    if (tokens.n == 0 || tokens.n == rows) return ST_OK;
    return err_set(k->e, ST_FORMAT, "%s: tensor token_embd.weight has %zu rows, %s has %zu elements", label(k), rows,
                   tokens.key, tokens.n);
}

/* Derives what config.json says from the tensors: size of the vocabulary, a shared output matrix, biases. */
static status put_tensors(gguf_keys *k)
{
    const gguf_tensor *embed = find_tensor(k, "token_embd.weight");
    if (!embed) return err_set(k->e, ST_FORMAT, "%s: tensor token_embd.weight is missing", label(k));
    if (embed->rank == 2) TRY(check_tokens(k, embed->shape[0]));
    TRY(put(k, k->out, "vocab_size", json_integer((json_int_t)embed->shape[0])));
    TRY(put(k, k->out, "tie_word_embeddings", json_boolean(!find_tensor(k, "output.weight"))));
    const bool biased = find_tensor(k, "blk.0.attn_q.bias") || find_tensor(k, "blk.0.attn_qkv.bias");
    TRY(put(k, k->out, "attention_bias", json_boolean(biased)));
    TRY(put(k, k->out, "qkv_bias", json_boolean(biased)));
    return put(k, k->out, "mlp_bias", json_boolean(find_tensor(k, "blk.0.ffn_up.bias") != NULL));
}

/* Files without a whole model, by a key and its value. Source: llama.cpp, gguf-py/gguf/constants.py (GGUFType). */
static const struct {
    const char *key, *value, *what;
} parts[] = {
    {"general.type", "adapter", "a LoRA adapter"},
    {"general.type", "imatrix", "an importance matrix for quantization"},
    {"general.type", "mmproj", "an mmproj file of an image encoder"},
    {"general.architecture", "clip", "an mmproj file of an image encoder"},
    {"general.architecture", "eagle3", "a draft model of the kind EAGLE-3"},
    {"general.architecture", "dflash", "a draft model of the kind DFlash"},
};

static status refuse_part(const gguf_keys *k, const char *key, const char *value, const char *what)
{
    return err_set(k->e, ST_UNSUPPORTED, "%s: %s (%s%s%s), not a whole model; open the model's own file", label(k),
                   what, key, *value ? " is " : "", value);
}

/* Refuses a value of general.type or general.architecture that says what else the file is. */
static status check_value(const gguf_keys *k, const char *key)
{
    char *value = NULL;
    status st = ST_OK;
    TRY(gguf_text(k->g, key, ARCH_BYTES, &value, k->e));
    for (size_t i = 0; value && i < sizeof parts / sizeof *parts; i++)
        if (strcmp(key, parts[i].key) == 0 && strcmp(value, parts[i].value) == 0)
            st = refuse_part(k, key, value, parts[i].what);
    if (st == ST_OK && value && strcmp(key, "general.type") == 0 && strcmp(value, "model") != 0)
        st = err_set(k->e, ST_UNSUPPORTED, "%s: general.type is \"%s\", expected a model", label(k), value);
    mem_free(value);
    return st;
}

/* True if a tensor of the files has a name that begins with these bytes. */
static bool has_prefix(const gguf_keys *k, const char *prefix)
{
    for (size_t i = 0; i < k->n_files; i++)
        for (size_t t = 0; t < gguf_n_tensors(k->files[i]); t++)
            if (strncmp(gguf_tensor_at(k->files[i], t)->name, prefix, strlen(prefix)) == 0) return true;
    return false;
}

/* Refuses files that are not whole models. */
static status check_whole(const gguf_keys *k)
{
    TRY(check_value(k, "general.type"));
    TRY(check_value(k, "general.architecture"));
    if (!has_prefix(k, "")) return refuse_part(k, "no tensors", "", "a vocabulary");
    if (has_prefix(k, "blk.") && !has_prefix(k, "blk.0."))
        return refuse_part(k, "no tensors of blk.0", "", "draft layers for multi-token prediction (mtp)");
    return ST_OK;
}

/* Refuses features that are not supported. */
static status check_features(gguf_keys *k)
{
    TRY(gguf_int(k->g, full(k, "expert_count"), 0, INT32_MAX, &k->experts, k->e));
    if (k->experts > 0 && !k->row->sparse)
        return err_set(k->e, ST_UNSUPPORTED, "%s: architecture %s with %lld experts is not supported", label(k),
                       k->arch, (long long)k->experts);
    if (k->experts == 0 && !k->row->model_type)
        return err_set(k->e, ST_FORMAT, "%s: %s is missing or 0", label(k), k->key);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if ((!k->row->allowed || strcmp(refused[i], k->row->allowed) != 0) && gguf_has(k->g, full(k, refused[i])))
            return err_set(k->e, ST_UNSUPPORTED, "%s: %s is not supported", label(k), k->key);
    return ST_OK;
}

static status translate(gguf_keys *k)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (strcmp(k->arch, archs[i].arch) != 0) continue;
        k->row = &archs[i];
        TRY(check_features(k));
        TRY(put(k, k->out, "model_type", json_string(k->experts ? k->row->sparse : k->row->model_type)));
        TRY(put_sizes(k));
        TRY(put_experts(k));
        TRY(put_window(k));
        TRY(put_rope(k));
        return put_tensors(k);
    }
    return err_set(k->e, ST_UNSUPPORTED, "%s: architecture %s is not supported; supported: %s", label(k), k->arch,
                   SUPPORTED);
}

/* Reads the divisors of the rotary frequencies that files of Llama 3 have in place of its parameters. */
static status read_divisors(model_config *c, const gguf_keys *k)
{
    if (c->divisors) return ST_OK; /* longrope */
    TRY(divisors_of(k, "rope_freqs.weight", &c->divisors));
    c->rope.divisors = c->divisors;
    return ST_OK;
}

status model_config_from_gguf(model_config *c, gguf *const *files, size_t n, err *e)
{
    char *arch = NULL;
    const gguf *g = files[0];
    *c = (model_config){0};
    TRY(gguf_text(g, "general.architecture", ARCH_BYTES, &arch, e));
    gguf_keys k = {.g = g, .files = files, .n_files = n, .arch = arch, .out = json_object(), .e = e};
    status st = check_whole(&k);
    if (st == ST_OK)
        st = arch ? translate(&k) : err_set(e, ST_FORMAT, "%s: general.architecture is missing", label(&k));
    if (st == ST_OK) st = config_read_all(c, NULL, &(keys){k.out, label(&k), "", e});
    if (st == ST_OK) st = read_divisors(c, &k);
    if (st != ST_OK) model_config_free(c);
    json_decref(k.out);
    mem_free(arch);
    return st;
}
