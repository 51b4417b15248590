/* SPDX-License-Identifier: MIT */
/* Opening of checkpoints: those of tests/data/models, and ones written here, good and bad. Files that are missing or
 * cut: tests/cli/bad_model.t. */
#include "config.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/half.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"
#include "tests/unit/model_blocks.h"

#define DIR_NAME "test_weights.tmp"

static backend *be;

/* ---- a checkpoint to write ---- */

typedef struct {
    char name[64], type[8];
    size_t rank, shape[2];
    int shard; /* 0 or 1, when sharded */
    bool absent;
    const char *like; /* the tensor whose values it has; NULL: its own */
} made_tensor;

static made_tensor tensors[64];
static size_t n_tensors;

static void add(const char *name, size_t rows, size_t cols)
{
    made_tensor *t = &tensors[n_tensors];
    *t =
        (made_tensor){.type = "F32", .rank = rows ? 2 : 1, .shape = {rows ? rows : cols, cols}, .shard = n_tensors % 2};
    snprintf(t->name, sizeof t->name, "%s", name);
    n_tensors++;
}

static made_tensor *get(const char *name)
{
    for (size_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    exit(1);
}

#define TIED ",\"tie_word_embeddings\":true"

static const char *const config = "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":"
                                  "2,\"hidden_size\":8,\"head_dim\":4,"
                                  "\"intermediate_size\":12,\"vocab_size\":10,\"num_attention_"
                                  "heads\":4,\"num_key_value_heads\":2%s}";

/* The tensors of that config. */
static void plan(bool lm_head)
{
    n_tensors = 0;
    add("model.embed_tokens.weight", 10, 8);
    for (int l = 0; l < 2; l++) {
        static const struct {
            const char *name;
            size_t rows, cols;
        } of_layer[] = {
            {"input_layernorm", 0, 8},  {"self_attn.q_proj", 16, 8}, {"self_attn.k_proj", 8, 8},
            {"self_attn.v_proj", 8, 8}, {"self_attn.o_proj", 8, 16}, {"post_attention_layernorm", 0, 8},
            {"mlp.gate_proj", 12, 8},   {"mlp.up_proj", 12, 8},      {"mlp.down_proj", 8, 12},
        };
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, of_layer[i].name);
            add(name, of_layer[i].rows, of_layer[i].cols);
        }
    }
    add("model.norm.weight", 0, 8);
    if (lm_head) add("lm_head.weight", 10, 8);
}

static void write_text(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, DIR_NAME "/%s", name);
    FILE *f = fopen(path, "wb");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) exit(1);
}

static void write_config(const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, config, more); /* NOLINT: the format is the constant above */
    write_text("config.json", text);
}

/* Tensors of one shard (-1: all); element i of tensor k is 100 k + i. pad: header bytes modulo 8.
 */
