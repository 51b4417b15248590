/* SPDX-License-Identifier: MIT */
/* The quantization config of a folder. Source: transformers 5, utils/quantization_config.py; compressed-tensors 0.20,
 * quantization/quant_config.py. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "model/keys.h"
#include "model/source.h"

enum { BYTES_MAX = 16 << 20, DEPTH = 32, BLOCK_MAX = 1 << 20 };

static status refuse(const keys *k, const char *what, const char *value)
{
    return err_set(k->e, ST_UNSUPPORTED,
                   "%s: quantization: %s \"%.40s\" is not supported; use a GGUF file, or a folder in BF16", k->file,
                   what, value);
}

/* Reads a key of two names, of which the first wins. */
static status read_text(const keys *k, const char *key, const char *other, const char **out)
{
    TRY(keys_string(k, other, out));
    return keys_string(k, key, out);
}

static status read_bits(packed_scheme *m, const keys *k, const char *key)
{
    int64_t bits = m->bits;
    TRY(keys_int(k, key, 1, 32, &bits));
    m->bits = (int)bits;
    return ST_OK;
}

static status check_bits(const packed_scheme *m, const keys *k, bool eight)
{
    char text[16];
    if (m->bits == 4 || (eight && m->bits == 8)) return ST_OK;
    snprintf(text, sizeof text, "%d", m->bits);
    return refuse(k, "number of bits", text);
}

/* Reads the rows and columns of a scale; null: not in blocks. */
static status read_block(packed_scheme *m, const keys *k, const char *key)
{
    json_t *list;
    TRY(keys_array(k, key, &list));
    if (!list) return ST_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(list, i);
        if (json_array_size(list) != 2 || json_integer_value(n) < 1 || json_integer_value(n) > BLOCK_MAX)
            return keys_wrong(k, key, list, "two numbers");
        m->block[i] = (size_t)json_integer_value(n);
    }
    return ST_OK;
}

static status read_fp8(packed_claims *q, const keys *k)
{
    const char *format = "e4m3";
    TRY(keys_string(k, "fmt", &format));
    if (strcmp(format, "e4m3") != 0) return refuse(k, "FP8 format", format);
    return read_block(&q->scheme[0], k, "weight_block_size");
}

static status read_awq(packed_claims *q, const keys *k)
{
    const char *version = "gemm";
    packed_scheme *m = &q->scheme[0];
    TRY(read_bits(m, k, "w_bit"));
    TRY(read_bits(m, k, "bits"));
    TRY(keys_int(k, "q_group_size", -1, BLOCK_MAX, &m->group));
    TRY(keys_int(k, "group_size", -1, BLOCK_MAX, &m->group));
    TRY(read_text(k, "version", "format", &version));
    if (strcasecmp(version, "gemm") != 0) return refuse(k, "AWQ version", version);
    return check_bits(m, k, false);
}

static status read_gptq(packed_claims *q, const keys *k)
{
    const char *format = "gptq", *key;
    packed_scheme *m = &q->scheme[0];
    bool marlin = false;
    json_t *dynamic, *value;
    m->symmetric = true;
    TRY(read_bits(m, k, "bits"));
    TRY(keys_int(k, "group_size", -1, BLOCK_MAX, &m->group));
    TRY(keys_bool(k, "sym", &m->symmetric));
    TRY(keys_bool(k, "is_marlin_format", &marlin));
    TRY(read_text(k, "checkpoint_format", "format", &format));
    q->plain_zeros = strcmp(format, "gptq_v2") == 0;
    if (marlin || (!q->plain_zeros && strcmp(format, "gptq") != 0))
        return refuse(k, "GPTQ format", marlin ? "marlin" : format);
    TRY(keys_object(k, "dynamic", &dynamic));
    json_object_foreach(dynamic, key, value)
    {
        if (strncmp(key, "-:", 2) != 0) return refuse(k, "GPTQ \"dynamic\" rule", key);
    }
    return check_bits(m, k, true);
}

