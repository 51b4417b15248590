/* SPDX-License-Identifier: MIT */
/* Keys of the rotary embedding, in the spellings of transformers 4 and 5. Source: transformers 5,
 * modeling_rope_utils.py, RotaryEmbeddingConfigMixin. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "model/keys.h"
#include "model/weights.h"

static const struct {
    const char *name;
    rope_kind kind;
} kinds[] = {
    {"default", ROPE_NONE},  {"linear", ROPE_LINEAR}, {"dynamic", ROPE_DYNAMIC},
    {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN},     {"longrope", ROPE_LONGROPE},
};

static const double FACTOR_MAX = 1e6;

static status read_kind(rope_config *r, const model_family *f, const keys *k)
{
    const char *name = NULL;
    TRY(keys_string(k, "rope_type", &name));
    const char *key = name ? "rope_type" : "type";
    if (!name) TRY(keys_string(k, "type", &name));
    if (!name) name = "default";
    if (f->longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) name = "longrope"; /* Phi3Config */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) != 0) continue;
        r->kind = kinds[i].kind;
        return ST_OK;
    }
    return err_set(k->e, ST_UNSUPPORTED,
                   "%s: \"%s%s\" is \"%.40s\"; supported: default, linear, dynamic, llama3, yarn, longrope", k->file,
                   k->prefix, key, name);
}

static status read_llama3(rope_config *r, const keys *k)
{
    TRY(keys_real(k, "low_freq_factor", 1e-6, FACTOR_MAX, &r->low_freq_factor));
    TRY(keys_real(k, "high_freq_factor", 1e-6, FACTOR_MAX, &r->high_freq_factor));
    if (r->low_freq_factor == 0) return keys_missing(k, "low_freq_factor");
    if (r->high_freq_factor == 0) return keys_missing(k, "high_freq_factor");
    if (r->high_freq_factor <= r->low_freq_factor)
        return err_set(k->e, ST_FORMAT, "%s: \"%shigh_freq_factor\" is %g, expected more than low_freq_factor %g",
                       k->file, k->prefix, r->high_freq_factor, r->low_freq_factor);
    return ST_OK;
}

static status read_yarn(rope_config *r, const keys *k, int64_t max_positions)
{
    r->truncate = true;
    TRY(keys_real(k, "beta_fast", 0, FACTOR_MAX, &r->beta_fast));
    TRY(keys_real(k, "beta_slow", 0, FACTOR_MAX, &r->beta_slow));
    TRY(keys_real(k, "mscale", 0, 1000, &r->mscale));
    TRY(keys_real(k, "mscale_all_dim", 0, 1000, &r->mscale_all_dim));
    TRY(keys_real(k, "attention_factor", 1e-6, FACTOR_MAX, &r->attention_factor));
    TRY(keys_bool(k, "truncate", &r->truncate));
    if (r->beta_fast == 0) r->beta_fast = 32;
    if (r->beta_slow == 0) r->beta_slow = 1;
    if (r->factor == 0) r->factor = (double)max_positions / (double)r->original_max;
    return ST_OK;
}

/* Reads a list of a divisor for each frequency. */
static status read_divisors(float *out, size_t n, const keys *k, const char *key)
{
    json_t *list;
    TRY(keys_array(k, key, &list));
    if (!list) return keys_missing(k, key);
    if (json_array_size(list) != n)
        return err_set(k->e, ST_FORMAT, "%s: \"%s%s\" has %zu numbers, expected %zu, half of the rotated channels",
                       k->file, k->prefix, key, json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        double x = json_number_value(v);
        if (!(x >= 1e-6 && x <= 1e9)) return keys_wrong(k, key, v, "numbers in 1e-06..1e+09");
        out[i] = (float)x;
    }
    return ST_OK;
}

/* Source: transformers 5, _compute_longrope_parameters and RotaryEmbeddingConfigMixin.standardize_rope_params. */
static status read_longrope(model_config *c, rope_config *r, const keys *k)
{
    size_t half = (size_t)r->head_dim / 2;
    if (c->divisors)
        return err_set(k->e, ST_UNSUPPORTED, "%s: \"%s\" lists longrope for several layer types; one is supported",
                       k->file, k->prefix);
    if (r->original_max < 2)
        return err_set(k->e, ST_FORMAT, "%s: \"original_max_position_embeddings\" is 1, expected at least 2", k->file);
    TRY(MEM_NEW(&c->divisors, 2 * half, k->e));
    r->divisors = c->divisors;
    r->long_divisors = c->divisors + half;
    TRY(read_divisors(c->divisors, half, k, "short_factor"));
    TRY(read_divisors(c->divisors + half, half, k, "long_factor"));
    TRY(keys_real(k, "attention_factor", 1e-6, FACTOR_MAX, &r->attention_factor));
    if (r->factor == 0) r->factor = (double)c->max_positions / (double)r->original_max;
    return ST_OK;
}