static void write_weights(const char *name, int shard, size_t pad)
{
    char path[128], h[8192] = "{\"__metadata__\":{\"format\":\"pt\"}";
    size_t n = strlen(h), at = 0;
    for (size_t k = 0; k < n_tensors; k++) {
        const made_tensor *t = &tensors[k];
        if (t->absent || (shard >= 0 && t->shard != shard)) continue;
        size_t count = t->rank == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
        size_t bytes = count * (strcmp(t->type, "F32") == 0 || strcmp(t->type, "I32") == 0 ? 4 : 2);
        n += (size_t)snprintf(h + n, sizeof h - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", t->name, t->type,
                              t->shape[0]);
        if (t->rank == 2) n += (size_t)snprintf(h + n, sizeof h - n, ",%zu", t->shape[1]);
        n += (size_t)snprintf(h + n, sizeof h - n, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    h[n++] = '}';
    while (n % 8 != pad) h[n++] = ' ';
    snprintf(path, sizeof path, DIR_NAME "/%s", name);
    FILE *f = fopen(path, "wb");
    if (!f) exit(1);
    uint64_t n64 = n;
    fwrite(&n64, 8, 1, f);
    fwrite(h, 1, n, f);
    for (size_t k = 0; k < n_tensors; k++) {
        const made_tensor *t = &tensors[k];
        if (t->absent || (shard >= 0 && t->shard != shard)) continue;
        size_t count = t->rank == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
        for (size_t i = 0; i < count; i++) {
            float x = (float)(100 * (size_t)(t->like ? get(t->like) - tensors : (ptrdiff_t)k) + i);
            uint16_t half = strcmp(t->type, "F16") == 0 ? f32_to_f16(x) : f32_to_bf16(x);
            if (strcmp(t->type, "F32") == 0 || strcmp(t->type, "I32") == 0) fwrite(&x, 4, 1, f);
            else fwrite(&half, 2, 1, f);
        }
    }
    if (fclose(f) != 0) exit(1);
}

static void write_index(const char *shard_of_norm)
{
    char text[8192] = "{\"metadata\":{\"total_size\":1},\"weight_map\":{";
    size_t n = strlen(text);
    bool first = true;
    for (size_t k = 0; k < n_tensors; k++) {
        const made_tensor *t = &tensors[k];
        const char *shard = t->shard ? "model-00002.safetensors" : "model-00001.safetensors";
        if (t->absent) continue;
        if (shard_of_norm && strcmp(t->name, "model.norm.weight") == 0) shard = shard_of_norm;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\":\"%s\"", first ? "" : ",", t->name, shard);
        first = false;
    }
    snprintf(text + n, sizeof text - n, "}}");
    write_text("model.safetensors.index.json", text);
}

static void clear_folder(void)
{
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                        "model-00001.safetensors", "model-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        snprintf(path, sizeof path, DIR_NAME "/%s", files[i]);
        unlink(path);
    }
}

/* A fresh good checkpoint in one file. */
static void write_good(const char *more_config, bool lm_head)
{
    clear_folder();
    plan(lm_head);
    write_config(more_config);
    write_weights("model.safetensors", -1, 0);
}

static void write_sharded(void)
{
    clear_folder();
    plan(true);
    write_config("");
    write_weights("model-00001.safetensors", 0, 0);
    write_weights("model-00002.safetensors", 1, 0);
    write_index(NULL);
}

