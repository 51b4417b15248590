/* SPDX-License-Identifier: MIT */
/* config.json of the supported families. Source: transformers 5, models/{llama,mistral,ministral,ministral3,
 * qwen2,qwen3,phi3,mixtral,qwen2_moe,qwen3_moe,qwen3_vl,qwen3_vl_moe,muse_glimmer}: configuration_*.py (keys and
 * defaults) and modeling_*.py (their meaning). */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "model/block.h"
#include "model/keys.h"

enum {
    LAYERS_MAX = 4096,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 256, /* limit of kernels/ops.h */
    HIDDEN_MAX = 1 << 20,
    FFN_MAX = 1 << 22,
    VOCAB_MAX = 1 << 24,
    EXPERTS_MAX = 4096,
    CONFIG_BYTES_MAX = 16 << 20,
    CONFIG_DEPTH = 32
};

static const block_kind *attention(const model_config *c, int layer)
{
    (void)c, (void)layer;
    return &block_attention;
}

static const block_kind *swiglu(const model_config *c, int layer)
{
    (void)c, (void)layer;
    return &block_swiglu;
}

static const block_kind *experts(const model_config *c, int layer)
{
    return c->sparse[layer] ? &block_moe : &block_swiglu;
}

#define DENSE  .mixer = attention, .ffn = swiglu
#define SPARSE .mixer = attention, .ffn = experts

static const model_family families[] = {
    {"LlamaForCausalLM", "llama", 2048, 0, WINDOW_NEVER, .attention_bias = true, .mlp_bias = true, DENSE},
    {"MistralForCausalLM", "mistral", 131072, 0, WINDOW_ALL, .window_default = 4096, DENSE},
    {"MinistralForCausalLM", "ministral", 131072, 0, WINDOW_ALL, .window_default = 4096, DENSE},
    {"Qwen2ForCausalLM", "qwen2", 32768, 0, WINDOW_BY_LAYER, .window_default = 4096, .qkv_bias = true, DENSE},
    {"Qwen3ForCausalLM", "qwen3", 32768, 128, WINDOW_BY_LAYER, .window_default = 4096, .attention_bias = true,
     .qk_norm = true, DENSE},
    {"Ministral3ForCausalLM", "ministral3", 262144, 128, WINDOW_ALL, .rms_eps = 1e-5, .query_scale = true, DENSE},
    {"Phi3ForCausalLM", "phi3", 4096, 0, WINDOW_ALL, .rms_eps = 1e-5, .fused = true, .partial_rotary = true,
     .longrope = true, DENSE},
    {"MixtralForCausalLM", "mixtral", 131072, 0, WINDOW_ALL, .rms_eps = 1e-5, .theta = 1e6, .experts = EXPERTS_ALL,
     .n_experts = 8, .n_chosen = 2, SPARSE},
    {"Qwen2MoeForCausalLM", "qwen2_moe", 32768, 0, WINDOW_BY_LAYER, .window_default = 4096, .qkv_bias = true,
     .experts = EXPERTS_BY_LAYER, .n_experts = 60, .n_chosen = 4, .expert_ffn = 1408, .shared_ffn = 5632, SPARSE},
    {"Qwen3MoeForCausalLM", "qwen3_moe", 32768, 0, WINDOW_BY_LAYER, .window_default = 4096, .attention_bias = true,
     .qk_norm = true, .experts = EXPERTS_BY_LAYER, .n_experts = 128, .n_chosen = 8, .expert_ffn = 768, SPARSE},
    {"Qwen3VLForCausalLM", "qwen3_vl_text", 128000, 128, WINDOW_NEVER, .theta = 5e5, .attention_bias = true,
     .qk_norm = true, DENSE},
    {"Qwen3VLMoeForCausalLM", "qwen3_vl_moe_text", 128000, 0, WINDOW_NEVER, .theta = 5e5, .attention_bias = true,
     .qk_norm = true, .experts = EXPERTS_BY_LAYER, .n_experts = 60, .n_chosen = 4, .expert_ffn = 1408,
     .normalized = true, SPARSE},
    {"MuseGlimmerForCausalLM", "muse_glimmer_text", 131072, 128, WINDOW_OF_FOUR, .window_default = 2048,
     .rms_eps = 1e-5, .attention_bias = true, .qk_norm = true, .still_full = true, .centered = true, .embed_norm = true,
     .output_gate = true, .query_gain = 3.87, .post_eps = 1e-8, .logit_factor = 0.19611613513818404, .logit_cap = 20,
     DENSE},
};