/* Schemes that a config names instead of stating them. Source: compressed-tensors, quant_scheme.py. */
static const struct {
    const char *name;
    packed_scheme is;
} presets[] = {
    {"W8A16", {8, -1, true, {0, 0}}}, {"W4A16", {4, 128, true, {0, 0}}},      {"W4A16_ASYM", {4, 128, false, {0, 0}}},
    {"W8A8", {8, -1, true, {0, 0}}},  {"INT8", {8, -1, true, {0, 0}}},        {"W4A8", {4, 128, true, {0, 0}}},
    {"FP8", {8, -1, true, {0, 0}}},   {"FP8_DYNAMIC", {8, -1, true, {0, 0}}}, {"FP8_BLOCK", {8, -1, true, {128, 128}}},
};

static status read_preset(packed_scheme *m, const keys *k, const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(name, presets[i].name) != 0) continue;
        *m = presets[i].is;
        return ST_OK;
    }
    return refuse(k, "compressed-tensors scheme", name);
}

static status check_format(const keys *k, const char *format)
{
    static const char *const known[] = {"float-quantized", "pack-quantized", "int-quantized", "naive-quantized",
                                        "mixed-precision"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(format, known[i]) == 0) return ST_OK;
    return refuse(k, "compressed-tensors format", format);
}

/* Reads a group of modules. Which they are is not read: their tensors tell. */
static status read_scheme(packed_scheme *m, const keys *k, const char *name, json_t *group)
{
    const char *format = "mixed-precision";
    json_t *weights;
    *m = (packed_scheme){.group = -1};
    if (json_is_array(group)) return read_preset(m, k, name);
    if (!json_is_object(group)) return keys_wrong(k, "config_groups", group, "an object with \"weights\"");
    const keys in = {group, k->file, "config_groups.", k->e};
    TRY(keys_string(&in, "format", &format));
    TRY(check_format(k, format));
    TRY(keys_object(&in, "weights", &weights));
    if (!weights) return keys_missing(k, "config_groups.weights");
    const keys w = {weights, k->file, "config_groups.weights.", k->e};
    TRY(read_bits(m, &w, "num_bits"));
    TRY(keys_int(&w, "group_size", -1, BLOCK_MAX, &m->group));
    TRY(keys_bool(&w, "symmetric", &m->symmetric));
    TRY(read_block(m, &w, "block_structure"));
    return check_bits(m, k, true);
}

static status read_compressed(packed_claims *q, const keys *k)
{
    const char *format = "missing", *name;
    json_t *transform, *groups, *group;
    TRY(keys_string(k, "format", &format));
    TRY(check_format(k, format));
    TRY(keys_object(k, "transform_config", &transform));
    if (json_object_size(transform)) return refuse(k, "compressed-tensors key", "transform_config");
    TRY(keys_object(k, "config_groups", &groups));
    if (!json_object_size(groups)) return keys_missing(k, "config_groups");
    if (json_object_size(groups) > PACKED_SCHEMES)
        return err_set(k->e, ST_UNSUPPORTED, "%s: \"config_groups\" has %zu schemes; at most %d are supported", k->file,
                       json_object_size(groups), PACKED_SCHEMES);
    q->n = 0;
    json_object_foreach(groups, name, group)
    {
        TRY(read_scheme(&q->scheme[q->n], k, name, group));
        q->n++;
    }
    return ST_OK;
}

