/* SPDX-License-Identifier: MIT */
/* Quantized folders: logits of transformers from the decoded weights, and folders that are refused. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "model/session.h"
#include "model/weights.h"
#include "tests/tap.h"

enum { N_IDS = 24, VOCAB = 384 };

static void take(void *ctx, int64_t first, size_t n, const float *logits)
{
    memcpy((float *)ctx + (size_t)first * VOCAB, logits, n * VOCAB * sizeof(float));
}

/* Computes logits with matrices of type t; DT_COUNT: as held. *held: type of the matrices. exact: with activations in
 * float32. */
static status run(const char *path, dtype t, bool exact, const int32_t *ids, float *out, dtype *held, err *e)
{
    backend *be = NULL;
    model *m = NULL;
    decoder *dec = NULL;
    session *s = NULL;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F32)};
    const backend_options bo = {.device = "cpu"};
    const decoder_options opt = {.chunk = exact ? 512 : 8, .exact = exact};
    const weights_options wo = {.type = t};
    const prefill_options po = {.which = LOGITS_ALL, .rows = take, .ctx = out};
    status st = attn_spec_parse(&spec, "full", &ao, e);
    if (st == ST_OK) st = backend_open(&be, &bo, e);
    if (st == ST_OK) st = model_find(&m, path, NULL, be, e);
    if (st == ST_OK) st = model_load(m, e);
    if (st == ST_OK) st = model_convert(m, &wo, e);
    if (st == ST_OK) *held = m->type;
    if (st == ST_OK && ((const model_files *)m->files)->n_unused) st = err_set(e, ST_FORMAT, "unused tensors");
    if (st == ST_OK && out) st = decoder_create(&dec, m, &opt, e);
    if (st == ST_OK && out) st = session_create(&s, dec, &spec, session_of(N_IDS), e);
    if (st == ST_OK && out) st = session_prefill(&s, 1, ids, N_IDS, &po, e);
    session_free(s);
    decoder_free(dec);
    model_close(m);
    backend_close(be);
    return st;
}

/* ---- logits ---- */

static const struct {
    const char *name;
    dtype held;
    double nmse; /* of logits as held */
} folders[] = {
    {"fp8-block", DT_FP8, 1e-10},    {"fp8-tensor", DT_FP8, 1e-10}, {"fp8-row", DT_FP8, 1e-10},
    {"awq", DT_Q4G32, 1e-10},        {"w4a16", DT_Q4G32, 1e-10},    {"w8a8", DT_Q8, 1e-10},
    {"gptq-order", DT_Q4G32, 1e-10}, {"gptq", DT_Q4G, 1e-10},       {"mixed", DT_Q8, 1e-10},
    {"moe-fp8", DT_FP8, 1e-10},      {"moe-awq", DT_Q4G32, 1e-10},  {"moe-gptq", DT_Q4G, 1e-10},
};

static void check_folder(size_t i)
{
    static float got[N_IDS * VOCAB];
    const char *name = folders[i].name;
    err e = {0};
    st_file *f = NULL;
    dtype held = DT_COUNT;
    char path[160], logits[200];
    snprintf(path, sizeof path, "tests/data/packed/%s", name);
    snprintf(logits, sizeof logits, "%s/logits.safetensors", path);
    if (!is_ok(st_open(&f, tap_path(logits), &e), &e, "%s: expected values", name)) return;
    const int32_t *ids = (const int32_t *)(const void *)st_find(f, "input_ids")->data;
    const float *want = (const float *)(const void *)st_find(f, "logits")->data;
    if (is_ok(run(tap_path(path), DT_F32, true, ids, got, &held, &e), &e, "%s: decoded to f32", name))
        is_near(got, want, N_IDS * VOCAB, 1e-10, "%s: logits of transformers", name);
    if (is_ok(run(tap_path(path), DT_COUNT, true, ids, got, &held, &e), &e, "%s: as held", name)) {
        is_str(dtype_name(held), dtype_name(folders[i].held), "%s: type in memory", name);
        is_near(got, want, N_IDS * VOCAB, folders[i].nmse, "%s: logits of the type in memory", name);
    }
    if (is_ok(run(tap_path(path), DT_COUNT, false, ids, got, &held, &e), &e, "%s: x in 8 bits", name))
        is_near(got, want, N_IDS * VOCAB, 3e-3, "%s: logits with x in 8 bits", name);
    st_close(f);
}