/* True if `name` is the family's class. The class without output matrix (...Model) also counts: AutoModel's
 * save_pretrained writes it with the same config. */
static bool is_arch(const char *name, const model_family *f)
{
    size_t stem = strlen(f->arch) - strlen("ForCausalLM");
    return strcmp(name, f->arch) == 0 || (strncmp(name, f->arch, stem) == 0 && strcmp(name + stem, "Model") == 0);
}

static status look_up(const model_family **out, const keys *k, const char *key, const char *name, bool by_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const model_family *f = &families[i];
        if (by_type ? strcmp(name, f->model_type) != 0 : !is_arch(name, f)) continue;
        *out = f;
        return ST_OK;
    }
    return err_set(k->e, ST_UNSUPPORTED,
                   "%s: \"%s\" is %.60s; supported: Llama, Mistral, Ministral, Ministral3, Qwen2, "
                   "Qwen3, Phi3, Mixtral, Qwen2Moe, Qwen3Moe (...ForCausalLM); Mistral3, Qwen3VL, Qwen3VLMoe, "
                   "MuseGlimmer (...ForConditionalGeneration)",
                   k->file, key, name);
}

/* Finds the family. If "model_type" and the first of "architectures" differ, "model_type" decides, as in transformers'
 * AutoModel. */
static status find_family(const model_family **out, const keys *k)
{
    json_t *list;
    const char *type = NULL;
    TRY(keys_array(k, "architectures", &list));
    TRY(keys_string(k, "model_type", &type));
    const json_t *first = json_array_get(list, 0);
    if (first && !json_is_string(first)) return keys_wrong(k, "architectures[0]", first, "a string");
    if (!first && !type) return keys_missing(k, "architectures");
    if (first) TRY(look_up(out, k, "architectures", json_string_value(first), false));
    return type ? look_up(out, k, "model_type", type, true) : ST_OK;
}

/* Rejects settings that change the results and are not implemented. */
static status refuse_unsupported(const keys *k)
{
    static const char *const names[] = {"hidden_act", "hidden_activation"}; /* the second: Muse Glimmer */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *act = "silu";
        TRY(keys_string(k, names[i], &act));
        if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) /* two names of one function */
            return err_set(k->e, ST_UNSUPPORTED, "%s: \"%s\" is \"%.40s\"; supported: silu", k->file, names[i], act);
    }
    const json_t *chunks = json_object_get(k->obj, "dual_chunk_attention_config");
    if (chunks && !json_is_null(chunks))
        return err_set(k->e, ST_UNSUPPORTED,
                       "%s: \"dual_chunk_attention_config\" is not supported; remove it to run plain attention",
                       k->file);
    return ST_OK;
}

static status read_head_dim(model_config *c, const model_family *f, const keys *k)
{
    int64_t n = json_object_get(k->obj, "head_dim") ? 0 : f->head_dim;
    TRY(keys_int(k, "head_dim", 1, HIDDEN_MAX, &n));
    if (n == 0) {
        if (c->hidden % c->n_heads)
            return err_set(k->e, ST_FORMAT,
                           "%s: \"hidden_size\" %d is not a multiple of \"num_attention_heads\" "
                           "%d, and \"head_dim\" is missing",
                           k->file, c->hidden, c->n_heads);
        n = c->hidden / c->n_heads;
    }
    if (n % 2 || n > HEAD_DIM_MAX)
        return err_set(k->e, ST_UNSUPPORTED,
                       "%s: \"head_dim\" (given or hidden_size / num_attention_heads) "
                       "is %lld; supported: even numbers up to %d",
                       k->file, (long long)n, HEAD_DIM_MAX);
    c->head_dim = (int)n;
    return ST_OK;
}