static status read_partial(model_config *c, const keys *k)
{
    double partial = 1;
    if (!json_object_get(k->obj, "partial_rotary_factor")) return ST_OK;
    TRY(keys_real(k, "partial_rotary_factor", 0, 1, &partial));
    int rotary = (int)((double)c->head_dim * partial);
    if (partial != 1 && !c->family->partial_rotary)
        return err_set(k->e, ST_UNSUPPORTED, "%s: \"%spartial_rotary_factor\" is %g, only 1 is supported", k->file,
                       k->prefix, partial);
    if (rotary < 2 || rotary % 2)
        return err_set(k->e, ST_UNSUPPORTED,
                       "%s: \"%spartial_rotary_factor\" %g rotates %d of %d channels; an even number is expected",
                       k->file, k->prefix, partial, rotary, c->head_dim);
    c->rotary = rotary;
    return ST_OK;
}

static status read_query_scale(const model_config *c, rope_config *r, const keys *k)
{
    TRY(keys_real(k, "llama_4_scaling_beta", 0, 1000, &r->query_beta));
    if (r->query_beta == 0 || c->family->query_scale) return ST_OK;
    return err_set(k->e, ST_UNSUPPORTED,
                   "%s: \"%sllama_4_scaling_beta\" is not supported in %s; Ministral3ForCausalLM applies it", k->file,
                   k->prefix, c->family->arch);
}

/* Reads one rotary embedding. k: the object with its parameters (rope_parameters, one of its layer types, or
 * rope_scaling). */
static status read_scaling(model_config *c, rope_config *r, const keys *k, const keys *root)
{
    TRY(read_kind(r, c->family, k));
    TRY(keys_real(k, "rope_theta", 1.000001, 1e18, &r->theta));
    TRY(read_partial(c, k));
    r->head_dim = c->rotary;
    TRY(read_query_scale(c, r, k));
    if (r->kind != ROPE_NONE) TRY(keys_real(k, "factor", 1e-6, FACTOR_MAX, &r->factor));
    const bool derived = r->kind == ROPE_NONE || r->kind == ROPE_YARN || r->kind == ROPE_LONGROPE;
    if (r->factor == 0 && !derived) return keys_missing(k, "factor");
    const bool plain = r->kind == ROPE_NONE || r->kind == ROPE_LINEAR;
    if (!plain || r->query_beta > 0) r->original_max = c->max_positions;
    if ((plain && r->query_beta == 0) || r->kind == ROPE_DYNAMIC) return ST_OK;
    TRY(keys_int(k, "original_max_position_embeddings", 1, INT32_MAX, &r->original_max));
    TRY(keys_int(root, "original_max_position_embeddings", 1, INT32_MAX, &r->original_max));
    if (r->kind == ROPE_LLAMA3) return read_llama3(r, k);
    if (r->kind == ROPE_YARN) return read_yarn(r, k, c->max_positions);
    return r->kind == ROPE_LONGROPE ? read_longrope(c, r, k) : ST_OK;
}

void rope_text(char out[ROPE_TEXT], const rope_config *r)
{
    int n = snprintf(out, ROPE_TEXT, "%d %a %a %a %a %a %a %a %a %a %d %lld\n", (int)r->kind, r->theta, r->factor,
                     r->low_freq_factor, r->high_freq_factor, r->beta_fast, r->beta_slow, r->mscale, r->mscale_all_dim,
                     r->attention_factor, r->truncate, (long long)r->original_max);
    double sum = 0;
    for (int i = 0; r->divisors && i < r->head_dim / 2; i++) sum += (double)r->divisors[i] * (i + 1);
    for (int i = 0; r->long_divisors && i < r->head_dim / 2; i++) sum += (double)r->long_divisors[i] * (1000 + i);
    if (r->divisors) n += snprintf(out + n, ROPE_TEXT - (size_t)n, "divisors %a\n", sum);
    if (r->query_beta > 0) snprintf(out + n, ROPE_TEXT - (size_t)n, "query beta %a\n", r->query_beta);
}

static bool same_rope(const rope_config *a, const rope_config *b)
{
    char first[ROPE_TEXT], second[ROPE_TEXT];
    rope_text(first, a);
    rope_text(second, b);
    return strcmp(first, second) == 0;
}