/* ---- refusals ---- */

#define SHAPE                                                                                                          \
    "{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":192,\"num_hidden_layers\":1,"                 \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":384,\"tie_word_embeddings\":true"
#define CONFIG(text) SHAPE ",\"quantization_config\":{" text "}}"
#define GPTQ         "\"quant_method\":\"gptq\",\"bits\":4"
#define COMPRESSED   "\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\""
#define GROUP(text)  ",\"config_groups\":{\"a\":{\"weights\":{" text "}}}"

static const struct {
    const char *weights, *config;
    status want;
    const char *part;
} bad[] = {
    {"awq", CONFIG("\"quant_method\":\"bitsandbytes\""), ST_UNSUPPORTED,
     "method \"bitsandbytes\" is not supported; use"},
    {"awq", CONFIG("\"group_size\":64,\"bits\":4"), ST_UNSUPPORTED, "method \"MLX\""},
    {"awq", CONFIG(""), ST_UNSUPPORTED, "method \"unnamed\""},
    {"awq", CONFIG("\"quant_algo\":\"NVFP4\""), ST_UNSUPPORTED, "ModelOpt algorithm \"NVFP4\""},
    {"awq", CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\""), ST_UNSUPPORTED, "AWQ version \"gemv\""},
    {"awq", CONFIG("\"quant_method\":\"awq\",\"bits\":3"), ST_UNSUPPORTED, "number of bits \"3\""},
    {"awq", CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128"), ST_FORMAT, "with groups of 128 columns"},
    {"awq", CONFIG("\"quant_method\":\"fp8\""), ST_FORMAT,
     "qweight is I32, but the quantization of config.json is \"fp8\""},
    {"w4a16", CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32"), ST_FORMAT,
     "weight_packed is I32, but the quantization of config.json is \"awq\""},
    {"fp8-tensor", CONFIG("\"quant_method\":\"gptq\",\"bits\":4"), ST_FORMAT, "is F8_E4M3, but the quantization of"},
    {"awq", SHAPE "}", ST_FORMAT, "has packed codes, but"},
    {"gptq-order", CONFIG(GPTQ ",\"checkpoint_format\":\"marlin\""), ST_UNSUPPORTED, "GPTQ format \"marlin\""},
    {"gptq-order", CONFIG(GPTQ ",\"is_marlin_format\":true"), ST_UNSUPPORTED, "GPTQ format \"marlin\""},
    {"gptq-order", CONFIG(GPTQ ",\"dynamic\":{\"+:x\":{}}"), ST_UNSUPPORTED, "\"dynamic\" rule \"+:x\""},
    {"gptq-order", CONFIG(GPTQ ",\"group_size\":64"), ST_FORMAT, "but the config sets \"sym\": true"},
    {"gptq-order", CONFIG(GPTQ ",\"bits\":\"four\""), ST_FORMAT, "\"bits\""},
    {"fp8-block", CONFIG("\"quant_method\":\"fp8\""), ST_FORMAT, "a scale for each block, but config.json sets no"},
    {"fp8-block", CONFIG("\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]"), ST_FORMAT, "each block of 64 x 64"},
    {"fp8-block", CONFIG("\"quant_method\":\"fp8\",\"weight_block_size\":[64]"), ST_FORMAT, "expected two numbers"},
    {"fp8-block", CONFIG("\"quant_method\":\"fp8\",\"fmt\":\"e5m2\""), ST_UNSUPPORTED, "FP8 format \"e5m2\""},
    {"fp8-tensor", CONFIG("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]"), ST_FORMAT, "128 x 128"},
    {"w8a8", CONFIG("\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\""), ST_UNSUPPORTED, "marlin-24"},
    {"w8a8", CONFIG(COMPRESSED ",\"transform_config\":{\"a\":1}"), ST_UNSUPPORTED, "transform_config"},
    {"w8a8", CONFIG(COMPRESSED ",\"config_groups\":{}"), ST_FORMAT, "\"config_groups\""},
    {"w8a8", CONFIG(COMPRESSED ",\"config_groups\":{\"a\":{}}"), ST_FORMAT, "weights\" is missing"},
    {"w8a8", CONFIG(COMPRESSED ",\"config_groups\":{\"NVFP4\":[\"Linear\"]}"), ST_UNSUPPORTED, "scheme \"NVFP4\""},
    {"w8a8", CONFIG(COMPRESSED ",\"config_groups\":{\"a\":{\"format\":\"marlin-24\"}}"), ST_UNSUPPORTED, "marlin-24"},
    {"mixed", CONFIG(COMPRESSED ",\"config_groups\":{\"W4A16\":[],\"FP8_BLOCK\":[]}"), ST_FORMAT,
     "fit none of the 2 schemes of config.json"},
    {"w8a8", CONFIG(COMPRESSED ",\"config_groups\":{\"a\":1}"), ST_FORMAT, "config_groups"},
    {"w8a8", CONFIG(COMPRESSED GROUP("\"num_bits\":6")), ST_UNSUPPORTED, "number of bits \"6\""},
    {"w8a8", CONFIG(COMPRESSED GROUP("\"num_bits\":8,\"block_structure\":[1,8]")), ST_FORMAT, "each block of 1 x 8"},
};