static status read_dims(model_config *c, const model_family *f, const keys *k)
{
    double eps = f->rms_eps > 0 ? f->rms_eps : 1e-6;
    TRY(keys_dim(k, "num_hidden_layers", LAYERS_MAX, &c->n_layers));
    TRY(keys_dim(k, "hidden_size", HIDDEN_MAX, &c->hidden));
    TRY(keys_dim(k, "intermediate_size", FFN_MAX, &c->ffn));
    TRY(keys_dim(k, "vocab_size", VOCAB_MAX, &c->vocab));
    TRY(keys_dim(k, "num_attention_heads", HEADS_MAX, &c->n_heads));
    c->n_kv_heads = c->n_heads;
    TRY(keys_dim(k, "num_key_value_heads", HEADS_MAX, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads)
        return err_set(k->e, ST_FORMAT,
                       "%s: \"num_attention_heads\" %d is not a multiple of "
                       "\"num_key_value_heads\" %d",
                       k->file, c->n_heads, c->n_kv_heads);
    TRY(read_head_dim(c, f, k));
    TRY(keys_real(k, "rms_norm_eps", 1e-30, 1, &eps));
    c->rms_eps = (float)eps;
    c->max_positions = f->max_positions;
    return keys_int(k, "max_position_embeddings", 1, INT32_MAX, &c->max_positions);
}

static status read_switches(model_config *c, const model_family *f, const keys *k)
{
    bool bias = false, qkv_bias = f->qkv_bias;
    TRY(keys_bool(k, "tie_word_embeddings", &c->tied));
    if (f->attention_bias) TRY(keys_bool(k, "attention_bias", &bias));
    if (f->mlp_bias) TRY(keys_bool(k, "mlp_bias", &c->mlp_bias));
    if (f->qkv_bias && f->experts) TRY(keys_bool(k, "qkv_bias", &qkv_bias));
    c->qkv_bias = qkv_bias || bias;
    c->o_bias = bias;
    c->qk_norm = f->qk_norm;
    return ST_OK;
}

/* Reads a factor or an eps, if the family has it. */
static status read_number(float *out, const keys *k, const char *key, double usual)
{
    double x = usual;
    if (usual > 0) TRY(keys_real(k, key, 1e-30, 1e6, &x));
    *out = (float)x;
    return ST_OK;
}

static status read_numbers(model_config *c, const model_family *f, const keys *k)
{
    TRY(read_number(&c->query_gain, k, "qk_scale_factor", f->query_gain));
    TRY(read_number(&c->post_eps, k, "post_norm_eps", f->post_eps));
    TRY(read_number(&c->logit_factor, k, "output_multiplier", f->logit_factor));
    return read_number(&c->logit_cap, k, "final_logit_softcapping", f->logit_cap);
}

/* Sets the window of each layer. layer_types decides if present; otherwise layers from `first` on have a window.
 * transformers' AutoModel reads Mistral with layer_types as Ministral. */
static status read_layer_windows(model_config *c, const keys *k, int64_t window, int64_t first)
{
    json_t *types;
    TRY(keys_array(k, "layer_types", &types));
    if (types && json_array_size(types) != (size_t)c->n_layers)
        return err_set(k->e, ST_FORMAT, "%s: \"layer_types\" has %zu entries, expected one for each of %d layers",
                       k->file, json_array_size(types), c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const json_t *t = json_array_get(types, (size_t)i);
        const char *s = json_string_value(t);
        bool slides = !types && i >= first && !(c->family->window == WINDOW_OF_FOUR && config_ends_four(c, i));
        if (types && !s) return keys_wrong(k, "layer_types[]", t, "a string");
        if (types && strcmp(s, "sliding_attention") == 0) {
            if (window == 0)
                return err_set(k->e, ST_FORMAT,
                               "%s: \"layer_types\" has sliding_attention, but "
                               "\"use_sliding_window\" or \"sliding_window\" disables it",
                               k->file);
            slides = true;
        } else if (types && strcmp(s, "full_attention") != 0 && strcmp(s, "attention") != 0) { /* "attention": old */
            return err_set(k->e, ST_UNSUPPORTED,
                           "%s: \"layer_types\" has \"%.40s\"; supported: "
                           "full_attention, sliding_attention",
                           k->file, s);
        }
        c->window[i] = slides ? (int)window : 0;
    }
    return ST_OK;
}

static status read_window(model_config *c, const model_family *f, const keys *k)
{
    /* null disables the window, an absent key means the families' default */
    int64_t window = json_object_get(k->obj, "sliding_window") ? 0 : f->window_default, first = 0;
    bool use = false;
    TRY(MEM_NEW(&c->window, 3 * (size_t)c->n_layers, k->e));
    c->kv_window = c->window + c->n_layers;
    c->sparse = c->kv_window + c->n_layers;
    if (f->window == WINDOW_NEVER) return ST_OK;
    const int64_t least = f->experts == EXPERTS_BY_LAYER ? 0 : 1; /* transformers 5 saves 0 for none */
    TRY(keys_int(k, "sliding_window", least, INT32_MAX, &window));
    if (f->window == WINDOW_BY_LAYER) {
        first = 28;
        TRY(keys_bool(k, "use_sliding_window", &use));
        TRY(keys_int(k, "max_window_layers", 0, INT32_MAX, &first));
        if (!use) window = 0;
    }
    return read_layer_windows(c, k, window, first);
}

/* Sets the layers with experts: those whose number, from 1, is a multiple of decoder_sparse_step, without those of
 * mlp_only_layers. */
static status read_sparse_layers(model_config *c, const keys *k)
{
    int64_t step = 1;
    json_t *dense;
    TRY(keys_int(k, "decoder_sparse_step", 1, INT32_MAX, &step));
    TRY(keys_array(k, "mlp_only_layers", &dense));
    for (int i = 0; i < c->n_layers; i++) c->sparse[i] = (i + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *at = json_array_get(dense, i);
        const int64_t layer = json_integer_value(at);
        if (!json_is_integer(at) || layer < 0 || layer >= c->n_layers)
            return keys_wrong(k, "mlp_only_layers[]", at, "the index of a layer");
        c->sparse[layer] = 0;
    }
    return ST_OK;
}

static status read_experts(model_config *c, const model_family *f, const keys *k)
{
    int64_t n = f->n_experts, chosen = f->n_chosen, width = f->expert_ffn, shared = f->shared_ffn;
    if (!f->experts) return ST_OK;
    TRY(keys_int(k, "num_experts", 0, EXPERTS_MAX, &n)); /* transformers 5 saves the other key */
    TRY(keys_int(k, "num_local_experts", 0, EXPERTS_MAX, &n));
    if (n == 0 && f->experts == EXPERTS_ALL)
        return keys_wrong(k, "num_local_experts", json_object_get(k->obj, "num_local_experts"), "at least 1");
    if (n == 0) return ST_OK;
    TRY(keys_int(k, "num_experts_per_tok", 1, EXPERTS_MAX, &chosen));
    if (chosen > n)
        return err_set(k->e, ST_FORMAT, "%s: \"num_experts_per_tok\" is %lld, expected at most the %lld experts",
                       k->file, (long long)chosen, (long long)n);
    c->n_experts = (int)n;
    c->n_chosen = (int)chosen;
    c->expert_ffn = c->ffn;
    c->normalize = true;
    for (int i = 0; i < c->n_layers; i++) c->sparse[i] = 1;
    if (f->experts == EXPERTS_ALL) return ST_OK;
    c->normalize = f->normalized;
    TRY(keys_int(k, "moe_intermediate_size", 1, FFN_MAX, &width));
    if (f->shared_ffn) TRY(keys_int(k, "shared_expert_intermediate_size", 0, FFN_MAX, &shared));
    if (!f->normalized) TRY(keys_bool(k, "norm_topk_prob", &c->normalize));
    c->expert_ffn = (int)width;
    c->shared_ffn = (int)shared;
    return read_sparse_layers(c, k);
}

static status read_text(model_config *c, const model_family *f, const keys *k)
{
    if (!f) TRY(find_family(&f, k));
    c->family = f;
    memcpy(c->arch, f->arch, strlen(f->arch) + 1);
    TRY(refuse_unsupported(k));
    TRY(read_dims(c, f, k));
    TRY(read_switches(c, f, k));
    TRY(read_numbers(c, f, k));
    TRY(read_window(c, f, k));
    TRY(read_experts(c, f, k));
    TRY(config_read_rope(c, k));
    return config_count(c, k->e);
}

/* ---- wrappers ---- */

/* Classes of a text model with other parts, which are not read. Source: transformers 5, configuration_*.py. */
typedef struct {
    const char *arch, *model_type, *text_type; /* text_type: "model_type" of the text model if it names none */
    bool tied;                                 /* default of tie_word_embeddings */
} wrapper;

static const wrapper wrappers[] = {
    {"Mistral3ForConditionalGeneration", "mistral3", "mistral", true},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text", false},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text", false},
    {"MuseGlimmerForConditionalGeneration", "muse_glimmer", "muse_glimmer_text", false},
};