/* Element i of a weight in the ref backend's memory. */
static float element(const weight *w, size_t i)
{
    float x;
    uint16_t h;
    if (w->type == DT_F32) memcpy(&x, w->p.p + 4 * i, 4);
    else memcpy(&h, w->p.p + 2 * i, 2);
    return w->type == DT_F32 ? x : w->type == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* ---- tests ---- */

static void test_single(void)
{
    err e = {0};
    model *m;
    write_good("", true);
    if (!is_ok(model_open(&m, DIR_NAME, be, &e), &e, "one file")) return;
    is_int((long long)swiglu_at(m, 1)->down.rows, 8, "rows");
    is_int((long long)swiglu_at(m, 1)->down.cols, 12, "columns");
    ok(element(&swiglu_at(m, 1)->down, 5) == 1805, "values are those of the file");
    ok(element(&m->norm, 7) == 1907 && m->norm.rows == 1, "a vector has one row");
    ok(element(&m->lm_head, 79) == 2079 && m->lm_head.p.p != m->embed.p.p, "lm_head of its own");
    ok(!attention_at(m, 0)->q_bias.p.p && !attention_at(m, 0)->q_norm.p.p, "no biases, no q/k norm");
    is_int((long long)m->weight_bytes, 4 * m->config.n_params, "weight bytes");
    is_int((long long)m->decode_bytes, 4 * (m->config.n_params - 9 * 8), "a token reads one embedding row");
    is_int(m->type, DT_F32, "type");
    is_str(m->name, DIR_NAME, "name");
    model_close(m);
    model_close(NULL);
}

static void test_tied(void)
{
    err e = {0};
    model *m;
    /* The files may have either matrix, or both with the same values. */
    for (int kind = 0; kind < 3; kind++) {
        write_good(TIED, kind > 0);
        if (kind == 1) get("model.embed_tokens.weight")->absent = true;
        if (kind == 2) get("lm_head.weight")->like = "model.embed_tokens.weight";
        write_weights("model.safetensors", -1, 0);
        if (!is_ok(model_open(&m, DIR_NAME, be, &e), &e, "tied, kind %d", kind)) continue;
        ok(element(&m->embed, 3) == (kind == 1 ? 2003 : 3), "the embedding");
        ok(m->lm_head.p.p == m->embed.p.p, "lm_head is the embedding");
        is_int((long long)m->weight_bytes, 4 * m->config.n_params, "counted once");
        is_int((long long)m->decode_bytes, (long long)m->weight_bytes, "a token reads all of it");
        model_close(m);
    }
}

/* Transformers ties only equal matrices. */
static void test_not_tied(void)
{
    err e = {0};
    model *m;
    for (int kind = 0; kind < 2; kind++) {
        write_good(TIED, true);
        if (kind == 1) strcpy(get("lm_head.weight")->type, "F16");
        write_weights("model.safetensors", -1, 0);
        if (!is_ok(model_open(&m, DIR_NAME, be, &e), &e, "tied by config.json, another lm_head")) continue;
        ok(!m->config.tied && element(&m->lm_head, 3) == 2003, "is not tied");
        ok(kind || (long long)m->weight_bytes == 4 * m->config.n_params, "counted");
        model_close(m);
    }
}

/* The names of all tensors of one layer (-1: all tensors) lose the base model's prefix. */
static void strip(int layer)
{
    char part[32];
    snprintf(part, sizeof part, ".layers.%d.", layer);
    for (size_t k = 0; k < n_tensors; k++) {
        made_tensor *t = &tensors[k];
        if (strncmp(t->name, "model.", 6) != 0 || (layer >= 0 && !strstr(t->name, part))) continue;
        memmove(t->name, t->name + 6, strlen(t->name) - 5);
    }
}

static void opens(const char *name)
{
    err e = {0};
    model *m;
    if (is_ok(model_open(&m, DIR_NAME, be, &e), &e, "%s", name))
        ok(element(&m->embed, 1) == 1 && element(&swiglu_at(m, 1)->down, 5) == 1805 && element(&m->norm, 7) == 1907 &&
               element(&m->lm_head, 79) == 2079,
           "  values are those of the file");
    model_close(m);
}

/* Names that transformers accepts: the base model's prefix is missing, or is one too many. */
static void test_names(void)
{
    write_good("", true);
    strip(-1);
    write_weights("model.safetensors", -1, 0);
    opens("no prefix");
    plan(true);
    strip(1);
    write_weights("model.safetensors", -1, 0);
    opens("one layer without a prefix");
    plan(true);
    for (size_t k = 0; k < n_tensors; k++) {
        memmove(tensors[k].name + 6, tensors[k].name, strlen(tensors[k].name) + 1);
        memcpy(tensors[k].name, "model.", 6);
    }
    write_weights("model.safetensors", -1, 0);
    opens("a prefix too many");
    clear_folder();
    plan(true);
    strip(-1);
    write_config("");
    write_weights("model-00001.safetensors", 0, 0);
    write_weights("model-00002.safetensors", 1, 0);
    write_index(NULL);
    opens("shards without a prefix");
}

static void test_mixed_and_unused(void)
{
    err e = {0};
    model *m;
    char text[4096] = "";
    clear_folder();
    plan(true);
    add("model.layers.0.self_attn.rotary_emb.inv_freq", 0, 2);
    strcpy(get("model.layers.0.self_attn.q_proj.weight")->type, "F16");
    strcpy(get("model.layers.1.mlp.up_proj.weight")->type, "BF16");
    write_config("");
    write_weights("model.safetensors", -1, 0);
    if (!is_ok(model_open(&m, DIR_NAME, be, &e), &e, "mixed dtypes, an unused tensor")) return;
    is_int(m->type, DT_F16, "the type is that of the first q_proj");
    is_int(swiglu_at(m, 1)->up.type, DT_BF16, "each keeps its own");
    ok(element(&attention_at(m, 0)->q, 7) == 207 && element(&swiglu_at(m, 1)->up, 0) == 1696,
       "values, in their precision");
    FILE *f = fmemopen(text, sizeof text, "w");
    if (f) {
        model_print_info(m, f);
        fclose(f);
    }
    ok(strstr(text, "f32 (") && strstr(text, "f16 (1 tensors") && strstr(text, "bf16 (1 tensors"), "info: dtypes");
    ok(strstr(text, "not used       1 tensors"), "info: unused tensors");
    ok(strstr(text, DIR_NAME "/model.safetensors"), "info: files");
    ok(strstr(text, "KV per token   64 bytes"), "info: KV bytes");
    model_close(m);
}

static void test_unaligned(void)
{
    err e = {0};
    model *m;
    char text[4096] = "";
    write_good("", true);
    write_weights("model.safetensors", -1, 3);
    if (!is_ok(model_open(&m, DIR_NAME, be, &e), &e, "tensors at odd addresses")) return;
    ok((uintptr_t)attention_at(m, 0)->q.p.p % 4 == 0 && element(&attention_at(m, 0)->q, 9) == 209, "are copied");
    FILE *f = fmemopen(text, sizeof text, "w");
    if (f) {
        model_print_info(m, f);
        fclose(f);
    }
    ok(strstr(text, "copied         21 tensors"), "info says so");
    model_close(m);
}

static void test_sharded(void)
{
    err e = {0};
    model *m;
    write_sharded();
    if (is_ok(model_open(&m, DIR_NAME, be, &e), &e, "two shards"))
        ok(element(&swiglu_at(m, 1)->down, 5) == 1805 && element(&m->norm, 7) == 1907, "values of both");
    model_close(m);
    write_weights("model.safetensors", -1, 0);
    write_text("model.safetensors.index.json", "garbage");
    is_ok(model_open(&m, DIR_NAME, be, &e), &e, "the single file comes first");
    model_close(m);
}

/* The folder must be refused with file and field in the message. */
static void refuse(status want, const char *file, const char *part, const char *name)
{
    err e = {0};
    model *m;
    is_err(model_open(&m, DIR_NAME, be, &e), &e, want, part, "%s", name);
    if (!ok(strstr(e.msg, file) && !m, "  names %s", file)) printf("#   %s\n", e.msg);
    model_close(m);
}

static void test_bad_tensors(void)
{
    const char *file = DIR_NAME "/model.safetensors";
    write_good("", false);
    refuse(ST_FORMAT, file, "tensor lm_head.weight is missing and config.json does not set", "no lm_head, not tied");
    plan(true);
    get("model.layers.1.mlp.up_proj.weight")->absent = true;
    write_weights("model.safetensors", -1, 0);
    refuse(ST_FORMAT, file, "tensor model.layers.1.mlp.up_proj.weight is missing", "missing tensor");
    plan(true);
    get("model.layers.0.self_attn.k_proj.weight")->shape[0] = 16;
    write_weights("model.safetensors", -1, 0);
    refuse(ST_FORMAT, file, "model.layers.0.self_attn.k_proj.weight has shape [16, 8], config.json requires [8, 8]",
           "wrong shape");
    plan(true);
    get("model.norm.weight")->rank = 2;
    get("model.norm.weight")->shape[0] = 1;
    write_weights("model.safetensors", -1, 0);
    refuse(ST_FORMAT, file, "tensor model.norm.weight has shape [1, 8], config.json requires [8]", "wrong rank");
    plan(true);
    strcpy(get("model.embed_tokens.weight")->type, "I32");
    write_weights("model.safetensors", -1, 0);
    refuse(ST_UNSUPPORTED, file, "tensor model.embed_tokens.weight has dtype I32; supported: F32, F16, BF16",
           "wrong dtype");
    write_good("", true);
    add("norm.weight", 0, 8);
    write_weights("model.safetensors", -1, 0);
    refuse(ST_FORMAT, file, "tensors model.norm.weight and norm.weight are the same weight; remove one", "two names");
    write_good(",\"attention_bias\":true", true);
    refuse(ST_FORMAT, file, "tensor model.layers.0.self_attn.q_proj.bias is missing", "missing bias");
}

static void test_bad_index(void)
{
    const char *file = DIR_NAME "/model.safetensors.index.json";
    write_sharded();
    unlink(DIR_NAME "/model-00002.safetensors");
    refuse(ST_IO, DIR_NAME "/model-00002.safetensors", "No such file", "missing shard");
    write_sharded();
    write_index("model-00001.safetensors");
    refuse(ST_FORMAT, DIR_NAME "/model-00001.safetensors", "tensor model.norm.weight is missing, although the index",
           "the shard lacks its tensor");
    static const char *const names[] = {"../model-00001.safetensors", "/etc/passwd", "..", ".", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        write_index(names[i]);
        refuse(ST_FORMAT, file, "model.norm.weight is in \"", "a shard outside the folder");
    }
    get("model.norm.weight")->absent = true;
    write_index(NULL);
    refuse(ST_FORMAT, file, "\"weight_map\" lacks tensor model.norm.weight", "a tensor without shard");
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"model.embed_tokens.weight\":1}}");
    refuse(ST_FORMAT, file, "(not a string)", "a shard that is a number");
    write_text("model.safetensors.index.json", "{\"weight_map\":[]}");
    refuse(ST_FORMAT, file, "\"weight_map\" is missing or not an object", "weight_map is a list");
    write_text("model.safetensors.index.json", "{\"weight_map\"");
    refuse(ST_FORMAT, file, "not valid JSON", "a broken index");
}