/* Reads {"full_attention": {...}, "sliding_attention": {...}}. Some families allow a different embedding in layers with
 * a window; otherwise all must be equal. */
static status read_per_layer(model_config *c, const keys *k, const keys *root)
{
    const char *type;
    json_t *v;
    rope_config plain = c->rope;
    bool first = true;
    json_object_foreach(k->obj, type, v)
    {
        char prefix[96];
        rope_config r = plain;
        if (json_is_null(v)) continue;
        if (!json_is_object(v)) return keys_wrong(k, type, v, "an object, like the other layer types");
        snprintf(prefix, sizeof prefix, "%s%.40s.", k->prefix, type);
        TRY(read_scaling(c, &r, &(keys){v, k->file, prefix, k->e}, root));
        if (c->family->window_rope && strcmp(type, "sliding_attention") == 0) {
            c->window_rope = r;
            c->n_ropes = 2;
            continue;
        }
        if (!first && !same_rope(&r, &c->rope))
            return err_set(k->e, ST_UNSUPPORTED,
                           "%s: \"%s%.40s\" differs from the other layer types; one "
                           "rotary embedding for all layers is supported",
                           k->file, k->prefix, type);
        c->rope = r;
        first = false;
    }
    return ST_OK;
}

static bool nested(json_t *j)
{
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v)
    {
        if (json_is_object(v)) return true;
    }
    return false;
}

/* Extends c->max_positions by the scaling factor, if max_position_embeddings is still the trained length. */
static void extend_positions(model_config *c)
{
    const rope_config *r = &c->rope;
    if (r->kind != ROPE_DYNAMIC && r->kind != ROPE_YARN) return;
    double n = (double)r->original_max * r->factor;
    if (n > (double)INT32_MAX) n = (double)INT32_MAX;
    if (n > (double)c->max_positions) c->max_positions = (int64_t)n;
}

/* Ends the rotation in layers without a window. layer_rope_theta must do the same; only its zeros count. Source:
 * transformers 5, modeling_muse_glimmer.py. */
static status still_full_layers(model_config *c, const keys *root)
{
    json_t *thetas;
    TRY(keys_array(root, "layer_rope_theta", &thetas));
    if (thetas && json_array_size(thetas) != (size_t)c->n_layers)
        return err_set(root->e, ST_FORMAT,
                       "%s: \"layer_rope_theta\" has %zu entries, expected one for each of %d layers", root->file,
                       json_array_size(thetas), c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const json_t *v = json_array_get(thetas, (size_t)i);
        if (thetas && !json_is_number(v)) return keys_wrong(root, "layer_rope_theta[]", v, "a number");
        const bool turns = thetas ? json_number_value(v) != 0 : !config_ends_four(c, i);
        if (turns != (c->window[i] > 0))
            return err_set(root->e, ST_UNSUPPORTED,
                           "%s: layer %d has %s rotation and %s window; supported: both or neither", root->file, i,
                           turns ? "a" : "no", c->window[i] ? "a" : "no");
    }
    if (c->rope.kind == ROPE_LONGROPE)
        return err_set(root->e, ST_UNSUPPORTED, "%s: longrope is not supported in %s", root->file, c->family->arch);
    c->window_rope = c->rope;
    c->rope = (rope_config){.kind = ROPE_OFF, .theta = c->rope.theta, .head_dim = c->rotary};
    c->n_ropes = 2;
    return ST_OK;
}

status config_read_rope(model_config *c, const keys *root)
{
    json_t *scaling, *params;
    c->rotary = c->head_dim;
    c->n_ropes = 1;
    c->rope = (rope_config){.theta = c->family->theta > 0 ? c->family->theta : 10000, .head_dim = c->head_dim};
    TRY(keys_real(root, "rope_theta", 1.000001, 1e18, &c->rope.theta));
    TRY(read_partial(c, root));
    c->rope.head_dim = c->rotary;
    TRY(keys_object(root, "rope_scaling", &scaling));
    TRY(keys_object(root, "rope_parameters", &params));
    keys k = {params, root->file, "rope_parameters.", root->e};
    if (json_object_size(scaling)) k = (keys){scaling, root->file, "rope_scaling.", root->e};
    if (c->family->query_scale && !k.obj) return keys_missing(root, "rope_parameters");
    if (nested(k.obj)) TRY(read_per_layer(c, &k, root));
    else TRY(read_scaling(c, &c->rope, &k, root));
    extend_positions(c);
    return c->family->still_full ? still_full_layers(c, root) : ST_OK;
}