/* Returns NULL for a text model. */
static const wrapper *find_wrapper(const keys *k)
{
    const char *type = json_string_value(json_object_get(k->obj, "model_type"));
    const char *arch = json_string_value(json_array_get(json_object_get(k->obj, "architectures"), 0));
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (type ? strcmp(type, wrappers[i].model_type) == 0 : arch && strcmp(arch, wrappers[i].arch) == 0)
            return &wrappers[i];
    return NULL;
}

/* Merges the text model's keys into a copy of the wrapper's. The wrapper decides whether matrices are tied. */
static status unwrap(json_t **out, const keys *k, const wrapper *w)
{
    json_t *text, *merged;
    TRY(keys_object(k, "text_config", &text));
    if (!text) return keys_missing(k, "text_config");
    json_t *tied = json_object_get(k->obj, "tie_word_embeddings");
    *out = merged = json_copy(k->obj);
    json_object_del(merged, "architectures");
    bool good =
        json_object_set_new(merged, "model_type", json_string(w->text_type)) == 0 &&
        json_object_update(merged, text) == 0 &&
        json_object_set(merged, "tie_word_embeddings", !tied || json_is_null(tied) ? json_boolean(w->tied) : tied) == 0;
    return good ? ST_OK : err_set(k->e, ST_NOMEM, "%s: out of memory", k->file);
}