static void test_nonfinite(void)
{
    err e = {0};
    model *m;
    char name[80];
    write_good("", true);
    FILE *f = fopen(DIR_NAME "/model.safetensors", "r+b");
    const float nan_value = bits_to_f32(0x7fc00000);
    if (!f) exit(1);
    if (is_ok(model_open(&m, DIR_NAME, be, &e), &e, "finite weights"))
        ok(model_find_nonfinite(m, name, sizeof name) == ST_OK && !*name, "are found finite");
    model_close(m);
    fseek(f, -4 * 80 - 4, SEEK_END); /* the last element before lm_head */
    fwrite(&nan_value, 4, 1, f);
    fclose(f);
    if (is_ok(model_open(&m, DIR_NAME, be, &e), &e, "a NaN does not stop the opening")) {
        is_int(model_find_nonfinite(m, name, sizeof name), ST_FORMAT, "but it is found");
        is_str(name, "model.norm.weight", "and named");
    }
    model_close(m);
}

static void test_out_of_memory(void)
{
    write_sharded();
    oom_run folder = {0}, shape = {0};
    model *m;
    while (oom_next(&folder)) {
        oom_saw(&folder, model_open(&m, DIR_NAME, be, &folder.e), &m);
        model_close(m);
    }
    oom_ok(&folder, 0, "a folder");
    while (oom_next(&shape)) {
        oom_saw(&shape, model_open_shape(&m, "tiny", DT_F16, 1, be, &shape.e), &m);
        model_close(m);
    }
    oom_ok(&shape, 0, "a random model");
}