static void put_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f) fwrite(data, 1, n, f), fclose(f);
}

/* Copies the weights of a folder, with `from` replaced by `to` of the same length. */
static void copy_weights(const char *dir, const char *folder, const char *from, const char *to)
{
    char rel[160];
    snprintf(rel, sizeof rel, "tests/data/packed/%s/model.safetensors", folder);
    FILE *f = fopen(tap_path(rel), "rb");
    static char data[1 << 19];
    size_t n = f ? fread(data, 1, sizeof data, f) : 0, length = strlen(from);
    if (f) fclose(f);
    for (size_t i = 0; length && i + length <= n && i < 1 << 14; i++)
        if (memcmp(data + i, from, length) == 0) memcpy(data + i, to, length);
    put_file(dir, "model.safetensors", data, n);
}

static void check_bad(const char *dir, const char *config, status want, const char *part)
{
    err e = {0};
    dtype held;
    put_file(dir, "config.json", config, strlen(config));
    is_err(run(dir, DT_COUNT, true, NULL, NULL, &held, &e), &e, want, part, "%s", part);
}

int main(void)
{
    char dir[] = "/tmp/kvasir-packed-XXXXXX", path[200];
    const char *fp8 = CONFIG("\"quant_method\":\"fp8\"");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) check_folder(i);
    if (!mkdtemp(dir)) return 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        copy_weights(dir, bad[i].weights, "", "");
        check_bad(dir, bad[i].config, bad[i].want, bad[i].part);
    }
    copy_weights(dir, "fp8-tensor", "k_proj.weight_scale_inv", "k_proj.weight_scale_xxx");
    check_bad(dir, fp8, ST_FORMAT, "self_attn.k_proj.weight has dtype F8_E4M3, but");
    copy_weights(dir, "fp8-tensor", "\"F8_E4M3\"", "\"F8_E5M2\"");
    check_bad(dir, fp8, ST_UNSUPPORTED, "has dtype F8_E5M2; supported");
    copy_weights(dir, "awq", "k_proj.scales", "k_proj.scalex");
    check_bad(dir, CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64"), ST_FORMAT,
              "k_proj.qweight has dtype");
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
    return tap_done();
}