status config_read_all(model_config *c, const model_family *f, const keys *k)
{
    json_t *merged = NULL;
    const wrapper *w = f ? NULL : find_wrapper(k);
    if (!w) return read_text(c, f, k);
    status st = unwrap(&merged, k, w);
    if (st == ST_OK) st = read_text(c, f, &(keys){merged, k->file, "", k->e});
    json_decref(merged);
    return st;
}

status model_config_parse(model_config *c, const char *text, size_t n, const char *name, const model_family *family,
                          err *e)
{
    json_t *root = NULL;
    const char *file = path_tail(name);
    *c = (model_config){0};
    TRY(json_parse_object(&root, text, n, file, CONFIG_DEPTH, e));
    status st = config_read_all(c, family, &(keys){root, file, "", e});
    json_decref(root);
    if (st != ST_OK) model_config_free(c);
    return st;
}

status model_config_read(model_config *c, const char *dir, const model_family *family, err *e)
{
    char *path = path_join(dir, "config.json"), *text = NULL;
    size_t n;
    status st;
    *c = (model_config){0};
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(dir));
    if (!dir_exists(dir)) {
        st = err_set(e, ST_IO, "%s: no such folder; expected a Hugging Face checkpoint", path_tail(dir));
        goto done;
    }
    if (access(path, F_OK) != 0) {
        st = err_set(e, ST_IO,
                     "%s: No such file or directory; expected a Hugging Face folder, or the path of a GGUF file",
                     path_tail(path));
        goto done;
    }
    TRY_GOTO(file_read(&text, &n, path, CONFIG_BYTES_MAX, e));
    st = model_config_parse(c, text, n, path, family, e);
done:
    mem_free(text);
    mem_free(path);
    return st;
}

status config_copy(model_config *c, const model_config *from, err *e)
{
    size_t n = 3 * (size_t)from->n_layers, half = (size_t)from->rotary / 2;
    size_t n_divisors = from->rope.long_divisors ? 2 * half : half;
    *c = *from;
    c->window = c->kv_window = c->sparse = NULL;
    c->divisors = NULL;
    TRY(MEM_NEW(&c->window, n, e));
    c->kv_window = c->window + c->n_layers;
    c->sparse = c->kv_window + c->n_layers;
    memcpy(c->window, from->window, n * sizeof *c->window);
    if (!from->divisors) return ST_OK;
    TRY(MEM_NEW(&c->divisors, n_divisors, e));
    memcpy(c->divisors, from->divisors, n_divisors * sizeof *c->divisors);
    c->rope.divisors = c->divisors;
    if (from->rope.long_divisors) c->rope.long_divisors = c->divisors + half;
    return ST_OK;
}

void model_config_free(model_config *c)
{
    mem_free(c->window);
    mem_free(c->divisors);
    *c = (model_config){0};
}