static void test_shapes(void)
{
    static const struct {
        const char *name;
        long long n_params;
    } want[] = {
        {"llama-3.2-1b", 1235814400},
        {"llama-3.2-3b", 3212749824},
        {"llama-3.1-8b", 8030261248},
        {"mistral-7b-v0.3", 7248023552},
        {"qwen2.5-7b", 7615616512},
        {"qwen3-0.6b", 596049920},
        {"qwen3-8b", 8190735360},
        {"qwen3-30b-a3b", 30532122624},
        {"qwen3-8b:layers=35", 8190735360 - 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288) - 2 * (4096 + 128)},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        err e = {0};
        model_config c;
        if (is_ok(model_shape_config(&c, want[i].name, &e), &e, "%s", want[i].name))
            is_int(c.n_params, want[i].n_params, "  published number of parameters");
        model_config_free(&c);
    }
    err e = {0};
    model *m;
    is_err(model_open_shape(&m, "gpt-5", DT_BF16, 1, be, &e), &e, ST_USAGE,
           "known: llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, mistral-7b-v0.3, qwen2.5-7b, qwen3-0.6b, qwen3-8b, "
           "qwen3-30b-a3b, tiny",
           "an unknown shape");
    static const char *const bad[] = {":layers=0", ":layers=",     ":layers=-1", ":layers=2x",
                                      ":depth=2",  ":layers=4097", ":"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[40];
        e = (err){0};
        snprintf(name, sizeof name, "tiny%s", bad[i]);
        is_err(model_open_shape(&m, name, DT_BF16, 1, be, &e), &e, ST_USAGE, "is not :layers=N, with N", "%s", name);
    }
}