static status read_method(packed_claims *q, const keys *k)
{
    const char *method = NULL, *algorithm = NULL;
    TRY(keys_string(k, "quant_method", &method));
    TRY(keys_string(k, "quant_algo", &algorithm));
    if (!method && json_object_get(k->obj, "group_size") && !q->method) method = "MLX";
    if (method) snprintf(q->name, sizeof q->name, "%s", method);
    else if (algorithm) snprintf(q->name, sizeof q->name, "modelopt");
    else if (!q->method) snprintf(q->name, sizeof q->name, "unnamed");
    q->method = q->name;
    q->scheme[0] = (packed_scheme){.group = -1};
    q->n = 1;
    if (strcmp(q->method, "fp8") == 0) return read_fp8(q, k);
    if (strcmp(q->method, "awq") == 0) return read_awq(q, k);
    if (strcmp(q->method, "gptq") == 0) return read_gptq(q, k);
    if (strcmp(q->method, "compressed-tensors") == 0) return read_compressed(q, k);
    if (algorithm && strcmp(algorithm, "FP8") == 0) return ST_OK;
    return algorithm ? refuse(k, "ModelOpt algorithm", algorithm) : refuse(k, "method", method ? method : q->method);
}

/* Reads a file of its own, if the folder has one. inside: key of the object in it; NULL: the whole file. */
static status read_other(packed_claims *q, const char *dir, const char *name, const char *inside, const char *method,
                         err *e)
{
    char *path = path_join(dir, name);
    json_t *root = NULL;
    status st = path ? ST_OK : err_set(e, ST_NOMEM, "%s: out of memory", name);
    if (st == ST_OK && file_exists(path)) {
        TRY_GOTO(json_read_object(&root, path, BYTES_MAX, DEPTH, e));
        json_t *at = inside ? json_object_get(root, inside) : root;
        snprintf(q->name, sizeof q->name, "%s", method);
        q->method = q->name;
        q->file = name;
        st = json_is_object(at) ? read_method(q, &(keys){at, name, "", e})
                                : err_set(e, ST_FORMAT, "%s: \"%s\" is missing", name, inside ? inside : "");
    }
done:
    json_decref(root);
    mem_free(path);
    return st;
}

/* Reads the config of a config.json; *found: it has one. */
static status read_config(packed_claims *q, const json_t *root, bool *found, err *e)
{
    const keys k = {(json_t *)(uintptr_t)root, "config.json", "", e};
    json_t *at = NULL, *text, *inner, *outer;
    TRY(keys_object(&k, "compression_config", &at)); /* of 2024 */
    text = json_object_get(root, "text_config");
    inner = json_object_get(text, "quantization_config");
    if (json_is_object(inner)) at = inner;
    TRY(keys_object(&k, "quantization_config", &outer));
    if (outer) at = outer;
    *found = at;
    if (!at) return ST_OK;
    q->file = k.file;
    return read_method(q, &(keys){at, k.file, "", e});
}

status packed_parse_claims(packed_claims *q, const char *text, size_t n, bool *found, err *e)
{
    json_t *root = NULL;
    *q = (packed_claims){.file = NULL};
    *found = false;
    TRY(json_parse_object(&root, text, n, "config.json", DEPTH, e));
    status st = read_config(q, root, found, e);
    json_decref(root);
    return st;
}

status packed_read_claims(packed_claims *q, const char *dir, err *e)
{
    char *path = path_join(dir, "config.json"), *text = NULL;
    size_t n;
    bool found = false;
    status st = path ? ST_OK : err_set(e, ST_NOMEM, "config.json: out of memory");
    *q = (packed_claims){.file = NULL};
    if (st == ST_OK && file_exists(path)) {
        st = file_read(&text, &n, path, BYTES_MAX, e);
        if (st == ST_OK) st = packed_parse_claims(q, text, n, &found, e);
    }
    if (st == ST_OK && !found) st = read_other(q, dir, "hf_quant_config.json", "quantization", "modelopt", e);
    if (st == ST_OK && !q->method) st = read_other(q, dir, "quantize_config.json", NULL, "gptq", e);
    if (st == ST_OK && !q->method) st = read_other(q, dir, "quant_config.json", NULL, "awq", e);
    mem_free(text);
    mem_free(path);
    return st;
}