static void test_random(void)
{
    for (dtype t = DT_F32; t <= DT_BF16; t++) {
        err e = {0};
        model *m, *again;
        char name[80];
        if (!is_ok(model_open_shape(&m, "tiny", t, 7, be, &e), &e, "a random model in %s", dtype_name(t))) continue;
        ok(m->type == t && m->weight_bytes == (size_t)m->config.n_params * dtype_size(t), "type and bytes");
        ok(element(&attention_at(m, 0)->norm, 3) == 1, "norms are 1");
        double sum = 0, sum2 = 0;
        size_t n = swiglu_at(m, 1)->gate.rows * swiglu_at(m, 1)->gate.cols;
        for (size_t i = 0; i < n; i++) {
            double x = (double)element(&swiglu_at(m, 1)->gate, i);
            sum += x;
            sum2 += x * x;
        }
        ok(fabs(sum / (double)n) < 0.002 && sum2 / (double)n > 0.0003 && sum2 / (double)n < 0.0005,
           "mean 0, deviation 0.02");
        ok(model_find_nonfinite(m, name, sizeof name) == ST_OK, "finite");
        if (is_ok(model_open_shape(&again, "tiny", t, 7, be, &e), &e, "again")) {
            ok(memcmp(m->embed.p.p, again->embed.p.p, m->embed.rows * m->embed.cols * dtype_size(t)) == 0,
               "the same seed gives the same weights");
            model_close(again);
        }
        model_close(m);
    }
}

/* Returns the bytes by which f32 vectors made at load exceed those of the files. */
static long long derived_more(const model *m)
{
    size_t n = 0;
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        if (weight_is_derived(w)) n += w->cols * (sizeof(float) - (w->constant ? 0 : dtype_size(m->type)));
    return (long long)n;
}

/* Every checkpoint that the parity tests use. */
static void test_fixtures(void)
{
    const char *root = tap_path("tests/data/models");
    DIR *d = opendir(root);
    int n_models = 0;
    if (!ok(d, "tests/data/models is there")) return;
    for (const struct dirent *x; (x = readdir(d));) {
        char dir[4500], name[80], path[4600];
        snprintf(dir, sizeof dir, "%s/%s", root, x->d_name);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (x->d_name[0] == '.' || !file_exists(path)) continue;
        err e = {0};
        model *m;
        if (!is_ok(model_open(&m, dir, be, &e), &e, "%s opens", x->d_name)) continue;
        n_models++;
        is_int((long long)m->weight_bytes, m->config.n_params * (long long)dtype_size(m->type) + derived_more(m),
               "  weight bytes");
        ok(model_find_nonfinite(m, name, sizeof name) == ST_OK, "  finite");
        model_close(m);
    }
    closedir(d);
    is_int(n_models, 21, "checkpoints");
    const char *real = tap_data("models/stories260K/hf");
    err e = {0};
    model *m = NULL;
    if (!real) tap_skip("models/stories260K is not there");
    else if (is_ok(model_open(&m, real, be, &e), &e, "stories260K")) is_int(m->config.n_layers, 5, "layers");
    model_close(m);
}

int main(void)
{
    err e = {0};
    if (!is_ok(backend_open(&be, &(backend_options){.device = "ref"}, &e), &e, "backend")) return tap_done();
    mkdir(DIR_NAME, 0777);
    test_single();
    test_tied();
    test_not_tied();
    test_names();
    test_mixed_and_unused();
    test_unaligned();
    test_sharded();
    test_bad_tensors();
    test_bad_index();
    test_nonfinite();
    test_out_of_memory();
    test_shapes();
    test_random();
    test_fixtures();
    clear_folder();
    rmdir(DIR_NAME);
    backend_close(be);
    return tap_done();
}
